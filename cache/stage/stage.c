/*
 * Finds a copy, makes room for one, and removes it. All decisions are made under the lock of
 * the folder, and none takes long.
 */
#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "clock.h"
#include "numbers.h"
#include "output.h"
#include "stage_private.h"

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
static uint64_t stage_bytes_needed(const struct stage *stage, const struct stage_room *room)
{
    if (!stage->unpacker)
        return stage->bytes + stage_state_size(stage->bytes);
    return room->memory_bytes == UINT64_MAX
               ? 1
               : min_u64(stage->bytes, UINT64_MAX / GUESSED_RATIO) * GUESSED_RATIO;
}

/* Is there room for the whole copy? Under the folder's lock. */
static int stage_check_room(struct stage *stage, const struct registry *folder,
                            struct reasons *reasons)
{
    struct stage_room room;
    int r = stage_room_of(stage->place, &room);
    if (r < 0)
        return reasons_add(reasons, r, "%s: %s", stage->place, fault_errno(r));
    if (!room.is_local)
        return reasons_add(reasons, -ENOTSUP, "%s is on a network filesystem", stage->place);
    uint64_t has = stage->room = stage_room_left(&room, folder);
    if (stage_bytes_needed(stage, &room) > has)
        return reasons_add(
            reasons, -ENOSPC, "%s has %" PRIu64 " MiB for it%s", stage->place, has >> 20,
            room.memory_bytes < room.free_bytes ? " (memory that this job has left)" : "");
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

static int stage_find(struct stage *stage, const struct stage_places *places)
{
    int r = -ENOENT;
    for (size_t i = 0; stage_seeks(stage, r) && i < places->count; i++)
        r = stage_try_place(stage, places->path[i], false, &(struct reasons){0}, NULL);
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
    const struct stage_places places = stage_places(stage->options.place);
    int r = stage_find(stage, &places);
    if (r < 0 && stage->given)
        r = stage_given_take(stage, &places);
    for (size_t i = 0; stage_seeks(stage, r) && i < places.count; i++)
        r = stage_try_place(stage, places.path[i], true, &reasons, fault);
    if (r < 0 && places.count == 0)
        reasons_add(&reasons, -ENOENT, "there is no directory %s",
                    stage->options.place ? stage->options.place : "/dev/shm or /tmp");
    return stage_seeks(stage, r) ? reasons_fault(stage, &reasons, fault) : r;
}

/* ---- opening and closing ---- */

static int stage_check_source(const struct source *source, struct fault *fault)
{
    if (source_size(source) == 0)
        return fault_set(fault, -EINVAL, NULL, FAULT_NO_OFFSET, "is empty");
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
    if (!options->streams)
        stage->options.streams = STAGE_STREAMS;
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
    const struct stage_places places = stage_places(stage->options.place);
    if (stage_find(stage, &places) < 0)
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

void stage_abandon(struct stage *stage)
{
    struct registry folder;
    auto_close int fd = -1;
    if (stage->state_fd < 0 || stage_folder_lock(stage->place, false, &folder) < 0)
        return;
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
    stage_abandon(stage);
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
    uint64_t since_ns = atomic_load(&state->stream_since_ns), now = now_ns();
    report->stream_ns = atomic_load(&state->stream_ns);
    if (since_ns && report->copier_pid && now > since_ns)
        report->stream_ns += now - since_ns;
    report->stream_bytes = atomic_load(&state->stream_bytes);
    report->demand_bytes = atomic_load(&state->demand_bytes);
    report->demands = atomic_load(&state->demands);
    report->past_bytes = atomic_load(&state->past_bytes);
    report->job_bytes = atomic_load(&state->job_bytes);
}

void stage_get_report(const struct stage *stage, struct stage_report *ret_report)
{
    ret_report->folder = stage->folder;
    ret_report->is_private = stage->is_private;
    ret_report->was_moved = stage->was_moved;
    stage_report_of(stage->state, ret_report);
}

struct stage_each {
    int (*fn)(void *ctx, const struct stage_copy_info *info);
    void *ctx;
};

static int stage_each_copy(void *ctx, const struct stage_file *file)
{
    const struct stage_each *each = ctx;
    struct stage_state *state = file->state;
    if (!state)
        return 0;
    struct stage_copy_info info = {.archive = state->archive,
                                   .folder = file->folder->path,
                                   .identity = &state->identity,
                                   .used = !registry_take(file->fd),
                                   .owner = state->owner_pid,
                                   .job = state->job};
    info.report.folder = info.folder;
    stage_report_of(state, &info.report);
    int r = each->fn(each->ctx, &info);
    if (r > 0) {
        atomic_store(&state->pinned, 0);
        if (!info.used)
            stage_folder_remove(file->folder, file->name);
    }
    return r < 0 ? r : 0;
}

int stage_each(const char *place, int (*fn)(void *ctx, const struct stage_copy_info *info),
               void *ctx)
{
    struct stage_each each = {fn, ctx};
    const struct stage_places places = stage_places(place);
    int r = 0, foreign = 0;
    for (size_t i = 0; i < places.count; i++) {
        struct registry folder;
        int here = stage_folder_lock(places.path[i], false, &folder);
        foreign += here == -EPERM;
        if (here == 0) {
            stage_sweep_folder(&folder);
            here = fn ? stage_folder_each(&folder, stage_each_copy, &each) : 0;
            registry_remove(&folder);
        } else if (here == -ENOENT || here == -EPERM ||
                   (!place && access(places.path[i], X_OK) < 0)) { /* root's $TMPDIR, say */
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
 * (stage_stream.c). A shared one is found and created in the same way as a plain archive's. A
 * private one is for users that did not ask for staging: a file without a name, with its state
 * in memory that forked processes share.
 */
#define MEMORY_SHARE 2 /* half of the job's free memory; readers need some, too */

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
