/*
 * The known order. Without one, the first reads since an anchor are kept; an anchor is the
 * start, a pause, a file that comes again, or the loss of an order. From RECOGNISE_READS_MIN
 * reads on, and then at twice as many each time, the plan tries to recognise their order. That
 * takes processor time, which is held to a small share of the time that passes.
 *
 * A recognised order is also fed the reads up to then, so that it knows where the readers are.
 * Half way through an epoch the order of the next one is made. That is the order of epoch + 1,
 * or the same again where an epoch came twice because nobody calls set_epoch.
 */
#include "clock.h"
#include "plan_private.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GAP_NS UINT64_C(2000000000)      /* between epochs */
#define TRY_NS_FREE UINT64_C(2000000000) /* for trying, whatever share that is, */
#define TRY_SHARE 50u                    /* and beyond it this part of the time */

void plan_log(struct plan *p, const char *format, ...)
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

static void drop_anchor(struct plan *p)
{
    p->logged = 0;
    p->since_anchor = 0;
    p->try_at = RECOGNISE_READS_MIN;
    p->anchor++;
    memset(p->seen, 0, (index_info(p->options.index)->entries / 64 + 1) * sizeof(*p->seen));
}

static int follow_order(struct plan *p, struct known_reads *order, enum plan_kind kind,
                        uint64_t spread)
{
    const struct follow_options options = {.index = p->options.index,
                                           .window_bytes = p->options.window_bytes,
                                           .file_most = PLAN_FILE_MOST,
                                           .shared = kind == PLAN_RECOGNISED,
                                           .spread = spread};
    int r = follow_new(&options, order, &p->follow);

    if (r == 0) {
        p->order_kind = kind;
        p->stats.order_files = known_reads_count(order);
        p->changed = true;
        p->paused = false;
    }
    return r;
}

/* Its counts stay in the statistics. */
static void drop_order(struct plan *p)
{
    struct plan_stats all;

    if (!p->follow)
        return;
    plan_stats(p, &all);
    all.order_files = all.order_epoch = all.order_reads = 0;
    all.order_directory = all.world = all.local = 0;
    p->stats = all;
    follow_free(p->follow);
    folder_files_free(p->folder);
    p->follow = NULL;
    p->folder = NULL;
    p->order_kind = PLAN_NONE;
    p->wants_next = false;
    p->changed = true;
}

int plan_order_start(struct plan *p)
{
    const struct recogniser_options options = {
        .seed = p->options.seed, .most_bytes = p->options.most_bytes, .stop = p->options.stop};
    int r = 0;

    p->seen = calloc(index_info(p->options.index)->entries / 64 + 1, sizeof(*p->seen));
    if (!p->seen)
        return -ENOMEM;
    drop_anchor(p);
    p->first_ns = now_ns();
    if (p->options.window_bytes)
        r = recogniser_new(p->options.index, p->options.root, &options, &p->recogniser);
    if (r == 0 && p->options.given && p->options.window_bytes)
        r = follow_order(p, p->options.given, PLAN_GIVEN, 0);
    return r;
}

void plan_order_end(struct plan *p)
{
    drop_order(p);
    recogniser_free(p->recogniser);
    free(p->seen);
}

/* ---- reads ---- */

/* Keep the read for recognition, and notice whether it is the first of an epoch. */
static void log_read(struct plan *p, const struct observation *o)
{
    uint64_t bit = UINT64_C(1) << (o->position % 64), *word = &p->seen[o->position / 64];
    bool again = *word & bit;

    if ((p->since_anchor >= RECOGNISE_READS_MIN && p->last_ns &&
         o->time_ns > p->last_ns + GAP_NS) ||
        (again && p->since_anchor >= 2 * RECOGNISE_READS_MAX))
        drop_anchor(p);
    *word |= bit;
    if (p->logged < PLAN_LOG && !(again && p->since_anchor)) {
        p->log_files[p->logged] = o->position;
        p->log_tasks[p->logged++] = o->task;
    }
    p->since_anchor++;
}

static void lose_order(struct plan *p)
{
    if (p->order_kind == PLAN_GIVEN) {
        if (!p->paused) {
            plan_log(p, "the order that was given is not the one in which files are read: "
                        "nothing is read ahead by it for now");
            p->stats.lost++;
        }
        p->paused = true;
        return;
    }
    plan_log(p, "the order of epoch %llu is lost: files are read in another one",
             (unsigned long long)p->epoch);
    p->stats.lost++;
    drop_order(p);
    drop_anchor(p);
}

static void turn_epoch(struct plan *p)
{
    if (p->order_kind != PLAN_RECOGNISED)
        return;
    p->epoch += !p->repeats;
    p->last.epoch = p->epoch;
}

bool plan_order_read(struct plan *p, const struct observation *o)
{
    enum follow_verdict verdict = FOLLOW_FOREIGN;

    if (o->position >= index_info(p->options.index)->entries)
        return true;
    if (p->follow) {
        verdict = follow_read(p->follow, o->position, o->task);
        if (follow_has_turned(p->follow))
            turn_epoch(p);
        p->wants_next |= follow_wants_next(p->follow);
        if (follow_is_lost(p->follow))
            lose_order(p);
        else if (follow_is_sure(p->follow))
            p->paused = false;
    }
    if (!p->follow || p->paused)
        log_read(p, o);
    p->last_ns = o->time_ns;
    return verdict != FOLLOW_FOREIGN && verdict != FOLLOW_UNEXPECTED;
}

bool plan_order_take(struct plan *p, struct plan_want *ret_want)
{
    struct follow_item item;

    if (!p->follow || p->paused || !follow_next(p->follow, &item))
        return false;
    *ret_want = (struct plan_want){item.position, 0, item.bytes, item.due, p->order_kind};
    return true;
}

bool plan_order_changed(struct plan *p)
{
    bool changed = p->changed;

    p->changed = false;
    return changed;
}

uint64_t plan_passed(const struct plan *p)
{
    return p->follow ? follow_passed(p->follow) : 0;
}

/* ---- jobs ---- */

static bool wants_try(struct plan *p)
{
    uint64_t allowed =
        TRY_NS_FREE + (p->last_ns > p->first_ns ? (p->last_ns - p->first_ns) / TRY_SHARE : 0);

    return (!p->follow || p->paused) && p->recogniser && p->logged >= RECOGNISE_READS_MIN &&
           p->logged >= p->try_at && p->tried_ns < allowed;
}

static bool wants_next_order(struct plan *p)
{
    if (!p->follow || !p->wants_next)
        return false;
    p->wants_next = false;
    if (p->order_kind == PLAN_RECOGNISED)
        return true;
    follow_set_next(p->follow, p->options.given); /* on failure the order just ends */
    return false;
}

static struct plan_job *new_job(const struct plan *p, enum job_kind kind)
{
    struct plan_job *job = calloc(1, sizeof(*job));

    if (job) {
        job->kind = kind;
        job->result = -ECANCELED; /* until it is worked on */
        job->options = p->options;
        job->asked_at = p->anchor;
    }
    return job;
}

static struct plan_job *new_try(struct plan *p)
{
    struct plan_job *job = new_job(p, JOB_RECOGNISE);

    if (!job)
        return NULL;
    job->recogniser = p->recogniser;
    job->count = p->logged < RECOGNISE_READS_MAX ? p->logged : RECOGNISE_READS_MAX;
    memcpy(job->reads, p->log_files, job->count * sizeof(job->reads[0]));
    p->try_at = p->logged >= RECOGNISE_READS_MAX ? UINT64_MAX : 2 * (uint64_t)p->logged;
    if (p->try_at != UINT64_MAX && p->try_at > RECOGNISE_READS_MAX)
        p->try_at = RECOGNISE_READS_MAX;
    return job;
}

bool plan_job(struct plan *p, struct plan_job **ret_job)
{
    struct plan_job *job = NULL;

    if (p->busy)
        return false;
    if (wants_next_order(p)) {
        job = new_job(p, JOB_NEXT);
        if (job) {
            job->folder = folder_files_share(p->folder);
            job->seed = p->options.seed + p->epoch + !p->repeats;
        }
    } else if (wants_try(p)) {
        job = new_try(p);
    } else if (p->wants_archive) {
        job = new_job(p, JOB_ARCHIVE);
    }
    p->busy = job != NULL;
    *ret_job = job;
    return p->busy;
}

/* Processor time of this thread: on a busy node it may have to wait for long. */
static uint64_t processor_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

void plan_work(struct plan_job *job)
{
    uint64_t begun = processor_ns();

    switch (job->kind) {
    case JOB_RECOGNISE:
        job->result = recogniser_try(job->recogniser, job->reads, job->count, &job->found);
        break;
    case JOB_NEXT:
        job->result =
            known_reads_shuffled(job->folder, job->seed, job->options.most_bytes, &job->order);
        break;
    case JOB_ARCHIVE:
        job->result =
            archive_files_new(job->options.index, job->options.most_bytes, &job->archive);
        break;
    }
    job->took_ns = processor_ns() - begun;
}

static void log_recognised(struct plan *p, const struct recognised *found)
{
    char path[PATH_MAX];
    size_t len;

    const char *more = p->repeats ? ", again (the sampler's set_epoch is not called)" : "";

    if (index_path(p->options.index, found->directory, path, sizeof(path), &len) < 0 || !len)
        snprintf(path, sizeof(path), ".");
    plan_log(p,
             "the order is recognised after %llu reads: the %llu %s of %.200s, epoch %llu of "
             "seed %llu%s",
             (unsigned long long)p->stats.order_reads, (unsigned long long)found->files,
             found->images_only ? "images" : "files", path, (unsigned long long)p->epoch,
             (unsigned long long)p->options.seed, more);
}

static int compare_places(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The first reads of the epoch lie at places up to this, except a few by others. */
static uint64_t spread_of(const struct plan *p, const struct known_reads *order)
{
    uint64_t places[RECOGNISE_READS_MAX];
    unsigned count = 0;

    for (unsigned i = 0; i < p->logged && count < RECOGNISE_READS_MAX; i++)
        count += known_reads_place(order, p->log_files[i], 0, &places[count]) == 0;
    qsort(places, count, sizeof(places[0]), compare_places);
    return count ? places[count - 1 - count / 10] : 0;
}

/* Note the epoch, and whether it is the same as the last. */
static void count_epoch(struct plan *p, const struct recognised *found)
{
    const struct recognised *last = &p->last;
    bool same = last->files == found->files && last->directory == found->directory &&
                last->kind == found->kind && last->images_only == found->images_only;

    p->repeats = same && last->epoch == found->epoch;
    p->epoch = found->epoch;
}

/* Follow a recognised order: feed it the reads since the anchor. */
static void adopt(struct plan *p, struct recognised *found)
{
    drop_order(p);
    if (follow_order(p, found->order, PLAN_RECOGNISED, spread_of(p, found->order)) == 0) {
        count_epoch(p, found);
        p->folder = folder_files_share(found->folder);
        p->stats.order_directory = found->directory;
        p->stats.order_reads = p->since_anchor;
        p->stats.recognised++;
        for (unsigned i = 0; i < p->logged; i++)
            follow_read(p->follow, p->log_files[i], p->log_tasks[i]);
        p->last = *found;
        log_recognised(p, found);
    }
    folder_files_free(found->folder);
    known_reads_free(found->order);
    p->last.folder = NULL;
    p->last.order = NULL;
}

static void end_try(struct plan *p, struct plan_job *job)
{
    p->tried_ns += job->took_ns;
    if (job->result == -E2BIG && !p->too_large_said) {
        p->too_large_said = true;
        plan_log(p, "the directory that is read has too many files for its order to be "
                    "recognised within the memory of this job");
    }
    if (job->result < 0)
        return;
    if (job->asked_at == p->anchor) {
        adopt(p, &job->found);
        return;
    }
    folder_files_free(job->found.folder);
    known_reads_free(job->found.order);
}

void plan_job_done(struct plan *p, struct plan_job *job)
{
    p->busy = false;
    switch (job->kind) {
    case JOB_RECOGNISE:
        end_try(p, job);
        break;
    case JOB_NEXT:
        if (job->result == 0 && p->follow && p->folder == job->folder)
            follow_set_next(p->follow, job->order);
        known_reads_free(job->order);
        folder_files_free(job->folder);
        break;
    case JOB_ARCHIVE:
        p->archive = job->archive;
        p->no_archive = job->result < 0;
        p->wants_archive = false; /* not earlier, or it would be made once more */
        break;
    }
    free(job);
}
