/*
 * The ends of archives: nothing before the end shows that something was cut off there. Back
 * ends know what to look for.
 */
#include "verify_private.h"

#include <errno.h>

#include "backend.h"

static int verify_end_add_part(void *ctx, uint64_t offset, uint32_t number, uint64_t bytes)
{
    struct verification *v = ctx;
    atomic_fetch_add(&v->progress.bytes_total, bytes);
    return worklist_add(v->list, (struct work_item){offset, VERIFY_A_PART, number});
}

void verify_part(struct verification *v, uint64_t offset, uint32_t number, uint8_t *buf)
{
    v->pot->backend->trailer->check_part(&v->end, offset, number, buf, &v->progress.bytes_done);
}

int verify_lost_end(struct verification *v,
                    void (*report)(void *ctx, const struct fault *fault))
{
    v->end = (struct archive_end){
        .source = v->pot->source,
        .path = v->pot->path,
        .compression = v->pot->compression,
        .info = index_info(v->index),
        .data_end = v->data_end,
        .stop = v->options->stop,
        .report = report,
        .add_part = verify_end_add_part,
        .ctx = v,
    };
    int r = 0;
    for (size_t i = 0; r == 0 && v->options->trailer_is_good && backend_registry[i]; i++) {
        const struct backend_trailer *trailer = backend_registry[i]->trailer;
        const struct backend *counts_as = backend_registry[i];
        if (trailer && trailer->without_index)
            counts_as = trailer->without_index;
        if (trailer && trailer->check_end && counts_as == v->pot->backend)
            r = trailer->check_end(&v->end);
    }
    return r;
}

/* Does any format recognize the remains of an index that it no longer finds? */
static int verify_lost_index(const struct source *source, struct fault *fault)
{
    int r = 0;
    for (size_t i = 0; r == 0 && backend_registry[i]; i++) {
        const struct backend_trailer *trailer = backend_registry[i]->trailer;
        if (trailer && trailer->check_lost)
            r = trailer->check_lost(source, fault);
    }
    return r;
}

int verify_trailer(const char *path, uint64_t offset, struct fault *fault)
{
    struct source *source;
    const struct backend *backend;
    struct embedded_index where;
    struct container container;
    int r = pot_open_source(path, offset, NULL, &container, &source);
    if (r < 0)
        return 0; /* pot_open reports that */
    struct index *index = NULL;
    r = backend_find(source, NULL, &backend, NULL);
    if (r == 0)
        r = backend_find_index(backend, source, fault, &where);
    if (r == 0)
        r = index_open(source, where.offset, where.length, fault, &index);
    index_close(index);
    if (r == -ENOENT)
        r = verify_lost_index(source, fault);
    if (r == -ENOMSG)
        r = 0;
    source_close(source);
    return r < 0 ? fault_set(fault, r, NULL, FAULT_NO_OFFSET, "its trailer can't be read: %s",
                             fault_errno(r))
                 : 0;
}
