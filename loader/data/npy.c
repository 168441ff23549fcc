/*
 * A small parser for the dict of the header: keys in any order, with any spaces.
 */
#include "dataset.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DIMENSIONS_MAX 32u

/* Each of these goes on from *t, and looks at nothing from `end` on. */
static void skip_spaces(const char **t, const char *end)
{
    while (*t < end && (**t == ' ' || **t == '\n' || **t == '\t'))
        ++*t;
}

static bool npy_take(const char **t, const char *end, char c)
{
    skip_spaces(t, end);
    if (*t == end || **t != c)
        return false;
    ++*t;
    return true;
}

static bool npy_take_word(const char **t, const char *end, const char *word)
{
    size_t n = strlen(word);
    skip_spaces(t, end);
    if ((size_t)(end - *t) < n || memcmp(*t, word, n) != 0)
        return false;
    *t += n;
    return true;
}

/* A string in single or double quotes, without escapes. */
static bool take_string(const char **t, const char *end, char *buf, size_t size)
{
    skip_spaces(t, end);
    if (*t == end || (**t != '\'' && **t != '"'))
        return false;
    const char *from = *t + 1;
    const char *to = memchr(from, **t, (size_t)(end - from));
    if (!to || (size_t)(to - from) >= size)
        return false;
    memcpy(buf, from, (size_t)(to - from));
    buf[to - from] = '\0';
    *t = to + 1;
    return true;
}

static bool take_number(const char **t, const char *end, uint64_t *ret)
{
    uint64_t n = 0;
    skip_spaces(t, end);
    const char *start = *t;
    for (; *t < end && **t >= '0' && **t <= '9'; ++*t)
        if (__builtin_mul_overflow(n, 10u, &n) ||
            __builtin_add_overflow(n, (uint64_t)(**t - '0'), &n))
            return false;
    *ret = n;
    return *t > start;
}

static bool take_shape(const char **t, const char *end, struct onepot_npy *npy)
{
    npy->dimensions = 0;
    if (!npy_take(t, end, '('))
        return false;
    while (!npy_take(t, end, ')')) {
        if (npy->dimensions == DIMENSIONS_MAX ||
            !take_number(t, end, &npy->shape[npy->dimensions]))
            return false;
        npy->dimensions++;
        if (!npy_take(t, end, ','))
            return npy_take(t, end, ')');
    }
    return true;
}

static bool take_entry(const char **t, const char *end, struct onepot_npy *npy, unsigned *seen)
{
    char key[16];
    if (!take_string(t, end, key, sizeof(key)) || !npy_take(t, end, ':'))
        return false;
    if (strcmp(key, "descr") == 0) {
        *seen |= 1;
        return take_string(t, end, npy->type, sizeof(npy->type));
    }
    if (strcmp(key, "shape") == 0) {
        *seen |= 2;
        return take_shape(t, end, npy);
    }
    if (strcmp(key, "fortran_order") != 0)
        return false;
    *seen |= 4;
    npy->fortran_order = npy_take_word(t, end, "True");
    return npy->fortran_order || npy_take_word(t, end, "False");
}

static bool take_dict(const char **t, const char *end, struct onepot_npy *npy)
{
    unsigned seen = 0;
    if (!npy_take(t, end, '{'))
        return false;
    while (!npy_take(t, end, '}')) {
        if (!take_entry(t, end, npy, &seen))
            return false;
        npy_take(t, end, ',');
    }
    return seen == 7;
}

/* The bytes of an element of this type ("<f4": 4); 0 if the type is not a plain number. */
static uint64_t item_bytes(const char *type)
{
    static const char known[] = "biufcSUV";
    char *end;
    if (!strchr("<>|=", type[0]) || !type[0] || !type[1] || !strchr(known, type[1]))
        return 0;
    if (type[2] < '0' || type[2] > '9')
        return 0;
    unsigned long n = strtoul(type + 2, &end, 10);
    if (*end || n > 1u << 30)
        return 0;
    return type[1] == 'U' ? 4 * n : n;
}

/*
 * A length of 0 makes the array empty, but not the other lengths small: as in numpy, the
 * product of all others must be a size that exists, since consumers multiply them in any order.
 */
static bool count_bytes(struct onepot_npy *npy)
{
    uint64_t bytes = item_bytes(npy->type);
    bool is_empty = false;
    for (uint32_t i = 0; i < npy->dimensions; i++) {
        is_empty |= npy->shape[i] == 0;
        if (npy->shape[i] && __builtin_mul_overflow(bytes, npy->shape[i], &bytes))
            return false;
    }
    npy->bytes = is_empty ? 0 : bytes;
    return bytes > 0 && bytes <= INT64_MAX;
}

int npy_parse(const void *bytes, size_t len, struct onepot_npy *ret_npy, size_t *ret_data)
{
    const uint8_t *b = bytes;
    if (len < 12)
        return -EAGAIN;
    if (memcmp(b, "\x93NUMPY", 6) != 0 || b[6] < 1 || b[6] > 3)
        return -EUCLEAN;
    size_t start = b[6] == 1 ? 10 : 12;
    size_t header = b[8] | (size_t)b[9] << 8;
    if (b[6] > 1)
        header |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (start + header > NPY_HEADER_MAX)
        return -EUCLEAN;
    if (len < start + header)
        return -EAGAIN;
    const char *text = (const char *)b + start;
    struct onepot_npy npy = {.size = sizeof(npy)};
    if (!take_dict(&text, text + header, &npy) || !count_bytes(&npy))
        return -EUCLEAN;
    *ret_npy = npy;
    *ret_data = start + header;
    return 0;
}
