/*
 * One record per entry. Each states its length, so no two trees give the same bytes. A
 * directory's record has the number of its children; together with the breadth-first order,
 * that determines the paths. The permissions of the root are left out: few archives have it as
 * a member. The kind comes last, as only the last entry tells whether any has holes.
 */
#include "digest.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "bytes.h"

int digest_begin(struct digest *digest, bool sums)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -ENOMEM;
    XXH3_128bits_reset(state);
    *digest = (struct digest){.state = state, .sums = sums};
    return 0;
}

void digest_add(struct digest *digest, const struct digest_entry *e)
{
    uint8_t record[2 * 4 + INDEX_NAME_MAX + 2 * 8], *at = record + 8;
    uint32_t type = e->mode & S_IFMT;
    bool has_size = S_ISREG(type) || S_ISLNK(type);
    bool has_data = S_ISDIR(type) || S_ISCHR(type) || S_ISBLK(type);
    bytes_put_le32(record, e->name_len && !S_ISLNK(type) ? e->mode : type);
    bytes_put_le32(record + 4, (uint32_t)e->name_len);
    if (e->name_len)
        at = mempcpy(at, e->name, e->name_len);
    bytes_put_le64(at, has_size ? e->size : S_ISDIR(type) ? e->data >> 32 : e->data);
    at += has_size || has_data ? 8 : 0;
    bytes_put_le64(at, e->sum);
    at += S_ISREG(type) && digest->sums ? 8 : 0;
    size_t len = (size_t)(at - record);
    XXH3_128bits_update(digest->state, record, len);
    if (S_ISLNK(type))
        XXH3_128bits_update(digest->state, e->target, e->size);
    digest->has_holes |= S_ISREG(type) && e->has_holes;
}

enum digest_kind digest_end(struct digest *digest, uint8_t ret_bytes[INDEX_DIGEST_BYTES])
{
    static const char letters[][17] = {[DIGEST_SIZES] = "onepot sizes   2",
                                       [DIGEST_TREE] = "onepot tree    1",
                                       [DIGEST_STORED] = "onepot stored  1"};
    XXH128_canonical_t canonical;
    enum digest_kind kind = !digest->sums       ? DIGEST_SIZES
                            : digest->has_holes ? DIGEST_STORED
                                                : DIGEST_TREE;
    XXH3_128bits_update(digest->state, letters[kind], 16);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(digest->state));
    XXH3_freeState(digest->state);
    *digest = (struct digest){0};
    if (ret_bytes)
        memcpy(ret_bytes, canonical.digest, INDEX_DIGEST_BYTES);
    return kind;
}
