/*
 * Each call goes on with the slice's start added. What is asked has been checked against the
 * slice's length before it comes here (source.c).
 */
#include "source_slice.h"

#include <errno.h>
#include <stdlib.h>

#include "source_ops.h"

struct source_slice {
    struct source source;
    uint64_t offset; /* in the source that it wraps */
};

static uint64_t slice_offset(const struct source *source)
{
    return ((const struct source_slice *)source)->offset;
}

static int slice_read(const struct source *source, struct source_cursor *cursor)
{
    cursor->offset += slice_offset(source);
    int r = source_read_on(source->wrapped, cursor);
    cursor->offset -= slice_offset(source);
    return r;
}

static int slice_read_cached(const struct source *source, void *buf, size_t len,
                             uint64_t offset)
{
    return source_read_cached(source->wrapped, buf, len, offset + slice_offset(source));
}

static const uint8_t *slice_map(const struct source *source)
{
    const uint8_t *map = source->size_bytes ? source_map(source->wrapped) : NULL;
    return map ? map + slice_offset(source) : NULL;
}

static int slice_place(const struct source *source, uint64_t offset, uint64_t len,
                       uint8_t *address)
{
    return source_place(source->wrapped, offset + slice_offset(source), len, address);
}

static int slice_bring(const struct source *source, uint64_t offset, uint64_t len,
                       bool may_wait)
{
    uint64_t at = offset + slice_offset(source);
    if (may_wait)
        return source_bring(source->wrapped, at, len);
    return source_has(source->wrapped, at, len) ? 0 : -EAGAIN;
}

static void slice_advise(const struct source *source, enum source_advice advice,
                         uint64_t offset, uint64_t len)
{
    source_advise(source->wrapped, advice, offset + slice_offset(source), len);
}

/* It has nothing of its own. */
static bool slice_close(struct source *source)
{
    (void)source;
    return true;
}

static const struct source_ops slice_ops = {
    .read = slice_read,
    .read_cached = slice_read_cached,
    .map = slice_map,
    .place = slice_place,
    .bring = slice_bring,
    .advise = slice_advise,
    .close = slice_close,
};

int source_slice(struct source **source, uint64_t offset, uint64_t length)
{
    uint64_t size = (*source)->size_bytes;
    if (offset > size || length > size - offset)
        return -ENODATA;
    struct source_slice *slice = calloc(1, sizeof(*slice));
    if (!slice)
        return -ENOMEM;
    source_wrap(&slice->source, &slice_ops, source);
    slice->offset = offset;
    slice->source.size_bytes = length;
    slice->source.start += offset;
    slice->source.identity.slice_start = slice->source.start;
    slice->source.identity.slice_bytes = length;
    return 0;
}

void source_unslice(struct source **source)
{
    struct source *slice = *source;
    *source = slice->wrapped;
    free(slice);
}
