/*
 * From the name of one part to all of them. The neighbours of a name are names that follow from
 * it, so most files are known to be by themselves after a look for a neighbour; the folder is
 * listed only where there is one, and both are not shards.
 */
#include "volumes.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "backend.h"
#include "cleanup.h"
#include "numbers.h"
#include "path.h"
#include "fileset_private.h"
#include "source_concat.h"
#include "zip_end.h"

/*
 * The names of an archive's parts: what comes before and after a name.
 *
 *     train.tar.partaa, train.tar.partab ..  letters of split, more of them from partyz on
 *     train.tar.000, x.zip.001, part1 ..     numbers from 0 or 1, padded or not
 *     x08, x09, x0a ..                       numbers to the base of 16
 *     train-aa.tar, train.tar.aa.part ..     any of these ahead of a suffix
 *
 * split makes its names longer when it runs out of them, so that they stay sorted: after x89
 * comes x9000, and after xyz xzaaa. Numbers that are not padded go from 9 to 10.
 *
 * A number has the digits of its alphabet, and counts as any number does. The functions take
 * stems: names without the suffix, whose bytes behind `same` are of the series' alphabet. None
 * asks storage.
 */

#define STEM_BYTES 256 /* a file's name and its end */

enum numbering { NUMBERING_DIGITS, NUMBERING_HEX, NUMBERING_LETTERS };

enum suffix { SUFFIX_NONE, SUFFIX_OF_ARCHIVE /* such as .tar.gz */, SUFFIX_OTHER };

struct series {
    enum numbering numbering;
    enum suffix suffix;
    size_t same; /* bytes ahead of the number; letters may have more that are the same */
    size_t stem; /* bytes up to the suffix */
};

/* How a file's name may be read, the likeliest first. */
#define SERIES_READINGS 2u

/* The stems that may be the next one or the one before. */
struct neighbours {
    char at[3][STEM_BYTES];
    size_t count;
};

/* Each numbering's. */
static const char *const alphabets[] = {"0123456789", "0123456789abcdef",
                                        "abcdefghijklmnopqrstuvwxyz"};

#define WIDER_BYTES 4u /* a neighbour's name may be longer */

/* How many of the bytes at the end are of this alphabet? */
static size_t series_run(const char *stem, size_t len, enum numbering numbering)
{
    size_t run = 0;
    while (run < len && strchr(alphabets[numbering], stem[len - 1 - run]))
        run++;
    return run;
}

static bool series_read(const char *name, size_t stem, enum suffix suffix,
                        struct series *ret_series)
{
    size_t digits = series_run(name, stem, NUMBERING_DIGITS);
    size_t letters = series_run(name, stem, NUMBERING_LETTERS);
    size_t hex = series_run(name, stem, NUMBERING_HEX);
    enum numbering numbering = digits         ? NUMBERING_DIGITS
                               : letters >= 2 ? NUMBERING_LETTERS
                                              : NUMBERING_HEX;
    size_t run = digits ? digits : letters >= 2 ? letters : hex;
    if (run == 0 || (run == 1 && !digits) || strlen(name) + WIDER_BYTES > STEM_BYTES - 1)
        return false;
    *ret_series = (struct series){numbering, suffix, .same = stem - run, .stem = stem};
    return true;
}

static size_t series_of(const char *name, struct series ret_readings[SERIES_READINGS])
{
    size_t len = strlen(name), stem = backend_stem(name, len), count = 0;
    const char *dot = strrchr(name, '.');
    count += series_read(name, stem, stem < len ? SUFFIX_OF_ARCHIVE : SUFFIX_NONE,
                         &ret_readings[count]);
    if (stem == len && dot)
        count += series_read(name, (size_t)(dot - name), SUFFIX_OTHER, &ret_readings[count]);
    return count;
}

/* Is the stem's rest a number of this series? */
static bool series_has(const struct series *s, const char *stem, size_t len)
{
    return len > s->same && series_run(stem, len, s->numbering) >= len - s->same;
}

/* Does a set begin with this stem? */
static bool series_is_first(const struct series *s, const char *stem)
{
    size_t len = strlen(stem), run = len - s->same;
    if (s->numbering == NUMBERING_LETTERS)
        return strcmp(stem + len - 2, "aa") == 0;
    if (s->numbering == NUMBERING_HEX) /* letters before the number may look like its own */
        return run >= 2 && stem[len - 2] == '0' &&
               (stem[len - 1] == '0' || stem[len - 1] == '1');
    size_t zeros = strspn(stem + s->same, "0");
    return zeros == run || strcmp(stem + s->same + zeros, "1") == 0;
}

/* The next stem or the one before, of the same length. False: there is none. */
static bool series_step(const struct series *s, char *stem, bool up)
{
    const char *alphabet = alphabets[s->numbering];
    size_t last = strlen(alphabet) - 1;
    for (char *c = stem + strlen(stem); c > stem + s->same;) {
        c--;
        size_t digit = (size_t)(strchr(alphabet, *c) - alphabet);
        if (digit != (up ? last : 0)) {
            *c = alphabet[up ? digit + 1 : digit - 1];
            return true;
        }
        *c = alphabet[up ? 0 : last];
    }
    return false;
}

/* split has no further name of this length: two digits more. */
static bool is_wider(const struct series *s, const char *next, size_t len)
{
    const char *alphabet = alphabets[s->numbering];
    return len >= s->same + 2 && next[len - 1] == alphabet[0] &&
           next[len - 2] == alphabet[strlen(alphabet) - 1];
}

static void series_after(const struct series *s, const char *stem, struct neighbours *n)
{
    char *next = n->at[0], zero = alphabets[s->numbering][0];
    size_t len = strlen(stem);
    strcpy(next, stem);
    if (series_step(s, next, true)) {
        n->count = 1;
        if (is_wider(s, next, len))
            n->count += snprintf(n->at[1], sizeof(n->at[1]), "%.*s%c%c", (int)len, next, zero,
                                 zero) > 0;
    } else if (s->numbering == NUMBERING_DIGITS) { /* all of it is zeros now */
        memmove(next + s->same + 1, next + s->same, len - s->same + 1);
        next[s->same] = '1';
        n->count = 1;
    }
}

static void series_before(const struct series *s, const char *stem, struct neighbours *n)
{
    char zero = alphabets[s->numbering][0];
    size_t len = strlen(stem), run = len - s->same;
    strcpy(n->at[0], stem);
    if (!series_step(s, n->at[0], false))
        return;
    n->count = 1;
    if (s->numbering == NUMBERING_DIGITS && run > 1 && n->at[0][s->same] == '0') {
        strcpy(n->at[1], n->at[0]);
        memmove(n->at[1] + s->same, n->at[1] + s->same + 1, run);
        n->count = 2;
    }
    if (run > 3 && stem[len - 1] == zero && stem[len - 2] == zero) {
        char *narrow = n->at[n->count];
        strcpy(narrow, stem);
        narrow[len - 2] = '\0';
        n->count += is_wider(s, narrow, len - 2) && series_step(s, narrow, false);
    }
}

static void series_neighbours(const struct series *s, const char *stem, bool up,
                              struct neighbours *ret_neighbours)
{
    ret_neighbours->count = 0;
    (up ? series_after : series_before)(s, stem, ret_neighbours);
}

/*
 * The stem of a part that a set has if its numbers are to the base of 16: x0a. False: they
 * can't be.
 */
static bool series_hex(const struct series *s, const char *stem, struct series *ret_series,
                       char ret_stem[STEM_BYTES])
{
    size_t len = strlen(stem), hex = series_run(stem, len, NUMBERING_HEX);
    if (s->numbering == NUMBERING_HEX || hex < 2)
        return false;
    *ret_series = *s;
    ret_series->numbering = NUMBERING_HEX;
    if (s->numbering == NUMBERING_LETTERS || len - s->same < 2) /* xbe and xc7 of x00 .. xff */
        ret_series->same = len - 2;
    strcpy(ret_stem, stem);
    memset(ret_stem + ret_series->same, '0', len - ret_series->same);
    ret_stem[len - 1] = 'a';
    return true;
}

bool series_is_shard(const char *before, const char *path)
{
    struct series readings[SERIES_READINGS];
    const char *name = before ? path_base(before) : NULL;
    if (!before || strlen(before) != strlen(path) || series_of(name, readings) == 0)
        return false;
    size_t same = (size_t)(name - before) + readings[0].same,
           stem = (size_t)(name - before) + readings[0].stem;
    if (readings[0].numbering == NUMBERING_LETTERS)
        same = stem - 2;
    return strncmp(before, path, same) == 0 && strcmp(before + stem, path + stem) == 0;
}

enum {
    HOLE_MAX = 16,         /* parts that may be missing in a row */
    ZIP_SLACK = 256 << 10, /* a record is never cut, so the volume before it is shorter */
};

/* ---- names ---- */

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

/* ---- who may have put a part there? ---- */

#define NO_PART "it is no file, belongs to somebody else, or others can write to it"

/* A neighbour is found by its name alone, and counts as a saved index does. */
static bool may_be_part(const struct stat *part, const struct stat *given)
{
    return S_ISREG(part->st_mode) && !saved_mistrust(part, given);
}

/* A link chooses the file that it leads to, so that both are asked. A name that leads nowhere
 * stays one of the set, and opening it tells. */
static bool name_may_be_part(int folder, const char *name, const struct stat *given)
{
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return false;
    if (!S_ISLNK(st.st_mode))
        return may_be_part(&st, given);
    st.st_mode = S_IFREG; /* a link has no mode of its own */
    if (!may_be_part(&st, given))
        return false;
    return fstatat(folder, name, &st, 0) < 0 || may_be_part(&st, given);
}

/* ---- is a file an archive by itself? ---- */

/* Is the file an archive by itself, so that no file beside it is a part of it? */
static bool is_archive(struct source *given, bool has_suffix)
{
    const char *compression;
    const struct backend *backend = backend_begins(given, NULL, &compression);
    struct embedded_index where;
    bool can_tell = backend && backend->trailer && backend->trailer->find;
    return backend &&
           ((can_tell && backend->trailer->find(given, NULL, &where) == 0) ||
            (!compression && backend->is_whole && backend->is_whole(given, has_suffix)));
}

enum verdict {
    IS_ALONE,
    MAY_BE_PART, /* if its set is faultless */
    IS_PART,
};

/* Both begin in a format. Small members often begin where a tar is cut. */
static enum verdict judge_beginnings(const struct source *first, const struct backend *backend,
                                     const struct source *second, bool has_suffix)
{
    bool is_even = source_size(first) == source_size(second);
    bool may_go_on = has_suffix
                         ? source_size(second) <= source_size(first) && backend->continues
                         : is_even || backend->continues;
    if (!may_go_on || !backend->is_whole || backend->is_whole(first, has_suffix))
        return IS_ALONE;
    if (is_even && !has_suffix)
        return IS_PART;
    if (!backend->continues(first, second, has_suffix))
        return IS_ALONE;
    return has_suffix ? MAY_BE_PART : IS_PART;
}

/*
 * Two neighbours of a series. A name with a suffix is a shard's or another file's rather than a
 * piece's, so such a file is a part only if the first one surely ends in the middle. With
 * another suffix than an archive's it is doubtful unless it begins like one: of img1.sif nobody
 * looks at what an archive may lie behind.
 */
static enum verdict judge(const struct source *first, const struct source *second,
                          bool second_is_given, enum suffix suffix)
{
    const char *compression, *other_compression;
    const struct backend *backend = backend_begins(first, NULL, &compression),
                         *other = backend_begins(second, NULL, &other_compression);
    bool has_suffix = suffix != SUFFIX_NONE;
    if (!backend)
        return suffix == SUFFIX_OTHER ||
                       (suffix == SUFFIX_OF_ARCHIVE && other && second_is_given)
                   ? MAY_BE_PART
                   : IS_PART;
    if (other && (compression || (backend == other && !other_compression)))
        return compression ? IS_ALONE : judge_beginnings(first, backend, second, has_suffix);
    if (!compression && backend->is_whole && backend->is_whole(first, has_suffix))
        return IS_ALONE;
    if (!has_suffix)
        return IS_PART;
    if (source_size(second) == 0)
        return IS_ALONE;
    return compression || other || (suffix == SUFFIX_OTHER && second_is_given) ? MAY_BE_PART
                                                                               : IS_PART;
}

/* `up`: the neighbour comes after the file that was given. */
static enum verdict judge_neighbour(const struct source *given, const char *neighbour, bool up,
                                    enum suffix suffix)
{
    struct source *file = NULL;
    if (source_open(neighbour, NULL, &file) < 0)
        return suffix != SUFFIX_NONE ? IS_ALONE : IS_PART;
    enum verdict v = up ? judge(given, file, false, suffix) : judge(file, given, true, suffix);
    source_close(file);
    return v;
}

/* ---- the folder ---- */

struct listing {
    const char *path;       /* that was given */
    char given[STEM_BYTES]; /* the stem of its name */
    int prefix;             /* of the path: the folder, with the slash */
    struct series series;
    const char *suffix;
    volume_paths names;        /* stems */
    char left_out[STEM_BYTES]; /* the first name that may not be a part's, and how many */
    size_t left_out_count;
};

/* Takes over the path; NULL: it could not be allocated. */
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

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool listing_has(const struct listing *l, const char *name)
{
    return l->names.count > 0 &&
           bsearch(&name, l->names.at, l->names.count, sizeof(*l->names.at), by_name);
}

static void listing_begin(struct listing *l, const char *path, const struct series *series)
{
    const char *name = path_base(path);
    *l = (struct listing){
        .path = path,
        .prefix = (int)(name - path),
        .series = *series,
        .suffix = name + series->stem,
    };
    memcpy(l->given, name, series->stem);
}

/* The length of the stem of a name that differs in the number alone; 0: another name. */
static size_t listing_stem(const struct listing *l, const char *name)
{
    size_t len = strlen(name), suffix = strlen(l->suffix);
    size_t stem = len > suffix && len < STEM_BYTES ? len - suffix : 0;
    return stem && strcmp(name + stem, l->suffix) == 0 &&
                   strncmp(name, l->given, l->series.same) == 0 &&
                   series_has(&l->series, name, stem)
               ? stem
               : 0;
}

static int listing_read(struct listing *l, const struct source *given)
{
    struct stat own;
    int r = source_stat(given, &own);
    if (r < 0)
        return r;
    auto_free char *folder = path_folder(l->path);
    auto_closedir DIR *dir = folder ? opendir(folder) : NULL;
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        size_t stem = listing_stem(l, e->d_name);
        if (stem && strcmp(e->d_name, path_base(l->path)) != 0 &&
            !name_may_be_part(dirfd(dir), e->d_name, &own)) {
            if (l->left_out_count++ == 0)
                snprintf(l->left_out, sizeof(l->left_out), "%s", e->d_name);
            continue;
        }
        if (stem && paths_add(&l->names, strndup(e->d_name, stem)) < 0)
            return -ENOMEM;
    }
    if (l->names.count > 0)
        qsort(l->names.at, l->names.count, sizeof(*l->names.at), by_name);
    return folder ? 0 : -ENOMEM; /* a folder that can't be listed has no set */
}

/* Go from the name to its neighbour, if that is there. */
static bool listing_step(const struct listing *l, char name[STEM_BYTES], bool up)
{
    struct neighbours n;
    series_neighbours(&l->series, name, up, &n);
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
    return asprintf(&path, "%.*s%s%s", l->prefix, l->path, name, l->suffix) < 0 ? NULL : path;
}

static int fault_missing(struct fault *fault, const char *path, const char *given)
{
    struct stat st;
    bool is_there = lstat(path, &st) == 0;
    fault_set(fault, -ENOENT, NULL, FAULT_NO_OFFSET,
              is_there ? "this part of %.150s does not count: " NO_PART
                       : "this part is missing beside %.150s",
              path_base(given));
    fault_advise(fault, "copy all parts of the archive into one directory");
    fault_set_file(fault, path);
    return -ENOENT;
}

/* The first of a few names behind `last`, or before it, that is there although its neighbour is
 * not. */
static bool listing_beyond(const struct listing *l, const char *last, bool up,
                           char name[STEM_BYTES])
{
    strcpy(name, last);
    for (int i = 0; i < HOLE_MAX && series_step(&l->series, name, up); i++)
        if (i > 0 && listing_has(l, name))
            return true;
    return false;
}

/* ---- pieces ---- */

/* Is a part missing next to `end`? Nothing is said of a file that is an archive by itself. */
static int check_hole(const struct listing *l, const struct source *given, const char *end,
                      bool up, struct fault *fault)
{
    char beyond[STEM_BYTES], missing[STEM_BYTES];
    strcpy(missing, end);
    if (!series_step(&l->series, missing, up) || !listing_beyond(l, end, up, beyond))
        return 0;
    auto_free char *path = listing_path(l, missing);
    auto_free char *other = listing_path(l, beyond);
    if (!path || !other)
        return -ENOMEM;
    bool is_alone = judge_neighbour(given, other, up, l->series.suffix) == IS_ALONE;
    return is_alone ? 0 : fault_missing(fault, path, l->path);
}

/* The set does not begin where sets do. */
static int check_first(const struct listing *l, const struct source *given, const char *first,
                       size_t count, struct fault *fault)
{
    char missing[STEM_BYTES];
    bool may_be = count > 1 && !backend_begins(given, NULL, NULL);
    strcpy(missing, first);
    for (int i = 0; may_be && i < HOLE_MAX && series_step(&l->series, missing, false); i++) {
        if (!series_is_first(&l->series, missing))
            continue;
        strcpy(missing, first);
        series_step(&l->series, missing, false);
        auto_free char *path = listing_path(l, missing);
        return path ? fault_missing(fault, path, l->path) : -ENOMEM;
    }
    return 0;
}

static int pieces_in(struct listing *l, const struct source *given, struct fault *fault,
                     volume_paths *paths)
{
    char name[STEM_BYTES], first[STEM_BYTES];
    bool has_given = false;
    int r = listing_read(l, given);
    strcpy(first, l->given);
    while (r == 0 && listing_step(l, first, false))
        ;
    strcpy(name, first);
    do {
        has_given |= strcmp(name, l->given) == 0;
        r = r == 0 ? paths_add(paths, listing_path(l, name)) : r;
    } while (r == 0 && listing_step(l, name, true));
    if (r == 0)
        r = series_is_first(&l->series, first)
                ? check_hole(l, given, name, true, fault)
                : check_first(l, given, first, paths->count, fault);
    if (r < 0 || paths->count < 2 || !has_given || !series_is_first(&l->series, first))
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
                          struct source **given)
{
    uint32_t count = 0;
    if (!*given && source_open(path, NULL, given) < 0) /* opening it again tells */
        return 0;
    if (!backend_begins(*given, NULL, NULL) && zip_count_volumes(*given, &count) == 0 &&
        count > 1)
        return fault_missing(fault, first, path);
    return 0;
}

static int zip_volumes_find(const char *path, struct fault *fault, volume_paths *paths,
                            struct source **given)
{
    auto_free char *first = zip_path(path, 1), *last = zip_path(path, 0);
    struct source *end = NULL;
    uint32_t count = 0;
    if (!first || !last)
        return -ENOMEM;
    if (is_zip(path) && access(first, F_OK) < 0) /* opened only if somebody is to be told */
        return fault ? zip_open_alone(path, first, fault, given) : 0;
    int r = source_open(last, NULL, &end);
    if (r == -ENOENT)
        return fault_missing(fault, last, path);
    if (r == 0)
        r = zip_count_volumes(end, &count);
    source_close(end);
    if (r == 0 && count > 1)
        r = zip_volumes_of(last, count, path, fault, paths);
    if (r == 0 && count > 1 && !*given) /* whose owner is asked for */
        r = source_open(path, fault, given);
    if (r < 0)
        volumes_free(paths);
    return r == -EACCES ? 0 : r; /* opening it tells */
}

/* ---- all of them ---- */

/* All but the last have one length; split -n makes some a byte longer, or the last by a few. */
static int check_sizes(struct source *const *sources, size_t count, uint64_t slack,
                       struct fault *fault)
{
    auto_free uint64_t *sizes = calloc(count, sizeof(*sizes));
    if (!sizes)
        return -ENOMEM;
    for (size_t i = 0; i + 1 < count; i++)
        sizes[i] = source_size(sources[i]);
    qsort(sizes, count - 1, sizeof(*sizes), compare_u64);
    uint64_t usual = sizes[(count - 1) / 2];
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
    if (backend_begins(sources[0], NULL, NULL))
        return 0;
    for (size_t i = 1; i < count; i++) {
        const struct backend *backend = backend_begins(sources[i], NULL, NULL);
        if (!backend)
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

/* Asks the descriptors that are read: a name may lead elsewhere since it was listed. */
static int check_owners(struct source *const *sources, size_t count, const struct source *given,
                        struct fault *fault)
{
    struct stat own, st;
    int r = source_stat(given, &own);
    for (size_t i = 0; r == 0 && i < count; i++) {
        r = source_stat(sources[i], &st);
        if (r < 0 || (st.st_dev == own.st_dev && st.st_ino == own.st_ino) ||
            may_be_part(&st, &own))
            continue;
        r = fault_set(fault, -EPERM, NULL, FAULT_NO_OFFSET,
                      "this part does not count: " NO_PART);
        fault_set_file(fault, source_name(sources[i]));
    }
    return r;
}

static int open_all(const volume_paths *paths, const struct source *given, struct fault *fault,
                    struct source **ret_source)
{
    size_t count = paths->count, opened = 0;
    bool of_zip = is_zip_volume(paths->at[0]);
    auto_free struct source **sources = calloc(count, sizeof(struct source *));
    int r = sources ? 0 : -ENOMEM;
    source_expect(count);
    for (; r == 0 && opened < count; opened += r == 0) {
        r = source_open(paths->at[opened], fault, &sources[opened]);
        if (r < 0)
            fault_set_file(fault, paths->at[opened]);
    }
    if (r == 0 && given)
        r = check_owners(sources, count, given, fault);
    if (r == 0)
        r = check_sizes(sources, count, of_zip ? ZIP_SLACK : 1, fault);
    if (r == 0)
        r = check_order(sources, count, fault);
    if (r == 0)
        r = source_concat(sources, count, false, paths->at[of_zip ? count - 1 : 0], ret_source);
    for (size_t i = 0; r < 0 && i < opened; i++)
        source_close(sources[i]);
    return r;
}

/* The path of a file that may be the next piece or the one before; NULL: there is none, or no
 * memory. Opens nothing. */
static char *listing_neighbour(const struct listing *l, bool up)
{
    struct neighbours n;
    series_neighbours(&l->series, l->given, up, &n);
    for (size_t i = 0; i < n.count; i++) {
        auto_free char *neighbour = listing_path(l, n.at[i]);
        if (neighbour && access(neighbour, R_OK) == 0) /* whose it is, asks who opens it */
            return steal_ptr(&neighbour);
    }
    return NULL;
}

/* Numbers to the base of 16 are known by a neighbour that has a letter. */
static void listing_check_hex(struct listing *l)
{
    struct series hex;
    char stem[STEM_BYTES];
    auto_free char *path =
        series_hex(&l->series, l->given, &hex, stem) ? listing_path(l, stem) : NULL;
    if (path && access(path, F_OK) == 0)
        l->series = hex;
}

/* Is a set that may be none one of pieces, by all that can be told? */
static int check_set(struct listing *l, const struct source *given, volume_paths *paths)
{
    struct source *all = NULL;
    int r = pieces_in(l, given, NULL, paths);
    if (r == 0 && paths->count)
        r = open_all(paths, given, NULL, &all);
    if (r < 0 || (all && (!backend_begins(source_member(all, 0), NULL, NULL) ||
                          judge(source_member(all, 0), source_member(all, 1), true,
                                l->series.suffix) == IS_ALONE)))
        volumes_free(paths);
    source_close(all);
    return r == -ENOMEM ? r : 0;
}

/* Opens the file at `path` only if it has a neighbour. */
static int pieces_find(const char *path, const struct series *series,
                       const struct fileset_options *options, struct fault *fault,
                       volume_paths *paths, struct source **given)
{
    struct listing l;
    int r = 0;
    listing_begin(&l, path, series);
    auto_free char *neighbour = listing_neighbour(&l, false);
    bool up = !neighbour;
    if (up)
        neighbour = listing_neighbour(&l, true);
    if (!neighbour || names_descriptor(path))
        return 0;
    if (!*given)
        r = source_open(path, fault, given);
    if (r < 0)
        return r;
    if (is_archive(*given, series->suffix != SUFFIX_NONE))
        return 0;
    listing_check_hex(&l);
    enum verdict verdict = judge_neighbour(*given, neighbour, up, series->suffix);
    if (verdict == MAY_BE_PART)
        r = check_set(&l, *given, paths);
    else if (verdict == IS_PART)
        r = pieces_in(&l, *given, fault, paths);
    if (r == 0 && options && l.left_out_count > 0)
        fileset_note(options, path,
                     "%.150s%s beside it does not count as a part of it: " NO_PART, l.left_out,
                     l.left_out_count > 1 ? " (and others)" : "");
    volumes_free(&l.names);
    return r;
}

/* *given is the open file at `path`; NULL: it is not open, and may be so at the end. */
static int volumes_resolve(const char *path, const struct fileset_options *options,
                           struct fault *fault, volume_paths *paths, struct source **given)
{
    struct series readings[SERIES_READINGS];
    const char *name = path_base(path);
    bool of_zip = is_zip_volume(name);
    size_t count = of_zip ? 0 : series_of(name, readings);
    int r = 0;
    if (of_zip || is_zip(name))
        r = zip_volumes_find(path, fault, paths, given);
    for (size_t i = 0; r == 0 && paths->count == 0 && i < count; i++)
        r = pieces_find(path, &readings[i], options, fault, paths, given);
    return r;
}

int volumes_find(const char *path, volume_paths *ret_paths)
{
    struct source *given = NULL;
    *ret_paths = (volume_paths){0};
    int r = volumes_resolve(path, NULL, NULL, ret_paths, &given);
    source_close(given);
    return r < 0 ? (r == -ENOMEM ? r : 0) : ret_paths->count == 0 && !is_zip(path);
}

int volumes_open(const char *path, const struct fileset_options *options, struct fault *fault,
                 struct source **source)
{
    volume_paths paths = {0};
    struct source *given = steal_ptr(source);
    int r = volumes_resolve(path, options, fault, &paths, &given);
    if (r == 0 && paths.count > 0)
        r = open_all(&paths, given, fault, source);
    else if (r == 0 && given)
        *source = steal_ptr(&given);
    else if (r == 0)
        r = source_open(path, fault, source);
    source_close(given);
    volumes_free(&paths);
    return r;
}

/* ---- advice ---- */

/* The name behind `last`, which is of one set with `first`. */
static bool name_after(const char *first, const char *last, char ret_name[2 * STEM_BYTES])
{
    struct series readings[SERIES_READINGS];
    size_t count = series_of(last, readings);
    for (size_t i = 0; i < count; i++) {
        char stem[STEM_BYTES] = "";
        const char *suffix = last + readings[i].stem;
        struct neighbours n;
        memcpy(stem, last, readings[i].stem);
        series_neighbours(&readings[i], stem, true, &n);
        if (strncmp(first, last, readings[i].same) != 0 || n.count == 0 ||
            strlen(first) < strlen(suffix) ||
            strcmp(first + strlen(first) - strlen(suffix), suffix) != 0)
            continue;
        strcpy(stpcpy(ret_name, n.at[0]), suffix);
        return true;
    }
    return false;
}

void volumes_advise(const struct source *source, struct fault *fault)
{
    const struct source *first = source_member(source, 0), *last = first, *next;
    char name[2 * STEM_BYTES];
    struct series readings[SERIES_READINGS], *series = readings;
    size_t count = 1;
    bool is_even = true;
    if (!fault || fault->err != EUCLEAN)
        return;
    const char *first_name = path_base(source_name(first));
    for (; (next = source_member(source, count)); count++, last = next)
        is_even &= source_size(next) == source_size(first);
    bool is_at_end = strcmp(fault->file, source_name(last)) == 0;
    if (count > 1 && (!is_even || is_zip_volume(first_name)))
        fault_advise(fault, "copy this part again, if it is one of this archive");
    else if (count > 1 && name_after(first_name, path_base(source_name(last)), name))
        fault_advise(fault, "%sall %zu parts have one length, so that %.100s may be missing",
                     is_at_end ? "" : "copy this part again; ", count, name);
    else if (count == 1 && series_of(first_name, readings) && series->suffix == SUFFIX_NONE &&
             series_is_first(series, first_name) && first_name[series->stem - 1] != '1')
        fault_advise(fault, "if it is the first of several parts, copy all into one directory");
}
