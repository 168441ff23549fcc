/*
 * From a byte to a float, and from single precision to the half types. The compilers of the
 * host and of GPUs use the same functions, so that both make the same bits. Each step rounds
 * once. The half types are made from integers, since not every compiler and not every GPU has
 * them.
 */
#ifndef ONEPOT_CONVERT_ROUND_H
#define ONEPOT_CONVERT_ROUND_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define CONVERT_FUNCTION static __device__ __forceinline__
#define CONVERT_SUBTRACT(a, b) __fsub_rn(a, b)
#define CONVERT_MULTIPLY(a, b) __fmul_rn(a, b)
#else
#define CONVERT_FUNCTION static inline
#define CONVERT_SUBTRACT(a, b) ((a) - (b))
#define CONVERT_MULTIPLY(a, b) ((a) * (b))
#endif

CONVERT_FUNCTION float convert_scale(uint8_t byte, float mean, float scale)
{
    return CONVERT_MULTIPLY(CONVERT_SUBTRACT((float)byte, mean), scale);
}

CONVERT_FUNCTION uint32_t convert_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* x / 2^n, to nearest, ties to even; n from 1 to 31. */
CONVERT_FUNCTION uint32_t convert_shift(uint32_t x, unsigned n)
{
    uint32_t half = (uint32_t)1 << (n - 1), rest = x & ((half << 1) - 1);
    x >>= n;
    return x + (rest > half || (rest == half && (x & 1)));
}

CONVERT_FUNCTION uint16_t convert_half(float x)
{
    uint32_t bits = convert_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) /* not a number */
        return 0x7fff;
    if (rest >= 0x477ff000) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (rest >= 0x38800000) /* 2^-14: a carry goes into the exponent, as it should */
        return (uint16_t)(sign | (convert_shift(rest, 13) - (112u << 10)));
    if (rest < 0x33000000) /* below half of the least value, 2^-24 */
        return (uint16_t)sign;
    uint32_t mantissa = (rest & 0x7fffff) | 0x800000;
    return (uint16_t)(sign | convert_shift(mantissa, 126 - (rest >> 23)));
}

CONVERT_FUNCTION uint16_t convert_bfloat16(float x)
{
    uint32_t bits = convert_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (uint16_t)convert_shift(bits, 16);
}

#endif
