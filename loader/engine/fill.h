/*
 * Puts samples into their places in a slab: copied from a mapping, read, decompressed, or
 * decoded.
 */
#ifndef ONEPOT_FILL_H
#define ONEPOT_FILL_H

#include "dataset.h"
#include "images.h"
#include "slab.h"
#include "vector.h"

/* The settings for all batches of a loader. */
struct fill_plan {
    struct onepot_archive *archive;
    uint32_t align;
    uint64_t stride; /* bytes of each sample's place; 0: the sample's own size */
    bool verify, skip_errors;
    bool foresee; /* slabs say when samples come again, so that caches can keep them */
    bool past; /* the host does not read slabs: they need not be in its caches (copy_past.h) */
    bool npy;  /* samples are arrays of this kind: */
    struct onepot_npy kind;
    onepot_decode *decode;
    void *decode_ctx;
    const struct images_plan *images; /* samples are pictures; NULL: they aren't */
    struct images_budget *budget;     /* of pictures */
};

/* -EINVAL: it is no power of two, or too large. 0 is a default. */
int fill_check_align(uint32_t align, struct onepot_error *error);

/* The state of one thread. */
struct filler {
    struct cursor *cursor; /* NULL before the first read */
    uint8_t *buffer;       /* a sample that is not decoded yet */
    size_t room;
    struct images_scratch scratch;
    char why[IMAGES_WHY_MAX]; /* a picture can't be decoded; of the sample that failed */
    uint64_t again;           /* of the present sample: see struct slab */
    uint64_t present;         /* the record that is read, or whose label is */
    struct source *mapped;    /* the mapping that samples were last copied from, or NULL */
    uint64_t mapped_from, mapped_to; /* the range that they lie in */
    bool is_torn; /* an earlier mapping was cut short while it was copied from */
    /* For threads that watch this one: since when it reads from storage (CLOCK_MONOTONIC; 0: it
     * does not), which record it reads, and whether nobody waits for that read any more. */
    _Atomic uint64_t since_ns, record;
    _Atomic bool given_up;
};

/* Places for samples `indices`: their offsets, and the bytes of all. False: too many. */
bool fill_places(const struct fill_plan *plan, const uint64_t *indices, uint64_t count,
                 uint64_t *ret_offsets, uint64_t *ret_sizes, uint64_t *ret_bytes);

/* Fill the tables of a slab that begins (slab_begin). Labels that are parts come with data. */
void fill_tables(const struct fill_plan *plan, struct slab *slab, const uint64_t *indices,
                 const uint64_t *offsets, const uint64_t *sizes);

/* This bit of a record's number: it is the record's label that failed. */
#define FILL_LABEL (UINT64_C(1) << 63)

/* Describe the failure of a record (and FILL_LABEL). `why`: see struct filler. Returns err. */
int fill_error(struct onepot_error *error, int err, const struct dataset *dataset, uint64_t bad,
               const char *why);

/*
 * Fill the places [first, end) of a slab, and their labels if these are parts. A sample that
 * fails ends the call and returns its record's number (and FILL_LABEL). If such samples are to
 * be skipped, it is counted in *skipped instead. -ECANCELED: the read was given up.
 */
int fill_samples(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                 uint64_t first, uint64_t end, uint64_t *skipped, uint64_t *ret_bad_record);

void filler_free(struct filler *filler);

/* Look at the first sample. All others have to be of its kind. */
int fill_npy_kind(struct fill_plan *plan, struct onepot_error *error);

#endif
