/*
 * Selects what to pack from the sources: patterns that leave files out, names of a list, and
 * this process's part of the shards.
 *
 * Threads: it never changes; any number may use it.
 */
#ifndef ONEPOT_SELECTION_H
#define ONEPOT_SELECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "folder.h"
#include "input.h"
#include "name_list.h"
#include "shard_exchange.h"

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
