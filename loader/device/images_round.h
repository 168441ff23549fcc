/*
 * From a byte to a float, and from single precision to the half types. The compilers of the
 * host and of GPUs use the same functions, so that both make the same bits. Each step rounds
 * once. The half types are made from integers, since not every compiler and not every GPU has
 * them.
 */
#ifndef ONEPOT_IMAGES_ROUND_H
#define ONEPOT_IMAGES_ROUND_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define IMAGES_FUNCTION static __device__ __forceinline__
#define IMAGES_SUBTRACT(a, b) __fsub_rn(a, b)
#define IMAGES_MULTIPLY(a, b) __fmul_rn(a, b)
#else
#define IMAGES_FUNCTION static inline
#define IMAGES_SUBTRACT(a, b) ((a) - (b))
#define IMAGES_MULTIPLY(a, b) ((a) * (b))
#endif

IMAGES_FUNCTION float images_scale(uint8_t byte, float mean, float scale)
{
    return IMAGES_MULTIPLY(IMAGES_SUBTRACT((float)byte, mean), scale);
}

IMAGES_FUNCTION uint32_t images_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* x / 2^n, to nearest, ties to even; n from 1 to 31. */
IMAGES_FUNCTION uint32_t images_shift(uint32_t x, unsigned n)
{
    uint32_t half = (uint32_t)1 << (n - 1), rest = x & ((half << 1) - 1);
    x >>= n;
    return x + (rest > half || (rest == half && (x & 1)));
}

IMAGES_FUNCTION uint16_t images_half(float x)
{
    uint32_t bits = images_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) /* not a number */
        return 0x7fff;
    if (rest >= 0x477ff000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (rest >= 0x38800000) /* 2^-14: a carry goes into the exponent, as it should */
        return (uint16_t)(sign | (images_shift(rest, 13) - (112u << 10)));
    if (rest < 0x33000000) /* below half of the least value, 2^-24 */
        return (uint16_t)sign;
    uint32_t mantissa = (rest & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | images_shift(mantissa, 126 - (rest >> 23)));
}

IMAGES_FUNCTION uint16_t images_bfloat16(float x)
{
    uint32_t bits = images_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (uint16_t)images_shift(bits, 16);
}

#endif
