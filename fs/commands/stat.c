/*
 * onepot stat: a mount's work so far. The numbers come from the file that the daemon maps
 * (counters.h). Neither the daemon nor the mount is asked, so the command works even while a
 * daemon hangs, is stopped, or is dead.
 */
#include <errno.h>
#include <stdio.h>

#include "cli.h"
#include "commands.h"
#include "find_mount.h"
#include "report.h"
#include "state.h"

static const struct cli_usage usage = {
    "stat", "[--json] [MOUNTPOINT]",
    "Print what a mount has done so far; without MOUNTPOINT, each of your mounts on this\n"
    "node. It asks neither the mount nor its daemon, so it works also when they hang.\n"
    "\n"
    "      --json            an object (without MOUNTPOINT, an array of them)\n"};

static void show(const struct slot *slot, bool json)
{
    struct report report;
    report_take(slot->counters, find_mount_state(slot), &report);
    if (json)
        report_json(stdout, &report);
    else
        report_text(stdout, &report);
}

static int show_one(const struct slot_list *list, const char *mountpoint, bool json)
{
    const struct slot *slot;
    int r = find_mount(list, mountpoint, &slot);
    if (r == -ENOENT)
        return cli_failf(mountpoint, "no onepot mount of yours is there; 'onepot stat' lists "
                                     "all on this node");
    if (r < 0)
        return cli_fail(mountpoint, r, NULL);
    show(slot, json);
    if (json)
        putchar('\n');
    return CLI_OK;
}

static int show_all(const struct slot_list *list, bool json)
{
    const char *separator = "";
    if (json)
        putchar('[');
    for (size_t i = 0; i < list->count; i++) {
        fputs(separator, stdout);
        show(list->slots[i], json);
        separator = json ? ",\n" : "\n";
    }
    if (json)
        fputs("]\n", stdout);
    else if (list->count == 0)
        cli_note("you have no mounts on this node");
    return CLI_OK;
}

enum { OPTION_JSON = CLI_OPTION_OWN };

int command_stat(int argc, char **argv)
{
    static const struct option longs[] = {
        {"json", no_argument, NULL, OPTION_JSON},
        CLI_OPTIONS_END,
    };
    bool json = false;
    int status = CLI_GO_ON;
    while (cli_getopt(&usage, argc, argv, "", longs, &status) != -1)
        json = true; /* there is no other option */
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&usage, "only one mount point can be named");

    struct slot_list list;
    int r = state_list(&list);
    if (r < 0)
        return cli_fail("the list of mounts", r, NULL);
    status = optind < argc ? show_one(&list, argv[optind], json) : show_all(&list, json);
    slot_list_free(&list);
    return status;
}
