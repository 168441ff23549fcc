/*
 * Shuffling 100 million elements is 100 million accesses to random memory, one cache miss
 * each. The accesses don't depend on one another, though: the random numbers alone decide which
 * places are swapped. So the numbers of a batch are drawn first and their places prefetched,
 * and only then is anything swapped. Large pages also save the misses of address translation.
 */
#include "permutation.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TWISTER_STATE 624
#define TWISTER_SHIFT 397
#define AHEAD 208                /* draws at a time: a third of the state */
#define PACE (UINT64_C(1) << 22) /* elements between two questions whether to stop */

struct permutation {
    uint64_t size;
    bool wide;    /* elements have 8 bytes */
    size_t bytes; /* of the mapping */
    union {
        uint32_t *narrow_at;
        uint64_t *wide_at;
        void *memory;
    };
};

struct twister {
    uint32_t state[TWISTER_STATE];
    uint32_t drawn[TWISTER_STATE];
    unsigned used;
};

/* ---- stopping ---- */

struct pace {
    const struct permutation_stop *stop;
    uint64_t done; /* elements since the last question */
    bool stopped;
};

/* Count `elements` that are made next. True: the caller no longer wants the permutation. */
static inline bool permutation_stops(struct pace *pace, uint64_t elements)
{
    pace->done += elements;
    if (pace->done < PACE || !pace->stop)
        return false;
    pace->done = 0;
    pace->stopped = !pace->stop->is_wanted(pace->stop->ctx);
    return pace->stopped;
}

/* ---- MT19937 ---- */

static void twister_seed(struct twister *t, uint64_t seed)
{
    t->state[0] = (uint32_t)seed;
    for (uint32_t j = 1; j < TWISTER_STATE; j++)
        t->state[j] = 1812433253u * (t->state[j - 1] ^ t->state[j - 1] >> 30) + j;
    t->used = TWISTER_STATE;
}

static uint32_t twister_twist(uint32_t upper, uint32_t lower)
{
    uint32_t y = (upper & 0x80000000u) | (lower & 0x7fffffffu);
    return y >> 1 ^ ((0u - (lower & 1u)) & 0x9908b0dfu);
}

/* The next state, and all numbers that it gives. */
static void twister_refill(struct twister *t)
{
    uint32_t *s = t->state;
    unsigned i;
    for (i = 0; i < TWISTER_STATE - TWISTER_SHIFT; i++)
        s[i] = s[i + TWISTER_SHIFT] ^ twister_twist(s[i], s[i + 1]);
    for (; i < TWISTER_STATE - 1; i++)
        s[i] = s[i + TWISTER_SHIFT - TWISTER_STATE] ^ twister_twist(s[i], s[i + 1]);
    s[i] = s[TWISTER_SHIFT - 1] ^ twister_twist(s[i], s[0]);
    for (i = 0; i < TWISTER_STATE; i++) {
        uint32_t y = s[i];
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c5680u;
        y ^= y << 15 & 0xefc60000u;
        t->drawn[i] = y ^ y >> 18;
    }
    t->used = 0;
}

static inline uint32_t twister_draw(struct twister *t)
{
    if (t->used == TWISTER_STATE)
        twister_refill(t);
    return t->drawn[t->used++];
}

static inline uint64_t twister_draw_64(struct twister *t)
{
    uint64_t high = twister_draw(t);
    return high << 32 | twister_draw(t);
}

/* ---- shuffles ---- */

/* Written once for both types of element. */
/* NOLINTBEGIN(bugprone-macro-parentheses): a type can't be in parentheses */
#define DEFINE_SHUFFLES(name, type)                                                            \
    static void swap_down_##name(type *a, uint64_t n, struct twister *t, struct pace *pace)    \
    {                                                                                          \
        uint64_t places[AHEAD];                                                                \
        for (uint64_t i = 0; i + 1 < n;) {                                                     \
            unsigned count = n - 1 - i < AHEAD ? (unsigned)(n - 1 - i) : AHEAD;                \
            if (permutation_stops(pace, count))                                                \
                return;                                                                        \
            for (unsigned j = 0; j < count; j++) {                                             \
                uint64_t left = n - i - j;                                                     \
                uint32_t r = twister_draw(t);                                                  \
                places[j] = i + j + (left > UINT32_MAX ? r : r % (uint32_t)left);              \
                __builtin_prefetch(&a[places[j]], 1);                                          \
            }                                                                                  \
            for (unsigned j = 0; j < count; j++, i++) {                                        \
                type kept = a[i];                                                              \
                a[i] = a[places[j]];                                                           \
                a[places[j]] = kept;                                                           \
            }                                                                                  \
        }                                                                                      \
    }                                                                                          \
                                                                                               \
    static void insert_up_##name(type *a, uint64_t n, struct twister *t, struct pace *pace)    \
    {                                                                                          \
        uint64_t places[AHEAD];                                                                \
        for (uint64_t i = 0; i < n;) {                                                         \
            unsigned count = n - i < AHEAD ? (unsigned)(n - i) : AHEAD;                        \
            if (permutation_stops(pace, count))                                                \
                return;                                                                        \
            for (unsigned j = 0; j < count; j++) {                                             \
                places[j] = twister_draw_64(t) % (i + j + 1);                                  \
                __builtin_prefetch(&a[places[j]], 1);                                          \
            }                                                                                  \
            for (unsigned j = 0; j < count; j++, i++) {                                        \
                a[i] = a[places[j]];                                                           \
                a[places[j]] = (type)i;                                                        \
            }                                                                                  \
        }                                                                                      \
    }

/* NOLINTEND(bugprone-macro-parentheses) */

DEFINE_SHUFFLES(narrow, uint32_t)
DEFINE_SHUFFLES(wide, uint64_t)

/* ---- memory ---- */

static void *elements_map(uint64_t count, bool wide, size_t *ret_bytes)
{
    size_t bytes;
    if (__builtin_mul_overflow(count ? count : 1, wide ? sizeof(uint64_t) : sizeof(uint32_t),
                               &bytes))
        return NULL;
    void *memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    *ret_bytes = bytes;
    return memory;
}

static int elements_new(uint64_t n, struct permutation **ret_permutation)
{
    struct permutation *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->size = n;
    p->wide = n > UINT64_C(1) << 32;
    p->memory = elements_map(n, p->wide, &p->bytes);
    if (!p->memory) {
        free(p);
        return -ENOMEM;
    }
    *ret_permutation = p;
    return 0;
}

static inline void element_set(struct permutation *p, uint64_t i, uint64_t value)
{
    if (p->wide)
        p->wide_at[i] = value;
    else
        p->narrow_at[i] = (uint32_t)value;
}

void permutation_free(struct permutation *permutation)
{
    if (!permutation)
        return;
    munmap(permutation->memory, permutation->bytes);
    free(permutation);
}

uint64_t permutation_at(const struct permutation *permutation, uint64_t i)
{
    return permutation->wide ? permutation->wide_at[i] : permutation->narrow_at[i];
}

/* ---- three ways to make a permutation ---- */

static void elements_identity(struct permutation *p, struct pace *pace)
{
    for (uint64_t i = 0; i < p->size;) {
        uint64_t end = p->size - i < PACE ? p->size : i + PACE;
        if (permutation_stops(pace, end - i))
            return;
        for (; i < end; i++)
            element_set(p, i, i);
    }
}

static void elements_shuffle(struct permutation *p, uint64_t first, uint64_t count,
                             struct twister *t, struct pace *pace)
{
    if (p->wide)
        swap_down_wide(p->wide_at + first, count, t, pace);
    else
        swap_down_narrow(p->narrow_at + first, count, t, pace);
}

/* Hand over what was made, unless that was stopped. */
static int elements_finish(struct permutation *p, const struct pace *pace,
                           struct permutation **ret_permutation)
{
    if (pace->stopped) {
        permutation_free(p);
        return -ECANCELED;
    }
    *ret_permutation = p;
    return 0;
}

int permutation_new_as(uint64_t n, uint64_t seed, bool draw_64_bits,
                       const struct permutation_stop *stop,
                       struct permutation **ret_permutation)
{
    struct permutation *p;
    struct twister twister;
    struct pace pace = {.stop = stop};
    int r = elements_new(n, &p);
    if (r < 0)
        return r;
    twister_seed(&twister, seed);
    if (!draw_64_bits) {
        elements_identity(p, &pace);
        if (!pace.stopped)
            elements_shuffle(p, 0, n, &twister, &pace);
    } else if (p->wide) {
        insert_up_wide(p->wide_at, n, &twister, &pace);
    } else {
        insert_up_narrow(p->narrow_at, n, &twister, &pace);
    }
    return elements_finish(p, &pace, ret_permutation);
}

int permutation_new(uint64_t n, uint64_t seed, const struct permutation_stop *stop,
                    struct permutation **ret_permutation)
{
    return permutation_new_as(n, seed, n >= PERMUTATION_NARROW_MAX, stop, ret_permutation);
}

/*
 * Step i of the shuffle draws the place that element i comes from and never looks at the
 * places below it again. So after `count` steps the front is done. Behind the front only places
 * that were drawn hold anything but their own number; a hash table has these.
 */
struct moved {
    uint32_t place, value; /* place UINT32_MAX: free */
};

static struct moved *moved_find(struct moved *table, uint32_t mask, uint32_t place)
{
    uint32_t at = place * 2654435761u;
    at ^= at >> 15;
    while (table[at & mask].place != place && table[at & mask].place != UINT32_MAX)
        at++;
    return &table[at & mask];
}

static uint32_t moved_take(struct moved *table, uint32_t mask, uint32_t place)
{
    struct moved *m = moved_find(table, mask, place);
    return m->place == place ? m->value : place;
}

int permutation_front(uint64_t n, uint64_t seed, uint32_t count, uint32_t *ret_elements)
{
    struct twister twister;
    uint32_t size = 16;
    if (n >= PERMUTATION_NARROW_MAX || count > n)
        return -EINVAL;
    while (size < 2 * count)
        size *= 2;
    struct moved *table = malloc(size * sizeof(*table));
    if (!table)
        return -ENOMEM;
    memset(table, 0xff, size * sizeof(*table));
    twister_seed(&twister, seed);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t left = (uint32_t)n - i,
                 place = left > 1 ? i + twister_draw(&twister) % left : i;
        uint32_t own = moved_take(table, size - 1, i);
        struct moved *m = moved_find(table, size - 1, place);
        ret_elements[i] = place == i ? own : m->place == place ? m->value : place;
        *m = (struct moved){place, own};
    }
    free(table);
    return 0;
}

int permutation_new_blocks(uint64_t n, uint64_t seed, uint64_t block, uint64_t window,
                           const struct permutation_stop *stop,
                           struct permutation **ret_permutation)
{
    struct permutation *p, *blocks;
    struct twister twister;
    struct pace pace = {.stop = stop};
    if (block == 0 || window == 0)
        return -EINVAL;
    uint64_t count = n / block + (n % block != 0);
    int r = permutation_new(count, seed, stop, &blocks);
    if (r < 0)
        return r;
    r = elements_new(n, &p);
    if (r < 0) {
        permutation_free(blocks);
        return r;
    }
    /* Another seed than the one that shuffled the blocks. */
    twister_seed(&twister, seed ^ 0x9e3779b9u);
    uint64_t filled = 0, window_start = 0;
    for (uint64_t i = 0; i < count && !pace.stopped; i++) {
        uint64_t first = permutation_at(blocks, i) * block;
        uint64_t end = block < n - first ? first + block : n;
        for (uint64_t j = first; j < end && !permutation_stops(&pace, 1); j++)
            element_set(p, filled++, j);
        if ((i + 1) % window == 0 || i + 1 == count) {
            elements_shuffle(p, window_start, filled - window_start, &twister, &pace);
            window_start = filled;
        }
    }
    permutation_free(blocks);
    return elements_finish(p, &pace, ret_permutation);
}

int permutation_take(struct permutation *permutation, uint64_t first, uint64_t step,
                     uint64_t count, const struct permutation_stop *stop)
{
    struct pace pace = {.stop = stop};
    struct permutation taken = {.size = count, .wide = permutation->wide};
    taken.memory = elements_map(count, taken.wide, &taken.bytes);
    if (!taken.memory)
        return -ENOMEM;
    uint64_t n = permutation->size, at = n ? first % n : 0, stride = n ? step % n : 0;
    for (uint64_t i = 0; i < count && !permutation_stops(&pace, 1); i++) {
        element_set(&taken, i, permutation_at(permutation, at));
        at = at >= n - stride ? at - (n - stride) : at + stride;
    }
    struct permutation *gone = pace.stopped ? &taken : permutation;
    munmap(gone->memory, gone->bytes);
    if (pace.stopped)
        return -ECANCELED;
    *permutation = taken;
    return 0;
}
