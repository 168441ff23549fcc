/*
 * A batch without a loader, for processes with an order and memory of their own. The calling
 * thread does the work of a loader's threads. Others help it, for as long as the call takes,
 * only where each read waits for a server.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "batch_fit.h"
#include "cleanup.h"
#include "error.h"
#include "fill.h"
#include "numbers.h"
#include "python_api.h"
#include "rank_share.h"
#include "thread.h"
#include "dataset.h"

#define THREADS_MAX 32u /* reads in flight */
#define RUN_SAMPLES 4u  /* that each takes at a time */
#define STACK_BYTES (512u << 10)

/* ---- plans ---- */

/* A batch that is made: how, where its samples go, and how far it is; ends with gather_free. */
struct gathering {
    struct fill_plan fill;
    struct images_plan *images;
    struct images_budget budget;
    uint64_t *offsets, *sizes;
    uint64_t bytes, all_bytes; /* of the data, and with tables */
    struct slab slab;
    uint64_t run; /* samples that a thread takes at a time, from number */
    _Atomic uint64_t next;
    _Atomic int err;          /* of the first failure; after it no thread begins a run */
    uint64_t bad;             /* the record that failed, from the thread that set err, */
    char why[IMAGES_WHY_MAX]; /* and why */
};

static void gather_free(struct gathering *p)
{
    free(p->images);
    free(p->offsets);
}

/* For pictures that are decoded without a loader; the job's limits are looked up once. */
static uint64_t picture_bytes(void)
{
    static _Atomic uint64_t known;
    uint64_t bytes = atomic_load(&known);
    if (!bytes)
        atomic_store(&known, bytes = rank_share_bytes());
    return bytes;
}

static int gather_plan_images(const struct onepot_images *given, struct onepot_error *error,
                              struct gathering *p)
{
    int r = images_plan_all(given, error, &p->images);
    if (r < 0)
        return r;
    images_budget_init(&p->budget, picture_bytes(), THREADS_MAX);
    p->fill.budget = &p->budget;
    p->fill.images = p->images;
    p->fill.stride = p->images->all_bytes;
    return 0;
}

static int gather_plan_places(const struct gather_batch *g, struct onepot_error *error,
                              struct gathering *p)
{
    p->offsets = calloc(2 * g->count + 1, sizeof(*p->offsets));
    if (!p->offsets)
        return error_set(error, -ENOMEM, "out of memory");
    p->sizes = p->offsets + g->count;
    if (!fill_places(&p->fill, g->samples, g->count, p->offsets, p->sizes, &p->bytes) ||
        !slab_bytes(g->count, p->bytes, &p->all_bytes))
        return error_set(error, -EOVERFLOW, "the batch is too large");
    return 0;
}

/* All but places, which need memory. */
static int gather_begin(const struct gather_batch *g, struct onepot_error *error,
                        struct gathering *p)
{
    *p = (struct gathering){.fill = {.archive = (struct onepot_archive *)(uintptr_t)g->archive,
                                     .align = g->align ? g->align : BATCH_FIT_ALIGN}};
    int r = fill_check_align(g->align, error);
    for (uint64_t i = 0; i < g->count && r == 0; i++)
        r = onepot_archive_check(g->archive, g->samples[i], error);
    return r == 0 && g->images ? gather_plan_images(g->images, error, p) : r;
}

static int gather_make(const struct gather_batch *g, struct onepot_error *error,
                       struct gathering *p)
{
    int r = gather_begin(g, error, p);
    if (r == 0)
        r = gather_plan_places(g, error, p);
    if (r < 0)
        gather_free(p);
    return r;
}

int onepot_archive_places(const struct onepot_archive *archive, const uint64_t *samples,
                          uint64_t count, uint32_t align, uint64_t *ret_offsets,
                          uint64_t *ret_sizes, uint64_t *ret_bytes)
{
    const struct gather_batch g = {archive, samples, count, .align = align};
    struct gathering p;
    int r = gather_begin(&g, NULL, &p);
    if (r < 0)
        return r;
    return fill_places(&p.fill, samples, count, ret_offsets, ret_sizes, ret_bytes) ? 0
                                                                                   : -EOVERFLOW;
}

int gather_batch_bytes(const struct gather_batch *g, struct onepot_error *error,
                       uint64_t *ret_data, uint64_t *ret_all)
{
    struct gathering p;
    int r = gather_make(g, error, &p);
    if (r < 0)
        return r;
    *ret_data = p.bytes;
    *ret_all = p.all_bytes;
    gather_free(&p);
    return 0;
}

/* ---- bytes ---- */

static void *gather_runs(void *arg)
{
    struct gathering *g = arg;
    struct filler filler = {0};
    uint64_t count = g->slab.batch.samples, first, skipped = 0, bad = 0;
    while (!atomic_load(&g->err) && (first = atomic_fetch_add(&g->next, g->run)) < count) {
        uint64_t end = count - first < g->run ? count : first + g->run;
        int none = 0, r = fill_samples(&g->fill, &filler, &g->slab, first, end, &skipped, &bad);
        if (r < 0 && atomic_compare_exchange_strong(&g->err, &none, r)) {
            g->bad = bad;
            memcpy(g->why, filler.why, sizeof(g->why));
        }
    }
    filler_free(&filler);
    return NULL;
}

static int gather_all(struct gathering *g, struct onepot_error *error)
{
    const struct dataset *d = g->fill.archive->dataset;
    uint64_t count = g->slab.batch.samples;
    bool mapped = dataset_is_mapped(d);
    g->run = mapped ? count : RUN_SAMPLES;
    uint64_t runs = mapped || !count ? 1 : (count - 1) / g->run + 1;
    thread_team(min_u64(runs, THREADS_MAX), STACK_BYTES, gather_runs, g);
    return g->err ? fill_error(error, g->err, d, g->bad, g->why) : 0;
}

/* Places for a batch without tables; `valid` tells which samples are. */
static void gather_lend(const struct gather_batch *g, uint8_t *valid, struct gathering *p)
{
    struct slab *slab = &p->slab;
    slab->offsets = p->offsets;
    slab->sizes = p->sizes;
    slab->indices = (uint64_t *)(uintptr_t)g->samples;
    slab->valid = valid;
    slab->batch.samples = g->count;
    slab->batch.data = slab->memory;
    slab->batch.bytes = p->bytes;
}

/* `valid` is for a batch without tables; NULL: all are. */
static int gather_into(const struct gather_batch *g, void *memory, uint64_t size,
                       bool has_tables, uint8_t *valid, struct onepot_error *error)
{
    struct gathering p;
    int r = gather_make(g, error, &p);
    if (r < 0)
        return r;
    uint64_t bytes = has_tables ? p.all_bytes : p.bytes;
    p.slab.memory = memory;
    if (bytes > size) {
        r = error_set(error, -EINVAL, "the batch needs %llu bytes, and there are %llu",
                      (unsigned long long)bytes, (unsigned long long)size);
    } else if (g->count) {
        if (has_tables) {
            slab_begin(&p.slab, g->count, p.bytes);
            fill_tables(&p.fill, &p.slab, g->samples, p.offsets, p.sizes);
        } else {
            gather_lend(g, valid, &p);
        }
        p.slab.seed = g->seed;
        p.slab.batch.epoch = g->epoch;
        r = gather_all(&p, error);
    }
    gather_free(&p);
    return r;
}

int gather_batch_fill(const struct gather_batch *batch, void *memory, uint64_t size,
                      struct onepot_error *error)
{
    return gather_into(batch, memory, size, true, NULL, error);
}

int onepot_archive_gather(const struct onepot_archive *archive, const uint64_t *samples,
                          uint64_t count, uint32_t align, void *buf, uint64_t size,
                          struct onepot_error *error)
{
    const struct gather_batch g = {archive, samples, count, .align = align};
    return gather_into(&g, buf, size, false, NULL, error);
}

int onepot_archive_images(const struct onepot_archive *archive, const uint64_t *samples,
                          uint64_t count, const struct onepot_images *images, uint64_t seed,
                          uint64_t epoch, void *buf, uint64_t size, uint8_t *ret_valid,
                          struct onepot_error *error)
{
    auto_free uint8_t *own = ret_valid ? NULL : malloc(count + 1);
    const struct onepot_images usual = {.size = sizeof(usual)};
    const struct gather_batch g = {archive, samples, count, .images = images ? images : &usual,
                                   seed,    epoch};
    uint8_t *valid = ret_valid ? ret_valid : own;
    if (!valid)
        return error_set(error, -ENOMEM, "out of memory");
    memset(valid, 1, count);
    return gather_into(&g, buf, size, false, valid, error);
}

/* ---- how many ---- */

int onepot_archive_batch_for(const struct onepot_archive *archive, uint64_t bytes,
                             uint32_t align, uint64_t *ret_mean, uint64_t *ret_worst)
{
    int r = fill_check_align(align, NULL);
    if (r < 0)
        return r;
    auto_free uint64_t *sizes = calloc(archive->count + 1, sizeof(*sizes));
    if (!sizes)
        return -ENOMEM;
    for (uint64_t i = 0; i < archive->count; i++)
        sizes[i] = archive_size(archive, i);
    batch_fit(sizes, archive->count, bytes, align ? align : BATCH_FIT_ALIGN, ret_mean,
              ret_worst);
    return 0;
}
