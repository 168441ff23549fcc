/*
 * The read path: from (file, offset, length) to bytes. Stored bytes are not copied
 * where the archive is mapped: the answer is a list of places in memory, fit for
 * writev(2). Compressed blocks come from the block cache, pinned while they are used; and
 * so do stored bytes of an archive that is not mapped, where the options say so: a file up to
 * READER_WHOLE_BYTES is one block, a longer one is cut into pieces of READER_PIECE_BYTES, of
 * which one read of the archive fetches as many as were asked for. The archive's own pages
 * are dropped then, so that nothing is in memory twice.
 *
 * How to use it, per thread:
 *     reader_scratch_new(reader, &scratch);
 *     reader_get(reader, scratch, position, offset, len, &span);
 *     writev(fd, span.iov, span.iov_count);
 *     reader_put(reader, &span);
 *
 * Threads: a reader is shared; a scratch belongs to one thread, and so does a span
 * until it is put. A scratch has one span at a time.
 */
#ifndef ONEPOT_READER_H
#define ONEPOT_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "block_cache.h"
#include "pot.h"

struct reader;
struct reader_scratch;

#define READER_SPAN_MAX (1u << 20) /* largest `len` of one reader_get */
#define READER_IOV_MAX 64

#define READER_WHOLE_BYTES (256u << 10)
#define READER_PIECE_BYTES (32u << 10)

struct span {
    struct iovec iov[READER_IOV_MAX];
    int iov_count;
    size_t bytes; /* the sum of the iovecs: less than asked for only at the end of the file */
    struct block *pinned[READER_IOV_MAX];
    int pinned_count;
};

struct reader_options {
    uint64_t cache_bytes;  /* budget of the block cache; 0: no more than what is in use */
    bool not_for_children; /* after a fork the child does not use the reader */
    uint32_t stuck_ms;     /* see struct block_cache_options */
    bool cache_stored;     /* stored bytes of a source that is not mapped go through it, too */
    bool keep_pages;       /* and are left in the page cache: others read the source as well */
};

/*
 * Where the bytes of an answer came from. An answer that is made of several has the origin that
 * cost most, which is the greatest.
 */
enum reader_origin {
    READER_FROM_NOTHING, /* holes, or past the end of the file */
    READER_FROM_CACHE,   /* the block cache */
    READER_FROM_AHEAD,   /* the block cache, to which they had come before anybody asked */
    READER_FROM_PAGES,   /* the kernel's page cache of the archive */
    READER_FROM_COPY,    /* the archive's copy on this node */
    READER_FROM_ANOTHER, /* another thread was about to bring them, and was waited for */
    READER_FROM_STORAGE, /* the storage of the archive */
};
#define READER_ORIGINS 7

/* The pot must outlive the reader. -ENOTSUP if the archive's codec is not built in. */
int reader_new(struct pot *pot, const struct reader_options *options, struct fault *fault,
               struct reader **ret_reader);
void reader_free(struct reader *reader);

int reader_scratch_new(struct reader *reader, struct reader_scratch **ret_scratch);
void reader_scratch_free(struct reader_scratch *scratch);

/*
 * The sums that compressed blocks carry are not compared from now on: for who compares those of
 * the files. It saves time, and a damaged block does not take along the files in it that are
 * whole.
 */
void reader_scratch_skip_sums(struct reader_scratch *scratch);

/*
 * Have `hook(ctx)` called in this thread, at most once for each reader_get, before it
 * sleeps until a device has answered: for a read that is not in the page cache, or for
 * another thread that fills the same block. A request loop lets another thread take over then.
 * (Not before a decompression: that keeps a CPU busy, and one more thread would not make it
 * faster.)
 */
void reader_scratch_on_wait(struct reader_scratch *scratch, void (*hook)(void *ctx), void *ctx);

/*
 * Up to `len` bytes (at most READER_SPAN_MAX) of the regular file at inode position
 * `position`. At or past its end: 0 bytes. Errors: -EIO (source failed), -EUCLEAN
 * (damaged block or index), -ENODATA (archive shorter than its index says), -ENOMEM;
 * nothing needs to be put then. An error is never mixed with bytes.
 */
int reader_get(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
               uint64_t offset, size_t len, struct span *ret_span);
void reader_put(struct reader *reader, struct span *span);

/* Where the last answer of this scratch came from. */
enum reader_origin reader_scratch_origin(const struct reader_scratch *scratch);

/* The same into the caller's buffer; *ret_len < len only at the end of the file. */
int reader_copy(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                uint64_t offset, void *buf, size_t len, size_t *ret_len);

/*
 * Bring bytes of a file to memory that nobody asked for yet: all of [offset, offset + len)
 * that is not there, decompressed, with as few reads of the archive as possible; of a mapped
 * archive's stored bytes, the kernel is told to. `due`: their place in a known order of reads,
 * or BLOCK_DUE_UNKNOWN. What another thread is at is not waited for. -ENOBUFS: no room, see
 * block_cache_begin_ahead; part of it may have come. Other errors as of reader_get.
 * The thread that calls it waits for the device: it is none that answers readers.
 */
int reader_prefetch(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                    uint64_t offset, uint64_t len, uint64_t due);

/* A part of a file that is wanted. */
struct reader_want {
    uint32_t position;
    uint64_t offset, len;
    uint64_t due;
};

/*
 * The same for several parts of files, by as few reads of the archive as possible: what lies
 * close together there is read at once. Order them as they lie in the archive. The
 * first error ends it, -ENOBUFS too.
 */
int reader_prefetch_many(struct reader *reader, struct reader_scratch *scratch,
                         const struct reader_want *wants, size_t count);

/*
 * A file that was just read will be read again as number `due` of an order: what the block
 * cache has of its stored bytes is kept by that. Nothing is brought in. (Compressed blocks are
 * left alone: their other files have places of their own.)
 */
void reader_note_due(struct reader *reader, uint32_t position, uint64_t due);

/* Would a read of this byte be answered from memory (or is it on its way there)? A hint. */
bool reader_has(struct reader *reader, uint32_t position, uint64_t offset);

/* See block_cache_forget_order. */
void reader_forget_order(struct reader *reader);

/* See block_cache_passed. */
void reader_passed(struct reader *reader, uint64_t due);

/* See block_cache_set_budget. */
void reader_set_budget(struct reader *reader, uint64_t cache_bytes);

/*
 * The block of an extent of kind BLOCK, decompressed into the caller's buffer of
 * reader_block_bytes; the block cache has no part in it. Errors as of reader_get.
 */
int reader_unpack(struct reader *reader, struct reader_scratch *scratch,
                  const struct extent *extent, void *buf, size_t *ret_len);

/* The largest block that the archive may have; 0: it has none. */
size_t reader_block_bytes(const struct reader *reader);

void reader_cache_stats(const struct reader *reader, struct block_cache_stats *ret_stats);

/* What was read from the archive; what was asked for is in the counters of who asked. */
struct reader_source_stats {
    uint64_t reads, bytes; /* of the source, and of its mapping */
};
void reader_source_stats(const struct reader *reader, struct reader_source_stats *ret_stats);

#endif
