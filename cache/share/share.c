/*
 * The claim belongs to the thread. Other threads leave a number and ring a bell. So they may do
 * that while they hold locks that `told` takes as well.
 */
#include "share.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "thread.h"

#define LOOK_EVERY_MS 500        /* without a watch on the others */
#define SETTLE_MS 50             /* a process that comes or goes makes several changes */
#define STACK_BYTES (512u << 10) /* a loader frees device memory in `told` */

struct share {
    struct share_options options;
    struct claim *claim;
    pthread_t thread;
    int bell_fd; /* eventfd */
    _Atomic bool end;
    _Atomic uint64_t most_bytes;
    uint64_t looked_for; /* most_bytes at the last look */
};

/* claim_set */
static uint64_t share_tell(void *ctx, uint64_t bytes)
{
    struct share *share = ctx;
    const struct share_part part = {bytes, share->looked_for, claim_processes(share->claim)};
    return share->options.told(share->options.ctx, &part);
}

static void share_look_now(struct share *share)
{
    share->looked_for = atomic_load(&share->most_bytes);
    claim_want(share->claim, share->looked_for);
    claim_update(share->claim, share_tell, share);
}

/* Sleeps for `timeout_ms`, or until the bell rings, and then returns true. */
static bool wait_for_bell(struct share *share, int timeout_ms)
{
    struct pollfd p = {.fd = share->bell_fd, .events = POLLIN};
    eventfd_t rings;
    return poll(&p, 1, timeout_ms) > 0 && eventfd_read(share->bell_fd, &rings) == 0;
}

/* Sleeps until something has changed. */
static void wait_for_change(struct share *share)
{
    int watch_fd = claim_watch_fd(share->claim);
    struct pollfd p[2] = {{.fd = share->bell_fd, .events = POLLIN},
                          {.fd = watch_fd, .events = POLLIN}};

    if (poll(p, 2, watch_fd < 0 ? LOOK_EVERY_MS : -1) < 0)
        wait_for_bell(share, LOOK_EVERY_MS);
    else if (p[0].revents)
        wait_for_bell(share, 0);
    else if (watch_fd >= 0)
        wait_for_bell(share, SETTLE_MS);
}

static void *share_look_at_others(void *arg)
{
    struct share *share = arg;

    while (!atomic_load(&share->end)) {
        wait_for_change(share);
        if (!atomic_load(&share->end))
            share_look_now(share);
    }
    return NULL;
}

int share_new(const struct share_options *options, struct share **ret_share)
{
    struct share *share = calloc(1, sizeof(*share));

    if (!share)
        return -ENOMEM;
    share->options = *options;
    uint64_t most = options->claim.most_bytes;
    atomic_init(&share->most_bytes, most ? most : UINT64_MAX);
    share->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = share->bell_fd < 0 ? -errno : claim_new(&options->claim, &share->claim);
    if (r == 0) {
        share_look_now(share);
        r = thread_start(&share->thread, STACK_BYTES, share_look_at_others, share);
    }
    if (r < 0) {
        claim_free(share->claim);
        if (share->bell_fd >= 0)
            close(share->bell_fd);
        free(share);
        return r;
    }
    *ret_share = share;
    return 0;
}

void share_free(struct share *share)
{
    if (!share)
        return;
    atomic_store(&share->end, true);
    eventfd_write(share->bell_fd, 1);
    pthread_join(share->thread, NULL);
    claim_free(share->claim);
    close(share->bell_fd);
    free(share);
}

void share_want(struct share *share, uint64_t most_bytes)
{
    atomic_store(&share->most_bytes, most_bytes);
    eventfd_write(share->bell_fd, 1);
}

void share_look(struct share *share)
{
    eventfd_write(share->bell_fd, 1);
}
