/*
 * The functions that a device has to offer. There is one table for the host (device_host.c) and
 * one for CUDA (cuda.c). The second one is in a shared object that knows nothing else of this
 * library. That is why the table has a version and names no symbol of ours.
 *
 * `device` is the result of open. Streams and events are pointers that only the device
 * understands; the consumer's streams come from outside. Several threads may call any function
 * at once. Functions that return int return 0 or a negative errno, with one line in *error
 * (NULL is fine). Functions without a result can't fail, or their failure does not matter.
 */
#ifndef ONEPOT_DEVICE_TYPE_H
#define ONEPOT_DEVICE_TYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "onepot_device.h"

#define DEVICE_VERSION 9u

enum device_memory {
    DEVICE_MEMORY_LOCKED, /* the host's; copies of the device read it directly */
    DEVICE_MEMORY_OWN,    /* the device's */
};

/* A batch that the device collects itself. The arrays are in the device's memory. */
struct device_gather {
    uint8_t *to; /* the gaps between samples, and after the last, become 0 */
    uint64_t bytes;
    uint64_t count;
    const uint64_t *from;    /* [count]: addresses that `address` returned */
    const uint64_t *offsets; /* [count], ascending */
    const uint64_t *sizes;   /* [count] */
};

struct device_type {
    const char *kind;

    int (*count)(struct onepot_error *error, uint32_t *ret_count);
    int (*open)(uint32_t index, struct onepot_error *error, void **ret_device);
    void (*close)(void *device);
    int (*info)(void *device, struct onepot_error *error, struct onepot_device_info *ret_info);

    /* Memory. Locked memory is page-aligned and lies near the device. */
    int (*allocate)(void *device, enum device_memory where, size_t bytes,
                    struct onepot_error *error, void **ret_memory);
    void (*release)(void *device, enum device_memory where, void *memory, size_t bytes);
    /*
     * lock: page-lock existing memory, for the device to read only. is_stored: the mapping of a
     * file on storage; if locking would mark its pages as changed, so that all of it is written
     * back: -ENOTSUP. address: where the device sees locked memory, for `gather`. -ENOMEM.
     */
    int (*lock)(void *device, const void *memory, size_t bytes, bool is_stored,
                struct onepot_error *error);
    void (*unlock)(void *device, const void *memory, size_t bytes);
    int (*address)(void *device, const void *memory, struct onepot_error *error,
                   uint64_t *ret_address);

    /*
     * Streams. A stream does its tasks one after another; an urgent stream's are begun before
     * others that are ready. stream_wait makes the caller wait.
     */
    int (*stream_new)(void *device, bool is_urgent, struct onepot_error *error,
                      void **ret_stream);
    void (*stream_free)(void *device, void *stream);
    /*
     * May events be recorded on it? -EBUSY: it captures a graph, or the capture of another
     * stream would break. -EINVAL: it is another device's. Nothing is recorded to find out.
     */
    int (*stream_check)(void *device, void *stream, struct onepot_error *error);
    int (*stream_wait)(void *device, void *stream, struct onepot_error *error);

    /*
     * Events: points in a stream. follow makes a stream wait for the latest recording of the
     * event. is_done returns 1 or 0, and 1 for an event that was never recorded. event_wait
     * makes the caller wait. record returns what stream_check does, and -EINVAL for a stream
     * that only record_all and wait_all may cover. elapsed, for events that have a time:
     * -EAGAIN until both are done.
     */
    int (*event_new)(void *device, bool has_time, struct onepot_error *error, void **ret_event);
    void (*event_free)(void *device, void *event);
    int (*record)(void *device, void *event, void *stream, struct onepot_error *error);
    int (*follow)(void *device, void *stream, void *event, struct onepot_error *error);
    int (*is_done)(void *device, void *event, struct onepot_error *error);
    int (*event_wait)(void *device, void *event, struct onepot_error *error);
    int (*elapsed)(void *device, void *from, void *to, struct onepot_error *error,
                   uint64_t *ret_ns);
    /*
     * Everything that anybody gave to the device so far, also in streams that are not known
     * here. record_all records an event behind it, which some devices can't do (-ENOTSUP and
     * others). wait_all makes the caller wait for it.
     */
    int (*record_all)(void *device, void *event, struct onepot_error *error);
    int (*wait_all)(void *device, struct onepot_error *error);

    /* Tasks for a stream. */
    int (*copy)(void *device, void *stream, void *to, const void *from, size_t bytes,
                struct onepot_error *error);
    int (*clear)(void *device, void *stream, void *to, size_t bytes,
                 struct onepot_error *error); /* to zeros */
    int (*call)(void *device, void *stream, void (*function)(void *ctx), void *ctx,
                struct onepot_error *error);
    /* NULL where `info` tells of no kernels; convert_check was called. */
    int (*gather)(void *device, void *stream, const struct device_gather *gather,
                  struct onepot_error *error);
    int (*convert)(void *device, void *stream, const struct onepot_conversion *images,
                   uint64_t count, const uint8_t *from, void *to, struct onepot_error *error);

    /* Name the work of the calling thread from here on, for profilers. NULL ends it. */
    void (*range)(const char *name);
};

/* The entry point of a shared object. Returns NULL if it does not know this version. */
typedef const struct device_type *device_entry(uint32_t version);
#define DEVICE_ENTRY "onepot_device_type"

#endif
