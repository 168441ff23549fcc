/*
 * onepot: finds the subcommand, calls it, and checks that its output arrived.
 */
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "backend.h"
#include "cli.h"
#include "commands.h"

struct command {
    const char *name;
    int (*run)(int argc, char **argv); /* NULL: not built in */
    const char *summary;
};

/* Without FUSE nothing can be mounted; all other commands are always built. */
#ifndef HAVE_FUSE
#define command_mount NULL
#define command_umount NULL
#define command_run NULL
#define command_clean NULL
#endif

/* In the order in which a person needs them. */
static const struct command commands[] = {
    {"pack", command_pack, "make an archive of a directory"},
    {"mount", command_mount, "show an archive as a directory"},
    {"umount", command_umount, "end a mount"},
    {"run", command_run, "mount, run a command on it, unmount"},
    {"stage", command_stage, "copy archives to this node ahead of time"},
    {"unstage", command_unstage, "remove such copies"},
    {"clean", command_clean, "remove what ended jobs left on this node"},
    {"stat", command_stat, "show what a mount has done so far"},
    {"top", command_top, "show what mounts do, live"},
    {"doctor", command_doctor, "show what this node allows, and what is wrong"},
    {"extract", command_extract, "extract files from an archive"},
    {"ls", command_ls, "list the contents of an archive"},
    {"cat", command_cat, "write files of an archive to standard output"},
    {"info", command_info, "describe an archive"},
    {"verify", command_verify, "check every bound and every checksum"},
    {"index", command_index, "save the index of a foreign archive"},
    {"order", command_order, "print the order in which the loader reads samples"},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static void print_help(FILE *out)
{
    char formats[BACKEND_LIST_BYTES];
    backend_list(false, formats);
    fprintf(out,
            "Usage: onepot COMMAND [OPTION...] ARGUMENT...\n"
            "Show an archive (%s) as a directory, at native speed.\n"
            "\n"
            "Commands:\n",
            formats);
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        fprintf(out, "  %-8s %s%s\n", commands[i].name, commands[i].summary,
                commands[i].run ? "" : " (not in this build)");
    fputs("\n"
          "'onepot COMMAND --help' and 'man onepot-COMMAND' describe a command;\n"
          "'onepot --version' prints the version.\n",
          out);
}

static int unknown_command(const char *word)
{
    const char *names[COMMAND_COUNT + 1] = {NULL};
    for (size_t i = 0; i < COMMAND_COUNT; i++)
        names[i] = commands[i].name;
    const char *near = cli_nearest(word, names);
    if (near)
        cli_failf(NULL, "there is no command '%s'; did you mean '%s'? See 'onepot --help'",
                  word, near);
    else
        cli_failf(NULL, "there is no command '%s'; see 'onepot --help'", word);
    return CLI_USAGE;
}

static int main_run_command(int argc, char **argv)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, argv[0]) != 0)
            continue;
        if (!commands[i].run) {
            cli_failf(argv[0], "this onepot was built without it; build it where "
                               "linux/fuse.h is installed");
            /* For `run`, 1 would be an exit status of its command. */
            return strcmp(argv[0], "run") == 0 ? CLI_RUN_FAILED : CLI_FAILED;
        }
        return commands[i].run(argc, argv);
    }
    return unknown_command(argv[0]);
}

/* "onepot help ls" is "onepot ls --help". */
static int help_command(int argc, char **argv)
{
    if (argc < 2) {
        print_help(stdout);
        return CLI_OK;
    }
    char option[] = "--help";
    char *help_argv[] = {argv[1], option, NULL};
    return main_run_command(2, help_argv);
}

/*
 * If a program starts with a standard descriptor closed, the next file that it opens gets that
 * number, and output would go into that file. The replacement can't be read or written, so that
 * using the descriptor still fails.
 */
static void occupy_standard_descriptors(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

/*
 * For each of a few threads malloc reserves 64 MiB of addresses, which matters if addresses are
 * limited (ulimit -v).
 */
static void save_addresses(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        mallopt(M_ARENA_MAX, 1);
}

int main(int argc, char **argv)
{
    int status;
    save_addresses();
    occupy_standard_descriptors();
    if (argc < 2) {
        print_help(stderr);
        status = CLI_USAGE;
    } else if (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) {
        print_help(stdout);
        status = CLI_OK;
    } else if (strcmp(argv[1], "--version") == 0) {
        puts("onepot " ONEPOT_VERSION);
        status = CLI_OK;
    } else if (strcmp(argv[1], "help") == 0) {
        status = help_command(argc - 1, argv + 1);
    } else if (argv[1][0] == '-') {
        cli_failf(NULL, "there is no option '%s' before the command; see 'onepot --help'",
                  argv[1]);
        status = CLI_USAGE;
    } else {
        status = main_run_command(argc - 1, argv + 1);
    }
    return cli_finish(status);
}
