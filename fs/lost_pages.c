/*
 * The handler makes one system call (mmap) and is as safe in a signal as that.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "lost_pages.h"

static _Atomic unsigned lost;
static int event_fd = -1;
static uintptr_t page_bytes;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    uintptr_t page = (uintptr_t)info->si_addr & ~(page_bytes - 1);
    int saved = errno;
    uint64_t one = 1;

    (void)context;
    if (info->si_code <= 0)
        return; /* sent by a process: nothing is wrong with our memory */
    if (mmap((void *)page, page_bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
        signal(number, SIG_DFL);
        return;
    }
    atomic_fetch_add(&lost, 1);
    if (event_fd >= 0 && write(event_fd, &one, sizeof(one)) < 0)
        errno = saved; /* it is full, and has told already */
    errno = saved;
}

void lost_pages_catch(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error,
                               .sa_flags = SA_SIGINFO | SA_RESTART};

    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

int lost_pages_fd(void)
{
    return event_fd;
}

unsigned lost_pages_count(void)
{
    uint64_t count;
    if (event_fd >= 0 && read(event_fd, &count, sizeof(count)) < 0)
        return atomic_load(&lost); /* nothing new */
    return atomic_load(&lost);
}
