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
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "file_id.h"
#include "path.h"
#include "process.h"
#include "source.h"
#include "stripes.h"
#include "syscalls.h"

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

static int output_new(bool overwrite, mode_t mode, struct output **ret_output)
{
    struct output *output = malloc(sizeof(*output));
    if (!output)
        return -ENOMEM;
    *output = (struct output){.fd = -1, .folder_fd = -1, .overwrite = overwrite, .mode = mode};
    *ret_output = output;
    return 0;
}

int output_open(const char *path, bool overwrite, unsigned stripes, struct fault *fault,
                struct output **ret_output)
{
    struct output *output;
    int r = output_new(overwrite, 0666, &output);
    if (r < 0)
        return r;
    output->stripes = stripes;
    r = output_open_folder(output, path, fault);
    if (r == 0)
        r = output_check_existing(output, fault);
    if (r == 0)
        r = output_create_partial(output, fault);
    if (r < 0)
        output_release(output);
    else
        *ret_output = output;
    return r;
}

int output_open_own(const char *path, struct output **ret_output)
{
    struct output *output;
    int r = output_new(true, 0600, &output);
    if (r < 0)
        return r;
    r = output_open_named(output, path, NULL);
    if (r == 0) {
        leftovers_remove(output->folder_fd,
                         &(struct leftovers){.match = output_is_leftover, .match_ctx = output});
        r = output_create_partial(output, NULL);
    }
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
void output_sync_folder(int folder_fd)
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
