/*
 * Sums of the content of files, of the kind that an index has.
 *
 *     checksum_new(index_info(index)->sum_kind, &c);
 *     for each file:  checksum_reset(c);
 *                     checksum_add(c, bytes, len), in order, without the holes
 *                     checksum_is(c, sum), with index_sum's
 *     checksum_free(c);
 *
 * Threads: a checksum belongs to one thread.
 */
#ifndef ONEPOT_CHECKSUM_H
#define ONEPOT_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"

/* Was support for this kind built in? */
bool checksum_available(enum sum_kind kind);
const char *checksum_name(enum sum_kind kind); /* "XXH3-64" */

struct checksum;

/* A sum of no bytes. -ENOMEM, -ENOTSUP. */
int checksum_new(enum sum_kind kind, struct checksum **ret_checksum);
void checksum_free(struct checksum *checksum); /* NULL is fine */
void checksum_reset(struct checksum *checksum);
void checksum_add(struct checksum *checksum, const void *bytes, size_t len);
bool checksum_is(const struct checksum *checksum, uint64_t sum);
uint64_t checksum_value(const struct checksum *checksum); /* of a kind that is not SUM_MIXED */

/* The sum of bytes that lie together, of an available kind that is not SUM_MIXED. */
uint64_t checksum_of(enum sum_kind kind, const void *bytes, size_t len);

/* Do bytes that lie together have this sum, of an available kind? */
bool checksum_matches(enum sum_kind kind, uint64_t sum, const void *bytes, size_t len);

/* A sum of any kind, as an index with SUM_MIXED has it; and does that say that there is none?
 */
uint64_t checksum_mixed(enum sum_kind kind, uint64_t sum);
bool checksum_is_missing(uint64_t mixed);
enum sum_kind checksum_kind(uint64_t mixed); /* of a sum that is not missing */

#endif
