/*
 * Processes of our own that read through the mount like any reader, so that the kernel asks for
 * what readers will want. A feature that needs them begins its state with a struct helper: a
 * thread that sleeps until there is work, processes that it starts for it, and memory that both
 * share.
 *
 *     helper_init(&state->helper, session, ...);   fill in the shared memory
 *     helper_start(&state->helper, run);           `run` gets the helper, in a thread
 *         while (helper_sleep(helper))             until somebody calls helper_wake
 *             helper_run(helper, 2, work);         `work` gets the helper, in two processes
 *
 * `work` runs a plan (mount_fetcher.h) with helper_fetcher and the `ctx` that it got.
 *
 * helper_answer, helper_end, helper_join and helper_free are for the feature's table.
 *
 * Why a process. A thread that waits in its own mount keeps the descriptors of its process
 * open; if that process is killed then, the connection never ends and nobody can unmount. The
 * child has closed the device, so it is a reader like any other. It sees the mount in a
 * namespace of its own, where its open files do not keep others from unmounting; where such a
 * namespace is not allowed there is no helper for a mount of our own. It is forked on demand
 * and ends when the readers pause. It has only a copy of the daemon's memory and the shared
 * mappings, and calls nothing that may lock or allocate, because other threads may have been in
 * the middle of such calls.
 */
#ifndef ONEPOT_HELPER_H
#define ONEPOT_HELPER_H

#include "core.h"
#include "mount_fetcher.h"
#include "viewpoint.h"

#define HELPER_NAME_MAX 64

struct helper {
    struct session *session;
    void *shared; /* all zero at first */
    size_t shared_bytes;
    struct viewpoint view;
    bool has_view; /* this is where its processes see the mount */
    /*
     * The mount is elsewhere: each child asks there for a name of its own, which nobody else
     * knows, and the daemon notes that it came: `seen`, shared with the child.
     */
    char names[COUNTERS_AHEAD][HELPER_NAME_MAX]; /* under the lock */
    _Atomic uint32_t *seen;
    unsigned asked;
    pthread_t thread;
    bool started;
    _Atomic uint32_t asleep; /* futex of the thread */
    unsigned slot, children; /* the places of its children in counters->ahead_pids */
    /* The same, which others can't change; 0: none. */
    _Atomic int32_t pids[COUNTERS_AHEAD];
    pthread_mutex_t lock; /* of the children's process IDs */
    bool stopped;
};

typedef enum mount_fetch helper_work(struct helper *helper, void *ctx);

enum { HELPER_POPULATE = 0, HELPER_POPULATE_MAX = COUNTERS_AHEAD - 1 };
enum { HELPER_WALK = HELPER_POPULATE_MAX, HELPER_WALK_MAX = 1 };

/* May there be helpers? The mount can be seen, or looked for. */
static inline bool helper_is_possible(const struct session_config *config)
{
    return config->mountpoint || config->is_elsewhere;
}

/* `children`: how many there may be, from place `slot` on. */
int helper_init(struct helper *helper, struct session *session, unsigned slot,
                unsigned children, size_t shared_bytes);
int helper_start(struct helper *helper, void *(*run)(void *helper));
/* False: the session has ended. */
bool helper_sleep(struct helper *helper);
void helper_wake(struct helper *helper); /* from any thread */
static inline bool helper_is_asleep(const struct helper *helper)
{
    return atomic_load_explicit(&helper->asleep, memory_order_relaxed);
}
/* Start so many children and wait until all have ended. Returns their greatest outcome. */
enum mount_fetch helper_run(struct helper *helper, unsigned count, helper_work *work);
/* For children. */
extern const struct mount_fetcher helper_fetcher;
/* Files that readers had to ask for. */
uint64_t helper_cold_reads(const struct session *session);

/* For the feature's table: look-ups of its children's names. */
bool helper_answer(void *helper, struct request *rq);
void helper_end(void *helper);
int helper_join(void *helper, const struct timespec *until);
void helper_free(void *helper); /* frees what begins with it, which calloc(3) allocated */

#endif
