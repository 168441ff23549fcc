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

static struct {
    int (*open)(const char *path, int flags, ...);
    int (*open64)(const char *path, int flags, ...);
    int (*openat)(int dir, const char *path, int flags, ...);
    int (*openat64)(int dir, const char *path, int flags, ...);
    int (*mkdir)(const char *path, mode_t mode);
    ssize_t (*read)(int fd, void *buf, size_t len);
    ssize_t (*pread)(int fd, void *buf, size_t len, off_t offset);
    int (*close)(int fd);
    int (*dup)(int from);
    int (*fcntl)(int fd, int command, ...);
    int (*fcntl64)(int fd, int command, ...);
    int (*dup2)(int from, int to);
    int (*dup3)(int from, int to, int flags);
    int (*isatty)(int fd);
    int (*tcgetattr)(int fd, struct termios *ret);
    int (*ioctl)(int fd, unsigned long request, ...);
    int (*prctl)(int option, ...);
    void (*pthread_testcancel)(void); /* NULL: no threads, with a C library that has it apart */
} next;
static _Atomic bool has_next;

/* musl from 1.2.4 on links programs by names with 64, but dlsym finds none of them. */
static void *next_of_64(const char *name_64, const char *name)
{
    void *next_one = io_next(name_64);
    return next_one ? next_one : io_next(name);
}

static void find_next(void)
{
    next.open = io_next("open");
    next.open64 = next_of_64("open64", "open");
    next.openat = io_next("openat");
    next.openat64 = next_of_64("openat64", "openat");
    next.mkdir = io_next("mkdir");
    next.read = io_next("read");
    next.pread = next_of_64("pread64", "pread");
    next.close = io_next("close");
    next.dup = io_next("dup");
    next.fcntl = io_next("fcntl");
    next.fcntl64 = next_of_64("fcntl64", "fcntl");
    next.dup2 = io_next("dup2");
    next.dup3 = io_next("dup3");
    next.isatty = io_next("isatty");
    next.tcgetattr = io_next("tcgetattr");
    next.ioctl = io_next("ioctl");
    next.prctl = io_next("prctl");
    next.pthread_testcancel = io_next("pthread_testcancel");
    atomic_store(&has_next, true);
}

/* In a child of fork there is only the thread that called it. */
static void forked(void)
{
    reading_forked();
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

int io_open(const char *path, int flags, ...) EXPORT(open);
int io_open(const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode);
    uint64_t begun_ns = open_begin();
    return opened(AT_FDCWD, path, flags, NEXT(open)(path, flags, mode), begun_ns);
}

int io_open64(const char *path, int flags, ...) EXPORT(open64);
int io_open64(const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode);
    uint64_t begun_ns = open_begin();
    return opened(AT_FDCWD, path, flags, NEXT(open64)(path, flags, mode), begun_ns);
}

int io_openat(int dir, const char *path, int flags, ...) EXPORT(openat);
int io_openat(int dir, const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode);
    uint64_t begun_ns = open_begin();
    return opened(dir, path, flags, NEXT(openat)(dir, path, flags, mode), begun_ns);
}

int io_openat64(int dir, const char *path, int flags, ...) EXPORT(openat64);
int io_openat64(int dir, const char *path, int flags, ...)
{
    TAKE_MODE(flags, mode);
    uint64_t begun_ns = open_begin();
    return opened(dir, path, flags, NEXT(openat64)(dir, path, flags, mode), begun_ns);
}

/* Of all that makes something, as the first that a program does where it wants to write. */
int io_mkdir(const char *path, mode_t mode) EXPORT(mkdir);
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
    void (*test)(void) = NEXT(pthread_testcancel);
    if (test)
        test();
}

ssize_t io_read(int fd, void *buf, size_t len) EXPORT(read);
ssize_t io_read(int fd, void *buf, size_t len)
{
    cancel_here();
    ssize_t n = reading_read(fd, buf, len);
    return n > 0 ? n : NEXT(read)(fd, buf, len);
}

ssize_t io_pread(int fd, void *buf, size_t len, off_t offset) EXPORT(pread64);
ssize_t io_pread(int fd, void *buf, size_t len, off_t offset)
{
    cancel_here();
    ssize_t n = reading_pread(fd, buf, len, offset);
    return n > 0 ? n : NEXT(pread)(fd, buf, len, offset);
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
    return io_pread(fd, buf, len, offset);
}
ssize_t io_pread32_chk(int fd, void *buf, size_t len, off_t offset, size_t room)
    EXPORT(__pread_chk);
ssize_t io_pread32_chk(int fd, void *buf, size_t len, off_t offset, size_t room)
{
    return io_pread_chk(fd, buf, len, offset, room);
}

/* ---- close ---- */

int io_close(int fd) EXPORT(close);
int io_close(int fd)
{
    reading_closing(fd);
    int r = NEXT(close)(fd);
    reading_closed(fd);
    return r;
}

int io_dup2(int from, int to) EXPORT(dup2);
int io_dup2(int from, int to)
{
    reading_closing(to);
    int r = NEXT(dup2)(from, to);
    reading_closed(to);
    return r;
}

int io_dup3(int from, int to, int flags) EXPORT(dup3);
int io_dup3(int from, int to, int flags)
{
    reading_closing(to);
    int r = NEXT(dup3)(from, to, flags);
    reading_closed(to);
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
        reading_closed(fd);
    return fd;
}

int io_dup(int from) EXPORT(dup);
int io_dup(int from)
{
    return duplicated(NEXT(dup)(from));
}

static bool is_dup(int command)
{
    return command == F_DUPFD || command == F_DUPFD_CLOEXEC;
}

int io_fcntl(int fd, int command, ...) EXPORT(fcntl);
int io_fcntl(int fd, int command, ...)
{
    TAKE_ARGUMENT(command, arg);
    int r = NEXT(fcntl)(fd, command, arg);
    return is_dup(command) ? duplicated(r) : r;
}

int io_fcntl64(int fd, int command, ...) EXPORT(fcntl64);
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

int io_isatty(int fd) EXPORT(isatty);
int io_isatty(int fd)
{
    return is_no_terminal(fd) ? 0 : NEXT(isatty)(fd);
}

int io_tcgetattr(int fd, struct termios *ret) EXPORT(tcgetattr);
int io_tcgetattr(int fd, struct termios *ret)
{
    return is_no_terminal(fd) ? -1 : NEXT(tcgetattr)(fd, ret);
}

int io_ioctl(int fd, unsigned long request, ...) EXPORT(ioctl);
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
int io_prctl(int option, ...) EXPORT(prctl);
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
