/*
 * Composing a tree, in three steps:
 *
 *   1. Check each index: its directories have their children one behind the other, in the order
 *      of the directories, and each child has a good name behind the one before it. Several
 *      threads take part.
 *   2. Walk the new tree breadth first, a directory with all its places at a time, and note
 *      runs of entries. Names are sorted in each index, so that a directory with one place is
 *      one run, and several are merged name by name, or archive by archive where the names of
 *      one all lie before the names of the next, as in shards that were packed in order.
 *   3. Have the builder copy the runs (builder_copy.h).
 *
 * The rest of each place's entries waits in a heap. Heads are compared by the eight bytes
 * behind what all names of the directory have in common, as a number. Names that were put are
 * sorted by directory and name, and then are heads as well.
 */
#include "tree.h"

#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "builder_copy.h"
#include "bytes.h"
#include "cpus.h"
#include "index_records.h"
#include "numbers.h"
#include "path.h"
#include "search.h"
#include "thread.h"
#include "vector.h"

#define PART_NAMES (UINT32_MAX - 1) /* in place of a part: the names that were put */

enum {
    TREE_THREADS = 8,
    TREE_THREAD_ENTRIES = 1 << 15, /* that are worth a thread */
    TREE_STACK_BYTES = 128 << 10,
};

struct tree_source {
    struct tree_part part;
    uint8_t *shown; /* NULL: all */
    const struct disk_entry *entries;
    const char *names;
    const uint32_t *dirs;
    uint64_t name_bytes;
    uint32_t entry_count, dir_count;
    uint32_t next_dir; /* of `dirs`, from where the last search ended */
    uint32_t puts;     /* how often something of it was put */
    bool is_damaged;
};

/* An entry that was put under a name. */
struct tree_name {
    struct tree_place directory, target;
    const char *at;
    uint32_t len, label, number;
};

struct tree_target {
    struct tree_place place;
    uint32_t label;
};

/* A directory of the new tree. */
struct tree_dir {
    size_t first_target;
    uint32_t target_count;
    uint32_t path_bytes;
};

/* The next of a place's entries. */
struct tree_head {
    uint64_t key;
    uint32_t part; /* or PART_NAMES */
    uint32_t at, end;
    uint32_t label;
};

struct tree {
    struct builder *builder;
    bool keeps_first;
    VECTOR(struct tree_source) sources;
    VECTOR(struct index *) owned;
    VECTOR(uint32_t) made; /* the part whose root's attributes each has */
    VECTOR(struct tree_name) names;
    bool needs_order; /* names of several places are compared */
    _Atomic size_t next_check;

    VECTOR(struct tree_target) targets; /* places of directories, one directory after another */
    VECTOR(struct tree_dir) queue;      /* directories of the new tree, in order */
    VECTOR(struct builder_copy_run) runs;
    VECTOR(struct builder_copy_name) run_names;
    VECTOR(struct builder_copy_dir) dirs; /* the same as in `queue`, as far as done */
    uint64_t entries;

    VECTOR(struct tree_head) heads; /* of the directory at hand */
    VECTOR(uint32_t) heap;          /* their numbers */
    VECTOR(uint32_t) taken;         /* numbers of heads with one name */
    size_t common;                  /* bytes that all names of the directory begin with */
    struct fault *fault;
    uint32_t label;
};

/* ---- parts and names ---- */

int tree_new(struct tree **ret_tree)
{
    struct tree *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    if (builder_new(&t->builder) < 0 || vector_push(&t->made, BUILDER_COPY_NO_PART) < 0) {
        tree_free(t);
        return -ENOMEM;
    }
    *ret_tree = t;
    return 0;
}

void tree_free(struct tree *t)
{
    if (!t)
        return;
    builder_free(t->builder);
    for (size_t i = 0; i < t->sources.count; i++)
        free(t->sources.at[i].shown);
    for (size_t i = 0; i < t->owned.count; i++)
        index_close(t->owned.at[i]);
    vector_free(&t->sources);
    vector_free(&t->owned);
    vector_free(&t->made);
    vector_free(&t->names);
    vector_free(&t->targets);
    vector_free(&t->queue);
    vector_free(&t->runs);
    vector_free(&t->run_names);
    vector_free(&t->dirs);
    vector_free(&t->heads);
    vector_free(&t->heap);
    vector_free(&t->taken);
    free(t);
}

void tree_keep_first(struct tree *t)
{
    t->keeps_first = true;
}

int tree_add(struct tree *t, const struct tree_part *part, uint32_t *ret_part)
{
    struct tree_source source = {.part = *part};
    *ret_part = (uint32_t)t->sources.count;
    return vector_push(&t->sources, source);
}

int tree_own(struct tree *t, struct index *index)
{
    int r = vector_push(&t->owned, index);
    if (r < 0)
        index_close(index);
    return r;
}

void tree_show(struct tree *t, uint32_t part, uint8_t *bits)
{
    t->sources.at[part].shown = bits;
}

int tree_merge_root(struct tree *t, uint32_t part)
{
    struct tree_target root = {{part, INDEX_ROOT}, 0};
    if (t->made.at[0] == BUILDER_COPY_NO_PART)
        tree_root_as(t, part);
    t->sources.at[part].puts++;
    return vector_push(&t->targets, root);
}

void tree_root_as(struct tree *t, uint32_t part)
{
    t->made.at[0] = part;
}

int tree_put(struct tree *t, struct tree_place directory, const char *name, size_t len,
             struct tree_place target, uint32_t label, struct fault *fault)
{
    struct tree_name put = {directory,     target, name,
                            (uint32_t)len, label,  (uint32_t)t->names.count};
    if (len > INDEX_NAME_MAX)
        return fault_set(fault, -ENAMETOOLONG, name, FAULT_NO_OFFSET,
                         "has a name of more than %u bytes", INDEX_NAME_MAX);
    if (!path_is_name(name, len))
        return fault_set(fault, -EINVAL, name, FAULT_NO_OFFSET, "is no name in a directory");
    if (t->names.count == UINT32_MAX - 1)
        return -EOVERFLOW;
    if (target.part != TREE_MADE)
        t->sources.at[target.part].puts++;
    return vector_push(&t->names, put);
}

int tree_make(struct tree *t, struct tree_place directory, const char *name, size_t len,
              uint32_t part, uint32_t label, struct fault *fault, struct tree_place *ret_made)
{
    *ret_made = (struct tree_place){TREE_MADE, (uint32_t)t->made.count};
    int r = tree_put(t, directory, name, len, *ret_made, label, fault);
    return r < 0 ? r : vector_push(&t->made, part);
}

uint32_t tree_label(const struct tree *t)
{
    return t->label;
}

static int tree_compare_places(struct tree_place a, struct tree_place b)
{
    return a.part != b.part ? (a.part < b.part ? -1 : 1)
                            : (a.position > b.position) - (a.position < b.position);
}

static int tree_by_name(const void *a, const void *b)
{
    const struct tree_name *x = a, *y = b;
    int compared = tree_compare_places(x->directory, y->directory);
    if (compared == 0)
        compared = bytes_compare(x->at, x->len, y->at, y->len);
    return compared ? compared : (x->number > y->number) - (x->number < y->number);
}

/* The first name that was put into a directory that is not before this one. */
static uint32_t tree_find_name(const struct tree *t, struct tree_place directory)
{
    return (uint32_t)search_first(
        i, 0, t->names.count, tree_compare_places(t->names.at[i].directory, directory) >= 0);
}

/* ---- 1. indexes ---- */

static uint64_t part_name_offset(const struct tree_source *s, uint32_t position)
{
    return position < s->entry_count
               ? le64toh(s->entries[position].name_attr) & (DISK_NAME_LIMIT - 1)
               : s->name_bytes;
}

/* Empty if it is damaged, which the check, or else the builder, finds. */
static const char *part_name(const struct tree_source *s, uint32_t position, size_t *ret_len)
{
    uint64_t start = part_name_offset(s, position), end = part_name_offset(s, position + 1);
    bool is_good = start < end && end <= s->name_bytes && end - start <= INDEX_NAME_MAX;
    *ret_len = is_good ? end - start : 0;
    return is_good ? s->names + start : "";
}

/* Names of [first, end): are they good, and in order? */
static bool part_check_names(const struct tree_source *s, uint32_t first, uint32_t end)
{
    const char *last = NULL;
    size_t last_len = 0, len;
    for (uint32_t i = first; i < end; i++) {
        const char *name = part_name(s, i, &len);
        if (len == 0 || path_are_dots(name, len) ||
            (last && bytes_compare(last, last_len, name, len) >= 0))
            return false;
        last = name;
        last_len = len;
    }
    return true;
}

static bool part_is_directory(const struct tree_source *s, uint32_t position)
{
    const struct disk_attr *attr;
    uint64_t number = le64toh(s->entries[position].name_attr) >> DISK_NAME_BITS;
    attr = index_records(s->part.index, SECTION_ATTRS, number * sizeof(*attr), sizeof(*attr));
    return attr && S_ISDIR(le32toh(attr->mode));
}

/* Are the children of all directories one behind the other, and all entries among them? */
static bool part_check_tree(const struct tree_source *s, bool needs_order)
{
    uint32_t next = 1;
    for (uint32_t i = 0; i < s->dir_count; i++) {
        uint32_t position = le32toh(s->dirs[i]);
        if (position >= next || (i == 0) != (position == INDEX_ROOT) ||
            (i && position <= le32toh(s->dirs[i - 1])) || !part_is_directory(s, position))
            return false;
        uint64_t data = le64toh(s->entries[position].data);
        uint32_t first = (uint32_t)data, count = (uint32_t)(data >> 32);
        if (count > s->entry_count - next || (count && first != next) ||
            (needs_order && !part_check_names(s, next, next + count)))
            return false;
        next += count;
    }
    return next == s->entry_count;
}

static bool part_check(struct tree_source *s, bool needs_order)
{
    const struct index *index = s->part.index;
    uint64_t dir_bytes = index_section_bytes(index, SECTION_DIRS);
    s->entry_count = index_info(index)->entries;
    s->dir_count = (uint32_t)(dir_bytes / sizeof(*s->dirs));
    s->name_bytes = index_section_bytes(index, SECTION_NAMES);
    s->entries = index_records(index, SECTION_ENTRIES, 0,
                               (uint64_t)s->entry_count * sizeof(*s->entries));
    s->dirs = index_records(index, SECTION_DIRS, 0, dir_bytes);
    s->names = s->name_bytes ? index_records(index, SECTION_NAMES, 0, s->name_bytes) : "";
    return s->entries && s->dirs && s->names &&
           (!needs_order || (!memchr(s->names, '/', s->name_bytes) &&
                             !memchr(s->names, '\0', s->name_bytes))) &&
           part_check_tree(s, needs_order);
}

static void *tree_run_checks(void *arg)
{
    struct tree *t = arg;
    for (size_t i; (i = atomic_fetch_add(&t->next_check, 1)) < t->sources.count;)
        t->sources.at[i].is_damaged = !part_check(&t->sources.at[i], t->needs_order);
    return NULL;
}

static int tree_damaged(const struct tree *t, const struct tree_source *s)
{
    fault_set(t->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET, "its index is damaged");
    if (s->part.name)
        fault_set_file(t->fault, s->part.name);
    return -EUCLEAN;
}

static int tree_check_all(struct tree *t)
{
    uint64_t entries = 0;
    for (size_t i = 0; i < t->sources.count; i++)
        entries += index_info(t->sources.at[i].part.index)->entries;
    t->needs_order = t->sources.count > 1 || t->names.count > 0;
    thread_team(min_u64(min_u64(entries / TREE_THREAD_ENTRIES, cpus_allowed()), TREE_THREADS),
                TREE_STACK_BYTES, tree_run_checks, t);
    for (size_t i = 0; i < t->sources.count; i++)
        if (t->sources.at[i].is_damaged)
            return tree_damaged(t, &t->sources.at[i]);
    return 0;
}

/* The number of the first directory that does not lie before a position. */
static uint32_t part_find_dir(struct tree_source *s, uint32_t position)
{
    uint32_t low = s->next_dir, high = s->dir_count;
    if (low > 0 && le32toh(s->dirs[low - 1]) >= position)
        low = 0;
    if (low < high && le32toh(s->dirs[low]) >= position)
        high = low;
    s->next_dir = (uint32_t)search_first(i, low, high, le32toh(s->dirs[i]) >= position);
    return s->next_dir;
}

/* The first position in [at, end) that is shown, or hidden; or `end`. */
static uint32_t part_scan(const struct tree_source *s, uint64_t at, uint32_t end,
                          bool wants_shown)
{
    if (!s->shown)
        return wants_shown ? (uint32_t)at : end;
    while (at < end) {
        uint8_t bits = s->shown[at / 8];
        if (at % 8 == 0 && bits == (wants_shown ? 0 : 0xff))
            at += 8;
        else if ((bits >> at % 8 & 1) == wants_shown)
            return (uint32_t)at;
        else
            at++;
    }
    return end;
}

/* ---- 2. the new tree ---- */

/* Record an error about an entry, with its path in its archive. */
static int tree_fail(struct tree *t, const struct tree_target *target, int err,
                     const char *what)
{
    char path[INDEX_PATH_MAX + 1] = ""; /* the fault keeps its beginning */
    size_t len;
    const struct tree_part *part = NULL;
    if (target->place.part != TREE_MADE) {
        part = &t->sources.at[target->place.part].part;
        (void)index_path(part->index, target->place.position, path, sizeof(path), &len);
    }
    t->label = target->label;
    fault_set(t->fault, err, path, FAULT_NO_OFFSET, "%s", what);
    if (part && part->name)
        fault_set_file(t->fault, part->name);
    return err;
}

/* A member that the new tree can't hold. */
static int tree_leave_out(struct tree *t, const struct tree_target *target)
{
    char what[100];
    struct fault why = {0}, *fault = t->fault;
    snprintf(what, sizeof(what), "has a path of more than %u bytes, which no program can name",
             INDEX_PATH_MAX);
    t->fault = &why;
    tree_fail(t, target, -ENAMETOOLONG, what);
    t->fault = fault;
    t->label = 0;
    return builder_leave_out(t->builder, &why);
}

static int tree_add_run(struct tree *t, const struct builder_copy_run *run)
{
    struct builder_copy_run *last = t->runs.count ? &t->runs.at[t->runs.count - 1] : NULL;
    t->entries += run->count;
    if (t->entries >= UINT32_MAX)
        return fault_set(t->fault, -EOVERFLOW, NULL, FAULT_NO_OFFSET,
                         "there are more members than an index can have");
    if (last && last->part == run->part && !last->name && !run->name &&
        last->first != INDEX_ROOT && last->first + last->count == run->first) {
        last->count += run->count;
        return 0;
    }
    return run->count ? vector_push(&t->runs, *run) : 0;
}

/* Add a directory whose targets are the last ones, from `first` on. */
static int tree_add_dir(struct tree *t, size_t first, uint64_t path_bytes)
{
    struct tree_dir dir = {first, (uint32_t)(t->targets.count - first), (uint32_t)path_bytes};
    return vector_push(&t->queue, dir);
}

static uint64_t tree_path_bytes(uint64_t above, size_t name_len)
{
    return above + (above > 0) + name_len;
}

/* Take shown entries of a part, all of which have room; directories among them are its alone.
 */
static int tree_take_run(struct tree *t, const struct tree_head *head, uint32_t first,
                         uint32_t count, uint64_t above)
{
    struct tree_source *s = &t->sources.at[head->part];
    struct builder_copy_dir *dir = &t->dirs.at[t->dirs.count - 1];
    const struct builder_copy_run run = {head->part, first, count, 0};
    uint32_t number = part_find_dir(s, first);
    int r = tree_add_run(t, &run);
    dir->children += count;
    for (; r == 0 && number < s->dir_count && le32toh(s->dirs[number]) - first < count;
         number++) {
        struct tree_target target = {{head->part, le32toh(s->dirs[number])}, head->label};
        size_t len;
        part_name(s, target.place.position, &len);
        dir->directories++;
        r = vector_push(&t->targets, target);
        if (r == 0)
            r = tree_add_dir(t, t->targets.count - 1, tree_path_bytes(above, len));
    }
    s->next_dir = number;
    return r;
}

/* The same one by one, where paths may be too long. */
static int tree_take_deep(struct tree *t, const struct tree_head *head, uint32_t first,
                          uint32_t count, uint64_t above)
{
    int r = 0;
    for (uint32_t i = first; r == 0 && i < first + count; i++) {
        struct tree_target target = {{head->part, i}, head->label};
        size_t len;
        part_name(&t->sources.at[head->part], i, &len);
        r = tree_path_bytes(above, len) > INDEX_PATH_MAX ? tree_leave_out(t, &target)
                                                         : tree_take_run(t, head, i, 1, above);
    }
    return r;
}

/* Take the head's entries before `end` that are shown. */
static int tree_take(struct tree *t, struct tree_head *head, uint32_t end, uint64_t above)
{
    const struct tree_source *s = &t->sources.at[head->part];
    bool is_deep = tree_path_bytes(above, INDEX_NAME_MAX) > INDEX_PATH_MAX;
    int r = 0;
    for (uint32_t at = head->at, next; r == 0 && at < end;) {
        next = part_scan(s, at, end, false);
        r = (is_deep ? tree_take_deep : tree_take_run)(t, head, at, next - at, above);
        at = part_scan(s, next, end, true);
    }
    head->at = part_scan(s, end, head->end, true);
    return r;
}

/* ---- heads ---- */

static const char *head_name(const struct tree *t, const struct tree_head *head, uint32_t at,
                             size_t *ret_len)
{
    if (head->part != PART_NAMES)
        return part_name(&t->sources.at[head->part], at, ret_len);
    *ret_len = t->names.at[at].len;
    return t->names.at[at].at;
}

static void head_set_key(const struct tree *t, struct tree_head *head)
{
    size_t len;
    const char *name = head_name(t, head, head->at, &len);
    head->key = 0;
    if (len > t->common)
        memcpy(&head->key, name + t->common, min_u64(len - t->common, sizeof(head->key)));
    head->key = be64toh(head->key);
}

/* The order of two heads' names. */
static int head_compare(const struct tree *t, const struct tree_head *a,
                        const struct tree_head *b)
{
    size_t a_len, b_len;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    const char *x = head_name(t, a, a->at, &a_len), *y = head_name(t, b, b->at, &b_len);
    return bytes_compare(x, a_len, y, b_len);
}

/* The same; of equal names, the earlier place's is first. */
static bool head_is_before(const struct tree *t, uint32_t a, uint32_t b)
{
    int compared = head_compare(t, &t->heads.at[a], &t->heads.at[b]);
    return compared < 0 || (compared == 0 && a < b);
}

/* Put a head with its next entry into the heap, which has room. */
static void tree_push_head(struct tree *t, uint32_t number)
{
    uint32_t *heap = t->heap.at;
    if (t->heads.at[number].at == t->heads.at[number].end)
        return;
    head_set_key(t, &t->heads.at[number]);
    size_t i = t->heap.count++;
    for (size_t up; i > 0 && head_is_before(t, number, heap[up = (i - 1) / 2]); i = up)
        heap[i] = heap[up];
    heap[i] = number;
}

static uint32_t tree_pop_head(struct tree *t)
{
    uint32_t *heap = t->heap.at, first = heap[0], number = heap[--t->heap.count];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < t->heap.count; i = down) {
        if (down + 1 < t->heap.count && head_is_before(t, heap[down + 1], heap[down]))
            down++;
        if (!head_is_before(t, heap[down], number))
            break;
        heap[i] = heap[down];
    }
    heap[i] = number;
    return first;
}

/* How many bytes all names of the heads have in common: the names between are alike as well. */
static size_t tree_find_common(const struct tree *t)
{
    size_t common, len;
    const char *first = head_name(t, &t->heads.at[0], t->heads.at[0].at, &common);
    for (size_t i = 0; i < t->heads.count; i++) {
        const struct tree_head *head = &t->heads.at[i];
        const uint32_t ends[] = {head->at, head->end - 1};
        for (size_t j = 0; j < 2; j++) {
            const char *name = head_name(t, head, ends[j], &len);
            size_t same = 0;
            common = min_u64(common, len);
            while (same < common && first[same] == name[same])
                same++;
            common = same;
        }
    }
    return common;
}

/* Add the heads of a place: its entries in its index, and the names that were put there. */
static int tree_add_heads(struct tree *t, const struct tree_target *target)
{
    struct tree_head own = {.part = target->place.part, .label = target->label};
    struct tree_head put = {.part = PART_NAMES};
    if (own.part != TREE_MADE) {
        const struct tree_source *s = &t->sources.at[own.part];
        uint64_t data = le64toh(s->entries[target->place.position].data);
        own.end = (uint32_t)data + (uint32_t)(data >> 32);
        own.at = data >> 32 ? part_scan(s, (uint32_t)data, own.end, true) : own.end;
    }
    put.at = t->names.count ? tree_find_name(t, target->place) : 0;
    for (put.end = put.at;
         put.end < t->names.count &&
         tree_compare_places(t->names.at[put.end].directory, target->place) == 0;)
        put.end++;
    if (own.at < own.end && vector_push(&t->heads, own) < 0)
        return -ENOMEM;
    return put.at < put.end ? vector_push(&t->heads, put) : 0;
}

/* Fill the heap with the entries of a directory's places. */
static int tree_begin_heads(struct tree *t, const struct tree_dir *dir)
{
    t->heads.count = t->heap.count = 0;
    for (uint32_t i = 0; i < dir->target_count; i++)
        if (tree_add_heads(t, &t->targets.at[dir->first_target + i]) < 0)
            return -ENOMEM;
    if (vector_reserve(&t->heap, t->heads.count) < 0)
        return -ENOMEM;
    t->common = t->heads.count > 1 ? tree_find_common(t) : 0;
    for (uint32_t i = 0; i < t->heads.count; i++)
        tree_push_head(t, i);
    return 0;
}

/* ---- one name ---- */

static bool tree_is_directory(struct tree *t, struct tree_place place)
{
    if (place.part == TREE_MADE)
        return true;
    struct tree_source *s = &t->sources.at[place.part];
    uint32_t number = part_find_dir(s, place.position);
    return number < s->dir_count && le32toh(s->dirs[number]) == place.position;
}

static bool tree_is_same_inode(const struct tree *t, struct tree_place a, struct tree_place b)
{
    uint32_t x, y;
    const struct index *index = t->sources.at[a.part].part.index;
    return a.part == b.part && index_inode_position(index, a.position, &x) == 0 &&
           index_inode_position(index, b.position, &y) == 0 && x == y;
}

/* The end of a name, which tells more of two shards than its beginning. */
static const char *tree_name_end(const struct tree *t, const struct tree_target *target)
{
    const char *name =
        target->place.part == TREE_MADE ? NULL : t->sources.at[target->place.part].part.name;
    size_t len = name ? strlen(name) : 0;
    return !name ? "" : len > 100 ? name + len - 100 : name;
}

static int tree_conflict(struct tree *t, const struct tree_target *first,
                         const struct tree_target *other)
{
    char what[sizeof(t->fault->what)], path[INDEX_PATH_MAX + 1] = "";
    size_t len;
    bool is_of_two = first->place.part != other->place.part && first->place.part != TREE_MADE &&
                     other->place.part != TREE_MADE;
    if (first->place.part != TREE_MADE)
        (void)index_path(t->sources.at[first->place.part].part.index, first->place.position,
                         path, sizeof(path), &len);
    if (is_of_two)
        snprintf(what, sizeof(what), "is in '%.100s' and in '%.100s'", tree_name_end(t, first),
                 tree_name_end(t, other));
    else if (first->place.part == TREE_MADE)
        snprintf(what, sizeof(what),
                 "would have the name of a directory that other names need");
    else
        snprintf(what, sizeof(what), "would have the name that '%.150s' has", path);
    return tree_fail(t, other, -EEXIST, what);
}

/*
 * Decide what has a name: the last targets, from `first` on, of which those are kept that are
 * directories, if the first one is.
 */
static int tree_settle(struct tree *t, size_t first, bool is_directory)
{
    struct tree_target *targets = t->targets.at;
    size_t kept = first + 1;
    for (size_t i = first + 1; i < t->targets.count; i++) {
        bool other_is = tree_is_directory(t, targets[i].place);
        if (is_directory && other_is)
            targets[kept++] = targets[i];
        else if (!t->keeps_first &&
                 (is_directory || other_is ||
                  !tree_is_same_inode(t, targets[first].place, targets[i].place)))
            return tree_conflict(t, &targets[first], &targets[i]);
    }
    t->targets.count = is_directory ? kept : first + 1;
    return 0;
}

/* Take an entry under a name, which is its own unless it was put. */
static int tree_take_one(struct tree *t, const struct tree_target *target, const char *name,
                         size_t len, bool is_put)
{
    struct builder_copy_name put = {name, len};
    struct tree_place place = target->place;
    if (place.part == TREE_MADE)
        place = (struct tree_place){t->made.at[place.position], INDEX_ROOT};
    if (is_put && vector_push(&t->run_names, put) < 0)
        return -ENOMEM;
    const struct builder_copy_run run = {place.part, place.position, 1,
                                         is_put ? (uint32_t)t->run_names.count : 0};
    return tree_add_run(t, &run);
}

/* Move the head's entries of this name to the targets. */
static int tree_collect(struct tree *t, struct tree_head *head, const char *name, size_t len)
{
    if (head->part != PART_NAMES) {
        struct tree_target target = {{head->part, head->at}, head->label};
        head->at =
            part_scan(&t->sources.at[head->part], head->at + UINT64_C(1), head->end, true);
        return vector_push(&t->targets, target);
    }
    for (; head->at < head->end; head->at++) {
        const struct tree_name *put = &t->names.at[head->at];
        struct tree_target target = {put->target, put->label};
        if (put->len != len || memcmp(put->at, name, len) != 0)
            break;
        if (vector_push(&t->targets, target) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* Move what all heads have under the name of this one to the targets. */
static int tree_collect_all(struct tree *t, uint32_t number, const char *name, size_t len)
{
    const struct tree_head head = t->heads.at[number];
    t->taken.count = 0;
    int r = vector_push(&t->taken, number);
    while (r == 0 && t->heap.count > 0 &&
           head_compare(t, &head, &t->heads.at[t->heap.at[0]]) == 0)
        r = vector_push(&t->taken, tree_pop_head(t));
    for (size_t i = 0; r == 0 && i < t->taken.count; i++)
        r = tree_collect(t, &t->heads.at[t->taken.at[i]], name, len);
    for (size_t i = 0; r == 0 && i < t->taken.count; i++)
        tree_push_head(t, t->taken.at[i]);
    return r;
}

/* Take what comes next in this head, together with what others have under the same name. */
static int tree_take_name(struct tree *t, uint32_t number, uint64_t above)
{
    const struct tree_head head = t->heads.at[number];
    struct builder_copy_dir *dir = &t->dirs.at[t->dirs.count - 1];
    size_t first = t->targets.count, len;
    const char *name = head_name(t, &head, head.at, &len);
    int r = tree_collect_all(t, number, name, len);
    if (r < 0)
        return r;
    const struct tree_target target = t->targets.at[first];
    bool is_directory = tree_is_directory(t, target.place);
    if (tree_path_bytes(above, len) > INDEX_PATH_MAX) {
        t->targets.count = first;
        return tree_leave_out(t, &target);
    }
    dir->children++;
    dir->directories += is_directory;
    r = tree_settle(t, first, is_directory);
    if (r == 0)
        r = tree_take_one(t, &target, name, len, head.part == PART_NAMES);
    if (r == 0 && is_directory)
        return tree_add_dir(t, first, tree_path_bytes(above, len));
    t->targets.count = first;
    return r;
}

/* Where the head's names are no longer before the other's. */
static uint32_t head_find_end(const struct tree *t, const struct tree_head *head,
                              const struct tree_head *other)
{
    struct tree_head at = *head;
    at.at = head->end - 1;
    head_set_key(t, &at);
    if (head_compare(t, &at, other) < 0)
        return head->end;
    for (at.at = head->at + 1; at.at < head->end; at.at++) {
        head_set_key(t, &at);
        if (head_compare(t, &at, other) >= 0)
            break;
    }
    return at.at;
}

static int tree_one_dir(struct tree *t, const struct tree_dir *dir)
{
    int r = vector_push(&t->dirs, (struct builder_copy_dir){0});
    if (r == 0)
        r = tree_begin_heads(t, dir);
    while (r == 0 && t->heap.count > 0) {
        uint32_t number = tree_pop_head(t);
        struct tree_head *head = &t->heads.at[number];
        const struct tree_head *next = t->heap.count ? &t->heads.at[t->heap.at[0]] : NULL;
        if (head->part == PART_NAMES || (next && head_compare(t, head, next) == 0)) {
            r = tree_take_name(t, number, dir->path_bytes);
            continue;
        }
        r = tree_take(t, head, next ? head_find_end(t, head, next) : head->end,
                      dir->path_bytes);
        tree_push_head(t, number);
    }
    return r;
}

static int tree_walk(struct tree *t)
{
    const struct tree_target top = {TREE_TOP, 0};
    if (t->names.count > 0)
        qsort(t->names.at, t->names.count, sizeof(*t->names.at), tree_by_name);
    int r = tree_check_all(t);
    if (r == 0)
        r = tree_take_one(t, &top, "", 0, false);
    if (r == 0) /* names come last, as everywhere */
        r = vector_push(&t->targets, top);
    if (r == 0)
        r = tree_add_dir(t, 0, 0);
    for (size_t i = 0; r == 0 && i < t->queue.count; i++) {
        const struct tree_dir dir = t->queue.at[i];
        r = tree_one_dir(t, &dir);
    }
    return r;
}

/* ---- 3. the image ---- */

static int tree_write_image(struct tree *t, struct builder_header *header, int fd)
{
    VECTOR(struct builder_copy_part) parts = {0};
    uint64_t ignored;
    int r = 0;
    for (size_t i = 0; r == 0 && i < t->sources.count; i++) {
        const struct tree_source *s = &t->sources.at[i];
        r = vector_push(&parts, (struct builder_copy_part){s->part.index, s->part.base,
                                                           s->part.name, s->puts > 1});
    }
    const struct builder_copy copy = {.parts = parts.at,
                                      .part_count = parts.count,
                                      .names = t->run_names.at,
                                      .runs = t->runs.at,
                                      .run_count = t->runs.count,
                                      .dirs = t->dirs.at,
                                      .dir_count = t->dirs.count};
    if (r == 0)
        r = builder_copy(t->builder, &copy, header, t->fault);
    if (r == 0)
        r = builder_write(t->builder, header, fd, 0, t->fault, &ignored);
    for (size_t i = 0; r == 0 && i < t->sources.count; i++)
        if (index_is_lost(t->sources.at[i].part.index))
            r = tree_damaged(t, &t->sources.at[i]);
    vector_free(&parts);
    return r;
}

int tree_write(struct tree *t, struct builder_header *header, int fd, struct fault *fault)
{
    int r = 0;
    t->fault = fault;
    for (size_t i = 0; r == 0 && i < t->sources.count; i++) {
        const struct tree_source *s = &t->sources.at[i];
        /* what a part's own index lacks is missing in the new one, too */
        if (!s->part.forgets_left_out)
            r = builder_leave_out_as(t->builder, s->part.index);
        if (r == -EUCLEAN)
            r = tree_damaged(t, s);
    }
    if (r == 0)
        r = tree_walk(t);
    return r < 0 ? r : tree_write_image(t, header, fd);
}
