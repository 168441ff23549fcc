#include "storage_watch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "interrupt.h"
#include "process.h"
#include "thread.h"

#define STACK_BYTES (128u << 10)
#define LOOK_EVERY_MS 200
#define PATIENCE_NS UINT64_C(1000000000) /* in one call, after a signal */

static struct storage_watch {
    pthread_t thread;
    bool started;
    sem_t runs;           /* posted once the thread has started */
    pthread_mutex_t lock; /* of what follows; held during a look, but not while it sleeps */
    pthread_cond_t changed;
    bool watches, stops;
    bool rests;  /* the second thread sleeps without an end */
    bool is_due; /* it slept long enough */
    const char *path;
    struct storage_wait wait;
    int status;      /* exit status of the process that it ends */
    pid_t thread_id; /* of the watched thread */
} storage_watch;

/* clang-format off */
static const long calls_of_files[] = {
    SYS_openat, SYS_pread64, SYS_preadv, SYS_preadv2, SYS_fstat, SYS_statx, SYS_fstatfs,
    SYS_statfs, SYS_readlinkat, SYS_getdents64, SYS_faccessat,
#ifdef SYS_faccessat2
    SYS_faccessat2,
#endif
#ifdef SYS_newfstatat
    SYS_newfstatat,
#endif
#ifdef SYS_open
    SYS_open, SYS_stat, SYS_lstat, SYS_readlink,
#endif
};
/* clang-format on */

/* Is it in a system call to a filesystem? */
static bool asks_storage(const struct storage_watch *w)
{
    char path[64];
    /* Through self: where /proc is another PID namespace's, there is no such thread. */
    snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", (int)w->thread_id);
    long call = proc_number(path, -1); /* "running" is no number */
    for (size_t i = 0; i < sizeof(calls_of_files) / sizeof(calls_of_files[0]); i++)
        if (call == calls_of_files[i])
            return true;
    return false;
}

static void look_at_thread(const struct storage_watch *w, struct storage_look *ret_look)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    uint64_t of_thread = 0, of_process = 0;

    *ret_look = (struct storage_look){.asks_storage = asks_storage(w)};
    process_status_number(w->thread_id, "\nvoluntary_ctxt_switches:", 10, &ret_look->waits);
    process_status_number(w->thread_id, "\nSigPnd:", 16, &of_thread);
    process_status_number(w->thread_id, "\nShdPnd:", 16, &of_process);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
        if ((of_thread | of_process) & (UINT64_C(1) << (signals[i] - 1)))
            ret_look->signal = signals[i];
}

enum storage_verdict storage_judge(struct storage_wait *w, const struct storage_look *look,
                                   uint64_t now)
{
    if (!look->asks_storage || look->waits != w->waits)
        w->since_ns = now;
    w->waits = look->waits;
    if (!look->signal)
        w->asked_ns = now;
    else if (now - w->asked_ns > PATIENCE_NS && now - w->since_ns > PATIENCE_NS)
        return STORAGE_DIE;
    return w->timeout_s && now - w->since_ns > w->timeout_s * UINT64_C(1000000000)
               ? STORAGE_GIVE_UP
               : STORAGE_WAIT;
}

static void storage_give_up(const struct storage_watch *w)
{
    cli_failf(w->path,
              "its storage has not answered for %u s; try again, or wait longer with "
              "--io-timeout",
              w->wait.timeout_s);
    fflush(NULL);
    _exit(w->status);
}

/* Wait for the next look; with `lock` held. */
static void storage_sleep(struct storage_watch *w)
{
    struct timespec until;
    if (!w->watches) {
        w->rests = true;
        pthread_cond_wait(&w->changed, &w->lock);
        w->rests = false;
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_EVERY_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    w->is_due = pthread_cond_timedwait(&w->changed, &w->lock, &until) == ETIMEDOUT;
}

/*
 * Allocates nothing. The watched thread forks, and not every allocator is intact in a child
 * whose parent was using it just then. The same holds while a thread starts, hence `runs`.
 */
static void *storage_watch_run(void *arg)
{
    struct storage_watch *w = arg;
    struct storage_look look;

    sem_post(&w->runs);
    pthread_mutex_lock(&w->lock);
    while (!w->stops) {
        w->is_due = false;
        storage_sleep(w);
        if (!w->watches || !w->is_due)
            continue;
        look_at_thread(w, &look);
        enum storage_verdict verdict = storage_judge(&w->wait, &look, now_ns());
        if (verdict == STORAGE_DIE)
            interrupt_die_of(look.signal);
        if (verdict == STORAGE_GIVE_UP)
            storage_give_up(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

static void storage_watch_start(struct storage_watch *w)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&w->lock, NULL);
    sem_init(&w->runs, 0, 0);
    w->stops = w->rests = false;
    w->started = thread_start(&w->thread, STACK_BYTES, storage_watch_run, w) == 0;
    while (w->started && sem_wait(&w->runs) < 0)
        ; /* interrupted by a signal */
}

void storage_watch_begin(const char *path, unsigned timeout_s, int status)
{
    struct storage_watch *w = &storage_watch;

    if (!w->started)
        storage_watch_start(w);
    pthread_mutex_lock(&w->lock);
    w->path = path;
    w->wait = (struct storage_wait){.timeout_s = timeout_s, .since_ns = now_ns()};
    w->status = status;
    w->thread_id = (pid_t)syscall(SYS_gettid);
    w->watches = true;
    if (w->rests)
        pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void storage_watch_end(void)
{
    pthread_mutex_lock(&storage_watch.lock);
    storage_watch.watches = false;
    pthread_mutex_unlock(&storage_watch.lock);
}

void storage_watch_stop(void)
{
    struct storage_watch *w = &storage_watch;

    if (!w->started)
        return;
    pthread_mutex_lock(&w->lock);
    w->stops = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->started = false;
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    sem_destroy(&w->runs);
}
