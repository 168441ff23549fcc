/*
 * Several sources as one: the bytes of each lie behind the previous one's. A tree of many
 * archives has such a source, so that whatever reads one archive reads many.
 *
 *     source_concat(members, count, true, "train-*.tar", &source);
 *     source_concat_base(source, 7)       where the bytes of members[7] begin
 *     source_at(source, &offset)          the member with that byte, for a message
 *
 * A member of at least SOURCE_CONCAT_ALIGN bytes begins at a multiple of that, so that reads
 * which are aligned in the whole are aligned in its file. The gaps between members read as
 * zeros.
 *
 * An error of one member is an error of the reads that touch it, and of no others. Retries,
 * stale handles and lost pages are each member's own. The concatenation is local, in memory,
 * whole or unchanged if all of its members are. Its identity is made of all of theirs. A member
 * may have members itself.
 */
#ifndef ONEPOT_SOURCE_CONCAT_H
#define ONEPOT_SOURCE_CONCAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "source.h"

#define SOURCE_CONCAT_ALIGN UINT64_C(65536) /* of pages, stripes and cached blocks */

/* Where a member begins that follows one that ends at `end`; UINT64_MAX: too far to count. */
static inline uint64_t source_concat_next(uint64_t end)
{
    return end > INT64_MAX - SOURCE_CONCAT_ALIGN
               ? UINT64_MAX
               : (end + SOURCE_CONCAT_ALIGN - 1) / SOURCE_CONCAT_ALIGN * SOURCE_CONCAT_ALIGN;
}

/*
 * Put `count` sources, at least one, behind each other; without gaps, the members are one file
 * that was cut into pieces. Messages call the whole `name`. On success the members belong to
 * *ret_source, which closes them. -ENOMEM; -EFBIG: more bytes than a file can have.
 */
int source_concat(struct source *const *members, size_t count, bool has_gaps, const char *name,
                  struct source **ret_source);

/* Where the bytes of member `i`, which exists, begin. */
uint64_t source_concat_base(const struct source *concat, size_t i);

/*
 * From now on fail reads of member `i`, since its bytes have changed since it was opened. Any
 * thread.
 */
void source_concat_distrust(const struct source *concat, size_t i);

#endif
