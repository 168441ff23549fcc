/*
 * The read path: from (file, offset, length) to bytes.
 *
 * If the archive is mapped, stored bytes are not copied: the answer is a list of places in
 * memory, fit for writev(2). Compressed blocks come from the block cache and are pinned while
 * in use. So do stored bytes of an archive that is not mapped, with the option cache_stored. A
 * file up to READER_WHOLE_BYTES is one block; a longer one is cut into pieces, at multiples of
 * READER_PIECE_BYTES of the archive, and one read fetches as many pieces as were asked for. The
 * archive's own pages are then dropped, so that nothing is in memory twice.
 *
 * How to use it, per thread:
 *     reader_scratch_new(reader, &scratch);
 *     reader_get(reader, scratch, position, offset, len, &span);
 *     writev(fd, span.iov, span.iov_count);
 *     reader_put(reader, &span);
 *
 * Threads: a reader is shared. A scratch belongs to one thread, and so does a span until it is
 * put. A scratch has one span at a time.
 */
#ifndef ONEPOT_READER_H
#define ONEPOT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "block_cache.h"
#include "fileset.h"

struct reader;
struct reader_scratch;

#define READER_SPAN_MAX (1u << 20) /* largest `len` of one reader_get */
#define READER_IOV_MAX 64

#define READER_WHOLE_BYTES (256u << 10)
#define READER_PIECE_BYTES (32u << 10)

struct span {
    struct iovec iov[READER_IOV_MAX];
    int iov_count;
    size_t bytes; /* the sum of the iovecs; less than asked for only at the end of the file */
    struct block *pinned[READER_IOV_MAX];
    int pinned_count;
};

struct reader_options {
    uint64_t cache_bytes;  /* budget of the block cache; 0: only blocks in use */
    bool not_for_children; /* after a fork the child does not use the reader */
    uint32_t stuck_ms;     /* see struct block_cache_options */
    bool cache_stored;     /* stored bytes of a source that is not mapped use the cache, too */
    bool keep_pages;       /* leaves them in the page cache as well: others read the source */
    /*
     * The caller keeps the bytes, as the kernel keeps a mounted file's. A block that one
     * request took whole is not kept a second time, if the archive is mapped here: to
     * decompress it again costs less than fresh memory for each block.
     */
    bool is_kept_above;
    /*
     * Answers are copies or pinned blocks, never places in the mapping, whose bytes storage may
     * bring anew: the caller sends the bytes that it hashed.
     */
    bool copies;
};

/*
 * Where the bytes of an answer came from. If they came from several places, the answer has the
 * most costly origin, which is the greatest value.
 */
enum reader_origin {
    READER_FROM_NOTHING, /* holes, or past the end of the file */
    READER_FROM_CACHE,   /* the block cache */
    READER_FROM_AHEAD,   /* the block cache, filled before anybody asked */
    READER_FROM_PAGES,   /* the kernel's page cache of the archive */
    READER_FROM_COPY,    /* the archive's copy on this node */
    READER_FROM_ANOTHER, /* another thread was bringing them, and this one waited */
    READER_FROM_STORAGE, /* the storage of the archive */
};
#define READER_ORIGINS 7

/* The fileset must outlive the reader. -ENOTSUP if the archive's codec is not built in. */
int reader_new(struct fileset *fileset, const struct reader_options *options,
               struct fault *fault, struct reader **ret_reader);
void reader_free(struct reader *reader);

int reader_scratch_new(struct reader *reader, struct reader_scratch **ret_scratch);
void reader_scratch_free(struct reader_scratch *scratch);

/*
 * Calls `on_wait(ctx)` in this thread, at most once for each reader_get, before the thread
 * sleeps until a device answers: for a read that is not in the page cache, or for another
 * thread that fills the same block. A request loop then lets another thread take over.
 * (Decompression does not call it: that keeps a CPU busy, and one more thread would not make it
 * faster.)
 *
 * Calls `on_unpack(ctx, true)` when only CPU time is missing for a large block: this thread
 * unpacks it, or waits for its turn at that, or for another thread that does. Calls
 * `on_unpack(ctx, false)` when that is over, before reader_get returns. Such a request is
 * alive, however long it takes: what unpacks a block has all its input in memory and ends.
 *
 * NULL: calls nothing.
 */
void reader_scratch_hooks(struct reader_scratch *scratch, void (*on_wait)(void *ctx),
                          void (*on_unpack)(void *ctx, bool begins), void *ctx);

/*
 * Gets up to `len` bytes (at most READER_SPAN_MAX) of the regular file at inode position
 * `position`; 0 bytes at or past its end. Errors: -EIO (source failed), -EUCLEAN (damaged block
 * or index), -ENODATA (archive shorter than its index says), -ENOMEM. After an error there is
 * nothing to put. An error never comes with bytes.
 */
int reader_get(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
               uint64_t offset, size_t len, struct span *ret_span);
void reader_put(struct reader *reader, struct span *span);

/* Leaves of an answer the `len` bytes behind the first `skip`, or as many as it has of them. */
void reader_cut(struct span *span, size_t skip, size_t len);

/*
 * These bytes of a file do not have their sum: keeps them in no cache, no copy and no page of
 * the archive, so that the next reader gets them from storage. A copy on this node reads them
 * at once.
 */
void reader_forget(struct reader *reader, uint32_t position, uint64_t offset, uint64_t len);

/* Origin of this scratch's last answer. */
enum reader_origin reader_scratch_origin(const struct reader_scratch *scratch);

/* As reader_get, into the caller's buffer. *ret_len < len only at the end of the file. */
int reader_copy(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                uint64_t offset, void *buf, size_t len, size_t *ret_len);

/* A part of a file to bring in before anybody asks. */
struct reader_want {
    uint32_t position;
    uint64_t offset, len;
    uint64_t due; /* its place in a known order of reads, or BLOCK_DUE_UNKNOWN */
};

/*
 * Brings missing bytes to memory, decompressed, with as few reads of the archive as possible:
 * one read gets parts that lie close together, so order them as they lie in the archive. For
 * stored bytes of a mapped archive, asks the kernel to do so. Does not wait for bytes that
 * another thread is bringing. The first error ends it. -ENOBUFS: no room, see
 * block_cache_begin_ahead; some of the bytes may have come. Other errors: reader_get's. The
 * calling thread waits for the device, so it must not be one that answers readers.
 */
int reader_prefetch(struct reader *reader, struct reader_scratch *scratch,
                    const struct reader_want *wants, size_t count);

/*
 * Notes that a file just read will be read again as number `due` of an order. The block cache
 * then keeps its stored bytes accordingly; nothing is brought in. (Compressed blocks are left
 * alone: their other files have places of their own.)
 */
void reader_note_due(struct reader *reader, uint32_t position, uint64_t due);

/* See block_cache_passed. */
void reader_passed(struct reader *reader, uint64_t due, bool is_new_order);

/* Large blocks (above 1 MiB) that are decompressed at once; 0, as at first: any number. */
void reader_limit_unpacking(struct reader *reader, unsigned threads);

/* See block_cache_set_budget. */
void reader_set_budget(struct reader *reader, uint64_t cache_bytes);

/*
 * The block cache, and reads and bytes of the archive: from the source and its mapping. The
 * callers count what was asked for.
 */
void reader_stats(const struct reader *reader, struct block_cache_stats *ret_cache,
                  uint64_t *ret_reads, uint64_t *ret_bytes);

#endif
