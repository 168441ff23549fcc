/*
 * Choice of files. The index is cut into chunks of 256 entries; neighbours in a directory are
 * neighbours there. A chunk is wanted if a reader read from it, or from one of the few before
 * it. Work begins only after a part of all files was read cold. A job that reads at random what
 * it will not read again pays for at most FILES_A_READ files per read, at half of the price of
 * reading one, and only until the allowance, a part of the free memory, is used up.
 */
#include "nearby.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "bits.h"
#include "numbers.h"

#define CHUNK_ENTRIES (1u << NEARBY_CHUNK_BITS)
#define CHUNKS_AHEAD 4u /* chunks after one that is read from, for readers that go in order */

#define READS_SHARE 32u  /* it begins after this part of all files, if that is more */
#define FILES_A_READ 16u /* at most, for each cold read */
#define FILE_MOST (4u << 20)
#define QUIET_NS 20000000u

/* Work under way at once: a reader's own request queues up behind it. */
#define BATCH_FILES 32u /* of each process */
#define BATCH_BYTES (1u << 20)
#define LIST_BYTES (16u << 10)

#define INODE_BYTES 1200u /* of kernel memory for an inode and its name */
#define ROOM_SHARE 2u     /* the part of the free memory that may be used */
#define ROOM_LEAST (UINT64_C(32) << 20)

static size_t chunks_of(const struct index *index)
{
    return (index_info(index)->entries >> NEARBY_CHUNK_BITS) + 1;
}

size_t nearby_bytes(const struct index *index)
{
    return sizeof(struct nearby_totals) + 3 * ((chunks_of(index) + 63) / 64) * sizeof(uint64_t);
}

void nearby_init(struct nearby *n, const struct index *index, void *shared)
{
    size_t words = (chunks_of(index) + 63) / 64;

    *n = (struct nearby){.index = index, .at = shared, .chunks = chunks_of(index)};
    n->touched = (void *)(n->at + 1);
    n->listed = n->touched + words;
    n->taken = n->listed + words;
}

uint64_t nearby_reads_needed(const struct nearby *n)
{
    return max_u64(index_info(n->index)->files / READS_SHARE, NEARBY_READS_FIRST);
}

uint64_t nearby_allowance(const struct nearby *n, uint64_t most_bytes, uint64_t free_bytes)
{
    uint64_t used = atomic_load(&n->at->bytes), room = free_bytes / ROOM_SHARE;

    return room < ROOM_LEAST || used > most_bytes ? 0 : min_u64(most_bytes - used, room);
}

void nearby_saw_read(const struct nearby *n, uint32_t position)
{
    bit_take(n->touched, position >> NEARBY_CHUNK_BITS);
}

void nearby_saw_listing(const struct nearby *n, uint32_t from, uint32_t to)
{
    for (uint32_t i = from | (CHUNK_ENTRIES - 1); i < to; i += CHUNK_ENTRIES)
        bit_take(n->listed, i >> NEARBY_CHUNK_BITS);
}

/* ---- the process that fetches ---- */

struct nearby_turn {
    const struct nearby *nearby;
    const struct mount_fetcher *fetcher;
    void *ctx;
    uint64_t allowance, used; /* bytes */
    unsigned batch_files;
    uint64_t batch_bytes;
    uint64_t reads, grown_ns; /* the readers' reads as last seen, and when they last grew */
    enum mount_fetch outcome; /* 0: it goes on */
};

/* Have readers paused, or is too much fetched for what they read? */
static bool nearby_is_lost(struct nearby_turn *t)
{
    struct mount_readers readers = t->fetcher->readers(t->ctx);

    if (readers.cold_reads != t->reads) {
        t->reads = readers.cold_reads;
        t->grown_ns = readers.now_ns;
    }
    return readers.now_ns - t->grown_ns > QUIET_NS ||
           atomic_load(&t->nearby->at->files) > t->reads * FILES_A_READ;
}

/* Fetch a file, and wait once in a while until the kernel has all of them. */
static void nearby_fetch(struct nearby_turn *t, const char *name, uint64_t size)
{
    bool full = t->batch_files + 1 >= BATCH_FILES || t->batch_bytes + size >= BATCH_BYTES;
    int r = t->fetcher->read(t->ctx, name, size, full);

    if (r == -ENOTCONN || r == -ECONNABORTED)
        t->outcome = MOUNT_FETCH_DONE;
    if (r < 0)
        return; /* a reader will get the error itself */
    atomic_fetch_add_explicit(&t->nearby->at->files, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->nearby->at->bytes, size, memory_order_relaxed);
    t->used += size + INODE_BYTES;
    t->batch_files = full ? 0 : t->batch_files + 1;
    t->batch_bytes = full ? 0 : t->batch_bytes + size;
    if (full && t->used > t->allowance)
        t->outcome = MOUNT_FETCH_FULL;
    else if (full && nearby_is_lost(t))
        t->outcome = MOUNT_FETCH_PAUSED;
}

/* Worth fetching: a regular file with bytes, by its first name. */
static bool nearby_wants_file(const struct index *index, uint32_t position, uint64_t *ret_size,
                              char name[INDEX_NAME_MAX + 1])
{
    const char *chars;
    struct node node;
    size_t len;

    if (index_node(index, position, &node) < 0 || !S_ISREG(node.mode) ||
        node.position != position || node.data_bytes == 0 || node.size_bytes > FILE_MOST ||
        index_name(index, position, &chars, &len) < 0 || len > INDEX_NAME_MAX)
        return false;
    memcpy(name, chars, len);
    name[len] = '\0';
    *ret_size = node.size_bytes;
    return true;
}

/* Entries [from, to) of a directory whose children begin at `first`. */
static void nearby_fetch_range(struct nearby_turn *t, uint32_t directory, uint32_t first,
                               uint32_t from, uint32_t to)
{
    const struct nearby *n = t->nearby;
    char name[INDEX_NAME_MAX + 1];
    uint32_t listed = bit_get(n->listed, from >> NEARBY_CHUNK_BITS) ? to : from, count;
    uint64_t size;

    if (!t->fetcher->open(t->ctx, directory, from - first))
        return;
    while (listed < to && (count = t->fetcher->list(t->ctx, LIST_BYTES)) > 0)
        listed += min_u32(count, to - listed);
    for (uint32_t i = from; i < to && !t->outcome; i++)
        if (nearby_wants_file(n->index, i, &size, name))
            nearby_fetch(t, name, size);
    t->fetcher->close(t->ctx);
}

static void nearby_fetch_chunk(struct nearby_turn *t, size_t chunk)
{
    const struct index *index = t->nearby->index;
    uint32_t entries = index_info(index)->entries, i = (uint32_t)(chunk << NEARBY_CHUNK_BITS);
    uint32_t end = entries - i > CHUNK_ENTRIES ? i + CHUNK_ENTRIES : entries;

    while (i < end && !t->outcome) {
        uint32_t directory, first, count, to;

        if (index_parent(index, i, &directory) < 0 ||
            index_children(index, directory, &first, &count) < 0 || i < first ||
            i - first >= count) {
            i++; /* the root, or damage */
            continue;
        }
        to = count - (i - first) > end - i ? end : first + count;
        nearby_fetch_range(t, directory, first, i, to);
        i = to;
    }
    if (t->outcome)
        bit_clear(t->nearby->taken, chunk);
}

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

/* One pass over all chunks. True if there was anything to do. */
static bool nearby_pass(struct nearby_turn *t)
{
    const struct nearby *n = t->nearby;
    bool any = false;

    for (size_t i = 0; i < n->chunks && !t->outcome; i++) {
        if (!nearby_wants_chunk(n, i) || !bit_take(n->taken, i))
            continue;
        any = true;
        nearby_fetch_chunk(t, i);
    }
    return any;
}

static bool nearby_is_complete(const struct nearby *n)
{
    for (size_t i = 0; i < n->chunks; i++)
        if (!bit_get(n->taken, i))
            return false;
    return true;
}

enum mount_fetch nearby_run(const struct nearby *n, uint64_t allowance_bytes,
                            const struct mount_fetcher *fetcher, void *ctx)
{
    struct mount_readers readers = fetcher->readers(ctx);
    struct nearby_turn t = {.nearby = n,
                            .fetcher = fetcher,
                            .ctx = ctx,
                            .allowance = allowance_bytes,
                            .reads = readers.cold_reads,
                            .grown_ns = readers.now_ns};

    while (!t.outcome && nearby_pass(&t))
        ;
    if (t.outcome)
        return t.outcome;
    return nearby_is_complete(n) ? MOUNT_FETCH_DONE : MOUNT_FETCH_PAUSED;
}
