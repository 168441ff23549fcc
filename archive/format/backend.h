/*
 * A back end knows one archive format. It is one const table of functions and one line in the
 * registry (backend.c); the rest of the program never asks which format it has. Back ends only
 * find out where bytes lie. The layers above read them, and never call a back end again once
 * the index exists.
 *
 * `index` and `unpack` run in a child process with limits (sandbox.h), because they pass
 * untrusted bytes to libraries: they may crash, and nothing of theirs survives but the file
 * that they wrote. `probe` and `find` run in the process itself: they read bytes with
 * bounds-checked cursors, and call no library.
 */
#ifndef ONEPOT_BACKEND_H
#define ONEPOT_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "builder.h"
#include "fault.h"
#include "index.h"
#include "source.h"

/* Progress reported by a back end's long functions; lies in shared memory. */
struct progress {
    _Atomic uint64_t bytes_done;
    _Atomic uint64_t bytes_total; /* 0: unknown */
    _Atomic uint64_t members;
    _Atomic uint64_t members_total; /* 0: unknown */
    _Atomic uint64_t bytes_out;     /* written by `unpack`, from the start of the file */
    _Atomic uint64_t beats; /* a sign of life, which grows when the other counters can't */
    /*
     * A remark on an archive that is valid all the same ("no end-of-archive marker"), or "".
     * Written before the function returns 0. The reader must not trust it, not even to be
     * terminated.
     */
    char note[256];
};

/* Location of an embedded index. */
struct embedded_index {
    uint64_t offset;
    uint64_t length;
    uint64_t stride; /* distance between its pieces, see index_open_pieces; 0: one piece */
};

struct backend {
    const char *name; /* for people: "tar", "SquashFS" */
    enum format format;

    /*
     * Is this the format? `head` is the start of the file (up to 64 KB); the source is for
     * formats recognized by their end. 1, 0 or -errno. Back ends are asked in registry order;
     * formats with the surest magic come first.
     */
    int (*probe)(const struct source *source, const uint8_t *head, size_t head_len);

    /*
     * Is the file compressed as a whole, so that it must be unpacked before it can be indexed?
     * 1 and the name of the compression, or 0. NULL: never.
     */
    int (*is_packed)(const uint8_t *head, size_t head_len, const char **ret_compression);

    /*
     * Unpack the whole file into `fd`, from offset 0; zeros may stay holes. The file gets the
     * length of the content, but is never shortened. Its first `kept` bytes are already there
     * and stay as they are. -E2BIG: more than `most` bytes are not zeros. In the child. NULL:
     * never.
     */
    int (*unpack)(struct source *source, int fd, uint64_t kept, uint64_t most,
                  struct progress *progress, struct fault *fault);

    /*
     * Find an index that the archive carries and that still describes it: 0; -ENOENT: there is
     * none; -ESTALE: there is one, but the archive was changed since (the fault says how);
     * -EUCLEAN: it is damaged. NULL: the format never has one.
     */
    int (*find)(struct source *source, struct fault *fault, struct embedded_index *ret_where);

    /*
     * Read the whole archive, add every member to the builder, and fill in what the format
     * determines in *header (codec, block_bytes). In the child.
     */
    int (*index)(struct source *source, struct builder *builder, struct builder_header *header,
                 struct progress *progress, struct fault *fault);

    /*
     * The same for a file compressed as a whole, without unpacking it: the index leads to the
     * parts that can be decompressed alone. -ENOTSUP: there are none, or they are too large.
     * In the child. NULL: never.
     */
    int (*index_packed)(struct source *source, const char *compression, struct builder *builder,
                        struct builder_header *header, struct progress *progress,
                        struct fault *fault);
};

/* Find the back end for a source. -ENOMSG with a fault if no format matches. */
int backend_find(const struct source *source, struct fault *fault,
                 const struct backend **ret_backend);

/*
 * Is the file compressed as a whole, so that it must be unpacked first? 1 and the name of the
 * compression, or 0, or -errno. `backend` comes from backend_find.
 */
int backend_compression(const struct backend *backend, const struct source *source,
                        const char **ret_compression);

/* One table per file; a format whose library is missing at build time is left out. */
extern const struct backend backend_onepot;   /* onepot_format.c */
extern const struct backend backend_tar;      /* tar.c */
extern const struct backend backend_squashfs; /* squashfs.c */

#endif
