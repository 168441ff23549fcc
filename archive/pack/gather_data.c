/*
 * Shared by both ways of gathering: words for problems, and the data of a file, whole or as a
 * stream, whether it lies in a filesystem or in an archive.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "checksum.h"
#include "gather.h"
#include "numbers.h"

/* ---- problems ---- */

int gather_fault(struct fault **fault, const char *path, int err, const char *format, ...)
{
    char what[sizeof((*fault)->what)];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    free(*fault);
    *fault = calloc(1, sizeof(**fault));
    if (!*fault)
        return -ENOMEM;
    fault_set(*fault, err, *path ? path : ".", FAULT_NO_OFFSET, "%s", what);
    return 0;
}

int gather_system_fault(struct fault **fault, const char *path, int err, const char *what)
{
    return gather_fault(fault, path, err, "%s: %s", what, fault_errno(err));
}

int gather_skip(struct gathered *g, int err, const char *what)
{
    g->skip = true;
    return gather_fault(&g->problem, g->path, err, "%s", what);
}

int gather_leave_out(struct gathered *g, int err, const char *what)
{
    if (err == -ENOENT || err == -ESTALE)
        return gather_skip(g, err, "left out: it vanished while it was packed");
    g->skip = true;
    return gather_fault(&g->problem, g->path, err, "left out: %s: %s", what, fault_errno(err));
}

void gather_end_xattrs(struct gathered *g)
{
    pax_xattrs_sort(&g->xattrs);
    g->member.xattrs = g->xattrs.at;
    g->member.xattr_count = g->xattrs.count;
}

/* ---- data ---- */

/* Returns the bytes read, fewer than `len` only at the end of the file, or -errno. */
static ssize_t gather_read(const struct gather_file *file, uint8_t *bytes, size_t len,
                           uint64_t offset, size_t expected)
{
    size_t done = 0;
    if (file->input) {
        int r =
            file->input->read(file->input->ctx, file->position, offset, bytes, expected, &done);
        return r < 0 ? r : (ssize_t)done;
    }
    while (done < len) {
        ssize_t n = pread(file->fd, bytes + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        done += (size_t)n;
        if (n == 0 || done == expected)
            break;
    }
    return (ssize_t)done;
}

/*
 * Fills what could not be read of `len` bytes at `offset` with zeros, and reports that. `got`:
 * number of bytes read, or the error. -ENOMEM.
 */
static int gather_fill_up(const char *path, uint8_t *bytes, size_t len, ssize_t got,
                          uint64_t offset, struct fault **problem)
{
    size_t good = got < 0 ? 0 : (size_t)got;
    char what[80];
    memset(bytes + good, 0, len - good);
    snprintf(what, sizeof(what), "zeros from byte %" PRIu64 " on: %s", offset + good,
             got < 0 ? "can't be read" : "it shrank while it was packed");
    return got < 0 ? gather_system_fault(problem, path, (int)got, what)
                   : gather_fault(problem, path, -ENODATA, "%s", what);
}

static int gather_growth(const char *path, struct fault **problem)
{
    return gather_fault(problem, path, -EFBIG,
                        "cut at its former size: it grew while it was packed");
}

/* Files of /proc and the like have a size of 0, whatever can be read from them. */
static int gather_empty(struct gathered *g, int fd)
{
    char byte;
    if (pread(fd, &byte, 1, 0) <= 0)
        return 0;
    return gather_fault(&g->problem, g->path, -EFBIG,
                        "packed as empty: its size is 0, but it has content");
}

void gather_sum_fault(const char *path, struct fault *fault)
{
    fault_set(fault, -EBADMSG, path, FAULT_NO_OFFSET,
              "is damaged: its data do not match their checksum in the archive");
}

/* Compares the data with the sum that the source archive has, if any. */
static int gather_check_sum(struct gathered *g, const struct gather_file *file)
{
    uint64_t sum;
    if (!file->input || g->problem || index_sum(file->input->index, file->position, &sum) < 0)
        return 0;
    enum sum_kind kind = index_info(file->input->index)->sum_kind;
    if (kind == SUM_XXH3 ? sum == g->sum
                         : checksum_matches(kind, sum, g->data, g->member.size_bytes))
        return 0;
    g->problem = calloc(1, sizeof(*g->problem));
    if (!g->problem)
        return -ENOMEM;
    gather_sum_fault(g->path, g->problem);
    return 0;
}

static int gather_inline(struct gathered *g, const struct gather_file *file)
{
    size_t size = (size_t)g->member.size_bytes;
    if (!size)
        return file->input ? 0 : gather_empty(g, file->fd);
    g->data = malloc(size + 1);
    if (!g->data)
        return -ENOMEM;
    ssize_t n = gather_read(file, g->data, size + 1, 0, size);
    int r = 0;
    if (n > (ssize_t)size)
        r = gather_growth(g->path, &g->problem);
    else if (n != (ssize_t)size)
        r = gather_fill_up(g->path, g->data, size, n, 0, &g->problem);
    g->sum = XXH3_64bits(g->data, size);
    return r < 0 ? r : gather_check_sum(g, file);
}

/* Makes the member's stream, which takes file->fd and the extents. */
static int gather_open_stream(struct gathered *g, struct gather_file *file,
                              gather_extents *list)
{
    struct pax_extent whole = {0, g->member.size_bytes};
    struct stream *s = calloc(1, sizeof(*s));
    if (!s || (!g->member.sparse && vector_push(list, whole) < 0)) {
        free(s);
        return -ENOMEM;
    }
    g->stream = s;
    s->extents = *list;
    *list = (gather_extents){0};
    s->size_bytes = g->member.size_bytes;
    s->file = *file;
    file->fd = -1;
    if (g->member.sparse) {
        g->member.extents = s->extents.at;
        g->member.extent_count = s->extents.count;
    }
    s->path = strdup(g->path);
    if (!s->path)
        return -ENOMEM;
    if (!s->file.input || index_sum(s->file.input->index, s->file.position, &s->sum) < 0)
        return 0;
    return checksum_new(index_info(s->file.input->index)->sum_kind, &s->checksum);
}

int gather_content(struct gathered *g, struct gather_file *file, gather_extents *list)
{
    bool hollow = g->member.sparse && list->count == 0;
    int r = 0;
    if (!hollow && (g->member.sparse || g->member.size_bytes > GATHER_PIECE_BYTES))
        r = gather_open_stream(g, file, list);
    else if (!hollow)
        r = gather_inline(g, file);
    vector_free(list);
    return r;
}

/* ---- streams ---- */

bool stream_next(struct stream *s, uint64_t *ret_offset, size_t *ret_len, bool *ret_last)
{
    if (s->dropped || s->extent == s->extents.count)
        return false;
    const struct pax_extent *e = &s->extents.at[s->extent];
    size_t len = (size_t)min_u64(e->length - s->done, GATHER_PIECE_BYTES);
    *ret_offset = e->offset + s->done;
    *ret_len = len;
    s->done += len;
    if (s->done == e->length) {
        s->extent++;
        s->done = 0;
    }
    *ret_last = s->extent == s->extents.count;
    return true;
}

int stream_read(const struct stream *s, uint64_t offset, size_t len, bool last, uint8_t *bytes,
                struct fault **ret_problem)
{
    struct fault *problem = NULL;
    int fd = s->file.fd;
    ssize_t n = gather_read(&s->file, bytes, len, offset, len);
    int r = n == (ssize_t)len ? 0 : gather_fill_up(s->path, bytes, len, n, offset, &problem);
    struct stat st;
    if (r == 0 && !problem && last && fd >= 0 && fstat(fd, &st) == 0 &&
        (uint64_t)st.st_size > s->size_bytes)
        r = gather_growth(s->path, &problem);
    if (r == 0)
        *ret_problem = problem;
    return r;
}

void stream_free(struct stream *s)
{
    if (!s)
        return;
    if (s->file.fd >= 0)
        close(s->file.fd);
    checksum_free(s->checksum);
    free(s->path);
    vector_free(&s->extents);
    free(s);
}
