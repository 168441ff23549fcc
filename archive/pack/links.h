/*
 * Files with several names that were packed already: a table from (device, inode) to the path
 * of the first name.
 *
 * Threads: one at a time.
 */
#ifndef ONEPOT_LINKS_H
#define ONEPOT_LINKS_H

#include <stddef.h>
#include <stdint.h>

struct link {
    uint64_t dev;
    uint64_t ino;
    char *path; /* NULL: a free slot */
    size_t path_len;
};

struct links { /* all zero: empty */
    struct link *table;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
};

void links_free(struct links *links);

/* The path that was added for the file, or NULL. Valid until the next links_add. */
const struct link *links_find(const struct links *links, uint64_t dev, uint64_t ino);

/* Copies the path. -ENOMEM. */
int links_add(struct links *links, uint64_t dev, uint64_t ino, const char *path, size_t len);

#endif
