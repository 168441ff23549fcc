#include "archive_files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cleanup.h"

#define NO_PLACE UINT32_MAX

struct archive_files {
    uint32_t count, entries;
    uint32_t *places; /* by position */
    uint32_t at[];    /* positions, by place; then come the places */
};

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
                      struct archive_files **ret_order)
{
    uint32_t entries = index_info(index)->entries;

    if (entries > most_bytes / sizeof(struct file))
        return -E2BIG;
    auto_free struct file *files = malloc((size_t)entries * sizeof(*files));
    struct archive_files *o = calloc(1, sizeof(*o) + 2 * (size_t)entries * sizeof(*o->at));
    if (!files || !o) {
        free(o);
        return -ENOMEM;
    }
    o->entries = entries;
    o->places = o->at + entries;
    o->count = archive_files_collect(index, files);
    qsort(files, o->count, sizeof(*files), archive_files_compare);
    memset(o->places, 0xff, (size_t)entries * sizeof(*o->places));
    for (uint32_t i = 0; i < o->count; i++) {
        o->at[i] = files[i].position;
        o->places[files[i].position] = i;
    }
    *ret_order = o;
    return 0;
}

void archive_files_free(struct archive_files *order)
{
    free(order);
}

uint32_t archive_files_count(const struct archive_files *order)
{
    return order->count;
}

uint32_t archive_files_at(const struct archive_files *order, uint32_t place)
{
    return order->at[place];
}

int archive_files_place(const struct archive_files *order, uint32_t position,
                        uint32_t *ret_place)
{
    if (position >= order->entries || order->places[position] == NO_PLACE)
        return -ENOENT;
    *ret_place = order->places[position];
    return 0;
}
