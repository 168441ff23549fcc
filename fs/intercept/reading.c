/*
 * Reads without the mount.
 *
 * The position of a descriptor is the kernel's, shared by whoever shares the descriptor. A read
 * looks at it, copies the bytes that lie there, and only then moves it on, by as much as was
 * copied. If it ends up elsewhere, somebody else moved it meanwhile. Then the bytes that this
 * read has moved it across are its own, and it copies those instead, or has the mount read
 * them. Concurrent readers therefore get separate bytes, as from the kernel.
 *
 * Whatever is unusual is left to the mount: the end of the file, errors, descriptors that are
 * not plainly open for reading.
 *
 * Closing. The table of known descriptors is a hint that saves asking for other files. Each
 * read asks fstat. But between that and the last step a descriptor must not become another
 * file's, whose position would be moved. So a read in progress is noted as a flight; close()
 * and dup2() mark the descriptor and then wait for its flights to end, within a bound. In a
 * signal's handler they end the flight that it interrupted; the mount answers that read.
 */
#include <sched.h>
#include <sys/uio.h>

#include "io_private.h"
#include "syscalls.h"

#define READ_BYTES_MAX ((size_t)0x7ffff000) /* of the kernel's */
#define LANES 64u
#define CLOSE_YIELDS 2000
#define CLOSE_NAPS 200

_Atomic uint8_t known_fds[KNOWN_MAX];
_Atomic bool reading_is_on;

/* ---- reads in progress ---- */

/* A read in progress; it keeps the one that it interrupts, as a signal's handler. */
struct flight {
    struct lane *lane; /* NULL: none, or a handler has closed its descriptor */
    int fd;
};

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

/* Returns the flight that it interrupts, for flight_end. */
static struct flight flight_begin(int fd)
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

static void flight_end(struct flight outer)
{
    mine_end();
    mine_set(outer);
}

/* Was its descriptor closed by a handler? It may be another file's by now. */
static bool flight_is_lost(void)
{
    return !mine.lane;
}

static bool flight_is_closing(int fd)
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

void reading_forked(void)
{
    for (int fd = 0; fd <= atomic_load(&flying_most); fd++)
        atomic_store_explicit(&flying[fd], 0, memory_order_relaxed);
    for (unsigned i = 0; i < LANES; i++)
        atomic_store_explicit(&lanes[i].flights, 0, memory_order_relaxed);
    mine_set((struct flight){NULL, -1});
}

/* ---- where the bytes lie ---- */

/* Unless somebody closes it. */
static void known_learn(int fd, enum known known)
{
    known_change(fd, KNOWN_NOTHING, known);
    known_change(fd, KNOWN_PLAIN, known);
}

struct place {
    struct link *link;
    unsigned file;
    int fd;          /* of it */
    uint64_t offset; /* in it, of the file's first byte */
    uint64_t size_bytes;
    uint64_t entry; /* of the mount's table */
};

/* The mount with the file, if it is a regular one. */
static struct link *link_of(int fd, struct stat *ret_st)
{
    if (io_call(SYS_fstat, fd, ret_st) < 0 || !S_ISREG(ret_st->st_mode))
        return NULL;
    return link_find(fd, ret_st);
}

/* False: the mount has to answer. */
static bool place_find(int fd, struct place *ret_place)
{
    struct stat st;
    struct link *link = link_of(fd, &st);
    uint64_t word = 0;

    if (!link) {
        known_learn(fd, KNOWN_FOREIGN);
        return false;
    }
    if (st.st_ino > 0 && st.st_ino <= link->entries)
        word = atomic_load_explicit(&link->words[st.st_ino - 1], memory_order_relaxed);
    *ret_place = (struct place){
        .link = link,
        .file = (unsigned)((word & ~INTERCEPT_IS_KNOWN) >> INTERCEPT_FILE_SHIFT),
        .offset = word & INTERCEPT_OFFSET_MAX,
        .size_bytes = (uint64_t)st.st_size,
        .entry = st.st_ino - 1,
    };
    if (!(word & INTERCEPT_IS_KNOWN) || ret_place->file >= link->files) {
        known_learn(fd, KNOWN_ASKING);
        return false;
    }
    uint64_t room = link->file[ret_place->file].is.size_bytes;
    return ret_place->offset <= room && ret_place->size_bytes <= room - ret_place->offset;
}

/* ---- reads ---- */

static bool place_is_good(const struct place *place)
{
    return link_fd_is_good(place->link, place->file, place->fd);
}

/* A byte of the file is read. Each file is counted once. */
static void count_file(const struct place *place)
{
    struct intercept_slot *slot = link_slot(place->link);
    unsigned had = file_mark(place->link->marks, place->entry, FILE_READ);

    if (had & FILE_READ)
        return;
    atomic_fetch_add_explicit(&slot->files, 1, memory_order_relaxed);
    if (had & FILE_AHEAD)
        atomic_fetch_add_explicit(&slot->foreseen, 1, memory_order_relaxed);
}

/* Copy up to `len` bytes from `at` on, if they are in memory: their number, or -errno. */
static ssize_t copy_cached(const struct place *place, void *buf, size_t len, uint64_t at)
{
    struct link_file *file = &place->link->file[place->file];
    struct iovec iov = {buf, len};

    if (file->is.is_memory || atomic_load_explicit(&file->may_wait, memory_order_relaxed))
        return io_call(SYS_pread64, place->fd, buf, len, (off_t)(place->offset + at));
    ssize_t n = io_call(SYS_preadv2, place->fd, &iov, 1L, (off_t)(place->offset + at), 0L,
                        (long)RWF_NOWAIT);
    if ((n != -EOPNOTSUPP && n != -EINVAL && !syscall_is_missing((int)-n)) ||
        !place_is_good(place))
        return n;
    atomic_store(&file->may_wait, true);
    return io_call(SYS_pread64, place->fd, buf, len, (off_t)(place->offset + at));
}

/*
 * The same, if the archive is the one that was mounted. It is looked at when the bytes are
 * there: a write sets the times of a file before its bytes, so with the old times they are the
 * old ones. Looked at before, it could be changed on the way.
 */
static ssize_t copy_checked(struct place *place, void *buf, size_t len, uint64_t at)
{
    place->fd = atomic_load(&place->link->file[place->file].fd);
    if (place->fd < 0 || flight_is_closing(place->fd))
        return -ESTALE;
    ssize_t n = copy_cached(place, buf, len, at);
    return place_is_good(place) ? n : -ESTALE;
}

/*
 * The bytes from `at` on, which is not the end of the file: `len`, or as many as it has. -1:
 * not all of them could be had. `fd` is the mount's.
 */
static ssize_t copy_bytes(struct place *place, int fd, void *buf, size_t len, uint64_t at)
{
    uint64_t left = place->size_bytes - at;
    size_t wanted = len < left ? len : left;
    ssize_t n = copy_checked(place, buf, wanted, at);

    if (n == -ESTALE && link_renew(place->link, fd))
        n = copy_checked(place, buf, wanted, at);
    if (n >= 0 ||
        n == -EAGAIN) /* the kernel's cache of the mount may have those not in memory */
        count_file(place);
    return n == (ssize_t)wanted ? n : -1;
}

#define TIMED_READS 8u /* one of so many is timed */

/* When the read began; 0: it is not timed. */
static uint64_t count_begin(const struct place *place)
{
    const struct intercept_slot *slot = link_slot(place->link);
    uint64_t reads = atomic_load_explicit(&slot->reads, memory_order_relaxed);
    return reads % TIMED_READS == 0 ? io_now_ns() : 0;
}

static void count_read(const struct place *place, uint64_t at, size_t bytes, uint64_t begun_ns)
{
    struct intercept_slot *slot = link_slot(place->link);

    if (at == 0)
        atomic_fetch_add_explicit(&slot->starts, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->reads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->bytes, bytes, memory_order_relaxed);
    if (!begun_ns)
        return;
    uint64_t now = io_now_ns();
    atomic_fetch_add_explicit(&slot->waited_ns, (now - begun_ns) * TIMED_READS,
                              memory_order_relaxed);
    atomic_store_explicit(&slot->last_read_ns, now, memory_order_relaxed);
}

/*
 * The position was moved by `got` to `end`, but not from where it was looked at: the bytes
 * before `end` are ours, and nobody else reads them. If they are no longer in memory, the mount
 * gives them, as others may have moved the position on. Beyond the end of the file there are
 * none; give that part back.
 */
static ssize_t copy_claimed(struct place *place, int fd, void *buf, uint64_t got, uint64_t end,
                            uint64_t begun_ns)
{
    uint64_t at = end - got, left = at < place->size_bytes ? place->size_bytes - at : 0;
    uint64_t wanted = got < left ? got : left;
    ssize_t n = wanted > 0 ? copy_bytes(place, fd, buf, wanted, at) : 0;

    if (n > 0)
        count_read(place, at, (size_t)n, begun_ns);
    if (n < 0) /* the mount counts it */
        n = io_call(SYS_pread64, fd, buf, wanted, (off_t)at);
    if (n < 0)
        n = 0;
    if ((uint64_t)n < got)
        io_call(SYS_lseek, fd, (off_t)n - (off_t)got, SEEK_CUR);
    return n > 0 ? n : -1;
}

static ssize_t read_place(struct place *place, int fd, void *buf, size_t len)
{
    uint64_t begun_ns = count_begin(place);
    off_t at = io_call(SYS_lseek, fd, (off_t)0, SEEK_CUR);

    if (at < 0 || (uint64_t)at >= place->size_bytes)
        return -1;
    ssize_t got = copy_bytes(place, fd, buf, len, (uint64_t)at);
    if (got <= 0 || flight_is_closing(fd) || flight_is_lost())
        return -1;
    off_t end = io_call(SYS_lseek, fd, got, SEEK_CUR);
    if (end < 0)
        return -1;
    if (end != at + got)
        return copy_claimed(place, fd, buf, (uint64_t)got, (uint64_t)end, begun_ns);
    if ((uint64_t)end == place->size_bytes && (size_t)got < len)
        known_change(fd, KNOWN_PLAIN, KNOWN_ENDED);
    count_read(place, (uint64_t)at, (size_t)got, begun_ns);
    return got;
}

static ssize_t pread_place(struct place *place, int fd, void *buf, size_t len, off_t at)
{
    uint64_t begun_ns = count_begin(place);

    if ((uint64_t)at >= place->size_bytes)
        return -1;
    ssize_t got = copy_bytes(place, fd, buf, len, (uint64_t)at);
    if (got <= 0)
        return -1;
    count_read(place, (uint64_t)at, (size_t)got, begun_ns);
    return got;
}

/*
 * Begin a read, if the descriptor may be a mount's; flight_end ends it. False: the mount
 * answers, or whatever else is open there.
 */
static bool read_begin(int fd, size_t len, struct flight *ret_outer)
{
    enum known known = known_fd(fd);
    if (known == KNOWN_ENDED) /* the next read only asks for a zero, which the mount has */
        known_change(fd, KNOWN_ENDED, KNOWN_PLAIN);
    if ((known != KNOWN_NOTHING && known != KNOWN_PLAIN) || len == 0 || len > READ_BYTES_MAX)
        return false;
    *ret_outer = flight_begin(fd);
    if (!flight_is_closing(fd))
        return true;
    flight_end(*ret_outer);
    return false;
}

static bool has_plain_flags(int fd)
{
    long flags = io_call(SYS_fcntl, fd, F_GETFL);
    return flags >= 0 && reading_is_plain(flags);
}

/* Is it open for reading? Looked at once for each descriptor. */
static bool read_is_plain(int fd)
{
    if (known_fd(fd) == KNOWN_PLAIN)
        return true;
    bool is_one = has_plain_flags(fd);
    known_change(fd, KNOWN_NOTHING, is_one ? KNOWN_PLAIN : KNOWN_ASKING);
    return is_one;
}

ssize_t reading_read(int fd, void *buf, size_t len)
{
    struct place place;
    struct flight outer;
    ssize_t n = -1;

    if (!read_begin(fd, len, &outer))
        return -1;
    if (place_find(fd, &place) && read_is_plain(fd))
        n = read_place(&place, fd, buf, len);
    flight_end(outer);
    return n;
}

ssize_t reading_pread(int fd, void *buf, size_t len, off_t at)
{
    struct place place;
    struct flight outer;
    ssize_t n = -1;

    if (at < 0 || !read_begin(fd, len, &outer))
        return -1;
    /* No lseek fails here, as in reading_read, if it is another one of O_PATH by now. */
    if (place_find(fd, &place) && has_plain_flags(fd))
        n = pread_place(&place, fd, buf, len, at);
    flight_end(outer);
    return n;
}

bool reading_is_mounted(int fd)
{
    struct stat st;
    enum known known = known_fd(fd);

    if (known == KNOWN_FOREIGN || known == KNOWN_CLOSING)
        return false;
    if (link_of(fd, &st))
        return has_plain_flags(fd); /* as in reading_pread */
    known_learn(fd, KNOWN_FOREIGN);
    return false;
}
