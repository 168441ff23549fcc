/*
 * A back end knows one archive format. It is one const table in a folder of its own, and one
 * line in the registry (registry.c); the rest of the program never asks which format it has.
 * Back ends only find out where bytes lie. The layers above read them, and never call a back
 * end again once the index exists. tests/archive/format/cpio.c is a whole one in few lines.
 *
 * An index (builder.h) can describe the same for all formats: data stored in ranges, or in
 * blocks of up to CODEC_BLOCK_MAX bytes that may each have a codec of their own; sums of one of
 * several kinds. A longer stream of deflate is cut into parts (deflate_scan.h), one of bzip2 or
 * xz has parts (block_scan.h). One of another kind does not fit in. For a file with such
 * members `is_packed` says 1, and `unpack` writes a tar of it.
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
#include "helpers.h"
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

#define ARCHIVE_PART_BYTES (1u << 20) /* of the buffer for check_part */

/* The end of an opened archive, see `check_end`. */
struct archive_end {
    const struct backend *backend; /* of the archive */
    struct source *source;         /* the bytes that the index describes */
    const char *path;              /* of the file, which holds them compressed as a whole: */
    const char *compression;       /* "zstd"; NULL: it is `source` */
    const struct index_info *info;
    uint64_t data_end;       /* end of the last stored data, or block */
    const _Atomic int *stop; /* NULL, or: give up when it is not 0 */
    /* Call it for each problem. Any thread. */
    void (*report)(void *ctx, const struct fault *fault);
    /*
     * Have `check_part` called for the part that begins at this offset. Other parts may be
     * checked meanwhile by other threads. `number` is the part's own. -ENOMEM.
     */
    int (*add_part)(void *ctx, uint64_t offset, uint32_t number, uint64_t bytes);
    void *ctx;
};

/* The bytes of a script or a program that an archive may lie behind (container.h). */
struct front {
    const struct source *source; /* the whole file */
    const uint8_t *bytes;
    size_t len;
    uint64_t offset; /* of the bytes in the file */
    bool is_script;
};

/* Where an archive may begin, and the bytes there. */
struct front_place {
    const uint8_t *bytes;
    size_t len;
    uint64_t offset;
};

/* The next place, with *cursor 0 for the first. False: there is none. */
bool front_next(const struct front *front, size_t *cursor, struct front_place *ret_place);

static inline bool archive_end_stopped(const struct archive_end *end)
{
    return end->stop && atomic_load_explicit(end->stop, memory_order_relaxed);
}

struct backend {
    const char *name;           /* for people: "tar", "SquashFS" */
    const char *file;           /* the same for a file: "a tar", "a SquashFS image" */
    const char *const *endings; /* of its files' names, NULL at the end: ".tar"; or NULL */
    enum format format;         /* on disk, in indexes */
    const char *checked; /* what `check_end` found if it reports nothing, in words; or NULL */

    /* Memory that indexing a file of any size may take. 0: one GiB. */
    uint64_t least_memory_bytes;

    /*
     * The format of a file whose own index is damaged or of another content.
     * NULL: `find` is NULL, too.
     */
    const struct backend *without_index;

    /*
     * Is this the format? `head` is the start of the file (up to 64 KB); the source is for
     * formats recognized by their end. 1, 0 or -errno. Back ends are asked in registry order;
     * formats with the surest magic come first.
     */
    int (*probe)(const struct source *source, const uint8_t *head, size_t head_len);

    /*
     * Find an archive of this format behind a script or a program: 1 and where in the file it
     * begins, 0, or -errno. As surely as `probe`, and in this process too. NULL: it is not
     * found so (or `probe` finds it there).
     */
    int (*find_behind)(const struct front *front, uint64_t *ret_offset);

    /*
     * Is the file compressed as a whole, so that it must be unpacked before it can be indexed?
     * 1 and the name of the compression, or 0. NULL: never.
     */
    int (*is_packed)(const struct source *source, const uint8_t *head, size_t head_len,
                     const char **ret_compression);

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
     * determines in *header (codec, block_bytes, sum_kind). In the child. NULL only with
     * `without_index`.
     */
    int (*index)(struct source *source, struct builder *builder, struct builder_header *header,
                 struct progress *progress, struct fault *fault);

    /*
     * The same for a file compressed as a whole, without unpacking it: the index leads to the
     * parts that can be decompressed alone. -ENOTSUP: there are none, or they are too large.
     * `helpers` may be NULL. In the child. NULL: never.
     */
    int (*index_packed)(struct source *source, const char *compression, struct helpers *helpers,
                        struct builder *builder, struct builder_header *header,
                        struct progress *progress, struct fault *fault);

    /*
     * Report what shows that the end of an archive was lost or changed, for `onepot verify`,
     * and what sums say that are not of files. Each back end is asked about the archives of all
     * formats, since an archive whose end is lost may be taken for another format. -errno: it
     * can't be read. NULL: nothing shows it.
     */
    int (*check_end)(const struct archive_end *end);

    /*
     * Check a part that `check_end` of this back end added. `buf` has ARCHIVE_PART_BYTES. Adds
     * to *done what it has read, as it goes on. Any thread. NULL: it adds none.
     */
    void (*check_part)(const struct archive_end *end, uint64_t offset, uint32_t number,
                       uint8_t *buf, _Atomic uint64_t *done);
};

/* The back ends, in the order in which they are asked; NULL at the end. */
extern const struct backend *const backend_registry[];

/* The formats in a sentence, as `name` or as `file` of each: "tar, onepot or SquashFS". */
#define BACKEND_LIST_BYTES 150
void backend_list(bool as_files, char buf[BACKEND_LIST_BYTES]);

/*
 * The length of an archive's name without its endings: 5 of "train.tar.gz", "train.zip" and
 * "train.onepot.tar". That of the whole name if it is not an archive's.
 */
size_t backend_stem(const char *name, size_t len);

/*
 * Find the back end for a source. -ENOMSG with a fault if no format matches. *ret_compression
 * (NULL: not wanted) is what backend_compression says, or NULL.
 */
int backend_find(const struct source *source, struct fault *fault,
                 const struct backend **ret_backend, const char **ret_compression);

/* The format that begins with these bytes, as far as they tell; NULL: none that is known. */
const struct backend *backend_of_head(const struct source *source, const uint8_t *head,
                                      size_t head_len);

/*
 * Is the file compressed as a whole, so that it must be unpacked first? 1 and the name of the
 * compression, or 0, or -errno. For a back end that is not the one from backend_find, but its
 * `without_index`.
 */
int backend_compression(const struct backend *backend, const struct source *source,
                        const char **ret_compression);

/* Formats that others build on, or that tests call by name. */
extern const struct backend backend_onepot, backend_tar, backend_squashfs, backend_zip,
    backend_tfrecord;

#endif
