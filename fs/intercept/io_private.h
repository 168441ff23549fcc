/*
 * Shared by the files of libonepot-io.so. Its code runs inside functions of the C library, in
 * any program: also in a signal's handler and between vfork and exec. So it makes system calls
 * only, without locks that it would wait for and without memory of the program's allocator, and
 * takes little of the stack, which may be a handler's own.
 */
#ifndef ONEPOT_IO_PRIVATE_H
#define ONEPOT_IO_PRIVATE_H

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "intercept.h"

/* A system call: its result or -errno. It leaves errno alone, and is no point of cancellation.
 */
#if defined(__x86_64__)
static inline long io_system_call(long number, long a, long b, long c, long d, long e, long f)
{
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "+a"(number)
                     : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return number;
}
#elif defined(__aarch64__)
static inline long io_system_call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b,
                     x2 __asm__("x2") = c, x3 __asm__("x3") = d, x4 __asm__("x4") = e,
                     x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#else /* there is no library for this kind of CPU, but image.c is built */
static inline long io_system_call(long number, long a, long b, long c, long d, long e, long f)
{
    (void)number, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    return -ENOSYS;
}
#endif
#define io_call(...) IO_CALL(__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define IO_CALL(number, a, b, c, d, e, f, ...)                                                 \
    io_system_call(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

/* The path of a descriptor. */
static inline void io_fd_path(int fd, char ret_path[32])
{
    char digits[12];
    int n = 0;

    do
        digits[n++] = (char)('0' + fd % 10);
    while (fd /= 10);
    char *to = (char *)memcpy(ret_path, "/proc/self/fd/", 14) + 14;
    while (n > 0)
        *to++ = digits[--n];
    *to = '\0';
}

/* The directory of a path; false: it is too long. */
static inline bool io_folder_of(const char *path, char *ret_folder, size_t size)
{
    const char *slash = strrchr(path, '/');
    size_t len = slash ? (size_t)(slash - path) + (slash == path) : 1;

    if (len >= size)
        return false;
    memcpy(ret_folder, slash ? path : ".", len);
    ret_folder[len] = '\0';
    return true;
}

/* A file of /proc as text, as much of it as there is room for; empty: it can't be read. */
static inline void io_read_text(const char *path, char *ret_text, size_t size)
{
    size_t len = 0;
    int fd = (int)io_call(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);

    for (long n = 1; fd >= 0 && n > 0 && len<size - 1; len += n> 0 ? (size_t)n : 0)
        n = io_call(SYS_read, fd, ret_text + len, size - 1 - len);
    if (fd >= 0)
        io_call(SYS_close, fd);
    ret_text[len] = '\0';
}

/*
 * A number, behind blanks; *ret_end is behind it. strtol would bind the library to the C
 * library that it was built with.
 */
static inline uint64_t io_number(const char *text, const char **ret_end)
{
    uint64_t value = 0;
    for (text += strspn(text, " \t\n"); *text >= '0' && *text <= '9'; text++)
        value = value * 10 + (uint64_t)(*text - '0');
    if (ret_end)
        *ret_end = text;
    return value;
}

static inline uint64_t io_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* ---- reading.c ---- */

/* Knowledge about a descriptor; a hint, see reading.c. */
enum known {
    KNOWN_NOTHING,
    KNOWN_FOREIGN, /* not of a mount */
    KNOWN_ASKING,  /* of a mount that answers its reads itself */
    KNOWN_PLAIN,   /* open for reading alone; of a mount, or not looked at yet */
    KNOWN_ENDED,   /* the same, and the last read came to the file's end */
    KNOWN_OWN,     /* a file of an archive, opened here */
    KNOWN_CLOSING,
};
#define KNOWN_MAX 65536
extern _Atomic uint8_t known_fds[KNOWN_MAX];

/*
 * Not before the library has begun, nor with a C library that does not tell of forks, nor in a
 * process that shuts itself in a sandbox.
 */
extern _Atomic bool reading_is_on;

static inline enum known known_fd(int fd)
{
    return fd >= 0 && fd < KNOWN_MAX &&
                   atomic_load_explicit(&reading_is_on, memory_order_relaxed)
               ? (enum known)atomic_load_explicit(&known_fds[fd], memory_order_relaxed)
               : KNOWN_FOREIGN;
}

/* A reader does not undo the mark of a close. */
static inline void known_change(int fd, enum known from, enum known to)
{
    uint8_t expected = (uint8_t)from;
    if (fd >= 0 && fd < KNOWN_MAX)
        atomic_compare_exchange_strong(&known_fds[fd], &expected, (uint8_t)to);
}

static inline void known_set(int fd, enum known known)
{
    if (fd >= 0 && fd < KNOWN_MAX)
        atomic_store_explicit(&known_fds[fd], (uint8_t)known, memory_order_relaxed);
}

/* Before and after a descriptor is closed or replaced. */
void flight_closing(int fd);
static inline void flight_closed(int fd)
{
    known_set(fd, KNOWN_NOTHING);
}

/* Do these flags of open or F_GETFL mean: for reading, through the page cache? */
static inline bool reading_is_plain(long flags)
{
    return (flags & O_ACCMODE) == O_RDONLY && !(flags & (O_PATH | O_DIRECT));
}

/* Bytes read, at least 1; or -1: the mount has to answer. */
ssize_t reading_read(int fd, void *buf, size_t len);
ssize_t reading_pread(int fd, void *buf, size_t len, off_t offset);

/* Is it a regular file of a mount, open for reading? */
bool reading_is_mounted(int fd);

void reading_forked(void); /* in the child */

/* ---- links.c ---- */

struct link_file {
    struct intercept_file is;
    _Atomic int fd;        /* -1: none; checked at each use */
    _Atomic bool may_wait; /* its filesystem can't tell which pages are in memory */
};

/* A mount that this process reads from. It stays for the life of the process. */
struct link {
    uint64_t dev;
    struct timespec made;
    bool is_covered; /* by a layer (LAYER_VARIABLE) */
    uint64_t entries, files;
    _Atomic bool is_left; /* its mount has ended, and its descriptors are closed */
    const _Atomic uint64_t *words;
    struct intercept_head *head;
    _Atomic uint32_t *marks; /* behind the head */
    struct link_file file[INTERCEPT_FILES_MAX];
};

/* The link to the mount with this file, made if need be. NULL: none. */
struct link *link_find(int fd, const struct stat *st);

/*
 * Descriptors of its files belong to the library. But any code may have closed one or put
 * another file in its place: whoever reads from one checks it, and gets new ones if need
 * be. False: there are none to be had. `fd` is a file of the mount.
 */
bool link_renew(struct link *link, int fd);
/*
 * Nothing could be made at `path` (EROFS). If that was a mount's answer, note it there: the
 * kernel gives it without asking the daemon. Keeps errno.
 */
void link_saw_refusal(int dir, const char *path);
/*
 * `path`, relative to `dir`, was opened as `fd` within so many nanoseconds. Lists the
 * directory, if opens in it are slow, and closes the descriptors of mounts that have ended.
 */
void link_saw_open(int dir, const char *path, int fd, uint64_t took_ns);
/* Is it the file, as it was when the mount was made? */
bool link_fd_is_good(const struct link *link, unsigned file, int fd);

struct intercept_slot *link_slot(const struct link *link);

/* A number of this thread; threads may share one. */
static inline unsigned io_thread(void)
{
    uint32_t page = (uint32_t)((uintptr_t)__builtin_frame_address(0) >> 14);
    return page * 0x9e3779b1u >> 20;
}

void link_forked(void); /* in the child */

/* Before main: look for LAYER_VARIABLE. */
void link_begin(void);

#endif
