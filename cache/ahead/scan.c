/*
 * A name's place in the index is its place in the order of names: the children of a directory
 * follow one another there, and then come the next directory's. The order of the archive has to
 * be sorted first. That is done when reads lie close together in the archive and not in the
 * index.
 */
#include "scan.h"

#include <errno.h>
#include <stdlib.h>

#include "archive_files.h"
#include "numbers.h"
#include "streams.h"
#include "want.h"

#define BATCH_BYTES (1u << 20) /* for one thread to fetch at once */
#define FILES_WAITING 4096u    /* fetched and not used yet, at most */
#define FILE_STREAMS 16u
#define FILE_READS 3u /* in a row, before more of a large file is fetched */
#define FILE_WINDOW_FIRST (256u << 10)
#define FILE_WINDOW_MOST (16u << 20) /* as far as the kernel reads ahead on fast storage */
#define FILE_NEAR (512u << 10)       /* the kernel asks for pieces early, and out of order */
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
    uint64_t window;
    uint64_t used;
};

struct scan {
    const struct ahead_options *options;
    struct ahead_stats *stats;
    uint64_t reads; /* first reads of files */

    struct streams names, places;
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

int scan_new(const struct ahead_options *options, struct ahead_stats *stats,
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

void scan_free(struct scan *s)
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
        s->names = s->places = (struct streams){0};
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
        if (f->reads > FILE_READS && f->fetched - f->expected <= f->window / 2 &&
            f->window < FILE_WINDOW_MOST && f->window < s->options->window_bytes / 4)
            f->window *= 2;
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

bool scan_wants_archive(const struct scan *s)
{
    return s->wants_archive;
}

void scan_set_archive(struct scan *s, struct known_reads *archive)
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
    if (expected || s->reads < s->goes_on || streams_read(&s->names, position))
        return;
    if (!s->archive)
        scan_watch_offsets(s, position);
    else if (known_reads_place(s->archive, position, 0, &place) == 0)
        streams_read(&s->places, place);
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

    while (streams_next(&s->names, &place))
        if (scan_want_file(s, place, AHEAD_DIRECTORY, ret_want))
            return true;
    while (s->archive && streams_next(&s->places, &place))
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

const struct chooser scan_chooser = {
    .observe = scan_observe,
    .take = scan_take,
};
