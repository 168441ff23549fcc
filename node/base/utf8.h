/*
 * Names are raw bytes. Before one is shown to a person or written as JSON, these functions
 * find which bytes are UTF-8 and which characters would disturb a terminal.
 */
#ifndef ONEPOT_UTF8_H
#define ONEPOT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Length of the character at `bytes` (`len` bytes, at least one), and its code. 0 if it is not
 * valid UTF-8; overlong forms and surrogates are not.
 */
static inline size_t utf8_length(const char *bytes, size_t len, uint32_t *ret_code)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)bytes;
    if (s[0] < 0x80) {
        *ret_code = s[0];
        return 1;
    }

    size_t need = (s[0] & 0xe0) == 0xc0   ? 2
                  : (s[0] & 0xf0) == 0xe0 ? 3
                  : (s[0] & 0xf8) == 0xf0 ? 4
                                          : 0;
    if (!need || need > len)
        return 0;
    uint32_t code = s[0] & (0xffu >> (need + 1));
    for (size_t i = 1; i < need; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (s[i] & 0x3f);
    }
    if (code < least[need] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
        return 0;
    *ret_code = code;
    return need;
}

/* The same, but also 0 for control characters and for any that reorder or split a line. */
static inline size_t utf8_printable_length(const char *bytes, size_t len)
{
    uint32_t code;
    size_t n = utf8_length(bytes, len, &code);
    if (!n || code < 0x20 || (code >= 0x7f && code < 0xa0))
        return 0;
    if (code == 0x2028 || code == 0x2029 || (code >= 0x202a && code <= 0x202e) ||
        (code >= 0x2066 && code <= 0x2069))
        return 0;
    return n;
}

#endif
