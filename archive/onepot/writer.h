/*
 * The writer makes an onepot archive from members that it gets one by one, in the order in
 * which they will lie there. It does not know where they come from.
 *
 *     output_open("train.onepot.tar", OUTPUT_NEW, 0, &fault, &output);
 *     writer_new(output, &options, &w);
 *     for each member:  pax_encode(&member, &header);
 *                       writer_add(w, &member, &header, &fault);
 *                       writer_data(w, bytes, len, &fault) until all of it was given
 *     writer_finish(w, &fault, &totals)     or  writer_discard(w)
 *     output_commit(output, true, &fault)   or  output_discard(output)
 *
 * Buffers are handed over, not copied: the writer frees them a little later, when they were
 * written.
 *
 * Threads: one at a time.
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

/*
 * The threads that compress for the writers of one program, which one at a time may use it.
 * `threads` 0: as many as this process has CPUs. `level` is zstd's. Returns when all threads
 * run, as helpers_new does. -ENOMEM.
 */
struct compress_pool;
int compress_pool_new(unsigned threads, int level, struct compress_pool **ret_pool);
void compress_pool_free(struct compress_pool *pool); /* NULL is fine */

struct writer_options {
    int zstd_level;       /* 1 to WRITER_LEVEL_MAX; 0: not compressed */
    uint32_t block_bytes; /* most bytes of the tar in one zstd frame; 0: WRITER_BLOCK_BYTES */
    unsigned threads;     /* for compression; 0: as many as this process has CPUs */
    struct compress_pool
        *pool; /* of the same level, shared by several writers; NULL: the writer makes one */

    /*
     * Member data begins at multiples of this, a power of two; 0: 512. Can't be combined with
     * zstd_level.
     */
    uint32_t align_bytes;
};

/*
 * Size of a frame: what a random read decompresses, and how much of the small files is
 * compressed together. A power of two. Measurements: onepot-pack(1), bench/RESULTS.md.
 */
#define WRITER_BLOCK_BYTES (512u << 10)
#define WRITER_BLOCK_MIN 4096u
#define WRITER_BLOCK_MAX (8u << 20)
#define WRITER_LEVEL_MAX 22
#define WRITER_ALIGN_MAX (64u << 10)

struct writer_totals {
    uint64_t files;      /* regular, and further names of files */
    uint64_t data_bytes; /* of the files, holes left out */
    uint64_t file_bytes; /* of the archive */
};

/* The output stays the caller's. -EINVAL: such options make no sense. -ENOMEM. */
int writer_new(struct output *output, const struct writer_options *options,
               struct writer **ret_writer);

/*
 * Adds a member. `header` is pax_encode's result; the writer takes its bytes and leaves it
 * empty. If the member has a sum, its data must come in one call of writer_data; else the
 * writer computes it. Errors: builder_add's and writev(2)'s; -EINVAL while data of the previous
 * member is missing. After one that builder_may_leave_out, the archive is as before.
 */
int writer_add(struct writer *writer, const struct node *member, struct pax_buffer *header,
               struct fault *fault);

/*
 * Writes the next `len` bytes of the member's data; for a sparse file, only of its extents.
 * `bytes` must be from malloc; the writer takes them, also on failure. -EINVAL: more data than
 * the member has.
 */
int writer_data(struct writer *writer, void *bytes, size_t len, struct fault *fault);

/* As builder_has. */
int writer_has(struct writer *writer, const char *path, size_t len);

/* Number of bytes of the tar so far: headers, data, padding. */
uint64_t writer_offset(const struct writer *writer);

/* Writes end marker, index and footer. Frees the writer, also on failure. */
int writer_finish(struct writer *writer, struct fault *fault, struct writer_totals *ret_totals);

void writer_discard(struct writer *writer); /* NULL is fine */

#endif
