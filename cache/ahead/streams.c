#include "streams.h"

#include <string.h>

#define WINDOW_FIRST 4u

void streams_init(struct streams *s, uint32_t window_most)
{
    memset(s, 0, sizeof(*s));
    s->window_most = window_most;
}

void streams_reset(struct streams *s)
{
    streams_init(s, s->window_most);
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool is_believed(const struct stream *t)
{
    return t->reads >= STREAM_CONFIDENT && t->step &&
           (t->last - t->first) / t->step <= 4 * (uint64_t)t->reads;
}

/* The stream that the place continues, or else the one that was idle longest. */
static struct stream *find(struct streams *s, uint64_t place, bool *ret_continues)
{
    struct stream *oldest = &s->at[0];

    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *t = &s->at[i];
        uint64_t near = 4 * t->step > STREAM_NEAR ? 4 * t->step : STREAM_NEAR;
        *ret_continues = t->reads && place + near > t->last && place <= t->last + near;
        if (*ret_continues)
            return t;
        if (t->used < oldest->used)
            oldest = t;
    }
    return oldest;
}

bool streams_read(struct streams *s, uint64_t place)
{
    bool continues;
    struct stream *t = find(s, place, &continues);

    if (!continues)
        *t = (struct stream){.first = place, .last = place, .next = place + 1};
    t->used = ++s->clock;
    if (continues && place == t->last)
        return is_believed(t);
    t->reads++;
    if (continues)
        t->step = common_divisor(t->step, place > t->last ? place - t->last : t->last - place);
    if (place > t->last)
        t->last = place;
    if (!is_believed(t))
        return false;
    if (t->next <= t->last) {
        t->next = t->last + t->step;
        t->window = t->window ? t->window : WINDOW_FIRST;
    }
    /* The reader is half way to the end of what was handed out. */
    if (t->next - t->last <= t->window * t->step / 2 && 2 * t->window <= s->window_most)
        t->window *= 2;
    return true;
}

bool streams_next(struct streams *s, uint64_t *ret_place)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *t = &s->at[i];
        if (!is_believed(t) || !t->window || t->next > t->last + t->window * t->step)
            continue;
        *ret_place = t->next;
        t->next += t->step;
        return true;
    }
    return false;
}
