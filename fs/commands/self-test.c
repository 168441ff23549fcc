/*
 * onepot self-test: try on this node what a job will want of it.
 *
 * A tree of a few hundred files is packed and read in every way there is. What was read is
 * packed again, and that archive must be the first one, byte by byte. Commands run as children,
 * through the same functions as from a command line, so that a crash or a hang of one is a
 * result as well; what they print is shown only where one failed.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "doctor.h"
#include "interrupt.h"
#include "path.h"
#include "process.h"
#include "remove_tree.h"

static int self_test_main(int argc, char **argv);

const struct cli_command command_self_test = {
    "self-test", self_test_main, "try what onepot does on this node, in two seconds",
    "[--dir DIR]",
    "Try on this node, in about two seconds, all that a job needs: pack a few hundred files,\n"
    "read and extract them, mount the archive, compare, unmount. Tells what does not work and\n"
    "why. Exits with 0 if everything works.\n"};

enum {
    FILES = 300,
    FILES_OF_DOCTOR = 10,
    FOLDERS = 10,
    FILE_BYTES_MAX = 24000,
    TIME_LIMIT_S = 60, /* for one command */
    FIRST_TIME = 1000000000,
};

struct self_test {
    char dir[PATH_MAX - 64]; /* private; room for the names in it */
    char why[1024];          /* the present step's fault */
    char told[1024];         /* the reason that was printed last, without a file's name */
    unsigned tried, failed;
    struct findings *findings; /* the doctor's, or NULL */
};

static bool self_test_fail(struct self_test *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Note why a step fails; false. */
static bool self_test_fail(struct self_test *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(t->why, sizeof(t->why), format, args);
    va_end(args);
    return false;
}

static const char *path_in(const struct self_test *t, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/%s", t->dir, name);
    return path;
}

/* ---- the files, which follow from their numbers ---- */

static size_t self_test_content(unsigned number, uint8_t bytes[FILE_BYTES_MAX])
{
    size_t len = number == 0 ? 0 : number * 7919u % FILE_BYTES_MAX;
    uint32_t state = number;
    for (size_t i = 0; i < len; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(state >> (i & 64 ? 24 : 30)); /* a part compresses well */
    }
    return len;
}

static bool write_file(struct self_test *t, int tree, unsigned number)
{
    uint8_t bytes[FILE_BYTES_MAX];
    char name[64];
    size_t len = self_test_content(number, bytes);
    struct timespec times[2] = {{FIRST_TIME + number, 0}, {FIRST_TIME + number, 123456789}};
    snprintf(name, sizeof(name), "class-%u/%05u.sample", number % FOLDERS, number);
    auto_close int fd = openat(tree, name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, bytes, len) != (ssize_t)len || fchmod(fd, 0640) < 0 ||
        futimens(fd, times) < 0)
        return self_test_fail(t, "%s: %s", name, strerror(errno));
    return true;
}

static bool make_tree(struct self_test *t)
{
    char path[PATH_MAX];
    if (mkdir(path_in(t, "tree", path), 0700) < 0)
        return self_test_fail(t, "%s: %s", path, strerror(errno));
    auto_close int tree = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (unsigned i = 0; i < FOLDERS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "class-%u", i);
        if (mkdirat(tree, name, 0700) < 0)
            return self_test_fail(t, "%s: %s", name, strerror(errno));
    }
    for (unsigned i = 0; i < (t->findings ? FILES_OF_DOCTOR : FILES); i++)
        if (!write_file(t, tree, i))
            return false;
    if (symlinkat("class-1/00001.sample", tree, "link") < 0 ||
        linkat(tree, "class-1/00001.sample", tree, "class-1/hard", 0) < 0)
        return self_test_fail(t, "links: %s", strerror(errno));
    return true;
}

/* ---- commands ---- */

/* In a child. What it prints goes to the files "printed" and "said". */
static int child_run(const struct self_test *t, int argc, char **argv)
{
    char path[PATH_MAX];
    int out = open(path_in(t, "printed", path), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    int said = open(path_in(t, "said", path), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (dup2(out, STDOUT_FILENO) < 0 || dup2(said, STDERR_FILENO) < 0)
        return CLI_FAILED;
    close(out);
    close(said);
    setenv("XDG_CACHE_HOME", t->dir, 1);
    if (t->findings) /* a mount removes what dead ones left, and the doctor is to find it */
        setenv("ONEPOT_RUNTIME_DIR", t->dir, 1);
    alarm(TIME_LIMIT_S);
    optind = 0;
    return cli_finish(cli_run_command(argc, argv));
}

/* The beginning of a file that child_run wrote; "" if there is none. */
static void read_text(const struct self_test *t, const char *name, char *text, size_t size)
{
    char path[PATH_MAX];
    auto_close int fd = open(path_in(t, name, path), O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
    text[n > 0 ? n : 0] = '\0';
}

static void first_line(const struct self_test *t, const char *name, char *line, size_t size)
{
    read_text(t, name, line, size);
    line[strcspn(line, "\n")] = '\0';
}

/* An error is the last one: notes may come before it. */
static void last_line(const struct self_test *t, const char *name, char *line, size_t size)
{
    char text[4096];
    read_text(t, name, text, sizeof(text));
    size_t len = strlen(text);
    if (len > 0 && text[len - 1] == '\n')
        text[len - 1] = '\0';
    const char *before = strrchr(text, '\n');
    snprintf(line, size, "%.*s", (int)size - 1, before ? before + 1 : text);
}

/* onepot ARGV[0] ...; false if it failed, with its message. */
static bool run_onepot(struct self_test *t, char *const *argv)
{
    int argc = 0, status;
    char line[1000];
    while (argv[argc])
        argc++;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0)
        _exit(child_run(t, argc, (char **)argv));
    if (pid < 0)
        return self_test_fail(t, "no process can be started: %s", strerror(errno));
    int r = process_reap(pid, &status);
    if (r < 0)
        return self_test_fail(t, "waitpid: %s", strerror(-r));
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return true;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
        return self_test_fail(t, "'onepot %s' did not end within %d s", argv[0], TIME_LIMIT_S);
    if (WIFSIGNALED(status))
        return self_test_fail(t, "'onepot %s' was ended by signal %d", argv[0],
                              WTERMSIG(status));
    last_line(t, "said", line, sizeof(line));
    return self_test_fail(t, "%s", line);
}

#define RUN_ONEPOT(t, ...) run_onepot(t, (char *[]){__VA_ARGS__, NULL})

/* ---- steps ---- */

#define PLAIN "a.tar"
#define COMPRESSED "a.tar.zst"
#define FOREIGN "foreign.tar"

/* Does the file hold the same bytes as PLAIN? */
static bool is_plain(const struct self_test *t, const char *path)
{
    static char bytes[2][1 << 16];
    char plain[PATH_MAX];
    auto_close int a = open(path_in(t, PLAIN, plain), O_RDONLY | O_CLOEXEC);
    auto_close int b = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;
    do {
        n = read(a, bytes[0], sizeof(bytes[0]));
        if (n < 0 || read(b, bytes[1], sizeof(bytes[1])) != n ||
            memcmp(bytes[0], bytes[1], (size_t)n) != 0)
            return false;
    } while (n > 0);
    return true;
}

/* Does the folder hold what make_tree made, by this command or by another one? */
static bool compare_archive(struct self_test *t, const char *again)
{
    bool is_same = is_plain(t, again);
    unlink(again);
    return is_same ||
           self_test_fail(t, "other bytes, modes, times or links come back than were packed");
}

static bool compare_tree(struct self_test *t, const char *path)
{
    char again[PATH_MAX];
    path_in(t, "again.tar", again);
    return RUN_ONEPOT(t, "pack", "--quiet", "-o", again, (char *)path) &&
           compare_archive(t, again);
}

static bool pack_tree(struct self_test *t, const char *name)
{
    char tree[PATH_MAX], archive[PATH_MAX];
    path_in(t, "tree", tree);
    path_in(t, name, archive);
    return strcmp(name, COMPRESSED) == 0
               ? RUN_ONEPOT(t, "pack", "--zstd", "--quiet", "-o", archive, tree)
               : RUN_ONEPOT(t, "pack", "--quiet", "-o", archive, tree);
}

static bool step_pack(struct self_test *t, const char *name)
{
    char archive[PATH_MAX];
    return pack_tree(t, name) &&
           RUN_ONEPOT(t, "verify", "--quiet", (char *)path_in(t, name, archive));
}

static bool extract_and_compare(struct self_test *t, const char *name, const char *to)
{
    char archive[PATH_MAX], out[PATH_MAX];
    path_in(t, name, archive);
    path_in(t, to, out);
    return RUN_ONEPOT(t, "extract", "--quiet", "--preserve-permissions", "-C", out, archive) &&
           compare_tree(t, out);
}

static bool step_extract(struct self_test *t, const char *name)
{
    return extract_and_compare(t, PLAIN, "out") && extract_and_compare(t, name, "out.zst");
}

/* A tar with something behind its end is any tar: its own index no longer counts. */
static bool step_index(struct self_test *t, const char *name)
{
    static const char more[10240];
    char archive[PATH_MAX];
    if (!pack_tree(t, name))
        return false;
    auto_close int fd = open(path_in(t, name, archive), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (fd < 0 || write(fd, more, sizeof(more)) != (ssize_t)sizeof(more))
        return self_test_fail(t, "%s: %s", archive, strerror(errno));
    return RUN_ONEPOT(t, "index", archive) && extract_and_compare(t, name, "out.index");
}

static bool step_mount(struct self_test *t, const char *name)
{
    char archive[PATH_MAX], mountpoint[PATH_MAX], owner[32];
    snprintf(owner, sizeof(owner), "--owner=%d", (int)getpid());
    if (!RUN_ONEPOT(t, "mount", owner, (char *)path_in(t, name, archive)))
        return false;
    first_line(t, "printed", mountpoint, sizeof(mountpoint));
    if (compare_tree(t, mountpoint))
        return RUN_ONEPOT(t, "umount", mountpoint);
    char why[sizeof(t->why)];
    memcpy(why, t->why, sizeof(why));
    RUN_ONEPOT(t, "umount", "--lazy", mountpoint);
    memcpy(t->why, why, sizeof(why));
    return false;
}

/* The command that reads is this program: a node may have no other. */
static bool run_with(struct self_test *t, const char *name, char *option)
{
    char archive[PATH_MAX], again[PATH_MAX];
    path_in(t, name, archive);
    path_in(t, "again.tar", again);
    return RUN_ONEPOT(t, "run", option, archive, "--", "/proc/self/exe", "pack", "--force",
                      "--quiet", "-o", again, "{}") &&
           compare_archive(t, again);
}

static bool step_run(struct self_test *t, const char *name)
{
    return run_with(t, name, "--private=on");
}

static bool step_run_extract(struct self_test *t, const char *name)
{
    return run_with(t, name, "--extract");
}

static const struct step {
    bool (*run)(struct self_test *t, const char *name);
    const char *name; /* of the archive */
    const char *what;
    const char *subject; /* for the doctor; NULL: it is not asked */
    bool is_extra;       /* a node may do without it */
} steps[] = {
    {step_pack, PLAIN, "pack an archive, check it", NULL},
    {step_pack, COMPRESSED, "pack a compressed archive, check it", NULL},
    {step_extract, COMPRESSED, "extract both, compare", NULL},
    {step_mount, PLAIN, "mount, read, compare, unmount", "trial"},
    {step_mount, COMPRESSED, "the same of the compressed archive", NULL},
    {step_run, PLAIN, "run a command in namespaces of its own", "namespaces", true},
    {step_run_extract, PLAIN, "run a command on plain files (--extract)", "plain files"},
    {step_index, FOREIGN, "read a tar of another program", NULL},
};
#define STEP_COUNT (sizeof steps / sizeof steps[0])

static bool is_built(const struct step *step)
{
    return step->run == step_pack || step->run == step_extract || step->run == step_index ||
           command_mount.run;
}

/* "onepot: FILE: reason" without what comes before the reason. */
static const char *reason_of(const char *why)
{
    const char *text = strncmp(why, "onepot: ", 8) == 0 ? why + 8 : why;
    const char *end = *text == '/' ? strstr(text, ": ") : NULL;
    return end ? end + 2 : text;
}

static void run_step(struct self_test *t, const struct step *step)
{
    uint64_t since = now_ns();
    if (!is_built(step)) {
        printf("  --     %s: not in this build\n", step->what);
        return;
    }
    t->tried += !step->is_extra;
    if (step->run(t, step->name)) {
        printf("  ok     %-38s %s\n", step->what, cli_time(now_ns() - since));
        return;
    }
    t->failed += !step->is_extra;
    const char *mark = step->is_extra ? "--    " : "FAILED", *reason = reason_of(t->why);
    if (strcmp(reason, t->told) == 0) {
        printf("  %s %s, for the same reason\n", mark, step->what);
        return;
    }
    snprintf(t->told, sizeof(t->told), "%.*s", (int)sizeof(t->told) - 1, reason);
    printf("  %s %s\n         ", mark, step->what);
    cli_print_safe(stdout, t->why, strlen(t->why));
    putchar('\n');
}

/* ---- the directory ---- */

static bool make_directory(struct self_test *t, const char *given)
{
    const char *tmp = getenv("TMPDIR");
    const char *places[] = {given, given ? NULL : tmp, given ? NULL : "/tmp",
                            given ? NULL : "/dev/shm"};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        /* Commands would take '-x/...' for an option. */
        char place[PATH_MAX];
        if (places[i] && *places[i] && path_real(places[i], place, NULL) == 0 &&
            snprintf(t->dir, sizeof(t->dir), "%s/onepot-self-test-XXXXXX", place) <
                (int)sizeof(t->dir) &&
            mkdtemp(t->dir) && chown(t->dir, (uid_t)-1, getegid()) == 0 &&
            chmod(t->dir, 0700) == 0) /* the group of a namespace, whatever the place's is */
            return true;
    }
    cli_failf(given, "no directory can be made%s: %s; name another: --dir=DIR",
              given ? "" : " in $TMPDIR, /tmp or /dev/shm", strerror(errno));
    return false;
}

/* ---- the command ---- */

/*
 * Do something with the files in a new directory, which is removed whatever signal comes.
 * False after an error was printed: there are no files.
 */
static bool with_tree(struct self_test *t, const char *dir, void (*work)(struct self_test *t))
{
    if (!make_directory(t, dir))
        return false;
    interrupt_catch();
    void (*on_pipe)(int) = signal(SIGPIPE, SIG_IGN);
    mode_t mask = umask(022);
    bool is_made = make_tree(t);
    if (is_made)
        work(t);
    else
        cli_failf(t->dir, "the files for the test can't be made: %s", t->why);
    remove_tree(AT_FDCWD, t->dir, UINT64_MAX);
    umask(mask);
    signal(SIGPIPE, on_pipe);
    interrupt_handle(SIG_DFL); /* the doctor goes on, and may wait for storage */
    if (atomic_load(interrupt_flag()))
        interrupt_die();
    return is_made;
}

static void run_steps(struct self_test *t)
{
    struct utsname system = {0};
    uname(&system);
    printf("onepot %s on Linux %s, %s, in %s\n", ONEPOT_VERSION, system.release, system.machine,
           t->dir);
    for (size_t i = 0; i < STEP_COUNT && !atomic_load(interrupt_flag()); i++)
        run_step(t, &steps[i]);
    if (atomic_load(interrupt_flag()))
        return;
    if (t->failed)
        printf("%u of %u do not work here; 'onepot doctor' shows what this node allows\n",
               t->failed, t->tried);
    else
        printf("everything works\n");
}

static int self_test_main(int argc, char **argv)
{
    struct self_test t = {0};
    const char *dir = NULL;
    const struct cli_option options[] = {
        {"--dir=DIR", "work in DIR (default: $TMPDIR, /tmp or /dev/shm)", .text = &dir},
        {NULL},
    };
    int status = cli_parse(&command_self_test, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind < argc)
        return cli_usage_error(&command_self_test, "unexpected argument '%s'", argv[optind]);
    return with_tree(&t, dir, run_steps) && !t.failed ? CLI_OK : CLI_FAILED;
}

/* ---- for the doctor ---- */

/* The message of a failure: what is wrong; what to do. */
static void add_failure(struct findings *f, const struct step *step, const char *why)
{
    const char *reason = reason_of(why), *end = strstr(reason, "); ");
    size_t len = end ? (size_t)(end - reason) + 1 : strlen(reason);
    finding_add(f, step->is_extra ? FINDING_FACT : FINDING_WRONG, step->subject, "%s: %.*s",
                step->what, (int)len, reason);
    if (end)
        finding_advise(f, "%s", end + 3);
}

static void ask_steps(struct self_test *t)
{
    if (!pack_tree(t, PLAIN))
        finding_add(t->findings, FINDING_WRONG, "trial", "%s", reason_of(t->why));
    for (size_t i = 0; i < STEP_COUNT && !t->why[0] && !atomic_load(interrupt_flag()); i++) {
        if (!steps[i].subject)
            continue;
        if (steps[i].run(t, steps[i].name))
            finding_add(t->findings, FINDING_GOOD, steps[i].subject, "%s: works",
                        steps[i].what);
        else
            add_failure(t->findings, &steps[i], t->why);
        t->why[0] = '\0';
    }
}

void self_test_mounting(struct findings *findings)
{
    struct self_test t = {.findings = findings};
    if (!command_mount.run) {
        finding_add(findings, FINDING_WRONG, "FUSE", "this onepot was built without it");
        finding_advise(findings, "build it where linux/fuse.h is installed");
    } else if (!with_tree(&t, NULL, ask_steps)) {
        finding_add(findings, FINDING_WRONG, "trial", "can't be made");
    }
}
