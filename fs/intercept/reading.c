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
 */
#include <sys/uio.h>

#include "io_private.h"
#include "syscalls.h"

#define READ_BYTES_MAX ((size_t)0x7ffff000) /* of the kernel's */

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
