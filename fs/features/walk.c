/*
 * Listing ahead. find, ls -lR, du, os.walk and rsync go through a tree in one order, a
 * directory before what is in it, and the index knows that order. The kernel's part of a
 * listing, an inode and a name for each entry, costs ten times ours, and the listing process
 * does all of it. So once a reader is seen on such a walk, a process of our own (helper.h)
 * lists the next directories on another CPU, and the reader finds names and attributes there.
 *
 * A reader's hits in the kernel's cache are not seen here. So one directory in four is left for
 * the reader to list: that shows where it is and that it continues, and is about the part that
 * it has time for. The helper stays at most AHEAD_DIRECTORIES in front of the reader and waits
 * for it there. It ends when the reader leaves the path or rests; after that, a walk must be
 * twice as long to be recognised. Listings that carry only names (listing_budget.c) are not
 * worth it.
 */
#include "walk.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "futex.h"
#include "helper.h"

#define ENTRIES_LEAST 4096u   /* entries in an archive that make this worthwhile */
#define STEPS_FIRST 4u        /* directories in walk order before it counts as a walk */
#define STEPS_MOST 1024u      /* the same, after walks that proved false */
#define LEFT_FOR_READER 4u    /* one directory in so many is left */
#define AHEAD_DIRECTORIES 32u /* a power of two */
#define AHEAD_ENTRIES (16u << 10)
#define DEPTH_MOST 64u
#define GAP_MOST 64u /* entries from a directory to the next one beside it */
#define REST_NS 300000000

/* Shared by the daemon and its child. */
struct trail {
    _Atomic uint32_t at;    /* the directory that a reader listed last */
    _Atomic uint32_t steps; /* futex: counts the directories that a reader listed */
    _Atomic uint32_t waits; /* the child waits, on `steps` */
    _Atomic bool full;      /* listings carry no more attributes */
};

struct walk {
    struct helper helper;              /* shares a struct trail */
    _Atomic uint32_t in_order, wanted; /* steps: seen in a row, and needed to begin */
};

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

bool walk_next(const struct index *index, uint32_t root, uint32_t directory, uint32_t *ret_next)
{
    uint32_t first, count, parent;

    if (index_children(index, directory, &first, &count) == 0 &&
        first_directory(index, first, first + count, ret_next))
        return true;
    for (unsigned i = 0; i < DEPTH_MOST && directory != root; i++) {
        if (index_parent(index, directory, &parent) < 0 ||
            index_children(index, parent, &first, &count) < 0 || directory < first)
            return false;
        if (first_directory(index, directory + 1, first + count, ret_next))
            return true;
        directory = parent;
    }
    return false;
}

/* Is it a child of `from`, or one of the next few of a directory that `from` lies in? */
bool walk_is_on_the_way(const struct index *index, uint32_t root, uint32_t from, uint32_t to)
{
    uint32_t parent, below = 0;

    if (index_parent(index, to, &parent) < 0)
        return false;
    for (unsigned i = 0; i < DEPTH_MOST; i++) {
        if (from == parent)
            return to > below && (below == 0 || to - below <= GAP_MOST);
        below = from;
        if (from == root || index_parent(index, from, &from) < 0)
            return false;
    }
    return false;
}

/* ---- the child ---- */

struct guide {
    const struct session *session;
    struct trail *trail;
    int root_fd;
    uint32_t steps, at; /* the reader's, as last seen */
    /* The path: its directory n is at n modulo the size. The reader is at `reader`. */
    uint32_t way[AHEAD_DIRECTORIES], entries[AHEAD_DIRECTORIES];
    uint32_t reader, end;
    uint32_t ahead; /* entries listed in front of the reader */
    _Alignas(struct dirent64) char dirents[64u << 10];
};

static void begin_way(struct guide *g)
{
    g->way[0] = g->at;
    g->entries[0] = 0;
    g->reader = g->ahead = 0;
    g->end = 1;
}

static void pass(struct guide *g, uint32_t to)
{
    for (; g->reader != to; g->reader++)
        g->ahead -= g->entries[(g->reader + 1) % AHEAD_DIRECTORIES];
}

/* Find where the reader is now. False: it has left the path. */
static bool find_reader(struct guide *g)
{
    uint32_t steps = atomic_load(&g->trail->steps);
    uint32_t last = g->way[(g->end - 1) % AHEAD_DIRECTORIES];

    if (steps == g->steps)
        return true;
    g->steps = steps;
    g->at = atomic_load(&g->trail->at);
    for (uint32_t i = g->reader; i != g->end; i++) {
        if (g->way[i % AHEAD_DIRECTORIES] != g->at)
            continue;
        pass(g, i);
        return true;
    }
    if (!walk_is_on_the_way(g->session->index, g->session->config.root, last, g->at))
        return false;
    begin_way(g); /* the reader has overtaken us */
    return true;
}

static bool is_far(const struct guide *g)
{
    return g->end - g->reader >= AHEAD_DIRECTORIES - 1 || g->ahead > AHEAD_ENTRIES;
}

/* Wait until the reader comes nearer. False: it rests, or leaves the path. */
static bool await_reader(struct guide *g)
{
    const struct timespec rest = {.tv_nsec = REST_NS};
    uint32_t before = g->steps;
    bool found = find_reader(g);

    if (found && is_far(g)) {
        atomic_store(&g->trail->waits, 1);
        futex_wait(&g->trail->steps, g->steps, FUTEX_OF_NODE, &rest);
        atomic_store(&g->trail->waits, 0);
        found = find_reader(g);
        return found && g->steps != before;
    }
    return found;
}

/*
 * A directory may have millions of entries. While this process lists them the mount does not
 * end, though nobody sees it any more.
 */
static bool is_worth_it(const struct guide *g)
{
    return !atomic_load(&g->trail->full) &&
           now_ns() < session_last_request_ns(g->session) + REST_NS;
}

static void list_directory(struct guide *g, uint32_t directory)
{
    int fd = helper_open_directory(g->session, g->root_fd, directory);

    if (fd < 0)
        return;
    while (is_worth_it(g) && syscall(SYS_getdents64, fd, g->dirents, sizeof(g->dirents)) > 0)
        ;
    close(fd);
}

/* List one more directory. False at the end of the path. */
static bool go_on(struct guide *g)
{
    uint32_t last = g->way[(g->end - 1) % AHEAD_DIRECTORIES], next, first, count = 0;
    bool lists = g->end % LEFT_FOR_READER != 0 && g->end > g->reader + 1;

    if (!walk_next(g->session->index, g->session->config.root, last, &next))
        return false;
    if (lists && index_children(g->session->index, next, &first, &count) < 0)
        return false;
    g->way[g->end % AHEAD_DIRECTORIES] = next;
    g->entries[g->end % AHEAD_DIRECTORIES] = count;
    g->end++;
    g->ahead += count;
    if (lists)
        list_directory(g, next);
    return true;
}

static enum helper_outcome walk_work(struct helper *h, int root_fd)
{
    static struct guide g; /* each process has its own copy */

    g.session = h->session;
    g.trail = h->shared;
    g.root_fd = root_fd;
    g.steps = atomic_load(&g.trail->steps);
    g.at = atomic_load(&g.trail->at);
    begin_way(&g);
    while (!atomic_load(&g.trail->full)) {
        if (!await_reader(&g))
            return HELPER_PAUSED;
        if (!is_far(&g) && !go_on(&g))
            return HELPER_DONE;
    }
    return HELPER_FULL;
}

/* ---- the daemon ---- */

static void *walk_run(void *arg)
{
    struct walk *k = arg;
    enum helper_outcome outcome = HELPER_DONE;

    while (outcome != HELPER_FAILED && outcome != HELPER_FULL && helper_sleep(&k->helper)) {
        outcome = helper_run(&k->helper, HELPER_WALK_MAX, walk_work);
        if (outcome == HELPER_PAUSED && k->wanted < STEPS_MOST)
            k->wanted *= 2;
        k->in_order = 0;
    }
    return NULL;
}

static void walk_before_listing(void *state, const struct request *rq, uint32_t directory,
                                bool begins, bool *attributes)
{
    struct walk *k = state;
    const struct session *s = k->helper.session;
    struct trail *trail = k->helper.shared;

    if (!*attributes)
        atomic_store(&trail->full, true);
    if (rq->own || !begins)
        return;
    uint32_t before = atomic_exchange(&trail->at, directory);
    atomic_fetch_add(&trail->steps, 1);
    if (atomic_load(&trail->waits))
        futex_wake(&trail->steps, 1, FUTEX_OF_NODE);
    bool follows = walk_is_on_the_way(s->index, s->config.root, before, directory);
    uint32_t steps = follows ? k->in_order + 1 : 0;
    k->in_order = steps;
    if (steps >= k->wanted && s->loop.running_max > 1 && !atomic_load(&trail->full))
        helper_wake(&k->helper);
}

static int walk_start(struct session *s, void **ret_state)
{
    struct walk *k;
    int r;

    if (!s->config.readahead_bytes || !s->config.mountpoint ||
        index_info(s->index)->entries < ENTRIES_LEAST)
        return 0;
    k = calloc(1, sizeof(*k));
    if (!k)
        return -ENOMEM;
    *ret_state = k;
    k->wanted = STEPS_FIRST;
    r = helper_init(&k->helper, s, HELPER_WALK, HELPER_WALK_MAX, sizeof(struct trail));
    return r < 0 ? r : helper_start(&k->helper, walk_run);
}

const struct feature walk_feature = {
    .start = walk_start,
    .before_listing = walk_before_listing,
    .end = helper_end,
    .join = helper_join,
    .free = helper_free,
};
