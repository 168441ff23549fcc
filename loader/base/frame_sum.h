/*
 * A sum of a decompressed block that a GPU makes fast: each word of eight bytes is mixed with
 * its place, and the results are added up, in any order. The compilers of the host and of GPUs
 * use the same function, so that both get the same sum.
 */
#ifndef ONEPOT_FRAME_SUM_H
#define ONEPOT_FRAME_SUM_H

#include <stdint.h>

#ifdef __CUDACC__
#define FRAME_SUM_FUNCTION static __host__ __device__ __forceinline__
#else
#define FRAME_SUM_FUNCTION static inline
#endif

/* The word at place `i`, as the processor reads it. A last one is filled up with zeros. */
FRAME_SUM_FUNCTION uint64_t frame_sum_word(uint64_t word, uint64_t i)
{
    uint64_t x = word ^ (i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    x = (x ^ x >> 32) * UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 32;
}

#endif
