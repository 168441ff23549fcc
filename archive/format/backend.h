/*
 * A back end knows one archive format. It is one const table of functions and one
 * line in the registry (backend.c); the rest of the program never asks which format
 * it has. Back ends only tell where bytes lie: reading them is the business of the
 * layers above, which never call a back end again once the index exists.
 *
 * `index` and `unpack` run in a child process with limits (sandbox.h), because they
 * hand untrusted bytes to libraries: they may crash, and nothing of theirs survives
 * but the file that they wrote. `probe` and `find` run in the process itself: they
 * read bytes by bounds-checked cursors, and call no library.
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

/* What a back end's long functions report while they work; lies in shared memory. */
struct progress {
    _Atomic uint64_t bytes_done;
    _Atomic uint64_t bytes_total; /* 0: not known */
    _Atomic uint64_t members;
    _Atomic uint64_t members_total; /* 0: not known */
    _Atomic uint64_t bytes_out;     /* written by `unpack`, from the start of the file on */
    _Atomic uint64_t beats;         /* grows while neither of these can: a sign of life */
    /*
     * A remark on an archive that is fine all the same ("no end-of-archive marker"), ""
     * if there is none. Written before the function returns 0; not to be trusted, not
     * even to end, by who reads it.
     */
    char note[256];
};

/* Where an embedded index lies. */
struct embedded_index {
    uint64_t offset;
    uint64_t length;
    uint64_t stride; /* of its pieces, see index_open_pieces; 0: it is whole */
};

struct backend {
    const char *name; /* as a person calls it: "tar", "SquashFS" */
    enum format format;

    /*
     * Is this the format? Called with the first bytes of the file (up to 64 KB; the
     * source is there for formats that are known by their end). 1, 0 or -errno. The
     * registry is asked in order; formats with the surest magic come first.
     */
    int (*probe)(const struct source *source, const uint8_t *head, size_t head_len);

    /*
     * The file is compressed as a whole and has to be unpacked before it can be
     * indexed: 1 and the name of the compression, or 0. NULL: never.
     */
    int (*is_packed)(const uint8_t *head, size_t head_len, const char **ret_compression);

    /*
     * Unpack the whole file into `fd`, from offset 0 on; zeros may stay holes. The file gets
     * the length of what was in it, but is not made shorter. Its first `kept` bytes are there
     * already, and stay as they are. -E2BIG: more than `most` bytes of it are not zeros. In the
     * child. NULL: never.
     */
    int (*unpack)(struct source *source, int fd, uint64_t kept, uint64_t most,
                  struct progress *progress, struct fault *fault);

    /*
     * Find an index that the archive itself carries and that still describes it: 0;
     * -ENOENT if there is none; -ESTALE if there is one and the archive was changed
     * since (the fault says how); -EUCLEAN if it is damaged. NULL: never has one.
     */
    int (*find)(struct source *source, struct fault *fault, struct embedded_index *ret_where);

    /*
     * Read the whole archive and add every member to the builder; fill what the format
     * decides in *header (codec, block_bytes). In the child.
     */
    int (*index)(struct source *source, struct builder *builder, struct builder_header *header,
                 struct progress *progress, struct fault *fault);

    /*
     * The same for a file that is compressed as a whole, so that it need not be unpacked: the
     * index leads to the parts of it that can be decompressed alone. -ENOTSUP: it has none, or
     * too large ones. In the child. NULL: never.
     */
    int (*index_packed)(struct source *source, const char *compression, struct builder *builder,
                        struct builder_header *header, struct progress *progress,
                        struct fault *fault);
};

/* The back end for a source. -ENOMSG with a fault when no format fits. */
int backend_find(const struct source *source, struct fault *fault,
                 const struct backend **ret_backend);

/*
 * Is the file compressed as a whole, so that it has to be unpacked first? 1 and the name
 * of the compression, or 0, or -errno. `backend` is the one that backend_find gave.
 */
int backend_compression(const struct backend *backend, const struct source *source,
                        const char **ret_compression);

/* One table a file; a format whose library is missing at build time is left out. */
extern const struct backend backend_onepot;   /* onepot_format.c */
extern const struct backend backend_tar;      /* tar.c */
extern const struct backend backend_squashfs; /* squashfs.c */

#endif
