/*
 * Shared by the files of the index: the opened image, and the only access to its bytes.
 *
 * That access is index_bytes(): it checks that a range lies within its section, and the sums
 * of the pages that it touches. A caller that reads a number there must still check its value.
 */
#ifndef ONEPOT_INDEX_PRIVATE_H
#define ONEPOT_INDEX_PRIVATE_H

#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"
#include "index_format.h"
#include "lost_pages.h"

struct index_section {
    const uint8_t *bytes;
    uint64_t area_offset;
    uint64_t length;
};

struct index {
    struct index_info info;
    struct index_section sections[SECTION_IDS];
    uint32_t dirs;
    uint32_t blocks;
    uint64_t extras;
    uint64_t points;

    const uint8_t *area;
    uint64_t area_bytes;
    const uint64_t *page_sums;
    _Atomic uint8_t *page_good; /* one per page: 1 once its sum was found right */
    _Atomic uint8_t *dir_good;  /* one bit per entry: its children were found to be its own */

    const uint8_t *image;
    uint64_t offset; /* of the image in its file, for messages */

    void *map; /* the image, from the memory page in which it starts */
    size_t map_bytes;
    struct lost_pages *guard; /* of the map */
    void *copy;               /* of the image, if it is not mapped */
};

/* Compare a page with its sum; false if it is damaged. */
bool index_check_page(const struct index *index, uint64_t page);

/* `len` (> 0) bytes at `offset` of a section, or NULL if they can't be trusted. */
static inline const void *index_bytes(const struct index *index, enum disk_section_id id,
                                      uint64_t offset, uint64_t len)
{
    const struct index_section *section = &index->sections[id];
    if (offset > section->length || len > section->length - offset || len == 0 ||
        lost_pages_any(index->guard))
        return NULL;
    uint64_t first = (section->area_offset + offset) >> DISK_PAGE_BITS;
    uint64_t last = (section->area_offset + offset + len - 1) >> DISK_PAGE_BITS;
    for (uint64_t page = first; page <= last; page++)
        if (!atomic_load_explicit(&index->page_good[page], memory_order_acquire) &&
            !index_check_page(index, page))
            return NULL;
    return section->bytes + offset;
}

/* An entry, as far as all callers need it in host order. */
struct index_entry {
    uint32_t position;
    uint32_t mode;
    uint32_t flags;
    uint64_t size;
    uint64_t data;
    const struct disk_entry *disk;
    const struct disk_attr *attr;
};

/* The entry at a position. -EINVAL: no such position; -EUCLEAN. */
int index_entry(const struct index *index, uint32_t position, struct index_entry *ret_entry);

/* The same for its inode, following an alias. */
int index_inode(const struct index *index, uint32_t position, struct index_entry *ret_entry);

/* A value from EXTRA. -EUCLEAN if it is missing, as the attributes promised it. */
int index_extra(const struct index *index, uint32_t position, enum disk_extra_kind kind,
                uint64_t *ret_value);

#endif
