/*
 * Answers on the wire. A request is answered once: by its worker or, if that one stalls, by the
 * watchdog. Whichever advances the worker's turn may write. Data goes out by writev straight
 * from the archive's mapping.
 */
#include <errno.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "core.h"

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
         * did not get, and these are copied by a read that retries (answer.c).
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

void reply_span(struct request *rq, const struct span *span)
{
    struct iovec iov[READER_IOV_MAX + 1];

    memcpy(iov + 1, span->iov, (size_t)span->iov_count * sizeof(*iov));
    reply_iov(rq, 0, iov, span->iov_count + 1);
}

void reply_none(struct request *rq)
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

int reply_fill_attr(const struct session *s, uint32_t position, struct fuse_attr *ret)
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

int reply_fill_entry(const struct session *s, uint32_t parent, uint32_t position,
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
