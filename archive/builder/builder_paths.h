/*
 * Paths of the builder: see builder_paths.c. For the builder's own files only.
 */
#ifndef ONEPOT_BUILDER_PATHS_H
#define ONEPOT_BUILDER_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "builder.h"

/* A path from a member or a link, for the functions that resolve it. */
struct place {
    const char *path;
    size_t len;
    uint64_t header_offset;
    struct fault *fault;
    /* For directories that no member announced. */
    uint32_t uid, gid;
    int64_t mtime_sec;
    uint32_t mtime_nsec;
};

/* The result of resolving a path. */
struct spot {
    uint32_t dir;     /* its directory, as a name */
    const char *name; /* its last part, within place->path; the root has none (len 0) */
    size_t len;
    uint32_t hash;  /* of `name` in `dir` */
    uint32_t found; /* the name already there, or 0: none, or the root */
};

/* Record a fault of the member at `place`; returns `err`. */
int builder_refuse(const struct place *place, int err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Resolve a path. `create` creates missing directories on its way; without it they are
 * -ENOENT. Other errors: see builder_add; -ELOOP: too many symbolic links.
 */
int builder_locate(struct builder *b, const struct place *place, bool create,
                   struct spot *ret_spot);

/* Length of the spot's path from the root. */
uint64_t builder_path_bytes(const struct builder *b, const struct spot *spot);

/* Name `inode` at the spot, which must be free. -EOVERFLOW, -ENAMETOOLONG, -ENOMEM. */
int builder_new_name(struct builder *b, const struct place *place, const struct spot *spot,
                     uint32_t inode);

/* Call after a name got another inode: paths through it may lead elsewhere now. */
void builder_forget_path(struct builder *b);

/* Encode an entry's time as on disk. Returns whether only EXTRA can hold it. */
bool builder_pack_mtime(int64_t sec, uint32_t nsec, uint64_t *ret_mtime);

#endif
