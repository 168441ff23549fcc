/*
 * The index sorts names by bytes, which for UTF-8 is the order of code points, and Python sorts
 * by those. So the files of a directory need no sorting. In a tree with one level of classes
 * the positions ascend, too, and bisection finds the number of a file.
 */
#include "folder_files.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

struct folder_files {
    _Atomic unsigned owners;
    uint32_t *files; /* by number */
    uint32_t count, room;
    uint32_t *numbers; /* sorted by the positions of their files; NULL: ascending */
};

struct walk {
    const struct index *index;
    struct folder_files *folder;
    bool images_only;
    uint64_t most;
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

static int append(struct walk *w, uint32_t position)
{
    struct folder_files *f = w->folder;

    if (f->count >= w->most)
        return -E2BIG;
    if (f->count == f->room) {
        uint32_t room = f->room < 1024 ? 1024 : f->room + f->room / 2;
        uint32_t *files = realloc(f->files, room * sizeof(*files));
        if (!files)
            return -ENOMEM;
        f->files = files;
        f->room = room;
    }
    f->files[f->count++] = position;
    return 0;
}

/* The files directly in a directory. */
static int add_directory(struct walk *w, uint32_t directory)
{
    uint32_t first, count;
    struct node node;
    int r = index_children(w->index, directory, &first, &count);

    for (uint32_t i = first; r == 0 && i < first + count; i++) {
        r = index_node(w->index, i, &node);
        if (r < 0 || S_ISDIR(node.mode) || (w->images_only && !has_image_name(w->index, i)))
            continue;
        r = append(w, S_ISREG(node.mode) ? node.position : FOLDER_NO_FILE);
    }
    return r;
}

struct place {
    uint32_t directory;
    char *path;
};

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct place *)a)->path, ((const struct place *)b)->path);
}

struct places {
    struct place *at;
    size_t count, room;
};

static int add_place(const struct walk *w, struct places *p, uint32_t directory)
{
    char path[PATH_MAX];
    size_t len;
    int r = index_path(w->index, directory, path, sizeof(path), &len);

    if (r == 0 && p->count == p->room) {
        size_t room = p->room ? 2 * p->room : 16;
        struct place *at = realloc(p->at, room * sizeof(*at));
        if (!at)
            return -ENOMEM;
        p->at = at;
        p->room = room;
    }
    char *copy = r == 0 ? strdup(path) : NULL;
    if (!copy)
        return r < 0 ? r : -ENOMEM;
    p->at[p->count++] = (struct place){directory, copy};
    return 0;
}

/* All directories below the one that is in the list already. */
static int collect_places(const struct walk *w, struct places *p)
{
    uint32_t first, count;
    struct node node;
    int r = 0;

    for (size_t done = 0; r == 0 && done < p->count; done++) {
        r = index_children(w->index, p->at[done].directory, &first, &count);
        for (uint32_t i = first; r == 0 && i < first + count; i++) {
            r = index_node(w->index, i, &node);
            if (r == 0 && S_ISDIR(node.mode))
                r = add_place(w, p, node.position);
        }
    }
    return r;
}

static int has_directories(const struct index *index, uint32_t directory, bool *ret_has)
{
    uint32_t first, count;
    struct node node;
    int r = index_children(index, directory, &first, &count);

    *ret_has = false;
    for (uint32_t i = first; r == 0 && !*ret_has && i < first + count; i++)
        if ((r = index_node(index, i, &node)) == 0)
            *ret_has = S_ISDIR(node.mode);
    return r;
}

static int add_class(struct walk *w, uint32_t directory)
{
    struct places p = {0};
    bool nested;
    int r = has_directories(w->index, directory, &nested);

    if (r < 0 || !nested)
        return r < 0 ? r : add_directory(w, directory);
    r = add_place(w, &p, directory);
    if (r == 0)
        r = collect_places(w, &p);
    if (r == 0)
        qsort(p.at, p.count, sizeof(p.at[0]), compare_paths);
    for (size_t i = 0; i < p.count; i++) {
        if (r == 0)
            r = add_directory(w, p.at[i].directory);
        free(p.at[i].path);
    }
    free(p.at);
    return r;
}

static int add_classes(struct walk *w, uint32_t directory)
{
    uint32_t first, count;
    struct node node;
    int r = index_children(w->index, directory, &first, &count);

    for (uint32_t i = first; r == 0 && i < first + count; i++) {
        r = index_node(w->index, i, &node);
        if (r == 0 && S_ISDIR(node.mode))
            r = add_class(w, node.position);
    }
    return r;
}

static int compare_numbers(const void *a, const void *b, void *files)
{
    uint32_t x = ((const uint32_t *)files)[*(const uint32_t *)a];
    uint32_t y = ((const uint32_t *)files)[*(const uint32_t *)b];
    return (x > y) - (x < y);
}

static int sort_numbers(struct folder_files *f)
{
    bool ascending = true;

    for (uint32_t i = 1; ascending && i < f->count; i++)
        ascending = f->files[i] > f->files[i - 1];
    if (ascending)
        return 0;
    f->numbers = malloc(f->count * sizeof(*f->numbers));
    if (!f->numbers)
        return -ENOMEM;
    for (uint32_t i = 0; i < f->count; i++)
        f->numbers[i] = i;
    qsort_r(f->numbers, f->count, sizeof(*f->numbers), compare_numbers, f->files);
    return 0;
}

int folder_files_new(const struct index *index, uint32_t directory, enum folder_kind kind,
                     bool images_only, uint64_t most, struct folder_files **ret_folder)
{
    struct folder_files *f = calloc(1, sizeof(*f));
    struct walk w = {index, f, images_only, most};

    if (!f)
        return -ENOMEM;
    f->owners = 1;
    int r = kind == FOLDER_FLAT ? add_directory(&w, directory) : add_classes(&w, directory);
    if (r == 0)
        r = sort_numbers(f);
    if (r < 0) {
        folder_files_free(f);
        return r;
    }
    *ret_folder = f;
    return 0;
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
    free(folder->files);
    free(folder->numbers);
    free(folder);
}

uint32_t folder_files_count(const struct folder_files *folder)
{
    return folder->count;
}

uint32_t folder_files_at(const struct folder_files *folder, uint32_t i)
{
    return folder->files[i];
}

int folder_files_number(const struct folder_files *f, uint32_t position, uint32_t *ret_number)
{
    uint32_t low = 0, high = f->count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t number = f->numbers ? f->numbers[middle] : middle;
        if (f->files[number] < position)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == f->count)
        return -ENOENT;
    uint32_t number = f->numbers ? f->numbers[low] : low;
    if (f->files[number] != position)
        return -ENOENT;
    *ret_number = number;
    return 0;
}
