/*
 * Files near the ones that readers read, in the order of the archive (nearby.c says which).
 */
#ifndef ONEPOT_NEARBY_H
#define ONEPOT_NEARBY_H

#include "ahead.h"
#include "chooser.h"

#define NEARBY_CHUNK_BITS 8 /* a chunk is so many entries, as a power of two */

#define NEARBY_READS_FIRST 2048u /* cold reads before it begins, at least */
#define NEARBY_READS_AGAIN 16u   /* cold reads before it resumes after a pause */

struct nearby;

extern const struct chooser nearby_chooser; /* of a struct nearby */

/* `options` outlive it. -ENOMEM. */
int nearby_new(const struct ahead_options *options, struct nearby **ret_nearby);
void nearby_free(struct nearby *nearby); /* NULL is fine */

#endif
