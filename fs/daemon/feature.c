#include "feature.h"

#include <errno.h>

#include "core.h"

/* NOLINTBEGIN(bugprone-macro-parentheses): they declare a variable, and name a member */

/* `f` is each started feature that has the member, in order. */
#define EACH_FEATURE(f, features, member)                                                      \
    for (const struct started_feature *f = (features)->at;                                     \
         f < (features)->at + (features)->count; f++)                                          \
        if (f->feature->member)

/* The same in reverse. */
#define EACH_FEATURE_BACK(f, features, member)                                                 \
    for (const struct started_feature *f = (features)->at + (features)->count;                 \
         f > (features)->at && f--;)                                                           \
        if (f->feature->member)

/* NOLINTEND(bugprone-macro-parentheses) */

static int feature_start(struct session *s, const struct feature *feature)
{
    struct features *all = &s->features;
    struct started_feature f = {.feature = feature};

    if (all->count == FEATURES_MAX)
        return -E2BIG;
    int r = feature->start(s, &f.state);
    if (f.state)
        all->at[all->count++] = f;
    if (f.state && (feature->on_request || feature->before_read || feature->after_read))
        s->reading.at[s->reading.count++] = f;
    return r;
}

int features_start(struct session *s)
{
    int r = 0;

    /* A thread of a feature that updates the counters waits until all have started. */
    pthread_mutex_lock(&s->counters_lock);
    for (const struct feature *const *f = s->config.features; r == 0 && *f; f++)
        r = feature_start(s, *f);
    pthread_mutex_unlock(&s->counters_lock);
    return r;
}

void features_serve(const struct features *features)
{
    EACH_FEATURE (f, features, serve)
        f->feature->serve(f->state);
}

int features_add_worker(const struct features *features, struct worker *worker)
{
    int r = 0;

    EACH_FEATURE (f, features, add_worker)
        if (r == 0)
            r = f->feature->add_worker(f->state, worker);
    return r;
}

void features_on_request(const struct features *features)
{
    EACH_FEATURE (f, features, on_request)
        f->feature->on_request(f->state);
}

int features_before_read(const struct features *features, struct read *read)
{
    int r = 0;

    EACH_FEATURE (f, features, before_read)
        if (r == 0)
            r = f->feature->before_read(f->state, read);
    return r;
}

void features_after_read(const struct features *features, struct read *read)
{
    EACH_FEATURE_BACK (f, features, after_read)
        f->feature->after_read(f->state, read);
}

bool features_before_listing(const struct features *features)
{
    bool attributes = true;

    EACH_FEATURE (f, features, before_listing)
        f->feature->before_listing(f->state, &attributes);
    return attributes;
}

void features_after_listing(const struct features *features, const struct listed *listed)
{
    EACH_FEATURE (f, features, after_listing)
        f->feature->after_listing(f->state, listed);
}

void features_after_lookup(const struct features *features, const struct request *rq,
                           uint32_t position)
{
    EACH_FEATURE (f, features, after_lookup)
        f->feature->after_lookup(f->state, rq, position);
}

bool features_answer(const struct features *features, struct request *rq)
{
    EACH_FEATURE (f, features, answer)
        if (f->feature->answer(f->state, rq))
            return true;
    return false;
}

void features_update_counters(const struct features *features)
{
    EACH_FEATURE (f, features, update_counters)
        f->feature->update_counters(f->state);
}

void features_leave(const struct features *features)
{
    EACH_FEATURE (f, features, leave)
        f->feature->leave(f->state);
}

void features_end(const struct features *features)
{
    EACH_FEATURE (f, features, end)
        f->feature->end(f->state);
}

bool features_join(const struct features *features, const struct timespec *until)
{
    bool joined = true;

    EACH_FEATURE_BACK (f, features, join)
        joined &= f->feature->join(f->state, until) == 0;
    return joined;
}

void features_free(const struct features *features)
{
    EACH_FEATURE_BACK (f, features, free)
        f->feature->free(f->state);
}
