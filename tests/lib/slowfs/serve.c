/*
 * Requests wait in memory, not in threads: hundreds can be in flight on a machine of two CPUs
 * and cost it nothing but their own work. The one thread sleeps until the next of them is due
 * or the kernel has another.
 *
 * An operation works on the tree below only when it is due. The tree should lie in memory
 * (tmpfs or page cache), because the time of that work is added for all requests.
 *
 * Closing a file costs nothing, and permissions are not asked for: clients of a parallel file
 * system do the first in the background and the second themselves.
 */
#define FUSE_USE_VERSION 34
#include "serve.h"

#include <errno.h>
#include <fuse_lowlevel.h>
#include <inttypes.h>
#include <linux/fuse.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_MAX = 1 << 20,
    LISTING_MAX = 128 << 10,
    XATTR_MAX = 64 << 10,
    BATCH = 64,
    HELD_MIN = 1 << 20, /* smaller files are read at once */
    FLIP_EVERY = 4096,
};

static const char stats_xattr[] = "user.slowfs.stats";

struct serve {
    struct serve_config config;
    struct server *server;
    struct tree tree;
    char *buffer; /* READ_MAX bytes, for answers */
    uint64_t reads;
    struct handle *handles; /* all that are open */
    bool toggled;           /* by SIGUSR2, */
    uint64_t toggles;       /* and how often */
    struct job *stalled;    /* reads that get no answer, */
    uint64_t stalls;        /* and how many there were */
    bool greeted;           /* INIT was answered */
    bool ended;             /* a signal came */
};

struct handle {
    struct tree_handle tree; /* first: the kernel's number for it is its address */
    struct handle *next, **link;
    bool stale;
};

/* A request that waits until it is due. */
struct job {
    struct op op; /* first: the server hands back this */
    struct serve *serve;
    fuse_req_t request;
    fuse_ino_t node;
    uint64_t handle;
    off_t at;
    size_t size;
    struct job *next; /* in the list of the stalled */
    char name[];
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* Carrying out what is due. */

static struct tree_handle *handle_of(uint64_t number)
{
    return (struct tree_handle *)(uintptr_t)number;
}

static void handle_add(struct serve *s, struct handle *h)
{
    h->next = s->handles;
    h->link = &s->handles;
    if (h->next)
        h->next->link = &h->next;
    s->handles = h;
}

static void handle_close(struct serve *s, struct handle *h)
{
    *h->link = h->next;
    if (h->next)
        h->next->link = h->link;
    s->tree.ops->close(s->tree.self, &h->tree);
    free(h);
}

static void do_lookup(struct serve *s, struct job *j)
{
    struct fuse_entry_param e = {.attr_timeout = s->config.attr_s,
                                 .entry_timeout = s->config.entry_s};
    int r = s->tree.ops->lookup(s->tree.self, j->node, j->name, &e.ino, &e.attr);

    if (r < 0)
        fuse_reply_err(j->request, -r);
    else if (fuse_reply_entry(j->request, &e) < 0) /* nobody waits any more */
        s->tree.ops->forget(s->tree.self, e.ino, 1);
}

static void do_getattr(struct serve *s, struct job *j)
{
    struct stat st;
    int r = s->tree.ops->getattr(s->tree.self, j->node, &st);

    if (r < 0)
        fuse_reply_err(j->request, -r);
    else
        fuse_reply_attr(j->request, &st, s->config.attr_s);
}

static void do_readlink(struct serve *s, struct job *j)
{
    ssize_t n = s->tree.ops->readlink(s->tree.self, j->node, s->buffer, READ_MAX - 1);

    if (n < 0) {
        fuse_reply_err(j->request, (int)-n);
        return;
    }
    s->buffer[n] = 0;
    fuse_reply_readlink(j->request, s->buffer);
}

static void do_open(struct serve *s, struct job *j)
{
    struct fuse_file_info fi = {.keep_cache = s->config.pages == PAGES_KEEP,
                                .direct_io = s->config.pages == PAGES_NONE};
    struct handle *h = calloc(1, sizeof(*h));
    int r = -ENOMEM;

    if (h && j->op.kind == OP_OPEN)
        r = s->tree.ops->open(s->tree.self, j->node, &h->tree);
    else if (h)
        r = s->tree.ops->opendir(s->tree.self, j->node, &h->tree);
    if (r < 0) {
        free(h);
        fuse_reply_err(j->request, -r);
        return;
    }
    handle_add(s, h);
    fi.fh = (uintptr_t)h;
    if (fuse_reply_open(j->request, &fi) < 0)
        handle_close(s, h);
}

static void do_readdir(struct serve *s, struct job *j)
{
    size_t room = j->size < LISTING_MAX ? j->size : LISTING_MAX, used = 0;
    struct tree_entry e;
    int r = 0;

    for (off_t at = j->at;; at = e.next) {
        size_t len;
        r = s->tree.ops->entry(s->tree.self, handle_of(j->handle), at, &e);
        if (r <= 0)
            break;
        len =
            fuse_add_direntry(j->request, s->buffer + used, room - used, e.name, &e.st, e.next);
        if (len > room - used)
            break;
        used += len;
    }
    if (r < 0 && used == 0)
        fuse_reply_err(j->request, -r);
    else
        fuse_reply_buf(j->request, s->buffer, used);
}

static void reply_xattr(struct serve *s, struct job *j, ssize_t n)
{
    if (n < 0)
        fuse_reply_err(j->request, (int)-n);
    else if (j->size == 0)
        fuse_reply_xattr(j->request, (size_t)n);
    else
        fuse_reply_buf(j->request, s->buffer, (size_t)n);
}

static void do_xattr(struct serve *s, struct job *j)
{
    size_t room = j->size < XATTR_MAX ? j->size : XATTR_MAX;
    ssize_t n;

    if (j->op.kind == OP_GETXATTR)
        n = s->tree.ops->getxattr(s->tree.self, j->node, j->name, s->buffer, room);
    else
        n = s->tree.ops->listxattr(s->tree.self, j->node, s->buffer, room);
    reply_xattr(s, j, n);
}

static void do_statfs(struct serve *s, struct job *j)
{
    struct statvfs st = {.f_bsize = 4096, .f_frsize = 4096, .f_namemax = 255};

    (void)s;
    fuse_reply_statfs(j->request, &st);
}

/* Is the toggle meant for this read? A stretch is held that no sample of the file lies in, as
 * one takes to tell whether it is still the same. */
static bool is_in_reach(const struct serve *s, const struct job *j)
{
    uint64_t size = handle_of(j->handle)->size, at = (uint64_t)j->at;
    uint64_t from = size / 32 * 9, to = from + size / 256;

    return !s->config.hold || (size >= HELD_MIN && at < to && at + j->size > from);
}

/* 0, or how this read fails. */
static int injected(const struct serve *s, const struct job *j)
{
    const struct serve_config *c = &s->config;
    int error = c->fail_error ? -c->fail_error : -EIO;

    if (((const struct handle *)handle_of(j->handle))->stale)
        return -ESTALE;
    if (s->toggled && c->toggle == TOGGLE_FAIL && is_in_reach(s, j))
        return error;
    if (c->fail_after > 0 && s->reads > c->fail_after)
        return error;
    return c->fail_every > 0 && s->reads % c->fail_every == 0 ? error : 0;
}

/* What storage does when its memory or its link fails: wrong bytes, and no error. */
static void flip_bits(const struct serve *s, const struct job *j, size_t len)
{
    size_t skip = (size_t)(-(uint64_t)j->at % FLIP_EVERY);

    if (!s->toggled || s->config.toggle != TOGGLE_FLIP || !is_in_reach(s, j))
        return;
    for (size_t i = skip; i < len; i += FLIP_EVERY)
        s->buffer[i] ^= 1;
}

static void do_read(struct serve *s, struct job *j)
{
    size_t size = j->size < READ_MAX ? j->size : READ_MAX;
    ssize_t n;

    s->reads++;
    n = injected(s, j);
    if (n == 0)
        n = s->tree.ops->read(s->tree.self, handle_of(j->handle), s->buffer, size,
                              (uint64_t)j->at);
    if (n > 0)
        flip_bits(s, j, (size_t)n);
    if (n < 0)
        fuse_reply_err(j->request, (int)-n);
    else
        fuse_reply_buf(j->request, s->buffer, (size_t)n);
}

static void carry_out(struct serve *s, struct job *j)
{
    static void (*const table[OP_KINDS])(struct serve *, struct job *) = {
        [OP_LOOKUP] = do_lookup,  [OP_GETATTR] = do_getattr, [OP_READLINK] = do_readlink,
        [OP_OPEN] = do_open,      [OP_OPENDIR] = do_open,    [OP_READDIR] = do_readdir,
        [OP_GETXATTR] = do_xattr, [OP_LISTXATTR] = do_xattr, [OP_STATFS] = do_statfs,
        [OP_READ] = do_read,
    };

    bool stalls = s->config.toggle == TOGGLE_STALL || s->config.toggle == TOGGLE_LOSE ||
                  (s->config.toggle == TOGGLE_STALE && s->config.hold);

    if (j->op.kind == OP_READ && s->toggled && stalls && is_in_reach(s, j)) {
        j->next = s->stalled;
        s->stalled = j;
        s->stalls++;
        return;
    }
    table[j->op.kind](s, j);
    free(j);
}

static void answer_stalled(struct serve *s)
{
    while (s->stalled) {
        struct job *j = s->stalled;
        s->stalled = j->next;
        carry_out(s, j);
    }
}

static void take_toggle(struct serve *s)
{
    if (s->config.toggle == TOGGLE_STALE)
        for (struct handle *h = s->handles; h; h = h->next)
            h->stale = true;
    s->toggled = !s->toggled;
    s->toggles++;
    if (!s->toggled && s->config.toggle != TOGGLE_LOSE)
        answer_stalled(s);
}

/* Taking requests. */

struct wish {
    enum op_kind kind;
    fuse_ino_t node;
    const char *name; /* or NULL */
    const struct fuse_file_info *fi;
    size_t size;
    off_t at;
};

static uint64_t bytes_to_carry(const struct wish *w)
{
    uint64_t size = w->kind == OP_READ ? handle_of(w->fi->fh)->size : 0;
    uint64_t left = size > (uint64_t)w->at ? size - (uint64_t)w->at : 0;

    return left < w->size ? left : w->size;
}

static void submit(fuse_req_t request, struct wish w)
{
    struct serve *s = fuse_req_userdata(request);
    size_t len = w.name ? strlen(w.name) + 1 : 0;
    struct job *j = malloc(sizeof(*j) + len);
    int r = -ENOMEM;

    if (j) {
        *j = (struct job){
            .op = {.kind = w.kind, .bytes = bytes_to_carry(&w)},
            .serve = s,
            .request = request,
            .node = w.node,
            .handle = w.fi ? w.fi->fh : 0,
            .at = w.at,
            .size = w.size,
        };
        if (len > 0)
            memcpy(j->name, w.name, len);
        r = server_submit(s->server, &j->op, now_ns());
    }
    if (r < 0) {
        free(j);
        fuse_reply_err(request, -r);
    }
}

static void on_lookup(fuse_req_t rq, fuse_ino_t parent, const char *name)
{
    submit(rq, (struct wish){.kind = OP_LOOKUP, .node = parent, .name = name});
}

static void on_getattr(fuse_req_t rq, fuse_ino_t node, struct fuse_file_info *fi)
{
    submit(rq, (struct wish){.kind = OP_GETATTR, .node = node, .fi = fi});
}

static void on_readlink(fuse_req_t rq, fuse_ino_t node)
{
    submit(rq, (struct wish){.kind = OP_READLINK, .node = node});
}

static void on_open(fuse_req_t rq, fuse_ino_t node, struct fuse_file_info *fi)
{
    submit(rq, (struct wish){.kind = OP_OPEN, .node = node, .fi = fi});
}

static void on_opendir(fuse_req_t rq, fuse_ino_t node, struct fuse_file_info *fi)
{
    submit(rq, (struct wish){.kind = OP_OPENDIR, .node = node, .fi = fi});
}

static void on_readdir(fuse_req_t rq, fuse_ino_t node, size_t size, off_t at,
                       struct fuse_file_info *fi)
{
    submit(rq,
           (struct wish){.kind = OP_READDIR, .node = node, .size = size, .at = at, .fi = fi});
}

static void on_read(fuse_req_t rq, fuse_ino_t node, size_t size, off_t at,
                    struct fuse_file_info *fi)
{
    submit(rq, (struct wish){.kind = OP_READ, .node = node, .size = size, .at = at, .fi = fi});
}

static void on_statfs(fuse_req_t rq, fuse_ino_t node)
{
    submit(rq, (struct wish){.kind = OP_STATFS, .node = node});
}

static size_t print_stats(const struct serve *s, char *text, size_t room)
{
    const struct server_counts *c = server_counts(s->server);
    uint64_t requests = 0;
    int n;

    for (int i = 0; i < OP_KINDS; i++)
        requests += c->ops[i];
    n = snprintf(text, room,
                 "{\"requests\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"in_flight\": %" PRIu64
                 ", \"peak_in_flight\": %" PRIu64 ", \"waited\": %" PRIu64
                 ", \"toggles\": %" PRIu64 ", \"stalls\": %" PRIu64,
                 requests, c->bytes, c->in_flight, c->peak_in_flight, c->waited, s->toggles,
                 s->stalls);
    for (int i = 0; i < OP_KINDS; i++)
        n += snprintf(text + n, room - (size_t)n, ", \"%s\": %" PRIu64, op_names[i], c->ops[i]);
    n += snprintf(text + n, room - (size_t)n, "}\n");
    return (size_t)n;
}

/* The counts are an attribute of the root that is not listed; asking for them costs nothing. */
static void on_getxattr(fuse_req_t rq, fuse_ino_t node, const char *name, size_t size)
{
    struct serve *s = fuse_req_userdata(rq);
    size_t n;

    if (node != FUSE_ROOT_ID || strcmp(name, stats_xattr) != 0) {
        submit(rq,
               (struct wish){.kind = OP_GETXATTR, .node = node, .name = name, .size = size});
        return;
    }
    n = print_stats(s, s->buffer, XATTR_MAX);
    if (size == 0)
        fuse_reply_xattr(rq, n);
    else if (size < n)
        fuse_reply_err(rq, ERANGE);
    else
        fuse_reply_buf(rq, s->buffer, n);
}

static void on_listxattr(fuse_req_t rq, fuse_ino_t node, size_t size)
{
    submit(rq, (struct wish){.kind = OP_LISTXATTR, .node = node, .size = size});
}

static void on_release(fuse_req_t rq, fuse_ino_t node, struct fuse_file_info *fi)
{
    struct serve *s = fuse_req_userdata(rq);

    (void)node;
    handle_close(s, (struct handle *)handle_of(fi->fh));
    fuse_reply_err(rq, 0);
}

static void on_forget(fuse_req_t rq, fuse_ino_t node, uint64_t times)
{
    struct serve *s = fuse_req_userdata(rq);

    s->tree.ops->forget(s->tree.self, node, times);
    fuse_reply_none(rq);
}

static void on_init(void *userdata, struct fuse_conn_info *conn)
{
    struct serve *s = userdata;
    unsigned unwanted = FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO |
                        FUSE_CAP_AUTO_INVAL_DATA | FUSE_CAP_SPLICE_READ |
                        FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE;

    conn->want &= ~unwanted;
    conn->want |=
        conn->capable & (FUSE_CAP_ASYNC_READ | FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS);
    conn->max_background = s->config.max_background;
    conn->congestion_threshold = s->config.max_background;
    conn->max_read = READ_MAX;
    conn->max_readahead = UINT32_MAX;
}

const struct fuse_lowlevel_ops serve_ops = {
    .init = on_init,
    .lookup = on_lookup,
    .forget = on_forget,
    .getattr = on_getattr,
    .readlink = on_readlink,
    .open = on_open,
    .read = on_read,
    .release = on_release,
    .opendir = on_opendir,
    .readdir = on_readdir,
    .releasedir = on_release,
    .statfs = on_statfs,
    .getxattr = on_getxattr,
    .listxattr = on_listxattr,
};

/*
 * libfuse 3.14.0 takes FUSE_CAP_PARALLEL_DIROPS and does not tell the kernel, which then sends
 * one lookup at a time in each directory: no client of a parallel file system does. So the
 * flag is added to the answer to INIT, the first of all.
 */
static ssize_t write_answer(int fd, struct iovec *iov, int count, void *userdata)
{
    const size_t flags_end = offsetof(struct fuse_init_out, flags) + sizeof(uint32_t);
    struct serve *s = userdata;

    if (!s->greeted && count == 2 && iov[1].iov_len >= flags_end) {
        uint32_t *flags = &((struct fuse_init_out *)iov[1].iov_base)->flags;
        *flags |= FUSE_PARALLEL_DIROPS;
    }
    s->greeted = true;
    return writev(fd, iov, count);
}

static ssize_t read_request(int fd, void *buf, size_t room, void *userdata)
{
    (void)userdata;
    return read(fd, buf, room);
}

int serve_prepare(struct serve *s, struct fuse_session *session)
{
    static const struct fuse_custom_io io = {.writev = write_answer, .read = read_request};

    (void)s;
    return fuse_session_custom_io(session, &io, fuse_session_fd(session));
}

/* The loop. */

/* A batch of them: the kernel's queue shall not wait for long. */
static void answer_due(struct serve *s)
{
    uint64_t now = now_ns();

    for (int i = 0; i < BATCH; i++) {
        struct op *op = server_take(s->server, now);
        if (!op)
            return;
        carry_out(s, (struct job *)op);
    }
}

/* Take the kernel's next request. 0, or the error that ends the loop. */
static int receive(struct serve *s, struct fuse_session *session, struct fuse_buf *buf)
{
    (void)s;
    for (int i = 0; i < BATCH && !fuse_session_exited(session); i++) {
        int n = fuse_session_receive_buf(session, buf);
        if (n == -EAGAIN || n == -EINTR)
            return 0;
        if (n < 0)
            return n;
        if (n > 0)
            fuse_session_process_buf(session, buf);
    }
    return 0;
}

static void take_signal(struct serve *s, int signals)
{
    struct signalfd_siginfo info;

    if (read(signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
        return;
    if (info.ssi_signo == SIGUSR1)
        serve_write_stats(s);
    else if (info.ssi_signo == SIGUSR2)
        take_toggle(s);
    else
        s->ended = true;
}

static int wait_for_work(struct serve *s, struct pollfd wait[2])
{
    uint64_t now = now_ns(), next = server_next_ns(s->server);
    uint64_t pause = next > now ? next - now : 0;
    struct timespec timeout = {.tv_sec = (time_t)(pause / UINT64_C(1000000000)),
                               .tv_nsec = (long)(pause % UINT64_C(1000000000))};

    if (ppoll(wait, 2, next == UINT64_MAX ? NULL : &timeout, NULL) < 0 && errno != EINTR)
        return -errno;
    return 0;
}

int serve_loop(struct serve *s, struct fuse_session *session, int signals)
{
    struct pollfd wait[2] = {{.fd = fuse_session_fd(session), .events = POLLIN},
                             {.fd = signals, .events = POLLIN}};
    struct fuse_buf buf = {0};
    struct op *op;
    int r = 0;

    while (r == 0 && !s->ended && !fuse_session_exited(session)) {
        wait[0].revents = wait[1].revents = 0;
        r = wait_for_work(s, wait);
        if (r == 0 && wait[1].revents)
            take_signal(s, signals);
        answer_due(s);
        if (r == 0 && wait[0].revents)
            r = receive(s, session, &buf);
    }
    s->toggled = false;
    answer_stalled(s);
    while ((op = server_take(s->server, UINT64_MAX))) {
        fuse_reply_err(((struct job *)op)->request, ENOTCONN);
        free(op);
    }
    free(buf.mem);
    return r;
}

int serve_write_stats(struct serve *s)
{
    char text[4096], *temporary = NULL;
    size_t n = print_stats(s, text, sizeof(text));
    FILE *f;
    bool good;

    if (!s->config.stats)
        return fwrite(text, 1, n, stderr) == n ? 0 : -EIO;
    if (asprintf(&temporary, "%s.part", s->config.stats) < 0)
        return -ENOMEM;
    f = fopen(temporary, "we");
    good = f && fwrite(text, 1, n, f) == n;
    good = f && fclose(f) == 0 && good;
    good = good && rename(temporary, s->config.stats) == 0;
    free(temporary);
    return good ? 0 : -EIO;
}

int serve_new(const struct serve_config *config, const struct server_config *server,
              struct tree tree, struct serve **ret_serve)
{
    struct serve *s = calloc(1, sizeof(*s));

    if (s)
        s->buffer = malloc(READ_MAX);
    if (!s || !s->buffer || server_new(server, &s->server) < 0) {
        if (s)
            free(s->buffer);
        free(s);
        return -ENOMEM;
    }
    s->config = *config;
    s->toggled = config->hold;
    s->tree = tree;
    *ret_serve = s;
    return 0;
}

void serve_free(struct serve *s)
{
    if (!s)
        return;
    while (s->handles)
        handle_close(s, s->handles);
    s->tree.ops->free(s->tree.self);
    server_free(s->server);
    free(s->buffer);
    free(s);
}
