/*
 * What pot_open has its child do, for tests that run a back end without it: index a source,
 * and write the index to a descriptor.
 */
#ifndef ONEPOT_INDEX_JOB_H
#define ONEPOT_INDEX_JOB_H

#include "backend.h"
#include "builder.h"
#include "sandbox.h"
#include "source.h"

struct index_job {
    const struct backend *backend;
    enum format format;
    struct source *source;
    int fd;
    uint64_t *image_bytes; /* shared with the child */
};

/* For sandbox_run; `arg` is a struct index_job. */
static inline int index_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct index_job *job = arg;
    struct builder *builder;
    struct builder_header header = {.format = job->format,
                                    .archive_bytes = source_size(job->source)};
    int r = builder_new(&builder);
    if (r < 0)
        return r;
    builder_set_archive_size(builder, header.archive_bytes);
    r = job->backend->index(job->source, builder, &header, progress, fault);
    if (r == 0)
        r = builder_write(builder, &header, job->fd, 0, fault, job->image_bytes);
    builder_free(builder);
    return r;
}

#endif
