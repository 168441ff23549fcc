/*
 * Reads in progress, and what is known of descriptors.
 *
 * Closing. The table of known descriptors is a hint that saves asking for other files. Each
 * read asks fstat. But between that and the last step a descriptor must not become another
 * file's, whose position would be moved. So a read in progress is noted as a flight; close()
 * and dup2() mark the descriptor and then wait for its flights to end, within a bound. In a
 * signal's handler they end the flight that it interrupted; the mount answers that read.
 */
#include <sched.h>

#include "io_private.h"

#define LANES 64u
#define CLOSE_YIELDS 2000
#define CLOSE_NAPS 200

_Atomic uint8_t known_fds[KNOWN_MAX];
_Atomic bool reading_is_on;

/* ---- reads in progress ---- */

/* How many reads there are of a descriptor. */
static _Atomic uint16_t flying[KNOWN_MAX];
static _Atomic int flying_most; /* no descriptor above this one has had any */

/* Reads of the archive's files, by threads: one cache line for each. */
static struct lane {
    _Alignas(64) _Atomic uint32_t flights;
} lanes[LANES];

/*
 * The flight of this thread. A handler's own comes before the one that it interrupted, which it
 * keeps meanwhile. The lane is written last and taken away first, as a handler may look at any
 * moment.
 */
static _Thread_local struct flight mine __attribute__((tls_model("initial-exec")));

static void mine_set(struct flight flight)
{
    mine.lane = NULL;
    atomic_signal_fence(memory_order_seq_cst);
    mine.fd = flight.fd;
    atomic_signal_fence(memory_order_seq_cst);
    mine.lane = flight.lane;
    atomic_signal_fence(memory_order_seq_cst);
}

/* Returns the flight that it interrupts. */
struct flight flight_begin(int fd)
{
    struct lane *lane = &lanes[io_thread() % LANES];
    struct flight outer = mine;
    int most = atomic_load_explicit(&flying_most, memory_order_relaxed);

    while (fd > most && !atomic_compare_exchange_weak(&flying_most, &most, fd))
        ;
    atomic_fetch_add(&flying[fd], 1);
    atomic_fetch_add(&lane->flights, 1);
    mine_set((struct flight){lane, fd});
    return outer;
}

/* End this thread's, unless a handler has. */
static void mine_end(void)
{
    struct lane *lane = mine.lane;
    int fd = mine.fd;

    mine_set((struct flight){NULL, -1});
    if (!lane)
        return;
    /* Not if it was forgotten meanwhile, in a child that a signal's handler forked. */
    if (atomic_load_explicit(&lane->flights, memory_order_relaxed) > 0)
        atomic_fetch_sub_explicit(&lane->flights, 1, memory_order_release);
    if (atomic_load_explicit(&flying[fd], memory_order_relaxed) > 0)
        atomic_fetch_sub_explicit(&flying[fd], 1, memory_order_release);
}

void flight_end(struct flight outer)
{
    mine_end();
    mine_set(outer);
}

/* Was its descriptor closed by a handler? It may be another file's by now. */
bool flight_is_lost(void)
{
    return !mine.lane;
}

bool flight_is_closing(int fd)
{
    return (unsigned)fd >= KNOWN_MAX || atomic_load(&known_fds[fd]) == KNOWN_CLOSING;
}

/* Is there a read of it, which may be one of the archive's files? */
static bool has_flight(int fd, bool is_own)
{
    if (atomic_load(&flying[fd]) > 0)
        return true;
    for (unsigned i = 0; is_own && i < LANES; i++)
        if (atomic_load(&lanes[i].flights) > 0)
            return true;
    return false;
}

void flight_closing(int fd)
{
    const struct timespec nap = {.tv_nsec = 100000};

    if ((unsigned)fd >= KNOWN_MAX)
        return;
    bool is_own = atomic_exchange(&known_fds[fd], KNOWN_CLOSING) == KNOWN_OWN;
    if (mine.fd == fd || is_own)
        mine_end();
    int i = 0;
    while (i++ < CLOSE_YIELDS + CLOSE_NAPS && has_flight(fd, is_own))
        if (i < CLOSE_YIELDS)
            io_call(SYS_sched_yield);
        else
            io_call(SYS_nanosleep, &nap, NULL);
    if (i > CLOSE_YIELDS + CLOSE_NAPS) /* a handler has jumped out of it */
        atomic_store(&flying[fd], 0);
}

void flight_forked(void)
{
    for (int fd = 0; fd <= atomic_load(&flying_most); fd++)
        atomic_store_explicit(&flying[fd], 0, memory_order_relaxed);
    for (unsigned i = 0; i < LANES; i++)
        atomic_store_explicit(&lanes[i].flights, 0, memory_order_relaxed);
    mine_set((struct flight){NULL, -1});
}
