#include "chooser.h"

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

static bool sequence_is_believed(const struct sequence *t)
{
    return t->reads >= SEQUENCE_CONFIDENT && t->step &&
           (t->last - t->first) / t->step <= 4 * (uint64_t)t->reads;
}

/* The sequence that the place continues, or else the one that was idle longest. */
static struct sequence *sequences_find(struct sequences *s, uint64_t place, bool *ret_continues)
{
    struct sequence *oldest = &s->at[0];

    for (unsigned i = 0; i < SEQUENCES; i++) {
        struct sequence *t = &s->at[i];
        uint64_t near = max_u64(4 * t->step, SEQUENCE_NEAR);
        *ret_continues = t->reads && place + near > t->last && place <= t->last + near;
        if (*ret_continues)
            return t;
        if (t->used < oldest->used)
            oldest = t;
    }
    return oldest;
}

bool sequences_read(struct sequences *s, uint64_t place)
{
    bool continues;
    struct sequence *t = sequences_find(s, place, &continues);

    if (!continues)
        *t = (struct sequence){.first = place, .last = place, .next = place + 1};
    t->used = ++s->clock;
    if (continues && place == t->last)
        return sequence_is_believed(t);
    t->reads++;
    if (continues)
        t->step = common_divisor(t->step, place > t->last ? place - t->last : t->last - place);
    t->last = max_u64(t->last, place);
    if (!sequence_is_believed(t))
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

bool sequences_next(struct sequences *s, uint64_t *ret_place)
{
    for (unsigned i = 0; i < SEQUENCES; i++) {
        struct sequence *t = &s->at[i];
        if (!sequence_is_believed(t) || !t->window || t->next > t->last + t->window * t->step)
            continue;
        *ret_place = t->next;
        t->next += t->step;
        return true;
    }
    return false;
}
