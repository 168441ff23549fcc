/*
 * A loader, which several files make: loader_options.c what it is told and what follows from
 * that, loader.c its life, loader_state.c where it is and what it delivered.
 */
#ifndef ONEPOT_LOADER_PRIVATE_H
#define ONEPOT_LOADER_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine.h"
#include "onepot_device.h"

struct onepot_device;
struct upload;

struct onepot_loader {
    struct onepot_archive *archive; /* its own handle */
    struct engine_options options;
    _Atomic(struct engine *) engine;
    _Atomic int owner;    /* the process whose engine it is, or that is about to make one */
    pthread_mutex_t lock; /* of seeks, and of what follows from them: seed and digest */
    struct onepot_device *device; /* NULL: batches are for the host */
    struct onepot_images images;  /* 0 channels: none are made */
    struct upload *upload;        /* the engine's memory, if there is a device */
    enum onepot_gather gather;
    uint64_t seed;
    bool has_digest;
    uint8_t digest[ONEPOT_DIGEST_BYTES];
};

/*
 * Options of an engine whose `fill.archive` is known, by what the caller gave and what the job
 * has; rank and world size are written to `given`.
 */
int loader_plan(struct onepot_loader_options *given, struct engine_options *options,
                struct onepot_error *error);

/* In a child: an engine of its own, where the parent's was. */
int loader_own_engine(struct onepot_loader *loader, struct onepot_error *error);

#endif
