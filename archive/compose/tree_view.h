/*
 * A view: a part of an archive's tree, or members under other names.
 *
 * Patterns (--include, --exclude) are tried in their order; the first that matches an entry's
 * path decides, as in rsync. A directory that is excluded goes with all below it; in one that
 * is included, everything is shown that no pattern excludes. What no pattern matches, nor a
 * directory above it, is shown if the last pattern excludes, and hidden if it includes. Which
 * paths a pattern matches: selection_matches.
 *
 * A list (--files-from) has the names that are shown; see selection.h. A map (--map) has names
 * in the archive and names to show them under; see tree_view_private.h. Patterns apply to the
 * names in the archive that these two have. A name that the archive lacks is an error.
 *
 * A directory is shown, with its attributes, if it is named, matched, or has something in it
 * that is shown. Hard links among the entries shown are hard links in the view.
 *
 * Threads: a view never changes; any number may use it.
 */
#ifndef ONEPOT_TREE_VIEW_H
#define ONEPOT_TREE_VIEW_H

#include <stdbool.h>
#include <stddef.h>

#include "fault.h"
#include "recipe.h"
#include "tree.h"

struct view_pattern {
    const char *glob;
    bool includes;
};

struct view_options {
    const struct view_pattern *patterns;
    size_t pattern_count;
    const char *files_from; /* a file, "-" for standard input; NULL: all */
    bool files_from_nul;    /* NUL bytes separate the names; false: this is detected */
    const char *map;        /* as files_from. At most one of the two, -EINVAL */
    const char *list_name;  /* what messages call list or map; NULL: by its path */
    bool is_of_several;     /* archives: what one of them lacks is no error */
};

struct view;

/*
 * Read list and map; all is copied. *ret_file is the file that an error is about, or NULL.
 * Errors of reading, -EINVAL for a line that can't be right, -ENOMEM.
 */
int view_read(const struct view_options *options, struct fault *fault, const char **ret_file,
              struct view **ret_view);
void view_free(struct view *view); /* NULL is fine */

/* Add the view to the recipe of an index. */
void view_describe(const struct view *view, struct recipe *recipe);

/*
 * Add the entries that the view shows of an archive to a tree, which must be written before the
 * view is freed. -ENOENT: the archive lacks names of the list or map, or a pattern that
 * includes matches nothing; errors of tree_add and tree_put, -EUCLEAN. That two members would
 * be shown under one name is an error of tree_write.
 */
int view_add(const struct view *view, const struct index *index, struct tree *tree,
             struct fault *fault);

/*
 * Of several archives, from the indexes of what the view shows of each: -ENOENT if all of them
 * lack a name, or if a pattern that includes matches nothing in any. A name that patterns hide
 * is not missed; nor is a line of a map, if another one shows a member under the same name.
 */
int view_check_several(const struct view *view, const struct index *const *shown, size_t count,
                       struct fault *fault);

#endif
