/*
 * Only one hash is open at a time: it is finished when the next byte belongs to another window.
 */
#include "rest_sums.h"

#include <errno.h>
#include <stdlib.h>

#include <xxhash.h>

#include "index.h"

int rest_sums_init(struct rest_sums *rest)
{
    *rest = (struct rest_sums){.state = XXH3_createState()};
    if (!rest->state)
        return -ENOMEM;
    XXH3_64bits_reset(rest->state);
    return 0;
}

void rest_sums_free(struct rest_sums *rest)
{
    XXH3_freeState(rest->state);
    free(rest->sums);
    *rest = (struct rest_sums){0};
}

static int end_window(struct rest_sums *rest)
{
    if (rest->count == rest->capacity) {
        size_t capacity = rest->capacity + rest->capacity / 2 + 64;
        uint64_t *sums = reallocarray(rest->sums, capacity, sizeof(*sums));
        if (!sums)
            return -ENOMEM;
        rest->sums = sums;
        rest->capacity = capacity;
    }
    rest->sums[rest->count++] = XXH3_64bits_digest(rest->state);
    XXH3_64bits_reset(rest->state);
    return 0;
}

/* How many of `len` bytes are in the current window. */
static size_t in_window(const struct rest_sums *rest, uint64_t len)
{
    uint64_t room = INDEX_WINDOW_BYTES - rest->offset % INDEX_WINDOW_BYTES;
    return (size_t)(len < room ? len : room);
}

static int advance(struct rest_sums *rest, size_t len)
{
    rest->offset += len;
    return rest->offset % INDEX_WINDOW_BYTES ? 0 : end_window(rest);
}

int rest_sums_add(struct rest_sums *rest, const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    int r = 0;
    while (r == 0 && len > 0) {
        size_t n = in_window(rest, len);
        XXH3_64bits_update(rest->state, p, n);
        p += n;
        len -= n;
        r = advance(rest, n);
    }
    return r;
}

int rest_sums_skip(struct rest_sums *rest, uint64_t len)
{
    int r = 0;
    while (r == 0 && len > 0) {
        size_t n = in_window(rest, len);
        len -= n;
        r = advance(rest, n);
    }
    return r;
}

int rest_sums_end(struct rest_sums *rest)
{
    return rest->offset % INDEX_WINDOW_BYTES ? end_window(rest) : 0;
}
