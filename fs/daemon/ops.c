/*
 * One short function for each request that a read-only, immutable tree can get. After an answer
 * of ENOSYS the kernel does not ask again, but does the work itself without a round trip: OPEN,
 * OPENDIR, FLUSH, GETXATTR where the archive has no attributes, LSEEK where it has no
 * holes.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "core.h"

/*
 * Answers on the wire. A request is answered once: by its worker or, if that one stalls, by the
 * watchdog. Whichever advances the worker's turn may write. Data goes out by writev straight
 * from the archive's mapping.
 */

#define READER_BLOCK_BYTES (128u << 10) /* st_blksize: makes readers read in large pieces */

static bool take_turn(struct worker *w, uint64_t turn)
{
    return atomic_compare_exchange_strong_explicit(&w->turn, &turn, turn + 1,
                                                   memory_order_acq_rel, memory_order_acquire);
}

/* The right to answer: false when the watchdog was first. */
static bool reply_claim(struct worker *w)
{
    w->lost = !take_turn(w, atomic_load_explicit(&w->turn, memory_order_relaxed) | 1);
    return !w->lost;
}

static inline void reply_add(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static unsigned reply_bucket_of(uint64_t ns)
{
    uint64_t us = ns / 1000;
    unsigned b = us ? 63u - (unsigned)__builtin_clzll(us) : 0;

    return b < COUNTERS_BUCKETS ? b : COUNTERS_BUCKETS - 1;
}

_Static_assert(COUNTERS_ORIGINS == READER_ORIGINS, "READs are counted by their origin");

/* Counted before the answer is sent, so that its reader finds it counted. */
static void reply_count(struct request *rq, int err, size_t bytes)
{
    struct worker *w = rq->worker;
    struct counter_slot *slot = w->slot;
    uint32_t opcode = rq->header->opcode < COUNTERS_OPCODES ? rq->header->opcode : 0;

    if (rq->unseen)
        return;
    if (rq->own) {
        reply_add(&slot->ahead_requests, 1);
        reply_add(&slot->ahead_bytes, opcode == FUSE_READ ? bytes : 0);
        return;
    }
    reply_add(&slot->requests[opcode], 1);
    if (opcode == FUSE_READ) {
        reply_add(&slot->read_bytes, bytes);
        if (w->blocked)
            reply_add(&slot->reads_waited, 1);
        if (!err)
            reply_add(&slot->origins[reader_scratch_origin(w->scratch)], 1);
    }
    if (err && err != -ENOENT && err != -ENOSYS && err != -ENODATA && err != -ENOTTY &&
        err != -ENXIO && err != -ERANGE && err != -ENAMETOOLONG)
        reply_add(&slot->errors, 1);
}

/* A counted answer was not delivered. -ENOENT: nobody waited for it any more. */
static void count_unsent(struct request *rq, int err, size_t bytes)
{
    struct counter_slot *slot = rq->worker->slot;

    if (rq->unseen)
        return;
    if (rq->header->opcode == FUSE_READ)
        atomic_fetch_sub_explicit(rq->own ? &slot->ahead_bytes : &slot->read_bytes, bytes,
                                  memory_order_relaxed);
    if (err == -EIO && !rq->own)
        reply_add(&slot->errors, 1);
}

/* Counted after sending, because sending reads the mapped bytes. */
static void count_time(struct request *rq)
{
    struct counter_slot *slot = rq->worker->slot;
    uint64_t now = now_ns(), took = now - rq->received_ns;

    rq->worker->done_ns = now;
    rq->worker->took_ns = took;
    if (rq->unseen || rq->own)
        return;
    reply_add(&slot->service_ns, took);
    atomic_store_explicit(&slot->last_request_ns, now, memory_order_relaxed);
    if (rq->header->opcode == FUSE_READ) {
        reply_add(&slot->read_service_ns, took);
        reply_add(&slot->histogram[reply_bucket_of(took)], 1);
    }
}

/* 0, or -errno of the write: -EFAULT when mapped bytes could not be read. */
static int send_iov(struct request *rq, int err, struct iovec *iov, int n, size_t bytes)
{
    struct fuse_out_header out = {
        .len = (uint32_t)(sizeof(out) + bytes), .error = err, .unique = rq->header->unique};

    iov[0] = (struct iovec){&out, sizeof(out)};
    for (;;) {
        if (writev(rq->worker->fd, iov, n) >= 0)
            return 0;
        if (errno != EINTR)
            return -errno;
    }
}

/* iov[0] is free for the header. */
static void reply_iov(struct request *rq, int err, struct iovec *iov, int n)
{
    size_t bytes = 0;
    int r;

    for (int i = 1; i < n; i++)
        bytes += iov[i].iov_len;
    if (!reply_claim(rq->worker))
        return;
    reply_count(rq, err, bytes);
    r = send_iov(rq, err, iov, n, bytes);
    if (r == -EFAULT) {
        /*
         * The archive was truncated or its device failed. Only the kernel's read-ahead is long
         * enough to be answered from the mapping. It asks again, page by page, for the bytes it
         * did not get, and these are copied by a read that retries (reader.c).
         */
        session_log(rq->worker->session,
                    "the archive can't be read any more: input/output error");
        r = -EIO;
        send_iov(rq, r, iov, 1, 0);
    }
    if (r < 0)
        count_unsent(rq, r, bytes);
    count_time(rq);
}

void reply_error(struct request *rq, int err)
{
    struct iovec iov[1];

    reply_iov(rq, err == -EUCLEAN ? -EIO : err, iov, 1); /* a damaged index */
}

void reply_bytes(struct request *rq, const void *bytes, size_t len)
{
    struct iovec iov[2];

    iov[1] = (struct iovec){(void *)(uintptr_t)bytes, len};
    reply_iov(rq, 0, iov, 2);
}

void reply_result(struct request *rq, int err, const void *bytes, size_t len)
{
    if (err < 0)
        reply_error(rq, err);
    else
        reply_bytes(rq, bytes, len);
}

static void reply_span(struct request *rq, const struct span *span)
{
    struct iovec iov[READER_IOV_MAX + 1];

    memcpy(iov + 1, span->iov, (size_t)span->iov_count * sizeof(*iov));
    reply_iov(rq, 0, iov, span->iov_count + 1);
}

static void reply_none(struct request *rq)
{
    if (!reply_claim(rq->worker))
        return;
    reply_count(rq, 0, 0);
    count_time(rq);
}

int reply_for_stalled(struct worker *w, uint64_t turn, uint64_t unique)
{
    struct fuse_out_header out = {.len = sizeof(out), .error = -EIO, .unique = unique};

    if (!take_turn(w, turn))
        return -EALREADY;
    reply_add(&w->slot->errors, 1);
    return write(w->fd, &out, sizeof(out)) < 0 ? -errno : 0;
}

/* The node id by which the kernel knows an inode position. */
static uint64_t reply_nodeid(const struct session *s, uint32_t position)
{
    return position == s->config.root ? FUSE_ROOT_ID : (uint64_t)position + 1;
}

/* Fill in attributes in the kernel's format. */
static int reply_fill_attr(const struct session *s, uint32_t position, struct fuse_attr *ret)
{
    struct node n;
    int r = index_node(s->index, position, &n);

    if (r < 0)
        return r;
    memset(ret, 0, sizeof(*ret));
    ret->ino = (uint64_t)n.position + 1;
    ret->size = n.size_bytes;
    ret->blocks = n.data_bytes / 512 + (n.data_bytes % 512 != 0);
    ret->mtime = ret->ctime = (uint64_t)n.mtime_sec;
    ret->mtimensec = ret->ctimensec = n.mtime_nsec;
    ret->atime = (uint64_t)s->made.tv_sec;
    ret->atimensec = (uint32_t)s->made.tv_nsec;
    if (s->config.is_covered) {
        ret->ctime = ret->atime;
        ret->ctimensec = ret->atimensec;
    }
    ret->mode = n.mode | (!s->config.is_users_layer ? 0u : S_ISDIR(n.mode) ? 0500u : 0400u);
    ret->nlink = n.nlink;
    ret->uid = s->config.override_uid ? s->config.uid : n.uid;
    ret->gid = s->config.override_gid ? s->config.gid : n.gid;
    /* The kernel decodes this with new_decode_dev, its 32-bit form. */
    ret->rdev =
        (n.rdev_minor & 0xff) | (n.rdev_major & 0xfff) << 8 | (n.rdev_minor & ~0xffu) << 12;
    ret->blksize = READER_BLOCK_BYTES;
    return 0;
}

/*
 * Every entry is valid for ever, except that the kernel asks again each second for the
 * directories of the root and one in 64 of its files. A reader whose files are all cached sends
 * no other request, so this shows that it lives (see control.c).
 */
static uint64_t entry_valid_s(const struct session *s, uint32_t parent, uint32_t position,
                              uint32_t mode)
{
    if (parent != s->config.root)
        return VALID_FOREVER_S;
    return S_ISDIR(mode) || position % 64 == 0 ? 1 : VALID_FOREVER_S;
}

/* Fill in an entry of `parent` for LOOKUP and READDIRPLUS, with its time-outs. */
static int reply_fill_entry(const struct session *s, uint32_t parent, uint32_t position,
                            struct fuse_entry_out *ret)
{
    uint32_t inode;
    int r = index_inode_position(s->index, position, &inode);

    if (r < 0)
        return r;
    memset(ret, 0, sizeof(*ret));
    r = reply_fill_attr(s, inode, &ret->attr);
    if (r < 0)
        return r;
    ret->nodeid = reply_nodeid(s, inode);
    ret->attr_valid = VALID_FOREVER_S;
    ret->entry_valid = entry_valid_s(s, parent, position, ret->attr.mode);
    return 0;
}

static void op_ignore(struct request *rq)
{
    reply_none(rq);
}

static void op_done(struct request *rq)
{
    reply_error(rq, 0);
}

static bool features_answer(const struct features *features, struct request *rq)
{
    EACH_FEATURE (f, features, answer)
        if (f->feature->answer(f->state, rq))
            return true;
    return false;
}

static void op_ioctl(struct request *rq)
{
    if (!features_answer(&rq->worker->session->features, rq))
        reply_error(rq, -ENOTTY); /* isatty() of Python's open() */
}

static int ops_lookup(const struct session *s, uint32_t parent, const char *name, size_t len,
                      uint32_t *ret_position)
{
    *ret_position = parent;
    if (len == 1 && name[0] == '.')
        return 0;
    if (len == 2 && name[0] == '.' && name[1] == '.')
        return index_parent(s->index, parent, ret_position);
    if (len > INDEX_NAME_MAX) /* the kernel's own bound is FUSE's: 1024 bytes or a page */
        return -ENAMETOOLONG;
    return index_lookup(s->index, parent, name, len, ret_position);
}

static void features_after_lookup(const struct features *features, const struct request *rq,
                                  uint32_t position)
{
    EACH_FEATURE (f, features, after_lookup)
        f->feature->after_lookup(f->state, rq, position);
}

static void op_lookup(struct request *rq)
{
    const struct session *s = rq->worker->session;
    struct fuse_entry_out entry;
    uint32_t position;
    int r = ops_lookup(s, rq->position, rq->arg, strnlen(rq->arg, rq->arg_len), &position);

    if (r == 0)
        r = reply_fill_entry(s, rq->position, position, &entry);
    if (r == -ENOENT && rq->position == s->config.root && features_answer(&s->features, rq))
        return;
    if (r == -ENOENT) {
        /* Nodeid 0 with a time-out: the kernel remembers that there is no such entry. */
        entry = (struct fuse_entry_out){.entry_valid = VALID_FOREVER_S};
        r = 0;
    }
    reply_result(rq, r, &entry, sizeof(entry));
    if (r == 0 && S_ISREG(entry.attr.mode))
        features_after_lookup(&s->features, rq, position);
}

static void op_getattr(struct request *rq)
{
    struct fuse_attr_out out = {.attr_valid = VALID_FOREVER_S};
    int r = reply_fill_attr(rq->worker->session, rq->position, &out.attr);

    reply_result(rq, r, &out, sizeof(out));
}

static void op_readlink(struct request *rq)
{
    const char *target = NULL;
    size_t len = 0;
    int r = index_symlink(rq->worker->session->index, rq->position, &target, &len);

    reply_result(rq, r, target, len);
}

static void op_open(struct request *rq)
{
    struct fuse_open_out out = {.open_flags = FOPEN_KEEP_CACHE | FOPEN_NOFLUSH};

    reply_result(rq, rq->worker->session->no_open ? -ENOSYS : 0, &out, sizeof(out));
}

static void op_opendir(struct request *rq)
{
    struct fuse_open_out out = {.open_flags = FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR};

    reply_result(rq, rq->worker->session->no_opendir ? -ENOSYS : 0, &out, sizeof(out));
}

/* Get the bytes of a READ. Those of an archive that has changed meanwhile are not served. */
static int read_span(struct session *s, struct read *read)
{
    struct worker *w = read->rq->worker;

    if (read->size > READER_SPAN_MAX)
        return -EINVAL; /* a short answer would shrink the file; INIT asked for less */
    if (atomic_load_explicit(&s->distrusted, memory_order_relaxed))
        return -ESTALE;
    int r = reader_get(s->config.reader, w->scratch, read->position, read->offset, read->size,
                       read->span);
    if (r < 0)
        log_read_error(s, read->position, read->offset, r);
    return r;
}

int features_before_read(const struct features *features, struct read *read)
{
    int r = 0;

    EACH_FEATURE (f, features, before_read)
        if (r == 0)
            r = f->feature->before_read(f->state, read);
    return r;
}

void features_after_read(const struct features *features, struct read *read)
{
    EACH_FEATURE_BACK (f, features, after_read)
        f->feature->after_read(f->state, read);
}

static void op_read(struct request *rq)
{
    const struct fuse_read_in *in = rq->arg;
    struct session *s = rq->worker->session;
    struct span span;
    struct read read = {.rq = rq,
                        .position = rq->position,
                        .offset = in->offset,
                        .size = in->size,
                        .span = &span};
    bool has_span;

    atomic_store_explicit(&rq->worker->position, rq->position, memory_order_relaxed);
    read.result = features_before_read(&s->reading, &read);
    if (read.result == 0)
        read.result = read_span(s, &read);
    has_span = read.result == 0;
    features_after_read(&s->reading, &read);
    if (read.result == 0)
        reply_span(rq, &span);
    else
        reply_error(rq, -EIO);
    if (has_span)
        reader_put(s->config.reader, &span);
}

int ops_may_access(uint32_t mode, uint32_t mask)
{
    if (mask & W_OK && (S_ISREG(mode) || S_ISDIR(mode) || S_ISLNK(mode)))
        return -EROFS;
    return mask & X_OK && !S_ISDIR(mode) && !(mode & 0111) ? -EACCES : 0;
}

/*
 * Asked only by access(2), chdir(2) and their like, where the kernel does not check permissions
 * itself. All may be read; what a program takes for executable goes by the mode. ENOSYS would
 * say yes to that, for ever.
 */
static void op_access(struct request *rq)
{
    const struct fuse_access_in *in = rq->arg;
    struct fuse_attr attr;
    int r = reply_fill_attr(rq->worker->session, rq->position, &attr);

    if (r == 0)
        r = ops_may_access(attr.mode, in->mask);
    reply_error(rq, r);
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

/* An overlay copies each attribute that is listed, or none of the file. */
static bool is_hidden(const struct session *s, const struct xattr *x)
{
    static const char *const prefixes[] = {"trusted.", "security."};

    for (size_t i = 0; s->config.is_users_layer && i < 2; i++) {
        size_t len = strlen(prefixes[i]);
        if (x->name_len > len && memcmp(x->name, prefixes[i], len) == 0)
            return true;
    }
    return false;
}

/*
 * Does any file have attributes that are shown? Without, the kernel is told once that there are
 * none. An overlay asks for one at each file that it meets, which takes most of a first epoch,
 * and where SELinux labels all files, archives are full of attributes that it must not see.
 */
static bool has_xattrs(struct session *s)
{
    enum { UNKNOWN, NONE, SOME };
    const struct index_info *info = index_info(s->index);
    struct xattr x;
    int r = -ENOENT;

    if (!info->has_xattrs || !s->config.is_users_layer)
        return info->has_xattrs;
    unsigned known = atomic_load(&s->shown_xattrs);
    for (uint32_t i = 0; known == UNKNOWN && r == -ENOENT && i < info->entries; i++) {
        uint64_t cursor = 0;
        while ((r = index_xattr_next(s->index, i, &cursor, &x)) == 0 && is_hidden(s, &x))
            ;
    }
    if (known == UNKNOWN) /* one that can't be read is reported when it is asked for */
        known = r == -ENOENT ? NONE : SOME;
    atomic_store(&s->shown_xattrs, known);
    return known == SOME;
}

static void op_getxattr(struct request *rq)
{
    struct session *s = rq->worker->session;
    const struct fuse_getxattr_in *in = rq->arg;
    const char *name = (const char *)rq->arg + sizeof(*in);
    struct xattr x;
    int r = -ENOSYS;

    if (has_xattrs(s))
        r = index_xattr_get(s->index, rq->position, name,
                            strnlen(name, rq->arg_len - sizeof(*in)), &x);
    if (r < 0)
        reply_error(rq, r);
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
    int r = 0;

    /* An ENOSYS is for all files, and stat_files.c has another answer under a layer. */
    if (!index_info(s->index)->has_xattrs && !s->config.is_covered)
        r = -ENOSYS;
    while (r == 0 && (r = index_xattr_next(s->index, rq->position, &cursor, &x)) == 0) {
        if (is_hidden(s, &x))
            continue;
        if (x.name_len + 1 > LISTING_BYTES - len) {
            r = -E2BIG;
            break;
        }
        memcpy(list + len, x.name, x.name_len);
        list[len + x.name_len] = '\0';
        len += x.name_len + 1;
    }
    if (r != -ENOENT)
        reply_error(rq, r);
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
    int r = -ENOSYS;

    if (index_info(s->index)->has_holes && (in->whence == SEEK_DATA || in->whence == SEEK_HOLE))
        r = index_node(s->index, rq->position, &node);
    if (r == 0 && in->offset >= node.size_bytes)
        r = -ENXIO;
    while (r == 0 && out.offset < node.size_bytes) {
        r = index_extent(s->index, rq->position, out.offset, &e);
        if (r == 0 && (e.kind == EXTENT_HOLE) == (in->whence == SEEK_HOLE))
            break;
        if (r == 0)
            out.offset += e.length;
    }
    if (r == 0 && out.offset >= node.size_bytes && in->whence == SEEK_DATA)
        r = -ENXIO;
    reply_result(rq, r, &out, sizeof(out));
}

struct listing listing_begin(const struct request *rq)
{
    const struct fuse_read_in *in = rq->arg;

    return (struct listing){
        .buf = rq->worker->reply_buffer,
        .size = in->size < LISTING_BYTES ? in->size : LISTING_BYTES,
        .plus = rq->header->opcode == FUSE_READDIRPLUS,
    };
}

int listing_add(struct listing *l, uint64_t ino, uint32_t type, uint64_t next, const char *name,
                size_t len)
{
    size_t head = l->plus ? sizeof(struct fuse_entry_out) : 0;
    size_t need = head + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + len);

    if (need > l->size - l->len)
        return -ENOSPC;
    /* Node id 0: the kernel looks the entry up when it needs it. */
    memset(l->buf + l->len, 0, need);
    struct fuse_dirent *d = (void *)(l->buf + l->len + head);
    *d = (struct fuse_dirent){.ino = ino, .off = next, .namelen = (uint32_t)len, .type = type};
    memcpy(d->name, name, len);
    l->len += need;
    return 0;
}

/* "." and ".." at offsets 0 and 1. The kernel looks neither of them up. */
static int list_dots(const struct session *s, struct listing *l, uint32_t directory,
                     uint64_t *off)
{
    uint32_t position = directory;
    int r = 0;

    while (r == 0 && *off < 2) {
        if (*off == 1 && directory != s->config.root)
            r = index_parent(s->index, directory, &position);
        if (r == 0)
            r = listing_add(l, (uint64_t)position + 1, S_IFDIR >> 12, *off + 1, "..", *off + 1);
        *off += r == 0;
    }
    return r;
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
    if (r == 0)
        r = listing_add(l, entry.attr.ino, entry.attr.mode >> 12, next, name, len);
    if (r == 0 && l->attributes)
        memcpy(l->buf + at, &entry, sizeof(entry));
    return r;
}

/* May the listing carry attributes? */
static bool features_before_listing(const struct features *features)
{
    bool attributes = true;

    EACH_FEATURE (f, features, before_listing)
        f->feature->before_listing(f->state, &attributes);
    return attributes;
}

static void features_after_listing(const struct features *features, const struct request *rq,
                                   uint32_t from, uint32_t to, bool attributes)
{
    EACH_FEATURE (f, features, after_listing)
        f->feature->after_listing(f->state, rq, from, to, attributes);
}

static void op_readdir(struct request *rq)
{
    const struct session *s = rq->worker->session;
    const struct fuse_read_in *in = rq->arg;
    struct listing l = listing_begin(rq);
    uint64_t off = in->offset;
    uint32_t directory = rq->position, first, n;
    int r = index_children(s->index, directory, &first, &n);

    if (r == 0)
        l.attributes = features_before_listing(&s->features) && l.plus;
    if (r == 0)
        r = list_dots(s, &l, directory, &off);
    for (; r == 0 && off - 2 < n; off++)
        r = list_child(s, &l, directory, first + (uint32_t)(off - 2), off + 1);
    if (r == -ENOSPC)
        r = l.len ? 0 : -EINVAL; /* an empty answer would end the listing early */
    if (r == 0 && l.len > 0 && off >= 2)
        features_after_listing(&s->features, rq,
                               first + (uint32_t)(in->offset > 2 ? in->offset - 2 : 0),
                               first + (uint32_t)(off - 2), l.attributes);
    reply_result(rq, r, l.buf, l.len);
}

/*
 * By opcode: the function that answers it, the least length of its argument, and whether it is
 * about an entry (rq->position). The others, among them FLUSH and INTERRUPT, get ENOSYS.
 */
static const struct op {
    void (*answer)(struct request *rq);
    size_t arg_len;
    bool has_entry;
} ops[] = {
    [FUSE_LOOKUP] = {op_lookup, 1, true},
    [FUSE_FORGET] = {op_ignore, 0, false},
    [FUSE_BATCH_FORGET] = {op_ignore, 0, false},
    [FUSE_GETATTR] = {op_getattr, 0, true},
    [FUSE_READLINK] = {op_readlink, 0, true},
    [FUSE_OPEN] = {op_open, 0, false},
    [FUSE_READ] = {op_read, sizeof(struct fuse_read_in), true},
    [FUSE_STATFS] = {op_statfs, 0, false},
    [FUSE_ACCESS] = {op_access, sizeof(struct fuse_access_in), true},
    [FUSE_RELEASE] = {op_done, 0, false},
    [FUSE_FSYNC] = {op_done, 0, false},
    [FUSE_GETXATTR] = {op_getxattr, sizeof(struct fuse_getxattr_in) + 1, true},
    [FUSE_LISTXATTR] = {op_listxattr, sizeof(struct fuse_getxattr_in), true},
    [FUSE_OPENDIR] = {op_opendir, 0, false},
    [FUSE_READDIR] = {op_readdir, sizeof(struct fuse_read_in), true},
    [FUSE_READDIRPLUS] = {op_readdir, sizeof(struct fuse_read_in), true},
    [FUSE_RELEASEDIR] = {op_done, 0, false},
    [FUSE_IOCTL] = {op_ioctl, 0, false},
    [FUSE_LSEEK] = {op_lseek, sizeof(struct fuse_lseek_in), true},
    [FUSE_DESTROY] = {op_done, 0, false},
};

void ops_dispatch(struct request *rq)
{
    const struct session *s = rq->worker->session;
    const uint64_t nodeid = rq->header->nodeid, entries = index_info(s->index)->entries;
    uint32_t opcode = rq->header->opcode;
    struct op op = opcode < sizeof(ops) / sizeof(ops[0]) ? ops[opcode] : (struct op){0};

    rq->position = nodeid == FUSE_ROOT_ID ? s->config.root : (uint32_t)(nodeid - 1);
    if (rq->arg_len < op.arg_len)
        reply_error(rq, -EIO);
    else if (nodeid > entries && features_answer(&s->features, rq))
        return;
    else if (op.has_entry && (nodeid == 0 || nodeid > entries))
        reply_error(rq, -ESTALE);
    else if (op.answer)
        op.answer(rq);
    else
        reply_error(rq, -ENOSYS);
}
