/*
 * Files of a folder by number, known orders of them, and the lists in which orders are given
 * and recorded.
 */
#include "known_reads.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "numbers.h"
#include "permutation.h"
#include "vector.h"
#include "write_at.h"

/* ---- files by number ---- */

/*
 * The index sorts names by bytes, which for UTF-8 is the order of code points, and Python sorts
 * by those. So the files of a directory need no sorting. In a tree with one level of classes
 * the positions ascend, too, and bisection finds the number of a file.
 *
 * Symbolic links are followed as torchvision does, which calls is_dir() and os.walk with
 * followlinks. Links to directories above them end at 40 links. Several of these multiply each
 * other, and LINKED_MOST ends that.
 */

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

/* ---- orders that are given ---- */

/*
 * The paths in a list of files, and the entries that they name. Such a list was often made
 * before the data was packed. So its paths may start with the directories that led to the data
 * then (/data/set/train/a.jpg, or the mount point of another job). Or they may start further
 * down than the mount does (a.jpg, where the archive has train/a.jpg). The first lines show
 * which case it is.
 *
 * A path is written as it is, or between quotation marks with the escapes \\ \" \n \r, so
 * that a name with a newline fits on one line. Lines may end as on Windows.
 */

/*
 * Lines that name no file are left out and counted, and the first of them is reported. Where
 * they outnumber the others, the text is not a list of this archive's files.
 */

/* A text as lines. They end with NUL if there is one in the text, else with a newline. */
struct list_text {
    const char *text;
    size_t len, at;
    char separator;
    uint64_t line; /* of the line that came last, counted from 1 */
};

struct list_paths {
    const struct index *index;
    uint32_t root;
    uint32_t directory; /* where paths start, */
    const char *prefix; /* except those with this prefix: their rest starts at the root */
    size_t prefix_len;
};

#define LINE_MOST (2 * PATH_MAX + 3u) /* a quoted path; a longer line names no file */
#define SAMPLE_LINES 64u
#define PREFIXES_MAX 32u
#define DIRECTORIES_MAX 256u
#define ENTRIES_MAX 4096u /* of the root, searched for directories */

/* ---- lines ---- */

static void list_text_init(struct list_text *t, const char *bytes, size_t len)
{
    static const char mark[] = "\xef\xbb\xbf"; /* of UTF-8, as Windows programs write it */
    bool marked = len >= 3 && memcmp(bytes, mark, 3) == 0;

    *t = (struct list_text){.text = bytes, .len = len, .at = marked ? 3 : 0};
    t->separator = len && memchr(bytes, '\0', len) ? '\0' : '\n';
}

/* The next line that is not empty. False: there are no more. */
static bool list_text_next(struct list_text *t, const char **ret_line, size_t *ret_len)
{
    while (t->at < t->len) {
        const char *line = t->text + t->at;
        const char *end = memchr(line, t->separator, t->len - t->at);
        size_t n = end ? (size_t)(end - line) : t->len - t->at;
        t->at += n + 1;
        t->line++;
        if (n == 0 || (n == 1 && line[0] == '\r'))
            continue;
        *ret_line = line;
        *ret_len = n;
        return true;
    }
    return false;
}

/* ---- quoting ---- */

static const char escaped[] = "\\\"\n\r", letters[] = "\\\"nr";

/* Does a path have to be quoted? */
static bool list_path_is_odd(const char *path, size_t len)
{
    return len > 0 && (path[0] == '"' || path[len - 1] == '\r' || memchr(path, '\n', len));
}

/* Quote it, marks included. `ret_quoted` has room for 2 * len + 2 bytes. Returns the length. */
static size_t list_path_quote(const char *path, size_t len, char *ret_quoted)
{
    char *out = ret_quoted;

    *out++ = '"';
    for (size_t i = 0; i < len; i++) {
        const char *known = path[i] ? strchr(escaped, path[i]) : NULL;
        if (known)
            *out++ = '\\';
        *out++ = known ? letters[known - escaped] : path[i];
    }
    *out++ = '"';
    return (size_t)(out - ret_quoted);
}

/* -EINVAL: the line is not quoted, or not correctly. */
static int list_path_unquote(const char *line, size_t len, char ret_path[PATH_MAX],
                             size_t *ret_len)
{
    size_t n = 0;

    if (len < 2 || line[0] != '"' || line[len - 1] != '"')
        return -EINVAL;
    for (size_t i = 1; i < len - 1; i++) {
        char c = line[i];
        if (c == '\\') {
            const char *letter = i + 1 < len - 1 ? strchr(letters, line[i + 1]) : NULL;
            if (!letter || !*letter)
                return -EINVAL;
            c = escaped[letter - letters];
            i++;
        }
        if (n == PATH_MAX)
            return -ENAMETOOLONG;
        ret_path[n++] = c;
    }
    *ret_len = n;
    return 0;
}

/* ---- paths ---- */

static int list_paths_resolve_one(const struct list_paths *p, const char *path, size_t len,
                                  uint32_t *ret_position)
{
    if (p->prefix_len && len > p->prefix_len && memcmp(path, p->prefix, p->prefix_len) == 0 &&
        index_resolve_from(p->index, p->root, path + p->prefix_len, len - p->prefix_len,
                           ret_position) == 0)
        return 0;
    return index_resolve_from(p->index, p->directory, path, len, ret_position);
}

/* The entry that a line names. -ENOENT, -ENOTDIR, -EINVAL, -ENAMETOOLONG: none; -EUCLEAN. */
static int list_paths_resolve(const struct list_paths *p, const char *line, size_t len,
                              uint32_t *ret_position)
{
    bool returns = len > 0 && line[len - 1] == '\r';
    char path[PATH_MAX];
    size_t path_len;

    if (len > LINE_MOST)
        return -ENAMETOOLONG;
    if (list_path_unquote(line, len - returns, path, &path_len) == 0 &&
        list_paths_resolve_one(p, path, path_len, ret_position) == 0)
        return 0;
    int r = list_paths_resolve_one(p, line, len, ret_position);
    if (r < 0 && returns && list_paths_resolve_one(p, line, len - 1, ret_position) == 0)
        return 0;
    return r;
}

/* ---- how to read the paths ---- */

/* How many of the first lines name a file if they are read this way. */
static unsigned list_paths_count_known(const struct list_paths *p, struct list_text text,
                                       unsigned *ret_lines)
{
    const char *line;
    uint32_t position;
    unsigned known = 0;
    struct node node;
    size_t len;

    for (*ret_lines = 0; *ret_lines < SAMPLE_LINES && list_text_next(&text, &line, &len);
         (*ret_lines)++)
        known += list_paths_resolve(p, line, len, &position) == 0 &&
                 index_node(p->index, position, &node) == 0 && !S_ISDIR(node.mode);
    return known;
}

struct list_parse {
    struct list_paths paths;
    struct folder_files *numbered; /* lines are numbers in this folder; NULL: they are paths */
    uint64_t most;
    struct fault *fault;
    struct list_text text;
    unsigned known, lines; /* of the first lines: those that `paths` fit, and all */
    struct fault first;    /* the first line that was left out */
    uint64_t left_out;

    VECTOR(uint32_t) positions;
};

static void list_paths_try(struct list_parse *p, const struct list_paths *way)
{
    unsigned known = list_paths_count_known(way, p->text, &p->lines);

    if (known <= p->known)
        return;
    p->known = known;
    p->paths = *way;
}

/* Try the first line's directories as prefixes, one after the other. */
static void list_paths_try_prefixes(struct list_parse *p, struct list_paths way)
{
    struct list_text text = p->text;
    unsigned tried = 0;
    size_t len;

    if (!list_text_next(&text, &way.prefix, &len))
        return;
    if (way.prefix[0] == '"') { /* paths are compared without the mark */
        way.prefix++;
        len--;
    }
    for (size_t i = 1; i < len && tried < PREFIXES_MAX && p->known < p->lines; i++) {
        if (way.prefix[i] != '/')
            continue;
        way.prefix_len = i + 1;
        list_paths_try(p, &way);
        tried++;
    }
}

static void list_paths_try_directories(struct list_parse *p, struct list_paths way)
{
    uint32_t first, count, tried = 0;
    struct node node;

    if (index_children(way.index, way.root, &first, &count) < 0)
        return;
    count = count < ENTRIES_MAX ? count : ENTRIES_MAX;
    for (uint32_t i = first;
         i < first + count && tried < DIRECTORIES_MAX && p->known < p->lines; i++) {
        if (index_node(way.index, i, &node) < 0 || !S_ISDIR(node.mode))
            continue;
        way.directory = node.position;
        list_paths_try(p, &way);
        tried++;
    }
}

/* Paths below the root, read in the way that fits most of the first lines of the text. */
static void list_paths_find(struct list_parse *p)
{
    const struct list_paths plain = p->paths;

    list_paths_try(p, &plain);
    if (p->known < p->lines)
        list_paths_try_prefixes(p, plain);
    if (p->known < p->lines)
        list_paths_try_directories(p, plain);
}

static bool is_number(const char *line, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!isdigit((unsigned char)line[i]))
            return false;
    return len > 0 && len <= 10;
}

/* Note the line, fit for a message, and its fault. */
static int list_leave_out(struct list_parse *p, const char *line, size_t len, const char *what)
{
    char shown[96];
    size_t n = len < sizeof(shown) - 1 ? len : sizeof(shown) - 1;

    if (p->left_out++ > 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        shown[i] = isprint((unsigned char)line[i]) ? line[i] : '?';
    shown[n] = '\0';
    fault_set(&p->first, -EINVAL, NULL, FAULT_NO_OFFSET, "line %llu: '%s' %s",
              (unsigned long long)p->text.line, shown, what);
    return 0;
}

static int list_add(struct list_parse *p, uint32_t position)
{
    if (p->positions.count == p->most)
        return fault_set(p->fault, -E2BIG, NULL, FAULT_NO_OFFSET, "it has more than %llu lines",
                         (unsigned long long)p->most);
    return vector_push(&p->positions, position);
}

static int list_parse_number(struct list_parse *p, const char *line, size_t len)
{
    uint64_t number = 0;

    if (!is_number(line, len))
        return list_leave_out(p, line, len, "is not a number, but the first line is");
    for (size_t i = 0; i < len; i++)
        number = 10 * number + (uint64_t)(line[i] - '0');
    if (number >= folder_files_count(p->numbered))
        return list_leave_out(p, line, len, "is more than there are files");
    return list_add(p, folder_files_at(p->numbered, (uint32_t)number));
}

static int list_parse_path(struct list_parse *p, const char *line, size_t len)
{
    uint32_t position;
    struct node node;
    int r = list_paths_resolve(&p->paths, line, len, &position);

    if (r == 0)
        r = index_node(p->paths.index, position, &node);
    if (r == -ENOENT || r == -ENOTDIR || r == -EINVAL || r == -ENAMETOOLONG)
        return list_leave_out(p, line, len, "is not in the archive");
    if (r < 0)
        return r;
    if (S_ISDIR(node.mode))
        return list_leave_out(p, line, len, "is a directory");
    return list_add(p, S_ISREG(node.mode) ? node.position : FOLDER_NO_FILE);
}

/* Numbers refer to the folder that training code would make of the mount point. */
static int list_number_files(struct list_parse *p)
{
    static const struct {
        enum folder_kind kind;
        bool images;
    } ways[] = {{FOLDER_CLASSES, true},
                {FOLDER_CLASSES, false},
                {FOLDER_FLAT, true},
                {FOLDER_FLAT, false}};
    int r = 0;

    for (unsigned i = 0; r == 0 && i < sizeof(ways) / sizeof(ways[0]); i++) {
        folder_files_free(p->numbered);
        p->numbered = NULL;
        r = folder_files_new(p->paths.index, p->paths.root, ways[i].kind, ways[i].images,
                             UINT32_MAX - 1, &p->numbered);
        if (r == 0 && folder_files_count(p->numbered))
            break;
    }
    return r;
}

static size_t without_return(const char *line, size_t len)
{
    return len > 0 && line[len - 1] == '\r' ? len - 1 : len;
}

/* The first line decides whether lines are numbers or paths. */
static int list_decide(struct list_parse *p)
{
    struct list_text text = p->text;
    const struct index *index = p->paths.index;
    const char *line;
    uint32_t position;
    size_t len;

    if (!list_text_next(&text, &line, &len))
        return 0;
    len = without_return(line, len);
    if (is_number(line, len) &&
        index_lookup(index, p->paths.root, line, len, &position) == -ENOENT)
        return list_number_files(p);
    list_paths_find(p);
    return 0;
}

static int list_parse_lines(struct list_parse *p)
{
    const char *line;
    size_t len;
    int r = list_decide(p);

    while (r == 0 && list_text_next(&p->text, &line, &len))
        r = p->numbered ? list_parse_number(p, line, without_return(line, len))
                        : list_parse_path(p, line, len);
    return r;
}

/* At least half of the lines must name files of this archive. */
static int list_check_known(struct list_parse *p)
{
    unsigned long long left_out = p->left_out, lines = left_out + p->positions.count;

    if (lines == 0)
        return fault_set(p->fault, -EINVAL, NULL, FAULT_NO_OFFSET, "it names no file");
    if (p->positions.count >= left_out)
        return 0;
    return fault_set_advised(
        p->fault, -EINVAL, NULL, FAULT_NO_OFFSET,
        "each line is the path of a file below the mount point, or each is a number",
        "%s; %llu of %llu lines name no file", p->first.what, left_out, lines);
}

int read_list_parse(const struct index *index, uint32_t root, const char *text, size_t len,
                    uint64_t most, struct fault *fault, uint64_t *ret_left_out,
                    struct known_reads **ret_order)
{
    struct list_parse p = {.paths = {.index = index, .root = root, .directory = root},
                           .most = most,
                           .fault = fault};

    list_text_init(&p.text, text, len);
    int r = list_parse_lines(&p);
    if (r == 0)
        r = list_check_known(&p);
    folder_files_free(p.numbered);
    if (r < 0) {
        vector_free(&p.positions);
        return r;
    }
    r = known_reads_listed(p.positions.at, p.positions.count, ret_order);
    if (r == 0)
        *ret_left_out = p.left_out;
    if (r == 0 && p.left_out > 0)
        *fault = p.first;
    return r;
}

/* ---- orders that are recorded ---- */

#define BUFFER_BYTES (64u << 10)

struct recorder {
    const struct index *index;
    char root[PATH_MAX];
    size_t root_len;
    uint32_t entries;
    uint8_t *times; /* by position */
    int fd, error;
    uint64_t written; /* bytes */
    size_t used;      /* of the buffer */
    char path[PATH_MAX], part[PATH_MAX];
    char buffer[BUFFER_BYTES];
};

int recorder_new(const char *path, const struct index *index, uint32_t root,
                 struct recorder **ret_recorder)
{
    struct recorder *rec = calloc(1, sizeof(*rec));
    int r;

    if (!rec)
        return -ENOMEM;
    rec->fd = -1;
    rec->index = index;
    rec->entries = index_info(index)->entries;
    rec->times = calloc(rec->entries, 1);
    r = rec->times ? index_path(index, root, rec->root, sizeof(rec->root), &rec->root_len)
                   : -ENOMEM;
    if (r == 0 &&
        (snprintf(rec->path, sizeof(rec->path), "%s", path) >= (int)sizeof(rec->path) ||
         snprintf(rec->part, sizeof(rec->part), "%s.part", path) >= (int)sizeof(rec->part)))
        r = -ENAMETOOLONG;
    if (r == 0) {
        rec->fd = open(rec->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
        r = rec->fd < 0 ? -errno : 0;
    }
    if (r < 0) {
        recorder_abandon(rec);
        return r;
    }
    *ret_recorder = rec;
    return 0;
}

void recorder_flush(struct recorder *rec)
{
    if (!rec->error)
        rec->error = write_at(rec->fd, rec->buffer, rec->used, rec->written);
    rec->written += rec->used;
    rec->used = 0;
}

/* The path below the root. NULL: the name leads elsewhere. */
static const char *recorder_below_root(const struct recorder *rec, const char *path, size_t len)
{
    if (rec->root_len == 0)
        return path;
    if (len <= rec->root_len || memcmp(path, rec->root, rec->root_len) != 0 ||
        path[rec->root_len] != '/')
        return NULL;
    return path + rec->root_len + 1;
}

static void recorder_write(struct recorder *rec, const char *line, size_t len)
{
    if (rec->used + len + 1 > sizeof(rec->buffer))
        recorder_flush(rec);
    memcpy(rec->buffer + rec->used, line, len);
    rec->buffer[rec->used + len] = '\n';
    rec->used += len + 1;
}

void recorder_note(struct recorder *rec, uint32_t position)
{
    char path[PATH_MAX], quoted[2 * PATH_MAX + 2];
    size_t len;

    if (position >= rec->entries || rec->times[position] == RECORDER_TIMES ||
        index_path(rec->index, position, path, sizeof(path), &len) < 0)
        return;
    rec->times[position]++;
    const char *line = recorder_below_root(rec, path, len);
    if (!line)
        return;
    len = strlen(line);
    if (list_path_is_odd(line, len))
        recorder_write(rec, quoted, list_path_quote(line, len, quoted));
    else
        recorder_write(rec, line, len);
}

static void recorder_free(struct recorder *rec)
{
    if (rec->fd >= 0)
        close(rec->fd);
    free(rec->times);
    free(rec);
}

void recorder_abandon(struct recorder *rec)
{
    if (!rec)
        return;
    if (rec->fd >= 0)
        unlink(rec->part);
    recorder_free(rec);
}

int recorder_finish(struct recorder *rec)
{
    if (rec->written + rec->used == 0) { /* no file was read */
        recorder_abandon(rec);
        return 0;
    }
    recorder_flush(rec);
    int r = rec->error;
    if (r == 0 && rename(rec->part, rec->path) < 0)
        r = -errno;
    recorder_free(rec);
    return r;
}

void recorder_forget(struct recorder *rec)
{
    if (rec)
        recorder_free(rec);
}
