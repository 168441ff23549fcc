/*
 * A slab is the memory of one batch: data first, then its tables (offsets, sizes, labels,
 * indices, validity), so that all of it can travel in one copy. Where the memory comes from is
 * up to a table of functions; memory that a device has a copy of (upload.h) is another table.
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
struct twin;

struct slab_memory {
    /* Set `memory`, page-aligned; its content does not matter. -ENOMEM, -EIO */
    int (*allocate)(struct slab *slab, size_t bytes, void *ctx);
    /* All `capacity` bytes. */
    void (*release)(struct slab *slab, void *ctx);

    /* The rest is NULL where a batch is for the host alone. */

    /* Its batch is gathered: called once, before it can be taken. */
    int (*send)(struct slab *slab, void *ctx);
    /* Its batch was released for the last time. */
    void (*retire)(struct slab *slab, void *ctx);
    /* May the host write to it again? And wait until it may. */
    bool (*is_settled)(struct slab *slab, void *ctx);
    void (*settle)(struct slab *slab, void *ctx);
    /* The last slab is gone. */
    void (*close)(void *ctx);
};

/* Anonymous memory of the process. */
extern const struct slab_memory slab_host_memory;

struct slab {
    struct onepot_batch batch; /* what the consumer sees; first, see slab_of */
    struct engine *engine;
    struct slab *next; /* in the list of free ones */
    uint8_t *memory;
    size_t capacity;
    bool tables_only;       /* data is not in `memory`: the device collects it */
    struct twin *twin;      /* on a device */
    _Atomic unsigned users; /* of the batch */

    /* The batch's tables, writable. */
    uint64_t *offsets, *sizes, *indices;
    int64_t *labels;
    uint8_t *valid;
    /* [samples]: where the device finds each, if it collects them; else after how many elements
     * it comes again, or SLAB_NOT_AGAIN. */
    union {
        uint64_t *sources, *again;
    };

    /* While it is gathered; under the engine's lock. */
    uint64_t claimed, gathered; /* samples */
    bool whole;                 /* it may be taken */
    uint64_t end;               /* element of the epoch behind its last one */
    int err;                    /* the first sample that failed, */
    uint64_t bad_record;        /* and which one it was, */
    bool lost;                  /* or sending it did */
    /* A read for it stalled: no run of it is begun any more, and it is not used again before
     * those are over that were. */
    bool abandoned;
    uint64_t stalled_ns; /* for so long */
    bool released;       /* meanwhile, by who was told */
};

#define SLAB_NOT_AGAIN UINT64_MAX

static inline struct slab *slab_of(const struct onepot_batch *batch)
{
    return (struct slab *)(uintptr_t)batch;
}

/* Bytes that a slab needs for so many samples and bytes of data; 0: too many. */
size_t slab_bytes(uint64_t samples, uint64_t data_bytes);

/* Where the tables begin on a device, behind so much data; and their bytes at most. */
size_t slab_tables_at(uint64_t data_bytes);
size_t slab_tables_bytes(uint64_t samples);

/* Point the tables of a slab that is large enough at their places. */
void slab_lay_out(struct slab *slab, uint64_t samples, uint64_t data_bytes);

#endif
