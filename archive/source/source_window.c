/*
 * The buffer of a window without a mapping grows to the longest piece that was asked for.
 */
#include "source_window.h"

#include <errno.h>
#include <stdlib.h>

#include "numbers.h"

int source_window_open(struct source_window *w, struct source *source, size_t ahead_bytes)
{
    *w = (struct source_window){
        .source = source, .map = source_map(source), .ahead_bytes = ahead_bytes};
    if (w->map)
        return 0;
    w->capacity = ahead_bytes;
    w->buf = malloc(ahead_bytes);
    return w->buf ? 0 : -ENOMEM;
}

void source_window_close(struct source_window *w)
{
    free(w->buf);
    w->buf = NULL;
}

static int window_fill(struct source_window *w, uint64_t offset, size_t len)
{
    uint64_t left = source_size(w->source) - offset;
    size_t fill = (size_t)min_u64(max_u64(w->ahead_bytes, len), left);
    w->len = 0;
    if (fill > w->capacity) { /* its bytes are not wanted any more */
        free(w->buf);
        w->buf = malloc(fill);
        w->capacity = w->buf ? fill : 0;
        if (!w->buf)
            return -ENOMEM;
    }
    int r = source_read(w->source, w->buf, fill, offset);
    if (r < 0)
        return r;
    w->offset = offset;
    w->len = fill;
    return 0;
}

int source_window_get(struct source_window *w, uint64_t offset, size_t len,
                      const uint8_t **ret_bytes, size_t *ret_len)
{
    uint64_t size = source_size(w->source);
    len = offset < size ? (size_t)min_u64(len, size - offset) : 0;
    int r = 0;
    bool is_here = w->map || (offset >= w->offset && offset + len <= w->offset + w->len);
    if (len > 0 && !is_here)
        r = window_fill(w, offset, len);
    if (r < 0)
        return r;
    if (len > 0)
        *ret_bytes = w->map ? w->map + offset : w->buf + (offset - w->offset);
    *ret_len = len;
    return 0;
}
