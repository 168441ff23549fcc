/*
 * Views, as marks: a bit for each entry that is shown.
 *
 * Patterns decide about directories first, from the root down, then about all other entries,
 * with several threads: millions of names are matched, and each alone. The entries of a
 * directory lie together, followed by the entries of the directories after it, so that a thread
 * takes a range of positions. At last a directory in which something is shown is shown, too.
 */
#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cpus.h"
#include "index_records.h"
#include "numbers.h"
#include "search.h"
#include "thread.h"
#include "tree_view_private.h"

#define MARK_RANGE (16u << 10) /* positions that a thread takes at once */
#define MARK_THREADS 8u
#define MARK_THREAD_ENTRIES (100u << 10) /* for fewer, a thread costs more than it saves */
#define MARK_STACK_BYTES (256u << 10)

/* A directory, by its number in the index. */
struct mark_dir {
    uint32_t position, first, count; /* its children */
    uint32_t parent;
    uint32_t first_dir;    /* the first of its children that is a directory */
    bool is_entered;       /* entries in it may be shown */
    _Atomic bool is_shown; /* or something in it is */
};

struct marking {
    const struct view *view;
    const struct index *index;
    uint32_t entries, count;
    struct mark_dir *dirs;
    _Atomic uint8_t *marks;
    _Atomic uint64_t next; /* position that no thread took yet */
    _Atomic int err;
};

/* A thread's view of it. */
struct marker {
    struct marking *m;
    struct view_filter filter;
    VECTOR(char) path;
};

void view_mark_entry(uint8_t *marks, uint32_t position)
{
    marks[position / 8] |= (uint8_t)(1u << position % 8);
}

static bool is_marked(const uint8_t *marks, uint32_t position)
{
    return !marks || marks[position / 8] & 1u << position % 8;
}

/* ---- all below a directory ---- */

int view_mark_tree(const struct index *index, const uint8_t *matched, uint32_t position,
                   uint8_t *marks)
{
    VECTOR(uint32_t) dirs = {0};
    int r = vector_push(&dirs, position);
    while (r == 0 && dirs.count > 0) {
        uint32_t first, count;
        struct node node;
        r = index_children(index, dirs.at[--dirs.count], &first, &count);
        for (uint32_t i = first; r == 0 && i < first + count; i++) {
            if (!is_marked(matched, i))
                continue;
            view_mark_entry(marks, i);
            r = index_node(index, i, &node);
            if (r == 0 && S_ISDIR(node.mode))
                r = vector_push(&dirs, i);
        }
    }
    vector_free(&dirs);
    return r;
}

/* ---- one entry ---- */

/* Its place in the view, an enum view_choice: w->path has `folder_len` bytes of its folder. */
static int marker_ask(struct marker *w, size_t folder_len, uint32_t position, uint32_t mode)
{
    const char *name;
    size_t len;
    int r = index_name(w->m->index, position, &name, &len);
    if (r < 0)
        return r;
    if (folder_len + len > INDEX_PATH_MAX)
        return VIEW_LEAVE_OUT;
    w->path.count = folder_len;
    if (vector_append(&w->path, name, len) < 0 || vector_push(&w->path, '\0') < 0)
        return -ENOMEM;
    return view_choose(&w->filter, w->path.at, folder_len + len, mode);
}

/* Makes w->path a directory's path, with a slash behind it unless it is the root. */
static int marker_enter(struct marker *w, const struct mark_dir *dir, size_t *ret_len)
{
    char path[INDEX_PATH_MAX + 1];
    int r = index_path(w->m->index, dir->position, path, sizeof(path), ret_len);
    w->path.count = 0;
    if (r == 0)
        r = vector_append(&w->path, path, *ret_len);
    if (r == 0 && *ret_len > 0) {
        ++*ret_len;
        r = vector_push(&w->path, '/');
    }
    return r;
}

/* ---- 1. directories ---- */

/* Lists the directories. -EUCLEAN: they are not in the order that a sound index has. */
static int marking_list_dirs(struct marking *m)
{
    uint64_t bytes = index_section_bytes(m->index, SECTION_DIRS);
    const uint32_t *positions = index_records(m->index, SECTION_DIRS, 0, bytes);
    uint32_t end = 1; /* of the last children */
    m->count = (uint32_t)(bytes / sizeof(*positions));
    m->dirs = positions && m->count ? calloc(m->count, sizeof(*m->dirs)) : NULL;
    if (!m->dirs)
        return positions && m->count ? -ENOMEM : -EUCLEAN;
    for (uint32_t i = 0; i < m->count; i++) {
        struct mark_dir *dir = &m->dirs[i];
        dir->position = le32toh(positions[i]);
        if (dir->position >= m->entries ||
            (i ? dir->position <= dir[-1].position : dir->position != INDEX_ROOT) ||
            index_children(m->index, dir->position, &dir->first, &dir->count) < 0 ||
            (dir->count && dir->first < end))
            return -EUCLEAN;
        dir->first = dir->count ? dir->first : end;
        end = dir->first + dir->count;
    }
    return 0;
}

static int marking_ask_dir(struct marker *w, uint32_t number, size_t folder_len)
{
    struct mark_dir *dir = &w->m->dirs[number];
    int choice = marker_ask(w, folder_len, dir->position, S_IFDIR);
    dir->is_entered = choice > VIEW_LEAVE_OUT;
    atomic_store_explicit(&dir->is_shown, choice == VIEW_TAKE, memory_order_relaxed);
    return choice < 0 ? choice : 0;
}

static int marking_ask_dirs(struct marker *w)
{
    struct marking *m = w->m;
    uint32_t next = 1;
    size_t folder_len;
    m->dirs[0].is_entered = true;
    atomic_store_explicit(&m->dirs[0].is_shown, true, memory_order_relaxed);
    for (uint32_t i = 0; i < m->count; i++) {
        struct mark_dir *dir = &m->dirs[i];
        dir->first_dir = next;
        for (; next < m->count && m->dirs[next].position < dir->first + dir->count; next++) {
            m->dirs[next].parent = i;
            if (m->dirs[next].position < dir->first)
                return -EUCLEAN;
            int r = !dir->is_entered         ? 0
                    : next == dir->first_dir ? marker_enter(w, dir, &folder_len)
                                             : 0;
            if (r == 0 && dir->is_entered)
                r = marking_ask_dir(w, next, folder_len);
            if (r < 0)
                return r;
        }
    }
    return next == m->count ? 0 : -EUCLEAN;
}

/* ---- 2. all others ---- */

/* The first directory from `low` on that is not before a position. */
static uint32_t marking_next_dir(const struct marking *m, uint32_t low, uint32_t position)
{
    return (uint32_t)search_first(i, low, m->count, m->dirs[i].position >= position);
}

static int marker_take(struct marker *w, struct mark_dir *dir, uint32_t from, uint32_t to)
{
    struct marking *m = w->m;
    size_t folder_len;
    uint32_t next = marking_next_dir(m, dir->first_dir, from);
    int r = marker_enter(w, dir, &folder_len);
    for (uint32_t i = from; r == 0 && i < to; i++) {
        if (next < m->count && m->dirs[next].position == i) {
            next++;
            continue;
        }
        int choice = marker_ask(w, folder_len, i, S_IFREG);
        if (choice == VIEW_TAKE) {
            atomic_fetch_or_explicit(&m->marks[i / 8], (uint8_t)(1u << i % 8),
                                     memory_order_relaxed);
            atomic_store_explicit(&dir->is_shown, true, memory_order_relaxed);
        }
        r = choice < 0 ? choice : 0;
    }
    return r;
}

/* The first directory whose children do not end before a position. */
static uint32_t marking_dir_at(const struct marking *m, uint32_t position)
{
    return (uint32_t)search_first(i, 0, m->count,
                                  m->dirs[i].first + m->dirs[i].count > position);
}

static int marker_take_range(struct marker *w, uint32_t from, uint32_t to)
{
    struct marking *m = w->m;
    int r = 0;
    for (uint32_t i = marking_dir_at(m, from); r == 0 && i < m->count; i++) {
        struct mark_dir *dir = &m->dirs[i];
        if (dir->first >= to)
            break;
        if (dir->is_entered && dir->count)
            r = marker_take(w, dir, max_u32(from, dir->first),
                            (uint32_t)min_u64(to, (uint64_t)dir->first + dir->count));
    }
    return r;
}

static void marker_free(struct marker *w)
{
    vector_free(&w->filter.folder);
    vector_free(&w->path);
}

static void *marking_run(void *arg)
{
    struct marking *m = arg;
    struct marker w = {.m = m, .filter = {.view = m->view}};
    struct view_bytes bytes; /* each thread has a locale */
    int r = view_bytes_begin(&bytes);
    uint64_t at;
    if (r == 0) {
        while (r == 0 && (at = atomic_fetch_add(&m->next, MARK_RANGE)) < m->entries)
            r = marker_take_range(&w, (uint32_t)at,
                                  (uint32_t)min_u64(at + MARK_RANGE, m->entries));
        view_bytes_end(&bytes);
    }
    if (r < 0) {
        atomic_store(&m->err, r);
        atomic_store(&m->next, m->entries);
    }
    marker_free(&w);
    return NULL;
}

static int marking_run_all(struct marking *m)
{
    uint64_t wanted =
        min_u64(min_u64(m->entries / MARK_THREAD_ENTRIES, cpus_allowed()), MARK_THREADS);
    thread_team(wanted, MARK_STACK_BYTES, marking_run, m);
    return atomic_load(&m->err);
}

/* ---- 3. directories of shown entries ---- */

static void marking_show_dirs(struct marking *m, uint8_t *marks)
{
    for (uint32_t i = m->count; i-- > 0;) {
        if (!atomic_load_explicit(&m->dirs[i].is_shown, memory_order_relaxed))
            continue;
        view_mark_entry(marks, m->dirs[i].position);
        atomic_store_explicit(&m->dirs[m->dirs[i].parent].is_shown, true, memory_order_relaxed);
    }
}

int view_mark_matches(const struct view *view, const struct index *index, uint8_t *marks)
{
    struct marking m = {.view = view, .index = index, .entries = index_info(index)->entries};
    struct marker w = {.m = &m, .filter = {.view = view}};
    m.marks = calloc(m.entries / 8 + 1, 1);
    int r = m.marks ? marking_list_dirs(&m) : -ENOMEM;
    if (r == 0)
        r = marking_ask_dirs(&w);
    if (r == 0)
        r = marking_run_all(&m);
    if (r == 0) {
        memcpy(marks, m.marks, m.entries / 8 + 1);
        marking_show_dirs(&m, marks);
    }
    marker_free(&w);
    free(m.marks);
    free(m.dirs);
    return r;
}
