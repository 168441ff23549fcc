/*
 * The devices that a loader's batches may go to, as the loader knows them: a table of the gpu
 * room's functions. A library that was built without that room (-Dgpu) has none.
 */
#ifndef ONEPOT_ACCELERATOR_H
#define ONEPOT_ACCELERATOR_H

#include "engine.h"
#include "onepot_device.h"

struct loader_devices;

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
