/*
 * The registry of streams. ONEPOT_STREAMS comes from archive/meson.build: STREAM(gzip) and so
 * on, or nothing.
 */
#include "stream.h"

#include <string.h>

#include "numbers.h"

#define STREAM(name) extern const struct stream stream_##name;
ONEPOT_STREAMS
#undef STREAM

#define STREAM(name) &stream_##name,
static const struct stream *const stream_registry[] = {ONEPOT_STREAMS NULL};

const struct stream *stream_of_codec(enum codec codec)
{
    for (size_t i = 0; stream_registry[i]; i++)
        if (stream_registry[i]->codec == codec)
            return stream_registry[i];
    return NULL;
}

static const struct stream *stream_of_name(const char *compression)
{
    for (size_t i = 0; stream_registry[i]; i++)
        if (strcmp(stream_registry[i]->name, compression) == 0)
            return stream_registry[i];
    return NULL;
}

int stream_scan_new(struct source *source, const char *compression, struct helpers *helpers,
                    struct stream_scan **ret_scan)
{
    const struct stream *stream = stream_of_name(compression);
    if (!stream)
        return -ENOTSUP;
    struct stream_scan *scan = calloc(1, stream->scan_bytes);
    if (!scan)
        return -ENOMEM;
    *scan = (struct stream_scan){
        .stream = stream, .name = stream->name, .source = source, .helpers = helpers};
    *ret_scan = scan;
    return 0;
}

int stream_scan_begin(struct stream_scan *scan, uint64_t offset, uint64_t end,
                      struct fault *fault)
{
    scan->start = scan->offset = offset;
    scan->end = min_u64(end, source_size(scan->source));
    return offset <= scan->end ? scan->stream->begin(scan, fault) : -EUCLEAN;
}

int stream_scan_next(struct stream_scan *scan, struct stream_buffer *buffer,
                     struct fault *fault, struct stream_part *ret_part)
{
    *ret_part = (struct stream_part){0};
    return scan->stream->next(scan, buffer, fault, ret_part);
}

void stream_scan_free(struct stream_scan *scan)
{
    if (!scan)
        return;
    scan->stream->end(scan);
    free(scan);
}
