/*
 * Elapsed time: CLOCK_MONOTONIC, which nobody sets and which stands still while the machine
 * sleeps. Use it for durations and deadlines, never for dates. Safe in a signal handler.
 */
#ifndef ONEPOT_CLOCK_H
#define ONEPOT_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_now_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

static inline struct timespec clock_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / UINT64_C(1000000000)),
                             .tv_nsec = (long)(ns % UINT64_C(1000000000))};
}

static inline uint64_t now_ns(void)
{
    return clock_now_ns(CLOCK_MONOTONIC);
}

static inline uint64_t now_ms(void)
{
    return clock_now_ns(CLOCK_MONOTONIC) / 1000000;
}

/* The time of a clock in so many milliseconds, for functions that wait until then. */
static inline struct timespec clock_in_ms(clockid_t clock, long ms)
{
    return clock_timespec(clock_now_ns(clock) + (uint64_t)ms * UINT64_C(1000000));
}

#endif
