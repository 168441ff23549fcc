/*
 * The builder: its tables of distinct attributes, and its creation and end. builder_members.c
 * adds members and links, builder_data.c the places of their bytes, builder_xattrs.c extended
 * attributes; builder_write.c makes the image.
 */
#include "builder.h"

#include <string.h>
#include <sys/random.h>

#include <xxhash.h>

#include "builder_private.h"

const struct disk_attr builder_directory = {.mode = S_IFDIR | 0755, .flags = DATA_KIND_NONE};

/* ---- attributes ---- */

static size_t attr_slot(const struct builder *b, const struct disk_attr *attr)
{
    size_t mask = b->attr_slot_count - 1;
    size_t slot = XXH3_64bits(attr, sizeof(*attr)) & mask;
    while (b->attr_slots[slot] &&
           memcmp(&b->attrs.at[b->attr_slots[slot] - 1], attr, sizeof(*attr)) != 0)
        slot = (slot + 1) & mask;
    return slot;
}

static int grow_attr_slots(struct builder *b)
{
    size_t count = b->attr_slot_count ? b->attr_slot_count * 2 : 64;
    uint32_t *slots = calloc(count, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    free(b->attr_slots);
    b->attr_slots = slots;
    b->attr_slot_count = count;
    for (size_t i = 0; i < b->attrs.count; i++)
        slots[attr_slot(b, &b->attrs.at[i])] = (uint32_t)i + 1;
    return 0;
}

int builder_intern_attr(struct builder *b, const struct disk_attr *attr, uint32_t *ret_attr)
{
    if (b->attrs.count * 2 >= b->attr_slot_count && grow_attr_slots(b) < 0)
        return -ENOMEM;
    size_t slot = attr_slot(b, attr);
    if (!b->attr_slots[slot]) {
        if (b->attrs.count == DISK_ATTR_LIMIT)
            return -EOVERFLOW;
        if (vector_reserve(&b->attrs, 1) < 0)
            return -ENOMEM;
        b->attrs.at[b->attrs.count++] = *attr;
        b->attr_slots[slot] = (uint32_t)b->attrs.count;
    }
    *ret_attr = b->attr_slots[slot] - 1;
    return 0;
}

int builder_change_flags(struct builder *b, uint32_t inode, uint32_t clear, uint32_t set)
{
    struct disk_attr attr = *inode_attr(b, inode);
    attr.flags = (attr.flags & ~clear) | set;
    return builder_intern_attr(b, &attr, &b->inodes.at[inode].attr);
}

int builder_add_side(struct builder *b, uint32_t inode, uint32_t kind, uint64_t value)
{
    if (vector_reserve(&b->sides, 1) < 0)
        return -ENOMEM;
    b->sides.at[b->sides.count++] = (struct builder_side){inode, kind, value};
    return 0;
}

/* ---- life ---- */

int builder_new(struct builder **ret_builder)
{
    struct builder *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->pending_inode = UINT32_MAX;
    if (getrandom(&b->seed, sizeof(b->seed), GRND_NONBLOCK) < 0)
        b->seed = (uint64_t)(uintptr_t)b;
    struct builder_inode root = {.nlink = 1,
                                 .mtime = (uint64_t)DISK_MTIME_BIAS << DISK_NSEC_BITS};
    uint32_t inode;
    if (builder_intern_attr(b, &(struct disk_attr){0}, &root.attr) < 0 || /* used by no entry */
        builder_intern_attr(b, &builder_directory, &root.attr) < 0 ||
        builder_new_inode(b, &root, &inode) < 0 || vector_reserve(&b->names, 1) < 0 ||
        vector_reserve(&b->last_path, 1) < 0 || vector_reserve(&b->text, 1) < 0 ||
        builder_grow_slots(b) < 0) {
        builder_free(b);
        return -ENOMEM;
    }
    b->names.at[b->names.count++] = (struct builder_name){0};
    *ret_builder = b;
    return 0;
}

void builder_free(struct builder *b)
{
    if (!b)
        return;
    vector_free(&b->names);
    vector_free(&b->inodes);
    vector_free(&b->text);
    free(b->slots);
    vector_free(&b->attrs);
    free(b->attr_slots);
    vector_free(&b->last_path);
    vector_free(&b->strings);
    vector_free(&b->extents);
    vector_free(&b->blocks);
    vector_free(&b->sides);
    vector_free(&b->pending);
    vector_free(&b->pending_bytes);
    vector_free(&b->xattrs);
    vector_free(&b->xattr_of);
    free(b->set_slots);
    vector_free(&b->dirs);
    vector_free(&b->left_out);
    vector_free(&b->sums);
    vector_free(&b->has_sum);
    free(b);
}

void builder_set_archive_size(struct builder *b, uint64_t archive_bytes)
{
    b->archive_bytes = archive_bytes;
}

uint32_t builder_entries(const struct builder *b)
{
    return (uint32_t)b->names.count;
}
