/*
 * onepot help: print a manual page that the program carries, where there may be no man.
 */
#include <string.h>

#include "carried.h"
#include "cli.h"
#include "commands.h"

static const struct cli_usage usage = {
    "help", "[COMMAND]",
    "Print the manual page of COMMAND, or of all of onepot ('onepot'); without COMMAND, the\n"
    "list of commands.\n"};

/* Without a page, what the command itself says. */
static int help_of_command(char *name)
{
    char option[] = "--help";
    char *argv[] = {name, option, NULL};
    optind = 0;
    return command_run_named(2, argv);
}

int command_help(int argc, char **argv)
{
    const struct cli_option options[] = {{NULL}};
    int status = cli_parse(&usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&usage, "one command at a time");
    if (optind == argc) {
        command_print_list(stdout);
        return CLI_OK;
    }
    const struct carried *page = carried_pages;
    while (page->name && strcmp(page->name, argv[optind]) != 0)
        page++;
    if (!page->name)
        return help_of_command(argv[optind]);
    fputs(page->text, stdout);
    return CLI_OK;
}
