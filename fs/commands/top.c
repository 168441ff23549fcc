/*
 * onepot top: the current activity of mounts, updated continually. Like `onepot stat` it reads
 * only counters, and asks neither mounts nor daemons.
 *
 * On a terminal each mount is a row, and one can be looked at closely. Plain ANSI sequences
 * draw, which all current terminals understand. Whatever ends or stops the program gives the
 * terminal back first. In a pipe, the text of all mounts is printed again and again.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "account.h"
#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "report.h"
#include "interrupt.h"
#include "numbers.h"
#include "state.h"
#include "summary.h"
#include "utf8.h"

static int top_main(int argc, char **argv);

const struct cli_command command_top = {
    "top", top_main, "show what mounts do, live", "[-n COUNT] [-d SECONDS] [MOUNTPOINT]...",
    "Show continually what mounts do, the busiest first; without MOUNTPOINT, all of yours on\n"
    "this node, or root all users'. q ends it, h shows the keys. If standard output is no\n"
    "terminal, pictures are printed one after another.\n"};

#define WAIT_MOST_NS UINT64_C(300000000)
#define DELAY_DEFAULT_NS UINT64_C(2000000000)
#define SEQUENCE_WAIT_MS 50 /* for the rest of a key's sequence */
#define HISTORY 256         /* intervals that are remembered */
#define LINES_UNKNOWN 24

enum top_view { VIEW_MOUNTS, VIEW_ONE, VIEW_KEYS };
enum top_sort { SORT_BYTES, SORT_FILES, SORT_WAITING, SORT_JOB, SORT_ARCHIVE, SORTS };

/* A mount at the last two looks, and its work before. */
struct top_mount {
    const struct slot *slot;
    char user[33]; /* for root */
    struct summary was, is;
    struct summary_rates history[HISTORY]; /* a ring: number i is at i % HISTORY */
    size_t intervals;                      /* so far */
};

/* The screen of a terminal; the earlier contents are restored afterwards. */
struct screen {
    bool on;
    bool has_keys; /* standard input is a terminal, too */
    struct termios before;
    unsigned lines;
    struct summary_style style;
};

struct top {
    char **names; /* mount points; none: all */
    int count;
    uint64_t pictures; /* 0: no end */
    uint64_t delay_ns;
    struct screen screen;
    enum top_view view;
    enum top_sort sort;
    bool has_users; /* root sees the mounts of all */
    struct slot_list slots;
    struct top_mount *mounts; /* in the order in which they are shown */
    size_t mount_count, chosen;
    bool has_chosen;   /* the user has: the same mount stays chosen when its place changes */
    size_t first_line; /* of the view that is shown at the top */
};

/* ---- the screen ---- */

static volatile sig_atomic_t stop_is_asked, was_stopped;

static void note_stop(int number)
{
    if (number == SIGTSTP)
        stop_is_asked = 1;
    else if (number == SIGCONT)
        was_stopped = 1; /* a change of size only ends a wait */
}

/* Waits end with a signal, without SA_RESTART. A signal that was ignored stays ignored. */
static void catch_signal(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler}, old;
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

static void screen_measure(struct screen *screen)
{
    struct winsize size;
    bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1;
    screen->lines = is_known ? size.ws_row : LINES_UNKNOWN;
    summary_style(stdout, &screen->style);
}

/* Single keys, unseen, and no key that only stops the output. */
static void screen_set_modes(const struct screen *screen)
{
    struct termios raw = screen->before;

    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_iflag &= ~(tcflag_t)IXON;
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (screen->has_keys)
        tcsetattr(STDIN_FILENO, TCSADRAIN, &raw); /* in the background it stops us here */
    fputs("\033[?25l\033[?7l", stdout);           /* no cursor, no wrapping */
}

static void screen_start(struct screen *screen)
{
    screen->on = true;
    screen_set_modes(screen);
    fputs("\033[?1049h", stdout); /* another screen */
    screen_measure(screen);
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

/* Standard output must be a terminal. */
static void screen_begin(struct screen *screen)
{
    screen->has_keys = tcgetattr(STDIN_FILENO, &screen->before) == 0;
    catch_signal(SIGTSTP, note_stop);
    catch_signal(SIGCONT, note_stop);
    catch_signal(SIGWINCH, note_stop);
    catch_signal(SIGQUIT, interrupt_note);
    screen_start(screen);
}

/* Has it to be drawn anew, since it changed its size, or we were stopped? May stop here. */
static bool screen_changed(struct screen *screen)
{
    const struct screen before = *screen;

    if (stop_is_asked) {
        screen_end(screen);
        catch_signal(SIGTSTP, SIG_DFL);
        raise(SIGTSTP);
        catch_signal(SIGTSTP, note_stop);
        stop_is_asked = was_stopped = 0;
        if (!atomic_load(interrupt_flag()))
            screen_start(screen);
        return true;
    }
    if (was_stopped) { /* by SIGSTOP, which asks nobody */
        was_stopped = 0;
        screen_set_modes(screen);
        return true;
    }
    screen_measure(screen);
    return before.lines != screen->lines || before.style.columns != screen->style.columns;
}

/* Write a line as far as the screen is wide. Sequences (of colours) take no room. */
static void screen_write_line(const struct screen *screen, const char *line, size_t len)
{
    bool in_sequence = false;
    size_t end = 0, n;
    uint32_t code;

    for (unsigned column = 0; end < len; end += n) {
        n = max_u64(utf8_length(line + end, len - end, &code), 1);
        if (line[end] == '\033')
            in_sequence = true;
        else if (in_sequence)
            in_sequence = line[end] != 'm';
        else if (++column > screen->style.columns)
            break;
    }
    fwrite(line, 1, end, stdout);
    fputs("\033[m\033[K", stdout); /* no colours any more */
}

/*
 * Show these lines from the top, as many as fit. All is written at once, and each line is
 * cleared after its end, so nothing flickers.
 */
static void screen_draw(const struct screen *screen, const char *text, size_t len)
{
    const char *end = text + len;

    fputs("\033[H", stdout);
    for (unsigned left = screen->lines; text < end && left > 0; left--) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        size_t n = (size_t)((newline ? newline : end) - text);
        screen_write_line(screen, text, n);
        fputs(left > 1 ? "\r\n" : "", stdout);
        text += newline ? n + 1 : n;
    }
    fputs("\033[J", stdout);
    fflush(stdout);
}

enum key {
    KEY_ESCAPE = 27,
    KEY_UP = 256,
    KEY_DOWN,
    KEY_PAGE_UP,
    KEY_PAGE_DOWN,
    KEY_FIRST,
    KEY_LAST
};

/* Wait for a byte of a key. 0: none came; -1: there will be no more. */
static int screen_byte(const struct screen *screen, uint64_t wait_ns)
{
    struct pollfd p = {.fd = screen->has_keys ? STDIN_FILENO : -1, .events = POLLIN};
    struct timespec t = clock_timespec(wait_ns);
    unsigned char byte;

    if (ppoll(&p, 1, &t, NULL) <= 0)
        return 0;
    ssize_t n = read(STDIN_FILENO, &byte, 1);
    if (n == 1)
        return byte;
    return n < 0 && errno == EINTR ? 0 : -1;
}

/*
 * Wait for a key and return its byte, or an enum key; 0 when the time is over, a signal came,
 * or the key means nothing; -1: there will be no more keys. Without a screen there are none.
 */
static int screen_wait_key(const struct screen *screen, uint64_t wait_ns)
{
    const uint64_t rest_ns = SEQUENCE_WAIT_MS * UINT64_C(1000000);
    int key = screen_byte(screen, wait_ns), last, number = 0;

    if (key != KEY_ESCAPE)
        return key;
    last = screen_byte(screen, rest_ns);
    if (last <= 0)
        return KEY_ESCAPE;
    if (last != '[' && last != 'O')
        return 0;
    while ((last = screen_byte(screen, rest_ns)) > 0 && last < '@')
        number = last >= '0' && last <= '9' && number < 100 ? 10 * number + last - '0' : number;
    switch (last) {
    case 'A':
        return KEY_UP;
    case 'B':
        return KEY_DOWN;
    case 'H':
        return KEY_FIRST;
    case 'F':
        return KEY_LAST;
    case '~':
        return number == 5                  ? KEY_PAGE_UP
               : number == 6                ? KEY_PAGE_DOWN
               : number == 1 || number == 7 ? KEY_FIRST
               : number == 4 || number == 8 ? KEY_LAST
                                            : 0;
    default:
        return last < 0 ? -1 : 0;
    }
}

/* ---- one mount, in words ---- */

static const struct summary_rates *rates_of(const struct top_mount *m)
{
    return &m->history[(m->intervals - 1) % HISTORY];
}

static uint64_t rounded(double value)
{
    return (uint64_t)(value + 0.5);
}

static uint64_t top_grown(uint64_t was, uint64_t is)
{
    return is > was ? is - was : 0;
}

static void print_now(FILE *out, const struct top_mount *m)
{
    const struct summary_rates *r = rates_of(m);
    fprintf(out, "  %-12s %s files/s, %s/s, %s requests/s\n",
            m->was.at_ns ? "now" : "on average", cli_count(rounded(r->files)),
            cli_bytes(rounded(r->bytes)), cli_count(rounded(r->requests)));
}

/* One second of waiting per second: one reader did nothing but wait. */
static void top_print_waits(FILE *out, const struct top_mount *m)
{
    const struct summary_rates *r = rates_of(m);
    fprintf(out, "  %-12s %.2f readers on average", "waiting", r->waiting);
    if (r->cached >= 0)
        fprintf(out, "; %.1f %% of reads from memory", r->cached);
    fputc('\n', out);
}

static void print_archive(FILE *out, const struct top_mount *m)
{
    const double seconds = rates_of(m)->seconds;
    double bytes = (double)top_grown(m->was.source_bytes, m->is.source_bytes) / seconds;
    double reads = (double)top_grown(m->was.source_reads, m->is.source_reads) / seconds;
    if (m->is.source_reads)
        fprintf(out, "  %-12s %s/s by %s reads/s of the archive\n", "fetching",
                cli_bytes(rounded(bytes)), cli_count(rounded(reads)));
}

static void top_print_cache(FILE *out, const struct top_mount *m)
{
    const struct counters *c = m->slot->counters;
    uint64_t hits = top_grown(m->was.cache_hits, m->is.cache_hits);
    uint64_t misses = top_grown(m->was.cache_misses, m->is.cache_misses);
    if (m->is.cache_hits + m->is.cache_misses == 0)
        return;
    fprintf(out, "  %-12s %s of %s", "block cache", cli_bytes(counter_get(&c->cache_bytes)),
            cli_bytes(c->cache_budget_bytes));
    if (hits + misses)
        fprintf(out, "; %.1f %% hits", percent(hits, hits + misses));
    fputc('\n', out);
}

static void print_troubles(FILE *out, const struct top_mount *m)
{
    const struct counters *c = m->slot->counters;
    uint64_t stalls = counter_get(&c->stalls), retries = counter_get(&c->source_retries);
    if (!m->is.errors && !stalls && !retries && !counter_get(&c->source_failures))
        return;
    fprintf(out, "  %-12s %s errors, %s stalls, %s reads tried again\n", "trouble",
            cli_count(m->is.errors), cli_count(stalls), cli_count(retries));
    if (c->last_error[0]) {
        fprintf(out, "  %-12s ", "last error");
        cli_print_safe(out, c->last_error, strnlen(c->last_error, sizeof(c->last_error)));
        fputc('\n', out);
    }
}

static void print_total(FILE *out, const struct top_mount *m)
{
    uint64_t up_ns = top_grown(m->slot->counters->started_ns, m->is.at_ns);
    fprintf(out, "  %-12s %s files, %s in %s\n", "in all", cli_count(m->is.read_files),
            cli_bytes(m->is.read_bytes), cli_time(up_ns));
}

/* Print the rates between two looks, or since the mount began if this is the first one. */
static void top_print(FILE *out, const struct top_mount *m)
{
    const struct counters *c = m->slot->counters;

    cli_print_safe(out, c->mountpoint, strnlen(c->mountpoint, sizeof(c->mountpoint)));
    fprintf(out, ": %s\n  %-12s ", find_mount_state(m->slot), "archive");
    cli_print_safe(out, c->archive, strnlen(c->archive, sizeof(c->archive)));
    if (m->user[0]) {
        fprintf(out, "\n  %-12s ", "user");
        cli_print_safe(out, m->user, strlen(m->user));
    }
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
    if (c->extracted) {
        fprintf(out, "  %-12s %s files, %s; nobody counts how they are read\n", "extracted",
                cli_count(c->files), cli_bytes(c->total_bytes));
        return;
    }
    print_now(out, m);
    top_print_waits(out, m);
    print_archive(out, m);
    top_print_cache(out, m);
    print_total(out, m);
    print_troubles(out, m);
}

/* ---- on a screen ---- */

static const char *const sorts[SORTS] = {[SORT_BYTES] = "MiB/s",
                                         [SORT_FILES] = "files/s",
                                         [SORT_WAITING] = "waiting",
                                         [SORT_JOB] = "job",
                                         [SORT_ARCHIVE] = "archive"};

static double value_of(const struct summary_rates *r, enum top_sort sort)
{
    return sort == SORT_BYTES     ? r->bytes / (1 << 20)
           : sort == SORT_FILES   ? r->files
           : sort == SORT_WAITING ? 100 * r->waiting
                                  : 0;
}

/* One value's history as a line of blocks, the newest last; the maximum is a full block. */
static void print_history(FILE *out, const struct summary_style *style,
                          const struct top_mount *m, size_t count, enum top_sort sort)
{
    static const char marks[] = " .:-=+*%#";
    double most = 0;

    for (size_t i = m->intervals - count; i < m->intervals; i++) {
        double value = value_of(&m->history[i % HISTORY], sort);
        most = value > most ? value : most;
    }
    if (sort == SORT_BYTES)
        fprintf(out, "  %-12s %8.1f   ", sorts[sort], most);
    else
        fprintf(out, "  %-12s %8s%s ", sorts[sort], cli_count(rounded(most)),
                sort == SORT_WAITING ? " %" : "  ");
    for (size_t i = m->intervals - count; i < m->intervals; i++) {
        double value = value_of(&m->history[i % HISTORY], sort);
        int height = value > 0 ? 1 + (int)(value / most * 7 + 0.5) : 0;
        if (style->has_blocks && height > 0)
            fprintf(out, "\xe2\x96%c", 0x80 + height); /* U+2581 (an eighth) to U+2588 */
        else
            fputc(marks[height], out);
    }
    fputc('\n', out);
}

static void print_histories(FILE *out, const struct summary_style *style,
                            const struct top_mount *m)
{
    const size_t before = 26; /* characters, of each line */
    size_t room = style->columns > before ? style->columns - before : 1;
    size_t count = min_u64(min_u64(m->intervals, HISTORY), room);
    double seconds = 0;

    for (size_t i = m->intervals - count; i < m->intervals; i++)
        seconds += m->history[i % HISTORY].seconds;
    fprintf(out, "  %-12s %s: the maximum, then each interval\n", "history",
            cli_time((uint64_t)(seconds * 1e9)));
    print_history(out, style, m, count, SORT_BYTES);
    print_history(out, style, m, count, SORT_FILES);
    print_history(out, style, m, count, SORT_WAITING);
}

static void print_clock(FILE *out)
{
    char clock[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (localtime_r(&now, &tm))
        strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
    fputs(clock, out);
}

static void print_left_out(FILE *out, const struct top *t)
{
    if (t->slots.left_out)
        fprintf(out, "; %zu more can't be shown", t->slots.left_out);
}

/* A line that tells the keys also where it is cut at 40 columns. */
static void draw_heading(FILE *out, const struct top *t)
{
    const struct summary_style *style = &t->screen.style;
    fprintf(out, "%sonepot top, %zu mount%s by %s, h: keys; ",
            style->has_colours ? "\033[1m" : "", t->mount_count, t->mount_count == 1 ? "" : "s",
            sorts[t->sort]);
    print_clock(out);
    fprintf(out, ", every %g s", (double)t->delay_ns / 1e9);
    print_left_out(out, t);
    fprintf(out, "%s\n", style->has_colours ? "\033[22m" : "");
}

static void draw_mounts(FILE *out, struct top *t)
{
    const size_t room = t->screen.lines > 3 ? t->screen.lines - 2 : 1;

    t->first_line = min_u64(t->first_line, t->chosen);
    if (t->chosen >= t->first_line + room)
        t->first_line = t->chosen - room + 1;
    t->first_line = min_u64(t->first_line, t->mount_count - min_u64(t->mount_count, room));
    summary_row(out, &t->screen.style, t->has_users ? "" : NULL, NULL, NULL, NULL);
    for (size_t i = t->first_line; i < t->mount_count && i < t->first_line + room; i++) {
        const struct top_mount *m = &t->mounts[i];
        bool is_chosen = i == t->chosen && t->screen.has_keys;
        fputs(is_chosen ? "\n\033[7m" : "\n", out);
        summary_row(out, &t->screen.style, t->has_users ? m->user : NULL, m->slot->counters,
                    find_mount_state(m->slot), rates_of(m));
        fputs(is_chosen ? "\033[27m" : "", out);
    }
}

/* Draw a text with its long lines folded, from the line on to which it is scrolled. */
static void draw_text(FILE *out, struct top *t, const char *text, size_t len)
{
    const size_t room = t->screen.lines > 2 ? t->screen.lines - 1 : 1;
    auto_free char *folded = NULL;
    size_t folded_len = 0, lines = 0, column = 0, skip;
    uint32_t code;
    FILE *folding = open_memstream(&folded, &folded_len);

    if (!folding)
        return;
    for (size_t i = 0, n; i < len; i += n) {
        n = max_u64(utf8_length(text + i, len - i, &code), 1);
        if (column == t->screen.style.columns && text[i] != '\n') {
            fputc('\n', folding);
            lines++;
            column = 0;
        }
        fwrite(text + i, 1, n, folding);
        lines += text[i] == '\n';
        column = text[i] == '\n' ? 0 : column + 1;
    }
    if (fclose(folding) != 0)
        return;
    t->first_line = min_u64(t->first_line, lines - min_u64(lines, room));
    const char *from = folded;
    for (skip = t->first_line; skip > 0; skip--)
        from = strchr(from, '\n') + 1;
    fputs(from, out);
}

static void draw_one(FILE *out, struct top *t)
{
    auto_free char *text = NULL;
    size_t len = 0;
    FILE *words = open_memstream(&text, &len);

    if (!words)
        return;
    top_print(words, &t->mounts[t->chosen]);
    print_histories(words, &t->screen.style, &t->mounts[t->chosen]);
    if (fclose(words) == 0)
        draw_text(out, t, text, len);
}

static void draw(struct top *t)
{
    static const char keys[] = "  q              end\n"
                               "  up, down       another mount (k, j)\n"
                               "  page up, down  a screen further\n"
                               "  Home, End      first, last (g, G)\n"
                               "  Enter          one mount, and back\n"
                               "  s              sort by another column\n"
                               "  space          look at once\n"
                               "  h or ?         show or hide the keys\n";
    auto_free char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    if (!out)
        return;
    draw_heading(out, t);
    if (t->view == VIEW_KEYS)
        draw_text(out, t, keys, sizeof(keys) - 1);
    else if (t->view == VIEW_ONE && t->mount_count)
        draw_one(out, t);
    else
        draw_mounts(out, t);
    if (fclose(out) == 0)
        screen_draw(&t->screen, text, len);
}

/* ---- all of them ---- */

/* Large values first; equal ones by name. */
static int compare_mounts(const void *a, const void *b, void *sort)
{
    const struct top_mount *one = a, *other = b;
    const struct counters *c = one->slot->counters, *d = other->slot->counters;
    const enum top_sort by = *(const enum top_sort *)sort;
    double x = value_of(rates_of(one), by), y = value_of(rates_of(other), by);
    int r = x > y ? -1 : x < y;
    if (r == 0 && by == SORT_JOB)
        r = strcmp(c->job, d->job);
    if (r == 0)
        r = strcmp(c->archive, d->archive);
    return r ? r : strcmp(c->mountpoint, d->mountpoint);
}

/* A user's record may name anybody's daemon. */
static bool is_same_daemon(const struct slot *one, const struct slot *other)
{
    const struct counters *c = one->counters, *d = other->counters;
    return one->uid == other->uid && c->daemon_start_ticks == d->daemon_start_ticks &&
           c->daemon_pid == d->daemon_pid;
}

/* The mount's place in the last look, or the number of mounts in it. */
static size_t place_of(const struct top *t, const struct slot *slot)
{
    size_t i = 0;
    while (i < t->mount_count && !is_same_daemon(t->mounts[i].slot, slot))
        i++;
    return i;
}

/* Sort the mounts for the screen; `chosen` was the chosen one. */
static void sort_mounts(struct top *t, const struct slot *chosen)
{
    qsort_r(t->mounts, t->mount_count, sizeof(t->mounts[0]), compare_mounts, &t->sort);
    size_t place = chosen ? place_of(t, chosen) : t->mount_count;
    if (place < t->mount_count)
        t->chosen = t->has_chosen ? place : t->chosen;
    else if (t->view == VIEW_ONE)
        t->view = VIEW_MOUNTS; /* it has ended */
    t->chosen = min_u64(t->chosen, t->mount_count ? t->mount_count - 1 : 0);
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

static void look_at_mount(const struct top *t, const struct slot *slot,
                          struct top_mount *ret_mount)
{
    size_t last = place_of(t, slot);
    if (last < t->mount_count)
        *ret_mount = t->mounts[last];
    ret_mount->slot = slot;
    if (t->has_users && !ret_mount->user[0])
        account_name(slot->uid, ret_mount->user, sizeof(ret_mount->user));
    ret_mount->was = ret_mount->is;
    summary_read(slot->counters, &ret_mount->is);
    summary_rates(slot->counters, &ret_mount->was, &ret_mount->is,
                  &ret_mount->history[ret_mount->intervals++ % HISTORY]);
}

/* Look at all mounts, and remember what they did since the last look. 0 or -errno. */
static int look(struct top *t)
{
    auto_slots struct slot_list slots = {0};
    int r = state_list_all(&slots);
    const size_t most = t->count ? (size_t)t->count : slots.count;
    struct top_mount *mounts = r < 0 ? NULL : calloc(most + 1, sizeof(*mounts));
    const struct slot *chosen = t->chosen < t->mount_count ? t->mounts[t->chosen].slot : NULL;
    const struct slot *slot;
    size_t count = 0;

    if (!mounts)
        return r < 0 ? r : -ENOMEM;
    for (size_t i = 0; i < most; i++)
        if ((slot = mount_shown(t, &slots, i)))
            look_at_mount(t, slot, &mounts[count++]);
    free(t->mounts);
    t->mounts = mounts;
    t->mount_count = count;
    if (t->screen.on)
        sort_mounts(t, chosen);
    /* The counters of the last look were mapped until here. */
    struct slot_list last = t->slots;
    t->slots = slots;
    slots = last;
    return 0;
}

/* Print all in words. -EIO: main() reports it. */
static int print_mounts(const struct top *t, bool is_first)
{
    printf("%sonepot top, ", is_first ? "" : "\n");
    print_clock(stdout);
    printf(": %zu mount%s, every %g s", t->mount_count, t->mount_count == 1 ? "" : "s",
           (double)t->delay_ns / 1e9);
    print_left_out(stdout, t);
    putchar('\n');
    for (size_t i = 0; i < t->mount_count; i++) {
        putchar('\n');
        top_print(stdout, &t->mounts[i]);
    }
    return fflush(stdout) != 0 || ferror(stdout) ? -EIO : 0;
}

/* Choose another mount; where a text is shown, scroll it. */
static void move(struct top *t, long lines)
{
    size_t *at = t->view == VIEW_MOUNTS ? &t->chosen : &t->first_line;
    size_t most = t->view != VIEW_MOUNTS ? SIZE_MAX / 2
                  : t->mount_count       ? t->mount_count - 1
                                         : 0;
    long to = (long)*at + lines;
    t->has_chosen |= t->view == VIEW_MOUNTS;
    *at = to < 0 ? 0 : min_u64((size_t)to, most);
}

static void show(struct top *t, enum top_view view)
{
    t->view = t->view == view ? VIEW_MOUNTS : view;
    t->has_chosen |= view == VIEW_ONE;
    t->first_line = 0;
}

/* True: the user wants to quit. */
static bool act(struct top *t, int key)
{
    const long page = t->screen.lines > 3 ? t->screen.lines - 2 : 1, all = INT32_MAX;

    switch (key) {
    case 'q':
    case 'Q':
        return true;
    case 'h':
    case '?':
        show(t, VIEW_KEYS);
        break;
    case '\n':
        show(t, VIEW_ONE);
        break;
    case KEY_ESCAPE:
        show(t, VIEW_MOUNTS);
        break;
    case 's':
        t->sort = (t->sort + 1) % SORTS;
        sort_mounts(t, t->mount_count ? t->mounts[t->chosen].slot : NULL);
        break;
    case 'k':
    case KEY_UP:
        move(t, -1);
        break;
    case 'j':
    case KEY_DOWN:
        move(t, 1);
        break;
    case KEY_PAGE_UP:
        move(t, -page);
        break;
    case KEY_PAGE_DOWN:
        move(t, page);
        break;
    case 'g':
    case KEY_FIRST:
        move(t, -all);
        break;
    case 'G':
    case KEY_LAST:
        move(t, all);
        break;
    }
    return false;
}

/* Draw what keys ask for until the next look. True: the user wants to quit. */
static bool wait_for_next(struct top *t)
{
    uint64_t until = now_ns() + t->delay_ns, now;
    while ((now = now_ns()) < until && !atomic_load(interrupt_flag())) {
        /* In short pieces: a signal may come between the check of the flag and the wait. */
        int key = screen_wait_key(&t->screen, min_u64(until - now, WAIT_MOST_NS));
        if (key == ' ')
            return false;
        if (key < 0 || act(t, key))
            return true;
        if (t->screen.on && (screen_changed(&t->screen) || key > 0) && t->screen.on)
            draw(t);
    }
    return atomic_load(interrupt_flag()) != 0;
}

static int show_pictures(struct top *t)
{
    for (uint64_t n = 1;; n++) {
        int r = look(t);
        if (r == 0 && t->screen.on) {
            draw(t);
            r = ferror(stdout) ? -EIO : 0;
        } else if (r == 0)
            r = print_mounts(t, n == 1);
        if (r < 0)
            return r;
        if (n == t->pictures || (t->count && t->mount_count == 0) || wait_for_next(t))
            return 0;
    }
}

/* Named mounts must exist at the beginning. */
static int check_names(const struct top *t)
{
    auto_slots struct slot_list list = {0};
    const struct slot *slot;
    int r = state_list_all(&list), status = CLI_OK;
    if (r < 0)
        return cli_fail("the list of mounts", r, NULL);
    for (int i = 0; status == CLI_OK && i < t->count; i++)
        status = find_named_mount(&list, t->names[i], &slot);
    return status;
}

static int take_delay(const struct cli_command *u, void *ctx, const char *text)
{
    char *end;
    double seconds = strtod(text, &end);
    if (end == text || *end || !(seconds >= 0.1 && seconds <= 3600))
        return cli_usage_error(u, "--delay: '%s' is not a number of seconds from 0.1 to 3600",
                               text);
    *(uint64_t *)ctx = (uint64_t)(seconds * 1e9);
    return 0;
}

static int top_main(int argc, char **argv)
{
    struct top t = {.delay_ns = DELAY_DEFAULT_NS, .has_users = geteuid() == 0};
    const struct cli_option options[] = {
        {"-n, --count=COUNT", "end after so many looks", .number = &t.pictures, .min = 1,
         .max = UINT32_MAX},
        {"-d, --delay=SECONDS", "between two looks, 0.1 to 3600 (default 2)",
         .take = take_delay, .ctx = &t.delay_ns},
        {NULL},
    };
    int status = cli_parse(&command_top, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    t.names = argv + optind;
    t.count = argc - optind;
    if (t.has_users)
        cli_raise_file_limit(); /* each mount of another user takes descriptors */
    status = check_names(&t);
    if (status != CLI_OK)
        return status;
    interrupt_catch();
    summary_style(stdout, &t.screen.style);
    if (t.screen.style.is_terminal)
        screen_begin(&t.screen);
    int r = show_pictures(&t);
    screen_end(&t.screen);
    free(t.mounts);
    slot_list_free(&t.slots);
    if (atomic_load(interrupt_flag()))
        interrupt_die();
    return r < 0 && r != -EIO ? cli_fail(NULL, r, NULL) : CLI_OK;
}
