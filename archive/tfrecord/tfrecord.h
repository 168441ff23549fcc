/*
 * CRC-32C (Castagnoli), which TensorFlow's records are summed with: by the CPU's instruction
 * where it has one (8 GB/s), else four bits at a time (0.4 GB/s). For tests, too.
 */
#ifndef ONEPOT_TFRECORD_H
#define ONEPOT_TFRECORD_H

#include <stddef.h>
#include <stdint.h>

/* Extend the sum `crc` of the bytes before (0: there are none) by these bytes. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t len);

/* The same without the CPU's instruction: for CPUs that lack it, and for tests. */
uint32_t crc32c_by_table(uint32_t crc, const void *bytes, size_t len);

/* The masked form that TFRecord files store: a sum over data that holds sums would be weak. */
static inline uint32_t crc32c_masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

#endif
