/*
 * The digest that identifies a dataset: XXH3-128 over the names, types, modes and data of a
 * tree, in the order of its index. The format of the archive, the place of the bytes, their
 * compression and alignment, owners and times do not count. onepot-archive(5) specifies the
 * exact bytes that are hashed.
 *
 *     digest_begin(&d, with_sums);
 *     for each entry, in the order of the index:  digest_add(&d, &entry);
 *     kind = digest_end(&d, bytes);
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
    bool sums, has_holes;
};

struct digest_entry {
    const char *name;
    size_t name_len;
    uint32_t mode;       /* a symbolic link's permissions do not count */
    uint64_t size, data; /* as in the entry on disk (index_format.h) */
    uint64_t sum;        /* regular file: XXH3-64 of its bytes, */
    bool has_holes;      /* but not of its holes */
    const char *target;  /* symbolic link */
};

/*
 * Begin a digest of names, types, modes and content; without `sums`, of sizes (the kind will be
 * DIGEST_SIZES).
 * -ENOMEM.
 */
int digest_begin(struct digest *digest, bool sums);
void digest_add(struct digest *digest, const struct digest_entry *entry);

/* Release `digest` and return its kind. `ret_bytes` may be NULL, to discard the result. */
enum digest_kind digest_end(struct digest *digest, uint8_t ret_bytes[INDEX_DIGEST_BYTES]);

#endif
