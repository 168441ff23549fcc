/*
 * Finds a copy, makes room for one, adopts another program's, and removes it. All decisions are
 * made under the lock of the folder, and none takes long.
 */
#include "stage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>

#include "budget.h"
#include "cleanup.h"
#include "clock.h"
#include "file_id.h"
#include "futex.h"
#include "job.h"
#include "numbers.h"
#include "output.h"
#include "path.h"
#include "place.h"
#include "process.h"
#include "runtime.h"
#include "source.h"
#include "source_retry.h"
#include "source_slice.h"
#include "stage_private.h"
#include "syscalls.h"
#include "write_at.h"

/* ---- the state ---- */

/*
 * The words of chunks, and how they change hands. A copier's claim is its generation with the
 * top bit set. A reader's claim is the time when it was made.
 */

#define MAGIC "onepotS"
#define CLAIM_COPIER (UINT32_C(1) << 31)
#define CLAIM_FIRST 16u /* smaller words have meanings of their own */
#define DEMAND_OLD_MS (STAGE_CLAIM_OLD_S * 1000u)

static void state_boot_id(char ret_id[40])
{
    memset(ret_id, 0, 40);
    auto_close int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && read(fd, ret_id, 39) < 0)
        ret_id[0] = '\0';
}

size_t stage_state_size(uint64_t bytes)
{
    uint64_t chunks = bytes / STAGE_CHUNK_BYTES + (bytes % STAGE_CHUNK_BYTES != 0);
    return sizeof(struct stage_state) + (size_t)chunks * sizeof(uint32_t);
}

void stage_state_init(struct stage_state *state, const struct source *source, uint64_t bytes,
                      const char *archive, const char *place)
{
    state->version = STAGE_STATE_VERSION;
    state->chunk_bytes = STAGE_CHUNK_BYTES;
    state_boot_id(state->boot_id);
    source_identity(source, &state->identity);
    state->bytes = bytes;
    state->chunks =
        (stage_state_size(state->bytes) - sizeof(struct stage_state)) / sizeof(uint32_t);
    snprintf(state->archive, sizeof(state->archive), "%s", archive);
    snprintf(state->place, sizeof(state->place), "%s", place);
    atomic_thread_fence(memory_order_release);
    memcpy(state->magic, MAGIC, sizeof(MAGIC));
}

static bool state_is_sane(const struct stage_state *state, uint64_t file_bytes)
{
    char boot_id[40];
    state_boot_id(boot_id);
    return memcmp(state->magic, MAGIC, sizeof(MAGIC)) == 0 &&
           state->version == STAGE_STATE_VERSION && state->chunk_bytes == STAGE_CHUNK_BYTES &&
           memcmp(state->boot_id, boot_id, sizeof(boot_id)) == 0 &&
           state->bytes <= (uint64_t)INT64_MAX &&
           stage_state_size(state->bytes) == file_bytes &&
           state->chunks == (file_bytes - sizeof(struct stage_state)) / sizeof(uint32_t) &&
           memchr(state->archive, 0, sizeof(state->archive)) &&
           memchr(state->place, 0, sizeof(state->place)) &&
           memchr(state->job, 0, sizeof(state->job));
}

/* Map a state file. -EUCLEAN: it is not one, or not of this boot and version. */
static int stage_state_map(int fd, struct stage_state **ret_state)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -errno;
    if (st.st_size < (off_t)sizeof(struct stage_state))
        return -EUCLEAN;
    struct stage_state *state =
        mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (state == MAP_FAILED)
        return -errno;
    if (!state_is_sane(state, (uint64_t)st.st_size)) {
        munmap(state, (size_t)st.st_size);
        return -EUCLEAN;
    }
    *ret_state = state;
    return 0;
}

static void stage_state_unmap(struct stage_state *state)
{
    if (state)
        munmap(state, stage_state_size(state->bytes));
}

/* ---- chunks ---- */

size_t stage_chunk_len(const struct stage_state *state, uint64_t chunk)
{
    uint64_t at = chunk * STAGE_CHUNK_BYTES;
    return (size_t)min_u64(state->bytes - at, STAGE_CHUNK_BYTES);
}

static uint32_t claim_now(void)
{
    uint32_t stamp = (uint32_t)now_ms() & (CLAIM_COPIER - 1);
    return stamp < CLAIM_FIRST ? CLAIM_FIRST : stamp;
}

static bool claim_is_old(uint32_t stamp)
{
    return ((claim_now() - stamp) & (CLAIM_COPIER - 1)) > DEMAND_OLD_MS;
}

static bool claim_take(struct stage_state *state, uint64_t chunk, uint32_t seen, uint32_t claim)
{
    return atomic_compare_exchange_strong(&state->chunk[chunk], &seen, claim);
}

bool stage_claim_to_copy(struct stage_state *state, uint64_t chunk, uint32_t generation)
{
    uint32_t claim = CLAIM_COPIER | generation;
    uint32_t seen = atomic_load_explicit(&state->chunk[chunk], memory_order_relaxed);
    if (seen == CHUNK_HERE || seen == claim) /* another thread of this copier has it */
        return false;
    if (seen >= CLAIM_FIRST && !(seen & CLAIM_COPIER) && !claim_is_old(seen))
        return false;
    return claim_take(state, chunk, seen, claim);
}

static bool copier_is_stuck(const struct stage_state *state)
{
    uint64_t since_ns = atomic_load(&state->progress_ns), now = now_ns();
    return now > since_ns && now - since_ns > DEMAND_OLD_MS * UINT64_C(1000000);
}

bool stage_claim_demand(struct stage_state *state, uint64_t chunk)
{
    uint32_t seen = atomic_load_explicit(&state->chunk[chunk], memory_order_relaxed);
    uint32_t current = CLAIM_COPIER | atomic_load(&state->generation);
    if (seen == CHUNK_HERE || (seen == current && !copier_is_stuck(state)))
        return false;
    if (seen >= CLAIM_FIRST && !(seen & CLAIM_COPIER) && !claim_is_old(seen))
        return false;
    return claim_take(state, chunk, seen, claim_now());
}

void stage_settle(struct stage_state *state, uint64_t chunk, uint32_t outcome)
{
    _Atomic uint32_t *word = &state->chunk[chunk];
    uint32_t seen = atomic_load(word);
    /* Another process may have thought that we were gone, and made the chunk meanwhile. */
    while ((outcome == CHUNK_HERE || seen != CHUNK_HERE) &&
           !atomic_compare_exchange_weak(word, &seen, outcome))
        ;
    futex_wake(word, INT32_MAX, FUTEX_OF_NODE);
}

void stage_wait(struct stage_state *state, uint64_t chunk, unsigned timeout_ms)
{
    struct timespec timeout = clock_timespec(timeout_ms * UINT64_C(1000000));
    uint32_t seen = atomic_load(&state->chunk[chunk]);
    if (seen >= CLAIM_FIRST)
        futex_wait(&state->chunk[chunk], seen, FUTEX_OF_NODE, &timeout);
}

uint64_t stage_bytes_here(const struct stage_state *state)
{
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < state->chunks; i++)
        if (stage_chunk_here(state, i))
            bytes += stage_chunk_len(state, i);
    return bytes;
}

uint64_t stage_bytes_in_order(const struct stage_state *state)
{
    uint64_t chunk = 0;
    while (chunk < state->chunks && stage_chunk_here(state, chunk))
        chunk++;
    return min_u64(chunk * STAGE_CHUNK_BYTES, state->bytes);
}

/* ---- the folder ---- */

/*
 * The folder of the copies. It may lie in a directory that everybody can write to. So it is
 * opened without following a link, and the checks look at the open folder, not at its name.
 */

/*
 * "/dev/shm" and so on: the places that exist, best first. With `given`, that one alone. How
 * many.
 */
static size_t stage_places(const char *given, char places[RUNTIME_FOLDERS_MAX][PATH_MAX])
{
    struct stat st;
    return !given ? runtime_places(RUNTIME_COPIES, places)
                  : path_real(given, places[0], NULL) == 0 && stat(places[0], &st) == 0 &&
                        S_ISDIR(st.st_mode);
}

static int folder_path(const char *place, char ret_path[PATH_MAX])
{
    int n = snprintf(ret_path, PATH_MAX, "%s/onepot-stage-%u", strcmp(place, "/") ? place : "",
                     place_uid());
    return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

/* One line on why it can't be locked, after the error `err`: see runtime_explain. */
static void stage_folder_explain(const char *place, int err, char *buf, size_t size)
{
    char path[PATH_MAX];
    if (folder_path(place, path) == 0)
        runtime_explain(path, err, buf, size);
    else
        snprintf(buf, size, "%s: %s", place, fault_errno(err));
}

int stage_folder_lock(const char *place, bool create, struct registry *ret_folder)
{
    char path[PATH_MAX];
    int r = folder_path(place, path);
    return r < 0 ? r : registry_lock(path, create, ret_folder);
}

/* ---- files ---- */

/* Remove both files. */
static void stage_folder_remove(const struct registry *folder, const char *name)
{
    registry_unlink(folder->fd, name, ".copy");
    registry_unlink(folder->fd, name, ".state");
}

/* One copy of a folder. */
struct stage_file {
    const struct registry *folder;
    const char *name;
    int fd;                    /* of its state; -ENOENT: it has none; or another error */
    struct stage_state *state; /* NULL: it can't be read */
};

static int folder_call(const struct registry *folder, const char *name,
                       int (*fn)(void *ctx, const struct stage_file *file), void *ctx)
{
    struct stage_file file = {.folder = folder, .name = name};
    auto_close int fd = -1;
    int r = registry_open(folder->fd, name, ".state", O_RDWR, &fd);
    if (r == 0)
        stage_state_map(fd, &file.state);
    file.fd = r < 0 ? r : fd;
    r = fn(ctx, &file);
    stage_state_unmap(file.state);
    return r;
}

/* Call `fn` for each NAME.state, and each NAME.copy without one, until it returns not 0. */
static int stage_folder_each(const struct registry *folder,
                             int (*fn)(void *ctx, const struct stage_file *file), void *ctx)
{
    char name[STAGE_NAME_MAX];
    DIR *dir = path_list(folder->fd);
    int r = 0;
    if (!dir)
        return -errno;
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        if (registry_name(e->d_name, ".state", name, sizeof(name)) ||
            (registry_name(e->d_name, ".copy", name, sizeof(name)) &&
             !registry_has(folder->fd, name, ".state")))
            r = folder_call(folder, name, fn, ctx);
    closedir(dir);
    return r;
}

/* ---- room ---- */

/*
 * The room in `place`: of the filesystem, and memory for the job to use (UINT64_MAX: the place
 * is on a disk). What copies under way will still take is not deducted. -ENOTSUP: it is on a
 * network filesystem.
 */
static int stage_room_of(const char *place, uint64_t *ret_free, uint64_t *ret_memory)
{
    struct statvfs space;
    auto_close int fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &space) < 0)
        return -errno;
    struct storage storage = storage_of(fd);
    if (!storage.is_local)
        return -ENOTSUP;
    *ret_memory = storage.is_memory ? budget_free_bytes("") : UINT64_MAX;
    if (__builtin_mul_overflow((uint64_t)space.f_bavail, (uint64_t)space.f_frsize, ret_free))
        *ret_free = INT64_MAX;
    if (storage.is_memory && space.f_blocks == 0) /* the filesystem has no limit */
        *ret_free = *ret_memory;
    return 0;
}

/* ---- the files of a copy ---- */

/*
 * The files of a copy: their owner, their users, and how they are made. All of this happens
 * under the lock of the folder. The lock on its state file shows that a copy is in use; when a
 * process is killed, its lock goes. That lock is only tried under the lock of the folder, so
 * that nobody mistakes a probe for a user.
 */

#define SPARE_SHARE 16u /* of the room stays free, in memory and in a filesystem */
/*
 * Memory of the job that no copy may take: the copier's threads have a chunk each, and the
 * daemon, its readers and the command need some, too. Without it they would be killed.
 */
#define RESERVE_BYTES ((STAGE_THREADS + 20u) * (uint64_t)STAGE_CHUNK_BYTES)
#define NAME_PART 80 /* of the archive's name that goes into the copy's name */

/* ---- owners of copies that stay ---- */

/* Has the job a process of this user here? */
static bool job_is_here(const char *setting)
{
    auto_closedir DIR *proc = opendir("/proc");
    if (!proc || job_has(setting, getpid()))
        return true;
    for (struct dirent *e; (e = readdir(proc));) {
        pid_t pid = atoi(e->d_name);
        if (pid > 0 && process_is_ours(pid) && job_has(setting, pid))
            return true;
    }
    return false;
}

static bool stage_stays(const struct stage_state *state)
{
    if (!atomic_load(&state->pinned))
        return false;
    if (state->owner_namespace != process_namespace())
        return true; /* in another namespace nobody can tell */
    if (state->owner_pid == 0)
        return !state->job[0] || job_is_here(state->job);
    return state->owner_start_ticks != 0 &&
           process_lives(state->owner_pid, state->owner_start_ticks);
}

void stage_pin(struct stage *stage, pid_t owner, const char *job)
{
    struct stage_state *state = stage->state;
    struct process_facts facts = {0};
    bool lives = process_look(owner, &facts) == 0 && !facts.is_dead;
    state->owner_pid = owner;
    state->owner_start_ticks = lives ? facts.start_ticks : 0;
    state->owner_namespace = process_namespace();
    snprintf(state->job, sizeof(state->job), "%s", job ? job : "");
    atomic_store(&state->pinned, 1);
}

/* ---- the files of a folder ---- */

/* A copy without a state: a process unpacks into it, or was killed. */
static void stage_sweep_half(const struct registry *folder, const char *name)
{
    auto_close int fd = -1;
    if (registry_open(folder->fd, name, ".copy", O_RDWR, &fd) < 0 || registry_take(fd))
        stage_folder_remove(folder, name);
}

static int stage_sweep_one(void *ctx, const struct stage_file *file)
{
    (void)ctx;
    if (file->fd == -ENOENT)
        stage_sweep_half(file->folder, file->name);
    else if (file->fd >= 0 && registry_take(file->fd) &&
             (!file->state || !stage_stays(file->state)))
        stage_folder_remove(file->folder, file->name);
    return 0;
}

static void stage_sweep_folder(const struct registry *folder)
{
    stage_folder_each(folder, stage_sweep_one, NULL);
}

/* Room that a copy takes: its bytes, or all that was reserved. */
static uint64_t stage_bytes_taken(const struct stage_file *file)
{
    uint64_t bytes = stage_bytes_here(file->state);
    struct stat st;
    auto_close int fd = -1;
    if (registry_open(file->folder->fd, file->name, ".copy", O_RDWR, &fd) == 0 &&
        fstat(fd, &st) == 0)
        bytes = max_u64(bytes, (uint64_t)st.st_blocks * 512);
    return min_u64(bytes, file->state->bytes);
}

static int stage_add_pending(void *ctx, const struct stage_file *file)
{
    uint64_t *pending = ctx;
    if (file->state && !atomic_load(&file->state->failure))
        *pending += file->state->bytes - stage_bytes_taken(file);
    return 0;
}

uint64_t stage_room_left(uint64_t free_bytes, uint64_t memory_bytes,
                         const struct registry *folder)
{
    uint64_t pending = 0;
    if (memory_bytes != UINT64_MAX)
        memory_bytes -= min_u64(memory_bytes, RESERVE_BYTES);
    uint64_t has = min_u64(memory_bytes, free_bytes);
    stage_folder_each(folder, stage_add_pending, &pending);
    has -= has / SPARE_SHARE;
    return has > pending ? has - pending : 0;
}

/* ---- a copy that is there ---- */

/* Name the copy of stage->source, or of its unpacked content. */
static void stage_name_for(struct stage *stage)
{
    struct source_identity id;
    char *ret_name = stage->name;
    source_identity(stage->source, &id);
    const struct source *first = source_member(stage->source, 0);
    /* Several may be named in many ways. */
    const char *archive = first == stage->source ? stage->options.archive : source_name(first);
    const uint64_t parts[] = {id.dev,
                              id.ino,
                              id.size_bytes,
                              (uint64_t)id.mtime_sec,
                              id.mtime_nsec,
                              stage->unpacked,
                              id.slice_start,
                              id.slice_bytes,
                              STAGE_STATE_VERSION,
                              sizeof(struct stage_state)};
    const char *base = path_base(archive);
    size_t n = 0;
    for (; n < NAME_PART && base[n]; n++)
        ret_name[n] =
            strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._", base[n])
                ? base[n]
                : '-';
    snprintf(ret_name + n, STAGE_NAME_MAX - n, "-%016" PRIx64,
             (uint64_t)XXH3_64bits(parts, sizeof(parts)));
}

/* Map the opened copy. -EUCLEAN: its length is wrong. */
static int stage_map_copy(struct stage *stage)
{
    uint64_t bytes = stage->state->bytes;
    struct stat st;
    if (fstat(stage->copy_fd, &st) < 0)
        return -errno;
    if ((uint64_t)st.st_size != bytes)
        return -EUCLEAN;
    stage->in_memory = storage_of(stage->copy_fd).is_memory;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, stage->copy_fd, 0);
    stage->map = map == MAP_FAILED ? NULL : map;
    return 0;
}

/* Close and unmap. */
static void stage_release(struct stage *stage)
{
    if (stage->map)
        munmap((void *)(uintptr_t)stage->map, stage->state->bytes);
    stage->map = NULL;
    stage_state_unmap(stage->state);
    stage->state = NULL;
    cleanup_closep(&stage->state_fd);
    cleanup_closep(&stage->copy_fd);
    stage->state_fd = stage->copy_fd = -1;
}

/* Use the copy that is there. -ENOENT: none; -EUCLEAN: one in use, but not of this archive. */
static int stage_use(struct stage *stage, const struct registry *folder)
{
    struct source_identity id;
    auto_close int fd = -1; /* see stage_make_state */
    source_identity(stage->source, &id);
    int r = registry_open(folder->fd, stage->name, ".state", O_RDWR, &stage->state_fd);
    if (r == 0)
        r = flock(stage->state_fd, LOCK_SH | LOCK_NB) < 0 ? -EUCLEAN : 0;
    if (r == 0)
        r = registry_open(folder->fd, stage->name, ".state", O_RDWR, &fd);
    if (r == 0)
        r = stage_state_map(fd, &stage->state);
    if (r == 0 && !source_identity_equal(&stage->state->identity, &id))
        r = -EUCLEAN;
    if (r == 0 && stage->expands && stage->state->bytes != stage->bytes)
        r = -EUCLEAN;
    if (r == 0)
        r = registry_open(folder->fd, stage->name, ".copy", O_RDWR, &stage->copy_fd);
    if (r == 0)
        r = stage_map_copy(stage);
    if (r < 0) {
        stage_release(stage);
        return r;
    }
    atomic_store(&stage->state->failure, 0); /* try again */
    return 0;
}

/* ---- a new one ---- */

/* Give the copy its length. A disk's space is reserved; on a tmpfs, writes fail once it is
 * full. */
static int stage_reserve(const struct stage *stage)
{
    off_t bytes = (off_t)stage->bytes;
    if (ftruncate(stage->copy_fd, bytes) < 0 ||
        (!storage_of(stage->copy_fd).is_memory && fallocate(stage->copy_fd, 0, 0, bytes) < 0 &&
         errno != EOPNOTSUPP && !syscall_is_missing(errno)))
        return -errno;
    return 0;
}

/* Make and map the state of a new copy: in a file, or in memory if `fd` is -1. */
static int stage_new_state(struct stage *stage, int fd, uint64_t bytes)
{
    void *state = mmap(NULL, stage_state_size(bytes), PROT_READ | PROT_WRITE,
                       MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
    if (state == MAP_FAILED)
        return -errno;
    stage->state = state;
    stage_state_init(state, stage->source, bytes, stage->options.archive, stage->place);
    return 0;
}

/*
 * Its pages are reserved at once, since it is written through a mapping; and that has a new
 * descriptor: the mapping of a shared one would keep its lock alive.
 */
static int stage_make_state(struct stage *stage, const struct registry *folder, uint64_t bytes)
{
    auto_close int fd = -1;
    int r = registry_open(folder->fd, stage->name, ".state", O_RDWR | O_CREAT | O_EXCL,
                          &stage->state_fd);
    if (r == 0 && syscall_reserve(stage->state_fd, stage_state_size(bytes)) < 0)
        r = -ENOSPC;
    if (r == 0 && flock(stage->state_fd, LOCK_SH | LOCK_NB) < 0)
        r = -errno;
    if (r == 0)
        r = registry_open(folder->fd, stage->name, ".state", O_RDWR, &fd);
    return r < 0 ? r : stage_new_state(stage, fd, bytes);
}

/* Make both files. With an unpacker, only the copy: empty, and locked. */
static int stage_create(struct stage *stage, const struct registry *folder)
{
    int r = registry_open(folder->fd, stage->name, ".copy", O_RDWR | O_CREAT | O_EXCL,
                          &stage->copy_fd);
    bool is_other = r == -EEXIST; /* a process unpacks into it: see stage.c */
    if (r == 0 && stage->unpacker) {
        r = flock(stage->copy_fd, LOCK_EX | LOCK_NB) < 0 ? -errno : 0;
    } else if (r == 0) {
        r = stage_reserve(stage);
        if (r == 0)
            r = stage_make_state(stage, folder, stage->bytes);
        if (r == 0)
            r = stage_map_copy(stage);
    }
    if (r < 0)
        stage_release(stage);
    if (r < 0 && !is_other)
        stage_folder_remove(folder, stage->name);
    return r;
}

/* Make the state of a copy (stage->copy_fd) that is whole already. */
static int stage_adopt(struct stage *stage, const struct registry *folder)
{
    struct stat st;
    if (fstat(stage->copy_fd, &st) < 0)
        return -errno;
    int r = stage_make_state(stage, folder, (uint64_t)st.st_size);
    if (r < 0)
        return r;
    struct stage_state *state = stage->state;
    for (uint64_t i = 0; i < state->chunks; i++)
        atomic_store(&state->chunk[i], CHUNK_HERE);
    atomic_store_explicit(&state->whole, 1, memory_order_release);
    return stage_map_copy(stage);
}

/* ---- a stage ---- */

void stage_say(const struct stage *stage, const char *format, ...)
{
    char line[512];
    va_list args;
    if (!stage->options.note)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    stage->options.note(stage->options.ctx, line);
}

void stage_fail(struct stage *stage, int err)
{
    int32_t none = 0;
    if (!atomic_compare_exchange_strong(&stage->state->failure, &none, err))
        return;
    if (err == ESTALE)
        stage_say(stage, "the archive was changed while it was staged: the copy may have bytes "
                         "of both, and is not used by other mounts; mount it anew");
    else
        stage_say(stage,
                  "staging to %s has ended early (%s): what is there is used, the rest is read "
                  "from the archive",
                  stage->folder, fault_errno(err));
}

void stage_finish(struct stage *stage)
{
    if (!stage_is_complete(stage->state))
        return;
    if (source_was_changed(stage->source) > 0)
        stage_fail(stage, ESTALE);
    else
        atomic_store_explicit(&stage->state->whole, 1, memory_order_release);
}

/* ---- copies that stage->unpacker makes ---- */

/*
 * The result of stage_use. 0: the whole copy; -ENOENT: none; -EINPROGRESS with
 * copy_fd: a process makes it; -EBUSY: it is not whole, but others read it.
 */
static int stage_look_unpacked(struct stage *stage, const struct registry *folder, int used)
{
    if (used == 0 && atomic_load(&stage->state->whole))
        return 0;
    if (used == 0)
        stage_release(stage);
    else if (used != -ENOENT)
        return used;
    int r = registry_open(folder->fd, stage->name, ".copy", O_RDWR, &stage->copy_fd);
    if (r < 0)
        return r;
    if (flock(stage->copy_fd, LOCK_SH | LOCK_NB) < 0)
        return -EINPROGRESS;
    stage_release(stage);
    return -EBUSY;
}

/*
 * Unpack into the new, locked copy, and publish it; or remove it. -ENOSPC: another place may
 * have the room. Other errors of the unpacker come with a fault, and leave copy_fd open.
 */
static int stage_unpack(struct stage *stage, struct fault *fault)
{
    const struct fileset_unpacker *unpacker = stage->unpacker;
    struct registry folder;
    struct fault why = {0};
    int r = unpacker->unpack(unpacker->arg, stage->copy_fd, stage->folder, stage->room, &why);
    if (r < 0 && fault && r != -ENOSPC)
        *fault = why;
    int locked = stage_folder_lock(stage->place, false, &folder);
    if (locked < 0)
        return r < 0 ? r : locked;
    if (r == 0)
        r = stage_adopt(stage, &folder);
    if (r == 0)
        flock(stage->copy_fd, LOCK_UN);
    else
        stage_folder_remove(&folder, stage->name);
    registry_remove(&folder);
    if (r == -ENOSPC)
        stage_release(stage);
    return r;
}

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

static void stage_given_free(struct stage_given *given)
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

/* Open and judge the file at `path`. Errors come with a fault. */
static int stage_given_new(const char *path, const struct source *source, struct fault *fault,
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
    strcpy(stage->place, place); /* it is no longer than a path */
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

/* Make it the copy, or use one that is there by now. An error: it has to be copied. */
static int stage_given_take(struct stage *stage, char (*places)[PATH_MAX], size_t count)
{
    int r = -ENOENT;
    for (size_t i = 0; r < 0 && stage->given->is_movable && i < count; i++)
        r = given_move_to(stage, places[i]);
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

/* ---- reading and keeping a chunk ---- */

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

bool stage_may_keep(const struct stage *stage)
{
    int failure = atomic_load_explicit(&stage->state->failure, memory_order_relaxed);
    return failure != ENOSPC && failure != EDQUOT;
}

/* ---- which place ---- */

#define GUESSED_RATIO 3 /* how much smaller compression usually makes a tar */

/* Why no place will do, for the fault. */
struct reasons {
    int err;
    bool has_other; /* a copy that is in use, but not by this version of the program */
    char text[300];
};

__attribute__((format(printf, 3, 4))) static int reasons_add(struct reasons *reasons, int err,
                                                             const char *format, ...)
{
    size_t n = strlen(reasons->text);
    va_list args;
    reasons->err = err;
    n += (size_t)snprintf(reasons->text + n, sizeof(reasons->text) - n, "%s", n ? ", " : "");
    va_start(args, format);
    if (n < sizeof(reasons->text))
        vsnprintf(reasons->text + n, sizeof(reasons->text) - n, format, args);
    va_end(args);
    return err;
}

/* If the length is not known, a guess avoids hopeless attempts; on a disk it is tried. */
static uint64_t stage_bytes_needed(const struct stage *stage, uint64_t memory_bytes)
{
    if (!stage->unpacker)
        return stage->bytes + stage_state_size(stage->bytes);
    return memory_bytes == UINT64_MAX
               ? 1
               : min_u64(stage->bytes, UINT64_MAX / GUESSED_RATIO) * GUESSED_RATIO;
}

/* Is there room for the whole copy? Under the folder's lock. */
static int stage_check_room(struct stage *stage, const struct registry *folder,
                            struct reasons *reasons)
{
    uint64_t free_bytes, memory_bytes;
    int r = stage_room_of(stage->place, &free_bytes, &memory_bytes);
    if (r == -ENOTSUP)
        return reasons_add(reasons, r, "%s is on a network filesystem", stage->place);
    if (r < 0)
        return reasons_add(reasons, r, "%s: %s", stage->place, fault_errno(r));
    uint64_t has = stage->room = stage_room_left(free_bytes, memory_bytes, folder);
    if (stage_bytes_needed(stage, memory_bytes) > has)
        return reasons_add(reasons, -ENOSPC, "%s has %" PRIu64 " MiB for it%s", stage->place,
                           has >> 20,
                           memory_bytes < free_bytes ? " (memory that this job has left)" : "");
    return 0;
}

/* Returns 1 for a copy of an archive of that name that this version can't read. */
static int stage_is_other(void *ctx, const struct stage_file *file)
{
    const struct stage *stage = ctx;
    size_t len = (size_t)(strrchr(stage->name, '-') + 1 - stage->name);
    return file->fd >= 0 && !file->state && strncmp(file->name, stage->name, len) == 0 &&
           !strchr(file->name + len, '-');
}

/* In one place: find the copy, or make it if `create`. */
static int stage_try_place(struct stage *stage, const char *place, bool create,
                           struct reasons *reasons, struct fault *fault)
{
    struct registry folder;
    snprintf(stage->place, sizeof(stage->place), "%s", place);
    int r = stage_folder_lock(place, create, &folder);
    if (r == -ENOENT && !create)
        return r;
    if (r < 0) {
        char text[PATH_MAX + 256];
        stage_folder_explain(place, r, text, sizeof(text));
        return reasons_add(reasons, r, "%s", text);
    }
    strcpy(stage->folder, folder.path);
    stage_sweep_folder(&folder);
    r = stage_use(stage, &folder);
    if (stage->unpacker)
        r = stage_look_unpacked(stage, &folder, r);
    if (r == -ENOENT && create) {
        r = stage_check_room(stage, &folder, reasons);
        if (r == -ENOSPC && stage_folder_each(&folder, stage_is_other, stage) == 1)
            reasons->has_other = true;
        if (r == 0) {
            r = stage_create(stage, &folder);
            if (r < 0)
                reasons_add(reasons, r, "%s: %s", place, fault_errno(r));
        }
    } else if (r < 0 && r != -ENOENT) {
        reasons_add(reasons, r, "%s: %s", place, fault_errno(r));
        reasons->has_other |= r == -EUCLEAN;
    }
    registry_remove(&folder);
    if (r == 0 && !stage->state) {
        r = stage_unpack(stage, fault);
        if (r == -ENOSPC)
            reasons_add(reasons, r, "%s has %" PRIu64 " MiB, which are not enough", place,
                        stage->room >> 20);
    }
    return r;
}

static int reasons_fault(const struct stage *stage, const struct reasons *reasons,
                         struct fault *fault)
{
    if (reasons->has_other)
        return fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET,
                         "gets no copy beside that of another version of the program: %s",
                         reasons->text);
    if (stage->unpacker)
        fault_set(fault, reasons->err, NULL, FAULT_NO_OFFSET,
                  "has to be unpacked, but there is no room: %s", reasons->text);
    else
        fault_set(fault, reasons->err, NULL, FAULT_NO_OFFSET,
                  "%" PRIu64 " MiB can't be staged: %s", (stage->bytes >> 20) + 1,
                  reasons->text);
    fault_advise(fault,
                 stage->unpacker
                     ? "name a folder of this node with more room (--stage=DIR), or make an "
                       "onepot archive of it with 'onepot pack' elsewhere"
                 : reasons->err == -ENOSPC
                     ? "name a folder of this node with more room (--stage=DIR), ask for "
                       "more memory, or go without --stage"
                     : "name a folder of your own on this node's memory or disk "
                       "(--stage=DIR)");
    return reasons->err;
}

/* Look for another place? Not once copy_fd is open: then somebody unpacks to it, or failed. */
static bool stage_seeks(const struct stage *stage, int r)
{
    return r < 0 && stage->copy_fd < 0;
}

static int stage_find(struct stage *stage, char (*places)[PATH_MAX], size_t count)
{
    int r = -ENOENT;
    for (size_t i = 0; stage_seeks(stage, r) && i < count; i++)
        r = stage_try_place(stage, places[i], false, &(struct reasons){0}, NULL);
    return r;
}

/*
 * Use the copy wherever it is already; else make it in the first place with room for it. With
 * an unpacker, unpack it there. -EINPROGRESS: another process unpacks it to stage->copy_fd, and
 * has that locked. After this and other errors, release the stage.
 */
static int stage_find_or_make(struct stage *stage, struct fault *fault)
{
    struct reasons reasons = {.err = -ENOENT};
    char places[RUNTIME_FOLDERS_MAX][PATH_MAX];
    const size_t count = stage_places(stage->options.place, places);
    int r = stage_find(stage, places, count);
    if (r < 0 && stage->given)
        r = stage_given_take(stage, places, count);
    for (size_t i = 0; stage_seeks(stage, r) && i < count; i++)
        r = stage_try_place(stage, places[i], true, &reasons, fault);
    if (r < 0 && count == 0)
        reasons_add(&reasons, -ENOENT, "there is no directory %s",
                    stage->options.place ? stage->options.place : "/dev/shm or /tmp");
    return stage_seeks(stage, r) ? reasons_fault(stage, &reasons, fault) : r;
}

/* ---- opening and closing ---- */

static int stage_check_source(const struct source *source, struct fault *fault)
{
    if (source_size(source) == 0)
        return fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET,
                         "has no bytes, and is not copied");
    if (source_is_local(source) && source_is_memory(source))
        return fault_set(fault, -EEXIST, NULL, FAULT_NO_OFFSET,
                         "lies in this node's memory already, and is not copied");
    return 0;
}

/* A stage without files. NULL: out of memory. */
static struct stage *stage_new(const struct source *source, const struct stage_options *options,
                               bool unpacked)
{
    struct stage *stage = calloc(1, sizeof(*stage));
    if (!stage)
        return NULL;
    stage->source = source;
    stage->bytes = source_size(source);
    stage->state_fd = stage->copy_fd = -1;
    stage->options = *options;
    if (!options->threads)
        stage->options.threads = STAGE_THREADS;
    if (!options->archive)
        stage->options.archive = source_name(source);
    stage->unpacked = unpacked;
    stage_name_for(stage);
    pause_init(&stage->pause);
    return stage;
}

/* Did another process adopt the file first, which moves it away? */
static bool stage_is_whole_somewhere(struct stage *stage)
{
    char places[RUNTIME_FOLDERS_MAX][PATH_MAX];
    const size_t count = stage_places(stage->options.place, places);
    if (stage_find(stage, places, count) < 0)
        return false;
    bool is_whole = atomic_load(&stage->state->whole) != 0;
    stage_release(stage);
    return is_whole;
}

static int stage_take_given(struct stage *stage, const char *path, struct fault *fault)
{
    struct fault refused = {0};
    int r = stage_given_new(path, stage->source, &refused, &stage->given);
    if (r == -ENOENT && stage_is_whole_somewhere(stage))
        return 0;
    if (r < 0 && fault)
        *fault = refused;
    return r;
}

int stage_open(struct source *source, const struct stage_options *options, struct fault *fault,
               struct stage **ret_stage)
{
    int r = stage_check_source(source, fault);
    if (r < 0)
        return r;
    struct stage *stage = stage_new(source, options, false);
    if (!stage)
        return -ENOMEM;
    if (options->adopt)
        r = stage_take_given(stage, options->adopt, fault);
    if (r == 0)
        r = stage_find_or_make(stage, fault);
    if (r < 0) {
        stage_forget(stage);
        return r;
    }
    if (!source_is_local(source)) /* each byte is read once, by any reader */
        source_advise(source, SOURCE_AT_RANDOM, 0, 0);
    *ret_stage = stage;
    return 0;
}

void stage_set_note(struct stage *stage, void (*note)(void *ctx, const char *line), void *ctx)
{
    stage->options.note = note;
    stage->options.ctx = ctx;
}

void stage_abandon(struct stage *stage, bool with_children)
{
    struct registry folder;
    auto_close int fd = -1;
    if (stage->state_fd < 0 || stage_folder_lock(stage->place, false, &folder) < 0)
        return;
    if (with_children)
        flock(stage->state_fd, LOCK_UN);
    close(steal_fd(&stage->state_fd));
    if (registry_open(folder.fd, stage->name, ".state", O_RDWR, &fd) == 0 &&
        registry_take(fd) && !stage_stays(stage->state))
        stage_folder_remove(&folder, stage->name);
    registry_remove(&folder);
}

void stage_forget(struct stage *stage)
{
    if (!stage)
        return;
    stage_release(stage);
    stage_given_free(stage->given);
    free(stage);
}

void stage_close(struct stage *stage)
{
    if (!stage)
        return;
    bool ended = stage_stop(stage) == 0;
    stage_abandon(stage, false);
    if (ended)
        stage_forget(stage); /* else a thread still uses it */
}

bool stage_wait_whole(struct stage *stage, unsigned timeout_ms)
{
    const struct stage_state *state = stage->state;
    for (unsigned waited = 0; waited < timeout_ms; waited += 10) {
        if (atomic_load(&state->whole) || atomic_load(&state->failure))
            break;
        usleep(10000);
    }
    return atomic_load(&state->whole) != 0;
}

/* ---- reports ---- */

static void stage_report_of(const struct stage_state *state, struct stage_report *report)
{
    report->archive = state->archive;
    report->identity = &state->identity;
    report->owner = state->owner_pid;
    report->job = state->job;
    report->bytes = state->bytes;
    report->whole = atomic_load(&state->whole) != 0;
    report->bytes_here = report->whole ? state->bytes : stage_bytes_here(state);
    report->pinned = atomic_load(&state->pinned) != 0;
    report->failure = atomic_load(&state->failure);
    report->away = report->failure ? 0 : atomic_load(&state->away);
    report->copier_pid = atomic_load(&state->copier_pid);
    report->reason[0] = '\0';
    if (report->failure) /* then it no longer changes */
        snprintf(report->reason, sizeof(report->reason), "%.*s", (int)sizeof(state->reason) - 1,
                 state->reason);
    uint64_t since_ns = atomic_load(&state->copying_since_ns), now = now_ns();
    report->copying_ns = atomic_load(&state->copying_ns);
    if (since_ns && report->copier_pid && now > since_ns)
        report->copying_ns += now - since_ns;
    report->copied_bytes = atomic_load(&state->copied_bytes);
    report->demand_bytes = atomic_load(&state->demand_bytes);
    report->demands = atomic_load(&state->demands);
    report->past_bytes = atomic_load(&state->past_bytes);
    report->job_bytes = atomic_load(&state->job_bytes);
}

void stage_get_report(const struct stage *stage, struct stage_report *ret_report)
{
    ret_report->folder = stage->folder;
    ret_report->is_used = true;
    ret_report->is_private = stage->is_private;
    ret_report->was_moved = stage->was_moved;
    stage_report_of(stage->state, ret_report);
}

struct stage_each {
    int (*fn)(void *ctx, const struct stage_report *copy);
    void *ctx;
};

static int stage_each_copy(void *ctx, const struct stage_file *file)
{
    const struct stage_each *each = ctx;
    struct stage_state *state = file->state;
    if (!state)
        return 0;
    struct stage_report copy = {.folder = file->folder->path,
                                .is_used = !registry_take(file->fd)};
    stage_report_of(state, &copy);
    int r = each->fn(each->ctx, &copy);
    if (r > 0) {
        atomic_store(&state->pinned, 0);
        if (!copy.is_used)
            stage_folder_remove(file->folder, file->name);
    }
    return r < 0 ? r : 0;
}

int stage_each(const char *place, int (*fn)(void *ctx, const struct stage_report *copy),
               void *ctx)
{
    struct stage_each each = {fn, ctx};
    char places[RUNTIME_FOLDERS_MAX][PATH_MAX];
    const size_t count = stage_places(place, places);
    int r = 0, foreign = 0;
    for (size_t i = 0; i < count; i++) {
        struct registry folder;
        int here = stage_folder_lock(places[i], false, &folder);
        foreign += here == -EPERM;
        if (here == 0) {
            stage_sweep_folder(&folder);
            here = fn ? stage_folder_each(&folder, stage_each_copy, &each) : 0;
            registry_remove(&folder);
        } else if (here == -ENOENT || here == -EPERM ||
                   (!place && access(places[i], X_OK) < 0)) { /* root's $TMPDIR, say */
            here = 0;
        }
        r = here < 0 ? here : r;
    }
    return r < 0 ? r : foreign;
}

int stage_sweep(const char *place)
{
    int r = stage_each(place, NULL, NULL);
    return r == -ETIMEDOUT ? r : 0;
}

/* ---- for archives that are compressed in one piece ---- */

/*
 * Without an index, the length of one is not known until it is complete. So it has no state
 * until then, and nobody reads it. The process that makes it holds the lock on its file, and
 * the others wait for that lock.
 *
 * With an index, the length is known. So it is known beforehand whether there is room for it,
 * each byte has its place before it comes, and the copy is read while it is unpacked
 * (stage_copy.c). A shared one is found and created in the same way as a plain archive's. A
 * private one is for users that did not ask for staging: a file without a name, with its state
 * in memory that forked processes share.
 */
#define MEMORY_SHARE 2 /* half of the job's free memory; readers need some, too */

/* The whole copy, found or made, as a separate source. */
static int store_open(void *ctx, struct source *packed, const struct fileset_unpacker *unpacker,
                      struct fault *fault, struct source **ret_source)
{
    struct stage_store *store = ctx;
    struct stage *stage = stage_new(packed, &store->options, true);
    int r;
    if (!stage)
        return -ENOMEM;
    stage->unpacker = unpacker;
    while ((r = stage_find_or_make(stage, fault)) == -EINPROGRESS) {
        if (flock(stage->copy_fd, LOCK_SH) < 0) {
            r = -errno; /* a signal */
            break;
        }
        stage_release(stage);
    }
    stage->unpacker = NULL;
    if (r < 0) {
        stage_forget(stage);
        return r;
    }
    store->stage = stage;
    int fd = fcntl(stage->copy_fd, F_DUPFD_CLOEXEC, 3);
    return fd < 0 ? -errno : source_from_fd(fd, source_name(packed), ret_source);
}

/* ---- private copies ---- */

static bool private_has_room(const char *place, uint64_t bytes)
{
    uint64_t free_bytes, memory_bytes;
    return stage_room_of(place, &free_bytes, &memory_bytes) == 0 && bytes <= free_bytes &&
           (memory_bytes == UINT64_MAX || bytes <= memory_bytes / MEMORY_SHARE);
}

static int private_make_in(struct stage *stage, const char *place)
{
    if (!private_has_room(place, stage->bytes))
        return -ENOSPC;
    int fd = output_nameless(place);
    if (fd < 0)
        return fd;
    stage->copy_fd = fd;
    stage->is_private = true;
    snprintf(stage->place, sizeof(stage->place), "%s", place);
    snprintf(stage->folder, sizeof(stage->folder), "%s", place);
    int r = stage_reserve(stage);
    if (r == 0)
        r = stage_new_state(stage, -1, stage->bytes);
    if (r == 0)
        r = stage_map_copy(stage);
    if (r < 0)
        stage_release(stage);
    return r;
}

static int private_make(struct stage *stage, struct fault *fault)
{
    char places[RUNTIME_FOLDERS_MAX][PATH_MAX];
    const size_t count = stage_places(NULL, places);
    int r = -ENOSPC;
    for (size_t i = 0; r < 0 && i < count; i++)
        r = private_make_in(stage, places[i]);
    return r < 0 ? fault_set(fault, -ENOSPC, NULL, FAULT_NO_OFFSET,
                             "has to be unpacked, but there is no room")
                 : 0;
}

/* ---- private and shared copies of a known length ---- */

/* If another copy is in the way, report it as a lack of room. */
static int store_expand(void *ctx, const struct fileset_stream *stream, struct fault *fault,
                        struct source **ret_source)
{
    struct stage_store *store = ctx;
    struct stage *stage = stage_new(stream->packed, &store->options, true);
    if (!stage)
        return -ENOMEM;
    stage->bytes = stream->bytes;
    stage->stream = *stream;
    stage->expands = true;
    int r = store->is_private ? private_make(stage, fault) : stage_find_or_make(stage, fault);
    if (r < 0) {
        stage_forget(stage);
        return r == -ENOMEM ? r : -ENOSPC;
    }
    store->stage = stage;
    return stage_stream_source(stage, source_name(stream->packed), ret_source);
}

struct fileset_store stage_fileset_store(struct stage_store *store)
{
    return (struct fileset_store){
        .open = store->is_private ? NULL : store_open, .expand = store_expand, .ctx = store};
}
