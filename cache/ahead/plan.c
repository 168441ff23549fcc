/*
 * Without a known order the first reads since an anchor are kept; an anchor is the start, a
 * pause, a file that comes again, or the loss of an order. From RECOGNISE_READS_MIN reads on,
 * and then at twice as many each time, the plan tries to recognise their order. That takes
 * processor time, which is held to a small share of the time that passes.
 *
 * A recognised order is also fed the reads up to then, so that it knows where the readers are.
 * Half way through an epoch the order of the next one is made. That is the order of epoch + 1,
 * or the same again where an epoch came twice because nobody calls set_epoch.
 */
#include "plan.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ahead.h"
#include "bits.h"
#include "chooser.h"
#include "clock.h"
#include "follow.h"
#include "known_reads.h"
#include "numbers.h"
#include "recognise.h"

/*
 * A name's place in the index is its place in the order of names: the children of a directory
 * follow one another there, and then come the next directory's. The order of the archive has to
 * be sorted first. That is done when reads lie close together in the archive and not in the
 * index.
 */

#define BATCH_BYTES (1u << 20) /* for one thread to fetch at once */
#define FILES_WAITING 4096u    /* fetched and not used yet, at most */
#define FILE_STREAMS 16u
#define FILE_READS 3u /* in a row, before more of a large file is fetched */
#define FILE_WINDOW_FIRST (256u << 10)
#define FILE_WINDOW_SURE (4u << 20)   /* so much is fetched as soon as it was read in a row */
#define FILE_WINDOW_MOST (16u << 20)  /* as far as the kernel reads ahead on fast storage */
#define FILE_WINDOWS_LEAST (8u << 20) /* of all streams, or half of the plan's window */
#define FILE_WINDOWS_MOST (32u << 20) /* half of the block cache's RING_AHEAD */
#define FILE_IDLE 256u                /* reads of other streams: it needs no window */
#define FILE_NEAR (512u << 10)        /* the kernel asks for pieces early, and out of order */
#define CLOSE_BYTES (64u << 10)
#define CLOSE_OF 64u    /* reads, */
#define CLOSE_READS 48u /* of which so many were close to an earlier one */
#define JUDGED 256u     /* files between two checks of whether they were used */
#define PAUSE_FIRST 4096u

/* A large file that is read from front to back. */
struct file_stream {
    uint32_t position;
    uint32_t task; /* that read last */
    uint32_t reads;
    uint64_t begun;    /* where the first read began */
    uint64_t expected; /* where the next read begins */
    uint64_t fetched;  /* asked for up to here */
    uint64_t window;   /* bytes */
    uint64_t used;
};

struct scan {
    const struct ahead_options *options;
    struct ahead_stats *stats;
    uint64_t reads; /* first reads of files */

    struct sequences names, places;
    struct known_reads *archive;
    bool wants_archive, no_archive;
    unsigned close_reads, offset_reads;
    uint64_t last_ends[8];

    struct file_stream files[FILE_STREAMS];
    uint64_t file_clock;

    /* Files that were fetched and not used yet. */
    uint64_t *waits; /* a bit for each entry */
    uint32_t ring[FILES_WAITING];
    uint32_t ring_first, ring_count;
    uint64_t ring_bytes;

    unsigned judged, judged_unused;
    uint64_t used_at;        /* value of `reads` when a fetched file was last used */
    uint64_t goes_on, pause; /* across files after so many reads */
};

/* `options`, whose window may change, and `stats`, to count in, outlive it. -ENOMEM. */
static int scan_new(const struct ahead_options *options, struct ahead_stats *stats,
                    struct scan **ret_scan)
{
    struct scan *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->options = options;
    s->stats = stats;
    s->pause = PAUSE_FIRST;
    s->waits = calloc(index_info(options->index)->entries / 64 + 1, sizeof(*s->waits));
    if (!s->waits) {
        free(s);
        return -ENOMEM;
    }
    *ret_scan = s;
    return 0;
}

static void scan_free(struct scan *s)
{
    if (!s)
        return;
    known_reads_free(s->archive);
    free(s->waits);
    free(s);
}

/* ---- what was fetched, and whether it was used ---- */

static bool scan_end_wait(struct scan *s, uint32_t position)
{
    uint64_t bit = UINT64_C(1) << (position % 64), *word = &s->waits[position / 64];

    if (!(*word & bit))
        return false;
    *word &= ~bit;
    s->ring_bytes -= want_bytes(s->options->index, position);
    return true;
}

static void scan_judge(struct scan *s, bool used)
{
    s->judged_unused += !used;
    if (++s->judged < JUDGED)
        return;
    if (s->judged_unused > JUDGED / 2) {
        s->goes_on = s->reads + s->pause;
        s->pause *= 2;
        s->names = s->places = (struct sequences){0};
    }
    s->judged = s->judged_unused = 0;
}

static void scan_drop_oldest(struct scan *s)
{
    uint32_t position = s->ring[s->ring_first];

    s->ring_first = (s->ring_first + 1) % FILES_WAITING;
    s->ring_count--;
    if (!scan_end_wait(s, position))
        return;
    s->stats->unused++;
    scan_judge(s, false);
}

static void scan_begin_wait(struct scan *s, uint32_t position, uint64_t bytes)
{
    uint64_t bit = UINT64_C(1) << (position % 64);

    if (s->waits[position / 64] & bit)
        return;
    if (s->ring_count == FILES_WAITING)
        scan_drop_oldest(s);
    s->waits[position / 64] |= bit;
    s->ring[(s->ring_first + s->ring_count++) % FILES_WAITING] = position;
    s->ring_bytes += bytes;
}

static bool scan_is_full(const struct scan *s)
{
    return s->ring_bytes >= s->options->window_bytes / 2;
}

static void scan_settle(struct scan *s, uint32_t position)
{
    if (scan_end_wait(s, position)) {
        s->stats->used++;
        s->used_at = s->reads;
        scan_judge(s, true);
    } else if (s->reads - s->used_at >= JUDGED && s->ring_count > 0 && scan_is_full(s)) {
        scan_drop_oldest(s); /* unused files would block the window for ever */
    }
}

/* ---- within a file ---- */

/*
 * The stream that the read continues; or else the same thread's other one in this file, or the
 * one that was idle longest.
 */
static struct file_stream *scan_find_file(struct scan *s, const struct observation *o,
                                          bool *ret_continues)
{
    struct file_stream *found = NULL, *oldest = &s->files[0];

    for (unsigned i = 0; i < FILE_STREAMS; i++) {
        struct file_stream *f = &s->files[i];
        bool is_same = f->reads && f->position == o->position;
        *ret_continues = is_same && o->offset + FILE_NEAR >= f->expected &&
                         o->offset <= f->expected + FILE_NEAR;
        if (*ret_continues)
            return f;
        if (is_same && f->task == o->task)
            found = f;
        if (f->used < oldest->used)
            oldest = f;
    }
    if (found)
        return found;
    *oldest = (struct file_stream){.position = o->position};
    return oldest;
}

/*
 * How long a stream's window may be. All streams share what the block cache has room for, so
 * that one that is ahead of the others does not drive out what they will read.
 */
static uint64_t scan_window_most(const struct scan *s)
{
    uint64_t all = s->options->window_bytes, active = 0;

    for (unsigned i = 0; i < FILE_STREAMS; i++)
        active +=
            s->files[i].reads >= FILE_READS && s->files[i].used + FILE_IDLE > s->file_clock;
    all = max_u64(min_u64(all / 4, FILE_WINDOWS_MOST), min_u64(all / 2, FILE_WINDOWS_LEAST));
    return max_u64(min_u64(all / max_u64(active, 1), FILE_WINDOW_MOST), FILE_WINDOW_FIRST);
}

/*
 * A window doubles when its end is near, and grows with what was read in a row: with the reader
 * waiting, all of it is asked for, so that its end is not near, and a longer one would help.
 */
static uint64_t scan_window(const struct scan *s, const struct file_stream *f)
{
    uint64_t run = f->expected - f->begun, most = scan_window_most(s), window = f->window;

    if (f->fetched - f->expected <= window / 2)
        window *= 2;
    return min_u64(max_u64(window, max_u64(min_u64(run, FILE_WINDOW_SURE), run / 2)), most);
}

/*
 * A thread that went through the file for a while before it went elsewhere will go on so there,
 * and its next part is fetched at once: pieces of a file in any order.
 */
static void scan_begin_file(struct file_stream *f, const struct observation *o)
{
    uint64_t end = o->offset + o->len, half = (f->expected - f->begun) / 2;
    bool again = f->reads > FILE_READS && half >= FILE_WINDOW_FIRST;

    *f = (struct file_stream){.position = o->position,
                              .reads = again ? FILE_READS : 1,
                              .begun = o->offset,
                              .expected = end,
                              .fetched = end,
                              .window = again ? min_u64(f->window, half) : FILE_WINDOW_FIRST};
}

static void scan_observe_piece(struct scan *s, const struct observation *o)
{
    uint64_t end = o->offset + o->len;
    bool continues;

    if (o->offset == 0 && want_bytes(s->options->index, o->position) <= FILE_WINDOW_FIRST)
        return;
    struct file_stream *f = scan_find_file(s, o, &continues);
    if (continues) {
        f->reads++;
        f->expected = max_u64(f->expected, end);
        f->fetched = max_u64(f->fetched, f->expected);
        f->window = scan_window(s, f);
    } else {
        scan_begin_file(f, o);
    }
    f->used = ++s->file_clock;
    f->task = o->task;
}

/*
 * The length of the next want of a stream, whose window ends at `end`; 0: wait for more, to
 * fetch it together. A want ends where a multiple of BATCH_BYTES does in the archive: storage
 * has its pages and stripes there, and so wants of several streams do not overlap in part.
 */
static uint64_t scan_piece_bytes(const struct scan *s, const struct file_stream *f,
                                 uint64_t end, bool is_last)
{
    struct extent extent;
    uint64_t at = f->fetched, left = end - f->fetched;

    if (index_extent(s->options->index, f->position, at, &extent) == 0 &&
        extent.kind == EXTENT_STORED)
        at = extent.source_offset;
    uint64_t most = BATCH_BYTES - at % BATCH_BYTES;
    return left >= most ? most : left >= f->window / 2 || is_last ? left : 0;
}

static bool scan_take_piece(struct scan *s, struct reader_want *ret_want)
{
    for (unsigned i = 0; i < FILE_STREAMS; i++) {
        struct file_stream *f = &s->files[i];
        struct node node;

        if (f->reads < FILE_READS || f->fetched >= f->expected + f->window ||
            index_node(s->options->index, f->position, &node) < 0 ||
            f->fetched >= node.size_bytes)
            continue;
        uint64_t end = min_u64(f->expected + f->window, node.size_bytes);
        uint64_t len = scan_piece_bytes(s, f, end, end == node.size_bytes);
        if (len == 0)
            continue;
        *ret_want = (struct reader_want){f->position, f->fetched, len, BLOCK_DUE_UNKNOWN};
        f->fetched += len;
        s->stats->kind = AHEAD_FILE;
        return true;
    }
    return false;
}

/* ---- across files ---- */

/* Readers seem to follow the archive: its files should be sorted. True until they are set. */
static bool scan_wants_archive(const struct scan *s)
{
    return s->wants_archive;
}

/* NULL: it is not possible. Takes them over. */
static void scan_set_archive(struct scan *s, struct known_reads *archive)
{
    s->archive = archive;
    s->no_archive = !archive;
    s->wants_archive = false;
}

/* Do successive reads lie close together in the archive? */
static void scan_watch_offsets(struct scan *s, uint32_t position)
{
    uint64_t offset;
    bool near = false;

    if (s->no_archive || s->wants_archive ||
        archive_files_offset(s->options->index, position, &offset) < 0)
        return;
    for (unsigned i = 0; i < sizeof(s->last_ends) / sizeof(s->last_ends[0]); i++)
        near |= s->last_ends[i] && offset + CLOSE_BYTES >= s->last_ends[i] &&
                offset <= s->last_ends[i] + CLOSE_BYTES;
    s->last_ends[s->offset_reads % 8] = offset + want_bytes(s->options->index, position);
    s->close_reads += near;
    if (++s->offset_reads < CLOSE_OF)
        return;
    s->wants_archive = s->close_reads >= CLOSE_READS;
    s->offset_reads = s->close_reads = 0;
}

static void scan_observe_file(struct scan *s, uint32_t position, bool expected)
{
    uint64_t place;

    s->reads++;
    scan_settle(s, position);
    if (expected || s->reads < s->goes_on || sequences_read(&s->names, position))
        return;
    if (!s->archive)
        scan_watch_offsets(s, position);
    else if (known_reads_place(s->archive, position, 0, &place) == 0)
        sequences_read(&s->places, place);
}

static bool scan_observe(void *chooser, const struct observation *o, bool expected)
{
    struct scan *s = chooser;

    if (o->kind != OBSERVED_READ)
        return expected;
    scan_observe_piece(s, o);
    if (o->offset == 0)
        scan_observe_file(s, o->position, expected);
    return expected;
}

/* Fetch a file that a stream hands out, if that makes sense. */
static bool scan_want_file(struct scan *s, uint64_t position, enum ahead_kind kind,
                           struct reader_want *ret_want)
{
    uint64_t bytes = want_bytes(s->options->index, position);

    if (bytes == 0)
        return false;
    *ret_want = (struct reader_want){(uint32_t)position, 0, bytes, BLOCK_DUE_UNKNOWN};
    scan_begin_wait(s, (uint32_t)position, bytes);
    s->stats->kind = kind;
    return true;
}

static bool scan_take_file(struct scan *s, struct reader_want *ret_want)
{
    uint64_t place;

    while (sequences_next(&s->names, &place))
        if (scan_want_file(s, place, AHEAD_DIRECTORY, ret_want))
            return true;
    while (s->archive && sequences_next(&s->places, &place))
        if (place < known_reads_count(s->archive) &&
            scan_want_file(s, known_reads_at(s->archive, place), AHEAD_ARCHIVE, ret_want))
            return true;
    return false;
}

static size_t scan_take(void *chooser, struct reader_want *wants, size_t max)
{
    struct scan *s = chooser;
    uint64_t bytes = 0;
    size_t count = 0;

    if (scan_take_piece(s, &wants[0]))
        return 1;
    while (count < max && bytes < BATCH_BYTES && s->reads >= s->goes_on && !scan_is_full(s) &&
           scan_take_file(s, &wants[count]))
        bytes += wants[count++].len;
    return count;
}

/* A read is `expected` if it was due in a known order. One `take` gives pieces of one file, or
 * files that lie close together. */
static const struct chooser scan_chooser = {
    .observe = scan_observe,
    .take = scan_take,
};

#define READS_KEPT 8192u                 /* until an order is recognised */
#define GAP_NS UINT64_C(2000000000)      /* between epochs */
#define TRY_NS_FREE UINT64_C(2000000000) /* for trying, whatever share that is, */
#define TRY_SHARE 50u                    /* and beyond it this part of the time */

enum job_kind { JOB_RECOGNISE, JOB_NEXT_ORDER, JOB_ARCHIVE };

struct plan_job {
    enum job_kind kind;
    struct ahead_options options;
    struct recogniser *recogniser; /* JOB_RECOGNISE */
    uint32_t reads[RECOGNISE_READS_MAX];
    unsigned count;
    uint64_t anchor; /* that the reads are since */
    struct recognised found;
    struct folder_files *folder; /* JOB_NEXT_ORDER */
    uint64_t seed;
    struct known_reads *order; /* JOB_NEXT_ORDER, JOB_ARCHIVE */
    uint64_t took_ns;
    int result;
};

#define CHOOSERS_MAX 5u

struct plan {
    struct ahead_options options;
    struct ahead_stats stats;
    struct plan_chooser {
        const struct chooser *table;
        void *chooser;
        enum fetch_way way;
    } choosers[CHOOSERS_MAX];
    unsigned chooser_count;
    struct scan *scan;
    bool busy; /* a job is at work */

    struct follow *follow;
    bool given; /* it follows the given order, and not a recognised one */
    uint64_t first_due;
    struct folder_files *folder; /* of a recognised order */
    bool repeats;                /* the sampler's epoch is never set */
    bool paused;                 /* readers don't keep to the given order */
    bool changed;
    bool wants_next;
    struct recognised_folder last_folder; /* of the order that was recognised last, */
    uint64_t last_epoch;                  /* and where that has got to */

    struct recogniser *recogniser;
    uint32_t kept_files[READS_KEPT], kept_tasks[READS_KEPT];
    unsigned kept;
    uint64_t since_anchor, try_at, anchor;
    uint64_t last_ns, first_ns, tried_ns;
    _Atomic uint64_t *seen; /* a bit for each entry: it was read since the anchor */
    bool said_too_large;
};

static void plan_log(struct plan *plan, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void plan_log(struct plan *p, const char *format, ...)
{
    char line[512];
    va_list ap;

    if (!p->options.log)
        return;
    va_start(ap, format);
    vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    p->options.log(p->options.log_ctx, line);
}

static void plan_drop_anchor(struct plan *p)
{
    p->kept = 0;
    p->since_anchor = 0;
    p->try_at = RECOGNISE_READS_MIN;
    p->anchor++;
    memset((void *)p->seen, 0,
           (index_info(p->options.index)->entries / 64 + 1) * sizeof(*p->seen));
}

static int plan_follow(struct plan *p, struct known_reads *order, bool given, uint64_t spread)
{
    const struct follow_options options = {.ahead = &p->options,
                                           .stats = &p->stats,
                                           .shared = !given,
                                           .spread = spread,
                                           .first_due = p->first_due};
    int r = follow_new(&options, order, &p->follow);

    if (r == 0) {
        p->given = given;
        p->stats.order_files = known_reads_count(order);
        p->changed = true;
        p->paused = false;
    }
    return r;
}

static void plan_drop_order(struct plan *p)
{
    if (!p->follow)
        return;
    p->first_due = follow_end_due(p->follow);
    follow_free(p->follow);
    folder_files_free(p->folder);
    p->follow = NULL;
    p->folder = NULL;
    p->wants_next = false;
    p->changed = true;
    p->stats.order_files = p->stats.order_epoch = p->stats.order_reads = 0;
    p->stats.order_directory = p->stats.world = p->stats.local = 0;
}

static void plan_add(struct plan *p, const struct chooser *table, void *chooser,
                     enum fetch_way way)
{
    p->choosers[p->chooser_count++] = (struct plan_chooser){table, chooser, way};
}

static const struct chooser plan_order_chooser;

static int plan_add_cache(struct plan *p, const _Atomic bool *stop)
{
    int r;

    p->seen = calloc(index_info(p->options.index)->entries / 64 + 1, sizeof(*p->seen));
    if (!p->seen)
        return -ENOMEM;
    plan_drop_anchor(p);
    plan_add(p, &plan_order_chooser, p, WAY_CACHE);
    r = scan_new(&p->options, &p->stats, &p->scan);
    if (r == 0)
        plan_add(p, &scan_chooser, p->scan, WAY_CACHE);
    if (r == 0)
        r = recogniser_new(&p->options, stop, &p->recogniser);
    if (r == 0 && p->options.given)
        r = plan_follow(p, p->options.given, true, 0);
    return r;
}

static int plan_add_mount(struct plan *p)
{
    const struct chooser *const tables[] = {p->options.walks ? &tree_walk_chooser : NULL,
                                            p->options.names ? &names_chooser : NULL,
                                            p->options.nearby_bytes ? &nearby_chooser : NULL};

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
        void *chooser;
        int r = tables[i] ? tables[i]->make(&p->options, &chooser) : 0;
        if (r < 0)
            return r;
        if (tables[i])
            plan_add(p, tables[i], chooser, WAY_MOUNT);
    }
    return 0;
}

int plan_new(const struct ahead_options *options, const _Atomic bool *stop,
             struct plan **ret_plan)
{
    struct plan *p = calloc(1, sizeof(*p));
    int r = 0;

    if (!p)
        return -ENOMEM;
    p->options = *options;
    p->first_ns = options->now_ns();
    if (options->window_bytes)
        r = plan_add_cache(p, stop);
    if (r == 0 && options->mount)
        r = plan_add_mount(p);
    if (r < 0) {
        plan_free(p);
        return r;
    }
    *ret_plan = p;
    return 0;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    plan_drop_order(p);
    recogniser_free(p->recogniser);
    scan_free(p->scan);
    for (unsigned i = 0; i < p->chooser_count; i++)
        if (p->choosers[i].table->free)
            p->choosers[i].table->free(p->choosers[i].chooser);
    free((void *)p->seen);
    free(p);
}

void plan_set_window(struct plan *p, uint64_t window_bytes)
{
    if (p->options.window_bytes && window_bytes)
        p->options.window_bytes = window_bytes;
}

const struct ahead_stats *plan_stats(const struct plan *p)
{
    return &p->stats;
}

/* ---- reads ---- */

/* Keep the read for recognition, and notice whether it is the first of an epoch. */
static void plan_keep(struct plan *p, const struct observation *o)
{
    bool again = bit_get(p->seen, o->position);

    if ((p->since_anchor >= RECOGNISE_READS_MIN && p->last_ns &&
         o->time_ns > p->last_ns + GAP_NS) ||
        (again && p->since_anchor >= 2 * RECOGNISE_READS_MAX))
        plan_drop_anchor(p);
    bit_take(p->seen, o->position);
    if (p->kept < READS_KEPT && !(again && p->since_anchor)) {
        p->kept_files[p->kept] = o->position;
        p->kept_tasks[p->kept++] = o->task;
    }
    p->since_anchor++;
}

static void plan_lose_order(struct plan *p)
{
    if (p->paused)
        return;
    p->stats.orders_lost++;
    if (p->given) {
        plan_log(p, "files are read in another order than the given one: reading ahead pauses");
        p->paused = true;
        return;
    }
    plan_log(p, "the order of epoch %llu is lost: files are read in another one",
             (unsigned long long)p->stats.order_epoch);
    plan_drop_order(p);
    plan_drop_anchor(p);
}

/* ---- a known order, as a chooser ---- */

/* True: the read was in the known order, and due. */
static bool plan_order_read(struct plan *p, const struct observation *o)
{
    enum follow_verdict verdict = follow_read(p->follow, o->position, o->task);

    if (follow_has_turned(p->follow) && !p->given) {
        p->stats.order_epoch += !p->repeats;
        p->last_epoch = p->stats.order_epoch;
    }
    p->wants_next |= follow_wants_next(p->follow);
    if (follow_is_lost(p->follow))
        plan_lose_order(p);
    else if (follow_is_sure(p->follow))
        p->paused = false;
    return verdict != FOLLOW_FOREIGN && verdict != FOLLOW_UNEXPECTED;
}

static bool plan_order_observe(void *chooser, const struct observation *o, bool expected)
{
    struct plan *p = chooser;

    if (o->kind != OBSERVED_READ || o->offset != 0)
        return expected;
    expected = p->follow && plan_order_read(p, o);
    if (!p->follow || p->paused)
        plan_keep(p, o);
    p->last_ns = o->time_ns;
    return expected;
}

static bool plan_order_is_lost(void *chooser, uint64_t now_ns)
{
    const struct plan *p = chooser;

    (void)now_ns;
    return !p->follow || p->paused;
}

static size_t plan_order_take(void *chooser, struct reader_want *wants, size_t max)
{
    struct plan *p = chooser;

    if (max == 0 || !follow_next(p->follow, &wants[0]))
        return 0;
    p->stats.kind = p->given ? AHEAD_GIVEN : AHEAD_RECOGNISED;
    return 1;
}

static void plan_order_finished(void *chooser, const struct reader_want *wants, size_t count,
                                int result)
{
    struct plan *p = chooser;

    for (size_t i = 0; p->follow && i < count; i++)
        if (result == -ENOBUFS)
            follow_refused(p->follow, wants[i].due);
        else
            follow_done(p->follow, wants[i].due);
}

static const struct chooser plan_order_chooser = {
    .observe = plan_order_observe,
    .is_lost = plan_order_is_lost,
    .take = plan_order_take,
    .finished = plan_order_finished,
};

/* ---- all choosers ---- */

void plan_observe(struct plan *p, const struct observation *o)
{
    bool expected = false;

    if (o->position >= index_info(p->options.index)->entries)
        return;
    for (unsigned i = 0; i < p->chooser_count; i++) {
        const struct plan_chooser *c = &p->choosers[i];
        expected = c->table->observe(c->chooser, o, expected);
    }
}

bool plan_take(struct plan *p, enum fetch_way way, struct plan_batch *batch)
{
    uint64_t now_ns = way == WAY_MOUNT ? p->options.now_ns() : 0;

    batch->count = 0;
    for (unsigned i = 0; i < p->chooser_count && batch->count == 0; i++) {
        const struct plan_chooser *c = &p->choosers[i];
        if (c->way != way || (c->table->is_lost && c->table->is_lost(c->chooser, now_ns)))
            continue;
        batch->chooser = i;
        batch->count = c->table->take(c->chooser, batch->wants, PLAN_BATCH_MAX);
    }
    for (size_t i = 0; i < batch->count && way == WAY_CACHE; i++) {
        p->stats.requests++;
        p->stats.bytes += batch->wants[i].len;
    }
    return batch->count > 0;
}

void plan_finished(struct plan *p, const struct plan_batch *batch, int result)
{
    const struct plan_chooser *c = &p->choosers[batch->chooser];

    if (c->table->finished)
        c->table->finished(c->chooser, batch->wants, batch->count, result);
}

uint64_t plan_passed(struct plan *p, bool *ret_is_new_order)
{
    *ret_is_new_order = p->changed;
    p->changed = false;
    return p->follow ? follow_passed(p->follow) : 0;
}

/* ---- jobs ---- */

static struct plan_job *plan_new_job(const struct plan *p, enum job_kind kind)
{
    struct plan_job *job = calloc(1, sizeof(*job));

    if (job) {
        job->kind = kind;
        job->result = -ECANCELED; /* until it is worked on */
        job->options = p->options;
    }
    return job;
}

static bool plan_wants_try(const struct plan *p)
{
    uint64_t passed_ns = max_u64(p->last_ns, p->first_ns) - p->first_ns;

    return (!p->follow || p->paused) && p->recogniser && p->kept >= p->try_at &&
           p->tried_ns < TRY_NS_FREE + passed_ns / TRY_SHARE;
}

static struct plan_job *plan_new_try(struct plan *p)
{
    struct plan_job *job = plan_new_job(p, JOB_RECOGNISE);

    if (!job)
        return NULL;
    job->recogniser = p->recogniser;
    job->anchor = p->anchor;
    job->count = min_u32(p->kept, RECOGNISE_READS_MAX);
    memcpy(job->reads, p->kept_files, job->count * sizeof(job->reads[0]));
    p->try_at =
        p->kept >= RECOGNISE_READS_MAX ? UINT64_MAX : min_u32(2 * p->kept, RECOGNISE_READS_MAX);
    return job;
}

/* False: there is nothing to make, as a given order simply comes again. */
static bool plan_wants_next_order(struct plan *p)
{
    bool wants = p->follow && p->wants_next;

    p->wants_next = false;
    if (wants && p->given)
        follow_set_next(p->follow, p->options.given); /* on failure the order just ends */
    return wants && !p->given;
}

static struct plan_job *plan_new_next_order(const struct plan *p)
{
    struct plan_job *job = plan_new_job(p, JOB_NEXT_ORDER);

    if (job) {
        job->folder = folder_files_share(p->folder);
        job->seed = p->options.seed + p->stats.order_epoch + !p->repeats;
    }
    return job;
}

bool plan_job(struct plan *p, struct plan_job **ret_job)
{
    struct plan_job *job = NULL;

    if (p->busy)
        return false;
    if (plan_wants_next_order(p))
        job = plan_new_next_order(p);
    else if (plan_wants_try(p))
        job = plan_new_try(p);
    else if (p->scan && scan_wants_archive(p->scan))
        job = plan_new_job(p, JOB_ARCHIVE);
    p->busy = job != NULL;
    *ret_job = job;
    return p->busy;
}

void plan_work(struct plan_job *job)
{
    /* Processor time of this thread: on a busy node it may have to wait for long. */
    uint64_t begun = clock_now_ns(CLOCK_THREAD_CPUTIME_ID);

    switch (job->kind) {
    case JOB_RECOGNISE:
        job->result = recogniser_try(job->recogniser, job->reads, job->count, &job->found);
        break;
    case JOB_NEXT_ORDER:
        job->result =
            known_reads_shuffled(job->folder, job->seed, job->options.most_bytes, &job->order);
        break;
    case JOB_ARCHIVE:
        job->result =
            archive_files_new(job->options.index, job->options.most_bytes, &job->order);
        break;
    }
    job->took_ns = clock_now_ns(CLOCK_THREAD_CPUTIME_ID) - begun;
}

static void plan_log_recognised(struct plan *p, const struct recognised *found)
{
    char path[PATH_MAX];
    size_t len;

    if (index_path(p->options.index, found->folder.directory, path, sizeof(path), &len) < 0 ||
        !len)
        snprintf(path, sizeof(path), ".");
    plan_log(p,
             "the order is recognised after %llu reads: the %llu %s of %.200s, epoch %llu of "
             "seed %llu%s",
             (unsigned long long)p->stats.order_reads, (unsigned long long)p->stats.order_files,
             found->folder.images_only ? "images" : "files", path,
             (unsigned long long)found->epoch, (unsigned long long)p->options.seed,
             p->repeats ? ", again (the sampler's set_epoch is not called)" : "");
}

/* The first reads of the epoch lie at places up to this, except a few by others. */
static uint64_t plan_spread(const struct plan *p, const struct known_reads *order)
{
    uint64_t places[RECOGNISE_READS_MAX];
    unsigned count = 0;

    for (unsigned i = 0; i < p->kept && count < RECOGNISE_READS_MAX; i++)
        count += known_reads_place(order, p->kept_files[i], 0, &places[count]) == 0;
    qsort(places, count, sizeof(places[0]), compare_u64);
    return count ? places[count - 1 - count / 10] : 0;
}

/* Follow a recognised order: feed it the reads since the anchor. */
static void plan_adopt(struct plan *p, struct recognised *found)
{
    plan_drop_order(p);
    if (plan_follow(p, found->order, false, plan_spread(p, found->order)) < 0)
        return;
    p->repeats = p->stats.orders_recognised > 0 && p->last_epoch == found->epoch &&
                 recognised_folder_is(&p->last_folder, &found->folder);
    p->last_folder = found->folder;
    p->last_epoch = found->epoch;
    p->folder = folder_files_share(found->files);
    p->stats.order_epoch = found->epoch;
    p->stats.order_directory = found->folder.directory;
    p->stats.order_reads = p->since_anchor;
    p->stats.orders_recognised++;
    for (unsigned i = 0; i < p->kept; i++)
        follow_read(p->follow, p->kept_files[i], p->kept_tasks[i]);
    plan_log_recognised(p, found);
}

static void plan_end_try(struct plan *p, struct plan_job *job)
{
    p->tried_ns += job->took_ns;
    if (job->result == -E2BIG && !p->said_too_large) {
        p->said_too_large = true;
        plan_log(p, "the directory that is read has too many files for its order to be "
                    "recognised within the memory of this job");
    }
    if (job->result == 0 && job->anchor == p->anchor)
        plan_adopt(p, &job->found);
    folder_files_free(job->found.files);
    known_reads_free(job->found.order);
}

void plan_job_done(struct plan *p, struct plan_job *job)
{
    p->busy = false;
    switch (job->kind) {
    case JOB_RECOGNISE:
        plan_end_try(p, job);
        break;
    case JOB_NEXT_ORDER:
        if (job->result == 0 && p->follow && p->folder == job->folder)
            follow_set_next(p->follow, job->order);
        known_reads_free(job->order);
        folder_files_free(job->folder);
        break;
    case JOB_ARCHIVE:
        scan_set_archive(p->scan, job->order);
        break;
    }
    free(job);
}
