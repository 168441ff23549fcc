/*
 * The digest that identifies a dataset: XXH3-128 over the names and the data of a tree, in the
 * order of its index. The place of the bytes, their compression and alignment, owners, modes
 * and times do not count: the same files give the same digest. onepot-archive(5) specifies the
 * exact bytes that are hashed.
 *
 *     digest_begin(&d, with_sums);
 *     for each entry, in the order of the index:  digest_add(&d, &entry);
 *     digest_end(&d, bytes);
 *
 * Threads: a digest belongs to one thread.
 */
#ifndef ONEPOT_DIGEST_H
#define ONEPOT_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"

struct digest {
    void *state;
    bool sums;
};

struct digest_entry {
    const char *name;
    size_t name_len;
    uint32_t mode;       /* only its type counts */
    uint64_t size, data; /* as in the entry on disk (index_format.h) */
    uint64_t sum;        /* regular file */
    const char *target;  /* symbolic link */
};

/*
 * Begin a digest of names, types, modes and content; without `sums`, of sizes (DIGEST_SIZES).
 * -ENOMEM.
 */
int digest_begin(struct digest *digest, bool sums);
void digest_add(struct digest *digest, const struct digest_entry *entry);

/* Return the digest and release `digest`. `ret_bytes` may be NULL, to discard the result. */
void digest_end(struct digest *digest, uint8_t ret_bytes[INDEX_DIGEST_BYTES]);

#endif
