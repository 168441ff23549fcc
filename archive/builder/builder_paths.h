/*
 * The builder, paths: see builder_paths.c. For the files of the builder alone.
 */
#ifndef ONEPOT_BUILDER_PATHS_H
#define ONEPOT_BUILDER_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "builder.h"

/* A path, as a member or a link gave it, for the functions that find its place. */
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

/* What a path leads to. */
struct spot {
    uint32_t dir;     /* the name of its directory */
    const char *name; /* its last part, within place->path; without one (len 0) the root */
    size_t len;
    uint32_t hash;  /* of `name` in `dir` */
    uint32_t found; /* the name that has it already, or 0: none, or the root */
};

/* Record a fault of the member at `place`; returns `err`. */
int builder_refuse(const struct place *place, int err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Find where a path leads. With `create` the directories on its way come into being; without,
 * -ENOENT if one is missing. Refused: see builder_add; -ELOOP: too many symbolic links.
 */
int builder_locate(struct builder *b, const struct place *place, bool create,
                   struct spot *ret_spot);

/* How long the spot's path is, from the root. */
uint64_t builder_path_bytes(const struct builder *b, const struct spot *spot);

/* Give the spot, which is nobody's, a name for `inode`. -EOVERFLOW, -ENAMETOOLONG, -ENOMEM. */
int builder_new_name(struct builder *b, const struct place *place, const struct spot *spot,
                     uint32_t inode);

/* A name has another inode now: paths that led through it may lead elsewhere. */
void builder_forget_path(struct builder *b);

/* An entry's time as on disk, and whether it is one that only EXTRA can hold. */
bool builder_pack_mtime(int64_t sec, uint32_t nsec, uint64_t *ret_mtime);

#endif
