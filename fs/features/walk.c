/*
 * Listing ahead: once a reader is seen on a walk through the tree (tree_walk.h), a process of
 * our own (helper.h) lists the next directories.
 */
#include <errno.h>
#include <stdlib.h>

#include "helper.h"
#include "tree_walk.h"

#define ENTRIES_LEAST 4096u /* entries in an archive that make this worthwhile */

struct walk {
    struct helper helper;
    struct tree_walk tree;
};

static enum mount_fetch walk_work(struct helper *h, void *ctx)
{
    const struct walk *k = (struct walk *)(void *)h;

    return tree_walk_run(&k->tree, &helper_fetcher, ctx);
}

static void *walk_run(void *arg)
{
    struct walk *k = arg;
    enum mount_fetch outcome = MOUNT_FETCH_DONE;

    while (outcome != MOUNT_FETCH_FAILED && outcome != MOUNT_FETCH_FULL &&
           helper_sleep(&k->helper)) {
        outcome = helper_run(&k->helper, HELPER_WALK_MAX, walk_work);
        tree_walk_ended(&k->tree, outcome);
    }
    return NULL;
}

static void walk_before_listing(void *state, const struct request *rq, uint32_t directory,
                                bool begins, bool *attributes)
{
    struct walk *k = state;

    if (!*attributes)
        tree_walk_saw_names_only(&k->tree);
    if (!rq->own && begins && tree_walk_saw_listing(&k->tree, directory) &&
        k->helper.session->loop.running_max > 1)
        helper_wake(&k->helper);
}

static int walk_start(struct session *s, void **ret_state)
{
    struct walk *k;

    if (!s->config.readahead_bytes || !helper_is_possible(&s->config) ||
        index_info(s->index)->entries < ENTRIES_LEAST)
        return 0;
    k = calloc(1, sizeof(*k));
    if (!k)
        return -ENOMEM;
    *ret_state = k;
    int r = helper_init(&k->helper, s, HELPER_WALK, HELPER_WALK_MAX,
                        sizeof(struct tree_walk_trail));
    if (r < 0)
        return r;
    tree_walk_init(&k->tree, s->index, s->config.root, k->helper.shared);
    return helper_start(&k->helper, walk_run);
}

const struct feature walk_feature = {
    .start = walk_start,
    .before_listing = walk_before_listing,
    .answer = helper_answer,
    .end = helper_end,
    .join = helper_join,
    .free = helper_free,
};
