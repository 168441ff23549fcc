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
    bool offers; /* a device decodes those that it can: slab->pictures, see offers.c */
    enum onepot_decompress decompress; /* what a device decompresses: slab->frames, frames.h */
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

/* This bit of a record's number: it is the record's label that failed. */
#define FILL_LABEL (UINT64_C(1) << 63)

/* Read `len` bytes of an archive, for a record. -ECANCELED: the read was given up. */
int fill_read_archive(struct filler *filler, struct dataset *d, uint64_t record,
                      uint64_t offset, uint8_t *to, size_t len);

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

/*
 * Put something in the place of a picture that can't be decoded, if the plan says so. False:
 * its error counts.
 */
bool fill_replace(const struct fill_plan *plan, struct slab *slab, uint64_t i, int err);

void filler_free(struct filler *filler);

/* ---- pictures that a device decodes; in offers.c ---- */

/* Bytes behind the tables of a slab with these samples. */
size_t offers_bytes(const struct fill_plan *plan, const uint64_t *indices, uint64_t count);

/* Make slab->pictures, `at` bytes behind the slab's beginning. */
void offers_lay_out(const struct fill_plan *plan, struct slab *slab, size_t at);

/* The file for sample i is kept for the device. False: the host has to decode it. */
bool offers_take(const struct fill_plan *plan, struct slab *slab, uint64_t i,
                 const struct images_place *place, const uint8_t *bytes, uint64_t len,
                 uint64_t record);

/*
 * Decode what the device refused. Counts in *ret_decoded what it decodes, in *skipped what
 * can't be decoded; else as fill_samples.
 */
int offers_rest(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                uint64_t *ret_decoded, uint64_t *skipped, uint64_t *ret_bad_record);

/* ---- blocks that a device decompresses; in frames.c ---- */

/* Bytes of sample `sample` of a batch that lie in one block. */
struct frames_part {
    uint64_t where; /* the block: archive << 48 | offset */
    uint64_t record, sample;
    uint64_t from, bytes, to; /* in the block, and in the batch */
    uint32_t packed;
    struct proof proof;
};

/* Those of one batch. Zeros are a new list; its memory is used again. */
struct frames_list {
    VECTOR(struct frames_part) parts;
    uint64_t frames;
    size_t room; /* for tables and packed blocks */
};

/*
 * Find the blocks of a batch that the host has decompressed before (proofs.h), and the samples
 * that have no other bytes. Returns the bytes that they need behind the tables of its slab; 0:
 * there are none, or (with ONEPOT_DECOMPRESS_AUTO) more bytes would be sent than the samples
 * have.
 */
size_t frames_plan(const struct fill_plan *plan, const uint64_t *indices,
                   const uint64_t *offsets, uint64_t count, struct frames_list *list);

/* Make slab->frames, `at` bytes behind the slab's beginning. */
void frames_lay_out(struct slab *slab, const struct frames_list *list, size_t at);

/* Read the part of the blocks that belongs to the places [first, end). -ECANCELED. */
int frames_bring(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                 uint64_t first, uint64_t end, uint64_t *ret_bad_record);

/* Fill in samples of which a block was refused; as offers_rest. */
int frames_rest(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                uint64_t *ret_done, uint64_t *skipped, uint64_t *ret_bad_record);

/* Look at the first sample. All others have to be of its kind. */
int fill_npy_kind(struct fill_plan *plan, struct onepot_error *error);

#endif
