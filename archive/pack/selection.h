/*
 * What of the sources is packed: patterns that leave files out, names of a list, and the
 * share that shards and ranks give to this process.
 *
 * Threads: it never changes; any number may ask.
 */
#ifndef ONEPOT_SELECTION_H
#define ONEPOT_SELECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "folder.h"
#include "name_list.h"
#include "shard_name.h"

struct selection {
    const char *const *excludes; /* see selection_excludes */
    size_t exclude_count;
    const struct name_list *names; /* NULL: all */

    uint32_t shards; /* 0 or 1: no shards */
    uint32_t rank, world;

    /* The folder where shards are written, and their names in it. NULL: no shards. */
    uint64_t output_dev, output_ino;
    const struct shard_names *outputs;
};

/*
 * Is the file left out? `path` is its path within the source. A pattern is that of
 * fnmatch(3). Without a slash it is matched with the last component. With one, a leading
 * one not counted, it is matched with the whole path, and '*' matches slashes too. With a
 * slash at its end it speaks of directories alone.
 */
bool selection_excludes(const struct selection *selection, const char *path, bool is_folder);

/* The shard of a path in the archive: its XXH3-64 modulo their number. 0 without shards. */
uint32_t selection_shard(const struct selection *selection, const char *path, size_t len);

/* Is the shard written by this process? */
bool selection_has(const struct selection *selection, uint32_t shard);

/* A directory whose listing is chosen from. */
struct selection_folder {
    const char *path; /* in the archive */
    size_t path_len;
    size_t root_len;   /* of it so much names the source */
    int fd;            /* asked about entries of unknown type, where that matters; -1: none */
    uint64_t dev, ino; /* 0 if it has none */
};

/*
 * Drop from the listing of a directory what is not packed by this process: what is
 * excluded, files of other processes' shards, and all shards of this run themselves; how many
 * of these is returned. -ENOMEM.
 */
int selection_apply(const struct selection *selection, const struct selection_folder *folder,
                    struct listing *listing);

#endif
