/*
 * The index sorts names by bytes, which for UTF-8 is the order of code points, and Python sorts
 * by those. So the files of a directory need no sorting. In a tree with one level of classes
 * the positions ascend, too, and bisection finds the number of a file.
 *
 * Symbolic links are followed as torchvision does, which calls is_dir() and os.walk with
 * followlinks. Links to directories above them end at 40 links. Several of these multiply each
 * other, and LINKED_MOST ends that.
 */
#include "known_reads.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "cleanup.h"
#include "permutation.h"
#include "search.h"
#include "vector.h"

struct folder_files {
    _Atomic unsigned owners;
    VECTOR(uint32_t) files; /* by number */
    uint32_t *numbers;      /* sorted by file, then by number; NULL: so they are */
};

#define LINKED_MOST (UINT64_C(32) << 20) /* steps of links, and entries behind them */

struct place {
    uint32_t directory;
    unsigned links; /* followed on the way to it */
    char *path;     /* from the class on */
};

struct folder_walk {
    const struct index *index;
    struct folder_files *folder;
    bool images_only;
    uint64_t most;
    uint64_t linked;             /* see LINKED_MOST */
    VECTOR(struct place) places; /* the directories of a class */
};

/* An entry of a place, and the inode that it is or leads to. */
struct child {
    uint32_t entry;
    struct node node;
    unsigned links;
};

static bool has_image_name(const struct index *index, uint32_t entry)
{
    static const char *const known[] = {".jpg", ".jpeg", ".png",  ".ppm", ".bmp",
                                        ".pgm", ".tif",  ".tiff", ".webp"};
    const char *name;
    size_t len;

    if (index_name(index, entry, &name, &len) < 0)
        return false;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        size_t n = strlen(known[i]);
        if (len >= n && strncasecmp(name + len - n, known[i], n) == 0)
            return true;
    }
    return false;
}

/* A link that leads nowhere is itself: it has a name, and is no directory. */
static int folder_follow(struct folder_walk *w, struct child *c)
{
    struct index_way way = {.links = c->links};
    uint32_t position;
    int r = index_follow(w->index, c->entry, "", &way, &position);

    w->linked += way.steps;
    if (r < 0)
        return r == -EUCLEAN ? r : 0;
    c->links = way.links;
    return index_node(w->index, position, &c->node);
}

static int folder_walk_children(struct folder_walk *w, const struct place *place,
                                int (*visit)(struct folder_walk *w, const struct place *place,
                                             const struct child *c))
{
    uint32_t first, count;
    int r = index_children(w->index, place->directory, &first, &count);

    if (r == 0 && place->links)
        w->linked += count;
    for (uint32_t i = first; r == 0 && i < first + count; i++) {
        struct child c = {.entry = i, .links = place->links};
        r = index_node(w->index, i, &c.node);
        if (r == 0 && S_ISLNK(c.node.mode))
            r = folder_follow(w, &c);
        if (r == 0)
            r = w->linked > LINKED_MOST ? -E2BIG : visit(w, place, &c);
    }
    return r;
}

static int folder_visit_file(struct folder_walk *w, const struct place *place,
                             const struct child *c)
{
    (void)place;
    if (S_ISDIR(c->node.mode) || (w->images_only && !has_image_name(w->index, c->entry)))
        return 0;
    if (w->folder->files.count >= w->most)
        return -E2BIG;
    return vector_push(&w->folder->files,
                       S_ISREG(c->node.mode) ? c->node.position : FOLDER_NO_FILE);
}

static int folder_visit_place(struct folder_walk *w, const struct place *place,
                              const struct child *c)
{
    const char *name;
    size_t len;
    char *path;

    if (!S_ISDIR(c->node.mode))
        return 0;
    int r = index_name(w->index, c->entry, &name, &len);
    if (r < 0)
        return r;
    int path_len =
        asprintf(&path, "%s%s%.*s", place->path, *place->path ? "/" : "", (int)len, name);
    if (path_len < 0)
        return -ENOMEM;
    if (c->links)
        w->linked += (uint64_t)path_len;
    r = path_len > (int)INDEX_PATH_MAX /* no program can list it */
            ? 1
            : vector_push(&w->places, (struct place){c->node.position, c->links, path});
    if (r != 0)
        free(path);
    return r < 0 ? r : 0;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->path, ((const struct place *)b)->path);
}

static int folder_visit_class(struct folder_walk *w, const struct place *place,
                              const struct child *c)
{
    (void)place;
    if (!S_ISDIR(c->node.mode))
        return 0;
    char *own = strdup(""); /* it sorts before everything below it */
    int r = own ? vector_push(&w->places, (struct place){c->node.position, c->links, own})
                : -ENOMEM;
    if (r < 0)
        free(own);
    for (size_t i = 0; r == 0 && i < w->places.count; i++) {
        const struct place at = w->places.at[i]; /* they move when one is added */
        r = folder_walk_children(w, &at, folder_visit_place);
    }
    if (r == 0 && w->places.count > 1)
        qsort(w->places.at, w->places.count, sizeof(w->places.at[0]), compare_paths);
    for (size_t i = 0; i < w->places.count; i++) {
        if (r == 0)
            r = folder_walk_children(w, &w->places.at[i], folder_visit_file);
        free(w->places.at[i].path);
    }
    w->places.count = 0;
    return r;
}

/* Order numbers of files by the file that they lead to, then by number. */
static int compare_numbers(const void *a, const void *b, void *files)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    uint32_t x = ((const uint32_t *)files)[i], y = ((const uint32_t *)files)[j];
    return x != y ? (x > y) - (x < y) : (i > j) - (i < j);
}

static int sort_numbers(struct folder_files *f)
{
    bool ascending = true;

    for (size_t i = 1; ascending && i < f->files.count; i++)
        ascending = f->files.at[i] > f->files.at[i - 1];
    if (ascending)
        return 0;
    f->numbers = malloc(f->files.count * sizeof(*f->numbers));
    if (!f->numbers)
        return -ENOMEM;
    for (uint32_t i = 0; i < f->files.count; i++)
        f->numbers[i] = i;
    qsort_r(f->numbers, f->files.count, sizeof(*f->numbers), compare_numbers, f->files.at);
    return 0;
}

int folder_files_new(const struct index *index, uint32_t directory, enum folder_kind kind,
                     bool images_only, uint64_t most, struct folder_files **ret_folder)
{
    struct folder_files *f = calloc(1, sizeof(*f));
    struct folder_walk w = {
        .index = index, .folder = f, .images_only = images_only, .most = most};

    if (!f)
        return -ENOMEM;
    f->owners = 1;
    int r = folder_walk_children(&w, &(struct place){.directory = directory},
                                 kind == FOLDER_FLAT ? folder_visit_file : folder_visit_class);
    vector_free(&w.places);
    if (r == 0)
        r = sort_numbers(f);
    if (r < 0) {
        folder_files_free(f);
        return r;
    }
    *ret_folder = f;
    return 0;
}

/*
 * Files that a list names, by the positions of their inodes; one may occur several times. Takes
 * over `positions` (from malloc), also on failure. -ENOMEM.
 */
static int folder_files_listed(uint32_t *positions, uint64_t count,
                               struct folder_files **ret_folder)
{
    struct folder_files *f = calloc(1, sizeof(*f));
    if (!f) {
        free(positions);
        return -ENOMEM;
    }
    *f = (struct folder_files){.owners = 1, .files = {positions, count, count}};
    int r = sort_numbers(f);
    if (r < 0)
        folder_files_free(f);
    else
        *ret_folder = f;
    return r;
}

struct folder_files *folder_files_share(struct folder_files *folder)
{
    atomic_fetch_add(&folder->owners, 1);
    return folder;
}

void folder_files_free(struct folder_files *folder)
{
    if (!folder || atomic_fetch_sub(&folder->owners, 1) > 1)
        return;
    vector_free(&folder->files);
    free(folder->numbers);
    free(folder);
}

uint32_t folder_files_count(const struct folder_files *folder)
{
    return (uint32_t)folder->files.count;
}

uint32_t folder_files_at(const struct folder_files *folder, uint32_t i)
{
    return folder->files.at[i];
}

/* In order of files and numbers. */
static uint32_t sorted_number(const struct folder_files *f, uint32_t i)
{
    return f->numbers ? f->numbers[i] : i;
}

static bool is_from(const struct folder_files *f, uint32_t i, uint32_t position, uint64_t from)
{
    uint32_t number = sorted_number(f, i), file = f->files.at[number];

    return file > position || (file == position && number >= from);
}

int folder_files_number(const struct folder_files *f, uint32_t position, uint64_t from,
                        uint32_t *ret_number)
{
    uint32_t count = (uint32_t)f->files.count;
    uint32_t at = (uint32_t)search_first(i, 0, count, is_from(f, (uint32_t)i, position, from));

    if (at == count || f->files.at[sorted_number(f, at)] != position)
        return -ENOENT;
    *ret_number = sorted_number(f, at);
    return 0;
}

/* ---- a known order of reads ---- */

/*
 * A list is read as its files are numbered. A shuffle keeps the permutation of their numbers
 * and its inverse.
 */

struct known_reads {
    _Atomic unsigned owners;
    uint64_t count;
    struct folder_files *folder;
    uint32_t *numbers; /* of a shuffle, by place; NULL: a list */
    uint32_t *places;  /* of a shuffle, by number */
};

/* Takes over an owner of the folder, also on failure. */
static int known_reads_new(struct folder_files *folder, struct known_reads **ret_order)
{
    struct known_reads *o = calloc(1, sizeof(*o));

    if (!o) {
        folder_files_free(folder);
        return -ENOMEM;
    }
    o->owners = 1;
    o->count = folder_files_count(folder);
    o->folder = folder;
    *ret_order = o;
    return 0;
}

int known_reads_listed(uint32_t *positions, uint64_t count, struct known_reads **ret_order)
{
    struct folder_files *folder;
    int r = folder_files_listed(positions, count, &folder);

    return r < 0 ? r : known_reads_new(folder, ret_order);
}

static int known_reads_shuffle(struct known_reads *o, uint64_t seed)
{
    struct permutation *p;

    o->numbers = malloc((o->count + 1) * sizeof(*o->numbers));
    o->places = malloc((o->count + 1) * sizeof(*o->places));
    int r = o->numbers && o->places ? permutation_new(o->count, seed, NULL, &p) : -ENOMEM;
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < o->count; i++) {
        o->numbers[i] = (uint32_t)permutation_at(p, i);
        o->places[o->numbers[i]] = i;
    }
    permutation_free(p);
    return 0;
}

int known_reads_shuffled(struct folder_files *folder, uint64_t seed, uint64_t most_bytes,
                         struct known_reads **ret_order)
{
    struct known_reads *o;

    if (folder_files_count(folder) > most_bytes / (2 * sizeof(uint32_t)))
        return -E2BIG;
    int r = known_reads_new(folder_files_share(folder), &o);
    if (r < 0)
        return r;
    r = known_reads_shuffle(o, seed);
    if (r < 0)
        known_reads_free(o);
    else
        *ret_order = o;
    return r;
}

struct known_reads *known_reads_share(struct known_reads *order)
{
    atomic_fetch_add(&order->owners, 1);
    return order;
}

void known_reads_free(struct known_reads *order)
{
    if (!order || atomic_fetch_sub(&order->owners, 1) > 1)
        return;
    folder_files_free(order->folder);
    free(order->numbers);
    free(order->places);
    free(order);
}

uint64_t known_reads_count(const struct known_reads *order)
{
    return order->count;
}

uint32_t known_reads_at(const struct known_reads *order, uint64_t place)
{
    return folder_files_at(order->folder,
                           order->numbers ? order->numbers[place] : (uint32_t)place);
}

int known_reads_place(const struct known_reads *o, uint32_t position, uint64_t from,
                      uint64_t *ret_place)
{
    uint64_t next = o->places ? 0 : from, found = UINT64_MAX;
    uint32_t number;

    for (unsigned i = 0; i < FOLDER_NUMBERS_MOST; i++, next = (uint64_t)number + 1) {
        if (folder_files_number(o->folder, position, next, &number) < 0)
            break;
        uint64_t place = o->places ? o->places[number] : number;
        if (place >= from && place < found)
            found = place;
        if (!o->places)
            break; /* numbers are places, and this is the first */
    }
    if (found == UINT64_MAX)
        return -ENOENT;
    *ret_place = found;
    return 0;
}

/* ---- the files of an archive ---- */

struct file {
    uint64_t offset;
    uint32_t position;
    uint32_t in_block; /* order among the files of one compressed block */
};

static int first_extent(const struct index *index, uint32_t position, struct extent *ret_extent)
{
    int r = index_extent(index, position, 0, ret_extent);

    if (r == 0 && ret_extent->kind == EXTENT_HOLE)
        r = index_extent(index, position, ret_extent->length, ret_extent);
    return r == 0 && ret_extent->kind == EXTENT_HOLE ? -ENXIO : r;
}

int archive_files_offset(const struct index *index, uint32_t position, uint64_t *ret_offset)
{
    struct extent extent;
    int r = first_extent(index, position, &extent);

    if (r == 0)
        *ret_offset = extent.source_offset;
    return r;
}

static int archive_files_compare(const void *a, const void *b)
{
    const struct file *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->in_block > y->in_block) - (x->in_block < y->in_block);
}

static uint32_t archive_files_collect(const struct index *index, struct file *files)
{
    uint32_t entries = index_info(index)->entries, count = 0;
    struct extent extent;
    struct node node;

    for (uint32_t i = 0; i < entries; i++) {
        if (index_node(index, i, &node) < 0 || !S_ISREG(node.mode) || node.position != i ||
            first_extent(index, i, &extent) < 0)
            continue;
        files[count++] = (struct file){extent.source_offset, i,
                                       extent.kind == EXTENT_BLOCK ? extent.block_offset : 0};
    }
    return count;
}

int archive_files_new(const struct index *index, uint64_t most_bytes,
                      struct known_reads **ret_order)
{
    uint32_t entries = index_info(index)->entries;

    if (entries > most_bytes / sizeof(struct file))
        return -E2BIG;
    auto_free struct file *files = malloc((size_t)entries * sizeof(*files));
    auto_free uint32_t *positions = malloc((size_t)entries * sizeof(*positions));
    if (!files || !positions)
        return -ENOMEM;
    uint32_t count = archive_files_collect(index, files);
    qsort(files, count, sizeof(*files), archive_files_compare);
    for (uint32_t i = 0; i < count; i++)
        positions[i] = files[i].position;
    return known_reads_listed(steal_ptr(&positions), count, ret_order);
}
