/*
 * Turns one name of a source tree into a member: attributes, extended attributes, link target,
 * data. Anything that can't be read becomes a fault, and the packer goes on without it.
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
#include "vector.h"

/*
 * A file's data up to this size comes with the member; larger data comes in pieces of this
 * size.
 */
#define GATHER_PIECE_BYTES (1u << 20)

/* Where the bytes of a file are read. */
struct gather_file {
    int fd;                    /* -1: the file is in an archive */
    const struct input *input; /* that archive */
    uint32_t position;         /* the file's position there */
};

typedef VECTOR(struct builder_piece) gather_extents;

/* A file whose data comes in pieces. Freed by stream_free. */
struct stream {
    struct gather_file file;
    char *path;
    gather_extents extents; /* ranges to be read; one if there are no holes */
    size_t extent;          /* the one to be read next */
    uint64_t done;
    uint64_t size_bytes;
    unsigned refs; /* for the caller */
    bool reported; /* for the caller: a problem with it was reported */
    bool dropped;  /* by the caller, under the lock of stream_next: no more pieces come */

    /* The sum of all pieces that the source archive has; the caller checks it. */
    struct checksum *checksum; /* NULL: it has none */
    uint64_t sum;
};

/* Where to find a member. */
struct gather_from {
    const struct selection *selection;
    const struct input *input; /* the archive it is in; NULL: it is in a directory */
    int folder_fd;             /* that directory */
    int opened_fd; /* the member itself if it is a source and open already; else -1 */
    const char *name;
    unsigned char type; /* DT_* */
    uint32_t number;    /* see struct folder_name */
    size_t root_len;    /* length of the part of its path that names the source */
    bool is_as_kept;    /* no directory that leads to it has changed since selection->kept */
};

struct gathered {
    bool skip;                    /* there is no member: a socket, or a failure */
    struct builder_member member; /* points into the fields below */
    struct pax_buffer header;     /* encoded */
    uint8_t *data;                /* the whole data, with its sum in `member`, or NULL */
    struct stream *stream;        /* if the data comes in pieces */

    /* For a directory: its content. */
    bool is_folder;
    bool is_as_kept; /* for what is in it */
    int fd;
    struct listing listing;

    struct file_id id;
    uint64_t nlink;

    struct fault *problem; /* skipped or changed: makes the exit status 1 */
    struct fault *note;    /* for information */

    char *path;     /* as the source has it */
    char *composed; /* as the archive has it, if that is another one */
    char *link;
    pax_xattrs xattrs;
};

/*
 * Gathers `path`, whose last component is from->name. Takes `opened_fd` and `path` (from
 * malloc). Only -ENOMEM is an error; *ret reports everything else, and must be freed in any
 * case.
 */
int gather_member(const struct gather_from *from, char *path, size_t path_len,
                  struct gathered *ret);

/* Stands in for a member that can't be reached; `err` is the reason. Takes `path`. -ENOMEM. */
int gather_nothing(char *path, int err, struct gathered *ret);

/* The fault for a stream whose sum differs from that in its archive. */
void gather_sum_fault(const char *path, struct fault *fault);

void gather_free(struct gathered *g);

/* Gets the next piece; false at the end. One thread at a time. */
bool stream_next(struct stream *stream, uint64_t *ret_offset, size_t *ret_len, bool *ret_last);

/*
 * Reads a piece. Data that is no longer there becomes zeros and a fault in *ret_problem (from
 * malloc). With `last`, also checks whether the file grew. -ENOMEM.
 */
int stream_read(const struct stream *stream, uint64_t offset, size_t len, bool last,
                uint8_t *bytes, struct fault **ret_problem);
void stream_free(struct stream *stream); /* NULL is fine */

/* Puts a fault about `path` in place of an earlier one. -ENOMEM. */
int gather_fault(struct fault **fault, const char *path, int err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Leaves the member out, for a reason in full. -ENOMEM. */
int gather_skip(struct gathered *g, int err, const char *what);

#endif
