/*
 * The builder, extended attributes: sets, each stored once.
 *
 * Many inodes have the same attributes (a security label, an access list). The attributes of
 * one inode are collected; when another inode's come, they are sorted and become a set. An
 * equal set that exists already is reused.
 *
 * Archives of other systems have attributes that Linux has no place for, such as
 * com.apple.provenance. Programs that copy attributes fail at the first that they can't set, so
 * such attributes are left out, for all formats, and counted.
 */
#include "builder.h"

#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "builder_private.h"
#include "bytes.h"

/* Those of Linux: XATTR_SIZE_MAX, and XATTR_LIST_MAX for all names, each with its NUL. */
#define XATTR_VALUE_MAX 65536u
#define XATTR_NAMES_MAX 65536u

static int xattrs_compare_names(const struct builder_xattr *x, const struct builder_xattr *y,
                                const char *bytes)
{
    return bytes_compare(bytes + x->name, x->name_len, bytes + y->name, y->name_len);
}

/* By name; for equal names in order of arrival, which is the order of their bytes. */
static int compare_xattrs(const void *a, const void *b, void *bytes)
{
    const struct builder_xattr *x = a, *y = b;
    int compared = xattrs_compare_names(x, y, bytes);
    return compared ? compared : (x->name > y->name) - (x->name < y->name);
}

/* Append the pending attributes to `xattrs` as a set, not yet counted. */
static int builder_append_set(struct builder *b, size_t *ret_bytes)
{
    size_t kept = 0, bytes = 8, names = 0;
    qsort_r(b->pending.at, b->pending.count, sizeof(*b->pending.at), compare_xattrs,
            b->pending_bytes.at);
    for (size_t i = 0; i < b->pending.count; i++) {
        const struct builder_xattr *x = &b->pending.at[i];
        if (i + 1 < b->pending.count &&
            xattrs_compare_names(x, x + 1, b->pending_bytes.at) == 0)
            continue; /* the last of equal names counts */
        names += (size_t)x->name_len + 1;
        if (names > XATTR_NAMES_MAX) {
            names -= (size_t)x->name_len + 1;
            b->xattrs_left_out++;
            continue;
        }
        bytes += 8 + (size_t)x->name_len + x->value_len;
        b->pending.at[kept++] = *x;
    }
    size_t padded = (bytes + 7) & ~(size_t)7;
    if (bytes > UINT32_MAX)
        return -E2BIG;
    if (vector_reserve(&b->xattrs, padded) < 0)
        return -ENOMEM;
    b->pending.count = kept;

    char *at = b->xattrs.at + b->xattrs.count;
    memset(at, 0, padded);
    bytes_put_le32(at, (uint32_t)kept);
    bytes_put_le32(at + 4, (uint32_t)(bytes - 8));
    at += 8;
    for (size_t i = 0; i < kept; i++) {
        const struct builder_xattr *x = &b->pending.at[i];
        bytes_put_le32(at, x->name_len);
        bytes_put_le32(at + 4, x->value_len);
        memcpy(at + 8, b->pending_bytes.at + x->name, (size_t)x->name_len + x->value_len);
        at += 8 + (size_t)x->name_len + x->value_len;
    }
    *ret_bytes = padded;
    return 0;
}

/* The equal set that exists already, or else the new one of this size at the end. */
static int builder_find_set(struct builder *b, size_t bytes, uint64_t *ret_offset)
{
    const char *set = b->xattrs.at + b->xattrs.count;
    XXH128_hash_t sum = XXH3_128bits_withSeed(set, bytes, b->seed);
    struct map_key key = {sum.high64, sum.low64};
    uint64_t other;
    if (map_get(&b->sets, key, &other) == 0 && b->xattrs.count - other >= bytes &&
        memcmp(b->xattrs.at + other, set, bytes) == 0) {
        *ret_offset = other;
        return 0;
    }
    *ret_offset = b->xattrs.count;
    b->xattrs.count += bytes;
    int r = map_put(&b->sets, key, *ret_offset);
    return r == -EEXIST ? 0 : r; /* two sets with one sum: the first can be found again */
}

int builder_flush_xattrs(struct builder *b)
{
    if (b->pending.count == 0)
        return 0;
    size_t bytes;
    uint64_t offset;
    int r = builder_append_set(b, &bytes);
    if (r == 0)
        r = builder_find_set(b, bytes, &offset);
    if (r < 0)
        return r;
    b->xattr_of.at[b->pending_inode] = offset + 1;
    b->pending.count = 0;
    b->pending_bytes.count = 0;
    return 0;
}

static int builder_append_pending(struct builder *b, const char *name, size_t name_len,
                                  const void *value, size_t value_len)
{
    struct builder_xattr x = {b->pending_bytes.count, (uint32_t)name_len, (uint32_t)value_len};
    if (vector_push(&b->pending, x) < 0 ||
        vector_append(&b->pending_bytes, name, name_len) < 0 ||
        vector_append(&b->pending_bytes, (const char *)value, value_len) < 0)
        return -ENOMEM;
    return 0;
}

/* Start collecting for this inode, beginning with the attributes it already has. */
static int builder_begin_xattrs(struct builder *b, uint32_t inode)
{
    int r = builder_flush_xattrs(b);
    if (r < 0)
        return r;
    if (vector_extend(&b->xattr_of, (size_t)inode + 1) < 0)
        return -ENOMEM;
    b->pending_inode = inode;
    if (!b->xattr_of.at[inode])
        return 0;

    const char *at = b->xattrs.at + b->xattr_of.at[inode] - 1;
    uint32_t count = bytes_le32(at);
    for (at += 8; count > 0; count--) {
        uint32_t name_len = bytes_le32(at), value_len = bytes_le32(at + 4);
        r = builder_append_pending(b, at + 8, name_len, at + 8 + name_len, value_len);
        if (r < 0)
            return r;
        at += 8 + (size_t)name_len + value_len;
    }
    return 0;
}

/* Those of users are for regular files and directories alone. */
static bool xattr_has_place(const char *name, size_t len, size_t value_len, uint32_t mode)
{
    static const char *const namespaces[] = {"user.", "trusted.", "security.", "system."};
    if (len > INDEX_NAME_MAX || value_len > XATTR_VALUE_MAX || memchr(name, '\0', len))
        return false;
    for (size_t i = 0; i < sizeof(namespaces) / sizeof(namespaces[0]); i++) {
        size_t n = strlen(namespaces[i]);
        if (len > n && memcmp(name, namespaces[i], n) == 0)
            return i > 0 || S_ISREG(mode) || S_ISDIR(mode);
    }
    return false;
}

void builder_leave_out_xattrs(struct builder *b, uint64_t count)
{
    if (__builtin_add_overflow(b->xattrs_left_out, count, &b->xattrs_left_out))
        b->xattrs_left_out = UINT64_MAX;
}

int builder_add_xattr(struct builder *b, uint32_t inode, const char *name, size_t name_len,
                      const void *value, size_t value_len)
{
    if (b->is_written || inode >= b->inodes.count)
        return -EINVAL;
    if (!xattr_has_place(name, name_len, value_len, inode_attr(b, inode)->mode)) {
        builder_leave_out_xattrs(b, 1);
        return 0;
    }
    if (b->pending.count == 0 || b->pending_inode != inode) {
        int r = builder_begin_xattrs(b, inode);
        if (r < 0)
            return r;
    }
    if (b->pending.count >= BUILDER_XATTRS_MAX) {
        builder_leave_out_xattrs(b, 1);
        return 0;
    }
    return builder_append_pending(b, name, name_len, value, value_len);
}
