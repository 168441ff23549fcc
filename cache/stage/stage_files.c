/*
 * The files of a copy: their owner, their users, and how they are made. All of this happens
 * under the lock of the folder. The lock on its state file shows that a copy is in use; when a
 * process is killed, its lock goes. That lock is only tried under the lock of the folder, so
 * that nobody mistakes a probe for a user.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
#include "futex.h"
#include "job.h"
#include "numbers.h"
#include "path.h"
#include "place.h"
#include "process.h"
#include "runtime.h"
#include "source.h"
#include "stage_private.h"
#include "syscalls.h"

/* ---- the state ---- */

/*
 * The words of chunks, and how they change hands. A copier's claim is its generation with the
 * top bit set. A reader's claim is the time when it was made.
 */

#define MAGIC "onepotS"
#define CLAIM_STREAM (UINT32_C(1) << 31)
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

/* Map a state file. -EUCLEAN: it is not one, or not of this boot and version. */
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
    uint32_t stamp = (uint32_t)now_ms() & (CLAIM_STREAM - 1);
    return stamp < CLAIM_FIRST ? CLAIM_FIRST : stamp;
}

static bool claim_is_old(uint32_t stamp)
{
    return ((claim_now() - stamp) & (CLAIM_STREAM - 1)) > DEMAND_OLD_MS;
}

static bool claim_take(struct stage_state *state, uint64_t chunk, uint32_t seen, uint32_t claim)
{
    return atomic_compare_exchange_strong(&state->chunk[chunk], &seen, claim);
}

bool stage_claim_stream(struct stage_state *state, uint64_t chunk, uint32_t generation)
{
    uint32_t claim = CLAIM_STREAM | generation;
    uint32_t seen = atomic_load_explicit(&state->chunk[chunk], memory_order_relaxed);
    if (seen == CHUNK_HERE || seen == claim) /* another thread of this copier has it */
        return false;
    if (seen >= CLAIM_FIRST && !(seen & CLAIM_STREAM) && !claim_is_old(seen))
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
    uint32_t current = CLAIM_STREAM | atomic_load(&state->generation);
    if (seen == CHUNK_HERE || (seen == current && !copier_is_stuck(state)))
        return false;
    if (seen >= CLAIM_FIRST && !(seen & CLAIM_STREAM) && !claim_is_old(seen))
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

struct stage_places stage_places(const char *given)
{
    struct stage_places places;
    struct stat st;
    if (!given)
        places.count = runtime_places(RUNTIME_COPIES, places.path);
    else
        places.count = path_real(given, places.path[0], NULL) == 0 &&
                       stat(places.path[0], &st) == 0 && S_ISDIR(st.st_mode);
    return places;
}

static int folder_path(const char *place, char ret_path[PATH_MAX])
{
    int n = snprintf(ret_path, PATH_MAX, "%s/onepot-stage-%u", strcmp(place, "/") ? place : "",
                     place_uid());
    return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

void stage_folder_explain(const char *place, int err, char *buf, size_t size)
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

void stage_folder_remove(const struct registry *folder, const char *name)
{
    registry_unlink(folder->fd, name, ".copy");
    registry_unlink(folder->fd, name, ".state");
}

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

int stage_folder_each(const struct registry *folder,
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

int stage_room_of(const char *place, struct stage_room *ret_room)
{
    struct statvfs space;
    auto_close int fd = open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &space) < 0)
        return -errno;
    struct storage storage = storage_of(fd);
    struct stage_room room = {.memory_bytes = UINT64_MAX, .is_local = storage.is_local};
    if (__builtin_mul_overflow((uint64_t)space.f_bavail, (uint64_t)space.f_frsize,
                               &room.free_bytes))
        room.free_bytes = INT64_MAX;
    if (storage.is_memory) {
        room.memory_bytes = budget_free_bytes("");
        if (space.f_blocks == 0) /* the filesystem has no limit */
            room.free_bytes = room.memory_bytes;
    }
    *ret_room = room;
    return 0;
}

/* ---- the files of a copy ---- */

#define SPARE_SHARE 16u /* of the room stays free, in memory and in a filesystem */
/*
 * Memory of the job that no copy may take: the copier's streams have a chunk each, and the
 * daemon, its readers and the command need some, too. Without it they would be killed.
 */
#define RESERVE_BYTES ((STAGE_STREAMS + 20u) * (uint64_t)STAGE_CHUNK_BYTES)
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

bool stage_stays(const struct stage_state *state)
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

void stage_sweep_folder(const struct registry *folder)
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

uint64_t stage_room_left(const struct stage_room *room, const struct registry *folder)
{
    uint64_t pending = 0, memory = room->memory_bytes;
    if (memory != UINT64_MAX)
        memory -= min_u64(memory, RESERVE_BYTES);
    uint64_t has = min_u64(memory, room->free_bytes);
    stage_folder_each(folder, stage_add_pending, &pending);
    has -= has / SPARE_SHARE;
    return has > pending ? has - pending : 0;
}

/* ---- a copy that is there ---- */

void stage_name_for(struct stage *stage)
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

int stage_map_copy(struct stage *stage)
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

void stage_release(struct stage *stage)
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

/* -ENOENT: there is none; -EUCLEAN: there is one, in use, but not of this archive. */
int stage_use(struct stage *stage, const struct registry *folder)
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

int stage_reserve(const struct stage *stage)
{
    off_t bytes = (off_t)stage->bytes;
    if (ftruncate(stage->copy_fd, bytes) < 0 ||
        (!storage_of(stage->copy_fd).is_memory && fallocate(stage->copy_fd, 0, 0, bytes) < 0 &&
         errno != EOPNOTSUPP && !syscall_is_missing(errno)))
        return -errno;
    return 0;
}

int stage_new_state(struct stage *stage, int fd, uint64_t bytes)
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

int stage_create(struct stage *stage, const struct registry *folder)
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

int stage_adopt(struct stage *stage, const struct registry *folder)
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
