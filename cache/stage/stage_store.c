/*
 * Copies of the content of archives that are compressed in one piece.
 *
 * Without an index, the length of one is not known until it is complete. So it has no state
 * until then, and nobody reads it. The process that makes it holds the lock on its file, and
 * the others wait for that lock.
 *
 * With an index, the length is known. So it is known beforehand whether there is room for it,
 * each byte has its place before it comes, and the copy is read while it is unpacked
 * (stage_stream.c). A shared one is found and created in the same way as a plain archive's. A
 * private one is for users that did not ask for staging: a file without a name, with its state
 * in memory that forked processes share.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cleanup.h"
#include "numbers.h"
#include "output.h"
#include "stage_private.h"

enum {
    GUESSED_RATIO = 3, /* how much smaller compression usually makes a tar */
    MEMORY_SHARE = 2,  /* half of the job's free memory; readers need some, too */
};

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
static int unpack_leave(struct stage *stage, const struct registry *folder, int *ret_fd)
{
    stage_release(stage);
    int r = registry_open(folder->fd, stage->name, ".copy", O_RDWR, ret_fd);
    if (r < 0)
        return r;
    if (flock(*ret_fd, LOCK_SH | LOCK_NB) < 0)
        return -EAGAIN;
    close(*ret_fd);
    return -EBUSY;
}

/* 0: the whole copy; -ENOENT: there is none; -EAGAIN with *ret_fd: a process makes it. */
static int unpack_look_in(struct stage *stage, const struct registry *folder, int *ret_fd)
{
    int r = stage_use(stage, folder);
    if (r == 0 && !atomic_load(&stage->state->whole))
        return unpack_leave(stage, folder, ret_fd);
    if (r != -ENOENT)
        return r;
    r = registry_open(folder->fd, stage->name, ".copy", O_RDWR, ret_fd);
    return r == 0 ? -EAGAIN : r;
}

static int unpack_find_in(struct stage *stage, const char *place, int *ret_fd)
{
    struct registry folder;
    int r = stage_folder_lock(place, false, &folder);
    if (r < 0)
        return -ENOENT;
    strcpy(stage->place, place);
    strcpy(stage->folder, folder.path);
    stage_sweep_folder(&folder);
    r = unpack_look_in(stage, &folder, ret_fd);
    registry_remove(&folder);
    return r;
}

/* Wait until unpacking is done, or its process gone. -EAGAIN: look again; -EINTR: a signal. */
static int unpack_wait(int fd)
{
    int r = flock(fd, LOCK_SH) < 0 ? -errno : -EAGAIN;
    close(fd);
    return r;
}

static int unpack_find(struct stage *stage, const struct stage_places *places)
{
    int r = -ENOENT;
    for (size_t i = 0; (r == -ENOENT || r == -EBUSY) && i < places->count; i++) {
        int fd = -1;
        r = unpack_find_in(stage, places->path[i], &fd);
        if (r == -EAGAIN)
            return unpack_wait(fd);
    }
    return r == -EBUSY ? -ENOENT : r;
}

/* How much may be written in a place. 0: nothing, or it would probably be in vain. */
static uint64_t unpack_room(const struct unpacking *u, const struct registry *folder)
{
    struct stage_room room;
    if (stage_room_of(u->stage->place, &room) < 0 || !room.is_local)
        return 0;
    bool is_memory = room.memory_bytes != UINT64_MAX;
    uint64_t has = stage_room_left(&room, folder);
    return is_memory && has / GUESSED_RATIO < source_size(u->stage->source) ? 0 : has;
}

/* Make an empty file and lock it. */
static int unpack_begin(struct unpacking *u, const char *place, uint64_t *ret_room)
{
    struct stage *stage = u->stage;
    struct registry folder;
    int fd = -1, r = stage_folder_lock(place, true, &folder);
    if (r < 0)
        return r;
    strcpy(stage->place, place);
    strcpy(stage->folder, folder.path);
    r = unpack_look_in(stage, &folder, &fd);
    if (r == -EAGAIN)
        close(fd);
    *ret_room = r == -ENOENT ? unpack_room(u, &folder) : 0;
    u->most = max_u64(*ret_room, u->most);
    if (r == -ENOENT)
        r = *ret_room ? registry_open(folder.fd, stage->name, ".copy",
                                      O_RDWR | O_CREAT | O_EXCL, &stage->copy_fd)
                      : -ENOSPC;
    else if (r == 0)
        r = -EEXIST;
    if (r == 0 && flock(stage->copy_fd, LOCK_EX | LOCK_NB) < 0)
        r = -errno;
    registry_remove(&folder);
    return r;
}

/* Publish the copy, or remove it. */
static int unpack_end(struct unpacking *u, int err)
{
    struct stage *stage = u->stage;
    struct registry folder;
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
    registry_remove(&folder);
    return r;
}

/* -ENOSPC and the like: try the next place. -EAGAIN: look again. */
static int unpack_make_in(struct unpacking *u, const char *place)
{
    uint64_t room;
    int r = unpack_begin(u, place, &room);
    if (r == -EEXIST) /* another process was faster */
        return 0;
    if (r < 0)
        return r;
    struct fault fault = {0};
    r = u->unpacker->unpack(u->unpacker->arg, u->stage->copy_fd, u->stage->folder, room,
                            &fault);
    if (r < 0 && u->fault && r != -ENOSPC)
        *u->fault = fault;
    return unpack_end(u, r);
}

static bool means_another_place(int err)
{
    return err == -ENOSPC || err == -EACCES || err == -EPERM || err == -ENOENT ||
           err == -EROFS || err == -ETIMEDOUT || err == -EBUSY;
}

static int unpack_make(struct unpacking *u, const struct stage_places *places)
{
    for (size_t i = 0; i < places->count; i++) {
        int r = unpack_make_in(u, places->path[i]);
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
    const struct stage_places places = stage_places(options->place);
    struct stage *stage = stage_new(packed, options);
    struct unpacking u = {
        .stage = stage, .archive = archive, .unpacker = unpacker, .fault = fault};
    int r = -EAGAIN;
    if (!stage)
        return -ENOMEM;
    stage_name_for(stage, archive, true);
    while (r == -EAGAIN) {
        r = unpack_find(stage, &places);
        if (r == -ENOENT)
            r = unpack_make(&u, &places);
    }
    if (r < 0) {
        free(stage);
        return r;
    }
    *ret_stage = stage;
    return 0;
}

/* ---- private copies ---- */

static bool private_has_room(const char *place, uint64_t bytes)
{
    struct stage_room room;
    if (stage_room_of(place, &room) < 0 || !room.is_local)
        return false;
    return bytes <= room.free_bytes &&
           (room.memory_bytes == UINT64_MAX || bytes <= room.memory_bytes / MEMORY_SHARE);
}

static int private_state(struct stage *stage, const char *archive)
{
    struct stage_state *state = mmap(NULL, stage_state_size(stage->bytes),
                                     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED)
        return -errno;
    stage_state_init(state, stage->source, stage->bytes, archive, stage->place);
    stage->state = state;
    return 0;
}

static int private_make_in(struct stage *stage, const char *place, const char *archive)
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
    int r = ftruncate(fd, (off_t)stage->bytes) < 0 ? -errno : 0;
    if (r == 0 && !storage_of(fd).is_memory && fallocate(fd, 0, 0, (off_t)stage->bytes) < 0 &&
        errno != EOPNOTSUPP)
        r = -errno;
    if (r == 0)
        r = private_state(stage, archive);
    if (r == 0)
        r = stage_map_copy(stage);
    if (r < 0)
        stage_release(stage);
    return r;
}

static int private_make(struct stage *stage, const char *archive, struct fault *fault)
{
    const struct stage_places places = stage_places(NULL);
    int r = -ENOSPC;
    for (size_t i = 0; r < 0 && i < places.count; i++)
        r = private_make_in(stage, places.path[i], archive);
    return r < 0 ? fault_set(fault, -ENOSPC, NULL, FAULT_NO_OFFSET,
                             "has to be unpacked, but there is no room")
                 : 0;
}

/* ---- private and shared copies ---- */

int stage_open_stream(const struct pot_stream *stream, const struct stage_options *options,
                      bool is_private, struct fault *fault, struct stage **ret_stage)
{
    const char *archive = options->archive ? options->archive : source_name(stream->packed);
    struct stage *stage = stage_new(stream->packed, options);
    if (!stage)
        return -ENOMEM;
    stage->bytes = stream->bytes;
    stage->stream = *stream;
    stage->idle_s = options->idle_s;
    stage->expands = true;
    stage_name_for(stage, archive, true);
    int r = is_private ? private_make(stage, archive, fault)
                       : stage_find_or_make(stage, archive, options->place, fault);
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

/* If another copy is in the way, report it as a lack of room. */
static int store_expand(void *ctx, const struct pot_stream *stream, struct fault *fault,
                        struct source **ret_source)
{
    struct stage_store *store = ctx;
    int r = stage_open_stream(stream, &store->options, store->is_private, fault, &store->stage);
    if (r < 0)
        return r == -ENOMEM ? r : -ENOSPC;
    return stage_stream_source(store->stage, source_name(stream->packed), ret_source);
}

struct pot_store stage_pot_store(struct stage_store *store)
{
    return (struct pot_store){.open = store->is_private ? NULL : stage_store_open,
                              .expand = store_expand,
                              .ctx = store};
}
