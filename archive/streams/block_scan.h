/*
 * Reads files of blocks that were compressed one by one, and tells where each lies: bzip2, and
 * xz as `xz -T` writes it. Each block is a part (CODEC_BZIP2, CODEC_XZ_BLOCK). A file may be
 * several streams, one behind the other.
 *
 * Blocks are decompressed ahead by the helpers; all their sums are compared.
 */
#ifndef ONEPOT_BLOCK_SCAN_H
#define ONEPOT_BLOCK_SCAN_H

#include "stream.h"

#define BLOCK_SCAN_MAX (64u << 20) /* a block that is longer can't be used */

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

/* The jobs of a scan that were begun, in the order of the source. */
struct scan_jobs {
    const struct stream_scan *scan;
    const uint8_t *map; /* NULL: the source is read */
    unsigned first, count, most;
    struct scan_job at[SCAN_JOBS_MAX];
};

/* Drops what was begun before. */
void scan_jobs_begin(struct scan_jobs *jobs, const struct stream_scan *scan);
void scan_jobs_free(struct scan_jobs *jobs);

static inline struct scan_job *scan_job_at(struct scan_jobs *jobs, unsigned i)
{
    return &jobs->at[(jobs->first + i) % SCAN_JOBS_MAX];
}

/* A job of which all but its own fields is set by the caller. NULL: enough were begun. */
struct scan_job *scan_job_new(struct scan_jobs *jobs);
/* Begins it: reads its bytes, and leaves the rest to the helpers. */
int scan_job_begin(struct scan_jobs *jobs, struct scan_job *job, struct fault *fault);
/* Waits for a job, and returns its error. */
int scan_job_finish(struct scan_jobs *jobs, struct scan_job *job);
/* Gives the first job's content away, and forgets the job. */
void scan_job_give(struct scan_jobs *jobs, struct stream_buffer *buffer,
                   struct stream_part *ret_part);
/* Forgets the first job. */
void scan_job_drop(struct scan_jobs *jobs);

/* ---- for all kinds ---- */

int scan_damaged(const struct stream_scan *scan, struct fault *fault, uint64_t offset,
                 const char *what);

#endif
