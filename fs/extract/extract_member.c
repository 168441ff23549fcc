/*
 * Extracts one member: a file, a link, a special file, or a further name of one.
 *
 * A new file costs as few system calls as possible. It is made with its final mode (the umask
 * of the process is 0 meanwhile), written, given its time and closed. Owner and mode are set
 * only where they would otherwise be wrong. Nothing waits for a disk.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "cleanup.h"
#include "extract_private.h"
#include "numbers.h"
#include "write_at.h"

/* A failed step. */
struct trouble {
    const char *doing; /* "can't be written" */
    uint64_t offset;   /* in the archive, or FAULT_NO_OFFSET */
};

/* ---- bytes: each piece is hashed and written while it is still in the CPU's cache ---- */

struct copy {
    struct extraction *x;
    int fd;
    struct checksum *hash; /* or NULL */
    bool write_failed;
};

static int write_piece(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    struct copy *c = ctx;
    if (workers_stopped(&c->x->workers))
        return -EINTR;
    if (c->hash)
        checksum_add(c->hash, bytes, len);
    int r = write_at(c->fd, bytes, len, offset);
    c->write_failed = r < 0;
    atomic_fetch_add_explicit(&c->x->workers.progress.bytes_done, len, memory_order_relaxed);
    return r;
}

/*
 * Write bytes [from, to) of the file at `position` to the same place in `fd`, leaving out
 * holes. `hash` (or NULL) is updated with all bytes outside of holes.
 */
static int bytes_copy(struct extractor *e, uint32_t position, uint64_t from, uint64_t to,
                      int fd, struct checksum *hash, struct trouble *trouble)
{
    struct copy c = {.x = e->x, .fd = fd, .hash = hash};
    trouble->doing = "can't be read";
    int r =
        content_read(e->worker->content, position, from, to, write_piece, &c, &trouble->offset);
    if (c.write_failed)
        trouble->doing = "can't be written";
    return r;
}

static int bytes_hash_range(struct extractor *e, uint64_t from, uint64_t to, int fd,
                            struct checksum *hash)
{
    for (size_t n; from < to; from += n) {
        n = min_u64(to - from, READ_BACK_BYTES);
        int r = read_at(fd, e->worker->buffer, n, from);
        if (r < 0)
            return r == -ENODATA ? -EIO : r; /* somebody cut the file off */
        checksum_add(hash, e->worker->buffer, n);
    }
    return 0;
}

/* Read bytes [from, to) back as they were written, and hash them. */
static int bytes_hash_written(struct extractor *e, uint32_t position, uint64_t from,
                              uint64_t to, int fd, struct checksum *hash)
{
    while (from < to) {
        struct extent extent;
        int r = index_extent(e->x->index, position, from, &extent);
        if (r < 0)
            return r;
        uint64_t len = min_u64(extent.length, to - from);
        if (extent.kind != EXTENT_HOLE)
            r = bytes_hash_range(e, from, from + len, fd, hash);
        if (r < 0)
            return r;
        from += len;
    }
    return 0;
}

/* ---- making ---- */

/*
 * Until its owner is right, nobody else may read a file. Its owner must be able to write it
 * while attributes are still to be set.
 */
static mode_t first_mode(const struct extraction *x, const struct node *node)
{
    mode_t mode = attributes_mode(x, node) & 0777;
    if (x->options->owners && !attributes_keep_owner(x, node))
        mode &= 0700;
    return node->has_xattrs ? mode | 0600 : mode;
}

/* Create the member's file. Returns its descriptor, or -errno. */
static int member_make_file(struct extraction *x, int folder_fd, const char *name, int flags,
                            mode_t mode)
{
    int fd = -1, r = 0;
    flags |= O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY;
    for (unsigned attempts = 0; r == 0 && (fd = openat(folder_fd, name, flags, mode)) < 0;)
        r = tree_make_way(x, folder_fd, name, errno, &attempts);
    return r < 0 ? r : fd;
}

static int make_special(struct extraction *x, int folder_fd, const char *name,
                        const struct node *node, const char *target)
{
    mode_t mode = (node->mode & S_IFMT) | (attributes_mode(x, node) & 0777);
    dev_t device = makedev(node->rdev_major, node->rdev_minor);
    int r = 0;
    for (unsigned attempts = 0;
         r == 0 && (target ? symlinkat(target, folder_fd, name)
                           : mknodat(folder_fd, name, mode, device)) < 0;)
        r = tree_make_way(x, folder_fd, name, errno, &attempts);
    return r;
}

static int member_read_target(const struct index *index, uint32_t position,
                              char target[INDEX_SYMLINK_MAX + 1])
{
    const char *bytes;
    size_t len;
    int r = index_symlink(index, position, &bytes, &len);
    if (r < 0)
        return r;
    memcpy(target, bytes, len);
    target[len] = '\0';
    return 0;
}

/*
 * A symbolic link, fifo, socket or device. Mode and owner of these never give access to data.
 */
static int extract_special(struct extractor *e, int folder_fd, const char *name,
                           const struct node *node, struct trouble *trouble)
{
    struct extraction *x = e->x;
    char target[INDEX_SYMLINK_MAX + 1];
    bool is_link = S_ISLNK(node->mode);
    int r = is_link ? member_read_target(x->index, node->position, target) : 0;
    if (r == 0)
        r = make_special(x, folder_fd, name, node, is_link ? target : NULL);
    if (r < 0) {
        trouble->doing = "can't be made";
        return r;
    }
    r = attributes_set_by_name(x, folder_fd, name, node);
    mode_t mode = attributes_mode(x, node);
    if (r == 0 && !is_link && (mode & 07000 || x->inherits) &&
        fchmodat(folder_fd, name, mode, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    if (r < 0)
        trouble->doing = "its attributes can't be set";
    return r;
}

/* ---- files ---- */

static int check_sum(struct extraction *x, uint32_t position, const struct checksum *hash,
                     struct trouble *trouble)
{
    uint64_t sum;
    int r = index_sum(x->index, position, &sum);
    if (r == -ENODATA)
        return 0;
    if (r == 0 && !checksum_is(hash, sum))
        r = -EBADMSG;
    if (r < 0)
        *trouble = (struct trouble){"its bytes do not have the sum that they were packed with",
                                    worklist_key(x->index, position, 0, FAULT_NO_OFFSET)};
    return r;
}

static int write_file(struct extractor *e, int fd, const struct node *node, mode_t mode,
                      struct trouble *trouble)
{
    struct extraction *x = e->x;
    struct checksum *hash = e->worker->hash;
    if (hash)
        checksum_reset(hash);
    int r = bytes_copy(e, node->position, 0, node->size_bytes, fd, hash, trouble);
    if (r == 0 && hash)
        r = check_sum(x, node->position, hash, trouble);
    if (r < 0)
        return r;
    if (node->data_bytes < node->size_bytes || node->has_holes)
        r = ftruncate(fd, (off_t)node->size_bytes) < 0 ? -errno : 0;
    if (r == 0)
        r = attributes_set(x, fd, node, mode);
    if (r < 0)
        trouble->doing = "its attributes can't be set";
    return r;
}

static int extract_file(struct extractor *e, int folder_fd, const char *name,
                        const struct node *node, struct trouble *trouble)
{
    mode_t mode = first_mode(e->x, node);
    int fd = member_make_file(e->x, folder_fd, name, O_WRONLY, mode);
    if (fd < 0) {
        trouble->doing = "can't be made";
        return fd;
    }
    int r = write_file(e, fd, node, mode, trouble);
    if (close(fd) < 0 && r == 0) {
        trouble->doing = "can't be written";
        r = -errno; /* a network filesystem may report an exceeded quota only now */
    }
    if (r < 0)
        unlinkat(folder_fd, name, 0);
    else
        atomic_fetch_add_explicit(&e->x->files, 1, memory_order_relaxed);
    return r;
}

void member_extract(struct extractor *e, uint32_t position)
{
    struct extraction *x = e->x;
    struct trouble trouble = {"can't be extracted", FAULT_NO_OFFSET};
    char name[INDEX_NAME_MAX + 1];
    struct node node;
    int fd, r = index_node(x->index, position, &node);
    if (r == 0)
        r = folders_find(x, &e->folders, position, &fd, name);
    if (r == 0)
        r = S_ISREG(node.mode) ? extract_file(e, fd, name, &node, &trouble)
                               : extract_special(e, fd, name, &node, &trouble);
    if (r < 0)
        extract_problem(x, position, r, trouble.offset, trouble.doing);
    atomic_fetch_add_explicit(&x->workers.progress.members, 1, memory_order_relaxed);
}

/* ---- large files ---- */

int large_compare(const void *a, const void *b)
{
    const struct large *x = a, *y = b;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* Under the lock. The first piece makes the file. */
static int open_large(struct extractor *e, struct large *l, const struct node *node,
                      struct trouble *trouble)
{
    char name[INDEX_NAME_MAX + 1];
    int folder_fd, r = folders_find(e->x, &e->folders, l->position, &folder_fd, name);
    if (r == 0)
        l->fd = r = member_make_file(e->x, folder_fd, name, O_RDWR, first_mode(e->x, node));
    if (r < 0)
        trouble->doing = "can't be made";
    return r < 0 ? r : 0;
}

/*
 * Hash the written pieces from the front up to the first gap. One thread does so at a time, and
 * its own piece counts as left until then. Called under the lock, which is released meanwhile.
 * (Pieces written lately are read back from memory.)
 */
static int hash_front(struct extractor *e, struct large *l, const struct node *node)
{
    struct extraction *x = e->x;
    int r = 0;
    if (!l->state || l->hashing)
        return 0;
    l->hashing = true;
    while (r == 0 && l->hashed < l->pieces && l->written[l->hashed] && !l->failed) {
        uint64_t from = l->hashed * PIECE_BYTES, to = from + PIECE_BYTES;
        pthread_mutex_unlock(&x->workers.lock);
        r = bytes_hash_written(e, node->position, from, min_u64(to, node->size_bytes), l->fd,
                               l->state);
        pthread_mutex_lock(&x->workers.lock);
        l->hashed++;
    }
    l->hashing = false;
    return r;
}

/* All pieces are written: set attributes and finish the file. Under the lock. */
static int finish_large(struct extractor *e, struct large *l, const struct node *node,
                        struct trouble *trouble)
{
    int r = l->state ? check_sum(e->x, node->position, l->state, trouble) : 0;
    if (r < 0)
        return r;
    trouble->doing = "its attributes can't be set";
    if (ftruncate(l->fd, (off_t)node->size_bytes) < 0)
        return -errno;
    r = attributes_set(e->x, l->fd, node, first_mode(e->x, node));
    if (r < 0)
        return r;
    r = close(steal_fd(&l->fd)) < 0 ? -errno : 0;
    l->made = r < 0;
    if (r == 0)
        atomic_fetch_add_explicit(&e->x->files, 1, memory_order_relaxed);
    return r;
}

/* No thread works on it any more. */
static void discard_large(struct extraction *x, struct folders *folders, struct large *l)
{
    char name[INDEX_NAME_MAX + 1];
    int folder_fd;
    if (l->fd >= 0)
        close(steal_fd(&l->fd));
    if (l->made && folders_find(x, folders, l->position, &folder_fd, name) == 0)
        unlinkat(folder_fd, name, 0);
    l->made = false;
}

/* Under the lock. */
static int member_begin_piece(struct extractor *e, struct large *l, const struct node *node,
                              struct trouble *trouble)
{
    if (l->failed || l->made)
        return 0;
    int r = open_large(e, l, node, trouble);
    l->made = r == 0;
    l->failed = r < 0;
    return r;
}

/* The piece was written, or failed. Under the lock. */
static int member_end_piece(struct extractor *e, struct large *l, uint32_t piece,
                            const struct node *node, struct trouble *trouble)
{
    int r = 0;
    l->written[piece] = 1;
    if (!l->failed)
        r = hash_front(e, l, node);
    l->left--;
    if (r == 0 && l->left == 0 && !l->failed)
        r = finish_large(e, l, node, trouble);
    return r;
}

void member_extract_piece(struct extractor *e, uint32_t position, uint32_t piece)
{
    struct extraction *x = e->x;
    struct trouble trouble = {"can't be extracted", FAULT_NO_OFFSET};
    struct node node = {0};
    pthread_mutex_lock(&x->workers.lock);
    const struct large key = {.position = position};
    struct large *l = bsearch(&key, x->large.at, x->large.count, sizeof(key), large_compare);
    int r = index_node(x->index, position, &node);
    if (r == 0)
        r = member_begin_piece(e, l, &node, &trouble);
    bool skip = l->failed || r < 0;
    pthread_mutex_unlock(&x->workers.lock);
    if (!skip) {
        uint64_t from = piece * PIECE_BYTES, to = from + PIECE_BYTES;
        r = bytes_copy(e, node.position, from, min_u64(to, node.size_bytes), l->fd, NULL,
                       &trouble);
    }
    pthread_mutex_lock(&x->workers.lock);
    l->failed |= r < 0;
    int end = member_end_piece(e, l, piece, &node, &trouble);
    r = r < 0 ? r : end;
    l->failed |= r < 0;
    if (l->failed && l->left == 0)
        discard_large(x, &e->folders, l);
    pthread_mutex_unlock(&x->workers.lock);
    if (r < 0)
        extract_problem(x, position, r, trouble.offset, trouble.doing);
}

void member_discard_large(struct extraction *x, struct folders *folders)
{
    for (size_t i = 0; i < x->large.count; i++) {
        discard_large(x, folders, &x->large.at[i]);
        checksum_free(x->large.at[i].state);
        free(x->large.at[i].written);
    }
}

/* ---- further names ---- */

static int make_link(struct extractor *e, uint32_t first, uint32_t position)
{
    struct extraction *x = e->x;
    char from[INDEX_NAME_MAX + 1], to[INDEX_NAME_MAX + 1];
    int from_fd, to_fd, r = folders_find(x, &e->folders, first, &from_fd, from);
    if (r < 0)
        return r;
    /* The next call may close the original. */
    auto_close int own_fd = fcntl(from_fd, F_DUPFD_CLOEXEC, 0);
    if (own_fd < 0)
        return -errno;
    r = folders_find(x, &e->folders, position, &to_fd, to);
    for (unsigned attempts = 0; r == 0 && linkat(own_fd, from, to_fd, to, 0) < 0;)
        r = tree_make_way(x, to_fd, to, errno, &attempts);
    return r;
}

void member_link(struct extractor *e, uint32_t first, uint32_t position)
{
    struct extraction *x = e->x;
    int r = make_link(e, first, position);
    if (r == -EPERM || r == -EOPNOTSUPP || r == -EMLINK || r == -EXDEV) {
        member_extract(e, position); /* no hard links here, or too many: make a copy */
        return;
    }
    if (r < 0) {
        extract_problem(x, position, r, FAULT_NO_OFFSET, "can't be linked to its other name");
        return;
    }
    struct node node;
    bool is_file = index_node(x->index, position, &node) == 0 && S_ISREG(node.mode);
    atomic_fetch_add_explicit(&x->files, is_file, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->workers.progress.members, 1, memory_order_relaxed);
}
