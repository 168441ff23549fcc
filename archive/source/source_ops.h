/*
 * For those who make sources. A source does what its table says; an operation that it leaves
 * out goes to the source it wraps. So a source that retries, or one that keeps a copy, is a
 * wrapper that has only its own operations:
 *
 *     staged (cache/stage)  ->  retrying (source_retry.c)  ->  file (source.c)
 *
 * The innermost source has all operations; it is a file, or several sources behind each other
 * (source_concat.h), each with its own wrappers. Ranges lie within the source; what an
 * operation changes in it must be safe for any number of threads.
 */
#ifndef ONEPOT_SOURCE_OPS_H
#define ONEPOT_SOURCE_OPS_H

#include <stdatomic.h>

#include "source.h"

/* The buffers that a read has still to fill, in order, and where their bytes lie. */
struct source_cursor {
    struct iovec *iov;
    int count;
    uint64_t offset;
};

/* `n` more bytes were read. Empty buffers are passed, so a count of 0 means the end. */
void source_cursor_step(struct source_cursor *cursor, size_t n);

/* The present state of a source: see the functions of these names. */
struct source_state {
    bool is_local, is_memory, keeps;
    int kept_fd; /* of one that keeps: the file with all of its bytes; -1: not all are there */
    uint64_t progress_ns;
};

struct source_ops {
    /* Read all that the cursor asks for: 0 or -errno; the cursor says how far it came. */
    int (*read)(const struct source *source, struct source_cursor *cursor);
    /* The same of one buffer, without waiting: -EAGAIN if it would have to. */
    int (*read_cached)(const struct source *source, void *buf, size_t len, uint64_t offset);
    const uint8_t *(*map)(const struct source *source, uint64_t offset, uint64_t len);
    /* Bring the range into the mapping. Unless `may_wait`, -EAGAIN if it is not there yet. */
    int (*bring)(const struct source *source, uint64_t offset, uint64_t len, bool may_wait);
    bool (*is_whole)(const struct source *source);
    /* source_range_is_whole. NULL: as is_whole, if that is this source's own. */
    bool (*range_is_whole)(const struct source *source, uint64_t offset, uint64_t len);
    void (*state)(const struct source *source, struct source_state *ret_state);
    void (*advise)(const struct source *source, enum source_advice advice, uint64_t offset,
                   uint64_t len);
    /* source_identity_now of one file. NULL: its descriptor tells. */
    int (*identity_now)(const struct source *source, struct source_identity *ret_identity);
    /* source_member and source_at. NULL unless the source is made of several. */
    const struct source *(*member)(const struct source *source, size_t i);
    const struct source *(*at)(const struct source *source, uint64_t *offset);
    /*
     * Release this source's resources. Frees neither the structure nor the wrapped source.
     * False: a thread is stuck in a read, so all of them must stay. NULL: it has none.
     */
    bool (*close)(struct source *source);
};

/* The first member of each kind of source. */
struct source {
    const struct source_ops *ops;
    struct source *wrapped; /* closed with it; NULL: none */
    uint64_t begin;         /* this source's first byte in `wrapped`: 0, but for a slice */
    char *name;             /* of the innermost source, which owns it */
    uint64_t size_bytes;
    uint64_t start; /* in the file behind `fd` */
    struct source_identity identity;
    int fd;
    bool is_by_link; /* the path it was opened by is a symbolic link */
    _Atomic bool was_cut;
};

/* Begin a wrapper (all zero) around *source, and put it in its place. */
void source_wrap(struct source *wrapper, const struct source_ops *ops, struct source **source);

/* Read the rest of the cursor's request. */
int source_read_on(const struct source *source, struct source_cursor *cursor);

#endif
