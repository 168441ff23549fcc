/*
 * Two legs make one sequence of places: the order of this epoch and, once known, that of the
 * next. A byte for each place says whether it was fetched and read. `head` is the furthest
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

#define ISSUED 1u
#define READ 2u
#define HERE 4u
#define LEFT 8u /* all readers have passed it, as far as known: it no longer waits */

#define REACH_LEAST 1024u
#define VERDICTS 32u
#define LOST_AT 20u
#define TURN_READS 32u /* in the next epoch, before this one is forgotten */
#define DOUBT_AT 4u    /* unexpected of the last eight: nothing is fetched for the moment */
#define STRAYS 16u
#define STRAYS_TOGETHER 12u
#define WAITING_MAX (1u << 16)
#define COMPACT_READS 256u  /* between two passes over all that wait */
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
    struct leg now, next;
    uint64_t base; /* `due` of place 0 */
    uint64_t head, lag;
    uint64_t at; /* where fetching goes on */
    bool started, asked_next, turned, held_back;

    uint64_t *waiting; /* a ring of the issued places, oldest first */
    uint32_t waiting_first, waiting_count;
    uint64_t waiting_bytes;
    uint64_t compact_at; /* not before so many reads */

    uint32_t verdicts; /* a bit for each of the last reads: it was unexpected */
    unsigned judged;
    uint64_t strays[STRAYS];
    unsigned stray_count;

    struct world world;
    struct world_read reads[WORLD_READS_MAX];
    unsigned read_count, since_inferred;
    uint64_t in_order, next_reads;
    struct follow_stats stats;
};

static uint64_t absolute(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static int set_leg(struct leg *leg, struct known_reads *order)
{
    uint8_t *state = calloc(known_reads_count(order) + 1, 1);

    if (!state)
        return -ENOMEM;
    *leg = (struct leg){known_reads_share(order), state, known_reads_count(order)};
    return 0;
}

static void free_leg(struct leg *leg)
{
    known_reads_free(leg->order);
    free(leg->state);
    *leg = (struct leg){0};
}

int follow_new(const struct follow_options *options, struct known_reads *order,
               struct follow **ret_follow)
{
    struct follow *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    f->options = *options;
    f->waiting = malloc(WAITING_MAX * sizeof(*f->waiting));
    if (!f->waiting || set_leg(&f->now, order) < 0) {
        follow_free(f);
        return -ENOMEM;
    }
    f->started = !options->shared;
    if (!options->shared)
        world_all(&f->world);
    *ret_follow = f;
    return 0;
}

void follow_free(struct follow *f)
{
    if (!f)
        return;
    free_leg(&f->now);
    free_leg(&f->next);
    free(f->waiting);
    free(f);
}

void follow_set_window(struct follow *f, uint64_t window_bytes)
{
    f->options.window_bytes = window_bytes;
}

static uint8_t *state_of(struct follow *f, uint64_t place)
{
    return place < f->now.count ? &f->now.state[place] : &f->next.state[place - f->now.count];
}

static uint32_t file_at(const struct follow *f, uint64_t place)
{
    return place < f->now.count ? known_reads_at(f->now.order, place)
                                : known_reads_at(f->next.order, place - f->now.count);
}

static uint64_t bytes_of(const struct follow *f, uint32_t position)
{
    struct node node;

    if (position == FOLDER_NO_FILE || index_node(f->options.index, position, &node) < 0)
        return 0;
    return node.size_bytes < f->options.file_most ? node.size_bytes : f->options.file_most;
}

static uint64_t end_of(const struct follow *f)
{
    return f->now.count + f->next.count;
}

/* How far apart readers may be. */
static uint64_t reach(const struct follow *f)
{
    uint64_t part = f->now.count / (f->options.shared ? 16 : 6), spread = 2 * f->options.spread;

    part = part > spread ? part : spread;
    return part > REACH_LEAST ? part : REACH_LEAST;
}

/* Recent reads were out of order. */
static bool is_in_doubt(const struct follow *f)
{
    return (unsigned)__builtin_popcount(f->verdicts & 0xff) >= DOUBT_AT;
}

/* The place up to which all readers have passed: nothing before it will be asked for. */
static uint64_t tail(const struct follow *f)
{
    uint64_t slack = 2 * f->lag + 64 * (uint64_t)(f->world.size ? f->world.size : 1);

    if (slack > f->now.count / 2) /* or a short order would end before it turned */
        slack = f->now.count / 2;
    return f->head > slack ? f->head - slack : 0;
}

/* ---- where the readers are ---- */

/* The place of this read in a leg: the first one that was not read. -ENOENT. */
static int place_in(const struct leg *leg, uint32_t position, uint64_t from,
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

static bool is_near(const struct follow *f, uint64_t place)
{
    return absolute(place, f->head) <= reach(f);
}

/* Is it a place of the ranks on this node? */
static bool is_ours(const struct follow *f, uint64_t place)
{
    return f->world.size && world_reads(&f->world, place_in_leg(f, place));
}

/*
 * The place in this epoch or in the next. What other nodes have read of this epoch looks unread
 * here. So a file that is due here in the next epoch is taken as read in that one. -EEXIST: a
 * file of the order that was read in both.
 */
static int find_place(const struct follow *f, uint32_t position, uint64_t *ret_place)
{
    uint64_t first, place, next;

    if (known_reads_place(f->now.order, position, 0, &first) < 0)
        return -ENOENT;
    bool is_now = place_in(&f->now, position, 0, &place) == 0 && is_near(f, place);
    bool is_next = false;
    if (!is_now || !is_ours(f, place)) {
        is_next = place_in(&f->next, position, 0, &next) == 0 &&
                  is_near(f, next + f->now.count) &&
                  (!is_now || is_ours(f, next + f->now.count));
    }
    if (is_now || is_next) {
        *ret_place = is_next ? next + f->now.count : place;
        return 0;
    }
    /* A file that occurs several times may be due at a later place. */
    uint64_t low = f->head > reach(f) ? f->head - reach(f) : 0;
    if (place_in(&f->now, position, low, ret_place) == 0)
        return 0;
    return place_in(&f->now, position, 0, ret_place) == 0 ? 0 : -EEXIST;
}

static void drop_waiting(struct follow *f, uint64_t place)
{
    uint64_t bytes = bytes_of(f, file_at(f, place));

    f->waiting_bytes -= bytes < f->waiting_bytes ? bytes : f->waiting_bytes;
}

/* All readers are in the next epoch: its order becomes the present one. */
static void turn(struct follow *f)
{
    uint64_t passed = f->now.count;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < f->waiting_count; i++) {
        uint64_t place = f->waiting[(f->waiting_first + i) % WAITING_MAX];
        if (place >= passed) {
            f->waiting[(f->waiting_first + kept++) % WAITING_MAX] = place - passed;
        } else if (!(*state_of(f, place) & READ)) {
            drop_waiting(f, place);
            f->stats.unused++;
        }
    }
    f->waiting_count = kept;
    free_leg(&f->now);
    f->now = f->next;
    f->next = (struct leg){0};
    f->base += passed;
    f->head -= passed;
    f->at = f->at > passed ? f->at - passed : 0;
    f->lag = f->lag < f->head ? f->lag : f->head;
    f->read_count = 0;
    f->next_reads = 0;
    f->asked_next = false;
    f->turned = true;
}

/* Infer again which readers read which places. */
static void infer_world(struct follow *f)
{
    struct world found;

    f->since_inferred = 0;
    if (!f->options.shared)
        return;
    if (world_infer(f->reads, f->read_count, &found) < 0) {
        if (!f->world.size && f->in_order > GIVE_UP_READS)
            world_all(&f->world);
        return;
    }
    if (f->world.size && world_holds(&f->world, &found))
        return;
    f->world = found;
    f->at = f->at < tail(f) ? f->at : tail(f);
}

static void note_place(struct follow *f, uint64_t place, uint32_t task)
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
    bool stranger = f->world.size && !world_reads(&f->world, place);
    if (f->since_inferred >= INFER_READS || (!f->world.size && f->since_inferred >= 8) ||
        (stranger && f->since_inferred >= 4))
        infer_world(f);
}

static void advance(struct follow *f, uint64_t place)
{
    uint64_t behind = place < f->head ? f->head - place : 0;

    f->lag -= f->lag / 256;
    if (behind > f->lag)
        f->lag = behind;
    if (place > f->head)
        f->head = place;
    f->started = true;
    f->next_reads += place >= f->now.count;
    if (f->next_reads >= TURN_READS && tail(f) >= f->now.count && !is_in_doubt(f))
        turn(f);
}

static void judge(struct follow *f, bool unexpected)
{
    f->verdicts = f->verdicts << 1 | unexpected;
    if (f->judged < VERDICTS)
        f->judged++;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* Out of order, but close to other such reads: then the readers are there now. */
static void note_stray(struct follow *f, uint64_t place)
{
    uint64_t sorted[STRAYS];
    unsigned together = 0;

    f->strays[f->stray_count++ % STRAYS] = place;
    if (f->stray_count < STRAYS)
        return;
    memcpy(sorted, f->strays, sizeof(sorted));
    qsort(sorted, STRAYS, sizeof(sorted[0]), compare);
    for (unsigned i = 0; i < STRAYS; i++)
        together += absolute(sorted[i], sorted[STRAYS / 2]) <= reach(f) / 4;
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
    int r = find_place(f, position, &place);

    if (r == -ENOENT)
        return FOLLOW_FOREIGN;
    if (r < 0 || absolute(place, f->head) > reach(f)) {
        if (r == 0)
            note_stray(f, place);
        judge(f, true);
        f->stats.unexpected++;
        return FOLLOW_UNEXPECTED;
    }
    uint8_t *state = state_of(f, place), before = *state;
    *state |= READ;
    if ((before & (ISSUED | LEFT)) == ISSUED)
        drop_waiting(f, place);
    f->held_back = false;
    judge(f, false);
    note_place(f, place, task);
    advance(f, place);
    f->stats.read++;
    f->stats.found += (before & HERE) != 0;
    f->stats.late += (before & (ISSUED | HERE)) == ISSUED;
    f->stats.missed += !(before & ISSUED);
    return before & HERE ? FOLLOW_FOUND : before & ISSUED ? FOLLOW_LATE : FOLLOW_MISSED;
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

/* Forget the oldest places that were read or left behind. */
static void settle_waiting(struct follow *f)
{
    uint64_t passed = tail(f);

    while (f->waiting_count > 0) {
        uint64_t place = f->waiting[f->waiting_first];
        uint8_t *state = state_of(f, place);
        bool read = *state & READ;
        if (!read && place >= passed)
            break;
        if (!read) {
            *state |= LEFT;
            drop_waiting(f, place);
            f->stats.unused++;
        }
        f->waiting_first = (f->waiting_first + 1) % WAITING_MAX;
        f->waiting_count--;
    }
}

/* Drop read places from the middle of the ring, where the oldest ones keep waiting. */
static void compact_waiting(struct follow *f)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < f->waiting_count; i++) {
        uint64_t place = f->waiting[(f->waiting_first + i) % WAITING_MAX];
        if (!(*state_of(f, place) & READ))
            f->waiting[(f->waiting_first + kept++) % WAITING_MAX] = place;
    }
    f->waiting_count = kept;
    f->compact_at = f->stats.read + COMPACT_READS;
}

static bool has_room(struct follow *f)
{
    settle_waiting(f);
    if (f->waiting_count == WAITING_MAX && f->stats.read >= f->compact_at)
        compact_waiting(f);
    return !f->held_back && f->waiting_count < WAITING_MAX &&
           f->waiting_bytes < f->options.window_bytes;
}

bool follow_next(struct follow *f, struct follow_item *ret_item)
{
    uint64_t end = end_of(f);

    if (!f->world.size || !f->started || is_in_doubt(f) || !has_room(f))
        return false;
    if (f->at < tail(f))
        f->at = tail(f);
    for (unsigned i = 0; i < SCAN_MAX && f->at < end; i++) {
        uint64_t place = f->at++, bytes;
        uint8_t *state = state_of(f, place);
        if (!world_reads(&f->world, place_in_leg(f, place)) || *state & (ISSUED | READ))
            continue;
        uint32_t position = file_at(f, place);
        bytes = bytes_of(f, position);
        if (bytes == 0)
            continue;
        *state |= ISSUED;
        f->waiting[(f->waiting_first + f->waiting_count++) % WAITING_MAX] = place;
        f->waiting_bytes += bytes;
        *ret_item = (struct follow_item){position, bytes, f->base + place};
        return true;
    }
    return false;
}

void follow_done(struct follow *f, uint64_t due)
{
    if (due >= f->base && due - f->base < end_of(f))
        *state_of(f, due - f->base) |= HERE;
}

void follow_refused(struct follow *f, uint64_t due)
{
    f->held_back = true;
    if (due < f->base || due - f->base >= end_of(f))
        return;
    uint64_t place = due - f->base;
    uint8_t *state = state_of(f, place);
    if (*state & READ)
        return;
    /* It is the newest that waits, except for others refused with it. */
    for (uint32_t i = f->waiting_count; i-- > 0;) {
        if (f->waiting[(f->waiting_first + i) % WAITING_MAX] != place)
            continue;
        for (; i + 1 < f->waiting_count; i++)
            f->waiting[(f->waiting_first + i) % WAITING_MAX] =
                f->waiting[(f->waiting_first + i + 1) % WAITING_MAX];
        f->waiting_count--;
        *state &= (uint8_t)~ISSUED;
        drop_waiting(f, place);
        break;
    }
    if (f->at > place)
        f->at = place;
}

/* ---- epochs ---- */

uint64_t follow_passed(const struct follow *f)
{
    return f->base + tail(f);
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
    return f->next.order ? 0 : set_leg(&f->next, order);
}

bool follow_has_turned(struct follow *f)
{
    bool turned = f->turned;

    f->turned = false;
    return turned;
}

void follow_stats(const struct follow *f, struct follow_stats *ret_stats)
{
    *ret_stats = f->stats;
    ret_stats->waiting_bytes = f->waiting_bytes;
    ret_stats->world = f->world.size;
    ret_stats->local = f->world.local;
}
