/*
 * The paths in a list of files, and the entries that they name. Such a list was often made
 * before the data was packed. So its paths may start with the directories that led to the data
 * then (/data/set/train/a.jpg, or the mount point of another job). Or they may start further
 * down than the mount does (a.jpg, where the archive has train/a.jpg). The first lines show
 * which case it is.
 *
 * A path is written as it is, or between quotation marks with the escapes \\ \" \n \r, so
 * that a name with a newline fits on one line. Lines may end as on Windows.
 */
#ifndef ONEPOT_LIST_PATHS_H
#define ONEPOT_LIST_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"

/* A text as lines. They end with NUL if there is one in the text, else with a newline. */
struct list_text {
    const char *text;
    size_t len, at;
    char separator;
    uint64_t line; /* of the line that came last, counted from 1 */
};

void list_text_init(struct list_text *text, const char *bytes, size_t len);
/* The next line that is not empty. False: there are no more. */
bool list_text_next(struct list_text *text, const char **ret_line, size_t *ret_len);

struct list_paths {
    const struct index *index;
    uint32_t root;
    uint32_t directory; /* where paths start, */
    const char *prefix; /* except those with this prefix: their rest starts at the root */
    size_t prefix_len;
};

/* Paths below `root`, read in the way that fits most of the first lines of the text. */
void list_paths_find(struct list_paths *paths, const struct index *index, uint32_t root,
                     const struct list_text *text);

/* The entry that a line names. -ENOENT, -ENOTDIR, -EINVAL, -ENAMETOOLONG: none; -EUCLEAN. */
int list_paths_resolve(const struct list_paths *paths, const char *line, size_t len,
                       uint32_t *ret_position);

/* Does a path have to be quoted? */
bool list_path_is_odd(const char *path, size_t len);
/* Quote it, marks included. `ret_quoted` has room for 2 * len + 2 bytes. Returns the length. */
size_t list_path_quote(const char *path, size_t len, char *ret_quoted);

#endif
