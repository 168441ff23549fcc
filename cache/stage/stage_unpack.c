/*
 * Copies of the content of archives that are compressed in one piece, unpacked once for all
 * mounts of a node. The length of one is not known until it is complete. So it has no state
 * until then, and nobody reads it. The process that makes it holds the lock on its file, and
 * the others wait for that lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "cleanup.h"
#include "stage_private.h"

enum { GUESSED_RATIO = 3 }; /* how much smaller compression usually makes a tar */

struct unpacking {
    struct stage *stage;
    const char *archive;
    const struct pot_unpacker *unpacker;
    struct fault *fault;
    uint64_t most; /* the most room that any place had */
};

/*
 * Leave alone a copy that others read while it is unpacked. -EAGAIN with *ret_fd: a process
 * unpacks it; -EBUSY: none does, so it is of no use to us.
 */
static int leave(struct stage *stage, const struct stage_folder *folder, int *ret_fd)
{
    stage_release(stage);
    int r = stage_folder_open(folder, stage->name, ".copy", false, ret_fd);
    if (r < 0)
        return r;
    if (flock(*ret_fd, LOCK_SH | LOCK_NB) < 0)
        return -EAGAIN;
    close(*ret_fd);
    return -EBUSY;
}

/* 0: the whole copy; -ENOENT: there is none; -EAGAIN with *ret_fd: a process makes it. */
static int look_in(struct stage *stage, const struct stage_folder *folder, int *ret_fd)
{
    int r = stage_use(stage, folder);
    if (r == 0 && !atomic_load(&stage->state->whole))
        return leave(stage, folder, ret_fd);
    if (r != -ENOENT)
        return r;
    r = stage_folder_open(folder, stage->name, ".copy", false, ret_fd);
    return r == 0 ? -EAGAIN : r;
}

static int find_in(struct stage *stage, const char *place, int *ret_fd)
{
    struct stage_folder folder;
    int r = stage_folder_lock(place, false, &folder);
    if (r < 0)
        return -ENOENT;
    strcpy(stage->place, place);
    strcpy(stage->folder, folder.path);
    stage_sweep_folder(&folder);
    r = look_in(stage, &folder, ret_fd);
    stage_folder_unlock(&folder);
    return r;
}

/* Wait until unpacking is done, or its process gone. -EAGAIN: look again; -EINTR: a signal. */
static int wait_for(int fd)
{
    int r = flock(fd, LOCK_SH) < 0 ? -errno : -EAGAIN;
    close(fd);
    return r;
}

static int find(struct stage *stage, char places[][PATH_MAX], size_t count)
{
    int r = -ENOENT;
    for (size_t i = 0; (r == -ENOENT || r == -EBUSY) && i < count; i++) {
        int fd = -1;
        r = find_in(stage, places[i], &fd);
        if (r == -EAGAIN)
            return wait_for(fd);
    }
    return r == -EBUSY ? -ENOENT : r;
}

/* How much may be written in a place. 0: nothing, or it would probably be in vain. */
static uint64_t room_in(const struct unpacking *u, const struct stage_folder *folder)
{
    struct stage_room room;
    if (stage_room_of(u->stage->place, &room) < 0 || !room.is_local)
        return 0;
    bool is_memory = room.memory_bytes != UINT64_MAX;
    uint64_t has = room.memory_bytes < room.free_bytes ? room.memory_bytes : room.free_bytes;
    uint64_t pending = stage_pending(folder);
    has -= has / STAGE_SPARE_SHARE;
    has = has > pending ? has - pending : 0;
    return is_memory && has / GUESSED_RATIO < source_size(u->stage->source) ? 0 : has;
}

/* Make an empty file and lock it. */
static int begin(struct unpacking *u, const char *place, uint64_t *ret_room)
{
    struct stage *stage = u->stage;
    struct stage_folder folder;
    int fd = -1, r = stage_folder_lock(place, true, &folder);
    if (r < 0)
        return r;
    strcpy(stage->place, place);
    strcpy(stage->folder, folder.path);
    r = look_in(stage, &folder, &fd);
    if (r == -EAGAIN)
        close(fd);
    *ret_room = r == -ENOENT ? room_in(u, &folder) : 0;
    u->most = *ret_room > u->most ? *ret_room : u->most;
    if (r == -ENOENT)
        r = *ret_room ? stage_folder_open(&folder, stage->name, ".copy", true, &stage->copy_fd)
                      : -ENOSPC;
    else if (r == 0)
        r = -EEXIST;
    if (r == 0 && flock(stage->copy_fd, LOCK_EX | LOCK_NB) < 0)
        r = -errno;
    stage_folder_unlock(&folder);
    return r;
}

/* Publish the copy, or remove it. */
static int end(struct unpacking *u, int err)
{
    struct stage *stage = u->stage;
    struct stage_folder folder;
    int r = stage_folder_lock(stage->place, false, &folder);
    if (r < 0) {
        stage_release(stage);
        return err < 0 ? err : r;
    }
    r = err < 0 ? err : stage_adopt(stage, &folder, u->archive);
    if (r < 0) {
        stage_folder_remove(&folder, stage->name);
        stage_release(stage);
    } else {
        flock(stage->copy_fd, LOCK_UN);
    }
    stage_folder_unlock(&folder);
    return r;
}

/* -ENOSPC and the like: try the next place. -EAGAIN: look again. */
static int make_in(struct unpacking *u, const char *place)
{
    uint64_t room;
    int r = begin(u, place, &room);
    if (r == -EEXIST) /* another process was faster */
        return 0;
    if (r < 0)
        return r;
    struct fault fault = {0};
    r = u->unpacker->unpack(u->unpacker->arg, u->stage->copy_fd, u->stage->folder, room,
                            &fault);
    if (r < 0 && u->fault && r != -ENOSPC)
        *u->fault = fault;
    return end(u, r);
}

static bool means_another_place(int err)
{
    return err == -ENOSPC || err == -EACCES || err == -EPERM || err == -ENOENT ||
           err == -EROFS || err == -ETIMEDOUT || err == -EBUSY;
}

static int make(struct unpacking *u, char places[][PATH_MAX], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int r = make_in(u, places[i]);
        if (!means_another_place(r))
            return r;
    }
    fault_set(u->fault, -ENOSPC, NULL, FAULT_NO_OFFSET,
              "has to be unpacked, but there is no room: at most %llu MiB",
              (unsigned long long)(u->most >> 20));
    fault_advise(u->fault,
                 "name a folder of this node with more room (--stage=DIR), or make an "
                 "onepot archive of it with 'onepot pack' elsewhere");
    return -ENOSPC;
}

int stage_open_unpacked(const struct source *packed, const struct stage_options *options,
                        const struct pot_unpacker *unpacker, struct fault *fault,
                        struct stage **ret_stage)
{
    const char *archive = options->archive ? options->archive : source_name(packed);
    char(*places)[PATH_MAX] = malloc(STAGE_PLACES_MAX * PATH_MAX);
    struct stage *stage = places ? stage_new(packed, options) : NULL;
    struct unpacking u = {
        .stage = stage, .archive = archive, .unpacker = unpacker, .fault = fault};
    size_t count = places ? stage_places(options->place, places) : 0;
    int r = stage ? -EAGAIN : -ENOMEM;
    if (stage)
        stage_name_for(stage, archive, true);
    while (r == -EAGAIN) {
        r = find(stage, places, count);
        if (r == -ENOENT)
            r = make(&u, places, count);
    }
    free(places);
    if (r < 0) {
        free(stage);
        return r;
    }
    *ret_stage = stage;
    return 0;
}

int stage_source(const struct stage *stage, const char *name, struct source **ret_source)
{
    int fd = fcntl(stage->copy_fd, F_DUPFD_CLOEXEC, 3);
    return fd < 0 ? -errno : source_from_fd(fd, name, ret_source);
}

int stage_store_open(void *ctx, struct source *packed, const struct pot_unpacker *unpacker,
                     struct fault *fault, struct source **ret_source)
{
    struct stage_store *store = ctx;
    int r = stage_open_unpacked(packed, &store->options, unpacker, fault, &store->stage);
    return r < 0 ? r : stage_source(store->stage, source_name(packed), ret_source);
}
