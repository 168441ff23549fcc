/*
 * The loops are written so that compilers make vectors of them: over all values of a row in the
 * vertical pass; in the horizontal pass over two weights times four channels. On x86 they are
 * compiled twice, for any CPU and for those with AVX2. Both make the same sums in the same
 * order, as neither multiplies and adds in one step.
 */
#include "resample.h"

#include <math.h>
#include <string.h>

#include "numbers.h"

#define LANES 16u /* a row's floats are a multiple of this */
#define MEMORY_MAX (UINT64_C(1) << 30)

/* ---- weights ---- */

static double filter_bilinear(double x)
{
    x = fabs(x);
    return x < 1 ? 1 - x : 0;
}

/* Keys' cubic with a = -1/2, as in PIL. */
static double filter_bicubic(double x)
{
    x = fabs(x);
    if (x < 1)
        return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static double axis_support(const struct axis *a, enum onepot_interpolation interpolation)
{
    double support = interpolation == ONEPOT_BICUBIC ? 2 : 1;
    return a->step > 1 ? support * a->step : support;
}

/* Weights of one result: an even number, so that they are taken two at a time. */
static uint64_t taps_most(const struct axis *a, enum onepot_interpolation interpolation)
{
    uint64_t most = 2 * (uint64_t)ceil(axis_support(a, interpolation)) + 1;
    return (min_u64(most, a->high - a->low) + 1) & ~UINT64_C(1);
}

/* The pixels [*low, *high) that take part in a result centred there; at least one. */
static void taps_range(const struct axis *a, double centre, double support, uint32_t *low,
                       uint32_t *high)
{
    double from = floor(centre - support + 0.5), to = floor(centre + support + 0.5);
    *low = from > a->low ? (uint32_t)from : a->low;
    *low = min_u32(*low, a->high - 1);
    *high = to < a->high ? (uint32_t)fmax(to, 0) : a->high;
    *high = max_u32(*high, *low + 1);
}

static struct span taps_one(const struct axis *a, uint32_t i,
                            enum onepot_interpolation interpolation, uint64_t most,
                            float *weights)
{
    double (*filter)(double) =
        interpolation == ONEPOT_BICUBIC ? filter_bicubic : filter_bilinear;
    double support = axis_support(a, interpolation), centre = a->start + (i + 0.5) * a->step;
    double widened = a->step > 1 ? a->step : 1, sum = 0;
    uint32_t low, high;
    taps_range(a, centre, support, &low, &high);
    high = min_u32(high, low + (uint32_t)most);
    for (uint32_t at = low; at < high; at++)
        sum += filter((at + 0.5 - centre) / widened);
    for (uint32_t at = low; at < high; at++)
        weights[at - low] =
            sum != 0 ? (float)(filter((at + 0.5 - centre) / widened) / sum) : at == low;
    for (uint32_t n = high - low; n < most; n++)
        weights[n] = 0;
    return (struct span){low, high - low};
}

/* Each of `count` weights four times, for the channels of a pixel. In place. */
static void taps_widen(float *weights, uint64_t count)
{
    while (count-- > 0)
        for (unsigned c = 4; c-- > 0;)
            weights[4 * count + c] = weights[count];
}

/* In memory for count spans and count * most weights. Returns what is left of it. */
static void *taps_make(struct taps *t, const struct axis *a,
                       enum onepot_interpolation interpolation, void *memory)
{
    uint64_t most = taps_most(a, interpolation);
    struct span *spans = memory;
    float *weights = (float *)(spans + a->count);
    *t = (struct taps){.count = a->count,
                       .most = (uint32_t)most,
                       .begin = UINT32_MAX,
                       .spans = spans,
                       .weights = weights};
    for (uint32_t i = 0; i < a->count; i++) {
        uint32_t to = a->reversed ? a->count - 1 - i : i;
        spans[to] = taps_one(a, i, interpolation, most, weights + to * most);
        t->begin = min_u32(t->begin, spans[to].first);
        t->end = max_u32(t->end, spans[to].first + spans[to].number);
    }
    return weights + a->count * most;
}

/* ---- memory ---- */

/* Floats of a row; beyond its pixels there are zeros, for weights that are not needed. */
static uint64_t line_floats(uint64_t pixels, uint64_t most)
{
    return ((pixels + most) * 4 + LANES - 1) / LANES * LANES;
}

static uint64_t taps_bytes(const struct axis *a, uint64_t most)
{
    return a->count * (most * sizeof(float) + sizeof(struct span));
}

size_t resample_bytes(const struct axis *x, const struct axis *y,
                      enum onepot_interpolation interpolation)
{
    uint64_t most_x = taps_most(x, interpolation), most_y = taps_most(y, interpolation);
    uint64_t bytes = (most_y + 1) * line_floats(x->high - x->low, most_x) * sizeof(float) +
                     taps_bytes(x, 4 * most_x) + taps_bytes(y, most_y) +
                     x->count * UINT64_C(20);
    return bytes <= MEMORY_MAX ? bytes : 0;
}

void resample_begin(struct resample *r, const struct axis *x, const struct axis *y,
                    enum onepot_interpolation interpolation, void *memory)
{
    *r = (struct resample){0};
    void *left = taps_make(&r->x, x, interpolation, memory);
    uint64_t weights = (uint64_t)r->x.count * r->x.most;
    taps_widen((float *)left - weights, weights);
    r->rows = taps_make(&r->y, y, interpolation, (float *)left + 3 * weights);
    r->line_floats = line_floats(r->x.end - r->x.begin, r->x.most);
    r->line = r->rows + r->y.most * r->line_floats;
    r->sums = r->line + r->line_floats;
    r->row = (uint8_t *)(r->sums + (size_t)x->count * 4);
    memset(r->rows, 0, (r->y.most + 1) * r->line_floats * sizeof(float));
}

/* ---- loops ---- */

typedef float four __attribute__((vector_size(16)));
typedef float eight __attribute__((vector_size(32)));

#define LOOP static inline __attribute__((always_inline))

LOOP void loop_widen(float *restrict to, const uint8_t *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
}

/* Sum the rows of a span, in a ring of `rows` rows. */
LOOP void loop_vertical(float *restrict to, const float *restrict ring, size_t floats,
                        uint32_t rows, struct span span, const float *restrict weights)
{
    for (size_t at = 0; at < floats; at += LANES) {
        float sum[LANES] = {0};
        for (uint32_t t = 0, slot = span.first % rows; t < span.number; t++) {
            const float *row = ring + slot * floats + at;
            for (unsigned lane = 0; lane < LANES; lane++)
                sum[lane] += row[lane] * weights[t];
            slot = slot + 1 == rows ? 0 : slot + 1;
        }
        memcpy(to + at, sum, sizeof(sum));
    }
}

/* Four floats for each result: its channels. */
LOOP void loop_horizontal(float *restrict to, const float *restrict line,
                          const struct taps *taps)
{
    const float *weights = taps->weights;
    for (uint32_t i = 0; i < taps->count; i++, weights += (size_t)taps->most * 4) {
        const float *pixel = line + (size_t)(taps->spans[i].first - taps->begin) * 4;
        eight sum = {0};
        for (uint32_t t = 0; t < taps->spans[i].number * 4; t += 8) {
            eight p, w;
            memcpy(&p, pixel + t, sizeof(p));
            memcpy(&w, weights + t, sizeof(w));
            sum += p * w;
        }
        four a = {sum[0], sum[1], sum[2], sum[3]}, b = {sum[4], sum[5], sum[6], sum[7]};
        a += b;
        memcpy(to + 4 * (size_t)i, &a, sizeof(a));
    }
}

LOOP void loop_narrow(uint8_t *restrict to, const float *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float x = from[i] + 0.5f;
        x = x < 0 ? 0 : x;
        to[i] = (uint8_t)(int)(x > 255 ? 255 : x);
    }
}

struct loops {
    void (*widen)(float *to, const uint8_t *from, size_t count);
    void (*vertical)(float *to, const float *ring, size_t floats, uint32_t rows,
                     struct span span, const float *weights);
    void (*horizontal)(float *to, const float *line, const struct taps *taps);
    void (*narrow)(uint8_t *to, const float *from, size_t count);
};

/* NOLINTBEGIN(bugprone-macro-parentheses): an attribute can't be in parentheses */
#define LOOPS(name, target)                                                                    \
    target static void name##_widen(float *to, const uint8_t *from, size_t count)              \
    {                                                                                          \
        loop_widen(to, from, count);                                                           \
    }                                                                                          \
    target static void name##_vertical(float *to, const float *ring, size_t floats,            \
                                       uint32_t rows, struct span span, const float *weights)  \
    {                                                                                          \
        loop_vertical(to, ring, floats, rows, span, weights);                                  \
    }                                                                                          \
    target static void name##_horizontal(float *to, const float *line,                         \
                                         const struct taps *taps)                              \
    {                                                                                          \
        loop_horizontal(to, line, taps);                                                       \
    }                                                                                          \
    target static void name##_narrow(uint8_t *to, const float *from, size_t count)             \
    {                                                                                          \
        loop_narrow(to, from, count);                                                          \
    }                                                                                          \
    static const struct loops name = {name##_widen, name##_vertical, name##_horizontal,        \
                                      name##_narrow};
/* NOLINTEND(bugprone-macro-parentheses) */

LOOPS(loops_any, )
#ifdef __x86_64__
LOOPS(loops_avx2, __attribute__((target("avx2"))))
#endif

static const struct loops *loops_here(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2"))
        return &loops_avx2;
#endif
    return &loops_any;
}

/* ---- rows ---- */

void resample_give(struct resample *r, const uint8_t *pixels)
{
    uint32_t slot = (r->y.begin + r->given++) % r->y.most;
    loops_here()->widen(r->rows + slot * r->line_floats, pixels,
                        (size_t)(r->x.end - r->x.begin) * 4);
}

bool resample_take(struct resample *r)
{
    const struct taps *y = &r->y;
    if (r->made == y->count)
        return false;
    struct span span = y->spans[r->made];
    if (y->begin + r->given < span.first + span.number)
        return false;
    const struct loops *loops = loops_here();
    loops->vertical(r->line, r->rows, r->line_floats, y->most, span,
                    y->weights + (size_t)r->made * y->most);
    loops->horizontal(r->sums, r->line, &r->x);
    loops->narrow(r->row, r->sums, (size_t)r->x.count * 4);
    r->made++;
    return true;
}
