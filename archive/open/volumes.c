/*
 * From the name of one part to all of them. The neighbours of a name are names that follow from
 * it, so most files are known to be by themselves after a look for a neighbour; the folder is
 * listed only where there is one.
 *
 * split makes its names longer when it runs out of them, so that they stay sorted: after x89
 * comes x9000, and after xyz xzaaa. Numbers that are not padded go from 9 to 10.
 */
#include "volumes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <linux/magic.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "backend.h"
#include "cleanup.h"
#include "path.h"
#include "source_concat.h"
#include "zip_end.h"

enum {
    HOLE_MAX = 16,         /* parts that may be missing in a row */
    NAME_MAX_BYTES = 255,  /* of a file's name */
    ZIP_SLACK = 256 << 10, /* a record is never cut, so the volume before it is shorter */
};

enum naming { NAMING_NONE, NAMING_DIGITS, NAMING_LETTERS, NAMING_ZIP };

/* ---- names ---- */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_letter(char c)
{
    return c >= 'a' && c <= 'z';
}

/* How many characters at the end are of the same kind as the last one. */
static size_t name_run(const char *name, size_t len)
{
    bool (*is_of)(char) = len && is_digit(name[len - 1]) ? is_digit : is_letter;
    size_t run = 0;
    while (run < len && is_of(name[len - 1 - run]))
        run++;
    return run;
}

static bool is_zip(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcasecmp(dot, ".zip") == 0;
}

static bool is_zip_volume(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && (dot[1] == 'z' || dot[1] == 'Z') && strlen(dot) >= 4 &&
           strspn(dot + 2, "0123456789") == strlen(dot + 2);
}

static enum naming naming_of(const char *path)
{
    const char *name = path_base(path);
    size_t len = strlen(name), run = name_run(name, len);
    if (is_zip(name) || is_zip_volume(name))
        return NAMING_ZIP;
    if (run == 0 || len + 4 > NAME_MAX_BYTES || backend_stem(name, len) < len)
        return NAMING_NONE;
    return is_digit(name[len - 1]) ? NAMING_DIGITS : run >= 2 ? NAMING_LETTERS : NAMING_NONE;
}

bool volumes_may_be(const char *path)
{
    return naming_of(path) != NAMING_NONE && !is_zip(path);
}

bool volumes_are_named_alike(const char *a, const char *b)
{
    size_t len = strlen(a);
    return len == strlen(b) && strncmp(a, b, len - name_run(a, len)) == 0;
}

/* The next name or the one before, of the same length. False: there is none. */
static bool name_step(char *name, bool up)
{
    size_t len = strlen(name), run = name_run(name, len);
    char low = is_digit(name[len - 1]) ? '0' : 'a', high = is_digit(name[len - 1]) ? '9' : 'z';
    for (char *c = name + len; c > name + len - run;) {
        c--;
        if (*c != (up ? high : low)) {
            *c = (char)(*c + (up ? 1 : -1));
            return true;
        }
        *c = up ? low : high;
    }
    return false;
}

/* A name's neighbour may have one of these names: two bytes longer at most, see naming_of(). */
struct neighbours {
    char at[3][NAME_MAX_BYTES + 1];
    size_t count;
};

static void neighbours_after(const char *name, struct neighbours *n)
{
    char *next = n->at[0];
    size_t len = strlen(name), run = name_run(name, len);
    bool digits = is_digit(name[len - 1]);
    strcpy(next, name);
    if (name_step(next, true)) {
        strcpy(stpcpy(n->at[1], next), digits ? "00" : "aa");
        n->count = 2;
    } else if (digits) { /* all of the run is zeros now */
        snprintf(n->at[1], sizeof(n->at[1]), "%.*s1%s", (int)(len - run), name,
                 next + len - run);
        memcpy(next, n->at[1], sizeof(n->at[1]));
        n->count = 1;
    }
}

static void neighbours_before(const char *name, struct neighbours *n)
{
    size_t len = strlen(name), run = name_run(name, len);
    const char *wide = is_digit(name[len - 1]) ? "00" : "aa";
    strcpy(n->at[0], name);
    if (!name_step(n->at[0], false))
        return;
    n->count = 1;
    if (run > 1 && n->at[0][len - run] == '0') {
        snprintf(n->at[1], sizeof(n->at[1]), "%.*s%s", (int)(len - run), name,
                 n->at[0] + len - run + 1);
        n->count = 2;
    }
    if (run > 3 && strcmp(name + len - 2, wide) == 0) {
        snprintf(n->at[n->count], sizeof(n->at[0]), "%.*s", (int)len - 2, name);
        n->count += name_step(n->at[n->count], false);
    }
}

/* Does a set begin with this name? */
static bool name_is_first(const char *name)
{
    size_t len = strlen(name), run = name_run(name, len);
    if (!is_digit(name[len - 1]))
        return strcmp(name + len - 2, "aa") == 0;
    size_t zeros = strspn(name + len - run, "0");
    return zeros == run || strcmp(name + len - run + zeros, "1") == 0;
}

/* ---- is a file an archive by itself? ---- */

/*
 * Is it an archive by itself, as its neighbour is? A cut hardly ever meets a member of a zip,
 * which is not aligned, so a zip of another length is a shard, and may be damaged.
 */
static bool is_shard(const struct source *source, const char *neighbour)
{
    const struct backend *backend, *other;
    const char *compression, *other_compression;
    struct source *file = NULL;
    bool is = backend_begins(source, &backend, &compression) &&
              source_open(neighbour, NULL, &file) == 0 &&
              backend_begins(file, &other, &other_compression) && backend == other &&
              compression == other_compression &&
              ((backend == &backend_zip && source_size(source) != source_size(file)) ||
               compression || !backend->is_whole || backend->is_whole(source));
    source_close(file);
    return is;
}

/* ---- the folder ---- */

struct listing {
    const char *path;  /* that was given */
    const char *given; /* its name */
    int prefix;        /* of the path: the folder, with the slash */
    volume_paths names;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool listing_has(const struct listing *l, const char *name)
{
    return l->names.count > 0 &&
           bsearch(&name, l->names.at, l->names.count, sizeof(*l->names.at), by_name);
}

/* All names that differ in the run alone. */
static int listing_read(struct listing *l)
{
    size_t same = strlen(l->given) - name_run(l->given, strlen(l->given));
    auto_free char *folder = path_folder(l->path);
    auto_closedir DIR *dir = folder ? opendir(folder) : NULL;
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        size_t len = strlen(e->d_name);
        if (len <= same || strncmp(e->d_name, l->given, same) != 0 ||
            name_run(e->d_name, len) != len - same)
            continue;
        char *name = strdup(e->d_name);
        if (!name || vector_push(&l->names, name) < 0) {
            free(name);
            return -ENOMEM;
        }
    }
    if (l->names.count > 0)
        qsort(l->names.at, l->names.count, sizeof(*l->names.at), by_name);
    return folder ? 0 : -ENOMEM; /* a folder that can't be listed has no set */
}

/* Go from the name to its neighbour, if that is there. */
static bool listing_step(const struct listing *l, char name[NAME_MAX_BYTES + 1], bool up)
{
    struct neighbours n = {.count = 0};
    (up ? neighbours_after : neighbours_before)(name, &n);
    for (size_t i = 0; i < n.count; i++)
        if (listing_has(l, n.at[i])) {
            strcpy(name, n.at[i]);
            return true;
        }
    return false;
}

static char *listing_path(const struct listing *l, const char *name)
{
    char *path;
    return asprintf(&path, "%.*s%s", l->prefix, l->path, name) < 0 ? NULL : path;
}

static int paths_add(volume_paths *paths, char *path)
{
    if (path && vector_push(paths, path) == 0)
        return 0;
    free(path);
    return -ENOMEM;
}

void volumes_free(volume_paths *paths)
{
    for (size_t i = 0; i < paths->count; i++)
        free(paths->at[i]);
    vector_free(paths);
}

static int fault_missing(struct fault *fault, const char *path, const char *given)
{
    fault_set(fault, -ENOENT, NULL, FAULT_NO_OFFSET, "this part is missing beside %.150s",
              path_base(given));
    fault_advise(fault, "copy all parts of the archive into one directory");
    fault_set_file(fault, path);
    return -ENOENT;
}

/* The first of a few names behind `last`, or before it, that is there although its neighbour is
 * not. */
static bool listing_beyond(const struct listing *l, const char *last, bool up,
                           char name[NAME_MAX_BYTES + 1])
{
    strcpy(name, last);
    for (int i = 0; i < HOLE_MAX && name_step(name, up); i++)
        if (i > 0 && listing_has(l, name))
            return true;
    return false;
}

/* ---- pieces ---- */

/* Is a part missing next to `end`? Nothing is said of a file that is an archive by itself. */
static int check_hole(const struct listing *l, const struct source *given, const char *end,
                      bool up, struct fault *fault)
{
    char beyond[NAME_MAX_BYTES + 1], missing[NAME_MAX_BYTES + 1];
    strcpy(missing, end);
    if (!name_step(missing, up) || !listing_beyond(l, end, up, beyond))
        return 0;
    auto_free char *path = listing_path(l, missing);
    auto_free char *other = listing_path(l, beyond);
    if (!path || !other)
        return -ENOMEM;
    return is_shard(given, other) ? 0 : fault_missing(fault, path, l->given);
}

/* The set does not begin where sets do. */
static int check_first(const struct listing *l, const struct source *given, const char *first,
                       size_t count, struct fault *fault)
{
    const struct backend *backend;
    const char *compression;
    char missing[NAME_MAX_BYTES + 1];
    bool may_be = count > 1 && !backend_begins(given, &backend, &compression);
    strcpy(missing, first);
    for (int i = 0; may_be && i < HOLE_MAX && name_step(missing, false); i++) {
        if (!name_is_first(missing))
            continue;
        strcpy(missing, first);
        name_step(missing, false);
        auto_free char *path = listing_path(l, missing);
        return path ? fault_missing(fault, path, l->given) : -ENOMEM;
    }
    return 0;
}

static int pieces_in(struct listing *l, const struct source *given, struct fault *fault,
                     volume_paths *paths)
{
    char name[NAME_MAX_BYTES + 1], first[NAME_MAX_BYTES + 1];
    bool has_given = false;
    int r = listing_read(l);
    strcpy(first, l->given);
    while (r == 0 && listing_step(l, first, false))
        ;
    strcpy(name, first);
    do {
        has_given |= strcmp(name, l->given) == 0;
        r = r == 0 ? paths_add(paths, listing_path(l, name)) : r;
    } while (r == 0 && listing_step(l, name, true));
    if (r == 0)
        r = name_is_first(first) ? check_hole(l, given, name, true, fault)
                                 : check_first(l, given, first, paths->count, fault);
    if (r < 0 || paths->count < 2 || !has_given || !name_is_first(first))
        volumes_free(paths);
    return r;
}

/* /dev/fd/3: the number before names another open file. */
static bool names_descriptor(const char *path)
{
    struct statfs s;
    auto_free char *folder = path_folder(path);
    return folder && statfs(folder, &s) == 0 && s.f_type == PROC_SUPER_MAGIC;
}

/* The path of a file that may be the next piece or the one before; NULL: there is none, or no
 * memory. Opens nothing. */
static char *neighbour_of(const char *path)
{
    const char *name = path_base(path);
    const struct listing l = {.path = path, .prefix = (int)(name - path)};
    for (int up = 1; up >= 0; up--) {
        struct neighbours n = {.count = 0};
        (up ? neighbours_after : neighbours_before)(name, &n);
        for (size_t i = 0; i < n.count; i++) {
            auto_free char *neighbour = listing_path(&l, n.at[i]);
            if (neighbour && access(neighbour, R_OK) == 0)
                return steal_ptr(&neighbour);
        }
    }
    return NULL;
}

static int pieces_find(const char *path, const struct source *given, const char *neighbour,
                       struct fault *fault, volume_paths *paths)
{
    const char *name = path_base(path);
    struct listing l = {.path = path, .given = name, .prefix = (int)(name - path)};
    if (is_shard(given, neighbour))
        return 0;
    int r = pieces_in(&l, given, fault, paths);
    volumes_free(&l.names);
    return r;
}

/* ---- volumes of a zip ---- */

/* The zip's number `i`, from 1 on; 0: the last, which has no number. */
static char *zip_path(const char *path, unsigned i)
{
    char *made;
    const char *dot = strrchr(path, '.');
    bool is_capital = dot[1] == 'Z';
    int len = (int)(dot - path);
    int n = i ? asprintf(&made, "%.*s.%c%02u", len, path, is_capital ? 'Z' : 'z', i)
              : asprintf(&made, "%.*s.%s", len, path, is_capital ? "ZIP" : "zip");
    return n < 0 ? NULL : made;
}

static int zip_volumes_of(const char *last, uint32_t count, const char *given,
                          struct fault *fault, volume_paths *paths)
{
    int r = 0;
    for (uint32_t i = 1; r == 0 && i <= count; i++) {
        char *path = zip_path(last, i < count ? i : 0);
        r = paths_add(paths, path);
        if (r == 0 && access(path, F_OK) < 0 && errno == ENOENT)
            r = fault_missing(fault, path, path_base(given));
    }
    return r;
}

/* A .zip without a .z01 beside it: by itself, or the last volume of a set without its first. */
static int zip_open_alone(const char *path, const char *first, struct fault *fault,
                          struct source **ret_given)
{
    const struct backend *backend;
    const char *compression;
    uint32_t count = 0;
    if (source_open(path, NULL, ret_given) < 0) /* opening it again tells */
        return 0;
    if (!backend_begins(*ret_given, &backend, &compression) &&
        zip_count_volumes(*ret_given, &count) == 0 && count > 1)
        return fault_missing(fault, first, path);
    return 0;
}

static int zip_volumes_find(const char *path, struct fault *fault, volume_paths *paths,
                            struct source **ret_given)
{
    auto_free char *first = zip_path(path, 1), *last = zip_path(path, 0);
    struct source *end = NULL;
    uint32_t count = 0;
    if (!first || !last)
        return -ENOMEM;
    if (is_zip(path) && access(first, F_OK) < 0) /* opened only if somebody is to be told */
        return fault ? zip_open_alone(path, first, fault, ret_given) : 0;
    int r = source_open(last, NULL, &end);
    if (r == -ENOENT)
        return fault_missing(fault, last, path);
    if (r == 0)
        r = zip_count_volumes(end, &count);
    source_close(end);
    if (r == 0 && count > 1)
        r = zip_volumes_of(last, count, path, fault, paths);
    if (r < 0)
        volumes_free(paths);
    return r == -EACCES ? 0 : r; /* opening it tells */
}

/* ---- all of them ---- */

static int by_size(const void *a, const void *b)
{
    uint64_t x = source_size(*(struct source *const *)a),
             y = source_size(*(struct source *const *)b);
    return (x > y) - (x < y);
}

/* All but the last have one length; split -n makes some a byte longer, or the last by a few. */
static int check_sizes(struct source *const *sources, size_t count, uint64_t slack,
                       struct fault *fault)
{
    auto_free struct source **sorted = calloc(count, sizeof(struct source *));
    if (!sorted)
        return -ENOMEM;
    memcpy(sorted, sources, (count - 1) * sizeof(*sorted));
    qsort(sorted, count - 1, sizeof(*sorted), by_size);
    uint64_t usual = source_size(sorted[(count - 1) / 2]);
    for (size_t i = 0; i < count; i++) {
        uint64_t size = source_size(sources[i]), more = i + 1 < count ? slack : slack + count;
        if (size <= usual + more && (i + 1 == count || size + slack >= usual))
            continue;
        fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                  "this part has %" PRIu64 " bytes, and the others have %" PRIu64, size, usual);
        fault_advise(fault, "copy it again, or put the parts of another archive elsewhere");
        fault_set_file(fault, source_name(sources[i]));
        return -EUCLEAN;
    }
    return 0;
}

/* Does a part other than the first begin like an archive, and the first does not? */
static int check_order(struct source *const *sources, size_t count, struct fault *fault)
{
    const struct backend *backend;
    const char *compression;
    if (backend_begins(sources[0], &backend, &compression))
        return 0;
    for (size_t i = 1; i < count; i++) {
        if (!backend_begins(sources[i], &backend, &compression))
            continue;
        fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                  "this part begins like %s, and %.100s, the first, does not: they are in the "
                  "wrong order, or "
                  "of several archives",
                  backend->file, path_base(source_name(sources[0])));
        fault_set_file(fault, source_name(sources[i]));
        return -EUCLEAN;
    }
    return 0;
}

static int open_all(const volume_paths *paths, struct fault *fault, struct source **ret_source)
{
    size_t count = paths->count, opened = 0;
    bool of_zip = is_zip(paths->at[count - 1]);
    auto_free struct source **sources = calloc(count, sizeof(struct source *));
    int r = sources ? 0 : -ENOMEM;
    source_expect(count);
    for (; r == 0 && opened < count; opened += r == 0) {
        r = source_open(paths->at[opened], fault, &sources[opened]);
        if (r < 0)
            fault_set_file(fault, paths->at[opened]);
    }
    if (r == 0)
        r = check_sizes(sources, count, of_zip ? ZIP_SLACK : 1, fault);
    if (r == 0)
        r = check_order(sources, count, fault);
    if (r == 0)
        r = source_join(sources, count, paths->at[of_zip ? count - 1 : 0], ret_source);
    for (size_t i = 0; r < 0 && i < opened; i++)
        source_close(sources[i]);
    return r;
}

/* *ret_given is the open file at `path` (NULL: it is not open), unless there is an error. */
static int volumes_resolve(const char *path, struct fault *fault, volume_paths *paths,
                           struct source **ret_given)
{
    enum naming naming = naming_of(path);
    int r = 0;
    *ret_given = NULL;
    auto_free char *neighbour =
        naming > NAMING_NONE && naming < NAMING_ZIP && !names_descriptor(path)
            ? neighbour_of(path)
            : NULL;
    if (naming == NAMING_ZIP) {
        r = zip_volumes_find(path, fault, paths, ret_given);
    } else if (neighbour) {
        r = source_open(path, fault, ret_given);
        r = r == 0 ? pieces_find(path, *ret_given, neighbour, fault, paths) : r;
    }
    if (r < 0) {
        source_close(*ret_given);
        *ret_given = NULL;
    }
    return r;
}

int volumes_find(const char *path, volume_paths *ret_paths)
{
    struct source *given;
    *ret_paths = (volume_paths){0};
    int r = volumes_resolve(path, NULL, ret_paths, &given);
    source_close(given);
    return r == -ENOMEM ? r : 0;
}

int volumes_open(const char *path, struct fault *fault, struct source **ret_source)
{
    volume_paths paths = {0};
    struct source *given;
    int r = volumes_resolve(path, fault, &paths, &given);
    if (r == 0 && paths.count == 0 && given) {
        *ret_source = given;
        return 0;
    }
    source_close(given);
    if (r == 0)
        r = paths.count ? open_all(&paths, fault, ret_source)
                        : source_open(path, fault, ret_source);
    volumes_free(&paths);
    return r;
}
