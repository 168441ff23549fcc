/*
 * A slice has no operations: source.c adds where it begins on the way to the source with them.
 */
#include "source_slice.h"

#include <errno.h>
#include <stdlib.h>

#include "source_ops.h"

static const struct source_ops slice_ops = {0};

int source_slice(struct source **source, uint64_t offset, uint64_t length)
{
    uint64_t size = (*source)->size_bytes;
    if (offset > size || length > size - offset)
        return -ENODATA;
    struct source *slice = calloc(1, sizeof(*slice));
    if (!slice)
        return -ENOMEM;
    source_wrap(slice, &slice_ops, source);
    slice->begin = offset;
    slice->size_bytes = length;
    slice->start += offset;
    slice->identity.slice_start = slice->start;
    slice->identity.slice_bytes = length;
    return 0;
}

void source_unslice(struct source **source)
{
    struct source *slice = *source;
    *source = slice->wrapped;
    free(slice);
}
