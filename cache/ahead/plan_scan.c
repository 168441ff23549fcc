/*
 * The sequential kinds. A name's place in the index is its place in the order of names: the
 * children of a directory follow one another there, and then come those of the next directory.
 * The order of the archive has to be sorted first. That is done when reads lie close together
 * in the archive and not in the index.
 */
#include "plan_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WINDOW_FILES 512u      /* ahead of one reader, at most */
#define BATCH_BYTES (1u << 20) /* for one thread to fetch at once */
#define FILE_READS 3u          /* in a row, before more of a large file is fetched */
#define FILE_WINDOW_FIRST (256u << 10)
#define FILE_WINDOW_MOST (8u << 20)
#define FILE_NEAR (512u << 10) /* the kernel asks for pieces early, and out of order */
#define CLOSE_BYTES (64u << 10)
#define CLOSE_READS 48u /* of the last 64 */
#define JUDGED 256u     /* files between two checks of whether they were used */
#define PAUSE_FIRST 4096u

int plan_scan_start(struct plan *p)
{
    uint32_t entries = index_info(p->options.index)->entries;

    streams_init(&p->names, WINDOW_FILES);
    streams_init(&p->places, WINDOW_FILES);
    p->pause = PAUSE_FIRST;
    p->brought = calloc(entries / 64 + 1, sizeof(*p->brought));
    return p->brought ? 0 : -ENOMEM;
}

void plan_scan_end(struct plan *p)
{
    archive_files_free(p->archive);
    free(p->brought);
}

/* ---- what was fetched, and whether it was used ---- */

static uint64_t size_of(const struct plan *p, uint32_t position)
{
    struct node node;

    if (index_node(p->options.index, position, &node) < 0 || !S_ISREG(node.mode))
        return 0;
    return node.size_bytes < PLAN_FILE_MOST ? node.size_bytes : PLAN_FILE_MOST;
}

static bool take_brought(struct plan *p, uint32_t position)
{
    uint64_t bit = UINT64_C(1) << (position % 64), *word = &p->brought[position / 64];
    bool was = *word & bit;

    *word &= ~bit;
    return was;
}

/* A kind that is wrong more often than right pauses, each time twice as long. */
static void judge(struct plan *p, bool used)
{
    p->settled++;
    p->settled_unused += !used;
    if (p->settled < JUDGED)
        return;
    if (p->settled_unused > JUDGED / 2) {
        p->scans_from = p->reads + p->pause;
        p->pause *= 2;
        streams_reset(&p->names);
        streams_reset(&p->places);
    }
    p->settled = p->settled_unused = 0;
}

static void drop_oldest(struct plan *p)
{
    uint32_t position = p->ring[p->ring_first];

    p->ring_first = (p->ring_first + 1) % PLAN_BROUGHT;
    p->ring_count--;
    if (!take_brought(p, position))
        return;
    p->ring_bytes -= size_of(p, position);
    p->stats.unused++;
    judge(p, false);
}

static void note_brought(struct plan *p, uint32_t position)
{
    uint64_t bit = UINT64_C(1) << (position % 64);

    if (p->brought[position / 64] & bit)
        return;
    if (p->ring_count == PLAN_BROUGHT)
        drop_oldest(p);
    p->brought[position / 64] |= bit;
    p->ring[(p->ring_first + p->ring_count++) % PLAN_BROUGHT] = position;
    p->ring_bytes += size_of(p, position);
}

static bool is_full(const struct plan *p)
{
    return p->ring_bytes >= p->options.window_bytes / 2;
}

/* Unused files fill the window, and would block it for ever. */
static void give_up_oldest(struct plan *p)
{
    if (p->reads - p->settled_at >= JUDGED && p->ring_count > 0 && is_full(p))
        drop_oldest(p);
}

void plan_scan_settle(struct plan *p, uint32_t position)
{
    if (position >= index_info(p->options.index)->entries || !take_brought(p, position)) {
        give_up_oldest(p);
        return;
    }
    p->ring_bytes -= size_of(p, position);
    p->stats.used++;
    p->settled_at = p->reads;
    judge(p, true);
}

/* ---- within a file ---- */

static struct file_stream *find_file(struct plan *p, uint32_t position)
{
    struct file_stream *oldest = &p->files[0];

    for (unsigned i = 0; i < PLAN_FILE_STREAMS; i++) {
        if (p->files[i].reads && p->files[i].position == position)
            return &p->files[i];
        if (p->files[i].used < oldest->used)
            oldest = &p->files[i];
    }
    *oldest = (struct file_stream){.position = position};
    return oldest;
}

void plan_scan_file(struct plan *p, const struct observation *o)
{
    uint64_t end = o->offset + o->len;

    if (o->offset == 0 && size_of(p, o->position) <= FILE_WINDOW_FIRST)
        return;
    struct file_stream *f = find_file(p, o->position);
    f->used = ++p->file_clock;
    if (f->reads && o->offset + FILE_NEAR >= f->expected &&
        o->offset <= f->expected + FILE_NEAR) {
        f->reads++;
    } else {
        *f = (struct file_stream){o->position, 1, end, end, FILE_WINDOW_FIRST, f->used};
        return;
    }
    if (end > f->expected)
        f->expected = end;
    if (f->fetched < f->expected)
        f->fetched = f->expected;
    if (f->reads > FILE_READS && f->fetched - f->expected <= f->window / 2 &&
        f->window < FILE_WINDOW_MOST && f->window < p->options.window_bytes / 4)
        f->window *= 2;
}

static bool take_of_file(struct plan *p, struct plan_want *ret_want)
{
    for (unsigned i = 0; i < PLAN_FILE_STREAMS; i++) {
        struct file_stream *f = &p->files[i];
        struct node node;
        uint64_t end = f->expected + f->window, len;

        if (f->reads < FILE_READS || f->fetched >= end ||
            index_node(p->options.index, f->position, &node) < 0 ||
            f->fetched >= node.size_bytes)
            continue;
        end = end < node.size_bytes ? end : node.size_bytes;
        len = end - f->fetched < BATCH_BYTES ? end - f->fetched : BATCH_BYTES;
        if (len < BATCH_BYTES && len < f->window / 2 && end < node.size_bytes)
            continue; /* wait for more, to fetch it together */
        *ret_want = (struct plan_want){f->position, f->fetched, len, UINT64_MAX, PLAN_FILE};
        f->fetched += len;
        return true;
    }
    return false;
}

/* ---- across files ---- */

/* Do successive reads lie close together in the archive? */
static void watch_offsets(struct plan *p, uint32_t position)
{
    uint64_t offset;
    bool near = false;

    if (p->archive || p->no_archive || p->wants_archive ||
        archive_files_offset(p->options.index, position, &offset) < 0)
        return;
    for (unsigned i = 0; i < sizeof(p->last_ends) / sizeof(p->last_ends[0]); i++)
        near |= p->last_ends[i] && offset + CLOSE_BYTES >= p->last_ends[i] &&
                offset <= p->last_ends[i] + CLOSE_BYTES;
    p->last_ends[p->offset_reads % 8] = offset + size_of(p, position);
    p->close_reads += near;
    if (++p->offset_reads < 64)
        return;
    p->wants_archive = p->close_reads >= CLOSE_READS;
    p->offset_reads = p->close_reads = 0;
}

void plan_scan_read(struct plan *p, const struct observation *o)
{
    uint32_t place;

    if (p->reads < p->scans_from || streams_read(&p->names, o->position))
        return;
    if (p->archive && archive_files_place(p->archive, o->position, &place) == 0)
        streams_read(&p->places, place);
    else
        watch_offsets(p, o->position);
}

/* Fetch a file that a stream hands out, if that makes sense. */
static bool want_file(struct plan *p, uint32_t position, enum plan_kind kind,
                      struct plan_want *ret_want)
{
    const struct index *index = p->options.index;
    struct node node;

    if (position >= index_info(index)->entries || index_node(index, position, &node) < 0 ||
        !S_ISREG(node.mode) || node.data_bytes == 0 || node.position != position)
        return false;
    *ret_want = (struct plan_want){position, 0, size_of(p, position), UINT64_MAX, kind};
    note_brought(p, position);
    return true;
}

static bool take_of_streams(struct plan *p, struct plan_want *ret_want)
{
    uint64_t place;

    while (streams_next(&p->names, &place))
        if (place < UINT32_MAX && want_file(p, (uint32_t)place, PLAN_DIRECTORY, ret_want))
            return true;
    while (p->archive && streams_next(&p->places, &place))
        if (place < archive_files_count(p->archive) &&
            want_file(p, archive_files_at(p->archive, (uint32_t)place), PLAN_ARCHIVE, ret_want))
            return true;
    return false;
}

size_t plan_scan_take(struct plan *p, struct plan_want *wants, size_t max)
{
    uint64_t bytes = 0;
    size_t count = 0;

    if (take_of_file(p, &wants[0]))
        return 1;
    while (count < max && bytes < BATCH_BYTES && p->reads >= p->scans_from && !is_full(p) &&
           take_of_streams(p, &wants[count]))
        bytes += wants[count++].len;
    return count;
}
