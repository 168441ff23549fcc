/*
 * Folders of a source tree while it is packed: an open directory, its names in byte order, and
 * its place in the tree.
 *
 * Everything is found by descriptor and name, never by path: paths may be longer than PATH_MAX,
 * and a folder that is renamed or replaced by a symbolic link meanwhile can't lead out of the
 * tree. In a deep tree, more folders are on the way down than a process has descriptors. Then
 * the oldest are closed and opened again when they are needed; -ESTALE if they are other
 * folders by then.
 *
 * Threads: functions that take the set are called by one thread at a time (the caller has a
 * lock); the others may run in parallel.
 */
#ifndef ONEPOT_FOLDER_H
#define ONEPOT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "file_id.h"
#include "vector.h"

struct folder_name {
    char *name;
    unsigned char type; /* DT_*; DT_UNKNOWN if the filesystem does not report it */
    uint32_t
        number; /* in an archive: the inode's position; in a list of names: the place there */
};

/* The number of a name that is in no list: everything below it is packed. */
#define FOLDER_NAME_ALL UINT32_MAX

/*
 * The names in a directory, without "." and "..", sorted as by memcmp. selection_apply may sort
 * them by what they are called in the archive, and finds names that are alike.
 */
struct listing {
    char *text;
    struct folder_name *names;
    size_t count;
    size_t alike; /* names that differ from the one before by normalization alone */
    const char *first_alike[2]; /* such a name, and the one before */
};

/*
 * Reads all names through a descriptor of the directory. Errors of readdir(3); names read
 * before an error are in the listing all the same, so free it in any case.
 */
int listing_read(int fd, struct listing *listing);
void listing_free(struct listing *listing);

/*
 * Builds a listing name by name. All zero: empty. Either finish it, which sorts the names if
 * necessary, or free it. The names' texts are set in the end.
 */
struct listing_maker {
    VECTOR(char) text;
    VECTOR(struct folder_name) names;
};

/* `name` is copied. -ENOMEM. */
int listing_maker_add(struct listing_maker *maker, const char *name, size_t len,
                      unsigned char type, uint32_t number);
void listing_maker_finish(struct listing_maker *maker, struct listing *ret_listing);
void listing_maker_free(struct listing_maker *maker);

struct folder {
    struct folder *parent;        /* NULL: a root */
    struct folder *older, *newer; /* among the open ones */
    struct listing listing;
    const struct input
        *input;      /* the archive it lies in; NULL: in a directory. For the caller */
    size_t root_len; /* length of the part of its path that names the source. For the caller */
    struct pending_folder *pending; /* of the shards that it may go to */
    size_t next;                    /* the name to be packed next. For the caller */
    bool is_as_kept;                /* see struct gather_from. For the caller */
    unsigned refs;
    unsigned pins;
    int fd; /* -1: closed for now */
    struct file_id id;
    size_t name_len;
    char name[]; /* its name in the archive; "" adds nothing to paths */
};

struct folder_set {
    struct folder *oldest, *newest;
    unsigned open;
    unsigned most; /* any more are closed again */
    bool follows;  /* a folder's name may be a symbolic link to it */
};

/*
 * Makes a folder with one reference. Takes `fd` (-1: the folder never has one) and the listing,
 * also on failure. A root's descriptor stays open. -ENOMEM.
 */
int folder_new(struct folder_set *set, struct folder *parent, const char *name, size_t name_len,
               int fd, struct file_id id, struct listing *listing, struct folder **ret_folder);
void folder_unref(struct folder_set *set, struct folder *folder); /* NULL is fine */

/* The path of `name` in this folder, within the archive, terminated. The caller frees it. */
int folder_path(const struct folder *folder, const char *name, char **ret_path,
                size_t *ret_len);

#endif
