/*
 * Integers of a fixed byte order in untrusted bytes. bytes_le32(p) and the like read where the
 * caller knows that the bytes are there. A cursor checks: it takes integers and ranges from the
 * front of a buffer, and each call says whether there was enough. bytes_put_le32(p, v) and the
 * like write.
 *
 *     struct cursor c = {header, len};
 *     if (!cursor_le32(&c, &magic) || !cursor_le16(&c, &name_len) ||
 *         !cursor_take(&c, name_len, &name))
 *         return -EUCLEAN;
 */
#ifndef ONEPOT_BYTES_H
#define ONEPOT_BYTES_H

#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BYTES_DEFINE(endian, to_host, to_endian, bits)                                         \
    static inline uint##bits##_t bytes_##endian##bits(const void *p)                           \
    {                                                                                          \
        uint##bits##_t v;                                                                      \
        memcpy(&v, p, sizeof(v));                                                              \
        return to_host(v);                                                                     \
    }                                                                                          \
    static inline void bytes_put_##endian##bits(void *p, uint##bits##_t v)                     \
    {                                                                                          \
        v = to_endian(v);                                                                      \
        memcpy(p, &v, sizeof(v));                                                              \
    }                                                                                          \
    static inline bool cursor_##endian##bits(struct cursor *c, uint##bits##_t *ret)            \
    {                                                                                          \
        if (c->left < sizeof(*ret))                                                            \
            return false;                                                                      \
        *ret = bytes_##endian##bits(c->at);                                                    \
        c->at += sizeof(*ret);                                                                 \
        c->left -= sizeof(*ret);                                                               \
        return true;                                                                           \
    }

struct cursor {
    const uint8_t *at;
    size_t left;
};

BYTES_DEFINE(le, le16toh, htole16, 16)
BYTES_DEFINE(le, le32toh, htole32, 32)
BYTES_DEFINE(le, le64toh, htole64, 64)
BYTES_DEFINE(be, be16toh, htobe16, 16)
BYTES_DEFINE(be, be32toh, htobe32, 32)
BYTES_DEFINE(be, be64toh, htobe64, 64)
#undef BYTES_DEFINE

/* The order of two names, as by memcmp; of two that begin alike, the shorter is first. */
static inline int bytes_compare(const void *a, size_t a_len, const void *b, size_t b_len)
{
    int compared = memcmp(a, b, a_len < b_len ? a_len : b_len);
    return compared ? compared : (a_len > b_len) - (a_len < b_len);
}

/* Are all bytes zero? Yes, if there are none. */
static inline bool bytes_are_zero(const uint8_t *bytes, size_t len)
{
    return len == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0);
}

/* Take `len` bytes, which stay in the buffer. */
static inline bool cursor_take(struct cursor *c, size_t len, const uint8_t **ret_bytes)
{
    if (c->left < len)
        return false;
    *ret_bytes = c->at;
    c->at += len;
    c->left -= len;
    return true;
}

#endif
