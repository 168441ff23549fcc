/*
 * Batches of one epoch, for iterators that end with it.
 */
#ifndef ONEPOT_EPOCH_H
#define ONEPOT_EPOCH_H

#include "onepot.h"

#define ANY_EPOCH UINT64_MAX

/*
 * As onepot_loader_next, but of this epoch: 0 at its end to all that ask, however many threads
 * these are, and where the loader went to another one.
 */
int loader_next_of(struct onepot_loader *loader, uint64_t epoch, int timeout_ms,
                   struct onepot_error *error, const struct onepot_batch **ret_batch);

#endif
