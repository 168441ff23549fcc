/*
 * The parts of tree_view.c that its suite tests alone.
 */
#ifndef ONEPOT_TREE_VIEW_PRIVATE_H
#define ONEPOT_TREE_VIEW_PRIVATE_H

#include "selection.h"
#include "tree.h"
#include "tree_view.h"
#include "view_map.h"

struct view {
    struct view_pattern *patterns; /* with text of their own */
    size_t pattern_count;
    bool shows_rest;    /* what no pattern matches */
    bool is_of_several; /* see view_options */
    struct name_list *names;
    bool has_map;
    struct view_map map;
    char *file; /* of list or map, for messages */
    /*
     * Set by a picker, whose view has all of the above: the numbers of the names picked,
     * ascending.
     */
    bool is_picked;
    uint32_t *picked;
    size_t picked_count;
};

/* How many names the list or map has. */
static inline size_t view_name_count(const struct view *view)
{
    return view->has_map ? view->map.lines.count : name_list_count(view->names);
}

/* A name of the list or map, as the archive has it. */
static inline const char *view_name(const struct view *view, size_t i)
{
    bool ignored;
    return view->has_map ? view->map.text.at + view->map.lines.at[i].from
                         : name_list_name(view->names, i, &ignored);
}

/*
 * The patterns' verdict on a path. It also holds for everything below, unless a pattern says
 * otherwise there.
 */
enum view_verdict { VIEW_NOTHING, VIEW_SHOWN, VIEW_HIDDEN };

/* The patterns, on the way through one archive. */
struct view_filter {
    const struct view *view;
    VECTOR(char) folder; /* the last one asked about */
    enum view_verdict folder_verdict;
};

enum view_choice {
    VIEW_LEAVE_OUT, /* with all below it */
    VIEW_TAKE,
    VIEW_IF_NEEDED, /* a directory: only if something below it is shown */
};

/* An enum view_choice for an entry, or -ENOMEM. `path` ends with a NUL. */
int view_choose(struct view_filter *filter, const char *path, size_t len, uint32_t mode);

/*
 * Is an entry shown that a list or map names? 1, 0, -ENOMEM. A directory is if it is not
 * excluded, so that something in it may be shown. `path` ends with a NUL.
 */
int view_filter_shows_named(struct view_filter *filter, const char *path, size_t len,
                            bool is_folder);

#endif
