#include "storage_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
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

/*
 * Allocates nothing. The watched thread forks, and not every allocator is intact in a child
 * whose parent was using it just then. The same holds while a thread starts, hence `runs`.
 */
static void *storage_watch_run(void *arg)
{
    struct storage_watch *w = arg;
    struct pollfd p = {.fd = w->end_fd, .events = POLLIN};
    struct storage_look look;

    sem_post(&w->runs);
    while (poll(&p, 1, LOOK_EVERY_MS) <= 0) {
        look_at_thread(w, &look);
        enum storage_verdict verdict = storage_judge(&w->wait, &look, now_ns());
        if (verdict == STORAGE_DIE)
            interrupt_die_of(look.signal);
        if (verdict == STORAGE_GIVE_UP)
            storage_give_up(w);
    }
    return NULL;
}

void storage_watch_begin(struct storage_watch *w, const char *path, unsigned timeout_s,
                         int status)
{
    *w = (struct storage_watch){
        .path = path,
        .wait = {.timeout_s = timeout_s, .since_ns = now_ns()},
        .status = status,
        .thread_id = (pid_t)syscall(SYS_gettid),
        .end_fd = eventfd(0, EFD_CLOEXEC),
    };
    sem_init(&w->runs, 0, 0);
    w->started =
        w->end_fd >= 0 && thread_start(&w->thread, STACK_BYTES, storage_watch_run, w) == 0;
    while (w->started && sem_wait(&w->runs) < 0)
        ; /* interrupted by a signal */
}

void storage_watch_end(struct storage_watch *w)
{
    if (w->started) {
        eventfd_write(w->end_fd, 1);
        pthread_join(w->thread, NULL);
    }
    sem_destroy(&w->runs);
    if (w->end_fd >= 0)
        close(w->end_fd);
}
