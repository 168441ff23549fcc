/*
 * Opening an archive: from a path to bytes, index and format.
 *
 * Each way to an index is an opener, in order of trust and cost. The list of them, `openers`,
 * is all that decides which one is taken.
 */
#include "pot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#include "budget.h"
#include "checksum.h"
#include "cleanup.h"
#include "clock.h"
#include "cpus.h"
#include "helpers.h"
#include "numbers.h"
#include "output.h"
#include "path.h"
#include "pot_private.h"
#include "source_retry.h"
#include "source_slice.h"
#include "syscalls.h"
#include "volumes.h"

/* Sums of the whole unpacked content, for its index. In the child, whose end frees them. */
static int unpacked_sums(struct source *source, struct builder_header *header,
                         struct progress *progress);

/*
 * Messages to the user about an archive being opened: permanent lines, the progress of a long
 * step, and the remark that a child left.
 */

void pot_note_fault(const struct pot_options *options, const char *path,
                    const struct fault *fault)
{
    char line[1400];
    if (!options->note)
        return;
    fault_describe(fault, -fault->err, path, line, sizeof(line));
    options->note(options->ctx, line);
}

void pot_note(const struct pot_options *options, const char *path, const char *format, ...)
{
    struct fault fault = {.err = EUCLEAN, .offset = FAULT_NO_OFFSET};
    va_list args;
    va_start(args, format);
    vsnprintf(fault.what, sizeof(fault.what), format, args);
    va_end(args);
    pot_note_fault(options, path, &fault); /* makes its text safe for a terminal */
}

/* Turn the fault's offset in the source into one in the file that it lies in. */
static void pot_place_fault(const struct source *source, struct fault *fault)
{
    if (!fault || !fault->err || fault->offset == FAULT_NO_OFFSET)
        return;
    const struct source *file = source_at(source, &fault->offset);
    fault->offset += source_start(file);
    if (source_member(source, 0) != source)
        fault_set_file(fault, source_name(file));
}

void pot_note_left_out(const struct pot_options *options, const struct pot *pot)
{
    uint64_t count = index_left_out(pot->index), cursor = 0;
    struct fault first = {.err = EUCLEAN, .offset = FAULT_NO_OFFSET};
    if (count == 0)
        return;
    if (index_left_out_next(pot->index, &cursor, &first) < 0)
        snprintf(first.what, sizeof(first.what), "a member can't be shown");
    if (!pot->packed && !pot->parts)
        pot_place_fault(pot->source, &first);
    char kinds[LEFT_OUT_TEXT_LEN], line[sizeof(kinds) + 1400];
    bool tells_kinds = index_left_out_text(pot->index, kinds) > 1;
    int len = fault_describe(&first, -EUCLEAN, pot->path, line, 1200);
    snprintf(line + min_u32((uint32_t)len, 1199), sizeof(kinds) + 200,
             count == 1 ? "; it is left out"
                        : "; it is left out, and so %s %" PRIu64 " more%s%s%s%s",
             count == 2 ? "is" : "are", count - 1, tells_kinds ? " (in all " : "",
             tells_kinds ? kinds : "", tells_kinds ? ")" : "",
             pot->is_plain ? "" : ": 'onepot verify' lists them");
    if (options->note)
        options->note(options->ctx, line);
}

struct watching {
    const struct pot_options *options;
    const char *doing;
    char note[sizeof(((struct progress *)0)->note)];
};

static bool pot_note_progress(void *ctx, const struct progress *progress)
{
    struct watching *w = ctx;
    memcpy(w->note, progress->note, sizeof(w->note));
    w->note[sizeof(w->note) - 1] = '\0';
    if (w->options->progress)
        w->options->progress(w->options->ctx, w->doing, progress);
    return !w->options->cancelled || !*w->options->cancelled;
}

int pot_run(const struct pot_options *options, const char *path, const char *doing,
            int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
            const struct sandbox_limits *limits, struct fault *fault)
{
    struct watching w = {.options = options, .doing = doing};
    int r = sandbox_run(fn, arg, limits, pot_note_progress, &w, fault);
    if (r == 0 && w.note[0])
        pot_note(options, path, "%s", w.note);
    return r;
}

/*
 * The sums that an archive's files have. Where all sums are of one kind, the index's header
 * tells; a tree of several archives may have files with sums of different kinds, and files
 * without.
 */

static int pot_sums_of_mixed(const struct index *index, struct pot_sums *sums)
{
    uint32_t entries = index_info(index)->entries;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < entries; i++) {
        struct node node;
        uint64_t sum;
        r = index_node(index, i, &node);
        if (r < 0 || !S_ISREG(node.mode) || node.position != i)
            continue;
        sums->files++;
        r = index_sum(index, i, &sum);
        if (r == -ENODATA) {
            r = 0;
            continue;
        }
        if (r == 0) {
            enum sum_kind kind = checksum_kind(sum);
            sums->kind = sums->with_sum == 0 || sums->kind == kind ? kind : SUM_MIXED;
            sums->with_sum++;
        }
    }
    sums->some = sums->with_sum > 0;
    sums->every = sums->some && sums->with_sum == sums->files;
    return r;
}

int pot_sums(const struct pot *pot, struct pot_sums *ret_sums)
{
    const struct index_info *info = index_info(pot->index);
    struct pot_sums sums = {.files = info->files, .kind = info->sum_kind};
    int r = 0;
    if (info->has_some_sums && info->sum_kind == SUM_MIXED) {
        sums.files = 0;
        r = pot_sums_of_mixed(pot->index, &sums);
    } else if (info->has_sums) {
        sums.some = sums.every = true;
        sums.with_sum = sums.files;
    }
    if (r == 0)
        *ret_sums = sums;
    return r;
}

bool pot_is_packed(const struct pot *pot)
{
    return pot->compression ||
           (pot->backend->stream &&
            (index_info(pot->index)->codec != CODEC_NONE || index_points(pot->index) > 0));
}

const char *pot_sums_text(const struct pot *pot, const struct pot_sums *sums,
                          char text[POT_SUMS_TEXT_LEN])
{
    const char *kind = checksum_name(sums->kind);
    if (sums->every)
        snprintf(text, POT_SUMS_TEXT_LEN, "of every file (%s)", kind);
    else if (sums->some)
        snprintf(text, POT_SUMS_TEXT_LEN, "of %" PRIu64 " of %" PRIu64 " files (%s)",
                 sums->with_sum, sums->files, kind);
    else if (sums->files == 0)
        snprintf(text, POT_SUMS_TEXT_LEN, "there are no files");
    else if (!checksum_available(sums->kind))
        snprintf(text, POT_SUMS_TEXT_LEN, "this onepot was built without %s", kind);
    else if (pot->backend->checked)
        snprintf(text, POT_SUMS_TEXT_LEN, "the sums of %s are compared by 'onepot verify'",
                 pot->backend->file);
    else
        snprintf(text, POT_SUMS_TEXT_LEN, "%s %s no sums of %s files", pot->backend->file,
                 pot->parts ? "have" : "has", pot->parts ? "their" : "its");
    return text;
}

/*
 * A new index, made by the back end in a child process.
 *
 * Hostile bytes may have taken over the child. So its product is opened like a file from the
 * net, and sealed first, so that nothing changes after it was checked.
 */

#define MIB (UINT64_C(1) << 20)

enum {
    /*
     * Memory that libarchive, builder and image take for a member with a name of usual length.
     */
    MEMBER_BYTES = 250,
    LEAST_MEMBER = 512,    /* bytes of the archive; a format with smaller ones has a floor */
    LEAST_MEMORY_MIB = 64, /* for the child, however little is available */
    STALL_SECONDS = 60,
    HELPERS_MAX = 7,
    HELPER_BYTES = 384 << 20, /* two of the longest blocks, and what decompressing them takes */
    SAVE_AFTER_MS = 1000,     /* POT_SAVE_AUTO: indexing that took longer is worth saving, */
                              /* and points, which take reading a whole stream */
};

struct build {
    const struct pot *pot;
    struct builder_header header;
    const char *compression; /* index its frames; NULL: the source is plain */
    unsigned threads;        /* threads besides the one that indexes */
    struct helpers *helpers;
    int fd;
};

/* In the child, before its limits. Without threads, all is done by one. */
static void built_start_helpers(void *arg)
{
    struct build *build = arg;
    if (build->threads > 0 && helpers_new(build->threads, &build->helpers) < 0)
        build->helpers = NULL;
}

/*
 * Each thread decompresses a block, as far as memory allows. So does the one that indexes,
 * which also keeps two; and one more waits.
 */
static unsigned built_threads(uint64_t memory_bytes)
{
    uint64_t most = memory_bytes / HELPER_BYTES;
    return most < 2 ? 0 : (unsigned)min_u64(min_u64(cpus_allowed() - 1, HELPERS_MAX), most - 1);
}

/* Runs in the child, whose end frees all that it allocated. */
static int built_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct build *build = arg;
    struct source *source = build->pot->source;
    const struct backend *backend = build->pot->backend;
    struct builder *builder;
    int r = builder_new(&builder);
    if (r < 0)
        return r;
    builder_set_archive_size(builder, source_size(source));
    if (build->compression)
        r = backend->stream->index_packed(source, build->compression, build->helpers, NULL,
                                          builder, &build->header, progress, fault);
    else
        r = backend->index(source, builder, &build->header, progress, fault);
    if (r < 0) /* errors about a member (no target, no directory) are the archive's */
        return builder_may_leave_out(r) ? -EUCLEAN : r;
    progress->beats++;
    if (build->pot->packed)
        r = unpacked_sums(source, &build->header, progress);
    if (r < 0)
        return r;
    uint64_t ignored;
    return builder_write(builder, &build->header, build->fd, 0, fault, &ignored);
}

/*
 * The number of members is bounded by the size of the archive, except for one in frames. The
 * limit is never more than the memory available, which takes long to find out, and matters only
 * if the least that every child gets may not be enough. Of a small tar it is: not even if each
 * two bytes were the name of a directory would there be so much.
 */
struct sandbox_limits built_index_limits(const struct opening *o, bool in_frames)
{
    uint64_t size = source_size(o->pot->source), least = o->pot->backend->least_memory_bytes;
    uint64_t want = in_frames ? UINT64_MAX : size / LEAST_MEMBER * MEMBER_BYTES;
    uint64_t bytes = LEAST_MEMORY_MIB * MIB;
    if (in_frames || least || size > bytes / MEMBER_BYTES)
        bytes = min_u64(max_u64(want, least ? least : 1024 * MIB),
                        max_u64(pot_memory_bytes(o->options), bytes));
    return (struct sandbox_limits){
        .memory_bytes = bytes,
        .file_bytes = bytes,
        .stall_seconds = STALL_SECONDS + (uint32_t)(size >> 34), /* sorting grows, too */
    };
}

/* Run the child; *ret_fd is the image that it wrote, sealed. */
static int built_make_image(struct opening *o, const char *frames_of, struct fault *fault,
                            int *ret_fd)
{
    const struct pot *pot = o->pot;
    int r = opening_fingerprint(o);
    if (r < 0)
        return fault_set_read(fault, r, NULL, FAULT_NO_OFFSET);
    auto_close int fd = syscall_memfd("onepot-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fd;
    struct build build = {
        .pot = pot,
        .header = {.format = pot->backend->number,
                   .archive_bytes = source_size(pot->source),
                   .archive_mtime_sec = pot->identity.mtime_sec,
                   .archive_mtime_nsec = pot->identity.mtime_nsec,
                   .archive_fingerprint = pot->fingerprint,
                   .ignores_zeros = o->options->ignores_zeros},
        .compression = frames_of,
        .fd = fd,
    };
    struct sandbox_limits limits = built_index_limits(o, frames_of);
    build.threads = frames_of ? built_threads(limits.memory_bytes) : 0;
    limits.prepare = built_start_helpers;
    limits.threads = build.threads;
    limits.keep_source = pot->source;
    limits.keep_fds = &fd;
    limits.keep_fd_count = 1;
    r = pot_run(o->options, pot->path, "indexing", built_in_child, &build, &limits, fault);
    if (r < 0)
        return r;
    if (source_was_changed(pot_file(pot)) != 0)
        return fault_set_advised(fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                                 "wait until it is written",
                                 "was changed while it was indexed");
    *ret_fd = steal_fd(&fd);
    return 0;
}

int pot_check_index(const struct pot *pot, struct fault *fault)
{
    uint64_t size = source_size(pot->source);
    uint64_t described = index_info(pot->index)->archive_bytes;
    if (described <= size)
        return 0;
    return fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                     "its index is of a file of %" PRIu64 " bytes, the file has %" PRIu64,
                     described, size);
}

int built_index_open_image(int fd, const char *name, struct fault *fault,
                           struct index **ret_index)
{
    struct source *image = NULL;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    int r = copy < 0 ? -errno : source_from_fd(copy, name, &image);
    if (r < 0)
        return r;
    r = index_open(image, 0, source_size(image), fault, ret_index);
    source_close(image);
    return r;
}

/*
 * Make an index of the source, or of the frames that it is compressed in, and save it if that
 * was requested or is worth it. Failure to save it is an error only if requested.
 */
static int built_index_open(struct opening *o, struct fault *fault)
{
    const char *frames_of = o->compression;
    uint64_t start_ms = now_ms();
    auto_close int fd = -1;
    if (frames_of && !o->pot->backend->stream)
        return OPENER_NOT_MINE;
    int r = built_make_image(o, frames_of, fault, &fd);
    uint64_t took_ms = now_ms() - start_ms;
    if (r == 0)
        r = built_index_open_image(fd, o->pot->path, fault, &o->pot->index);
    if (r == -ENOTSUP && frames_of && !o->pot->index)
        return OPENER_NOT_MINE; /* it has none, or too large ones */
    if (r == 0)
        r = pot_check_index(o->pot, fault);
    if (r < 0)
        return r;
    o->pot->origin = POT_INDEX_BUILT;
    enum pot_save how = o->options->save;
    if (how == POT_SAVE_NEVER ||
        (how == POT_SAVE_AUTO &&
         (o->is_of_later_version || (o->pot->packed && !o->options->store) ||
          (took_ms + o->unpack_ms < SAVE_AFTER_MS && index_points(o->pot->index) == 0))))
        return 0;
    r = saved_index_write(o->pot->path, o->options->offset, pot_file(o->pot), o->pot->index,
                          fault, &o->pot->index_path);
    if (r == 0 || how == POT_SAVE_ALWAYS)
        return r;
    fault_advise(fault, "it stays in memory, and is made anew for the next mount");
    pot_note_fault(o->options, o->pot->path, fault);
    return 0;
}

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
    struct pot_options *options;
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

uint64_t pot_memory_bytes(struct pot_options *own)
{
    if (!own->memory_bytes)
        own->memory_bytes = budget_memory_bytes("");
    return own->memory_bytes;
}

static int unpacked_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct unpacking *u = arg;
    return u->backend->stream->unpack(u->packed, u->fd, u->kept, u->most, progress, fault);
}

/* Bytes that may be written there; 0 if none can be. */
static uint64_t unpacked_room_in(const char *folder, struct pot_options *options)
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
    uint64_t memory = max_u64(pot_memory_bytes(u->options) / MEMORY_SHARE, UNPACK_MEMORY_LEAST);
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
    struct pot_options own = {0};
    struct unpacking u = {
        .backend = stream->backend,
        .packed = stream->packed,
        .options = &own,
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
    /*
     * The child can't reopen a stale handle. This process can, and won't hang: stale handles
     * answer at once.
     */
    if (r < 0 && r != -ETIMEDOUT && source_error_may_pass(r)) {
        uint8_t byte;
        r = source_read(stream->packed, &byte, 1, probe.offset);
    }
    return r;
}

static int unpacked_sums(struct source *source, struct builder_header *header,
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

/*
 * Unpack a file that is compressed as a whole, and put its content in place of the source, for
 * the openers that follow.
 */
static int unpacked_open(struct opening *o, struct fault *fault)
{
    struct pot *pot = o->pot;
    struct source *content = NULL;
    uint64_t start_ms = now_ms();
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
    if (source_size(content) > 0) /* an empty one has its back end already */
        r = backend_find(content, fault, &pot->backend, NULL);
    return r < 0 ? r : OPENER_NOT_MINE;
}

/*
 * Use o->stream_index, the index of the stream's content, and leave it to the store to unpack
 * the stream while it is read.
 */
static int unpacked_open_stream(struct opening *o, struct fault *fault)
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

/* The index in the archive. Without a good one, the archive counts as one of a plainer format.
 */
static int pot_open_embedded(struct opening *o, struct fault *fault)
{
    struct pot *pot = o->pot;
    struct embedded_index where = o->embedded;
    if (!pot->backend->trailer || !pot->backend->trailer->find)
        return OPENER_NOT_MINE;
    int r = where.length ? 0 : pot->backend->trailer->find(pot->source, fault, &where);
    if (r == 0)
        r = index_open(pot->source, where.offset, where.length, fault, &pot->index);
    if (r == 0)
        r = pot_check_index(pot, fault);
    if (r == 0) {
        pot->origin = POT_INDEX_EMBEDDED;
        return 0;
    }
    index_close(pot->index);
    pot->index = NULL;
    if (r != -ENOENT && r != -ESTALE && r != -EUCLEAN && r != -ENOTSUP)
        return r;
    pot->backend = pot->backend->trailer->without_index;
    if (r != -ENOENT && !fault->advice[0])
        fault_advise(fault, "it is read as a plain %s", pot->backend->name);
    if (r == -ESTALE && !pot->packed)
        o->stale = *fault;
    else if (r != -ENOENT)
        pot_note_fault(o->options, pot->path, fault);
    r = pot->packed ? 0 : backend_compression(pot->backend, pot->source, &o->compression);
    return r < 0 ? r : OPENER_NOT_MINE;
}

static int pot_open_index(struct opening *o, struct fault *fault)
{
    static const struct {
        opener *open;
        bool is_of_packed; /* only of a file that is compressed as a whole */
    } openers[] = {
        {pot_open_embedded, false}, {saved_index_open, false}, {unpacked_open_stream, true},
        {built_index_open, true},   {unpacked_open, true}, /* and after that: */
        {pot_open_embedded, true},  {built_index_open, false},
    };
    const size_t first_slow = o->options->names_only ? 3 : 2;
    struct fault own = {0};
    int r = o->options->compose ? composed_open_saved(o, &own) : OPENER_NOT_MINE;
    for (size_t i = 0; r == OPENER_NOT_MINE; i++) {
        own = (struct fault){0};
        if (o->options->only_ready && i == first_slow)
            return -EAGAIN;
        if (!openers[i].is_of_packed || o->compression || o->pot->packed)
            r = openers[i].open(o, &own);
    }
    if (r < 0 && fault && !fault->err)
        *fault = own;
    return r;
}

/* Put the archive's own bytes in place of the file, where they are a part of it. */
static int pot_slice(struct source **source, uint64_t offset, struct fault *fault,
                     struct container *ret_container)
{
    uint64_t size = source_size(*source);
    *ret_container = (struct container){0};
    if (offset == 0) {
        int r = container_find(*source, fault, ret_container);
        return r < 0 || !ret_container->name
                   ? r
                   : source_slice(source, ret_container->offset, ret_container->length);
    }
    if (offset >= size)
        return fault_set(fault, -EINVAL, NULL, size, "ends before the offset %" PRIu64, offset);
    *ret_container = (struct container){"a file", offset, size - offset};
    return source_slice(source, offset, size - offset);
}

int pot_open_source(const char *path, uint64_t offset, struct fault *fault,
                    struct container *ret_container, struct source **ret_source)
{
    struct source *source = NULL;
    int r = volumes_open(path, NULL, fault, &source);
    if (r == 0)
        r = pot_slice(&source, offset, fault, ret_container);
    if (r < 0)
        source_close(source);
    else
        *ret_source = source;
    return r;
}

static int file_identify(const char *path, struct fault *fault,
                         struct source_identity *ret_identity)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        int r = source_open_fault(path, fault, -errno);
        fault_set_file(fault, path);
        return r;
    }
    *ret_identity = source_identity_of(&st);
    return 0;
}

int pot_identify(const char *path, const struct pot_options *options, struct fault *fault,
                 struct source_identity *ret_identity)
{
    volume_paths parts = {0};
    if (options->is_plain)
        return plain_identify(path, fault, ret_identity);
    int r = options->is_whole ? 0 : volumes_find(path, &parts);
    if (r < 0 || parts.count == 0)
        return r < 0 ? r : file_identify(path, fault, ret_identity);
    auto_free struct source_identity *all = calloc(parts.count, sizeof(*all));
    r = all ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < parts.count; i++)
        r = file_identify(parts.at[i], fault, &all[i]);
    if (r == 0)
        source_identity_join(all, parts.count, ret_identity);
    volumes_free(&parts);
    return r;
}

/*
 * Look at the archive by its end and its first bytes, which is cheap. False: not known so, and
 * it may lie inside a container, or be damaged.
 */
static bool pot_look_quickly(struct pot_found *found)
{
    found->backend = &backend_onepot;
    found->compression = NULL;
    if (backend_onepot.trailer->find(found->source, NULL, &found->embedded) < 0)
        found->backend = backend_begins(found->source, &found->compression);
    found->is_unknown = !found->backend;
    return found->backend;
}

int pot_look(struct pot_found *found, uint64_t offset, struct fault *fault)
{
    if (found->backend || (offset == 0 && !found->is_unknown && pot_look_quickly(found)))
        return 0;
    int r = pot_slice(&found->source, offset, fault, &found->container);
    if (r == 0) {
        r = backend_find(found->source, fault, &found->backend, &found->compression);
        if (r < 0)
            pot_place_fault(found->source, fault);
    }
    if (r < 0) {
        source_close(found->source);
        found->source = NULL;
    }
    return r;
}

/* One that is whole, and is called as archives are, has no parts beside it. */
int pot_open_file(const char *path, bool is_whole, const struct pot_options *options,
                  struct fault *fault, struct pot_found *found)
{
    int r = source_open(path, is_whole ? fault : NULL, &found->source);
    if (is_whole)
        return r;
    if (r == 0 && options->offset == 0 && pot_look_quickly(found)) {
        const struct backend *backend = found->backend;
        const char *name = path_base(path);
        size_t len = strlen(name);
        if (found->embedded.length ||
            (!found->compression && backend->is_whole && backend_stem(name, len) < len &&
             backend->is_whole(found->source, true)))
            return 0;
    }
    const struct source *file = found->source;
    r = volumes_open(path, options, fault, &found->source);
    if (found->source != file) { /* look again */
        found->backend = NULL;
        found->is_unknown = false;
    }
    return r;
}

int pot_open_found(struct pot_found *found, const struct pot_options *options,
                   struct fault *fault, struct pot **ret_pot)
{
    struct pot_options own = *options;
    struct pot *pot = calloc(1, sizeof(*pot));
    if (!pot) {
        source_close(found->source);
        found->source = NULL;
        return -ENOMEM;
    }
    struct opening o = {.pot = pot,
                        .options = &own,
                        .compression = found->compression,
                        .embedded = found->embedded};
    pot->source = steal_ptr(&found->source);
    pot->container = found->container;
    pot->backend = found->backend;
    source_identity(pot->source, &pot->identity);
    pot->identity.slice_start = pot->identity.slice_bytes = 0; /* of the file */
    pot->path = strdup(source_name(pot->source));
    int r = pot->path ? pot_open_index(&o, fault) : -ENOMEM;
    if (o.options->compose)
        r = composed_apply(&o, r, fault);
    index_close(o.stream_index);
    if (r < 0) {
        if (!pot->packed)
            pot_place_fault(pot->source, fault);
        volumes_advise(pot->packed ? pot->packed : pot->source, fault);
        if (r == -EAGAIN && o.options->only_ready && !pot->packed)
            found->source = steal_ptr(&pot->source);
        pot_close(pot);
        return r;
    }
    if (!o.options->lists_left_out && index_left_out(pot->index) > 0)
        pot_note_left_out(o.options, pot);
    *ret_pot = pot;
    return 0;
}

int pot_check_exchange(struct shard_records *records, const char *path,
                       const struct source *source, const struct pot_options *options,
                       struct fault *fault)
{
    struct fault own = {0};
    bool is_by_link = source && source_is_by_link(source);
    if (!is_by_link && !strpbrk(path_base(path), "0123456789"))
        return 0; /* shards have numbers */
    int r =
        shard_exchange_check(records, path, is_by_link, source ? source_fd(source) : -1, &own);
    if (r > 0)
        pot_note_fault(options, path, &own);
    if (r < 0 && fault)
        *fault = own; /* also where there is no such file yet */
    return r < 0 ? r : 0;
}

int pot_open(const char *path, const struct pot_options *options, struct fault *fault,
             struct pot **ret_pot)
{
    static const struct pot_options defaults = {0};
    struct pot_found found = {0};
    const struct pot_options *o = options ? options : &defaults;
    if (o->is_plain)
        return plain_open(path, o, fault, ret_pot);
    int r = pot_open_file(path, o->is_whole, o, fault, &found);
    if ((r == 0 || r == -ENOENT) && !o->only_ready) {
        struct shard_records records = {0};
        int busy = pot_check_exchange(&records, path, found.source, o, fault);
        if (records.folder)
            shard_records_free(&records);
        r = busy < 0 ? busy : r;
    }
    if (r == 0 && !found.backend)
        r = pot_look(&found, o->offset, fault);
    if (r == 0)
        r = pot_open_found(&found, o, fault, ret_pot);
    source_close(found.source);
    return r;
}

/* Which of several files was cut short. */
static void pot_name_cut(const struct pot *pot, struct fault *fault)
{
    const struct source *file;
    for (size_t at[2] = {0}; pot_is_several(pot) && (file = source_file_next(pot->source, at));)
        if (source_was_cut(file) || source_was_changed(file) > 0) {
            fault_set_file(fault, source_name(file));
            return;
        }
}

int pot_check_whole(const struct pot *pot, struct fault *fault)
{
    int r = !source_is_whole(pot->source) ? -ENODATA : index_is_lost(pot->index) ? -EIO : 0;
    if (r < 0)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "%s",
                  r == -ENODATA ? "it was cut short while it was read"
                                : "its index can't be read any more");
    if (r == -ENODATA)
        pot_name_cut(pot, fault);
    return r;
}

void pot_close(struct pot *pot)
{
    if (!pot)
        return;
    source_close(pot->source); /* first, as the rest provides its copy */
    source_close(pot->packed);
    index_close(pot->index);
    index_close(pot->stream_index);
    for (size_t i = 0; i < pot->part_count; i++)
        free(pot->parts[i].path);
    free(pot->parts);
    free(pot->unsaved);
    free(pot->index_path);
    free(pot->path);
    free(pot);
}
