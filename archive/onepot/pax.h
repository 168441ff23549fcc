/*
 * Headers of POSIX tar members: plain ustar where everything fits, otherwise with a pax
 * extended header in front.
 *
 *     struct pax_buffer out = {0};
 *     pax_encode(&member, &out);       what comes before the member's data
 *     ... pax_stored_bytes(&member) bytes of data, zeros up to a multiple of 512 ...
 *     vector_free(&out);
 *
 * GNU tar, bsdtar and Python's tarfile all restore the result without a message, whatever the
 * locale. man/onepot-archive.5 says which forms are used, and why.
 */
#ifndef ONEPOT_PAX_H
#define ONEPOT_PAX_H

#include <stddef.h>
#include <stdint.h>

#include "builder.h"
#include "vector.h"

#define PAX_BLOCK_BYTES 512u

/* Attributes, each with its name and value in one piece of memory. All zero: none. */
typedef VECTOR(struct xattr) pax_xattrs;

int pax_xattrs_add(pax_xattrs *list, const char *name, size_t name_len, const void *value,
                   size_t value_len);   /* -ENOMEM */
void pax_xattrs_sort(pax_xattrs *list); /* by name */
void pax_xattrs_free(pax_xattrs *list); /* may be used again */

/* A vector of bytes. */
struct pax_buffer {
    uint8_t *at;
    size_t count, capacity;
};

/*
 * Appends everything that comes before the member's data: extended headers, the header, and the
 * map of a sparse file's data. The length is a multiple of 512 bytes. -ENOMEM; -EINVAL: a tar
 * can't hold this type of file (a socket); -EOVERFLOW. On failure the buffer is unchanged.
 */
int pax_encode(const struct node *member, struct pax_buffer *buffer);

/*
 * Aligns a member's data. `buffer` is pax_encode's result for one member and lies at `offset`
 * of the tar. Its extended header is lengthened, or added, so that the data behind it begins at
 * a multiple of `align_bytes`, a power of two of at least 512. -ENOMEM: the buffer is
 * unchanged.
 */
int pax_align(struct pax_buffer *buffer, uint64_t offset, uint32_t align_bytes);

/* Number of bytes of data that follow: the size, or the sum of a sparse file's pieces. */
uint64_t pax_stored_bytes(const struct node *member);

/* Number of zeros that follow `stored` bytes of data, up to the next block. */
static inline uint32_t pax_padding(uint64_t stored)
{
    return (uint32_t)(-stored & (PAX_BLOCK_BYTES - 1));
}

#endif
