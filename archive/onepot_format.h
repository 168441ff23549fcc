/*
 * onepot's own archive: a pax tar, its end-of-archive marker, then the index and a
 * footer, on tar record boundaries. man/onepot-archive.5 is the specification; this
 * header has what the packer needs of it. The reader's side is the back end.
 */
#ifndef ONEPOT_FORMAT_H
#define ONEPOT_FORMAT_H

#include <stdint.h>

#include "builder.h"
#include "fault.h"

#define ONEPOT_RECORD_BYTES 10240u /* tar's record: 20 blocks of 512 */

/*
 * Append index and footer to a tar that ends with its end-of-archive marker.
 * `end_marker_offset` is where the first of its two zero blocks lies; `tar_bytes`,
 * a multiple of ONEPOT_RECORD_BYTES, is where the index goes. Fills identifier,
 * archive_bytes and end_marker_offset of *header itself: the identifier is a hash of
 * the members, so that the same input gives the same bytes.
 */
int onepot_format_append(struct builder *builder, struct builder_header *header, int fd,
                         uint64_t end_marker_offset, uint64_t tar_bytes, struct fault *fault,
                         uint64_t *ret_file_bytes);

#endif
