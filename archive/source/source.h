/*
 * A source is the bytes of an archive: a file, or memory for tests, fuzzers and decompressed
 * copies. Back ends read through this interface alone.
 *
 * A source never changes after it was opened, and any number of threads may use it at once.
 * Reads detect that the file was truncated underneath (-ENODATA). The mapping does not: lost
 * pages read as zeros to code that touches the bytes (call source_is_whole afterwards),
 * and a system call given their address may fail with EFAULT.
 */
#ifndef ONEPOT_SOURCE_H
#define ONEPOT_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
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
    /* When the file or its attributes last changed. Not compared with others. */
    int64_t ctime_sec;
    uint32_t ctime_nsec;
    /* The place of a part of the file (source_slice.h). 0, 0: all of the file. */
    uint64_t slice_start, slice_bytes;
};

static inline struct source_identity source_identity_of(const struct stat *st)
{
    return (struct source_identity){
        .dev = st->st_dev,
        .ino = st->st_ino,
        .size_bytes = (uint64_t)st->st_size,
        .mtime_sec = st->st_mtim.tv_sec,
        .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec,
        .ctime_sec = st->st_ctim.tv_sec,
        .ctime_nsec = (uint32_t)st->st_ctim.tv_nsec,
    };
}

/* Has the file the length and the time that it had, so that its bytes count as the same? */
static inline bool source_identity_same(const struct source_identity *a,
                                        const struct source_identity *b)
{
    return a->size_bytes == b->size_bytes && a->mtime_sec == b->mtime_sec &&
           a->mtime_nsec == b->mtime_nsec;
}

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

/*
 * So many sources will be opened: have the kernel make room for their descriptors at once. In a
 * process with threads it waits for milliseconds whenever it does that, so call it before
 * threads start, too.
 */
void source_expect(size_t count);

void source_close(struct source *source); /* NULL is fine */

const char *source_name(const struct source *source);
/* Was it a symbolic link when it was opened by that name? */
bool source_is_by_link(const struct source *source);
uint64_t source_size(const struct source *source);
int source_fd(const struct source *source); /* owned by the source; -1: it has several */

/* Where in the descriptor's file the source begins: 0, unless it is a slice. */
uint64_t source_start(const struct source *source);

void source_identity(const struct source *source, struct source_identity *ret_identity);
bool source_identity_equal(const struct source_identity *a, const struct source_identity *b);

/* The identity of several files together: the newest of their times, and a hash of all else. */
void source_identity_join(const struct source_identity *all, size_t count,
                          struct source_identity *ret_identity);

/*
 * A source may be several files, one behind the other (source_concat.h). Member `i`, or NULL if
 * there are not so many; a plain source has one, itself.
 */
const struct source *source_member(const struct source *source, size_t i);

/*
 * The next of all files in the source, also where members have members. Begin with `at` all
 * zero; NULL: no more.
 */
const struct source *source_file_next(const struct source *source, size_t at[2]);

/*
 * As fstat of one file. Several files have the last of their times of change, and a mode that
 * grants what each grants; where their owners or groups differ, only this user counts as the
 * owner, and nobody else has rights. st_dev is 0 where their devices differ.
 */
int source_stat(const struct source *source, struct stat *ret_st);

/* The identity that the source's files have by now: 0 or -errno. */
int source_identity_now(const struct source *source, struct source_identity *ret_identity);

/* The file with the byte at *offset, which becomes the offset in that file. */
const struct source *source_at(const struct source *source, uint64_t *offset);

/*
 * Has the file another length or time of change than when it was opened? 1, 0, or -errno if it
 * can't be asked.
 */
int source_was_changed(const struct source *source);

/*
 * True if the file lies on storage of this node (or in memory), so that mapping it is safe and
 * cheap; false for network filesystems and for unknown ones.
 */
bool source_is_local(const struct source *source);

/* True if its bytes lie in memory: a file of a tmpfs, or no file at all. */
bool source_is_memory(const struct source *source);

/*
 * True if only this user and root can change the bytes: the file belongs to one of them and
 * nobody else may write to it, or it is sealed memory.
 */
bool source_is_ours(const struct source *source);

/*
 * A range, mapped read-only and shared, or NULL when it is empty, not local or could not be
 * mapped; the caller then uses source_read. A file is mapped as a whole at the first call;
 * valid until source_close. If there are several files, each is mapped when bytes of it are
 * asked for, and a range that does not lie in one of them is not mapped. Bytes that are read
 * there were first brought (source_bring), unless the source is known to keep nothing.
 */
const uint8_t *source_map_at(const struct source *source, uint64_t offset, uint64_t len);

/* All of it. */
static inline const uint8_t *source_map(const struct source *source)
{
    return source_map_at(source, 0, source_size(source));
}

/* Can ranges of it be mapped? Of several files, none is mapped by this. */
bool source_can_map(const struct source *source);

/*
 * Is the source as long as it was, and did everything read through the mapping so far come from
 * it? False: the file was cut short or its storage failed. What was read may be zeros; read it
 * again by source_read, which reports the error. Once false, the answer stays false.
 */
bool source_is_whole(struct source *source);

/*
 * The same for a range that was just read through the mapping, of a source that is not cut so
 * far: mostly without a system call.
 */
bool source_range_is_whole(struct source *source, uint64_t offset, uint64_t len);

/* Has source_is_whole answered no? Costs nothing. */
bool source_was_cut(const struct source *source);

/*
 * Read exactly `len` bytes at `offset` into `buf`: 0, -ENODATA if they lie past the end, or
 * -errno of pread(2). Retries EINTR and short reads. Also retries storage errors that may pass
 * (EIO, time-outs, lost connections), after growing pauses. A stale handle is opened again by
 * its path, if the same file is there (see below).
 */
int source_read(const struct source *source, void *buf, size_t len, uint64_t offset);

/* The same; `fault` says what failed, and where. */
int source_read_fault(const struct source *source, void *buf, size_t len, uint64_t offset,
                      struct fault *fault);

/*
 * The same, but from the page cache only: -EAGAIN if a device would have to be read (or if the
 * filesystem can't say). Never waits.
 */
int source_read_cached(const struct source *source, void *buf, size_t len, uint64_t offset);

/* As source_read, into several buffers that are consecutive in the file. Modifies `iov`. */
int source_readv(const struct source *source, struct iovec *iov, int count, uint64_t offset);

/*
 * How many tries to read storage have failed in this process, also if a later one succeeded.
 * Where it grew during a read, the bytes that came are in doubt: storage that fails may return
 * wrong bytes, too.
 */
uint64_t source_failed_tries(void);

/*
 * Requests that this process sent to storage of other nodes: openings of files, and reads that
 * the page cache could not answer; and the bytes that came. The storage's client may cut a long
 * read into several requests, or read ahead.
 */
struct source_requests {
    uint64_t count, bytes;
};
struct source_requests source_requests(void);

/* Add the requests of a child that has ended. */
void source_add_requests(struct source_requests of_child);

/*
 * A source may bring its bytes from far away as they are wanted, and keep them here. What was
 * not brought yet reads as zeros in its mapping. A plain file has all of its mapping, and keeps
 * nothing.
 */

/* Is the whole range in the mapping? Never waits. */
bool source_has(const struct source *source, uint64_t offset, uint64_t len);

/* Bring the range: 0, or why it never will be there (source_read still works). */
int source_bring(const struct source *source, uint64_t offset, uint64_t len);

/*
 * Does the source keep on this node what was read? Then nobody else needs to. It is local as
 * well as soon as it has everything, and from then on reads nothing from the file.
 */
bool source_keeps(const struct source *source);

/*
 * The regular file of this node with all bytes of the source, which begin at *ret_start: its
 * own file, or its copy. Owned by the source. -1: there is none, or some bytes are missing yet.
 */
int source_local_fd(const struct source *source, uint64_t *ret_start);

/*
 * When the unpacking that readers wait for last made progress (CLOCK_MONOTONIC); 0: they wait
 * for storage alone.
 */
uint64_t source_progress_ns(const struct source *source);

/*
 * The future use of a range. Without effect on memory and, but for SOURCE_WRONG, on a source
 * that keeps a copy.
 */
enum source_advice {
    /* All of the file is read at random: no read-ahead. Without effect on a mapped source. */
    SOURCE_AT_RANDOM,
    SOURCE_DROP, /* the caller keeps the data: the page cache may drop each page in it */
    SOURCE_SOON, /* it will be read soon: let the page cache fetch it meanwhile */
    /*
     * Bytes that were read of it do not have its sum: none may stay in the page cache, and
     * a source that keeps a copy reads it from storage again, which may take long.
     */
    SOURCE_WRONG,
};
void source_advise(const struct source *source, enum source_advice advice, uint64_t offset,
                   uint64_t len);

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
 * XXH3-64 of the size and of samples of the content (first and last 64 KB and 16 more places
 * of 4 KB), by which a saved index recognizes its archive. Several files add a sample
 * each.
 */
int source_fingerprint(const struct source *source, uint64_t *ret_fingerprint);

/*
 * XXH3-64 of the first and the last bytes of a file, which differ between any two archives that
 * were packed. source_fingerprint would read twenty times as much of each of a thousand files.
 */
int source_sample(const struct source *file, uint64_t *ret_sample);

#endif
