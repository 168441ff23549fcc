/*
 * Merging: the trees of several indexes become one index, as if each were grafted whole
 * (graft.h), but twenty times as fast. For that, nothing may have to be decided: no name may be
 * in two archives, other than names of directories.
 *
 * Names are sorted in each index. So a directory that one archive has is copied as it is, and
 * one that several have is merged name by name, or archive by archive where the names of one
 * all lie before those of the next, as in shards that were packed in order.
 *
 * Threads: merge_write uses several; one thread calls it.
 */
#ifndef ONEPOT_MERGE_H
#define ONEPOT_MERGE_H

#include <stddef.h>
#include <stdint.h>

#include "builder.h"
#include "fault.h"
#include "index.h"

struct merge_part {
    const struct index *index;
    uint64_t base;     /* where its archive's bytes begin in the new one's */
    const char *under; /* the name of a directory that takes its root; NULL: the new root */
};

/*
 * Write the image to `fd`. The first of two archives gives a directory its attributes. All
 * parts have `under`, or none. Fills in the header's codec, block_bytes and sum_kind.
 *
 * -ENOTSUP: they can't be merged in this way, since a name is in two archives or an index is
 * damaged, for instance. Graft them, which also tells what is wrong; what was written to `fd`
 * means nothing. Other errors: as builder_write.
 */
int merge_write(const struct merge_part *parts, size_t count, struct builder_header *header,
                int fd, struct fault *fault);

#endif
