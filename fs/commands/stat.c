/*
 * onepot stat: a mount's work so far, or continually, as rows of a log. The numbers come from
 * the file that the daemon maps (counters.h). Neither the daemon nor the mount is asked, so the
 * command works even while a daemon hangs, is stopped, or is dead.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "json.h"
#include "numbers.h"
#include "report.h"
#include "state.h"
#include "summary.h"

static int stat_main(int argc, char **argv);

const struct cli_command command_stat = {
    "stat", stat_main, "show what a mount has done so far", "[--json] [--watch] [MOUNTPOINT]",
    "Print what a mount has done so far; without MOUNTPOINT, each of your mounts on this\n"
    "node. It asks neither the mount nor its daemon, so it works even when they hang.\n"};

#define EVERY_DEFAULT_S 60
#define DAEMON_LOOK_NS UINT64_C(1000000000)
#define WATCH_COLUMNS 100 /* of a row, without its time */

/* Print one mount: as JSON if there is a writer. */
static void command_stat_show(const struct slot *slot, const char *state, struct json *json)
{
    if (json)
        report_json(json, slot->counters, state);
    else
        report_text(stdout, slot->counters, state);
}

static int show_all(const struct slot_list *list, struct json *json)
{
    if (json)
        json_open(json, NULL, '[');
    for (size_t i = 0; i < list->count; i++) {
        if (!json && i > 0)
            putchar('\n');
        command_stat_show(list->at[i], find_mount_state(list->at[i]), json);
    }
    if (json)
        json_close(json, ']');
    else if (list->count == 0)
        cli_note("you have no mounts on this node");
    return CLI_OK;
}

static void print_time(void)
{
    char text[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (localtime_r(&now, &tm))
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
    fputs(text, stdout);
}

/* Wait for so long. False: the daemon has ended, which is noticed within a second. */
static bool wait_while_it_lives(const struct slot *slot, uint64_t wait_ns)
{
    uint64_t until = now_ns() + wait_ns, now;
    bool lives;

    while ((lives = slot_daemon_lives(slot)) && (now = now_ns()) < until) {
        struct timespec t = clock_timespec(min_u64(until - now, DAEMON_LOOK_NS));
        ppoll(NULL, 0, &t, NULL);
    }
    return lives;
}

/*
 * Print a mount's work in each interval until it ends; the last interval may be shorter. The
 * row of a mount that has ended shows its last readers' waiting, not its state.
 */
static int watch(const struct slot *slot, uint64_t every_s, struct json *json)
{
    struct summary_style style;
    struct summary was, is;
    struct summary_rates rates;
    const char *state = "serving";
    bool lives = true;

    summary_style(stdout, &style);
    style.columns = WATCH_COLUMNS;
    summary_read(slot->counters, &was);
    if (!json) {
        printf("%-19s ", "time");
        summary_row(stdout, &style, NULL, NULL, NULL, NULL);
        putchar('\n');
    }
    while (fflush(stdout) == 0 && lives) {
        lives = wait_while_it_lives(slot, every_s * 1000000000u);
        state = find_mount_state(slot);
        if (json) {
            struct json line = *json;
            command_stat_show(slot, state, &line);
            continue;
        }
        summary_read(slot->counters, &is);
        summary_rates(slot->counters, &was, &is, &rates);
        was = is;
        print_time();
        putchar(' ');
        summary_row(stdout, &style, NULL, slot->counters,
                    strcmp(state, "ended") ? state : "serving", &rates);
        putchar('\n');
    }
    if (!lives && strcmp(state, "dead") == 0)
        return cli_failf(slot->counters->mountpoint,
                         "its daemon was killed; 'onepot umount' removes the mount");
    return CLI_OK;
}

static int stat_main(int argc, char **argv)
{
    bool as_json = false, watches = false;
    uint64_t every_s = 0;
    const struct cli_option options[] = {
        {"--json", "print an object; without MOUNTPOINT, an array of them", .flag = &as_json},
        {"--watch", "print a row for each minute, until the mount ends", .flag = &watches},
        {"--every=SECONDS", "the same for other intervals, from 1 to 86400", .number = &every_s,
         .min = 1, .max = 86400},
        {NULL},
    };
    int status = cli_parse(&command_stat, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&command_stat, "only one mount point can be named");

    watches |= every_s > 0;
    if (watches && optind == argc)
        return cli_usage_error(&command_stat, "--watch needs a mount point");

    struct json writer = {.out = stdout, .lines = watches ? 0 : optind < argc ? 1 : 2};
    struct json *json = as_json ? &writer : NULL;
    const struct slot *slot;
    auto_slots struct slot_list list = {0};
    int r = state_list(&list);
    if (r < 0)
        return cli_fail("the list of mounts", r, NULL);
    if (optind == argc)
        status = show_all(&list, json);
    else if ((status = find_named_mount(&list, argv[optind], &slot)) == CLI_OK && !watches)
        command_stat_show(slot, find_mount_state(slot), json);
    else if (status == CLI_OK)
        status = watch(slot, every_s ? every_s : EVERY_DEFAULT_S, json);
    return status;
}
