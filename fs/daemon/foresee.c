/*
 * Reading ahead from a distant archive, or by a known order. Workers report what readers ask
 * for to the threads of cache/ahead/ahead.h, which fetch into the block cache.
 *
 * Division of work: an archive on this node's storage without a known order belongs to
 * populate.c, which brings files into the kernel's cache of the mount. Everything else belongs
 * to this file. The two are never active together. An archive that is copied whole to this node
 * (--stage) needs neither.
 */
#include <string.h>

#include "ahead.h"
#include "budget.h"
#include "clock.h"
#include "internal.h"
#include "numbers.h"

#define FETCHERS_REMOTE 32u
#define FETCHERS_LOCAL 4u
#define ORDER_BYTES_LEAST (UINT64_C(64) << 20)
#define ORDER_BYTES_MOST (UINT64_C(1) << 30)
#define STUCK_MAX_S 1000000u
#define ORDER_SHARE 8u /* of the free memory, for keeping known orders */

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

static bool is_wanted(const struct session *s)
{
    bool local = source_is_local(s->config.pot->source);

    return s->config.recorder || window_bytes(s, local) > 0;
}

int foresee_start(struct session *s)
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

    if (!is_wanted(s))
        return 0;
    return ahead_new(&options, &s->ahead);
}

int foresee_worker(struct worker *w)
{
    return w->session->ahead ? ahead_observer(w->session->ahead, &w->observer) : 0;
}

void foresee_note(const struct request *rq, uint32_t position, uint64_t offset, uint32_t len)
{
    const struct observation seen = {rq->received_ns, offset, position, len, rq->header->pid};

    if (rq->worker->observer)
        observer_note(rq->worker->observer, &seen);
}

static void name_folder(struct session *s, uint32_t directory)
{
    struct counters *c = s->config.counters;
    size_t len;

    if (index_path(s->index, directory, c->order_folder, sizeof(c->order_folder), &len) < 0)
        c->order_folder[0] = '\0';
}

void foresee_update_counters(struct session *s)
{
    struct counters *c = s->config.counters;
    struct ahead_stats stats;

    if (!s->ahead)
        return;
    if (!source_is_local(s->config.pot->source))
        ahead_set_window(s->ahead, window_bytes(s, false));
    ahead_stats(s->ahead, &stats);
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

void foresee_end(struct session *s)
{
    if (s->ahead)
        ahead_end(s->ahead);
}

int foresee_join(struct session *s, const struct timespec *until)
{
    int recorded, r = s->ahead ? ahead_join(s->ahead, until, &recorded) : 0;

    if (s->ahead && recorded < 0)
        session_log(s, "the record of reads could not be written: %s", strerror(-recorded));
    else if (s->ahead && s->config.recorder && atomic_load(&s->config.counters->foreseen_lost))
        session_log(s, "the record of reads is incomplete: %llu reads came too fast",
                    (unsigned long long)atomic_load(&s->config.counters->foreseen_lost));
    return r;
}

void foresee_release(struct session *s)
{
    ahead_free(s->ahead);
    s->ahead = NULL;
}
