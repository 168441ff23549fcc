/*
 * The block cache's part of what the job may use: other mounts and loaders of the job have
 * theirs, come and go. A thread is told when they do, also while nobody reads, so that a mount
 * that is idle gives back what another one needs; an idle mount by itself is never woken.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "claims.h"
#include "internal.h"

#define LOOK_EVERY_MS 2000 /* where nothing tells of the others */
#define SETTLE_MS 50       /* who comes or goes makes several changes */

struct share {
    struct session *session;
    struct claim *claim;
    pthread_t thread;
    int end_fd; /* eventfd */
};

static void set_budget(void *ctx, uint64_t bytes)
{
    struct session *s = ctx;
    reader_set_budget(s->config.reader, bytes);
    atomic_store(&s->config.counters->cache_budget_bytes, bytes);
}

static bool wait_for_end(const struct share *share, int timeout_ms)
{
    struct pollfd p = {.fd = share->end_fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) > 0;
}

/* Until something has changed. False: it is time to end. */
static bool wait_for_others(const struct share *share)
{
    int watch_fd = claim_watch_fd(share->claim);
    struct pollfd p[2] = {{.fd = share->end_fd, .events = POLLIN},
                          {.fd = watch_fd, .events = POLLIN}};

    if (poll(p, 2, watch_fd < 0 ? LOOK_EVERY_MS : -1) < 0)
        return !wait_for_end(share, LOOK_EVERY_MS);
    return !p[0].revents && !(watch_fd >= 0 && wait_for_end(share, SETTLE_MS));
}

static void *look_at_others(void *arg)
{
    struct share *share = arg;

    while (wait_for_others(share))
        claim_update(share->claim, set_budget, share->session);
    return NULL;
}

static void share_free(struct share *share)
{
    claim_free(share->claim);
    if (share->end_fd >= 0)
        close(share->end_fd);
    free(share);
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
    share->end_fd = eventfd(0, EFD_CLOEXEC);
    int r = share->end_fd < 0 ? -errno : 0;
    claim_update(claim, set_budget, s);
    if (r == 0)
        r = -pthread_create(&share->thread, NULL, look_at_others, share);
    if (r < 0) {
        share_free(share);
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
    eventfd_write(share->end_fd, 1);
    pthread_join(share->thread, NULL);
    share_free(share);
    s->share = NULL;
}
