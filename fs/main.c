/*
 * onepot: calls the subcommand, and checks that its output arrived.
 */
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <ucontext.h>
#include <unistd.h>

#include "cli.h"
#include "commands.h"
#include "path.h"

/* fs/meson.build leaves these out; without `run`, they are not built in. */
#if !HAVE_FUSE
const struct cli_command command_mount = {"mount"}, command_squashfuse = {"squashfuse"},
                         command_umount = {"umount"}, command_run = {"run"},
                         command_clean = {"clean"};
#endif
#if !HAVE_LOADER
const struct cli_command command_order = {"order"};
#endif

static const struct cli_command *const commands[] = {
    &command_pack,  &command_mount,       &command_umount,    &command_run,
    &command_stage, &command_unstage,     &command_mpi,       &command_clean,
    &command_stat,  &command_top,         &command_doctor,    &command_extract,
    &command_ls,    &command_cat,         &command_info,      &command_verify,
    &command_index, &command_order,       &command_self_test, &command_squashfuse,
    &command_help,  &command_completions, &command_licences,  NULL,
};

static void on_file_limit(int number)
{
    (void)number;
}

static int run_program(int argc, char **argv)
{
    const char *name = argv[0] ? path_base(argv[0]) : "";
    const char *own = NULL; /* the command that the name stands for, where it is a link */
    int status;
    if (strcmp(name, "squashfuse") == 0 || strcmp(name, "squashfuse_ll") == 0)
        own = "squashfuse";
    else if (strcmp(name, "onepot-mpi") == 0)
        own = "mpi";
    cli_commands = commands;
    if (own) {
        argv[0] = (char *)own;
        status = cli_run_command(argc, argv);
    } else if (argc < 2) {
        cli_print_commands(stderr);
        status = CLI_USAGE;
    } else if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) {
        cli_print_commands(stdout);
        status = CLI_OK;
    } else if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 ||
               strcmp(argv[1], "version") == 0) {
        command_print_version(argc > 2 && strcmp(argv[2], "--json") == 0);
        status = CLI_OK;
    } else if (argv[1][0] == '-') {
        cli_failf(NULL, "there is no option '%s' before the command; see 'onepot --help'",
                  argv[1]);
        status = CLI_USAGE;
    } else {
        status = cli_run_command(argc - 1, argv + 1);
    }
    return cli_finish(status);
}

/* ---- the stack ---- */

#define STACK_LEAST_BYTES (1u << 20)
#define STACK_BYTES (8u << 20) /* of addresses: as much as is usual */

static struct {
    int argc;
    char **argv;
    int status;
} arguments;

static void run_on_stack(void)
{
    arguments.status = run_program(arguments.argc, arguments.argv);
}

/* Makes the limits and the descriptors that the process was given harmless. */
int main(int argc, char **argv)
{
    struct sigaction action;
    struct rlimit limit;
    static ucontext_t here, there;
    const size_t guard = (size_t)sysconf(_SC_PAGESIZE);
    /*
     * For each of a few threads malloc reserves 64 MiB of addresses, which matters if addresses
     * are limited (ulimit -v).
     */
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        mallopt(M_ARENA_MAX, 1);
    /*
     * Make a limit on the size of files (ulimit -f) the error EFBIG, which gets a line. The
     * signal is caught, not ignored: a program that is run gets the default.
     */
    if (sigaction(SIGXFSZ, NULL, &action) == 0 && action.sa_handler == SIG_DFL)
        signal(SIGXFSZ, on_file_limit);
    /*
     * If a program starts with a standard descriptor closed, the next file that it opens gets
     * that number, and output would go into that file. The replacement can't be read or
     * written, so that using the descriptor still fails.
     */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    /*
     * Under a small limit (ulimit -s), the program runs on another stack. What parses an
     * archive would crash otherwise, in a child, and the archive would pass for damaged. The
     * limit stays as it is, for a program that is run.
     */
    if (getrlimit(RLIMIT_STACK, &limit) < 0 || limit.rlim_cur >= STACK_LEAST_BYTES ||
        getcontext(&there) < 0)
        return run_program(argc, argv);
    char *stack = mmap(NULL, guard + STACK_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack + guard, STACK_BYTES, PROT_READ | PROT_WRITE) < 0)
        return run_program(argc, argv);
    arguments.argc = argc;
    arguments.argv = argv;
    there.uc_stack = (stack_t){.ss_sp = stack + guard, .ss_size = STACK_BYTES};
    there.uc_link = &here;
    makecontext(&there, run_on_stack, 0);
    swapcontext(&here, &there);
    return arguments.status;
}
