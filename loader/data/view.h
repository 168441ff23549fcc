/*
 * Functions on archives for the files of this folder, beyond onepot.h. `sample` must be below
 * the number of samples.
 */
#ifndef ONEPOT_VIEW_H
#define ONEPOT_VIEW_H

#include "dataset.h"

/* Another handle for the same samples, to be closed by the caller. NULL: no memory. */
struct onepot_archive *archive_share(const struct onepot_archive *archive);

int archive_name(const struct onepot_archive *archive, uint64_t sample, char *buf, size_t size,
                 size_t *ret_len);
/*
 * May all of the sample be brought into memory? -EFBIG and the record that is mostly holes;
 * -EUCLEAN.
 */
int archive_check(const struct onepot_archive *archive, uint64_t sample, uint64_t *ret_record);

uint64_t archive_size(const struct onepot_archive *archive, uint64_t sample);

#endif
