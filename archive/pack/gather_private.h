/*
 * Shared by gathering from a directory and gathering from an archive.
 */
#ifndef ONEPOT_GATHER_PRIVATE_H
#define ONEPOT_GATHER_PRIVATE_H

#include "gather.h"

/* Leaves the member out. `err` is the system's answer. -ENOMEM. */
int gather_leave_out(struct gathered *g, int err, const char *what);

/* Copies name and value. Afterwards gather_end_xattrs sorts them, as filesystems don't. */
int gather_add_xattr(struct gathered *g, const char *name, size_t name_len, const void *value,
                     size_t value_len);
void gather_end_xattrs(struct gathered *g);

/*
 * Reads a regular file's data, or makes a stream for it, which takes file->fd. Extents are
 * those of a sparse member; they are taken. -ENOMEM.
 */
int gather_content(struct gathered *g, struct gather_file *file, gather_extents *extents);

/*
 * gather_input.c: gathers from from->input, like gather_member; with `has_turn`, like
 * gather_data.
 */
int gather_from_input(const struct gather_from *from, struct gathered *g, bool has_turn);

#endif
