/*
 * The mount's report on itself: .onepot/stat and .onepot/stat.json in its root, with the text
 * that `onepot stat` prints. They serve programs in a container that see only the mount. They
 * can be looked up but are not listed, so that find, cp and tar never meet them. If the archive
 * has an entry .onepot, that one is shown instead.
 *
 * Here the kernel caches a file's contents for good, and does not ask when it is opened
 * (ops.c). So each look-up makes a new file: a text that never changes, with a node id of its
 * own, under a name whose validity is zero. The last few texts are kept for the reads that
 * follow. None of this is counted; otherwise looking at a mount would keep it from being idle.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "internal.h"

/* Above all node ids that stand for entries. */
#define NODE_FOLDER (UINT64_C(1) << 40)
#define NODE_TEXT (UINT64_C(1) << 41) /* node id of the first text */
#define TEXTS_KEPT 64u
#define INO_FOLDER NODE_FOLDER
#define INO_TEXT NODE_TEXT /* one per name: cp takes a changed st_ino for another file */

static const char folder_name[] = ".onepot";
static const char *const file_names[] = {"stat", "stat.json"};
enum { FILE_JSON = 1, FILES = 2 };

struct text {
    uint64_t node; /* 0: none */
    unsigned file;
    char *bytes;
    size_t len;
};

struct itself {
    pthread_mutex_t lock;
    uint64_t made;
    struct text texts[TEXTS_KEPT];
};

int itself_start(struct session *s)
{
    if (!s->config.report)
        return 0;
    s->itself = calloc(1, sizeof(*s->itself));
    if (!s->itself)
        return -ENOMEM;
    pthread_mutex_init(&s->itself->lock, NULL);
    return 0;
}

void itself_free(struct itself *itself)
{
    if (!itself)
        return;
    for (unsigned i = 0; i < TEXTS_KEPT; i++)
        free(itself->texts[i].bytes);
    pthread_mutex_destroy(&itself->lock);
    free(itself);
}

static bool is_text(uint64_t node)
{
    return node >= NODE_TEXT;
}

/* ---- texts ---- */

/* Make a new file with the current report. */
static int make_text(struct session *s, unsigned file, struct text *ret_text)
{
    struct itself *it = s->itself;
    struct text text = {.file = file};

    session_update_counters(s);
    /* The texts among the counters must not change meanwhile. */
    pthread_mutex_lock(&s->counters_lock);
    pthread_mutex_lock(&s->log_lock);
    int r = s->config.report(s->config.report_ctx, file == FILE_JSON, &text.bytes, &text.len);
    pthread_mutex_unlock(&s->log_lock);
    pthread_mutex_unlock(&s->counters_lock);
    if (r < 0)
        return r;
    if (text.len > LISTING_BYTES)
        text.len = LISTING_BYTES; /* as much as one answer holds: see read_text */
    pthread_mutex_lock(&it->lock);
    text.node = NODE_TEXT + it->made;
    struct text *place = &it->texts[it->made++ % TEXTS_KEPT];
    free(place->bytes);
    *place = *ret_text = text;
    pthread_mutex_unlock(&it->lock);
    ret_text->bytes = NULL; /* the kept text may be dropped at any time */
    return 0;
}

/* Copy the requested part of a text. -ESTALE: it is no longer kept. */
static int read_text(struct itself *it, uint64_t node, uint64_t offset, size_t len, char *buf,
                     struct text *ret_text, size_t *ret_len)
{
    int r = -ESTALE;

    pthread_mutex_lock(&it->lock);
    const struct text *text = &it->texts[(node - NODE_TEXT) % TEXTS_KEPT];
    if (text->node == node) {
        size_t left = offset < text->len ? text->len - offset : 0;
        *ret_len = left < len ? left : len;
        memcpy(buf, text->bytes + (left ? offset : 0), *ret_len);
        *ret_text = *text;
        r = 0;
    }
    pthread_mutex_unlock(&it->lock);
    return r;
}

/* ---- attributes ---- */

static void fill_attr(const struct session *s, struct fuse_attr *ret)
{
    const struct counters *c = s->config.counters;

    memset(ret, 0, sizeof(*ret));
    ret->uid = s->config.override_uid ? s->config.uid : getuid();
    ret->gid = s->config.override_gid ? s->config.gid : getgid();
    ret->mtime = ret->atime = ret->ctime = (uint64_t)c->started_realtime_sec;
    ret->blksize = 4096;
}

static void folder_attr(const struct session *s, struct fuse_attr *ret)
{
    fill_attr(s, ret);
    ret->ino = INO_FOLDER;
    ret->mode = S_IFDIR | 0555;
    ret->nlink = 2;
}

static void text_attr(const struct session *s, const struct text *text, struct fuse_attr *ret)
{
    fill_attr(s, ret);
    ret->ino = INO_TEXT + text->file;
    ret->mode = S_IFREG | 0444;
    ret->nlink = 1;
    ret->size = text->len;
    ret->blocks = (text->len + 511) / 512;
}

/* ---- requests ---- */

bool itself_lookup(struct request *rq, const char *name, size_t len)
{
    const struct session *s = rq->worker->session;
    struct fuse_entry_out entry = {.nodeid = NODE_FOLDER, .attr_valid = VALID_FOREVER_S};

    if (!s->itself || len != sizeof(folder_name) - 1 || memcmp(name, folder_name, len) != 0)
        return false;
    rq->unseen = true;
    folder_attr(s, &entry.attr);
    reply_bytes(rq, &entry, sizeof(entry));
    return true;
}

static void answer_lookup(struct request *rq)
{
    struct session *s = rq->worker->session;
    struct fuse_entry_out entry = {0}; /* nodeid 0: no such entry; not remembered */
    const char *name = rq->arg;
    struct text text;
    unsigned file = 0;

    while (file < FILES && (strnlen(name, rq->arg_len) != strlen(file_names[file]) ||
                            memcmp(name, file_names[file], strlen(file_names[file])) != 0))
        file++;
    int r = file < FILES && !is_text(rq->header->nodeid) ? make_text(s, file, &text) : -ENOENT;
    if (r == 0) {
        entry.nodeid = text.node;
        entry.attr_valid = VALID_FOREVER_S;
        text_attr(s, &text, &entry.attr);
    }
    if (r < 0 && r != -ENOENT)
        reply_error(rq, r);
    else
        reply_bytes(rq, &entry, sizeof(entry));
}

static void answer_getattr(struct request *rq)
{
    const struct session *s = rq->worker->session;
    struct fuse_attr_out out = {.attr_valid = VALID_FOREVER_S};
    struct text text;
    size_t len;
    int r = 0;

    if (is_text(rq->header->nodeid)) {
        r = read_text(s->itself, rq->header->nodeid, 0, 0, rq->worker->reply_buffer, &text,
                      &len);
        if (r == 0)
            text_attr(s, &text, &out.attr);
    } else {
        folder_attr(s, &out.attr);
    }
    if (r < 0)
        reply_error(rq, r);
    else
        reply_bytes(rq, &out, sizeof(out));
}

static void answer_read(struct request *rq)
{
    const struct fuse_read_in *in = rq->arg;
    char *buf = rq->worker->reply_buffer;
    struct text text;
    size_t len = in->size < LISTING_BYTES ? in->size : LISTING_BYTES;
    int r = is_text(rq->header->nodeid)
                ? read_text(rq->worker->session->itself, rq->header->nodeid, in->offset, len,
                            buf, &text, &len)
                : -EISDIR;
    if (r < 0)
        reply_error(rq, r);
    else
        reply_bytes(rq, buf, len);
}

/* Listing the folder itself shows its files. */
static void answer_readdir(struct request *rq)
{
    static const char *const names[] = {".", "..", "stat", "stat.json"};
    const struct fuse_read_in *in = rq->arg;
    bool plus = rq->header->opcode == FUSE_READDIRPLUS;
    size_t head = plus ? sizeof(struct fuse_entry_out) : 0, len = 0;
    char *buf = rq->worker->reply_buffer;

    for (uint64_t i = in->offset; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t n = strlen(names[i]), need = head + FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + n);
        if (need > in->size - len || need > LISTING_BYTES - len)
            break;
        memset(buf + len, 0, need); /* nodeid 0: the kernel looks it up when needed */
        struct fuse_dirent *d = (void *)(buf + len + head);
        d->ino = i < 2 ? INO_FOLDER : INO_TEXT + i - 2;
        d->off = i + 1;
        d->namelen = (uint32_t)n;
        d->type = (i < 2 ? S_IFDIR : S_IFREG) >> 12;
        memcpy(d->name, names[i], n);
        len += need;
    }
    reply_bytes(rq, buf, len);
}

static void answer_lseek(struct request *rq)
{
    const struct fuse_lseek_in *in = rq->arg;
    struct fuse_lseek_out out = {.offset = in->offset};
    struct text text;
    size_t len;
    int r = is_text(rq->header->nodeid)
                ? read_text(rq->worker->session->itself, rq->header->nodeid, 0, 0,
                            rq->worker->reply_buffer, &text, &len)
                : -EINVAL;
    if (r == 0 && in->offset >= text.len)
        r = -ENXIO;
    if (r == 0 && in->whence == SEEK_HOLE)
        out.offset = text.len;
    if (r < 0)
        reply_error(rq, r);
    else
        reply_bytes(rq, &out, sizeof(out));
}

static void answer_listxattr(struct request *rq)
{
    const struct fuse_getxattr_in *in = rq->arg;
    struct fuse_getxattr_out none = {0};

    reply_bytes(rq, &none, in->size == 0 ? sizeof(none) : 0);
}

bool itself_answers(struct request *rq)
{
    const struct session *s = rq->worker->session;

    if (rq->header->nodeid < NODE_FOLDER || !s->itself)
        return false;
    rq->unseen = true;
    switch (rq->header->opcode) {
    case FUSE_LOOKUP:
        answer_lookup(rq);
        return true;
    case FUSE_GETATTR:
        answer_getattr(rq);
        return true;
    case FUSE_READ:
        answer_read(rq);
        return true;
    case FUSE_READDIR:
    case FUSE_READDIRPLUS:
        answer_readdir(rq);
        return true;
    case FUSE_LSEEK:
        answer_lseek(rq);
        return true;
    case FUSE_GETXATTR:
        reply_error(rq, index_info(s->index)->has_xattrs ? -ENODATA : -ENOSYS);
        return true;
    case FUSE_LISTXATTR:
        answer_listxattr(rq);
        return true;
    default:
        return false; /* the same for every file */
    }
}
