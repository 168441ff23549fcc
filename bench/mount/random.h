/*
 * The generator behind the data sets and the reading order: SplitMix64, whose state is one
 * word, so that each file and each epoch has a stream of its own from a seed and a number.
 * Not cryptographic; its output does not compress.
 */
#ifndef ONEPOT_BENCH_RANDOM_H
#define ONEPOT_BENCH_RANDOM_H

#include <stdint.h>

struct random_stream {
    uint64_t state;
};

static inline uint64_t random_next(struct random_stream *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* A stream of its own for (seed, number): neighbours share no state. */
static inline struct random_stream random_stream_of(uint64_t seed, uint64_t number)
{
    struct random_stream r = {seed};
    uint64_t base = random_next(&r);
    r.state = base ^ (number * UINT64_C(0xd6e8feb86659fd93));
    r.state = random_next(&r);
    return r;
}

/* Uniform in [0, n), n > 0, by multiplication; the bias is below n / 2^32. */
static inline uint32_t random_below(struct random_stream *r, uint32_t n)
{
    return (uint32_t)(((random_next(r) >> 32) * n) >> 32);
}

/* Uniform in (0, 1]: safe under a logarithm. */
static inline double random_unit(struct random_stream *r)
{
    return (double)((random_next(r) >> 11) + 1) * 0x1.0p-53;
}

#endif
