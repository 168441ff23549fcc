/*
 * The loader, in several files. loader_options.c has its options and their consequences,
 * loader.c its life, and loader_state.c its position and what it delivered.
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
    _Atomic int owner;    /* the process that has the engine, or is about to make one */
    pthread_mutex_t lock; /* for seeks, and what changes with them: seed and digest */
    struct onepot_device *devices[ENGINE_DEVICES_MAX];
    uint32_t device_count;                      /* 0: batches are for the host */
    struct onepot_conversion convert;           /* 0 channels: nothing is converted */
    struct images_plan *images;                 /* or NULL */
    struct upload *uploads[ENGINE_DEVICES_MAX]; /* the engine's memory, if there are devices */
    enum onepot_gather gather;
    /* Their texts: see onepot_loader_decoder and onepot_loader_decompressor. */
    struct onepot_error decoder, decompressor;
    enum onepot_decompress
        decompress;       /* what was asked for, and is possible with these options */
    uint64_t block_bytes; /* the largest block of the archives, then */
    pthread_t locking;    /* a thread that locks the archives, */
    bool locks;           /* if there is one */
    atomic_bool stops_locking;
    uint64_t seed;
    bool has_digest;
    uint8_t digest[ONEPOT_DIGEST_BYTES];
};

/*
 * Complete the options of an engine, whose `fill.archive` is set, from the caller's options and
 * the job's resources. Writes rank and world size to `given`.
 */
int loader_plan(struct onepot_loader_options *given, struct engine_options *options,
                struct onepot_error *error);

/* The devices, and what they have to do. In loader_device.c. */
int loader_plan_device(struct onepot_loader *loader, const struct onepot_loader_options *given,
                       struct onepot_error *error);
/* Make the uploads, new ones each time, since after a fork the old ones are the parent's. */
int loader_start_uploads(struct onepot_loader *loader, struct onepot_error *error);
/* Before the uploads are closed, in the process that made it. */
void loader_end_locking(struct onepot_loader *loader);
void loader_close_uploads(struct onepot_loader *loader);

/* The consumer waited so long for a batch of this epoch. */
void loader_waited(struct onepot_loader *loader, uint64_t epoch, uint64_t ns);

/* In a forked child: make an engine of its own that goes on where the parent's was. */
int loader_own_engine(struct onepot_loader *loader, struct onepot_error *error);

#endif
