/*
 * Measures how fast a device collects samples of page-locked archives itself, how much of it
 * has to work on that, and how fast a thread of the host copies the same samples.
 */
#ifndef ONEPOT_MEASURE_H
#define ONEPOT_MEASURE_H

#include "dataset.h"
#include "device.h"

#define MEASURE_WIDTHS 7u
extern const uint32_t measure_widths[MEASURE_WIDTHS];

struct measure_result {
    uint64_t device_rate;           /* bytes a second */
    uint64_t thread_rate;           /* of one thread */
    uint32_t width;                 /* for `gather`: the least that is as fast as any */
    uint64_t rates[MEASURE_WIDTHS]; /* of each of measure_widths */
};

/* `bases`: see locked_bases. Takes some milliseconds. -ENOTSUP: there is nothing to gather, or
 * the device can't do it; -ENOMEM; -EIO. */
int measure_gathering(struct onepot_device *device, const uint64_t *bases,
                      const struct onepot_archive *archive, struct onepot_error *error,
                      struct measure_result *ret);

/*
 * Is the device faster than so many threads, whose batches then go over the link at `peak` at
 * most? Nearly as fast is enough, because it needs no CPU.
 */
bool measure_device_wins(const struct measure_result *result, uint64_t peak, uint32_t threads);

#endif
