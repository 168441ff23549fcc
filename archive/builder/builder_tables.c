/*
 * The builder's tables: inodes, their distinct attributes, times beyond 32 bits.
 */
#include "builder_private.h"

const struct disk_attr builder_directory = {.mode = S_IFDIR | 0755, .flags = DATA_KIND_NONE};

int attr_table_number(struct attr_table *table, const struct disk_attr *attr,
                      uint32_t *ret_number)
{
    const struct map_key key = {(uint64_t)attr->mode << 32 | attr->uid,
                                (uint64_t)attr->gid << 32 | attr->flags};
    uint64_t number;
    if (map_get(&table->numbers, key, &number) < 0) {
        number = table->list.count;
        if (number == DISK_ATTR_LIMIT)
            return -EOVERFLOW;
        if (vector_push(&table->list, *attr) < 0 || map_put(&table->numbers, key, number) < 0)
            return -ENOMEM;
    }
    *ret_number = (uint32_t)number;
    return 0;
}

void attr_table_free(struct attr_table *table)
{
    vector_free(&table->list);
    map_free(&table->numbers);
}

int builder_set_wide_mtime(struct builder *b, uint32_t inode, int64_t seconds)
{
    if (vector_extend(&b->wide_mtimes, (size_t)inode + 1) < 0)
        return -ENOMEM;
    b->wide_mtimes.at[inode] = seconds;
    return 0;
}

int builder_new_inode(struct builder *b, const struct builder_inode *inode, uint32_t *ret_inode)
{
    if (b->inodes.count >= ENTRIES_MAX)
        return -EOVERFLOW;
    *ret_inode = (uint32_t)b->inodes.count;
    return vector_push(&b->inodes, *inode);
}
