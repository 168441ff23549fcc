/*
 * CRC-32C (Castagnoli), which TensorFlow's records are summed with.
 */
#ifndef ONEPOT_CRC32C_H
#define ONEPOT_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* The sum of bytes that follow those with the sum `crc`; of the first ones 0. */
uint32_t crc32c(uint32_t crc, const void *bytes, size_t len);

/* The same without the CPU's instruction: for CPUs that lack it, and for tests. */
uint32_t crc32c_by_table(uint32_t crc, const void *bytes, size_t len);

/* As it lies in a file: the sum of data with sums in it would be weak. */
static inline uint32_t crc32c_masked(uint32_t crc)
{
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

#endif
