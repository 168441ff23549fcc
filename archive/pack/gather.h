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
#include "input.h"
#include "pax.h"
#include "selection.h"

/* A file's data up to this size comes with the member, larger ones in pieces of it. */
#define GATHER_PIECE_BYTES (1u << 20)

/* A file whose data comes in pieces. Freed by stream_free. */
struct stream {
    int fd;                    /* -1: it is in an archive, */
    const struct input *input; /* this one, */
    uint32_t position;         /* there */
    char *path;
    struct pax_extent *extents; /* what is to be read; without holes it is one */
    size_t extent_count;
    size_t extent; /* the piece to be read next */
    uint64_t done;
    uint64_t size_bytes;
    unsigned refs; /* for the caller, and so is: */
    bool told;     /* what was wrong with it */

    /* What the archive says that the sum of all pieces is; the caller checks it. */
    bool has_sum;
    uint64_t sum;
    void *sum_state;
};

/* Where a member is found. */
struct gather_from {
    const struct selection *selection;
    const struct input *input; /* the archive that it is in; NULL: it is in a directory, */
    int folder_fd;             /* this one, */
    int opened_fd;             /* or -1, or it is a source itself and open */
    const char *name;
    unsigned char type; /* DT_* */
    uint32_t number;    /* see struct folder_name */
    size_t root_len;    /* of its path so much names the source */
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
 * Gather `path`, whose last component is from->name. An `opened_fd` is taken, and so is
 * `path` (from malloc). Only -ENOMEM is an error; all else is told in *ret, which has to be
 * freed in any case.
 */
int gather_member(const struct gather_from *from, char *path, size_t path_len,
                  struct gathered *ret);

/* In place of a member that can't be reached: `err` is why. Takes `path`. -ENOMEM. */
int gather_nothing(char *path, int err, struct gathered *ret);

/* Read what gather_member left because the inode has several names. -ENOMEM. */
int gather_data(const struct gather_from *from, struct gathered *g);

/* What is to be said when a stream's sum is not that of its archive. */
void gather_sum_fault(const char *path, struct fault *fault);

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
