/*
 * onepot licences: print under which terms the program, and all that is linked into it, may be
 * used and passed on.
 */
#include "carried.h"
#include "cli.h"
#include "commands.h"

static int licences_main(int argc, char **argv);

const struct cli_command command_licences = {
    "licences", licences_main, "print the licences of all that is in this program", "",
    "Print the licences of onepot and of the libraries in this program.\n"};

static int licences_main(int argc, char **argv)
{
    const struct cli_option options[] = {{NULL}};
    int status = cli_parse(&command_licences, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind < argc)
        return cli_usage_error(&command_licences, "unexpected argument '%s'", argv[optind]);
    for (const struct carried *c = carried_licences; c->name; c++)
        printf("%s%s\n", c->name, c->text ? "" : " (in a file of its own, with its licence)");
    for (const struct carried *c = carried_licences; c->name; c++)
        if (c->text)
            printf("\n==== %s ====\n\n%s", c->name, c->text);
    return CLI_OK;
}
