/*
 * Decompresses one block, for every codec that an index can name. Libraries are called with
 * whole blocks on both sides, never as streams.
 *
 * Threads: a codec context belongs to one thread at a time.
 */
#ifndef ONEPOT_CODEC_H
#define ONEPOT_CODEC_H

#include <stdbool.h>
#include <stddef.h>

#include "index.h"

/* Was support for this codec built in? */
bool codec_available(enum codec codec);
const char *codec_name(enum codec codec); /* "zstd"; "none" */

struct codec_context;
int codec_context_new(enum codec codec, struct codec_context **ret_context);
void codec_context_free(struct codec_context *context);

/*
 * From now on, does not compare the sums inside blocks (zstd's), for callers that have better
 * ones. No effect for codecs without sums.
 */
void codec_context_skip_sums(struct codec_context *context);

/*
 * Decompresses `packed` into `block` (capacity `size`). Returns 0 and the length, or -EUCLEAN
 * (not valid, or larger than `size`), -ENOTSUP, -ENOMEM.
 */
int codec_unpack(struct codec_context *context, const void *packed, size_t packed_len,
                 void *block, size_t size, size_t *ret_len);

#endif
