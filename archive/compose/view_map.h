/*
 * A map: lines of a name in the archive, a tab, and the name to show it under.
 *
 * Names are bytes. In either of them "\t", "\n" and "\\" mean a tab, a newline and a backslash;
 * any other backslash is an error. Empty lines do not count, and there are no comments, since a
 * name may begin with any character. "./", double slashes and slashes at either end are
 * dropped; a name with "..", and an empty name, are errors. A directory is shown with all that
 * is in it. A member may be shown under several names.
 */
#ifndef ONEPOT_VIEW_MAP_H
#define ONEPOT_VIEW_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"
#include "text.h"
#include "vector.h"

struct view_map_line {
    size_t from, to; /* offsets in the text, each ends with a NUL */
    uint64_t number; /* from 1 */
};

/* Empty when all zero. */
struct view_map {
    struct text text;
    VECTOR(struct view_map_line) lines;
};

/*
 * Parse the text, which must end with a newline and is changed. -EINVAL: the fault names the
 * line; -ENOMEM.
 */
int view_map_parse(struct view_map *map, struct fault *fault);
void view_map_free(struct view_map *map);

#endif
