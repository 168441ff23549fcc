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
#include <unistd.h>

#include "cleanup.h"
#include "output.h"
#include "stage_private.h"

#define MEMORY_SHARE 2 /* half of the job's free memory; readers need some, too */

/* ---- of unknown length ---- */

int stage_look_unpacked(struct stage *stage, const struct registry *folder, int used)
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

int stage_unpack(struct stage *stage, struct fault *fault)
{
    const struct pot_unpacker *unpacker = stage->unpacker;
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

/* The whole copy, found or made, as a separate source. */
static int store_open(void *ctx, struct source *packed, const struct pot_unpacker *unpacker,
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
    struct stage_room room;
    if (stage_room_of(place, &room) < 0 || !room.is_local)
        return false;
    return bytes <= room.free_bytes &&
           (room.memory_bytes == UINT64_MAX || bytes <= room.memory_bytes / MEMORY_SHARE);
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
    const struct stage_places places = stage_places(NULL);
    int r = -ENOSPC;
    for (size_t i = 0; r < 0 && i < places.count; i++)
        r = private_make_in(stage, places.path[i]);
    return r < 0 ? fault_set(fault, -ENOSPC, NULL, FAULT_NO_OFFSET,
                             "has to be unpacked, but there is no room")
                 : 0;
}

/* ---- private and shared copies of a known length ---- */

/* If another copy is in the way, report it as a lack of room. */
static int store_expand(void *ctx, const struct pot_stream *stream, struct fault *fault,
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

struct pot_store stage_pot_store(struct stage_store *store)
{
    return (struct pot_store){
        .open = store->is_private ? NULL : store_open, .expand = store_expand, .ctx = store};
}
