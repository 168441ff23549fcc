/*
 * A mount's work in an interval as a row: the same in `onepot top` and in a log. The archive
 * comes last, because the width of its name on a terminal can't be told from its bytes.
 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "numbers.h"
#include "summary.h"
#include "utf8.h"

#define COLUMNS_UNKNOWN 80
#define COLUMNS_LEAST 40
#define COLUMNS_OF_ALL 72 /* with fewer, some cells are left out */
#define COLUMNS_OF_WIDE 110

enum { FILES_WIDTH = 7, MIB_WIDTH = 8, PERCENT_WIDTH = 7, CACHED_WIDTH = 6, USER_WIDTH = 8 };

static double grown(uint64_t was, uint64_t is)
{
    return is > was ? (double)(is - was) : 0;
}

void summary_rates(const struct counters *counters, const struct summary *was,
                   const struct summary *is, struct summary_rates *ret_rates)
{
    uint64_t since = was->at_ns ? was->at_ns : counters->started_ns;
    double seconds = grown(since, is->at_ns) / 1e9;
    double reads = grown(was->requests[COUNTERS_READ], is->requests[COUNTERS_READ]);
    double waited = grown(was->reads_waited, is->reads_waited);

    if (seconds < 1e-3)
        seconds = 1e-3;
    *ret_rates = (struct summary_rates){
        .seconds = seconds,
        .files = grown(was->starts, is->starts) / seconds,
        .bytes = grown(was->read_bytes, is->read_bytes) / seconds,
        .requests = grown(was->requests_all, is->requests_all) / seconds,
        .waiting = grown(was->read_service_ns, is->read_service_ns) / 1e9 / seconds,
        .cached = reads <= 0       ? -1
                  : waited < reads ? 100 - 100 * waited / reads
                                   : 0,
        .has_errors = is->errors > was->errors,
    };
}

/* ---- the style ---- */

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool locale_is_utf8(void)
{
    const char *name = variable("LC_ALL");
    if (!name)
        name = variable("LC_CTYPE");
    if (!name)
        name = variable("LANG");
    const char *codeset = name ? strchr(name, '.') : NULL;
    return codeset &&
           (strncasecmp(codeset, ".UTF-8", 6) == 0 || strncasecmp(codeset, ".utf8", 5) == 0);
}

void summary_style(FILE *out, struct summary_style *ret_style)
{
    const char *term = variable("TERM");
    bool is_terminal = isatty(fileno(out)) && term && strcmp(term, "dumb") != 0;
    struct winsize size = {0};

    if (is_terminal)
        ioctl(fileno(out), TIOCGWINSZ, &size);
    *ret_style = (struct summary_style){
        .columns = size.ws_col ? size.ws_col : COLUMNS_UNKNOWN,
        .is_terminal = is_terminal,
        .has_blocks = locale_is_utf8(),
        .has_colours = is_terminal && strncmp(term, "vt", 2) != 0 && !variable("NO_COLOR"),
    };
}

/* ---- cells ---- */

enum { RED = 31, GREEN = 32, YELLOW = 33, NO_COLOUR = 39 };

static void set_colour(FILE *out, const struct summary_style *style, int colour)
{
    if (style->has_colours)
        fprintf(out, "\033[%dm", colour);
}

/* A bar of `width` characters: of blocks by eighths, U+2588 (whole) to U+258F (one eighth). */
static void print_bar(FILE *out, const struct summary_style *style, double share,
                      unsigned width)
{
    unsigned eighths = (unsigned)((share < 1 ? share : 1) * 8 * width + 0.5), used = 0;

    set_colour(out, style, share < 0.1 ? GREEN : share < 0.5 ? YELLOW : RED);
    for (; eighths >= (style->has_blocks ? 1 : 4); used++) {
        unsigned part = min_u32(eighths, 8);
        if (style->has_blocks)
            fprintf(out, "\xe2\x96%c", 0x90 - (int)part);
        else
            fputc('#', out);
        eighths -= part;
    }
    set_colour(out, style, NO_COLOUR);
    fprintf(out, "%*s", (int)(width - used), "");
}

/* Print a name with its end, in `width` characters, as what tells names apart is there. */
static void print_end(FILE *out, const char *name, unsigned width, bool is_last)
{
    auto_free char *text = NULL;
    size_t len = 0, count = 0, at = 0;
    uint32_t code;
    FILE *safe = open_memstream(&text, &len);

    if (!safe)
        return;
    cli_print_safe(safe, name, strlen(name));
    if (fclose(safe) != 0)
        return;
    for (size_t i = 0; i < len; count++)
        i += utf8_length(text + i, len - i, &code);
    if (count > width) {
        for (size_t skip = count - width + 3; skip > 0; skip--)
            at += utf8_length(text + at, len - at, &code);
        fputs("...", out);
    }
    fputs(text + at, out);
    if (!is_last && count < width)
        fprintf(out, "%*s", (int)(width - count), "");
}

static void print_files(FILE *out, double files)
{
    if (files < 999999.5)
        fprintf(out, "%*s", FILES_WIDTH, cli_count((uint64_t)(files + 0.5)));
    else
        fprintf(out, "%*.1fM", FILES_WIDTH - 1, files / 1e6);
}

/* A state that is not serving, or why the numbers say little: nobody counts reads of plain
 * files. */
static void print_waiting(FILE *out, const struct summary_style *style,
                          const struct counters *c, const char *state,
                          const struct summary_rates *rates, unsigned bar)
{
    const char *word = strcmp(state, "serving") != 0 ? state
                       : rates->has_errors           ? "errors"
                       : c->extracted                ? "extracted"
                                                     : "";
    double waiting = 100 * rates->waiting;

    if (*word) {
        set_colour(out, style, RED);
        fprintf(out, "%-*s", (int)bar + PERCENT_WIDTH, word);
        set_colour(out, style, NO_COLOUR);
        return;
    }
    print_bar(out, style, rates->waiting, bar);
    fprintf(out, "%*.0f %%", PERCENT_WIDTH - 2, waiting < 9999 ? waiting : 9999);
}

static void print_job(FILE *out, const struct counters *c, unsigned width)
{
    char job[sizeof(c->job) + sizeof(c->step) + 1];
    snprintf(job, sizeof(job), "%s%s%s", c->job[0] ? c->job : "-", c->step[0] ? "." : "",
             c->step);
    print_end(out, job, width, false);
}

void summary_row(FILE *out, const struct summary_style *style, const char *user,
                 const struct counters *c, const char *state, const struct summary_rates *rates)
{
    unsigned columns = style->columns > COLUMNS_LEAST ? style->columns : COLUMNS_LEAST;
    bool has_all = columns >= COLUMNS_OF_ALL, is_wide = columns >= COLUMNS_OF_WIDE;
    unsigned bar = is_wide ? 20 : has_all ? 10 : 4, job = is_wide ? 20 : 12;
    unsigned used = FILES_WIDTH + 1 + MIB_WIDTH + 1 + bar + PERCENT_WIDTH + 1;

    if (has_all)
        used += CACHED_WIDTH + 1 + job + 1;
    if (has_all && user)
        used += USER_WIDTH + 1;
    if (!c) {
        fprintf(out, "%*s %*s %-*s ", FILES_WIDTH, "files/s", MIB_WIDTH, "MiB/s",
                (int)bar + PERCENT_WIDTH, "waiting");
        if (has_all)
            fprintf(out, "%*s %-*s%-*s ", CACHED_WIDTH, "cached", user ? USER_WIDTH + 1 : 0,
                    user ? "user" : "", (int)job, "job");
        fputs("archive", out);
        return;
    }
    print_files(out, rates->files);
    fprintf(out, " %*.1f ", MIB_WIDTH, rates->bytes / (1 << 20));
    print_waiting(out, style, c, state, rates, bar);
    if (has_all && rates->cached >= 0)
        fprintf(out, " %*.0f %% ", CACHED_WIDTH - 2, rates->cached);
    else
        fprintf(out, " %*s", has_all ? CACHED_WIDTH + 1 : 0, has_all ? "- " : "");
    if (has_all && user) {
        print_end(out, user, USER_WIDTH, false);
        fputc(' ', out);
    }
    if (has_all) {
        print_job(out, c, job);
        fputc(' ', out);
    }
    print_end(out, c->archive, columns - used, true);
}
