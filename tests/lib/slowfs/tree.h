/*
 * The tree that slowfs shows: an existing directory (passthrough.c), or any number of files
 * that are made up on request (synthetic.c). Nothing here knows of latency or of FUSE replies.
 *
 * Functions return 0, or a number of bytes, or -errno. One thread calls them.
 */
#ifndef ONEPOT_BENCH_TREE_H
#define ONEPOT_BENCH_TREE_H

#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

enum { TREE_ROOT = 1 };

/* An open file or directory; a tree uses what it needs of it. */
struct tree_handle {
    uint64_t node;
    uint64_t size; /* of a file when it was opened */
    int fd;        /* -1: none */
    DIR *dir;
    long at; /* the directory's present position */
};

struct tree_entry {
    const char *name; /* good until the next call */
    struct stat st;   /* st_ino and the type in st_mode */
    off_t next;       /* the position after this entry */
};

struct tree_ops {
    /* Finds a name; the caller forgets the node as often as it was found. */
    int (*lookup)(void *tree, uint64_t parent, const char *name, uint64_t *ret_node,
                  struct stat *ret_st);
    void (*forget)(void *tree, uint64_t node, uint64_t times);
    int (*getattr)(void *tree, uint64_t node, struct stat *ret_st);
    /* As readlink(2): no terminator. */
    ssize_t (*readlink)(void *tree, uint64_t node, char *buf, size_t room);
    /* As lgetxattr(2) and llistxattr(2): room 0 asks for the size. */
    ssize_t (*getxattr)(void *tree, uint64_t node, const char *name, char *buf, size_t room);
    ssize_t (*listxattr)(void *tree, uint64_t node, char *buf, size_t room);
    int (*open)(void *tree, uint64_t node, struct tree_handle *ret_handle);
    ssize_t (*read)(void *tree, struct tree_handle *h, char *buf, size_t room, uint64_t at);
    int (*opendir)(void *tree, uint64_t node, struct tree_handle *ret_handle);
    /* The entry at a position (0: the first). 1, or 0 at the end. */
    int (*entry)(void *tree, struct tree_handle *h, off_t at, struct tree_entry *ret_entry);
    void (*close)(void *tree, struct tree_handle *h); /* of either kind */
    void (*free)(void *tree);
};

struct tree {
    const struct tree_ops *ops;
    void *self;
};

/* An existing directory; the process's working directory is in it from then on. */
int tree_of_directory(int fd, struct tree *ret_tree);

/* FILES files of BYTES bytes each, a thousand to a directory. */
int tree_synthetic(uint64_t files, uint64_t bytes, struct tree *ret_tree);

#endif
