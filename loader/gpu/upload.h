/*
 * Slabs with a copy on a device: page-locked memory of the host, and as much memory of the
 * device. One copy moves each batch to the device, on a stream that belongs to the upload.
 *
 * The life of a slab's memory, and the waits in it:
 *
 *     gathered   by threads, into host memory that no copy reads any more (settled)
 *     sent       the copying stream first follows the streams that used the last batch, and the
 *                conversion of its images
 *     converted  on another stream, so that the next batch's copy goes on meanwhile
 *     used       a consumer's stream follows the copy, or the conversion behind it
 *     retired    an event is recorded on each stream that used the batch, or, if some of these
 *                are unknown, behind everything that the device was given
 *
 * Where the device collects samples from page-locked archives, the host's part of a slab is
 * only its tables.
 *
 * Only `settle` makes a thread wait, and it is a thread of the engine. So does `send` if some
 * streams are unknown and the device has no event behind all of them.
 */
#ifndef ONEPOT_UPLOAD_H
#define ONEPOT_UPLOAD_H

#include "dataset.h"
#include "device.h"
#include "pause.h"
#include "slab.h"

#define UPLOAD_EPOCHS 4u /* whose times are kept */

struct device_slab;

/* Its fields are private; a test sets the clock of `pause`. */
struct upload {
    _Atomic unsigned users;
    struct onepot_device *shared;
    const struct device_type *type;  /* its functions, */
    void *device;                    /* and their first argument */
    struct onepot_conversion images; /* 0 channels: none */
    struct locked *locked;           /* NULL: the host gathers */
    uint64_t *bases;                 /* where the device sees its archives */
    uint64_t batch_size;
    void *stream;         /* for copies, or gathering */
    void *converting;     /* for images; NULL: there are none */
    struct pause pause;   /* of threads that wait for the end of a capture */
    pthread_mutex_t lock; /* for the rest, and for tasks queued for one batch */
    struct device_slab *device_slabs;
    struct onepot_error error;
    uint64_t epoch; /* of the batch taken last */
    struct onepot_transfer epochs[UPLOAD_EPOCHS];
};

/* To this device, which is shared, or opened again after a fork. images: what to make of all
 * batches, or NULL. */
int upload_new(struct onepot_device *device, const struct onepot_conversion *images,
               uint64_t batch_size, struct onepot_error *error, struct upload **ret_upload);

/* The memory of an engine. Its context is the upload; the engine ends one use of it. */
extern const struct slab_memory upload_memory;

/* The last error: fills *error and returns its code. 0: there was none. */
int upload_error(struct upload *upload, struct onepot_error *error);

/* Fills in everything but the peak. */
void upload_transfer(struct upload *upload, bool previous, struct onepot_transfer *ret);

/* ---- page-locked archives ---- */

/*
 * Archives in page-locked memory, from which a device collects batches itself. The mapping of
 * the archive is locked where that is possible; otherwise a copy of the archive is. Its pages
 * are first brought into memory, by several threads.
 */

struct locked;

/*
 * Lock them, by this device and for all others of its kind. -ENOTSUP: not every sample is
 * stored in one piece. -ENOMEM: the archives exceed `room_bytes`, or can't be locked.
 */
int locked_new(struct onepot_device *device, const struct onepot_archive *archive,
               uint64_t room_bytes, struct onepot_error *error, struct locked **ret_locked);
void locked_free(struct locked *locked); /* NULL is fine; the last one unlocks the memory */

#endif
