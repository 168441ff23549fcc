/*
 * The sum needs no lock. A claim that wants more writes that to its file first, and then looks
 * at the others once more: of two that grow at once, the one that looks later sees the other's
 * number and gives way. A claim that wants less writes that after it uses less. A file becomes
 * visible only when it is locked, so a file without a lock has lost its process.
 *
 * A lock belongs to an open file, which a forked child has as well. So the file names its
 * process, too. The process id counts if both processes are in the same pid namespace (in
 * containers they may not be).
 *
 * The names end in ".lock", like other locks in the folder that end with their process.
 */
#include "share.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "job.h"
#include "numbers.h"
#include "path.h"
#include "process.h"
#include "runtime.h"
#include "thread.h"
#include "vector.h"

#define JOB_MAX 100
#define FOLDER_NS UINT64_C(5000000000) /* how long to retry while others remove the folder */

/* The content of a claim's file. */
struct claim_record {
    uint64_t using_bytes;
    uint64_t fixed_bytes;    /* 0: a fair part */
    uint64_t most_bytes;     /* limit on the fair part */
    uint64_t pid, namespace; /* its process, and the namespace of that pid */
    uint64_t cpus_key;
};

struct claim {
    char prefix[JOB_MAX + 16], name[RUNTIME_NAME_MAX];
    int folder_fd;
    int fd;
    int watch_fd; /* inotify; -1: not available */
    ino_t ino;
    uint64_t total_bytes;
    struct claim_record record;
    struct claim_record said; /* as the file has it now */
    bool has_said;
    uint64_t part_bytes; /* its limit */
    uint64_t set_bytes;  /* the same, or more if more is still used */
    unsigned processes;
};

/* The content of the others' files. */
struct seen {
    struct claim_others others;
    VECTOR(struct claim_record) records;
};

static void prefix_of(const char *job, char prefix[JOB_MAX + 16])
{
    snprintf(prefix, JOB_MAX + 16, "%.*s.cache-", JOB_MAX, *job ? job : "none");
}

/* Writes only a change: it wakes the others, and us. */
static int write_record(struct claim *claim)
{
    if (claim->has_said && memcmp(&claim->said, &claim->record, sizeof(claim->said)) == 0)
        return 0;
    /* A copy, because gcc at -O3 takes its first field for all of it. */
    const struct claim_record record = claim->record;
    ssize_t n = pwrite(claim->fd, &record, sizeof(record), 0);
    if (n != (ssize_t)sizeof(claim->record))
        return -EIO;
    claim->said = claim->record;
    claim->has_said = true;
    return 0;
}

/* Has the process that made the claim ended? A forked child may still hold the lock. */
static bool is_dead(const struct claim_record *record)
{
    return record->namespace != 0 && record->namespace == process_namespace() &&
           kill((pid_t)record->pid, 0) < 0 && errno == ESRCH;
}

/* Adds a file's record if its process lives; else removes the file. */
static int claims_look_at(int dir, const char *name, ino_t own, struct seen *seen)
{
    struct claim_record record;
    struct stat st;
    auto_close int fd = -1;
    if (registry_open(dir, name, "", O_RDONLY, &fd) < 0 || fstat(fd, &st) < 0 ||
        st.st_ino == own)
        return 0;
    bool is_left = flock(fd, LOCK_SH | LOCK_NB) == 0;
    if (!is_left && pread(fd, &record, sizeof(record), 0) != (ssize_t)sizeof(record))
        return 0;
    if (is_left || is_dead(&record)) {
        unlinkat(dir, name, 0);
        return 0;
    }
    seen->others.count++;
    seen->others.using_bytes += record.using_bytes;
    seen->others.fixed_bytes += record.fixed_bytes;
    seen->others.sharing += record.fixed_bytes == 0;
    return vector_push(&seen->records, record);
}

/* The caller frees the records, also on failure. */
static int claims_look(int folder_fd, const char *prefix, ino_t own, struct seen *ret_seen)
{
    int r = 0;
    *ret_seen = (struct seen){0};
    auto_closedir DIR *dir = path_list(folder_fd);
    if (!dir)
        return -errno;
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        if (strncmp(e->d_name, prefix, strlen(prefix)) == 0)
            r = claims_look_at(dirfd(dir), e->d_name, own, ret_seen);
    return r;
}

/* Makes a file that gets its name only once it is locked and written. */
static int claim_make_file(struct claim *claim, int dir)
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
    unlinkat(dir, claim->name, 0); /* left by an earlier process with both numbers the same */
    return linkat(AT_FDCWD, self, dir, claim->name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

/* Filesystems report a removed folder in different ways, so ask about the folder itself. */
static bool is_removed(int dir)
{
    struct stat st;
    return fstat(dir, &st) == 0 && st.st_nlink == 0;
}

/* -ESTALE: the last process in the folder removed it between our steps. */
static int make_file_in(struct claim *claim, const char *folder)
{
    auto_close int dir = -1;
    int r = runtime_open(folder, true, &dir);
    if (r < 0)
        return r;
    r = claim_make_file(claim, dir);
    if (r < 0 && claim->fd >= 0)
        close(steal_fd(&claim->fd));
    claim->has_said = claim->has_said && r == 0; /* false if the file was closed again */
    if (r < 0)
        return is_removed(dir) ? -ESTALE : r;
    claim->folder_fd = steal_fd(&dir);
    return 0;
}

/* `onepot clean` may remove the folder before the file is in it. */
static int claim_try_folder(struct claim *claim, const char *folder)
{
    uint64_t end = now_ns() + FOLDER_NS;
    int r;
    do {
        r = make_file_in(claim, folder);
    } while (r == -ESTALE && now_ns() < end);
    return r;
}

/* Watches for closes, too: a killed process closes its file. */
static void watch_others(struct claim *claim)
{
    uint32_t events = IN_CREATE | IN_DELETE | IN_MODIFY | IN_CLOSE_WRITE;
    char folder[64];
    snprintf(folder, sizeof(folder), "/proc/self/fd/%d", claim->folder_fd);
    claim->watch_fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (claim->watch_fd >= 0 && inotify_add_watch(claim->watch_fd, folder, events) < 0)
        close(steal_fd(&claim->watch_fd));
}

/*
 * Readable (poll) when it may be time for claim_update, which makes it unreadable again. -1 if
 * the system does not provide one: then call claim_update now and then. The claim owns it.
 */
static int claim_watch_fd(const struct claim *claim)
{
    return claim->watch_fd;
}

/* The events themselves do not matter: all files are read anyway. */
static void drain_watch(const struct claim *claim)
{
    char events[4096];
    while (claim->watch_fd >= 0 && read(claim->watch_fd, events, sizeof(events)) > 0)
        ;
}

int claim_new(const struct claim_options *options, struct claim **ret_claim)
{
    char folders[RUNTIME_FOLDERS_MAX][PATH_MAX];
    size_t count = runtime_folders(folders);
    struct claim *claim = calloc(1, sizeof(*claim));
    int r = -ENOENT;
    if (!claim)
        return -ENOMEM;
    struct job job;
    if (!options->job)
        job_detect(&job);
    prefix_of(options->job ? options->job : job.id, claim->prefix);
    claim->fd = claim->folder_fd = -1;
    claim->total_bytes = options->total_bytes;
    claim->record = (struct claim_record){
        .using_bytes = options->fixed_bytes,
        .fixed_bytes = options->fixed_bytes,
        .most_bytes = options->most_bytes ? options->most_bytes : UINT64_MAX,
        .pid = (uint64_t)getpid(),
        .namespace = process_namespace(),
        .cpus_key = options->cpus_key,
    };
    for (size_t i = 0; i < count && r < 0; i++)
        r = claim_try_folder(claim, folders[i]);
    if (r < 0) {
        free(claim);
        return r;
    }
    claim->watch_fd = -1;
    if (!options->unwatched)
        watch_others(claim);
    *ret_claim = claim;
    return 0;
}

void claim_free(struct claim *claim)
{
    if (!claim)
        return;
    unlinkat(claim->folder_fd, claim->name, 0);
    close(claim->folder_fd);
    if (claim->watch_fd >= 0)
        close(claim->watch_fd);
    close(claim->fd);
    free(claim);
}

static uint64_t claims_minus(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static int by_most(const void *a, const void *b)
{
    const struct claim_record *x = a, *y = b;
    return x->most_bytes < y->most_bytes ? -1 : x->most_bytes > y->most_bytes;
}

/*
 * Everybody gets the same, except claims that want less: the others share what those leave. So
 * the claims that want least come first; this sorts `seen`.
 */
static uint64_t fair_part(const struct claim *claim, struct seen *seen)
{
    uint64_t rest = claims_minus(claim->total_bytes, seen->others.fixed_bytes);
    uint64_t own = claim->record.most_bytes, sharing = seen->others.sharing + 1;
    if (seen->records.count > 1)
        qsort(seen->records.at, seen->records.count, sizeof(*seen->records.at), by_most);
    for (size_t i = 0; i < seen->records.count && seen->records.at[i].most_bytes < own; i++) {
        const struct claim_record *other = &seen->records.at[i];
        if (other->fixed_bytes > 0)
            continue;
        if (other->most_bytes >= rest / sharing)
            break;
        rest -= other->most_bytes;
        sharing--;
    }
    return min_u64(own, rest / sharing);
}

/* A fair part, limited to what nobody uses yet. */
static uint64_t part_of(const struct claim *claim, struct seen *seen)
{
    uint64_t part = fair_part(claim, seen);
    uint64_t left = claims_minus(claim->total_bytes, seen->others.using_bytes);
    return max_u64(min_u64(part, left), CLAIM_LEAST_BYTES);
}

/* Several claims of one process count once, and our own process not at all. */
static unsigned count_processes(const struct claim_record *own, const struct seen *seen)
{
    unsigned count = 0;
    for (size_t i = 0; i < seen->records.count; i++) {
        const struct claim_record *r = &seen->records.at[i];
        bool known = own->cpus_key == 0 || r->cpus_key != own->cpus_key ||
                     (r->pid == own->pid && r->namespace == own->namespace);
        for (size_t k = 0; k < i && !known; k++)
            known = seen->records.at[k].cpus_key == r->cpus_key &&
                    seen->records.at[k].pid == r->pid &&
                    seen->records.at[k].namespace == r->namespace;
        count += !known;
    }
    return count;
}

/* Is the change too small to be worth the blocks that it drops? */
static bool is_like(uint64_t a, uint64_t b)
{
    return a == b || (a > b ? a - b : b - a) < b / 16;
}

/* Finds what this claim may use. If that is more than before, the others are informed first. */
static int find_part(struct claim *claim, uint64_t *ret_bytes)
{
    struct claim_record *record = &claim->record;
    uint64_t before = claim->part_bytes, wanted = record->fixed_bytes;
    struct seen seen;
    int r = claims_look(claim->folder_fd, claim->prefix, claim->ino, &seen);
    if (r == 0) {
        claim->processes = count_processes(record, &seen);
        if (record->fixed_bytes == 0)
            wanted = part_of(claim, &seen);
        if (record->fixed_bytes == 0 && is_like(wanted, before) &&
            seen.others.using_bytes + before <= claim->total_bytes)
            wanted = before;
    }
    vector_free(&seen.records);
    if (r == 0 && record->fixed_bytes == 0 && wanted > claim->set_bytes) {
        /* Write first, then look: of two that grow at once, at least one sees the other. */
        record->using_bytes = wanted;
        r = write_record(claim);
        if (r == 0)
            r = claims_look(claim->folder_fd, claim->prefix, claim->ino, &seen);
        if (r == 0)
            wanted = part_of(claim, &seen);
        vector_free(&seen.records);
    }
    if (r == 0)
        *ret_bytes = wanted;
    return r;
}

uint64_t claim_update(struct claim *claim, uint64_t most_bytes, claim_set *set, void *ctx)
{
    if (most_bytes)
        claim->record.most_bytes = most_bytes;
    drain_watch(claim);
    find_part(claim, &claim->part_bytes); /* on failure part_bytes stays */
    claim->set_bytes = set(ctx, claim->part_bytes, claim->record.most_bytes, claim->processes);
    claim->record.using_bytes = claim->set_bytes;
    write_record(claim);
    return claim->set_bytes;
}

struct claim_others claims_of_job(const char *job)
{
    char folders[RUNTIME_FOLDERS_MAX][PATH_MAX], prefix[JOB_MAX + 16];
    size_t count = runtime_folders(folders);
    struct claim_others others = {0};
    prefix_of(job, prefix);
    for (size_t i = 0; i < count && others.count == 0; i++) {
        auto_close int fd = -1;
        struct seen seen = {0};
        if (runtime_open(folders[i], false, &fd) == 0 && claims_look(fd, prefix, 0, &seen) == 0)
            others = seen.others;
        vector_free(&seen.records);
    }
    return others;
}

/* ---- a claim with a thread that looks after it ---- */

/*
 * The claim belongs to the thread. Other threads leave a number and ring a bell. So they may do
 * that while they hold locks that `told` takes as well.
 */

#define LOOK_EVERY_MS 500        /* without a watch on the others */
#define SETTLE_MS 50             /* a process that comes or goes makes several changes */
#define STACK_BYTES (512u << 10) /* a loader frees device memory in `told` */

struct share {
    claim_set *told;
    void *ctx;
    struct claim *claim;
    pthread_t thread;
    int bell_fd; /* eventfd */
    _Atomic bool end;
    _Atomic uint64_t most_bytes;
};

static void share_look_now(struct share *share)
{
    claim_update(share->claim, atomic_load(&share->most_bytes), share->told, share->ctx);
}

/* Sleeps for `timeout_ms`, or until the bell rings, and then returns true. */
static bool wait_for_bell(struct share *share, int timeout_ms)
{
    struct pollfd p = {.fd = share->bell_fd, .events = POLLIN};
    eventfd_t rings;
    return poll(&p, 1, timeout_ms) > 0 && eventfd_read(share->bell_fd, &rings) == 0;
}

/* Sleeps until something has changed. */
static void wait_for_change(struct share *share)
{
    int watch_fd = claim_watch_fd(share->claim);
    struct pollfd p[2] = {{.fd = share->bell_fd, .events = POLLIN},
                          {.fd = watch_fd, .events = POLLIN}};

    if (poll(p, 2, watch_fd < 0 ? LOOK_EVERY_MS : -1) < 0)
        wait_for_bell(share, LOOK_EVERY_MS);
    else if (p[0].revents)
        wait_for_bell(share, 0);
    else if (watch_fd >= 0)
        wait_for_bell(share, SETTLE_MS);
}

static void *share_look_at_others(void *arg)
{
    struct share *share = arg;

    while (!atomic_load(&share->end)) {
        wait_for_change(share);
        if (!atomic_load(&share->end))
            share_look_now(share);
    }
    return NULL;
}

int share_new(const struct claim_options *claim, claim_set *told, void *ctx,
              struct share **ret_share)
{
    struct share *share = calloc(1, sizeof(*share));

    if (!share)
        return -ENOMEM;
    share->told = told;
    share->ctx = ctx;
    atomic_init(&share->most_bytes, claim->most_bytes ? claim->most_bytes : UINT64_MAX);
    share->bell_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int r = share->bell_fd < 0 ? -errno : claim_new(claim, &share->claim);
    if (r == 0) {
        share_look_now(share);
        r = thread_start(&share->thread, STACK_BYTES, share_look_at_others, share);
    }
    if (r < 0) {
        claim_free(share->claim);
        if (share->bell_fd >= 0)
            close(share->bell_fd);
        free(share);
        return r;
    }
    *ret_share = share;
    return 0;
}

void share_free(struct share *share)
{
    if (!share)
        return;
    atomic_store(&share->end, true);
    eventfd_write(share->bell_fd, 1);
    pthread_join(share->thread, NULL);
    claim_free(share->claim);
    close(share->bell_fd);
    free(share);
}

void share_want(struct share *share, uint64_t most_bytes)
{
    if (most_bytes)
        atomic_store(&share->most_bytes, most_bytes);
    eventfd_write(share->bell_fd, 1);
}
