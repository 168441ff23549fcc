/*
 * A source is the bytes that an archive is made of: a file, or memory for tests,
 * fuzzers and decompressed copies. Back ends read through this interface alone.
 *
 * A source never changes after it was opened and may be used by any number of
 * threads at once. Truncation of the file underneath is noticed by the reads
 * (-ENODATA), except through the mapping, where what is lost reads as zeros for code
 * that touches the bytes itself (ask source_map_is_whole afterwards) and may be EFAULT
 * for a system call that is handed them.
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

/* Which file it is and which state it is in; all zero for memory. */
struct source_identity {
    uint64_t dev;
    uint64_t ino;
    uint64_t size_bytes;
    int64_t mtime_sec;
    uint32_t mtime_nsec;
};

/*
 * Say in `fault` why the file at `path` can't be opened, -errno, and what a person can do
 * about it. Returns that error.
 */
int source_open_fault(const char *path, struct fault *fault, int err);

/*
 * Open a regular file (or a block device) read-only. -EISDIR, -EINVAL for what is
 * neither, else open(2)'s errors; each with a fault that says what to do.
 */
int source_open(const char *path, struct fault *fault, struct source **ret_source);

/*
 * Take over a descriptor (closed by source_close, also when this fails). `name` is
 * what messages call it; it is copied.
 */
int source_from_fd(int fd, const char *name, struct source **ret_source);

/* A copy of `len` bytes in a sealed memory file, so that it has a descriptor too. */
int source_from_memory(const void *bytes, size_t len, const char *name,
                       struct source **ret_source);

void source_close(struct source *source); /* NULL is fine */

const char *source_name(const struct source *source);
uint64_t source_size(const struct source *source);
int source_fd(const struct source *source); /* owned by the source */
void source_identity(const struct source *source, struct source_identity *ret_identity);

/*
 * True where the file lies on storage of this node (or in memory), so that a
 * mapping of it is safe and cheap; false for network filesystems and for any
 * filesystem that is not known.
 */
bool source_is_local(const struct source *source);

/*
 * True where only this user and root can change the bytes: the file belongs to one of them and
 * nobody else may write to it, or it is sealed memory.
 */
bool source_is_ours(const struct source *source);

/*
 * The whole file, mapped read-only and shared, or NULL when it is empty, not local,
 * or could not be mapped: the caller then uses source_read. Mapped at the first
 * call; valid until source_close.
 */
const uint8_t *source_map(struct source *source);

/*
 * Was all that was read through the mapping until now in the file? False: the file was cut
 * short, or its storage failed; what was read may be zeros, and is to be read anew by
 * source_read, which tells of that. Once it is false it stays so. A copy is not asked for.
 */
bool source_map_is_whole(struct source *source);

/* Was that found to be false? Costs nothing. */
bool source_map_was_cut(const struct source *source);

/* What source_map maps: the file, or the copy of it that is being made (see below). */
int source_map_fd(const struct source *source);

/*
 * Exactly `len` bytes at `offset` into `buf`: 0, or -ENODATA when they lie past the
 * end, or -errno of pread(2). Retries EINTR and short reads; and errors of the storage that
 * may pass (EIO, time-outs, lost connections), after pauses that grow; a handle that went
 * stale is opened again by its path, if the same file is there (see below).
 */
int source_read(const struct source *source, void *buf, size_t len, uint64_t offset);

/*
 * The same, but only what the page cache holds: -EAGAIN when a device would have to
 * be asked (or when the filesystem can't tell). Never waits.
 */
int source_read_cached(const struct source *source, void *buf, size_t len, uint64_t offset);

/* ---- a copy that is made somewhere nearer ---- */

/*
 * How the layer above (cache/stage/stage.h) answers for a source of which a copy is made. From
 * any thread; `ctx` is its own. Ranges lie within the source.
 */
struct source_copy {
    /* The bytes, from the copy or the source. Unless `may_wait`, -EAGAIN: not there yet. */
    int (*read)(void *ctx, void *buf, size_t len, uint64_t offset, bool may_wait);
    /* Is all of the range in the copy (and in `map`) already? Never waits. */
    bool (*has)(void *ctx, uint64_t offset, uint64_t len);
    /* Bring it there: 0; -ENOSPC and the like if it can't be; or the source's error. */
    int (*bring)(void *ctx, uint64_t offset, uint64_t len);
    bool (*is_whole)(void *ctx);
    uint64_t (*further_ns)(void *ctx); /* as source_further_ns; may be NULL */
    /* The source is closed. False: a thread is stuck in a read of it, so that it must stay.
     * NULL: somebody else looks after the copy, which outlives the source. */
    bool (*release)(void *ctx);
    const uint8_t *map; /* of the copy, as long as the source; NULL: it can't be mapped */
    int fd;             /* of the copy */
    void *ctx;
};

/*
 * From now on reads, the mapping and source_is_local are those of the copy; descriptor and
 * identity stay the file's. Once, before anybody else uses the source. What is not there yet
 * reads as zeros in the mapping: ask source_has first.
 */
void source_set_copy(struct source *source, const struct source_copy *copy);

/* Does all of the range lie where source_map says? Always, where no copy is made. */
bool source_has(const struct source *source, uint64_t offset, uint64_t len);

/* Wait until it does: 0, or why it never will (it can still be read). */
int source_bring(const struct source *source, uint64_t offset, uint64_t len);

/* A copy of it is made. */
bool source_is_staged(const struct source *source);

/* And it is whole: the file itself is not needed any more. */
bool source_is_copied(const struct source *source);

/*
 * CLOCK_MONOTONIC at which that for which reads of it wait has last come further; 0: they wait
 * for storage alone.
 */
uint64_t source_further_ns(const struct source *source);

/* source_read past the copy. */
int source_read_origin(const struct source *source, void *buf, size_t len, uint64_t offset);

/*
 * What is known of the filesystem that a descriptor lies on, by its type alone: on this
 * node; in its memory.
 */
struct storage {
    bool is_local;
    bool is_memory;
};
struct storage storage_of(int fd);

/*
 * How often a read that fails is tried again: four times, within 2.6 s, unless told otherwise;
 * 0: never. In no case does a try begin more than 30 s after the first one failed.
 */
#define SOURCE_RETRIES_DEFAULT 4u
void source_set_retries(struct source *source, unsigned retries);

/*
 * From now on nothing is tried again, and who waits to do so returns with the error: for the
 * end of a session. From any thread.
 */
void source_cancel_retries(struct source *source);

enum source_trouble {
    SOURCE_RETRIED,  /* a read failed with `err` and is tried again; told once for each read */
    SOURCE_REOPENED, /* its handle was stale and is so no more */
    SOURCE_REPLACED, /* it can't be: the path leads to another file; told once */
};

/*
 * Have `hook(ctx, what, err, offset)` called when the storage fails, in the thread that reads,
 * several at once if so it happens. Set once; NULL ends it, but not a call that has begun.
 */
typedef void source_trouble_hook(void *ctx, enum source_trouble what, int err, uint64_t offset);
void source_on_trouble(struct source *source, source_trouble_hook *hook, void *ctx);

struct source_troubles {
    uint64_t retried;  /* tries after the first of each read */
    uint64_t failed;   /* reads that were given up */
    uint64_t reopened; /* stale handles */
};
void source_troubles(const struct source *source, struct source_troubles *ret_troubles);

/*
 * Several buffers, one behind the other in the file: as source_read. `iov` is used up.
 */
int source_readv(const struct source *source, struct iovec *iov, int count, uint64_t offset);

/*
 * From now on it is read at random, by who keeps what was read: the kernel shall not read
 * ahead. Nothing happens to a source that is mapped or memory.
 */
void source_use_at_random(struct source *source);

/*
 * What was read of [offset, offset + len) is kept elsewhere: the page cache need not hold the
 * pages that it touches. Nothing happens to a source that is memory.
 */
void source_drop_pages(const struct source *source, uint64_t offset, uint64_t len);

/* It will be read soon: the page cache may fetch it meanwhile. Does not wait. */
void source_expect(const struct source *source, uint64_t offset, uint64_t len);

/*
 * XXH3-64 of size and of samples of the content (first and last 64 KB and 16 more
 * places of 4 KB), by which a saved index knows its archive again.
 */
int source_fingerprint(const struct source *source, uint64_t *ret_fingerprint);

#endif
