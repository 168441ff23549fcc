#include "streams.h"

#include "numbers.h"

#define WINDOW_FIRST 4u
#define WINDOW_MOST 512u /* steps ahead of one reader */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool stream_is_believed(const struct stream *t)
{
    return t->reads >= STREAM_CONFIDENT && t->step &&
           (t->last - t->first) / t->step <= 4 * (uint64_t)t->reads;
}

/* The stream that the place continues, or else the one that was idle longest. */
static struct stream *streams_find(struct streams *s, uint64_t place, bool *ret_continues)
{
    struct stream *oldest = &s->at[0];

    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *t = &s->at[i];
        uint64_t near = max_u64(4 * t->step, STREAM_NEAR);
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
    struct stream *t = streams_find(s, place, &continues);

    if (!continues)
        *t = (struct stream){.first = place, .last = place, .next = place + 1};
    t->used = ++s->clock;
    if (continues && place == t->last)
        return stream_is_believed(t);
    t->reads++;
    if (continues)
        t->step = common_divisor(t->step, place > t->last ? place - t->last : t->last - place);
    t->last = max_u64(t->last, place);
    if (!stream_is_believed(t))
        return false;
    if (t->next <= t->last) {
        t->next = t->last + t->step;
        t->window = t->window ? t->window : WINDOW_FIRST;
    }
    /* The reader is half way to the end of what was handed out. */
    if (t->next - t->last <= t->window * t->step / 2 && 2 * t->window <= WINDOW_MOST)
        t->window *= 2;
    return true;
}

bool streams_next(struct streams *s, uint64_t *ret_place)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *t = &s->at[i];
        if (!stream_is_believed(t) || !t->window || t->next > t->last + t->window * t->step)
            continue;
        *ret_place = t->next;
        t->next += t->step;
        return true;
    }
    return false;
}
