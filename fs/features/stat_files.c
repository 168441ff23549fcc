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
 *
 * Under a layer a name must keep its node: the overlay takes another one for a lost file
 * (ESTALE). A look-up changes the text of that node then, and its length, at which the kernel
 * drops what it has of the old one. And nothing here is copied to the layer, where a report
 * would be there for good: an overlay copies a file only if its attributes can be listed.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core.h"
#include "numbers.h"
#include "report.h"

/* Above all node ids that stand for entries. */
#define NODE_FOLDER (UINT64_C(1) << 40)
#define NODE_TEXT (UINT64_C(1) << 41) /* node id of the first text */
#define TEXTS_KEPT 64u
#define INO_FOLDER NODE_FOLDER
#define INO_TEXT NODE_TEXT /* one per name: cp takes a changed st_ino for another file */

static const char folder_name[] = ".onepot";
/* The names of the folder's listing, in its order. */
static const char *const names[] = {".", "..", "stat", "stat.json"};
static const char *const *const file_names = names + 2;
enum { FILE_JSON = 1, FILES = 2 };

struct text {
    uint64_t node; /* 0: none */
    unsigned file;
    char *bytes;
    size_t len;
};

struct stat_files {
    struct session *session;
    pthread_mutex_t lock;
    uint64_t made;
    struct text texts[TEXTS_KEPT];
};

static int stat_files_start(struct session *s, void **ret_state)
{
    struct stat_files *files = calloc(1, sizeof(*files));

    if (!files)
        return -ENOMEM;
    files->session = s;
    pthread_mutex_init(&files->lock, NULL);
    *ret_state = files;
    return 0;
}

static void stat_files_free(void *state)
{
    struct stat_files *files = state;

    for (unsigned i = 0; i < TEXTS_KEPT; i++)
        free(files->texts[i].bytes);
    pthread_mutex_destroy(&files->lock);
    free(files);
}

static bool is_text(uint64_t node)
{
    return node >= NODE_TEXT;
}

/* ---- texts ---- */

/* Make a new file with the current report. */
static int stat_files_make(struct stat_files *files, unsigned file, struct text *ret_text)
{
    struct session *s = files->session;
    struct text text = {.file = file};

    session_update_counters(s);
    /* The texts among the counters must not change meanwhile. */
    pthread_mutex_lock(&s->counters_lock);
    pthread_mutex_lock(&s->log.lock);
    int r = report_render(s->config.counters, file == FILE_JSON, &text.bytes, &text.len);
    pthread_mutex_unlock(&s->log.lock);
    pthread_mutex_unlock(&s->counters_lock);
    if (r < 0)
        return r;
    text.len = min_u64(text.len, LISTING_BYTES - 1); /* an answer holds it: text_read */
    pthread_mutex_lock(&files->lock);
    uint64_t number = s->config.is_covered ? file : files->made++;
    struct text *place = &files->texts[number % TEXTS_KEPT];
    text.node = NODE_TEXT + number;
    if (place->node == text.node && place->len == text.len)
        text.bytes[text.len++] = '\n'; /* in the place of its end */
    free(place->bytes);
    *place = *ret_text = text;
    pthread_mutex_unlock(&files->lock);
    ret_text->bytes = NULL; /* the kept text may be dropped at any time */
    return 0;
}

/*
 * Copy a part of the text that a request is about. -ESTALE: it is no longer kept; -EISDIR: the
 * request is about the folder.
 */
static int text_read(struct stat_files *files, const struct request *rq, uint64_t offset,
                     size_t len, struct text *ret_text, size_t *ret_len)
{
    uint64_t node = rq->header->nodeid;
    int r = -ESTALE;

    if (!is_text(node))
        return -EISDIR;
    pthread_mutex_lock(&files->lock);
    const struct text *text = &files->texts[(node - NODE_TEXT) % TEXTS_KEPT];
    if (text->node == node) {
        size_t left = offset < text->len ? text->len - offset : 0;
        *ret_len = min_u64(left, len);
        memcpy(rq->worker->reply_buffer, text->bytes + (left ? offset : 0), *ret_len);
        *ret_text = *text;
        r = 0;
    }
    pthread_mutex_unlock(&files->lock);
    return r;
}

/* ---- attributes ---- */

/* Attributes of a text's file; NULL: of the folder. */
static void fill_attr(const struct session *s, const struct text *text, struct fuse_attr *ret)
{
    const uint64_t started = (uint64_t)s->config.counters->started_realtime_sec;

    *ret = (struct fuse_attr){
        .ino = text ? INO_TEXT + text->file : INO_FOLDER,
        .size = text ? text->len : 0,
        .blocks = text ? (text->len + 511) / 512 : 0,
        .mtime = started,
        .atime = started,
        .ctime = started,
        .mode = text ? S_IFREG | 0444 : S_IFDIR | 0555,
        .nlink = text ? 1 : 2,
        .uid = s->config.override_uid ? s->config.uid : getuid(),
        .gid = s->config.override_gid ? s->config.gid : getgid(),
        .blksize = 4096,
    };
}

/* ---- requests ---- */

/* A look-up of a name in the mount's root that the archive does not have. */
static bool answer_root_lookup(const struct session *s, struct request *rq)
{
    struct fuse_entry_out entry = {.nodeid = NODE_FOLDER, .attr_valid = VALID_FOREVER_S};
    size_t len = sizeof(folder_name) - 1;

    if (strnlen(rq->arg, rq->arg_len) != len || memcmp(rq->arg, folder_name, len) != 0)
        return false;
    rq->unseen = true;
    fill_attr(s, NULL, &entry.attr);
    reply_bytes(rq, &entry, sizeof(entry));
    return true;
}

static void answer_lookup(struct stat_files *files, struct request *rq)
{
    struct fuse_entry_out entry = {0}; /* nodeid 0: no such entry; not remembered */
    size_t len = strnlen(rq->arg, rq->arg_len);
    struct text text;
    unsigned file = 0;

    while (file < FILES &&
           (len != strlen(file_names[file]) || memcmp(rq->arg, file_names[file], len) != 0))
        file++;
    int r = file < FILES && !is_text(rq->header->nodeid) ? stat_files_make(files, file, &text)
                                                         : -ENOENT;
    if (r == 0) {
        entry.nodeid = text.node;
        entry.attr_valid = VALID_FOREVER_S;
        fill_attr(files->session, &text, &entry.attr);
    }
    reply_result(rq, r == -ENOENT ? 0 : r, &entry, sizeof(entry));
}

static void answer_getattr(struct stat_files *files, struct request *rq)
{
    struct fuse_attr_out out = {.attr_valid = VALID_FOREVER_S};
    struct text text;
    size_t len;
    int r = text_read(files, rq, 0, 0, &text, &len);

    if (r == 0 || r == -EISDIR)
        fill_attr(files->session, r == 0 ? &text : NULL, &out.attr);
    reply_result(rq, r == -EISDIR ? 0 : r, &out, sizeof(out));
}

static void answer_read(struct stat_files *files, struct request *rq)
{
    const struct fuse_read_in *in = rq->arg;
    struct text text;
    size_t len = 0;
    int r = text_read(files, rq, in->offset, min_u64(in->size, LISTING_BYTES), &text, &len);

    reply_result(rq, r, rq->worker->reply_buffer, len);
}

/* Listing the folder itself shows its files. */
static void answer_readdir(struct stat_files *files, struct request *rq)
{
    const struct fuse_read_in *in = rq->arg;
    struct listing l = listing_begin(rq);
    int r = 0;

    (void)files;
    for (uint64_t i = in->offset; i < sizeof(names) / sizeof(names[0]) && r == 0; i++)
        r = listing_add(&l, i < 2 ? INO_FOLDER : INO_TEXT + i - 2,
                        (i < 2 ? S_IFDIR : S_IFREG) >> 12, i + 1, names[i], strlen(names[i]));
    reply_bytes(rq, l.buf, l.len);
}

static void answer_lseek(struct stat_files *files, struct request *rq)
{
    const struct fuse_lseek_in *in = rq->arg;
    struct fuse_lseek_out out = {.offset = in->offset};
    struct text text;
    size_t len;
    int r = text_read(files, rq, 0, 0, &text, &len);

    if (r == 0 && in->offset >= text.len)
        r = -ENXIO;
    if (r == 0 && in->whence == SEEK_HOLE)
        out.offset = text.len;
    reply_result(rq, r == -EISDIR ? -EINVAL : r, &out, sizeof(out));
}

static void answer_access(struct stat_files *files, struct request *rq)
{
    const struct fuse_access_in *in = rq->arg;

    (void)files;
    reply_error(rq, ops_may_access(is_text(rq->header->nodeid) ? S_IFREG : S_IFDIR, in->mask));
}

static void answer_getxattr(struct stat_files *files, struct request *rq)
{
    reply_error(rq, index_info(files->session->index)->has_xattrs ? -ENODATA : -ENOSYS);
}

static void answer_listxattr(struct stat_files *files, struct request *rq)
{
    const struct fuse_getxattr_in *in = rq->arg;
    struct fuse_getxattr_out none = {0};

    if (files->session->config.is_covered)
        reply_error(rq, -EROFS);
    else
        reply_bytes(rq, &none, in->size == 0 ? sizeof(none) : 0);
}

/* Answers by opcode. Opcodes without one are answered as for every file. */
static void (*const answers[])(struct stat_files *files, struct request *rq) = {
    [FUSE_LOOKUP] = answer_lookup,       [FUSE_GETATTR] = answer_getattr,
    [FUSE_READ] = answer_read,           [FUSE_GETXATTR] = answer_getxattr,
    [FUSE_LISTXATTR] = answer_listxattr, [FUSE_READDIR] = answer_readdir,
    [FUSE_READDIRPLUS] = answer_readdir, [FUSE_LSEEK] = answer_lseek,
    [FUSE_ACCESS] = answer_access,
};

static bool stat_files_answer(void *state, struct request *rq)
{
    struct stat_files *files = state;
    uint32_t opcode = rq->header->opcode;

    if (rq->header->nodeid < NODE_FOLDER)
        return opcode == FUSE_LOOKUP && answer_root_lookup(files->session, rq);
    rq->unseen = true;
    if (opcode >= sizeof(answers) / sizeof(answers[0]) || !answers[opcode])
        return false;
    answers[opcode](files, rq);
    return true;
}

const struct feature stat_files_feature = {
    .start = stat_files_start,
    .answer = stat_files_answer,
    .free = stat_files_free,
};
