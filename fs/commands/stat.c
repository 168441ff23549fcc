/*
 * onepot stat: a mount's work so far. The numbers come from the file that the daemon maps
 * (counters.h). Neither the daemon nor the mount is asked, so the command works even while a
 * daemon hangs, is stopped, or is dead.
 */
#include <stdio.h>

#include "cli.h"
#include "commands.h"
#include "find_mount.h"
#include "json.h"
#include "report.h"
#include "state.h"

static const struct cli_usage usage = {
    "stat", "[--json] [MOUNTPOINT]",
    "Print what a mount has done so far; without MOUNTPOINT, each of your mounts on this\n"
    "node. It asks neither the mount nor its daemon, so it works even when they hang.\n"};

/* Print one mount: as JSON if there is a writer. */
static void command_stat_show(const struct slot *slot, struct json *json)
{
    struct report report;
    report_take(slot->counters, find_mount_state(slot), &report);
    if (json)
        report_json(json, &report);
    else
        report_text(stdout, &report);
}

static int show_all(const struct slot_list *list, struct json *json)
{
    if (json)
        json_open(json, NULL, '[');
    for (size_t i = 0; i < list->count; i++) {
        if (!json && i > 0)
            putchar('\n');
        command_stat_show(list->at[i], json);
    }
    if (json)
        json_close(json, ']');
    else if (list->count == 0)
        cli_note("you have no mounts on this node");
    return CLI_OK;
}

int command_stat(int argc, char **argv)
{
    bool as_json = false;
    const struct cli_option options[] = {
        {"--json", "print an object; without MOUNTPOINT, an array of them", .flag = &as_json},
        {NULL},
    };
    int status = cli_parse(&usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&usage, "only one mount point can be named");

    struct json writer = {.out = stdout, .lines = optind < argc ? 1 : 2};
    struct json *json = as_json ? &writer : NULL;
    const struct slot *slot;
    auto_slots struct slot_list list = {0};
    int r = state_list(&list);
    if (r < 0)
        return cli_fail("the list of mounts", r, NULL);
    if (optind == argc)
        status = show_all(&list, json);
    else if ((status = find_named_mount(&list, argv[optind], &slot)) == CLI_OK)
        command_stat_show(slot, json);
    return status;
}
