/*
 * The batches of one epoch, for iterators that end with it.
 */
#ifndef ONEPOT_EPOCH_H
#define ONEPOT_EPOCH_H

#include "onepot.h"

#define ANY_EPOCH UINT64_MAX

/*
 * Like onepot_loader_next, but for this epoch only. Returns 0 at its end, or if the loader went
 * to another epoch. Every thread that calls gets that 0, however many there are.
 */
int loader_next_of(struct onepot_loader *loader, uint64_t epoch, int timeout_ms,
                   struct onepot_error *error, const struct onepot_batch **ret_batch);

#endif
