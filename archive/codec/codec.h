/*
 * Decompresses one block, for every codec that an index can name. Libraries are called with
 * whole blocks on both sides, never as streams. A part of a longer stream is a block, too; then
 * the index says what came before it (struct block_point).
 *
 * Threads: a codec context belongs to one thread at a time.
 */
#ifndef ONEPOT_CODEC_H
#define ONEPOT_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"

/* Was support for this codec built in? */
bool codec_available(enum codec codec);
const char *codec_name(enum codec codec); /* "zstd"; "none" */

/* The most bytes that a block may decompress to. */
#define CODEC_BLOCK_MAX (64u << 20)
uint32_t codec_block_max(enum codec codec);

/*
 * For blocks of all codecs. `skip_sums`: do not compare the sums inside blocks (zstd's), nor a
 * part's with its point: for callers that have better ones. -ENOMEM.
 */
struct codec_context;
int codec_context_new(bool skip_sums, struct codec_context **ret_context);
void codec_context_free(struct codec_context *context);

/*
 * Decompresses a part of a longer stream, for codecs with codec_has_point, into exactly `size`
 * bytes, and compares them with the point's sum (unless those are skipped). -EUCLEAN,
 * -ENOTSUP, -ENOMEM.
 */
int codec_unpack_part(struct codec_context *context, enum codec codec,
                      const struct block_point *point, const void *packed, size_t packed_len,
                      void *block, size_t size);

/*
 * Decompresses only the first `len` bytes of such a part of `size` bytes, whole pieces of it
 * (point_piece_bytes), and compares them with the sums of the pieces. -ENOTSUP: there are none,
 * or the codec can't do that. -EUCLEAN, -ENOMEM.
 */
int codec_unpack_start(struct codec_context *context, enum codec codec,
                       const struct block_point *point, const void *packed, size_t packed_len,
                       void *block, size_t len, size_t size);

/*
 * Decompresses `packed` into `block` (capacity `size`). Returns 0 and the length, or -EUCLEAN
 * (not valid, or larger than `size`), -ENOTSUP (CODEC_UNSUPPORTED), -ENOMEM. CODEC_ZIP_LZMA
 * need not tell where it ends: bytes beyond `size` are cut off.
 */
#define CODEC_UNSUPPORTED                                                                      \
    "it is compressed with a dictionary above 1.5 GiB, or a filter that is not built in"
#define CODEC_UNSUPPORTED_ADVICE "extract it with the program that packed it, and pack it anew"
int codec_unpack(struct codec_context *context, enum codec codec, const void *packed,
                 size_t packed_len, void *block, size_t size, size_t *ret_len);

/* CODEC_BZIP2_FILE, where libbz2 is built in. -ENOSPC: it is longer than `room`. */
int bzip2_file_unpack(const uint8_t *packed, size_t packed_len, uint8_t *out, size_t room,
                      size_t *ret_len);

#endif
