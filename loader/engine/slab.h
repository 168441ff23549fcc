/*
 * A slab is the memory of one batch: data first, then its tables (offsets, sizes, labels,
 * indices, validity), so that one copy moves all of it. A table of functions provides the
 * memory; upload.h has another table, for memory with a copy on a device.
 */
#ifndef ONEPOT_SLAB_H
#define ONEPOT_SLAB_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "onepot.h"

struct engine;
struct slab;
struct device_slab;

struct slab_memory {
    /* allocate, release, send and settle may wait for a device, which may first finish its
     * work: an engine calls them without its lock. */
    bool may_wait;
    /* Set `memory`, page-aligned, with any content, and `tables_only`. -ENOMEM, -EIO */
    int (*allocate)(struct slab *slab, size_t bytes, void *ctx);
    /* All `capacity` bytes. */
    void (*release)(struct slab *slab, void *ctx);
    /* How many bytes a slab of this capacity takes on the device, beside as many as here. */
    size_t (*beside)(size_t capacity, void *ctx);
    /* With tables_only: note where the samples of the places [first, end) are. */
    void (*gather)(struct slab *slab, uint64_t first, uint64_t end, void *ctx);
    /* The batch is gathered. Called once, before a consumer can take it. */
    int (*send)(struct slab *slab, void *ctx);
    /* The last user has released the batch. */
    void (*retire)(struct slab *slab, void *ctx);
    /* May the host write to it again? settle waits until it may. */
    bool (*is_settled)(struct slab *slab, void *ctx);
    void (*settle)(struct slab *slab, void *ctx);
    /* The last slab is gone. */
    void (*close)(void *ctx);
};

/* Anonymous memory of the process. */
extern const struct slab_memory slab_host_memory;

struct slab {
    struct onepot_batch batch; /* the consumer's view; first, see slab_of */
    struct engine *engine;
    struct slab *next; /* in the list of free ones */
    uint32_t device;   /* whose memory it has, for good: its place among the engine's */
    uint8_t *memory;
    size_t capacity;
    bool tables_only;                /* `memory` has no data: a device collects it, */
    size_t device_at;                /* and what is in `memory` lies behind it there */
    struct device_slab *device_slab; /* the memory on a device */
    _Atomic unsigned users;          /* of the batch */

    /* The batch's tables, writable. */
    uint64_t *offsets, *sizes, *indices;
    int64_t *labels;
    uint8_t *valid;
    /* [samples]: with tables_only, where the device finds each sample. Otherwise the number of
     * elements until the sample comes again, or SLAB_NOT_AGAIN. */
    union {
        uint64_t *sources, *again;
    };

    uint64_t seed; /* of the epoch's order, and of random crops */

    /* While it is gathered; under the engine's lock. */
    uint64_t claimed, gathered, skipped; /* samples */
    bool whole;                          /* a consumer may take it */
    uint64_t end;                        /* element of the epoch after the batch's last one */
    int err;                             /* of the first sample that failed, */
    uint64_t bad_record;                 /* its record (and FILL_LABEL), */
    char why[160];                       /* why its picture can't be decoded, */
    bool lost;                           /* or sending failed */
    /* A read for it stalled. No more runs of it begin, and it is not used again until all runs
     * that began are over. */
    bool abandoned;
    uint64_t stalled_ns; /* how long that read has stalled */
    bool released;       /* the consumer, who got the error, has released it meanwhile */
};

#define SLAB_NOT_AGAIN UINT64_MAX

static inline struct slab *slab_of(const struct onepot_batch *batch)
{
    return (struct slab *)(uintptr_t)batch;
}

/*
 * Bytes of a slab for so many samples and bytes of data; 0: too many. *ret_batch, if not NULL:
 * what a consumer sees of them, data and the tables of struct onepot_batch.
 */
size_t slab_bytes(uint64_t samples, uint64_t data_bytes, uint64_t *ret_batch);

/* Begin a batch in the slab's memory, which must be large enough: the tables have their places,
 * and whatever else the last batch left is 0. */
void slab_begin(struct slab *slab, uint64_t samples, uint64_t data_bytes);

#endif
