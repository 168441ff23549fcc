/*
 * The builder, extended attributes: sets, each stored once.
 *
 * Many inodes have the same attributes (a security label, an access list). The attributes of
 * one inode are collected; when another inode's come, they are sorted and become a set. An
 * equal set that exists already is reused.
 */
#include "builder.h"

#include <endian.h>
#include <string.h>

#include <xxhash.h>

#include "builder_private.h"

#define XATTR_VALUE_MAX 65536u /* XATTR_SIZE_MAX of Linux */

static int compare_names(const struct builder_xattr *x, const struct builder_xattr *y,
                         const char *bytes)
{
    size_t len = x->name_len < y->name_len ? x->name_len : y->name_len;
    int order = memcmp(bytes + x->name, bytes + y->name, len);
    return order ? order : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

/* By name; for equal names in order of arrival, which is that of their bytes. */
static int compare_xattrs(const void *a, const void *b, void *bytes)
{
    const struct builder_xattr *x = a, *y = b;
    int order = compare_names(x, y, bytes);
    return order ? order : (x->name > y->name) - (x->name < y->name);
}

static void put_u32(char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

/* Append the pending attributes to `xattrs` as a set, not yet counted. */
static int append_set(struct builder *b, size_t *ret_bytes)
{
    size_t kept = 0, bytes = 8;
    qsort_r(b->pending.at, b->pending.count, sizeof(*b->pending.at), compare_xattrs,
            b->pending_bytes.at);
    for (size_t i = 0; i < b->pending.count; i++) {
        const struct builder_xattr *x = &b->pending.at[i];
        if (i + 1 < b->pending.count && compare_names(x, x + 1, b->pending_bytes.at) == 0)
            continue; /* the last of equal names counts */
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
    put_u32(at, (uint32_t)kept);
    put_u32(at + 4, (uint32_t)(bytes - 8));
    at += 8;
    for (size_t i = 0; i < kept; i++) {
        const struct builder_xattr *x = &b->pending.at[i];
        put_u32(at, x->name_len);
        put_u32(at + 4, x->value_len);
        memcpy(at + 8, b->pending_bytes.at + x->name, (size_t)x->name_len + x->value_len);
        at += 8 + (size_t)x->name_len + x->value_len;
    }
    *ret_bytes = padded;
    return 0;
}

static size_t set_bytes(const struct builder *b, uint64_t offset)
{
    uint32_t bytes;
    memcpy(&bytes, b->xattrs.at + offset + 4, sizeof(bytes));
    return ((size_t)le32toh(bytes) + 8 + 7) & ~(size_t)7;
}

/* The slot of the set at `offset`, or of an equal one. */
static size_t set_slot(const struct builder *b, uint64_t offset)
{
    size_t mask = b->set_slot_count - 1;
    size_t bytes = set_bytes(b, offset);
    const char *set = b->xattrs.at + offset;
    size_t slot = XXH3_64bits_withSeed(set, bytes, b->seed) & mask;
    for (; b->set_slots[slot]; slot = (slot + 1) & mask) {
        uint64_t other = b->set_slots[slot] - 1;
        if (set_bytes(b, other) == bytes && memcmp(b->xattrs.at + other, set, bytes) == 0)
            break;
    }
    return slot;
}

static int grow_set_slots(struct builder *b)
{
    uint64_t *old = b->set_slots;
    size_t old_count = b->set_slot_count;
    size_t count = old_count ? old_count * 2 : 64;
    uint64_t *slots = calloc(count, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    b->set_slots = slots;
    b->set_slot_count = count;
    for (size_t i = 0; i < old_count; i++)
        if (old[i])
            slots[set_slot(b, old[i] - 1)] = old[i];
    free(old);
    return 0;
}

int builder_flush_xattrs(struct builder *b)
{
    if (b->pending.count == 0)
        return 0;
    size_t bytes;
    if (b->sets * 2 >= b->set_slot_count && grow_set_slots(b) < 0)
        return -ENOMEM;
    int r = append_set(b, &bytes);
    if (r < 0)
        return r;
    size_t slot = set_slot(b, b->xattrs.count);
    if (!b->set_slots[slot]) {
        b->set_slots[slot] = b->xattrs.count + 1;
        b->xattrs.count += bytes;
        b->sets++;
    }
    b->xattr_of.at[b->pending_inode] = b->set_slots[slot];
    b->pending.count = 0;
    b->pending_bytes.count = 0;
    return 0;
}

static int append_pending(struct builder *b, const char *name, size_t name_len,
                          const void *value, size_t value_len)
{
    if (vector_reserve(&b->pending, 1) < 0 ||
        vector_reserve(&b->pending_bytes, name_len + value_len) < 0)
        return -ENOMEM;
    size_t at = b->pending_bytes.count;
    memcpy(b->pending_bytes.at + at, name, name_len);
    if (value_len > 0)
        memcpy(b->pending_bytes.at + at + name_len, value, value_len);
    b->pending_bytes.count += name_len + value_len;
    b->pending.at[b->pending.count++] =
        (struct builder_xattr){at, (uint32_t)name_len, (uint32_t)value_len};
    return 0;
}

/* Start collecting for this inode, beginning with the attributes it already has. */
static int begin_xattrs(struct builder *b, uint32_t inode)
{
    int r = builder_flush_xattrs(b);
    if (r < 0)
        return r;
    if (b->xattr_of.count <= inode) {
        size_t more = (size_t)inode + 1 - b->xattr_of.count;
        if (vector_reserve(&b->xattr_of, more) < 0)
            return -ENOMEM;
        memset(b->xattr_of.at + b->xattr_of.count, 0, more * sizeof(uint64_t));
        b->xattr_of.count += more;
    }
    b->pending_inode = inode;
    if (!b->xattr_of.at[inode])
        return 0;

    const char *at = b->xattrs.at + b->xattr_of.at[inode] - 1;
    uint32_t count, lengths[2];
    memcpy(&count, at, sizeof(count));
    at += 8;
    for (count = le32toh(count); count > 0; count--) {
        memcpy(lengths, at, sizeof(lengths));
        uint32_t name_len = le32toh(lengths[0]), value_len = le32toh(lengths[1]);
        r = append_pending(b, at + 8, name_len, at + 8 + name_len, value_len);
        if (r < 0)
            return r;
        at += 8 + (size_t)name_len + value_len;
    }
    return 0;
}

int builder_add_xattr(struct builder *b, uint32_t inode, const char *name, size_t name_len,
                      const void *value, size_t value_len)
{
    if (b->is_written || inode >= b->inodes.count || name_len == 0 ||
        memchr(name, '\0', name_len))
        return -EINVAL;
    if (name_len > INDEX_NAME_MAX || value_len > XATTR_VALUE_MAX)
        return -E2BIG;
    if (b->pending.count == 0 || b->pending_inode != inode) {
        int r = begin_xattrs(b, inode);
        if (r < 0)
            return r;
    }
    if (b->pending.count >= BUILDER_XATTRS_MAX)
        return -E2BIG;
    return append_pending(b, name, name_len, value, value_len);
}
