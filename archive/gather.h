/*
 * One name of a source tree becomes a member: attributes, extended attributes, target
 * of a link, data. What can't be had becomes a fault that says so, and the packer
 * goes on without it.
 *
 * Threads: any number may gather at once.
 */
#ifndef ONEPOT_GATHER_H
#define ONEPOT_GATHER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "folder.h"
#include "pax.h"

/* A file's data up to this size comes with the member, larger ones in pieces of it. */
#define GATHER_PIECE_BYTES (1u << 20)

/* A file whose data comes in pieces. Freed by stream_free. */
struct stream {
    int fd;
    char *path;
    struct pax_extent *extents; /* what is to be read; without holes it is one */
    size_t extent_count;
    size_t extent; /* the piece to be read next */
    uint64_t done;
    uint64_t size_bytes;
    unsigned refs; /* for the caller, and so is: */
    bool told;     /* what was wrong with it */
};

struct gathered {
    bool skip;                /* there is no member: a socket, or something that failed */
    struct pax_member member; /* points into the fields below */
    struct pax_buffer header; /* encoded; empty where `again` is set */
    uint8_t *data;            /* the whole data, or NULL */
    uint64_t sum;             /* its XXH3-64 */
    struct stream *stream;    /* where the data comes in pieces */

    /* A directory: what is below it. */
    bool is_folder;
    int fd;
    struct listing listing;

    uint64_t dev, ino, nlink;
    bool again; /* several names, not read yet: gather_data, if it is the first of them */

    struct fault *problem; /* skipped or not what it was: makes the exit status 1 */
    struct fault *note;    /* for information */

    char *path;
    char *link;
    struct pax_xattr *xattrs;
};

/*
 * Gather `path`, whose last component is `name`, of kind `type` (DT_*), in the folder
 * behind `folder_fd`. A source itself comes opened, as `opened_fd` (else -1), which is
 * taken, and so is `path` (from malloc). Only -ENOMEM is an error; all else is told in
 * *ret, which has to be freed in any case.
 */
int gather_member(int folder_fd, const char *name, unsigned char type, int opened_fd,
                  char *path, size_t path_len, struct gathered *ret);

/* In place of a member that can't be reached: `err` is why. Takes `path`. -ENOMEM. */
int gather_nothing(char *path, int err, struct gathered *ret);

/* Read what gather_member left because the inode has several names. -ENOMEM. */
int gather_data(int folder_fd, const char *name, struct gathered *g);

void gather_free(struct gathered *g);

/* The next piece: false at the end. One thread at a time. */
bool stream_next(struct stream *stream, uint64_t *ret_offset, size_t *ret_len, bool *ret_last);

/*
 * Read a piece. What is no longer there becomes zeros and a fault through *ret_problem
 * (from malloc). With `last` it is also seen whether the file grew. -ENOMEM.
 */
int stream_read(const struct stream *stream, uint64_t offset, size_t len, bool last,
                uint8_t *bytes, struct fault **ret_problem);
void stream_free(struct stream *stream); /* NULL is fine */

#endif
