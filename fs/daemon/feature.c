#include "feature.h"

#include <errno.h>

#include "core.h"

static void feature_calls_add(struct feature_calls *calls, bool takes_part,
                              struct started_feature f)
{
    if (takes_part)
        calls->at[calls->count++] = f;
}

static int feature_start(struct session *s, const struct feature *feature)
{
    struct features *all = &s->features;
    struct started_feature f = {.feature = feature};

    if (all->all.count == FEATURES_MAX)
        return -E2BIG;
    int r = feature->start(s, &f.state);
    feature_calls_add(&all->all, f.state, f);
    feature_calls_add(&all->on_request, f.state && feature->on_request, f);
    feature_calls_add(&all->before_read, f.state && feature->before_read, f);
    feature_calls_add(&all->after_read, f.state && feature->after_read, f);
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
    const struct feature_calls *all = &features->all;

    for (unsigned i = 0; i < all->count; i++)
        if (all->at[i].feature->serve)
            all->at[i].feature->serve(all->at[i].state);
}

int features_add_worker(struct features *features, struct worker *worker)
{
    const struct feature_calls *all = &features->all;
    int r = 0;

    for (unsigned i = 0; i < all->count && r == 0; i++)
        if (all->at[i].feature->add_worker)
            r = all->at[i].feature->add_worker(all->at[i].state, worker);
    return r;
}

void features_on_request(const struct features *features)
{
    const struct feature_calls *calls = &features->on_request;

    for (unsigned i = 0; i < calls->count; i++)
        calls->at[i].feature->on_request(calls->at[i].state);
}

int features_before_read(const struct features *features, struct read *read)
{
    const struct feature_calls *calls = &features->before_read;
    int r = 0;

    for (unsigned i = 0; i < calls->count && r == 0; i++)
        r = calls->at[i].feature->before_read(calls->at[i].state, read);
    return r;
}

void features_after_read(const struct features *features, struct read *read)
{
    const struct feature_calls *calls = &features->after_read;

    for (unsigned i = calls->count; i > 0; i--)
        calls->at[i - 1].feature->after_read(calls->at[i - 1].state, read);
}

bool features_before_listing(const struct features *features)
{
    const struct feature_calls *all = &features->all;
    bool attributes = true;

    for (unsigned i = 0; i < all->count; i++)
        if (all->at[i].feature->before_listing)
            all->at[i].feature->before_listing(all->at[i].state, &attributes);
    return attributes;
}

void features_after_listing(const struct features *features, const struct listed *listed)
{
    const struct feature_calls *all = &features->all;

    for (unsigned i = 0; i < all->count; i++)
        if (all->at[i].feature->after_listing)
            all->at[i].feature->after_listing(all->at[i].state, listed);
}

bool features_answer(const struct features *features, struct request *rq)
{
    const struct feature_calls *all = &features->all;
    bool answered = false;

    for (unsigned i = 0; i < all->count && !answered; i++)
        answered =
            all->at[i].feature->answer && all->at[i].feature->answer(all->at[i].state, rq);
    return answered;
}

void features_update_counters(const struct features *features)
{
    const struct feature_calls *all = &features->all;

    for (unsigned i = 0; i < all->count; i++)
        if (all->at[i].feature->update_counters)
            all->at[i].feature->update_counters(all->at[i].state);
}

void features_leave(const struct features *features)
{
    const struct feature_calls *all = &features->all;

    for (unsigned i = 0; i < all->count; i++)
        if (all->at[i].feature->leave)
            all->at[i].feature->leave(all->at[i].state);
}

void features_end(const struct features *features)
{
    const struct feature_calls *all = &features->all;

    for (unsigned i = 0; i < all->count; i++)
        if (all->at[i].feature->end)
            all->at[i].feature->end(all->at[i].state);
}

bool features_join(const struct features *features, const struct timespec *until)
{
    const struct feature_calls *all = &features->all;
    bool joined = true;

    for (unsigned i = all->count; i > 0; i--)
        if (all->at[i - 1].feature->join)
            joined &= all->at[i - 1].feature->join(all->at[i - 1].state, until) == 0;
    return joined;
}

void features_free(struct features *features)
{
    const struct feature_calls *all = &features->all;

    for (unsigned i = all->count; i > 0; i--)
        if (all->at[i - 1].feature->free)
            all->at[i - 1].feature->free(all->at[i - 1].state);
}
