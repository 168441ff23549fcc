/*
 * A copy that another program put on this node, sbcast for one, becomes the bytes of a stage.
 *
 * It is opened once, without following a link, and judged by its descriptor: whatever happens
 * to its name afterwards does not matter. Only its owner can change it, and the owner is this
 * user or root. A lease (fcntl(2)) tells whether anybody has it open for writing, and whether
 * anybody tried since.
 *
 * If it lies on the filesystem of a place for stages, it is moved there: then no later write to
 * its old name can change bytes that are served, and memory holds it once. It is copied, and
 * stays as it is, where moving could take away something else: if the file has other names, if
 * it may be the archive itself on the lower side of another filesystem (then both have one time
 * of change), or if it is root's.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "file_id.h"
#include "path.h"
#include "source_slice.h"
#include "stage_private.h"
#include "write_at.h"
#include "syscalls.h"

struct stage_given {
    int fd, folder_fd;
    char *path;
    struct stat st; /* when it was opened */
    uint64_t start; /* of the archive's bytes in it */
    bool has_lease;
    bool is_movable;
    _Atomic bool is_lost; /* somebody writes to it */
};

static const char *given_name(const struct stage_given *given)
{
    return path_base(given->path);
}

void stage_given_free(struct stage_given *given)
{
    if (!given)
        return;
    cleanup_closep(&given->fd);
    cleanup_closep(&given->folder_fd);
    free(given->path);
    free(given);
}

/* ---- is it the archive's? ---- */

static int given_refuse(struct fault *fault, const struct stage_given *given, int err,
                        const char *why, const char *advice)
{
    fault_set_advised(fault, err, NULL, FAULT_NO_OFFSET, advice, "can't be adopted: %s", why);
    fault_set_file(fault, given->path);
    return err;
}

static int given_open(struct stage_given *given, struct fault *fault)
{
    int r = given->folder_fd = path_open_folder(given->path);
    if (r >= 0) {
        given->fd = openat(given->folder_fd, given_name(given),
                           O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        r = given->fd < 0 || fstat(given->fd, &given->st) < 0 ? -errno : 0;
    }
    if (r == -ELOOP)
        return given_refuse(fault, given, r, "it is a symbolic link", "");
    return r < 0 ? given_refuse(fault, given, r, fault_errno(r), "") : 0;
}

/* Is it a file of this node that only this user or root can change? */
static int given_check_owner(const struct stage_given *given, struct fault *fault)
{
    const struct stat *st = &given->st;
    if (!S_ISREG(st->st_mode))
        return given_refuse(fault, given, -EINVAL, "it is not a regular file", "");
    if (!storage_of(given->fd).is_local)
        return given_refuse(fault, given, -ENOTSUP, "it does not lie on this node", "");
    if (st->st_uid != geteuid() && st->st_uid != 0)
        return given_refuse(fault, given, -EPERM, "it is another user's", "");
    if (st->st_mode & 022)
        return given_refuse(fault, given, -EPERM, "it may be written by others",
                            "close it to them ('chmod go-w'), if none did");
    return 0;
}

static int given_check_file(const struct stage_given *given, const struct source *source,
                            struct fault *fault)
{
    struct source_identity id;
    source_identity(source, &id);
    if (id.dev == given->st.st_dev && id.ino == given->st.st_ino)
        return given_refuse(fault, given, -EINVAL, "it is the archive itself", "");
    if (id.size_bytes != (uint64_t)given->st.st_size)
        return given_refuse(fault, given, -ESTALE, "it has another size than the archive", "");
    if (id.mtime_sec != given->st.st_mtim.tv_sec)
        return given_refuse(fault, given, -ESTALE, "it has another time than the archive",
                            "copy it with its time ('sbcast -p', 'cp -p'); if it is "
                            "surely of this archive, 'touch -r' the archive");
    return 0;
}

/*
 * No open file may write to it, and none can be opened without our notice. The signal that
 * would tell us is one that is ignored.
 */
static int given_lease(struct stage_given *given, struct fault *fault)
{
    if (fcntl(given->fd, F_SETSIG, SIGURG) < 0 || given->st.st_uid != geteuid())
        return 0;
    given->has_lease = fcntl(given->fd, F_SETLEASE, F_RDLCK) == 0;
    return !given->has_lease && errno == EAGAIN
               ? given_refuse(fault, given, -EBUSY, "it is still being written",
                              "wait until it is complete")
               : 0;
}

/* Root's files, and those on filesystems without leases, show a write by their times alone. */
static bool given_is_untouched(const struct stage_given *given)
{
    struct stat now;
    if (given->has_lease && fcntl(given->fd, F_GETLEASE) != F_RDLCK)
        return false;
    return fstat(given->fd, &now) == 0 && now.st_size == given->st.st_size &&
           now.st_mtim.tv_sec == given->st.st_mtim.tv_sec &&
           now.st_mtim.tv_nsec == given->st.st_mtim.tv_nsec;
}

static int given_check_samples(struct stage_given *given, const struct source *source,
                               struct fault *fault)
{
    struct source *copy;
    uint64_t wanted = 0, found = 0;
    int fd = fcntl(given->fd, F_DUPFD_CLOEXEC, 3);
    int r = fd < 0 ? -errno : source_from_fd(fd, given->path, &copy);
    if (r < 0)
        return given_refuse(fault, given, r, fault_errno(r), "");
    r = given->start == 0 && source_size(copy) == source_size(source)
            ? 0
            : source_slice(&copy, given->start, source_size(source));
    if (r == 0)
        r = source_fingerprint(copy, &found);
    source_close(copy);
    if (r < 0)
        return given_refuse(fault, given, r, fault_errno(r), "");
    r = source_fingerprint(source, &wanted);
    if (r < 0)
        return fault_set_read(fault, r, NULL, FAULT_NO_OFFSET);
    if (found != wanted)
        return given_refuse(fault, given, -ESTALE, "it has other bytes than the archive", "");
    if (!given_is_untouched(given))
        return given_refuse(fault, given, -EBUSY, "it is being written",
                            "wait until it is complete");
    return 0;
}

static bool given_may_move(const struct stage_given *given, const struct source *source)
{
    struct source_identity id;
    source_identity(source, &id);
    return given->has_lease && given->st.st_nlink == 1 && given->start == 0 &&
           source_size(source) == id.size_bytes &&
           (id.ctime_sec != given->st.st_ctim.tv_sec ||
            id.ctime_nsec != given->st.st_ctim.tv_nsec);
}

static int given_check(struct stage_given *given, const struct source *source,
                       struct fault *fault)
{
    int r = given_open(given, fault);
    if (r == 0)
        r = given_check_owner(given, fault);
    if (r == 0)
        r = given_check_file(given, source, fault);
    if (r == 0)
        r = given_lease(given, fault);
    if (r == 0)
        r = given_check_samples(given, source, fault);
    given->is_movable = r == 0 && given_may_move(given, source);
    return r;
}

int stage_given_new(const char *path, const struct source *source, struct fault *fault,
                    struct stage_given **ret_given)
{
    if (source_member(source, 0) != source)
        return fault_set(fault, -EINVAL, NULL, FAULT_NO_OFFSET,
                         "consists of several files: there is no one copy to adopt");
    struct stage_given *given = calloc(1, sizeof(*given));
    char *copied = given ? strdup(path) : NULL;
    if (!copied) {
        free(given);
        return -ENOMEM;
    }
    *given = (struct stage_given){
        .fd = -1, .folder_fd = -1, .path = copied, .start = source_start(source)};
    int r = given_check(given, source, fault);
    if (r < 0)
        stage_given_free(given);
    else
        *ret_given = given;
    return r;
}

/* ---- moving it ---- */

/* Open the moved file for the stage. -ESTALE: another file had the name by then. */
static int given_reopen(struct stage *stage, const struct registry *folder)
{
    struct stage_given *given = stage->given;
    char file[STAGE_NAME_MAX + 8];
    snprintf(file, sizeof(file), "%s.copy", stage->name);
    if (file_is_named(folder->fd, file, given->fd, NULL) != 1 || !given_is_untouched(given))
        return -ESTALE;
    if (fchmod(given->fd, 0600) < 0 || fcntl(given->fd, F_SETLEASE, F_UNLCK) < 0)
        return -errno;
    given->has_lease = false;
    return registry_open(folder->fd, stage->name, ".copy", O_RDWR, &stage->copy_fd);
}

/* Under the folder's lock. If it fails, the file has its name and mode again. */
static int given_move(struct stage *stage, const struct registry *folder)
{
    struct stage_given *given = stage->given;
    char file[STAGE_NAME_MAX + 8];
    snprintf(file, sizeof(file), "%s.copy", stage->name);
    int r = syscall_rename_new(given->folder_fd, given_name(given), folder->fd, file);
    if (r < 0)
        return r;
    r = given_reopen(stage, folder);
    if (r == 0)
        r = stage_adopt(stage, folder);
    if (r == 0) {
        stage->was_moved = true;
        return 0;
    }
    stage_release(stage);
    registry_unlink(folder->fd, stage->name, ".state");
    fchmod(given->fd, given->st.st_mode & 07777);
    syscall_rename_new(folder->fd, file, given->folder_fd, given_name(given));
    given->has_lease = fcntl(given->fd, F_SETLEASE, F_RDLCK) == 0;
    return r;
}

static int given_move_to(struct stage *stage, const char *place)
{
    struct registry folder;
    struct stat st;
    snprintf(stage->place, sizeof(stage->place), "%s", place);
    if (stat(place, &st) < 0 || st.st_dev != stage->given->st.st_dev)
        return -EXDEV;
    int r = stage_folder_lock(place, true, &folder);
    if (r < 0)
        return r;
    strcpy(stage->folder, folder.path);
    stage_sweep_folder(&folder);
    r = stage_use(stage, &folder);
    if (r == -ENOENT)
        r = given_move(stage, &folder);
    registry_remove(&folder);
    return r;
}

int stage_given_take(struct stage *stage, const struct stage_places *places)
{
    int r = -ENOENT;
    for (size_t i = 0; r < 0 && stage->given->is_movable && i < places->count; i++)
        r = given_move_to(stage, places->path[i]);
    return r;
}

/* ---- copying it ---- */

int stage_given_read(struct stage *stage, void *buf, size_t len, uint64_t offset)
{
    struct stage_given *given = stage->given;
    if (!given || atomic_load(&given->is_lost))
        return -ENOENT;
    int r = read_at(given->fd, buf, len, given->start + offset);
    if (r == 0 && given_is_untouched(given))
        return 0;
    if (atomic_exchange(&given->is_lost, true))
        return -ESTALE;
    fcntl(given->fd, F_SETLEASE, F_UNLCK); /* the writer waits for that */
    stage_say(stage, "%s %s: the rest is copied from the archive", given->path,
              r < 0 ? "can't be read" : "is being written");
    return -ESTALE;
}
