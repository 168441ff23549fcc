/*
 * The guarded mappings form a list that only grows, so the handler walks it without a lock;
 * released items are reused. The handler makes one system call (mmap; in a daemon also a
 * write), and is as async-signal-safe as that.
 */
#include "lost_pages.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct lost_pages *_Atomic guards;
static _Atomic int free_guards; /* about how many of the guards belong to no mapping */
static struct sigaction before; /* the handler installed before ours */
static _Atomic bool catches_all;
static int event_fd = -1;
static uintptr_t page_bytes;

/*
 * The mapping that contains an address. A mapping released and reused meanwhile does not
 * match: its end has changed.
 */
static struct lost_pages *guard_of(uintptr_t address)
{
    for (struct lost_pages *g = atomic_load(&guards); g; g = g->next) {
        uintptr_t end = atomic_load(&g->end);
        if (address < end && address >= atomic_load(&g->start) && atomic_load(&g->end) == end)
            return g;
    }
    return NULL;
}

/*
 * Called by its number: to ThreadSanitizer, the function is a write, and a race with threads
 * that read this page, too.
 */
static bool put_zeros(uintptr_t page)
{
    return syscall(SYS_mmap, page, page_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0L) != -1;
}

/* The mark is set first, so that a thread that sees the zeros also sees the mark. */
static bool replace_page(uintptr_t address)
{
    struct lost_pages *guard = guard_of(address);
    uint64_t one = 1;
    if (!guard && !atomic_load(&catches_all))
        return false;
    if (guard)
        atomic_store(&guard->has_lost, true);
    if (!put_zeros(address & ~(page_bytes - 1)))
        return false;
    if (event_fd >= 0 && write(event_fd, &one, sizeof(one)) < 0)
        return true; /* the counter is full, so the descriptor is readable already */
    return true;
}

/*
 * Act as if we were not there. A signal that ends the process does so when the address is
 * touched again, or when a sent signal is delivered again.
 */
static void lost_pages_pass_on(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else if (info->si_code > 0) {
        signal(number, SIG_DFL);
    } else if (before.sa_handler == SIG_DFL) {
        signal(number, SIG_DFL);
        raise(number);
    }
}

/*
 * A process may send itself the signal: a handler installed later may report a fault and then
 * pass it to us (Python's faulthandler). The address is touched again after that.
 */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    int saved = errno;
    bool is_sent = info->si_code <= 0;
    bool is_told = is_sent && (atomic_load(&catches_all) ||
                               (info->si_pid == getpid() && before.sa_handler == SIG_DFL));
    if (!is_told && (is_sent || !replace_page((uintptr_t)info->si_addr)))
        lost_pages_pass_on(number, info, context);
    errno = saved;
}

static void lost_pages_install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error,
                               .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, NULL, &before); /* set before a signal can come */
    sigaction(SIGBUS, &action, NULL);
}

static pthread_once_t installed = PTHREAD_ONCE_INIT;

struct lost_pages *lost_pages_guard(const void *start, size_t bytes)
{
    struct lost_pages *g = NULL;
    pthread_once(&installed, lost_pages_install);
    if (atomic_load(&free_guards) > 0)
        g = atomic_load(&guards);
    while (g && atomic_exchange(&g->is_taken, true))
        g = g->next;
    if (g) {
        atomic_fetch_sub(&free_guards, 1);
    } else {
        g = calloc(1, sizeof(*g));
        if (!g)
            return NULL;
        atomic_store(&g->is_taken, true);
        g->next = atomic_load(&guards);
        while (!atomic_compare_exchange_weak(&guards, &g->next, g))
            ;
    }
    atomic_store(&g->has_lost, false);
    atomic_store(&g->start, (uintptr_t)start);
    atomic_store(&g->end, (uintptr_t)start + bytes);
    return g;
}

void lost_pages_release(struct lost_pages *guard)
{
    atomic_store(&guard->end, 0);
    atomic_store(&guard->is_taken, false);
    atomic_fetch_add(&free_guards, 1);
}

/* ---- for a daemon ---- */

void lost_pages_catch_all(void)
{
    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    atomic_store(&catches_all, true);
    pthread_once(&installed, lost_pages_install);
}

int lost_pages_fd(void)
{
    return event_fd;
}

void lost_pages_seen(void)
{
    uint64_t count;
    (void)!read(event_fd, &count, sizeof(count)); /* it fails if there is nothing new */
}
