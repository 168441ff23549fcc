/*
 * A new index, made by the back end in a child process.
 *
 * Hostile bytes may have taken over the child. So its product is opened like a file from the
 * net, and sealed first, so that nothing changes after it was checked.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "cpus.h"
#include "helpers.h"
#include "numbers.h"
#include "pot_private.h"
#include "syscalls.h"

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
 * limit is always the memory available.
 */
struct sandbox_limits built_index_limits(const struct opening *o, bool in_frames)
{
    uint64_t size = source_size(o->pot->source), least = o->pot->backend->least_memory_bytes;
    uint64_t want = in_frames ? UINT64_MAX : size / LEAST_MEMBER * MEMBER_BYTES;
    uint64_t bytes = min_u64(max_u64(want, least ? least : 1024 * MIB),
                             max_u64(pot_memory_bytes(o->options), LEAST_MEMORY_MIB * MIB));
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
 * Save the index if that was requested or is worth it. Failure is an error only if requested.
 */
static int built_save(struct opening *o, uint64_t took_ms, struct fault *fault)
{
    enum pot_save how = o->options->save;
    if (how == POT_SAVE_NEVER ||
        (how == POT_SAVE_AUTO &&
         (o->is_of_later_version || (o->pot->packed && !o->options->store) ||
          (took_ms + o->unpack_ms < SAVE_AFTER_MS && index_points(o->pot->index) == 0))))
        return 0;
    int r = saved_index_write(o->pot->path, o->options->offset, pot_file(o->pot), o->pot->index,
                              fault, &o->pot->index_path);
    if (r == 0 || how == POT_SAVE_ALWAYS)
        return r;
    fault_advise(fault, "it stays in memory, and is made anew for the next mount");
    pot_note_fault(o->options, o->pot->path, fault);
    return 0;
}

static int built_and_save(struct opening *o, const char *frames_of, struct fault *fault)
{
    uint64_t start_ms = now_ms();
    auto_close int fd = -1;
    int r = built_make_image(o, frames_of, fault, &fd);
    if (r < 0)
        return r;
    uint64_t took_ms = now_ms() - start_ms;
    r = built_index_open_image(fd, o->pot->path, fault, &o->pot->index);
    if (r == 0)
        r = pot_check_index(o->pot, fault);
    if (r < 0)
        return r;
    o->pot->origin = POT_INDEX_BUILT;
    return built_save(o, took_ms, fault);
}

int built_index_of_frames(struct opening *o, struct fault *fault)
{
    if (!o->compression || !o->pot->backend->stream)
        return OPENER_NOT_MINE;
    int r = built_and_save(o, o->compression, fault);
    return r == -ENOTSUP && !o->pot->index ? OPENER_NOT_MINE : r;
}

int built_index_open(struct opening *o, struct fault *fault)
{
    return built_and_save(o, NULL, fault);
}
