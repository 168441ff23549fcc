#include "block_scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "block_scan_private.h"
#include "numbers.h"

int scan_damaged(const struct block_scan *s, struct fault *fault, uint64_t offset,
                 const char *what)
{
    return fault_set(fault, -EUCLEAN, NULL, offset, "damaged %s data: %s", s->kind->name, what);
}

int scan_read(const struct block_scan *s, void *buf, size_t len, uint64_t offset,
              struct fault *fault)
{
    return source_read_fault(s->source, buf, len, offset, fault);
}

/* ---- jobs ---- */

static void scan_job_run(struct helper_task *task)
{
    struct scan_job *job = (struct scan_job *)task;
    job->err = job->unpack(job);
    if (job->err == 0)
        job->sum = XXH3_64bits(job->out.at, job->len);
}

struct scan_job *scan_job_new(struct block_scan *s)
{
    return s->jobs_count < s->jobs_most ? scan_job_at(s, s->jobs_count++) : NULL;
}

int scan_job_begin(struct block_scan *s, struct scan_job *job, struct fault *fault)
{
    job->packed = s->map ? s->map + job->offset : NULL;
    if (!s->map) {
        int r = stream_buffer_room(&job->in, job->packed_len);
        if (r == 0)
            r = scan_read(s, job->in.at, job->packed_len, job->offset, fault);
        if (r < 0)
            return r;
        job->packed = job->in.at;
    }
    job->task.run = scan_job_run;
    helpers_begin(s->helpers, &job->task);
    return 0;
}

int scan_job_finish(struct block_scan *s)
{
    struct scan_job *job = scan_job_at(s, 0);
    helpers_finish(s->helpers, &job->task);
    return job->err;
}

static void scan_job_forget(struct block_scan *s)
{
    s->first_job = (s->first_job + 1) % SCAN_JOBS_MAX;
    s->jobs_count--;
}

void scan_job_give(struct block_scan *s, struct stream_buffer *buffer,
                   struct stream_part *ret_part)
{
    struct scan_job *job = scan_job_at(s, 0);
    *ret_part = (struct stream_part){
        .block = {.source_offset = job->offset,
                  .packed_bytes = job->packed_len,
                  .block_bytes = (uint32_t)job->len,
                  .codec = s->kind->codec,
                  .point = &ret_part->point},
        .point = {.sum = job->sum, .first_bit = job->first_bit, .last_bits = job->last_bits},
    };
    struct stream_buffer spare = *buffer;
    *buffer = job->out;
    job->out = spare;
    scan_job_forget(s);
}

void scan_job_drop(struct block_scan *s)
{
    helpers_cancel(s->helpers, &scan_job_at(s, 0)->task);
    scan_job_forget(s);
}

/* ---- the scan ---- */

static const struct scan_kind *scan_kind_of(const char *compression)
{
    const struct scan_kind *const kinds[] = {
#ifdef HAVE_BZ2
        &scan_kind_bzip2,
#endif
#ifdef HAVE_LIBDEFLATE
        &scan_kind_gzip,
#endif
#ifdef HAVE_XZ
        &scan_kind_xz,
#endif
        NULL,
    };
    for (size_t i = 0; kinds[i]; i++)
        if (strcmp(kinds[i]->name, compression) == 0)
            return kinds[i];
    return NULL;
}

int block_scan_new(struct source *source, const char *compression, struct helpers *helpers,
                   struct block_scan **ret_scan)
{
    const struct scan_kind *kind = scan_kind_of(compression);
    if (!kind)
        return -ENOTSUP;
    struct block_scan *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->kind = kind;
    s->source = source;
    s->map = source_map(source);
    s->helpers = helpers;
    /* One for each thread and for the caller, and one that waits. */
    s->jobs_most = helpers ? (unsigned)min_u64(helpers_threads(helpers) + 2, SCAN_JOBS_MAX) : 1;
    s->state = calloc(1, kind->state_bytes);
    if (!s->state) {
        free(s);
        return -ENOMEM;
    }
    *ret_scan = s;
    return 0;
}

void block_scan_free(struct block_scan *s)
{
    if (!s)
        return;
    while (s->jobs_count > 0)
        scan_job_drop(s);
    for (size_t i = 0; i < SCAN_JOBS_MAX; i++) {
        free(s->jobs[i].in.at);
        free(s->jobs[i].work.at);
        free(s->jobs[i].out.at);
    }
    s->kind->end(s);
    free(s->state);
    free(s);
}

int block_scan_begin(struct block_scan *s, uint64_t offset, uint64_t end, struct fault *fault)
{
    while (s->jobs_count > 0)
        scan_job_drop(s);
    s->start = s->offset = offset;
    s->end = min_u64(end, source_size(s->source));
    return offset <= s->end ? s->kind->begin(s, fault) : -EUCLEAN;
}

size_t block_scan_count(const struct block_scan *s)
{
    return s->blocks;
}

int block_scan_next(struct block_scan *s, struct stream_buffer *buffer, struct fault *fault,
                    struct stream_part *ret_part)
{
    *ret_part = (struct stream_part){0};
    return s->kind->next(s, buffer, fault, ret_part);
}

uint64_t block_scan_offset(const struct block_scan *s)
{
    return s->offset;
}
