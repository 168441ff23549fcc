/*
 * The writer makes an onepot archive of members that are handed to it one by one, in
 * the order in which they shall lie there. It knows nothing of where they come from.
 *
 *     writer_open("train.onepot.tar", &options, &fault, &w);
 *     for each member:  pax_encode(&member, &header);
 *                       writer_add(w, &member, &header, NULL, &fault);
 *                       writer_data(w, bytes, len, &fault) until all of it was given
 *     writer_close(w, &fault, &totals)  or  writer_discard(w)
 *
 * Bytes are given away, not copied: they are freed when they were written, a
 * little later. The archive appears under its name only in writer_close.
 *
 * Threads: none; one thread uses a writer at a time.
 */
#ifndef ONEPOT_WRITER_H
#define ONEPOT_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "output.h"
#include "pax.h"

struct writer;

struct writer_options {
    bool overwrite; /* replace a file of that name */
    bool no_sync;   /* don't wait until the archive is on the disk */

    int zstd_level;       /* 1 to WRITER_LEVEL_MAX; 0: not compressed */
    uint32_t block_bytes; /* of the tar, in one zstd frame at most; 0: WRITER_BLOCK_BYTES */
    unsigned threads;     /* that compress; 0: as many as there are CPUs for this process */
    struct compress_pool *pool; /* of that level, for several writers; NULL: one of its own */

    /*
     * Member data begins at multiples of this, a power of two; 0: of 512. Not together with
     * zstd_level.
     */
    uint32_t align_bytes;
};

/*
 * A frame is what a random read decompresses, and what small files are compressed together
 * in. See onepot-pack(1) and bench/README.md for what was measured. A power of two.
 */
#define WRITER_BLOCK_BYTES (512u << 10)
#define WRITER_BLOCK_MIN 4096u
#define WRITER_BLOCK_MAX (8u << 20)
#define WRITER_LEVEL_MAX 22
#define WRITER_ALIGN_MAX (64u << 10)

struct writer_totals {
    uint64_t members;
    uint64_t files; /* regular, hard links not counted */
    uint64_t directories;
    uint64_t hardlinks;
    uint64_t data_bytes; /* of the files, holes left out */
    uint64_t index_bytes;
    uint64_t file_bytes; /* of the archive */
    uint8_t identifier[16];
};

int writer_open(const char *path, const struct writer_options *options, struct fault *fault,
                struct writer **ret_writer);

/* Is this file the archive that is being written, or the one that it will replace? */
bool writer_is_output(const struct writer *writer, uint64_t dev, uint64_t ino);

/*
 * Add a member; `header` is what pax_encode made of it and becomes the writer's (and
 * empty). `sum` is XXH3-64 of its data where the caller knows it; the data then comes
 * in one piece. NULL: it is computed. Errors: of builder_add and writev(2); -EINVAL
 * while data of the member before is missing.
 */
int writer_add(struct writer *writer, const struct pax_member *member,
               struct pax_buffer *header, const uint64_t *sum, struct fault *fault);

/*
 * The next `len` bytes of the member's data: of a sparse file its extents' alone.
 * `bytes` are from malloc and become the writer's, also on failure. -EINVAL: more
 * than the member has.
 */
int writer_data(struct writer *writer, void *bytes, size_t len, struct fault *fault);

/* As builder_has. */
int writer_has(struct writer *writer, const char *path, size_t len);

/* How much of the tar was taken: headers, data, padding. */
uint64_t writer_offset(const struct writer *writer);

/*
 * End marker, index, footer; then the file gets its name. The writer is freed, also on
 * failure: then no file is left.
 */
int writer_close(struct writer *writer, struct fault *fault, struct writer_totals *ret_totals);

/* The same, but the file, complete, is handed out under its partial name. */
int writer_finish(struct writer *writer, struct fault *fault, struct writer_totals *ret_totals,
                  struct output **ret_output);

void writer_discard(struct writer *writer); /* NULL is fine */

#endif
