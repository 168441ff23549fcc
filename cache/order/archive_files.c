#include "archive_files.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cleanup.h"

struct file {
    uint64_t offset;
    uint32_t position;
    uint32_t in_block; /* order among the files of one compressed block */
};

static int first_extent(const struct index *index, uint32_t position, struct extent *ret_extent)
{
    int r = index_extent(index, position, 0, ret_extent);

    if (r == 0 && ret_extent->kind == EXTENT_HOLE)
        r = index_extent(index, position, ret_extent->length, ret_extent);
    return r == 0 && ret_extent->kind == EXTENT_HOLE ? -ENXIO : r;
}

int archive_files_offset(const struct index *index, uint32_t position, uint64_t *ret_offset)
{
    struct extent extent;
    int r = first_extent(index, position, &extent);

    if (r == 0)
        *ret_offset = extent.source_offset;
    return r;
}

static int archive_files_compare(const void *a, const void *b)
{
    const struct file *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->in_block > y->in_block) - (x->in_block < y->in_block);
}

static uint32_t archive_files_collect(const struct index *index, struct file *files)
{
    uint32_t entries = index_info(index)->entries, count = 0;
    struct extent extent;
    struct node node;

    for (uint32_t i = 0; i < entries; i++) {
        if (index_node(index, i, &node) < 0 || !S_ISREG(node.mode) || node.position != i ||
            first_extent(index, i, &extent) < 0)
            continue;
        files[count++] = (struct file){extent.source_offset, i,
                                       extent.kind == EXTENT_BLOCK ? extent.block_offset : 0};
    }
    return count;
}

int archive_files_new(const struct index *index, uint64_t most_bytes,
                      struct known_reads **ret_order)
{
    uint32_t entries = index_info(index)->entries;

    if (entries > most_bytes / sizeof(struct file))
        return -E2BIG;
    auto_free struct file *files = malloc((size_t)entries * sizeof(*files));
    auto_free uint32_t *positions = malloc((size_t)entries * sizeof(*positions));
    if (!files || !positions)
        return -ENOMEM;
    uint32_t count = archive_files_collect(index, files);
    qsort(files, count, sizeof(*files), archive_files_compare);
    for (uint32_t i = 0; i < count; i++)
        positions[i] = files[i].position;
    return known_reads_listed(steal_ptr(&positions), count, ret_order);
}
