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
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "job.h"
#include "numbers.h"
#include "path.h"
#include "process.h"
#include "stage_private.h"
#include "syscalls.h"

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
    bool is_other = r == -EEXIST; /* a process unpacks into it: see stage_store.c */
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
