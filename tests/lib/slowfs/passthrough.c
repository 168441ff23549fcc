/*
 * A tree that is an existing directory. A node is a name below another node, in a hash table,
 * as long as the kernel remembers it; what is asked of it is asked of its path. Two names of
 * one file are two nodes with the same st_ino, which is what programs compare.
 *
 * Paths are relative to the working directory: there are no xattr calls that take a descriptor
 * of a folder and a name (before Linux 6.13).
 */
#include "tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { BUCKETS = 1 << 16 };

struct node {
    struct node *parent;
    struct node *next; /* in its bucket */
    uint64_t uses;     /* lookups by the kernel, and children */
    char name[];
};

struct directory {
    struct node *root;
    struct node *bucket[BUCKETS];
};

static struct node *node_of(struct directory *d, uint64_t number)
{
    return number == TREE_ROOT ? d->root : (struct node *)(uintptr_t)number;
}

static struct node **bucket_of(struct directory *d, const struct node *parent, const char *name)
{
    uint64_t hash = (uintptr_t)parent * UINT64_C(0x9e3779b97f4a7c15);

    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return &d->bucket[(hash >> 24) % BUCKETS];
}

/* Its path from the root, written from the end of the buffer; NULL if that is too short. */
static const char *path_of(struct directory *d, const struct node *node, char path[PATH_MAX])
{
    size_t at = PATH_MAX - 1;

    path[at] = 0;
    if (node == d->root)
        return ".";
    for (; node != d->root; node = node->parent) {
        size_t len = strlen(node->name);
        if (len + 1 > at)
            return NULL;
        if (path[at] != 0)
            path[--at] = '/';
        at -= len;
        memcpy(path + at, node->name, len);
    }
    return path + at;
}

static struct node *node_get(struct directory *d, struct node *parent, const char *name)
{
    struct node **bucket = bucket_of(d, parent, name), *node;
    size_t len = strlen(name);

    for (node = *bucket; node; node = node->next) {
        if (node->parent == parent && strcmp(node->name, name) == 0) {
            node->uses++;
            return node;
        }
    }
    node = malloc(sizeof(*node) + len + 1);
    if (!node)
        return NULL;
    *node = (struct node){.parent = parent, .next = *bucket, .uses = 1};
    memcpy(node->name, name, len + 1);
    parent->uses++;
    *bucket = node;
    return node;
}

static void node_put(struct directory *d, struct node *node, uint64_t times)
{
    while (node != d->root) {
        struct node *parent = node->parent, **link;

        node->uses -= times < node->uses ? times : node->uses;
        if (node->uses > 0)
            return;
        for (link = bucket_of(d, parent, node->name); *link != node; link = &(*link)->next)
            ;
        *link = node->next;
        free(node);
        node = parent;
        times = 1;
    }
}

static int dir_lookup(void *tree, uint64_t parent, const char *name, uint64_t *ret_node,
                      struct stat *ret_st)
{
    struct directory *d = tree;
    struct node *node = node_get(d, node_of(d, parent), name);
    char buf[PATH_MAX];
    const char *path;
    int r;

    if (!node)
        return -ENOMEM;
    path = path_of(d, node, buf);
    if (path && lstat(path, ret_st) == 0) {
        *ret_node = (uintptr_t)node;
        return 0;
    }
    r = path ? -errno : -ENAMETOOLONG;
    node_put(d, node, 1);
    return r;
}

static void dir_forget(void *tree, uint64_t node, uint64_t times)
{
    struct directory *d = tree;

    node_put(d, node_of(d, node), times);
}

static int dir_getattr(void *tree, uint64_t node, struct stat *ret_st)
{
    struct directory *d = tree;
    char buf[PATH_MAX];
    const char *path = path_of(d, node_of(d, node), buf);

    if (!path)
        return -ENAMETOOLONG;
    return lstat(path, ret_st) < 0 ? -errno : 0;
}

static ssize_t dir_readlink(void *tree, uint64_t node, char *buf, size_t room)
{
    struct directory *d = tree;
    char name[PATH_MAX];
    const char *path = path_of(d, node_of(d, node), name);
    ssize_t n = path ? readlink(path, buf, room) : -1;

    return n < 0 ? (path ? -errno : -ENAMETOOLONG) : n;
}

static ssize_t dir_getxattr(void *tree, uint64_t node, const char *name, char *buf, size_t room)
{
    struct directory *d = tree;
    char at[PATH_MAX];
    const char *path = path_of(d, node_of(d, node), at);
    ssize_t n = path ? lgetxattr(path, name, buf, room) : -1;

    return n < 0 ? (path ? -errno : -ENAMETOOLONG) : n;
}

static ssize_t dir_listxattr(void *tree, uint64_t node, char *buf, size_t room)
{
    struct directory *d = tree;
    char at[PATH_MAX];
    const char *path = path_of(d, node_of(d, node), at);
    ssize_t n = path ? llistxattr(path, buf, room) : -1;

    return n < 0 ? (path ? -errno : -ENAMETOOLONG) : n;
}

static int open_node(void *tree, uint64_t node, int flags)
{
    struct directory *d = tree;
    char buf[PATH_MAX];
    const char *path = path_of(d, node_of(d, node), buf);
    int fd = path ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | flags) : -1;

    return fd < 0 ? (path ? -errno : -ENAMETOOLONG) : fd;
}

static int dir_open(void *tree, uint64_t node, struct tree_handle *ret_handle)
{
    int fd = open_node(tree, node, O_NONBLOCK), r;
    struct stat st;

    if (fd < 0)
        return fd;
    if (fstat(fd, &st) < 0) {
        r = -errno;
        close(fd);
        return r;
    }
    *ret_handle = (struct tree_handle){.node = node, .size = (uint64_t)st.st_size, .fd = fd};
    return 0;
}

static ssize_t dir_read(void *tree, struct tree_handle *h, char *buf, size_t room, uint64_t at)
{
    size_t got = 0;

    (void)tree;
    while (got < room) {
        ssize_t n = pread(h->fd, buf + got, room - got, (off_t)(at + got));
        if (n < 0)
            return -errno;
        if (n == 0)
            break;
        got += (size_t)n;
    }
    return (ssize_t)got;
}

static int dir_opendir(void *tree, uint64_t node, struct tree_handle *ret_handle)
{
    int fd = open_node(tree, node, O_DIRECTORY);
    DIR *dir;

    if (fd < 0)
        return fd;
    dir = fdopendir(fd);
    if (!dir) {
        int r = -errno;
        close(fd);
        return r;
    }
    *ret_handle = (struct tree_handle){.node = node, .fd = -1, .dir = dir};
    return 0;
}

static int dir_entry(void *tree, struct tree_handle *h, off_t at, struct tree_entry *ret_entry)
{
    struct dirent *e;

    (void)tree;
    if (at != h->at)
        seekdir(h->dir, at);
    errno = 0;
    e = readdir(h->dir);
    if (!e)
        return -errno;
    h->at = e->d_off;
    *ret_entry = (struct tree_entry){
        .name = e->d_name,
        .st = {.st_ino = e->d_ino, .st_mode = DTTOIF(e->d_type)},
        .next = e->d_off,
    };
    return 1;
}

static void dir_close(void *tree, struct tree_handle *h)
{
    (void)tree;
    if (h->dir)
        closedir(h->dir);
    if (h->fd >= 0)
        close(h->fd);
}

static void dir_free(void *tree)
{
    struct directory *d = tree;

    for (size_t i = 0; d && i < BUCKETS; i++) {
        for (struct node *node = d->bucket[i], *next; node; node = next) {
            next = node->next;
            free(node);
        }
    }
    free(d ? d->root : NULL);
    free(d);
}

int tree_of_directory(int fd, struct tree *ret_tree)
{
    static const struct tree_ops ops = {
        .lookup = dir_lookup,
        .forget = dir_forget,
        .getattr = dir_getattr,
        .readlink = dir_readlink,
        .getxattr = dir_getxattr,
        .listxattr = dir_listxattr,
        .open = dir_open,
        .read = dir_read,
        .opendir = dir_opendir,
        .entry = dir_entry,
        .close = dir_close,
        .free = dir_free,
    };
    struct directory *d = calloc(1, sizeof(*d));
    int r = -ENOMEM;

    if (d)
        d->root = calloc(1, sizeof(*d->root) + 1); /* its name is empty */
    if (d && d->root)
        r = fchdir(fd) < 0 ? -errno : 0;
    if (r < 0) {
        dir_free(d);
        return r;
    }
    *ret_tree = (struct tree){&ops, d};
    return 0;
}
