#include "block_scan.h"

#include <errno.h>
#include <stdlib.h>

#include <xxhash.h>

#include "numbers.h"

int scan_damaged(const struct block_scan *s, struct fault *fault, uint64_t offset,
                 const char *what)
{
    return fault_set(fault, -EUCLEAN, NULL, offset, "damaged %s data: %s", s->scan.stream->name,
                     what);
}

int scan_read(const struct block_scan *s, void *buf, size_t len, uint64_t offset,
              struct fault *fault)
{
    return source_read_fault(s->scan.source, buf, len, offset, fault);
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
                  .codec = s->scan.stream->codec,
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

int block_scan_new(const struct stream *stream, struct source *source, struct helpers *helpers,
                   struct stream_scan **ret_scan)
{
    struct block_scan *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->scan = (struct stream_scan){.stream = stream, .source = source};
    s->kind = stream->kind;
    s->map = source_map(source);
    s->helpers = helpers;
    /* One for each thread and for the caller, and one that waits. */
    s->jobs_most = helpers ? (unsigned)min_u64(helpers_threads(helpers) + 2, SCAN_JOBS_MAX) : 1;
    s->state = calloc(1, s->kind->state_bytes);
    if (!s->state) {
        free(s);
        return -ENOMEM;
    }
    *ret_scan = &s->scan;
    return 0;
}

static struct block_scan *block_scan_of(struct stream_scan *scan)
{
    return (struct block_scan *)scan;
}

void block_scan_free(struct stream_scan *scan)
{
    struct block_scan *s = block_scan_of(scan);
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

int block_scan_begin(struct stream_scan *scan, uint64_t offset, uint64_t end,
                     struct fault *fault)
{
    struct block_scan *s = block_scan_of(scan);
    while (s->jobs_count > 0)
        scan_job_drop(s);
    scan->start = scan->offset = offset;
    scan->end = min_u64(end, source_size(scan->source));
    return offset <= scan->end ? s->kind->begin(s, fault) : -EUCLEAN;
}

int block_scan_next(struct stream_scan *scan, struct stream_buffer *buffer, struct fault *fault,
                    struct stream_part *ret_part)
{
    struct block_scan *s = block_scan_of(scan);
    *ret_part = (struct stream_part){0};
    return s->kind->next(s, buffer, fault, ret_part);
}
