/*
 * Pictures in files become pixels of one size: decoded, cropped, resampled, normalised, and
 * written straight to their place in a batch.
 *
 *     decoder     of the file's format; asks for a crop when it knows the size, and gives rows
 *     crop        which part of the picture, and whether it is flipped: by seed, epoch, index
 *     resample    rows of the source to rows of the result, with two passes of weights
 *     pixels      a row of the result to its type and layout
 *
 * Rows flow through: no picture is ever in memory as a whole (but interlaced PNG). A decoder
 * for another format is one file, and one line in images.c.
 */
#ifndef ONEPOT_LOADER_IMAGES_H
#define ONEPOT_LOADER_IMAGES_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "onepot.h"

#define IMAGES_WHY_MAX 160u
#define IMAGES_PART_MAX 256u

/* The options, completed. Never changes. */
struct images_plan {
    struct onepot_images o;         /* without its pointers */
    char part[IMAGES_PART_MAX];     /* the part of a sample that is the picture; "": any */
    const struct images_plan *next; /* of another part */
    uint64_t at, bytes; /* where each image begins in its sample's place, and its size */
    uint64_t all_bytes; /* of a sample's place; of the first plan */
    /* The value that each byte of a channel becomes; of a half type its bits. */
    union images_value {
        float single;
        uint16_t half;
    } values[3][256];
};

/* Value of a byte of a float type: (byte - mean) * scale, as in struct onepot_conversion. */
static inline float images_mean(const struct onepot_images *o, unsigned channel)
{
    return 255 * o->mean[channel];
}

static inline float images_scale(const struct onepot_images *o, unsigned channel)
{
    return 1 / (255 * o->std[channel]);
}

/* Plan all options that follow each other; the result is to be freed. As images_plan; -ENOMEM.
 */
int images_plan_all(const struct onepot_images *given, struct onepot_error *error,
                    struct images_plan **ret_plans);

/* Plan the images of one part. -EINVAL with the reason in *error. */
int images_plan(const struct onepot_images *given, struct onepot_error *error,
                struct images_plan *ret_plan);

/* A random crop is a function of these alone. */
struct images_place {
    uint64_t seed, epoch, index;
};

/*
 * Memory for the pictures of several threads while they are decoded. All threads at once
 * decode pictures that take up to `each` bytes; larger ones, of up to `most`, are decoded one
 * at a time. Together they stay within `bytes`, unless `each` would be below 4 MiB.
 */
struct images_budget {
    pthread_mutex_t large; /* held while a large one is decoded */
    uint64_t each, most;
};
/* Also in a forked child, where a thread of the parent may have held the lock. */
void images_budget_init(struct images_budget *budget, uint64_t bytes, uint32_t threads);

/* Memory of one thread, to be freed in the end. Zeros are a new one, without a budget. */
struct images_scratch {
    uint8_t *memory;
    size_t size;
    struct images_budget *budget;
};

/* May a thread read a file of this length into memory? -EILSEQ, and `why` says so. */
int images_check_file(const struct images_budget *budget, uint64_t len, char *why);

/* Do these bytes begin as a file of a format that is known by its beginning? */
bool images_knows(const uint8_t *bytes, size_t len);

/*
 * Decode one picture to `to`, which has plan->bytes. -EILSEQ: no picture, a damaged one, or one
 * that takes more than the budget, which its header tells before anything is allocated.
 * -ENOTSUP: this library can't decode the format. -ENOMEM. `why` (IMAGES_WHY_MAX bytes) then
 * gives the reason.
 */
int images_decode(const struct images_plan *plan, struct images_scratch *scratch,
                  const struct images_place *place, const uint8_t *bytes, size_t len, void *to,
                  char *why);

/* A grey picture. */
void images_grey(const struct images_plan *plan, void *to);

#endif
