/*
 * The parent opens the output and waits; the child does the rest.
 *
 * The child's threads compress. It reads and writes with one: a pipe, the sums and the page
 * cache share the time.
 */
#include "pour.h"

#include <archive.h>
#include <archive_entry.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "budget.h"
#include "cleanup.h"
#include "decompressor.h"
#include "map.h"
#include "numbers.h"
#include "output.h"
#include "path.h"
#include "pour_private.h"
#include "protobuf.h"
#include "sandbox.h"
#include "syscalls.h"
#include "write_at.h"

/*
 * Reads the input and decompresses it. Uncompressed input is read into the very block that
 * libarchive gets.
 */

enum {
    READ_BYTES = 512 << 10,
    HEAD_LEAST = 64 << 10, /* enough to recognize it: an ISO 9660 image says so at 32 KB */
};

/* The next bytes of the input, counted in progress->bytes_done. 0: its end; or -errno. */
static ssize_t pour_read_input(struct pour *p, void *bytes, size_t len)
{
    ssize_t n;
    do {
        n = read(p->fd, bytes, len);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    p->progress->bytes_done += (uint64_t)n;
    return n;
}

static int stream_read_some(struct pour *p, uint8_t *bytes, size_t len, size_t *ret_len)
{
    ssize_t n = pour_read_input(p, bytes, len);
    if (n < 0)
        return fault_set_read(p->fault, (int)n, NULL, p->progress->bytes_done);
    *ret_len = (size_t)n;
    return 0;
}

/* Reads until `len` bytes are there, or the input ends. */
static int stream_read_full(struct pour *p, uint8_t *bytes, size_t len, size_t *ret_len)
{
    size_t n = 1;
    int r = 0;
    *ret_len = 0;
    while (r == 0 && n > 0 && *ret_len < len) {
        r = stream_read_some(p, bytes + *ret_len, len - *ret_len, &n);
        *ret_len += r == 0 ? n : 0;
    }
    return r;
}

/* For the decompressor: first what was read to recognize the input. */
static ssize_t stream_feed(void *ctx, const void **ret_bytes)
{
    struct pour *p = ctx;
    size_t len = p->packed.len;
    int r = len ? 0 : stream_read_some(p, p->packed.bytes, READ_BYTES, &len);
    p->packed.len = 0;
    *ret_bytes = p->packed.bytes;
    return r < 0 ? r : (ssize_t)len;
}

/* ---- blocks ---- */

static int stream_read_block(struct pour *p, struct pour_block *b)
{
    b->len = 0;
    if (!b->bytes && !(b->bytes = malloc(READ_BYTES)))
        return -ENOMEM;
    if (!p->decompressor)
        return stream_read_some(p, b->bytes, READ_BYTES, &b->len);
    ssize_t n = decompressor_read(p->decompressor, b->bytes, READ_BYTES);
    if (n < 0)
        return (int)n;
    b->len = (size_t)n;
    p->progress->beats++;
    return 0;
}

/* Gets the next block into p->blocks[p->last]. */
static int stream_advance(struct pour *p)
{
    if (p->error < 0)
        return p->error;
    if (p->is_waiting) {
        p->is_waiting = false;
    } else {
        p->last = !p->last;
        struct pour_block *b = &p->blocks[p->last];
        b->len = 0;
        if (!p->is_at_end)
            p->error = stream_read_block(p, b);
        if (p->error < 0)
            b->len = 0;
    }
    p->given += p->blocks[p->last].len;
    p->is_at_end |= p->blocks[p->last].len == 0;
    return p->error;
}

/* For libarchive and struct tar_stream; the context is the struct pour. */
static ssize_t pour_stream_next(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct pour *p = ctx;
    int r = stream_advance(p);
    if (r < 0) {
        archive_set_error(a, -r, "read error");
        return ARCHIVE_FATAL;
    }
    *ret_bytes = p->blocks[p->last].bytes;
    return (ssize_t)p->blocks[p->last].len;
}

/*
 * Reads to the end, so that who writes the stream is not cut off, and so that sums at its end
 * are compared.
 */
static int pour_stream_drain(struct pour *p)
{
    int r = p->error;
    while (r == 0 && !p->is_at_end)
        r = stream_advance(p);
    return r;
}

/* ---- the beginning ---- */

/* Makes the first bytes the packed ones, and the first block their unpacked form. */
static int stream_begin_unpacking(struct pour *p)
{
    struct pour_block *b = &p->blocks[0];
    p->packed = *b;
    *b = (struct pour_block){0};
#ifndef HAVE_ZLIB
    /* A stream is the one chance to find damage, and sums would not be compared. */
    if (strcmp(p->compression, "gzip") == 0)
        return fault_set_advised(p->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                                 "decompress it on the way: gzip -dc",
                                 "is gzip data, and zlib was not built in");
#endif
    int r = decompressor_new(p->compression, stream_feed, p, p->fault, &p->decompressor);
    return r < 0 ? r : stream_read_block(p, b);
}

/* Reads the first bytes, which *ret_head points to. Ends with pour_stream_close in any case. */
static int pour_stream_open(struct pour *p, const uint8_t **ret_head, size_t *ret_len)
{
    struct pour_block *b = &p->blocks[0];
    b->bytes = malloc(READ_BYTES);
    int r = b->bytes ? stream_read_full(p, b->bytes, HEAD_LEAST, &b->len) : -ENOMEM;
    if (r == 0 && tar_is_packed(NULL, b->bytes, b->len, &p->compression) == 1)
        r = stream_begin_unpacking(p);
    p->is_waiting = true;
    *ret_head = b->bytes;
    *ret_len = b->len;
    return r;
}

/* Before the index is made: a window may be large. */
static void pour_stream_close(struct pour *p)
{
    decompressor_free(p->decompressor);
    free(p->packed.bytes);
    free(p->blocks[0].bytes);
    free(p->blocks[1].bytes);
}

/*
 * Hands members to the writer.
 *
 * A name is cleaned here as the builder does for the index, since the header has it too.
 * The builder is asked first: a member that it refuses is left out of both.
 */

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

/* Do the patterns leave out the member (p->path), or a folder that it lies in? */
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

static struct map_key member_key(const char *path)
{
    XXH128_hash_t hash = XXH3_128bits(path, strlen(path));
    return (struct map_key){hash.high64, hash.low64};
}

/* -EEXIST: names that normalization makes one; others are told at the end, each once. */
static int member_note_alike(struct pour *p, const char *path, const char *other,
                             struct fault *fault)
{
    int r = map_put(&p->alike, member_key(path), 0);
    if (p->selection.is_nfc)
        return selection_alike_fault(&p->selection, 1, path, path_base(other), fault);
    if (r == 0 && !p->first_alike[0]) {
        p->first_alike[0] = strdup(path);
        p->first_alike[1] = strdup(path_base(other));
        r = p->first_alike[0] && p->first_alike[1] ? 0 : -ENOMEM;
    }
    return r == -EEXIST ? 0 : r;
}

/*
 * Does a path differ from an earlier one by normalization alone? All that came are kept but
 * ASCII, which the writer knows: a Kelvin sign becomes a K.
 */
static int member_compare(struct pour *p, const char *path, struct fault *fault)
{
    auto_free char *own = NULL;
    int r = selection_compose(path, &own);
    const char *composed = r == 1 ? own : path;
    uint64_t at = p->spellings.count;
    if (r < 0)
        return r;
    if (map_get(&p->spelling_of, member_key(composed), &at) == 0) {
        const char *other = p->spellings.at + at;
        return strcmp(path, other) == 0 ? 0 : member_note_alike(p, path, other, fault);
    }
    bool is_ascii = true;
    for (const char *byte = path; *byte; byte++)
        is_ascii &= !(*byte & 0x80);
    if (is_ascii)
        return 0;
    if (vector_append(&p->spellings, path, strlen(path) + 1) < 0 ||
        map_put(&p->spelling_of, member_key(composed), at) < 0)
        return -ENOMEM;
    return r == 1 && writer_has(p->writer, composed, strlen(composed)) == 1
               ? member_note_alike(p, path, composed, fault)
               : 0;
}

/* Gives a text the form that names get. */
static int member_compose(const struct pour *p, pour_text *text)
{
    auto_free char *composed = NULL;
    int r = p->selection.is_nfc ? selection_compose(text->at, &composed) : 0;
    if (r == 1) {
        text->count = 0;
        r = vector_append(text, composed, strlen(composed) + 1);
    }
    return r;
}

/* The name in the archive of the member (p->path), and of its folders. */
static int member_rename(struct pour *p, struct fault *fault)
{
    char *path = p->path.at;
    int r = 0;
    if (p->path.count > INDEX_PATH_MAX + 1) /* the writer refuses it */
        return 0;
    for (char *slash = strchr(path, '/'); r == 0 && slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        r = member_compare(p, path, fault);
        *slash = '/';
    }
    if (r == 0)
        r = member_compare(p, path, fault);
    return r < 0 ? r : member_compose(p, &p->path);
}

/*
 * A symbolic link still leads to what it led to, if that is in the tree. A hard link's target
 * is in p->target.
 */
static int member_follow(struct pour *p, struct node *m)
{
    int r = 0;
    if (!m->is_hardlink) {
        if (!p->selection.is_nfc || !m->link ||
            path_leads_out(m->path, m->path_len, m->link, m->link_len))
            return 0;
        p->target.count = 0;
        r = vector_append(&p->target, m->link, m->link_len);
        if (r == 0)
            r = vector_push(&p->target, '\0');
    }
    if (r == 0)
        r = member_compose(p, &p->target);
    m->link = p->target.at;
    m->link_len = r < 0 ? 0 : p->target.count - 1;
    return r;
}

/* ---- members that are left out ---- */

static int pour_leave_out(void *ctx, const struct fault *why)
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
    const struct node *m; /* has all data of the file but the holes */
    struct archive *archive;
    struct fault *fault;
    uint8_t *piece; /* PIECE_BYTES, or all that is left */
    size_t len, size;
    uint64_t left; /* bytes that are still to come, with those in `piece` */
    size_t extent; /* of the member: the next byte is in it */
    uint64_t at;   /* the next byte in the file */
};

static int pouring_fault(const struct pouring *f, const char *what)
{
    return fault_set(f->fault, -EUCLEAN, f->m->path,
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

/* Puts bytes that lie at `offset` of the file. Gaps are zeros. */
static int pouring_put_at(struct pouring *f, const uint8_t *bytes, uint64_t len,
                          uint64_t offset)
{
    const struct node *m = f->m;
    if (offset < f->at)
        return pouring_fault(f, "its data is out of order");
    if (!m->has_pieces) {
        int r = pouring_put(f, NULL, offset - f->at);
        f->at = offset + len;
        return r < 0 ? r : pouring_put(f, bytes, len);
    }
    while (len > 0) {
        const struct builder_piece *e =
            f->extent < m->piece_count ? &m->pieces[f->extent] : NULL;
        if (!e || offset < e->offset)
            return pouring_fault(f, "its map of holes makes no sense");
        uint64_t end = e->offset + e->length, from = max_u64(f->at, e->offset);
        if (offset >= end || offset != from)
            return pouring_fault(f, "its map of holes makes no sense");
        uint64_t n = min_u64(len, end - offset);
        int r = pouring_put(f, bytes, n);
        if (r < 0)
            return r;
        bytes += n;
        offset += n;
        len -= n;
        f->at = offset;
        f->extent += offset == end;
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

static int member_put_data(struct pour *p, const struct node *m, struct archive *a,
                           struct fault *fault)
{
    uint64_t stored = pax_stored_bytes(m);
    struct pouring f = {.p = p, .m = m, .archive = a, .fault = fault, .left = stored};
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
        r = len ? pouring_put_at(&f, bytes, len, (uint64_t)offset) : 0;
        if (r < 0)
            break;
        p->progress->beats++;
    }
    if (r == 0 && (f.left || (!m->has_pieces && f.at < m->size_bytes)))
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

/* Asks the builder, and puts the header. */
static int member_put_header(struct pour *p, const struct node *m, struct fault *fault)
{
    struct pax_buffer header = {0};
    int r = pax_encode(m, &header);
    if (r == 0) {
        r = writer_add(p->writer, m, &header, fault);
        r = r < 0 ? member_writer_failed(p, r, true) : 0;
    }
    vector_free(&header);
    return r;
}

/* ".." is the builder's to refuse, and the root can only be a directory. */
static int member_name(struct pour *p, const struct node *b, bool is_folder,
                       struct fault *fault)
{
    int r = member_clean(b->path, &p->path);
    if (r == 0 && p->path.count == 1 && !is_folder)
        return fault_set(fault, -EINVAL, b->path, b->header_offset, "has no name");
    return r;
}

/* Of struct tar_stream; the context is the struct pour. */
static int pour_add(void *ctx, const struct node *b, struct archive *a,
                    struct archive_entry *entry, struct fault *fault)
{
    struct pour *p = ctx;
    bool is_folder = S_ISDIR(b->mode);
    int r = member_name(p, b, is_folder, fault);
    if (r == 0 && b->is_hardlink)
        r = member_clean(b->link, &p->target);
    if (r < 0 || member_is_excluded(p, is_folder))
        return r;
    r = member_rename(p, fault);
    struct node m = *b;
    m.path = p->path.at;
    m.path_len = p->path.count - 1;
    if (r == 0)
        r = member_follow(p, &m);
    if (r < 0)
        return r;
    if (m.is_hardlink) {
        m.has_pieces = false;
        return strcmp(m.path, m.link) == 0 && writer_has(p->writer, m.path, m.path_len) == 1
                   ? 0 /* to itself */
                   : member_put_header(p, &m, fault);
    }
    r = tar_take_attributes(entry, member_take_attribute, p, &p->odd);
    pax_xattrs_sort(&p->xattrs);
    m.xattrs = p->xattrs.at;
    m.xattr_count = p->xattrs.count;
    if (r == 0)
        r = member_put_header(p, &m, fault);
    pax_xattrs_free(&p->xattrs);
    if (r == 0 && pax_stored_bytes(&m) > 0)
        r = member_put_data(p, &m, a, fault);
    return r;
}

void pour_free(struct pour *p)
{
    pax_xattrs_free(&p->xattrs);
    vector_free(&p->path);
    vector_free(&p->target);
    vector_free(&p->spellings);
    map_free(&p->spelling_of);
    map_free(&p->alike);
    free(p->first_alike[0]);
    free(p->first_alike[1]);
}

/*
 * Members of archives other than tars, by libarchive.
 *
 * Names are wanted as UTF-8, which most of these formats have in other forms; the parent has
 * opened such a locale, since the sandbox opens no file.
 *
 * A cpio may hold the data of a file of several names with its last name. The earlier ones wait
 * for it.
 */

#define READ_BYTES ((size_t)256 << 10)
#define TAIL_BYTES ((size_t)4096)

/* A file of several names in a cpio. */
struct links {
    char *first;                 /* its name in the archive; NULL: its data has not come */
    struct archive_entry *entry; /* of the first that waits */
    VECTOR(char *) waiting;
};

struct container {
    struct pour *p;
    bool is_file; /* which can be sought, and is read by libarchive itself */
    const struct pour_format *format;
    bool is_open; /* libarchive knows the format */
    struct archive *archive;
    uint8_t *bytes;           /* READ_BYTES of the file */
    int error;                /* of reading it */
    uint8_t tail[TAIL_BYTES]; /* the last bytes that libarchive got */
    size_t tail_len;
    VECTOR(struct links) files;
    struct map numbers; /* of `files`, by device and inode */
};

/* ---- formats ---- */

static int container_enable_rar(struct archive *a)
{
    int r = archive_read_support_format_rar5(a);
    return r == ARCHIVE_OK ? archive_read_support_format_rar(a) : r;
}

static const struct pour_format formats[] = {
    {"7z", archive_read_support_format_7zip, true},
    {"rar", container_enable_rar, false},
    {"iso9660", archive_read_support_format_iso9660, false},
    {"cpio", archive_read_support_format_cpio, false},
    {"ar", archive_read_support_format_ar, false},
    {"cab", archive_read_support_format_cab, false},
    {"warc", archive_read_support_format_warc, false},
    {"xar", archive_read_support_format_xar, false},
    {"lha", archive_read_support_format_lha, false},
};

/* NULL: nothing that is packed. */
static const struct pour_format *pour_find_format(const uint8_t *head, size_t len)
{
    const char *name = backend_container(head, len);
    for (size_t i = 0; name && i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i].name, name) == 0)
            return &formats[i];
    return NULL;
}

/* A RAR 5 header is numbers, which have the form of Protocol Buffers'. */
static bool pour_is_rar_volume(const uint8_t *head, size_t len)
{
    uint64_t ignored, type, flags, archive_flags;
    if (len >= 12 && memcmp(head, "Rar!\x1a\x07\x00", 7) == 0)
        return head[9] == 0x73 && (head[10] & 1);
    if (len < 12 || memcmp(head, "Rar!\x1a\x07\x01\x00", 8) != 0)
        return false;
    struct cursor c = {head + 12, len - 12}; /* behind the signature and a sum */
    return protobuf_varint(&c, &ignored) &&  /* length */
           protobuf_varint(&c, &type) && protobuf_varint(&c, &flags) && type == 1 &&
           (!(flags & 1) || protobuf_varint(&c, &ignored)) && /* length behind the header */
           protobuf_varint(&c, &archive_flags) && (archive_flags & 1);
}

/* ---- a file ---- */

static ssize_t file_read(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct container *c = ctx;
    ssize_t n = pour_read_input(c->p, c->bytes, READ_BYTES);
    if (n < 0) {
        c->error = (int)n;
        archive_set_error(a, (int)-n, "read error");
        return ARCHIVE_FATAL;
    }
    *ret_bytes = c->bytes;
    return n;
}

static la_int64_t file_seek(struct archive *a, void *ctx, la_int64_t offset, int whence)
{
    const struct container *c = ctx;
    off_t at = lseek(c->p->fd, offset, whence);
    (void)a;
    return at < 0 ? ARCHIVE_FATAL : at;
}

static la_int64_t file_skip(struct archive *a, void *ctx, la_int64_t bytes)
{
    const struct container *c = ctx;
    off_t from = lseek(c->p->fd, 0, SEEK_CUR), end, to;
    (void)a;
    if (from < 0 || (end = lseek(c->p->fd, 0, SEEK_END)) < 0)
        return 0;
    to = bytes < end - from ? from + bytes : end;
    return lseek(c->p->fd, to, SEEK_SET) < 0 ? ARCHIVE_FATAL : to - from;
}

static ssize_t container_read(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct container *c = ctx;
    ssize_t n = c->is_file ? file_read(a, c, ret_bytes) : pour_stream_next(a, c->p, ret_bytes);
    if (n > 0) {
        size_t len = min_u64((uint64_t)n, TAIL_BYTES);
        size_t kept = min_u64(c->tail_len, TAIL_BYTES - len);
        memmove(c->tail, c->tail + c->tail_len - kept, kept);
        memcpy(c->tail + kept, (const uint8_t *)*ret_bytes + n - len, len);
        c->tail_len = kept + len;
    }
    return n;
}

static int container_open(struct container *c)
{
    struct archive *a = c->archive;
    if (c->format->enable(a) != ARCHIVE_OK)
        return fault_set(c->p->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                         "is a %s archive, which this build does not read", c->format->name);
    if (c->is_file) {
        c->bytes = malloc(READ_BYTES);
        if (!c->bytes)
            return -ENOMEM;
        archive_read_set_seek_callback(a, file_seek);
        archive_read_set_skip_callback(a, file_skip);
    }
    archive_read_set_read_callback(a, container_read);
    archive_read_set_callback_data(a, c);
    c->is_open = archive_read_open1(a) == ARCHIVE_OK;
    return c->is_open ? 0 : -EUCLEAN;
}

/* ---- errors ---- */

static int container_encrypted(struct container *c, const char *path)
{
    return fault_set_advised(c->p->fault, -EACCES, path, FAULT_NO_OFFSET,
                             "extract it with its password, and pack the directory",
                             "is encrypted");
}

/* The offset in the input up to which libarchive has read. */
static uint64_t container_offset(const struct container *c)
{
    off_t at = c->is_file ? lseek(c->p->fd, 0, SEEK_CUR) : (off_t)c->p->given;
    return at < 0 ? FAULT_NO_OFFSET : (uint64_t)at;
}

static int container_damaged(struct container *c, const char *last, const char *why)
{
    return fault_set(c->p->fault, -EUCLEAN, last, container_offset(c), "%s%s: %s",
                     last && last[0] ? "is followed by a damaged part of the "
                                     : "is a damaged ",
                     c->format->name, why);
}

static int container_failed(struct container *c, const char *last)
{
    if (!c->is_file && c->p->error < 0)
        return c->p->error;
    if (c->error < 0)
        return fault_set_read(c->p->fault, c->error, last, container_offset(c));
    if (archive_errno(c->archive) == ENOMEM)
        return -ENOMEM;
    if (c->is_open &&
        archive_read_has_encrypted_entries(c->archive) == 1) /* else it may crash */
        return container_encrypted(c, NULL);
    return container_damaged(c, last, tar_complaint(c->archive));
}

/* For a few bytes, also in a build without libdeflate, which makes the other CRC-32. */
static uint32_t crc32_of(const uint8_t *bytes, size_t len)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < 8 * len; i++) {
        crc ^= i % 8 ? 0 : bytes[i / 8];
        crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    return ~crc;
}

/* A block of RAR 5: the sum of what follows, its length behind these five bytes, its type. */
static bool tail_has_rar_end(const uint8_t *tail, size_t len)
{
    for (size_t i = 0; i + 6 <= len; i++) {
        size_t size = tail[i + 4];
        uint32_t sum;
        memcpy(&sum, tail + i, sizeof(sum));
        if (tail[i + 5] == 5 && size < 128 && size <= len - i - 5 &&
            crc32_of(tail + i + 4, 1 + size) == le32toh(sum))
            return true;
    }
    return false;
}

/*
 * libarchive takes a RAR 5 that ends between two blocks, or in the head of one, for whole, and
 * an ar that ends in the head of a member.
 */
static int container_check_end(struct container *c, const char *last)
{
    int format = archive_format(c->archive);
    bool is_cut = false;
    if (format == ARCHIVE_FORMAT_RAR_V5)
        is_cut = !tail_has_rar_end(c->tail, c->tail_len);
    else if ((format & ARCHIVE_FORMAT_BASE_MASK) == ARCHIVE_FORMAT_AR)
        is_cut = container_offset(c) > (uint64_t)archive_filter_bytes(c->archive, 0);
    return is_cut ? container_damaged(c, last, "its end is missing") : 0;
}

/* ---- members ---- */

/* `target`: of a hard link; NULL: it is none. */
static int container_add(struct container *c, struct archive_entry *entry, const char *path,
                         const char *target, struct fault *fault)
{
    uint64_t offset = (uint64_t)archive_read_header_position(c->archive);
    struct node m = {.path = path,
                     .header_offset = offset,
                     .is_hardlink = target,
                     .link = target,
                     .link_len = target ? strlen(target) : 0};
    tar_describe(entry, &m, &c->p->odd);
    int r = target ? 0 : tar_describe_type(entry, &m);
    if (r < 0)
        return fault_set(fault, -EINVAL, path, offset,
                         r == -EINVAL ? "is a symbolic link without a target"
                                      : "is of a type that no directory has");
    if (!target && S_ISREG(m.mode)) {
        if (!archive_entry_size_is_set(entry) || archive_entry_size(entry) < 0)
            return fault_set(fault, -EINVAL, path, offset,
                             "has no size that is known before its end");
        m.size_bytes = (uint64_t)archive_entry_size(entry);
    }
    return pour_add(c->p, &m, c->archive, entry, fault);
}

/* Leaves the member out, if `r` allows that. */
static int container_settle(struct container *c, int r, const struct fault *own)
{
    if (builder_may_leave_out(r) && own->err)
        return pour_leave_out(c->p, own);
    if (r < 0 && !c->p->fault->err)
        *c->p->fault = *own;
    return r;
}

/* ---- files of several names ---- */

/* The names that waited become links to the one that is there. */
static int links_release(struct container *c, struct links *l)
{
    int r = 0;
    for (size_t i = 0; i < l->waiting.count; i++) {
        struct fault own = {0};
        if (r == 0)
            r = container_settle(
                c, container_add(c, l->entry, l->waiting.at[i], l->first, &own), &own);
        free(l->waiting.at[i]);
    }
    l->waiting.count = 0;
    return r;
}

static int links_find(struct container *c, struct archive_entry *entry,
                      struct links **ret_links)
{
    struct map_key key = {(uint64_t)archive_entry_dev(entry),
                          (uint64_t)archive_entry_ino64(entry)};
    uint64_t number = c->files.count;
    if (map_get(&c->numbers, key, &number) < 0) {
        if (vector_push(&c->files, (struct links){0}) < 0)
            return -ENOMEM;
        int r = map_put(&c->numbers, key, number);
        if (r < 0)
            return r;
    }
    *ret_links = &c->files.at[number];
    return 0;
}

static int links_wait(struct links *l, struct archive_entry *entry, const char *path)
{
    char *copy = strdup(path);
    if (!l->entry)
        l->entry = archive_entry_clone(entry);
    if (copy && l->entry && vector_push(&l->waiting, copy) == 0)
        return 0;
    free(copy);
    return -ENOMEM;
}

static int container_add_named(struct container *c, struct archive_entry *entry,
                               const char *path, struct fault *fault)
{
    struct links *l;
    int r = links_find(c, entry, &l);
    if (r < 0)
        return r;
    if (l->first)
        return container_add(c, entry, path, l->first, fault);
    if (archive_entry_size(entry) == 0)
        return links_wait(l, entry, path);
    r = container_add(c, entry, path, NULL, fault);
    if (r == 0 && !(l->first = strdup(path)))
        r = -ENOMEM;
    return r == 0 ? links_release(c, l) : r;
}

/* The container has ended: files whose data never came are empty files. */
static int pour_end_links(struct container *c)
{
    int r = 0;
    for (size_t i = 0; i < c->files.count; i++) {
        struct links *l = &c->files.at[i];
        struct fault own = {0};
        if (r == 0 && l->waiting.count) {
            r = container_settle(c, container_add(c, l->entry, l->waiting.at[0], NULL, &own),
                                 &own);
            l->first = strdup(l->waiting.at[0]);
            if (r == 0)
                r = l->first ? links_release(c, l) : -ENOMEM;
        }
    }
    return r;
}

static void links_free(struct container *c)
{
    for (size_t i = 0; i < c->files.count; i++) {
        struct links *l = &c->files.at[i];
        for (size_t k = 0; k < l->waiting.count; k++)
            free(l->waiting.at[k]);
        vector_free(&l->waiting);
        archive_entry_free(l->entry);
        free(l->first);
    }
    vector_free(&c->files);
    map_free(&c->numbers);
}

/* ---- the walk ---- */

/* The tables of an ar are no members. */
static bool container_is_table(const struct container *c, const char *path)
{
    return strcmp(c->format->name, "ar") == 0 &&
           (path[0] == '/' || strncmp(path, "__.SYMDEF", 9) == 0);
}

static int container_take(struct container *c, struct archive_entry *entry)
{
    struct fault own = {0};
    const char *path = archive_entry_pathname(entry);
    const char *target = archive_entry_hardlink(entry);
    int r;
    if (archive_entry_is_encrypted(entry))
        return container_encrypted(c, path);
    if (!path || !path[0])
        r = fault_set(&own, -EINVAL, NULL, (uint64_t)archive_read_header_position(c->archive),
                      "a member has no name that can be shown");
    else if (container_is_table(c, path))
        r = 0;
    else if (strcmp(c->format->name, "cpio") == 0 && archive_entry_nlink(entry) > 1 &&
             (target || archive_entry_filetype(entry) == AE_IFREG))
        r = container_add_named(c, entry, path, &own);
    else
        r = container_add(c, entry, path, target, &own);
    return container_settle(c, r, &own);
}

static int container_walk(struct container *c)
{
    struct archive_entry *entry;
    char last[sizeof(c->p->fault->member)] = "";
    for (;;) {
        int status = archive_read_next_header(c->archive, &entry);
        if (status == ARCHIVE_EOF)
            break;
        if (status != ARCHIVE_OK && status != ARCHIVE_WARN)
            return container_failed(c, last);
        const char *path = archive_entry_pathname(entry);
        snprintf(last, sizeof(last), "%s", path ? path : "");
        int r = container_take(c, entry);
        if (r < 0)
            return r;
        c->p->progress->members++;
    }
    int r = container_check_end(c, last);
    return r < 0 ? r : pour_end_links(c);
}

static int pour_container(struct pour *p, const struct pour_format *format)
{
    struct container c = {.p = p, .is_file = p->is_file && !p->compression, .format = format};
    if (format->seeks && !c.is_file)
        return fault_set_advised(
            p->fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "save it in a file and pack that",
            "is a %s archive, whose directory is at its end", format->name);
    if (c.is_file && lseek(p->fd, 0, SEEK_SET) < 0)
        return -errno;
    c.archive = archive_read_new();
    if (!c.archive)
        return -ENOMEM;
    locale_t before = uselocale(p->locale ? p->locale : LC_GLOBAL_LOCALE);
    int r = container_open(&c);
    r = r == -EUCLEAN ? container_failed(&c, NULL) : r < 0 ? r : container_walk(&c);
    if (r == 0 && !c.is_file)
        r = pour_stream_drain(p);
    uselocale(before);
    archive_read_free(c.archive);
    links_free(&c);
    free(c.bytes);
    return r;
}

/*
 * Of private memory. The table of members takes 100 bytes and a name for each; xz may want a
 * large dictionary, and zstd a large window.
 */
#define POUR_MEMORY_LEAST (UINT64_C(1) << 30)
#define POUR_MEMORY_MOST (UINT64_C(8) << 30)
#define PIPE_BYTES (1 << 20)

/* ---- the child ---- */

static void pour_prepare(void *arg)
{
    struct pour *p = arg;
    const struct writer_options *w = &p->options->writer;
    if (w->zstd_level && compress_pool_new(w->threads, w->zstd_level, &p->pool) < 0)
        p->pool = NULL; /* the writer tries again, and reports it */
}

static int pour_tar(struct pour *p)
{
    const struct tar_stream stream = {
        .next = pour_stream_next,
        .error = &p->error,
        .add = pour_add,
        .leave_out = pour_leave_out,
        .ctx = p,
    };
    return tar_take_members(&stream, p->options->ignores_zeros, p->progress, p->fault);
}

static const char *pour_kind_of(const uint8_t *head, size_t len)
{
    if (len >= 4 && memcmp(head, "PK\3\4", 4) == 0)
        return "a zip, whose directory is at its end";
    if (len >= 4 && memcmp(head, "hsqs", 4) == 0)
        return "a SquashFS image, which can't be read from front to back";
    return "nothing that can be packed from a stream";
}

static int pour_unknown(struct pour *p, const uint8_t *head, size_t len)
{
    if (p->progress->bytes_done == 0)
        fault_set(p->fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                  "is empty: what was to write it wrote nothing");
    else if (p->compression)
        fault_set(p->fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is %s data%s", p->compression,
                  len ? ", but of nothing that can be packed from a stream" : " of nothing");
    else
        fault_set(p->fault, -ENOMSG, NULL, FAULT_NO_OFFSET, "is %s", pour_kind_of(head, len));
    fault_advise(p->fault, "give a tar, or save it in a file and pack that");
    return -ENOMSG;
}

static int pour_other(struct pour *p, const uint8_t *head, size_t len)
{
    const struct pour_format *format = pour_find_format(head, len);
    if (pour_is_rar_volume(head, len))
        return fault_set_advised(
            p->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
            "extract it (unrar x, 7z x), and pack the directory",
            "is one of several volumes of a RAR archive, which are not read together");
    return format ? pour_container(p, format) : pour_unknown(p, head, len);
}

int pour_read(struct pour *p)
{
    const uint8_t *head;
    size_t len;
    int r = pour_stream_open(p, &head, &len);
    if (r == 0)
        r = len && tar_probe_head(head, len) ? pour_tar(p) : pour_other(p, head, len);
    pour_stream_close(p);
    return r;
}

/* Ends the archive, and tells the parent of its size and contents. */
static int pour_end(struct pour *p)
{
    int r = writer_finish(steal_ptr(&p->writer), p->fault, &p->result.totals);
    p->output_error = r;
    if (r == 0)
        r = write_at(p->report_fd, &p->result, sizeof(p->result),
                     offsetof(struct pour_report, result));
    if (r == 0 && p->first_alike[0]) {
        struct fault fault = {0};
        selection_alike_fault(&p->selection, p->alike.count, p->first_alike[0],
                              p->first_alike[1], &fault);
        r = write_at(p->report_fd, &fault, sizeof(fault), offsetof(struct pour_report, alike));
    }
    return r;
}

static int pour_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct pour *p = arg;
    const struct pack_options *o = p->options;
    struct writer_options how = o->writer;
    p->progress = progress;
    p->fault = fault;
    how.pool = p->pool;
    int r = writer_new(p->output, &how, &p->writer);
    p->output_error = r;
    if (r == 0)
        r = pour_read(p);
    if (r == 0)
        r = pour_end(p);
    if (r < 0)
        fault_set_file(fault, p->output_error ? o->output : o->sources[0]);
    pour_free(p);
    return r; /* the writer goes with the process */
}

/* ---- the parent ---- */

/* A file of fixed size: the child can't make it grow. */
static int pour_open_report(int *ret_fd)
{
    auto_close int fd = syscall_memfd("onepot-report", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fd;
    if (ftruncate(fd, (off_t)sizeof(struct pour_report)) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* Passes on a fault from the child's report. */
static void pour_pass_fault(const struct pour *p, enum pack_report kind, uint64_t at)
{
    const struct pack_options *o = p->options;
    struct fault fault;
    if (read_at(p->report_fd, &fault, sizeof(fault), at) < 0 || !fault.err)
        return;
    fault.member[sizeof(fault.member) - 1] = '\0';
    fault.what[sizeof(fault.what) - 1] = '\0';
    fault.advice[sizeof(fault.advice) - 1] = '\0';
    fault.file[0] = '\0';
    fault_set_file(&fault, o->sources[0]);
    o->report(o->ctx, kind, &fault);
}

/* Passes on what was left out since the last time. */
static void pour_pass_reports(struct pour *p)
{
    const struct pack_options *o = p->options;
    uint64_t count = 0;
    if (!o->report ||
        read_at(p->report_fd, &count, sizeof(count), offsetof(struct pour_report, count)) < 0)
        return;
    for (; p->reported < min_u64(count, POUR_REPORTS); p->reported++)
        pour_pass_fault(p, PACK_PROBLEM,
                        offsetof(struct pour_report, faults) +
                            p->reported * sizeof(struct fault));
}

static bool pour_watch(void *ctx, const struct progress *progress)
{
    struct pour *p = ctx;
    const struct pack_options *o = p->options;
    pour_pass_reports(p);
    memcpy(p->note, progress->note, sizeof(p->note) - 1);
    if (o->progress)
        o->progress(o->ctx, "packing", progress);
    return true;
}

static int pour_run_child(struct pour *p, struct fault *fault)
{
    const struct pack_options *o = p->options;
    const int keep[] = {p->fd, p->output->fd, p->report_fd};
    struct sandbox_limits limits = {
        .memory_bytes =
            min_u64(max_u64(budget_memory_bytes(""), POUR_MEMORY_LEAST), POUR_MEMORY_MOST),
        .file_bytes = INT64_MAX, /* no signal at a limit of the caller */
        .keep_fds = keep,
        .keep_fd_count = sizeof(keep) / sizeof(keep[0]),
        .idle_seconds = p->is_file ? 0 : UINT32_MAX, /* who writes it may take any time */
        .prepare = pour_prepare,
        .threads = o->writer.zstd_level ? 1 + o->writer.threads : 0,
    };
    if (!p->is_file)
        fcntl(p->fd, F_SETPIPE_SZ, PIPE_BYTES); /* if it is a pipe, and that is allowed */
    int r = sandbox_run(pour_in_child, p, &limits, pour_watch, p, fault);
    if (r < 0)
        fault_set_file(fault, o->sources[0]);
    return r;
}

static void pour_report_parent(const struct pour *p, enum pack_report kind, const char *what)
{
    const struct pack_options *o = p->options;
    struct fault fault = {0};
    if (!o->report)
        return;
    fault_set(&fault, -EINVAL, NULL, FAULT_NO_OFFSET, "%s", what);
    fault_set_file(&fault, o->sources[0]);
    o->report(o->ctx, kind, &fault);
}

static int pour_take_result(struct pour *p, struct pack_result *ret_result)
{
    int r = read_at(p->report_fd, ret_result, sizeof(*ret_result),
                    offsetof(struct pour_report, result));
    char more[64];
    if (r < 0)
        return r;
    snprintf(more, sizeof(more), "%" PRIu64 " more members were left out",
             ret_result->problems - p->reported);
    if (ret_result->problems > p->reported)
        pour_report_parent(p, PACK_PROBLEM, more);
    if (p->note[0])
        pour_report_parent(p, PACK_NOTE, p->note);
    if (p->options->report)
        pour_pass_fault(p, PACK_NOTE, offsetof(struct pour_report, alike));
    return 0;
}

int pour_run(const struct pack_options *options, int fd, bool is_file, struct fault *fault,
             struct pack_result *ret_result)
{
    struct pour p = {.options = options,
                     .fd = fd,
                     .is_file = is_file,
                     .selection = {.excludes = options->excludes,
                                   .exclude_count = options->exclude_count,
                                   .is_nfc = options->is_nfc},
                     .report_fd = -1};
    if (options->source_count != 1 || options->shards || options->files_from)
        return -EINVAL;
    output_clean(options->output,
                 &(struct leftovers){.found = pack_report_leftover, .ctx = (void *)options});
    int r = output_open(options->output, options->overwrite ? OUTPUT_REPLACES : OUTPUT_NEW,
                        options->stripes, fault, &p.output);
    if (r < 0)
        return r;
    p.locale = newlocale(LC_ALL_MASK, "C.UTF-8", (locale_t)0);
    r = pour_open_report(&p.report_fd);
    if (r == 0)
        r = pour_run_child(&p, fault);
    if (r == 0)
        r = pour_take_result(&p, ret_result);
    if (p.report_fd >= 0)
        close(p.report_fd);
    if (p.locale)
        freelocale(p.locale);
    if (r == 0)
        return output_commit(p.output, !options->no_sync, fault);
    output_discard(p.output);
    return r;
}
