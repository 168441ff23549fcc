/*
 * Samples into their places in a slab: copied from where they are mapped, read, decompressed,
 * or decoded.
 */
#ifndef ONEPOT_FILL_H
#define ONEPOT_FILL_H

#include "dataset.h"
#include "slab.h"

/* What stays the same for all batches of a loader. */
struct fill_plan {
    struct onepot_archive *archive;
    uint32_t align;
    uint64_t stride; /* each sample has a place of so many bytes; 0: of its own size */
    bool verify, skip_errors;
    bool foresee; /* slabs say when samples come again, for caches to keep them by that */
    bool npy;     /* of this kind: */
    struct onepot_npy kind;
    onepot_decode *decode;
    void *decode_ctx;
    /* A device collects the samples: it sees the first byte of each archive here. */
    const uint64_t *bases;
};

/* A thread's own. */
struct filler {
    struct cursor *cursor; /* NULL before the first read */
    uint8_t *buffer;       /* a sample that is not decoded yet */
    size_t room;
    uint64_t again;        /* of the present sample: see struct slab */
    struct source *mapped; /* that samples were last copied from by its mapping, or NULL */
    bool is_torn;          /* one before it was cut short while that was done */
    /* For who watches it: since when it reads from storage (CLOCK_MONOTONIC; 0: it does not),
     * which record; and whether nobody waits for that any more. */
    _Atomic uint64_t since_ns, record;
    _Atomic bool given_up;
};

/* Places for samples `indices`: the offsets, and how many bytes all take. False: too many. */
bool fill_places(const struct fill_plan *plan, const uint64_t *indices, uint64_t count,
                 uint64_t *ret_offsets, uint64_t *ret_sizes, uint64_t *ret_bytes);

/*
 * Fill the places [first, end) of a slab. A sample that fails stops it, with its record's
 * number, unless it is to be skipped; then *skipped counts. -ECANCELED: it was given up.
 */
int fill_samples(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                 uint64_t first, uint64_t end, uint64_t *skipped, uint64_t *ret_bad_record);

void filler_free(struct filler *filler);

/* Look at the first sample, to know what all have to be. */
int fill_npy_kind(struct fill_plan *plan, struct onepot_error *error);

#endif
