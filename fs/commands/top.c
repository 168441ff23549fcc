/*
 * onepot top: the current activity of mounts, updated continually. Like `onepot stat` it reads
 * only counters, and asks neither mounts nor daemons.
 */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "find_mount.h"
#include "interrupt.h"
#include "screen.h"
#include "state.h"
#include "top_view.h"

static const struct cli_usage usage = {
    "top", "[-n COUNT] [-d SECONDS] [MOUNTPOINT]...",
    "Show continually what mounts do; without MOUNTPOINT, all of yours on this node. q ends\n"
    "it, h shows the keys. If standard output is no terminal, pictures are\n"
    "printed one after another.\n"};

#define WAIT_MOST_NS UINT64_C(300000000)
#define DELAY_DEFAULT_NS UINT64_C(2000000000)

struct top {
    char **names; /* mount points; none: all */
    int count;
    uint64_t pictures; /* 0: no end */
    uint64_t delay_ns;
    struct screen screen;
    bool shows_keys;
    struct top_sample *samples; /* from the last picture */
    size_t sample_count;
};

/* This mount's last sample; all 0: none. */
static const struct top_sample *last_sample(const struct top *t, const struct counters *c)
{
    static const struct top_sample none;
    for (size_t i = 0; i < t->sample_count; i++)
        if (t->samples[i].daemon_start_ticks == c->daemon_start_ticks &&
            t->samples[i].daemon_pid == c->daemon_pid)
            return &t->samples[i];
    return &none;
}

/* Choose the mounts to show: all, or the named ones that exist. -errno. */
static int command_top_choose(const struct top *t, const struct slot_list *list,
                              const struct slot ***ret_chosen, size_t *ret_count)
{
    size_t room = t->count ? (size_t)t->count : list->count, n = 0;
    const struct slot **chosen = calloc(room ? room : 1, sizeof(struct slot *));
    if (!chosen)
        return -ENOMEM;
    for (size_t i = 0; !t->count && i < list->count; i++)
        chosen[n++] = list->at[i];
    for (int i = 0; i < t->count; i++)
        if (find_mount(list, t->names[i], &chosen[n]) == 0)
            n++;
    *ret_chosen = chosen;
    *ret_count = n;
    return 0;
}

static void print_heading(FILE *out, const struct top *t, size_t mounts)
{
    char clock[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (localtime_r(&now, &tm))
        strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
    fprintf(out, "onepot top, %s: %zu mount%s, every %g s%s\n", clock, mounts,
            mounts == 1 ? "" : "s", (double)t->delay_ns / 1e9,
            t->screen.on ? " (h: keys)" : "");
    if (t->shows_keys)
        fputs("  q            end\n"
              "  space        a picture at once\n"
              "  h or ?       show or hide the keys\n",
              out);
}

/* Print all, and remember their samples. */
static int print_mounts(struct top *t, FILE *out, const struct slot **mounts, size_t count)
{
    uint64_t at_ns = now_ns();
    struct top_sample *samples = calloc(count ? count : 1, sizeof(*samples));
    if (!samples)
        return -ENOMEM;
    print_heading(out, t, count);
    for (size_t i = 0; i < count; i++) {
        const struct counters *c = mounts[i]->counters;
        top_sample(c, at_ns, &samples[i]);
        fputc('\n', out);
        top_print(out, c, find_mount_state(mounts[i]), last_sample(t, c), &samples[i]);
    }
    free(t->samples);
    t->samples = samples;
    t->sample_count = count;
    return 0;
}

/* Render the current picture in memory. 0 or -errno; *ret_count: mounts in it. */
static int take_picture(struct top *t, char **ret_text, size_t *ret_len, size_t *ret_count)
{
    const struct slot **mounts;
    struct slot_list list;
    int r = state_list(&list);
    if (r < 0)
        return r;
    FILE *out = open_memstream(ret_text, ret_len);
    if (!out) {
        slot_list_free(&list);
        return -ENOMEM;
    }
    r = command_top_choose(t, &list, &mounts, ret_count);
    if (r == 0) {
        r = print_mounts(t, out, mounts, *ret_count);
        free(mounts);
    }
    slot_list_free(&list);
    if (fclose(out) != 0 && r == 0)
        r = -ENOMEM;
    return r;
}

/* A key, or 0. Without a screen there are no keys, and only signals end the wait. */
static int wait_key(const struct top *t, uint64_t wait_ns)
{
    if (t->screen.on)
        return screen_wait_key(&t->screen, wait_ns);
    poll(NULL, 0, (int)(wait_ns / 1000000 + 1));
    return 0;
}

/* True: the user wants to quit. */
static bool wait_for_next(struct top *t)
{
    uint64_t until = now_ns() + t->delay_ns, now;
    while ((now = now_ns()) < until && !atomic_load(interrupt_flag())) {
        /* In short pieces: a signal may come between the check of the flag and the wait. */
        int key = wait_key(t, until - now < WAIT_MOST_NS ? until - now : WAIT_MOST_NS);
        if (key == 'q' || key == 'Q' || key < 0)
            return true;
        if (key == 'h' || key == '?')
            t->shows_keys = !t->shows_keys;
        if (key == ' ' || key == '\n' || key == 'h' || key == '?')
            break;
    }
    return atomic_load(interrupt_flag()) != 0;
}

static int show_pictures(struct top *t)
{
    for (uint64_t n = 1;; n++) {
        char *text = NULL;
        size_t len = 0, mounts = 0;
        int r = take_picture(t, &text, &len, &mounts);
        if (r == 0 && t->screen.on)
            screen_draw(text, len);
        else if (r == 0 && (fputs(n > 1 ? "\n" : "", stdout) < 0 ||
                            fwrite(text, 1, len, stdout) < len || fflush(stdout) != 0))
            r = -EIO; /* main() reports it */
        free(text);
        if (r < 0)
            return r;
        if (n == t->pictures || (t->count && mounts == 0) || wait_for_next(t))
            return 0;
    }
}

/* Named mounts must exist at the beginning. */
static int check_names(const struct top *t)
{
    struct slot_list list;
    const struct slot *slot;
    int r = state_list(&list), status = CLI_OK;
    if (r < 0)
        return cli_fail("the list of mounts", r, NULL);
    for (int i = 0; status == CLI_OK && i < t->count; i++)
        status = find_named_mount(&list, t->names[i], &slot);
    slot_list_free(&list);
    return status;
}

static int take_delay(const struct cli_usage *u, void *ctx, const char *text)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 0.1 && seconds <= 3600))
        return cli_usage_error(u, "--delay: '%s' is not a number of seconds from 0.1 to 3600",
                               text);
    *(uint64_t *)ctx = (uint64_t)(seconds * 1e9);
    return 0;
}

int command_top(int argc, char **argv)
{
    struct top t = {.delay_ns = DELAY_DEFAULT_NS};
    const struct cli_option options[] = {
        {"-n, --count=COUNT", "end after so many pictures", .number = &t.pictures, .min = 1,
         .max = UINT32_MAX},
        {"-d, --delay=SECONDS", "between two pictures, 0.1 to 3600 (default 2)",
         .take = take_delay, .ctx = &t.delay_ns},
        {NULL},
    };
    int status = cli_parse(&usage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    t.names = argv + optind;
    t.count = argc - optind;
    status = check_names(&t);
    if (status != CLI_OK)
        return status;
    interrupt_catch();
    if (isatty(STDOUT_FILENO))
        screen_start(&t.screen);
    int r = show_pictures(&t);
    screen_end(&t.screen);
    free(t.samples);
    if (atomic_load(interrupt_flag()))
        interrupt_die();
    return r < 0 && r != -EIO ? cli_fail(NULL, r, NULL) : CLI_OK;
}
