/*
 * Progress of long work: one line on standard error that is redrawn, with bytes, files, rate
 * and time left. If standard error is no terminal nothing is shown, unless a person requests
 * it; then a line is printed every few seconds, for a log.
 */
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

void cli_progress_start(struct cli_progress *progress)
{
    const char *term = getenv("TERM");
    bool terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
    *progress = (struct cli_progress){
        .shown = cli_progress_mode == CLI_PROGRESS_ALWAYS ||
                 (cli_progress_mode == CLI_PROGRESS_AUTO && terminal),
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

/* "3 min 5 s left", at the rate so far. */
static void append_left(char line[LINE_MAX_BYTES], uint64_t left, double done, double seconds)
{
    append(line, ", %s left", cli_time((uint64_t)((double)left / done * seconds * 1e9)));
}

/* The work may turn out to be more than was counted. */
static double share(uint64_t done, uint64_t total)
{
    return done < total ? 100.0 * (double)done / (double)total : 100.0;
}

static void describe_progress(const struct cli_progress *p, uint64_t now,
                              const struct progress *state, char line[LINE_MAX_BYTES])
{
    /* The work goes on meanwhile. */
    const uint64_t done = state->bytes_done, total = state->bytes_total;
    const uint64_t members = state->members, members_total = state->members_total;
    snprintf(line, LINE_MAX_BYTES, "%s: %s", p->doing, cli_bytes(done));
    if (total)
        append(line, " of %s (%.0f %%)", cli_bytes(total), share(done, total));
    if (members && members_total)
        append(line, ", %s of %s files", cli_count(members), cli_count(members_total));
    if (members && members_total && !total)
        append(line, " (%.0f %%)", share(members, members_total));
    else if (members)
        append(line, ", %s files", cli_count(members));

    double seconds = (double)(now - p->step_ns) / 1e9;
    if (seconds < 0.2 || done <= p->step_bytes)
        return;
    double step = (double)(done - p->step_bytes);
    append(line, ", %s/s", cli_bytes((uint64_t)(step / seconds)));
    if (total > done)
        append_left(line, total - done, step, seconds);
    else if (!total && members_total > members && members)
        append_left(line, members_total - members, (double)members, seconds);
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
    if (strncmp(doing, p->doing, sizeof(p->doing) - 1) != 0) {
        snprintf(p->doing, sizeof(p->doing), "%s", doing);
        p->step_ns = now;
        p->step_bytes = state->bytes_done;
    }
    if (p->terminal ? now - p->start_ns < PATIENCE_NS || now - p->last_ns < TERMINAL_PERIOD_NS
                    : p->last_ns && now - p->last_ns < LOG_PERIOD_NS)
        return;
    p->last_ns = now;

    char line[LINE_MAX_BYTES];
    describe_progress(p, now, state, line);
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
