/*
 * One short function for each request that a read-only, immutable tree can get. After an answer
 * of ENOSYS the kernel does not ask again, but does the work itself without a round trip: OPEN,
 * OPENDIR, FLUSH, ACCESS, GETXATTR where the archive has no attributes, LSEEK where it has no
 * holes.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

static void op_ignore(struct request *rq)
{
    reply_none(rq);
}

static void op_done(struct request *rq)
{
    reply_error(rq, 0);
}

static void op_unsupported(struct request *rq)
{
    reply_error(rq, -ENOSYS);
}

static void op_no_terminal(struct request *rq)
{
    reply_error(rq, -ENOTTY); /* isatty() of Python's open() */
}

static void op_lookup(struct request *rq)
{
    const struct session *s = rq->worker->session;
    const char *name = rq->arg;
    size_t len = strnlen(name, rq->arg_len);
    struct fuse_entry_out entry;
    uint32_t parent, position;
    int r = request_position(rq, &parent);

    if (r == 0 && len == 1 && name[0] == '.')
        position = parent;
    else if (r == 0 && len == 2 && name[0] == '.' && name[1] == '.')
        r = index_parent(s->index, parent, &position);
    else if (r == 0 && len > INDEX_NAME_MAX)
        r = -ENAMETOOLONG; /* the kernel's own bound is FUSE's: 1024 bytes or a page */
    else if (r == 0)
        r = index_lookup(s->index, parent, name, len, &position);
    if (r == -ENOENT && parent == s->config.root && itself_lookup(rq, name, len))
        return;
    if (r == -ENOENT) {
        /* Nodeid 0 with a time-out: the kernel remembers that there is no such entry. */
        entry = (struct fuse_entry_out){.entry_valid = VALID_FOREVER_S};
        reply_bytes(rq, &entry, sizeof(entry));
        return;
    }
    if (r == 0)
        r = reply_fill_entry(s, parent, position, &entry);
    if (r < 0)
        reply_error(rq, r == -EUCLEAN ? -EIO : r);
    else
        reply_bytes(rq, &entry, sizeof(entry));
}

static void op_getattr(struct request *rq)
{
    struct fuse_attr_out out = {.attr_valid = VALID_FOREVER_S};
    uint32_t position;
    int r = request_position(rq, &position);

    if (r == 0)
        r = reply_fill_attr(rq->worker->session, position, &out.attr);
    if (r < 0)
        reply_error(rq, r == -EUCLEAN ? -EIO : r);
    else
        reply_bytes(rq, &out, sizeof(out));
}

static void op_readlink(struct request *rq)
{
    const char *target;
    uint32_t position;
    size_t len;
    int r = request_position(rq, &position);

    if (r == 0)
        r = index_symlink(rq->worker->session->index, position, &target, &len);
    if (r < 0)
        reply_error(rq, r == -EUCLEAN ? -EIO : r);
    else
        reply_bytes(rq, target, len);
}

static void op_open(struct request *rq)
{
    struct fuse_open_out out = {.open_flags = FOPEN_KEEP_CACHE | FOPEN_NOFLUSH};

    if (rq->worker->session->no_open)
        reply_error(rq, -ENOSYS);
    else
        reply_bytes(rq, &out, sizeof(out));
}

static void op_opendir(struct request *rq)
{
    struct fuse_open_out out = {.open_flags = FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR};

    if (rq->worker->session->no_opendir)
        reply_error(rq, -ENOSYS);
    else
        reply_bytes(rq, &out, sizeof(out));
}

static void log_read_error(struct request *rq, uint32_t position, uint64_t offset, int err)
{
    struct session *s = rq->worker->session;
    char path[4096];
    size_t len;

    if (index_path(s->index, position, path, sizeof(path), &len) < 0)
        snprintf(path, sizeof(path), "entry %u", position);
    session_log(s, "%s: %s: can't be read (offset %llu): %s", s->config.pot->path, path,
                (unsigned long long)offset,
                err == -ENODATA ? "the archive ends before it" : strerror(-err));
}

void session_distrust(struct session *s)
{
    atomic_store(&s->distrusted, true);
}

/* --verify, before anything is read for the answer. The log says what is wrong. */
static int read_checked(struct request *rq, uint32_t position, const struct fuse_read_in *in,
                        bool *ret_later)
{
    struct worker *w = rq->worker;
    atomic_store_explicit(&w->position, position, memory_order_relaxed);
    int r = sums_check(w, position, in->offset, in->size, ret_later);
    if (r < 0 && r != -EBADMSG)
        log_read_error(rq, position, in->offset, r);
    return r;
}

static void op_read(struct request *rq)
{
    const struct fuse_read_in *in = rq->arg;
    struct worker *w = rq->worker;
    struct span span;
    uint32_t position = 0;
    bool check_later = false;
    int r = request_position(rq, &position);

    if (r == 0 && in->size > READER_SPAN_MAX)
        r = -EINVAL; /* a short answer would shrink the file; INIT asked for less */
    if (r == 0 && watchdog_just_stalled(w->session, position))
        r = -EIO;
    if (r == 0)
        foresee_note(rq, position, in->offset, in->size);
    if (r == 0 && w->session->sums)
        r = read_checked(rq, position, in, &check_later);
    if (r == 0 && atomic_load_explicit(&w->session->distrusted, memory_order_relaxed))
        r = -ESTALE;
    if (r == 0) {
        atomic_store_explicit(&w->position, position, memory_order_relaxed);
        r = reader_get(w->session->config.reader, w->scratch, position, in->offset, in->size,
                       &span);
        if (r < 0)
            log_read_error(rq, position, in->offset, r);
    }
    if (r == 0 && check_later && (r = sums_check_span(w, position, &span)) < 0)
        reader_put(w->session->config.reader, &span);
    if (r < 0) {
        watchdog_note_failure(w->session, position, rq->received_ns);
        reply_error(rq, -EIO);
        return;
    }
    if (in->offset == 0 && rq->own) {
        atomic_fetch_add_explicit(&w->slot->ahead_files, 1, memory_order_relaxed);
    } else if (in->offset == 0) {
        atomic_fetch_add_explicit(&w->slot->read_files, 1, memory_order_relaxed);
        populate_note_read(w, position);
    }
    struct iovec iov[READER_IOV_MAX + 1];
    memcpy(iov + 1, span.iov, (size_t)span.iov_count * sizeof(*iov));
    reply_iov(rq, iov, span.iov_count + 1);
    reader_put(w->session->config.reader, &span);
}

static void op_statfs(struct request *rq)
{
    const struct index_info *info = index_info(rq->worker->session->index);
    struct fuse_statfs_out out = {0};

    out.st.bsize = out.st.frsize = 512;
    out.st.blocks = info->data_bytes / 512 + (info->data_bytes % 512 != 0);
    out.st.files = info->inodes;
    out.st.namelen = INDEX_NAME_MAX;
    reply_bytes(rq, &out, sizeof(out));
}

/* Reply with an attribute's value, or its size if the caller's buffer has size 0. */
static void reply_sized(struct request *rq, const void *bytes, size_t len, uint32_t asked)
{
    struct fuse_getxattr_out out = {.size = (uint32_t)len};

    if (asked == 0)
        reply_bytes(rq, &out, sizeof(out));
    else if (len > asked)
        reply_error(rq, -ERANGE);
    else
        reply_bytes(rq, bytes, len);
}

static void op_getxattr(struct request *rq)
{
    const struct session *s = rq->worker->session;
    const struct fuse_getxattr_in *in = rq->arg;
    const char *name = (const char *)rq->arg + sizeof(*in);
    struct xattr x;
    uint32_t position;
    int r = request_position(rq, &position);

    if (!index_info(s->index)->has_xattrs)
        r = -ENOSYS;
    if (r == 0)
        r = index_xattr_get(s->index, position, name, strnlen(name, rq->arg_len - sizeof(*in)),
                            &x);
    if (r < 0)
        reply_error(rq, r == -EUCLEAN ? -EIO : r);
    else
        reply_sized(rq, x.value, x.value_len, in->size);
}

static void op_listxattr(struct request *rq)
{
    const struct session *s = rq->worker->session;
    const struct fuse_getxattr_in *in = rq->arg;
    char *list = rq->worker->reply_buffer;
    uint64_t cursor = 0;
    size_t len = 0;
    struct xattr x;
    uint32_t position;
    int r = request_position(rq, &position);

    if (!index_info(s->index)->has_xattrs)
        r = -ENOSYS;
    while (r == 0 && (r = index_xattr_next(s->index, position, &cursor, &x)) == 0) {
        if (x.name_len + 1 > LISTING_BYTES - len) {
            r = -E2BIG;
            break;
        }
        memcpy(list + len, x.name, x.name_len);
        list[len + x.name_len] = '\0';
        len += x.name_len + 1;
    }
    if (r != -ENOENT)
        reply_error(rq, r == -EUCLEAN ? -EIO : r);
    else
        reply_sized(rq, list, len, in->size);
}

/* SEEK_DATA and SEEK_HOLE: walk the extents from the offset on. */
static void op_lseek(struct request *rq)
{
    const struct session *s = rq->worker->session;
    const struct fuse_lseek_in *in = rq->arg;
    struct fuse_lseek_out out = {.offset = in->offset};
    struct node node;
    struct extent e;
    uint32_t position;
    int r = request_position(rq, &position);

    if (!index_info(s->index)->has_holes ||
        (in->whence != SEEK_DATA && in->whence != SEEK_HOLE))
        r = -ENOSYS;
    if (r == 0)
        r = index_node(s->index, position, &node);
    if (r == 0 && in->offset >= node.size_bytes)
        r = -ENXIO;
    while (r == 0 && out.offset < node.size_bytes) {
        r = index_extent(s->index, position, out.offset, &e);
        if (r == 0 && (e.kind == EXTENT_HOLE) == (in->whence == SEEK_HOLE))
            break;
        if (r == 0)
            out.offset += e.length;
    }
    if (r == 0 && out.offset >= node.size_bytes && in->whence == SEEK_DATA)
        r = -ENXIO;
    if (r < 0)
        reply_error(rq, r == -EUCLEAN ? -EIO : r);
    else
        reply_bytes(rq, &out, sizeof(out));
}

/* A listing being filled with entries in the wire format, plain or with attributes. */
struct listing {
    char *buf;
    size_t size, len;
    bool plus;       /* the wire format has attributes */
    bool attributes; /* attributes are sent: see told.c */
};

/*
 * Add an entry with a name of `len` bytes: returns its dirent, or NULL when the buffer is full.
 */
static struct fuse_dirent *listing_add(struct listing *l, uint64_t ino, uint32_t type,
                                       uint64_t next, const char *name, size_t len)
{
    size_t head = l->plus ? sizeof(struct fuse_entry_out) : 0;
    size_t need = head + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + len);

    if (need > l->size - l->len)
        return NULL;
    memset(l->buf + l->len, 0, head);
    struct fuse_dirent *d = (void *)(l->buf + l->len + head);
    *d = (struct fuse_dirent){.ino = ino, .off = next, .namelen = (uint32_t)len, .type = type};
    memcpy(d->name, name, len);
    memset(d->name + len, 0, need - head - FUSE_NAME_OFFSET - len);
    l->len += need;
    return d;
}

/* "." and ".." at offsets 0 and 1. The kernel looks neither of them up: nodeid stays 0. */
static int list_dots(const struct session *s, struct listing *l, uint32_t directory,
                     uint64_t *off)
{
    uint32_t parent = directory;
    int r = 0;

    if (*off == 0) {
        if (!listing_add(l, (uint64_t)directory + 1, S_IFDIR >> 12, 1, ".", 1))
            return -ENOSPC;
        *off = 1;
    }
    if (*off == 1) {
        if (directory != s->config.root)
            r = index_parent(s->index, directory, &parent);
        if (r < 0)
            return r;
        if (!listing_add(l, (uint64_t)parent + 1, S_IFDIR >> 12, 2, "..", 2))
            return -ENOSPC;
        *off = 2;
    }
    return 0;
}

/* Child i of a directory is at offset i + 2. */
static int list_child(const struct session *s, struct listing *l, uint32_t directory,
                      uint32_t position, uint64_t next)
{
    struct fuse_entry_out entry;
    const char *name;
    size_t len, at = l->len;
    int r = index_name(s->index, position, &name, &len);

    if (r == 0)
        r = reply_fill_entry(s, directory, position, &entry);
    if (r < 0)
        return r;
    if (!listing_add(l, entry.attr.ino, entry.attr.mode >> 12, next, name, len))
        return -ENOSPC;
    if (l->attributes)
        memcpy(l->buf + at, &entry, sizeof(entry));
    return 0;
}

/* The kernel has received names and attributes of these entries. */
static void note_listing(const struct session *s, uint32_t from, uint32_t to)
{
    told_note(s, from, to);
    populate_note_listing(s, from, to);
}

static void list(struct request *rq, bool plus)
{
    const struct session *s = rq->worker->session;
    const struct fuse_read_in *in = rq->arg;
    struct listing l = {
        .buf = rq->worker->reply_buffer, .plus = plus, .attributes = plus && told_may_more(s)};
    uint64_t off = in->offset;
    uint32_t directory, first, n;
    int r = request_position(rq, &directory);

    l.size = in->size < LISTING_BYTES ? in->size : LISTING_BYTES;
    if (r == 0)
        r = index_children(s->index, directory, &first, &n);
    if (r == 0)
        walk_note(rq, directory, off == 0);
    if (r == 0)
        r = list_dots(s, &l, directory, &off);
    for (; r == 0 && off - 2 < n; off++)
        r = list_child(s, &l, directory, first + (uint32_t)(off - 2), off + 1);
    if (r == -ENOSPC && l.len == 0)
        r = -EINVAL; /* not even one fits: an empty answer would end the listing early */
    if (r < 0 && r != -ENOSPC) {
        reply_error(rq, r == -EUCLEAN ? -EIO : r);
        return;
    }
    if (l.attributes && off > 2)
        note_listing(s, first + (uint32_t)(in->offset > 2 ? in->offset - 2 : 0),
                     first + (uint32_t)(off - 2));
    reply_bytes(rq, l.buf, l.len);
}

static void op_readdir(struct request *rq)
{
    list(rq, false);
}

static void op_readdirplus(struct request *rq)
{
    list(rq, true);
}

/* By opcode: the function that answers it, and the least length of its argument. */
static const struct {
    void (*answer)(struct request *rq);
    size_t arg_len;
} ops[] = {
    [FUSE_LOOKUP] = {op_lookup, 1},
    [FUSE_FORGET] = {op_ignore, 0},
    [FUSE_BATCH_FORGET] = {op_ignore, 0},
    [FUSE_GETATTR] = {op_getattr, 0},
    [FUSE_READLINK] = {op_readlink, 0},
    [FUSE_OPEN] = {op_open, 0},
    [FUSE_READ] = {op_read, sizeof(struct fuse_read_in)},
    [FUSE_STATFS] = {op_statfs, 0},
    [FUSE_RELEASE] = {op_done, 0},
    [FUSE_FSYNC] = {op_done, 0},
    [FUSE_GETXATTR] = {op_getxattr, sizeof(struct fuse_getxattr_in) + 1},
    [FUSE_LISTXATTR] = {op_listxattr, sizeof(struct fuse_getxattr_in)},
    [FUSE_FLUSH] = {op_unsupported, 0},
    [FUSE_OPENDIR] = {op_opendir, 0},
    [FUSE_READDIR] = {op_readdir, sizeof(struct fuse_read_in)},
    [FUSE_READDIRPLUS] = {op_readdirplus, sizeof(struct fuse_read_in)},
    [FUSE_RELEASEDIR] = {op_done, 0},
    [FUSE_ACCESS] = {op_unsupported, 0},
    [FUSE_INTERRUPT] = {op_unsupported, 0},
    [FUSE_IOCTL] = {op_no_terminal, 0},
    [FUSE_LSEEK] = {op_lseek, sizeof(struct fuse_lseek_in)},
    [FUSE_DESTROY] = {op_done, 0},
};

void ops_dispatch(struct request *rq)
{
    uint32_t opcode = rq->header->opcode;

    if (opcode >= sizeof(ops) / sizeof(ops[0]) || !ops[opcode].answer)
        reply_error(rq, -ENOSYS);
    else if (rq->arg_len < ops[opcode].arg_len)
        reply_error(rq, -EIO);
    else if (!itself_answers(rq))
        ops[opcode].answer(rq);
}
