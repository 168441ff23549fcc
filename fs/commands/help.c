/*
 * onepot help: print a manual page that the program carries, where there may be no man. And
 * onepot --version: with --json also what this program can do, for scripts that choose by it.
 */
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

#include "backend.h"
#include "carried.h"
#include "cli.h"
#include "codec.h"
#include "commands.h"
#include "index_format.h"
#include "json.h"
#include "onepot_format.h"

static int help_main(int argc, char **argv);

const struct cli_command command_help = {
    "help", help_main, "show a manual page", "[COMMAND]",
    "Print the manual page of COMMAND, or of all of onepot ('onepot'); without COMMAND, the\n"
    "list of commands.\n"};

/* Print the text of the command itself. */
static int help_of_command(char *name)
{
    char option[] = "--help";
    char *argv[] = {name, option, NULL};
    optind = 0;
    return cli_run_command(2, argv);
}

/* A page that is no command's ("onepot") has the list of commands in its place. */
static int help_without_page(char *name)
{
    const struct cli_command *const *command = cli_commands;
    cli_note("this program has no manual pages, because mandoc was missing where it was built; "
             "it has this:");
    while (*command && strcmp((*command)->name, name) != 0)
        command++;
    if (*command)
        return help_of_command(name);
    cli_print_commands(stdout);
    return CLI_OK;
}

static int help_main(int argc, char **argv)
{
    const struct cli_option options[] = {{NULL}};
    int status = cli_parse(&command_help, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&command_help, "one command at a time");
    if (optind == argc) {
        cli_print_commands(stdout);
        return CLI_OK;
    }
    const struct carried *page = carried_pages;
    while (page->name && strcmp(page->name, argv[optind]) != 0)
        page++;
    if (!page->name)
        return help_of_command(argv[optind]);
    if (!page->text)
        return help_without_page(argv[optind]);
    fputs(page->text, stdout);
    return CLI_OK;
}

/* ---- the version ---- */

static void print_formats(struct json *j)
{
    json_open(j, "formats", '[');
    for (const struct backend *const *b = backend_registry; *b; b++)
        json_text(j, NULL, (*b)->name, SIZE_MAX);
    json_close(j, ']');
}

/* Several codecs may have one name: a block of xz in a tar, and one in SquashFS. */
static void print_codecs(struct json *j)
{
    json_open(j, "codecs", '[');
    for (enum codec c = CODEC_NONE + 1; c < CODEC_COUNT; c++) {
        bool seen = false;
        for (enum codec before = CODEC_NONE + 1; before < c; before++)
            seen |= codec_available(before) && strcmp(codec_name(before), codec_name(c)) == 0;
        if (!seen && codec_available(c))
            json_text(j, NULL, codec_name(c), SIZE_MAX);
    }
    json_close(j, ']');
}

static void print_commands(struct json *j)
{
    json_open(j, "commands", '[');
    for (const struct cli_command *const *c = cli_commands; *c; c++)
        if ((*c)->run)
            json_text(j, NULL, (*c)->name, SIZE_MAX);
    json_close(j, ']');
}

void command_print_version(bool as_json)
{
    struct json j = {.out = stdout, .lines = 1};
    struct utsname machine;
    if (!as_json) {
        puts("onepot " ONEPOT_VERSION);
        return;
    }
    json_open(&j, NULL, '{');
    json_text(&j, "version", ONEPOT_VERSION, SIZE_MAX);
    json_text(&j, "machine", uname(&machine) == 0 ? machine.machine : "", SIZE_MAX);
    json_number(&j, "archive_version", ONEPOT_FOOTER_VERSION);
    json_number(&j, "index_version", DISK_VERSION);
#ifdef ONEPOT_STATIC
    json_bool(&j, "static", true);
#else
    json_bool(&j, "static", false);
#endif
    print_formats(&j);
    print_codecs(&j);
    print_commands(&j);
    json_close(&j, '}');
}
