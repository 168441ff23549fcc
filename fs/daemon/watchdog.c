/*
 * Keeps readers from hanging. A read of the archive that stalls can't be cancelled: its thread
 * sits in the kernel until the filesystem answers. So this thread looks at the requests in hand
 * several times a second. It answers one that is older than --io-timeout with EIO in place of
 * its worker. The worker is dismissed and another takes its turn; when the read ends after all,
 * the worker comes back (loop.c).
 *
 * It also finds a worker that is held up without having said so (by a page fault in the middle
 * of a mapped range) while no other waits for requests.
 *
 * An idle mount costs nothing: after a tick without any request this thread sleeps until a
 * request arms it.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "futex.h"
#include "internal.h"

#define TICK_NS (100u * 1000 * 1000)
#define HELD_UP_NS (50u * 1000 * 1000)
#define ASKED_AGAIN_NS (200u * 1000 * 1000)
#define LONG_READ_NS (1000u * 1000 * 1000) /* so long a failed read was retried in vain */

void watchdog_arm(struct session *s)
{
    if (atomic_exchange(&s->watchdog_armed, 1) == 0)
        futex_wake(&s->watchdog_armed, 1, FUTEX_OF_PROCESS);
}

static void log_stall(struct session *s, uint32_t position, uint64_t age_ns)
{
    char path[4096];
    size_t len;

    if (index_path(s->index, position, path, sizeof(path), &len) < 0)
        snprintf(path, sizeof(path), "entry %u", position);
    session_log(
        s,
        "%s: %s: a read has been waiting for %.1f s; answered with an input/output error "
        "(see --io-timeout)",
        s->config.pot->path, path, (double)age_ns / 1e9);
}

/* Noted before the answer, since the kernel may ask again right after it. */
static struct just_stalled *note_stall_locked(struct session *s, uint32_t position)
{
    struct just_stalled *just = &s->just_stalled[s->next_stalled++ % JUST_STALLED_MAX];
    uint64_t now = now_ns();

    *just = (struct just_stalled){.position = position, .at_ns = now};
    atomic_store(&s->stalled_ns, now);
    return just;
}

void watchdog_note_failure(struct session *s, uint32_t position, uint64_t began_ns)
{
    if (now_ns() - began_ns < LONG_READ_NS)
        return;
    pthread_mutex_lock(&s->turn_lock);
    note_stall_locked(s, position);
    pthread_mutex_unlock(&s->turn_lock);
}

bool watchdog_just_stalled(struct session *s, uint32_t position)
{
    uint64_t last = atomic_load_explicit(&s->stalled_ns, memory_order_relaxed);
    bool found = false;

    if (last == 0 || now_ns() - last > ASKED_AGAIN_NS)
        return false;
    pthread_mutex_lock(&s->turn_lock);
    for (unsigned i = 0; i < JUST_STALLED_MAX && !found; i++) {
        struct just_stalled *just = &s->just_stalled[i];
        if (just->at_ns && just->position == position) {
            found = now_ns() - just->at_ns < ASKED_AGAIN_NS;
            just->at_ns = 0;
        }
    }
    pthread_mutex_unlock(&s->turn_lock);
    return found;
}

/*
 * Answer for a worker, unless it has answered itself meanwhile. The lock keeps a worker that
 * finds its request answered from coming back before it is dismissed.
 */
static void give_up(struct worker *w, uint64_t turn, uint64_t unique, uint64_t age_ns)
{
    struct session *s = w->session;

    pthread_mutex_lock(&s->turn_lock);
    struct just_stalled *just = note_stall_locked(s, atomic_load(&w->position));
    bool answered = reply_for_stalled(w, turn, unique) != -EALREADY;
    if (answered)
        loop_dismiss_locked(w);
    else
        just->at_ns = 0;
    pthread_mutex_unlock(&s->turn_lock);
    if (!answered)
        return;
    atomic_fetch_add(&s->config.counters->stalls, 1);
    atomic_fetch_add(&s->config.counters->replacements, 1);
    log_stall(s, atomic_load(&w->position), age_ns);
}

/* Look at all workers once; true if one has a request in hand. */
static bool look(struct session *s)
{
    uint64_t now = now_ns(), timeout_ns = s->config.io_timeout_s * UINT64_C(1000000000);
    unsigned count, busy = 0, held_up = 0;
    /*
     * A read that waits for a stream being unpacked is not stalled while unpacking makes
     * progress.
     */
    uint64_t further_ns = source_progress_ns(s->config.pot->source);

    pthread_mutex_lock(&s->turn_lock);
    count = s->worker_count;
    pthread_mutex_unlock(&s->turn_lock);
    for (unsigned i = 0; i < count; i++) {
        struct worker *w = s->workers[i];
        uint64_t turn = atomic_load(&w->turn);
        uint64_t unique = atomic_load(&w->unique), since = atomic_load(&w->since_ns);

        if (turn % 2 == 0)
            continue;
        busy++;
        if (now - since > HELD_UP_NS && now > since)
            held_up++;
        uint64_t from = further_ns > since ? further_ns : since;
        if (timeout_ns && now > from && now - from > timeout_ns)
            give_up(w, turn, unique, now - since);
    }
    if (held_up) {
        pthread_mutex_lock(&s->turn_lock);
        if (s->active <= held_up)
            loop_wake_another_locked(s);
        pthread_mutex_unlock(&s->turn_lock);
    }
    return busy > 0;
}

uint64_t watchdog_last_request(const struct session *s)
{
    uint64_t last = 0;

    for (unsigned i = 0; i < COUNTERS_SLOTS; i++) {
        uint64_t t = atomic_load_explicit(&s->config.counters->slots[i].last_request_ns,
                                          memory_order_relaxed);
        if (t > last)
            last = t;
    }
    return last;
}

/* If so, its progress must be reported even while nobody sends a request. */
static bool is_staging(const struct session *s)
{
    return s->config.stage && !atomic_load(&s->config.counters->stage_failure) &&
           atomic_load(&s->config.counters->stage_here_bytes) < s->config.counters->stage_bytes;
}

/* Turns of all workers, summed: changes with each request. */
static uint64_t turns(struct session *s)
{
    uint64_t sum = 0;

    pthread_mutex_lock(&s->turn_lock);
    for (unsigned i = 0; i < s->worker_count; i++)
        sum += atomic_load(&s->workers[i]->turn);
    pthread_mutex_unlock(&s->turn_lock);
    return sum;
}

/*
 * Nobody sends requests: sleep. A request that came meanwhile found the watchdog armed and did
 * not wake it, so it is checked for here.
 */
static void disarm(struct session *s)
{
    uint64_t before = turns(s);

    session_update_counters(s);
    atomic_store(&s->watchdog_armed, 0);
    if (look(s) || turns(s) != before)
        atomic_store(&s->watchdog_armed, 1);
}

static void *watchdog(void *arg)
{
    const struct timespec tick = {.tv_nsec = TICK_NS};
    struct session *s = arg;

    while (!atomic_load(&s->ended)) {
        bool busy = look(s);
        if (!busy && !is_staging(s) && now_ns() - watchdog_last_request(s) > 10ull * TICK_NS)
            disarm(s);
        if (atomic_load(&s->watchdog_armed)) {
            futex_wait(&s->watchdog_armed, 1, FUTEX_OF_PROCESS, &tick);
            session_update_counters(s);
        } else if (!atomic_load(&s->ended)) {
            futex_wait(&s->watchdog_armed, 0, FUTEX_OF_PROCESS, NULL);
        }
    }
    return NULL;
}

int watchdog_start(struct session *s)
{
    pthread_attr_t attr;
    int r;

    atomic_store(&s->watchdog_armed, is_staging(s)); /* later, a request may have armed it */
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 64u << 10);
    r = -pthread_create(&s->watchdog, &attr, watchdog, s);
    pthread_attr_destroy(&attr);
    s->watchdog_started = r == 0;
    return r;
}
