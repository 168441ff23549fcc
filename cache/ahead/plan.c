/*
 * Readers in sequence, and the chooser of what they read next. The part of a shuffled order
 * that this node reads, and a known order that is kept ahead of. Then the plan, its choosers,
 * and its long work.
 *
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
#include "cleanup.h"
#include "clock.h"
#include "known_reads.h"
#include "numbers.h"
#include "recognise.h"

/* ---- readers in sequence ---- */

#define WINDOW_FIRST 4u
#define WINDOW_MOST 512u /* steps ahead of one reader */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool sequence_is_believed(const struct sequence *t)
{
    return t->reads >= SEQUENCE_CONFIDENT && t->step &&
           (t->last - t->first) / t->step <= 4 * (uint64_t)t->reads;
}

/* The sequence that the place continues, or else the one that was idle longest. */
static struct sequence *sequences_find(struct sequences *s, uint64_t place, bool *ret_continues)
{
    struct sequence *oldest = &s->at[0];

    for (unsigned i = 0; i < SEQUENCES; i++) {
        struct sequence *t = &s->at[i];
        uint64_t near = max_u64(4 * t->step, SEQUENCE_NEAR);
        *ret_continues = t->reads && place + near > t->last && place <= t->last + near;
        if (*ret_continues)
            return t;
        if (t->used < oldest->used)
            oldest = t;
    }
    return oldest;
}

bool sequences_read(struct sequences *s, uint64_t place)
{
    bool continues;
    struct sequence *t = sequences_find(s, place, &continues);

    if (!continues)
        *t = (struct sequence){.first = place, .last = place, .next = place + 1};
    t->used = ++s->clock;
    if (continues && place == t->last)
        return sequence_is_believed(t);
    t->reads++;
    if (continues)
        t->step = common_divisor(t->step, place > t->last ? place - t->last : t->last - place);
    t->last = max_u64(t->last, place);
    if (!sequence_is_believed(t))
        return false;
    if (t->next <= t->last) {
        t->next = t->last + t->step;
        t->window = t->window ? t->window : WINDOW_FIRST;
    }
    /* The reader is half way to the end of what was handed out. */
    if (t->next - t->last <= t->window * t->step / 2 && 2 * t->window <= WINDOW_MOST)
        t->window *= 2;
    return true;
}

bool sequences_next(struct sequences *s, uint64_t *ret_place)
{
    for (unsigned i = 0; i < SEQUENCES; i++) {
        struct sequence *t = &s->at[i];
        if (!sequence_is_believed(t) || !t->window || t->next > t->last + t->window * t->step)
            continue;
        *ret_place = t->next;
        t->next += t->step;
        return true;
    }
    return false;
}

/* ---- the files of an archive ---- */

/*
 * The files of an archive in the order in which their bytes lie in it. A program that goes
 * through all of them may read in this order rather than by name.
 */

struct file {
    uint64_t offset;
    uint32_t position;
    uint32_t in_block; /* order among the files of one compressed block */
};

/* Of a file: its first bytes, stored or in a block. -ENXIO: it has none. */
static int first_extent(const struct index *index, uint32_t position, struct extent *ret_extent)
{
    int r = index_extent(index, position, 0, ret_extent);

    if (r == 0 && ret_extent->kind == EXTENT_HOLE)
        r = index_extent(index, position, ret_extent->length, ret_extent);
    return r == 0 && ret_extent->kind == EXTENT_HOLE ? -ENXIO : r;
}

static int archive_files_compare(const void *a, const void *b)
{
    const struct file *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->in_block > y->in_block) - (x->in_block < y->in_block);
}

static uint32_t archive_files_collect(const struct index *index, struct file *files)
{
    uint32_t entries = index_info(index)->entries, count = 0;
    struct extent extent;
    struct node node;

    for (uint32_t i = 0; i < entries; i++) {
        if (index_node(index, i, &node) < 0 || !S_ISREG(node.mode) || node.position != i ||
            first_extent(index, i, &extent) < 0)
            continue;
        files[count++] = (struct file){extent.source_offset, i,
                                       extent.kind == EXTENT_BLOCK ? extent.block_offset : 0};
    }
    return count;
}

/* -E2BIG: it would take more than `most_bytes` (16 a name while it is made, then 8). */
static int archive_files_new(const struct index *index, uint64_t most_bytes,
                             struct known_reads **ret_order)
{
    uint32_t entries = index_info(index)->entries;

    if (entries > most_bytes / sizeof(struct file))
        return -E2BIG;
    auto_free struct file *files = malloc((size_t)entries * sizeof(*files));
    auto_free uint32_t *positions = malloc((size_t)entries * sizeof(*positions));
    if (!files || !positions)
        return -ENOMEM;
    uint32_t count = archive_files_collect(index, files);
    qsort(files, count, sizeof(*files), archive_files_compare);
    for (uint32_t i = 0; i < count; i++)
        positions[i] = files[i].position;
    return known_reads_listed(steal_ptr(&positions), count, ret_order);
}

/* ---- files in sequence, and pieces of files, as a chooser ---- */

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
    struct extent extent;
    bool near = false;

    if (s->no_archive || s->wants_archive ||
        first_extent(s->options->index, position, &extent) < 0)
        return;
    const uint64_t offset = extent.source_offset;
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

/* ---- which part of a shuffled order this node reads ---- */

void world_all(struct world *world)
{
    *world = (struct world){.size = 1, .local = 1, .bits = {1}};
}

/* Distances between successive reads of the same task. */
static unsigned world_find_distances(const uint64_t *places, const uint32_t *tasks,
                                     unsigned count, uint64_t *ret_distances)
{
    unsigned found = 0;

    for (unsigned i = 1; i < count; i++) {
        unsigned j = i;
        while (j > 0 && tasks[j - 1] != tasks[i])
            j--;
        if (j == 0 || places[j - 1] == places[i])
            continue;
        uint64_t a = places[i], b = places[j - 1];
        ret_distances[found++] = a > b ? a - b : b - a;
    }
    return found;
}

static bool world_divides_nearly_all(uint64_t size, const uint64_t *distances, unsigned count)
{
    unsigned misses = 0;

    for (unsigned i = 0; i < count; i++)
        if (distances[i] % size && ++misses > count / 10)
            return false;
    return true;
}

static void world_find_local(struct world *w, const uint64_t *places, unsigned count)
{
    uint64_t once[WORLD_MAX / 64] = {0};

    for (unsigned i = 0; i < count; i++) {
        uint32_t rest = (uint32_t)(places[i] % w->size);
        uint64_t bit = UINT64_C(1) << (rest % 64);
        if (once[rest / 64] & bit && !(w->bits[rest / 64] & bit)) {
            w->bits[rest / 64] |= bit;
            w->local++;
        }
        once[rest / 64] |= bit;
    }
}

int world_infer(const uint64_t *places, const uint32_t *tasks, unsigned count,
                struct world *ret_world)
{
    uint64_t distances[WORLD_READS_MAX];
    struct world w = {0};

    if (count > WORLD_READS_MAX) {
        places += count - WORLD_READS_MAX;
        tasks += count - WORLD_READS_MAX;
        count = WORLD_READS_MAX;
    }
    unsigned found = world_find_distances(places, tasks, count, distances);
    if (found < WORLD_DISTANCES_MIN)
        return -EAGAIN;
    w.size = WORLD_MAX;
    while (w.size > 1 && !world_divides_nearly_all(w.size, distances, found))
        w.size--;
    world_find_local(&w, places, count);
    if (w.local == 0)
        return -EAGAIN;
    *ret_world = w;
    return 0;
}

bool world_holds(const struct world *world, const struct world *other)
{
    for (unsigned i = 0; i < WORLD_MAX / 64; i++)
        if (other->bits[i] & ~world->bits[i])
            return false;
    return world->size == other->size;
}

/* ---- ahead of readers along a known order ---- */

/*
 * Two legs make one sequence of places: the order of this epoch and, once known, the next
 * epoch's. A byte for each place says whether it was fetched and read. `head` is the furthest
 * place that was read. `lag` is how far behind it recent reads were. The readers are between
 * head and head - lag. `at` is where fetching goes on.
 *
 * A read counts as in order if its place is within `reach` of head: a sixteenth of the order.
 * An eighth of all unrelated reads then looks right, so an order is given up when 20 of the
 * last 32 were wrong. Readers of a list may be further apart, a sixth of it: a recorded list
 * holds how far apart readers happened to be during the recording. If the wrong reads were
 * close together somewhere else, the readers have jumped (a job that resumes in the middle of
 * an epoch), and following goes on there.
 */

#define ISSUED 1u
#define READ 2u
#define HERE 4u
#define LEFT 8u /* all readers have passed it, as far as known */

#define REACH_LEAST 1024u
#define VERDICTS 32u
#define LOST_AT 20u
#define TURN_READS 32u /* in the next epoch, before this one is forgotten */
#define DOUBT_AT 4u    /* unexpected of the last eight: nothing is fetched for the moment */
#define STRAYS 16u
#define STRAYS_TOGETHER 12u
#define WAITING_MAX (1u << 16)
#define SCAN_MAX (1u << 17) /* places looked at in one go */
#define INFER_READS 64u     /* between two attempts to infer the world */
#define GIVE_UP_READS 4096u /* without an answer: assume that everything is read here */

struct leg {
    struct known_reads *order;
    uint8_t *state;
    uint64_t count;
};

struct follow {
    const struct ahead_options *ahead;
    struct ahead_stats *stats;
    bool shared;     /* a shuffle over all ranks */
    uint64_t spread; /* readers are known to be within this many places; 0: not known */
    struct leg now, next;
    uint64_t base; /* `due` of place 0 */
    uint64_t head, lag;
    uint64_t at;      /* where fetching goes on */
    uint64_t settled; /* nothing before this place waits */
    uint32_t waiting; /* places */
    bool started, asked_next, turned, held_back;

    uint32_t verdicts; /* a bit for each of the last reads: it was unexpected */
    unsigned judged;
    uint64_t strays[STRAYS];
    unsigned stray_count;

    struct world world;
    uint64_t read_places[WORLD_READS_MAX];
    uint32_t read_tasks[WORLD_READS_MAX];
    unsigned read_count, since_inferred;
    uint64_t in_order, next_reads;
};

static uint64_t absolute(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static int leg_set(struct leg *leg, struct known_reads *order)
{
    uint8_t *state = calloc(known_reads_count(order) + 1, 1);

    if (!state)
        return -ENOMEM;
    *leg = (struct leg){known_reads_share(order), state, known_reads_count(order)};
    return 0;
}

static void leg_free(struct leg *leg)
{
    known_reads_free(leg->order);
    free(leg->state);
    *leg = (struct leg){0};
}

static void follow_set_world(struct follow *f, const struct world *world)
{
    f->world = *world;
    f->stats->world = world->size;
    f->stats->local = world->local;
}

int follow_new(const struct ahead_options *ahead, struct ahead_stats *stats,
               struct known_reads *order, bool shared, struct follow **ret_follow)
{
    struct follow *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->ahead = ahead;
    f->stats = stats;
    f->shared = shared;
    if (leg_set(&f->now, order) < 0) {
        free(f);
        return -ENOMEM;
    }
    f->started = !shared;
    if (!shared) {
        struct world all;
        world_all(&all);
        follow_set_world(f, &all);
    }
    *ret_follow = f;
    return 0;
}

void follow_free(struct follow *f)
{
    if (!f)
        return;
    leg_free(&f->now);
    leg_free(&f->next);
    f->stats->waiting_bytes = 0;
    free(f);
}

static uint8_t *follow_state(struct follow *f, uint64_t place)
{
    return place < f->now.count ? &f->now.state[place] : &f->next.state[place - f->now.count];
}

static uint32_t follow_file(const struct follow *f, uint64_t place)
{
    return place < f->now.count ? known_reads_at(f->now.order, place)
                                : known_reads_at(f->next.order, place - f->now.count);
}

static uint64_t follow_end(const struct follow *f)
{
    return f->now.count + f->next.count;
}

/* How far apart readers may be. */
static uint64_t follow_reach(const struct follow *f)
{
    uint64_t part = f->now.count / (f->shared ? 16 : 6);

    return max_u64(max_u64(part, 2 * f->spread), REACH_LEAST);
}

/* Recent reads were out of order. */
static bool follow_is_in_doubt(const struct follow *f)
{
    return (unsigned)__builtin_popcount(f->verdicts & 0xff) >= DOUBT_AT;
}

/* The place up to which all readers have passed: nothing before it will be asked for. */
static uint64_t follow_tail(const struct follow *f)
{
    uint64_t slack = 2 * f->lag + 64 * (uint64_t)max_u32(f->world.size, 1);

    slack = min_u64(slack, f->now.count / 2); /* or a short order would end before it turned */
    return f->head > slack ? f->head - slack : 0;
}

/* ---- where the readers are ---- */

/* The place of this read in a leg: the first one that was not read. -ENOENT. */
static int leg_place(const struct leg *leg, uint32_t position, uint64_t from,
                     uint64_t *ret_place)
{
    int r = leg->order ? known_reads_place(leg->order, position, from, ret_place) : -ENOENT;

    while (r == 0 && leg->state[*ret_place] & READ)
        r = known_reads_place(leg->order, position, *ret_place + 1, ret_place);
    return r;
}

/* Ranks take turns from the start of each epoch: the place within its leg gives the rank. */
static uint64_t place_in_leg(const struct follow *f, uint64_t place)
{
    return place < f->now.count ? place : place - f->now.count;
}

static bool follow_is_near(const struct follow *f, uint64_t place)
{
    return absolute(place, f->head) <= follow_reach(f);
}

/* Is it a place of the ranks on this node? */
static bool follow_is_ours(const struct follow *f, uint64_t place)
{
    return f->world.size && world_reads(&f->world, place_in_leg(f, place));
}

/*
 * The place in this epoch or in the next. What other nodes have read of this epoch looks unread
 * here. So a file that is due here in the next epoch is taken as read in that one. -EEXIST: a
 * file of the order that was read in both.
 */
static int follow_find(const struct follow *f, uint32_t position, uint64_t *ret_place)
{
    uint64_t first, place, next;

    if (known_reads_place(f->now.order, position, 0, &first) < 0)
        return -ENOENT;
    bool is_now = leg_place(&f->now, position, 0, &place) == 0 && follow_is_near(f, place);
    bool is_next = false;
    if (!is_now || !follow_is_ours(f, place)) {
        is_next = leg_place(&f->next, position, 0, &next) == 0 &&
                  follow_is_near(f, next + f->now.count) &&
                  (!is_now || follow_is_ours(f, next + f->now.count));
    }
    if (is_now || is_next) {
        *ret_place = is_next ? next + f->now.count : place;
        return 0;
    }
    /* A file that occurs several times may be due at a later place. */
    uint64_t low = f->head > follow_reach(f) ? f->head - follow_reach(f) : 0;
    if (leg_place(&f->now, position, low, ret_place) == 0)
        return 0;
    return leg_place(&f->now, position, 0, ret_place) == 0 ? 0 : -EEXIST;
}

/* ---- what waits ---- */

static bool waits(uint8_t state)
{
    return (state & (ISSUED | READ | LEFT)) == ISSUED;
}

static void follow_begin_wait(struct follow *f, uint64_t place, uint64_t bytes)
{
    *follow_state(f, place) |= ISSUED;
    f->waiting++;
    f->stats->waiting_bytes += bytes;
    f->settled = min_u64(f->settled, place);
}

static void follow_end_wait(struct follow *f, uint64_t place)
{
    uint64_t bytes = want_bytes(f->ahead->index, follow_file(f, place));

    f->waiting--;
    f->stats->waiting_bytes -= min_u64(bytes, f->stats->waiting_bytes);
}

/* Nobody will ask for what waits before this place. */
static void follow_leave_behind(struct follow *f, uint64_t until)
{
    for (; f->settled < until && f->waiting > 0; f->settled++) {
        uint8_t *state = follow_state(f, f->settled);
        if (!waits(*state))
            continue;
        *state |= LEFT;
        follow_end_wait(f, f->settled);
        f->stats->unused++;
    }
    f->settled = max_u64(f->settled, until);
}

/* ---- reads ---- */

/* All readers are in the next epoch: its order becomes the present one. */
static void follow_turn(struct follow *f)
{
    uint64_t passed = f->now.count;

    follow_leave_behind(f, passed);
    leg_free(&f->now);
    f->now = f->next;
    f->next = (struct leg){0};
    f->base += passed;
    f->settled -= passed;
    f->head -= passed;
    f->at = f->at > passed ? f->at - passed : 0;
    f->lag = min_u64(f->lag, f->head);
    f->read_count = 0;
    f->next_reads = 0;
    f->asked_next = false;
    f->turned = true;
}

/* Infer again which readers read which places. */
static void follow_infer_world(struct follow *f)
{
    struct world found;

    f->since_inferred = 0;
    if (!f->shared)
        return;
    if (world_infer(f->read_places, f->read_tasks, f->read_count, &found) < 0) {
        if (f->world.size || f->in_order <= GIVE_UP_READS)
            return;
        world_all(&found);
    } else if (f->world.size && world_holds(&f->world, &found)) {
        return;
    }
    follow_set_world(f, &found);
    f->at = min_u64(f->at, follow_tail(f));
}

static void follow_note_place(struct follow *f, uint64_t place, uint32_t task)
{
    place = place_in_leg(f, place);
    if (f->read_count == WORLD_READS_MAX) {
        memmove(f->read_places, f->read_places + WORLD_READS_MAX / 2,
                WORLD_READS_MAX / 2 * sizeof(f->read_places[0]));
        memmove(f->read_tasks, f->read_tasks + WORLD_READS_MAX / 2,
                WORLD_READS_MAX / 2 * sizeof(f->read_tasks[0]));
        f->read_count = WORLD_READS_MAX / 2;
    }
    f->read_places[f->read_count] = place;
    f->read_tasks[f->read_count++] = task;
    f->in_order++;
    f->since_inferred++;
    bool from_elsewhere = f->world.size && !world_reads(&f->world, place);
    if (f->since_inferred >= INFER_READS || (!f->world.size && f->since_inferred >= 8) ||
        (from_elsewhere && f->since_inferred >= 4))
        follow_infer_world(f);
}

static void follow_advance(struct follow *f, uint64_t place)
{
    uint64_t behind = place < f->head ? f->head - place : 0;

    f->lag = max_u64(f->lag - f->lag / 256, behind);
    f->head = max_u64(f->head, place);
    f->started = true;
    f->next_reads += place >= f->now.count;
    if (f->next_reads >= TURN_READS && follow_tail(f) >= f->now.count && !follow_is_in_doubt(f))
        follow_turn(f);
}

static void follow_judge(struct follow *f, bool unexpected)
{
    f->verdicts = f->verdicts << 1 | unexpected;
    if (f->judged < VERDICTS)
        f->judged++;
}

/* Out of order, but close to other such reads: then the readers are there now. */
static void follow_note_stray(struct follow *f, uint64_t place)
{
    uint64_t sorted[STRAYS];
    unsigned together = 0;

    f->strays[f->stray_count++ % STRAYS] = place;
    if (f->stray_count < STRAYS)
        return;
    memcpy(sorted, f->strays, sizeof(sorted));
    qsort(sorted, STRAYS, sizeof(sorted[0]), compare_u64);
    for (unsigned i = 0; i < STRAYS; i++)
        together += absolute(sorted[i], sorted[STRAYS / 2]) <= follow_reach(f) / 4;
    if (together < STRAYS_TOGETHER)
        return;
    f->head = sorted[STRAYS / 2];
    f->lag = 0;
    f->at = f->head;
    f->stray_count = f->judged = 0;
    f->verdicts = 0;
}

enum follow_verdict follow_read(struct follow *f, uint32_t position, uint32_t task)
{
    uint64_t place;
    int r = follow_find(f, position, &place);

    if (r == -ENOENT)
        return FOLLOW_FOREIGN;
    if (r < 0 || absolute(place, f->head) > follow_reach(f)) {
        if (r == 0)
            follow_note_stray(f, place);
        follow_judge(f, true);
        return FOLLOW_UNEXPECTED;
    }
    uint8_t *state = follow_state(f, place), before = *state;
    bool found = before & HERE, late = (before & (ISSUED | HERE)) == ISSUED;
    if (waits(before))
        follow_end_wait(f, place);
    *state |= READ;
    f->held_back = false;
    follow_judge(f, false);
    follow_note_place(f, place, task);
    follow_advance(f, place);
    f->stats->in_order++;
    f->stats->found += found;
    f->stats->late += late;
    f->stats->used += found || late;
    return found ? FOLLOW_FOUND : late ? FOLLOW_LATE : FOLLOW_MISSED;
}

bool follow_is_lost(const struct follow *f)
{
    return f->judged == VERDICTS && (unsigned)__builtin_popcount(f->verdicts) >= LOST_AT;
}

/*
 * Few enough of the last reads were out of order to be sure of this order. Between "lost" and
 * "sure" lies a gap, so that the answer does not change with every read.
 */
static bool follow_is_sure(const struct follow *f)
{
    return (unsigned)__builtin_popcount(f->verdicts) <= LOST_AT / 2;
}

/* ---- what to fetch ---- */

static bool follow_has_room(struct follow *f)
{
    follow_leave_behind(f, follow_tail(f));
    return !f->held_back && f->waiting < WAITING_MAX &&
           f->stats->waiting_bytes < f->ahead->window_bytes;
}

bool follow_next(struct follow *f, struct reader_want *ret_want)
{
    uint64_t end = follow_end(f);

    if (!f->world.size || !f->started || follow_is_in_doubt(f) || !follow_has_room(f))
        return false;
    f->at = max_u64(f->at, follow_tail(f));
    for (unsigned i = 0; i < SCAN_MAX && f->at < end; i++) {
        uint64_t place = f->at++;
        if (!world_reads(&f->world, place_in_leg(f, place)) ||
            *follow_state(f, place) & (ISSUED | READ))
            continue;
        uint32_t position = follow_file(f, place);
        uint64_t bytes = want_bytes(f->ahead->index, position);
        if (bytes == 0)
            continue;
        follow_begin_wait(f, place, bytes);
        *ret_want = (struct reader_want){position, 0, bytes, f->base + place};
        return true;
    }
    return false;
}

/* False: it is not due in this epoch or the next. */
static bool follow_find_due(const struct follow *f, uint64_t due, uint64_t *ret_place)
{
    *ret_place = due - f->base;
    return due >= f->base && *ret_place < follow_end(f);
}

void follow_done(struct follow *f, uint64_t due)
{
    uint64_t place;

    if (follow_find_due(f, due, &place))
        *follow_state(f, place) |= HERE;
}

void follow_refused(struct follow *f, uint64_t due)
{
    uint64_t place;

    f->held_back = true;
    if (!follow_find_due(f, due, &place) || *follow_state(f, place) & READ)
        return;
    if (waits(*follow_state(f, place))) {
        follow_end_wait(f, place);
        *follow_state(f, place) &= (uint8_t)~ISSUED;
    }
    f->at = min_u64(f->at, place);
}

/* ---- epochs ---- */

/* The `due` that all readers have passed: nothing before it will be asked for. */
static uint64_t follow_passed(const struct follow *f)
{
    return f->base + follow_tail(f);
}

/* Above each `due` of this order. */
static uint64_t follow_end_due(const struct follow *f)
{
    return f->base + follow_end(f);
}

bool follow_wants_next(struct follow *f)
{
    if (f->asked_next || f->next.order || !f->started ||
        (f->at < f->now.count / 2 && f->head < f->now.count / 2))
        return false;
    f->asked_next = true;
    return true;
}

int follow_set_next(struct follow *f, struct known_reads *order)
{
    return f->next.order ? 0 : leg_set(&f->next, order);
}

bool follow_has_turned(struct follow *f)
{
    bool turned = f->turned;

    f->turned = false;
    return turned;
}

/* ---- the plan ---- */

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
    struct recognised last; /* the order that was recognised last; its pointers are void */

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
    int r = follow_new(&p->options, &p->stats, order, !given, &p->follow);

    if (r == 0) {
        p->follow->spread = spread;
        p->follow->base = p->first_due; /* places of earlier orders are below */
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
        p->last.epoch = p->stats.order_epoch;
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

static void plan_observe_one(struct plan *p, const struct observation *o)
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

uint64_t plan_observe(struct plan *p, const struct observation *observations, unsigned count,
                      bool *ret_is_new_order)
{
    for (unsigned i = 0; i < count; i++)
        plan_observe_one(p, &observations[i]);
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

    if (index_path(p->options.index, found->directory, path, sizeof(path), &len) < 0 || !len)
        snprintf(path, sizeof(path), ".");
    plan_log(p,
             "the order is recognised after %llu reads: the %llu %s of %.200s, epoch %llu of "
             "seed %llu%s",
             (unsigned long long)p->stats.order_reads, (unsigned long long)p->stats.order_files,
             found->images_only ? "images" : "files", path, (unsigned long long)found->epoch,
             (unsigned long long)p->options.seed,
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
    p->repeats = p->stats.orders_recognised > 0 && p->last.epoch == found->epoch &&
                 p->last.directory == found->directory && p->last.kind == found->kind &&
                 p->last.images_only == found->images_only;
    p->last = *found;
    p->folder = folder_files_share(found->files);
    p->stats.order_epoch = found->epoch;
    p->stats.order_directory = found->directory;
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
