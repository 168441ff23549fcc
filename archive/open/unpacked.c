/*
 * A private copy of the content of a compressed archive.
 *
 * It goes into memory if it fits: into /dev/shm, up to half of the job's memory, so that the
 * reader of the data keeps the other half. Its size is not known before it is unpacked. A guess
 * avoids hopeless attempts, and the limit on the size of a written file ends an attempt that
 * proves too large. Then it starts again on disk, in $TMPDIR or /tmp.
 *
 * The file has no name from the start (or loses it at once if the filesystem can't do that),
 * so that nothing is left behind however this process ends.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <xxhash.h>

#include "budget.h"
#include "cleanup.h"
#include "clock.h"
#include "numbers.h"
#include "output.h"
#include "pot_private.h"
#include "source_retry.h"

#define UNPACK_MEMORY_LEAST (UINT64_C(1) << 29) /* of private memory: */
#define UNPACK_MEMORY_MOST (UINT64_C(3) << 30)  /* xz and zstd may want large windows */

enum {
    GUESSED_RATIO = 3, /* how much compression usually shrinks a tar */
    MEMORY_SHARE = 2,  /* one half of the memory */
    PLACES = 3,
    EXPAND_WATCH_MS = 20,
    PROBE_BYTES = 256 << 10, /* as much as is read at once */
};

struct unpacking {
    const struct backend *backend;
    struct source *packed;
    const struct pot_options *options;
    uint64_t most; /* bytes that may be in it, without zeros */
    int fd;
    uint64_t kept;      /* bytes already in it */
    const char *folder; /* that it was unpacked to; NULL: nowhere */
};

uint64_t unpacked_most(const struct source *packed, const struct pot_options *options)
{
    uint64_t most, ratio = options->max_ratio ? options->max_ratio : POT_RATIO;
    if (ratio == POT_RATIO_OFF || __builtin_mul_overflow(source_size(packed), ratio, &most))
        return UINT64_MAX;
    return most > POT_RATIO_FLOOR_BYTES ? most : POT_RATIO_FLOOR_BYTES;
}

uint64_t pot_memory_bytes(const struct pot_options *options)
{
    uint64_t available = budget_memory_bytes("");
    return options->memory_bytes ? min_u64(options->memory_bytes, available) : available;
}

static int unpacked_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct unpacking *u = arg;
    return u->backend->stream->unpack(u->packed, u->fd, u->kept, u->most, progress, fault);
}

/* Bytes that may be written there; 0 if none can be. */
static uint64_t unpacked_room_in(const char *folder, const struct pot_options *options)
{
    struct statvfs space;
    struct statfs fs;
    if (statvfs(folder, &space) < 0 || statfs(folder, &fs) < 0)
        return 0;
    uint64_t room;
    if (__builtin_mul_overflow((uint64_t)space.f_bavail, (uint64_t)space.f_frsize, &room))
        room = INT64_MAX;
    if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) {
        uint64_t memory = pot_memory_bytes(options) / MEMORY_SHARE;
        if (fs.f_type == RAMFS_MAGIC || (space.f_blocks == 0 && room == 0) || room > memory)
            room = memory; /* some filesystems have no limit of their own */
    }
    return room;
}

/* Limits for the child that unpacks. */
static struct sandbox_limits unpacked_limits(const struct unpacking *u, uint64_t room)
{
    uint64_t memory = max_u64(budget_memory_bytes("") / MEMORY_SHARE, UNPACK_MEMORY_LEAST);
    return (struct sandbox_limits){.memory_bytes = min_u64(memory, UNPACK_MEMORY_MOST),
                                   .file_bytes = room,
                                   .keep_source = u->packed,
                                   .keep_fds = &u->fd,
                                   .keep_fd_count = 1};
}

/* struct pot_unpacker. -ENOSPC when it does not fit. */
static int unpacked_into(void *arg, int fd, const char *folder, uint64_t room,
                         struct fault *fault)
{
    struct unpacking *u = arg;
    char doing[128];
    snprintf(doing, sizeof(doing), "unpacking to %.100s", folder);
    u->fd = fd;
    u->folder = folder;
    const struct sandbox_limits limits = unpacked_limits(u, room);
    int r = pot_run(u->options, source_name(u->packed), doing, unpacked_in_child, u, &limits,
                    fault);
    return r == -EFBIG || r == -EDQUOT ? -ENOSPC : r;
}

static int unpacked_privately(struct unpacking *u, const char *folder, uint64_t room,
                              struct fault *fault, int *ret_fd)
{
    auto_close int fd = output_nameless(folder);
    if (fd < 0)
        return fd;
    int r = unpacked_into(u, fd, folder, room, fault);
    if (r == 0)
        *ret_fd = steal_fd(&fd);
    return r;
}

static bool unpacked_means_another_place(int err)
{
    return err == -ENOSPC || err == -EACCES || err == -EPERM || err == -ENOENT ||
           err == -ENOTDIR || err == -EROFS || err == -EOPNOTSUPP;
}

/* Unpack into the first place where it fits. */
static int unpacked_somewhere(struct unpacking *u, struct fault *fault, int *ret_fd)
{
    const char *const places[PLACES] = {"/dev/shm", getenv("TMPDIR"), "/tmp"};
    uint64_t guess = source_size(u->packed) * GUESSED_RATIO;
    uint64_t most = 0;
    for (int i = 0; i < PLACES; i++) {
        if (!places[i] || places[i][0] != '/')
            continue;
        uint64_t room = unpacked_room_in(places[i], u->options);
        /*
         * Try memory only if the content probably fits; on disk the only way to know is to
         * try.
         */
        if (room == 0 || (i == 0 && guess > room))
            continue;
        struct fault ignored = {0};
        int r = unpacked_privately(u, places[i], room, &ignored, ret_fd);
        if (r == 0)
            return 0;
        bool of_content = r == -ENOTSUP && ignored.err; /* not of the filesystem */
        if (of_content || !unpacked_means_another_place(r)) {
            if (fault && !fault->err)
                *fault = ignored;
            return r;
        }
        if (room > most)
            most = room;
    }
    fault_set(fault, -ENOSPC, NULL, FAULT_NO_OFFSET,
              "has to be unpacked, but there is no room: at most %" PRIu64
              " MiB in /dev/shm, $TMPDIR or /tmp",
              most >> 20);
    fault_advise(fault, "set TMPDIR to a folder with more room, or make an onepot archive of "
                        "it with 'onepot pack' elsewhere");
    return -ENOSPC;
}

int pot_expand(const struct pot_stream *stream, int fd, uint64_t kept,
               const struct pot_patience *patience, sandbox_watch *watch, void *ctx,
               struct fault *fault)
{
    struct unpacking u = {
        .backend = stream->backend,
        .packed = stream->packed,
        .most = UINT64_MAX, /* its length is known */
        .fd = fd,
        .kept = kept,
    };
    struct sandbox_limits limits = unpacked_limits(&u, stream->bytes);
    limits.idle_seconds = patience->idle_seconds;
    limits.watch_ms = EXPAND_WATCH_MS;
    limits.watch_at_once = true;
    limits.stop = patience->stop;
    return sandbox_run(unpacked_in_child, &u, &limits, watch, ctx, fault);
}

/* ---- does its storage answer? ---- */

struct storage_probe {
    const struct source *packed;
    uint64_t offset;
};

static int unpacked_run_probe(void *arg, struct progress *progress, struct fault *fault)
{
    static uint8_t bytes[PROBE_BYTES];
    const struct storage_probe *probe = arg;
    uint64_t left = source_size(probe->packed) - probe->offset;
    (void)progress, (void)fault;
    return source_read(probe->packed, bytes,
                       left < sizeof(bytes) ? (size_t)left : sizeof(bytes), probe->offset);
}

int pot_probe_storage(const struct pot_stream *stream, uint64_t offset,
                      const struct pot_patience *patience)
{
    uint64_t size = source_size(stream->packed);
    struct storage_probe probe = {stream->packed, offset < size ? offset : 0};
    struct sandbox_limits limits = {
        .keep_source = stream->packed,
        .idle_seconds = patience->idle_seconds,
        .watch_ms = EXPAND_WATCH_MS,
        .stop = patience->stop,
    };
    int r = sandbox_run(unpacked_run_probe, &probe, &limits, NULL, NULL, NULL);
    /* Only this process can open a stale handle again, and a stale handle answers at once. */
    if (r < 0 && r != -ETIMEDOUT && source_error_may_pass(r)) {
        uint8_t byte;
        r = source_read(stream->packed, &byte, 1, probe.offset);
    }
    return r;
}

int unpacked_sums(struct source *source, struct builder_header *header,
                  struct progress *progress)
{
    uint64_t bytes = source_size(source);
    uint64_t count = index_windows_of(bytes);
    uint64_t *sums = malloc((count + 1) * sizeof(*sums));
    uint8_t *window = malloc(INDEX_WINDOW_BYTES);
    int r = sums && window ? 0 : -ENOMEM;
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t at = i * INDEX_WINDOW_BYTES, left = bytes - at;
        size_t len = left < INDEX_WINDOW_BYTES ? (size_t)left : (size_t)INDEX_WINDOW_BYTES;
        r = source_read(source, window, len, at);
        if (r == 0)
            sums[i] = XXH3_64bits(window, len);
        progress->beats++;
    }
    header->window_sums = sums;
    header->window_count = count;
    return r;
}

/* Unpack the source, into the store if there is one, and open that. */
static int unpacked_open_content(struct unpacking *u, const char *compression,
                                 struct fault *fault, struct source **ret_source)
{
    const struct pot_unpacker unpacker = {unpacked_into, u};
    const struct pot_store *store = u->options->store;
    const char *name = source_name(u->packed);
    int fd = -1, r;
    if (store && store->open) {
        r = store->open(store->ctx, u->packed, &unpacker, fault, ret_source);
    } else {
        r = unpacked_somewhere(u, fault, &fd);
        r = r < 0 ? r : source_from_fd(fd, name, ret_source);
    }
    if (r == 0 && u->folder && source_size(*ret_source) > 0)
        pot_note(u->options, name,
                 "is one %s stream: unpacked %" PRIu64
                 " bytes to %s; an archive by 'onepot pack' would make this unnecessary",
                 compression, source_size(*ret_source), u->folder);
    return r;
}

int unpacked_open(struct opening *o, struct fault *fault)
{
    struct pot *pot = o->pot;
    struct source *content = NULL;
    uint64_t start_ms = now_ms();
    if (!o->compression)
        return OPENER_NOT_MINE;
    struct unpacking u = {.backend = pot->backend,
                          .packed = pot->source,
                          .options = o->options,
                          .most = unpacked_most(pot->source, o->options)};
    int r = unpacked_open_content(&u, o->compression, fault, &content);
    if (r < 0)
        return r;
    o->unpack_ms = now_ms() - start_ms;
    pot->compression = o->compression;
    o->compression = NULL;
    pot->packed = pot->source; /* saved indexes are found by the packed file */
    pot->source = content;
    if (source_size(content) > 0) /* its back end has said what nothing is */
        r = backend_find(content, fault, &pot->backend, NULL);
    return r < 0 ? r : OPENER_NOT_MINE;
}

int unpacked_open_stream(struct opening *o, struct fault *fault)
{
    struct pot *pot = o->pot;
    const struct pot_store *store = o->options->store;
    struct source *source = NULL;
    if (!o->stream_index)
        return OPENER_NOT_MINE;
    const struct pot_stream stream = {.backend = pot->backend,
                                      .packed = pot->source,
                                      .index = o->stream_index,
                                      .bytes = index_info(o->stream_index)->archive_bytes};
    /*
     * Without a store, the caller needs only the index. A long stream is unpacked first, as
     * only that shows how many of its bytes are zeros.
     */
    int r = !store ? 0
            : stream.bytes > unpacked_most(pot->source, o->options)
                ? -ENOSPC
                : store->expand(store->ctx, &stream, fault, &source);
    if (r < 0) {
        free(pot->index_path);
        pot->index_path = NULL;
        return r == -ENOSPC ? OPENER_NOT_MINE : r;
    }
    if (source) {
        pot->packed = pot->source;
        pot->source = source;
    }
    pot->compression = o->compression;
    pot->index = o->stream_index;
    o->stream_index = NULL;
    return 0;
}
