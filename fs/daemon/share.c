/*
 * The block cache's part of what the job may use: other mounts and loaders of the job have
 * theirs, come and go. A thread looks now and then, also while nobody reads, so that a mount
 * that is idle gives back what another one needs.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "claims.h"
#include "internal.h"

#define LOOK_S 2

struct share {
    struct session *session;
    struct claim *claim;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool ended;
};

static void set_budget(void *ctx, uint64_t bytes)
{
    struct session *s = ctx;
    reader_set_budget(s->config.reader, bytes);
    atomic_store(&s->config.counters->cache_budget_bytes, bytes);
}

static void *look_now_and_then(void *arg)
{
    struct share *share = arg;
    struct timespec until;

    pthread_mutex_lock(&share->lock);
    while (!share->ended) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += LOOK_S;
        if (pthread_cond_timedwait(&share->wake, &share->lock, &until) == ETIMEDOUT)
            claim_update(share->claim, set_budget, share->session);
    }
    pthread_mutex_unlock(&share->lock);
    return NULL;
}

static void init_wake(struct share *share)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&share->wake, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&share->lock, NULL);
}

int share_start(struct session *s)
{
    const struct session_config *config = &s->config;
    struct claim *claim;

    atomic_store(&config->counters->cache_budget_bytes, config->cache_bytes);
    if (config->cache_bytes == 0 ||
        claim_new(config->job ? config->job : "", config->cache_bytes,
                  config->cache_is_fixed ? config->cache_bytes : 0, &claim) < 0)
        return 0; /* no folder for it: then nothing is shared */
    struct share *share = calloc(1, sizeof(*share));
    if (!share) {
        claim_free(claim);
        return -ENOMEM;
    }
    share->session = s;
    share->claim = claim;
    init_wake(share);
    claim_update(claim, set_budget, s);
    int r = -pthread_create(&share->thread, NULL, look_now_and_then, share);
    if (r < 0) {
        claim_free(claim);
        free(share);
        return r;
    }
    s->share = share;
    return 0;
}

void share_stop(struct session *s)
{
    struct share *share = s->share;
    if (!share)
        return;
    pthread_mutex_lock(&share->lock);
    share->ended = true;
    pthread_cond_signal(&share->wake);
    pthread_mutex_unlock(&share->lock);
    pthread_join(share->thread, NULL);
    claim_free(share->claim);
    pthread_cond_destroy(&share->wake);
    pthread_mutex_destroy(&share->lock);
    free(share);
    s->share = NULL;
}
