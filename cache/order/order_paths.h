/*
 * The paths in a list of files, and where they lead. A list that people have was made where the
 * data lay before it was packed: its paths may begin with what led there
 * (/data/set/train/a.jpg, or the mount point of another job), or further down than the mount
 * does (a.jpg, and the archive has train/a.jpg). Which of these it is, is told by the first
 * lines.
 *
 * A path stands as it is, or between quotation marks, with \\ \" \n \r for these four: that is
 * how a name with a newline gets on one line. The end of a line may be that of Windows.
 */
#ifndef ONEPOT_ORDER_PATHS_H
#define ONEPOT_ORDER_PATHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"

/* A text by its lines, which end with NUL where there is one in it, else with a newline. */
struct order_text {
    const char *text;
    size_t len, at;
    char separator;
    uint64_t line; /* of the one that came last, counted from 1 */
};

void order_text_init(struct order_text *text, const char *bytes, size_t len);
/* The next one that is not empty. False: that was all. */
bool order_text_next(struct order_text *text, const char **ret_line, size_t *ret_len);

struct order_paths {
    const struct index *index;
    uint32_t root;
    uint32_t directory; /* they begin here, */
    const char *prefix; /* or, those that begin so, at the root behind it */
    size_t prefix_len;
};

/* Paths below `root`, in the way that fits most of the first lines of the text. */
void order_paths_find(struct order_paths *paths, const struct index *index, uint32_t root,
                      const struct order_text *text);

/* The entry that a line names. -ENOENT, -ENOTDIR, -EINVAL, -ENAMETOOLONG: none; -EUCLEAN. */
int order_paths_resolve(const struct order_paths *paths, const char *line, size_t len,
                        uint32_t *ret_position);

/* Does a path have to be quoted? */
bool order_path_is_odd(const char *path, size_t len);
/* Quoted, with the marks; `ret_quoted` has room for 2 * len + 2 bytes. How many it takes. */
size_t order_path_quote(const char *path, size_t len, char *ret_quoted);

#endif
