/*
 * onepot run: mount, run a command, and unmount, whatever happens to the command.
 *
 * The command is a child, since somebody has to unmount after it has ended and before this
 * process does: a batch system kills the rest of a step at once. (If this process became the
 * command by exec, nobody would have to pass on a signal, but its end would be the step's, a
 * mount would be left, and no exit status could say that the daemon died.)
 *
 * A signal that only this process gets is passed on. One that is sent to the process group, as
 * a terminal does, or to every process of a step, as a batch system does, reaches the command
 * by itself. Two witnesses tell these apart (below). A batch system sends to one process
 * after the other, so the witness is given a moment.
 *
 * sigtimedwait leaves no race between a signal and the wait for a child.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "interrupt.h"
#include "mounter.h"
#include "process.h"
#include "summary.h"
#include "syscalls.h"

/*
 * Who else got a signal? A process can't see whether a signal was sent to it alone, to its
 * process group, or to every process of a job, one after the other, as batch systems do. But
 * it decides whether the signal has to be passed on: to a command that has it already it would
 * come twice.
 *
 * A witness shows it: a child that blocks every signal, so that every signal to it stays
 * pending. The sender itself makes it so; the witness need not run for that, however busy the
 * node is. It lies in the group of its maker, and gets every signal to the group, or in
 * another, and gets only signals to each process.
 *
 * A witness is forked and never executes: it holds no descriptor, no directory, and no more
 * memory than the pages of its stack. It could take a pending signal only when it runs, so
 * another takes its place to forget one.
 */
struct witness {
    bool in_group;
    /*
     * Arguments of this process that the witness does not show (or NULL): it is found by the
     * words by which the rest is found, as `pkill -f` does.
     */
    char *hidden;
    size_t hidden_len;

    pid_t pid;        /* 0: there is none, and nothing is seen */
    uint64_t earlier; /* signals that those before it got */
};

static _Noreturn void witness_main(const struct witness *witness, pid_t maker)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != maker || chdir("/") < 0)
        _exit(0);
    if (!witness->in_group) {
        setpgid(0, 0);
        for (int number = 1; number < NSIG; number++)
            signal(number, SIG_IGN); /* forgets the group's signals meanwhile */
    }
    prctl(PR_SET_NAME, "signal-witness");
    if (witness->hidden)
        memset(witness->hidden, 0, witness->hidden_len);
    syscall_close_range(0, ~0u); /* pipes and locks of its maker; and says that it is ready */
    for (;;)
        pause();
}

/* Start it. It ends with the calling thread. */
static void witness_start(struct witness *witness)
{
    pid_t maker = getpid();
    int ready[2];
    char ignored;
    witness->pid = 0;
    if (pipe2(ready, O_CLOEXEC) < 0)
        return;
    pid_t pid = fork();
    if (pid == 0)
        witness_main(witness, maker);
    close(ready[1]);
    while (pid > 0 && read(ready[0], &ignored, 1) < 0 && errno == EINTR)
        ;
    close(ready[0]);
    witness->pid = pid > 0 ? pid : 0;
}

static void witness_end(struct witness *witness)
{
    if (witness->pid)
        process_discard(witness->pid);
    witness->pid = 0;
}

/* The signals that it has got, as a set. */
static uint64_t witness_pending(const struct witness *witness)
{
    uint64_t pending;
    return witness->pid && process_status_number(witness->pid, "\nShdPnd:", 16, &pending)
               ? pending
               : 0;
}

/* Did it get this signal since it was started, or since that was forgotten? */
static bool witness_saw(const struct witness *witness, int number)
{
    return (witness->earlier | witness_pending(witness)) >> (number - 1) & 1;
}

/* The new one begins before the old one ends, so that no signal comes between. */
static void witness_forget(struct witness *witness, int number)
{
    struct witness before = *witness;
    witness_start(witness);
    witness->earlier |= witness_pending(&before);
    witness->earlier &= ~(UINT64_C(1) << (number - 1));
    witness_end(&before);
}

enum {
    RUN_FAILED = CLI_RUN_FAILED,
    RUN_NOT_EXECUTABLE = 126,
    RUN_NOT_FOUND = 127,
    RUN_SIGNALLED = 128, /* plus the signal's number */

    ALL_GET_IT_MS = 250, /* within which all processes of a job get a signal that is for all */
    WITNESS_STEP_MS = 5,
    ARGUMENTS_MAX = 4 << 20,
};

static int run_main(int argc, char **argv);

const struct cli_command command_run = {
    "run", run_main, "mount, run a command on it, unmount",
    "[OPTION...] ARCHIVE... [--at DIR] -- COMMAND [ARGUMENT...]",
    "Mount archives as one directory, run COMMAND, unmount. {} in COMMAND and its arguments "
    "becomes the\n"
    "path of the mount; the variable ONEPOT_MOUNT has it, too. The exit status is that of\n"
    "COMMAND: 128 and the number of a signal that ended it; 125 if there was no mount, 126\n"
    "if it can't be executed, 127 if it was not found.\n"};

struct run {
    struct mounter m;
    char **command; /* NULL-terminated */
    sigset_t mask;  /* as this process found them; the command gets them: */
    struct rlimit files;
    bool has_told;         /* why reads fail */
    struct witness beside; /* in the group of this process */
    struct witness apart;  /* in no group that the command is in */
};

/* ---- the command ---- */

/* `text` with every {} replaced by `path`. */
static char *fill_in(const char *text, const char *path)
{
    size_t count = 0;
    for (const char *p = text; (p = strstr(p, "{}")); p += 2)
        count++;
    char *filled = malloc(strlen(text) + count * strlen(path) + 1), *to = filled;
    if (!filled)
        return NULL;
    for (const char *next; (next = strstr(text, "{}")); text = next + 2) {
        to = mempcpy(to, text, (size_t)(next - text));
        to = stpcpy(to, path);
    }
    strcpy(to, text);
    return filled;
}

/*
 * Is there a file of that name in $PATH? execvp also reports "permission denied" if a folder of
 * $PATH is closed to us and nothing was found.
 */
static bool is_in_path(const char *name)
{
    const char *path = getenv("PATH");
    bool found = false;

    if (strchr(name, '/'))
        return true;
    for (const char *dir = path; dir && !found; dir = strchr(dir, ':')) {
        char *file;
        dir += *dir == ':';
        if (asprintf(&file, "%.*s/%s", (int)strcspn(dir, ":"), dir, name) < 0)
            return true;
        found = access(file, F_OK) == 0;
        free(file);
    }
    return found;
}

/*
 * Reset caught signals to the default before any is unblocked: a signal between here and exec
 * is the command's, and our handler would lose it.
 */
static void uncatch_signals(void)
{
    struct sigaction action;

    for (int number = 1; number < NSIG; number++)
        if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN &&
            action.sa_handler != SIG_DFL)
            signal(number, SIG_DFL);
}

static int set_environment(const struct run *run)
{
    struct mounter_variable variables[MOUNTER_VARIABLES];
    int r = setenv("ONEPOT_MOUNT", run->m.path, 1);

    if (r < 0 || mounter_preload(&run->m, run->command[0], variables) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < MOUNTER_VARIABLES && variables[i].name && r == 0; i++)
        r = variables[i].value ? setenv(variables[i].name, variables[i].value, 1)
                               : unsetenv(variables[i].name);
    return r < 0 ? -ENOMEM : 0;
}

/* In the child: become the command. */
static void execute_command(void *ctx)
{
    struct run *run = ctx;

    for (char **arg = run->command; *arg; arg++) {
        char *filled = fill_in(*arg, run->m.path);
        if (!filled)
            _exit(RUN_FAILED);
        *arg = filled;
    }
    if (set_environment(run) < 0)
        _exit(RUN_FAILED);
    uncatch_signals();
    sigprocmask(SIG_SETMASK, &run->mask, NULL);
    setrlimit(RLIMIT_NOFILE, &run->files); /* raised for many archives */
    execvp(run->command[0], run->command);
    int err = errno;
    if (err == EACCES && !is_in_path(run->command[0]))
        err = ENOENT;
    if (err == ENOENT && !strchr(run->command[0], '/'))
        cli_failf(run->command[0], "no such command in $PATH");
    else
        cli_failf(run->command[0], "can't be executed: %s", fault_errno(err));
    _exit(err == ENOENT ? RUN_NOT_FOUND : RUN_NOT_EXECUTABLE);
}

/* Its PID, or -errno. In a private namespace it was started earlier, and waits. */
static pid_t start_command(struct run *run)
{
    if (run->m.mounted.ns.sock >= 0) {
        pid_t pid = run->m.mounted.ns.child;
        int r = namespace_go(&run->m.mounted.ns);
        return r < 0 ? r : pid;
    }
    pid_t pid = fork();
    if (pid == 0)
        execute_command(run);
    return pid < 0 ? -errno : pid;
}

/* ---- signals ---- */

/* Signals that are waited for. */
static const struct {
    int number;
    bool is_early; /* may come before the command that it is for, and waits for it */
} signals[] = {
    {SIGTERM, false}, {SIGHUP, false},  {SIGUSR1, true},  {SIGUSR2, true},  {SIGINT, false},
    {SIGQUIT, false}, {SIGCHLD, false}, {SIGTSTP, false}, {SIGCONT, false},
};
#define SIGNAL_COUNT (sizeof(signals) / sizeof(signals[0]))

/* Block all of them, or the early ones; *ret_before is the mask as it was. */
static void block_signals(bool early_only, sigset_t *ret_set, sigset_t *ret_before)
{
    sigemptyset(ret_set);
    for (size_t i = 0; i < SIGNAL_COUNT; i++)
        if (signals[i].is_early || !early_only)
            sigaddset(ret_set, signals[i].number);
    sigprocmask(SIG_BLOCK, ret_set, ret_before);
}

/* Stop as the terminal wants it; but go on in a group that nobody could continue. */
static void stop_here(void)
{
    sigset_t set, old;
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &set, &old);
    sigprocmask(SIG_SETMASK, &old, NULL);
}

/*
 * Start the witnesses, after the command: a signal to all that comes before that is passed on
 * once too often. In the other order it would be lost.
 */
static void start_witnesses(struct run *run)
{
    char *first = program_invocation_name, *behind = run->command[0];
    if (first < behind && behind - first < ARGUMENTS_MAX)
        run->beside.hidden = run->apart.hidden = first;
    run->beside.hidden_len = run->apart.hidden_len = (size_t)(behind - first);
    run->beside.in_group = true;
    witness_start(&run->beside);
    witness_start(&run->apart);
}

/* Does the command have this signal already? */
static bool has_signal(struct run *run, pid_t command, int number)
{
    const struct witness *w = getpgid(command) == getpgrp() ? &run->beside : &run->apart;
    bool saw = witness_saw(w, number);

    for (int waited = 0; !saw && waited < ALL_GET_IT_MS; waited += WITNESS_STEP_MS) {
        poll(NULL, 0, WITNESS_STEP_MS);
        saw = witness_saw(w, number);
    }
    witness_forget(&run->beside, number);
    witness_forget(&run->apart, number);
    return saw;
}

static void command_run_pass_on(struct run *run, pid_t command, const siginfo_t *info)
{
    const int number = info->si_signo;

    if (!has_signal(run, command, number))
        kill(command, number);
    if (number == SIGTSTP)
        stop_here();
}

/* ---- waiting ---- */

static void report_daemon(struct run *run, int status)
{
    const struct counters *c = run->m.slot->counters;

    run->m.daemon = 0;
    if (c->extracted && atomic_load(&c->state) == MOUNT_SERVING)
        return; /* the files are there without it */
    if (WIFSIGNALED(status))
        cli_failf(run->m.path,
                  "its daemon was killed by signal %d; what the command has not read "
                  "yet, it can't read any more",
                  WTERMSIG(status));
    else
        cli_failf(run->m.path, "the mount was ended while the command ran");
}

/* Say once, while the command runs, why its reads fail. */
static void report_trouble(struct run *run)
{
    const char *trouble = summary_trouble(run->m.slot->counters);
    if (!trouble || run->has_told)
        return;
    run->has_told = true;
    cli_failf(NULL, "%s", trouble);
}

/* True when the command has ended. */
static bool reap_children(struct run *run, pid_t command, int *ret_status)
{
    pid_t pid;
    int status;
    bool ended = false;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (pid == command) {
            *ret_status = status;
            ended = true;
        } else if (pid == run->m.daemon) {
            report_daemon(run, status);
        }
    }
    return ended;
}

static int wait_command(struct run *run, pid_t command, const sigset_t *set)
{
    const struct timespec look_again = {.tv_sec = 1};
    siginfo_t info;
    int status = 0;

    for (;;) {
        if (sigtimedwait(set, &info, &look_again) < 0) {
            report_trouble(run); /* or an unrelated signal came (EINTR) */
            continue;
        }
        if (info.si_signo != SIGCHLD)
            command_run_pass_on(run, command, &info);
        else if (reap_children(run, command, &status))
            break;
    }
    return WIFSIGNALED(status) ? RUN_SIGNALLED + WTERMSIG(status) : WEXITSTATUS(status);
}

static int command_run_run(struct run *run)
{
    sigset_t set;

    mounter_keep(&run->m); /* if the daemon has already died, that is reported later */
    block_signals(false, &set, NULL);
    pid_t command = mounter_caught() ? -EINTR : start_command(run);
    if (command < 0) {
        if (!mounter_caught())
            cli_failf(NULL, "the command can't be started: %s%s", fault_errno(command),
                      fault_limit(command));
        mounter_release(&run->m);
        return RUN_FAILED;
    }
    signal(SIGTTOU, SIG_IGN); /* the last line may come from the background */
    start_witnesses(run);
    int status = wait_command(run, command, &set);
    witness_end(&run->beside);
    witness_end(&run->apart);
    enum mounter_end end = mounter_release(&run->m);
    if (end != MOUNTER_ENDED) /* else the closing line says it */
        report_trouble(run);
    if (end == MOUNTER_DIED &&
        run->m.daemon > 0) /* which outlives a mount that others copied */
        report_daemon(run, 0);
    if (end == MOUNTER_DIED && status == 0) {
        cli_failf(run->m.path, "the mount ended before the command did, which may have missed "
                               "some of it");
        status = RUN_FAILED;
    }
    return status;
}

/* ---- the command line ---- */

static int run_main(int argc, char **argv)
{
    struct run run = {0};
    sigset_t early;
    struct mount_options options;
    int words = cli_count_behind_dashes(argc, argv); /* of the command */
    int own = words < 0 ? argc : argc - words - 1;
    int status = mount_options_parse(&command_run, true, own, argv, &options);

    if (status != CLI_GO_ON)
        return status;
    if (words <= 0)
        return cli_usage_error(&command_run, "no command was given: write it after '--'");
    run.command = argv + argc - words;
    getrlimit(RLIMIT_NOFILE, &run.files);
    block_signals(true, &early, &run.mask);
    int r = mounter_init(&run.m, &options, true);
    if (r < 0)
        return cli_fail(NULL, r, NULL), RUN_FAILED;
    run.m.launch = execute_command;
    run.m.launch_ctx = &run;
    status = mounter_start(&run.m) == CLI_GO_ON ? command_run_run(&run) : RUN_FAILED;
    mounter_free(&run.m);
    if (mounter_caught()) /* before the command existed */
        interrupt_die_of(mounter_caught());
    return status;
}
