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
#include "rank_share.h"
#include "thread.h"
#include "view.h"

#define THREADS_MAX 32u /* reads in flight */
#define RUN_SAMPLES 4u  /* that each takes at a time */
#define STACK_BYTES (512u << 10)

/* ---- places ---- */

static int make_plan(const struct onepot_archive *archive, const uint64_t *samples,
                     uint64_t count, uint32_t align, struct onepot_error *error,
                     struct fill_plan *plan)
{
    int r = fill_check_align(align, error);
    for (uint64_t i = 0; i < count && r == 0; i++)
        r = onepot_archive_check(archive, samples[i], error);
    if (r < 0)
        return r;
    *plan = (struct fill_plan){.archive = (struct onepot_archive *)(uintptr_t)archive,
                               .align = align ? align : BATCH_FIT_ALIGN};
    return 0;
}

int onepot_archive_places(const struct onepot_archive *archive, const uint64_t *samples,
                          uint64_t count, uint32_t align, uint64_t *ret_offsets,
                          uint64_t *ret_sizes, uint64_t *ret_bytes)
{
    struct fill_plan plan;
    int r = make_plan(archive, samples, count, align, NULL, &plan);
    if (r < 0)
        return r;
    return fill_places(&plan, samples, count, ret_offsets, ret_sizes, ret_bytes) ? 0
                                                                                 : -EOVERFLOW;
}

/* ---- bytes ---- */

struct gathering {
    const struct fill_plan *plan;
    struct slab *slab;
    _Atomic uint64_t next;
    _Atomic int err;          /* of the first failure; after it no thread begins a run */
    uint64_t bad;             /* the record that failed, from the thread that set err, */
    char why[IMAGES_WHY_MAX]; /* and why */
    uint64_t run;
};

static void *gather_runs(void *arg)
{
    struct gathering *g = arg;
    struct filler filler = {0};
    uint64_t count = g->slab->batch.samples, first, skipped = 0, bad = 0;
    while (!atomic_load(&g->err) && (first = atomic_fetch_add(&g->next, g->run)) < count) {
        uint64_t end = count - first < g->run ? count : first + g->run;
        int none = 0, r = fill_samples(g->plan, &filler, g->slab, first, end, &skipped, &bad);
        if (r < 0 && atomic_compare_exchange_strong(&g->err, &none, r)) {
            g->bad = bad;
            memcpy(g->why, filler.why, sizeof(g->why));
        }
    }
    filler_free(&filler);
    return NULL;
}

static void gather_all(struct gathering *g)
{
    const struct dataset *d = g->plan->archive->dataset;
    uint64_t count = g->slab->batch.samples, runs;
    bool mapped = dataset_is_mapped(d);
    g->run = mapped ? count : RUN_SAMPLES;
    runs = mapped || !count ? 1 : (count - 1) / g->run + 1;
    thread_team(min_u64(runs, THREADS_MAX), STACK_BYTES, gather_runs, g);
}

/* Into the slab's memory of `size` bytes. Other members of it may be set. */
static int gather_slab(const struct fill_plan *plan, struct slab *slab, const uint64_t *samples,
                       uint64_t count, uint64_t size, struct onepot_error *error)
{
    uint64_t bytes;
    auto_free uint64_t *places = calloc(2 * count + 1, sizeof(*places));
    if (!places)
        return error_set(error, -ENOMEM, "out of memory");
    if (!fill_places(plan, samples, count, places, places + count, &bytes))
        return error_set(error, -EOVERFLOW, "the batch is too large");
    if (bytes > size)
        return error_set(error, -EINVAL, "the batch needs %llu bytes, and there are %llu",
                         (unsigned long long)bytes, (unsigned long long)size);
    slab->offsets = places;
    slab->sizes = places + count;
    slab->indices = (uint64_t *)(uintptr_t)samples;
    slab->batch.samples = count;
    slab->batch.data = slab->memory;
    slab->batch.bytes = bytes;
    struct gathering g = {.plan = plan, .slab = slab};
    gather_all(&g);
    return g.err ? fill_error(error, g.err, plan->archive->dataset, g.bad, g.why) : 0;
}

int onepot_archive_gather(const struct onepot_archive *archive, const uint64_t *samples,
                          uint64_t count, uint32_t align, void *buf, uint64_t size,
                          struct onepot_error *error)
{
    struct fill_plan plan;
    struct slab slab = {.memory = buf};
    int r = make_plan(archive, samples, count, align, error, &plan);
    return r < 0 ? r : gather_slab(&plan, &slab, samples, count, size, error);
}

/* ---- images ---- */

/* For pictures that are decoded without a loader; the job's limits are looked up once. */
static uint64_t picture_bytes(void)
{
    static _Atomic uint64_t known;
    uint64_t bytes = atomic_load(&known);
    if (!bytes)
        atomic_store(&known, bytes = rank_share_bytes());
    return bytes;
}

int onepot_archive_images(const struct onepot_archive *archive, const uint64_t *samples,
                          uint64_t count, const struct onepot_images *images, uint64_t seed,
                          uint64_t epoch, void *buf, uint64_t size, uint8_t *ret_valid,
                          struct onepot_error *error)
{
    auto_free struct images_plan *pictures = malloc(sizeof(*pictures));
    auto_free uint8_t *valid = ret_valid ? NULL : malloc(count + 1);
    struct fill_plan plan;
    struct slab slab = {.memory = buf,
                        .seed = seed,
                        .valid = ret_valid ? ret_valid : valid,
                        .batch = {.epoch = epoch}};
    if (!pictures || !slab.valid)
        return error_set(error, -ENOMEM, "out of memory");
    int r = images_plan(images, error, pictures);
    if (r == 0)
        r = make_plan(archive, samples, count, 1, error, &plan);
    if (r < 0)
        return r;
    struct images_budget budget;
    images_budget_init(&budget, picture_bytes(), THREADS_MAX);
    plan.budget = &budget;
    plan.images = pictures;
    plan.stride = pictures->bytes;
    memset(slab.valid, 1, count);
    return gather_slab(&plan, &slab, samples, count, size, error);
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
