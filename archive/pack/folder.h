/*
 * Folders of a source tree while it is packed: an open directory, its names in byte
 * order, and where in the tree it is.
 *
 * Everything is found by descriptor and name, never by path: paths may be longer than
 * PATH_MAX, and a folder that is renamed or replaced by a symbolic link meanwhile can't
 * lead out of the tree. A deep tree has more folders on the way down than a process
 * has descriptors: then the oldest are closed, and opened again when they are wanted;
 * if they are other folders by then, that is -ESTALE.
 *
 * Threads: functions that take the set are called by one thread at a time (the caller
 * has a lock); the others may run in parallel.
 */
#ifndef ONEPOT_FOLDER_H
#define ONEPOT_FOLDER_H

#include <stddef.h>
#include <stdint.h>

struct folder_name {
    char *name;
    unsigned char type; /* DT_*; DT_UNKNOWN where the filesystem does not tell */
    uint32_t number;    /* in an archive: its position; of a list of names: its place there */
};

/* The number of a name that is in no list: everything below it is wanted. */
#define FOLDER_NAME_ALL UINT32_MAX

/* The names in a directory, but for "." and "..", sorted as memcmp does. */
struct listing {
    char *text;
    struct folder_name *names;
    size_t count;
};

/*
 * Read all names through a descriptor of the directory. Errors of readdir(3); what was
 * read before one is in the listing all the same: free it in any case.
 */
int listing_read(int fd, struct listing *listing);
void listing_free(struct listing *listing);

/*
 * A listing name by name: all zero is an empty one. Either finish it, which sorts the names
 * if they are not, or free it.
 */
struct listing_maker {
    char *text; /* moves while it grows: names are offsets until the end */
    size_t text_len, text_capacity;
    struct folder_name *names;
    size_t *offsets;
    size_t count, capacity;
};

/* `name` is copied. -ENOMEM. */
int listing_maker_add(struct listing_maker *maker, const char *name, size_t len,
                      unsigned char type, uint32_t number);
/* What was added last; its name is not there yet. */
struct folder_name *listing_maker_last(struct listing_maker *maker);
void listing_maker_finish(struct listing_maker *maker, struct listing *ret_listing);
void listing_maker_free(struct listing_maker *maker);

struct folder {
    struct folder *parent;        /* NULL: a root */
    struct folder *older, *newer; /* among the open ones */
    struct listing listing;
    const struct input *input; /* it lies in an archive; NULL: in a directory. For the caller */
    size_t root_len;           /* of its path so much names the source. For the caller */
    void *kept;                /* for the caller, and freed by the next one */
    void (*free_kept)(void *kept);
    size_t next; /* the name to be packed next; for the caller */
    unsigned refs;
    unsigned pins;
    int fd; /* -1: closed for the time being */
    uint64_t dev;
    uint64_t ino;
    size_t name_len;
    char name[]; /* as it is called in the archive; "" adds nothing to paths */
};

struct folder_set {
    struct folder *oldest, *newest;
    unsigned open;
    unsigned most; /* more than so many are closed again */
};

/*
 * A folder with one reference. Takes `fd` (-1: one that has none, and never will) and
 * the listing, also on failure. A root's descriptor stays open. -ENOMEM.
 */
int folder_new(struct folder_set *set, struct folder *parent, const char *name, size_t name_len,
               int fd, uint64_t dev, uint64_t ino, struct listing *listing,
               struct folder **ret_folder);
void folder_ref(struct folder *folder);
void folder_unref(struct folder_set *set, struct folder *folder); /* NULL is fine */

/* Its descriptor, which stays open until it is unpinned. -ESTALE, or errors of openat. */
int folder_pin(struct folder_set *set, struct folder *folder, int *ret_fd);
void folder_unpin(struct folder_set *set, struct folder *folder);

/* The path of `name` in the folder within the archive, terminated. Caller frees. */
int folder_path(const struct folder *folder, const char *name, char **ret_path,
                size_t *ret_len);

#endif
