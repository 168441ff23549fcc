/*
 * An order from a text that a person or a program wrote, perhaps for another version of the
 * data (--order).
 */
#ifndef ONEPOT_READ_LIST_H
#define ONEPOT_READ_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "index.h"
#include "known_reads.h"

struct read_list_lines {
    uint64_t used, left_out;
    struct fault first; /* why the first such line was left out */
};

/*
 * The list in the text of an order file: one file a line, with lines and paths as
 * below. A line is the path of a file below `root`. But where the first line is a
 * decimal number and no name in `root`, each line is the number of a file, counted from 0, in
 * FOLDER_CLASSES of `root` (FOLDER_FLAT where it has no directories). Only images have numbers
 * if there are any, else all files do.
 *
 * Lines that name no file are left out. -EINVAL: they outnumber the others; the fault reports
 * the first of them. -E2BIG: more than `most` lines.
 */
int read_list_parse(const struct index *index, uint32_t root, const char *text, size_t len,
                    uint64_t most, struct fault *fault, struct read_list_lines *ret_lines,
                    struct known_reads **ret_order);

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

/* A text as lines. They end with NUL if there is one in the text, else with a newline. */
struct list_text {
    const char *text;
    size_t len, at;
    char separator;
    uint64_t line; /* of the line that came last, counted from 1 */
};

struct list_paths {
    const struct index *index;
    uint32_t root;
    uint32_t directory; /* where paths start, */
    const char *prefix; /* except those with this prefix: their rest starts at the root */
    size_t prefix_len;
};

/* The entry that a line names. -ENOENT, -ENOTDIR, -EINVAL, -ENAMETOOLONG: none; -EUCLEAN. */
int list_paths_resolve(const struct list_paths *paths, const char *line, size_t len,
                       uint32_t *ret_position);

/* Does a path have to be quoted? */
bool list_path_is_odd(const char *path, size_t len);
/* Quote it, marks included. `ret_quoted` has room for 2 * len + 2 bytes. Returns the length. */
size_t list_path_quote(const char *path, size_t len, char *ret_quoted);

#endif
