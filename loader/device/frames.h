/*
 * Compressed blocks that a device decompresses for a batch. They are kept as they are behind
 * the tables of a slab, in the memory that the device's copies read. fill.h has what makes
 * them.
 */
#ifndef ONEPOT_FRAMES_H
#define ONEPOT_FRAMES_H

#include "device_type.h"

enum frames_sample {
    FRAMES_HOST, /* the host fills it, */
    FRAMES_DEVICE,
    FRAMES_REFUSED, /* or has to, since the device didn't */
};

/* Of a slab. */
struct frames {
    struct device_work work;
    uint8_t *samples; /* [samples]: enum frames_sample */
};

/* Is sample i the device's? */
static inline bool frames_has(const struct frames *frames, uint64_t i)
{
    return frames->samples[i] == FRAMES_DEVICE;
}

#endif
