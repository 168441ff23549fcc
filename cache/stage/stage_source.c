/*
 * Reads an archive while a copy of it is made. A chunk that is there is read from the copy. The
 * reader itself fetches a missing chunk, without regard to the stream. It fetches all of it: on
 * a slow filesystem that takes hardly longer, and the neighbouring bytes will be wanted, too.
 * If somebody else is fetching the chunk, the reader waits, but not for long. Then it takes the
 * few bytes that it wants from the source and leaves the copy alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "file_id.h"
#include "numbers.h"
#include "path.h"
#include "source_ops.h"
#include "source_slice.h"
#include "stage_private.h"
#include "syscalls.h"
#include "write_at.h"

/* ---- a copy that another program made ---- */

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

/* Read it. An error: there is none, or it is not to be trusted any more. */
static int stage_given_read(struct stage *stage, void *buf, size_t len, uint64_t offset)
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

/* ---- reading ---- */

#define WAIT_MS 200u
#define WAITS 10 /* two seconds in all */

int stage_read_chunk(struct stage *stage, uint64_t chunk, void *buf)
{
    uint64_t offset = chunk * STAGE_CHUNK_BYTES;
    size_t len = stage_chunk_len(stage->state, chunk);
    uint64_t tries = source_failed_tries();
    int r = stage_given_read(stage, buf, len, offset);
    if (r < 0)
        r = source_read(stage->source, buf, len, offset);
    if (r == 0 && source_failed_tries() != tries) { /* bytes in doubt stay in no copy */
        source_advise(stage->source, SOURCE_WRONG, offset, len);
        r = source_read(stage->source, buf, len, offset);
    }
    if (r == 0)
        source_advise(stage->source, SOURCE_DROP, offset, len); /* the copy keeps them */
    return r;
}

int stage_keep_chunk(struct stage *stage, uint64_t chunk, const void *buf, uint64_t begun_ms)
{
    uint64_t offset = chunk * STAGE_CHUNK_BYTES;
    size_t len = stage_chunk_len(stage->state, chunk);
    int r = write_at(stage->copy_fd, buf, len, offset);
    /*
     * The part that was written helps nobody, and others may want the room. But after a while
     * another process may have the claim, and have written the same bytes.
     */
    if (r < 0 && now_ms() - begun_ms < STAGE_CLAIM_OLD_S * 1000 / 2)
        fallocate(stage->copy_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                  (off_t)len);
    stage_settle(stage->state, chunk, r < 0 ? CHUNK_ABSENT : CHUNK_HERE);
    if (r < 0)
        stage_fail(stage, -r);
    return -r;
}

int stage_fetch(struct stage *stage, uint64_t chunk, void *buf)
{
    uint64_t begun_ms = now_ms();
    int r = stage_read_chunk(stage, chunk, buf);
    if (r < 0) {
        stage_settle(stage->state, chunk, CHUNK_ABSENT);
        return r;
    }
    return stage_keep_chunk(stage, chunk, buf, begun_ms);
}

/*
 * Fetch a chunk for a reader. 0: it is in `buf`; else -errno. A reader that has fetched two in
 * a row goes through a large file ahead of the copier, which goes on from there.
 */
static int staged_fetch(struct stage *stage, uint64_t chunk, uint8_t *buf)
{
    struct stage_state *state = stage->state;
    if (atomic_exchange(&stage->demanded, chunk + 1) == chunk)
        atomic_store(&stage->wanted, chunk + 1);
    int r = stage_fetch(stage, chunk, buf);
    if (r < 0)
        return r;
    atomic_fetch_add(&state->demands, 1);
    atomic_fetch_add(&state->demand_bytes, stage_chunk_len(state, chunk));
    return 0;
}

bool stage_may_keep(const struct stage *stage)
{
    int failure = atomic_load_explicit(&stage->state->failure, memory_order_relaxed);
    return failure != ENOSPC && failure != EDQUOT;
}

/* Have a chunk made, by this reader or another process. False: it won't be there soon. */
static bool staged_await(struct stage *stage, uint64_t chunk, uint8_t **buf, bool *ret_in_buf)
{
    struct stage_state *state = stage->state;
    *ret_in_buf = false;
    if (stage->expands)
        return stage_await_stream(stage, chunk);
    for (int tries = 0; !stage_chunk_here(state, chunk); tries++) {
        if (stage_may_keep(stage) && stage_claim_demand(state, chunk)) {
            if (!*buf)
                *buf = malloc(STAGE_CHUNK_BYTES);
            if (!*buf)
                stage_settle(state, chunk, CHUNK_ABSENT);
            return *ret_in_buf = *buf && staged_fetch(stage, chunk, *buf) == 0;
        }
        if (tries == WAITS || atomic_load(&state->failure) ||
            atomic_load(&state->chunk[chunk]) <= CHUNK_HERE)
            return stage_chunk_here(state, chunk);
        stage_wait(state, chunk, WAIT_MS);
    }
    return true;
}

static int staged_read_past(const struct stage *stage, uint8_t *to, size_t len, uint64_t offset)
{
    atomic_fetch_add_explicit(&stage->state->past_bytes, len, memory_order_relaxed);
    return source_read(stage->source, to, len, offset);
}

/* If the copy itself fails, as a disk may, read the source, if that has the same bytes. */
static int staged_read_here(struct stage *stage, uint8_t *to, size_t len, uint64_t offset)
{
    int r = read_at(stage->copy_fd, to, len, offset);
    return r < 0 && !stage->unpacked ? staged_read_past(stage, to, len, offset) : r;
}

static int staged_read_wanted(struct stage *stage, uint8_t *to, size_t len, uint64_t offset,
                              uint8_t **buf)
{
    uint64_t chunk = offset / STAGE_CHUNK_BYTES;
    bool in_buf;
    if (!staged_await(stage, chunk, buf, &in_buf))
        return stage->unpacked ? -EIO : staged_read_past(stage, to, len, offset);
    if (!in_buf)
        return staged_read_here(stage, to, len, offset);
    memcpy(to, *buf + offset % STAGE_CHUNK_BYTES, len);
    return 0;
}

/* ---- the source ---- */

struct stage_source {
    struct source source;
    struct stage *stage;
    bool owns_stage; /* and closes it */
};

static struct stage *stage_of(const struct source *source)
{
    return ((const struct stage_source *)source)->stage;
}

static bool staged_has_all(const struct stage *stage)
{
    return atomic_load_explicit(&stage->state->whole, memory_order_acquire) != 0;
}

static bool staged_has(const struct stage *stage, uint64_t offset, uint64_t len)
{
    if (staged_has_all(stage) || len == 0)
        return true;
    for (uint64_t i = offset / STAGE_CHUNK_BYTES; i <= (offset + len - 1) / STAGE_CHUNK_BYTES;
         i++)
        if (!stage_chunk_here(stage->state, i))
            return false;
    return true;
}

/* Read bytes of a copy on a disk only if they are in memory. -EAGAIN: they may not be. */
static int staged_read_cached(const struct source *source, void *buf, size_t len,
                              uint64_t offset)
{
    struct stage *stage = stage_of(source);
    struct iovec iov = {.iov_base = buf, .iov_len = len};
    if (!staged_has(stage, offset, len))
        return -EAGAIN;
    if (stage->in_memory)
        return staged_read_here(stage, buf, len, offset);
    ssize_t n = preadv2(stage->copy_fd, &iov, 1, (off_t)offset, RWF_NOWAIT);
    if (n < 0 && (errno == EOPNOTSUPP || syscall_is_missing(errno) || errno == EINVAL))
        return staged_read_here(stage, buf, len, offset); /* no way to know */
    return n == (ssize_t)len ? 0 : -EAGAIN;
}

static int staged_read(const struct source *source, struct source_cursor *cursor)
{
    struct stage *stage = stage_of(source);
    auto_free uint8_t *chunk = NULL; /* not from a pool, whose lock a fork could inherit */
    while (cursor->count > 0) {
        uint64_t offset = cursor->offset;
        size_t n = cursor->iov->iov_len;
        int r;
        if (staged_has(stage, offset, n)) {
            r = staged_read_here(stage, cursor->iov->iov_base, n, offset);
        } else {
            n = min_u64(n, STAGE_CHUNK_BYTES - offset % STAGE_CHUNK_BYTES);
            r = staged_read_wanted(stage, cursor->iov->iov_base, n, offset, &chunk);
        }
        if (r < 0)
            return r;
        source_cursor_step(cursor, n);
    }
    return 0;
}

static int staged_bring(const struct source *source, uint64_t offset, uint64_t len,
                        bool may_wait)
{
    struct stage *stage = stage_of(source);
    if (staged_has(stage, offset, len))
        return 0;
    if (!may_wait)
        return -EAGAIN;
    auto_free uint8_t *buf = NULL;
    bool ignored;
    for (uint64_t i = offset / STAGE_CHUNK_BYTES; i <= (offset + len - 1) / STAGE_CHUNK_BYTES;
         i++)
        if (!staged_await(stage, i, &buf, &ignored) || !stage_chunk_here(stage->state, i))
            return stage_may_keep(stage) ? -EIO : -ENOSPC;
    return 0;
}

static const uint8_t *staged_map(const struct source *source, uint64_t offset, uint64_t len)
{
    const uint8_t *map = stage_of(source)->map;
    (void)len;
    return map ? map + offset : NULL;
}

/* The archive may be cut short while it is copied; then only its copier notices. */
static bool staged_is_whole(const struct source *source)
{
    struct stat st;
    return fstat(stage_of(source)->copy_fd, &st) == 0 &&
           (uint64_t)st.st_size >= source->size_bytes;
}

static void staged_state(const struct source *source, struct source_state *ret_state)
{
    const struct stage *stage = stage_of(source);
    *ret_state = (struct source_state){
        .is_local = staged_has_all(stage),
        .keeps = true,
        .kept_fd = staged_has_all(stage) ? stage->copy_fd : -1,
        /* Kept after the stream's end, as a thread that waited for it may not have read yet. */
        .progress_ns = stage->expands ? atomic_load(&stage->state->progress_ns) : 0};
}

/*
 * Reads a chunk of the copy from storage again. It is written over the old bytes, and its mark
 * stays: other processes may rely on a whole copy having all its chunks.
 */
static void staged_renew(const struct stage *stage, uint64_t chunk, void *buf)
{
    uint64_t offset = chunk * STAGE_CHUNK_BYTES;
    size_t len = stage_chunk_len(stage->state, chunk);
    if (!stage_chunk_here(stage->state, chunk) || source_was_changed(stage->source) != 0)
        return;
    source_advise(stage->source, SOURCE_WRONG, offset, len);
    if (source_read(stage->source, buf, len, offset) < 0 ||
        source_was_changed(stage->source) != 0)
        return;
    write_at(stage->copy_fd, buf, len, offset); /* if that fails, its sum tells again */
    source_advise(stage->source, SOURCE_DROP, offset, len);
}

static void staged_advise(const struct source *source, enum source_advice advice,
                          uint64_t offset, uint64_t len)
{
    const struct stage *stage = stage_of(source);
    if (advice != SOURCE_WRONG || stage->unpacked || stage->expands || len == 0)
        return;
    auto_free uint8_t *buf = malloc(STAGE_CHUNK_BYTES);
    for (uint64_t i = offset / STAGE_CHUNK_BYTES;
         buf && i <= (offset + len - 1) / STAGE_CHUNK_BYTES; i++)
        staged_renew(stage, i, buf);
}

static bool staged_close(struct source *source)
{
    struct stage *stage = stage_of(source);
    if (!((struct stage_source *)source)->owns_stage)
        return true;
    if (stage_stop(stage) < 0) {
        stage_abandon(stage);
        return false;
    }
    stage_close(stage);
    return true;
}

static const struct source_ops staged_ops = {
    .read = staged_read,
    .read_cached = staged_read_cached,
    .map = staged_map,
    .bring = staged_bring,
    .is_whole = staged_is_whole,
    .state = staged_state,
    .advise = staged_advise,
    .close = staged_close,
};

int stage_attach(struct stage *stage, struct source **source)
{
    struct stage_source *staged = calloc(1, sizeof(*staged));
    if (!staged)
        return -ENOMEM;
    staged->stage = stage;
    source_wrap(&staged->source, &staged_ops, source);
    return 0;
}

int stage_give(struct stage *stage, struct source **source)
{
    int r = (*source)->ops == &staged_ops ? 0 : stage_attach(stage, source);
    if (r == 0)
        ((struct stage_source *)*source)->owns_stage = true;
    return r;
}

int stage_stream_source(struct stage *stage, const char *name, struct source **ret_source)
{
    struct stage_source *staged = calloc(1, sizeof(*staged));
    char *copied = staged ? strdup(name) : NULL;
    if (!copied) {
        free(staged);
        return -ENOMEM;
    }
    staged->stage = stage;
    staged->source = (struct source){
        .ops = &staged_ops, .name = copied, .size_bytes = stage->bytes, .fd = stage->copy_fd};
    *ret_source = &staged->source;
    return 0;
}
