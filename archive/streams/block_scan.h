/*
 * Reads files of blocks that were compressed one by one, and tells where each lies: bzip2, xz
 * as `xz -T` writes it, gzip. Each block is a part (CODEC_BZIP2, CODEC_XZ_BLOCK; CODEC_GZIP of
 * a whole member, CODEC_DEFLATE_POINT of a part of a longer one). A file may be several
 * streams, one behind the other.
 *
 * Blocks are decompressed ahead by the helpers; all their sums are compared.
 */
#ifndef ONEPOT_BLOCK_SCAN_H
#define ONEPOT_BLOCK_SCAN_H

#include "stream.h"

#define BLOCK_SCAN_MAX (64u << 20) /* a block that is longer can't be used */

struct block_scan;

/* A block that is decompressed, now or soon. */
struct scan_job {
    struct helper_task task;
    int (*unpack)(struct scan_job *job); /* sets len; in any thread */
    uint64_t offset;                     /* of its first byte in the source */
    uint32_t packed_len;
    unsigned first_bit, last_bits;
    size_t expected_len; /* of its content. bzip2: a guess */
    unsigned check;      /* xz: the kind of its sum */

    const uint8_t *packed;
    struct stream_buffer in; /* the packed bytes, without a map */
    struct stream_buffer work, out;
    size_t len; /* of the content, in `out` */
    uint64_t sum;
    int err;
};

#define SCAN_JOBS_MAX 18u

/* `kind` of struct stream. */
struct scan_kind {
    size_t state_bytes;
    int (*begin)(struct block_scan *scan, struct fault *fault);
    /* At the end: no block, and is_last. */
    int (*next)(struct block_scan *scan, struct stream_buffer *buffer, struct fault *fault,
                struct stream_part *ret_part);
    void (*end)(struct block_scan *scan); /* frees the state's members */
};

/* Functions for the table of a stream of blocks. */
int block_scan_new(const struct stream *stream, struct source *source, struct helpers *helpers,
                   struct stream_scan **ret_scan);
void block_scan_free(struct stream_scan *scan);
int block_scan_begin(struct stream_scan *scan, uint64_t offset, uint64_t end,
                     struct fault *fault);
int block_scan_next(struct stream_scan *scan, struct stream_buffer *buffer, struct fault *fault,
                    struct stream_part *ret_part);
#define BLOCK_SCAN                                                                             \
    .scan_new = block_scan_new, .scan_free = block_scan_free, .begin = block_scan_begin,       \
    .next = block_scan_next

struct block_scan {
    struct stream_scan scan;
    const struct scan_kind *kind;
    void *state;        /* of the kind */
    const uint8_t *map; /* NULL: it is read */
    struct helpers *helpers;
    /* The jobs that were begun, in the order of the source. */
    struct scan_job jobs[SCAN_JOBS_MAX];
    unsigned first_job, jobs_count, jobs_most;
};

int scan_damaged(const struct block_scan *scan, struct fault *fault, uint64_t offset,
                 const char *what);
int scan_read(const struct block_scan *scan, void *buf, size_t len, uint64_t offset,
              struct fault *fault);

static inline struct scan_job *scan_job_at(struct block_scan *scan, unsigned i)
{
    return &scan->jobs[(scan->first_job + i) % SCAN_JOBS_MAX];
}

/* A job of which all but its own fields is set by the caller. NULL: enough were begun. */
struct scan_job *scan_job_new(struct block_scan *scan);
/* Begins it: reads its bytes, and leaves the rest to the helpers. */
int scan_job_begin(struct block_scan *scan, struct scan_job *job, struct fault *fault);
/* Waits for the first job, and returns its error. */
int scan_job_finish(struct block_scan *scan);
/* Gives the first job's content away, and forgets the job. */
void scan_job_give(struct block_scan *scan, struct stream_buffer *buffer,
                   struct stream_part *ret_part);
/* Forgets the first job. */
void scan_job_drop(struct block_scan *scan);

#endif
