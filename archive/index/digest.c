/*
 * One record per entry. Each states its length, so no two trees give the same bytes. A
 * directory's record has the number of its children; together with the breadth-first order,
 * that determines the paths.
 */
#include "digest.h"

#include <endian.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

int digest_begin(struct digest *digest, bool sums)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -ENOMEM;
    XXH3_128bits_reset(state);
    XXH3_128bits_update(state, sums ? "onepot content 1" : "onepot sizes   1", 16);
    *digest = (struct digest){state, sums};
    return 0;
}

static size_t put32(uint8_t *at, uint64_t value)
{
    uint32_t le = htole32((uint32_t)value);
    memcpy(at, &le, sizeof(le));
    return sizeof(le);
}

static size_t put64(uint8_t *at, uint64_t value)
{
    uint64_t le = htole64(value);
    memcpy(at, &le, sizeof(le));
    return sizeof(le);
}

void digest_add(struct digest *digest, const struct digest_entry *e)
{
    uint8_t record[2 * 4 + INDEX_NAME_MAX + 2 * 8];
    uint32_t type = e->mode & S_IFMT;
    size_t len = put32(record, type);
    len += put32(record + len, e->name_len);
    if (e->name_len)
        memcpy(record + len, e->name, e->name_len);
    len += e->name_len;
    if (S_ISDIR(type) || S_ISREG(type))
        len += put64(record + len, e->first);
    if (S_ISREG(type) && digest->sums)
        len += put64(record + len, e->second);
    if (S_ISLNK(type))
        len += put64(record + len, e->target_len);
    if (S_ISCHR(type) || S_ISBLK(type)) {
        len += put32(record + len, e->first);
        len += put32(record + len, e->second);
    }
    XXH3_128bits_update(digest->state, record, len);
    if (S_ISLNK(type))
        XXH3_128bits_update(digest->state, e->target, e->target_len);
}

void digest_end(struct digest *digest, uint8_t ret_bytes[INDEX_DIGEST_BYTES])
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(digest->state));
    XXH3_freeState(digest->state);
    *digest = (struct digest){0};
    if (ret_bytes)
        memcpy(ret_bytes, canonical.digest, INDEX_DIGEST_BYTES);
}
