/*
 * The kernel's part of a listing, an inode and a name for each entry, costs ten times ours, and
 * the listing process does all of it. So another process lists the next directories on another
 * CPU, and the reader finds names and attributes there.
 *
 * A reader's hits in the kernel's cache are not seen here. So one directory in four is left for
 * the reader to list: that shows where it is and that it continues, and is about the part that
 * it has time for. A reader that overtakes us would list what we list as well, and gets one in
 * three. Listing stays at most AHEAD_DIRECTORIES in front of the reader. It ends when the
 * reader leaves the path or rests; after that, a walk must be twice as long to be recognised.
 */
#include "chooser.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "numbers.h"

#define STEPS_FIRST 4u        /* directories in walk order before it counts as a walk */
#define STEPS_MOST 1024u      /* the same, after walks that proved false */
#define LEFT_FOR_READER 4u    /* one directory in so many is left, */
#define LEFT_FOR_FAST 3u      /* and for a reader that has overtaken us */
#define AHEAD_DIRECTORIES 32u /* a power of two */
#define AHEAD_ENTRIES (16u << 10)
#define BATCH_ENTRIES 1024u /* to list at once; the reader may overtake meanwhile */
#define BATCH_DIRECTORIES 4u
#define DEPTH_MOST 64u
#define GAP_MOST 64u /* entries from a directory to the next one beside it */
#define REST_NS UINT64_C(300000000)

struct tree_walk {
    const struct ahead_options *options;
    uint32_t at;               /* the directory that a reader listed last */
    uint64_t stepped_ns;       /* when it did */
    uint64_t last_ns;          /* of a reader's request that was seen */
    uint32_t in_order, wanted; /* steps: seen in a row, and needed to begin */
    bool runs, moved;          /* moved: `at` has changed since it was looked for on the path */
    bool fast;                 /* the reader has overtaken us */
    bool busy;                 /* something is being listed */
    bool full;                 /* listings carry no more attributes, which is not worth it */
    /* The path: its directory n is at n modulo the size. The reader is at `reader`. */
    uint32_t way[AHEAD_DIRECTORIES], entries[AHEAD_DIRECTORIES];
    uint32_t reader, end;
    uint32_t ahead;      /* entries listed in front of the reader */
    uint32_t from, left; /* entries to list yet of the path's last directory */
};

static int tree_walk_make(const struct ahead_options *options, void **ret_chooser)
{
    struct tree_walk *w = calloc(1, sizeof(*w));

    if (!w)
        return -ENOMEM;
    w->options = options;
    w->at = options->root;
    w->wanted = STEPS_FIRST;
    *ret_chooser = w;
    return 0;
}

/* ---- the order of a walk ---- */

static bool is_directory(const struct index *index, uint32_t position)
{
    struct node node;

    return index_node(index, position, &node) == 0 && S_ISDIR(node.mode);
}

/* The first directory among entries [from, to). */
static bool first_directory(const struct index *index, uint32_t from, uint32_t to,
                            uint32_t *ret_directory)
{
    while (from < to && !is_directory(index, from))
        from++;
    *ret_directory = from;
    return from < to;
}

/* The directory that a walk reaches after this one. False at the walk's end. */
static bool tree_walk_next(const struct tree_walk *w, uint32_t directory, uint32_t *ret_next)
{
    uint32_t first, count, parent;

    if (index_children(w->options->index, directory, &first, &count) == 0 &&
        first_directory(w->options->index, first, first + count, ret_next))
        return true;
    for (unsigned i = 0; i < DEPTH_MOST && directory != w->options->root; i++) {
        if (index_parent(w->options->index, directory, &parent) < 0 ||
            index_children(w->options->index, parent, &first, &count) < 0 || directory < first)
            return false;
        if (first_directory(w->options->index, directory + 1, first + count, ret_next))
            return true;
        directory = parent;
    }
    return false;
}

/*
 * Does `to` come soon after `from`? It is a child of `from`, or one of the next few of a
 * directory that `from` lies in. What lies between is not looked at.
 */
static bool tree_walk_is_on_the_way(const struct tree_walk *w, uint32_t from, uint32_t to)
{
    uint32_t parent, below = 0;

    if (index_parent(w->options->index, to, &parent) < 0)
        return false;
    for (unsigned i = 0; i < DEPTH_MOST; i++) {
        if (from == parent)
            return to > below && (below == 0 || to - below <= GAP_MOST);
        below = from;
        if (from == w->options->root || index_parent(w->options->index, from, &from) < 0)
            return false;
    }
    return false;
}

/* ---- where the reader is ---- */

static void tree_walk_begin_way(struct tree_walk *w)
{
    w->way[0] = w->at;
    w->entries[0] = 0;
    w->reader = w->ahead = w->left = 0;
    w->end = 1;
    w->moved = false;
}

static void tree_walk_end(struct tree_walk *w, bool was_false)
{
    if (was_false && w->wanted < STEPS_MOST)
        w->wanted *= 2;
    w->in_order = 0;
    w->runs = w->fast = false;
}

static bool tree_walk_observe(void *chooser, const struct observation *o, bool expected)
{
    struct tree_walk *w = chooser;
    uint32_t first, count;

    if (o->own)
        return expected;
    w->last_ns = o->time_ns;
    if (o->kind != OBSERVED_LISTING)
        return expected;
    if (o->names_only)
        w->full = true;
    if (index_children(w->options->index, o->position, &first, &count) < 0 ||
        o->offset != first)
        return expected; /* it goes on with a directory */
    w->in_order = tree_walk_is_on_the_way(w, w->at, o->position) ? w->in_order + 1 : 0;
    w->at = o->position;
    w->moved = true;
    w->stepped_ns = o->time_ns;
    if (!w->runs && w->in_order >= w->wanted) {
        w->runs = true;
        tree_walk_begin_way(w);
    }
    return expected;
}

static uint32_t tree_walk_last(const struct tree_walk *w)
{
    return w->way[(w->end - 1) % AHEAD_DIRECTORIES];
}

/* Find where the reader is now. False: it has left the path. */
static bool tree_walk_find_reader(struct tree_walk *w)
{
    uint32_t i = w->reader;

    if (!w->moved)
        return true;
    w->moved = false;
    while (i != w->end && w->way[i % AHEAD_DIRECTORIES] != w->at)
        i++;
    if (i != w->end) {
        for (; w->reader != i; w->reader++)
            w->ahead -= w->entries[(w->reader + 1) % AHEAD_DIRECTORIES];
        return true;
    }
    if (!tree_walk_is_on_the_way(w, tree_walk_last(w), w->at))
        return false;
    tree_walk_begin_way(w);
    w->fast = true;
    return true;
}

static bool tree_walk_is_far(const struct tree_walk *w)
{
    return w->end - w->reader >= AHEAD_DIRECTORIES - 1 || w->ahead > AHEAD_ENTRIES;
}

/*
 * A directory may have millions of entries. While these are listed the mount does not end,
 * though nobody sees it any more: so not for long after the last request of a reader.
 */
static bool tree_walk_is_lost(void *chooser, uint64_t now_ns)
{
    struct tree_walk *w = chooser;

    if (w->runs && (w->full || !tree_walk_find_reader(w) ||
                    (tree_walk_is_far(w) && now_ns > w->stepped_ns + REST_NS) ||
                    now_ns > w->last_ns + REST_NS))
        tree_walk_end(w, !w->full);
    return !w->runs;
}

/* ---- listings ---- */

/* Go on by one directory. False at the end of the path. */
static bool tree_walk_go_on(struct tree_walk *w)
{
    uint32_t next, first, count = 0;
    uint32_t left = w->fast ? LEFT_FOR_FAST : LEFT_FOR_READER;
    bool lists = w->end % left != 0 && w->end > w->reader + 1;

    if (!tree_walk_next(w, tree_walk_last(w), &next) ||
        (lists && index_children(w->options->index, next, &first, &count) < 0)) {
        tree_walk_end(w, false);
        return false;
    }
    w->way[w->end % AHEAD_DIRECTORIES] = next;
    w->entries[w->end % AHEAD_DIRECTORIES] = count;
    w->end++;
    w->ahead += count;
    w->from = 0;
    w->left = count;
    return true;
}

static size_t tree_walk_take(void *chooser, struct reader_want *wants, size_t max)
{
    struct tree_walk *w = chooser;
    uint32_t entries = 0;
    size_t count = 0;

    while (!w->busy && count < max && count < BATCH_DIRECTORIES && entries < BATCH_ENTRIES) {
        if (w->left == 0 && (tree_walk_is_far(w) || !tree_walk_go_on(w)))
            break;
        if (w->left == 0)
            continue; /* it is left for the reader, or empty */
        uint32_t some = min_u32(w->left, BATCH_ENTRIES - entries);
        wants[count++] =
            (struct reader_want){tree_walk_last(w), w->from, some, BLOCK_DUE_UNKNOWN};
        entries += some;
        w->from += some;
        w->left -= some;
    }
    w->busy |= count > 0;
    return count;
}

static void tree_walk_finished(void *chooser, const struct reader_want *wants, size_t count,
                               int result)
{
    struct tree_walk *w = chooser;

    (void)wants;
    (void)count;
    w->busy = false;
    w->full |= result == -ENOTCONN;
}

const struct chooser tree_walk_chooser = {
    .make = tree_walk_make,
    .free = free,
    .observe = tree_walk_observe,
    .is_lost = tree_walk_is_lost,
    .take = tree_walk_take,
    .finished = tree_walk_finished,
};
