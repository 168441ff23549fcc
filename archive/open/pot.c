/*
 * Opening an archive: from a path to bytes, index and format.
 *
 * Indexes are tried in order of trust and cost: the archive's own index, a saved one proven to
 * be of this very archive, a new one. The new one comes from a child that hostile bytes may
 * have taken over. So it is opened like a file from the net, and sealed first, so that nothing
 * changes after it was checked.
 */
#include "pot.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "pot_private.h"
#include "shard_exchange.h"

#define MIB (UINT64_C(1) << 20)

enum {
    /*
     * Memory that libarchive, builder and image take for a member with a name of usual length.
     */
    MEMBER_BYTES = 250,
    TAR_BLOCK = 512,       /* no member of a tar is smaller */
    LEAST_MEMORY_MIB = 64, /* for the child, however little is available */
    STALL_SECONDS = 60,
    SAVE_AFTER_MS = 1000, /* POT_SAVE_AUTO: indexing that took longer is worth saving */
};

/* The pot while it is being opened. */
struct opening {
    struct pot *pot;
    const struct pot_options *options;
    struct fault *fault;
    struct saved_key key;
    const char *frames_of; /* compression whose frames are indexed; NULL: the source is plain */
    uint64_t unpack_ms;    /* that unpacking took */
};

uint64_t pot_memory_bytes(const struct pot_options *options)
{
    uint64_t available = UINT64_MAX, kib;
    char line[256];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            available = kib << 10;
    if (f)
        fclose(f);
    return options->memory_bytes && options->memory_bytes < available ? options->memory_bytes
                                                                      : available;
}

/* ---- a new index ---- */

struct build {
    struct source *source;
    const struct backend *backend;
    struct builder_header header;
    const char *compression; /* index its frames; NULL: it is not compressed as a whole */
    bool is_expanded;        /* the source is the content of a compressed stream */
    int fd;
};

/* The builder's errors about a member (no target, no directory) become "damaged archive". */
static int as_archive_error(int err)
{
    return builder_may_leave_out(err) ? -EUCLEAN : err;
}

/* Runs in the child, whose end frees all that it allocated. */
static int build_index(void *arg, struct progress *progress, struct fault *fault)
{
    struct build *build = arg;
    struct builder *builder;
    int r = builder_new(&builder);
    if (r < 0)
        return r;
    builder_set_archive_size(builder, source_size(build->source));
    if (build->compression)
        r = build->backend->index_packed(build->source, build->compression, builder,
                                         &build->header, progress, fault);
    else
        r = build->backend->index(build->source, builder, &build->header, progress, fault);
    if (r < 0)
        return as_archive_error(r);
    progress->beats++;
    if (build->is_expanded)
        r = unpacked_sums(build->source, &build->header, progress);
    if (r < 0)
        return r;
    uint64_t ignored;
    return builder_write(builder, &build->header, build->fd, 0, fault, &ignored);
}

/*
 * Memory for the child. A tar has at most as many members as blocks; for one in frames that
 * number is not known in advance. Other formats may pack members tighter, so their floor is
 * higher. The limit is always the memory available.
 */
static struct sandbox_limits index_limits(const struct opening *o)
{
    uint64_t size = source_size(o->pot->source);
    uint64_t least = o->pot->backend->format == FORMAT_SQUASHFS ? 4096 * MIB : 1024 * MIB;
    uint64_t want = o->frames_of ? UINT64_MAX : size / TAR_BLOCK * MEMBER_BYTES;
    uint64_t most = pot_memory_bytes(o->options);
    uint64_t bytes = want > least ? want : least;
    if (bytes > most)
        bytes = most > LEAST_MEMORY_MIB * MIB ? most : LEAST_MEMORY_MIB * MIB;
    return (struct sandbox_limits){
        .memory_bytes = bytes,
        .file_bytes = bytes,
        .stall_seconds = STALL_SECONDS + (uint32_t)(size >> 34), /* sorting grows, too */
    };
}

static bool is_unchanged(const struct opening *o)
{
    struct stat st;
    const struct source_identity *id = &o->key.identity;
    return fstat(source_fd(o->key.source), &st) == 0 &&
           (!S_ISREG(st.st_mode) || (uint64_t)st.st_size == id->size_bytes) &&
           st.st_mtim.tv_sec == id->mtime_sec && st.st_mtim.tv_nsec == (long)id->mtime_nsec;
}

/* Run the child; *ret_fd is the image that it wrote, sealed. */
static int make_image(struct opening *o, int *ret_fd)
{
    struct build build = {
        .source = o->pot->source,
        .backend = o->pot->backend,
        .compression = o->frames_of,
        .is_expanded = o->pot->compression != NULL,
    };
    int r = saved_key_fingerprint(&o->key);
    if (r < 0)
        return fault_set(o->fault, r, NULL, FAULT_NO_OFFSET, "read error: %s", strerror(-r));
    build.header = (struct builder_header){
        .format = o->pot->backend->format,
        .archive_bytes = source_size(o->pot->source),
        .archive_mtime_sec = o->key.identity.mtime_sec,
        .archive_mtime_nsec = o->key.identity.mtime_nsec,
        .archive_fingerprint = o->key.fingerprint,
    };
    auto_close int fd = memfd_create("onepot-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -errno;
    build.fd = fd;
    struct sandbox_limits limits = index_limits(o);
    int keep[] = {source_fd(o->pot->source), fd};
    limits.keep_fds = keep;
    limits.keep_fd_count = 2;
    r = pot_run(o->options, o->pot->path, "indexing", build_index, &build, &limits, o->fault);
    if (r < 0)
        return r;
    if (!is_unchanged(o)) {
        fault_set(o->fault, -ESTALE, NULL, FAULT_NO_OFFSET, "was changed while it was indexed");
        fault_advise(o->fault, "wait until it is written");
        return -ESTALE;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/*
 * Check that the archive size in an index is the file's, as the index's ranges are checked
 * against it.
 */
static int check_index(const struct opening *o, const struct index *index, struct fault *fault)
{
    uint64_t size = source_size(o->pot->source);
    if (index_info(index)->archive_bytes <= size)
        return 0;
    return fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                     "its index speaks of %" PRIu64 " bytes, the file has %" PRIu64,
                     index_info(index)->archive_bytes, size);
}

/* Takes over fd. */
static int open_image(struct opening *o, int fd, uint64_t *ret_bytes)
{
    struct source *image = NULL;
    int r = source_from_fd(fd, o->pot->path, &image);
    if (r < 0)
        return r;
    uint64_t len = source_size(image);
    r = index_open(image, 0, len, o->fault, &o->pot->index);
    source_close(image);
    if (r == 0)
        r = check_index(o, o->pot->index, o->fault);
    if (r == 0)
        *ret_bytes = len;
    return r;
}

/*
 * Use the saved file instead of the memory that the index was made in, if both serve equally
 * well: memory backed by a file can be reclaimed and is shared by mounts. `fd` is the file
 * that was written, even if its path leads elsewhere by now. Takes over fd.
 */
static void use_file(struct opening *o, int fd)
{
    struct source *file = NULL;
    struct index *index = NULL;
    if (source_from_fd(fd, o->pot->index_path, &file) < 0)
        return;
    if (source_is_local(file) && source_is_ours(file) &&
        index_open(file, 0, source_size(file), NULL, &index) == 0) {
        index_close(o->pot->index);
        o->pot->index = index;
    }
    source_close(file);
}

/*
 * Save the index if that was requested or is worth it. Failure is an error only if requested.
 */
static int save(struct opening *o, int fd, uint64_t image_bytes, uint64_t took_ms)
{
    enum pot_save how = o->options->save;
    if (how == POT_SAVE_NEVER ||
        (how == POT_SAVE_AUTO && ((o->pot->compression && !o->options->store) ||
                                  took_ms + o->unpack_ms < SAVE_AFTER_MS)))
        return 0;
    struct fault fault = {0};
    int file, r = saved_index_write(o->pot->path, o->key.source, fd, image_bytes, &fault,
                                    &o->pot->index_path, &file);
    if (r == 0) {
        use_file(o, file);
        return 0;
    }
    if (how == POT_SAVE_ALWAYS) {
        if (o->fault)
            *o->fault = fault;
        return r;
    }
    fault_advise(&fault, "it stays in memory, and is made anew for the next mount");
    pot_note_fault(o->options, o->pot->path, &fault);
    return 0;
}

static int build(struct opening *o)
{
    uint64_t start_ms = now_ms(), image_bytes = 0;
    auto_close int fd = -1;
    int r = make_image(o, &fd);
    if (r < 0)
        return r;
    uint64_t took_ms = now_ms() - start_ms;
    int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (duplicate < 0)
        return -errno;
    r = open_image(o, duplicate, &image_bytes);
    if (r < 0)
        return r;
    o->pot->origin = POT_INDEX_BUILT;
    return save(o, fd, image_bytes, took_ms);
}

static int use_saved(struct opening *o);

/*
 * Use an index of the stream's content. -ENOENT: it can't be used, as the stream can't be
 * unpacked while it is read.
 */
static int use_stream(struct opening *o, const char *compression)
{
    struct pot *pot = o->pot;
    const struct pot_store *store = o->options->store;
    const struct pot_stream stream = {.backend = pot->backend,
                                      .packed = pot->source,
                                      .index = pot->index,
                                      .bytes = index_info(pot->index)->archive_bytes};
    struct source *source = NULL;
    struct fault fault = {0};
    pot->compression = compression;
    if (!store) /* the caller needs only the index */
        return 0;
    /* A long stream is unpacked first, as only that shows how many of its bytes are zeros. */
    int r = stream.bytes > unpacked_most(pot->source, o->options)
                ? -ENOSPC
                : store->expand(store->ctx, &stream, &fault, &source);
    if (r == 0) {
        pot->packed = pot->source;
        pot->source = source;
        return 0;
    }
    pot->compression = NULL;
    index_close(pot->index);
    pot->index = NULL;
    free(pot->index_path);
    pot->index_path = NULL;
    if (r != -ENOSPC && o->fault && !o->fault->err)
        *o->fault = fault;
    return r == -ENOSPC ? -ENOENT : r;
}

/*
 * Index a compressed archive without unpacking it, if its frames can be decompressed one by
 * one or an index of its stream was saved. 0: there is an index. -ENOTSUP: neither is the
 * case.
 */
static int use_frames(struct opening *o, const char *compression)
{
    struct fault *fault = o->fault, own = {0};
    const struct pot_store *store = o->options->store;
    if (!o->pot->backend->index_packed)
        return -ENOTSUP;
    o->key.format = o->pot->backend->format;
    o->key.is_stream = store ? store->expand != NULL
                             : o->options->names_only || o->options->save == POT_SAVE_ALWAYS;
    int r = use_saved(o);
    o->key.is_stream = false;
    if (r == 0 && index_windows(o->pot->index, WINDOWS_EXPANDED) > 0)
        r = use_stream(o, compression);
    if (r != -ENOENT)
        return r;
    o->frames_of = compression;
    o->fault = &own;
    r = build(o);
    o->frames_of = NULL;
    o->fault = fault;
    if (r < 0 && r != -ENOTSUP && fault && !fault->err)
        *fault = own;
    return r;
}

/* A compressed archive: continue with its content. */
static int unpack(struct opening *o)
{
    struct pot *pot = o->pot;
    const char *compression;
    int r = backend_compression(pot->backend, pot->source, &compression);
    if (r <= 0)
        return r;
    r = use_frames(o, compression);
    if (r != -ENOTSUP)
        return r;
    pot->compression = compression;
    struct source *unpacked = NULL;
    uint64_t start_ms = now_ms();
    r = unpacked_open(pot->backend, pot->source, pot->compression, o->options, o->fault,
                      &unpacked);
    if (r < 0)
        return r;
    o->unpack_ms = now_ms() - start_ms;
    pot->packed = pot->source; /* saved indexes are found by the packed file */
    pot->source = unpacked;
    o->key.archive_bytes = source_size(unpacked);
    return backend_find(unpacked, o->fault, &pot->backend);
}

/* ---- an index that is there ---- */

/* Use the archive's own index. 0, -ENOENT if none fits, or a read error. */
static int use_embedded(struct opening *o)
{
    struct pot *pot = o->pot;
    struct fault fault = {0};
    struct embedded_index where;
    if (!pot->backend->find)
        return -ENOENT;
    int r = pot->backend->find(pot->source, &fault, &where);
    if (r == 0)
        r = index_open_pieces(pot->source, where.offset, where.length, where.stride, &fault,
                              &pot->index);
    if (r == 0)
        r = check_index(o, pot->index, &fault);
    if (r == 0) {
        pot->origin = POT_INDEX_EMBEDDED;
        return 0;
    }
    index_close(pot->index);
    pot->index = NULL;
    if (r != -ENOENT && r != -ESTALE && r != -EUCLEAN && r != -ENOTSUP) {
        if (o->fault)
            *o->fault = fault;
        return r;
    }
    /* Without its index, this format is just a tar. */
    if (r != -ENOENT) {
        if (!fault.advice[0])
            fault_advise(&fault, "it is read as a plain tar");
        pot_note_fault(o->options, pot->path, &fault);
    }
    pot->backend = &backend_tar;
    r = unpack(o);
    return r < 0 ? r : -ENOENT;
}

static int use_saved(struct opening *o)
{
    if (o->options->rebuild || o->pot->compression) /* searched for before unpacking */
        return -ENOENT;
    int r = saved_index_find(o->pot->path, &o->key, o->options, &o->pot->index,
                             &o->pot->index_path);
    if (r == 0)
        o->pot->origin = POT_INDEX_SAVED;
    return r;
}

static int find_index(struct opening *o)
{
    if (o->pot->index) /* found while a compressed archive was opened */
        return 0;
    int r = use_embedded(o);
    if (r != -ENOENT || o->pot->index)
        return o->pot->index ? 0 : r;
    o->key.format = o->pot->backend->format;
    r = use_saved(o);
    return r == -ENOENT ? build(o) : r;
}

/* ---- opening ---- */

static int open_source(struct opening *o)
{
    struct pot *pot = o->pot;
    int r = source_open(pot->path, o->fault, &pot->source);
    if (r < 0)
        return r;
    source_identity(pot->source, &pot->identity);
    o->key.source = pot->source;
    o->key.identity = pot->identity;
    o->key.archive_bytes = source_size(pot->source);
    return backend_find(pot->source, o->fault, &pot->backend);
}

int pot_open(const char *path, const struct pot_options *options, struct fault *fault,
             struct pot **ret_pot)
{
    static const struct pot_options defaults = {0};
    struct pot *pot = calloc(1, sizeof(*pot));
    if (!pot)
        return -ENOMEM;
    struct opening o = {.pot = pot, .options = options ? options : &defaults, .fault = fault};
    pot->path = strdup(path);
    int r = pot->path ? shard_exchange_settle(path, fault) : -ENOMEM;
    if (r >= 0)
        r = open_source(&o);
    if (r == 0)
        r = unpack(&o);
    if (r == 0)
        r = find_index(&o);
    if (r < 0) {
        pot_close(pot);
        return r;
    }
    if (!o.options->lists_left_out)
        pot_note_left_out(o.options, pot);
    *ret_pot = pot;
    return 0;
}

int pot_check_whole(const struct pot *pot, struct fault *fault)
{
    int r = !source_is_whole(pot->source) ? -ENODATA : index_is_lost(pot->index) ? -EIO : 0;
    if (r < 0)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "%s",
                  r == -ENODATA ? "it was cut short while it was read"
                                : "its index can't be read any more");
    return r;
}

void pot_close(struct pot *pot)
{
    if (!pot)
        return;
    source_close(pot->source); /* first, as the rest provides its copy */
    source_close(pot->packed);
    index_close(pot->index);
    free(pot->index_path);
    free(pot->path);
    free(pot);
}
