/*
 * The public writer: puts files from memory into a new archive, through the writer of archive/.
 * Names are checked before anything is written, so that a bad name spoils nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "output.h"
#include "path.h"
#include "writer.h"

#define NAME_PART_MAX 255u

struct onepot_writer {
    struct output *output;
    struct writer *writer;
    bool is_synced; /* the archive is to be on the disk in the end */
    char *path;
    pid_t pid; /* the process that writes: its children must not remove the file */
    struct onepot_error first; /* the first failure: nothing can be added after it */
};

static int read_options(const struct onepot_writer_options *options,
                        struct onepot_writer_options *o, struct onepot_error *error)
{
    int r = options_read(o, sizeof(*o), options, error);
    if (r < 0)
        return r;
    if (o->zstd > WRITER_LEVEL_MAX)
        return error_set(error, -EINVAL, "zstd has levels up to %u", WRITER_LEVEL_MAX);
    if (o->zstd && o->align)
        return error_set(error, -EINVAL, "what is compressed can't be aligned");
    if (o->block && (o->block & (o->block - 1) || o->block < WRITER_BLOCK_MIN ||
                     o->block > WRITER_BLOCK_MAX))
        return error_set(error, -EINVAL,
                         "a block of %u bytes is not a power of two of 4 KB to 8 MB", o->block);
    if (o->align && (o->align & (o->align - 1) || o->align < PAX_BLOCK_BYTES ||
                     o->align > WRITER_ALIGN_MAX))
        return error_set(error, -EINVAL,
                         "an alignment of %u is not a power of two of 512 to 64 KB", o->align);
    return 0;
}

int onepot_writer_new(const char *path, const struct onepot_writer_options *options,
                      struct onepot_error *error, struct onepot_writer **ret_writer)
{
    struct onepot_writer_options o = {0};
    struct fault fault = {0};
    int r = read_options(options, &o, error);
    if (r < 0)
        return r;
    struct writer_options given = {
        .zstd_level = (int)o.zstd,
        .block_bytes = o.block,
        .threads = o.threads,
        .align_bytes = o.align,
    };
    struct onepot_writer *w = calloc(1, sizeof(*w));
    if (!w || !(w->path = strdup(path))) {
        free(w);
        return error_set(error, -ENOMEM, "no memory for a writer");
    }
    w->pid = getpid();
    w->is_synced = !o.no_sync;
    output_clean(path, &(struct leftovers){0});
    r = output_open(path, o.overwrite ? OUTPUT_REPLACES : OUTPUT_NEW, 0, &fault, &w->output);
    if (r == 0)
        r = writer_new(w->output, &given, &w->writer);
    if (r < 0) {
        output_discard(w->output);
        if (r == -EEXIST) /* the usual advice is for users of the program */
            error_set(error, r, "%s: exists already, and is not to be overwritten", path);
        else
            error_from_fault(error, r, &fault, path);
        free(w->path);
        free(w);
        return r;
    }
    *ret_writer = w;
    return 0;
}

/* Is each part between slashes a name? */
static bool is_path_of_names(const char *path)
{
    size_t n = strcspn(path, "/");
    for (; n <= NAME_PART_MAX && path_is_name(path, n); n = strcspn(path, "/")) {
        if (!path[n])
            return true;
        path += n + 1;
    }
    return false;
}

/* Refuse a name that can't be added before anything is written, so that it spoils nothing. */
static int check_free(struct onepot_writer *w, const char *name, struct onepot_error *error)
{
    int r = writer_has(w->writer, name, strlen(name));
    if (r == 1)
        return error_set(error, -EEXIST, "%s: '%.200s' is in it already", w->path, name);
    if (r == -ENOTDIR)
        return error_set(error, -EEXIST, "%s: '%.200s' would lie below a file that is in it",
                         w->path, name);
    return r < 0 ? error_errno(error, r, w->path) : 0;
}

static int add_member(struct onepot_writer *w, const struct node *member, const void *bytes,
                      size_t len, struct fault *fault)
{
    struct pax_buffer header = {0};
    void *copy = len ? malloc(len) : NULL;
    int r = len && !copy ? -ENOMEM : pax_encode(member, &header);
    if (r == 0)
        r = writer_add(w->writer, member, &header, fault);
    vector_free(&header);
    if (r < 0 || !len) {
        free(copy);
        return r;
    }
    memcpy(copy, bytes, len);
    return writer_data(w->writer, copy, len, fault);
}

/* Report the error that ended the writer again, not its errno's usual words. */
static int writer_ended(const struct onepot_writer *w, struct onepot_error *error)
{
    return error_set(error, w->first.code,
                     "%s: is not complete, because of an earlier error: %s", w->path,
                     w->first.text);
}

int onepot_writer_add(struct onepot_writer *writer, const char *name, const void *bytes,
                      size_t len, const struct onepot_file *file, struct onepot_error *error)
{
    struct onepot_file f = {0};
    struct fault fault = {0};
    int r = options_read(&f, sizeof(f), file, error);
    if (r < 0)
        return r;
    if (writer->pid != getpid())
        return error_set(error, -EINVAL, "%s: is written by another process", writer->path);
    if (!is_path_of_names(name))
        return error_set(error, -EINVAL, "%s: '%.200s' is not a name for a file in it",
                         writer->path, name);
    if (f.mode & ~(uint32_t)07777 || f.mtime_nsec >= 1000000000u)
        return error_set(error, -EINVAL, "%s: %.200s: no such permissions or time",
                         writer->path, name);
    if (writer->first.code < 0)
        return writer_ended(writer, error);
    r = check_free(writer, name, error);
    if (r < 0)
        return r;
    const struct node member = {
        .path = name,
        .path_len = strlen(name),
        .mode = S_IFREG | (f.mode ? f.mode : 0644),
        .uid = f.uid,
        .gid = f.gid,
        .mtime_sec = f.mtime_sec,
        .mtime_nsec = f.mtime_nsec,
        .size_bytes = len,
    };
    r = add_member(writer, &member, bytes, len, &fault);
    if (r < 0) {
        error_from_fault(&writer->first, r, &fault, writer->path);
        error_from_fault(error, r, &fault, writer->path);
    }
    return r;
}

static void free_writer(struct onepot_writer *writer)
{
    free(writer->path);
    free(writer);
}

int onepot_writer_finish(struct onepot_writer *writer, struct onepot_error *error)
{
    struct writer_totals totals;
    struct fault fault = {0};
    int r;
    if (writer->pid != getpid()) {
        r = error_set(error, -EINVAL, "%s: is written by another process", writer->path);
    } else if (writer->first.code < 0) {
        r = writer_ended(writer, error);
        writer_discard(writer->writer);
        output_discard(writer->output);
    } else {
        r = writer_finish(writer->writer, &fault, &totals);
        if (r == 0)
            r = output_commit(writer->output, writer->is_synced, &fault);
        else
            output_discard(writer->output);
        if (r < 0)
            error_from_fault(error, r, &fault, writer->path);
    }
    free_writer(writer);
    return r;
}

void onepot_writer_discard(struct onepot_writer *writer)
{
    if (!writer)
        return;
    if (writer->pid == getpid()) { /* in a child, threads and file are the parent's */
        writer_discard(writer->writer);
        output_discard(writer->output);
    }
    free_writer(writer);
}
