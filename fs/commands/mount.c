/*
 * onepot mount: makes a mount that stays when the command returns, and prints its path once it
 * answers. And onepot squashfuse: the same with the command line of squashfuse.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "interrupt.h"
#include "launcher.h"
#include "mounter.h"
#include "process.h"
#include "syscalls.h"

enum { NOTIFY_LIMIT_S = 60 };

static int mount_main(int argc, char **argv);

const struct cli_command command_mount = {
    "mount", mount_main, "show an archive as a directory",
    "[OPTION...] ARCHIVE... [--at DIR | DIR]",
    "Show an archive as a directory, or several as one. An ARCHIVE may also be a folder of\n"
    "archives, a pattern ('train-*.tar') or @LIST, a file with a name a line. Returns when it\n"
    "is ready, and prints its path.\n"};

static int squashfuse_main(int argc, char **argv);

/* Starters look for "-o uid=" in the help, to know that it may be given. */
const struct cli_command command_squashfuse = {
    "squashfuse", squashfuse_main, "mount an image, as the program of that name does",
    "[-f] [-o OPTION[,...]] IMAGE MOUNTPOINT",
    "Show an image as a directory, as squashfuse and squashfuse_ll do. A link to onepot by "
    "one\n"
    "of these names takes this command line, so that container runtimes use it: IMAGE may be\n"
    "/proc/self/fd/N, MOUNTPOINT /dev/fd/N, and the owner of all files is set by\n"
    "-o uid=ID,gid=ID. Any archive that onepot reads is an image.\n"};

/* Was the command started with a standard output? main() has replaced a missing one. */
static bool has_listener(void)
{
    return (fcntl(STDOUT_FILENO, F_GETFL) & O_ACCMODE) != O_RDONLY;
}

/* The variables by which the shell's commands read without the mount. */
static int print_preload(const struct mounter *m)
{
    struct mounter_variable variables[MOUNTER_VARIABLES];
    int r = mounter_preload(m, NULL, variables);

    for (size_t i = 0; i < MOUNTER_VARIABLES && variables[i].name && r == 0; i++) {
        const char *now = getenv(variables[i].name), *value = variables[i].value;
        if (value && (!now || strcmp(value, now) != 0)) {
            printf("export %s=", variables[i].name);
            cli_print_quoted(stdout, value);
            putchar('\n');
        } else if (!value && now) {
            printf("unset %s\n", variables[i].name);
        }
        free(variables[i].value);
    }
    return r;
}

/* For `eval "$(onepot mount --export ARCHIVE)"`: what a job script does with a mount. */
static int print_commands(const struct mounter *m)
{
    char program[PATH_MAX] = "onepot";
    ssize_t n = readlink("/proc/self/exe", program, sizeof(program) - 1);

    if (n > 0)
        program[n] = '\0';
    fputs("data=", stdout);
    cli_print_quoted(stdout, m->path);
    fputs("\nonepot=", stdout);
    cli_print_quoted(stdout, program);
    puts("\nexport ONEPOT_MOUNT=\"$data\"");
    int r = print_preload(m);
    return r < 0 ? r : puts("trap '\"$onepot\" umount \"$data\"' EXIT");
}

/* Print the mount's path for the caller; without that nobody would own the mount. */
static int announce_mount(struct mounter *m)
{
    int status = CLI_OK;

    /* main() reports that it could not be written. */
    bool is_silent = m->options->at_is_last && !m->options->export;
    if (!is_silent && has_listener() &&
        ((m->options->export ? print_commands(m) : puts(m->path)) < 0 || fflush(stdout) != 0))
        status = CLI_FAILED;
    if (status == CLI_OK)
        status = mounter_keep(m);
    if (status != CLI_OK)
        mounter_abandon(m);
    return status;
}

/* A shell that evaluates nothing takes that for success. */
static int print_failure(int argc, char **argv, int status)
{
    for (int i = 1; status != CLI_OK && i < argc; i++)
        if (strcmp(argv[i], "--export") == 0)
            puts("false");
    return status;
}

/*
 * Write a byte to the FIFO of a starter that waits for it, as squashfuse does. Opening a FIFO
 * waits for its reader, so a process of nobody does it, for a while.
 */
static void notify_starter(const char *path, char byte)
{
    struct stat st;
    if (!path)
        return;
    if (stat(path, &st) < 0 || !S_ISFIFO(st.st_mode)) {
        cli_failf(path, "is not a pipe: nobody is told of the mount");
        return;
    }
    if (process_fork_orphan() == 0) {
        syscall_close_range(0, ~0u);
        signal(SIGALRM, SIG_DFL);
        alarm(NOTIFY_LIMIT_S);
        int fd = open(path, O_WRONLY);
        _exit(fd < 0 || write(fd, &byte, 1) != 1);
    }
}

static int make_mount(const struct mount_options *options)
{
    struct mounter m;
    int r = mounter_init(&m, options, false);

    if (r < 0)
        return cli_fail(NULL, r, NULL);
    int status = mounter_start(&m);
    notify_starter(options->notify_pipe, status == CLI_GO_ON ? 's' : 'f');
    if (status == CLI_GO_ON)
        status = announce_mount(&m);
    if (status == 0 && !options->foreground && options->owner != MOUNT_NO_OWNER &&
        launcher_in_slurm_step())
        cli_note("%s: the mount ends with this step of srun; 'srun onepot run' is for one "
                 "command, and a mount in the batch script for all steps on its node",
                 options->archive);
    if (status == 0 && options->foreground)
        status = mounter_serve(&m);
    mounter_free(&m);
    if (status != 0 && mounter_caught()) /* die of the signal, as without a clean-up */
        interrupt_die_of(mounter_caught());
    return status;
}

static int mount_main(int argc, char **argv)
{
    struct mount_options options;
    int status = mount_options_parse(&command_mount, false, argc, argv, &options);
    if (status == CLI_GO_ON)
        status = make_mount(&options);
    return print_failure(argc, argv, status);
}

static int squashfuse_main(int argc, char **argv)
{
    struct mount_options options;
    static char *help[] = {"squashfuse", "--help", NULL};
    bool has_words = argc > 1;
    int status = mount_options_squashfuse(&command_squashfuse, has_words ? argc : 2,
                                          has_words ? argv : help, &options);
    if (!has_words && status == CLI_OK)
        return CLI_USAGE;
    return status == CLI_GO_ON ? make_mount(&options) : status;
}
