/*
 * The list of commands, for a person, and the one among them that a word names. The table is
 * main's: commands ask for others (help, self-test) without knowing them.
 */
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "backend.h"
#include "cli.h"

#define COMMANDS_MOST 64

const struct cli_command *cli_commands;

void cli_print_commands(FILE *out)
{
    char formats[BACKEND_LIST_BYTES];
    backend_list(false, formats);
    fprintf(out,
            "Usage: onepot COMMAND [OPTION...] ARGUMENT...\n"
            "Show an archive (%s) as a directory, at native speed.\n"
            "\n"
            "Commands:\n",
            formats);
    for (const struct cli_command *c = cli_commands; c->name; c++)
        if (c->run)
            fprintf(out, "  %-11s %s\n", c->name, c->summary);
    fputs("\n"
          "'onepot COMMAND --help' and 'onepot help COMMAND' describe a command;\n"
          "'onepot version' prints the version, with --json also what this program can do.\n",
          out);
}

/* "onepot train.tar": the first words of a newcomer. */
static int advise_of_file(const char *word)
{
    struct stat st;
    if (stat(word, &st) == 0 && S_ISDIR(st.st_mode))
        cli_failf(NULL,
                  "'%s' is a directory, no command; 'onepot pack %s' makes an archive of it; "
                  "see 'onepot --help'",
                  word, word);
    else
        cli_failf(NULL,
                  "'%s' is no command; 'onepot mount %s' shows an archive as a directory, and "
                  "'onepot run %s -- COMMAND {}' to one command; see 'onepot --help'",
                  word, word, word);
    return CLI_USAGE;
}

static int unknown_command(const char *word)
{
    if (access(word, F_OK) == 0)
        return advise_of_file(word);
    const char *names[COMMANDS_MOST + 1] = {NULL};
    size_t n = 0;
    for (const struct cli_command *c = cli_commands; c->name && n < COMMANDS_MOST; c++)
        if (c->run)
            names[n++] = c->name;
    const char *near = cli_nearest(word, names);
    if (!near && strpbrk(word, "./"))
        return advise_of_file(word);
    if (near)
        cli_failf(NULL, "there is no command '%s'; did you mean '%s'? See 'onepot --help'",
                  word, near);
    else
        cli_failf(NULL, "there is no command '%s'; see 'onepot --help'", word);
    return CLI_USAGE;
}

int cli_run_command(int argc, char **argv)
{
    const struct cli_command *c = cli_commands;
    while (c->name && strcmp(c->name, argv[0]) != 0)
        c++;
    if (!c->name)
        return unknown_command(argv[0]);
    if (!c->run) {
        cli_failf(argv[0], "this onepot was built without it");
        /* For `run`, 1 would be an exit status of its command. */
        return strcmp(argv[0], "run") == 0 ? CLI_RUN_FAILED : CLI_FAILED;
    }
    return c->run(argc, argv);
}
