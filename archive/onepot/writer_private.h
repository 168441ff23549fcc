/*
 * Shared by the files of the writer: writer.c adds members and ends the archive; framer.c makes
 * zstd frames of a tar that is to be compressed; writer_output.c writes the bytes of either.
 */
#ifndef ONEPOT_WRITER_PRIVATE_H
#define ONEPOT_WRITER_PRIVATE_H

#include <sys/uio.h>

#include "builder.h"
#include "vector.h"
#include "writer.h"

#define WRITER_QUEUE_MAX 256

struct writer {
    struct output *output;
    struct builder *builder;
    struct framer *framer; /* NULL: not compressed */
    uint32_t block_bytes;
    uint32_t align_bytes;
    int error; /* sticky: an archive with a gap is useless */

    uint64_t tar_offset; /* in the tar; without a framer the same as `offset` */
    uint64_t offset;     /* in the file, queued bytes included */
    struct iovec queue[WRITER_QUEUE_MAX];
    void *owned[WRITER_QUEUE_MAX]; /* freed when written; NULL: not ours */
    int queued;
    size_t queued_bytes;

    VECTOR(struct builder_piece) pieces; /* of the current member */
    void *window_state;
    VECTOR(uint64_t) window_sums; /* of the complete windows, see index_window_sum */
    void *identifier_state;
    void *sum_state; /* for the current member's data */

    uint32_t inode;         /* of the current member */
    uint64_t missing_bytes; /* data of it that is still to come */
    uint64_t stored_bytes;
    bool sum_known;
    uint64_t sum;

    struct writer_totals totals;
};

/* ---- writer_output.c ---- */

/*
 * Writes the next bytes of the file. `owned` (may be NULL) is freed when they were written,
 * also on failure.
 */
int writer_put(struct writer *w, void *bytes, size_t len, void *owned, struct fault *fault);

/* Writes the queue. */
int writer_flush(struct writer *w, struct fault *fault);

/* Ends a window, which may be the file's last and short. -ENOMEM. */
int writer_end_window(struct writer *w);

/* Notes and describes a failed write. Returns err. */
int writer_write_failed(struct writer *w, int err, struct fault *fault);

/* ---- framer.c ---- */

/*
 * The framer takes the tar piece by piece, in order, and passes to the builder where each
 * member's data lies. Memory: a few frames for each thread.
 */
struct framer;
int framer_new(struct writer *w, const struct writer_options *options,
               struct framer **ret_framer);
void framer_free(struct framer *framer); /* NULL is fine */

/* Begins a member. Takes its header; `stored` bytes of data must follow. */
int framer_member(struct framer *f, const struct pax_member *member, struct pax_buffer *header,
                  uint64_t stored, struct fault *fault);

/* Adds data of the member. Takes `bytes`, which must be from malloc. */
int framer_data(struct framer *f, uint8_t *bytes, size_t len, struct fault *fault);

/* Adds padding. */
int framer_zeros(struct framer *f, size_t len, struct fault *fault);

/* Afterwards all input is in the file (or queued). */
int framer_finish(struct framer *f, struct fault *fault);

#endif
