/*
 * The devices that a loader's batches may go to, as the loader knows them: a table of the gpu
 * room's functions. A library that was built without that room (-Dgpu) has none.
 */
#ifndef ONEPOT_ACCELERATOR_H
#define ONEPOT_ACCELERATOR_H

#include "fill.h"
#include "onepot_device.h"
#include "sampler.h"

struct loader_devices;

/* The options of an engine: the threads and batches of a loader (loader.c). */
struct engine_options {
    struct onepot_sampler_options order; /* of each epoch */
    /*
     * is_listed: the caller gives the order of each epoch, which has none before that. `list`
     * is the one of list_epoch; NULL: none was given yet.
     */
    bool is_listed;
    const uint64_t *list;
    uint64_t list_epoch;
    struct fill_plan fill;
    uint64_t batch_size;
    uint64_t length; /* elements of an epoch that are delivered */
    uint32_t threads;
    uint32_t ahead; /* batches */
    uint64_t run;   /* samples that a thread takes at a time */
    /* The same once the archives are mapped, which staged ones are when their copies are whole;
     * 0: nothing changes then. */
    uint32_t mapped_threads;
    uint64_t mapped_run;
    uint64_t io_timeout_ns; /* when a read is given up; 0: never */
    /* If not 0, threads keep this many CPUs busy, but yield them to others of the job. */
    uint32_t cpus;
    uint64_t memory_bytes;
    uint64_t job_bytes; /* for this and other processes of the job */
    bool is_fixed;      /* memory_bytes applies, whatever others have */
    /*
     * free_bytes returns the memory that nobody of the job uses; left_bytes of it are left to
     * others. There are more slabs than the ring and its consumer need only if both allow it.
     * NULL: slabs may take all of memory_bytes.
     */
    uint64_t (*free_bytes)(void);
    uint64_t left_bytes;
    const struct slab_memory *memory;
    /*
     * One for each device; batch i of an epoch goes to device i modulo their number, whichever
     * batch is the first. The engine closes them, also if it can't be made. Each device may
     * have the same part of memory_bytes.
     */
    void *memory_ctx[ONEPOT_DEVICES_MAX];
    uint32_t devices; /* 0: one */
};

struct accelerator {
    /*
     * Take the devices that `given` names, and what they have to do. Completes the options of
     * an engine; `images` (NULL: samples are no pictures) is planned anew where the devices
     * make the floats. On failure nothing is left to be closed.
     */
    int (*plan)(const struct onepot_loader_options *given, struct engine_options *options,
                struct images_plan *images, struct onepot_error *error,
                struct loader_devices **ret_devices);
    /* Set the engine's memory. Once in each process, as no device survives a fork. */
    int (*start)(struct loader_devices *devices, struct engine_options *options,
                 struct onepot_error *error);
    /* Around a wait for a batch: `counts` if it was one, of this epoch. */
    void (*wait)(const struct loader_devices *devices);
    void (*waited)(struct loader_devices *devices, bool counts, uint64_t epoch, uint64_t ns);
    /* The device's last error: fills *error and returns its code. 0: there was none. */
    int (*error)(struct loader_devices *devices, uint32_t device, struct onepot_error *error);
    const char *(*name)(const struct loader_devices *devices, uint32_t device); /* "cuda:1" */
    int (*transfer)(struct loader_devices *devices, bool previous, struct onepot_error *error,
                    struct onepot_transfer *ret_transfer);
    /* After the engine. is_started: `start` was called in this process. NULL devices are fine.
     */
    void (*close)(struct loader_devices *devices, bool is_started);
};

extern const struct accelerator *const loader_accelerator; /* or NULL */

#endif
