/*
 * Progress of long work: one line on standard error that is redrawn, with bytes, files, rate
 * and time left. If standard error is no terminal nothing is shown, unless a person requests
 * it; then a line is printed every few seconds, for a log.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"

#define TERMINAL_PERIOD_NS UINT64_C(200000000)
#define LOG_PERIOD_NS UINT64_C(2000000000)
#define PATIENCE_NS UINT64_C(300000000) /* shorter work needs no progress line */
#define LINE_MAX_BYTES 256

void cli_progress_start(struct cli_progress *progress, enum cli_progress_mode mode)
{
    const char *term = getenv("TERM");
    bool terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    *progress = (struct cli_progress){
        .shown = mode == CLI_PROGRESS_ALWAYS || (mode == CLI_PROGRESS_AUTO && terminal),
        .terminal = terminal,
        .start_ns = now_ns(),
    };
}

/* snprintf that continues where the last call ended. */
__attribute__((format(printf, 2, 3))) static void append(char line[LINE_MAX_BYTES],
                                                         const char *format, ...)
{
    size_t len = strlen(line);
    va_list args;
    va_start(args, format);
    vsnprintf(line + len, LINE_MAX_BYTES - len, format, args);
    va_end(args);
}

/* A copy of the state at one moment. */
struct snapshot {
    uint64_t done, total, members, members_total;
};

static uint64_t time_left_ns(double left, double done, double seconds)
{
    return (uint64_t)(left / done * seconds * 1e9);
}

/* The work may turn out to be more than was counted. */
static double share(uint64_t done, uint64_t total)
{
    return done < total ? 100.0 * (double)done / (double)total : 100.0;
}

static void describe_progress(const struct cli_progress *p, uint64_t now,
                              const struct snapshot *s, char line[LINE_MAX_BYTES])
{
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN];
    snprintf(line, LINE_MAX_BYTES, "%s: %s", p->doing, cli_format_bytes(s->done, a));
    if (s->total)
        append(line, " of %s (%.0f %%)", cli_format_bytes(s->total, a),
               share(s->done, s->total));
    if (s->members && s->members_total)
        append(line, ", %s of %s files", cli_format_count(s->members, a),
               cli_format_count(s->members_total, b));
    if (s->members && s->members_total && !s->total)
        append(line, " (%.0f %%)", share(s->members, s->members_total));
    else if (s->members)
        append(line, ", %s files", cli_format_count(s->members, b));

    double seconds = (double)(now - p->step_ns) / 1e9;
    if (seconds < 0.2 || s->done <= p->step_bytes)
        return;
    double done = (double)(s->done - p->step_bytes);
    append(line, ", %s/s", cli_format_bytes((uint64_t)(done / seconds), a));
    if (s->total > s->done)
        append(line, ", %s left",
               cli_format_time(time_left_ns((double)(s->total - s->done), done, seconds), b));
    else if (!s->total && s->members_total > s->members && s->members)
        append(line, ", %s left",
               cli_format_time(time_left_ns((double)(s->members_total - s->members),
                                            (double)s->members, seconds),
                               b));
}

static unsigned terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20 ? size.ws_col : 80;
}

void cli_progress_show(void *progress, const char *doing, const struct progress *state)
{
    struct cli_progress *p = progress;
    if (!p->shown)
        return;
    uint64_t now = now_ns();
    uint64_t done = atomic_load_explicit(&state->bytes_done, memory_order_relaxed);
    if (strncmp(doing, p->doing, sizeof(p->doing) - 1) != 0) {
        snprintf(p->doing, sizeof(p->doing), "%s", doing);
        p->step_ns = now;
        p->step_bytes = done;
    }
    if (p->terminal ? now - p->start_ns < PATIENCE_NS || now - p->last_ns < TERMINAL_PERIOD_NS
                    : p->last_ns && now - p->last_ns < LOG_PERIOD_NS)
        return;
    p->last_ns = now;

    char line[LINE_MAX_BYTES];
    struct snapshot snapshot = {
        .done = done,
        .total = atomic_load_explicit(&state->bytes_total, memory_order_relaxed),
        .members = atomic_load_explicit(&state->members, memory_order_relaxed),
        .members_total = atomic_load_explicit(&state->members_total, memory_order_relaxed)};
    describe_progress(p, now, &snapshot, line);
    if (p->terminal)
        fprintf(stderr, "\r\033[K%.*s", (int)terminal_columns() - 1, line);
    else
        fprintf(stderr, "onepot: %s\n", line);
    p->drawn = p->terminal;
}

void cli_progress_end(struct cli_progress *progress)
{
    if (progress->drawn)
        fputs("\r\033[K", stderr);
    progress->drawn = false;
}

void cli_progress_note(void *progress, const char *line)
{
    cli_progress_end(progress);
    cli_note("%s", line);
}
