/*
 * Merging, in three steps:
 *
 *   1. Check each index: its directories have their children one behind the other, in the order
 *      of the directories, and each child has a good name behind the one before it. Several
 *      threads take part.
 *   2. Walk the new tree breadth first, a directory with its places in all archives at a time,
 *      and note runs of entries. Since both orders are breadth first and by name, the entries
 * of each archive come in their own order: what comes next of its directories is all that is to
 * be remembered.
 *   3. Have the builder copy the runs (builder_copy.h).
 *
 * Heads of archives wait in a heap. They are compared by the eight bytes behind what all names
 * of the directory have in common, as a number.
 */
#include "merge.h"

#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "builder_copy.h"
#include "bytes.h"
#include "cleanup.h"
#include "cpus.h"
#include "graft.h"
#include "index_records.h"
#include "numbers.h"
#include "thread.h"
#include "vector.h"

enum {
    MERGE_THREADS = 8,
    MERGE_THREAD_ENTRIES = 1 << 15, /* that are worth a thread */
    MERGE_STACK_BYTES = 128 << 10,
};

/* An archive, while it is merged. */
struct merge_source {
    const struct merge_part *part;
    const struct disk_entry *entries;
    const char *names;
    const uint32_t *dirs;
    uint64_t name_bytes;
    uint32_t entry_count, dir_count;
    uint32_t next_dir; /* the first of `dirs` that was not met yet */
};

/* A directory of an archive. */
struct merge_place {
    uint32_t part, position;
};

/* A directory of the new tree. */
struct merge_dir {
    size_t first_place;
    uint32_t place_count;
    uint32_t path_bytes;
};

/* The next of an archive's entries in a directory that several have. */
struct merge_head {
    uint64_t key;
    uint32_t part;
    uint32_t at, end;
};

struct merge {
    struct merge_source *sources;
    size_t count;
    _Atomic size_t next_check;
    _Atomic bool refused;

    VECTOR(struct merge_place) places;
    VECTOR(struct merge_dir) queue; /* directories of the new tree, in order */
    VECTOR(struct builder_copy_run) runs;
    VECTOR(struct builder_copy_dir) dirs; /* the same as in `queue`, as far as done */
    uint64_t entries;

    struct merge_head *heads;
    uint32_t *heap; /* numbers of heads */
    size_t heap_count;
    size_t common; /* bytes that all names of the directory begin with */
};

/* ---- names ---- */

static uint64_t merge_name_offset(const struct merge_source *s, uint32_t position)
{
    return position < s->entry_count
               ? le64toh(s->entries[position].name_attr) & (DISK_NAME_LIMIT - 1)
               : s->name_bytes;
}

/* The index was checked. */
static const char *merge_name(const struct merge_source *s, uint32_t position, size_t *ret_len)
{
    uint64_t start = merge_name_offset(s, position);
    *ret_len = merge_name_offset(s, position + 1) - start;
    return s->names + start;
}

/* ---- 1. checking ---- */

/* Names of [first, end): are they good, and in order? */
static bool merge_check_names(const struct merge_source *s, uint32_t first, uint32_t end)
{
    const char *last = NULL;
    size_t last_len = 0;
    uint64_t start = merge_name_offset(s, first);
    for (uint32_t i = first; i < end; i++) {
        uint64_t next = merge_name_offset(s, i + 1);
        if (next <= start || next - start > INDEX_NAME_MAX || next > s->name_bytes)
            return false;
        const char *name = s->names + start;
        size_t len = next - start;
        if ((name[0] == '.' && (len == 1 || (len == 2 && name[1] == '.'))) ||
            (last && bytes_compare(last, last_len, name, len) >= 0))
            return false;
        last = name;
        last_len = len;
        start = next;
    }
    return true;
}

static bool merge_is_directory(const struct merge_source *s, uint32_t position)
{
    const struct disk_attr *attr;
    uint64_t number = le64toh(s->entries[position].name_attr) >> DISK_NAME_BITS;
    attr = index_records(s->part->index, SECTION_ATTRS, number * sizeof(*attr), sizeof(*attr));
    return attr && S_ISDIR(le32toh(attr->mode));
}

/* Are the children of all directories one behind the other, and all entries among them? */
static bool merge_check_tree(const struct merge_source *s)
{
    uint32_t next = 1;
    for (uint32_t i = 0; i < s->dir_count; i++) {
        uint32_t position = le32toh(s->dirs[i]);
        if (position >= next || (i == 0) != (position == INDEX_ROOT) ||
            (i && position <= le32toh(s->dirs[i - 1])) || !merge_is_directory(s, position))
            return false;
        uint64_t data = le64toh(s->entries[position].data);
        uint32_t first = (uint32_t)data, count = (uint32_t)(data >> 32);
        if (count > s->entry_count - next || (count && first != next) ||
            !merge_check_names(s, next, next + count))
            return false;
        next += count;
    }
    return next == s->entry_count;
}

static bool merge_check(struct merge_source *s)
{
    const struct index *index = s->part->index;
    uint64_t dir_bytes = index_section_bytes(index, SECTION_DIRS);
    s->entry_count = index_info(index)->entries;
    s->dir_count = (uint32_t)(dir_bytes / sizeof(*s->dirs));
    s->name_bytes = index_section_bytes(index, SECTION_NAMES);
    s->next_dir = 1;
    s->entries = index_records(index, SECTION_ENTRIES, 0,
                               (uint64_t)s->entry_count * sizeof(*s->entries));
    s->dirs = index_records(index, SECTION_DIRS, 0, dir_bytes);
    s->names = s->name_bytes ? index_records(index, SECTION_NAMES, 0, s->name_bytes) : "";
    return s->entries && s->dirs && s->names && !memchr(s->names, '/', s->name_bytes) &&
           !memchr(s->names, '\0', s->name_bytes) && merge_check_tree(s);
}

static void *merge_run_checks(void *arg)
{
    struct merge *m = arg;
    for (size_t i; (i = atomic_fetch_add(&m->next_check, 1)) < m->count;)
        if (!atomic_load(&m->refused) && !merge_check(&m->sources[i]))
            atomic_store(&m->refused, true);
    return NULL;
}

static int merge_check_all(struct merge *m)
{
    uint64_t entries = 0;
    for (size_t i = 0; i < m->count; i++)
        entries += index_info(m->sources[i].part->index)->entries;
    uint64_t wanted =
        min_u64(min_u64(entries / MERGE_THREAD_ENTRIES, cpus_allowed()), MERGE_THREADS);
    thread_team(wanted, MERGE_STACK_BYTES, merge_run_checks, m);
    return m->refused ? -ENOTSUP : 0;
}

/* ---- 2. the new tree ---- */

static int merge_add_place(struct merge *m, uint32_t part, uint32_t position)
{
    struct merge_place place = {part, position};
    return vector_push(&m->places, place);
}

/*
 * A directory in a directory whose path has `above` bytes; its places are the last ones.
 * -ENOTSUP: a path in it may be too long.
 */
static int merge_add_dir(struct merge *m, size_t first_place, uint64_t above, size_t name_len)
{
    uint64_t path_bytes = above + (above > 0) + name_len;
    struct merge_dir dir = {first_place, (uint32_t)(m->places.count - first_place),
                            (uint32_t)path_bytes};
    return path_bytes + 1 + INDEX_NAME_MAX > INDEX_PATH_MAX ? -ENOTSUP
                                                            : vector_push(&m->queue, dir);
}

static int merge_add_run(struct merge *m, uint32_t part, uint32_t first, uint32_t count)
{
    struct builder_copy_run run = {part, first, count};
    struct builder_copy_run *last = m->runs.count ? &m->runs.at[m->runs.count - 1] : NULL;
    m->entries += count;
    if (m->entries >= UINT32_MAX)
        return -ENOTSUP;
    if (last && last->part == part && last->first != INDEX_ROOT &&
        last->first + last->count == first) {
        last->count += count;
        return 0;
    }
    return count ? vector_push(&m->runs, run) : 0;
}

/* Take entries of an archive; the directories among them are its own alone. */
static int merge_take(struct merge *m, uint32_t part, uint32_t first, uint32_t count,
                      uint64_t above)
{
    struct merge_source *s = &m->sources[part];
    struct builder_copy_dir *dir = &m->dirs.at[m->dirs.count - 1];
    dir->children += count;
    int r = merge_add_run(m, part, first, count);
    while (r == 0 && s->next_dir < s->dir_count &&
           le32toh(s->dirs[s->next_dir]) < first + count) {
        size_t len;
        uint32_t position = le32toh(s->dirs[s->next_dir++]);
        merge_name(s, position, &len);
        dir->directories++;
        r = merge_add_place(m, part, position);
        if (r == 0)
            r = merge_add_dir(m, m->places.count - 1, above, len);
    }
    return r;
}

/* ---- a directory that several have ---- */

static void merge_set_key(const struct merge *m, struct merge_head *head)
{
    size_t len;
    const char *name = merge_name(&m->sources[head->part], head->at, &len);
    head->key = 0;
    if (len > m->common)
        memcpy(&head->key, name + m->common, min_u64(len - m->common, sizeof(head->key)));
    head->key = be64toh(head->key);
}

/* The order of two heads' names. */
static int merge_compare(const struct merge *m, const struct merge_head *a,
                         const struct merge_head *b)
{
    size_t a_len, b_len;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    const char *x = merge_name(&m->sources[a->part], a->at, &a_len);
    const char *y = merge_name(&m->sources[b->part], b->at, &b_len);
    return bytes_compare(x, a_len, y, b_len);
}

/* The same; of equal names that of the earlier archive is first. */
static bool merge_is_before(const struct merge *m, uint32_t a, uint32_t b)
{
    int order = merge_compare(m, &m->heads[a], &m->heads[b]);
    return order < 0 || (order == 0 && a < b);
}

static void merge_push(struct merge *m, uint32_t number)
{
    size_t i = m->heap_count++;
    for (size_t up; i > 0 && merge_is_before(m, number, m->heap[up = (i - 1) / 2]); i = up)
        m->heap[i] = m->heap[up];
    m->heap[i] = number;
}

static uint32_t merge_pop(struct merge *m)
{
    uint32_t first = m->heap[0], number = m->heap[--m->heap_count];
    size_t i = 0;
    for (size_t down; (down = 2 * i + 1) < m->heap_count; i = down) {
        if (down + 1 < m->heap_count && merge_is_before(m, m->heap[down + 1], m->heap[down]))
            down++;
        if (!merge_is_before(m, m->heap[down], number))
            break;
        m->heap[i] = m->heap[down];
    }
    m->heap[i] = number;
    return first;
}

/* How many bytes all names of these heads have in common: those between are alike as well. */
static size_t merge_find_common(const struct merge *m, size_t heads)
{
    size_t common, len;
    const char *first = merge_name(&m->sources[m->heads[0].part], m->heads[0].at, &common);
    for (size_t i = 0; i < heads; i++) {
        const struct merge_head *head = &m->heads[i];
        const uint32_t ends[] = {head->at, head->end - 1};
        for (size_t j = 0; j < 2; j++) {
            const char *name = merge_name(&m->sources[head->part], ends[j], &len);
            size_t same = 0;
            common = min_u64(common, len);
            while (same < common && first[same] == name[same])
                same++;
            common = same;
        }
    }
    return common;
}

/* Fill the heap with the entries that a directory's places have. */
static void merge_begin_heads(struct merge *m, const struct merge_dir *dir)
{
    uint32_t heads = 0;
    for (uint32_t i = 0; i < dir->place_count; i++) {
        const struct merge_place *place = &m->places.at[dir->first_place + i];
        uint64_t data = le64toh(m->sources[place->part].entries[place->position].data);
        uint32_t first = (uint32_t)data, count = (uint32_t)(data >> 32);
        if (count)
            m->heads[heads++] =
                (struct merge_head){.part = place->part, .at = first, .end = first + count};
    }
    m->heap_count = 0;
    m->common = heads ? merge_find_common(m, heads) : 0;
    for (uint32_t i = 0; i < heads; i++) {
        merge_set_key(m, &m->heads[i]);
        merge_push(m, i);
    }
}

/* Step to the head's next entry. */
static void merge_advance(struct merge *m, uint32_t number, uint32_t count)
{
    struct merge_head *head = &m->heads[number];
    head->at += count;
    if (head->at == head->end)
        return;
    merge_set_key(m, head);
    merge_push(m, number);
}

/* Note a place of a directory that several have. -ENOTSUP: it is no directory. */
static int merge_share(struct merge *m, const struct merge_head *head)
{
    struct merge_source *s = &m->sources[head->part];
    if (s->next_dir == s->dir_count || le32toh(s->dirs[s->next_dir]) != head->at)
        return -ENOTSUP;
    s->next_dir++;
    return merge_add_place(m, head->part, head->at);
}

/* The head has the name of the entries that come next. */
static int merge_take_equal(struct merge *m, uint32_t number, uint64_t above)
{
    const struct merge_head head = m->heads[number];
    struct builder_copy_dir *dir = &m->dirs.at[m->dirs.count - 1];
    size_t first_place = m->places.count, len;
    uint32_t waiting = 1;
    int r = merge_share(m, &head);
    merge_name(&m->sources[head.part], head.at, &len);
    while (r == 0 && m->heap_count > 0 && merge_compare(m, &head, &m->heads[m->heap[0]]) == 0) {
        uint32_t other = merge_pop(m);
        r = merge_share(m, &m->heads[other]);
        m->heap[m->count - waiting++] = other; /* at its end, where there is room */
    }
    m->heap[m->count - waiting] = number;
    dir->children++;
    dir->directories++;
    if (r == 0)
        r = merge_add_run(m, head.part, head.at, 1);
    if (r == 0)
        r = merge_add_dir(m, first_place, above, len);
    for (uint32_t i = waiting; r == 0 && i > 0; i--) {
        uint32_t other = m->heap[m->count - i];
        merge_advance(m, other, 1);
    }
    return r;
}

/* How many entries of the head come before those of the other. */
static uint32_t merge_count_before(const struct merge *m, const struct merge_head *head,
                                   const struct merge_head *other)
{
    struct merge_head at = *head;
    at.at = head->end - 1;
    merge_set_key(m, &at);
    if (merge_compare(m, &at, other) < 0)
        return head->end - head->at;
    for (at.at = head->at + 1; at.at < head->end; at.at++) {
        merge_set_key(m, &at);
        if (merge_compare(m, &at, other) >= 0)
            break;
    }
    return at.at - head->at;
}

static int merge_shared_dir(struct merge *m, const struct merge_dir *dir)
{
    int r = 0;
    merge_begin_heads(m, dir);
    while (r == 0 && m->heap_count > 0) {
        uint32_t number = merge_pop(m);
        struct merge_head *head = &m->heads[number];
        const struct merge_head *next = m->heap_count ? &m->heads[m->heap[0]] : NULL;
        if (next && merge_compare(m, head, next) == 0) {
            r = merge_take_equal(m, number, dir->path_bytes);
            continue;
        }
        uint32_t count = next ? merge_count_before(m, head, next) : head->end - head->at;
        r = merge_take(m, head->part, head->at, count, dir->path_bytes);
        merge_advance(m, number, count);
    }
    return r;
}

static int merge_one_dir(struct merge *m, size_t number)
{
    const struct merge_dir dir = m->queue.at[number];
    if (vector_push(&m->dirs, (struct builder_copy_dir){0}) < 0)
        return -ENOMEM;
    if (dir.place_count > 1)
        return merge_shared_dir(m, &dir);
    const struct merge_place *place = &m->places.at[dir.first_place];
    uint64_t data = le64toh(m->sources[place->part].entries[place->position].data);
    uint32_t count = (uint32_t)(data >> 32);
    return count ? merge_take(m, place->part, (uint32_t)data, count, dir.path_bytes) : 0;
}

/* ---- the root ---- */

static int merge_by_name(const void *a, const void *b, void *arg)
{
    const struct merge_source *s = arg;
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    int order = strcmp(s[x].part->under, s[y].part->under);
    return order ? order : (x > y) - (x < y);
}

static bool merge_name_is_good(const char *name)
{
    size_t len = strlen(name);
    return len > 0 && len <= INDEX_NAME_MAX && !strchr(name, '/') && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

/* A root with a directory for each name. */
static int merge_roots_by_name(struct merge *m)
{
    auto_free uint32_t *order = calloc(m->count, sizeof(*order));
    int r = order ? merge_add_run(m, BUILDER_COPY_NO_PART, INDEX_ROOT, 1) : -ENOMEM;
    if (r == 0)
        r = merge_add_dir(m, 0, 0, 0);
    if (r == 0)
        r = vector_push(&m->dirs, (struct builder_copy_dir){0});
    if (r < 0)
        return r;
    for (size_t i = 0; i < m->count; i++)
        order[i] = (uint32_t)i;
    qsort_r(order, m->count, sizeof(*order), merge_by_name, m->sources);
    for (size_t i = 0, end; r == 0 && i < m->count; i = end) {
        const char *name = m->sources[order[i]].part->under;
        size_t first_place = m->places.count;
        r = merge_name_is_good(name) ? 0 : -ENOTSUP;
        for (end = i;
             r == 0 && end < m->count && strcmp(m->sources[order[end]].part->under, name) == 0;
             end++)
            r = merge_add_place(m, order[end], INDEX_ROOT);
        if (r == 0)
            r = merge_add_run(m, order[i], INDEX_ROOT, 1);
        if (r == 0)
            r = merge_add_dir(m, first_place, 0, strlen(name));
        m->dirs.at[0].children++;
        m->dirs.at[0].directories++;
    }
    return r;
}

/* One root for all, which is as the first one's. */
static int merge_roots(struct merge *m)
{
    int r = 0;
    if (m->sources[0].part->under)
        return merge_roots_by_name(m);
    for (size_t i = 0; r == 0 && i < m->count; i++)
        r = merge_add_place(m, (uint32_t)i, INDEX_ROOT);
    if (r == 0)
        r = merge_add_run(m, 0, INDEX_ROOT, 1);
    return r < 0 ? r : merge_add_dir(m, 0, 0, 0);
}

static int merge_trees(struct merge *m)
{
    int r = merge_roots(m);
    for (size_t i = m->dirs.count; r == 0 && i < m->queue.count; i++)
        r = merge_one_dir(m, i);
    return r;
}

/* ---- 3. the image ---- */

static int merge_write_image(const struct merge *m, struct builder *builder,
                             struct builder_header *header, int fd, struct fault *fault)
{
    auto_free struct builder_copy_part *parts = calloc(m->count, sizeof(*parts));
    uint64_t ignored;
    int r = parts ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < m->count; i++) {
        const struct merge_part *part = m->sources[i].part;
        parts[i] = (struct builder_copy_part){part->index, part->base, part->under};
        r = graft_copy_left_out(builder, part->index);
    }
    const struct builder_copy copy = {.parts = parts,
                                      .part_count = m->count,
                                      .runs = m->runs.at,
                                      .run_count = m->runs.count,
                                      .dirs = m->dirs.at,
                                      .dir_count = m->dirs.count};
    if (r == 0)
        r = builder_copy(builder, &copy, header);
    if (r == 0)
        r = builder_write(builder, header, fd, 0, fault, &ignored);
    for (size_t i = 0; r == 0 && i < m->count; i++)
        r = index_is_lost(m->sources[i].part->index) ? -ENOTSUP : 0;
    return r == -EUCLEAN ? -ENOTSUP : r;
}

static int merge_all(struct merge *m, struct builder *builder, struct builder_header *header,
                     int fd, struct fault *fault)
{
    m->heads = calloc(m->count, sizeof(*m->heads));
    m->heap = calloc(m->count, sizeof(*m->heap));
    int r = m->heads && m->heap ? merge_check_all(m) : -ENOMEM;
    if (r == 0)
        r = merge_trees(m);
    return r < 0 ? r : merge_write_image(m, builder, header, fd, fault);
}

int merge_write(const struct merge_part *parts, size_t count, struct builder_header *header,
                int fd, struct fault *fault)
{
    struct merge m = {.sources = calloc(count, sizeof(*m.sources)), .count = count};
    struct builder *builder = NULL;
    int r = m.sources ? builder_new(&builder) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < count; i++)
        m.sources[i].part = &parts[i];
    if (r == 0)
        r = merge_all(&m, builder, header, fd, fault);
    builder_free(builder);
    free(m.sources);
    free(m.heads);
    free(m.heap);
    vector_free(&m.places);
    vector_free(&m.queue);
    vector_free(&m.runs);
    vector_free(&m.dirs);
    if (r == -ENOTSUP && fault)
        *fault = (struct fault){0};
    return r;
}
