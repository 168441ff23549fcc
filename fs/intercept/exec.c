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
#include <alloca.h>
#include <dlfcn.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "image.h"
#include "io_private.h"
#include "preload.h"

/* dlsym moved in glibc 2.34. Its old version is there from 2.28, the oldest supported, on. */
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif

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

#define FUNCTIONS(ONE)                                                                         \
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
REPLACED(FUNCTIONS)

/* musl from 1.2.4 on links programs by names with 64, but dlsym finds none of them. */
void *io_next(const char *name)
{
    char plain[16] = "";
    const char *end = strrchr(name, '6');
    void *found = dlsym(RTLD_NEXT, name);

    if (!found && end && strcmp(end, "64") == 0 && (size_t)(end - name) < sizeof(plain))
        found = dlsym(RTLD_NEXT, memcpy(plain, name, (size_t)(end - name)));
    return found;
}

/* ---- one variable ---- */

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

/* ---- before main ---- */

void exec_begin(bool puts_back)
{
    const char *mark = getenv(PRELOAD_VARIABLE);
    const char *list = getenv("LD_PRELOAD");
    char **to = environ;

    find_next();
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
           (image->is_searched ? image_found_takes_library(image->path, is_filtered)
                               : image_takes_library(image->dir, image->path, is_filtered));
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
