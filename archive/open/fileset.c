/*
 * How archives are opened, from their paths to one tree. One archive is a list of one:
 *
 *   1. part_open_file: the file, or all parts of the archive that it is one of. Its end and its
 *      first bytes tell nearly all of them; rare questions are for the rest.
 *   2. many_check_exchange: is a pack replacing it?
 *   3. part_look: its format, and what it lies in, where that is not known by now.
 *   4. part_open: its index, by the first of several openers that has one: the archive's own, a
 *      saved one, one that the store unpacks a stream by, a new one. Then the tree that is
 *      shown, if that is another than the archive's (composed_finish).
 *   5. many_unite, for several: one tree of theirs.
 *
 * The file has first what the steps need, and the steps at its end: messages, saved indexes,
 * new ones, unpacking, trees that are composed of others, several threads, one archive,
 * several. volumes.c finds the parts of an archive, and plain.c lists a folder.
 *
 * Each way to an index is an opener, in order of trust and cost. The list of them, `openers`,
 * is all that decides which one is taken.
 */
#include "fileset.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "budget.h"
#include "builder.h"
#include "checksum.h"
#include "cleanup.h"
#include "clock.h"
#include "codec.h"
#include "cpus.h"
#include "file_id.h"
#include "helpers.h"
#include "nested.h"
#include "numbers.h"
#include "output.h"
#include "path.h"
#include "place.h"
#include "fileset_private.h"
#include "recipe.h"
#include "sandbox.h"
#include "sanitizer.h"
#include "source_concat.h"
#include "source_ops.h"
#include "source_retry.h"
#include "source_slice.h"
#include "syscalls.h"
#include "thread.h"
#include "tree.h"
#include "vector.h"
#include "volumes.h"

/*
 * How the tree that is shown is made of archives' own: at most two steps, each with a recipe.
 * First several trees become one (a union, or archives in the archive), then a view is made of
 * that, so that another view needs the second step alone. A saved index spares its step and
 * those before it.
 */
struct composition {
    struct fileset *fileset;               /* gets the index; its path is for messages */
    const struct fileset_options *options; /* whether to use and to save it */
    const struct source *archive;          /* its owner and readers may read a saved one */
    const char *file; /* a saved one is named after it: the archive, or the first of several */
    bool is_private;  /* only this user may read a saved one */
    bool saves_later; /* leave the last for fileset_save */
    /* Does the proof behind a recipe's name hold? NULL: there is none. */
    bool (*proves)(void *arg, const void *proof, size_t len);
    void *arg;
    uint64_t start_ms;       /* when the work for the first step began (now_ms); 0: with it */
    const struct view *view; /* the last step; NULL: there is no view */
    struct recipe recipes[2];
    size_t count, done; /* steps in all, and steps that fileset->index has */
};

/* The fileset while it is being opened: what its openers know and leave for one another. */
struct opening {
    struct fileset *fileset;
    struct fileset_options *options; /* the caller's, for this opening alone */
    const char *compression;         /* of fileset->source as a whole; NULL: none */
    struct embedded_index embedded;  /* if it was found already; else length 0 */
    struct index *stream_index; /* of the content of fileset->source, which is one stream */
    bool is_of_later_version;   /* the saved index, which stays as it is */
    uint64_t unpack_ms;         /* that unpacking took */
    struct fault stale;         /* if set, the archive's own index is older than its bytes */
    struct composition steps;   /* that options->compose asks for */
};

/*
 * One way to open an archive. 0: fileset->index is open. OPENER_NOT_MINE: the archive is not
 * opened in this way; the next opener tries, with what this one found out. Else -errno and
 * maybe a fault. A fault does not count without an error.
 */
typedef int opener(struct opening *o, struct fault *fault);
#define OPENER_NOT_MINE 1

/* The archive file, packed or not. */
static struct source *fileset_file(const struct fileset *fileset)
{
    return fileset->packed ? fileset->packed : fileset->source;
}

/*
 * Messages to the user about an archive being opened: permanent lines, the progress of a long
 * step, and the remark that a child left.
 */

/* A line for the user, of a fault. */
static void fileset_note_fault(const struct fileset_options *options, const char *path,
                               const struct fault *fault)
{
    char line[1400];
    if (!options->note)
        return;
    fault_describe(fault, -fault->err, path, line, sizeof(line));
    options->note(options->ctx, line);
}

void fileset_note(const struct fileset_options *options, const char *path, const char *format,
                  ...)
{
    struct fault fault = {.err = EUCLEAN, .offset = FAULT_NO_OFFSET};
    va_list args;
    va_start(args, format);
    vsnprintf(fault.what, sizeof(fault.what), format, args);
    va_end(args);
    fileset_note_fault(options, path, &fault); /* makes its text safe for a terminal */
}

/* Turn the fault's offset in the source into one in the file that it lies in. */
static void fileset_place_fault(const struct source *source, struct fault *fault)
{
    if (!fault || !fault->err || fault->offset == FAULT_NO_OFFSET)
        return;
    const struct source *file = source_at(source, &fault->offset);
    fault->offset += source_start(file);
    if (source_member(source, 0) != source)
        fault_set_file(fault, source_name(file));
}

/* One line on the members that the index lacks, if there are any. */
static void fileset_note_left_out(const struct fileset_options *options,
                                  const struct fileset *fileset)
{
    uint64_t count = index_left_out(fileset->index), cursor = 0;
    struct fault first = {.err = EUCLEAN, .offset = FAULT_NO_OFFSET};
    if (count == 0)
        return;
    if (index_left_out_next(fileset->index, &cursor, &first) < 0)
        snprintf(first.what, sizeof(first.what), "a member can't be shown");
    if (!fileset->packed && !fileset->parts)
        fileset_place_fault(fileset->source, &first);
    char kinds[LEFT_OUT_TEXT_LEN], line[sizeof(kinds) + 1400];
    bool tells_kinds = index_left_out_text(fileset->index, kinds) > 1;
    int len = fault_describe(&first, -EUCLEAN, fileset->path, line, 1200);
    snprintf(line + min_u32((uint32_t)len, 1199), sizeof(kinds) + 200,
             count == 1 ? "; it is left out"
                        : "; it is left out, and so %s %" PRIu64 " more%s%s%s%s",
             count == 2 ? "is" : "are", count - 1, tells_kinds ? " (in all " : "",
             tells_kinds ? kinds : "", tells_kinds ? ")" : "",
             fileset->is_plain ? "" : ": 'onepot verify' lists them");
    if (options->note)
        options->note(options->ctx, line);
}

struct watching {
    const struct fileset_options *options;
    const char *doing;
    char note[sizeof(((struct progress *)0)->note)];
};

static bool fileset_note_progress(void *ctx, const struct progress *progress)
{
    struct watching *w = ctx;
    memcpy(w->note, progress->note, sizeof(w->note));
    w->note[sizeof(w->note) - 1] = '\0';
    if (w->options->progress)
        w->options->progress(w->options->ctx, w->doing, progress);
    return !w->options->cancelled || !*w->options->cancelled;
}

/* sandbox_run, showing the progress as `doing` and the child's remark as a note. */
static int fileset_run(const struct fileset_options *options, const char *path,
                       const char *doing,
                       int (*fn)(void *arg, struct progress *progress, struct fault *fault),
                       void *arg, const struct sandbox_limits *limits, struct fault *fault)
{
    struct watching w = {.options = options, .doing = doing};
    int r = sandbox_run(fn, arg, limits, fileset_note_progress, &w, fault);
    if (r == 0 && w.note[0])
        fileset_note(options, path, "%s", w.note);
    return r;
}

/*
 * Indexes of foreign archives, kept on disk.
 *
 * An index is saved beside the archive (ARCHIVE.onepot-index), where all its readers profit,
 * else in the user's cache folder. It is written to a temporary name, flushed and renamed, so
 * that it is there as a whole or not at all.
 *
 * None is trusted. It must state the archive's size, its time and a fingerprint of its
 * content, which is not computed if nothing has touched the archive since. It must belong to
 * this user, to the archive's owner or to root, and be writable by nobody who may not write to
 * the archive; otherwise anybody could plant a tree of his own design. All checks use one
 * descriptor, which is then used to read the index.
 */

#define INDEX_JOINED "@joined" /* behind the archive's name, of one with --ignore-zeros */

/* The part of a saved index's name between the archive's name, or its key, and the suffix. */
#define INDEX_TAG_LEN 40

/*
 * The cache folder: indexes that can't lie beside their archives, and indexes of unions and
 * views. Nobody asks for them by name, so unused ones have to go by themselves.
 *
 * Each time that one is saved, the others are looked at: one that was not used for 90 days is
 * removed, and those used longest ago are removed until the rest has room within the bound. The
 * time of access is the time of use. It is set here, at most once a day, since many filesystems
 * are mounted so that reading leaves it alone.
 *
 * In use. Whoever maps an index of local storage holds a shared lock on it (flock): on the open
 * file that is mapped, so that the lock lasts as long as the mapping (overlayfs maps another
 * one). It can't be removed meanwhile. An index on a network filesystem is read once and never
 * mapped, and locks there may hang: none is taken. A process that opened a file just before it
 * was removed goes on with it, or makes another.
 *
 * A name alone decides nothing. Files are removed only from a folder of this user to which
 * nobody else can write, by a descriptor of it, and only regular files whose name ends as a
 * cached index's does.
 */

#define DAY_S 86400
#define KEPT_DAYS 90
#define KEPT_BYTES (UINT64_C(2) << 30)
#define PATH_KEY_LEN 16 /* hexadecimal digits of the hash of an archive's path */

enum { NAME_PART = 100 }; /* of the archive's name, within the name of its index */

/* ---- names ---- */

/* The folder for indexes that can't lie beside their archive. -ENOENT: there is none. */
static int cache_folder(char **ret_folder)
{
    const char *base = getenv("XDG_CACHE_HOME");
    if (base && base[0] == '/')
        return asprintf(ret_folder, "%s/onepot", base) < 0 ? -ENOMEM : 0;
    base = getenv("HOME");
    if (!base || base[0] != '/')
        return -ENOENT;
    return asprintf(ret_folder, "%s/.cache/onepot", base) < 0 ? -ENOMEM : 0;
}

/* The path in the cache folder of an index called NAME-KEY. -ENOENT: there is no such folder.
 */
static int index_cache_path(const char *name, const char *key, char **ret_path)
{
    auto_free char *folder = NULL;
    int r = cache_folder(&folder);
    if (r < 0)
        return r;
    return asprintf(ret_path, "%s/%.*s-%s" INDEX_SUFFIX, folder, NAME_PART, name, key) < 0
               ? -ENOMEM
               : 0;
}

/*
 * Where the index of an archive is saved: beside it, or in the cache folder (-ENOENT: there is
 * none). A file with several archives has an index for each `offset` that was given.
 */
static int saved_path(const char *archive, uint64_t offset, bool is_joined, bool in_cache,
                      char **ret_path)
{
    char tag[INDEX_TAG_LEN], key[PATH_KEY_LEN + INDEX_TAG_LEN];
    size_t len = offset ? (size_t)snprintf(tag, INDEX_TAG_LEN, "@%" PRIu64, offset) : 0;
    snprintf(tag + len, INDEX_TAG_LEN - len, "%s", is_joined ? INDEX_JOINED : "");
    if (!in_cache)
        return asprintf(ret_path, "%s%s" INDEX_SUFFIX, archive, tag) < 0 ? -ENOMEM : 0;
    auto_free char *full = realpath(archive, NULL);
    if (!full)
        return -errno;
    snprintf(key, sizeof(key), "%016" PRIx64 "%s", XXH3_64bits(full, strlen(full)), tag);
    return index_cache_path(strrchr(full, '/') + 1, key, ret_path);
}

/* Does the name (`len` bytes) end as index_cache_path makes them? */
static bool cache_names(const void *unused, const char *name, size_t len)
{
    size_t suffix = strlen(INDEX_SUFFIX);
    (void)unused;
    if (len <= suffix || memcmp(name + len - suffix, INDEX_SUFFIX, suffix) != 0)
        return false;
    const char *end = name + len - suffix, *dash = memrchr(name, '-', len - suffix);
    if (!dash)
        return false;
    size_t digits = strspn(dash + 1, "0123456789abcdef");
    const char *rest = dash + 1 + digits;
    if (*rest == '@' && rest[1] != INDEX_JOINED[1])
        rest += 1 + strspn(rest + 1, "0123456789");
    if (strncmp(rest, INDEX_JOINED, strlen(INDEX_JOINED)) == 0)
        rest += strlen(INDEX_JOINED);
    return rest == end && (digits == PATH_KEY_LEN || digits == RECIPE_NAME_LEN);
}

/* ---- use ---- */

/* The index at this path in the cache folder is used. */
static void index_cache_used(const char *path)
{
    static const struct timespec now[] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    struct stat st;
    if (lstat(path, &st) == 0 && time(NULL) - st.st_atim.tv_sec > DAY_S)
        utimensat(AT_FDCWD, path, now, AT_SYMLINK_NOFOLLOW);
}

/* Keep the file of an index from being removed, until it is neither open nor mapped. */
static void index_cache_lock(int fd)
{
    if (storage_of(fd).is_local)
        flock(fd, LOCK_SH | LOCK_NB);
}

/* ---- removing ---- */

struct cached {
    int64_t used_sec;
    uint64_t bytes;
    char *name;
};

typedef VECTOR(struct cached) cached_list;

static int by_use(const void *a, const void *b)
{
    int64_t x = ((const struct cached *)a)->used_sec, y = ((const struct cached *)b)->used_sec;
    return (x < y) - (x > y);
}

static void cached_free(cached_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        free(list->at[i].name);
    vector_free(list);
}

/* All of the folder, the last used first. */
static int cached_find(int folder, cached_list *list)
{
    struct stat st;
    auto_closedir DIR *dir = path_list(folder);
    if (!dir)
        return -errno;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (!cache_names(NULL, e->d_name, strlen(e->d_name)) ||
            fstatat(folder, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
            continue;
        int64_t used =
            st.st_atim.tv_sec > st.st_mtim.tv_sec ? st.st_atim.tv_sec : st.st_mtim.tv_sec;
        char *name = strdup(e->d_name);
        if (!name || vector_push(list, (struct cached){used, (uint64_t)st.st_size, name}) < 0) {
            free(name);
            return -ENOMEM;
        }
    }
    if (list->count > 0)
        qsort(list->at, list->count, sizeof(*list->at), by_use);
    return 0;
}

/* 0; -EBUSY: it is in use. */
static int cached_remove(int folder, const char *name)
{
    struct stat st;
    auto_close int fd =
        openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (storage_of(fd).is_local && flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        return -EBUSY;
    if (file_is_named(folder, name, fd, &st) != 1 || !S_ISREG(st.st_mode))
        return -ENOENT; /* another one was saved there meanwhile */
    return unlinkat(folder, name, 0) < 0 ? -errno : 0;
}

/* Keep `new`, all in use, and as much of the rest, used since `oldest_sec`, as has room. */
static int cache_bound(int folder, const char *new, uint64_t bytes, int64_t oldest_sec,
                       struct fileset_cache *cache)
{
    cached_list list = {0};
    uint64_t kept = 0;
    int r = cached_find(folder, &list);
    for (size_t i = 0; i < list.count; i++) {
        const struct cached *c = &list.at[i];
        bool is_new = new &&strcmp(c->name, new) == 0;
        bool fits = c->used_sec >= oldest_sec && kept <= bytes && c->bytes <= bytes - kept;
        int err = is_new || fits ? -EEXIST : cached_remove(folder, c->name);
        if (err == 0) {
            cache->removed++;
            cache->removed_bytes += c->bytes;
        } else if (err == -EEXIST || err == -EBUSY)
            kept += c->bytes;
        else if (err != -ENOENT && r == 0)
            r = err;
        cache->in_use += err == -EBUSY;
    }
    cached_free(&list);
    leftovers_remove(folder, &(struct leftovers){.match = cache_names});
    return r;
}

/* Open the cache folder, which is refused where another user could replace what lies in it. */
static int cache_place(const char *path, struct fault *fault, struct place *ret_place)
{
    char text[PATH_MAX + 256];
    int r = place_open(path, PLACE_SHARED, ret_place);
    return r == 0 || r == -ENOENT ? r
                                  : fault_set(fault, r, NULL, FAULT_NO_OFFSET, "%s",
                                              place_explain(ret_place, text, sizeof(text)));
}

/* Open the folder, if nobody else can put anything into it. */
static int cache_open(const char *path, struct fault *fault, int *ret_fd)
{
    struct place place;
    int r = cache_place(path, fault, &place);
    if (r < 0)
        return r;
    if (!S_ISDIR(place.st.st_mode) || !place_is_ours(&place.st) || place.st.st_mode & 0002) {
        close(place.fd);
        return fault_set(fault, -EPERM, NULL, FAULT_NO_OFFSET,
                         "%s is no folder of this user alone", path);
    }
    *ret_fd = place.fd;
    return 0;
}

/* Make the missing folders of a path, for this user alone. */
static int cache_make(char *path, struct fault *fault)
{
    struct place above;
    char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return -ENOENT;
    *slash = '\0';
    int r = cache_place(path, fault, &above);
    if (r == -ENOENT && (r = cache_make(path, fault)) == 0)
        r = cache_place(path, fault, &above);
    if (r == 0) {
        if (mkdirat(above.fd, slash + 1, 0700) == 0)
            fchmodat(above.fd, slash + 1, 0700, 0); /* undo the umask */
        else if (errno != EEXIST)
            r = fault_set(fault, -errno, NULL, FAULT_NO_OFFSET, "no folder can be made in %s",
                          path);
        close(above.fd);
    }
    *slash = '/';
    return r;
}

/*
 * The cache folder that an index at this path lies in, which is made if it is missing (0700).
 * -EPERM: somebody else could put files there, and the fault names the folder at fault. The
 * caller closes *ret_fd (O_PATH).
 */
static int index_cache_open(const char *path, struct fault *fault, int *ret_fd)
{
    auto_free char *folder = path_folder(path);
    int r = folder ? cache_open(folder, fault, ret_fd) : -ENOMEM;
    if (r == -ENOENT && (r = cache_make(folder, fault)) == 0)
        r = cache_open(folder, fault, ret_fd);
    return r;
}

/*
 * Call this after an index was saved at `path`: removes others until the folder is within its
 * limit.
 */
static void index_cache_saved(int folder_fd, const char *path)
{
    const char *text = getenv("ONEPOT_INDEX_CACHE");
    struct fileset_cache ignored = {0};
    uint64_t bytes;
    if (!text || size_parse(text, &bytes) < 0)
        bytes = KEPT_BYTES;
    cache_bound(folder_fd, path_base(path), bytes, time(NULL) - KEPT_DAYS * DAY_S, &ignored);
}

int fileset_clean_cache(struct fileset_cache *ret_cache, struct fault *fault)
{
    auto_free char *folder = NULL;
    auto_close int fd = -1;
    *ret_cache = (struct fileset_cache){0};
    int r = cache_folder(&folder);
    if (r == 0)
        r = cache_open(folder, fault, &fd);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = cache_bound(fd, NULL, 0, INT64_MAX, ret_cache);
    return r < 0 ? fault_set_errno(fault, r, NULL, folder) : 0;
}

/* ---- finding ---- */

/* Compute fileset->fingerprint, unless it is known already. */
static int opening_fingerprint(struct opening *o)
{
    if (o->fileset->has_fingerprint)
        return 0;
    int r = source_fingerprint(fileset_file(o->fileset), &o->fileset->fingerprint);
    o->fileset->has_fingerprint = r == 0;
    return r;
}

/* Can the content of a stream be used by its index alone, or unpacked while it is read? */
static bool saved_may_be_stream(const struct opening *o)
{
    const struct fileset_options *options = o->options;
    return o->compression &&
           (options->store ? options->store->expand != NULL
                           : options->names_only || options->save == FILESET_SAVE_ALWAYS);
}

/*
 * Does it have the members that are wanted? Of several tars that are joined, --ignore-zeros has
 * all, and without it only the first one's are read.
 */
static bool saved_has_members(const struct index *index, const struct opening *o)
{
    uint64_t lacks[LEFT_OUT_KINDS];
    index_left_out_kinds(index, lacks);
    return o->options->ignores_zeros ? lacks[LEFT_OUT_BEHIND] == 0
                                     : !index_info(index)->has_joined;
}

/* Does the index describe the expected number of bytes? */
static bool saved_has_size(const struct index *index, const struct opening *o)
{
    uint64_t bytes = index_info(index)->archive_bytes, sums = index_windows(index);
    if (sums == 0)
        return bytes == source_size(o->fileset->source);
    return saved_may_be_stream(o) && bytes <= INT64_MAX && sums == index_windows_of(bytes);
}

static bool saved_has_fingerprint(const struct index *index, struct opening *o)
{
    return opening_fingerprint(o) == 0 &&
           index_info(index)->archive_fingerprint == o->fileset->fingerprint;
}

static bool saved_describes(const struct index *index, struct opening *o)
{
    const struct index_info *info = index_info(index);
    const struct source_identity *id = &o->fileset->identity;
    return info->format == o->fileset->backend->number && saved_has_size(index, o) &&
           saved_has_members(index, o) && info->archive_mtime_sec == id->mtime_sec &&
           info->archive_mtime_nsec == id->mtime_nsec;
}

const char *saved_mistrust(const struct stat *ours, const struct stat *theirs)
{
    if (ours->st_uid != 0 && ours->st_uid != geteuid() && ours->st_uid != theirs->st_uid)
        return "belongs to somebody else";
    mode_t writers = theirs->st_mode & (ours->st_gid == theirs->st_gid ? 0022 : 0002);
    return ours->st_mode & 0022 & ~writers ? "can be written to by others" : NULL;
}

/*
 * Was the archive left alone since its index was written? Whatever changes a file, or puts
 * another in its place, sets its time of change, which nobody can set back. A filesystem may
 * count in seconds only.
 */
static bool saved_is_later(const struct stat *ours, const struct stat *theirs)
{
    enum { SURELY_SEC = 2 };
    return ours->st_dev == theirs->st_dev &&
           ours->st_mtim.tv_sec > theirs->st_ctim.tv_sec + SURELY_SEC;
}

/* Does it lead to parts of streams that this build can't enter? */
static bool saved_needs_more(const struct index *index)
{
    for (enum codec codec = 0; codec < CODEC_COUNT; codec++)
        if (index_info(index)->codecs & 1u << codec && codec_has_point(codec) &&
            !codec_available(codec))
            return true;
    return false;
}

/*
 * The index in a file, if it can be trusted to describe the archive. -ENOENT, -ENOMEM,
 * -ENOTSUP: a later version made it, or a build that reads more.
 * *ret_is_later (may be NULL): it was written after the last change of the archive.
 */
static int saved_index_open_file(const char *path, const struct fileset_options *options,
                                 const struct source *archive, bool *ret_is_later,
                                 struct index **ret_index)
{
    struct source *file = NULL;
    struct stat ours, theirs;
    if (source_open(path, NULL, &file) < 0)
        return -ENOENT;
    index_cache_lock(source_fd(file));
    const char *why = "can't be examined";
    if (fstat(source_fd(file), &ours) == 0 && source_stat(archive, &theirs) == 0)
        why = saved_mistrust(&ours, &theirs);
    int r = why ? -EPERM : index_open(file, 0, source_size(file), NULL, ret_index);
    if (why)
        fileset_note(options, path, "is not used: it %s", why);
    else if (ret_is_later)
        *ret_is_later = saved_is_later(&ours, &theirs);
    if (r == -EUCLEAN)
        fileset_note(options, path, "this saved index is damaged: it is made anew");
    if (r == 0 && saved_needs_more(*ret_index)) {
        index_close(*ret_index);
        r = -ENOTSUP;
    }
    source_close(file);
    return r < 0 && r != -ENOMEM && r != -ENOTSUP ? -ENOENT : r;
}

/* Indexes of one version are not replaced by another's, unless somebody asks for that. */
static void saved_note_version(const char *path, struct opening *o)
{
    o->is_of_later_version = true;
    if (o->options->save == FILESET_SAVE_ALWAYS)
        fileset_note(
            o->options, path,
            "was made by a later version of onepot, or a build that reads more: it is made "
            "anew");
    else
        fileset_note(
            o->options, path,
            "was made by a later version of onepot, or a build that reads more, and this "
            "one indexes the archive anew each time; use that one, or replace the file by "
            "'onepot index'");
}

/*
 * Use a saved index that still describes the archive. One of the content of a stream is left in
 * o->stream_index. Called even where no saved index may be used: it finds out whether the
 * archive was indexed anew.
 */
static int saved_index_open(struct opening *o, struct fault *fault)
{
    struct fileset *fileset = o->fileset;
    const struct fileset_options *options = o->options;
    struct index *index = NULL;
    auto_free char *path = NULL;
    int r = -ENOENT;
    (void)fault;
    if (options->rebuild && !o->stale.err)
        return OPENER_NOT_MINE;
    /* With --ignore-zeros first the one of all members; beside the archive, then in the cache.
     */
    for (size_t i = options->ignores_zeros ? 0 : 2; r == -ENOENT && i < 4; i++) {
        const bool in_cache = i % 2;
        bool is_later = false;
        free(path);
        path = NULL;
        if (saved_path(fileset->path, options->offset, i < 2, in_cache, &path) < 0)
            continue;
        r = saved_index_open_file(path, options, fileset->source, &is_later, &index);
        if (r == -ENOTSUP) {
            saved_note_version(path, o);
            r = -ENOENT;
        }
        if (r == 0 &&
            (!saved_describes(index, o) || !(is_later || saved_has_fingerprint(index, o)))) {
            index_close(index);
            r = -ENOENT;
        }
        if (r == 0 && in_cache)
            index_cache_used(path);
    }
    fileset->was_reindexed = r == 0 && o->stale.err;
    if (r == -ENOENT && o->stale.err && options->save != FILESET_SAVE_ALWAYS)
        fileset_note_fault(options, fileset->path, &o->stale);
    if (r < 0)
        return r == -ENOENT ? OPENER_NOT_MINE : r;
    fileset->has_fingerprint = true; /* nothing has changed since */
    fileset->fingerprint = index_info(index)->archive_fingerprint;
    if (options->rebuild) {
        index_close(index);
        return OPENER_NOT_MINE;
    }
    fileset->index_path = steal_ptr(&path);
    fileset->origin = FILESET_INDEX_SAVED;
    if (index_windows(index) > 0) {
        o->stream_index = index;
        return OPENER_NOT_MINE;
    }
    fileset->index = index;
    return 0;
}

/* ---- writing ---- */

/* Let those who may read the archive read its index, and nobody else. */
static int saved_set_permissions(int fd, const struct stat *access)
{
    mode_t mode = 0600 | (access->st_mode & 0044);
    if (fchown(fd, (uid_t)-1, access->st_gid) < 0)
        mode &= ~(mode_t)0040;
    return fchmod(fd, mode) < 0 ? -errno : 0;
}

/*
 * Give the file to the archive's owner, who must be able to read it: root can do that. Done
 * last, since only the owner removes the remains of an interrupted save.
 */
static void saved_hand_over(int fd, const struct stat *access)
{
    if (access->st_uid != geteuid() && fchown(fd, access->st_uid, (gid_t)-1) < 0)
        errno = 0; /* then the owner stays the same */
}

/*
 * Those who may read a saved index, by its mode, owner and group: those who may read its
 * archive; NULL: only this user.
 */
static int saved_index_access(const struct source *archive, struct stat *ret_access)
{
    *ret_access = (struct stat){.st_mode = 0600, .st_uid = geteuid(), .st_gid = getegid()};
    return archive ? source_stat(archive, ret_access) : 0;
}

/*
 * Have the index use the file with its bytes, if that serves as well as the memory it was made
 * in: a file's memory can be reclaimed and is shared by mounts. Takes over fd.
 */
static void saved_use_file(int fd, const char *path, const struct index *index)
{
    struct source *file = NULL;
    if (source_from_fd(fd, path, &file) < 0)
        return;
    if (source_is_local(file) && source_is_ours(file) &&
        source_size(file) == index_info(index)->image_bytes)
        index_move(index, source_fd(file), source_start(file));
    source_close(file);
}

static int saved_write_to(const char *path, const struct stat *access,
                          const struct index *index)
{
    struct output *output = NULL;
    auto_close int fd = -1;
    int r = output_open(path, OUTPUT_OWN, 0, NULL, &output);
    if (r < 0)
        return r;
    r = index_write(index, output->fd);
    if (r == 0)
        r = saved_set_permissions(output->fd, access);
    if (r == 0 && (fd = fcntl(output->fd, F_DUPFD_CLOEXEC, 0)) < 0)
        r = -errno;
    if (r < 0)
        output_discard(output);
    else
        r = output_commit(output, true, NULL);
    if (r < 0)
        return r;
    saved_hand_over(fd, access);
    index_cache_lock(fd); /* in place of the writer's */
    saved_use_file(steal_fd(&fd), path, index);
    return 0;
}

/* saved_index_write under a path in the cache folder. */
static int saved_index_write_file(const char *path, const struct stat *access,
                                  const struct index *index, struct fault *fault)
{
    auto_close int folder = -1;
    int r = index_cache_open(path, fault, &folder);
    if (r == 0)
        r = saved_write_to(path, access, index);
    if (r == 0)
        index_cache_saved(folder, path);
    return r;
}

int fileset_save_digest(struct fileset *fileset, struct fault *fault)
{
    const void *recipe;
    size_t len;
    struct stat access;
    if (!fileset->index_path)
        return 0;
    /* Those of the archive, and not of what lies there by now; a composed one is this user's.
     */
    bool is_composed = index_recipe(fileset->index, &recipe, &len) != -ENODATA;
    int r = saved_index_access(is_composed ? NULL : fileset_file(fileset), &access);
    if (r == 0)
        r = saved_write_to(fileset->index_path, &access, fileset->index);
    return r < 0 ? fault_set_errno(fault, r, NULL, "its digest can't be saved") : 0;
}

static int saved_fault(int beside, const char *cached, int in_cache, const struct fault *why,
                       struct fault *fault)
{
    if (!cached)
        return fault_set(fault, beside, NULL, FAULT_NO_OFFSET,
                         "its index could not be saved: beside it (%s); there is no cache "
                         "folder, since neither XDG_CACHE_HOME nor HOME names one",
                         strerror(-beside));
    return fault_set(fault, in_cache, NULL, FAULT_NO_OFFSET,
                     "its index could not be saved: beside it (%s), in %.*s (%s)",
                     strerror(-beside), (int)(strrchr(cached, '/') - cached), cached,
                     why->err ? why->what : strerror(-in_cache));
}

/*
 * Save the index beside the archive, else in the cache folder; it then uses the file in place
 * of its memory, if that can be. If both fail, the fault names both reasons.
 */
static int saved_index_write(const char *archive, uint64_t offset, const struct source *source,
                             const struct index *index, struct fault *fault, char **ret_path)
{
    auto_free char *path = NULL, *cached = NULL;
    struct fault why = {0};
    struct stat access;
    const bool is_joined = index_info(index)->has_joined;
    int beside = saved_path(archive, offset, is_joined, false, &path);
    if (beside == 0)
        beside = saved_index_access(source, &access);
    if (beside == 0)
        beside = saved_write_to(path, &access, index);
    if (beside == 0) {
        *ret_path = steal_ptr(&path);
        return 0;
    }
    int r = saved_path(archive, offset, is_joined, true, &cached);
    if (r == 0)
        r = saved_index_access(source, &access);
    if (r == 0)
        r = saved_index_write_file(cached, &access, index, &why);
    if (r < 0)
        return saved_fault(beside, cached, r, &why, fault);
    *ret_path = steal_ptr(&cached);
    return 0;
}
/*
 * A new index, made by the back end in a child process.
 *
 * Hostile bytes may have taken over the child. So its product is opened like a file from the
 * net, and sealed first, so that nothing changes after it was checked.
 */

#define MIB (UINT64_C(1) << 20)

enum {
    /*
     * Memory that libarchive, builder and image take for a member with a name of usual length.
     */
    MEMBER_BYTES = 250,
    LEAST_MEMBER = 512,    /* bytes of the archive; a format with smaller ones has a floor */
    LEAST_MEMORY_MIB = 64, /* for the child, however little is available */
    STALL_SECONDS = 60,
    HELPERS_MAX = 7,
    HELPER_BYTES = 384 << 20, /* two of the longest blocks, and what decompressing them takes */
    SAVE_AFTER_MS = 1000, /* FILESET_SAVE_AUTO: indexing that took longer is worth saving, */
                          /* and points, which take reading a whole stream */
};

/*
 * Memory that may be used: as much as the job has available and the caller allows. It is looked
 * up once, and kept in these options.
 */
static uint64_t fileset_memory_bytes(struct fileset_options *own)
{
    if (!own->memory_bytes)
        own->memory_bytes = budget_memory_bytes("");
    return own->memory_bytes;
}

/* An index that a child makes. */
struct build {
    struct opening *o;
    struct builder_header header;
    const char *compression; /* index its frames; NULL: the source is plain */
    unsigned threads;        /* threads besides the one that indexes */
    struct helpers *helpers;
    struct source *scratch;    /* what archives in the archive are unpacked to */
    struct progress *progress; /* of these */
    int fd;                    /* of the index */
};

/* In the child, before its limits. Without threads, all is done by one. */
static void built_start_helpers(void *arg)
{
    struct build *build = arg;
    if (build->threads > 0 && helpers_new(build->threads, &build->helpers) < 0)
        build->helpers = NULL;
}

/*
 * Each thread decompresses a block, as far as memory allows. So does the one that indexes,
 * which also keeps two; and one more waits.
 */
static unsigned built_threads(uint64_t memory_bytes)
{
    uint64_t most = memory_bytes / HELPER_BYTES;
    return most < 2 ? 0 : (unsigned)min_u64(min_u64(cpus_allowed() - 1, HELPERS_MAX), most - 1);
}

/* Sums of the whole unpacked content, for its index. In the child, whose end frees them. */
static int unpacked_sums(struct source *source, struct builder_header *header,
                         struct progress *progress)
{
    uint64_t bytes = source_size(source);
    uint64_t count = index_windows_of(bytes);
    uint64_t *sums = malloc((count + 1) * sizeof(*sums));
    uint8_t *window = malloc(INDEX_WINDOW_BYTES);
    int r = sums && window ? 0 : -ENOMEM;
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t at = i * INDEX_WINDOW_BYTES, left = bytes - at;
        size_t len = left < INDEX_WINDOW_BYTES ? (size_t)left : (size_t)INDEX_WINDOW_BYTES;
        r = source_read(source, window, len, at);
        if (r == 0)
            sums[i] = htole64(XXH3_64bits(window, len));
        progress->beats++;
    }
    header->window_sums = sums;
    header->window_count = count;
    return r;
}

/* Runs in the child, whose end frees all that it allocated. */
static int built_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct build *build = arg;
    struct source *source = build->o->fileset->source;
    const struct backend *backend = build->o->fileset->backend;
    struct builder *builder;
    int r = builder_new(&builder);
    if (r < 0)
        return r;
    builder_set_archive_size(builder, source_size(source));
    if (build->compression)
        r = backend->stream->index_packed(source, build->compression, build->helpers, NULL,
                                          builder, &build->header, progress, fault);
    else
        r = backend->index(source, builder, &build->header, progress, fault);
    if (r < 0) /* errors about a member (no target, no directory) are the archive's */
        return builder_may_leave_out(r) ? -EUCLEAN : r;
    progress->beats++;
    if (build->o->fileset->packed)
        r = unpacked_sums(source, &build->header, progress);
    if (r < 0)
        return r;
    uint64_t ignored;
    return builder_write(builder, &build->header, build->fd, 0, fault, &ignored);
}

/*
 * The number of members is bounded by the size of the archive, except for one in frames. The
 * limit is never more than the memory available, which takes long to find out, and matters only
 * if the least that every child gets may not be enough: `asks`.
 */
static struct sandbox_limits built_index_limits(const struct opening *o, bool in_frames,
                                                bool asks)
{
    uint64_t size = source_size(o->fileset->source),
             least = o->fileset->backend->least_memory_bytes;
    uint64_t want = in_frames ? UINT64_MAX : size / LEAST_MEMBER * MEMBER_BYTES;
    uint64_t bytes = LEAST_MEMORY_MIB * MIB;
    if (asks)
        bytes = min_u64(max_u64(want, least ? least : 1024 * MIB),
                        max_u64(fileset_memory_bytes(o->options), bytes));
    return (struct sandbox_limits){
        .memory_bytes = bytes,
        .file_bytes = bytes,
        .stall_seconds = STALL_SECONDS + (uint32_t)(size >> 34), /* sorting grows, too */
    };
}

/* Run the child; *ret_fd is the image that it wrote, sealed. */
static int built_make_image(struct opening *o, const char *frames_of, struct fault *fault,
                            int *ret_fd)
{
    const struct fileset *fileset = o->fileset;
    int r = opening_fingerprint(o);
    if (r < 0)
        return fault_set_read(fault, r, NULL, FAULT_NO_OFFSET);
    auto_close int fd = syscall_memfd("onepot-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return fd;
    struct build build = {
        .o = o,
        .header = {.format = fileset->backend->number,
                   .archive_bytes = source_size(fileset->source),
                   .archive_mtime_sec = fileset->identity.mtime_sec,
                   .archive_mtime_nsec = fileset->identity.mtime_nsec,
                   .archive_fingerprint = fileset->fingerprint,
                   .ignores_zeros = o->options->ignores_zeros},
        .compression = frames_of,
        .fd = fd,
    };
    /*
     * The least is enough for a small tar: not even if each two bytes were the name of a
     * directory would it need more. A small archive of another format is tried with it; a
     * library that gets no memory may call that damage, or crash.
     */
    const uint64_t small = LEAST_MEMORY_MIB * MIB / MEMBER_BYTES;
    for (bool asks = frames_of || source_size(fileset->source) > small, ends = false; !ends;) {
        struct sandbox_limits limits = built_index_limits(o, frames_of, asks);
        build.threads = frames_of ? built_threads(limits.memory_bytes) : 0;
        limits.prepare = built_start_helpers;
        limits.threads = build.threads;
        limits.keep_source = fileset->source;
        limits.keep_fds = &fd;
        limits.keep_fd_count = 1;
        r = fileset_run(o->options, fileset->path, "indexing", built_in_child, &build, &limits,
                        fault);
        ends = asks || !fileset->backend->least_memory_bytes ||
               (r != -ENOMEM && r != -EFBIG && r != -EUCLEAN);
        asks = true;
        if (!ends)
            *fault = (struct fault){0};
        if (!ends && ftruncate(fd, 0) < 0)
            return -errno;
    }
    if (r < 0)
        return r;
    if (source_was_changed(fileset_file(fileset)) != 0)
        return fault_set_advised(fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                                 "wait until it is written",
                                 "was changed while it was indexed");
    *ret_fd = steal_fd(&fd);
    return 0;
}

/*
 * Check that the archive size in the index is not more than the file's, as the index's ranges
 * are checked against it.
 */
static int fileset_check_index(const struct fileset *fileset, struct fault *fault)
{
    uint64_t size = source_size(fileset->source);
    uint64_t described = index_info(fileset->index)->archive_bytes;
    if (described <= size)
        return 0;
    return fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                     "its index is of a file of %" PRIu64 " bytes, the file has %" PRIu64,
                     described, size);
}

/* Seal the image in `fd`, so that it stays as it is checked, and open it. */
static int built_index_open_image(int fd, const char *name, struct fault *fault,
                                  struct index **ret_index)
{
    struct source *image = NULL;
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
        return -errno;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    int r = copy < 0 ? -errno : source_from_fd(copy, name, &image);
    if (r < 0)
        return r;
    r = index_open(image, 0, source_size(image), fault, ret_index);
    source_close(image);
    return r;
}

/*
 * Make an index of the source, or of the frames that it is compressed in, and save it if that
 * was requested or is worth it. Failure to save it is an error only if requested.
 */
static int built_index_open(struct opening *o, struct fault *fault)
{
    const char *frames_of = o->compression;
    uint64_t start_ms = now_ms();
    auto_close int fd = -1;
    if (frames_of && !o->fileset->backend->stream)
        return OPENER_NOT_MINE;
    int r = built_make_image(o, frames_of, fault, &fd);
    uint64_t took_ms = now_ms() - start_ms;
    if (r == 0)
        r = built_index_open_image(fd, o->fileset->path, fault, &o->fileset->index);
    if (r == -ENOTSUP && frames_of && !o->fileset->index)
        return OPENER_NOT_MINE; /* it has none, or too large ones */
    if (r == 0)
        r = fileset_check_index(o->fileset, fault);
    if (r < 0)
        return r;
    o->fileset->origin = FILESET_INDEX_BUILT;
    enum fileset_save how = o->options->save;
    if (how == FILESET_SAVE_NEVER ||
        (how == FILESET_SAVE_AUTO &&
         (o->is_of_later_version || (o->fileset->packed && !o->options->store) ||
          (took_ms + o->unpack_ms < SAVE_AFTER_MS &&
           index_info(o->fileset->index)->points == 0))))
        return 0;
    r = saved_index_write(o->fileset->path, o->options->offset, fileset_file(o->fileset),
                          o->fileset->index, fault, &o->fileset->index_path);
    if (r == 0 || how == FILESET_SAVE_ALWAYS)
        return r;
    fault_advise(fault, "it stays in memory, and is made anew for the next mount");
    fileset_note_fault(o->options, o->fileset->path, fault);
    return 0;
}

/*
 * A private copy of the content of a compressed archive.
 *
 * It goes into memory if it fits: into /dev/shm, up to half of the job's memory, so that the
 * reader of the data keeps the other half. Its size is not known before it is unpacked. A guess
 * avoids hopeless attempts, and the limit on the size of a written file ends an attempt that
 * proves too large. Then it starts again on disk, in $TMPDIR or /tmp.
 *
 * The file has no name from the start (or loses it at once if the filesystem can't do that),
 * so that nothing is left behind however this process ends.
 */

#define UNPACK_MEMORY_LEAST (UINT64_C(1) << 29) /* of private memory: */
#define UNPACK_MEMORY_MOST (UINT64_C(3) << 30)  /* xz and zstd may want large windows */

enum {
    GUESSED_RATIO = 3, /* how much compression usually shrinks a tar */
    MEMORY_SHARE = 2,  /* one half of the memory */
    PLACES = 3,
    EXPAND_WATCH_MS = 20,
    PROBE_BYTES = 256 << 10, /* as much as is read at once */
};

struct unpacking {
    const struct backend *backend;
    struct source *packed;
    struct fileset_options *options;
    uint64_t most; /* bytes that may be in it, without zeros */
    int fd;
    uint64_t kept;      /* bytes already in it */
    const char *folder; /* that it was unpacked to; NULL: nowhere */
};

/* How many bytes a file may unpack to, by options->max_ratio. */
static uint64_t unpacked_most(const struct source *packed,
                              const struct fileset_options *options)
{
    uint64_t most, ratio = options->max_ratio ? options->max_ratio : FILESET_RATIO;
    if (ratio == FILESET_RATIO_OFF || __builtin_mul_overflow(source_size(packed), ratio, &most))
        return UINT64_MAX;
    return most > FILESET_RATIO_FLOOR_BYTES ? most : FILESET_RATIO_FLOOR_BYTES;
}

static int unpacked_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct unpacking *u = arg;
    return u->backend->stream->unpack(u->packed, u->fd, u->kept, u->most, progress, fault);
}

/* Bytes that may be written there; 0 if none can be. */
static uint64_t unpacked_room_in(const char *folder, struct fileset_options *options)
{
    struct statvfs space;
    struct statfs fs;
    if (statvfs(folder, &space) < 0 || statfs(folder, &fs) < 0)
        return 0;
    uint64_t room;
    if (__builtin_mul_overflow((uint64_t)space.f_bavail, (uint64_t)space.f_frsize, &room))
        room = INT64_MAX;
    if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) {
        uint64_t memory = fileset_memory_bytes(options) / MEMORY_SHARE;
        if (fs.f_type == RAMFS_MAGIC || (space.f_blocks == 0 && room == 0) || room > memory)
            room = memory; /* some filesystems have no limit of their own */
    }
    return room;
}

/* Limits for the child that unpacks. */
static struct sandbox_limits unpacked_limits(const struct unpacking *u, uint64_t room)
{
    uint64_t memory =
        max_u64(fileset_memory_bytes(u->options) / MEMORY_SHARE, UNPACK_MEMORY_LEAST);
    return (struct sandbox_limits){.memory_bytes = min_u64(memory, UNPACK_MEMORY_MOST),
                                   .file_bytes = room,
                                   .keep_source = u->packed,
                                   .keep_fds = &u->fd,
                                   .keep_fd_count = 1};
}

/* struct fileset_unpacker. -ENOSPC when it does not fit. */
static int unpacked_into(void *arg, int fd, const char *folder, uint64_t room,
                         struct fault *fault)
{
    struct unpacking *u = arg;
    char doing[128];
    snprintf(doing, sizeof(doing), "unpacking to %.100s", folder);
    u->fd = fd;
    u->folder = folder;
    const struct sandbox_limits limits = unpacked_limits(u, room);
    int r = fileset_run(u->options, source_name(u->packed), doing, unpacked_in_child, u,
                        &limits, fault);
    return r == -EFBIG || r == -EDQUOT ? -ENOSPC : r;
}

static int unpacked_privately(struct unpacking *u, const char *folder, uint64_t room,
                              struct fault *fault, int *ret_fd)
{
    auto_close int fd = output_nameless(folder);
    if (fd < 0)
        return fd;
    int r = unpacked_into(u, fd, folder, room, fault);
    if (r == 0)
        *ret_fd = steal_fd(&fd);
    return r;
}

static bool unpacked_means_another_place(int err)
{
    return err == -ENOSPC || err == -EACCES || err == -EPERM || err == -ENOENT ||
           err == -ENOTDIR || err == -EROFS || err == -EOPNOTSUPP;
}

/* Unpack into the first place where it fits. */
static int unpacked_somewhere(struct unpacking *u, struct fault *fault, int *ret_fd)
{
    const char *const places[PLACES] = {"/dev/shm", getenv("TMPDIR"), "/tmp"};
    uint64_t guess = source_size(u->packed) * GUESSED_RATIO;
    uint64_t most = 0;
    for (int i = 0; i < PLACES; i++) {
        if (!places[i] || places[i][0] != '/')
            continue;
        uint64_t room = unpacked_room_in(places[i], u->options);
        /*
         * Try memory only if the content probably fits; on disk the only way to know is to
         * try.
         */
        if (room == 0 || (i == 0 && guess > room))
            continue;
        struct fault ignored = {0};
        int r = unpacked_privately(u, places[i], room, &ignored, ret_fd);
        if (r == 0)
            return 0;
        bool of_content = r == -ENOTSUP && ignored.err; /* not of the filesystem */
        if (of_content || !unpacked_means_another_place(r)) {
            if (fault && !fault->err)
                *fault = ignored;
            return r;
        }
        if (room > most)
            most = room;
    }
    fault_set(fault, -ENOSPC, NULL, FAULT_NO_OFFSET,
              "has to be unpacked, but there is no room: at most %" PRIu64
              " MiB in /dev/shm, $TMPDIR or /tmp",
              most >> 20);
    fault_advise(fault, "set TMPDIR to a folder with more room, or make an onepot archive of "
                        "it with 'onepot pack' elsewhere");
    return -ENOSPC;
}

int fileset_expand(const struct fileset_stream *stream, int fd, uint64_t kept,
                   const struct sandbox_limits *patience, sandbox_watch *watch, void *ctx,
                   struct fault *fault)
{
    struct fileset_options own = {0};
    struct unpacking u = {
        .backend = stream->backend,
        .packed = stream->packed,
        .options = &own,
        .most = UINT64_MAX, /* its length is known */
        .fd = fd,
        .kept = kept,
    };
    struct sandbox_limits limits = unpacked_limits(&u, stream->bytes);
    limits.idle_seconds = patience->idle_seconds;
    limits.watch_ms = EXPAND_WATCH_MS;
    limits.watch_at_once = true;
    limits.stop = patience->stop;
    return sandbox_run(unpacked_in_child, &u, &limits, watch, ctx, fault);
}

/* ---- does its storage answer? ---- */

struct storage_probe {
    const struct source *packed;
    uint64_t offset;
};

static int unpacked_run_probe(void *arg, struct progress *progress, struct fault *fault)
{
    static uint8_t bytes[PROBE_BYTES];
    const struct storage_probe *probe = arg;
    uint64_t left = source_size(probe->packed) - probe->offset;
    (void)progress, (void)fault;
    return source_read(probe->packed, bytes,
                       left < sizeof(bytes) ? (size_t)left : sizeof(bytes), probe->offset);
}

int fileset_probe_storage(const struct fileset_stream *stream, uint64_t offset,
                          const struct sandbox_limits *patience)
{
    uint64_t size = source_size(stream->packed);
    struct storage_probe probe = {stream->packed, offset < size ? offset : 0};
    struct sandbox_limits limits = {
        .keep_source = stream->packed,
        .idle_seconds = patience->idle_seconds,
        .watch_ms = EXPAND_WATCH_MS,
        .stop = patience->stop,
    };
    int r = sandbox_run(unpacked_run_probe, &probe, &limits, NULL, NULL, NULL);
    /*
     * The child can't reopen a stale handle. This process can, and won't hang: stale handles
     * answer at once.
     */
    if (r < 0 && r != -ETIMEDOUT && source_error_may_pass(r)) {
        uint8_t byte;
        r = source_read(stream->packed, &byte, 1, probe.offset);
    }
    return r;
}

/* Unpack the source, into the store if there is one, and open that. */
static int unpacked_open_content(struct unpacking *u, const char *compression,
                                 struct fault *fault, struct source **ret_source)
{
    const struct fileset_unpacker unpacker = {unpacked_into, u};
    const struct fileset_store *store = u->options->store;
    const char *name = source_name(u->packed);
    int fd = -1, r;
    if (store && store->open) {
        r = store->open(store->ctx, u->packed, &unpacker, fault, ret_source);
    } else {
        r = unpacked_somewhere(u, fault, &fd);
        r = r < 0 ? r : source_from_fd(fd, name, ret_source);
    }
    if (r == 0 && u->folder && source_size(*ret_source) > 0)
        fileset_note(u->options, name,
                     "is one %s stream: unpacked %" PRIu64
                     " bytes to %s; an archive by 'onepot pack' would make this unnecessary",
                     compression, source_size(*ret_source), u->folder);
    return r;
}

/*
 * Unpack a file that is compressed as a whole, and put its content in place of the source, for
 * the openers that follow.
 */
static int unpacked_open(struct opening *o, struct fault *fault)
{
    struct fileset *fileset = o->fileset;
    struct source *content = NULL;
    uint64_t start_ms = now_ms();
    struct unpacking u = {.backend = fileset->backend,
                          .packed = fileset->source,
                          .options = o->options,
                          .most = unpacked_most(fileset->source, o->options)};
    int r = unpacked_open_content(&u, o->compression, fault, &content);
    if (r < 0)
        return r;
    o->unpack_ms = now_ms() - start_ms;
    fileset->compression = o->compression;
    o->compression = NULL;
    fileset->packed = fileset->source; /* saved indexes are found by the packed file */
    fileset->source = content;
    if (source_size(content) > 0) /* an empty one has its back end already */
        r = backend_find(content, fault, &fileset->backend, NULL);
    return r < 0 ? r : OPENER_NOT_MINE;
}

/*
 * Use o->stream_index, the index of the stream's content, and leave it to the store to unpack
 * the stream while it is read.
 */
static int unpacked_open_stream(struct opening *o, struct fault *fault)
{
    struct fileset *fileset = o->fileset;
    const struct fileset_store *store = o->options->store;
    struct source *source = NULL;
    if (!o->stream_index)
        return OPENER_NOT_MINE;
    const struct fileset_stream stream = {.backend = fileset->backend,
                                          .packed = fileset->source,
                                          .index = o->stream_index,
                                          .bytes = index_info(o->stream_index)->archive_bytes};
    /*
     * Without a store, the caller needs only the index. A long stream is unpacked first, as
     * only that shows how many of its bytes are zeros.
     */
    int r = !store ? 0
            : stream.bytes > unpacked_most(fileset->source, o->options)
                ? -ENOSPC
                : store->expand(store->ctx, &stream, fault, &source);
    if (r < 0) {
        free(fileset->index_path);
        fileset->index_path = NULL;
        return r == -ENOSPC ? OPENER_NOT_MINE : r;
    }
    if (source) {
        fileset->packed = fileset->source;
        fileset->source = source;
    }
    fileset->compression = o->compression;
    fileset->index = o->stream_index;
    o->stream_index = NULL;
    return 0;
}

/*
 * Indexes composed of others: made here, or in the sandbox where archives in the archive have
 * to be parsed for it; saved in the cache folder, and found there by their recipe.
 *
 * The file's name has the recipe's hash, and the index the recipe itself. So one that was saved
 * for another archive, another view or by a version that composes otherwise is never used. All
 * else that holds for saved indexes holds for these.
 */

enum {
    COMPOSED_VERSION = 3,  /* of nested archives and views: raise it when the same recipe makes
                              another index */
    COMPOSED_WORTH_MS = 5, /* a tree that takes longer to compose is saved */
    COMPOSED_VIEW_WORTH_MS = 200, /* there may be many lists and patterns */
    COMPOSED_NOTED_MS = 200,      /* a failure to save it is worth a line if it took so long */
};

/* Add all parts to the tree; describe the archive in the header where no index does yet. */
typedef int composer(void *arg, struct tree *tree, struct builder_header *header,
                     struct fault *fault);

/* Writes the image of the next step's index to `fd`, an empty file. */
typedef int composed_writer(struct composition *composition, int fd, struct fault *fault);

static bool composed_has_recipe(const struct composition *c, const struct recipe *recipe,
                                const struct index *index)
{
    size_t named = recipe->name_bytes ? recipe->name_bytes : recipe->bytes.count, len;
    const void *bytes;
    if (index_recipe(index, &bytes, &len) < 0 || len < named ||
        memcmp(bytes, recipe->bytes.at, named) != 0)
        return false;
    return c->proves ? c->proves(c->arg, (const char *)bytes + named, len - named)
                     : len == named;
}

static int composed_path(const struct composition *c, const struct recipe *recipe,
                         char **ret_path)
{
    char key[RECIPE_NAME_LEN + 1];
    recipe_name(recipe, key);
    return index_cache_path(path_base(c->file), key, ret_path);
}

/* Take over the index and its path, in place of the fileset's own. */
static void composed_take(struct fileset *fileset, struct index *index, char *path,
                          enum fileset_index_origin origin)
{
    free(fileset->unsaved);
    fileset->unsaved = NULL;
    free(fileset->index_path);
    fileset->index_path = path;
    if (fileset->packed) /* it may be unpacked by what its own index says */
        fileset->stream_index = fileset->index;
    else
        index_close(fileset->index);
    fileset->index = index;
    fileset->origin = origin;
}

/*
 * Look for a saved index of the last step, else of the one before. 0: fileset->index is that,
 * and `done` counts it; -ENOENT: there is none; -ENOMEM.
 */
static int composed_recall(struct composition *c)
{
    int r = -ENOENT;
    c->done = 0;
    for (size_t i = c->options->rebuild ? 0 : c->count; r == -ENOENT && i-- > 0;) {
        auto_free char *path = NULL;
        struct index *index = NULL;
        r = composed_path(c, &c->recipes[i], &path);
        if (r == 0)
            r = saved_index_open_file(path, c->options, c->archive, NULL, &index);
        if (r == 0 && !composed_has_recipe(c, &c->recipes[i], index)) {
            index_close(index);
            r = -ENOENT;
        }
        if (r == -ENOTSUP)
            r = -ENOENT;
        if (r < 0)
            continue;
        index_cache_used(path);
        composed_take(c->fileset, index, steal_ptr(&path), FILESET_INDEX_SAVED);
        c->done = i + 1;
    }
    return r;
}

/* ---- making the next step ---- */

/*
 * Write what `compose` adds; NULL: the view. The new index describes the archive as its own
 * does, if it has one.
 */
static int composed_write_image(const struct composition *c, composer *compose, void *arg,
                                int fd, struct fault *fault)
{
    const struct recipe *recipe = &c->recipes[c->done];
    struct builder_header header = {.recipe = recipe->bytes.at,
                                    .recipe_len = recipe->bytes.count};
    struct index *index = c->fileset->index;
    struct tree *tree;
    if (index) {
        const struct index_info *info = index_info(index);
        header.format = info->format;
        header.archive_bytes = info->archive_bytes;
        header.archive_mtime_sec = info->archive_mtime_sec;
        header.archive_mtime_nsec = info->archive_mtime_nsec;
        header.archive_fingerprint = info->archive_fingerprint;
    }
    int r = tree_new(&tree);
    if (r == 0)
        r = compose ? compose(arg, tree, &header, fault)
                    : view_add(c->view, index, tree, fault);
    if (r == 0)
        r = tree_write(tree, &header, fd, fault);
    tree_free(tree);
    return r;
}

/* Leave it for fileset_save, if that will find a folder for it. */
static int composed_save_later(struct fileset *fileset, const char *path,
                               const struct stat *access, struct fault *why)
{
    auto_close int folder = -1;
    int r = index_cache_open(path, why, &folder);
    if (r == 0 && faccessat(folder, ".", W_OK | X_OK, 0) < 0)
        r = -errno;
    if (r < 0)
        return r;
    fileset->unsaved = malloc(sizeof(*fileset->unsaved));
    if (!fileset->unsaved)
        return -ENOMEM;
    *fileset->unsaved = *access;
    return 0;
}

static int composed_cannot_save(struct fault *fault, int err, const struct fault *why)
{
    return fault_set_advised(
        fault, err, NULL, FAULT_NO_OFFSET,
        "it stays in memory, and is made anew for the next mount",
        "the index of this view could not be saved in the cache folder: %s",
        why->err ? why->what : fault_errno(err));
}

int fileset_save(struct fileset *fileset, struct fault *fault)
{
    auto_free struct stat *access = steal_ptr(&fileset->unsaved);
    if (!access)
        return 0;
    struct fault why = {0};
    int r = saved_index_write_file(fileset->index_path, access, fileset->index, &why);
    if (r < 0 && fileset->is_unsaved_noted)
        composed_cannot_save(fault, r, &why);
    return r;
}

static int composed_save(const struct composition *c, struct fault *fault)
{
    auto_free char *path = NULL;
    struct fault why = {0};
    struct stat access;
    int r = composed_path(c, &c->recipes[c->done], &path);
    if (r == 0)
        r = saved_index_access(c->is_private ? NULL : c->archive, &access);
    if (r == 0)
        r = c->saves_later && c->done + 1 == c->count
                ? composed_save_later(c->fileset, path, &access, &why)
                : saved_index_write_file(path, &access, c->fileset->index, &why);
    if (r < 0)
        return composed_cannot_save(fault, r, &why);
    c->fileset->index_path = steal_ptr(&path);
    return 0;
}

/*
 * Make the steps that are left: `first` writes the index of the first, if that is no view. Each
 * is saved if it took long, and takes the place of fileset->index.
 */
static int composed_finish(struct composition *c, composed_writer *first, struct fault *fault)
{
    enum fileset_save save = c->options->save;
    for (; c->done < c->count; c->done++) {
        const bool is_view = c->view && c->done + 1 == c->count;
        uint64_t start_ms = c->done == 0 && c->start_ms ? c->start_ms : now_ms();
        struct index *index = NULL;
        struct fault why = {0};
        auto_close int fd = syscall_memfd("onepot-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        int r = fd < 0    ? fd
                : is_view ? composed_write_image(c, NULL, NULL, fd, fault)
                          : first(c, fd, fault);
        if (r == 0)
            r = built_index_open_image(fd, c->fileset->path, fault, &index);
        if (r < 0)
            return r;
        composed_take(c->fileset, index, NULL, FILESET_INDEX_BUILT);
        if (save == FILESET_SAVE_ALWAYS ||
            (save == FILESET_SAVE_AUTO &&
             now_ms() - start_ms >= (is_view ? COMPOSED_VIEW_WORTH_MS : COMPOSED_WORTH_MS)))
            r = composed_save(c, &why);
        if (r < 0 && save == FILESET_SAVE_ALWAYS) {
            if (fault)
                *fault = why;
            return r;
        }
        c->fileset->is_unsaved_noted =
            save == FILESET_SAVE_ALWAYS || now_ms() - start_ms >= COMPOSED_NOTED_MS;
        if (r < 0 && c->fileset->is_unsaved_noted)
            fileset_note_fault(c->options, c->fileset->path, &why);
    }
    return 0;
}

int fileset_show(struct fileset *fileset, const struct view *view, struct fault *fault)
{
    static const struct fileset_options options = {.save = FILESET_SAVE_NEVER};
    struct composition steps = {
        .fileset = fileset, .options = &options, .view = view, .count = 1};
    return composed_finish(&steps, NULL, fault);
}

/* ---- of one archive ---- */

/* Add to a recipe that archives in archives are shown. */
static void composed_describe_nested(const struct fileset_options *options,
                                     struct recipe *recipe)
{
    const char *glob = options->compose->nested_glob;
    recipe_add(recipe, "nested", glob, glob ? strlen(glob) : 0);
    recipe_number(recipe, "by ending", !glob);
    recipe_number(recipe, "ratio", options->max_ratio);
}

/*
 * Describe the steps of options->compose, and use a saved index of what they make, if it needs
 * no other index.
 */
static int composed_open_saved(struct opening *o, struct fault *fault)
{
    const struct fileset_compose *compose = o->options->compose;
    const struct source_identity *id = &o->fileset->identity;
    int r = opening_fingerprint(o);
    o->steps = (struct composition){.fileset = o->fileset,
                                    .options = o->options,
                                    .archive = o->fileset->source,
                                    .file = o->fileset->path,
                                    .arg = o,
                                    .view = compose->view};
    for (int of_view = 0; r == 0 && of_view < 2; of_view++) {
        if (of_view ? !compose->view : !compose->nested)
            continue;
        struct recipe *recipe = &o->steps.recipes[o->steps.count++];
        recipe_number(recipe, "version", COMPOSED_VERSION);
        recipe_number(recipe, "format", o->fileset->backend->number);
        recipe_number(recipe, "size", id->size_bytes);
        recipe_number(recipe, "seconds", (uint64_t)id->mtime_sec);
        recipe_number(recipe, "nanoseconds", id->mtime_nsec);
        recipe_number(recipe, "fingerprint", o->fileset->fingerprint);
        recipe_number(recipe, "offset", o->fileset->container.offset);
        if (o->options->ignores_zeros)
            recipe_number(recipe, "ignore zeros", 1);
        if (compose->nested)
            composed_describe_nested(o->options, recipe);
        if (of_view)
            view_describe(compose->view, recipe);
        r = recipe->err;
    }
    if (r == 0) /* the bytes of a stream are not there without another index */
        r = o->compression ? -ENOENT : composed_recall(&o->steps);
    if (r == -ENOENT)
        return OPENER_NOT_MINE;
    return r < 0 ? r : fileset_check_index(o->fileset, fault);
}

/* ---- archives in the archive ---- */

static int composed_add_nested(void *arg, struct tree *tree, struct builder_header *header,
                               struct fault *fault)
{
    const struct build *n = arg;
    const struct fileset *fileset = n->o->fileset;
    const struct nested nested = {.source = fileset->source,
                                  .index = fileset->index,
                                  .name = fileset->path,
                                  .glob = n->o->options->compose->nested_glob,
                                  .ignores_zeros = n->o->options->ignores_zeros,
                                  .most_bytes = unpacked_most(fileset->source, n->o->options),
                                  .scratch = n->scratch,
                                  .progress = n->progress};
    (void)header;
    return nested_add(&nested, tree, fault);
}

/* In the child, whose end frees all that it allocated. */
static int composed_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct build *n = arg;
    n->progress = progress;
    return composed_write_image(&n->o->steps, composed_add_nested, n, n->fd, fault);
}

static int composed_write_nested(struct composition *c, int fd, struct fault *fault)
{
    struct opening *o = c->arg;
    struct build n = {.o = o, .fd = fd};
    if (o->fileset->compression)
        return fault_set_advised(
            fault, -ENOTSUP, NULL, FAULT_NO_OFFSET, "decompress it first",
            "is one compressed stream: archives in it can't be read in place");
    int r = nested_scratch_new(&n.scratch);
    if (r < 0)
        return r;
    int keep[] = {fd, source_fd(n.scratch)};
    struct sandbox_limits limits = built_index_limits(o, true, true);
    limits.keep_source = o->fileset->source;
    limits.keep_fds = keep;
    limits.keep_fd_count = 2;
    r = fileset_run(o->options, o->fileset->path, "indexing archives in it", composed_in_child,
                    &n, &limits, fault);
    source_close(n.scratch);
    return r;
}

/*
 * Archives that are opened by several threads at once, and report to one user: notes come one
 * at a time, and the progress counts all together. The caller's thread opens nothing: it waits
 * for the others, and for signals, which they block.
 */

#define TEAM_STACK_BYTES (8u << 20) /* children parse archives on it */

/* A thread, which opens one archive after the other. */
struct team_member {
    struct opening_team *team;
    struct fileset_options options;
    uint64_t bytes, members; /* that this archive has added to the progress */
    pthread_t thread;
};

static void team_note(void *ctx, const char *line)
{
    struct team_member *m = ctx;
    const struct fileset_options *user = m->team->options;
    pthread_mutex_lock(&m->team->lock);
    if (user->note)
        user->note(user->ctx, line);
    pthread_mutex_unlock(&m->team->lock);
}

/*
 * How much a counter has grown since the last look. A smaller value belongs to the next
 * archive.
 */
static uint64_t team_gain(uint64_t *last, uint64_t now)
{
    uint64_t gain = now >= *last ? now - *last : now;
    *last = now;
    return gain;
}

static void team_progress(void *ctx, const char *doing, const struct progress *progress)
{
    struct team_member *m = ctx;
    struct opening_team *team = m->team;
    const struct fileset_options *user = team->options;
    pthread_mutex_lock(&team->lock);
    uint64_t bytes = team->progress.bytes_done + team_gain(&m->bytes, progress->bytes_done);
    team->progress.bytes_done = team->bytes_total ? min_u64(bytes, team->bytes_total) : bytes;
    team->progress.members += team_gain(&m->members, progress->members);
    if (user->progress)
        user->progress(user->ctx, doing, &team->progress);
    if (user->cancelled && *user->cancelled)
        team->is_cancelled = true;
    pthread_mutex_unlock(&team->lock);
}

static void *team_member_run(void *arg)
{
    struct team_member *m = arg;
    const uint64_t one = 1;
    m->team->run(m->team->arg, &m->options);
    (void)!write(m->team->done_fd, &one, sizeof(one)); /* of an eventfd: it can't fail */
    return NULL;
}

/* Wait until this many threads have ended. -EINTR: a signal came that `blocked` lacks. */
static int team_wait(struct opening_team *team, uint64_t threads, const sigset_t *blocked)
{
    struct pollfd p = {.fd = team->done_fd, .events = POLLIN};
    int r = 0;
    while (r == 0 && threads > 0) {
        uint64_t ended;
        r = ppoll(&p, 1, NULL, blocked) < 0 ? -errno : 0;
        if (r == 0 && read(team->done_fd, &ended, sizeof(ended)) == sizeof(ended))
            threads -= ended;
    }
    if (r < 0)
        atomic_store(&team->is_cancelled, true);
    return r;
}

static int team_start(struct opening_team *team, struct team_member *m)
{
    *m = (struct team_member){.team = team, .options = *team->options};
    m->options.note = team_note;
    m->options.progress = team_progress;
    m->options.cancelled = &team->is_cancelled;
    m->options.ctx = m;
    return thread_start(&m->thread, TEAM_STACK_BYTES, team_member_run, m);
}

int opening_team_run(struct opening_team *team)
{
    auto_free struct team_member *members = calloc(team->threads, sizeof(*members));
    auto_close int done_fd = eventfd(0, EFD_CLOEXEC);
    sigset_t all, before, waiting;
    unsigned started = 0;
    int r = !members ? -ENOMEM : done_fd < 0 ? -errno : 0;
    pthread_mutex_init(&team->lock, NULL);
    team->progress.bytes_total = team->bytes_total;
    team->done_fd = done_fd;
    /* Signals that would end the wait stay pending until it begins. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    sandbox_waiting_signals(&before, &waiting);
    while (r == 0 && started < team->threads) {
        r = team_start(team, &members[started]);
        started += r == 0;
    }
    if (started > 0)
        r = team_wait(team, started, &waiting);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    for (unsigned i = 0; i < started; i++)
        pthread_join(members[i].thread, NULL);
    return r;
}

enum {
    MANY_VERSION = 3,     /* raise it when the same recipe makes another index */
    MANY_THREADS = 8,     /* at most; on a network, where they wait for storage */
    MANY_EACH_THREAD = 8, /* archives that are worth a thread */
    MANY_STACK_BYTES = 256 << 10,
    MANY_THREAD_BYTES = 1 << 30, /* of memory, that may be worth a child */
};

const struct backend backend_union = {.name = "union", .file = "several archives"};

/* Tells that an archive is the one that an index was composed of. */
struct part_proof {
    uint64_t format, offset, length, samples;
    /*
     * Whatever changes a file sets its time of change, which nobody can set back: with the same
     * inode and time it needs no other proof. 0: it could be changed again without a trace, or
     * is to be read in any case.
     */
    uint64_t ino, ctime_sec, ctime_nsec;
};

/* An archive of the list that is opened. */
struct part {
    const char *path;
    struct source *source; /* NULL once it belongs to `fileset` or to the concatenation */
    struct source_identity identity;
    const struct backend *backend;  /* NULL: not known yet, or, if is_unknown, */
    bool is_unknown;                /* not by its end and its first bytes */
    const char *compression;        /* of the source as a whole; NULL: none */
    struct embedded_index embedded; /* if that was looked for and found; else length 0 */
    struct container container;
    struct fileset *fileset; /* NULL: not opened */
    int err;
    struct fault fault;
    /* If it is one of several: */
    char *directory;         /* --each: its name without the ending */
    bool is_proven;          /* it need not be looked at: the proof is an earlier one */
    bool is_looked_at;       /* all of it is known, and the proof is */
    bool needs_time;         /* to be indexed or unpacked */
    struct part_proof proof; /* of its present state */
};

/* The list: one archive, or several that become one. */
struct many {
    const struct fileset_options *options;
    struct part *parts;
    size_t count;
    /* If they are several: */
    struct fileset *fileset; /* of all */
    struct fileset_options part_options;
    struct fileset_compose part_compose;
    _Atomic size_t next; /* part that a thread takes */
    void (*step)(struct many *many, struct part *part);
    struct composition steps; /* the union, and maybe a view of it */
};

/* ---- one archive ---- */

/* Put the archive's own bytes in place of the file, where they are a part of it. */
static int fileset_slice(struct source **source, uint64_t offset, struct fault *fault,
                         struct container *ret_container)
{
    uint64_t size = source_size(*source);
    *ret_container = (struct container){0};
    if (offset == 0) {
        int r = container_find(*source, fault, ret_container);
        return r < 0 || !ret_container->name
                   ? r
                   : source_slice(source, ret_container->offset, ret_container->length);
    }
    if (offset >= size)
        return fault_set(fault, -EINVAL, NULL, size, "ends before the offset %" PRIu64, offset);
    *ret_container = (struct container){"a file", offset, size - offset};
    return source_slice(source, offset, size - offset);
}

/*
 * Look at the archive by its end and its first bytes, which is cheap. False: not known so, and
 * it may lie inside a container, or be damaged.
 */
static bool part_look_quickly(struct part *part)
{
    part->backend = &backend_onepot;
    part->compression = NULL;
    int r = backend_onepot.trailer->find(part->source, NULL, &part->embedded);
    if (r < 0) /* a damaged index is an onepot archive's, too */
        part->backend = backend_begins(part->source, r == -ENOENT ? &backend_onepot : NULL,
                                       &part->compression);
    part->is_unknown = !part->backend;
    return part->backend;
}

/*
 * Look at the archive in an open file, or in a part of it, if that has not told it yet. After
 * an error the source is closed, and NULL.
 */
static int part_look(struct part *part, uint64_t offset)
{
    if (part->backend || (offset == 0 && !part->is_unknown && part_look_quickly(part)))
        return 0;
    int r = fileset_slice(&part->source, offset, &part->fault, &part->container);
    if (r == 0) {
        r = backend_find(part->source, &part->fault, &part->backend, &part->compression);
        if (r < 0)
            fileset_place_fault(part->source, &part->fault);
    }
    if (r < 0) {
        source_close(part->source);
        part->source = NULL;
    }
    return r;
}

/*
 * Open the file, or all of the archive that it is a part of. One that is whole, and is called
 * as archives are, has no parts beside it; nor has a shard, by the rule of
 * archive_list_is_whole, so that the file opened is the one identified.
 */
static void part_open_file(struct many *many, struct part *part)
{
    const struct fileset_options *options = many->options;
    bool is_whole =
        options->is_whole || (part > many->parts && series_is_shard(part[-1].path, part->path));
    part->backend = NULL;
    part->is_unknown = false;
    part->compression = NULL;
    part->embedded = (struct embedded_index){0};
    part->container = (struct container){0};
    int r = source_open(part->path, is_whole ? &part->fault : NULL, &part->source);
    bool is_alone = is_whole;
    if (r == 0 && !is_whole && options->offset == 0 && part_look_quickly(part)) {
        const struct backend *backend = part->backend;
        const char *name = path_base(part->path);
        size_t len = strlen(name);
        is_alone = part->embedded.length ||
                   (!part->compression && backend->is_whole && backend_stem(name, len) < len &&
                    backend->is_whole(part->source, true));
    }
    const struct source *file = part->source;
    if (!is_alone)
        r = volumes_open(part->path, options, &part->fault, &part->source);
    if (part->source != file) { /* look again */
        part->backend = NULL;
        part->is_unknown = false;
    }
    part->err = r;
    if (r == 0)
        source_identity(part->source, &part->identity);
}

/* The index in the archive. Without a good one, the archive counts as one of a plainer format.
 */
static int fileset_open_embedded(struct opening *o, struct fault *fault)
{
    struct fileset *fileset = o->fileset;
    struct embedded_index where = o->embedded;
    if (!fileset->backend->trailer || !fileset->backend->trailer->find)
        return OPENER_NOT_MINE;
    int r = where.length ? 0 : fileset->backend->trailer->find(fileset->source, fault, &where);
    if (r == 0)
        r = index_open(fileset->source, where.offset, where.length, fault, &fileset->index);
    if (r == 0)
        r = fileset_check_index(fileset, fault);
    if (r == 0) {
        fileset->origin = FILESET_INDEX_EMBEDDED;
        return 0;
    }
    index_close(fileset->index);
    fileset->index = NULL;
    if (r != -ENOENT && r != -ESTALE && r != -EUCLEAN && r != -ENOTSUP)
        return r;
    fileset->backend = fileset->backend->trailer->without_index;
    if (r != -ENOENT && !fault->advice[0])
        fault_advise(fault, "it is read as a plain %s", fileset->backend->name);
    if (r == -ESTALE && !fileset->packed)
        o->stale = *fault;
    else if (r != -ENOENT)
        fileset_note_fault(o->options, fileset->path, fault);
    r = fileset->packed
            ? 0
            : backend_compression(fileset->backend, fileset->source, &o->compression);
    return r < 0 ? r : OPENER_NOT_MINE;
}

static int fileset_open_index(struct opening *o, struct fault *fault)
{
    static const struct {
        opener *open;
        bool is_of_packed; /* only of a file that is compressed as a whole */
    } openers[] = {
        {fileset_open_embedded, false}, {saved_index_open, false}, {unpacked_open_stream, true},
        {built_index_open, true},       {unpacked_open, true}, /* and after that: */
        {fileset_open_embedded, true},  {built_index_open, false},
    };
    const size_t first_slow = o->options->names_only ? 3 : 2;
    struct fault own = {0};
    int r = o->options->compose ? composed_open_saved(o, &own) : OPENER_NOT_MINE;
    for (size_t i = 0; r == OPENER_NOT_MINE; i++) {
        own = (struct fault){0};
        if (o->options->only_ready && i == first_slow)
            return -EAGAIN;
        if (!openers[i].is_of_packed || o->compression || o->fileset->packed)
            r = openers[i].open(o, &own);
    }
    if (r < 0 && fault && !fault->err)
        *fault = own;
    return r;
}

/*
 * Open an archive that was looked at. Takes over part->source, also if this fails, and leaves
 * NULL there; only after -EAGAIN by options->only_ready it is there again, if it can be.
 */
static int part_open(struct part *part, const struct fileset_options *options)
{
    struct fileset_options own = *options;
    struct fileset *fileset = calloc(1, sizeof(*fileset));
    struct fault *fault = &part->fault;
    *fault = (struct fault){0};
    if (!fileset) {
        source_close(part->source);
        part->source = NULL;
        return -ENOMEM;
    }
    struct opening o = {.fileset = fileset,
                        .options = &own,
                        .compression = part->compression,
                        .embedded = part->embedded};
    fileset->source = steal_ptr(&part->source);
    fileset->container = part->container;
    fileset->backend = part->backend;
    source_identity(fileset->source, &fileset->identity);
    fileset->identity.slice_start = fileset->identity.slice_bytes = 0; /* of the file */
    fileset->path = strdup(source_name(fileset->source));
    int r = fileset->path ? fileset_open_index(&o, fault) : -ENOMEM;
    if (r == 0 && own.compose) {
        /*
         * The tree that it asks for takes the index's place. composed_open_saved has looked for
         * it, except for a stream's; what another process has saved since is made once more.
         */
        if (!o.steps.done)
            r = o.compression || fileset->compression ? composed_recall(&o.steps) : -ENOENT;
        if (r == -ENOENT) /* archives in it would have to be indexed */
            r = own.compose->nested && own.only_ready ? -EAGAIN : 0;
        o.steps.saves_later = own.saves_later && !fileset->compression;
        if (r == 0)
            r = composed_finish(&o.steps, composed_write_nested, fault);
    }
    for (size_t i = 0; i < o.steps.count; i++)
        vector_free(&o.steps.recipes[i].bytes);
    index_close(o.stream_index);
    if (r < 0) {
        if (!fileset->packed)
            fileset_place_fault(fileset->source, fault);
        volumes_advise(fileset_file(fileset), fault);
        if (r == -EAGAIN && own.only_ready && !fileset->packed)
            part->source = steal_ptr(&fileset->source);
        fileset_close(fileset);
        return r;
    }
    if (!own.lists_left_out && index_left_out(fileset->index) > 0)
        fileset_note_left_out(&own, fileset);
    part->fileset = fileset;
    return 0;
}

/*
 * Several archives as one: their sources one behind the other (source_concat.h), and an index
 * composed of theirs (tree.h).
 *
 *   1. All files are open. Their sizes and times, their order and the policies are the recipe
 *      of the index; samples of their content are its proof.
 *   2. If an index with this recipe was saved, that is all. Only files that may have changed
 *      since are read, for their samples, and archives that are compressed as a whole are
 *      opened for their bytes.
 *   3. Else look at all archives and open them, each with the archives in it (--nested), and
 *      join their trees in a new index.
 *   4. A view is made of that index, and has its own recipe and saved index.
 *
 * Several threads do what waits for storage: looking, opening what has an index already, and
 * indexing. Archives that must be unpacked, or have others in them, come one by one: each takes
 * all the memory and threads there are.
 */

/* ---- all parts, by several threads ---- */

static void *many_run(void *arg)
{
    struct many *many = arg;
    for (size_t i; (i = atomic_fetch_add(&many->next, 1)) < many->count;)
        if (many->parts[i].err == 0)
            many->step(many, &many->parts[i]);
    return NULL;
}

/* The first part tells where they lie. More threads than CPUs would only wait for each other,
 * unless they wait for storage. */
static unsigned many_threads(const struct many *many)
{
    const struct source *first = many->parts[0].source;
    uint64_t worth = many->count / MANY_EACH_THREAD;
    uint64_t most = first && source_is_local(first) ? cpus_allowed() : MANY_THREADS;
    return (unsigned)min_u64(min_u64(worth, most), MANY_THREADS);
}

/* Begin with part `first`. */
static void many_each_from(struct many *many, size_t first,
                           void (*step)(struct many *many, struct part *part))
{
    many->step = step;
    atomic_store(&many->next, first);
    thread_team(many_threads(many), MANY_STACK_BYTES, many_run, many);
}

/*
 * Does its time of change tell of each change from now on? Where it is this system's own, and
 * surely past: clocks tick slowly. A device has one that tells nothing of its bytes.
 */
static bool part_has_ctime(const struct part *part)
{
    enum { SURELY_SEC = 2 };
    struct timespec now;
    struct stat st;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec > part->identity.ctime_sec + SURELY_SEC &&
           source_is_local(part->source) && fstat(source_fd(part->source), &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* Look at a part, and at samples of its content. */
static void part_prove(struct many *many, struct part *part)
{
    if (part->is_looked_at)
        return;
    bool has_ctime = part_has_ctime(part);
    if (part->is_proven)
        part->backend = NULL; /* which is what an index says that is not used */
    part->err = part_look(part, many->options->offset);
    if (part->err < 0)
        return;
    part->is_looked_at = true;
    source_identity(part->source, &part->identity);
    part->proof = (struct part_proof){.format = part->backend->number,
                                      .offset = part->container.offset,
                                      .length = part->container.length};
    if (has_ctime && !part->container.name && !part->compression) {
        part->proof.ino = part->identity.ino;
        part->proof.ctime_sec = (uint64_t)part->identity.ctime_sec;
        part->proof.ctime_nsec = part->identity.ctime_nsec;
    }
    part->err = source_sample(part->source, &part->proof.samples);
    if (part->err < 0)
        fault_set_read(&part->fault, part->err, NULL, FAULT_NO_OFFSET);
}

static void part_free(struct part *part)
{
    fileset_close(part->fileset);
    part->fileset = NULL;
    source_close(part->source);
    part->source = NULL;
    free(part->directory);
    part->directory = NULL;
}

/*
 * Did opening fail for lack of resources? Then the archive is not damaged, and must not be
 * skipped.
 */
static bool part_is_well(const struct part *part)
{
    return part->err == -ENOMEM || part->err == -EINTR || part->err == -EMFILE ||
           part->err == -ENFILE || part->err == -ECANCELED ||
           part->err == -EAGAIN; /* the limit of processes */
}

/* Return the part's error, with a fault that names the part. */
static int part_fail(struct part *part, struct fault *fault)
{
    fault_set(&part->fault, part->err, NULL, FAULT_NO_OFFSET, "can't be opened: %s%s",
              fault_errno(part->err), fault_limit(part->err));
    fault_set_file(&part->fault, part->path);
    if (fault && !fault->err)
        *fault = part->fault;
    return part->err;
}

/* The part because of which nothing can be opened, or NULL. */
static struct part *many_failed(const struct many *many)
{
    struct part *first = NULL;
    size_t failed = 0;
    for (size_t i = 0; i < many->count; i++) {
        struct part *part = &many->parts[i];
        if (part->err == 0)
            continue;
        if (part_is_well(part))
            return part;
        first = first ? first : part;
        failed++;
    }
    return many->options->together.skip_damaged && failed < many->count ? NULL : first;
}

/* Parts that failed: everything fails with them, or they are named and left out. */
static int many_check(struct many *many, struct fault *fault)
{
    struct part *failed = many_failed(many);
    size_t kept = 0;
    if (failed)
        return part_fail(failed, fault);
    for (size_t i = 0; i < many->count; i++) {
        struct part *part = &many->parts[i];
        if (part->err == 0) {
            many->parts[kept++] = *part;
            continue;
        }
        part_fail(part, NULL);
        fault_advise(&part->fault, "it is skipped");
        fileset_note_fault(many->options, part->path, &part->fault);
        part_free(part);
    }
    many->count = kept;
    return 0;
}

/* ---- the recipe ---- */

/* Has nothing happened to the file since? Then it need not be read. */
static bool part_is_proven(struct part *part, const struct part_proof *proof)
{
    const struct source_identity *id = &part->identity;
    const struct backend *backend = backend_of_number(proof->format);
    if (part->is_looked_at || !source_is_local(part->source) || !backend ||
        proof->ctime_sec == 0 || (uint64_t)id->ctime_sec != proof->ctime_sec ||
        id->ctime_nsec != proof->ctime_nsec || id->ino != proof->ino)
        return false;
    part->backend = backend;
    part->proof = *proof;
    return true;
}

static void part_prove_unproven(struct many *many, struct part *part)
{
    if (!part->is_proven)
        part_prove(many, part);
}

static bool part_is_same(const struct part *part, const struct part_proof *proof)
{
    return part->err == 0 && memcmp(&part->proof, proof, offsetof(struct part_proof, ino)) == 0;
}

/* Look at those archives that may have changed since an index was composed of them. */
static bool many_proves(void *arg, const void *bytes, size_t len)
{
    struct many *many = arg;
    struct part_proof proof;
    bool all_proven = true, same = true;
    if (len != many->count * sizeof(proof))
        return false;
    for (size_t i = 0; i < many->count; i++) {
        memcpy(&proof, (const char *)bytes + i * sizeof(proof), sizeof(proof));
        many->parts[i].is_proven = part_is_proven(&many->parts[i], &proof);
        all_proven &= many->parts[i].is_proven;
    }
    if (!all_proven)
        many_each_from(many, 0, part_prove_unproven);
    for (size_t i = 0; same && i < many->count; i++) {
        memcpy(&proof, (const char *)bytes + i * sizeof(proof), sizeof(proof));
        same = part_is_same(&many->parts[i], &proof);
    }
    return same;
}

static int many_prove(const struct many *many, struct recipe *recipe)
{
    auto_free struct part_proof *proofs = calloc(many->count, sizeof(*proofs));
    if (!proofs)
        return -ENOMEM;
    for (size_t i = 0; i < many->count; i++)
        proofs[i] = many->parts[i].proof;
    recipe_prove(recipe, proofs, many->count * sizeof(*proofs));
    return recipe->err;
}

static int many_describe_step(const struct many *many, struct recipe *recipe)
{
    const struct fileset_together *together = &many->options->together;
    vector_free(&recipe->bytes);
    *recipe = (struct recipe){0};
    recipe_number(recipe, "union", MANY_VERSION);
    recipe_number(recipe, "version", COMPOSED_VERSION);
    recipe_number(recipe, "each", together->each);
    recipe_number(recipe, "conflict", together->on_conflict);
    recipe_number(recipe, "offset", many->options->offset);
    if (many->options->ignores_zeros)
        recipe_number(recipe, "ignore zeros", 1);
    if (many->part_options.compose)
        composed_describe_nested(&many->part_options, recipe);
    for (size_t i = 0; i < many->count; i++) {
        const struct part *part = &many->parts[i];
        const uint64_t about[] = {part->identity.size_bytes, (uint64_t)part->identity.mtime_sec,
                                  part->identity.mtime_nsec};
        recipe_add(recipe, "archive", about, sizeof(about));
        if (together->each)
            recipe_add(recipe, "directory", part->directory, strlen(part->directory));
    }
    return recipe->err;
}

static int many_describe(struct many *many)
{
    struct composition *steps = &many->steps;
    int r = 0;
    for (size_t i = 0; r == 0 && i < steps->count; i++)
        r = many_describe_step(many, &steps->recipes[i]);
    if (r == 0 && steps->view) {
        view_describe(steps->view, &steps->recipes[1]);
        r = steps->recipes[1].err;
    }
    return r;
}

static int many_find(struct many *many)
{
    const struct part *first = &many->parts[0];
    int r = many_describe(many);
    many->steps.archive = first->source ? first->source : fileset_file(first->fileset);
    many->steps.file = first->path;
    if (r == 0)
        r = composed_recall(&many->steps);
    return r == -ENOENT ? 0 : r;
}

/* ---- opening ---- */

/* Open a part if its index is ready. Any thread of the team does, maybe twice for a part. */
static void part_open_ready(struct many *many, struct part *part)
{
    struct fileset_options options = many->part_options;
    options.only_ready = true;
    options.lists_left_out = true;
    options.note = NULL;
    options.progress = NULL;
    int r = part_open(part, &options);
    part->needs_time = r == -EAGAIN;
    part->err = part->needs_time ? 0 : r;
}

/* Errors are as of opening it; it may have been tried before. */
static void part_open_alone(struct many *many, struct part *part)
{
    part->needs_time = false;
    if (!part->source) {
        part->is_looked_at = false;
        part_open_file(many, part);
        if (part->err == 0)
            part_prove(many, part);
    }
    if (part->err == 0)
        part->err = part_open(part, &many->part_options);
}

/* Would the rest take its time in vain? */
static bool many_is_lost(const struct many *many, const struct part *part)
{
    return part->err < 0 && (!many->options->together.skip_damaged || part_is_well(part));
}

/* ---- indexing several at once ---- */

static bool part_is_for_team(const struct part *part)
{
    return part->needs_time && !part->compression;
}

/*
 * A thread of the team. Parts are taken in order, and each is finished, so that the first one
 * that fails is the same each time.
 */
static void many_index_some(void *arg, const struct fileset_options *options)
{
    struct many *many = arg;
    struct fileset_options own = *options;
    own.lists_left_out = true;
    for (size_t i; (i = atomic_fetch_add(&many->next, 1)) < many->count;) {
        struct part *part = &many->parts[i];
        if (!part_is_for_team(part))
            continue;
        part->err = part_open(part, &own);
        part->needs_time = part->err < 0 && part_is_well(part); /* alone it may do better */
        if (part->needs_time)
            part->err = 0;
        else if (many_is_lost(many, part))
            atomic_store(&many->next, many->count);
        if (*options->cancelled)
            return;
    }
}

static int many_index(struct many *many, struct fault *fault)
{
    struct opening_team team = {
        .options = &many->part_options, .run = many_index_some, .arg = many};
    uint64_t count = 0;
    bool is_remote = false, needs_time = false;
    for (size_t i = 0; i < many->count; i++) {
        const struct part *part = &many->parts[i];
        needs_time |= part->needs_time;
        if (!part_is_for_team(part))
            continue;
        count++;
        team.bytes_total += part->identity.size_bytes;
        is_remote |= !source_is_local(part->source);
    }
    if (!needs_time)
        return 0;
    uint64_t memory = fileset_memory_bytes(&many->part_options); /* looked up for all parts */
    team.threads = (unsigned)min_u64(min_u64(count, is_remote ? MANY_THREADS : cpus_allowed()),
                                     min_u64(memory / MANY_THREAD_BYTES, MANY_THREADS));
    /* Sanitizers' locks may be held by another thread when one forks, and stay so in the child.
     */
    if (WITH_SANITIZER || team.threads < 2 || many->part_options.compose)
        return 0;
    atomic_store(&many->next, 0);
    int r = opening_team_run(&team);
    if (r != -EINTR)
        return 0; /* this thread does the rest */
    return fault_set(fault, r, NULL, FAULT_NO_OFFSET, "interrupted");
}

static int many_open(struct many *many, struct fault *fault)
{
    many_each_from(many, 0, part_open_ready);
    int r = many_index(many, fault);
    if (r < 0)
        return r;
    for (size_t i = 0; i < many->count; i++) {
        struct part *part = &many->parts[i];
        if (part->needs_time && part->err == 0)
            part_open_alone(many, part);
        if (many_is_lost(many, part))
            break;
    }
    return many_check(many, fault);
}

/* Archives that are compressed as a whole have their bytes elsewhere. */
static int many_open_packed(struct many *many, struct fault *fault)
{
    many->part_options.compose = NULL; /* the bytes are all that is wanted */
    for (size_t i = 0; i < many->count; i++) {
        struct part *part = &many->parts[i];
        if (part->compression)
            part->err = part_open(part, &many->part_options);
        if (part->err < 0) /* it can't be left out of the index that was found */
            return part_fail(part, fault);
    }
    return 0;
}

/* ---- the index ---- */

static int by_directory(const void *a, const void *b)
{
    const struct part *const *x = a, *const *y = b;
    return strcmp((*x)->directory, (*y)->directory);
}

/* --each: two archives with one name are merged only if that was asked for. */
static int many_check_directories(const struct many *many, struct fault *fault)
{
    const struct fileset_together *together = &many->options->together;
    if (!together->each || together->on_conflict != FILESET_CONFLICT_ERROR)
        return 0;
    auto_free const struct part **sorted = calloc(many->count, sizeof(*sorted));
    if (!sorted)
        return -ENOMEM;
    for (size_t i = 0; i < many->count; i++)
        sorted[i] = &many->parts[i];
    qsort((void *)sorted, many->count, sizeof(*sorted), by_directory);
    for (size_t i = 1; i < many->count; i++) {
        const struct part *one = sorted[i - 1], *other = sorted[i];
        if (strcmp(one->directory, other->directory) != 0)
            continue;
        fault_set(fault, -EEXIST, one->directory, FAULT_NO_OFFSET,
                  "is the directory of %s as well", one->path);
        fault_advise(fault, "rename one, or merge them with --on-conflict=first or last");
        fault_set_file(fault, other->path);
        return -EEXIST;
    }
    return 0;
}

/* Put the sources of all parts one behind the other. */
static int many_join(struct many *many)
{
    struct fileset *fileset = many->fileset;
    auto_free struct source **sources = calloc(many->count, sizeof(struct source *));
    if (!sources)
        return -ENOMEM;
    for (size_t i = 0; i < many->count; i++)
        sources[i] =
            many->parts[i].fileset ? many->parts[i].fileset->source : many->parts[i].source;
    int r = source_concat(sources, many->count, true, fileset->path, &fileset->source);
    if (r == 0) /* the same each time, also if members were unpacked */
        fileset->source->identity = fileset->identity;
    for (size_t i = 0; r == 0 && i < many->count; i++) {
        if (many->parts[i].fileset)
            many->parts[i].fileset->source = NULL;
        many->parts[i].source = NULL;
    }
    return r;
}

static int many_add(const struct many *many, size_t i, struct tree *tree, struct fault *fault)
{
    const struct part *from = &many->parts[i];
    const struct tree_part part = {.index = from->fileset->index,
                                   .name = from->path,
                                   .base = source_concat_base(many->fileset->source, i),
                                   .at_root = !many->options->together.each,
                                   .gives_way = many->options->together.on_conflict !=
                                                FILESET_CONFLICT_ERROR};
    uint32_t number;
    int r = tree_add(tree, &part, &number);
    if (r < 0 || part.at_root)
        return r;
    r = tree_put(tree, TREE_TOP, from->directory, strlen(from->directory),
                 (struct tree_place){number, INDEX_ROOT}, 0, fault);
    if (r < 0)
        fault_set_file(fault, from->path);
    return r;
}

static int many_compose(void *arg, struct tree *tree, struct builder_header *header,
                        struct fault *fault)
{
    const struct many *many = arg;
    enum fileset_conflict on_conflict = many->options->together.on_conflict;
    int r = 0;
    header->format = many->parts[0].backend->number;
    header->archive_bytes = source_size(many->fileset->source);
    header->archive_mtime_sec = many->fileset->identity.mtime_sec;
    header->archive_mtime_nsec = many->fileset->identity.mtime_nsec;
    for (size_t i = 0; r == 0 && i < many->count; i++)
        r = many_add(many, on_conflict == FILESET_CONFLICT_LAST ? many->count - 1 - i : i, tree,
                     fault);
    return r;
}

static int many_write(struct composition *steps, int fd, struct fault *fault)
{
    int r = composed_write_image(steps, many_compose, steps->arg, fd, fault);
    if (r == -EEXIST)
        fault_advise(fault, "choose one with --on-conflict=first or last, or give each archive "
                            "a directory with --each");
    return r;
}

/* Do the archives differ in who may read them? Then nobody else may read names of all. */
static bool many_is_private(const struct many *many)
{
    struct stat first, st;
    for (size_t i = 0; i < many->count; i++) {
        if (fstat(source_fd(source_member(many->fileset->source, i)), i ? &st : &first) < 0)
            return true;
        if (i && (st.st_uid != first.st_uid || st.st_gid != first.st_gid ||
                  (st.st_mode ^ first.st_mode) & 0044))
            return true;
    }
    return false;
}

static int many_make(struct many *many, struct fault *fault)
{
    int r = 0;
    many->steps.archive = source_member(many->fileset->source, 0);
    many->steps.is_private = many_is_private(many);
    for (size_t i = 0; r == 0 && i < many->steps.count; i++)
        r = many_prove(many, &many->steps.recipes[i]);
    if (r == 0)
        r = composed_finish(&many->steps, many_write, fault);
    malloc_trim(0); /* a daemon lives on with the rest */
    return r;
}

/* ---- all of it ---- */

static int many_list(const struct many *many)
{
    struct fileset *fileset = many->fileset;
    auto_free struct source_identity *all = calloc(many->count, sizeof(*all));
    fileset->parts = calloc(many->count, sizeof(*fileset->parts));
    if (!all || !fileset->parts)
        return -ENOMEM;
    for (; fileset->part_count < many->count; fileset->part_count++) {
        const struct part *from = &many->parts[fileset->part_count];
        struct fileset_part *part = &fileset->parts[fileset->part_count];
        part->backend = from->fileset ? from->fileset->backend : from->backend;
        part->has_samples = !from->compression;
        part->samples = from->proof.samples;
        part->file = (struct file_id){from->identity.dev, from->identity.ino};
        all[fileset->part_count] = from->identity;
        part->path = strdup(from->path);
        if (!part->path)
            return -ENOMEM;
    }
    source_identity_join(all, many->count, &fileset->identity);
    return 0;
}

/*
 * Look at the archives, and open them for their indexes. There may be a saved one without the
 * archives that are skipped.
 */
static int many_open_for_indexes(struct many *many, struct fault *fault)
{
    size_t all = many->count;
    many->steps.start_ms = now_ms();
    many_each_from(many, 0, part_prove);
    int r = many_check(many, fault);
    if (r == 0 && many->count < all)
        r = many_find(many);
    if (r < 0 || many->steps.done)
        return r < 0 ? r : many_open_packed(many, fault);
    all = many->count;
    r = many_open(many, fault);
    return r < 0 || many->count == all ? r : many_find(many);
}

/*
 * Is an archive a shard of a set that is being exchanged? -EBUSY. A record of it that does not
 * count is noted. A set that is being exchanged is not mixed, whatever may be skipped.
 */
static int many_check_exchange(const struct many *many, struct fault *fault)
{
    struct shard_records records = {0};
    int r = 0;
    for (size_t i = 0; r == 0 && i < many->count; i++) {
        const struct part *part = &many->parts[i];
        struct fault own = {0};
        bool is_by_link = part->source && source_is_by_link(part->source);
        if (part->err < 0 && part->err != -ENOENT) /* there may be no such file yet */
            continue;
        if (!is_by_link && !strpbrk(path_base(part->path), "0123456789"))
            continue; /* shards have numbers */
        r = shard_exchange_check(&records, part->path, is_by_link,
                                 part->source ? source_fd(part->source) : -1, &own);
        if (r > 0)
            fileset_note_fault(many->options, part->path, &own);
        if (r < 0 && many->fileset)
            fault_set_file(&own, part->path);
        if (r < 0 && fault)
            *fault = own;
        r = r < 0 ? r : 0;
    }
    if (records.folder)
        shard_records_free(&records);
    return r;
}

/* Make one tree of several archives, whose files are open. */
static int many_unite(struct many *many, struct fault *fault)
{
    int r = many_check(many, fault);
    if (r == 0)
        r = many_check_directories(many, fault);
    if (r < 0)
        return r;
    r = many_find(many);
    if (r == 0 && many->steps.done)
        r = many_open_packed(many, fault);
    else if (r == 0)
        r = many_open_for_indexes(many, fault);
    if (r == 0)
        r = many_list(many);
    if (r == 0)
        r = many_join(many);
    if (r == 0 && many->steps.done)
        r = fileset_check_index(many->fileset, fault);
    if (r == 0 && many->steps.done < many->steps.count)
        r = many_make(many, fault);
    return r < 0 ? r : fileset_check_index(many->fileset, fault);
}

/* How each of several is opened, and what becomes of all. */
static int many_begin(struct many *many, const char *name)
{
    static const struct fileset_store keeps_nothing = {0};
    const struct fileset_compose *compose = many->options->compose;
    struct fileset_options *own = &many->part_options;
    *own = *many->options;
    own->compose = NULL;
    if (compose && compose->nested) {
        many->part_compose = *compose;
        many->part_compose.view = NULL;
        own->compose = &many->part_compose;
    }
    /* FILESET_SAVE_ALWAYS alone would leave a stream packed whose index is saved. */
    own->store = own->save == FILESET_SAVE_ALWAYS ? &keeps_nothing : NULL;
    own->names_only = false;
    own->only_ready = false;
    own->saves_later = false;
    own->lists_left_out = true; /* of all, in one line */
    many->fileset = calloc(1, sizeof(*many->fileset));
    if (!many->fileset)
        return -ENOMEM;
    many->fileset->backend = &backend_union;
    many->fileset->path = strdup(name);
    many->steps = (struct composition){.fileset = many->fileset,
                                       .options = many->options,
                                       .saves_later = many->options->saves_later,
                                       .proves = many_proves,
                                       .arg = many,
                                       .view = compose ? compose->view : NULL,
                                       .count = compose && compose->view ? 2 : 1};
    for (size_t i = 0; many->options->together.each && i < many->count; i++) {
        struct part *part = &many->parts[i];
        const char *base = path_base(part->path);
        part->directory = strndup(base, backend_stem(base, strlen(base)));
        if (!part->directory)
            return -ENOMEM;
    }
    return many->fileset->path ? 0 : -ENOMEM;
}

/* A folder, whose index is made by listing it. */
static int fileset_open_plain(const char *path, const struct fileset_options *options,
                              struct fault *fault, struct fileset **ret_fileset)
{
    const struct fileset_compose *compose = options->compose;
    size_t len = strlen(path);
    if ((compose && compose->nested) || options->offset)
        return fault_set(fault, -EINVAL, NULL, FAULT_NO_OFFSET,
                         "is shown as it is: archives in it are files, with no offset");
    auto_close int fd = syscall_memfd("onepot-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct fileset *fileset = calloc(1, sizeof(*fileset));
    if (!fileset || fd < 0) {
        int r = fileset ? fd : -ENOMEM;
        free(fileset);
        return r;
    }
    while (len > 1 && path[len - 1] == '/')
        len--;
    fileset->backend = &backend_plain;
    fileset->is_plain = fileset->has_fingerprint = true;
    fileset->origin = FILESET_INDEX_BUILT;
    fileset->path = strndup(path, len);
    int r = fileset->path ? plain_index(fileset->path, options, fd, fault, &fileset->source,
                                        &fileset->fingerprint)
                          : -ENOMEM;
    if (r == 0) {
        source_identity(fileset->source, &fileset->identity);
        r = built_index_open_image(fd, fileset->path, fault, &fileset->index);
    }
    if (r == 0 && !options->lists_left_out)
        fileset_note_left_out(options, fileset);
    if (r == 0 && compose && compose->view)
        r = fileset_show(fileset, compose->view, fault);
    if (r < 0) {
        fileset_close(fileset);
        return r;
    }
    *ret_fileset = fileset;
    return 0;
}

int fileset_open_many(const char *const *paths, size_t count, const char *name,
                      const struct fileset_options *options, struct fault *fault,
                      struct fileset **ret_fileset)
{
    static const struct fileset_options defaults = {0};
    struct many many = {.options = options ? options : &defaults, .count = count};
    const bool is_one = count == 1 && !many.options->together.each;
    if (is_one && many.options->is_plain)
        return fileset_open_plain(paths[0], many.options, fault, ret_fileset);
    many.parts = calloc(count, sizeof(*many.parts));
    if (!many.parts)
        return -ENOMEM;
    for (size_t i = 0; i < count; i++)
        many.parts[i].path = paths[i];
    int r = is_one ? 0 : many_begin(&many, name);
    if (r == 0) {
        struct part *first = &many.parts[0];
        if (count > 1)
            source_expect(count);
        part_open_file(&many, first);
        if (count > 1)
            many_each_from(&many, 1, part_open_file);
        r = is_one && many.options->only_ready ? 0 : many_check_exchange(&many, fault);
        if (r == 0 && !is_one)
            r = many_unite(&many, fault);
        else if (r == 0) {
            r = first->err;
            if (r == 0 && !first->backend)
                r = part_look(first, many.options->offset);
            if (r == 0)
                r = part_open(first, many.options);
            if (r < 0 && fault && !fault->err)
                *fault = first->fault;
            many.fileset = steal_ptr(&first->fileset);
        }
    }
    for (size_t i = 0; i < many.count; i++)
        part_free(&many.parts[i]);
    free(many.parts);
    for (size_t i = 0; i < many.steps.count; i++)
        vector_free(&many.steps.recipes[i].bytes);
    if (r < 0) {
        fileset_close(many.fileset);
        return r;
    }
    if (!is_one && !many.options->lists_left_out)
        fileset_note_left_out(many.options, many.fileset);
    *ret_fileset = many.fileset;
    return 0;
}

int fileset_open(const char *path, const struct fileset_options *options, struct fault *fault,
                 struct fileset **ret_fileset)
{
    return fileset_open_many(&path, 1, path, options, fault, ret_fileset);
}

int fileset_open_source(const char *path, uint64_t offset, struct fault *fault,
                        struct container *ret_container, struct source **ret_source)
{
    struct source *source = NULL;
    int r = volumes_open(path, NULL, fault, &source);
    if (r == 0)
        r = fileset_slice(&source, offset, fault, ret_container);
    if (r < 0)
        source_close(source);
    else
        *ret_source = source;
    return r;
}

static int file_identify(const char *path, struct fault *fault,
                         struct source_identity *ret_identity)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        int r = source_open_fault(path, fault, -errno);
        fault_set_file(fault, path);
        return r;
    }
    *ret_identity = source_identity_of(&st);
    return 0;
}

int fileset_identify(const char *path, const struct fileset_options *options,
                     struct fault *fault, struct source_identity *ret_identity)
{
    volume_paths parts = {0};
    if (options->is_plain)
        return plain_identify(path, fault, ret_identity);
    int r = options->is_whole ? 0 : volumes_find(path, &parts);
    if (r < 0 || parts.count == 0)
        return r < 0 ? r : file_identify(path, fault, ret_identity);
    auto_free struct source_identity *all = calloc(parts.count, sizeof(*all));
    r = all ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < parts.count; i++)
        r = file_identify(parts.at[i], fault, &all[i]);
    if (r == 0)
        source_identity_join(all, parts.count, ret_identity);
    volumes_free(&parts);
    return r;
}

/* Which of several files was cut short. */
static void fileset_name_cut(const struct fileset *fileset, struct fault *fault)
{
    const struct source *file;
    for (size_t at[2] = {0};
         fileset_is_several(fileset) && (file = source_file_next(fileset->source, at));)
        if (source_was_cut(file) || source_was_changed(file) > 0) {
            fault_set_file(fault, source_name(file));
            return;
        }
}

int fileset_check_whole(const struct fileset *fileset, struct fault *fault)
{
    int r = !source_is_whole(fileset->source) ? -ENODATA
            : index_is_lost(fileset->index)   ? -EIO
                                              : 0;
    if (r < 0)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "%s",
                  r == -ENODATA ? "it was cut short while it was read"
                                : "its index can't be read any more");
    if (r == -ENODATA)
        fileset_name_cut(fileset, fault);
    return r;
}

void fileset_close(struct fileset *fileset)
{
    if (!fileset)
        return;
    source_close(fileset->source); /* first, as the rest provides its copy */
    source_close(fileset->packed);
    index_close(fileset->index);
    index_close(fileset->stream_index);
    for (size_t i = 0; i < fileset->part_count; i++)
        free(fileset->parts[i].path);
    free(fileset->parts);
    free(fileset->unsaved);
    free(fileset->index_path);
    free(fileset->path);
    free(fileset);
}
/*
 * The sums that an archive's files have. Where all sums are of one kind, the index's header
 * tells; a tree of several archives may have files with sums of different kinds, and files
 * without.
 */

static int fileset_sums_of_mixed(const struct index *index, struct fileset_sums *sums)
{
    uint32_t entries = index_info(index)->entries;
    int r = 0;
    for (uint32_t i = 0; r == 0 && i < entries; i++) {
        struct node node;
        uint64_t sum;
        r = index_node(index, i, &node);
        if (r < 0 || !S_ISREG(node.mode) || node.position != i)
            continue;
        sums->files++;
        r = index_sum(index, i, &sum);
        if (r == -ENODATA) {
            r = 0;
            continue;
        }
        if (r == 0) {
            enum sum_kind kind = checksum_kind(sum);
            sums->kind = sums->with_sum == 0 || sums->kind == kind ? kind : SUM_MIXED;
            sums->with_sum++;
        }
    }
    sums->some = sums->with_sum > 0;
    sums->every = sums->some && sums->with_sum == sums->files;
    return r;
}

int fileset_sums(const struct fileset *fileset, struct fileset_sums *ret_sums)
{
    const struct index_info *info = index_info(fileset->index);
    struct fileset_sums sums = {.files = info->files, .kind = info->sum_kind};
    int r = 0;
    if (info->has_some_sums && info->sum_kind == SUM_MIXED) {
        sums.files = 0;
        r = fileset_sums_of_mixed(fileset->index, &sums);
    } else if (info->has_sums) {
        sums.some = sums.every = true;
        sums.with_sum = sums.files;
    }
    if (r == 0)
        *ret_sums = sums;
    return r;
}

bool fileset_is_packed(const struct fileset *fileset)
{
    return fileset->compression ||
           (fileset->backend->stream && (index_info(fileset->index)->codec != CODEC_NONE ||
                                         index_info(fileset->index)->points > 0));
}

const char *fileset_sums_text(const struct fileset *fileset, const struct fileset_sums *sums,
                              char text[FILESET_SUMS_TEXT_LEN])
{
    const char *kind = checksum_name(sums->kind);
    if (sums->every)
        snprintf(text, FILESET_SUMS_TEXT_LEN, "of every file (%s)", kind);
    else if (sums->some)
        snprintf(text, FILESET_SUMS_TEXT_LEN, "of %" PRIu64 " of %" PRIu64 " files (%s)",
                 sums->with_sum, sums->files, kind);
    else if (sums->files == 0)
        snprintf(text, FILESET_SUMS_TEXT_LEN, "there are no files");
    else if (!checksum_available(sums->kind))
        snprintf(text, FILESET_SUMS_TEXT_LEN, "this onepot was built without %s", kind);
    else if (fileset->backend->checked)
        snprintf(text, FILESET_SUMS_TEXT_LEN, "the sums of %s are compared by 'onepot verify'",
                 fileset->backend->file);
    else
        snprintf(text, FILESET_SUMS_TEXT_LEN, "%s %s no sums of %s files",
                 fileset->backend->file, fileset->parts ? "have" : "has",
                 fileset->parts ? "their" : "its");
    return text;
}
