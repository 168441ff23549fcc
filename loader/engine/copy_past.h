/*
 * A copy that leaves no copy in the CPU's caches: for slabs that nobody reads here, only a
 * device. A store past the caches does not first read the old bytes. Below 8 KB memcpy is
 * faster all the same; from 16 KB on it is slower (row `past` of bench/loader).
 */
#ifndef ONEPOT_COPY_PAST_H
#define ONEPOT_COPY_PAST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef COPY_PAST_LEAST /* bench/loader looks below it */
#define COPY_PAST_LEAST (16u << 10)
#endif

#ifdef __SSE2__
#include <emmintrin.h>

static inline void copy_past(void *to, const void *from, size_t len)
{
    uint8_t *t = to;
    const uint8_t *f = from;
    size_t head = -(uintptr_t)t % 16;
    if (len < COPY_PAST_LEAST) {
        memcpy(to, from, len);
        return;
    }
    memcpy(t, f, head);
    t += head, f += head, len -= head;
    for (; len >= 64; len -= 64, t += 64, f += 64) {
        _mm_prefetch((const char *)f + 512, _MM_HINT_NTA);
        for (unsigned i = 0; i < 64; i += 16)
            _mm_stream_si128((__m128i *)(void *)(t + i),
                             _mm_loadu_si128((const __m128i *)(const void *)(f + i)));
    }
    _mm_sfence();
    memcpy(t, f, len);
}
#else
static inline void copy_past(void *to, const void *from, size_t len)
{
    memcpy(to, from, len);
}
#endif

#endif
