/*
 * Files that appear whole or not at all, and what killed processes leave of them.
 *
 * All calls are relative to a descriptor of the folder, so that a folder moved meanwhile takes
 * its partial file along. The final step does not replace a file created since the start,
 * unless `overwrite` allows it.
 *
 * Between creating a file and locking it there is a moment in which another process may find it
 * unlocked and remove it. So both sides check after locking whether the file still has its
 * name.
 */
#include "output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "bytes.h"
#include "cleanup.h"
#include "clock.h"
#include "fault.h"
#include "file_id.h"
#include "path.h"
#include "pause.h"
#include "process.h"
#include "source.h"
#include "syscalls.h"
#include "vector.h"

/*
 * ---- stripes ----
 *
 * lfs is looked for in absolute folders of $PATH alone, since it runs in a folder of data. A
 * name goes behind "./", so that none is taken for an option.
 */

#define STRIPES_SAID_MAX 256 /* the first line that lfs wrote */
#define LFS_LIMIT_MS 10000
#define LFS_TEXT_MAX 4096
#define LUSTRE_MAGIC 0x0bd00bd0u
#define ONE_STRIPE_BYTES (UINT64_C(1) << 30)

/* For tests: every filesystem is Lustre, and more bytes than this are many. */
static const char *assumed_bytes(void)
{
    return getenv("ONEPOT_ASSUME_LUSTRE");
}

/* The program, if the descriptor's file is on Lustre. */
static bool find_lfs(int fd, char ret_path[PATH_MAX])
{
    struct statfs fs;
    bool is_lustre =
        assumed_bytes() || (fstatfs(fd, &fs) == 0 && (uint32_t)fs.f_type == LUSTRE_MAGIC);
    return is_lustre && process_find_program("lfs", ret_path) == 0;
}

bool stripes_are_few(unsigned count, uint64_t bytes)
{
    const char *assumed = assumed_bytes();
    return count <= 1 && bytes > (assumed ? strtoull(assumed, NULL, 10) : ONE_STRIPE_BYTES);
}

static _Noreturn void lfs_execute(int folder_fd, char *const argv[], int output)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fchdir(folder_fd) < 0 || dup2(null, STDIN_FILENO) < 0 ||
        dup2(output, STDOUT_FILENO) < 0 || dup2(output, STDERR_FILENO) < 0)
        _exit(126);
    execv(argv[0], argv);
    _exit(127);
}

/* Run it, and read what it writes. -EIO: it failed. */
static int lfs_run(int folder_fd, char *const argv[], char text[LFS_TEXT_MAX])
{
    int fds[2];

    text[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) < 0)
        return -errno;
    auto_close int output = fds[0];
    pid_t pid = fork();
    if (pid == 0)
        lfs_execute(folder_fd, argv, fds[1]);
    int r = pid < 0 ? -errno : 0;
    close(fds[1]);
    if (r == 0)
        r = process_hear(pid, output, now_ms() + LFS_LIMIT_MS, text, LFS_TEXT_MAX);
    return r > 0 ? -EIO : r;
}

static char *name_here(const char *name)
{
    char *here;
    return asprintf(&here, "./%s", name) < 0 ? NULL : here;
}

/* The last number that it prints: of a layout in parts, the widest one's. */
static int last_number(char *text, long *ret_number)
{
    char *save = NULL;
    int r = -EIO;

    for (char *line = strtok_r(text, " \n", &save); line; line = strtok_r(NULL, " \n", &save)) {
        char *end;
        long number = strtol(line, &end, 10);
        if (*end == '\0') {
            *ret_number = number;
            r = 0;
        }
    }
    return r;
}

/* `how`: -c of a file, or -dc of a folder. */
static int count_stripes(int folder_fd, char *how, const char *name, long *ret_count)
{
    char lfs[PATH_MAX], text[LFS_TEXT_MAX];
    auto_free char *here = name_here(name);
    char *argv[] = {lfs, "getstripe", how, here, NULL};

    if (!here)
        return -ENOMEM;
    if (!find_lfs(folder_fd, lfs))
        return -ENOTSUP;
    int r = lfs_run(folder_fd, argv, text);
    return r < 0 ? r : last_number(text, ret_count);
}

int stripes_of(const char *path, unsigned *ret_count)
{
    auto_free char *real = realpath(path, NULL);
    long count;

    if (!real)
        return -errno;
    auto_close int folder_fd = path_open_folder(real);
    int r = folder_fd < 0 ? folder_fd : count_stripes(folder_fd, "-c", path_base(real), &count);
    if (r == 0 && (count < 1 || count > (long)STRIPES_MAX))
        r = -EIO;
    if (r == 0)
        *ret_count = (unsigned)count;
    return r;
}

int stripes_of_new(const char *path, unsigned *ret_count)
{
    auto_close int folder_fd = path_open_folder(path);
    long count;
    int r = folder_fd < 0 ? folder_fd : count_stripes(folder_fd, "-dc", "", &count);

    if (r == 0 && (count < -1 || count > (long)STRIPES_MAX))
        r = -EIO;
    if (r == 0)
        *ret_count = count < 0 ? UINT_MAX : (unsigned)count;
    return r;
}

/*
 * Create an empty file with so many stripes. Errors as of stripes_of, and `said` tells why.
 */
static int stripes_make(int folder_fd, const char *name, unsigned count,
                        char said[STRIPES_SAID_MAX])
{
    char lfs[PATH_MAX], text[LFS_TEXT_MAX], number[16];
    auto_free char *here = name_here(name);
    char *argv[] = {lfs, "setstripe", "-c", number, here, NULL};

    snprintf(number, sizeof(number), "%u", count);
    if (!here || !find_lfs(folder_fd, lfs)) {
        snprintf(said, STRIPES_SAID_MAX, "its folder is not on Lustre, or there is no lfs");
        return here ? -ENOTSUP : -ENOMEM;
    }
    int r = lfs_run(folder_fd, argv, text);
    text[strcspn(text, "\n")] = '\0';
    snprintf(said, STRIPES_SAID_MAX, "%.*s", STRIPES_SAID_MAX - 1,
             r == -EIO && text[0] ? text : fault_errno(r));
    return r;
}

/* ---- leftovers ---- */

/* A file on a network counts as left behind after so many seconds without a change. */
#define STILL_SECONDS 600

void partial_letters(uint64_t number, char ret_letters[PARTIAL_LETTER_COUNT + 1])
{
    for (unsigned i = 0; i < PARTIAL_LETTER_COUNT; i++)
        ret_letters[i] = PARTIAL_LETTERS[number >> 5 * i & 31];
    ret_letters[PARTIAL_LETTER_COUNT] = '\0';
}

bool partial_name_parse(const char *name, size_t *ret_len)
{
    const char *suffix = strrchr(name, '.');
    if (!suffix || (strcmp(suffix, PARTIAL_SUFFIX) != 0 && strcmp(suffix, READY_SUFFIX) != 0 &&
                    strcmp(suffix, KEPT_SUFFIX) != 0))
        return false;
    size_t len = (size_t)(suffix - name);
    if (len <= PARTIAL_LETTER_COUNT + 1)
        return false;
    const char *letters = suffix - PARTIAL_LETTER_COUNT;
    if (letters[-1] != '.' || strspn(letters, PARTIAL_LETTERS) != PARTIAL_LETTER_COUNT)
        return false;
    *ret_len = len - PARTIAL_LETTER_COUNT - 1;
    return true;
}

/*
 * Lock a partial file just created. -EAGAIN: another process took it for a leftover meanwhile,
 * and the caller must create another. A filesystem without locks is no error.
 */
static int leftovers_claim(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EAGAIN : 0;
    return fstat(fd, &st) == 0 && st.st_nlink == 0 ? -EAGAIN : 0;
}

/* Does the name still lead to the open file, and does the file belong to this user? */
static bool leftover_is_ours(int folder_fd, const char *name, int fd, struct stat *ret_st)
{
    return file_is_named(folder_fd, name, fd, ret_st) == 1 && S_ISREG(ret_st->st_mode) &&
           ret_st->st_uid == geteuid();
}

/* May the file have a writer on another node, where the lock does not hold? */
static bool leftover_may_be_written(int fd, const struct stat *st)
{
    struct timespec now;
    const char *remote = getenv("ONEPOT_ASSUME_REMOTE"); /* for tests */
    if (storage_of(fd).is_local && !(remote && strcmp(remote, "1") == 0))
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec - st->st_mtim.tv_sec < STILL_SECONDS;
}

static bool leftover_ends_with(const char *name, const char *suffix)
{
    return strcmp(strrchr(name, '.'), suffix) == 0;
}

/* NAME.XXXXXX.ready becomes NAME.XXXXXX.kept: 1. */
static int leftover_keep(int folder_fd, const char *name)
{
    auto_free char *kept = NULL;
    int len = (int)(strlen(name) - strlen(READY_SUFFIX));
    if (asprintf(&kept, "%.*s" KEPT_SUFFIX, len, name) < 0) {
        kept = NULL;
        return -ENOMEM;
    }
    return renameat(folder_fd, name, folder_fd, kept) < 0 ? -errno : 1;
}

/* 0 and the action taken; 1: it is kept; an error: the file is not ours, or gone. */
static int leftover_examine(int folder_fd, const char *name, enum leftovers_kind kind,
                            enum leftover *ret_what)
{
    struct stat st = {0};
    auto_close int fd =
        openat(folder_fd, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (!leftover_is_ours(folder_fd, name, fd, &st))
        return -ENOENT;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        *ret_what = errno == EWOULDBLOCK ? LEFTOVER_BUSY : LEFTOVER_UNKNOWN;
        return 0;
    }
    if (!leftover_is_ours(folder_fd, name, fd, &st))
        return -ENOENT;
    bool is_partial = leftover_ends_with(name, PARTIAL_SUFFIX);
    if (!is_partial && kind == LEFTOVERS_TO_RESUME)
        return leftover_keep(folder_fd, name);
    *ret_what =
        is_partial && leftover_may_be_written(fd, &st) ? LEFTOVER_UNKNOWN : LEFTOVER_REMOVED;
    return *ret_what == LEFTOVER_REMOVED && unlinkat(folder_fd, name, 0) < 0 ? -errno : 0;
}

void leftovers_remove(int folder_fd, const struct leftovers *l)
{
    auto_closedir DIR *dir = path_list(folder_fd);
    if (!dir)
        return;
    const struct dirent *entry;
    while ((entry = readdir(dir))) {
        size_t len;
        enum leftover what = LEFTOVER_UNKNOWN;
        if (!partial_name_parse(entry->d_name, &len) ||
            !l->match(l->match_ctx, entry->d_name, len) ||
            (l->kind != LEFTOVERS_ALL &&
             leftover_ends_with(entry->d_name, KEPT_SUFFIX) != (l->kind == LEFTOVERS_KEPT)))
            continue;
        if (leftover_examine(folder_fd, entry->d_name, l->kind, &what) == 0 && l->found)
            l->found(l->ctx, what, entry->d_name);
    }
}

/* ---- outputs ---- */

/* Free the output and leave the file under its present name. */
static void output_release(struct output *output)
{
    if (output->fd >= 0)
        close(output->fd);
    if (output->folder_fd >= 0)
        close(output->folder_fd);
    free(output->name);
    free(output->partial_name);
    free(output);
}

static int output_exists(struct fault *fault)
{
    fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET, "already exists");
    fault_advise(fault, "choose another name with -o, or replace it with -f");
    return -EEXIST;
}

static int output_open_named(struct output *output, const char *path, struct fault *fault)
{
    output->name = strdup(path_base(path));
    if (!output->name)
        return -ENOMEM;
    size_t len = strlen(output->name);
    if (len == 0 || path_is_dots(output->name))
        return fault_set(fault, -EISDIR, NULL, FAULT_NO_OFFSET, "is not a name for a file");
    if (len > NAME_MAX)
        return fault_set(fault, -ENAMETOOLONG, NULL, FAULT_NO_OFFSET, "name is too long");
    output->folder_fd = path_open_folder(path);
    if (output->folder_fd < 0)
        return fault_set_errno(fault, output->folder_fd, NULL, "its folder can't be opened");
    return 0;
}

/*
 * The folder and the name of a file that may be named by a symbolic link. The kernel says
 * whether this process may follow it: not another user's in a folder like /tmp.
 */
static int output_open_folder(struct output *output, const char *path, struct fault *fault)
{
    char target[PATH_MAX];
    struct stat st;
    struct file_id id = {0};
    if (lstat(path, &st) < 0 || !S_ISLNK(st.st_mode))
        return output_open_named(output, path, fault);
    int r = path_real(path, target, &id);
    if (r < 0) {
        fault_set_errno(fault, r, NULL, "can't be followed to a file");
        fault_advise(fault, "it is a symbolic link; remove it, or name another place with -o");
        return r;
    }
    r = output_open_named(output, target, fault);
    if (r == 0 && fstatat(output->folder_fd, output->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        r = fault_set_errno(fault, -errno, NULL, "can't be examined");
    if (r == 0 && !file_id_equal(file_id_of(&st), id))
        r = fault_set(fault, -ELOOP, NULL, FAULT_NO_OFFSET,
                      "is a link that leads elsewhere now");
    return r;
}

static int output_check_existing(struct output *output, struct fault *fault)
{
    struct stat st;
    if (fstatat(output->folder_fd, output->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fault_set_errno(fault, -errno, NULL, "can't be examined");
    if (S_ISDIR(st.st_mode))
        return fault_set_advised(fault, -EISDIR, NULL, FAULT_NO_OFFSET, "name a file with -o",
                                 "is a directory");
    if (!S_ISREG(st.st_mode))
        return fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET, "is not a regular file");
    if (!output->overwrite)
        return output_exists(fault);
    output->replaced = file_id_of(&st);
    return 0;
}

/* NAME.XXXXXX.partial, with NAME truncated if the whole would be too long. */
static int output_name_partial(struct output *output)
{
    uint64_t noise;
    char unique[PARTIAL_LETTER_COUNT + 1];
    if (getrandom(&noise, sizeof(noise), 0) != sizeof(noise))
        return -EIO;
    partial_letters(noise, unique);
    int most = NAME_MAX - (int)PARTIAL_EXTRA_LEN;
    free(output->partial_name);
    output->partial_name = NULL;
    if (asprintf(&output->partial_name, "%.*s.%s" PARTIAL_SUFFIX, most, output->name, unique) >=
        0)
        return 0;
    output->partial_name = NULL;
    return -ENOMEM;
}

/* Lustre's program has made the file: is it this user's, and empty? */
static int output_open_striped(struct output *output)
{
    uint64_t mask;
    struct stat st;
    output->fd =
        openat(output->folder_fd, output->partial_name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (output->fd < 0 || fstat(output->fd, &st) < 0)
        return -errno;
    bool is_own = S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_size == 0;
    if (!is_own || leftovers_claim(output->fd) < 0)
        return -EIO;
    /* lfs creates files that no group may write to, whatever the umask is. */
    bool has_mask = process_status_number(getpid(), "\nUmask:", 8, &mask);
    if (has_mask && fchmod(output->fd, output->mode & ~(mode_t)mask) < 0)
        return -errno;
    output->begun_sec = st.st_mtim.tv_sec;
    output->id = file_id_of(&st);
    return 0;
}

static int output_create_striped(struct output *output, struct fault *fault)
{
    char said[STRIPES_SAID_MAX];
    int r = output_name_partial(output);
    if (r == 0)
        r = stripes_make(output->folder_fd, output->partial_name, output->stripes, said);
    if (r < 0)
        return fault_set(fault, r, NULL, FAULT_NO_OFFSET, "its stripes can't be set: %s", said);
    r = output_open_striped(output);
    if (r == 0)
        return 0;
    unlinkat(output->folder_fd, output->partial_name, 0);
    return fault_set_errno(fault, r, NULL, "can't be created");
}

static int output_create_partial(struct output *output, struct fault *fault)
{
    if (output->stripes)
        return output_create_striped(output, fault);
    for (int attempt = 0; attempt < 100; attempt++) {
        int r = output_name_partial(output);
        if (r < 0)
            return r;
        output->fd = openat(output->folder_fd, output->partial_name,
                            O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, output->mode);
        if (output->fd < 0 && errno != EEXIST)
            break;
        if (output->fd >= 0 && leftovers_claim(output->fd) == 0)
            break;
        if (output->fd >=
            0) { /* a process that took it for a leftover may not have removed it */
            unlinkat(output->folder_fd, output->partial_name, 0);
            close(steal_fd(&output->fd));
        }
        errno = EEXIST;
    }
    struct stat st;
    if (output->fd < 0 || fstat(output->fd, &st) < 0)
        return fault_set_errno(fault, -errno, NULL, "can't be created");
    output->begun_sec = st.st_mtim.tv_sec;
    output->id = file_id_of(&st);
    return 0;
}

static bool output_is_leftover(const void *ctx, const char *name, size_t len)
{
    const struct output *output = ctx;
    size_t own = strlen(output->name), most = NAME_MAX - PARTIAL_EXTRA_LEN;
    return len == (own < most ? own : most) && memcmp(name, output->name, len) == 0;
}

void output_clean(const char *path, const struct leftovers *how)
{
    struct output output = {.fd = -1, .folder_fd = -1};
    if (output_open_folder(&output, path, NULL) == 0) {
        struct leftovers l = *how;
        if (!l.match) {
            l.match = output_is_leftover;
            l.match_ctx = &output;
        }
        leftovers_remove(output.folder_fd, &l);
    }
    if (output.folder_fd >= 0)
        close(output.folder_fd);
    free(output.name);
}

int output_open(const char *path, enum output_kind kind, unsigned stripes, struct fault *fault,
                struct output **ret_output)
{
    struct output *output = malloc(sizeof(*output));
    if (!output)
        return -ENOMEM;
    *output = (struct output){.fd = -1,
                              .folder_fd = -1,
                              .overwrite = kind != OUTPUT_NEW,
                              .mode = kind == OUTPUT_OWN ? 0600 : 0666,
                              .stripes = stripes};
    int r = kind == OUTPUT_OWN ? output_open_named(output, path, fault)
                               : output_open_folder(output, path, fault);
    if (r == 0 && kind == OUTPUT_OWN)
        leftovers_remove(output->folder_fd,
                         &(struct leftovers){.match = output_is_leftover, .match_ctx = output});
    else if (r == 0)
        r = output_check_existing(output, fault);
    if (r == 0)
        r = output_create_partial(output, fault);
    if (r < 0)
        output_release(output);
    else
        *ret_output = output;
    return r;
}

static int output_rename(const struct output *output)
{
    int dir = output->folder_fd;
    if (!output->overwrite)
        return syscall_rename_new(dir, output->partial_name, dir, output->name);
    return renameat(dir, output->partial_name, dir, output->name) < 0 ? -errno : 0;
}

/* A folder that can be written but not read can't be synced: its owner accepted that. */
static void output_sync_folder(int folder_fd)
{
    auto_close int fd = openat(folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        fsync(fd);
}

static int output_sync_file(const struct output *output, struct fault *fault)
{
    return fsync(output->fd) < 0
               ? fault_set_errno(fault, -errno, NULL, "can't be brought to the disk")
               : 0;
}

static int output_date(const struct output *output)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = output->begun_sec}};
    return futimens(output->fd, times) < 0 ? -errno : 0;
}

int output_ready(struct output *output, const char *letters, bool sync, struct fault *fault)
{
    auto_free char *ready = NULL;
    int r = output_date(output), dir = output->folder_fd;
    if (r < 0)
        return fault_set_errno(fault, r, NULL, "can't be given its time");
    r = sync ? output_sync_file(output, fault) : 0;
    if (r < 0)
        return r;
    if (asprintf(&ready, "%s.%s" READY_SUFFIX, output->name, letters) < 0) {
        ready = NULL;
        return -ENOMEM;
    }
    if (renameat(dir, output->partial_name, dir, ready) < 0)
        return fault_set_errno(fault, -errno, NULL, "can't be renamed to its waiting name");
    free(output->partial_name);
    output->partial_name = steal_ptr(&ready);
    output->is_ready = true;
    return 0;
}

/* A kept file of the same archive which is not larger has hardly more of its files. */
static bool output_is_superseded(const void *ctx, const char *name, size_t len)
{
    const struct output *output = ctx;
    struct stat own, st;
    return output_is_leftover(output, name, len) && strcmp(name, output->partial_name) != 0 &&
           fstat(output->fd, &own) == 0 &&
           fstatat(output->folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
           st.st_size <= own.st_size;
}

int output_keep(struct output *output)
{
    auto_free char *kept = NULL;
    if (output->is_ready) {
        output_release(output);
        return 0;
    }
    int len = (int)(strlen(output->partial_name) - strlen(PARTIAL_SUFFIX));
    int dir = output->folder_fd, r = output_date(output);
    if (r == 0 && asprintf(&kept, "%.*s" KEPT_SUFFIX, len, output->partial_name) < 0) {
        kept = NULL;
        r = -ENOMEM;
    }
    if (r == 0 &&
        (fchmod(output->fd, 0600) < 0 || renameat(dir, output->partial_name, dir, kept) < 0))
        r = -errno;
    if (r < 0) {
        output_discard(output);
        return r;
    }
    free(output->partial_name);
    output->partial_name = steal_ptr(&kept);
    leftovers_remove(output->folder_fd, &(struct leftovers){.kind = LEFTOVERS_KEPT,
                                                            .match = output_is_superseded,
                                                            .match_ctx = output});
    output_release(output);
    return 0;
}

int output_commit(struct output *output, bool sync, struct fault *fault)
{
    int r = sync ? output_sync_file(output, fault) : 0;
    if (r == 0) {
        r = output_rename(output);
        if (r == -EEXIST)
            output_exists(fault);
        else if (r < 0)
            fault_set_errno(fault, r, NULL, "can't be given its name");
    }
    if (r < 0) {
        output_discard(output);
        return r;
    }
    if (sync)
        output_sync_folder(output->folder_fd);
    output_release(output);
    return 0;
}

/* The first partial file of this process that could not be removed. */
static struct {
    _Atomic bool is_claimed, is_known;
    char name[NAME_MAX + 1];
} left;

void output_discard(struct output *output)
{
    if (!output)
        return;
    if (unlinkat(output->folder_fd, output->partial_name, 0) < 0 && errno != ENOENT &&
        !atomic_exchange(&left.is_claimed, true)) {
        snprintf(left.name, sizeof(left.name), "%s", output->partial_name);
        atomic_store(&left.is_known, true);
    }
    output_release(output);
}

const char *output_left(void)
{
    return atomic_load(&left.is_known) ? left.name : NULL;
}

int output_nameless(const char *folder)
{
    int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    auto_free char *path = NULL;
    if (asprintf(&path, "%s/.onepot-XXXXXX", folder) < 0) {
        path = NULL;
        return -ENOMEM;
    }
    fd = mkostemp(path, O_CLOEXEC); /* where the filesystem has no nameless files */
    if (fd < 0)
        return -errno;
    unlink(path);
    return fd;
}

/*
 * ---- sets of shards ----
 *
 * Format of the record: a sum in hexadecimal digits, then these fields, each ended by a zero
 * byte: letters, number of shards, number after the last shard of either set, digits, the parts
 * before and after the number in a shard's name, and the record's own inode number and time of
 * birth. Two inode numbers follow for each shard: the new one's and the replaced one's, 0 for
 * none.
 *
 * If the sum is wrong the record was incomplete, and nothing has been renamed yet. If the sum
 * is right and the record does not name itself, it was copied or came out of an archive, and
 * counts for nothing: tar can't choose when its files are born. No device is compared, since
 * its number is another one on another node, and all entries of a folder are on one filesystem.
 *
 * Each step that follows can be repeated. It moves or removes a file only if it has the inode
 * number that the record names. Who can exchange the file between that look and the step may
 * write to the folder, and could remove it anyway.
 *
 * Names of shards come first; other ranks' shards are known by name alone.
 */

/* ---- names ---- */

#define DIGITS "0123456789"
#define DIGITS_MAX 100u

/* Endings of archive names, longer ones first. */
static const char *const endings[] = {".onepot.tar.zst", ".onepot.tar", ".tar.zst", ".tar"};

/* The place of %d or %0Nd and its length, or NULL. */
static const char *shard_name_find_pattern(const char *name, size_t *ret_len,
                                           unsigned *ret_digits)
{
    for (const char *p = strchr(name, '%'); p; p = strchr(p + 1, '%')) {
        size_t len = 1 + strspn(p + 1, DIGITS);
        if (p[len] != 'd' || len > 4)
            continue;
        *ret_digits = len > 1 ? (unsigned)strtoul(p + 1, NULL, 10) : 1;
        *ret_len = len + 1;
        return p;
    }
    return NULL;
}

static int shard_name_parse(const char *output, const char *place, size_t len,
                            struct shard_names *names)
{
    if (strchr(place, '/') || names->digits > DIGITS_MAX)
        return -EINVAL;
    names->before = strndup(output, (size_t)(place - output));
    names->after = strdup(place + len);
    return names->before && names->after ? 0 : -ENOMEM;
}

static size_t shard_name_ending(const char *output, size_t len)
{
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t ending = strlen(endings[i]);
        if (len > ending && strcmp(output + len - ending, endings[i]) == 0)
            return ending;
    }
    return 0;
}

static int shard_name_insert(const char *output, struct shard_names *names)
{
    size_t len = strlen(output), ending = shard_name_ending(output, len);
    names->digits = 5;
    if (asprintf(&names->before, "%.*s-", (int)(len - ending), output) < 0)
        names->before = NULL;
    if (asprintf(&names->after, "-of-%05u%s", names->count, output + len - ending) < 0)
        names->after = NULL;
    return names->before && names->after ? 0 : -ENOMEM;
}

int shard_names_parse(const char *output, uint32_t count, struct shard_names *ret_names)
{
    struct shard_names names = {.count = count};
    size_t len;
    const char *place = shard_name_find_pattern(output, &len, &names.digits);
    int r = place ? shard_name_parse(output, place, len, &names)
                  : shard_name_insert(output, &names);
    if (r < 0)
        shard_names_free(&names);
    else
        *ret_names = names;
    return r;
}

void shard_names_free(struct shard_names *names)
{
    free(names->before);
    free(names->after);
    *names = (struct shard_names){0};
}

int shard_name(const struct shard_names *names, uint32_t number, char **ret_path)
{
    if (asprintf(ret_path, "%s%0*u%s", names->before, (int)names->digits, number,
                 names->after) < 0)
        return -ENOMEM;
    return 0;
}

bool shard_names_find(const struct shard_names *names, const char *name, size_t len,
                      uint32_t *ret_number)
{
    const char *before = path_base(names->before);
    size_t before_len = strlen(before), after_len = strlen(names->after);
    if (len < before_len + after_len || memcmp(name, before, before_len) != 0 ||
        memcmp(name + len - after_len, names->after, after_len) != 0)
        return false;
    size_t digits = len - before_len - after_len;
    if (digits < names->digits || digits > DIGITS_MAX ||
        strspn(name + before_len, DIGITS) < digits)
        return false;
    unsigned long long number = strtoull(name + before_len, NULL, 10);
    if (number >= names->count)
        return false;
    *ret_number = (uint32_t)number;
    return true;
}

/*
 * Name of the record of an exchange, from the parts of a shard's name before and after the
 * number, without folders. Digits beside the number count as part of it: given one shard,
 * nobody can tell them apart. Caller frees. NULL: no memory.
 */
static char *shard_record_name(const char *before, size_t before_len, const char *after)
{
    char *name;
    while (before_len && strchr(DIGITS, before[before_len - 1]))
        before_len--;
    after += strspn(after, DIGITS);
    return asprintf(&name, ".%.*s%%%s.exchange", (int)before_len, before, after) < 0 ? NULL
                                                                                     : name;
}

static bool shard_name_is_record(const struct shard_names *names, const char *name)
{
    const char *before = path_base(names->before);
    auto_free char *record = shard_record_name(before, strlen(before), names->after);
    return record && strcmp(name, record) == 0;
}

bool shard_names_match(const struct shard_names *names, const char *name)
{
    size_t len = strlen(name);
    uint32_t number;
    return shard_names_find(names, name, len, &number) ||
           (partial_name_parse(name, &len) && shard_names_find(names, name, len, &number)) ||
           (name[0] == '.' && shard_name_is_record(names, name));
}

/* ---- records ---- */

#define HEADER_BYTES_MAX 1024u
#define RECORD_END_MAX 2000000u
#define RECORD_BYTES_MAX (HEADER_BYTES_MAX + RECORD_END_MAX * sizeof(struct exchange_shard))
#define FIELD_COUNT 8u
#define SUM_DIGITS 16u
#define LOCK_WAIT_MS 10000u /* without a change of the record */
#define LOCK_STEP_MS 20u
#define STEPS_PER_TOUCH 256u /* the record changes, so that others see that this goes on */

/* Inode numbers, as in the record (little-endian). */
struct exchange_shard {
    uint64_t is, was;
};

/* The content of a record. */
struct exchange_plan {
    const char *letters;
    struct shard_names names;
    uint32_t end; /* shards from names.count up to here are old ones, and are removed */
    const uint8_t *inodes; /* two for each shard below `end` */
};

static uint64_t exchange_new_ino(const struct exchange_plan *plan, uint32_t number)
{
    return bytes_le64(plan->inodes + number * sizeof(struct exchange_shard));
}

static uint64_t exchange_old_ino(const struct exchange_plan *plan, uint32_t number)
{
    return bytes_le64(plan->inodes + number * sizeof(struct exchange_shard) + sizeof(uint64_t));
}

/* ---- names ---- */

static char *exchange_ready_name(const struct shard_names *names, uint32_t number,
                                 const char *letters)
{
    auto_free char *name = NULL;
    char *ready;
    if (shard_name(names, number, &name) < 0)
        return NULL;
    return asprintf(&ready, "%s.%s" READY_SUFFIX, name, letters) < 0 ? NULL : ready;
}

/* The same names without folders. The texts are not copied. */
static struct shard_names exchange_base_names(const struct shard_names *names)
{
    struct shard_names base = *names;
    base.before = (char *)path_base(names->before);
    return base;
}

/* ---- the record ---- */

/* When the file was created; 0: its filesystem does not tell. */
static uint64_t exchange_birth_ns(int fd)
{
    struct statx st;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BTIME, &st) < 0 || !(st.stx_mask & STATX_BTIME))
        return 0;
    return (uint64_t)st.stx_btime.tv_sec * UINT64_C(1000000000) + st.stx_btime.tv_nsec;
}

/* Take the fields of a record whose sum is right. Does it speak of these files? */
static bool exchange_parse(const char *record, int fd, const struct stat *st, char *text,
                           struct exchange_plan *plan)
{
    char *field[FIELD_COUNT], *at = text + SUM_DIGITS, *end = text + st->st_size;
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        field[i] = at;
        at += strlen(at) + 1; /* a zero byte follows the text */
        if (at > end)
            return false;
    }
    unsigned long count = strtoul(field[1], NULL, 10), last = strtoul(field[2], NULL, 10),
                  digits = strtoul(field[3], NULL, 10);
    uint64_t birth = exchange_birth_ns(fd);
    plan->letters = field[0];
    plan->names = (struct shard_names){.before = field[4],
                                       .after = field[5],
                                       .digits = (unsigned)digits,
                                       .count = (uint32_t)count};
    plan->end = (uint32_t)last;
    plan->inodes = (const uint8_t *)at;
    if (count == 0 || count > last || last > RECORD_END_MAX || digits > DIGITS_MAX ||
        (size_t)(end - at) != last * sizeof(struct exchange_shard) ||
        strlen(field[0]) != PARTIAL_LETTER_COUNT ||
        strspn(field[0], PARTIAL_LETTERS) != PARTIAL_LETTER_COUNT || strchr(field[4], '/') ||
        strchr(field[5], '/') || strtoull(field[6], NULL, 10) != st->st_ino ||
        (birth && strtoull(field[7], NULL, 10) != birth))
        return false;
    auto_free char *own = shard_record_name(field[4], strlen(field[4]), field[5]);
    return own && strcmp(own, record) == 0;
}

/*
 * 0: it counts, and the plan's texts are in *ret_text, which the caller frees. -ENODATA: it is
 * incomplete or no record. -ESTALE: it is complete, but does not speak of the files in this
 * folder.
 */
static int exchange_read(int fd, const char *record, char **ret_text,
                         struct exchange_plan *plan)
{
    struct stat st;
    char sum[SUM_DIGITS + 1];
    size_t have = 0;
    *plan = (struct exchange_plan){.letters = NULL};
    if (fstat(fd, &st) < 0)
        return -errno;
    size_t len = (size_t)st.st_size;
    if (!S_ISREG(st.st_mode) || len <= SUM_DIGITS || len > RECORD_BYTES_MAX)
        return -ENODATA;
    auto_free char *text = calloc(1, len + 1);
    if (!text)
        return -ENOMEM;
    for (ssize_t n; have < len; have += (size_t)n)
        if ((n = pread(fd, text + have, len - have, (off_t)have)) <= 0)
            return n < 0 ? -errno : -ENODATA;
    snprintf(sum, sizeof(sum), "%016llx",
             (unsigned long long)XXH3_64bits(text + SUM_DIGITS, len - SUM_DIGITS));
    if (memcmp(sum, text, SUM_DIGITS) != 0)
        return -ENODATA;
    if (!exchange_parse(record, fd, &st, text, plan))
        return -ESTALE;
    *ret_text = steal_ptr(&text);
    return 0;
}

static int exchange_write(const struct shard_exchange *x, const struct exchange_plan *plan,
                          mode_t mode, bool sync)
{
    char sum[SUM_DIGITS + 1];
    const struct shard_names *n = &plan->names;
    size_t inodes = plan->end * sizeof(struct exchange_shard);
    struct stat st;
    if (fstat(x->fd, &st) < 0)
        return -errno;
    auto_free char *text = malloc(HEADER_BYTES_MAX + inodes);
    if (!text)
        return -ENOMEM;
    int len = snprintf(
        text + SUM_DIGITS, HEADER_BYTES_MAX - SUM_DIGITS, "%s%c%u%c%u%c%u%c%s%c%s%c%llu%c%llu",
        plan->letters, 0, n->count, 0, plan->end, 0, n->digits, 0, n->before, 0, n->after, 0,
        (unsigned long long)st.st_ino, 0, (unsigned long long)exchange_birth_ns(x->fd));
    size_t header = SUM_DIGITS + (size_t)len + 1; /* includes the last zero byte */
    if (len < 0 || header > HEADER_BYTES_MAX)
        return -ENAMETOOLONG;
    memcpy(text + header, plan->inodes, inodes);
    size_t bytes = header + inodes;
    snprintf(sum, sizeof(sum), "%016llx",
             (unsigned long long)XXH3_64bits(text + SUM_DIGITS, bytes - SUM_DIGITS));
    memcpy(text, sum, SUM_DIGITS);
    if (fchmod(x->fd, mode) < 0) /* others must see it before anything is renamed */
        return -errno;
    ssize_t done = pwrite(x->fd, text, bytes, 0);
    int r = done < 0 ? -errno : (size_t)done < bytes ? -ENOSPC : 0;
    if (r == 0 && sync && fsync(x->fd) < 0)
        r = -errno;
    if (r < 0 && ftruncate(x->fd, 0) < 0)
        unlinkat(x->folder_fd, x->record, 0);
    return r;
}

/* ---- the lock ---- */

/* Wait for the lock as long as whoever holds it shows that the work goes on. */
static int exchange_lock(int fd, const char *record, const _Atomic int *stop,
                         struct fault *fault)
{
    struct pause pause;
    struct stat st;
    struct timespec changed = {0};
    uint64_t until_ms = 0;
    int pid;
    pause_init(&pause);
    while (flock(fd, LOCK_EX | LOCK_NB) < 0 && (errno == EWOULDBLOCK || errno == EINTR)) {
        if (stop && atomic_load(stop))
            return -EINTR;
        if (fstat(fd, &st) < 0)
            return fault_set_errno(fault, -errno, record, "can't be examined");
        if (until_ms == 0 || memcmp(&changed, &st.st_ctim, sizeof(changed)) != 0)
            until_ms = now_ms() + LOCK_WAIT_MS;
        changed = st.st_ctim;
        if (now_ms() >= until_ms) {
            bool is_known = process_lock_holders(fd, &pid, 1) > 0;
            fault_set(fault, -EBUSY, record, FAULT_NO_OFFSET,
                      is_known ? "process %d holds its lock" : "another process holds its lock",
                      is_known ? pid : 0);
            fault_advise(fault, "it may be a pack of the same set: let it end, or end it");
            return -EBUSY;
        }
        pause_for(&pause, LOCK_STEP_MS * UINT64_C(1000000));
    }
    return 0; /* also where locks are not supported */
}

/* Why this user can't have the record. */
static int exchange_deny(int folder_fd, const char *record, int err, struct fault *fault)
{
    struct stat st;
    if (fstatat(folder_fd, record, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        (st.st_uid == geteuid() && S_ISREG(st.st_mode)))
        return fault_set_errno(fault, err, record, "can't be created and locked");
    fault_set(fault, -EPERM, record, FAULT_NO_OFFSET,
              S_ISREG(st.st_mode) ? "is user %u's, who may not have finished a pack of this set"
                                  : "is no file of 'pack'; it is user %u's",
              (unsigned)st.st_uid);
    fault_advise(fault,
                 "let that user pack the set again, or remove it; or choose another name "
                 "with -o");
    return -EPERM;
}

/* Create the record if it is missing, and lock it. It is closed to others until it counts. */
static int exchange_lock_record(int folder_fd, const char *record, const _Atomic int *stop,
                                struct fault *fault, int *ret_fd)
{
    for (;;) {
        struct stat st;
        auto_close int fd =
            openat(folder_fd, record,
                   O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0600);
        if (fd < 0 || fstat(fd, &st) < 0)
            return exchange_deny(folder_fd, record, -errno, fault);
        if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
            return exchange_deny(folder_fd, record, -EPERM, fault);
        int r = exchange_lock(fd, record, stop, fault);
        if (r < 0)
            return r;
        if (file_is_named(folder_fd, record, fd, NULL) == 1) {
            futimens(fd, NULL);
            *ret_fd = steal_fd(&fd);
            return 0;
        } /* else its owner finished and removed it */
    }
}

/* ---- the exchange ---- */

/* The inode number of the regular file of this name, or 0. */
static int exchange_find(int folder_fd, const char *name, struct fault *fault, bool *ret_there,
                         uint64_t *ret_ino)
{
    struct stat st;
    *ret_there = fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    *ret_ino = *ret_there && S_ISREG(st.st_mode) ? st.st_ino : 0;
    return *ret_there || errno == ENOENT
               ? 0
               : fault_set_errno(fault, -errno, name, "can't be examined");
}

static int exchange_refuse(struct fault *fault, const char *name)
{
    fault_set(fault, -EEXIST, name, FAULT_NO_OFFSET,
              "another file has taken this name since the exchange began");
    return -EEXIST;
}

/* Give a shard of the new set its name, or remove one of the old set. */
static int exchange_place(int folder_fd, const struct exchange_plan *plan, uint32_t number,
                          struct fault *fault)
{
    auto_free char *name = NULL, *ready = NULL;
    uint64_t is = exchange_new_ino(plan, number), was = exchange_old_ino(plan, number);
    uint64_t found, waits;
    bool is_new = number < plan->names.count, is_taken, is_ready;
    int r = shard_name(&plan->names, number, &name);
    if (r == 0)
        r = exchange_find(folder_fd, name, fault, &is_taken, &found);
    if (r < 0 || (is_taken && is_new && is && found == is) || (!is_taken && !is_new))
        return r; /* it was done */
    if (is_taken && (!was || found != was))
        return exchange_refuse(fault, name);
    if (!is_new)
        return unlinkat(folder_fd, name, 0) == 0 || errno == ENOENT
                   ? 0
                   : fault_set_errno(fault, -errno, name, "can't be removed");
    ready = exchange_ready_name(&plan->names, number, plan->letters);
    if (!ready)
        return -ENOMEM;
    r = exchange_find(folder_fd, ready, fault, &is_ready, &waits);
    if (r < 0 || !is_ready)
        return r; /* somebody removed it */
    if (!is || waits != is)
        return exchange_refuse(fault, ready);
    r = is_taken ? (renameat(folder_fd, ready, folder_fd, name) < 0 ? -errno : 0)
                 : syscall_rename_new(folder_fd, ready, folder_fd, name);
    if (r == 0) /* the time was output_ready's */
        utimensat(folder_fd, name, NULL, AT_SYMLINK_NOFOLLOW);
    return r == 0 || r == -ENOENT ? 0
                                  : fault_set_errno(fault, r, name, "can't be given its name");
}

/*
 * Do the remaining steps that a complete record demands. Old shards go from the last one on, so
 * that there is never a gap between them.
 */
static int exchange_roll_forward(int folder_fd, const struct exchange_plan *plan, int record_fd,
                                 struct fault *fault)
{
    int r = 0;
    for (uint32_t i = plan->end; r == 0 && i-- > 0;) {
        r = exchange_place(folder_fd, plan, i, fault);
        if (i % STEPS_PER_TOUCH == 0)
            futimens(record_fd, NULL);
    }
    if (r < 0)
        fault_advise(fault,
                     "the new set is complete: mend that, then pack again with -f, which "
                     "does the rest first");
    else
        output_sync_folder(folder_fd);
    return r;
}

/* Finish what was interrupted, if the record says that something was. */
static int exchange_resume(int folder_fd, const char *record, int fd, bool overwrite,
                           struct fault *fault)
{
    struct exchange_plan plan;
    auto_free char *text = NULL;
    int r = exchange_read(fd, record, &text, &plan);
    if (r == -ENODATA || r == -ESTALE)
        return 0; /* never complete, or not of this set: the old set counts */
    if (r < 0)
        return fault_set_errno(fault, r, record, "can't be read");
    if (!overwrite)
        return fault_set_advised(fault, -EEXIST, record, FAULT_NO_OFFSET,
                                 "'pack -f' finishes that first, and then replaces the set",
                                 "the exchange of this set was interrupted");
    r = exchange_roll_forward(folder_fd, &plan, fd, fault);
    if (r == 0 && ftruncate(fd, 0) < 0)
        r = fault_set_errno(fault, -errno, record, "can't be emptied");
    return r;
}

int shard_exchange_begin(const struct shard_names *names, bool overwrite,
                         const _Atomic int *stop, struct fault *fault,
                         struct shard_exchange *ret_exchange)
{
    auto_close int folder_fd = path_open_folder(names->before), fd = -1;
    if (folder_fd < 0)
        return fault_set_errno(fault, folder_fd, NULL, "its folder can't be opened");
    struct shard_names base = exchange_base_names(names);
    auto_free char *record = shard_record_name(base.before, strlen(base.before), base.after);
    int r = record ? exchange_lock_record(folder_fd, record, stop, fault, &fd) : -ENOMEM;
    if (r == 0)
        r = exchange_resume(folder_fd, record, fd, overwrite, fault);
    if (r == 0)
        *ret_exchange = (struct shard_exchange){.names = base,
                                                .folder_fd = steal_fd(&folder_fd),
                                                .fd = steal_fd(&fd),
                                                .record = steal_ptr(&record)};
    return r;
}

void shard_exchange_end(struct shard_exchange *x)
{
    if (!x->committed && file_is_named(x->folder_fd, x->record, x->fd, NULL) == 1)
        unlinkat(x->folder_fd, x->record, 0);
    close(x->fd);
    close(x->folder_fd);
    free(x->record);
}

void shard_exchange_withdraw(const struct shard_exchange *x, uint32_t number,
                             const char *letters)
{
    auto_free char *ready = exchange_ready_name(&x->names, number, letters);
    if (ready)
        unlinkat(x->folder_fd, ready, 0);
}

typedef VECTOR(struct exchange_shard) exchange_shards;

/*
 * 1: all new shards wait; 0: one is missing. One of another user is missing: that user could
 * have guessed its name.
 */
static int exchange_is_ready(const struct shard_exchange *x, const char *letters,
                             exchange_shards *shards, mode_t *ret_mode)
{
    struct stat own, st;
    if (fstat(x->fd, &own) < 0)
        return -errno;
    if (vector_reserve(shards, x->names.count) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < x->names.count; i++) {
        auto_free char *ready = exchange_ready_name(&x->names, i, letters);
        if (!ready)
            return -ENOMEM;
        if (fstatat(x->folder_fd, ready, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
            !S_ISREG(st.st_mode) || st.st_uid != own.st_uid)
            return 0;
        bytes_put_le64(&shards->at[i].is, st.st_ino);
        shards->at[i].was = 0;
        *ret_mode = 0200 | (st.st_mode & 0444);
    }
    shards->count = x->names.count;
    return 1;
}

/*
 * 1: the shard's name is taken by a file that may be replaced, *ret_ino; 0: it is free. Any
 * failure that can be foreseen must be found before the record is written.
 */
static int exchange_check_place(const struct shard_exchange *x, uint32_t number, bool overwrite,
                                struct fault *fault, uint64_t *ret_ino)
{
    auto_free char *name = NULL;
    struct stat st, folder;
    if (shard_name(&x->names, number, &name) < 0)
        return -ENOMEM;
    if (fstatat(x->folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fault_set_errno(fault, -errno, name, "can't be examined");
    if (!S_ISREG(st.st_mode))
        return fault_set(fault, -EEXIST, name, FAULT_NO_OFFSET, "is not a regular file");
    if (!overwrite)
        return fault_set(fault, -EEXIST, name, FAULT_NO_OFFSET, "already exists");
    uid_t me = geteuid();
    if (me != 0 && st.st_uid != me && fstat(x->folder_fd, &folder) == 0 &&
        (folder.st_mode & S_ISVTX) && folder.st_uid != me)
        return fault_set_errno(fault, -EPERM, name, "can't be replaced");
    bytes_put_le64(ret_ino, st.st_ino);
    return 1;
}

/* Add the shards that are replaced, and the rest of a larger old set. */
static int exchange_find_old(const struct shard_exchange *x, bool overwrite,
                             struct fault *fault, exchange_shards *shards)
{
    struct exchange_shard extra = {0};
    int r = 0;
    for (uint32_t i = 0; r >= 0 && i < x->names.count; i++)
        r = exchange_check_place(x, i, overwrite, fault, &shards->at[i].was);
    while (r >= 0 && overwrite &&
           (r = exchange_check_place(x, (uint32_t)shards->count, true, fault, &extra.was)) > 0)
        if (shards->count == RECORD_END_MAX || vector_push(shards, extra) < 0)
            return shards->count == RECORD_END_MAX ? -E2BIG : -ENOMEM;
    return r < 0 ? r : 0;
}

/* Write the record, with which the new set counts, and do what it says. */
static int exchange_commit(struct shard_exchange *x, const struct exchange_plan *plan,
                           mode_t mode, bool sync, struct fault *fault)
{
    if (sync)
        output_sync_folder(
            x->folder_fd); /* ready shards must be on disk no later than the record */
    int r = exchange_write(x, plan, mode, sync);
    if (r < 0)
        return fault_set_errno(fault, r, x->record, "can't be written");
    x->committed = true;
    r = exchange_roll_forward(x->folder_fd, plan, x->fd, fault);
    if (r == 0)
        x->committed = false; /* done, so the record may be removed */
    return r;
}

int shard_exchange_run(struct shard_exchange *x, const char *letters, bool overwrite, bool sync,
                       struct fault *fault)
{
    exchange_shards shards = {0};
    mode_t mode = 0600;
    int r = exchange_is_ready(x, letters, &shards, &mode);
    if (r > 0) {
        r = exchange_find_old(x, overwrite, fault, &shards);
        struct exchange_plan plan = {.letters = letters,
                                     .names = x->names,
                                     .end = (uint32_t)shards.count,
                                     .inodes = (const uint8_t *)shards.at};
        if (r == 0)
            r = exchange_commit(x, &plan, mode, sync, fault);
        r = r < 0 ? r : 1;
    }
    vector_free(&shards);
    return r;
}

/* ---- those who open a shard ---- */

/* The record counts: nobody can tell the old set from the new one until it is gone. */
static int exchange_tell(const struct exchange_plan *plan, const char *folder, uid_t owner,
                         struct fault *fault)
{
    char number[16] = "%d";
    if (plan->names.digits > 1)
        snprintf(number, sizeof(number), "%%0%ud", plan->names.digits);
    fault_set(fault, -EBUSY, NULL, FAULT_NO_OFFSET,
              "its set of shards is just being replaced, or that was interrupted");
    fault_advise(fault,
                 "if no pack runs, user %u finishes it by: onepot pack -f --shards %u "
                 "-o '%s%s%s%s' DIRECTORY",
                 (unsigned)owner, plan->names.count, folder, plan->names.before, number,
                 plan->names.after);
    return -EBUSY;
}

/* Another one's record, or one of other files: 1, with a line for a note. */
static int exchange_ignore(const char *record, uid_t owner, bool is_other, struct fault *fault)
{
    fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
              is_other ? "%s beside it is user %u's and not its owner's, and is ignored"
                       : "%s beside it, user %u's, was copied or speaks of other files, and is "
                         "ignored",
              record, (unsigned)owner);
    fault_advise(fault, "if a pack of its set was interrupted, old and new shards are mixed");
    return 1;
}

/*
 * As shard_exchange_check, for one record. `archive_fd` is of `file`, or negative where there
 * is no such file.
 */
static int exchange_look(int folder_fd, const char *record, const char *folder,
                         const char *file, int archive_fd, struct fault *fault)
{
    struct exchange_plan plan;
    struct stat st, own = {.st_uid = geteuid()};
    uint32_t number;
    auto_free char *text = NULL;
    auto_close int fd =
        openat(folder_fd, record, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size == 0)
        return 0;
    if (archive_fd >= 0 && fstat(archive_fd, &own) < 0)
        return 0;
    if (own.st_uid != st.st_uid)
        return exchange_ignore(record, st.st_uid, true, fault);
    int r = exchange_read(fd, record, &text, &plan);
    if (r == -ESTALE)
        return exchange_ignore(record, st.st_uid, false, fault);
    if (r < 0)
        return 0;
    struct shard_names all = plan.names;
    all.count = plan.end;
    if (!shard_names_find(&all, file, strlen(file), &number))
        return 0;
    if (archive_fd >= 0 && own.st_ino != exchange_new_ino(&plan, number) &&
        own.st_ino != exchange_old_ino(&plan, number))
        return exchange_ignore(record, st.st_uid, false, fault);
    return exchange_tell(&plan, folder, st.st_uid, fault);
}

/* ---- archives that are opened ---- */

/* The folder of the path's file; opened unless it is the last one's. */
static int records_enter(struct shard_records *s, const char *path)
{
    size_t len = (size_t)(path_base(path) - path);
    if (s->folder && strlen(s->folder) == len && memcmp(s->folder, path, len) == 0)
        return s->folder_fd;
    shard_records_free(s);
    s->folder = strndup(path, len);
    s->folder_fd = s->folder ? path_open_folder(path) : -ENOMEM;
    return s->folder_fd;
}

/* Is there no such record, and is that known? Else the name is remembered. Takes it over. */
static bool records_lack(struct shard_records *s, char *record)
{
    for (size_t i = 0; i < SHARD_RECORDS_ABSENT; i++)
        if (s->absent[i] && strcmp(s->absent[i], record) == 0) {
            free(record);
            return true;
        }
    struct stat st;
    char **at = &s->absent[s->next++ % SHARD_RECORDS_ABSENT];
    free(*at);
    *at = record;
    return fstatat(s->folder_fd, record, &st, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT;
}

int shard_exchange_check(struct shard_records *s, const char *path, bool is_link,
                         int archive_fd, struct fault *fault)
{
    auto_free char *followed = is_link ? realpath(path, NULL) : NULL;
    const char *from = followed ? followed : path, *file = path_base(from);
    int r = 0;
    for (const char *at = file + strcspn(file, DIGITS); r == 0 && *at;
         at += strcspn(at, DIGITS)) {
        char *record = shard_record_name(file, (size_t)(at - file), at);
        if (!record)
            return -ENOMEM;
        if (records_enter(s, from) < 0) {
            free(record);
            return 0;
        }
        if (!records_lack(s, record)) /* one that does not count is told once */
            r = exchange_look(s->folder_fd, record, s->folder, file, archive_fd, fault);
        at += strspn(at, DIGITS);
    }
    return r;
}

void shard_records_free(struct shard_records *s)
{
    if (s->folder && s->folder_fd >= 0)
        close(s->folder_fd);
    free(s->folder);
    for (size_t i = 0; i < SHARD_RECORDS_ABSENT; i++)
        free(s->absent[i]);
    *s = (struct shard_records){0};
}
