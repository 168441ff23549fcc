/*
 * By the CPU's instruction where it has one (8 GB/s), else four bits at a time (0.4 GB/s).
 */
#include "crc32c.h"

#include "bytes.h"

/* The remainders of 0 to 15, for the polynomial 0x82f63b78 (bits reversed). */
uint32_t crc32c_by_table(uint32_t crc, const void *bytes, size_t len)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *p = bytes;
    for (crc = ~crc; len > 0; p++, len--) {
        crc ^= *p;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t
crc32c_by_instruction(uint32_t crc, const uint8_t *p, size_t len)
{
    uint64_t wide = crc;
    for (; len >= 8; p += 8, len -= 8)
        wide = __builtin_ia32_crc32di(wide, bytes_le64(p));
    crc = (uint32_t)wide;
    for (; len > 0; p++, len--)
        crc = __builtin_ia32_crc32qi(crc, *p);
    return crc;
}
#endif

uint32_t crc32c(uint32_t crc, const void *bytes, size_t len)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc32c_by_instruction(~crc, bytes, len);
#endif
    return crc32c_by_table(crc, bytes, len);
}
