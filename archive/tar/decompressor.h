/*
 * Decompresses a stream once, from front to back: zstd by its own library, as libarchive
 * refuses large windows; gzip by zlib, as libarchive does not compare its sums (it does the
 * work where zlib is not built in); all else by libarchive's filters, none of which starts a
 * program.
 *
 * Threads: one at a time. Libraries get bytes of unknown origin here: in a sandbox only.
 */
#ifndef ONEPOT_DECOMPRESSOR_H
#define ONEPOT_DECOMPRESSOR_H

#include <stddef.h>
#include <sys/types.h>

#include "fault.h"

struct decompressor;

/*
 * The next compressed bytes, from the first on; they must stay until a call that has more.
 * Returns how many, 0 at the end, or -errno with the fault set.
 */
typedef ssize_t decompressor_feed(void *ctx, const void **ret_bytes);

/*
 * `compression` as of tar_is_packed, whose string is kept. -ENOTSUP: this libarchive can't
 * decompress it; -EUCLEAN; -ENOMEM; errors of the feed.
 */
int decompressor_new(const char *compression, decompressor_feed *feed, void *ctx,
                     struct fault *fault, struct decompressor **ret_decompressor);

/*
 * Returns `len` bytes, fewer only at the end, where all sums that were compared were right, and
 * all was read: behind gzip and bzip2 bytes of another kind are ignored, as these programs do,
 * and zeros behind each. -EUCLEAN: damaged, cut off, or followed by what libarchive does not
 * read, as streams of lz4 behind an empty one; -ENOTSUP: zstd wants a dictionary, or a window
 * larger than memory; -ENOMEM; errors of the feed.
 */
ssize_t decompressor_read(struct decompressor *d, void *bytes, size_t len);
void decompressor_free(struct decompressor *d); /* NULL is fine */

#endif
