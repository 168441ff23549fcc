/*
 * Names of files that readers open without listing their directory, because they have them from
 * a list. Each costs a LOOKUP, until a listing has brought its name and attributes into the
 * kernel. (names.c says which are listed, and when.)
 */
#ifndef ONEPOT_NAMES_H
#define ONEPOT_NAMES_H

#include "ahead.h"
#include "chooser.h"

#define NAMES_CHUNK_BITS 8   /* a chunk is so many entries, as a power of two */
#define NAMES_FIRST 16u      /* LOOKUPs before it begins */
#define NAMES_PER_LOOKUP 64u /* entries that each LOOKUP pays for */

struct names;

extern const struct chooser names_chooser; /* of a struct names */

/* `options` outlive it. -ENOMEM. */
int names_new(const struct ahead_options *options, struct names **ret_names);
void names_free(struct names *names); /* NULL is fine */

#endif
