#include "checksum.h"

#include <errno.h>
#include <stdlib.h>

#ifdef HAVE_LIBDEFLATE
#include <libdeflate.h>
#endif
#include <xxhash.h>

/* Where kinds are mixed, the highest bits of a sum tell its kind. */
#define MIXED_SHIFT 62
#define MIXED_CRC32 UINT64_C(1)
#define MIXED_XXH3 UINT64_C(2)
#define MIXED_VALUE ((UINT64_C(1) << MIXED_SHIFT) - 1)

struct checksum {
    enum sum_kind kind;
    uint32_t crc;
    XXH3_state_t *xxh3;
};

static uint32_t add_crc32(uint32_t crc, const void *bytes, size_t len)
{
#ifdef HAVE_LIBDEFLATE
    return libdeflate_crc32(crc, bytes, len);
#else
    (void)bytes, (void)len;
    return crc;
#endif
}

bool checksum_available(enum sum_kind kind)
{
#ifdef HAVE_LIBDEFLATE
    return kind == SUM_XXH3 || kind == SUM_CRC32 || kind == SUM_MIXED;
#else
    return kind == SUM_XXH3;
#endif
}

const char *checksum_name(enum sum_kind kind)
{
    return kind == SUM_MIXED ? "XXH3-64, CRC-32" : kind == SUM_CRC32 ? "CRC-32" : "XXH3-64";
}

int checksum_new(enum sum_kind kind, struct checksum **ret_checksum)
{
    if (!checksum_available(kind))
        return -ENOTSUP;
    struct checksum *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->kind = kind;
    c->xxh3 = XXH3_createState();
    if (!c->xxh3) {
        free(c);
        return -ENOMEM;
    }
    checksum_reset(c);
    *ret_checksum = c;
    return 0;
}

void checksum_free(struct checksum *c)
{
    if (c)
        XXH3_freeState(c->xxh3);
    free(c);
}

void checksum_reset(struct checksum *c)
{
    c->crc = 0;
    XXH3_64bits_reset(c->xxh3);
}

void checksum_add(struct checksum *c, const void *bytes, size_t len)
{
    if (c->kind != SUM_XXH3)
        c->crc = add_crc32(c->crc, bytes, len);
    if (c->kind != SUM_CRC32)
        XXH3_64bits_update(c->xxh3, bytes, len);
}

uint64_t checksum_value(const struct checksum *c)
{
    return c->kind == SUM_CRC32 ? c->crc : XXH3_64bits_digest(c->xxh3);
}

bool checksum_is(const struct checksum *c, uint64_t sum)
{
    return c->kind == SUM_MIXED
               ? sum == checksum_mixed(SUM_CRC32, c->crc) ||
                     sum == checksum_mixed(SUM_XXH3, XXH3_64bits_digest(c->xxh3))
               : sum == checksum_value(c);
}

uint64_t checksum_of(enum sum_kind kind, const void *bytes, size_t len)
{
    return kind == SUM_CRC32 ? add_crc32(0, bytes, len) : XXH3_64bits(bytes, len);
}

bool checksum_matches(enum sum_kind kind, uint64_t sum, const void *bytes, size_t len)
{
    if (kind != SUM_MIXED)
        return checksum_of(kind, bytes, len) == sum;
    kind = sum >> MIXED_SHIFT == MIXED_CRC32 ? SUM_CRC32 : SUM_XXH3;
    return checksum_mixed(kind, checksum_of(kind, bytes, len)) == sum;
}

uint64_t checksum_mixed(enum sum_kind kind, uint64_t sum)
{
    if (kind == SUM_MIXED)
        return sum;
    uint64_t mark = kind == SUM_CRC32 ? MIXED_CRC32 : MIXED_XXH3;
    return mark << MIXED_SHIFT | (sum & MIXED_VALUE);
}

bool checksum_is_missing(uint64_t mixed)
{
    return mixed >> MIXED_SHIFT == 0;
}

enum sum_kind checksum_kind(uint64_t mixed)
{
    return mixed >> MIXED_SHIFT == MIXED_CRC32 ? SUM_CRC32 : SUM_XXH3;
}
