/*
 * The image that the builder writes: see builder_image.c. For the builder's own files only.
 *
 *     image_begin_header(&image);
 *     for each section: image_begin_section(), image_put() ..., image_end_section()
 *                       or image_put_section() of one that lies in memory
 *     image_flush(&image);
 *     image_put_header(&image, &image_bytes);
 */
#ifndef ONEPOT_BUILDER_IMAGE_H
#define ONEPOT_BUILDER_IMAGE_H

#include "builder_private.h"

#define OUT_BYTES (16u * DISK_PAGE_BYTES)
#define SECTIONS_MAX (SECTION_IDS - 1)

struct image {
    struct builder *b;
    const struct builder_header *about;
    uint32_t entries;
    uint32_t *name_at; /* the name at each position; not of a copy */
    /* In the order of the entries, whenever the place of data became known; 0 is all zero. */
    struct attr_table attrs;
    VECTOR(struct disk_extra) extras;
    struct disk_header header;

    int fd;
    uint64_t offset; /* of the image in its file */
    uint8_t *buf;
    size_t used;
    uint64_t flushed; /* bytes of the area already written out */
    VECTOR(uint64_t) page_sums;
    VECTOR(struct disk_section) sections;
};

int image_put(struct image *image, const void *bytes, size_t len);
int image_begin_section(struct image *image, enum disk_section_id id);
void image_end_section(struct image *image);

/* Keep a value of SECTION_EXTRA, for the entry at this position. -ENOMEM. */
int image_add_extra(struct image *image, uint32_t position, uint32_t kind, uint64_t value);

/* Add to a total of the header. */
void image_add_saturated(uint64_t *sum, uint64_t value);

#endif
