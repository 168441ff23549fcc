/*
 * Copied entries, when the image is written: see builder_copy.c. For the builder's own files
 * only. All return 0, -EUCLEAN, -EOVERFLOW, -ENOMEM or errors of writing.
 */
#ifndef ONEPOT_BUILDER_COPY_PRIVATE_H
#define ONEPOT_BUILDER_COPY_PRIVATE_H

#include "builder_image.h"

uint32_t copying_entries(const struct builder_copying *copying);

/* Entries, names and sums; in this order. The first also finds extras, directories, digest. */
int copying_put_entries(struct image *image);
int copying_put_names(struct image *image);
int copying_put_sums(struct image *image);

/* Record that the entry at hand is damaged. -EUCLEAN. */
int copying_damaged(const struct builder_copying *copying, struct fault *fault);

void copying_free(struct builder_copying *copying); /* NULL is fine */

#endif
