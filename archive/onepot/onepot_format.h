/*
 * onepot's own archive: a pax tar with its end-of-archive marker, then the index and a footer,
 * on tar record boundaries. man/onepot-archive.5 is the specification. This header is the
 * packer's side; the reader's side is the back end.
 */
#ifndef ONEPOT_FORMAT_H
#define ONEPOT_FOOTER_VERSION 1u /* of archives; the index has another */
#define ONEPOT_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "builder.h"
#include "fault.h"
#include "index.h"
#include "source.h"

#define ONEPOT_RECORD_BYTES 10240u /* tar's record: 20 blocks of 512 */
#define ONEPOT_FOOTER_MAGIC "onepotFT"
#define ONEPOT_FOOTER_BYTES 512u
#define ONEPOT_MARKER_BYTES 1024u /* the end-of-archive marker: two blocks of zeros */

/*
 * The longest index of a compressed archive: it lies in one skippable frame, which ends before
 * 4 GiB. That is enough for some 80 million members.
 */
#define ONEPOT_ZSTD_INDEX_MAX ((UINT64_C(1) << 32) - (1u << 17))

/*
 * Appends index and footer to the tar in `fd`, which takes header->archive_bytes bytes there.
 * It is compressed if header->codec is CODEC_ZSTD. `tar_bytes` is its own length, with marker
 * and padding: a multiple of the record. The caller also sets end_marker_offset (of the first
 * of the two zero blocks) and identifier; the format is set here. header->archive_bytes is the
 * tar alone, so that no member's data can overlap the index. The same members and the same tar
 * give the same bytes. Errors: builder_write's and pwrite(2)'s.
 */
int onepot_format_append(struct builder *builder, struct builder_header *header,
                         uint64_t tar_bytes, int fd, struct fault *fault,
                         uint64_t *ret_file_bytes);

/*
 * Checks everything behind the tar: footer, index, and the fixed bytes around them. `index`
 * must be the one that was found in this archive. -ENOENT: the archive has no trailer. -ESTALE,
 * -EUCLEAN: see `find` of struct backend_trailer. With index_window_sum this checks the whole
 * file.
 */
int onepot_check_trailer(struct source *source, const struct index *index, struct fault *fault);

#endif
