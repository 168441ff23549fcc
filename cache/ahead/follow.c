/*
 * Two legs make one sequence of places: the order of this epoch and, once known, the next
 * epoch's. A byte for each place says whether it was fetched and read. `head` is the furthest
 * place that was read. `lag` is how far behind it recent reads were. The readers are between
 * head and head - lag. `at` is where fetching goes on.
 *
 * A read counts as in order if its place is within `reach` of head: a sixteenth of the order.
 * An eighth of all unrelated reads then looks right, so an order is given up when 20 of the
 * last 32 were wrong. Readers of a list may be further apart, a sixth of it: a recorded list
 * holds how far apart readers happened to be during the recording. If the wrong reads were
 * close together somewhere else, the readers have jumped (a job that resumes in the middle of
 * an epoch), and following goes on there.
 */
#include "follow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"
#include "chooser.h"
#include "world.h"

#define ISSUED 1u
#define READ 2u
#define HERE 4u
#define LEFT 8u /* all readers have passed it, as far as known */

#define REACH_LEAST 1024u
#define VERDICTS 32u
#define LOST_AT 20u
#define TURN_READS 32u /* in the next epoch, before this one is forgotten */
#define DOUBT_AT 4u    /* unexpected of the last eight: nothing is fetched for the moment */
#define STRAYS 16u
#define STRAYS_TOGETHER 12u
#define WAITING_MAX (1u << 16)
#define SCAN_MAX (1u << 17) /* places looked at in one go */
#define INFER_READS 64u     /* between two attempts to infer the world */
#define GIVE_UP_READS 4096u /* without an answer: assume that everything is read here */

struct leg {
    struct known_reads *order;
    uint8_t *state;
    uint64_t count;
};

struct follow {
    struct follow_options options;
    struct ahead_stats *stats;
    struct leg now, next;
    uint64_t base; /* `due` of place 0 */
    uint64_t head, lag;
    uint64_t at;      /* where fetching goes on */
    uint64_t settled; /* nothing before this place waits */
    uint32_t waiting; /* places */
    bool started, asked_next, turned, held_back;

    uint32_t verdicts; /* a bit for each of the last reads: it was unexpected */
    unsigned judged;
    uint64_t strays[STRAYS];
    unsigned stray_count;

    struct world world;
    struct world_read reads[WORLD_READS_MAX];
    unsigned read_count, since_inferred;
    uint64_t in_order, next_reads;
};

static uint64_t absolute(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static int leg_set(struct leg *leg, struct known_reads *order)
{
    uint8_t *state = calloc(known_reads_count(order) + 1, 1);

    if (!state)
        return -ENOMEM;
    *leg = (struct leg){known_reads_share(order), state, known_reads_count(order)};
    return 0;
}

static void leg_free(struct leg *leg)
{
    known_reads_free(leg->order);
    free(leg->state);
    *leg = (struct leg){0};
}

static void follow_set_world(struct follow *f, const struct world *world)
{
    f->world = *world;
    f->stats->world = world->size;
    f->stats->local = world->local;
}

int follow_new(const struct follow_options *options, struct known_reads *order,
               struct follow **ret_follow)
{
    struct follow *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->options = *options;
    f->stats = options->stats;
    f->base = options->first_due;
    if (leg_set(&f->now, order) < 0) {
        free(f);
        return -ENOMEM;
    }
    f->started = !options->shared;
    if (!options->shared) {
        struct world all;
        world_all(&all);
        follow_set_world(f, &all);
    }
    *ret_follow = f;
    return 0;
}

void follow_free(struct follow *f)
{
    if (!f)
        return;
    leg_free(&f->now);
    leg_free(&f->next);
    f->stats->waiting_bytes = 0;
    free(f);
}

static uint8_t *follow_state(struct follow *f, uint64_t place)
{
    return place < f->now.count ? &f->now.state[place] : &f->next.state[place - f->now.count];
}

static uint32_t follow_file(const struct follow *f, uint64_t place)
{
    return place < f->now.count ? known_reads_at(f->now.order, place)
                                : known_reads_at(f->next.order, place - f->now.count);
}

static uint64_t follow_end(const struct follow *f)
{
    return f->now.count + f->next.count;
}

/* How far apart readers may be. */
static uint64_t follow_reach(const struct follow *f)
{
    uint64_t part = f->now.count / (f->options.shared ? 16 : 6);

    return max_u64(max_u64(part, 2 * f->options.spread), REACH_LEAST);
}

/* Recent reads were out of order. */
static bool follow_is_in_doubt(const struct follow *f)
{
    return (unsigned)__builtin_popcount(f->verdicts & 0xff) >= DOUBT_AT;
}

/* The place up to which all readers have passed: nothing before it will be asked for. */
static uint64_t follow_tail(const struct follow *f)
{
    uint64_t slack = 2 * f->lag + 64 * (uint64_t)max_u32(f->world.size, 1);

    slack = min_u64(slack, f->now.count / 2); /* or a short order would end before it turned */
    return f->head > slack ? f->head - slack : 0;
}

/* ---- where the readers are ---- */

/* The place of this read in a leg: the first one that was not read. -ENOENT. */
static int leg_place(const struct leg *leg, uint32_t position, uint64_t from,
                     uint64_t *ret_place)
{
    int r = leg->order ? known_reads_place(leg->order, position, from, ret_place) : -ENOENT;

    while (r == 0 && leg->state[*ret_place] & READ)
        r = known_reads_place(leg->order, position, *ret_place + 1, ret_place);
    return r;
}

/* Ranks take turns from the start of each epoch: the place within its leg gives the rank. */
static uint64_t place_in_leg(const struct follow *f, uint64_t place)
{
    return place < f->now.count ? place : place - f->now.count;
}

static bool follow_is_near(const struct follow *f, uint64_t place)
{
    return absolute(place, f->head) <= follow_reach(f);
}

/* Is it a place of the ranks on this node? */
static bool follow_is_ours(const struct follow *f, uint64_t place)
{
    return f->world.size && world_reads(&f->world, place_in_leg(f, place));
}

/*
 * The place in this epoch or in the next. What other nodes have read of this epoch looks unread
 * here. So a file that is due here in the next epoch is taken as read in that one. -EEXIST: a
 * file of the order that was read in both.
 */
static int follow_find(const struct follow *f, uint32_t position, uint64_t *ret_place)
{
    uint64_t first, place, next;

    if (known_reads_place(f->now.order, position, 0, &first) < 0)
        return -ENOENT;
    bool is_now = leg_place(&f->now, position, 0, &place) == 0 && follow_is_near(f, place);
    bool is_next = false;
    if (!is_now || !follow_is_ours(f, place)) {
        is_next = leg_place(&f->next, position, 0, &next) == 0 &&
                  follow_is_near(f, next + f->now.count) &&
                  (!is_now || follow_is_ours(f, next + f->now.count));
    }
    if (is_now || is_next) {
        *ret_place = is_next ? next + f->now.count : place;
        return 0;
    }
    /* A file that occurs several times may be due at a later place. */
    uint64_t low = f->head > follow_reach(f) ? f->head - follow_reach(f) : 0;
    if (leg_place(&f->now, position, low, ret_place) == 0)
        return 0;
    return leg_place(&f->now, position, 0, ret_place) == 0 ? 0 : -EEXIST;
}

/* ---- what waits ---- */

static bool waits(uint8_t state)
{
    return (state & (ISSUED | READ | LEFT)) == ISSUED;
}

static void follow_begin_wait(struct follow *f, uint64_t place, uint64_t bytes)
{
    *follow_state(f, place) |= ISSUED;
    f->waiting++;
    f->stats->waiting_bytes += bytes;
    f->settled = min_u64(f->settled, place);
}

static void follow_end_wait(struct follow *f, uint64_t place)
{
    uint64_t bytes = want_bytes(f->options.ahead->index, follow_file(f, place));

    f->waiting--;
    f->stats->waiting_bytes -= min_u64(bytes, f->stats->waiting_bytes);
}

/* Nobody will ask for what waits before this place. */
static void follow_leave_behind(struct follow *f, uint64_t until)
{
    for (; f->settled < until && f->waiting > 0; f->settled++) {
        uint8_t *state = follow_state(f, f->settled);
        if (!waits(*state))
            continue;
        *state |= LEFT;
        follow_end_wait(f, f->settled);
        f->stats->unused++;
    }
    f->settled = max_u64(f->settled, until);
}

/* ---- reads ---- */

/* All readers are in the next epoch: its order becomes the present one. */
static void follow_turn(struct follow *f)
{
    uint64_t passed = f->now.count;

    follow_leave_behind(f, passed);
    leg_free(&f->now);
    f->now = f->next;
    f->next = (struct leg){0};
    f->base += passed;
    f->settled -= passed;
    f->head -= passed;
    f->at = f->at > passed ? f->at - passed : 0;
    f->lag = min_u64(f->lag, f->head);
    f->read_count = 0;
    f->next_reads = 0;
    f->asked_next = false;
    f->turned = true;
}

/* Infer again which readers read which places. */
static void follow_infer_world(struct follow *f)
{
    struct world found;

    f->since_inferred = 0;
    if (!f->options.shared)
        return;
    if (world_infer(f->reads, f->read_count, &found) < 0) {
        if (f->world.size || f->in_order <= GIVE_UP_READS)
            return;
        world_all(&found);
    } else if (f->world.size && world_holds(&f->world, &found)) {
        return;
    }
    follow_set_world(f, &found);
    f->at = min_u64(f->at, follow_tail(f));
}

static void follow_note_place(struct follow *f, uint64_t place, uint32_t task)
{
    place = place_in_leg(f, place);
    if (f->read_count == WORLD_READS_MAX) {
        memmove(f->reads, f->reads + WORLD_READS_MAX / 2,
                WORLD_READS_MAX / 2 * sizeof(f->reads[0]));
        f->read_count = WORLD_READS_MAX / 2;
    }
    f->reads[f->read_count++] = (struct world_read){place, task};
    f->in_order++;
    f->since_inferred++;
    bool from_elsewhere = f->world.size && !world_reads(&f->world, place);
    if (f->since_inferred >= INFER_READS || (!f->world.size && f->since_inferred >= 8) ||
        (from_elsewhere && f->since_inferred >= 4))
        follow_infer_world(f);
}

static void follow_advance(struct follow *f, uint64_t place)
{
    uint64_t behind = place < f->head ? f->head - place : 0;

    f->lag = max_u64(f->lag - f->lag / 256, behind);
    f->head = max_u64(f->head, place);
    f->started = true;
    f->next_reads += place >= f->now.count;
    if (f->next_reads >= TURN_READS && follow_tail(f) >= f->now.count && !follow_is_in_doubt(f))
        follow_turn(f);
}

static void follow_judge(struct follow *f, bool unexpected)
{
    f->verdicts = f->verdicts << 1 | unexpected;
    if (f->judged < VERDICTS)
        f->judged++;
}

/* Out of order, but close to other such reads: then the readers are there now. */
static void follow_note_stray(struct follow *f, uint64_t place)
{
    uint64_t sorted[STRAYS];
    unsigned together = 0;

    f->strays[f->stray_count++ % STRAYS] = place;
    if (f->stray_count < STRAYS)
        return;
    memcpy(sorted, f->strays, sizeof(sorted));
    qsort(sorted, STRAYS, sizeof(sorted[0]), compare_u64);
    for (unsigned i = 0; i < STRAYS; i++)
        together += absolute(sorted[i], sorted[STRAYS / 2]) <= follow_reach(f) / 4;
    if (together < STRAYS_TOGETHER)
        return;
    f->head = sorted[STRAYS / 2];
    f->lag = 0;
    f->at = f->head;
    f->stray_count = f->judged = 0;
    f->verdicts = 0;
}

enum follow_verdict follow_read(struct follow *f, uint32_t position, uint32_t task)
{
    uint64_t place;
    int r = follow_find(f, position, &place);

    if (r == -ENOENT)
        return FOLLOW_FOREIGN;
    if (r < 0 || absolute(place, f->head) > follow_reach(f)) {
        if (r == 0)
            follow_note_stray(f, place);
        follow_judge(f, true);
        return FOLLOW_UNEXPECTED;
    }
    uint8_t *state = follow_state(f, place), before = *state;
    bool found = before & HERE, late = (before & (ISSUED | HERE)) == ISSUED;
    if (waits(before))
        follow_end_wait(f, place);
    *state |= READ;
    f->held_back = false;
    follow_judge(f, false);
    follow_note_place(f, place, task);
    follow_advance(f, place);
    f->stats->in_order++;
    f->stats->found += found;
    f->stats->late += late;
    f->stats->used += found || late;
    return found ? FOLLOW_FOUND : late ? FOLLOW_LATE : FOLLOW_MISSED;
}

bool follow_is_lost(const struct follow *f)
{
    return f->judged == VERDICTS && (unsigned)__builtin_popcount(f->verdicts) >= LOST_AT;
}

bool follow_is_sure(const struct follow *f)
{
    return (unsigned)__builtin_popcount(f->verdicts) <= LOST_AT / 2;
}

/* ---- what to fetch ---- */

static bool follow_has_room(struct follow *f)
{
    follow_leave_behind(f, follow_tail(f));
    return !f->held_back && f->waiting < WAITING_MAX &&
           f->stats->waiting_bytes < f->options.ahead->window_bytes;
}

bool follow_next(struct follow *f, struct reader_want *ret_want)
{
    uint64_t end = follow_end(f);

    if (!f->world.size || !f->started || follow_is_in_doubt(f) || !follow_has_room(f))
        return false;
    f->at = max_u64(f->at, follow_tail(f));
    for (unsigned i = 0; i < SCAN_MAX && f->at < end; i++) {
        uint64_t place = f->at++;
        if (!world_reads(&f->world, place_in_leg(f, place)) ||
            *follow_state(f, place) & (ISSUED | READ))
            continue;
        uint32_t position = follow_file(f, place);
        uint64_t bytes = want_bytes(f->options.ahead->index, position);
        if (bytes == 0)
            continue;
        follow_begin_wait(f, place, bytes);
        *ret_want = (struct reader_want){position, 0, bytes, f->base + place};
        return true;
    }
    return false;
}

/* False: it is not due in this epoch or the next. */
static bool follow_find_due(const struct follow *f, uint64_t due, uint64_t *ret_place)
{
    *ret_place = due - f->base;
    return due >= f->base && *ret_place < follow_end(f);
}

void follow_done(struct follow *f, uint64_t due)
{
    uint64_t place;

    if (follow_find_due(f, due, &place))
        *follow_state(f, place) |= HERE;
}

void follow_refused(struct follow *f, uint64_t due)
{
    uint64_t place;

    f->held_back = true;
    if (!follow_find_due(f, due, &place) || *follow_state(f, place) & READ)
        return;
    if (waits(*follow_state(f, place))) {
        follow_end_wait(f, place);
        *follow_state(f, place) &= (uint8_t)~ISSUED;
    }
    f->at = min_u64(f->at, place);
}

/* ---- epochs ---- */

uint64_t follow_passed(const struct follow *f)
{
    return f->base + follow_tail(f);
}

uint64_t follow_end_due(const struct follow *f)
{
    return f->base + follow_end(f);
}

bool follow_wants_next(struct follow *f)
{
    if (f->asked_next || f->next.order || !f->started ||
        (f->at < f->now.count / 2 && f->head < f->now.count / 2))
        return false;
    f->asked_next = true;
    return true;
}

int follow_set_next(struct follow *f, struct known_reads *order)
{
    return f->next.order ? 0 : leg_set(&f->next, order);
}

bool follow_has_turned(struct follow *f)
{
    bool turned = f->turned;

    f->turned = false;
    return turned;
}
