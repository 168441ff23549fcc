/*
 * The builder's tables: inodes, their distinct attributes, times beyond 32 bits.
 */
#include "builder_private.h"

const struct disk_attr builder_directory = {.mode = S_IFDIR | 0755, .flags = DATA_KIND_NONE};

int builder_intern_attr(struct builder *b, const struct disk_attr *attr, uint32_t *ret_attr)
{
    uint64_t number;
    if (map_get(&b->attr_numbers, builder_attr_key(attr), &number) < 0) {
        number = b->attrs.count;
        if (number == DISK_ATTR_LIMIT)
            return -EOVERFLOW;
        if (vector_push(&b->attrs, *attr) < 0 ||
            map_put(&b->attr_numbers, builder_attr_key(attr), number) < 0)
            return -ENOMEM;
    }
    *ret_attr = (uint32_t)number;
    return 0;
}

int builder_add_wide_mtime(struct builder *b, uint32_t inode, int64_t seconds)
{
    struct builder_wide wide = {inode, b->wide_mtimes.count, seconds};
    return vector_push(&b->wide_mtimes, wide);
}

int builder_new_inode(struct builder *b, const struct builder_inode *inode, uint32_t *ret_inode)
{
    if (b->inodes.count >= ENTRIES_MAX)
        return -EOVERFLOW;
    *ret_inode = (uint32_t)b->inodes.count;
    return vector_push(&b->inodes, *inode);
}
