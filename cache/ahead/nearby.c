/*
 * Choice of files. The index is cut into chunks of 256 entries; neighbours in a directory are
 * neighbours there. A chunk is wanted if a reader read from it, or from one of the few before
 * it. Work begins only after a part of all files was read cold. A job that reads files at
 * random and only once pays for at most FILES_A_READ files per read, at half of the price of
 * reading one, and only until the allowance, a part of the free memory, is used up.
 *
 * Each fetcher works on a separate chunk, and so lists names before it opens the files.
 */
#include "chooser.h"

#include <errno.h>
#include <stdlib.h>

#include "bits.h"
#include "numbers.h"

#define CHUNK_ENTRIES (1u << NEARBY_CHUNK_BITS)
#define CHUNKS_AHEAD 4u /* chunks after one that is read from, for readers that go in order */
#define LANES AHEAD_MOUNT_FETCHERS_MAX

#define READS_SHARE 32u      /* it begins after this part of all files, if that is more */
#define FILES_A_READ 16u     /* at most, for each cold read */
#define FILE_MOST (4u << 20) /* below WANT_FILE_MOST */
#define QUIET_NS 20000000u

/* Work under way at once: a reader's own request queues up behind it. */
#define BATCH_FILES 32u /* of each fetcher */
#define BATCH_BYTES (1u << 20)

#define INODE_BYTES 1200u /* of kernel memory for an inode and its name */
#define ROOM_SHARE 2u     /* the part of the free memory that may be used */
#define ROOM_LEAST (UINT64_C(32) << 20)

/* A chunk in work. */
struct nearby_lane {
    uint32_t at, end;    /* entries that are left of it */
    uint32_t named;      /* names of entries before this one are there or were asked for */
    uint32_t first_want; /* of the present fetches */
    bool busy;
};

struct nearby {
    const struct ahead_options *options;
    size_t chunks, next;       /* where the search for a chunk goes on */
    bool searched;             /* since then no chunk was touched, and none is left */
    _Atomic uint64_t *touched; /* bitmaps, by chunk: a reader read from it */
    _Atomic uint64_t *listed;  /* the kernel received all of its names */
    _Atomic uint64_t *taken;   /* it is or was in work */
    struct nearby_lane lanes[LANES];
    uint64_t reads, wanted;   /* cold reads so far, and when it begins */
    uint64_t files, bytes;    /* fetched */
    uint64_t used, allowance; /* of memory, since it began */
    uint64_t grown_ns;        /* when `reads` last grew */
    bool runs;
    bool over; /* the mount has ended */
};

static void nearby_free(void *chooser)
{
    struct nearby *n = chooser;

    free(n->touched);
    free(n);
}

static int nearby_make(const struct ahead_options *options, void **ret_chooser)
{
    const struct index_info *info = index_info(options->index);
    struct nearby *n = calloc(1, sizeof(*n));

    if (!n)
        return -ENOMEM;
    n->options = options;
    n->chunks = (info->entries >> NEARBY_CHUNK_BITS) + 1;
    n->wanted = max_u64(info->files / READS_SHARE, NEARBY_READS_FIRST);
    size_t words = (n->chunks + 63) / 64;
    n->touched = calloc(3 * words, sizeof(*n->touched));
    if (!n->touched) {
        free(n);
        return -ENOMEM;
    }
    n->listed = n->touched + words;
    n->taken = n->listed + words;
    *ret_chooser = n;
    return 0;
}

/* ---- when ---- */

static bool nearby_observe(void *chooser, const struct observation *o, bool expected)
{
    struct nearby *n = chooser;

    if (o->kind == OBSERVED_LISTING && !o->names_only) {
        uint32_t from = (uint32_t)o->offset;
        for (uint32_t i = from | (CHUNK_ENTRIES - 1); i - from < o->len; i += CHUNK_ENTRIES)
            bit_take(n->listed, i >> NEARBY_CHUNK_BITS);
    } else if (o->kind == OBSERVED_READ && o->offset == 0) {
        n->reads++;
        n->grown_ns = o->time_ns;
        if (bit_take(n->touched, o->position >> NEARBY_CHUNK_BITS))
            n->searched = false;
    }
    return expected;
}

static void nearby_rest(struct nearby *n, unsigned reads)
{
    n->runs = false;
    n->wanted = n->reads + reads;
}

static void nearby_begin(struct nearby *n, uint64_t now_ns)
{
    uint64_t most = n->options->nearby_bytes;
    uint64_t room = n->options->room_bytes(n->options->room_ctx) / ROOM_SHARE;

    if (room < ROOM_LEAST || n->bytes >= most) {
        nearby_rest(n, NEARBY_READS_FIRST);
        return;
    }
    n->runs = true;
    n->used = 0;
    n->allowance = min_u64(most - n->bytes, room);
    n->grown_ns = now_ns;
}

/* Have readers paused, or is enough fetched for what they read? */
static bool nearby_is_lost(void *chooser, uint64_t now_ns)
{
    struct nearby *n = chooser;

    if (n->runs && (now_ns > n->grown_ns + QUIET_NS || n->files > n->reads * FILES_A_READ ||
                    n->used > n->allowance))
        nearby_rest(n, NEARBY_READS_AGAIN);
    if (!n->runs && !n->over && n->reads >= n->wanted)
        nearby_begin(n, now_ns);
    return !n->runs;
}

/* ---- which ---- */

/* Did readers read from it or shortly before it, and nobody fetches it? */
static bool nearby_wants_chunk(const struct nearby *n, size_t chunk)
{
    if (bit_get(n->taken, chunk))
        return false;
    for (size_t i = 0; i <= CHUNKS_AHEAD && i <= chunk; i++)
        if (bit_get(n->touched, chunk - i))
            return true;
    return false;
}

/* Give the lane another chunk. False: none is wanted. */
static bool nearby_next_chunk(struct nearby *n, struct nearby_lane *lane)
{
    uint32_t entries = index_info(n->options->index)->entries;

    for (size_t i = 0; i < n->chunks && !n->searched; i++) {
        size_t chunk = n->next++;
        if (n->next == n->chunks)
            n->next = 0;
        if (!nearby_wants_chunk(n, chunk) || !bit_take(n->taken, chunk))
            continue;
        lane->at = lane->named = (uint32_t)(chunk << NEARBY_CHUNK_BITS);
        lane->end = entries - lane->at > CHUNK_ENTRIES ? lane->at + CHUNK_ENTRIES : entries;
        return true;
    }
    n->searched = true;
    return false;
}

/* The directory with this entry, and its own entries. False: the root, or damage. */
static bool nearby_directory(const struct index *index, uint32_t position,
                             uint32_t *ret_directory, uint32_t *ret_first, uint32_t *ret_count)
{
    return index_parent(index, position, ret_directory) == 0 &&
           index_children(index, *ret_directory, ret_first, ret_count) == 0 &&
           position >= *ret_first && position - *ret_first < *ret_count;
}

/* Names of the lane's next directory, as far as its entries are in the lane. False: none. */
static bool nearby_take_names(const struct nearby *n, struct nearby_lane *lane,
                              struct reader_want *ret_want)
{
    uint32_t directory, first, count, at = lane->at;

    if (at < lane->named)
        return false;
    lane->named = at + 1;
    if (!nearby_directory(n->options->index, at, &directory, &first, &count))
        return false;
    lane->named = count - (at - first) > lane->end - at ? lane->end : first + count;
    *ret_want =
        (struct reader_want){directory, at - first, lane->named - at, BLOCK_DUE_UNKNOWN};
    return !bit_get(n->listed, at >> NEARBY_CHUNK_BITS);
}

/* The lane's next batch: directories, each before files in it. */
static size_t nearby_fill(struct nearby *n, struct nearby_lane *lane, struct reader_want *wants,
                          size_t max)
{
    unsigned files = 0;
    uint64_t bytes = 0;
    size_t count = 0;

    while (lane->at < lane->end && count + 2 <= max && files < BATCH_FILES &&
           bytes < BATCH_BYTES) {
        count += nearby_take_names(n, lane, &wants[count]);
        uint64_t size = want_bytes(n->options->index, lane->at);
        if (size > 0 && size <= FILE_MOST) {
            wants[count++] = (struct reader_want){lane->at, 0, size, BLOCK_DUE_UNKNOWN};
            files++;
            bytes += size;
        }
        lane->at++;
    }
    n->files += files;
    n->bytes += bytes;
    n->used += bytes + files * (uint64_t)INODE_BYTES;
    return count;
}

static size_t nearby_take(void *chooser, struct reader_want *wants, size_t max)
{
    struct nearby *n = chooser;
    size_t count = 0;

    for (unsigned i = 0; i < LANES && count == 0; i++) {
        struct nearby_lane *lane = &n->lanes[i];
        while (!lane->busy && count == 0 &&
               (lane->at < lane->end || nearby_next_chunk(n, lane)))
            count = nearby_fill(n, lane, wants, max);
        if (count > 0) {
            lane->busy = true;
            lane->first_want = wants[0].position;
            break;
        }
    }
    return count;
}

static void nearby_finished(void *chooser, const struct reader_want *wants, size_t count,
                            int result)
{
    struct nearby *n = chooser;

    (void)count;
    for (unsigned i = 0; i < LANES; i++)
        if (n->lanes[i].busy && n->lanes[i].first_want == wants[0].position) {
            n->lanes[i].busy = false;
            break;
        }
    if (result == -ENOTCONN)
        n->over = true, n->runs = false;
}

const struct chooser nearby_chooser = {
    .make = nearby_make,
    .free = nearby_free,
    .observe = nearby_observe,
    .is_lost = nearby_is_lost,
    .take = nearby_take,
    .finished = nearby_finished,
};
