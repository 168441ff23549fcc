/*
 * The options of a loader: checked, and completed from the archive and the job's resources.
 */
#include <errno.h>
#include <inttypes.h>

#include "batch_fit.h"
#include "budget.h"
#include "cpus.h"
#include "error.h"
#include "loader_private.h"
#include "numbers.h"
#include "rank_share.h"
#include "view.h"

#define RUN_MAPPED 64u   /* samples that a thread takes at a time, */
#define RUN_READ 4u      /* and where each may wait for a device, or is decoded */
#define THREADS_READ 32u /* reads in flight that suit slow storage */
#define AHEAD_LEAST 4u
#define IO_TIMEOUT_MS 60000u

/* ---- defaults ---- */

static uint64_t free_bytes(void)
{
    return budget_free_bytes("");
}

/* How many batches to have ahead: enough for two runs for every thread. */
static uint32_t ahead_for(const struct engine_options *o)
{
    uint64_t samples = 2 * o->run * o->threads;
    uint64_t ahead = samples / o->batch_size + 2;
    return (uint32_t)min_u64(max_u64(ahead, AHEAD_LEAST), ENGINE_AHEAD_MAX);
}

static void choose_threads(const struct onepot_loader_options *given, struct engine_options *o)
{
    bool mapped = dataset_is_mapped(o->fill.archive->dataset);
    o->threads = given->threads ? given->threads : rank_share_cpus();
    o->run = o->fill.images ? RUN_READ : RUN_MAPPED;
    o->cpus = given->threads || !mapped ? 0 : cpus_allowed();
    if (!mapped) {
        o->mapped_threads = o->threads;
        o->mapped_run = o->run;
        o->threads = given->threads ? given->threads : max_u32(o->threads, THREADS_READ);
        o->run = RUN_READ;
    }
    o->ahead = given->prefetch ? given->prefetch : ahead_for(o);
}

/* ---- options ---- */

static int loader_check_options(const struct onepot_loader_options *o,
                                struct onepot_error *error)
{
    if (o->batch_size == 0 || o->batch_size > UINT32_MAX)
        return error_set(error, -EINVAL, "a batch has 1 to %" PRIu32 " samples", UINT32_MAX);
    if (o->threads > ENGINE_THREADS_MAX)
        return error_set(error, -EINVAL, "more than %u threads", ENGINE_THREADS_MAX);
    if (o->prefetch > ENGINE_AHEAD_MAX)
        return error_set(error, -EINVAL, "more than %u batches ahead", ENGINE_AHEAD_MAX);
    if ((o->npy != 0) + (o->decode != NULL) + (o->images != NULL) > 1)
        return error_set(error, -EINVAL, "npy, images and a decoder exclude each other");
    if (o->decode && o->decoded_bytes == 0)
        return error_set(error, -EINVAL,
                         "the room for what is decoded is missing (decoded_bytes)");
    return fill_check_align(o->align, error);
}

static int plan_fill(const struct onepot_loader_options *given, struct fill_plan *fill,
                     struct onepot_error *error)
{
    fill->align = given->align ? given->align : BATCH_FIT_ALIGN;
    fill->verify = given->verify;
    fill->skip_errors = given->skip_errors;
    /* A single rank reads all samples again in the next epoch, and no order lets a cache keep
     * more for its start than fits. With several ranks, each epoch wants another part. */
    fill->foresee = given->world_size > 1 && !dataset_is_mapped(fill->archive->dataset);
    fill->npy = given->npy;
    fill->decode = given->decode;
    fill->decode_ctx = given->decode_ctx;
    if (fill->npy)
        return fill_npy_kind(fill, error);
    if (fill->images) {
        fill->stride = fill->images->all_bytes;
        return 0;
    }
    fill->stride =
        fill->decode ? given->decoded_bytes : onepot_archive_common_size(fill->archive);
    return 0;
}

uint64_t loader_length(const struct order_options *order, uint64_t batch_size)
{
    uint64_t length = order_length(order);
    return order->drop_last ? length - length % batch_size : length;
}

static int plan_order(struct onepot_loader_options *given, struct engine_options *o,
                      struct onepot_error *error)
{
    int r = rank_find(&given->rank, &given->world_size, error);
    if (r < 0)
        return r;
    o->order = (struct order_options){
        .samples = o->fill.archive->count,
        .rank = given->rank,
        .world_size = given->world_size,
        .seed = given->seed,
        .shuffle = !given->no_shuffle,
        .drop_last = given->drop_last,
        .workers = 1,
        .block = given->block,
        .window = given->window ? given->window : ORDER_DEFAULT_WINDOW,
    };
    if (given->rank >= given->world_size)
        return order_error(error, -EINVAL, &o->order);
    o->batch_size = given->batch_size;
    o->length = loader_length(&o->order, o->batch_size);
    return 0;
}

int loader_plan(struct onepot_loader_options *given, struct engine_options *o,
                struct onepot_error *error)
{
    int r = loader_check_options(given, error);
    if (r == 0)
        r = plan_order(given, o, error);
    if (r == 0)
        r = plan_fill(given, &o->fill, error);
    if (r < 0)
        return r;
    choose_threads(given, o);
    uint32_t timeout_ms = given->io_timeout_ms ? given->io_timeout_ms : IO_TIMEOUT_MS;
    if (timeout_ms != ONEPOT_NEVER)
        o->io_timeout_ns = timeout_ms * UINT64_C(1000000);
    o->memory_bytes = given->memory_bytes;
    o->job_bytes = budget_cache_bytes();
    o->is_fixed = given->memory_bytes > 0;
    if (!given->memory_bytes) {
        o->memory_bytes = rank_share_bytes();
        o->free_bytes = free_bytes;
        o->left_bytes = budget_memory_bytes("") / 8;
    }
    o->memory = &slab_host_memory;
    return 0;
}
