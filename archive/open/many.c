/*
 * Several archives as one: their sources one behind the other (source_concat.h), and an index
 * composed of theirs (tree.h).
 *
 *   1. Open every file. Their sizes and times, their order and the policies are the recipe of
 *      the index; samples of their content are its proof.
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
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "archive_list.h"
#include "cleanup.h"
#include "clock.h"
#include "cpus.h"
#include "nested.h"
#include "numbers.h"
#include "path.h"
#include "pot_private.h"
#include "sandbox.h"
#include "sanitizer.h"
#include "source_concat.h"
#include "source_ops.h"
#include "syscalls.h"
#include "thread.h"
#include "volumes.h"

/*
 * Indexes composed of others: made here, or in the sandbox where archives in the archive have
 * to be parsed for it; saved in the cache folder, and found there by their recipe.
 *
 * The file's name has the recipe's hash, and the index the recipe itself. So one that was saved
 * for another archive, another view or by a version that composes otherwise is never used. All
 * else that holds for saved indexes (saved_index.c) holds for these.
 */

enum {
    COMPOSED_VERSION = 3,  /* of nested archives and views: raise it when the same recipe makes
                              another index */
    COMPOSED_WORTH_MS = 5, /* a tree that takes longer to compose is saved */
    COMPOSED_VIEW_WORTH_MS = 200, /* there may be many lists and patterns */
    COMPOSED_NOTED_MS = 200,      /* a failure to save it is worth a line if it took so long */
};

/* Add all parts to the tree, and describe the archive in the header. */
typedef int composer(void *arg, struct tree *tree, struct builder_header *header,
                     struct fault *fault);

/* Writes the image of the next step's index to `fd`, an empty file. */
typedef int composed_writer(struct composition *composition, int fd, struct fault *fault);

/* The composed index is served already, and not saved yet. */
struct pot_unsaved {
    bool is_noted; /* a failure is worth a line */
    struct stat access;
};

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

/* Take over the index and its path, in place of the pot's own. */
static void composed_take(struct pot *pot, struct index *index, char *path,
                          enum pot_index_origin origin)
{
    free(pot->unsaved);
    pot->unsaved = NULL;
    free(pot->index_path);
    pot->index_path = path;
    if (pot->packed) /* it may be unpacked by what its own index says */
        pot->stream_index = pot->index;
    else
        index_close(pot->index);
    pot->index = index;
    pot->origin = origin;
}

/*
 * Look for a saved index of the last step, else of the one before. 0: pot->index is that, and
 * `done` counts it; -ENOENT: there is none; -ENOMEM.
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
        composed_take(c->pot, index, steal_ptr(&path), POT_INDEX_SAVED);
        c->done = i + 1;
    }
    return r;
}

static void composition_free(struct composition *c)
{
    for (size_t i = 0; i < c->count; i++)
        recipe_free(&c->recipes[i]);
}

/* ---- making the next step ---- */

static bool composed_is_last(const struct composition *c)
{
    return c->done + 1 == c->count;
}

static bool composed_is_view(const struct composition *c)
{
    return c->view && composed_is_last(c);
}

static struct builder_header composed_header(const struct composition *c)
{
    const struct recipe *recipe = &c->recipes[c->done];
    return (struct builder_header){.recipe = recipe->bytes.at,
                                   .recipe_len = recipe->bytes.count};
}

/* The way of `composer`s. */
static int composed_write_image(const struct composition *c, composer *compose, void *arg,
                                int fd, struct fault *fault)
{
    struct tree *tree;
    struct builder_header header = composed_header(c);
    int r = tree_new(&tree);
    if (r == 0)
        r = compose(arg, tree, &header, fault);
    if (r == 0)
        r = tree_write(tree, &header, fd, fault);
    tree_free(tree);
    return r;
}

/* Leave it for pot_save, if that will find a folder for it. */
static int composed_save_later(struct pot *pot, const char *path, const struct stat *access,
                               struct fault *why)
{
    auto_close int folder = -1;
    int r = index_cache_open(path, why, &folder);
    if (r == 0 && faccessat(folder, ".", W_OK | X_OK, 0) < 0)
        r = -errno;
    if (r < 0)
        return r;
    pot->unsaved = calloc(1, sizeof(*pot->unsaved));
    if (!pot->unsaved)
        return -ENOMEM;
    pot->unsaved->access = *access;
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

int pot_save(struct pot *pot, struct fault *fault)
{
    auto_free struct pot_unsaved *unsaved = steal_ptr(&pot->unsaved);
    if (!unsaved)
        return 0;
    struct fault why = {0};
    int r = saved_index_write_file(pot->index_path, &unsaved->access, pot->index, &why);
    if (r < 0 && unsaved->is_noted)
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
        r = c->saves_later && composed_is_last(c)
                ? composed_save_later(c->pot, path, &access, &why)
                : saved_index_write_file(path, &access, c->pot->index, &why);
    if (r < 0)
        return composed_cannot_save(fault, r, &why);
    c->pot->index_path = steal_ptr(&path);
    return 0;
}

/* Make the index and use it, and save it if that took long. */
static int composed_make(struct composition *c, composed_writer *write, struct fault *fault)
{
    uint64_t start_ms = c->done == 0 && c->start_ms ? c->start_ms : now_ms();
    uint64_t worth_ms = composed_is_view(c) ? COMPOSED_VIEW_WORTH_MS : COMPOSED_WORTH_MS;
    struct index *index = NULL;
    struct fault why = {0};
    enum pot_save save = c->options->save;
    auto_close int fd = syscall_memfd("onepot-index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int r = fd < 0 ? fd : write(c, fd, fault);
    if (r == 0)
        r = built_index_open_image(fd, c->pot->path, fault, &index);
    if (r < 0)
        return r;
    composed_take(c->pot, index, NULL, POT_INDEX_BUILT);
    if (save == POT_SAVE_ALWAYS || (save == POT_SAVE_AUTO && now_ms() - start_ms >= worth_ms))
        r = composed_save(c, &why);
    if (r < 0 && save == POT_SAVE_ALWAYS) {
        if (fault)
            *fault = why;
        return r;
    }
    bool is_noted = save == POT_SAVE_ALWAYS || now_ms() - start_ms >= COMPOSED_NOTED_MS;
    if (c->pot->unsaved)
        c->pot->unsaved->is_noted = is_noted;
    if (r < 0 && is_noted)
        pot_note_fault(c->options, c->pot->path, &why);
    return 0;
}

/* ---- of one archive ---- */

/* Add to a recipe that archives in archives are shown, if they are. */
static void composed_describe_nested(const struct pot_options *options, struct recipe *recipe)
{
    const struct pot_compose *compose = options->compose;
    if (!compose || !compose->nested)
        return;
    const char *glob = compose->nested_glob;
    recipe_add(recipe, "nested", glob, glob ? strlen(glob) : 0);
    recipe_number(recipe, "by ending", !glob);
    recipe_number(recipe, "ratio", options->max_ratio);
}

/* A step of one archive's tree. */
static int composed_describe(struct opening *o, const struct view *view)
{
    const struct source_identity *id = &o->pot->identity;
    struct recipe *recipe = &o->steps.recipes[o->steps.count++];
    recipe_number(recipe, "version", COMPOSED_VERSION);
    recipe_number(recipe, "format", o->pot->backend->number);
    recipe_number(recipe, "size", id->size_bytes);
    recipe_number(recipe, "seconds", (uint64_t)id->mtime_sec);
    recipe_number(recipe, "nanoseconds", id->mtime_nsec);
    recipe_number(recipe, "fingerprint", o->pot->fingerprint);
    recipe_number(recipe, "offset", o->pot->container.offset);
    if (o->options->ignores_zeros)
        recipe_number(recipe, "ignore zeros", 1);
    composed_describe_nested(o->options, recipe);
    if (view)
        view_describe(view, recipe);
    return recipe->err;
}

int composed_open_saved(struct opening *o, struct fault *fault)
{
    const struct pot_compose *compose = o->options->compose;
    if (!compose)
        return OPENER_NOT_MINE;
    int r = opening_fingerprint(o);
    o->steps = (struct composition){.pot = o->pot,
                                    .options = o->options,
                                    .archive = o->pot->source,
                                    .file = o->pot->path,
                                    .arg = o,
                                    .view = compose->view};
    if (r == 0 && compose->nested)
        r = composed_describe(o, NULL);
    if (r == 0 && compose->view)
        r = composed_describe(o, compose->view);
    if (r == 0) /* the bytes of a stream are not there without another index */
        r = o->compression ? -ENOENT : composed_recall(&o->steps);
    if (r == -ENOENT)
        return OPENER_NOT_MINE;
    return r < 0 ? r : pot_check_index(o->pot, fault);
}

/* The new index describes the archive as the archive's own index does. */
static void composed_copy_header(const struct index *index, struct builder_header *header)
{
    const struct index_info *info = index_info(index);
    header->format = info->format;
    header->archive_bytes = info->archive_bytes;
    header->archive_mtime_sec = info->archive_mtime_sec;
    header->archive_mtime_nsec = info->archive_mtime_nsec;
    header->archive_fingerprint = info->archive_fingerprint;
}

static int composed_write_view(struct composition *c, int fd, struct fault *fault)
{
    struct builder_header header = composed_header(c);
    composed_copy_header(c->pot->index, &header);
    return view_write(c->view, c->pot->index, &header, fd, fault);
}

/*
 * Make the steps that are left: `first` writes the index of the first, if that is no view. Each
 * is saved if it took long, and takes the place of pot->index.
 */
static int composed_finish(struct composition *c, composed_writer *first, struct fault *fault)
{
    for (; c->done < c->count; c->done++) {
        int r = composed_make(c, composed_is_view(c) ? composed_write_view : first, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

int pot_show(struct pot *pot, const struct view *view, struct fault *fault)
{
    static const struct pot_options options = {.save = POT_SAVE_NEVER};
    struct composition steps = {.pot = pot, .options = &options, .view = view, .count = 1};
    return composed_finish(&steps, NULL, fault);
}

/* ---- archives in the archive ---- */

struct composed_nested {
    struct opening *o;
    struct source *scratch;
    struct progress *progress;
    int fd;
};

static void composed_tell_left(struct progress *progress, const struct nested_result *result)
{
    if (result->left == 1)
        snprintf(progress->note, sizeof(progress->note), "%s stays a file: %s", result->first,
                 result->why);
    else if (result->left > 1)
        snprintf(progress->note, sizeof(progress->note),
                 "%" PRIu64 " archives in it stay files; the first is %s: %s", result->left,
                 result->first, result->why);
}

static int composed_add_nested(void *arg, struct tree *tree, struct builder_header *header,
                               struct fault *fault)
{
    const struct composed_nested *n = arg;
    const struct pot *pot = n->o->pot;
    const struct nested nested = {.source = pot->source,
                                  .index = pot->index,
                                  .name = pot->path,
                                  .glob = n->o->options->compose->nested_glob,
                                  .ignores_zeros = n->o->options->ignores_zeros,
                                  .most_bytes = unpacked_most(pot->source, n->o->options),
                                  .scratch = n->scratch,
                                  .progress = n->progress};
    struct nested_result result;
    composed_copy_header(pot->index, header);
    int r = nested_add(&nested, tree, fault, &result);
    if (r == 0)
        composed_tell_left(n->progress, &result);
    return r;
}

/* In the child, whose end frees all that it allocated. */
static int composed_in_child(void *arg, struct progress *progress, struct fault *fault)
{
    struct composed_nested *n = arg;
    n->progress = progress;
    return composed_write_image(&n->o->steps, composed_add_nested, n, n->fd, fault);
}

static int composed_write_nested(struct composition *c, int fd, struct fault *fault)
{
    struct opening *o = c->arg;
    struct composed_nested n = {.o = o, .fd = fd};
    if (o->pot->compression)
        return fault_set_advised(
            fault, -ENOTSUP, NULL, FAULT_NO_OFFSET, "decompress it first",
            "is one compressed stream: archives in it can't be read in place");
    int r = nested_scratch_new(&n.scratch);
    if (r < 0)
        return r;
    int keep[] = {fd, source_fd(n.scratch)};
    struct sandbox_limits limits = built_index_limits(o, true);
    limits.keep_source = o->pot->source;
    limits.keep_fds = keep;
    limits.keep_fd_count = 2;
    r = pot_run(o->options, o->pot->path, "indexing archives in it", composed_in_child, &n,
                &limits, fault);
    source_close(n.scratch);
    return r;
}

int composed_apply(struct opening *o, int err, struct fault *fault)
{
    struct composition *steps = &o->steps;
    int r = err < 0 || steps->done ? err : composed_recall(steps);
    if (r == -ENOENT && err == 0)
        r = o->options->compose->nested && o->options->only_ready ? -EAGAIN : 0;
    steps->saves_later = o->options->saves_later && !o->pot->compression;
    if (r == 0)
        r = composed_finish(steps, composed_write_nested, fault);
    composition_free(steps);
    return r;
}

/*
 * Archives that are opened by several threads at once, and report to one user: notes come one
 * at a time, and the progress counts all together. The caller's thread opens nothing: it waits
 * for the others, and for signals, which they block.
 */

#define TEAM_STACK_BYTES (8u << 20) /* children parse archives on it */

struct team_state {
    const struct opening_team *team;
    pthread_mutex_t lock; /* for all below, and the user's functions */
    struct progress progress;
    _Atomic bool is_cancelled;
    int done_fd; /* each thread adds one at its end */
};

/* A thread, which opens one archive after the other. */
struct team_member {
    struct team_state *state;
    struct pot_options options;
    uint64_t bytes, members; /* that this archive has added to the progress */
    pthread_t thread;
};

static void team_note(void *ctx, const char *line)
{
    struct team_member *m = ctx;
    const struct pot_options *user = m->state->team->options;
    pthread_mutex_lock(&m->state->lock);
    if (user->note)
        user->note(user->ctx, line);
    pthread_mutex_unlock(&m->state->lock);
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
    struct team_state *state = m->state;
    const struct pot_options *user = state->team->options;
    pthread_mutex_lock(&state->lock);
    uint64_t bytes = state->progress.bytes_done + team_gain(&m->bytes, progress->bytes_done);
    state->progress.bytes_done =
        state->team->bytes_total ? min_u64(bytes, state->team->bytes_total) : bytes;
    state->progress.members += team_gain(&m->members, progress->members);
    if (user->progress)
        user->progress(user->ctx, doing, &state->progress);
    if (user->cancelled && *user->cancelled)
        state->is_cancelled = true;
    pthread_mutex_unlock(&state->lock);
}

static void *team_member_run(void *arg)
{
    struct team_member *m = arg;
    const uint64_t one = 1;
    m->state->team->run(m->state->team->arg, &m->options);
    (void)!write(m->state->done_fd, &one, sizeof(one)); /* of an eventfd: it can't fail */
    return NULL;
}

/* Wait until this many threads have ended. -EINTR: a signal came that `blocked` lacks. */
static int team_wait(struct team_state *state, uint64_t threads, const sigset_t *blocked)
{
    struct pollfd p = {.fd = state->done_fd, .events = POLLIN};
    int r = 0;
    while (r == 0 && threads > 0) {
        uint64_t ended;
        r = ppoll(&p, 1, NULL, blocked) < 0 ? -errno : 0;
        if (r == 0 && read(state->done_fd, &ended, sizeof(ended)) == sizeof(ended))
            threads -= ended;
    }
    if (r < 0)
        atomic_store(&state->is_cancelled, true);
    return r;
}

static int team_start(struct team_state *state, struct team_member *m)
{
    *m = (struct team_member){.state = state, .options = *state->team->options};
    m->options.note = team_note;
    m->options.progress = team_progress;
    m->options.cancelled = &state->is_cancelled;
    m->options.ctx = m;
    return thread_start(&m->thread, TEAM_STACK_BYTES, team_member_run, m);
}

int opening_team_run(const struct opening_team *team)
{
    struct team_state state = {.team = team,
                               .lock = PTHREAD_MUTEX_INITIALIZER,
                               .progress.bytes_total = team->bytes_total};
    auto_free struct team_member *members = calloc(team->threads, sizeof(*members));
    auto_close int done_fd = eventfd(0, EFD_CLOEXEC);
    sigset_t all, before, waiting;
    unsigned started = 0;
    int r = !members ? -ENOMEM : done_fd < 0 ? -errno : 0;
    state.done_fd = done_fd;
    /* Signals that would end the wait stay pending until it begins. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    sandbox_waiting_signals(&before, &waiting);
    while (r == 0 && started < team->threads) {
        r = team_start(&state, &members[started]);
        started += r == 0;
    }
    if (started > 0)
        r = team_wait(&state, started, &waiting);
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

struct part {
    const char *path;
    char *directory;        /* --each: its name without the ending */
    struct pot_found found; /* source NULL once it belongs to `pot` or to the concatenation */
    struct source_identity identity;
    bool is_looked_at;       /* all of `found` is there, and the proof is */
    bool is_proven;          /* it need not be looked at: the proof is an earlier one */
    struct part_proof proof; /* of its present state */
    struct pot *pot;         /* NULL: not opened */
    bool needs_time;         /* to be indexed or unpacked */
    int err;
    struct fault fault;
};

struct many {
    struct pot *pot; /* of all */
    const struct pot_options *options;
    struct pot_options part_options;
    struct pot_compose part_compose;
    struct part *parts;
    size_t count;
    _Atomic size_t next; /* part that a thread takes */
    void (*step)(struct many *many, struct part *part);
    struct composition steps; /* the union, and maybe a view of it */
};

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
    const struct source *first = many->parts[0].found.source;
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

/* ---- looking ---- */

/* By the rule of archive_list_is_whole, so that the file opened is the one identified. */
static void part_open_file(struct many *many, struct part *part)
{
    part->found = (struct pot_found){0};
    bool is_whole = many->options->is_whole ||
                    series_is_shard(part > many->parts ? part[-1].path : NULL, part->path);
    part->err = pot_open_file(part->path, is_whole, many->options, &part->fault, &part->found);
    if (part->err == 0)
        source_identity(part->found.source, &part->identity);
}

static void many_open_files(struct many *many)
{
    source_expect(many->count);
    part_open_file(many, &many->parts[0]);
    many_each_from(many, 1, part_open_file);
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
           source_is_local(part->found.source) &&
           fstat(source_fd(part->found.source), &st) == 0 && S_ISREG(st.st_mode);
}

static void part_look(struct many *many, struct part *part)
{
    struct fault *fault = &part->fault;
    struct pot_found *found = &part->found;
    if (part->is_looked_at)
        return;
    bool has_ctime = part_has_ctime(part);
    if (part->is_proven)
        found->backend = NULL; /* which is what an index says that is not used */
    part->err = pot_look(found, many->options->offset, fault);
    if (part->err < 0)
        return;
    part->is_looked_at = true;
    source_identity(found->source, &part->identity);
    part->proof = (struct part_proof){.format = found->backend->number,
                                      .offset = found->container.offset,
                                      .length = found->container.length};
    if (has_ctime && !found->container.name && !found->compression) {
        part->proof.ino = part->identity.ino;
        part->proof.ctime_sec = (uint64_t)part->identity.ctime_sec;
        part->proof.ctime_nsec = part->identity.ctime_nsec;
    }
    part->err = source_sample(found->source, &part->proof.samples);
    if (part->err < 0)
        fault_set_read(fault, part->err, NULL, FAULT_NO_OFFSET);
}

static void part_free(struct part *part)
{
    pot_close(part->pot);
    part->pot = NULL;
    source_close(part->found.source);
    part->found.source = NULL;
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
        pot_note_fault(many->options, part->path, &part->fault);
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
    if (part->is_looked_at || !source_is_local(part->found.source) || !backend ||
        proof->ctime_sec == 0 || (uint64_t)id->ctime_sec != proof->ctime_sec ||
        id->ctime_nsec != proof->ctime_nsec || id->ino != proof->ino)
        return false;
    part->found.backend = backend;
    part->proof = *proof;
    return true;
}

static void part_look_unproven(struct many *many, struct part *part)
{
    if (!part->is_proven)
        part_look(many, part);
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
        many_each_from(many, 0, part_look_unproven);
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
    const struct pot_together *together = &many->options->together;
    recipe_free(recipe);
    *recipe = (struct recipe){0};
    recipe_number(recipe, "union", MANY_VERSION);
    recipe_number(recipe, "version", COMPOSED_VERSION);
    recipe_number(recipe, "each", together->each);
    recipe_number(recipe, "conflict", together->on_conflict);
    recipe_number(recipe, "offset", many->options->offset);
    if (many->options->ignores_zeros)
        recipe_number(recipe, "ignore zeros", 1);
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
    many->steps.archive = first->found.source ? first->found.source : pot_file(first->pot);
    many->steps.file = first->path;
    if (r == 0)
        r = composed_recall(&many->steps);
    return r == -ENOENT ? 0 : r;
}

/* ---- opening ---- */

static int part_open(struct part *part, const struct pot_options *options)
{
    part->fault = (struct fault){0};
    return pot_open_found(&part->found, options, &part->fault, &part->pot);
}

/* Open a part if its index is ready. Any thread of the team does, maybe twice for a part. */
static void part_open_ready(struct many *many, struct part *part)
{
    struct pot_options options = many->part_options;
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
    if (!part->found.source) {
        part->is_looked_at = false;
        part_open_file(many, part);
        if (part->err == 0)
            part_look(many, part);
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
    return part->needs_time && !part->found.compression;
}

/*
 * A thread of the team. Parts are taken in order, and each is finished, so that the first one
 * that fails is the same each time.
 */
static void many_index_some(void *arg, const struct pot_options *options)
{
    struct many *many = arg;
    struct pot_options own = *options;
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
        is_remote |= !source_is_local(part->found.source);
    }
    if (!needs_time)
        return 0;
    uint64_t memory = pot_memory_bytes(&many->part_options); /* looked up for all parts */
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
        if (part->found.compression)
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
    const struct pot_together *together = &many->options->together;
    if (!together->each || together->on_conflict != POT_CONFLICT_ERROR)
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
    struct pot *pot = many->pot;
    auto_free struct source **sources = calloc(many->count, sizeof(struct source *));
    if (!sources)
        return -ENOMEM;
    for (size_t i = 0; i < many->count; i++)
        sources[i] =
            many->parts[i].pot ? many->parts[i].pot->source : many->parts[i].found.source;
    int r = source_concat(sources, many->count, pot->path, &pot->source);
    if (r == 0) /* the same each time, also if members were unpacked */
        pot->source->identity = pot->identity;
    for (size_t i = 0; r == 0 && i < many->count; i++) {
        if (many->parts[i].pot)
            many->parts[i].pot->source = NULL;
        many->parts[i].found.source = NULL;
    }
    return r;
}

static int many_add(const struct many *many, size_t i, struct tree *tree, struct fault *fault)
{
    const struct part *from = &many->parts[i];
    const struct tree_part part = {.index = from->pot->index,
                                   .name = from->path,
                                   .base = source_concat_base(many->pot->source, i)};
    uint32_t number;
    int r = tree_add(tree, &part, &number);
    if (r < 0 || !many->options->together.each)
        return r < 0 ? r : tree_merge_root(tree, number);
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
    enum pot_conflict on_conflict = many->options->together.on_conflict;
    int r = 0;
    header->format = many->parts[0].found.backend->number;
    header->archive_bytes = source_size(many->pot->source);
    header->archive_mtime_sec = many->pot->identity.mtime_sec;
    header->archive_mtime_nsec = many->pot->identity.mtime_nsec;
    if (on_conflict != POT_CONFLICT_ERROR)
        tree_keep_first(tree);
    for (size_t i = 0; r == 0 && i < many->count; i++)
        r = many_add(many, on_conflict == POT_CONFLICT_LAST ? many->count - 1 - i : i, tree,
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
        if (fstat(source_fd(source_member(many->pot->source, i)), i ? &st : &first) < 0)
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
    many->steps.archive = source_member(many->pot->source, 0);
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
    struct pot *pot = many->pot;
    auto_free struct source_identity *all = calloc(many->count, sizeof(*all));
    pot->parts = calloc(many->count, sizeof(*pot->parts));
    if (!all || !pot->parts)
        return -ENOMEM;
    for (; pot->part_count < many->count; pot->part_count++) {
        const struct part *from = &many->parts[pot->part_count];
        struct pot_part *part = &pot->parts[pot->part_count];
        part->backend = from->pot ? from->pot->backend : from->found.backend;
        part->has_samples = !from->found.compression;
        part->samples = from->proof.samples;
        part->file = (struct file_id){from->identity.dev, from->identity.ino};
        all[pot->part_count] = from->identity;
        part->path = strdup(from->path);
        if (!part->path)
            return -ENOMEM;
    }
    source_identity_join(all, many->count, &pot->identity);
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
    many_each_from(many, 0, part_look);
    int r = many_check(many, fault);
    if (r == 0 && many->count < all)
        r = many_find(many);
    if (r < 0 || many->steps.done)
        return r < 0 ? r : many_open_packed(many, fault);
    all = many->count;
    r = many_open(many, fault);
    return r < 0 || many->count == all ? r : many_find(many);
}

/* A set that is being exchanged is not mixed, whatever may be skipped. */
static int many_check_exchange(struct many *many, struct fault *fault)
{
    struct shard_records records = {0};
    int r = 0;
    for (size_t i = 0; r == 0 && i < many->count; i++) {
        struct part *part = &many->parts[i];
        if (part->err < 0 && part->err != -ENOENT)
            continue;
        r = pot_check_exchange(&records, part->path, part->found.source, many->options, fault);
        if (r < 0)
            fault_set_file(fault, part->path);
    }
    shard_records_free(&records);
    return r;
}

static int many_open_all(struct many *many, struct fault *fault)
{
    many_open_files(many);
    int r = many_check_exchange(many, fault);
    if (r == 0)
        r = many_check(many, fault);
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
        r = pot_check_index(many->pot, fault);
    if (r == 0 && many->steps.done < many->steps.count)
        r = many_make(many, fault);
    return r < 0 ? r : pot_check_index(many->pot, fault);
}

static int many_begin(struct many *many, const char *const *paths, size_t count)
{
    many->parts = calloc(count, sizeof(*many->parts));
    if (!many->parts)
        return -ENOMEM;
    for (; many->count < count; many->count++) {
        struct part *part = &many->parts[many->count];
        const char *base = path_base(paths[many->count]);
        part->path = paths[many->count];
        part->directory = strndup(base, backend_stem(base, strlen(base)));
        if (!part->directory)
            return -ENOMEM;
    }
    return 0;
}

int pot_open_many(const char *const *paths, size_t count, const char *name,
                  const struct pot_options *options, struct fault *fault, struct pot **ret_pot)
{
    static const struct pot_options defaults = {0};
    struct many many = {.options = options ? options : &defaults};
    if (count == 1 && !many.options->together.each)
        return pot_open(paths[0], options, fault, ret_pot);
    const struct pot_compose *compose = many.options->compose;
    many.part_options = *many.options;
    many.part_options.compose = NULL;
    if (compose && compose->nested) {
        many.part_compose = *compose;
        many.part_compose.view = NULL;
        many.part_options.compose = &many.part_compose;
    }
    many.part_options.store = NULL;
    many.part_options.names_only = false;
    many.part_options.only_ready = false;
    many.part_options.saves_later = false;
    many.part_options.lists_left_out = true; /* of all, in one line */
    /* POT_SAVE_ALWAYS alone would leave a stream packed whose index is saved. */
    static const struct pot_store keeps_nothing = {0};
    if (many.options->save == POT_SAVE_ALWAYS)
        many.part_options.store = &keeps_nothing;
    struct pot *pot = many.pot = calloc(1, sizeof(*pot));
    const struct view *view = compose ? compose->view : NULL;
    many.steps = (struct composition){.pot = pot,
                                      .options = many.options,
                                      .saves_later = many.options->saves_later,
                                      .proves = many_proves,
                                      .arg = &many,
                                      .view = view,
                                      .count = view ? 2 : 1};
    int r = pot ? many_begin(&many, paths, count) : -ENOMEM;
    if (r == 0) {
        pot->backend = &backend_union;
        pot->path = strdup(name);
        r = pot->path ? many_open_all(&many, fault) : -ENOMEM;
    }
    for (size_t i = 0; i < many.count; i++)
        part_free(&many.parts[i]);
    free(many.parts);
    composition_free(&many.steps);
    if (r < 0) {
        pot_close(pot);
        return r;
    }
    if (!many.options->lists_left_out)
        pot_note_left_out(many.options, pot);
    *ret_pot = pot;
    return 0;
}
