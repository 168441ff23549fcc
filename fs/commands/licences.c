/*
 * onepot licences: print under which terms the program, and all that is linked into it, may be
 * used and passed on.
 */
#include "carried.h"
#include "cli.h"
#include "commands.h"

static const struct cli_usage usage = {
    "licences", "", "Print the licences of onepot and of the libraries in this program.\n"};

int command_licences(int argc, char **argv)
{
    const struct cli_option options[] = {{NULL}};
    int status = cli_parse(&usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (optind < argc)
        return cli_usage_error(&usage, "unexpected argument '%s'", argv[optind]);
    for (const struct carried *c = carried_licences; c->name; c++)
        printf("%s%s\n", c->name, c->text ? "" : " (in a file of its own, with its licence)");
    for (const struct carried *c = carried_licences; c->name; c++)
        if (c->text)
            printf("\n==== %s ====\n\n%s", c->name, c->text);
    return CLI_OK;
}
