/*
 * Indexes of foreign archives, kept on disk.
 *
 * An index is saved beside the archive (ARCHIVE.onepot-index), where all its readers profit,
 * else in the user's cache folder. It is written
 * to a temporary name, flushed and renamed, so that it is there as a whole or not at all.
 *
 * None is trusted. It must state the archive's size, its time and a fingerprint of its
 * content, which is not computed if nothing has touched the archive since. It must belong to
 * this user, to the archive's owner or to root, and be writable by nobody who may not write to
 * the archive; otherwise anybody could plant a tree of his own design. All checks use one
 * descriptor, which is then used to read the index.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "cleanup.h"
#include "codec.h"
#include "file_id.h"
#include "leftovers.h"
#include "numbers.h"
#include "output.h"
#include "path.h"
#include "place.h"
#include "pot_private.h"
#include "vector.h"

#define INDEX_JOINED "@joined" /* behind the archive's name, of one with --ignore-zeros */

/* The part of a saved index's name between the archive's name, or its key, and the suffix. */
#define INDEX_TAG_LEN 40

static const char *saved_index_tag(uint64_t offset, bool is_joined, char tag[INDEX_TAG_LEN]);

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

int index_cache_path(const char *name, const char *key, char **ret_path)
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
 * The path of an archive's index (pot_index_path) in the cache folder, used if saving beside
 * the archive fails. -ENOENT: there is no cache folder either.
 */
static int pot_cached_index_path(const char *archive, uint64_t offset, bool is_joined,
                                 char **ret_path)
{
    char key[PATH_KEY_LEN + INDEX_TAG_LEN], tag[INDEX_TAG_LEN];
    auto_free char *full = realpath(archive, NULL);
    if (!full)
        return -errno;
    uint64_t hash = XXH3_64bits(full, strlen(full));
    snprintf(key, sizeof(key), "%016" PRIx64 "%s", hash,
             saved_index_tag(offset, is_joined, tag));
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

void index_cache_used(const char *path)
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
                       struct pot_cache *cache)
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
    struct place_refusal refusal;
    char text[PATH_MAX + 256];
    int r = place_open(path, PLACE_SHARED, ret_place, &refusal);
    return r == 0 || r == -ENOENT ? r
                                  : fault_set(fault, r, NULL, FAULT_NO_OFFSET, "%s",
                                              place_explain(&refusal, text, sizeof(text)));
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

int index_cache_open(const char *path, struct fault *fault, int *ret_fd)
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
    struct pot_cache ignored = {0};
    uint64_t bytes;
    if (!text || size_parse(text, &bytes) < 0)
        bytes = KEPT_BYTES;
    cache_bound(folder_fd, path_base(path), bytes, time(NULL) - KEPT_DAYS * DAY_S, &ignored);
}

int pot_clean_cache(struct pot_cache *ret_cache, struct fault *fault)
{
    auto_free char *folder = NULL;
    auto_close int fd = -1;
    *ret_cache = (struct pot_cache){0};
    int r = cache_folder(&folder);
    if (r == 0)
        r = cache_open(folder, fault, &fd);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    r = cache_bound(fd, NULL, 0, INT64_MAX, ret_cache);
    return r < 0 ? fault_set_errno(fault, r, NULL, folder) : 0;
}

int pot_index_path(const char *archive, uint64_t offset, bool is_joined, char **ret_path)
{
    char tag[INDEX_TAG_LEN];
    return asprintf(ret_path, "%s%s" INDEX_SUFFIX, archive,
                    saved_index_tag(offset, is_joined, tag)) < 0
               ? -ENOMEM
               : 0;
}

static const char *saved_index_tag(uint64_t offset, bool is_joined, char tag[INDEX_TAG_LEN])
{
    size_t len = offset ? (size_t)snprintf(tag, INDEX_TAG_LEN, "@%" PRIu64, offset) : 0;
    snprintf(tag + len, INDEX_TAG_LEN - len, "%s", is_joined ? INDEX_JOINED : "");
    return tag;
}

/* ---- finding ---- */

int opening_fingerprint(struct opening *o)
{
    if (o->pot->has_fingerprint)
        return 0;
    int r = source_fingerprint(pot_file(o->pot), &o->pot->fingerprint);
    o->pot->has_fingerprint = r == 0;
    return r;
}

/* Can the content of a stream be used by its index alone, or unpacked while it is read? */
static bool saved_may_be_stream(const struct opening *o)
{
    const struct pot_options *options = o->options;
    return o->compression &&
           (options->store ? options->store->expand != NULL
                           : options->names_only || options->save == POT_SAVE_ALWAYS);
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
        return bytes == source_size(o->pot->source);
    return saved_may_be_stream(o) && bytes <= INT64_MAX && sums == index_windows_of(bytes);
}

static bool saved_has_fingerprint(const struct index *index, struct opening *o)
{
    return opening_fingerprint(o) == 0 &&
           index_info(index)->archive_fingerprint == o->pot->fingerprint;
}

static bool saved_describes(const struct index *index, struct opening *o)
{
    const struct index_info *info = index_info(index);
    const struct source_identity *id = &o->pot->identity;
    return info->format == o->pot->backend->number && saved_has_size(index, o) &&
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

int saved_index_open_file(const char *path, const struct pot_options *options,
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
        pot_note(options, path, "is not used: it %s", why);
    else if (ret_is_later)
        *ret_is_later = saved_is_later(&ours, &theirs);
    if (r == -EUCLEAN)
        pot_note(options, path, "this saved index is damaged: it is made anew");
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
    if (o->options->save == POT_SAVE_ALWAYS)
        pot_note(
            o->options, path,
            "was made by a later version of onepot, or a build that reads more: it is made "
            "anew");
    else
        pot_note(o->options, path,
                 "was made by a later version of onepot, or a build that reads more, and this "
                 "one indexes the archive anew each time; use that one, or replace the file by "
                 "'onepot index'");
}

/* The place of it, and the index; -ENOENT: there is none that can be used. */
static int saved_find(struct opening *o, char **ret_path, struct index **ret_index)
{
    static int (*const places[])(const char *, uint64_t, bool,
                                 char **) = {pot_index_path, pot_cached_index_path};
    int r = -ENOENT;
    for (size_t i = o->options->ignores_zeros ? 0 : 2; r == -ENOENT && i < 4; i++) {
        auto_free char *path = NULL;
        struct index *index = NULL;
        bool is_later = false;
        if (places[i % 2](o->pot->path, o->options->offset, i < 2, &path) < 0)
            continue;
        r = saved_index_open_file(path, o->options, o->pot->source, &is_later, &index);
        if (r == -ENOTSUP) {
            saved_note_version(path, o);
            r = -ENOENT;
        }
        if (r < 0)
            continue;
        if (!saved_describes(index, o) || !(is_later || saved_has_fingerprint(index, o))) {
            index_close(index);
            r = -ENOENT;
            continue;
        }
        o->pot->has_fingerprint = true; /* nothing has changed since */
        o->pot->fingerprint = index_info(index)->archive_fingerprint;
        if (places[i % 2] == pot_cached_index_path)
            index_cache_used(path);
        *ret_path = steal_ptr(&path);
        *ret_index = index;
    }
    return r;
}

/*
 * Called even where no saved index may be used: it finds out whether the archive was indexed
 * anew.
 */
int saved_index_open(struct opening *o, struct fault *fault)
{
    struct pot *pot = o->pot;
    struct index *index = NULL;
    auto_free char *path = NULL;
    bool rebuilds = o->options->rebuild;
    (void)fault;
    int r = rebuilds && !o->stale.err ? -ENOENT : saved_find(o, &path, &index);
    pot->was_reindexed = r == 0 && o->stale.err;
    if (r == -ENOENT && o->stale.err && o->options->save != POT_SAVE_ALWAYS)
        pot_note_fault(o->options, pot->path, &o->stale);
    if (r < 0)
        return r == -ENOENT ? OPENER_NOT_MINE : r;
    if (rebuilds) {
        index_close(index);
        return OPENER_NOT_MINE;
    }
    pot->index_path = steal_ptr(&path);
    pot->origin = POT_INDEX_SAVED;
    if (index_windows(index) > 0) {
        o->stream_index = index;
        return OPENER_NOT_MINE;
    }
    pot->index = index;
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

int saved_index_access(const struct source *archive, struct stat *ret_access)
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
    int r = output_open_own(path, &output);
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

int saved_index_write_file(const char *path, const struct stat *access,
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

int pot_save_digest(struct pot *pot, struct fault *fault)
{
    const void *recipe;
    size_t len;
    struct stat access;
    if (!pot->index_path)
        return 0;
    /* Those of the archive, and not of what lies there by now; a composed one is this user's.
     */
    bool is_composed = index_recipe(pot->index, &recipe, &len) != -ENODATA;
    int r = saved_index_access(is_composed ? NULL : pot_file(pot), &access);
    if (r == 0)
        r = saved_write_to(pot->index_path, &access, pot->index);
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

int saved_index_write(const char *archive, uint64_t offset, const struct source *source,
                      const struct index *index, struct fault *fault, char **ret_path)
{
    auto_free char *path = NULL, *cached = NULL;
    struct fault why = {0};
    struct stat access;
    const bool is_joined = index_info(index)->has_joined;
    int beside = pot_index_path(archive, offset, is_joined, &path);
    if (beside == 0)
        beside = saved_index_access(source, &access);
    if (beside == 0)
        beside = saved_write_to(path, &access, index);
    if (beside == 0) {
        *ret_path = steal_ptr(&path);
        return 0;
    }
    int r = pot_cached_index_path(archive, offset, is_joined, &cached);
    if (r == 0)
        r = saved_index_access(source, &access);
    if (r == 0)
        r = saved_index_write_file(cached, &access, index, &why);
    if (r < 0)
        return saved_fault(beside, cached, r, &why, fault);
    *ret_path = steal_ptr(&cached);
    return 0;
}
