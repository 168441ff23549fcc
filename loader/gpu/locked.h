/*
 * Archives in page-locked memory, from which a device collects batches itself. The mapping of
 * the archive is locked where that is possible; otherwise a copy of the archive is. Its pages
 * are first brought into memory, by several threads.
 */
#ifndef ONEPOT_LOCKED_H
#define ONEPOT_LOCKED_H

#include "dataset.h"
#include "device.h"

struct locked;

/*
 * Lock them, by this device and for all others of its kind. -ENOTSUP: not every sample is
 * stored in one piece. -ENOMEM: the archives exceed `room_bytes`, or can't be locked.
 */
int locked_new(struct onepot_device *device, const struct onepot_archive *archive,
               uint64_t room_bytes, struct onepot_error *error, struct locked **ret_locked);
struct locked *locked_keep(struct locked *locked); /* for another user */
void locked_free(struct locked *locked); /* NULL is fine; the last one unlocks the memory */

/* Where a device sees the archives, one address for each; to be freed. */
int locked_see(const struct locked *locked, const struct onepot_device *device,
               struct onepot_error *error, uint64_t **ret_bases);

/* The addresses of the first byte of each of these samples. */
void locked_find(const struct locked *locked, const uint64_t *bases, const uint64_t *samples,
                 uint64_t count, uint64_t *ret_addresses);

#endif
