/* For block_scan.c and the kinds of blocks. */
#ifndef ONEPOT_BLOCK_SCAN_PRIVATE_H
#define ONEPOT_BLOCK_SCAN_PRIVATE_H

#include "block_scan.h"

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

struct scan_kind {
    const char *name;
    enum codec codec;
    size_t state_bytes;
    int (*begin)(struct block_scan *scan, struct fault *fault);
    /* As block_scan_next. At the end: no block, and is_last. */
    int (*next)(struct block_scan *scan, struct stream_buffer *buffer, struct fault *fault,
                struct stream_part *ret_part);
    void (*end)(struct block_scan *scan); /* frees the state's members */
};
extern const struct scan_kind scan_kind_bzip2, scan_kind_gzip, scan_kind_xz;

struct block_scan {
    const struct scan_kind *kind;
    void *state; /* of the kind */
    struct source *source;
    const uint8_t *map; /* NULL: it is read */
    struct helpers *helpers;
    uint64_t start, end; /* what was asked for */
    uint64_t offset;     /* how far it was used */
    size_t blocks;       /* see block_scan_count */
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
