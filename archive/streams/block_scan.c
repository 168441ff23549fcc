#include "block_scan.h"

#include <xxhash.h>

#include "numbers.h"

int scan_damaged(const struct stream_scan *s, struct fault *fault, uint64_t offset,
                 const char *what)
{
    return fault_set(fault, -EUCLEAN, NULL, offset, "damaged %s data: %s", s->name, what);
}

void scan_jobs_begin(struct scan_jobs *jobs, const struct stream_scan *scan)
{
    while (jobs->count > 0)
        scan_job_drop(jobs);
    jobs->scan = scan;
    jobs->map = source_map(scan->source);
    /* One job for each thread, one for the caller, and one that waits. */
    jobs->most = scan->helpers ? min_u32(helpers_threads(scan->helpers) + 2, SCAN_JOBS_MAX) : 1;
}

void scan_jobs_free(struct scan_jobs *jobs)
{
    while (jobs->count > 0)
        scan_job_drop(jobs);
    for (size_t i = 0; i < SCAN_JOBS_MAX; i++) {
        free(jobs->at[i].in.at);
        free(jobs->at[i].work.at);
        free(jobs->at[i].out.at);
    }
}

static void scan_job_run(struct helper_task *task)
{
    struct scan_job *job = (struct scan_job *)task;
    job->err = job->unpack(job);
    if (job->err == 0)
        job->sum = XXH3_64bits(job->out.at, job->len);
}

struct scan_job *scan_job_new(struct scan_jobs *jobs)
{
    return jobs->count < jobs->most ? scan_job_at(jobs, jobs->count++) : NULL;
}

int scan_job_begin(struct scan_jobs *jobs, struct scan_job *job, struct fault *fault)
{
    job->packed = jobs->map ? jobs->map + job->offset : NULL;
    if (!jobs->map) {
        int r = stream_buffer_room(&job->in, job->packed_len);
        if (r == 0)
            r = source_read_fault(jobs->scan->source, job->in.at, job->packed_len, job->offset,
                                  fault);
        if (r < 0)
            return r;
        job->packed = job->in.at;
    }
    job->task.run = scan_job_run;
    helpers_begin(jobs->scan->helpers, &job->task);
    return 0;
}

int scan_job_finish(struct scan_jobs *jobs, struct scan_job *job)
{
    helpers_finish(jobs->scan->helpers, &job->task);
    return job->err;
}

static void scan_job_forget(struct scan_jobs *jobs)
{
    jobs->first = (jobs->first + 1) % SCAN_JOBS_MAX;
    jobs->count--;
}

void scan_job_give(struct scan_jobs *jobs, struct stream_buffer *buffer,
                   struct stream_part *ret_part)
{
    struct scan_job *job = scan_job_at(jobs, 0);
    *ret_part = (struct stream_part){
        .block = {.source_offset = job->offset,
                  .packed_bytes = job->packed_len,
                  .block_bytes = (uint32_t)job->len,
                  .codec = jobs->scan->stream->codec,
                  .point = &ret_part->point},
        .point = {.sum = job->sum, .first_bit = job->first_bit, .last_bits = job->last_bits},
    };
    struct stream_buffer spare = *buffer;
    *buffer = job->out;
    job->out = spare;
    scan_job_forget(jobs);
}

void scan_job_drop(struct scan_jobs *jobs)
{
    helpers_cancel(jobs->scan->helpers, &scan_job_at(jobs, 0)->task);
    scan_job_forget(jobs);
}
