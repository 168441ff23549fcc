/*
 * Elapsed time: CLOCK_MONOTONIC, which nobody sets and which stands still while the machine
 * sleeps. Use it for durations and deadlines, never for dates. Safe in a signal handler.
 */
#ifndef ONEPOT_CLOCK_H
#define ONEPOT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ms(void)
{
    return now_ns() / 1000000;
}

/* The time of a clock in so many milliseconds, for functions that wait until then. */
static inline struct timespec clock_in_ms(clockid_t clock, long ms)
{
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_sec += (t.tv_nsec + ms * 1000000L) / 1000000000L;
    t.tv_nsec = (t.tv_nsec + ms * 1000000L) % 1000000000L;
    return t;
}

#endif
