/*
 * Reading ahead (cache/ahead/ahead.h). Workers report what readers ask for; the threads of that
 * room plan, and fetch into the block cache or, through the mount itself (mount_fetcher.h),
 * into the kernel's cache.
 *
 * Division of work: an archive on this node's storage without a known order has files brought
 * into the kernel's cache of the mount. Any other has them brought into the block cache. An
 * archive that is copied whole to this node (--stage) is on this node's storage once the copy
 * is complete, and before that needs neither. Directories of a walk come through the mount.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ahead.h"
#include "budget.h"
#include "clock.h"
#include "core.h"
#include "mount_fetcher.h"
#include "numbers.h"

#define FETCHERS_REMOTE 32u
#define FETCHERS_LOCAL 4u
#define ORDER_BYTES_LEAST (UINT64_C(64) << 20)
#define ORDER_BYTES_MOST (UINT64_C(1) << 30)
#define STUCK_MAX_S 1000000u
#define ORDER_SHARE 8u     /* of the free memory, for keeping known orders */
#define WALK_ENTRIES 4096u /* entries in an archive that make listing ahead worthwhile, */
#define NAMES_ENTRIES 256u /* and the same for names that are looked up */
#define NEARBY_FILES 4096u /* files that make reading ahead through the mount worthwhile */

struct ahead_feature {
    struct session *session;
    struct ahead *ahead;
    struct mount_fetcher *mount; /* NULL: nothing is fetched through the mount */
    bool records;
    struct observer *observers[SESSION_WORKERS_MAX]; /* by number of their workers */
};

static void note_order(void *ctx, const char *line)
{
    session_note(ctx, line);
}

/*
 * How much may be fetched before its reader asks: into the block cache from a distant archive,
 * else into the kernel's.
 */
static uint64_t window_bytes(const struct session *s, bool local)
{
    const struct session_config *config = &s->config;

    if (config->stage || (local && !config->order))
        return 0;
    return min_u64(config->readahead_bytes, local ? budget_room_bytes("") / 8
                                                  : config->counters->cache_budget_bytes / 2);
}

/* The memory that is free for files near the ones that are read; 0: not now. */
static uint64_t room_bytes(void *ctx)
{
    const struct session_config *config = &((const struct session *)ctx)->config;

    /*
     * Bytes not copied yet are far away. While a stream is unpacked, as many requests would
     * wait as the kernel allows.
     */
    if (!source_is_local(config->pot->source) ||
        (config->stage && stage_stream_progress_ns(config->stage) != 0))
        return 0;
    return budget_room_bytes("");
}

/* Fetches through the mount. */
static int set_mount(struct session *s, struct ahead_options *o,
                     struct mount_fetcher **ret_mount)
{
    const struct session_config *config = &s->config;
    const struct index_info *info = index_info(s->index);
    bool local = config->stage || source_is_local(config->pot->source);

    if (!config->readahead_bytes || !mount_fetcher_is_possible(config))
        return 0;
    o->mount_fetchers = config->counters->threads;
    /* On one CPU nothing is gained by listing ahead of a walk. */
    o->walks = o->mount_fetchers > 1 && info->entries >= WALK_ENTRIES;
    o->names = info->entries >= NAMES_ENTRIES;
    /* A record shows only what readers ask the mount for. */
    if (local && !config->order && !config->recorder && info->files >= NEARBY_FILES)
        o->nearby_bytes = config->readahead_bytes;
    if (!o->walks && !o->names && !o->nearby_bytes)
        return 0;
    o->room_bytes = room_bytes;
    o->room_ctx = s;
    o->mount = &mount_fetcher;
    int r = mount_fetcher_new(s, ret_mount);
    atomic_store(&s->lists_ahead, r == 0 && o->names);
    o->mount_ctx = *ret_mount;
    return r;
}

static int feature_ahead_start(struct session *s, void **ret_state)
{
    bool local = source_is_local(s->config.pot->source);
    uint64_t room = budget_room_bytes("") / ORDER_SHARE;
    struct ahead_options options = {
        .index = s->index,
        .root = s->config.root,
        .seed = s->config.seed,
        .window_bytes = window_bytes(s, local),
        .most_bytes = min_u64(max_u64(room, ORDER_BYTES_LEAST), ORDER_BYTES_MOST),
        .given = s->config.order,
        .log = note_order,
        .log_ctx = s,
        .fetcher = &ahead_reader_fetcher,
        .fetcher_ctx = s->config.reader,
        .fetchers = local ? FETCHERS_LOCAL : FETCHERS_REMOTE,
        .recorder = s->config.recorder,
        .stuck_ms = s->config.io_timeout_s < STUCK_MAX_S ? s->config.io_timeout_s * 500u : 0,
        .now_ns = now_ns,
        .replaced = &s->config.counters->replacements,
    };
    struct ahead_feature *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->session = s;
    f->records = options.recorder;
    int r = set_mount(s, &options, &f->mount);
    if (r == 0 && (options.recorder || options.window_bytes || options.mount))
        r = ahead_new(&options, &f->ahead);
    if (r < 0 || !f->ahead) {
        mount_fetcher_free(f->mount);
        free(f);
        return r;
    }
    s->config.recorder = NULL; /* taken over */
    *ret_state = f;
    return 0;
}

static int feature_ahead_add_worker(void *state, struct worker *w)
{
    struct ahead_feature *f = state;

    return ahead_observer(f->ahead, &f->observers[w->number]);
}

static int feature_ahead_before_read(void *state, struct read *read)
{
    const struct ahead_feature *f = state;
    const struct request *rq = read->rq;
    const struct observation seen = {.time_ns = rq->received_ns,
                                     .offset = read->offset,
                                     .position = read->position,
                                     .len = read->size,
                                     .task = rq->header->pid};

    if (!rq->own)
        observer_note(f->observers[rq->worker->number], &seen);
    return 0;
}

static void feature_ahead_after_listing(void *state, const struct listed *listed)
{
    const struct ahead_feature *f = state;
    const struct request *rq = listed->rq;
    const struct observation seen = {.time_ns = rq->received_ns,
                                     .kind = OBSERVED_LISTING,
                                     .position = listed->directory,
                                     .offset = listed->from,
                                     .len = listed->to - listed->from,
                                     .names_only = !listed->attributes,
                                     .own = rq->own,
                                     .task = rq->header->pid};

    observer_note(f->observers[rq->worker->number], &seen);
}

static void feature_ahead_after_lookup(void *state, const struct request *rq, uint32_t position)
{
    const struct ahead_feature *f = state;
    const struct observation seen = {.time_ns = rq->received_ns,
                                     .kind = OBSERVED_LOOKUP,
                                     .position = position,
                                     .task = rq->header->pid};

    if (!rq->own)
        observer_note(f->observers[rq->worker->number], &seen);
}

static bool feature_ahead_answer(void *state, struct request *rq)
{
    const struct ahead_feature *f = state;

    if (f->mount)
        mount_fetcher_look_up(f->mount, rq);
    return false; /* there is no such name */
}

static void name_folder(const struct session *s, uint32_t directory)
{
    struct counters *c = s->config.counters;
    size_t len;

    if (index_path(s->index, directory, c->order_folder, sizeof(c->order_folder), &len) < 0)
        c->order_folder[0] = '\0';
}

static void feature_ahead_update_counters(void *state)
{
    const struct ahead_feature *f = state;
    const struct session *s = f->session;
    struct counters *c = s->config.counters;
    struct ahead_stats stats;

    if (!source_is_local(s->config.pot->source)) /* it has none, if it had none at first */
        ahead_set_window(f->ahead, window_bytes(s, false));
    ahead_stats(f->ahead, &stats);
    atomic_store(&c->foreseen_kind, stats.kind);
    atomic_store(&c->foreseen_requests, stats.requests);
    atomic_store(&c->foreseen_bytes, stats.bytes);
    atomic_store(&c->foreseen_used, stats.used);
    atomic_store(&c->foreseen_late, stats.late);
    atomic_store(&c->foreseen_unused, stats.unused);
    atomic_store(&c->foreseen_in_order, stats.in_order);
    atomic_store(&c->foreseen_lost, stats.observations_lost);
    if (stats.orders_recognised != atomic_load(&c->orders_recognised))
        name_folder(s, stats.order_directory);
    atomic_store(&c->orders_recognised, stats.orders_recognised);
    atomic_store(&c->orders_lost, stats.orders_lost);
    atomic_store(&c->order_files, stats.order_files);
    atomic_store(&c->order_epoch, stats.order_epoch);
    atomic_store(&c->order_reads, stats.order_reads);
    atomic_store(&c->order_world, stats.world);
    atomic_store(&c->order_local, stats.local);
}

static void feature_ahead_end(void *state)
{
    const struct ahead_feature *f = state;

    ahead_end(f->ahead);
    if (f->mount)
        mount_fetcher_end(f->mount);
}

static int feature_ahead_join(void *state, const struct timespec *until)
{
    const struct ahead_feature *f = state;
    int recorded, r = ahead_join(f->ahead, until, &recorded);
    struct ahead_stats stats;

    ahead_stats(f->ahead, &stats);
    if (recorded < 0)
        session_log(f->session, "the record of reads could not be written: %s",
                    fault_errno(recorded));
    else if (f->records && stats.observations_lost > 0)
        session_log(f->session, "the record of reads is incomplete: %llu reads came too fast",
                    (unsigned long long)stats.observations_lost);
    return r;
}

static void feature_ahead_free(void *state)
{
    struct ahead_feature *f = state;

    ahead_free(f->ahead);
    mount_fetcher_free(f->mount);
    free(f);
}

const struct feature ahead_feature = {
    .start = feature_ahead_start,
    .add_worker = feature_ahead_add_worker,
    .before_read = feature_ahead_before_read,
    .after_listing = feature_ahead_after_listing,
    .after_lookup = feature_ahead_after_lookup,
    .answer = feature_ahead_answer,
    .update_counters = feature_ahead_update_counters,
    .end = feature_ahead_end,
    .join = feature_ahead_join,
    .free = feature_ahead_free,
};
