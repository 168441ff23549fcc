/*
 * Counts what a pack of directories will have to do. Ahead of a pack it does so by names alone:
 * no file is opened or looked at. Without the types of entries from the filesystem, with a path
 * that is too long, or with an error, the number stays unknown; the pack itself reports errors.
 *
 * For a survey each file is looked at, and errors are reported as a pack would.
 */
#include "count.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "pax.h"
#include "thread.h"

#define STACK_BYTES (256u << 10)
#define SHARE_NONE SIZE_MAX /* the folder of a single source lies in none of its subfolders */

/* The sums of one folder's entries. */
struct sums {
    struct pack_share all;
    uint64_t archive_bytes;
};

/* ---- the list of folders ---- */

/* Takes over the path. Under the lock. */
static int count_push(struct count *c, char *path, size_t source, size_t share)
{
    struct count_folder_ref ref = {path, source, share};
    int r = path ? vector_push(&c->todo, ref) : -ENOMEM;
    if (r < 0)
        free(path);
    return r;
}

static char *count_path(const char *folder, const char *name)
{
    char *path;
    return asprintf(&path, "%s%s%s", folder, *folder ? "/" : "", name) < 0 ? NULL : path;
}

/* A new share of the survey. Under the lock. */
static int count_add_share(struct count *c, const char *name, size_t *ret_share)
{
    struct pack_survey *s = c->survey;
    struct pack_share share = {.name = strdup(name)};
    if (!share.name)
        return -ENOMEM;
    *ret_share = s->shares.count;
    int r = vector_push(&s->shares, share);
    if (r < 0)
        free(share.name);
    return r;
}

/* A folder in a folder; with `begins_share`, one that the survey tells of. */
static int count_found_folder(struct count *c, const struct count_folder_ref *above,
                              const char *name, bool begins_share)
{
    size_t share = above->share;
    char *path = count_path(above->path, name);
    pthread_mutex_lock(&c->lock);
    int r = begins_share && path ? count_add_share(c, path, &share) : 0;
    if (r == 0 && share != above->share)
        c->survey->shares.at[share].inodes = 1; /* its own; in all it is counted already */
    if (r == 0)
        r = count_push(c, path, above->source, share);
    else
        free(path);
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return r;
}

/* ---- a file ---- */

static void count_problem(struct count *c, int err, const char *folder, const char *name)
{
    struct fault fault = {0};
    auto_free char *path = *name ? count_path(folder, name) : strdup(folder);
    fault_set_errno(&fault, err, path, "can't be read");
    pthread_mutex_lock(&c->lock);
    c->survey->problems++;
    if (c->options->report)
        c->options->report(c->options->ctx, PACK_PROBLEM, &fault);
    pthread_mutex_unlock(&c->lock);
}

/* A note of pack is a note of its survey, too. */
static void count_report_alike(struct count *c, const char *folder, const struct listing *l)
{
    struct fault fault = {0};
    auto_free char *path = count_path(folder, l->first_alike[0]);
    selection_alike_fault(c->selection, l->alike, path, l->first_alike[1], &fault);
    pthread_mutex_lock(&c->lock);
    c->survey->problems += c->selection->is_nfc;
    if (c->options->report)
        c->options->report(c->options->ctx, c->selection->is_nfc ? PACK_PROBLEM : PACK_NOTE,
                           &fault);
    pthread_mutex_unlock(&c->lock);
}

/* Was a file of several names counted under another one? */
static int count_is_again(struct count *c, const struct stat *st, bool *ret_again)
{
    struct map_key key = {st->st_dev, st->st_ino};
    pthread_mutex_lock(&c->lock);
    int r = map_put(&c->links, key, 0);
    pthread_mutex_unlock(&c->lock);
    *ret_again = r == -EEXIST;
    return *ret_again ? 0 : r;
}

/* The bytes of a member in an archive that is not compressed, without its part of the index. */
static int count_member_bytes(const char *path, const struct stat *st, uint64_t *ret_bytes)
{
    struct pax_buffer header = {0};
    const struct builder_member m = {.path = path,
                                     .path_len = strlen(path),
                                     .mode = st->st_mode,
                                     .uid = st->st_uid,
                                     .gid = st->st_gid,
                                     .mtime_sec = st->st_mtim.tv_sec,
                                     .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec,
                                     .size_bytes =
                                         S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0};
    int r = pax_encode(&m, &header);
    uint64_t stored = pax_stored_bytes(&m);
    *ret_bytes = header.count + stored + pax_padding(stored);
    vector_free(&header);
    return r;
}

/* Add what an entry takes, and find whether it is a folder. */
static int count_look(struct count *c, int fd, const char *folder, struct folder_name *name,
                      struct sums *sums)
{
    struct stat st;
    uint64_t bytes = 0;
    bool is_again = false;
    if (fstatat(fd, name->name, &st, selection_stat_flags(c->selection)) < 0) {
        if (errno != ENOENT || c->selection->dereference) /* else it was removed meanwhile */
            count_problem(c, -errno, folder, name->name);
        name->type = DT_REG;
        return 0;
    }
    name->type = S_ISDIR(st.st_mode) ? DT_DIR : DT_REG;
    if (S_ISSOCK(st.st_mode))
        return 0;
    sums->all.files += !S_ISDIR(st.st_mode);
    bool may_repeat = st.st_nlink > 1 || c->selection->dereference;
    int r = may_repeat && !S_ISDIR(st.st_mode) ? count_is_again(c, &st, &is_again) : 0;
    if (r < 0 || is_again) {
        sums->archive_bytes += PAX_BLOCK_BYTES;
        return r;
    }
    sums->all.inodes++;
    sums->all.bytes += S_ISREG(st.st_mode) ? (uint64_t)st.st_size : 0;
    auto_free char *path = count_path(folder, name->name);
    r = path ? count_member_bytes(path, &st, &bytes) : -ENOMEM;
    sums->archive_bytes += bytes;
    return r;
}

/* ---- a folder ---- */

static void count_add_sums(struct pack_share *to, const struct pack_share *from)
{
    to->files += from->files;
    to->bytes += from->bytes;
    to->inodes += from->inodes;
}

static void count_note(struct count *c, const struct count_folder_ref *ref, size_t names,
                       const struct sums *sums)
{
    struct pack_survey *s = c->survey;
    pthread_mutex_lock(&c->lock);
    c->members += names;
    if (s) {
        count_add_sums(&s->all, &sums->all);
        s->members += names;
        s->archive_bytes += sums->archive_bytes;
        if (ref->share != SHARE_NONE)
            count_add_sums(&s->shares.at[ref->share], &sums->all);
    }
    pthread_mutex_unlock(&c->lock);
}

/* More than one: a folder that is alone in its folder tells nothing. */
static bool has_folders(const struct listing *listing)
{
    size_t count = 0;
    for (size_t i = 0; i < listing->count; i++)
        count += listing->names[i].type == DT_DIR;
    return count > 1;
}

/* -ELOOP: the folder holds itself, as only links can have it. */
static int count_check_loop(int root_fd, const char *path, int fd)
{
    auto_free char *above = strdup(path);
    struct stat st, st_above;
    if (!above)
        return -ENOMEM;
    if (fstat(fd, &st) < 0)
        return -errno;
    for (char *end = above + strlen(above); end > above;) {
        while (end > above && *--end != '/')
            ;
        *end = '\0';
        if (fstatat(root_fd, *above ? above : ".", &st_above, 0) == 0 &&
            file_id_equal(file_id_of(&st), file_id_of(&st_above)))
            return -ELOOP;
    }
    return 0;
}

/* Count the names of one folder, and put the folders among them on the list. */
static int count_folder(struct count *c, const struct count_folder_ref *ref)
{
    size_t root_len = strlen(c->sources->at[ref->source].name);
    const char *path = ref->path, *below = path + root_len + (path[root_len] == '/');
    struct listing listing = {0};
    struct sums sums = {0};
    auto_close int fd = openat(c->fds[ref->source], *below ? below : ".",
                               selection_open_flags(c->selection) | O_DIRECTORY);
    int r = fd < 0 ? -errno : 0;
    if (r == 0 && c->selection->dereference)
        r = count_check_loop(c->fds[ref->source], below, fd);
    if (r == 0)
        r = listing_read(fd, &listing);
    if (r < 0 && c->survey && r != -ENOMEM) {
        count_problem(c, r, path, "");
        r = 0;
    }
    const struct selection_folder folder = {
        .path = path, .path_len = strlen(path), .root_len = root_len, .fd = fd};
    if (r == 0)
        r = selection_apply(c->selection, &folder, &listing);
    if (r >= 0 && c->survey && listing.alike)
        count_report_alike(c, path, &listing);
    for (size_t i = 0; c->survey && r >= 0 && i < listing.count; i++)
        r = count_look(c, fd, path, &listing.names[i], &sums);
    bool begins_shares = c->survey && ref->share == SHARE_NONE && has_folders(&listing);
    for (size_t i = 0; r >= 0 && i < listing.count; i++)
        if (listing.names[i].type == DT_UNKNOWN)
            r = -ENOTSUP;
        else if (listing.names[i].type == DT_DIR)
            r = count_found_folder(c, ref, listing.names[i].name, begins_shares);
    count_note(c, ref, listing.count, &sums);
    listing_free(&listing);
    return r < 0 ? r : 0;
}

static bool count_is_stopped(const struct count *c)
{
    return atomic_load(&c->stop) ||
           (c->options && c->options->stop && atomic_load(c->options->stop));
}

/* Take folders from the list until there is none, and nobody who may add one. */
static void *count_run(void *arg)
{
    struct count *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (c->err == 0 && c->todo.count == 0 && c->busy > 0)
            pthread_cond_wait(&c->wake, &c->lock);
        if (c->err == 0 && count_is_stopped(c))
            c->err = -EINTR;
        if (c->err < 0 || c->todo.count == 0)
            break;
        const struct count_folder_ref ref = c->todo.at[--c->todo.count];
        c->busy++;
        pthread_mutex_unlock(&c->lock);
        int r = count_folder(c, &ref);
        free(ref.path);
        pthread_mutex_lock(&c->lock);
        c->busy--;
        c->err = c->err < 0 ? c->err : r;
        pthread_cond_broadcast(&c->wake);
    }
    pthread_cond_broadcast(&c->wake);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- all ---- */

/* The pipeline takes the sources' own descriptors. */
static int count_open(struct count *c)
{
    c->fds = calloc(c->sources->root->listing.count, sizeof(*c->fds));
    if (!c->fds)
        return -ENOMEM;
    for (; c->count < c->sources->root->listing.count; c->count++) {
        c->fds[c->count] = fcntl(c->sources->at[c->count].fd, F_DUPFD_CLOEXEC, 0);
        if (c->fds[c->count] < 0)
            return -errno; /* an archive, or the limit */
    }
    return 0;
}

/* The source itself is a member, too. */
static int count_add_source(struct count *c, size_t number)
{
    const char *name = c->sources->at[number].name;
    struct sums sums = {0};
    struct stat st;
    size_t share = SHARE_NONE;
    int r = c->survey && *name ? count_add_share(c, name, &share) : 0;
    if (r == 0)
        r = count_push(c, strdup(name), number, share);
    if (r == 0 && c->survey && fstat(c->fds[number], &st) == 0) {
        sums.all.inodes = 1;
        r = count_member_bytes(name, &st, &sums.archive_bytes);
    }
    const struct count_folder_ref ref = {.share = share};
    count_note(c, &ref, 1, &sums);
    return r;
}

static void count_sources(struct count *c, unsigned threads)
{
    for (size_t i = 0; c->err == 0 && i < c->count; i++)
        c->err = count_add_source(c, i);
    thread_team(threads, STACK_BYTES, count_run, c);
}

static void *count_alone(void *arg)
{
    struct count *c = arg;
    count_sources(c, 1);
    if (c->err == 0 && c->progress)
        atomic_store(&c->progress->members_total, c->members);
    return NULL;
}

static int count_begin(struct count *c)
{
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    return count_open(c);
}

void count_start(struct count *c)
{
    c->is_started =
        count_begin(c) == 0 && thread_start(&c->thread, STACK_BYTES, count_alone, c) == 0;
}

void count_stop(struct count *c)
{
    atomic_store(&c->stop, true);
    if (c->is_started)
        pthread_join(c->thread, NULL);
    for (size_t i = 0; i < c->count; i++)
        close(c->fds[i]);
    free(c->fds);
    for (size_t i = 0; i < c->todo.count; i++)
        free(c->todo.at[i].path);
    vector_free(&c->todo);
    map_free(&c->links);
}

int count_all(struct count *c, unsigned threads)
{
    c->err = count_begin(c);
    if (c->err == 0)
        count_sources(c, threads);
    return c->err;
}
