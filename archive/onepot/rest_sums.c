/*
 * Only one hash is open at a time: it is finished when the next byte belongs to another window.
 */
#include "rest_sums.h"

#include <errno.h>
#include <stdlib.h>

#include <xxhash.h>

#include "index.h"
#include "numbers.h"

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
    vector_free(&rest->sums);
}

static int rest_sums_end_window(struct rest_sums *rest)
{
    int r = vector_push(&rest->sums, XXH3_64bits_digest(rest->state));
    XXH3_64bits_reset(rest->state);
    return r;
}

int rest_sums_add(struct rest_sums *rest, const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    int r = 0;
    while (r == 0 && len > 0) {
        uint64_t room = INDEX_WINDOW_BYTES - rest->offset % INDEX_WINDOW_BYTES;
        size_t n = (size_t)min_u64(len, room);
        if (p)
            XXH3_64bits_update(rest->state, p, n);
        p = p ? p + n : NULL;
        len -= n;
        rest->offset += n;
        if (n == room)
            r = rest_sums_end_window(rest);
    }
    return r;
}

int rest_sums_end(struct rest_sums *rest)
{
    return rest->offset % INDEX_WINDOW_BYTES ? rest_sums_end_window(rest) : 0;
}
