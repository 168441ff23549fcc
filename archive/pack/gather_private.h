/*
 * What gathering from a directory and gathering from an archive share.
 */
#ifndef ONEPOT_GATHER_PRIVATE_H
#define ONEPOT_GATHER_PRIVATE_H

#include <sys/types.h>

#include "gather.h"

/* A fault of its own about `path`; NULL when there is no memory for it. */
struct fault *gather_fault(const char *path, int err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The member is left out: `err` is what the system said to it. -ENOMEM. */
int gather_leave_out(struct gathered *g, int err, const char *what);

/*
 * Zeros for what could not be read of `len` bytes at `offset`, and a word about it: `got`
 * bytes are there, or it is the error. -ENOMEM.
 */
int gather_fill_up(const char *path, uint8_t *bytes, size_t len, ssize_t got, uint64_t offset,
                   struct fault **problem);

struct extent_list {
    struct pax_extent *extents;
    size_t count, capacity;
};

int gather_add_extent(struct extent_list *list, uint64_t offset, uint64_t end);

/* Make the member's stream of the extents, which it takes, and of *fd (-1: none). -ENOMEM. */
int gather_open_stream(struct gathered *g, int *fd, struct extent_list *list);

/* gather_input.c: as gather_member, and with `has_turn` as gather_data, from->input's. */
int gather_from_input(const struct gather_from *from, struct gathered *g, bool has_turn);

/* Bytes read from the file at a position of an archive: fewer only at its end. -errno. */
ssize_t gather_read_input(const struct input *input, uint32_t position, uint8_t *bytes,
                          size_t len, uint64_t offset);

#endif
