/*
 * The builder, order: sorts children by name as memcmp would, and numbers the tree breadth
 * first.
 *
 * Names in a dataset differ in a few digits after a long common prefix. So the prefix is found
 * first, and the eight bytes after it form a number to sort by; names that agree in those are
 * sorted the same way by what follows. Directories archived in order, as many are, are
 * detected and cost one pass.
 */
#include "builder_private.h"

#include <endian.h>
#include <string.h>

#include "cleanup.h"
#include "numbers.h"

/* One name of a directory, while it is sorted. */
struct sort_item {
    uint64_t key; /* eight bytes of the name, as a number */
    uint64_t name;
};

/* How many bytes all names have in common from `depth` on. */
static size_t order_common_length(const struct builder *b, const struct sort_item *items,
                                  size_t count, size_t depth)
{
    uint32_t first = (uint32_t)items[0].name;
    const char *text = name_text(b, first) + depth;
    size_t common = name_length(b, first) - depth;
    for (size_t i = 1; i < count && common > 0; i++) {
        uint32_t name = (uint32_t)items[i].name;
        const char *other = name_text(b, name) + depth;
        size_t len = name_length(b, name) - depth;
        if (len < common)
            common = len;
        size_t same = 0;
        while (same < common && text[same] == other[same])
            same++;
        common = same;
    }
    return common;
}

/* A name that ends here sorts first, as it should, since no name has a zero byte. */
static uint64_t order_key(const struct builder *b, uint32_t name, size_t depth)
{
    size_t len = name_length(b, name);
    uint64_t key = 0;
    if (len > depth)
        memcpy(&key, name_text(b, name) + depth, len - depth < 8 ? len - depth : 8);
    return be64toh(key);
}

/* All are children of one directory, whose names agree in `depth` bytes. */
static void order_sort(const struct builder *b, struct sort_item *items, size_t count,
                       size_t depth)
{
    if (count < 2)
        return;
    depth += order_common_length(b, items, count, depth);
    bool is_sorted = true;
    for (size_t i = 0; i < count; i++) {
        items[i].key = order_key(b, (uint32_t)items[i].name, depth);
        is_sorted = is_sorted && (i == 0 || items[i - 1].key <= items[i].key);
    }
    if (!is_sorted)
        qsort(items, count, sizeof(*items), compare_u64); /* by the key */

    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && items[end].key == items[i].key; end++)
            ;
        order_sort(b, items + i, end - i, depth + 8);
    }
}

/* ---- the tree ---- */

/*
 * Group names by parent, in the order in which they were added. Those of `p` end up in
 * by_parent[ends[p - 1] .. ends[p]). Both arrays have one item for each name.
 */
static void order_group_children(const struct builder *b, uint32_t *by_parent, uint32_t *ends)
{
    size_t count = b->names.count;
    memset(ends, 0, count * sizeof(*ends));
    for (size_t i = 1; i < count; i++)
        ends[b->names.at[i].parent]++;
    uint32_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t n = ends[i];
        ends[i] = sum;
        sum += n;
    }
    for (size_t i = 1; i < count; i++)
        by_parent[ends[b->names.at[i].parent]++] = (uint32_t)i;
}

/* Room for the largest directory. */
static struct sort_item *order_room(const struct builder *b)
{
    uint64_t largest = 1;
    for (size_t i = 0; i < b->inodes.count; i++)
        if (is_directory_inode(b, (uint32_t)i) && b->inodes.at[i].data > largest)
            largest = b->inodes.at[i].data;
    return calloc((size_t)largest, sizeof(struct sort_item));
}

/*
 * Append a directory's children to the order, sorted, and store in the directory
 * where they are, as its entry on disk will.
 */
static void order_place_children(struct builder *b, struct builder_inode *dir,
                                 const uint32_t *children, struct sort_item *items,
                                 uint32_t *name_at, uint32_t placed)
{
    uint32_t count = (uint32_t)dir->data;
    for (uint32_t i = 0; i < count; i++)
        items[i].name = children[i];
    order_sort(b, items, count, 0);
    for (uint32_t i = 0; i < count; i++)
        name_at[placed + i] = (uint32_t)items[i].name;
    dir->data = placed | (uint64_t)count << 32;
    dir->size = 0;
    for (uint32_t i = placed; i < placed + count; i++)
        dir->size += is_directory_inode(b, b->names.at[name_at[i]].inode);
}

int builder_number(struct builder *b, uint32_t *name_at)
{
    size_t count = b->names.count;
    auto_free uint32_t *by_parent = calloc(count, sizeof(*by_parent));
    auto_free uint32_t *ends = calloc(count, sizeof(*ends));
    auto_free struct sort_item *items = order_room(b);
    if (!by_parent || !ends || !items)
        return -ENOMEM;
    order_group_children(b, by_parent, ends);

    uint32_t placed = 1;
    name_at[0] = 0;
    for (uint32_t position = 0; position < placed; position++) {
        uint32_t name = name_at[position];
        uint32_t inode = b->names.at[name].inode;
        if (!is_directory_inode(b, inode))
            continue;
        struct builder_inode *dir = &b->inodes.at[inode];
        uint32_t children = (uint32_t)dir->data;
        order_place_children(b, dir, by_parent + (ends[name] - children), items, name_at,
                             placed);
        placed += children;
        if (vector_push(&b->dirs, htole32(position)) < 0)
            return -ENOMEM;
    }
    return 0;
}
