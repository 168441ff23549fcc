/*
 * The buffer of a window without a mapping grows to the longest piece that was asked for.
 */
#include "source_window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
    bool goes_on = offset >= w->offset && offset - w->offset < w->len;
    size_t skip = goes_on ? (size_t)(offset - w->offset) : w->len, kept = w->len - skip;
    memmove(w->buf, w->buf + skip, kept);
    w->offset = offset;
    w->len = kept;
    if (fill > w->capacity) {
        uint8_t *larger = realloc(w->buf, fill);
        if (!larger)
            return -ENOMEM;
        w->buf = larger;
        w->capacity = fill;
    }
    int r = fill > kept ? source_read(w->source, w->buf + kept, fill - kept, offset + kept) : 0;
    if (r == 0)
        w->len = fill;
    return r;
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
