/*
 * The kernel's part of a listing, an inode and a name for each entry, costs ten times ours, and
 * the listing process does all of it. So another process lists the next directories on another
 * CPU, and the reader finds names and attributes there.
 *
 * A reader's hits in the kernel's cache are not seen here. So one directory in four is left for
 * the reader to list: that shows where it is and that it continues, and is about the part that
 * it has time for. The process stays at most AHEAD_DIRECTORIES in front of the reader and waits
 * for it there. It ends when the reader leaves the path or rests; after that, a walk must be
 * twice as long to be recognised.
 */
#include "tree_walk.h"

#include <sys/stat.h>

#include "futex.h"

#define STEPS_FIRST 4u        /* directories in walk order before it counts as a walk */
#define STEPS_MOST 1024u      /* the same, after walks that proved false */
#define LEFT_FOR_READER 4u    /* one directory in so many is left */
#define AHEAD_DIRECTORIES 32u /* a power of two */
#define AHEAD_ENTRIES (16u << 10)
#define DEPTH_MOST 64u
#define GAP_MOST 64u /* entries from a directory to the next one beside it */
#define REST_NS UINT64_C(300000000)

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

    if (index_children(w->index, directory, &first, &count) == 0 &&
        first_directory(w->index, first, first + count, ret_next))
        return true;
    for (unsigned i = 0; i < DEPTH_MOST && directory != w->root; i++) {
        if (index_parent(w->index, directory, &parent) < 0 ||
            index_children(w->index, parent, &first, &count) < 0 || directory < first)
            return false;
        if (first_directory(w->index, directory + 1, first + count, ret_next))
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

    if (index_parent(w->index, to, &parent) < 0)
        return false;
    for (unsigned i = 0; i < DEPTH_MOST; i++) {
        if (from == parent)
            return to > below && (below == 0 || to - below <= GAP_MOST);
        below = from;
        if (from == w->root || index_parent(w->index, from, &from) < 0)
            return false;
    }
    return false;
}

/* ---- the daemon ---- */

void tree_walk_init(struct tree_walk *w, const struct index *index, uint32_t root,
                    struct tree_walk_trail *trail)
{
    *w = (struct tree_walk){index, root, trail, 0, STEPS_FIRST};
}

bool tree_walk_saw_listing(struct tree_walk *w, uint32_t directory)
{
    struct tree_walk_trail *trail = w->trail;
    uint32_t before = atomic_exchange(&trail->at, directory);

    atomic_fetch_add(&trail->steps, 1);
    if (atomic_load(&trail->waits))
        futex_wake(&trail->steps, 1, FUTEX_OF_NODE);
    uint32_t steps = tree_walk_is_on_the_way(w, before, directory) ? w->in_order + 1 : 0;
    w->in_order = steps;
    return steps >= w->wanted && !atomic_load(&trail->full);
}

void tree_walk_saw_names_only(const struct tree_walk *w)
{
    atomic_store(&w->trail->full, true);
}

void tree_walk_ended(struct tree_walk *w, enum mount_fetch outcome)
{
    if (outcome == MOUNT_FETCH_PAUSED && w->wanted < STEPS_MOST)
        w->wanted *= 2;
    w->in_order = 0;
}

/* ---- the process that lists ---- */

struct tree_walk_turn {
    const struct tree_walk *walk;
    const struct mount_fetcher *fetcher;
    void *ctx;
    uint32_t steps, at; /* the reader's, as last seen */
    /* The path: its directory n is at n modulo the size. The reader is at `reader`. */
    uint32_t way[AHEAD_DIRECTORIES], entries[AHEAD_DIRECTORIES];
    uint32_t reader, end;
    uint32_t ahead; /* entries listed in front of the reader */
};

static void tree_walk_begin_way(struct tree_walk_turn *t)
{
    t->way[0] = t->at;
    t->entries[0] = 0;
    t->reader = t->ahead = 0;
    t->end = 1;
}

static uint32_t tree_walk_last(const struct tree_walk_turn *t)
{
    return t->way[(t->end - 1) % AHEAD_DIRECTORIES];
}

/* Find where the reader is now. False: it has left the path. */
static bool tree_walk_find_reader(struct tree_walk_turn *t)
{
    uint32_t steps = atomic_load(&t->walk->trail->steps), i = t->reader;

    if (steps == t->steps)
        return true;
    t->steps = steps;
    t->at = atomic_load(&t->walk->trail->at);
    while (i != t->end && t->way[i % AHEAD_DIRECTORIES] != t->at)
        i++;
    if (i != t->end) {
        for (; t->reader != i; t->reader++)
            t->ahead -= t->entries[(t->reader + 1) % AHEAD_DIRECTORIES];
        return true;
    }
    if (!tree_walk_is_on_the_way(t->walk, tree_walk_last(t), t->at))
        return false;
    tree_walk_begin_way(t); /* the reader has overtaken us */
    return true;
}

static bool tree_walk_is_far(const struct tree_walk_turn *t)
{
    return t->end - t->reader >= AHEAD_DIRECTORIES - 1 || t->ahead > AHEAD_ENTRIES;
}

/* Wait until the reader comes nearer. False: it rests, or leaves the path. */
static bool tree_walk_await_reader(struct tree_walk_turn *t)
{
    struct tree_walk_trail *trail = t->walk->trail;
    uint32_t before = t->steps;
    bool found = tree_walk_find_reader(t);

    if (!found || !tree_walk_is_far(t))
        return found;
    atomic_store(&trail->waits, 1);
    t->fetcher->wait(t->ctx, &trail->steps, t->steps, REST_NS);
    atomic_store(&trail->waits, 0);
    return tree_walk_find_reader(t) && t->steps != before;
}

/*
 * A directory may have millions of entries. While this process lists them the mount does not
 * end, though nobody sees it any more.
 */
static bool tree_walk_is_worth_it(const struct tree_walk_turn *t)
{
    struct mount_readers readers = t->fetcher->readers(t->ctx);

    return !atomic_load(&t->walk->trail->full) &&
           readers.now_ns < readers.last_request_ns + REST_NS;
}

static void tree_walk_list(const struct tree_walk_turn *t, uint32_t directory)
{
    if (!t->fetcher->open(t->ctx, directory, 0))
        return;
    while (tree_walk_is_worth_it(t) && t->fetcher->list(t->ctx, MOUNT_FETCHER_LIST_BYTES) > 0)
        ;
    t->fetcher->close(t->ctx);
}

/* List one more directory. False at the end of the path. */
static bool tree_walk_go_on(struct tree_walk_turn *t)
{
    uint32_t next, first, count = 0;
    bool lists = t->end % LEFT_FOR_READER != 0 && t->end > t->reader + 1;

    if (!tree_walk_next(t->walk, tree_walk_last(t), &next))
        return false;
    if (lists && index_children(t->walk->index, next, &first, &count) < 0)
        return false;
    t->way[t->end % AHEAD_DIRECTORIES] = next;
    t->entries[t->end % AHEAD_DIRECTORIES] = count;
    t->end++;
    t->ahead += count;
    if (lists)
        tree_walk_list(t, next);
    return true;
}

enum mount_fetch tree_walk_run(const struct tree_walk *w, const struct mount_fetcher *fetcher,
                               void *ctx)
{
    struct tree_walk_turn t = {.walk = w,
                               .fetcher = fetcher,
                               .ctx = ctx,
                               .steps = atomic_load(&w->trail->steps),
                               .at = atomic_load(&w->trail->at)};

    tree_walk_begin_way(&t);
    while (!atomic_load(&w->trail->full)) {
        if (!tree_walk_await_reader(&t))
            return MOUNT_FETCH_PAUSED;
        if (!tree_walk_is_far(&t) && !tree_walk_go_on(&t))
            return MOUNT_FETCH_DONE;
    }
    return MOUNT_FETCH_FULL;
}
