/*
 * The index, reading side: many files at once.
 *
 * To make a table of ten million files, a caller would ask for the inode and for the first
 * extent of each, which check the same pages and decode the same attributes again and again.
 * Neighbours mostly share their attributes, so these are examined once for a run of files.
 * That leaves only the size and the place of each file, and whether both can be true.
 */
#include <endian.h>
#include <errno.h>
#include <sys/stat.h>

#include "index_private.h"

/* The general way, which also handles entries that are not files. */
static int index_file_look_up(const struct index *index, uint32_t position,
                              struct index_file *ret_file)
{
    struct node node;
    struct extent extent;
    int r = index_node(index, position, &node);
    if (r < 0)
        return r;
    *ret_file = (struct index_file){.mode = node.mode, .offset = INDEX_FILE_IN_PIECES};
    if (!S_ISREG(node.mode))
        return 0;
    ret_file->size_bytes = node.size_bytes;
    if (node.size_bytes == 0)
        ret_file->offset = 0;
    else if (index_extent(index, position, 0, &extent) == 0 && extent.kind == EXTENT_STORED &&
             extent.length >= node.size_bytes)
        ret_file->offset = extent.source_offset;
    return 0;
}

/* Does this record of ATTRS describe regular files that are stored in one piece? */
static bool index_file_is_plain(const struct index *index, uint64_t attr)
{
    const struct disk_attr *a =
        index_bytes(index, SECTION_ATTRS, attr * sizeof(*a), sizeof(*a));
    return a && S_ISREG(le32toh(a->mode)) &&
           (le32toh(a->flags) & DATA_KIND_MASK) == DATA_KIND_STORED;
}

/* False: the entry is damaged. */
static bool index_file_read_plain(const struct index *index, const struct disk_entry *e,
                                  uint32_t mode, struct index_file *ret_file)
{
    uint64_t size = le64toh(e->size), offset = le64toh(e->data);
    uint64_t archive_bytes = index->info.archive_bytes;
    if (e->mtime == 0 || size > INT64_MAX || size > archive_bytes)
        return false;
    if (size == 0)
        offset = 0;
    else if (offset > archive_bytes || size > archive_bytes - offset)
        offset = INDEX_FILE_IN_PIECES;
    *ret_file = (struct index_file){.mode = mode, .size_bytes = size, .offset = offset};
    return true;
}

int index_files(const struct index *index, uint32_t first, uint32_t count,
                struct index_file *ret_files)
{
    if (first >= index->info.entries || count > index->info.entries - first)
        return -EINVAL;
    const struct disk_entry *e =
        count ? index_bytes(index, SECTION_ENTRIES, (uint64_t)first * sizeof(*e),
                            (uint64_t)count * sizeof(*e))
              : NULL;
    uint64_t plain = UINT64_MAX; /* the attributes of the last plain file */
    uint32_t mode = 0;
    if (count && !e)
        return -EUCLEAN;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t attr = le64toh(e[i].name_attr) >> DISK_NAME_BITS;
        if (attr == plain) {
            if (!index_file_read_plain(index, &e[i], mode, &ret_files[i]))
                return -EUCLEAN;
            continue;
        }
        int r = index_file_look_up(index, first + i, &ret_files[i]);
        if (r < 0)
            return r;
        if (index_file_is_plain(index, attr)) {
            plain = attr;
            mode = ret_files[i].mode;
        }
    }
    return 0;
}
