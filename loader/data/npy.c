/*
 * A small parser for the dict of the header: keys in any order, with any spaces.
 */
#include "dataset.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define DIMENSIONS_MAX 32u

struct text {
    const char *at, *end;
};

static void skip_spaces(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\t'))
        t->at++;
}

static bool npy_take(struct text *t, char c)
{
    skip_spaces(t);
    if (t->at == t->end || *t->at != c)
        return false;
    t->at++;
    return true;
}

static bool npy_take_word(struct text *t, const char *word)
{
    size_t n = strlen(word);
    skip_spaces(t);
    if ((size_t)(t->end - t->at) < n || memcmp(t->at, word, n) != 0)
        return false;
    t->at += n;
    return true;
}

/* A string in single or double quotes, without escapes. */
static bool take_string(struct text *t, char *buf, size_t size)
{
    skip_spaces(t);
    if (t->at == t->end || (*t->at != '\'' && *t->at != '"'))
        return false;
    const char *from = t->at + 1;
    const char *to = memchr(from, *t->at, (size_t)(t->end - from));
    if (!to || (size_t)(to - from) >= size)
        return false;
    memcpy(buf, from, (size_t)(to - from));
    buf[to - from] = '\0';
    t->at = to + 1;
    return true;
}

static bool take_number(struct text *t, uint64_t *ret)
{
    uint64_t n = 0;
    skip_spaces(t);
    const char *start = t->at;
    for (; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++)
        if (__builtin_mul_overflow(n, 10u, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*t->at - '0'), &n))
            return false;
    *ret = n;
    return t->at > start;
}

static bool take_shape(struct text *t, struct onepot_npy *npy)
{
    npy->dimensions = 0;
    if (!npy_take(t, '('))
        return false;
    while (!npy_take(t, ')')) {
        if (npy->dimensions == DIMENSIONS_MAX || !take_number(t, &npy->shape[npy->dimensions]))
            return false;
        npy->dimensions++;
        if (!npy_take(t, ','))
            return npy_take(t, ')');
    }
    return true;
}

static bool take_entry(struct text *t, struct onepot_npy *npy, unsigned *seen)
{
    char key[16];
    if (!take_string(t, key, sizeof(key)) || !npy_take(t, ':'))
        return false;
    if (strcmp(key, "descr") == 0) {
        *seen |= 1;
        return take_string(t, npy->type, sizeof(npy->type));
    }
    if (strcmp(key, "shape") == 0) {
        *seen |= 2;
        return take_shape(t, npy);
    }
    if (strcmp(key, "fortran_order") != 0)
        return false;
    *seen |= 4;
    npy->fortran_order = npy_take_word(t, "True");
    return npy->fortran_order || npy_take_word(t, "False");
}

static bool take_dict(struct text *t, struct onepot_npy *npy)
{
    unsigned seen = 0;
    if (!npy_take(t, '{'))
        return false;
    while (!npy_take(t, '}')) {
        if (!take_entry(t, npy, &seen))
            return false;
        npy_take(t, ',');
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
    struct text text = {(const char *)b + start, (const char *)b + start + header};
    struct onepot_npy npy = {.size = sizeof(npy)};
    if (!take_dict(&text, &npy) || !count_bytes(&npy))
        return -EUCLEAN;
    *ret_npy = npy;
    *ret_data = start + header;
    return 0;
}
