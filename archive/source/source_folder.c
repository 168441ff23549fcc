/*
 * Files of a folder, opened as they are read.
 *
 * The state of a file is one word, its descriptor and how many reads use it, so there is no
 * lock that a forked child could inherit. The last files that were opened are in a ring; one
 * that drops out of it is closed, or is closed by the last read that uses it.
 */
#include "source_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cleanup.h"
#include "numbers.h"
#include "path.h"
#include "source_concat.h"
#include "source_ops.h"
#include "source_retry.h"

enum {
    OPEN_SHARE = 4, /* of the descriptors that the process may have */
    OPEN_MOST = 4096,
};

#define STATE_LEAVES (UINT64_C(1) << 63) /* it is no longer in the ring */
#define STATE_USERS UINT64_C(0xffffffff)

struct folder_file;

struct folder {
    int fd;
    struct storage storage;
    _Atomic bool no_cached_reads; /* the filesystem lacks RWF_NOWAIT */
    _Atomic bool at_random;
    _Atomic size_t files; /* that are not closed yet */
    size_t ring_count;
    _Atomic size_t ring_next;
    struct folder_file *_Atomic ring[];
};

struct folder_file {
    struct source source;
    struct folder *folder;
    const char *path;        /* the part of source.name below the folder */
    _Atomic uint64_t state;  /* descriptor + 1 << 32 | users; 0: closed */
    _Atomic bool is_changed; /* and stays so */
};

/* Its members that change are atomic. */
static struct folder_file *folder_file_of(const struct source *source)
{
    return (struct folder_file *)(uintptr_t)source;
}

/* ---- descriptors ---- */

static int state_fd(uint64_t state)
{
    return (int)((state & ~STATE_LEAVES) >> 32) - 1;
}

static void folder_file_drop(struct folder_file *file)
{
    uint64_t state = atomic_load(&file->state), next;
    do {
        if (state == 0)
            return;
        next = state & STATE_USERS ? state | STATE_LEAVES : 0;
    } while (!atomic_compare_exchange_weak(&file->state, &state, next));
    if (next == 0)
        close(state_fd(state));
}

static void folder_file_keep(struct folder_file *file)
{
    struct folder *folder = file->folder;
    size_t at = atomic_fetch_add(&folder->ring_next, 1) % folder->ring_count;
    struct folder_file *oldest = atomic_exchange(&folder->ring[at], file);
    if (oldest && oldest != file)
        folder_file_drop(oldest);
}

/* The process has no descriptor left: close the ones no read uses. False: there are none. */
static bool folder_give_back(struct folder *folder)
{
    bool had_some = false;
    for (size_t i = 0; i < folder->ring_count; i++) {
        struct folder_file *file = atomic_exchange(&folder->ring[i], NULL);
        if (file)
            folder_file_drop(file);
        had_some |= file != NULL;
    }
    return had_some;
}

static int folder_file_changed(struct folder_file *file)
{
    atomic_store(&file->is_changed, true);
    return -EREMCHG;
}

/* Is the open file the one that was listed, and as it was then? */
static int folder_file_check(struct folder_file *file, int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    const struct source_identity now = source_identity_of(&st);
    return S_ISREG(st.st_mode) && source_identity_equal(&now, &file->source.identity)
               ? 0
               : folder_file_changed(file);
}

static int folder_file_open(struct folder_file *file)
{
    struct folder *folder = file->folder;
    auto_close int fd = -1;
    do /* O_NONBLOCK: a FIFO may have its name by now */
        fd = path_open_below(folder->fd, file->path,
                             O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    while ((fd == -EMFILE || fd == -ENFILE) && folder_give_back(folder));
    if (fd == -EMFILE || fd == -ENFILE)
        return -EAGAIN; /* others close theirs */
    if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP || fd == -ENXIO)
        return folder_file_changed(file);
    if (fd < 0)
        return fd;
    int r = folder_file_check(file, fd);
    if (r < 0)
        return r;
    fcntl(fd, F_SETFL, O_RDONLY);
    if (atomic_load(&folder->at_random))
        posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    if (!folder->storage.is_local)
        source_add_requests((struct source_requests){1, 0});
    return steal_fd(&fd);
}

/* The descriptor for a read, until folder_file_put; or -errno. */
static int folder_file_take(struct folder_file *file)
{
    uint64_t state = atomic_load(&file->state);
    if (atomic_load_explicit(&file->is_changed, memory_order_relaxed))
        return -EREMCHG;
    for (;;) {
        while (state)
            if (atomic_compare_exchange_weak(&file->state, &state, state + 1))
                return state_fd(state);
        int fd = folder_file_open(file);
        if (fd < 0)
            return fd;
        if (atomic_compare_exchange_strong(&file->state, &state,
                                           (fd + UINT64_C(1)) << 32 | 1)) {
            folder_file_keep(file);
            return fd;
        }
        close(fd); /* another thread opened it, too */
    }
}

static void folder_file_put(struct folder_file *file)
{
    uint64_t state = atomic_fetch_sub(&file->state, 1) - 1;
    while ((state & STATE_USERS) == 0 && state & STATE_LEAVES)
        if (atomic_compare_exchange_weak(&file->state, &state, 0)) {
            close(state_fd(state));
            return;
        }
}

/* ---- operations ---- */

static int folder_file_read_fd(const struct folder_file *file, int fd,
                               struct source_cursor *cursor)
{
    while (cursor->count > 0) {
        ssize_t n = preadv(fd, cursor->iov, cursor->count, (off_t)cursor->offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (!file->folder->storage.is_local)
            source_add_requests((struct source_requests){1, n > 0 ? (uint64_t)n : 0});
        if (n <= 0)
            return n < 0 ? -errno : -ENODATA;
        source_cursor_step(cursor, (size_t)n);
    }
    return 0;
}

/* Bytes of a file that was changed meanwhile may be of both: they count only if it was not. */
static int folder_file_read(const struct source *source, struct source_cursor *cursor)
{
    struct folder_file *file = folder_file_of(source);
    int fd = folder_file_take(file);
    if (fd < 0)
        return fd;
    int r = folder_file_read_fd(file, fd, cursor);
    if (r == 0 || r == -ENODATA) {
        int checked = folder_file_check(file, fd);
        r = checked < 0 ? checked : r;
    }
    folder_file_put(file);
    if (r < 0) /* a stale handle stays stale */
        folder_file_drop(file);
    return r;
}

/*
 * To look at a distant file may wait, and so does opening one. Errors are left to the read that
 * follows, which reports them.
 */
static int folder_file_read_cached(const struct source *source, void *buf, size_t len,
                                   uint64_t offset)
{
    struct folder_file *file = folder_file_of(source);
    struct folder *folder = file->folder;
    struct iovec iov = {buf, len};
    struct source_cursor cursor = {&iov, len > 0, offset};
    if (folder->storage.is_memory)
        return folder_file_read(source, &cursor) < 0 ? -EAGAIN : 0;
    if (!folder->storage.is_local || atomic_load(&folder->no_cached_reads) ||
        !atomic_load(&file->state))
        return -EAGAIN;
    int fd = folder_file_take(file);
    if (fd < 0)
        return -EAGAIN;
    ssize_t n = preadv2(fd, &iov, 1, (off_t)offset, RWF_NOWAIT);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        atomic_store(&folder->no_cached_reads, true);
    int r = n == (ssize_t)len ? folder_file_check(file, fd) : -EAGAIN;
    folder_file_put(file);
    return r < 0 ? -EAGAIN : 0;
}

static const uint8_t *folder_file_map(const struct source *source, uint64_t offset,
                                      uint64_t len)
{
    (void)source, (void)offset, (void)len;
    return NULL;
}

static int folder_file_bring(const struct source *source, uint64_t offset, uint64_t len,
                             bool may_wait)
{
    (void)source, (void)offset, (void)len, (void)may_wait;
    return 0;
}

static bool folder_file_is_whole(const struct source *source)
{
    return !atomic_load(&folder_file_of(source)->is_changed);
}

static bool folder_file_range_is_whole(const struct source *source, uint64_t offset,
                                       uint64_t len)
{
    (void)offset, (void)len;
    return folder_file_is_whole(source);
}

static void folder_file_state(const struct source *source, struct source_state *ret_state)
{
    const struct storage *storage = &folder_file_of(source)->folder->storage;
    *ret_state =
        (struct source_state){.is_local = storage->is_local, .is_memory = storage->is_memory};
}

/* Without a look at the storage: each read takes that itself. */
static int folder_file_identity_now(const struct source *source,
                                    struct source_identity *ret_identity)
{
    *ret_identity = source->identity;
    ret_identity->size_bytes -= atomic_load(&folder_file_of(source)->is_changed);
    return 0;
}

static void folder_file_advise(const struct source *source, enum source_advice advice,
                               uint64_t offset, uint64_t len)
{
    struct folder_file *file = folder_file_of(source);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), first = offset / page * page;
    if (advice == SOURCE_AT_RANDOM)
        atomic_store(&file->folder->at_random, true);
    if (file->folder->storage.is_memory ||
        (advice != SOURCE_SOON && !atomic_load(&file->state)))
        return;
    int fd = folder_file_take(file);
    if (fd < 0)
        return;
    if (advice == SOURCE_SOON || advice == SOURCE_AT_RANDOM)
        posix_fadvise(fd, (off_t)offset, (off_t)len,
                      advice == SOURCE_SOON ? POSIX_FADV_WILLNEED : POSIX_FADV_RANDOM);
    else /* the kernel would leave pages that lie partly in the range */
        posix_fadvise(fd, (off_t)first,
                      (off_t)((offset + len - first + page - 1) / page * page),
                      POSIX_FADV_DONTNEED);
    folder_file_put(file);
}

static void folder_free(struct folder *folder)
{
    close(folder->fd);
    free(folder);
}

static bool folder_file_close(struct source *source)
{
    struct folder_file *file = folder_file_of(source);
    uint64_t state = atomic_load(&file->state);
    if (state)
        close(state_fd(state));
    if (atomic_fetch_sub(&file->folder->files, 1) == 1)
        folder_free(file->folder);
    return true;
}

static const struct source_ops folder_file_ops = {
    .read = folder_file_read,
    .read_cached = folder_file_read_cached,
    .map = folder_file_map,
    .bring = folder_file_bring,
    .is_whole = folder_file_is_whole,
    .range_is_whole = folder_file_range_is_whole,
    .state = folder_file_state,
    .identity_now = folder_file_identity_now,
    .advise = folder_file_advise,
    .close = folder_file_close,
};

/* ---- opening ---- */

static struct folder *folder_new(int fd, size_t count)
{
    const char *remote = getenv("ONEPOT_ASSUME_REMOTE"); /* for tests */
    struct rlimit limit = {.rlim_cur = 0};
    getrlimit(RLIMIT_NOFILE, &limit);
    size_t most = min_u64(max_u64(limit.rlim_cur / OPEN_SHARE, 1), min_u64(count, OPEN_MOST));
    struct folder *folder = calloc(1, sizeof(*folder) + most * sizeof(folder->ring[0]));
    if (!folder) {
        close(fd);
        return NULL;
    }
    folder->fd = fd;
    folder->ring_count = most;
    if (!remote || strcmp(remote, "1") != 0)
        folder->storage = storage_of(fd);
    return folder;
}

static int folder_add(struct folder *folder, const char *name,
                      const struct source_folder_file *listed, struct source **ret_source)
{
    struct folder_file *file = calloc(1, sizeof(*file));
    char *path = NULL;
    if (!file || asprintf(&path, "%s/%s", name, listed->path) < 0) {
        free(file);
        return -ENOMEM;
    }
    file->source = (struct source){.ops = &folder_file_ops,
                                   .name = path,
                                   .size_bytes = listed->identity.size_bytes,
                                   .identity = listed->identity,
                                   .fd = -1};
    file->folder = folder;
    file->path = path + strlen(name) + 1;
    folder->files++;
    *ret_source = &file->source;
    return 0;
}

int source_folder(int folder_fd, const char *name, const struct source_folder_file *files,
                  size_t count, struct source **ret_source)
{
    struct folder *folder = folder_new(folder_fd, count);
    auto_free struct source **members = calloc(count, sizeof(struct source *));
    size_t made = 0;
    int r = folder && members ? 0 : -ENOMEM;
    for (; r == 0 && made < count; made += r == 0)
        r = folder_add(folder, name, &files[made], &members[made]);
    struct source *all = NULL;
    if (r == 0)
        r = source_concat(members, count, true, name, &all);
    if (r == 0) {
        made = 0;
        r = source_retry(&all);
    }
    if (r == 0) {
        *ret_source = all;
        return 0;
    }
    if (!all && made == 0 && folder)
        folder_free(folder);
    for (size_t i = 0; i < made; i++)
        source_close(members[i]); /* the last one frees the folder */
    source_close(all);
    return r;
}
