/*
 * A back end knows one archive format. It is one const table in its own folder, and one entry
 * in the registry (archive/meson.build); the rest of the program never asks which format it
 * has. A format that can also be compressed as a whole has a second table (struct
 * backend_stream), one whose end tells something a third (struct backend_trailer). Back ends
 * only find out where bytes lie. The layers above read them, and never call a back end again
 * once the index exists. tests/archive/format/ar.c is a whole one in few lines.
 *
 * An index (builder.h) can describe the same for all formats: data stored in ranges, or in
 * blocks of up to CODEC_BLOCK_MAX bytes that may each have their own codec; sums of one of
 * several kinds. A longer stream of deflate is cut into parts, one of bzip2 or xz has parts
 * (stream.h). One of another kind does not fit in. For a file with such members `is_packed`
 * says 1, and `unpack` writes a tar of it.
 *
 * `index`, `index_packed` and `unpack` run in a child process with limits (sandbox.h), because
 * they pass untrusted bytes to libraries: they may crash, and nothing of theirs survives but
 * the file that they wrote. All others run in the process itself: they read bytes with
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
};

#define ARCHIVE_PART_BYTES (1u << 20) /* of the buffer for check_part */

/* The end of an opened archive, see `check_end`. */
struct archive_end {
    struct source *source;   /* the bytes that the index describes */
    const char *path;        /* of the file, which holds them compressed as a whole: */
    const char *compression; /* "zstd"; NULL: it is `source` */
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
    bool is_script;  /* else the end of a program, or nothing if that can't be told */
};

/*
 * The next place where an archive may begin, with *cursor 0 for the first, as the front from
 * there on. False: there is none.
 */
bool front_next(const struct front *front, size_t *cursor, struct front *ret_rest);

struct backend;

static inline bool archive_end_stopped(const struct archive_end *end)
{
    return end->stop && atomic_load_explicit(end->stop, memory_order_relaxed);
}

/* Files of this format that are compressed as a whole. */
struct backend_stream {
    /*
     * Is the file compressed as a whole, so that it must be unpacked before it can be indexed?
     * 1 and the name of the compression, or 0.
     */
    int (*is_packed)(const struct source *source, const uint8_t *head, size_t head_len,
                     const char **ret_compression);

    /*
     * Unpack the whole file into `fd`, from offset 0; zeros may stay holes. The file gets the
     * length of the content, but is never shortened. Its first `kept` bytes are already there
     * and stay as they are. -E2BIG: more than `most` bytes are not zeros. In the child.
     */
    int (*unpack)(struct source *source, int fd, uint64_t kept, uint64_t most,
                  struct progress *progress, struct fault *fault);

    /*
     * As `index` of struct backend, without unpacking the file: the index leads to the parts
     * that can be decompressed alone. -ENOTSUP: there are none, or they are too large.
     * `helpers` may be NULL. What is decompressed is taken off *left_bytes (NULL: no limit);
     * -E2BIG when nothing is left. In the child.
     */
    int (*index_packed)(struct source *source, const char *compression, struct helpers *helpers,
                        uint64_t *left_bytes, struct builder *builder,
                        struct builder_header *header, struct progress *progress,
                        struct fault *fault);
};

/* The end of a file, and its checks. Each function may be NULL. */
struct backend_trailer {
    /*
     * Find an index that the archive carries and that still describes it: 0; -ENOENT: there is
     * none; -ESTALE: there is one, but the archive was changed since (the fault says how);
     * -EUCLEAN: it is damaged. NULL: the format never has one.
     */
    int (*find)(struct source *source, struct fault *fault, struct embedded_index *ret_where);

    /*
     * The format of a file whose own index is missing, damaged or of another content. NULL if
     * and only if `find` is.
     */
    const struct backend *without_index;

    /* -EUCLEAN with a fault: the file had an index that `find` no longer finds. Else 0. */
    int (*check_lost)(const struct source *source, struct fault *fault);

    /*
     * Report signs that the end of an archive was lost or changed, for `onepot verify`, and
     * differing sums that are not of files. Called for archives of `without_index` if that is
     * not NULL (an archive whose end is lost counts as one), else for archives of this format.
     * -errno: it can't be read.
     */
    int (*check_end)(const struct archive_end *end);

    /*
     * Check a part that `check_end` added. `buf` has ARCHIVE_PART_BYTES. Adds the bytes that it
     * has read to *done, as it goes on. Any thread. NULL: `check_end` adds none.
     */
    void (*check_part)(const struct archive_end *end, uint64_t offset, uint32_t number,
                       uint8_t *buf, _Atomic uint64_t *done);
};

struct backend {
    const char *name;           /* for people: "tar", "SquashFS" */
    const char *file;           /* the same for a file: "a tar", "a SquashFS image" */
    const char *const *endings; /* of its files' names, NULL at the end: ".tar"; or NULL */
    uint32_t number;     /* on disk, in indexes: each is given once (1000 and more: tests) */
    const char *checked; /* what `check_end` found if it reports nothing, in words; or NULL */

    /* Memory that indexing a file of any size may take; a small one is first tried with less.
     * 0: one GiB. */
    uint64_t least_memory_bytes;

    /*
     * Is this the format? `head` is the start of the file (up to 64 KB). 1, 0 or -errno. Back
     * ends are asked in registry order, those first that have the file's ending. What the file
     * ends with counts only if it tells the file's whole length: else it may be the end of
     * another archive's last member.
     */
    int (*probe)(const struct source *source, const uint8_t *head, size_t head_len);

    /*
     * Does an archive that begins in this source end there, or is it the first piece of one?
     * NULL: its beginning is enough. `by_end`: its last bytes tell, however long it is.
     */
    bool (*is_whole)(const struct source *source, bool by_end);

    /*
     * Could the bytes of `next` go on where an archive ends that is not whole? `is_split`: it
     * must end within a member, too. NULL: not told.
     */
    bool (*continues)(const struct source *source, const struct source *next, bool is_split);

    /*
     * Find an archive of this format behind a script or a program: 1 and where in the file it
     * begins, 0, or -errno. `probe` must know it there. NULL: it is not found so.
     */
    int (*find_behind)(const struct front *front, uint64_t *ret_offset);

    /*
     * Read the whole archive, add every member to the builder, and fill in the format's fields
     * of *header (codec, block_bytes, sum_kind). In the child. NULL only with `without_index`.
     */
    int (*index)(struct source *source, struct builder *builder, struct builder_header *header,
                 struct progress *progress, struct fault *fault);

    const struct backend_stream *stream;   /* NULL: no file is compressed as a whole */
    const struct backend_trailer *trailer; /* NULL: the end tells nothing */
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

/*
 * The format that the source begins like; NULL: none. A quick look, for many files: at 4 KB,
 * and not at what they may lie behind. `asked`: a back end that has said no already; NULL:
 * none. *ret_compression as of backend_find.
 */
const struct backend *backend_begins(const struct source *source, const struct backend *asked,
                                     const char **ret_compression);

/* The format that begins with these bytes, as far as they tell; NULL: none that is known. */
const struct backend *backend_of_head(const struct source *source, const uint8_t *head,
                                      size_t head_len);

/*
 * Is the file compressed as a whole, so that it must be unpacked first? Then *ret_compression
 * becomes the compression's name, else it stays. -errno: it can't be read. For a back end that
 * is not the one from backend_find, but its `without_index`.
 */
int backend_compression(const struct backend *backend, const struct source *source,
                        const char **ret_compression);

/* The format of this number; NULL: the program does not have it. */
const struct backend *backend_of_number(uint64_t number);

/*
 * A format that `onepot pack` makes an archive of (pour.h), and nothing else reads: "7z",
 * "rar", "iso9660", "cpio", "ar", "cab", "warc", "xar", "lha"; or NULL.
 */
const char *backend_container(const uint8_t *head, size_t head_len);

/* Formats that others build on, or that tests call by name. */
extern const struct backend backend_onepot, backend_tar, backend_squashfs, backend_zip,
    backend_tfrecord;

#endif
