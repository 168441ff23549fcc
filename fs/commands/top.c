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
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "find_mount.h"
#include "interrupt.h"
#include "numbers.h"
#include "state.h"
#include "summary.h"

static const struct cli_usage usage = {
    "top", "[-n COUNT] [-d SECONDS] [MOUNTPOINT]...",
    "Show continually what mounts do; without MOUNTPOINT, all of yours on this node. q ends\n"
    "it, h shows the keys. If standard output is no terminal, pictures are\n"
    "printed one after another.\n"};

#define WAIT_MOST_NS UINT64_C(300000000)
#define DELAY_DEFAULT_NS UINT64_C(2000000000)

/* The counters that have rates, at one moment. */
struct top_sample {
    uint64_t at_ns; /* CLOCK_MONOTONIC; 0: no sample */
    int32_t daemon_pid;
    uint64_t daemon_start_ticks; /* these two tell mounts apart */
    struct summary sum;
    uint64_t cache_hits, cache_misses;
    uint64_t source_reads, source_bytes, troubles;
};

/*
 * A terminal screen that is redrawn. Uses plain ANSI sequences, which all current terminals
 * understand. The earlier screen contents are restored afterwards.
 */
struct screen {
    bool on;
    bool has_keys; /* standard input is a terminal, too */
    struct termios before;
};

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

/* ---- the screen ---- */

#define LINES_UNKNOWN 24

/* Standard output must be a terminal. */
static void screen_start(struct screen *screen)
{
    struct termios raw;

    screen->has_keys = tcgetattr(STDIN_FILENO, &screen->before) == 0;
    if (screen->has_keys) {
        raw = screen->before;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        /*
         * Keys that end or stop the program without warning would leave the terminal like this.
         */
        raw.c_cc[VQUIT] = raw.c_cc[VSUSP] = _POSIX_VDISABLE;
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
    }
    fputs("\033[?1049h\033[?25l\033[?7l", stdout); /* another screen, no cursor, no wrapping */
    fflush(stdout);
    screen->on = true;
}

static void screen_end(struct screen *screen)
{
    if (!screen->on)
        return;
    fputs("\033[?7h\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (screen->has_keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &screen->before);
    screen->on = false;
}

static unsigned lines_of_terminal(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row
                                                                           : LINES_UNKNOWN;
}

/*
 * Show these lines from the top, as many as fit, cut to the terminal's width, as it is set not
 * to wrap. All is written at once, and each line is cleared after its end, so nothing flickers.
 */
static void screen_draw(const char *text, size_t len)
{
    const char *end = text + len;

    fputs("\033[H", stdout);
    for (unsigned left = lines_of_terminal(); text < end && left > 0; left--) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((newline ? newline : end) - text);
        fwrite(text, 1, n, stdout);
        fputs(left > 1 ? "\033[K\r\n" : "\033[K", stdout);
        text += newline ? n + 1 : n;
    }
    fputs("\033[J", stdout);
    fflush(stdout);
}

/*
 * Wait for a key and return its byte; 0 when the time is over or a signal came (or the size of
 * the terminal changed); -1: there will be no more keys. Without a screen there are none.
 */
static int screen_wait_key(const struct screen *screen, uint64_t wait_ns)
{
    struct pollfd p = {.fd = screen->has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    struct timespec t = clock_timespec(wait_ns);
    unsigned char key;

    if (ppoll(&p, 1, &t, NULL) <= 0)
        return 0;
    ssize_t n = read(STDIN_FILENO, &key, 1);
    if (n == 1)
        return key;
    return n < 0 && errno == EINTR ? 0 : -1;
}

/* ---- one mount ---- */

static void top_sample(const struct counters *c, uint64_t at_ns, struct top_sample *ret_sample)
{
    *ret_sample = (struct top_sample){
        .at_ns = at_ns,
        .daemon_pid = c->daemon_pid,
        .daemon_start_ticks = c->daemon_start_ticks,
        .cache_hits = counter_get(&c->cache_hits) + counter_get(&c->cache_waits),
        .cache_misses = counter_get(&c->cache_misses),
        .source_reads = counter_get(&c->source_reads),
        .source_bytes = counter_get(&c->source_bytes),
        .troubles = counter_get(&c->stalls) + counter_get(&c->source_retries) +
                    counter_get(&c->source_failures),
    };
    summary_read(c, &ret_sample->sum);
}

/* The figures printed for one interval. */
struct rates {
    double seconds;
    const struct top_sample *was, *is;
};

static uint64_t top_rate(const struct rates *r, uint64_t was, uint64_t is)
{
    return is > was ? (uint64_t)((double)(is - was) / r->seconds + 0.5) : 0;
}

static uint64_t top_grown(uint64_t was, uint64_t is)
{
    return is > was ? is - was : 0;
}

static void print_now(FILE *out, const struct rates *r)
{
    const struct summary *was = &r->was->sum, *is = &r->is->sum;
    fprintf(out, "  %-12s %s files/s, %s/s, %s requests/s\n",
            r->was->at_ns ? "now" : "on average",
            cli_count(top_rate(r, was->starts, is->starts)),
            cli_bytes(top_rate(r, was->read_bytes, is->read_bytes)),
            cli_count(top_rate(r, was->requests_all, is->requests_all)));
}

/* One second of waiting per second: one reader did nothing but wait. */
static void top_print_waits(FILE *out, const struct rates *r)
{
    const struct summary *was = &r->was->sum, *is = &r->is->sum;
    uint64_t reads = top_grown(was->requests[COUNTERS_READ], is->requests[COUNTERS_READ]);
    uint64_t waited = top_grown(was->reads_waited, is->reads_waited);
    double waiting =
        (double)top_grown(was->read_service_ns, is->read_service_ns) / 1e9 / r->seconds;
    fprintf(out, "  %-12s %.2f readers on average", "waiting", waiting);
    if (reads)
        fprintf(out, "; %.1f %% of reads from memory", 100.0 - percent(waited, reads));
    fputc('\n', out);
}

static void print_archive(FILE *out, const struct rates *r)
{
    const struct top_sample *was = r->was, *is = r->is;
    if (!is->source_reads)
        return;
    fprintf(out, "  %-12s %s/s by %s reads/s of the archive\n", "fetching",
            cli_bytes(top_rate(r, was->source_bytes, is->source_bytes)),
            cli_count(top_rate(r, was->source_reads, is->source_reads)));
}

static void top_print_cache(FILE *out, const struct counters *c, const struct rates *r)
{
    uint64_t hits = top_grown(r->was->cache_hits, r->is->cache_hits);
    uint64_t misses = top_grown(r->was->cache_misses, r->is->cache_misses);
    if (r->is->cache_hits + r->is->cache_misses == 0)
        return;
    fprintf(out, "  %-12s %s of %s", "block cache", cli_bytes(counter_get(&c->cache_bytes)),
            cli_bytes(c->cache_budget_bytes));
    if (hits + misses)
        fprintf(out, "; %.1f %% hits", percent(hits, hits + misses));
    fputc('\n', out);
}

static void print_troubles(FILE *out, const struct counters *c, const struct rates *r)
{
    if (!r->is->sum.errors && !r->is->troubles)
        return;
    fprintf(out, "  %-12s %s errors, %s stalls, %s reads tried again\n", "trouble",
            cli_count(r->is->sum.errors), cli_count(counter_get(&c->stalls)),
            cli_count(counter_get(&c->source_retries)));
    if (c->last_error[0]) {
        fprintf(out, "  %-12s ", "last error");
        cli_print_safe(out, c->last_error, strnlen(c->last_error, sizeof(c->last_error)));
        fputc('\n', out);
    }
}

static void print_total(FILE *out, const struct counters *c, const struct rates *r)
{
    uint64_t up_ns = top_grown(c->started_ns, r->is->at_ns);
    fprintf(out, "  %-12s %s files, %s in %s\n", "in all", cli_count(r->is->sum.read_files),
            cli_bytes(r->is->sum.read_bytes), cli_time(up_ns));
}

/*
 * Print the rates between two samples, or since the mount began if there is no first one.
 * `state` is as from find_mount_state.
 */
static void top_print(FILE *out, const struct counters *c, const char *state,
                      const struct top_sample *was, const struct top_sample *is)
{
    uint64_t since = was->at_ns ? was->at_ns : c->started_ns;
    struct rates r = {.was = was, .is = is};

    r.seconds = (double)top_grown(since, is->at_ns) / 1e9;
    if (r.seconds < 1e-3)
        r.seconds = 1e-3;
    cli_print_safe(out, c->mountpoint, strnlen(c->mountpoint, sizeof(c->mountpoint)));
    fprintf(out, ": %s\n  %-12s ", state, "archive");
    cli_print_safe(out, c->archive, strnlen(c->archive, sizeof(c->archive)));
    fprintf(out, "\n  %-12s ", "job");
    if (c->job[0])
        cli_print_safe(out, c->job, strnlen(c->job, sizeof(c->job)));
    else
        fputs("none", out);
    if (c->step[0]) {
        fputs(", step ", out);
        cli_print_safe(out, c->step, strnlen(c->step, sizeof(c->step)));
    }
    fputc('\n', out);
    print_now(out, &r);
    top_print_waits(out, &r);
    print_archive(out, &r);
    top_print_cache(out, c, &r);
    print_total(out, c, &r);
    print_troubles(out, c, &r);
}

/* ---- all of them ---- */

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

/* Number `i` of the mounts to show: of all, or of the named ones. NULL: it has ended. */
static const struct slot *mount_shown(const struct top *t, const struct slot_list *list,
                                      size_t i)
{
    const struct slot *slot;
    if (!t->count)
        return list->at[i];
    return find_mount(list, t->names[i], &slot) == 0 ? slot : NULL;
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
static int print_mounts(struct top *t, FILE *out, const struct slot_list *list)
{
    const size_t most = t->count ? (size_t)t->count : list->count;
    const struct slot *slot;
    size_t count = 0, n = 0;
    uint64_t at_ns = now_ns();
    struct top_sample *samples = calloc(most + 1, sizeof(*samples));
    if (!samples)
        return -ENOMEM;
    for (size_t i = 0; i < most; i++)
        count += mount_shown(t, list, i) != NULL;
    print_heading(out, t, count);
    for (size_t i = 0; i < most; i++) {
        if (!(slot = mount_shown(t, list, i)))
            continue;
        top_sample(slot->counters, at_ns, &samples[n]);
        fputc('\n', out);
        top_print(out, slot->counters, find_mount_state(slot), last_sample(t, slot->counters),
                  &samples[n++]);
    }
    free(t->samples);
    t->samples = samples;
    t->sample_count = n;
    return 0;
}

/* Render the current picture in memory. 0 or -errno. */
static int take_picture(struct top *t, char **ret_text, size_t *ret_len)
{
    auto_slots struct slot_list list = {0};
    int r = state_list(&list);
    FILE *out = r < 0 ? NULL : open_memstream(ret_text, ret_len);
    if (!out)
        return r < 0 ? r : -ENOMEM;
    r = print_mounts(t, out, &list);
    if (fclose(out) != 0 && r == 0)
        r = -ENOMEM;
    return r;
}

/* True: the user wants to quit. */
static bool wait_for_next(struct top *t)
{
    uint64_t until = now_ns() + t->delay_ns, now;
    while ((now = now_ns()) < until && !atomic_load(interrupt_flag())) {
        /* In short pieces: a signal may come between the check of the flag and the wait. */
        int key = screen_wait_key(&t->screen, min_u64(until - now, WAIT_MOST_NS));
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
        size_t len = 0;
        int r = take_picture(t, &text, &len);
        if (r == 0 && t->screen.on)
            screen_draw(text, len);
        else if (r == 0 && (fputs(n > 1 ? "\n" : "", stdout) < 0 ||
                            fwrite(text, 1, len, stdout) < len || fflush(stdout) != 0))
            r = -EIO; /* main() reports it */
        free(text);
        if (r < 0)
            return r;
        if (n == t->pictures || (t->count && t->sample_count == 0) || wait_for_next(t))
            return 0;
    }
}

/* Named mounts must exist at the beginning. */
static int check_names(const struct top *t)
{
    auto_slots struct slot_list list = {0};
    const struct slot *slot;
    int r = state_list(&list), status = CLI_OK;
    if (r < 0)
        return cli_fail("the list of mounts", r, NULL);
    for (int i = 0; status == CLI_OK && i < t->count; i++)
        status = find_named_mount(&list, t->names[i], &slot);
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
