/*
 * The loader, in several files. loader_options.c has its options and their consequences,
 * loader.c its life, and loader_state.c its position and its deliveries.
 */
#ifndef ONEPOT_LOADER_PRIVATE_H
#define ONEPOT_LOADER_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine.h"
#include "onepot_device.h"

struct loader_devices;

struct onepot_loader {
    struct onepot_archive *archive; /* its own handle */
    struct engine_options options;
    _Atomic(struct engine *) engine;
    _Atomic int owner;    /* the process that has the engine, or is about to make one */
    pthread_mutex_t lock; /* for seeks, and what changes with them: seed and digest */
    struct loader_devices *devices; /* NULL: batches are for the host (accelerator.h) */
    struct images_plan *images;     /* or NULL */
    struct images_budget budget;    /* of pictures that are decoded */
    uint64_t seed;
    _Atomic uint64_t length; /* as options.length, which the lock guards */
    uint64_t *list;          /* the caller's order of an epoch, or NULL; */
    uint64_t list_hash;      /* and what tells it from others, not 0 */
    bool has_digest;
    uint8_t digest[ONEPOT_DIGEST_BYTES];
};

/*
 * Complete the options of an engine, whose `fill.archive` is set, from the caller's options and
 * the job's resources. Writes rank and world size to `given`.
 */
int loader_plan(struct onepot_loader_options *given, struct engine_options *options,
                struct onepot_error *error);

/* The elements of such an order that are delivered. */
uint64_t loader_length(const struct order_options *order, uint64_t batch_size);

/* In a forked child: make a new engine that goes on where the parent's was. */
int loader_own_engine(struct onepot_loader *loader, struct onepot_error *error);

#endif
