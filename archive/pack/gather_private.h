/*
 * Shared by gathering from a directory and gathering from an archive.
 */
#ifndef ONEPOT_GATHER_PRIVATE_H
#define ONEPOT_GATHER_PRIVATE_H

#include <sys/types.h>

#include "gather.h"

/* Allocates a fault about `path`; NULL: no memory. */
struct fault *gather_fault(const char *path, int err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Leaves the member out. `err` is the system's answer. -ENOMEM. */
int gather_leave_out(struct gathered *g, int err, const char *what);

/*
 * Fills what could not be read of `len` bytes at `offset` with zeros, and reports that. `got`:
 * number of bytes read, or the error. -ENOMEM.
 */
int gather_fill_up(const char *path, uint8_t *bytes, size_t len, ssize_t got, uint64_t offset,
                   struct fault **problem);

struct extent_list {
    struct pax_extent *extents;
    size_t count, capacity;
};

int gather_add_extent(struct extent_list *list, uint64_t offset, uint64_t end);

/* Makes the member's stream from the extents and *fd (-1: none), and takes both. -ENOMEM. */
int gather_open_stream(struct gathered *g, int *fd, struct extent_list *list);

/*
 * gather_input.c: gathers from from->input, like gather_member; with `has_turn`, like
 * gather_data.
 */
int gather_from_input(const struct gather_from *from, struct gathered *g, bool has_turn);

/*
 * Reads from the file at a position of an archive. Returns the bytes read, fewer than `len`
 * only at the file's end, or -errno.
 */
ssize_t gather_read_input(const struct input *input, uint32_t position, uint8_t *bytes,
                          size_t len, uint64_t offset);

#endif
