/*
 * Recognises from the first files that readers read which known shuffle they go through.
 *
 *     recogniser_new(&options, stop, &recogniser);
 *     recogniser_try(recogniser, positions, count, &found)
 *
 * recognise.c explains how it can know, and how sure it is. It takes up to a second and belongs
 * in a thread that nobody waits for.
 */
#ifndef ONEPOT_RECOGNISE_H
#define ONEPOT_RECOGNISE_H

#include <stdatomic.h>

#include "ahead.h"
#include "known_reads.h"

#define RECOGNISE_READS_MIN 16u  /* fewer prove nothing */
#define RECOGNISE_READS_MAX 512u /* only the last so many are looked at */
#define RECOGNISE_FILES_MIN 256u /* a smaller folder is read before this could help */

struct recogniser;

struct recognised {
    uint32_t directory; /* whose files are numbered in one way: */
    enum folder_kind kind;
    bool images_only;
    uint64_t epoch;
    struct folder_files *files; /* the caller's: folder_files_free */
    struct known_reads *order;  /* the caller's: known_reads_free */
};

/*
 * The options outlive it. Of these count the index and the root; the sampler's seed, whose
 * generator gets it plus the epoch; and the most bytes of memory, for an order and for its
 * folder each. `stop`: true ends a search at once; NULL: never.
 */
int recogniser_new(const struct ahead_options *options, const _Atomic bool *stop,
                   struct recogniser **ret_recogniser);
void recogniser_free(struct recogniser *recogniser); /* NULL is fine */

/*
 * `positions` are inodes of files, in the order of their first reads in an epoch. -ENOENT: the
 * order is none that is known. -E2BIG: it may be one, but the folder has too many files for the
 * memory. -EINVAL: too few reads. -ECANCELED, -ENOMEM, -EUCLEAN.
 */
int recogniser_try(struct recogniser *recogniser, const uint32_t *positions, unsigned count,
                   struct recognised *ret_recognised);

#endif
