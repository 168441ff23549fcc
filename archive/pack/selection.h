/*
 * Selects what to pack from the sources: patterns that leave files out, names of a list, and
 * this process's part of the shards.
 *
 * Threads: selections and lists of names never change; any number may use them.
 */
#ifndef ONEPOT_SELECTION_H
#define ONEPOT_SELECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "file_id.h"
#include "input.h"
#include "output.h"
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
 * A vector of the names in a directory, without "." and "..", sorted as by memcmp.
 * selection_apply may sort them by what they are called in the archive, and finds names that
 * are alike.
 */
struct listing {
    struct folder_name *at;
    size_t count, capacity;
    VECTOR(char) text; /* of the names, if it is the listing's */
    size_t alike;      /* names that differ from the one before by normalization alone */
    const char *first_alike[2]; /* such a name, and the one before */
};

/*
 * Reads all names through a descriptor of the directory. Errors of readdir(3), -E2BIG for more
 * than `most`; names read before an error are in the listing all the same, so free it in any
 * case.
 */
int listing_read(int fd, size_t most, struct listing *listing);
/* The same of a directory in an archive, whose index has them sorted. */
int listing_read_index(const struct index *index, uint32_t position, struct listing *listing);
void listing_free(struct listing *listing); /* may be used again */

/*
 * The names from --files-from: which files of a directory to pack, in any order, millions of
 * them. Memory: the text and 8 bytes for each name; 8 more while the names are sorted.
 *
 * A name is a path relative to the directory. It may also begin with the directory's own
 * absolute path, so that `find DIR` of an absolute DIR can make the list. A name selects itself
 * alone, and the directories that lead to it come along. With a slash at its end it selects a
 * directory with everything below it.
 */
struct name_list;

/* Called for each name that can't be right, with a fault that has the name and why. */
typedef int name_list_report(void *ctx, const struct fault *what);

/*
 * Reads the list from a descriptor until its end. `nul`: NUL bytes separate the names.
 * Otherwise that is detected: if the list contains a NUL, NULs separate the names; if not, each
 * line is a name. `root` is the absolute path of the directory, or NULL. Errors: of text_read,
 * -E2BIG (over 4,294,967,000 names), and `report`'s.
 */
int name_list_read(int fd, bool nul, const char *root, name_list_report *report, void *ctx,
                   struct name_list **ret_list);
void name_list_free(struct name_list *list); /* NULL is fine */

uint64_t name_list_count(const struct name_list *list);

/*
 * Name `number` of the list, without the slash at its end; *ret_whole: it had one. Names are in
 * the order of an archive's members, depth first.
 */
const char *name_list_name(const struct name_list *list, size_t number, bool *ret_whole);

/*
 * The listed names in a directory. `number` is the number of the directory's name in a listing
 * (0 for the root), and `path_len` the length of its path. A name with listed names below it is
 * DT_DIR, others are DT_UNKNOWN. Returns 1 and no listing if everything in the directory is
 * packed. -ENOMEM.
 */
int name_list_children(const struct name_list *list, uint32_t number, size_t path_len,
                       struct listing *ret_listing);

struct selection {
    const char *const *excludes; /* see selection_matches */
    size_t exclude_count;
    const struct name_list *names; /* NULL: all */
    bool dereference;              /* symbolic links are what they lead to */
    bool is_nfc;                   /* members are called as selection_compose has it */
    const struct input *kept;      /* see struct pack_options; NULL: nothing */
    int64_t kept_since;

    uint32_t shards; /* 0 or 1: no shards */
    uint32_t rank, world;

    struct file_id output_folder;      /* where archives are written */
    const struct shard_names *outputs; /* their names in it; NULL: no shards */
};

/*
 * Does the pattern match a path within the source? Patterns work as in fnmatch(3). A pattern
 * without a slash is matched with the last component. A pattern with a slash, not counting a
 * leading one, is matched with the whole path, and '*' also matches slashes. A slash at the end
 * restricts the pattern to directories.
 */
bool selection_matches(const char *pattern, const char *path, bool is_folder);

/* Is the file left out? */
bool selection_excludes(const struct selection *selection, const char *path, bool is_folder);

/*
 * The path with its names in Unicode NFC: 1, and the caller frees it; 0: they are that already,
 * and *ret_path is not set; -ENOMEM. Names stay that are not valid UTF-8 or would become longer
 * than INDEX_NAME_MAX; without libutf8proc all do.
 */
int selection_compose(const char *path, char **ret_path);

/*
 * Tells of `count` names that differ from one beside them by normalization alone, the first of
 * which has this path: as an error if they become one name, else as a note. Returns -EEXIST.
 */
int selection_alike_fault(const struct selection *selection, uint64_t count, const char *path,
                          const char *other, struct fault *fault);

/*
 * The shard of a path in the archive: the path's XXH3-64 modulo the number of shards. 0 without
 * shards.
 */
uint32_t selection_shard(const struct selection *selection, const char *path, size_t len);

/* Does this process write the shard? */
bool selection_has(const struct selection *selection, uint32_t shard);

/* For fstatat(2), and for open(2): follow a symbolic link? */
int selection_stat_flags(const struct selection *selection);
int selection_open_flags(const struct selection *selection);

/* A directory from whose listing is selected. */
struct selection_folder {
    const char *path; /* in the archive */
    size_t path_len;
    size_t root_len;   /* length of the part of the path that names the source */
    int fd;            /* for entries of unknown type, if that matters; -1: none */
    struct file_id id; /* all zero: it has none */
};

/*
 * Drops from a directory's listing what this process does not pack: excluded files, files of
 * other processes' shards, and the shards of this run. Finds names that are alike among the
 * files of all processes. Returns how many shards of this run were dropped; -ENOMEM.
 */
int selection_apply(const struct selection *selection, const struct selection_folder *folder,
                    struct listing *listing);

#endif
