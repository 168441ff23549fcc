/*
 * One run: selects the members, their order and their threads.
 *
 * One walk through the tree makes all folders and lists all files. A folder that can't be made
 * excludes everything below it. The walk goes depth first, so it only needs descriptors of the
 * folders made last, however deep the tree is. Names of inodes with several are put aside: the
 * first wanted name becomes the file, and the others are linked to it once all files exist.
 */
#include "extract.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "extract_private.h"

#define LARGE_BYTES (2 * PIECE_BYTES)

/* ---- selection ---- */

static int want_path(struct extraction *x, const char *path, bool *found)
{
    uint32_t position;
    int r = index_resolve(x->index, path, &position);
    if (r == -ENOENT || r == -ENOTDIR || r == -EINVAL)
        return 0;
    if (r < 0)
        return r;
    *found = true;
    x->flags[position] |= ENTRY_WANTED;
    while (r == 0 && position != INDEX_ROOT) {
        r = index_parent(x->index, position, &position);
        if (r == 0)
            x->flags[position] |= ENTRY_ON_THE_WAY;
    }
    return r;
}

static int find_wanted(struct extraction *x)
{
    int r = 0;
    if (x->options->path_count == 0)
        x->flags[INDEX_ROOT] |= ENTRY_WANTED;
    for (size_t i = 0; r == 0 && i < x->options->path_count; i++)
        r = want_path(x, x->options->paths[i], &x->options->path_found[i]);
    return r;
}

/* ---- the list of work ---- */

static int add_large(struct extraction *x, const struct node *node, uint32_t position,
                     uint64_t *key)
{
    uint32_t pieces = (uint32_t)((node->size_bytes - 1) / PIECE_BYTES) + 1;
    struct large l = {.position = position, .pieces = pieces, .left = pieces, .fd = -1};
    l.written = calloc(pieces, 1);
    if (x->has_some_sums && checksum_new(index_info(x->index)->sum_kind, &l.state) < 0)
        l.state = NULL;
    int r = vector_push(&x->large, l);
    x->large_key = worklist_key(x->index, position, 0, *key);
    if (r == 0 && (!l.written || (x->has_some_sums && !l.state)))
        r = -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < pieces; i++) {
        *key = worklist_key(x->index, position, i * PIECE_BYTES, *key);
        r = worklist_add(x->workers.list, (struct work_item){*key, position, i + 1});
    }
    return r;
}

/* At least half of the file must be data: a huge hole is no work. */
static bool is_large(const struct node *node)
{
    return S_ISREG(node->mode) && node->data_bytes >= LARGE_BYTES &&
           node->data_bytes >= node->size_bytes / 2 &&
           node->size_bytes / PIECE_BYTES < UINT32_MAX - 1;
}

/* `key` is the previous entry's: a file without bytes is handled with its neighbours. */
static int add_work(struct extraction *x, const struct node *node, uint32_t position,
                    uint64_t *key)
{
    if (S_ISREG(node->mode))
        atomic_fetch_add(&x->workers.progress.bytes_total, node->data_bytes);
    /*
     * Copies of one large file at the same place would all be open at once, so they come one by
     * one.
     */
    if (is_large(node) &&
        (!x->large.count || worklist_key(x->index, position, 0, *key) != x->large_key))
        return add_large(x, node, position, key);
    if (S_ISREG(node->mode))
        *key = worklist_key(x->index, position, 0, *key);
    return worklist_add(x->workers.list, (struct work_item){*key, position, 0});
}

static int compare_links(const void *a, const void *b)
{
    const struct link_name *x = a, *y = b;
    if (x->inode != y->inode)
        return x->inode < y->inode ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* The first wanted name of each inode becomes a file. */
static int add_first_names(struct extraction *x)
{
    uint64_t key = 0;
    int r = 0;
    if (x->links.count)
        qsort(x->links.at, x->links.count, sizeof(*x->links.at), compare_links);
    for (size_t i = 0; r == 0 && i < x->links.count; i++) {
        struct node node;
        if (i > 0 && x->links.at[i].inode == x->links.at[i - 1].inode)
            continue;
        r = index_node(x->index, x->links.at[i].position, &node);
        if (r == 0)
            r = add_work(x, &node, x->links.at[i].position, &key);
    }
    return r;
}

static int visit_child(struct extraction *x, struct folders *folders, uint32_t position,
                       uint8_t inherited, uint64_t *key)
{
    struct node node;
    x->flags[position] |= inherited;
    if (!(x->flags[position] & (ENTRY_WANTED | ENTRY_ON_THE_WAY)))
        return 0;
    int r = index_node(x->index, position, &node);
    if (r < 0) {
        extract_problem(x, position, r, FAULT_NO_OFFSET, "can't be extracted");
        return 0;
    }
    if (attributes_lack_privileges(x, &node)) {
        x->unprivileged++;
        if (S_ISCHR(node.mode) || S_ISBLK(node.mode))
            return 0;
    }
    if (S_ISDIR(node.mode)) {
        r = tree_make_folder(x, folders, &node, position);
        return r < 0 ? r : x->workers.error;
    }
    if (node.position != position || node.nlink > 1)
        return vector_push(&x->links, (struct link_name){node.position, position});
    return add_work(x, &node, position, key);
}

/* Go through a folder's children: make the folders, list the rest. */
static int visit_folder(struct extraction *x, struct folders *folders, uint32_t position,
                        uint64_t *key)
{
    uint32_t first, count;
    int r = index_children(x->index, position, &first, &count);
    if (r < 0) {
        extract_problem(x, position, r, FAULT_NO_OFFSET, "the directory can't be read");
        return 0;
    }
    for (uint32_t c = 0; r == 0 && c < count; c++)
        r = visit_child(x, folders, first + c, x->flags[position] & ENTRY_WANTED, key);
    return r;
}

static int visit_all(struct extraction *x, struct folders *folders)
{
    uint64_t key = 0;
    if (x->root_made)
        x->flags[INDEX_ROOT] |= ENTRY_MADE | ENTRY_NEW;
    int r = tree_add_folder(x, INDEX_ROOT);
    while (r == 0 && x->unvisited) {
        x->visited = x->unvisited - 1;
        x->unvisited = x->made.at[x->visited].next;
        r = visit_folder(x, folders, x->made.at[x->visited].position, &key);
        if (r == 0 && workers_stopped(&x->workers))
            r = x->workers.error ? x->workers.error : -EINTR;
    }
    if (r == 0)
        r = add_first_names(x);
    if (x->large.count)
        qsort(x->large.at, x->large.count, sizeof(*x->large.at), large_compare);
    return r;
}

/* ---- threads ---- */

static void extract_do_item(struct worker *w, const struct work_item *item)
{
    struct extraction *x = w->workers->job;
    struct extractor *e = &x->extractors[w->number];
    if (item->piece)
        member_extract_piece(e, item->position, item->piece - 1);
    else
        member_extract(e, item->position);
}

/* Each thread keeps some descriptors of folders, within the process's limit. */
static unsigned folder_slots(unsigned threads)
{
    struct rlimit limit = {.rlim_cur = 256};
    getrlimit(RLIMIT_NOFILE, &limit);
    uint64_t each = limit.rlim_cur > 64 ? (limit.rlim_cur - 64) / 2 / threads : 4;
    return each > FOLDER_SLOTS_MAX ? FOLDER_SLOTS_MAX : (unsigned)each;
}

/* ---- the steps ---- */

static void extract_links(struct extraction *x, struct extractor *e)
{
    uint32_t first = 0;
    for (size_t i = 0; i < x->links.count && !workers_stopped(&x->workers); i++) {
        if (i == 0 || x->links.at[i].inode != x->links.at[i - 1].inode)
            first = x->links.at[i].position;
        else
            member_link(e, first, x->links.at[i].position);
    }
}

static int extract_all(struct extraction *x)
{
    int r = find_wanted(x);
    if (r == 0)
        r = visit_all(x, &x->extractors[0].folders);
    if (r == 0)
        r = workers_run(&x->workers);
    if (r == 0)
        extract_links(x, &x->extractors[0]);
    member_discard_large(x, &x->extractors[0].folders);
    return r < 0 ? r : tree_finish_folders(x, &x->extractors[0].folders);
}

static int extract_with_folders(struct extraction *x)
{
    const unsigned threads = x->workers.threads;
    x->extractors = calloc(threads, sizeof(*x->extractors));
    if (!x->extractors)
        return -ENOMEM;
    for (unsigned i = 0; i < threads; i++) {
        x->extractors[i] = (struct extractor){.x = x, .worker = &x->workers.at[i]};
        folders_init(&x->extractors[i].folders, folder_slots(threads));
        if (index_info(x->index)->has_sums)
            content_skip_sums(x->workers.at[i].content);
    }
    int r = extract_all(x);
    for (unsigned i = 0; i < threads; i++)
        folders_free(&x->extractors[i].folders);
    free(x->extractors);
    return r;
}

static int extract_prepare(struct extraction *x, struct fault *fault)
{
    int r = workers_init(&x->workers, fault);
    x->flags = calloc(index_info(x->index)->entries, 1);
    if (r == 0 && !x->flags)
        r = -ENOMEM;
    return r < 0 ? r : tree_open_root(x, fault);
}

static void extract_release(struct extraction *x)
{
    if (x->root_fd >= 0)
        close(x->root_fd);
    workers_free(&x->workers);
    vector_free(&x->links);
    vector_free(&x->large);
    vector_free(&x->made);
    free(x->flags);
}

int extract_run(struct pot *pot, const struct extract_options *options, struct fault *fault,
                struct extract_result *ret_result)
{
    struct extraction x = {
        .options = options,
        .workers = {.options = &options->work,
                    .pot = pot,
                    .buffer_bytes = READ_BACK_BYTES,
                    .doing = "extracting",
                    .work = extract_do_item,
                    .job = &x},
        .index = pot->index,
        .has_some_sums = index_info(pot->index)->has_some_sums,
        .root_fd = -1,
        .uid = geteuid(),
        .gid = getegid(),
    };
    mode_t before = umask(0);
    x.umask = options->exact_modes ? 0 : before;
    int r = extract_prepare(&x, fault);
    if (r == 0)
        r = extract_with_folders(&x);
    umask(before);
    int whole = r == -EINTR ? 0 : pot_check_whole(pot, fault);
    if (whole < 0)
        r = whole; /* the cause, whatever error followed */
    else if (r < 0 && x.workers.error && fault)
        *fault = x.workers.fault;
    *ret_result = (struct extract_result){
        .files = x.files,
        .bytes = x.workers.progress.bytes_done,
        .problems = x.workers.problems,
        .lost_xattrs = x.lost_xattrs,
        .unprivileged = x.unprivileged,
    };
    extract_release(&x);
    return r;
}
