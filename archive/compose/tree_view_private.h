/*
 * The parts of tree_view.c that its suite and the fuzzer of maps test alone.
 */
#ifndef ONEPOT_TREE_VIEW_PRIVATE_H
#define ONEPOT_TREE_VIEW_PRIVATE_H

#include "map.h"
#include "selection.h"
#include "text.h"
#include "tree_view.h"
#include "vector.h"

/*
 * A map: lines of a name in the archive, a tab, and the name to show it under.
 *
 * Names are bytes. In either of them "\t", "\n" and "\\" mean a tab, a newline and a backslash;
 * any other backslash is an error. Empty lines do not count, and there are no comments, since a
 * name may begin with any character. "./", double slashes and slashes at either end are
 * dropped; a name with "..", and an empty name, are errors. A directory is shown with all that
 * is in it. A member may be shown under several names.
 */
struct view_map_line {
    size_t from, to; /* offsets in the text, each ends with a NUL */
    uint64_t number; /* from 1 */
};

struct view {
    struct view_pattern *patterns; /* with text of their own */
    size_t pattern_count;
    bool shows_rest;    /* what no pattern matches */
    bool is_of_several; /* see view_options */
    struct name_list *names;
    bool has_map;
    struct text text; /* of a map */
    VECTOR(struct view_map_line) lines;
    char *file; /* of list or map, for messages */
    /*
     * Of several archives: names to their numbers, by hashes. Of equal ones the first, which is
     * followed by the numbers of the others; 0: that was all. NULL: no table.
     */
    struct map table;
    uint32_t *next_equal;
};

/*
 * Parse the view's text as a map. It must end with a newline, and is changed. -EINVAL: the
 * fault names the line; -ENOMEM.
 */
int view_parse_map(struct view *view, struct fault *fault);

/* The verdict of patterns on an entry. */
enum view_verdict {
    VIEW_NOTHING, /* a directory is shown only if something below it is */
    VIEW_SHOWN,
    VIEW_HIDDEN, /* with all below it */
};

/* The patterns, on the way through one archive. */
struct view_filter {
    const struct view *view;
    VECTOR(char) folder; /* the last one asked about */
    enum view_verdict folder_verdict;
};

/* An enum view_verdict on an entry, or -ENOMEM. `path` ends with a NUL. */
int view_choose(struct view_filter *filter, const char *path, size_t len, bool is_folder);

#endif
