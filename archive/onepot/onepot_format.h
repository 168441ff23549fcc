/*
 * onepot's own archive: a pax tar, its end-of-archive marker, then the index and a
 * footer, on tar record boundaries. man/onepot-archive.5 is the specification; this
 * header has what the packer needs of it. The reader's side is the back end.
 */
#ifndef ONEPOT_FORMAT_H
#define ONEPOT_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "builder.h"
#include "fault.h"
#include "index.h"
#include "source.h"

#define ONEPOT_RECORD_BYTES 10240u /* tar's record: 20 blocks of 512 */
#define ONEPOT_MARKER_BYTES 1024u  /* the end-of-archive marker: two blocks of zeros */

/* What the packer knows when the tar is complete. */
struct onepot_tar {
    uint64_t end_marker_offset; /* of the first of the two zero blocks */
    uint64_t tar_bytes;         /* marker and padding included: a multiple of the record */
    bool zstd;                  /* it is in zstd frames */
    uint64_t archive_bytes;     /* what it takes in the file; without zstd: tar_bytes */
    /*
     * The longest skippable frame with a piece of the index, its header included: a multiple
     * of 64 KB, at least two; 0: DISK_STRIDE_MAX.
     */
    uint64_t stride;
    uint8_t identifier[16]; /* XXH3-128 of headers and sums, see the manual */
};

/*
 * Append index and footer to a tar of `tar->archive_bytes` bytes in `fd`. Fills format,
 * identifier, archive_bytes and end_marker_offset of *header itself; archive_bytes is
 * the tar alone, so that no member's data can overlap the index. The same members and
 * the same tar give the same bytes. Errors: those of builder_write and pwrite(2).
 */
int onepot_format_append(struct builder *builder, struct builder_header *header, int fd,
                         const struct onepot_tar *tar, struct fault *fault,
                         uint64_t *ret_file_bytes);

/*
 * Everything behind the tar of an archive whose index was found in it and opened: footer,
 * index, and the fixed bytes around them. -ENOENT: it has no trailer; -ESTALE, -EUCLEAN:
 * see struct backend's `find`. With coverage.h that is the whole file.
 */
int onepot_check_trailer(struct source *source, const struct index *index, struct fault *fault);

#endif
