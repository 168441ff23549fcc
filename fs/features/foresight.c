/*
 * Reading ahead from a distant archive, or by a known order. Workers report what readers ask
 * for to the threads of cache/ahead/ahead.h, which fetch into the block cache.
 *
 * Division of work: an archive on this node's storage without a known order belongs to
 * populate.c, which brings files into the kernel's cache of the mount. Everything else belongs
 * to this file. The two are never active together. An archive that is copied whole to this node
 * (--stage) needs neither.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ahead.h"
#include "budget.h"
#include "clock.h"
#include "core.h"
#include "numbers.h"

#define FETCHERS_REMOTE 32u
#define FETCHERS_LOCAL 4u
#define ORDER_BYTES_LEAST (UINT64_C(64) << 20)
#define ORDER_BYTES_MOST (UINT64_C(1) << 30)
#define STUCK_MAX_S 1000000u
#define ORDER_SHARE 8u /* of the free memory, for keeping known orders */

struct foresight {
    struct session *session;
    struct ahead *ahead;
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

static int foresight_start(struct session *s, void **ret_state)
{
    bool local = source_is_local(s->config.pot->source);
    uint64_t ahead_bytes = window_bytes(s, local);
    if (!s->config.recorder && ahead_bytes == 0)
        return 0;
    uint64_t room = budget_room_bytes("") / ORDER_SHARE;
    const struct ahead_options options = {
        .index = s->index,
        .root = s->config.root,
        .seed = s->config.seed,
        .window_bytes = ahead_bytes,
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
    struct foresight *f;
    int r;

    f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->session = s;
    f->records = options.recorder;
    r = ahead_new(&options, &f->ahead);
    if (r < 0) {
        free(f);
        return r;
    }
    s->config.recorder = NULL; /* taken over */
    *ret_state = f;
    return 0;
}

static int foresight_add_worker(void *state, struct worker *w)
{
    struct foresight *f = state;

    return ahead_observer(f->ahead, &f->observers[w->number]);
}

static int foresight_before_read(void *state, struct read *read)
{
    const struct foresight *f = state;
    const struct request *rq = read->rq;
    const struct observation seen = {rq->received_ns, read->offset, read->position, read->size,
                                     rq->header->pid};

    observer_note(f->observers[rq->worker->number], &seen);
    return 0;
}

static void name_folder(const struct session *s, uint32_t directory)
{
    struct counters *c = s->config.counters;
    size_t len;

    if (index_path(s->index, directory, c->order_folder, sizeof(c->order_folder), &len) < 0)
        c->order_folder[0] = '\0';
}

static void foresight_update_counters(void *state)
{
    const struct foresight *f = state;
    const struct session *s = f->session;
    struct counters *c = s->config.counters;
    struct ahead_stats stats;

    if (!source_is_local(s->config.pot->source))
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

static void foresight_end(void *state)
{
    const struct foresight *f = state;

    ahead_end(f->ahead);
}

static int foresight_join(void *state, const struct timespec *until)
{
    const struct foresight *f = state;
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

static void foresight_free(void *state)
{
    struct foresight *f = state;

    ahead_free(f->ahead);
    free(f);
}

const struct feature foresight_feature = {
    .start = foresight_start,
    .add_worker = foresight_add_worker,
    .before_read = foresight_before_read,
    .update_counters = foresight_update_counters,
    .end = foresight_end,
    .join = foresight_join,
    .free = foresight_free,
};
