/*
 * Packing as a whole: opens the sources, counts what there is to do, lets the pipeline fill the
 * archive, and gives the archive its name.
 */
#include "pack.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "backend.h"
#include "cleanup.h"
#include "map.h"
#include "numbers.h"
#include "output.h"
#include "path.h"
#include "pax.h"
#include "pipeline.h"
#include "thread.h"

#define SURVEY_THREADS 16u     /* they wait for the storage of files' attributes */
#define SURVEY_INDEX_BYTES 72u /* of the index for a member, about */

static int pack_source_fault(struct fault *fault, int err, const char *path)
{
    if (err != -ENOTDIR)
        return fault_set_errno(fault, err, path, "can't be packed");
    return fault_set_advised(fault, err, path, FAULT_NO_OFFSET,
                             "name the directory that is to be packed", "is not a directory");
}

/* The last component of a path; "." and the like are resolved first. The caller frees it. */
static int pack_base_name(const char *path, char **ret_name)
{
    size_t len = strlen(path);
    while (len && path[len - 1] == '/')
        len--;
    auto_free char *cut = strndup(path, len), *resolved = NULL;
    if (!cut)
        return -ENOMEM;
    const char *base = path_base(cut);
    if (!*base || path_is_dots(base)) {
        resolved = realpath(path, NULL);
        if (!resolved)
            return -errno;
        base = path_base(resolved);
        if (!*base)
            return -EINVAL;
    }
    *ret_name = strdup(base);
    return *ret_name ? 0 : -ENOMEM;
}

/* An archive's name without the ending of its format. */
static int pack_archive_name(const char *path, char **ret_name)
{
    int r = pack_base_name(path, ret_name);
    if (r == 0)
        (*ret_name)[backend_stem(*ret_name, strlen(*ret_name))] = '\0';
    return r;
}

int pack_default_output(const char *source, bool is_archive, char **ret_name)
{
    auto_free char *base = NULL;
    int r = is_archive ? pack_archive_name(source, &base) : pack_base_name(source, &base);
    if (r < 0)
        return r;
    return asprintf(ret_name, "%s.onepot.tar", base) < 0 ? -ENOMEM : 0;
}

static int pack_open_source(struct pack_source *s, const char *path, const struct input *input,
                            bool alone, struct fault *fault)
{
    s->path = path;
    s->input = input;
    if (!input)
        s->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!input && s->fd < 0)
        return pack_source_fault(fault, -errno, path);
    if (alone) {
        s->name = strdup("");
        return s->name ? 0 : -ENOMEM;
    }
    int r = input ? pack_archive_name(path, &s->name) : pack_base_name(path, &s->name);
    if (r == -EINVAL)
        fault_set_advised(fault, r, path, FAULT_NO_OFFSET, "pack it alone",
                          "has no name for its folder in the archive");
    return r;
}

static int pack_compare_sources(const void *a, const void *b)
{
    const struct pack_source *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int pack_compose(char **name)
{
    char *composed;
    int r = selection_compose(*name, &composed);
    if (r == 1) {
        free(*name);
        *name = composed;
    }
    return r < 0 ? r : 0;
}

static int pack_open_sources(const struct pack_options *o, struct pack_source *sources,
                             struct fault *fault)
{
    for (size_t i = 0; i < o->source_count; i++) {
        const struct input *input = o->inputs ? o->inputs[i] : NULL;
        int r =
            pack_open_source(&sources[i], o->sources[i], input, o->source_count == 1, fault);
        if (r == 0 && o->is_nfc)
            r = pack_compose(&sources[i].name);
        if (r < 0)
            return r;
    }
    qsort(sources, o->source_count, sizeof(*sources), pack_compare_sources);
    for (size_t i = 1; i < o->source_count; i++) {
        if (strcmp(sources[i - 1].name, sources[i].name) != 0)
            continue;
        return fault_set_advised(fault, -EEXIST, sources[i].path, FAULT_NO_OFFSET,
                                 "pack the directory that holds both",
                                 "another source has the same name, '%s'", sources[i].name);
    }
    return 0;
}

/*
 * ---- counting ----
 *
 * The members that a pack of directories will write, by names alone, while it writes: no file
 * is opened or looked at. Without the types of entries from the filesystem, with a path that is
 * too long, or with an error, the number stays unknown; the pack itself reports errors.
 *
 * For a survey (pack_survey) each file is looked at before anything is written, and errors are
 * reported as a pack would.
 */

#define COUNT_STACK_BYTES (256u << 10)
#define SHARE_NONE SIZE_MAX /* the folder of a single source lies in none of its subfolders */

struct count_folder_ref {
    char *path; /* in the archive */
    size_t source;
    size_t share; /* of the survey; see pack_share */
};

struct count {
    struct packing *run;        /* its progress gets members_total, once it is known */
    struct pack_survey *survey; /* gets what files take, which are looked at for it; or NULL */
    int *fds;                   /* of the sources */
    size_t count;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    VECTOR(struct count_folder_ref) todo; /* folders that are still to be listed */
    unsigned busy;                        /* threads that list one */
    int err;
    uint64_t members;
    struct map links; /* files of several names: each counts once */
    _Atomic bool stop;
    bool is_started;
    pthread_t thread;
};

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

static void count_problem(struct count *c, int err, const char *folder, const char *name)
{
    struct fault fault = {0};
    auto_free char *path = *name ? count_path(folder, name) : strdup(folder);
    fault_set_errno(&fault, err, path, "can't be read");
    pthread_mutex_lock(&c->lock);
    c->survey->problems++;
    if (c->run->options->report)
        c->run->options->report(c->run->options->ctx, PACK_PROBLEM, &fault);
    pthread_mutex_unlock(&c->lock);
}

/* A note of pack is a note of its survey, too. */
static void count_report_alike(struct count *c, const char *folder, const struct listing *l)
{
    struct fault fault = {0};
    auto_free char *path = count_path(folder, l->first_alike[0]);
    selection_alike_fault(&c->run->selection, l->alike, path, l->first_alike[1], &fault);
    pthread_mutex_lock(&c->lock);
    c->survey->problems += c->run->selection.is_nfc;
    if (c->run->options->report)
        c->run->options->report(c->run->options->ctx,
                                c->run->selection.is_nfc ? PACK_PROBLEM : PACK_NOTE, &fault);
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
    const struct node m = {.path = path,
                           .path_len = strlen(path),
                           .mode = st->st_mode,
                           .uid = st->st_uid,
                           .gid = st->st_gid,
                           .mtime_sec = st->st_mtim.tv_sec,
                           .mtime_nsec = (uint32_t)st->st_mtim.tv_nsec,
                           .size_bytes = S_ISREG(st->st_mode) ? (uint64_t)st->st_size : 0};
    int r = pax_encode(&m, &header);
    uint64_t stored = pax_stored_bytes(&m);
    *ret_bytes = header.count + stored + pax_padding(stored);
    vector_free(&header);
    return r;
}

/* Add what an entry takes, and find whether it is a folder. */
static int count_look(struct count *c, int fd, const char *folder, struct folder_name *name,
                      struct pack_survey *sums)
{
    struct stat st;
    uint64_t bytes = 0;
    bool is_again = false;
    if (fstatat(fd, name->name, &st, selection_stat_flags(&c->run->selection)) < 0) {
        if (errno != ENOENT ||
            c->run->selection.dereference) /* else it was removed meanwhile */
            count_problem(c, -errno, folder, name->name);
        name->type = DT_REG;
        return 0;
    }
    name->type = S_ISDIR(st.st_mode) ? DT_DIR : DT_REG;
    if (S_ISSOCK(st.st_mode))
        return 0;
    sums->all.files += !S_ISDIR(st.st_mode);
    bool may_repeat = st.st_nlink > 1 || c->run->selection.dereference;
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

static void count_add_sums(struct pack_share *to, const struct pack_share *from)
{
    to->files += from->files;
    to->bytes += from->bytes;
    to->inodes += from->inodes;
}

static void count_note(struct count *c, const struct count_folder_ref *ref, size_t names,
                       const struct pack_survey *sums)
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
        count += listing->at[i].type == DT_DIR;
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
    size_t root_len = strlen(c->run->sources[ref->source].name);
    const char *path = ref->path, *below = path + root_len + (path[root_len] == '/');
    struct listing listing = {0};
    struct pack_survey sums = {0};
    auto_close int fd = openat(c->fds[ref->source], *below ? below : ".",
                               selection_open_flags(&c->run->selection) | O_DIRECTORY);
    int r = fd < 0 ? -errno : 0;
    if (r == 0 && c->run->selection.dereference)
        r = count_check_loop(c->fds[ref->source], below, fd);
    if (r == 0)
        r = listing_read(fd, SIZE_MAX, &listing);
    if (r < 0 && c->survey && r != -ENOMEM) {
        count_problem(c, r, path, "");
        r = 0;
    }
    const struct selection_folder folder = {
        .path = path, .path_len = strlen(path), .root_len = root_len, .fd = fd};
    if (r == 0)
        r = selection_apply(&c->run->selection, &folder, &listing);
    if (r >= 0 && c->survey && listing.alike)
        count_report_alike(c, path, &listing);
    for (size_t i = 0; c->survey && r >= 0 && i < listing.count; i++)
        r = count_look(c, fd, path, &listing.at[i], &sums);
    bool begins_shares = c->survey && ref->share == SHARE_NONE && has_folders(&listing);
    for (size_t i = 0; r >= 0 && i < listing.count; i++)
        if (listing.at[i].type == DT_UNKNOWN)
            r = -ENOTSUP;
        else if (listing.at[i].type == DT_DIR)
            r = count_found_folder(c, ref, listing.at[i].name, begins_shares);
    count_note(c, ref, listing.count, &sums);
    listing_free(&listing);
    return r < 0 ? r : 0;
}

static bool count_is_stopped(const struct count *c)
{
    return atomic_load(&c->stop) ||
           (c->run->options->stop && atomic_load(c->run->options->stop));
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

/* The pipeline takes the sources' own descriptors. */
static int count_open(struct count *c)
{
    c->fds = calloc(c->run->options->source_count, sizeof(*c->fds));
    if (!c->fds)
        return -ENOMEM;
    for (; c->count < c->run->options->source_count; c->count++) {
        c->fds[c->count] = fcntl(c->run->sources[c->count].fd, F_DUPFD_CLOEXEC, 0);
        if (c->fds[c->count] < 0)
            return -errno; /* an archive, or the limit */
    }
    return 0;
}

/* The source itself is a member, too. */
static int count_add_source(struct count *c, size_t number)
{
    const char *name = c->run->sources[number].name;
    struct pack_survey sums = {0};
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
    thread_team(threads, COUNT_STACK_BYTES, count_run, c);
}

static void *count_alone(void *arg)
{
    struct count *c = arg;
    count_sources(c, 1);
    if (c->err == 0)
        atomic_store(&c->run->progress.members_total, c->members);
    return NULL;
}

static int count_begin(struct count *c)
{
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->wake, NULL);
    return count_open(c);
}

/* Begins to count. If there is no memory, the number stays unknown. */
static void count_start(struct count *c)
{
    c->is_started =
        count_begin(c) == 0 && thread_start(&c->thread, COUNT_STACK_BYTES, count_alone, c) == 0;
}

static void count_stop(struct count *c)
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

/* Counts in so many threads, until all is counted. -EINTR, -ENOMEM, or an error of a source. */
static int count_all(struct count *c, unsigned threads)
{
    c->err = count_begin(c);
    if (c->err == 0)
        count_sources(c, threads);
    return c->err;
}

/* ---- the run ---- */

/* How many descriptors the process may have. */
static uint64_t pack_most_files(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? 1024 : limit.rlim_cur;
}

/* How many descriptors folders and threads may take. */
static unsigned pack_descriptors(void)
{
    uint64_t most = pack_most_files();
    return most > 2048 ? 2048 : most < 64 ? 32 : (unsigned)most - 32;
}

/* Finds out how much there is to do, if that is known beforehand, to estimate the time left. */
static void pack_find_totals(struct packing *run)
{
    uint32_t world = run->selection.world;
    uint64_t bytes = 0;
    for (size_t i = 0; i < run->options->source_count; i++) {
        if (!run->sources[i].input) {
            bytes = 0;
            break;
        }
        bytes += index_info(run->sources[i].input->index)->data_bytes / world;
    }
    run->progress.bytes_total = bytes;
    if (run->names)
        run->progress.members_total = name_list_count(run->names) / world;
}

static int pack_fill(struct packing *run, const char *letters, struct compress_pool *pool,
                     struct fault *fault)
{
    struct count count = {.run = run};
    pack_find_totals(run);
    if (run->options->progress && !run->names && !run->options->dereference)
        count_start(&count);
    int r = pipeline_run(run, letters, pool, fault);
    count_stop(&count);
    return r;
}

/* ---- which shards belong together ---- */

static void pack_mix(uint64_t *sum, const void *bytes, size_t len)
{
    *sum = XXH3_64bits_withSeed(bytes, len, *sum);
}

/*
 * The letters in the names of shards that are ready. They are the same for all ranks, but
 * differ for other options, and for another start if the launcher tells starts apart. A process
 * that runs alone draws its own.
 */
static int pack_find_letters(const struct packing *run, char letters[PARTIAL_LETTER_COUNT + 1])
{
    const struct pack_options *o = run->options;
    const uint64_t numbers[] = {o->shards,
                                o->world,
                                o->start,
                                (uint64_t)o->writer.zstd_level,
                                o->writer.block_bytes,
                                o->writer.align_bytes,
                                o->dereference,
                                o->is_nfc};
    uint64_t sum = 0;
    if (run->selection.world <= 1 && getrandom(&sum, sizeof(sum), 0) != sizeof(sum))
        return -EIO;
    pack_mix(&sum, numbers, sizeof(numbers));
    for (size_t i = 0; i < o->source_count; i++)
        pack_mix(&sum, o->sources[i], strlen(o->sources[i]));
    for (size_t i = 0; i < o->exclude_count; i++)
        pack_mix(&sum, o->excludes[i], strlen(o->excludes[i]));
    if (o->files_from)
        pack_mix(&sum, o->files_from, strlen(o->files_from));
    partial_letters(sum, letters);
    return 0;
}

/* ---- what killed runs left ---- */

/* Among the shards only our own: other ranks remove theirs. */
static bool pack_is_own_shard(const void *ctx, const char *name, size_t len)
{
    const struct selection *s = ctx;
    uint32_t number;
    return shard_names_find(s->outputs, name, len, &number) && selection_has(s, number);
}

void pack_report_leftover(void *options, enum leftover what, const char *name)
{
    static const struct {
        int err;
        const char *what;
    } reports[] = {
        [LEFTOVER_REMOVED] = {-EEXIST, "removed: it was left there by a run that did not end"},
        [LEFTOVER_BUSY] = {-EBUSY, "another process is writing the same archive"},
        [LEFTOVER_UNKNOWN] = {-EBUSY, "left by a run that did not end, or being written on "
                                      "another node"},
    };
    const struct pack_options *o = options;
    struct fault fault = {0};
    fault_set(&fault, reports[what].err, name, FAULT_NO_OFFSET, "%s", reports[what].what);
    if (what == LEFTOVER_UNKNOWN)
        fault_advise(&fault, "remove it if there is none");
    if (o->report)
        o->report(o->ctx, PACK_NOTE, &fault);
}

static void pack_remove_leftovers(struct packing *run, enum leftovers_kind kind)
{
    struct leftovers how = {.kind = kind,
                            .found = kind == LEFTOVERS_KEPT ? NULL : pack_report_leftover,
                            .ctx = (void *)run->options};
    auto_free char *shard = NULL;
    if (run->selection.outputs) {
        if (shard_name(run->selection.outputs, run->selection.rank, &shard) < 0)
            return;
        how.match = pack_is_own_shard;
        how.match_ctx = &run->selection;
    }
    output_clean(shard ? shard : run->options->output, &how);
}

/* Do not mistake this rank's finished shards for the ones it is about to write. */
static int pack_clear_shards(struct packing *run, const char *letters, struct fault *fault)
{
    struct shard_exchange x;
    const struct pack_options *o = run->options;
    int r = shard_exchange_begin(run->selection.outputs, o->overwrite, o->stop, fault, &x);
    if (r < 0)
        return r;
    pack_remove_leftovers(run, o->resume ? LEFTOVERS_TO_RESUME : LEFTOVERS_ALL);
    for (uint32_t i = 0; i < run->selection.shards; i++)
        if (selection_has(&run->selection, i))
            shard_exchange_withdraw(&x, i, letters);
    shard_exchange_end(&x);
    return 0;
}

static int pack_write_archive(struct packing *run, struct fault *fault)
{
    char letters[PARTIAL_LETTER_COUNT + 1];
    const struct pack_options *o = run->options;
    struct compress_pool *pool = NULL;
    int r = pack_find_letters(run, letters);
    if (r == 0 && run->selection.outputs)
        r = pack_clear_shards(run, letters, fault);
    else if (r == 0)
        pack_remove_leftovers(run, o->resume ? LEFTOVERS_TO_RESUME : LEFTOVERS_ALL);
    if (r == 0 && o->writer.zstd_level)
        r = compress_pool_new(o->writer.threads, o->writer.zstd_level, &pool);
    if (r == 0)
        r = pack_fill(run, letters, pool, fault);
    if (r == 0 && o->resume)
        pack_remove_leftovers(run, LEFTOVERS_KEPT);
    compress_pool_free(pool);
    return r;
}

/* ---- selection ---- */

static int pack_report_name(void *ctx, const struct fault *what)
{
    struct packing *run = ctx;
    const struct pack_options *o = run->options;
    struct fault fault = {0};
    fault_set(&fault, -what->err, what->member, FAULT_NO_OFFSET, "left out: %s", what->what);
    fault_advise(&fault, "%s", what->advice);
    run->result.problems++;
    if (o->report)
        o->report(o->ctx, PACK_PROBLEM, &fault);
    return o->strict ? -what->err : 0;
}

static int pack_read_names(struct packing *run, struct fault *fault)
{
    const struct pack_options *o = run->options;
    bool input = strcmp(o->files_from, "-") == 0;
    const char *name = input ? "standard input" : o->files_from;
    auto_close int own = input ? -1 : open(o->files_from, O_RDONLY | O_CLOEXEC);
    int r = !input && own < 0 ? -errno : 0;
    auto_free char *root =
        o->sources[0][0] == '/' ? strdup(o->sources[0]) : realpath(o->sources[0], NULL);
    if (r == 0)
        r = name_list_read(input ? STDIN_FILENO : own, o->files_from_nul, root,
                           pack_report_name, run, &run->names);
    if (r == -E2BIG)
        fault_set(fault, r, name, FAULT_NO_OFFSET,
                  "the list of names can't be read: it is too long");
    else if (r < 0 && !run->result.problems)
        fault_set_errno(fault, r, name, "the list of names can't be read");
    run->selection.names = run->names;
    return r;
}

/* Shards in it are not packed themselves. */
static int pack_find_output_folder(struct packing *run)
{
    if (!run->options->output) /* a survey */
        return 0;
    auto_free char *folder = path_folder(run->options->output);
    struct stat st;
    if (!folder)
        return -ENOMEM;
    if (stat(folder, &st) == 0) /* else the writer will report the error */
        run->selection.output_folder = file_id_of(&st);
    return 0;
}

static int pack_prepare_shards(struct packing *run, struct fault *fault)
{
    const struct pack_options *o = run->options;
    struct selection *s = &run->selection;
    s->world = 1;
    if (!o->shards)
        return 0;
    s->shards = o->shards;
    s->rank = o->rank;
    s->world = o->world ? o->world : 1;
    int r = shard_names_parse(o->output, o->shards, &run->shard_names);
    if (r == -EINVAL) {
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "has the shard's number before a slash");
        fault_advise(fault, "write it into the last part of the name");
    }
    if (r < 0)
        return r;
    s->outputs = &run->shard_names;
    uint64_t own = (o->shards + s->world - 1 - s->rank) / s->world;
    if (own * 2 > pack_most_files() / 2)
        return fault_set_advised(
            fault, -EMFILE, NULL, FAULT_NO_OFFSET,
            "use fewer shards or more ranks, or raise ulimit -n",
            "%llu shards at once take more open files than this process may have",
            (unsigned long long)own);
    return 0;
}

static int pack_select_files(struct packing *run, struct fault *fault)
{
    const struct pack_options *o = run->options;
    run->selection.excludes = o->excludes;
    run->selection.exclude_count = o->exclude_count;
    run->selection.dereference = o->dereference;
    run->selection.is_nfc = o->is_nfc;
    run->selection.kept = o->kept;
    run->selection.kept_since = o->kept_since;
    int r = pack_find_output_folder(run);
    if (r == 0)
        r = pack_prepare_shards(run, fault);
    if (r == 0 && o->files_from)
        r = o->source_count == 1 && !(o->inputs && o->inputs[0]) ? pack_read_names(run, fault)
                                                                 : -EINVAL;
    return r;
}

/* Is there no shard for this rank? */
static bool pack_has_no_share(const struct pack_options *o)
{
    return o->shards && o->rank >= o->shards;
}

static void pack_close_run(struct packing *run)
{
    for (size_t i = 0; run->sources && i < run->options->source_count; i++) {
        if (run->sources[i].fd >= 0)
            close(run->sources[i].fd);
        free(run->sources[i].name);
    }
    free(run->sources);
    name_list_free(run->names);
    shard_names_free(&run->shard_names);
}

/* Open the sources, and find which of their files are wanted. pack_close_run, in any case. */
static int pack_begin_run(struct packing *run, const struct pack_options *options,
                          struct fault *fault)
{
    *run = (struct packing){.options = options, .most_folders = pack_descriptors() / 4};
    if (options->source_count == 0)
        return -EINVAL;
    run->sources = calloc(options->source_count, sizeof(*run->sources));
    if (!run->sources)
        return -ENOMEM;
    for (size_t i = 0; i < options->source_count; i++)
        run->sources[i].fd = -1;
    int r = pack_open_sources(options, run->sources, fault);
    return r < 0 ? r : pack_select_files(run, fault);
}

int pack_run(const struct pack_options *options, struct fault *fault,
             struct pack_result *ret_result)
{
    struct packing run;
    int r = pack_begin_run(&run, options, fault);
    if (r == 0 && !pack_has_no_share(options))
        r = pack_write_archive(&run, fault);
    *ret_result = run.result;
    pack_close_run(&run);
    return r;
}

/* ---- a survey ---- */

static int pack_count(struct packing *run, struct pack_survey *survey)
{
    struct count count = {.run = run, .survey = survey};
    int r = count_all(&count, min_u32(SURVEY_THREADS, run->most_folders));
    count_stop(&count);
    survey->archive_bytes += survey->members * SURVEY_INDEX_BYTES;
    return r;
}

int pack_survey(const struct pack_options *options, struct fault *fault,
                struct pack_survey *ret_survey)
{
    struct packing run;
    *ret_survey = (struct pack_survey){0};
    for (size_t i = 0; options->inputs && i < options->source_count; i++)
        if (options->inputs[i])
            return -EINVAL;
    int r = pack_begin_run(&run, options, fault);
    if (r == 0)
        r = pack_count(&run, ret_survey);
    pack_close_run(&run);
    return r;
}

void pack_survey_free(struct pack_survey *survey)
{
    for (size_t i = 0; i < survey->shares.count; i++)
        free(survey->shares.at[i].name);
    vector_free(&survey->shares);
}
