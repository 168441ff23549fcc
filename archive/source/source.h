/*
 * A source is the bytes of an archive: a file, or memory for tests, fuzzers and decompressed
 * copies. Back ends read through this interface alone.
 *
 * A source never changes after it was opened, and any number of threads may use it at once.
 * Reads detect that the file was truncated underneath (-ENODATA). The mapping does not: lost
 * pages read as zeros to code that touches the bytes (call source_map_is_whole afterwards),
 * and a system call given their address may fail with EFAULT.
 */
#ifndef ONEPOT_SOURCE_H
#define ONEPOT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "fault.h"

struct source;

/* Identifies a file and its state; all zero for memory. */
struct source_identity {
    uint64_t dev;
    uint64_t ino;
    uint64_t size_bytes;
    int64_t mtime_sec;
    uint32_t mtime_nsec;
};

/*
 * Record in `fault` why opening the file at `path` failed with `err` (-errno), and what a
 * person can do about it. Returns `err`.
 */
int source_open_fault(const char *path, struct fault *fault, int err);

/*
 * Open a regular file (or a block device) read-only. -EISDIR; -EINVAL for anything else that
 * is neither; or open(2)'s errors. Each comes with a fault that says what to do.
 */
int source_open(const char *path, struct fault *fault, struct source **ret_source);

/*
 * Take over a descriptor (closed by source_close, and also if this fails). Messages call the
 * source `name`, which is copied.
 */
int source_from_fd(int fd, const char *name, struct source **ret_source);

/* Copy `len` bytes into a sealed memory file, so that this source has a descriptor too. */
int source_from_memory(const void *bytes, size_t len, const char *name,
                       struct source **ret_source);

void source_close(struct source *source); /* NULL is fine */

const char *source_name(const struct source *source);
uint64_t source_size(const struct source *source);
int source_fd(const struct source *source); /* owned by the source */
void source_identity(const struct source *source, struct source_identity *ret_identity);

/*
 * True if the file lies on storage of this node (or in memory), so that mapping it is safe and
 * cheap; false for network filesystems and for unknown ones.
 */
bool source_is_local(const struct source *source);

/*
 * True if only this user and root can change the bytes: the file belongs to one of them and
 * nobody else may write to it, or it is sealed memory.
 */
bool source_is_ours(const struct source *source);

/*
 * The whole file, mapped read-only and shared, or NULL when it is empty, not local or could
 * not be mapped; the caller then uses source_read. Mapped at the first call; valid until
 * source_close.
 */
const uint8_t *source_map(struct source *source);

/*
 * Did everything read through the mapping so far come from the file? False: the file was cut
 * short or its storage failed. What was read may be zeros; read it again by source_read, which
 * reports the error. Once false, the answer stays false. A copy is not checked.
 */
bool source_map_is_whole(struct source *source);

/* Has source_map_is_whole found the mapping incomplete? Costs nothing. */
bool source_map_was_cut(const struct source *source);

/* The descriptor behind source_map: the file, or the copy being made of it (see below). */
int source_map_fd(const struct source *source);

/*
 * Read exactly `len` bytes at `offset` into `buf`: 0, -ENODATA if they lie past the end, or
 * -errno of pread(2). Retries EINTR and short reads. Also retries storage errors that may pass
 * (EIO, time-outs, lost connections), after growing pauses. A stale handle is opened again by
 * its path, if the same file is there (see below).
 */
int source_read(const struct source *source, void *buf, size_t len, uint64_t offset);

/*
 * The same, but from the page cache only: -EAGAIN if a device would have to be read (or if the
 * filesystem can't say). Never waits.
 */
int source_read_cached(const struct source *source, void *buf, size_t len, uint64_t offset);

/* ---- a copy that is made somewhere nearer ---- */

/*
 * How the layer above (cache/stage/stage.h) serves a source that it copies. Called from any
 * thread; `ctx` is its own. Ranges lie within the source.
 */
struct source_copy {
    /* Read from the copy or the source. Unless `may_wait`, -EAGAIN: not copied yet. */
    int (*read)(void *ctx, void *buf, size_t len, uint64_t offset, bool may_wait);
    /* Is the whole range in the copy (and in `map`) already? Never waits. */
    bool (*has)(void *ctx, uint64_t offset, uint64_t len);
    /*
     * Bring the range into the copy: 0; -ENOSPC and the like if that fails; or the source's
     * error.
     */
    int (*bring)(void *ctx, uint64_t offset, uint64_t len);
    bool (*is_whole)(void *ctx);
    uint64_t (*further_ns)(void *ctx); /* see source_further_ns; may be NULL */
    /*
     * Called when the source is closed. False: a thread is stuck in a read of the source, so
     * the source must stay. NULL: the copy outlives the source and is managed elsewhere.
     */
    bool (*release)(void *ctx);
    const uint8_t *map; /* of the copy, as long as the source; NULL: can't be mapped */
    int fd;             /* of the copy */
    void *ctx;
};

/*
 * From now on serve reads, the mapping and source_is_local from the copy; descriptor and
 * identity remain the file's. Call once, before anyone else uses the source. In the mapping,
 * data not copied yet reads as zeros: call source_has first.
 */
void source_set_copy(struct source *source, const struct source_copy *copy);

/* Is the whole range present in source_map? Always true if no copy is made. */
bool source_has(const struct source *source, uint64_t offset, uint64_t len);

/* Wait until the range is present: 0, or why it never will be (source_read still works). */
int source_bring(const struct source *source, uint64_t offset, uint64_t len);

/* Is a copy being made? */
bool source_is_staged(const struct source *source);

/* Is the copy complete, so that the file itself is no longer needed? */
bool source_is_copied(const struct source *source);

/*
 * When the unpacking that readers wait for last made progress (CLOCK_MONOTONIC); 0: they wait
 * for storage alone.
 */
uint64_t source_further_ns(const struct source *source);

/* source_read, bypassing the copy. */
int source_read_origin(const struct source *source, void *buf, size_t len, uint64_t offset);

/*
 * Properties of the filesystem behind a descriptor, by its type alone: whether it is on this
 * node, and whether it is in memory.
 */
struct storage {
    bool is_local;
    bool is_memory;
};
struct storage storage_of(int fd);

/*
 * How often a failing read is tried again: by default four times, within 2.6 s; 0: never. No
 * try begins more than 30 s after the first failure.
 */
#define SOURCE_RETRIES_DEFAULT 4u
void source_set_retries(struct source *source, unsigned retries);

/*
 * Stop all retries, now and later; a read waiting for one returns with its error. For the end
 * of a session. From any thread.
 */
void source_cancel_retries(struct source *source);

enum source_trouble {
    SOURCE_RETRIED,  /* a read failed with `err` and is retried; reported once per read */
    SOURCE_REOPENED, /* a stale handle was opened again */
    SOURCE_REPLACED, /* reopening failed, as the path leads to another file; reported once */
};

/*
 * Have `hook(ctx, what, err, offset)` called when the storage fails, in the reading thread;
 * calls may run concurrently. Set once; NULL ends further calls, but not one that has begun.
 */
typedef void source_trouble_hook(void *ctx, enum source_trouble what, int err, uint64_t offset);
void source_on_trouble(struct source *source, source_trouble_hook *hook, void *ctx);

struct source_troubles {
    uint64_t retried;  /* tries after the first one of each read */
    uint64_t failed;   /* reads given up */
    uint64_t reopened; /* stale handles opened again */
};
void source_troubles(const struct source *source, struct source_troubles *ret_troubles);

/* As source_read, into several buffers that are consecutive in the file. Modifies `iov`. */
int source_readv(const struct source *source, struct iovec *iov, int count, uint64_t offset);

/*
 * Disable the kernel's read-ahead, for random access by a caller that keeps what it read. No
 * effect on a mapped source or on memory.
 */
void source_use_at_random(struct source *source);

/*
 * Let the page cache drop the pages that [offset, offset + len) touches, as the caller keeps
 * the data elsewhere. No effect on memory.
 */
void source_drop_pages(const struct source *source, uint64_t offset, uint64_t len);

/* The range will be read soon: let the page cache fetch it meanwhile. Does not wait. */
void source_expect(const struct source *source, uint64_t offset, uint64_t len);

/*
 * XXH3-64 of the size and of samples of the content (first and last 64 KB and 16 more places
 * of 4 KB), by which a saved index recognizes its archive.
 */
int source_fingerprint(const struct source *source, uint64_t *ret_fingerprint);

#endif
