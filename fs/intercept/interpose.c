/*
 * The functions of the C library that are replaced. Each calls the next one of its name, which
 * may be another preloaded library's; so what they do for other files, and that they can be
 * cancelled, stays as it is.
 *
 * Not replaced, as the mount's descriptor is right by itself: lseek, readv, preadv, mmap,
 * sendfile, fork and all others (intercept.h has figures). The C library's own calls (fread,
 * fclose) do not come through here.
 */
#include <alloca.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <termios.h>

#include "filters.h"
#include "image.h"
#include "io_private.h"
#include "preload.h"

/* dlsym moved in glibc 2.34. Its old version is there from 2.28, the oldest supported, on. */
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif

/* An exported function that the header calls otherwise, or declares with tricks. */
#define EXPORT(name) __asm__(#name) __attribute__((visibility("default")))
#define ALSO(name, of) __attribute__((visibility("default"), alias(of)))

/* musl from 1.2.4 on links programs by names with 64, but dlsym finds none of them. */
static void *io_next(const char *name)
{
    char plain[16] = "";
    const char *end = strrchr(name, '6');
    void *found = dlsym(RTLD_NEXT, name);

    if (!found && end && strcmp(end, "64") == 0 && (size_t)(end - name) < sizeof(plain))
        found = dlsym(RTLD_NEXT, memcpy(plain, name, (size_t)(end - name)));
    return found;
}

/*
 * The functions that are replaced, each with ONE(type, name, (parameters)). Its io_NAME is
 * exported as NAME, and NEXT(NAME) is the next one, behind this library. Constructors of other
 * libraries may come before ours, so the first call fills the table.
 */
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
    ONE(int, prctl, (int option, ...))                                                         \
    ONE(int, execve, (const char *path, char *const argv[], char *const envp[]))               \
    ONE(int, fexecve, (int fd, char *const argv[], char *const envp[]))                        \
    ONE(int, execveat,                                                                         \
        (int dir, const char *path, char *const argv[], char *const envp[], int flags))        \
    ONE(int, execvpe, (const char *file, char *const argv[], char *const envp[]))              \
    ONE(int, posix_spawn,                                                                      \
        (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,             \
         const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]))         \
    ONE(int, posix_spawnp,                                                                     \
        (pid_t * pid, const char *file, const posix_spawn_file_actions_t *actions,             \
         const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]))         \
    ONE(int, system, (const char *command))                                                    \
    ONE(FILE *, popen, (const char *command, const char *mode))

/* NOLINTBEGIN(bugprone-macro-parentheses): they declare */
#define ONE_DECLARE(type, name, parameters) type io_##name parameters EXPORT(name);
#define ONE_NEXT(type, name, parameters) type(*name) parameters;
/* NOLINTEND(bugprone-macro-parentheses) */
#define ONE_FIND(type, name, parameters) next.name = io_next(#name);
FUNCTIONS(ONE_DECLARE)
static struct {
    FUNCTIONS(ONE_NEXT)
} next;
static _Atomic bool has_next;

static void find_next(void)
{
    FUNCTIONS(ONE_FIND)
    atomic_store(&has_next, true);
}

#define NEXT(name)                                                                             \
    ((__builtin_expect(!atomic_load_explicit(&has_next, memory_order_acquire), 0)              \
          ? find_next()                                                                        \
          : (void)0),                                                                          \
     next.name)

/* NULL: not begun, so that no read is answered here; or no threads, in a library of their own.
 */
static void (*test_cancel)(void);

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
    link_saw_open(dir, path, fd, io_now_ns() - begun_ns);
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

/* ---- exec ---- */

/*
 * Children get the library, and an environment that travels does not name it.
 *
 * ld.so prints a line at each exec whose LD_PRELOAD names a file that can't be loaded: in
 * another root, as another user, in a container, on another node, or by a program of another
 * kind of CPU. No form of an entry is passed over in silence. So a process whose environment
 * has ONEPOT_PRELOAD (preload.h) has no LD_PRELOAD for this library: it is taken out before
 * main, and whatever copies the environment (sbatch, ssh, tmux) copies it without. Each exec
 * puts it back, if the file can be loaded at that moment and by that program. An environment
 * without ONEPOT_PRELOAD is passed on as it is, so an empty one stays empty.
 *
 * The functions may be called in a signal's handler and after vfork. They take 1 KB of the
 * stack beside image.c's, 8 bytes for each variable, and nothing that lasts.
 *
 * Programs that exec by system calls of their own (Go) start children without the library.
 */
#define PRELOAD "LD_PRELOAD="
#define TEXT_BYTES 1024 /* longest LD_PRELOAD */
/*
 * Of an environment; a longer one is passed on as it is. Their 8 KB and the rest fit into the
 * least stack that a thread may have (PTHREAD_STACK_MIN).
 */
#define ENTRIES_MAX 1024u
#define PAGE_BYTES 4096u /* the least: mmap takes any length */

/* The path that this library was loaded by, if ONEPOT_PRELOAD named it when main began. */
static char own[PRELOAD_PATH_BYTES];
static size_t own_len; /* 0: environments are passed on as they are */

/* The value of `variable`, which ends in '='; NULL: it is another one. */
static const char *value_of(const char *entry, const char *variable)
{
    size_t len = strlen(variable);
    return strncmp(entry, variable, len) == 0 ? entry + len : NULL;
}

/* Where this library is named in a list; NULL: nowhere. */
static char *find_own(const char *list)
{
    for (const char *at = list; (at = strstr(at, own)); at++)
        if ((at == list || strchr(": ", at[-1])) && (!at[own_len] || strchr(": ", at[own_len])))
            return (char *)(uintptr_t)at;
    return NULL;
}

/* Cut it out, with one separator. */
static void cut_own(char *list)
{
    char *at;
    while ((at = find_own(list))) {
        char *end = at + own_len;
        if (*end)
            end++;
        else if (at > list)
            at--;
        memmove(at, end, strlen(end) + 1);
    }
}

/* Once, before main, from the environment; each exec may put it back. */
static void take_library_out(bool puts_back)
{
    const char *mark = getenv(PRELOAD_VARIABLE);
    const char *list = getenv("LD_PRELOAD");
    char **to = environ;

    if (!mark || !list || !*mark || strlen(mark) >= PRELOAD_PATH_BYTES)
        return;
    strcpy(own, mark);
    own_len = strlen(own);
    if (!find_own(list)) { /* another version's */
        own_len = 0;
        return;
    }
    for (char **from = environ; *from; from++) {
        char *value = (char *)(uintptr_t)value_of(*from, PRELOAD);
        if (value)
            cut_own(value);
        if (!value || *value)
            *to++ = *from;
    }
    *to = NULL;
    if (!puts_back)
        own_len = 0;
}

/* ---- an exec's environment ---- */

/* With the rights that an exec leaves to a process which has become another user. */
static bool may_be_read(void)
{
#ifdef SYS_access
    return io_call(SYS_access, own, R_OK) == 0;
#else
    return io_call(SYS_faccessat, AT_FDCWD, own, R_OK) == 0;
#endif
}

/* Can ld.so load it, in the root and with the rights that this process has now? */
static bool can_be_loaded(void)
{
    if (!may_be_read())
        return false;
    int fd = (int)io_call(SYS_openat, AT_FDCWD, own, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return false;
    long at = io_call(SYS_mmap, NULL, (size_t)PAGE_BYTES, PROT_READ | PROT_EXEC, MAP_PRIVATE,
                      fd, (off_t)0);
    io_call(SYS_close, fd);
    if (at < 0 && at > -4096)
        return false;
    io_call(SYS_munmap, at, (size_t)PAGE_BYTES);
    return true;
}

/* The program that an exec starts. */
struct image {
    int dir;
    const char *path;
    bool is_searched; /* in $PATH */
};

static bool may_be_loaded(const struct image *image)
{
    bool is_filtered = !atomic_load(&reading_is_on);
    return can_be_loaded() &&
           image_takes_library(image->dir, image->path, image->is_searched, is_filtered);
}

/* How an environment is to be changed. */
struct change {
    unsigned entries;      /* of the new one, with its NULL; 0: it is right as it is */
    char text[TEXT_BYTES]; /* the new LD_PRELOAD; empty: none */
};

/* The text for a list, with this library behind the others or without it. */
static bool change_text(struct change *change, const char *list, bool is_wanted)
{
    size_t len = list ? strlen(list) : 0;

    if (len + own_len + sizeof(PRELOAD) + 1 > TEXT_BYTES)
        return false;
    char *value = stpcpy(change->text, PRELOAD);
    strcpy(value, list ? list : "");
    if (is_wanted)
        strcpy(stpcpy(value + len, len ? ":" : ""), own);
    else
        cut_own(value);
    if (!*value)
        change->text[0] = '\0';
    return true;
}

static void change_find(struct change *change, char *const envp[], const struct image *image)
{
    const char *list = NULL, *value, *mark = NULL;
    unsigned count = 0;

    change->entries = 0;
    for (; own_len && envp && envp[count]; count++)
        if ((value = value_of(envp[count], PRELOAD)))
            list = list ? list : value;
        else if ((value = value_of(envp[count], PRELOAD_VARIABLE "=")))
            mark = value;
    if (!mark || strcmp(mark, own) != 0 || count >= ENTRIES_MAX)
        return;
    bool is_there = list && find_own(list), is_wanted = may_be_loaded(image);
    if (is_there != is_wanted && change_text(change, list, is_wanted))
        change->entries = count + 2;
}

/* A variable that another thread adds meanwhile has no room, as if the exec came before it. */
static char *const *change_make(struct change *change, char *const envp[], char **entries)
{
    if (!change->entries)
        return envp;
    char **to = entries, **end = entries + change->entries - 2;
    for (; *envp && to < end; envp++)
        if (!value_of(*envp, PRELOAD))
            *to++ = *envp;
    if (change->text[0])
        *to++ = change->text;
    *to = NULL;
    return entries;
}

/* The environment for an exec of an image: `envp`, or one in this function's frame. */
#define EXEC_ENVIRONMENT(ret, envp, ...)                                                       \
    struct change change_;                                                                     \
    change_find(&change_, envp, &(const struct image){__VA_ARGS__});                           \
    char **entries_ = alloca(change_.entries * sizeof(char *));                                \
    char *const *ret = change_make(&change_, envp, entries_)

int io_execve(const char *path, char *const argv[], char *const envp[])
{
    EXEC_ENVIRONMENT(with, envp, AT_FDCWD, path, false);
    return NEXT(execve)(path, argv, with);
}

int io_execv(const char *path, char *const argv[]) EXPORT(execv);
int io_execv(const char *path, char *const argv[])
{
    return io_execve(path, argv, environ);
}

int io_execvpe(const char *file, char *const argv[], char *const envp[])
{
    EXEC_ENVIRONMENT(with, envp, AT_FDCWD, file, true);
    return NEXT(execvpe)(file, argv, with);
}

int io_execvp(const char *file, char *const argv[]) EXPORT(execvp);
int io_execvp(const char *file, char *const argv[])
{
    return io_execvpe(file, argv, environ);
}

int io_fexecve(int fd, char *const argv[], char *const envp[])
{
    char path[32];
    io_fd_path(fd, path);
    EXEC_ENVIRONMENT(with, envp, AT_FDCWD, path, false);
    return NEXT(fexecve)(fd, argv, with);
}

int io_execveat(int dir, const char *path, char *const argv[], char *const envp[], int flags)
{
    char fd_path[32];
    bool is_fd = path && !*path && dir >= 0;

    if (is_fd)
        io_fd_path(dir, fd_path);
    EXEC_ENVIRONMENT(with, envp, dir, is_fd ? fd_path : path, false);
    if (NEXT(execveat))
        return next.execveat(dir, path, argv, with, flags);
    errno = ENOSYS;
    return -1;
}

int io_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                   const posix_spawnattr_t *attributes, char *const argv[], char *const envp[])
{
    EXEC_ENVIRONMENT(with, envp, AT_FDCWD, path, false);
    return NEXT(posix_spawn)(pid, path, actions, attributes, argv, with);
}

int io_posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                    const posix_spawnattr_t *attributes, char *const argv[], char *const envp[])
{
    EXEC_ENVIRONMENT(with, envp, AT_FDCWD, file, true);
    return NEXT(posix_spawnp)(pid, file, actions, attributes, argv, with);
}

/* ---- execl ---- */

/* NOLINTBEGIN(bugprone-macro-parentheses): it declares variables */
/* The arguments from `first` on as an array of this frame; `list` is behind the last one. */
#define TAKE_ARGUMENTS(argv, first, list)                                                      \
    va_list list;                                                                              \
    size_t count_ = 1;                                                                         \
    va_start(list, first);                                                                     \
    for (const char *arg_ = first; arg_; arg_ = va_arg(list, const char *))                    \
        count_++;                                                                              \
    va_end(list);                                                                              \
    char **argv = alloca(count_ * sizeof(char *));                                             \
    argv[0] = (char *)(uintptr_t)first;                                                        \
    va_start(list, first);                                                                     \
    for (size_t i_ = 1; i_ < count_; i_++)                                                     \
    argv[i_] = va_arg(list, char *)
/* NOLINTEND(bugprone-macro-parentheses) */

int io_execl(const char *path, const char *arg, ...) EXPORT(execl);
int io_execl(const char *path, const char *arg, ...)
{
    TAKE_ARGUMENTS(argv, arg, list);
    va_end(list);
    return io_execve(path, argv, environ);
}

int io_execlp(const char *file, const char *arg, ...) EXPORT(execlp);
int io_execlp(const char *file, const char *arg, ...)
{
    TAKE_ARGUMENTS(argv, arg, list);
    va_end(list);
    return io_execvpe(file, argv, environ);
}

int io_execle(const char *path, const char *arg, ...) EXPORT(execle);
int io_execle(const char *path, const char *arg, ...)
{
    TAKE_ARGUMENTS(argv, arg, list);
    char *const *envp = va_arg(list, char *const *);
    va_end(list);
    return io_execve(path, argv, envp);
}

/* ---- shells that the C library starts ---- */

/*
 * The C library takes `environ` for these, so the shell itself sets the variable for the
 * command. NULL: the command stays as it is. For free(3).
 */
static char *shell_command(const char *command)
{
    const struct image shell = {AT_FDCWD, "/bin/sh", false};
    struct change change;
    char *with = NULL;

    if (!command)
        return NULL;
    change_find(&change, environ, &shell);
    if (change.entries && change.text[0] && !strchr(change.text, '\'') &&
        asprintf(&with, PRELOAD "'%s'; export LD_PRELOAD; %s", change.text + strlen(PRELOAD),
                 command) < 0)
        return NULL;
    return with;
}

int io_system(const char *command)
{
    char *with = shell_command(command);
    int status = NEXT(system)(with ? with : command);
    int err = errno;

    free(with);
    errno = err;
    return status;
}

FILE *io_popen(const char *command, const char *mode)
{
    char *with = shell_command(command);
    FILE *file = NEXT(popen)(with ? with : command, mode);
    int err = errno;

    free(with);
    errno = err;
    return file;
}

/* ---- before main ---- */

/*
 * Has this process more filters of system calls than the program that started it says
 * (filters.h)?
 */
static bool has_strange_filters(void)
{
    const char *known = getenv(FILTERS_VARIABLE);
    long count = filters_count();
    return count != 0 && (count < 0 || !known || count > (long)io_number(known, NULL));
}

/* In a child of fork there is only the thread that called it. */
static void forked(void)
{
    reading_forked();
    link_forked();
}

/* Missing in other C libraries, whose programs would not start for want of it. */
extern int io_atfork(void (*)(void), void (*)(void), void (*)(void),
                     void *) __asm__("__register_atfork") __attribute__((weak));
extern void *__dso_handle;

__attribute__((constructor)) static void begin(void)
{
    bool is_filtered = has_strange_filters();

    find_next();
    test_cancel = io_next("pthread_testcancel");
    take_library_out(!is_filtered);
    link_begin();
    if (io_atfork && !is_filtered)
        atomic_store(&reading_is_on, io_atfork(NULL, NULL, forked, __dso_handle) == 0);
}
