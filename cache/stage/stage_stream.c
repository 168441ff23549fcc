/*
 * Copies that are unpacked while they are read. The index says how long one will be. So it is
 * known beforehand whether there is room for it, and each byte has its place before it comes.
 *
 * Shared copies are found and made as those of plain archives are. A private one is for users
 * that did not ask for staging: a file without a name, with its state in memory that forked
 * processes share.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "output.h"
#include "stage_private.h"

#define MEMORY_SHARE 2 /* half of what the job has left; readers of the data need some, too */

/* ---- private copies ---- */

static bool has_room(const char *place, uint64_t bytes)
{
    struct stage_room room;
    if (stage_room_of(place, &room) < 0 || !room.is_local)
        return false;
    return bytes <= room.free_bytes &&
           (room.memory_bytes == UINT64_MAX || bytes <= room.memory_bytes / MEMORY_SHARE);
}

static int make_private_state(struct stage *stage, const char *archive)
{
    struct source_identity id;
    struct stage_state *state = mmap(NULL, stage_state_size(stage->bytes),
                                     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (state == MAP_FAILED)
        return -errno;
    source_identity(stage->source, &id);
    stage_state_init(state, &id, stage->bytes, archive, stage->place);
    stage->state = state;
    return 0;
}

static int make_private_in(struct stage *stage, const char *place, const char *archive)
{
    if (!has_room(place, stage->bytes))
        return -ENOSPC;
    int fd = output_nameless(place);
    if (fd < 0)
        return fd;
    stage->copy_fd = fd;
    snprintf(stage->place, sizeof(stage->place), "%s", place);
    snprintf(stage->folder, sizeof(stage->folder), "%s", place);
    int r = ftruncate(fd, (off_t)stage->bytes) < 0 ? -errno : 0;
    if (r == 0 && !storage_of(fd).is_memory && fallocate(fd, 0, 0, (off_t)stage->bytes) < 0 &&
        errno != EOPNOTSUPP)
        r = -errno;
    if (r == 0)
        r = make_private_state(stage, archive);
    if (r == 0)
        r = stage_map_copy(stage);
    if (r < 0)
        stage_release(stage);
    return r;
}

static int make_private(struct stage *stage, const char *archive, struct fault *fault)
{
    char(*places)[PATH_MAX] = malloc(STAGE_PLACES_MAX * PATH_MAX);
    if (!places)
        return -ENOMEM;
    size_t count = stage_places(NULL, places);
    int r = -ENOSPC;
    for (size_t i = 0; r < 0 && i < count; i++)
        r = make_private_in(stage, places[i], archive);
    free(places);
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
    int r = is_private ? make_private(stage, archive, fault)
                       : stage_find_or_make(stage, archive, options->place, fault);
    if (r < 0) {
        free(stage);
        return r;
    }
    *ret_stage = stage;
    return 0;
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
