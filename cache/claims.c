/*
 * Why no lock is needed for the sum. Who wants more says so in its file first, and then looks
 * at the others once more: of two that grow at once, the one that looks later sees what the
 * other has said, and gives way. Who wants less says so after it has less. A file becomes
 * visible only when it is locked, so that one without a lock has lost its process.
 *
 * The names end in ".lock", as other locks of the folder do that go with their process.
 */
#include "claims.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "runtime.h"

#define JOB_MAX 100

/* What a claim's file holds. */
struct claim_record {
    uint64_t using_bytes;
    uint64_t fixed_bytes; /* 0: a fair part */
};

struct claim {
    char folder[PATH_MAX], prefix[JOB_MAX + 16], name[RUNTIME_NAME_MAX];
    int fd;
    int watch_fd; /* inotify; -1: not to be had */
    ino_t ino;
    uint64_t total_bytes;
    struct claim_record record;
    struct claim_record said; /* what the file holds */
    bool has_said;
    uint64_t set_bytes; /* what it was told to use */
};

static void prefix_of(const char *job, char prefix[JOB_MAX + 16])
{
    snprintf(prefix, JOB_MAX + 16, "%.*s.cache-", JOB_MAX, *job ? job : "none");
}

/* Only what is new: others are woken by it, and so are we. */
static int write_record(struct claim *claim)
{
    if (claim->has_said && memcmp(&claim->said, &claim->record, sizeof(claim->said)) == 0)
        return 0;
    ssize_t n = pwrite(claim->fd, &claim->record, sizeof(claim->record), 0);
    if (n != (ssize_t)sizeof(claim->record))
        return -EIO;
    claim->said = claim->record;
    claim->has_said = true;
    return 0;
}

/* Add what a file says, if its process lives; else remove it. */
static void look_at(int dir, const char *name, ino_t own, struct claim_others *others)
{
    struct claim_record record;
    struct stat st;
    auto_close int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_ino == own)
        return;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        unlinkat(dir, name, 0);
        return;
    }
    if (pread(fd, &record, sizeof(record), 0) != (ssize_t)sizeof(record))
        return;
    others->count++;
    others->using_bytes += record.using_bytes;
    others->fixed_bytes += record.fixed_bytes;
    others->sharing += record.fixed_bytes == 0;
}

static int look(const char *folder, const char *prefix, ino_t own,
                struct claim_others *ret_others)
{
    struct claim_others others = {0};
    int fd;
    int r = runtime_open(folder, false, &fd);
    if (r < 0)
        return r;
    DIR *dir = fdopendir(fd);
    if (!dir) {
        close(fd);
        return -ENOMEM;
    }
    for (struct dirent *e; (e = readdir(dir));)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0)
            look_at(dirfd(dir), e->d_name, own, &others);
    closedir(dir);
    *ret_others = others;
    return 0;
}

/* A file that has its name only once it is locked and written. */
static int make_file(struct claim *claim, int dir)
{
    char self[64];
    struct stat st;

    claim->fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (claim->fd < 0)
        return -errno;
    if (flock(claim->fd, LOCK_EX | LOCK_NB) < 0 || fstat(claim->fd, &st) < 0)
        return -errno;
    int r = write_record(claim);
    if (r < 0)
        return r;
    claim->ino = st.st_ino;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", claim->fd);
    snprintf(claim->name, sizeof(claim->name), "%s%d-%llu.lock", claim->prefix, (int)getpid(),
             (unsigned long long)st.st_ino);
    unlinkat(dir, claim->name, 0); /* of a process before us that had both numbers */
    return linkat(AT_FDCWD, self, dir, claim->name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

static int try_folder(struct claim *claim, const char *folder)
{
    auto_close int dir = -1;
    int r = runtime_open(folder, true, &dir);
    if (r < 0)
        return r;
    snprintf(claim->folder, sizeof(claim->folder), "%s", folder);
    r = make_file(claim, dir);
    if (r < 0 && claim->fd >= 0) {
        close(claim->fd);
        claim->fd = -1;
    }
    if (r < 0)
        rmdir(folder); /* if it is empty */
    return r;
}

/* A process that is killed closes its file, too. */
static void watch_others(struct claim *claim)
{
    uint32_t events = IN_CREATE | IN_DELETE | IN_MODIFY | IN_CLOSE_WRITE;
    claim->watch_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (claim->watch_fd >= 0 && inotify_add_watch(claim->watch_fd, claim->folder, events) < 0)
        close(steal_fd(&claim->watch_fd));
}

int claim_watch_fd(const struct claim *claim)
{
    return claim->watch_fd;
}

/* What has changed is looked up anyway. */
static void drain_watch(const struct claim *claim)
{
    char events[4096];
    while (claim->watch_fd >= 0 && read(claim->watch_fd, events, sizeof(events)) > 0)
        ;
}

int claim_new(const char *job, uint64_t total_bytes, uint64_t fixed_bytes,
              struct claim **ret_claim)
{
    char folders[RUNTIME_FOLDERS_MAX][PATH_MAX];
    size_t count = runtime_folders(folders);
    struct claim *claim = calloc(1, sizeof(*claim));
    int r = -ENOENT;
    if (!claim)
        return -ENOMEM;
    prefix_of(job, claim->prefix);
    claim->fd = -1;
    claim->total_bytes = total_bytes;
    claim->record = (struct claim_record){fixed_bytes, fixed_bytes};
    for (size_t i = 0; i < count && r < 0; i++)
        r = try_folder(claim, folders[i]);
    if (r < 0) {
        free(claim);
        return r;
    }
    watch_others(claim);
    *ret_claim = claim;
    return 0;
}

void claim_free(struct claim *claim)
{
    char path[PATH_MAX + RUNTIME_NAME_MAX];
    if (!claim)
        return;
    snprintf(path, sizeof(path), "%s/%s", claim->folder, claim->name);
    unlink(path);
    rmdir(claim->folder); /* if that was all */
    if (claim->watch_fd >= 0)
        close(claim->watch_fd);
    close(claim->fd);
    free(claim);
}

static uint64_t at_least(uint64_t bytes)
{
    return bytes > CLAIM_LEAST_BYTES ? bytes : CLAIM_LEAST_BYTES;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

/* A fair part of what those with fixed bytes leave, and no more than nobody uses yet. */
static uint64_t part_of(const struct claim *claim, const struct claim_others *others)
{
    uint64_t part = minus(claim->total_bytes, others->fixed_bytes) / (others->sharing + 1);
    uint64_t left = minus(claim->total_bytes, others->using_bytes);
    return at_least(part < left ? part : left);
}

/* Small changes are not worth what they drop. */
static bool is_like(uint64_t a, uint64_t b)
{
    return a == b || (a > b ? a - b : b - a) < b / 16;
}

uint64_t claim_update(struct claim *claim, void (*set)(void *ctx, uint64_t bytes), void *ctx)
{
    struct claim_record *record = &claim->record;
    struct claim_others others;
    uint64_t before = claim->set_bytes;
    drain_watch(claim);
    if (record->fixed_bytes == 0) {
        if (look(claim->folder, claim->prefix, claim->ino, &others) < 0)
            return before;
        uint64_t wanted = part_of(claim, &others);
        if (is_like(wanted, before) && others.using_bytes + before <= claim->total_bytes)
            return before;
        if (wanted > before) {
            /* Said first; who says so at the same time is seen now, or sees it. */
            record->using_bytes = wanted;
            if (write_record(claim) < 0 ||
                look(claim->folder, claim->prefix, claim->ino, &others) < 0)
                return before;
            wanted = part_of(claim, &others);
        }
        record->using_bytes = wanted;
    }
    if (record->using_bytes != before)
        set(ctx, record->using_bytes);
    claim->set_bytes = record->using_bytes;
    write_record(claim);
    return claim->set_bytes;
}

int claims_of_job(const char *job, struct claim_others *ret_others)
{
    char folders[RUNTIME_FOLDERS_MAX][PATH_MAX], prefix[JOB_MAX + 16];
    size_t count = runtime_folders(folders);
    *ret_others = (struct claim_others){0};
    prefix_of(job, prefix);
    for (size_t i = 0; i < count; i++)
        if (look(folders[i], prefix, 0, ret_others) == 0 && ret_others->count > 0)
            return 0;
    return 0;
}
