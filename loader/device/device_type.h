/*
 * What a device has to be able to do: one table, of which there is one for the host
 * (device_host.c) and one for CUDA (cuda.c). The second one is in a shared object that knows
 * nothing else of this library, so that the table has a version and names no symbol of ours.
 *
 * `device` is what open returned, streams and events are pointers that only the device
 * understands; the consumer's streams come from outside. All functions may be called by
 * several threads at once. Those that return int return 0 or a negative errno, with one line
 * in *error, which is never NULL. Those that return nothing can't fail, or it does not matter.
 */
#ifndef ONEPOT_DEVICE_TYPE_H
#define ONEPOT_DEVICE_TYPE_H

#include <stddef.h>
#include <stdint.h>

#include "onepot_device.h"

#define DEVICE_VERSION 3u

enum device_memory {
    DEVICE_MEMORY_LOCKED, /* the host's, which copies of the device read directly */
    DEVICE_MEMORY_OWN,    /* the device's */
};

/* A batch that the device collects by itself; the arrays are in its memory. */
struct device_gather {
    uint8_t *to; /* bytes between the samples, and behind the last, become 0 */
    uint64_t bytes;
    uint64_t count;
    const uint64_t *from;    /* [count]: addresses, as `address` told them */
    const uint64_t *offsets; /* [count], ascending */
    const uint64_t *sizes;   /* [count] */
    uint32_t width;          /* how much of the device may work at it, in blocks; 0: a little */
};

struct device_type {
    uint32_t version;
    const char *kind;

    int (*count)(struct onepot_error *error, uint32_t *ret_count);
    int (*open)(uint32_t index, struct onepot_error *error, void **ret_device);
    void (*close)(void *device);
    int (*info)(void *device, struct onepot_error *error, struct onepot_device_info *ret_info);

    /* Memory. Locked memory lies near the device, page-aligned. */
    int (*allocate)(void *device, enum device_memory where, size_t bytes,
                    struct onepot_error *error, void **ret_memory);
    void (*release)(void *device, enum device_memory where, void *memory, size_t bytes);
    /*
     * Page-lock memory that is there, to be read only. The address at which the device sees
     * locked memory, for `gather`. -ENOMEM, -ENOTSUP.
     */
    int (*lock)(void *device, const void *memory, size_t bytes, struct onepot_error *error);
    void (*unlock)(void *device, const void *memory, size_t bytes);
    int (*address)(void *device, const void *memory, struct onepot_error *error,
                   uint64_t *ret_address);

    /* Where streams do what they are given, one after another. */
    int (*stream_new)(void *device, struct onepot_error *error, void **ret_stream);
    void (*stream_free)(void *device, void *stream);
    int (*stream_wait)(void *device, void *stream, struct onepot_error *error); /* the caller */

    /*
     * Points in a stream. `follow` makes a stream wait for the event as it was recorded last;
     * is_done is 1 or 0; one that was never recorded is done. elapsed: -EAGAIN before both
     * are done.
     */
    int (*event_new)(void *device, struct onepot_error *error, void **ret_event);
    void (*event_free)(void *device, void *event);
    int (*record)(void *device, void *event, void *stream, struct onepot_error *error);
    int (*follow)(void *device, void *stream, void *event, struct onepot_error *error);
    int (*is_done)(void *device, void *event, struct onepot_error *error);
    int (*event_wait)(void *device, void *event, struct onepot_error *error); /* the caller */
    int (*elapsed)(void *device, void *from, void *to, struct onepot_error *error,
                   uint64_t *ret_ns);
    /*
     * All that the device was given until now, by whomever, in streams that are not known here
     * either: an event behind it, which there may be no way to have (-ENOTSUP and others), and
     * a wait of the caller.
     */
    int (*record_all)(void *device, void *event, struct onepot_error *error);
    int (*wait_all)(void *device, struct onepot_error *error);

    /* What is queued. */
    int (*copy)(void *device, void *stream, void *to, const void *from, size_t bytes,
                struct onepot_error *error);
    int (*call)(void *device, void *stream, void (*function)(void *ctx), void *ctx,
                struct onepot_error *error);
    int (*gather)(void *device, void *stream, const struct device_gather *gather,
                  struct onepot_error *error); /* -ENOTSUP */
    int (*convert)(void *device, void *stream, const struct onepot_images *images,
                   uint64_t count, const uint8_t *from, void *to,
                   struct onepot_error *error); /* -ENOTSUP; checked before */

    /* A name for what the calling thread does from here on, for profilers; NULL ends it. */
    void (*range)(const char *name);
};

/* The function that a shared object has; NULL: it does not know this version. */
typedef const struct device_type *device_entry(uint32_t version);
#define DEVICE_ENTRY "onepot_device_type"

#endif
