/* Shared by upload.c, which sends batches, and upload_consumer.c, which lends them. */
#ifndef ONEPOT_UPLOAD_PRIVATE_H
#define ONEPOT_UPLOAD_PRIVATE_H

#include <pthread.h>

#include "pause.h"
#include "upload.h"
#include "vector.h"

#define EPOCHS 4u
#define NAME_ROOM 32 /* for a device's name and ": " */

/* A stream that reads a batch. */
struct use {
    void *stream;
    void *event;
    bool is_recorded; /* the stream reads no further, and may be gone */
};

/* Besides known streams, the next copy waits for: */
enum guard {
    GUARD_NONE,
    GUARD_EVENT, /* `all`, an event behind everything given to the device */
    GUARD_WAIT,  /* everything given to the device, for want of such an event */
    GUARD_LATER, /* nothing is recorded yet: one of the streams captures a graph */
};

struct device_slab {
    struct upload *upload;
    struct device_slab *next;
    uint8_t *memory; /* of the device */
    size_t host_bytes;
    void *images;
    size_t image_bytes;
    void *begun, *sent; /* events around the copy, */
    void *converted;    /* and after the conversion of its images */
    bool settled;       /* the copy was waited for, with or without success */
    bool unmeasured;    /* the times were not taken yet, of: */
    uint64_t epoch, bytes;
    VECTOR(struct use) uses; /* more than are in use have their events already */
    size_t use_count;        /* of the batch; with GUARD_LATER, of the batch before */
    size_t retired;          /* uses of the batch before, which the next copy has to follow */
    bool lent;               /* other streams may read the batch, too */
    enum guard guard;
    void *all;
};

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
    struct onepot_transfer epochs[EPOCHS];
};

/* Keep an error for later, with the device's name before it. Returns r. Under the lock. */
int upload_note(struct upload *u, int r, const struct onepot_error *error);
/* The event after which all of the batch is there, images included. */
void *upload_arrival(const struct device_slab *t);
/* How many bytes of floats `bytes` of a slab can make at most. */
size_t upload_image_room(const struct upload *u, size_t bytes);
/* Where a table of the host lies on the device. */
const void *upload_on_device(const struct slab *slab, const void *host);

#endif
