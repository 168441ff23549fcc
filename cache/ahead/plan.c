/*
 * Without a known order the first reads since an anchor are kept; an anchor is the start, a
 * pause, a file that comes again, or the loss of an order. From RECOGNISE_READS_MIN reads on,
 * and then at twice as many each time, the plan tries to recognise their order. That takes
 * processor time, which is held to a small share of the time that passes.
 *
 * A recognised order is also fed the reads up to then, so that it knows where the readers are.
 * Half way through an epoch the order of the next one is made. That is the order of epoch + 1,
 * or the same again where an epoch came twice because nobody calls set_epoch.
 */
#include "plan.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "archive_files.h"
#include "bits.h"
#include "chooser.h"
#include "clock.h"
#include "follow.h"
#include "names.h"
#include "nearby.h"
#include "numbers.h"
#include "recognise.h"
#include "scan.h"
#include "tree_walk.h"

#define READS_KEPT 8192u                 /* until an order is recognised */
#define GAP_NS UINT64_C(2000000000)      /* between epochs */
#define TRY_NS_FREE UINT64_C(2000000000) /* for trying, whatever share that is, */
#define TRY_SHARE 50u                    /* and beyond it this part of the time */

enum job_kind { JOB_RECOGNISE, JOB_NEXT_ORDER, JOB_ARCHIVE };

struct plan_job {
    enum job_kind kind;
    struct ahead_options options;
    struct recogniser *recogniser; /* JOB_RECOGNISE */
    uint32_t reads[RECOGNISE_READS_MAX];
    unsigned count;
    uint64_t anchor; /* that the reads are since */
    struct recognised found;
    struct folder_files *folder; /* JOB_NEXT_ORDER */
    uint64_t seed;
    struct known_reads *order; /* JOB_NEXT_ORDER, JOB_ARCHIVE */
    uint64_t took_ns;
    int result;
};

#define CHOOSERS_MAX 5u

struct plan {
    struct ahead_options options;
    struct ahead_stats stats;
    struct plan_chooser {
        const struct chooser *table;
        void *chooser;
        enum fetch_way way;
    } choosers[CHOOSERS_MAX];
    unsigned chooser_count;
    struct scan *scan;
    struct nearby *nearby;
    struct tree_walk *walk;
    struct names *names;
    bool busy; /* a job is at work */

    struct follow *follow;
    bool given; /* it follows the given order, and not a recognised one */
    uint64_t first_due;
    struct folder_files *folder; /* of a recognised order */
    bool repeats;                /* the sampler's epoch is never set */
    bool paused;                 /* readers don't keep to the given order */
    bool changed;
    bool wants_next;
    struct recognised_folder last_folder; /* of the order that was recognised last, */
    uint64_t last_epoch;                  /* and where that has got to */

    struct recogniser *recogniser;
    uint32_t kept_files[READS_KEPT], kept_tasks[READS_KEPT];
    unsigned kept;
    uint64_t since_anchor, try_at, anchor;
    uint64_t last_ns, first_ns, tried_ns;
    _Atomic uint64_t *seen; /* a bit for each entry: it was read since the anchor */
    bool said_too_large;
};

static void plan_log(struct plan *plan, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void plan_log(struct plan *p, const char *format, ...)
{
    char line[512];
    va_list ap;

    if (!p->options.log)
        return;
    va_start(ap, format);
    vsnprintf(line, sizeof(line), format, ap);
    va_end(ap);
    p->options.log(p->options.log_ctx, line);
}

static void plan_drop_anchor(struct plan *p)
{
    p->kept = 0;
    p->since_anchor = 0;
    p->try_at = RECOGNISE_READS_MIN;
    p->anchor++;
    memset((void *)p->seen, 0,
           (index_info(p->options.index)->entries / 64 + 1) * sizeof(*p->seen));
}

static int plan_follow(struct plan *p, struct known_reads *order, bool given, uint64_t spread)
{
    const struct follow_options options = {.ahead = &p->options,
                                           .stats = &p->stats,
                                           .shared = !given,
                                           .spread = spread,
                                           .first_due = p->first_due};
    int r = follow_new(&options, order, &p->follow);

    if (r == 0) {
        p->given = given;
        p->stats.order_files = known_reads_count(order);
        p->changed = true;
        p->paused = false;
    }
    return r;
}

static void plan_drop_order(struct plan *p)
{
    if (!p->follow)
        return;
    p->first_due = follow_end_due(p->follow);
    follow_free(p->follow);
    folder_files_free(p->folder);
    p->follow = NULL;
    p->folder = NULL;
    p->wants_next = false;
    p->changed = true;
    p->stats.order_files = p->stats.order_epoch = p->stats.order_reads = 0;
    p->stats.order_directory = p->stats.world = p->stats.local = 0;
}

static void plan_add(struct plan *p, const struct chooser *table, void *chooser,
                     enum fetch_way way)
{
    p->choosers[p->chooser_count++] = (struct plan_chooser){table, chooser, way};
}

static const struct chooser plan_order_chooser;

static int plan_add_cache(struct plan *p, const _Atomic bool *stop)
{
    const struct recogniser_options recogniser = {
        .seed = p->options.seed, .most_bytes = p->options.most_bytes, .stop = stop};
    int r;

    p->seen = calloc(index_info(p->options.index)->entries / 64 + 1, sizeof(*p->seen));
    if (!p->seen)
        return -ENOMEM;
    plan_drop_anchor(p);
    plan_add(p, &plan_order_chooser, p, WAY_CACHE);
    r = scan_new(&p->options, &p->stats, &p->scan);
    if (r == 0)
        plan_add(p, &scan_chooser, p->scan, WAY_CACHE);
    if (r == 0)
        r = recogniser_new(p->options.index, p->options.root, &recogniser, &p->recogniser);
    if (r == 0 && p->options.given)
        r = plan_follow(p, p->options.given, true, 0);
    return r;
}

static int plan_add_mount(struct plan *p)
{
    int r = p->options.walks ? tree_walk_new(&p->options, &p->walk) : 0;

    if (p->walk)
        plan_add(p, &tree_walk_chooser, p->walk, WAY_MOUNT);
    if (r == 0 && p->options.names)
        r = names_new(&p->options, &p->names);
    if (p->names)
        plan_add(p, &names_chooser, p->names, WAY_MOUNT);
    if (r == 0 && p->options.nearby_bytes)
        r = nearby_new(&p->options, &p->nearby);
    if (p->nearby)
        plan_add(p, &nearby_chooser, p->nearby, WAY_MOUNT);
    return r;
}

int plan_new(const struct ahead_options *options, const _Atomic bool *stop,
             struct plan **ret_plan)
{
    struct plan *p = calloc(1, sizeof(*p));
    int r = 0;

    if (!p)
        return -ENOMEM;
    p->options = *options;
    p->first_ns = options->now_ns();
    if (options->window_bytes)
        r = plan_add_cache(p, stop);
    if (r == 0 && options->mount)
        r = plan_add_mount(p);
    if (r < 0) {
        plan_free(p);
        return r;
    }
    *ret_plan = p;
    return 0;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    plan_drop_order(p);
    recogniser_free(p->recogniser);
    scan_free(p->scan);
    nearby_free(p->nearby);
    names_free(p->names);
    tree_walk_free(p->walk);
    free((void *)p->seen);
    free(p);
}

void plan_set_window(struct plan *p, uint64_t window_bytes)
{
    if (p->options.window_bytes && window_bytes)
        p->options.window_bytes = window_bytes;
}

const struct ahead_stats *plan_stats(const struct plan *p)
{
    return &p->stats;
}

/* ---- reads ---- */

/* Keep the read for recognition, and notice whether it is the first of an epoch. */
static void plan_keep(struct plan *p, const struct observation *o)
{
    bool again = bit_get(p->seen, o->position);

    if ((p->since_anchor >= RECOGNISE_READS_MIN && p->last_ns &&
         o->time_ns > p->last_ns + GAP_NS) ||
        (again && p->since_anchor >= 2 * RECOGNISE_READS_MAX))
        plan_drop_anchor(p);
    bit_take(p->seen, o->position);
    if (p->kept < READS_KEPT && !(again && p->since_anchor)) {
        p->kept_files[p->kept] = o->position;
        p->kept_tasks[p->kept++] = o->task;
    }
    p->since_anchor++;
}

static void plan_lose_order(struct plan *p)
{
    if (p->paused)
        return;
    p->stats.orders_lost++;
    if (p->given) {
        plan_log(p, "files are read in another order than the given one: reading ahead pauses");
        p->paused = true;
        return;
    }
    plan_log(p, "the order of epoch %llu is lost: files are read in another one",
             (unsigned long long)p->stats.order_epoch);
    plan_drop_order(p);
    plan_drop_anchor(p);
}

/* ---- a known order, as a chooser ---- */

/* True: the read was in the known order, and due. */
static bool plan_order_read(struct plan *p, const struct observation *o)
{
    enum follow_verdict verdict = follow_read(p->follow, o->position, o->task);

    if (follow_has_turned(p->follow) && !p->given) {
        p->stats.order_epoch += !p->repeats;
        p->last_epoch = p->stats.order_epoch;
    }
    p->wants_next |= follow_wants_next(p->follow);
    if (follow_is_lost(p->follow))
        plan_lose_order(p);
    else if (follow_is_sure(p->follow))
        p->paused = false;
    return verdict != FOLLOW_FOREIGN && verdict != FOLLOW_UNEXPECTED;
}

static bool plan_order_observe(void *chooser, const struct observation *o, bool expected)
{
    struct plan *p = chooser;

    if (o->kind != OBSERVED_READ || o->offset != 0)
        return expected;
    expected = p->follow && plan_order_read(p, o);
    if (!p->follow || p->paused)
        plan_keep(p, o);
    p->last_ns = o->time_ns;
    return expected;
}

static bool plan_order_is_lost(void *chooser, uint64_t now_ns)
{
    const struct plan *p = chooser;

    (void)now_ns;
    return !p->follow || p->paused;
}

static size_t plan_order_take(void *chooser, struct reader_want *wants, size_t max)
{
    struct plan *p = chooser;

    if (max == 0 || !follow_next(p->follow, &wants[0]))
        return 0;
    p->stats.kind = p->given ? AHEAD_GIVEN : AHEAD_RECOGNISED;
    return 1;
}

static void plan_order_finished(void *chooser, const struct reader_want *wants, size_t count,
                                int result)
{
    struct plan *p = chooser;

    for (size_t i = 0; p->follow && i < count; i++)
        if (result == -ENOBUFS)
            follow_refused(p->follow, wants[i].due);
        else
            follow_done(p->follow, wants[i].due);
}

static const struct chooser plan_order_chooser = {
    .observe = plan_order_observe,
    .is_lost = plan_order_is_lost,
    .take = plan_order_take,
    .finished = plan_order_finished,
};

/* ---- all choosers ---- */

void plan_observe(struct plan *p, const struct observation *o)
{
    bool expected = false;

    if (o->position >= index_info(p->options.index)->entries)
        return;
    for (unsigned i = 0; i < p->chooser_count; i++) {
        const struct plan_chooser *c = &p->choosers[i];
        expected = c->table->observe(c->chooser, o, expected);
    }
}

bool plan_take(struct plan *p, enum fetch_way way, struct plan_batch *batch)
{
    uint64_t now_ns = way == WAY_MOUNT ? p->options.now_ns() : 0;

    batch->count = 0;
    for (unsigned i = 0; i < p->chooser_count && batch->count == 0; i++) {
        const struct plan_chooser *c = &p->choosers[i];
        if (c->way != way || (c->table->is_lost && c->table->is_lost(c->chooser, now_ns)))
            continue;
        batch->chooser = i;
        batch->count = c->table->take(c->chooser, batch->wants, PLAN_BATCH_MAX);
    }
    for (size_t i = 0; i < batch->count && way == WAY_CACHE; i++) {
        p->stats.requests++;
        p->stats.bytes += batch->wants[i].len;
    }
    return batch->count > 0;
}

void plan_finished(struct plan *p, const struct plan_batch *batch, int result)
{
    const struct plan_chooser *c = &p->choosers[batch->chooser];

    if (c->table->finished)
        c->table->finished(c->chooser, batch->wants, batch->count, result);
}

uint64_t plan_passed(struct plan *p, bool *ret_is_new_order)
{
    *ret_is_new_order = p->changed;
    p->changed = false;
    return p->follow ? follow_passed(p->follow) : 0;
}

/* ---- jobs ---- */

static struct plan_job *plan_new_job(const struct plan *p, enum job_kind kind)
{
    struct plan_job *job = calloc(1, sizeof(*job));

    if (job) {
        job->kind = kind;
        job->result = -ECANCELED; /* until it is worked on */
        job->options = p->options;
    }
    return job;
}

static bool plan_wants_try(const struct plan *p)
{
    uint64_t passed_ns = max_u64(p->last_ns, p->first_ns) - p->first_ns;

    return (!p->follow || p->paused) && p->recogniser && p->kept >= p->try_at &&
           p->tried_ns < TRY_NS_FREE + passed_ns / TRY_SHARE;
}

static struct plan_job *plan_new_try(struct plan *p)
{
    struct plan_job *job = plan_new_job(p, JOB_RECOGNISE);

    if (!job)
        return NULL;
    job->recogniser = p->recogniser;
    job->anchor = p->anchor;
    job->count = min_u32(p->kept, RECOGNISE_READS_MAX);
    memcpy(job->reads, p->kept_files, job->count * sizeof(job->reads[0]));
    p->try_at =
        p->kept >= RECOGNISE_READS_MAX ? UINT64_MAX : min_u32(2 * p->kept, RECOGNISE_READS_MAX);
    return job;
}

/* False: there is nothing to make, as a given order simply comes again. */
static bool plan_wants_next_order(struct plan *p)
{
    bool wants = p->follow && p->wants_next;

    p->wants_next = false;
    if (wants && p->given)
        follow_set_next(p->follow, p->options.given); /* on failure the order just ends */
    return wants && !p->given;
}

static struct plan_job *plan_new_next_order(const struct plan *p)
{
    struct plan_job *job = plan_new_job(p, JOB_NEXT_ORDER);

    if (job) {
        job->folder = folder_files_share(p->folder);
        job->seed = p->options.seed + p->stats.order_epoch + !p->repeats;
    }
    return job;
}

bool plan_job(struct plan *p, struct plan_job **ret_job)
{
    struct plan_job *job = NULL;

    if (p->busy)
        return false;
    if (plan_wants_next_order(p))
        job = plan_new_next_order(p);
    else if (plan_wants_try(p))
        job = plan_new_try(p);
    else if (p->scan && scan_wants_archive(p->scan))
        job = plan_new_job(p, JOB_ARCHIVE);
    p->busy = job != NULL;
    *ret_job = job;
    return p->busy;
}

void plan_work(struct plan_job *job)
{
    /* Processor time of this thread: on a busy node it may have to wait for long. */
    uint64_t begun = clock_now_ns(CLOCK_THREAD_CPUTIME_ID);

    switch (job->kind) {
    case JOB_RECOGNISE:
        job->result = recogniser_try(job->recogniser, job->reads, job->count, &job->found);
        break;
    case JOB_NEXT_ORDER:
        job->result =
            known_reads_shuffled(job->folder, job->seed, job->options.most_bytes, &job->order);
        break;
    case JOB_ARCHIVE:
        job->result =
            archive_files_new(job->options.index, job->options.most_bytes, &job->order);
        break;
    }
    job->took_ns = clock_now_ns(CLOCK_THREAD_CPUTIME_ID) - begun;
}

static void plan_log_recognised(struct plan *p, const struct recognised *found)
{
    char path[PATH_MAX];
    size_t len;

    if (index_path(p->options.index, found->folder.directory, path, sizeof(path), &len) < 0 ||
        !len)
        snprintf(path, sizeof(path), ".");
    plan_log(p,
             "the order is recognised after %llu reads: the %llu %s of %.200s, epoch %llu of "
             "seed %llu%s",
             (unsigned long long)p->stats.order_reads, (unsigned long long)p->stats.order_files,
             found->folder.images_only ? "images" : "files", path,
             (unsigned long long)found->epoch, (unsigned long long)p->options.seed,
             p->repeats ? ", again (the sampler's set_epoch is not called)" : "");
}

/* The first reads of the epoch lie at places up to this, except a few by others. */
static uint64_t plan_spread(const struct plan *p, const struct known_reads *order)
{
    uint64_t places[RECOGNISE_READS_MAX];
    unsigned count = 0;

    for (unsigned i = 0; i < p->kept && count < RECOGNISE_READS_MAX; i++)
        count += known_reads_place(order, p->kept_files[i], 0, &places[count]) == 0;
    qsort(places, count, sizeof(places[0]), compare_u64);
    return count ? places[count - 1 - count / 10] : 0;
}

/* Follow a recognised order: feed it the reads since the anchor. */
static void plan_adopt(struct plan *p, struct recognised *found)
{
    plan_drop_order(p);
    if (plan_follow(p, found->order, false, plan_spread(p, found->order)) < 0)
        return;
    p->repeats = p->stats.orders_recognised > 0 && p->last_epoch == found->epoch &&
                 recognised_folder_is(&p->last_folder, &found->folder);
    p->last_folder = found->folder;
    p->last_epoch = found->epoch;
    p->folder = folder_files_share(found->files);
    p->stats.order_epoch = found->epoch;
    p->stats.order_directory = found->folder.directory;
    p->stats.order_reads = p->since_anchor;
    p->stats.orders_recognised++;
    for (unsigned i = 0; i < p->kept; i++)
        follow_read(p->follow, p->kept_files[i], p->kept_tasks[i]);
    plan_log_recognised(p, found);
}

static void plan_end_try(struct plan *p, struct plan_job *job)
{
    p->tried_ns += job->took_ns;
    if (job->result == -E2BIG && !p->said_too_large) {
        p->said_too_large = true;
        plan_log(p, "the directory that is read has too many files for its order to be "
                    "recognised within the memory of this job");
    }
    if (job->result == 0 && job->anchor == p->anchor)
        plan_adopt(p, &job->found);
    folder_files_free(job->found.files);
    known_reads_free(job->found.order);
}

void plan_job_done(struct plan *p, struct plan_job *job)
{
    p->busy = false;
    switch (job->kind) {
    case JOB_RECOGNISE:
        plan_end_try(p, job);
        break;
    case JOB_NEXT_ORDER:
        if (job->result == 0 && p->follow && p->folder == job->folder)
            follow_set_next(p->follow, job->order);
        known_reads_free(job->order);
        folder_files_free(job->folder);
        break;
    case JOB_ARCHIVE:
        scan_set_archive(p->scan, job->order);
        break;
    }
    free(job);
}
