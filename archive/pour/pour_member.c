/*
 * Hands members to the writer.
 *
 * A name is cleaned here as the builder does for the index, since the header has it too.
 * The builder is asked first: a member that it refuses is left out of both.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <archive.h>
#include <archive_entry.h>

#include "cleanup.h"
#include "numbers.h"
#include "path.h"
#include "pour_private.h"
#include "write_at.h"

#define PIECE_BYTES (1u << 20) /* of data, for the writer */

/* ---- names ---- */

/* Drops "./", doubled slashes and those at both ends. The root is "". */
static int member_clean(const char *path, pour_text *to)
{
    size_t left = strlen(path), len;
    const char *name;
    to->count = 0;
    while (path_next_name(&path, &left, &name, &len))
        if ((to->count && vector_push(to, '/') < 0) || vector_append(to, name, len) < 0)
            return -ENOMEM;
    return vector_push(to, '\0');
}

/* Is it left out, or a folder that it lies in? */
static bool member_is_excluded(struct pour *p, bool is_folder)
{
    char *path = p->path.at;
    if (!path[0])
        return false;
    for (char *slash = strchr(path, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        bool is_out = selection_excludes(&p->selection, path, true);
        *slash = '/';
        if (is_out)
            return true;
    }
    return selection_excludes(&p->selection, path, is_folder);
}

/* ---- members that are left out ---- */

int pour_leave_out(void *ctx, const struct fault *why)
{
    struct pour *p = ctx;
    struct fault fault = *why;
    if (p->options->strict) {
        *p->fault = *why;
        return -why->err;
    }
    p->result.problems++;
    if (p->reported == POUR_REPORTS)
        return 0;
    uint64_t at = offsetof(struct pour_report, faults) + p->reported * sizeof(fault);
    int r = write_at(p->report_fd, &fault, sizeof(fault), at);
    p->reported++;
    return r < 0 ? r
                 : write_at(p->report_fd, &p->reported, sizeof(p->reported),
                            offsetof(struct pour_report, count));
}

/* The writer can't go on; or it has refused the member, and the archive is as before. */
static int member_writer_failed(struct pour *p, int err, bool may_refuse)
{
    if (may_refuse && builder_may_leave_out(err))
        return err;
    p->output_error = err;
    return builder_may_leave_out(err) ? -EIO : err;
}

/* ---- data ---- */

/* Data on its way to the writer. */
struct pouring {
    struct pour *p;
    const char *path;
    struct archive *archive;
    struct fault *fault;
    uint8_t *piece; /* PIECE_BYTES, or all that is left */
    size_t len, size;
    uint64_t left; /* bytes that are still to come, with those in `piece` */
};

static int pouring_fault(const struct pouring *f, const char *what)
{
    return fault_set(f->fault, -EUCLEAN, f->path,
                     (uint64_t)archive_read_header_position(f->archive), "%s", what);
}

/* `bytes` NULL: zeros. */
static int pouring_put(struct pouring *f, const uint8_t *bytes, uint64_t len)
{
    if (len > f->left - f->len)
        return pouring_fault(f, "has more data than its size says");
    while (len > 0) {
        if (!f->piece) {
            f->size = (size_t)min_u64(f->left, PIECE_BYTES);
            f->piece = malloc(f->size);
            if (!f->piece)
                return -ENOMEM;
        }
        size_t n = (size_t)min_u64(len, f->size - f->len);
        if (bytes)
            memcpy(f->piece + f->len, bytes, n);
        else
            memset(f->piece + f->len, 0, n);
        f->len += n;
        len -= n;
        bytes = bytes ? bytes + n : NULL;
        if (f->len < f->size)
            continue;
        uint8_t *piece = f->piece;
        f->piece = NULL;
        f->left -= f->len;
        f->len = 0;
        int r = writer_data(f->p->writer, piece, f->size, f->fault);
        f->p->progress->bytes_out += f->size;
        if (r < 0)
            return member_writer_failed(f->p, r, false);
    }
    return 0;
}

/* Where data lies in the file, of which `m` has all but the holes. */
struct pour_place {
    const struct pax_member *m;
    size_t extent; /* the next byte is in it */
    uint64_t at;   /* the next byte in the file */
};

/* Puts bytes that lie at `offset` of the file. Gaps are zeros. */
static int pouring_put_at(struct pouring *f, struct pour_place *w, const uint8_t *bytes,
                          uint64_t len, uint64_t offset)
{
    const struct pax_member *m = w->m;
    if (offset < w->at)
        return pouring_fault(f, "its data is out of order");
    if (!m->sparse) {
        int r = pouring_put(f, NULL, offset - w->at);
        w->at = offset + len;
        return r < 0 ? r : pouring_put(f, bytes, len);
    }
    while (len > 0) {
        const struct pax_extent *e =
            w->extent < m->extent_count ? &m->extents[w->extent] : NULL;
        if (!e || offset < e->offset)
            return pouring_fault(f, "its map of holes makes no sense");
        uint64_t end = e->offset + e->length, from = max_u64(w->at, e->offset);
        if (offset >= end || offset != from)
            return pouring_fault(f, "its map of holes makes no sense");
        uint64_t n = min_u64(len, end - offset);
        int r = pouring_put(f, bytes, n);
        if (r < 0)
            return r;
        bytes += n;
        offset += n;
        len -= n;
        w->at = offset;
        w->extent += offset == end;
    }
    return 0;
}

static int pouring_read_failed(struct pouring *f, uint64_t size)
{
    if (archive_errno(f->archive) == ENOMEM)
        return -ENOMEM;
    char what[192];
    snprintf(what, sizeof(what),
             "its data can't be read, after %" PRIu64 " of %" PRIu64 " bytes: %s",
             size - f->left + f->len, size, tar_complaint(f->archive));
    return pouring_fault(f, what);
}

static int member_put_data(struct pour *p, const struct pax_member *m, struct archive *a,
                           struct fault *fault)
{
    uint64_t stored = pax_stored_bytes(m);
    struct pouring f = {.p = p, .path = m->path, .archive = a, .fault = fault, .left = stored};
    struct pour_place place = {.m = m};
    int r = 0;
    for (;;) {
        const void *bytes;
        size_t len = 0;
        la_int64_t offset = 0;
        int status = archive_read_data_block(a, &bytes, &len, &offset);
        if (status == ARCHIVE_EOF)
            break;
        if (status != ARCHIVE_OK) {
            r = pouring_read_failed(&f, stored);
            break;
        }
        r = len ? pouring_put_at(&f, &place, bytes, len, (uint64_t)offset) : 0;
        if (r < 0)
            break;
        p->progress->beats++;
    }
    if (r == 0 && (f.left || (!m->sparse && place.at < m->size_bytes)))
        r = pouring_fault(&f, "has less data than its size says");
    free(f.piece);
    return r;
}

/* ---- members ---- */

static int member_take_attribute(void *ctx, const char *name, const void *value, size_t len)
{
    struct pour *p = ctx;
    return pax_xattrs_add(&p->xattrs, name, strlen(name), value, len);
}

static int member_take_extents(struct pour *p, struct archive_entry *entry)
{
    la_int64_t offset, length;
    p->extents.count = 0;
    archive_entry_sparse_reset(entry);
    while (archive_entry_sparse_next(entry, &offset, &length) == ARCHIVE_OK) {
        struct pax_extent *last =
            p->extents.count ? &p->extents.at[p->extents.count - 1] : NULL;
        if (length == 0)
            continue; /* GNU tar marks the file's size with an empty range */
        if (last && last->offset + last->length == (uint64_t)offset)
            last->length += (uint64_t)length;
        else if (vector_push(&p->extents,
                             (struct pax_extent){(uint64_t)offset, (uint64_t)length}) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* The current member, whose name is in p->path. */
static struct pax_member member_begin(const struct pour *p, const struct builder_member *b)
{
    return (struct pax_member){
        .path = p->path.at,
        .path_len = p->path.count - 1,
        .mode = b->mode,
        .uid = b->uid,
        .gid = b->gid,
        .mtime_sec = b->mtime_sec,
        .mtime_nsec = b->mtime_nsec,
    };
}

/* Asks the builder, and puts the header. */
static int member_put_header(struct pour *p, const struct pax_member *m, struct fault *fault)
{
    struct pax_buffer header = {0};
    int r = pax_encode(m, &header);
    if (r == 0) {
        r = writer_add(p->writer, m, &header, NULL, fault);
        r = r < 0 ? member_writer_failed(p, r, true) : 0;
    }
    vector_free(&header);
    return r;
}

/* ".." is the builder's to refuse, and the root can only be a directory. */
static int member_name(struct pour *p, const char *path, const struct builder_member *b,
                       bool is_folder, struct fault *fault)
{
    int r = member_clean(path, &p->path);
    if (r == 0 && p->path.count == 1 && !is_folder)
        return fault_set(fault, -EINVAL, path, b->header_offset, "has no name");
    return r;
}

int pour_add(void *ctx, const char *path, const struct builder_member *b, struct archive *a,
             struct archive_entry *entry, struct fault *fault)
{
    struct pour *p = ctx;
    bool is_folder = S_ISDIR(b->mode);
    int r = member_name(p, path, b, is_folder, fault);
    if (r < 0 || member_is_excluded(p, is_folder))
        return r;
    struct pax_member m = member_begin(p, b);
    m.link = b->symlink;
    m.link_len = b->symlink_len;
    m.rdev_major = b->rdev_major;
    m.rdev_minor = b->rdev_minor;
    m.size_bytes = b->size_bytes;
    m.sparse = b->data == DATA_PIECES;
    r = tar_take_attributes(entry, member_take_attribute, p, &p->odd);
    pax_xattrs_sort(&p->xattrs);
    m.xattrs = p->xattrs.at;
    m.xattr_count = p->xattrs.count;
    if (r == 0 && m.sparse)
        r = member_take_extents(p, entry);
    m.extents = p->extents.at;
    m.extent_count = m.sparse ? p->extents.count : 0;
    if (r == 0)
        r = member_put_header(p, &m, fault);
    pax_xattrs_free(&p->xattrs);
    if (r == 0 && pax_stored_bytes(&m) > 0)
        r = member_put_data(p, &m, a, fault);
    return r;
}

int pour_link(void *ctx, const char *path, const char *target, const struct builder_member *b,
              struct fault *fault)
{
    struct pour *p = ctx;
    int r = member_name(p, path, b, false, fault);
    if (r == 0)
        r = member_clean(target, &p->target);
    if (r < 0 || member_is_excluded(p, false))
        return r;
    if (strcmp(p->path.at, p->target.at) == 0 &&
        writer_has(p->writer, p->path.at, p->path.count - 1) == 1)
        return 0; /* to itself */
    struct pax_member m = member_begin(p, b);
    m.link = p->target.at;
    m.link_len = p->target.count - 1;
    m.hardlink = true;
    return member_put_header(p, &m, fault);
}

void pour_free(struct pour *p)
{
    pax_xattrs_free(&p->xattrs);
    vector_free(&p->extents);
    vector_free(&p->path);
    vector_free(&p->target);
}
