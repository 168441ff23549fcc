/*
 * A tree that nobody stored: folders dNNNNNNN of a thousand files fNNNNNNNNN each. A node's
 * number tells what it is (the root, then the folders, then the files), and everything about
 * a file follows from its number: millions of files cost neither disk nor memory here.
 *
 * Contents are incompressible and differ from file to file. Times have nanoseconds, as those
 * of real files.
 */
#include "tree.h"
#include "../../../bench/mount/random.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILES_PER_FOLDER = 1000, FIRST_FOLDER = TREE_ROOT + 1 };

struct synthetic {
    uint64_t files, folders, bytes;
    char name[32]; /* of the entry last given */
};

static bool is_folder(const struct synthetic *s, uint64_t node)
{
    return node < FIRST_FOLDER + s->folders;
}

static uint64_t first_file(const struct synthetic *s)
{
    return FIRST_FOLDER + s->folders;
}

/* The children of a folder are numbered in a row: the first of them, and how many. */
static uint64_t children_of(const struct synthetic *s, uint64_t node, uint64_t *ret_first)
{
    uint64_t begin;

    if (node == TREE_ROOT) {
        *ret_first = FIRST_FOLDER;
        return s->folders;
    }
    begin = (node - FIRST_FOLDER) * FILES_PER_FOLDER;
    *ret_first = first_file(s) + begin;
    return s->files - begin < FILES_PER_FOLDER ? s->files - begin : FILES_PER_FOLDER;
}

static void name_of(const struct synthetic *s, uint64_t node, char name[32])
{
    if (is_folder(s, node))
        snprintf(name, 32, "d%07" PRIu64, node - FIRST_FOLDER);
    else
        snprintf(name, 32, "f%09" PRIu64, node - first_file(s));
}

static int syn_getattr(void *tree, uint64_t node, struct stat *ret_st)
{
    const struct synthetic *s = tree;
    bool folder = is_folder(s, node);
    struct timespec t = {.tv_sec = (time_t)(1600000000 + node % 10000000),
                         .tv_nsec = (long)(node * 7919 % 1000000000)};

    *ret_st = (struct stat){
        .st_ino = node,
        .st_mode = folder ? S_IFDIR | 0755 : S_IFREG | 0644,
        .st_nlink = folder ? 2 : 1,
        .st_uid = 1000,
        .st_gid = 1000,
        .st_size = folder ? 4096 : (off_t)s->bytes,
        .st_blksize = 4096,
        .st_blocks = folder ? 8 : (blkcnt_t)((s->bytes + 511) / 512),
        .st_atim = t,
        .st_mtim = t,
        .st_ctim = t,
    };
    return 0;
}

static int syn_lookup(void *tree, uint64_t parent, const char *name, uint64_t *ret_node,
                      struct stat *ret_st)
{
    const struct synthetic *s = tree;
    uint64_t first, count = children_of(s, parent, &first), node;
    char right[32];

    if (name[0] != 'd' && name[0] != 'f')
        return -ENOENT;
    node = strtoull(name + 1, NULL, 10);
    node += name[0] == 'd' ? FIRST_FOLDER : first_file(s);
    if (node < first || node - first >= count)
        return -ENOENT;
    name_of(s, node, right);
    if (strcmp(right, name) != 0)
        return -ENOENT;
    *ret_node = node;
    return syn_getattr(tree, node, ret_st);
}

static void syn_forget(void *tree, uint64_t node, uint64_t times)
{
    (void)tree, (void)node, (void)times;
}

static ssize_t syn_readlink(void *tree, uint64_t node, char *buf, size_t room)
{
    (void)tree, (void)node, (void)buf, (void)room;
    return -EINVAL;
}

static ssize_t syn_getxattr(void *tree, uint64_t node, const char *name, char *buf, size_t room)
{
    (void)tree, (void)node, (void)name, (void)buf, (void)room;
    return -ENODATA;
}

static ssize_t syn_listxattr(void *tree, uint64_t node, char *buf, size_t room)
{
    (void)tree, (void)node, (void)buf, (void)room;
    return 0;
}

static int syn_open(void *tree, uint64_t node, struct tree_handle *ret_handle)
{
    const struct synthetic *s = tree;

    *ret_handle = (struct tree_handle){.node = node, .size = s->bytes, .fd = -1};
    return 0;
}

static ssize_t syn_read(void *tree, struct tree_handle *h, char *buf, size_t room, uint64_t at)
{
    (void)tree;
    if (at >= h->size)
        return 0;
    room = h->size - at < room ? (size_t)(h->size - at) : room;
    for (size_t done = 0; done < room;) {
        uint64_t block = (at + done) / 8, skip = (at + done) % 8, word;
        struct random_stream r = random_stream_of(h->node, block);
        size_t len = 8 - skip < room - done ? (size_t)(8 - skip) : room - done;

        word = random_next(&r);
        memcpy(buf + done, (char *)&word + skip, len);
        done += len;
    }
    return (ssize_t)room;
}

static int syn_opendir(void *tree, uint64_t node, struct tree_handle *ret_handle)
{
    (void)tree;
    *ret_handle = (struct tree_handle){.node = node, .fd = -1};
    return 0;
}

static int syn_entry(void *tree, struct tree_handle *h, off_t at, struct tree_entry *ret_entry)
{
    struct synthetic *s = tree;
    uint64_t first, count = children_of(s, h->node, &first);

    if (at < 0 || (uint64_t)at >= count)
        return 0;
    name_of(s, first + (uint64_t)at, s->name);
    *ret_entry = (struct tree_entry){.name = s->name, .next = at + 1};
    syn_getattr(s, first + (uint64_t)at, &ret_entry->st);
    return 1;
}

static void syn_close(void *tree, struct tree_handle *h)
{
    (void)tree, (void)h;
}

int tree_synthetic(uint64_t files, uint64_t bytes, struct tree *ret_tree)
{
    static const struct tree_ops ops = {
        .lookup = syn_lookup,
        .forget = syn_forget,
        .getattr = syn_getattr,
        .readlink = syn_readlink,
        .getxattr = syn_getxattr,
        .listxattr = syn_listxattr,
        .open = syn_open,
        .read = syn_read,
        .opendir = syn_opendir,
        .entry = syn_entry,
        .close = syn_close,
        .free = free,
    };
    struct synthetic *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->files = files;
    s->bytes = bytes;
    s->folders = (files + FILES_PER_FOLDER - 1) / FILES_PER_FOLDER;
    *ret_tree = (struct tree){&ops, s};
    return 0;
}
