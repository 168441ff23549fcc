/*
 * The registry of streams. ONEPOT_STREAMS comes from archive/meson.build: STREAM(gzip) and so
 * on, or nothing.
 */
#include "stream.h"

#include <string.h>

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

int stream_scan_new(struct source *source, const char *compression, struct helpers *helpers,
                    struct stream_scan **ret_scan)
{
    for (size_t i = 0; stream_registry[i]; i++)
        if (strcmp(stream_registry[i]->name, compression) == 0)
            return stream_registry[i]->scan_new(stream_registry[i], source, helpers, ret_scan);
    return -ENOTSUP;
}

void stream_scan_free(struct stream_scan *scan)
{
    if (scan)
        scan->stream->scan_free(scan);
}
