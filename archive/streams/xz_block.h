/*
 * One block of an xz file, decompressed alone. It begins with a header that names its filters;
 * the sum behind it is of the kind that the stream's header names.
 *
 * Threads: none is needed, any may call.
 */
#ifndef ONEPOT_XZ_BLOCK_H
#define ONEPOT_XZ_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#define XZ_NO_CHECK 0u /* leave out the sum: `packed` ends before it */

/*
 * Decompresses a block into exactly `len` bytes; it has to be exactly `packed_len` bytes long.
 * Takes as much memory again as `len`, whatever the header claims. -EUCLEAN: it is damaged;
 * -ENOTSUP: by a filter that this liblzma lacks; -ENOMEM.
 */
int xz_block_unpack(const uint8_t *packed, size_t packed_len, unsigned check, uint8_t *out,
                    size_t len);

#endif
