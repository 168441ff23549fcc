/*
 * The functions of the C library that are replaced. Each calls the next one of its name, which
 * may be another preloaded library's; so what they do for other files, and that they can be
 * cancelled, stays as it is.
 *
 * Not replaced, as the mount's descriptor is right by itself: lseek, readv, preadv, mmap,
 * sendfile, fork and all others (intercept.h has figures). The C library's own calls (fread,
 * fclose) do not come through here.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <termios.h>

#include "filters.h"
#include "io_private.h"

#define ALSO(name, of) __attribute__((visibility("default"), alias(of)))

#define FUNCTIONS(ONE)                                                                         \
    ONE(int, open, (const char *path, int flags, ...))                                         \
    ONE(int, open64, (const char *path, int flags, ...))                                       \
    ONE(int, openat, (int dir, const char *path, int flags, ...))                              \
    ONE(int, openat64, (int dir, const char *path, int flags, ...))                            \
    ONE(int, mkdir, (const char *path, mode_t mode))                                           \
    ONE(ssize_t, read, (int fd, void *buf, size_t len))                                        \
    ONE(ssize_t, pread64, (int fd, void *buf, size_t len, off_t offset))                       \
    ONE(int, close, (int fd))                                                                  \
    ONE(int, dup, (int from))                                                                  \
    ONE(int, fcntl, (int fd, int command, ...))                                                \
    ONE(int, fcntl64, (int fd, int command, ...))                                              \
    ONE(int, dup2, (int from, int to))                                                         \
    ONE(int, dup3, (int from, int to, int flags))                                              \
    ONE(int, isatty, (int fd))                                                                 \
    ONE(int, tcgetattr, (int fd, struct termios *ret))                                         \
    ONE(int, ioctl, (int fd, unsigned long request, ...))                                      \
    ONE(int, prctl, (int option, ...))
REPLACED(FUNCTIONS)

/* NULL: not begun, so that no read is answered here; or no threads, in a library of their own.
 */
static void (*test_cancel)(void);

/* In a child of fork there is only the thread that called it. */
static void forked(void)
{
    flight_forked();
    link_forked();
    listing_forked();
}

/* Missing in other C libraries, whose programs would not start for want of it. */
extern int io_atfork(void (*)(void), void (*)(void), void (*)(void),
                     void *) __asm__("__register_atfork") __attribute__((weak));
extern void *__dso_handle;

__attribute__((constructor)) static void begin(void)
{
    bool is_filtered = filters_are_strange();

    find_next();
    test_cancel = io_next("pthread_testcancel");
    exec_begin(!is_filtered);
    link_begin();
    if (io_atfork && !is_filtered)
        atomic_store(&reading_is_on, io_atfork(NULL, NULL, forked, __dso_handle) == 0);
}

/* ---- open ---- */

static bool has_mode(int flags)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
}

/* NOLINTBEGIN(bugprone-macro-parentheses): it declares a variable */
#define TAKE_MODE(flags, mode)                                                                 \
    mode_t mode = 0;                                                                           \
    if (has_mode(flags)) {                                                                     \
        va_list args_;                                                                         \
        va_start(args_, flags);                                                                \
        mode = (mode_t)va_arg(args_, unsigned);                                                \
        va_end(args_);                                                                         \
    }

#define TAKE_ARGUMENT(last, arg)                                                               \
    va_list args_;                                                                             \
    va_start(args_, last);                                                                     \
    void *arg = va_arg(args_, void *);                                                         \
    va_end(args_)
/* NOLINTEND(bugprone-macro-parentheses) */

/* When the open began; nobody asks once reading is off. */
static uint64_t open_begin(void)
{
    return atomic_load_explicit(&reading_is_on, memory_order_relaxed) ? io_now_ns() : 0;
}

static int opened(int dir, const char *path, int flags, int fd, uint64_t begun_ns)
{
    known_set(fd, reading_is_plain(flags) ? KNOWN_PLAIN : KNOWN_FOREIGN);
    if (fd < 0 && errno == EROFS && begun_ns)
        link_saw_refusal(dir, path);
    if (fd < 0 || !begun_ns || !atomic_load_explicit(&reading_is_on, memory_order_relaxed))
        return fd;
    listing_saw_open(dir, path, fd, io_now_ns() - begun_ns);
    link_leave_ended();
    return fd;
}

int io_open(const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode);
    uint64_t begun_ns = open_begin();
    return opened(AT_FDCWD, path, flags, NEXT(open)(path, flags, mode), begun_ns);
}

int io_open64(const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode);
    uint64_t begun_ns = open_begin();
    return opened(AT_FDCWD, path, flags, NEXT(open64)(path, flags, mode), begun_ns);
}

int io_openat(int dir, const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode);
    uint64_t begun_ns = open_begin();
    return opened(dir, path, flags, NEXT(openat)(dir, path, flags, mode), begun_ns);
}

int io_openat64(int dir, const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode);
    uint64_t begun_ns = open_begin();
    return opened(dir, path, flags, NEXT(openat64)(dir, path, flags, mode), begun_ns);
}

/* Stands for all calls that create something: programs that write make a folder first. */
int io_mkdir(const char *path, mode_t mode)
{
    int r = NEXT(mkdir)(path, mode);
    if (r < 0 && errno == EROFS && atomic_load(&reading_is_on))
        link_saw_refusal(AT_FDCWD, path);
    return r;
}

/* ---- read ---- */

/* A thread that does nothing but read must end, too, when it is cancelled. */
static void cancel_here(void)
{
    if (test_cancel)
        test_cancel();
}

ssize_t io_read(int fd, void *buf, size_t len)
{
    cancel_here();
    ssize_t n = reading_read(fd, buf, len);
    return n > 0 ? n : NEXT(read)(fd, buf, len);
}

ssize_t io_pread64(int fd, void *buf, size_t len, off_t offset)
{
    cancel_here();
    ssize_t n = reading_pread(fd, buf, len, offset);
    return n > 0 ? n : NEXT(pread64)(fd, buf, len, offset);
}
ssize_t pread(int fd, void *buf, size_t len, off_t offset) ALSO(pread, "pread64");

/* With -D_FORTIFY_SOURCE programs call these, with the size of their buffer. */
extern void io_overflow(void) __asm__("__chk_fail") __attribute__((noreturn, weak));

ssize_t io_read_chk(int fd, void *buf, size_t len, size_t room) EXPORT(__read_chk);
ssize_t io_read_chk(int fd, void *buf, size_t len, size_t room)
{
    if (len > room)
        io_overflow();
    return io_read(fd, buf, len);
}

ssize_t io_pread_chk(int fd, void *buf, size_t len, off_t offset, size_t room)
    EXPORT(__pread64_chk);
ssize_t io_pread_chk(int fd, void *buf, size_t len, off_t offset, size_t room)
{
    if (len > room)
        io_overflow();
    return io_pread64(fd, buf, len, offset);
}
ssize_t io_pread32_chk(int fd, void *buf, size_t len, off_t offset, size_t room)
    EXPORT(__pread_chk);
ssize_t io_pread32_chk(int fd, void *buf, size_t len, off_t offset, size_t room)
{
    return io_pread_chk(fd, buf, len, offset, room);
}

/* ---- close ---- */

int io_close(int fd)
{
    flight_closing(fd);
    int r = NEXT(close)(fd);
    flight_closed(fd);
    return r;
}

int io_dup2(int from, int to)
{
    flight_closing(to);
    int r = NEXT(dup2)(from, to);
    flight_closed(to);
    return r;
}

int io_dup3(int from, int to, int flags)
{
    flight_closing(to);
    int r = NEXT(dup3)(from, to, flags);
    flight_closed(to);
    return r;
}

/*
 * Its number may have been closed unseen: by close_range, or by a system call. Then what was
 * known of it would let a read through that is not allowed, as of a file open for writing
 * alone.
 */
static int duplicated(int fd)
{
    if (fd >= 0)
        flight_closed(fd);
    return fd;
}

int io_dup(int from)
{
    return duplicated(NEXT(dup)(from));
}

static bool is_dup(int command)
{
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC;
}

int io_fcntl(int fd, int command, ...)
{
    TAKE_ARGUMENT(command, arg);
    int r = NEXT(fcntl)(fd, command, arg);
    return is_dup(command) ? duplicated(r) : r;
}

int io_fcntl64(int fd, int command, ...)
{
    TAKE_ARGUMENT(command, arg);
    int r = NEXT(fcntl64)(fd, command, arg);
    return is_dup(command) ? duplicated(r) : r;
}

/* ---- terminals ---- */

/* The kernel passes such a question on to the daemon each time; Python asks it at each open. */
static bool is_no_terminal(int fd)
{
    if (!reading_is_mounted(fd))
        return false;
    errno = ENOTTY;
    return true;
}

int io_isatty(int fd)
{
    return is_no_terminal(fd) ? 0 : NEXT(isatty)(fd);
}

int io_tcgetattr(int fd, struct termios *ret)
{
    return is_no_terminal(fd) ? -1 : NEXT(tcgetattr)(fd, ret);
}

int io_ioctl(int fd, unsigned long request, ...)
{
    TAKE_ARGUMENT(request, arg);
    return request == TCGETS && is_no_terminal(fd) ? -1 : NEXT(ioctl)(fd, request, arg);
}

/* ---- sandboxes ---- */

/*
 * A process that is about to forbid itself system calls can't know of ours, and a filter may
 * end it for one (filters.h has the ones from before its start). From here on it reads through
 * the mount. (Filters are mostly loaded by another system call, after this promise never to
 * gain rights.)
 */
int io_prctl(int option, ...)
{
    unsigned long args[4];
    va_list list;

    va_start(list, option);
    for (size_t i = 0; i < 4; i++)
        args[i] = va_arg(list, unsigned long);
    va_end(list);
    if (option == PR_SET_SECCOMP || option == PR_SET_NO_NEW_PRIVS)
        atomic_store(&reading_is_on, false);
    return NEXT(prctl)(option, args[0], args[1], args[2], args[3]);
}
