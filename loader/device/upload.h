/*
 * Slabs that have a twin on a device: page-locked memory of the host, and as much of the
 * device's, to which each batch goes over in one copy on a stream of the upload's own.
 *
 * The life of a slab's memory, and who waits for whom:
 *
 *     gathered   by threads, into host memory that no copy reads any more (settled)
 *     sent       the copying stream first follows the streams that used the last batch
 *     used       a consumer's stream follows the copy
 *     retired    an event is recorded on each stream that used it, or, where not all of them
 *                are known, behind all that the device was given
 *
 * Where the device collects the samples from page-locked archives, the host's part of a slab is
 * its tables alone.
 *
 * Only `settle` makes a thread wait, and that is one of the engine's; and `send`, where not all
 * streams are known and the device has no events behind all of them.
 */
#ifndef ONEPOT_UPLOAD_H
#define ONEPOT_UPLOAD_H

#include "dataset.h"
#include "device.h"
#include "locked.h"
#include "slab.h"

struct upload;

struct upload_options {
    struct onepot_device *device;       /* shared, or opened once more after a fork */
    const struct onepot_images *images; /* to be made of all batches, or NULL */
    struct locked *locked; /* the device collects the samples from here, or NULL; taken over,
                              also on failure */
    uint64_t batch_size;
};

int upload_new(const struct upload_options *options, struct onepot_error *error,
               struct upload **ret_upload);
void upload_keep(struct upload *upload);
void upload_close(struct upload *upload); /* one of its users; NULL is fine */

/* The memory of an engine; its context is the upload, of which it closes one use. */
extern const struct slab_memory upload_memory;

/* As the functions of onepot_device.h that they are called by. */
int upload_use(struct slab *slab, void *stream, struct onepot_error *error);
int upload_lend(struct slab *slab, void *stream, struct onepot_error *error);
int upload_wait(struct slab *slab, struct onepot_error *error);
void upload_where(const struct slab *slab, struct onepot_device_batch *ret_where);

/* What went wrong last: fills *error, returns its code; 0: nothing did. */
int upload_error(struct upload *upload, struct onepot_error *error);

/* The consumer waited for a batch of this epoch. */
void upload_waited(struct upload *upload, uint64_t epoch, uint64_t ns);

/* All but the peak. */
void upload_transfer(struct upload *upload, bool previous, struct onepot_transfer *ret);

#endif
