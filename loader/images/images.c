/*
 * The options, the table of decoders, and a picture while it is decoded: which part of it, the
 * resampling of its rows, memory within the budget, and the last step, a row of pixels to its
 * type and layout.
 *
 * Resampling: a pixel's channel is a whole number of 16 bits: its byte times 2^7, after the
 * vertical pass times 2^6, after the horizontal one times 2^5. Weights are parts of 2^14. One
 * instruction multiplies sixteen such numbers and rounds them (bench/loader, row images: the
 * two passes take a third of the time that they took with floats). Where very many pixels make
 * one, these roundings would add up; there the sums have 32 bits.
 *
 * The loops are there twice: for any CPU, and for x86 with AVX2. All make the same sums.
 * Compilers don't find these vectors by themselves, as the loops within them are short.
 */
#include "images.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "convert_round.h"
#include "error.h"
#include "numbers.h"
#include "picture.h"

#define TRIES 10 /* of a random crop */

/* The pixels that one result of a resampled row or column is made of, and their weights. */

#define FILTER_BITS 14
#define FILTER_ONE (1 << FILTER_BITS) /* the sum of all weights of a result */
#define FILTER_IN_BITS 7              /* a byte becomes a value by so many bits more, */
#define FILTER_OUT_BITS 5             /* and after two passes has so many */
#define FILTER_FEW 32u                /* with more, sums have 32 bits */

#define LANES 64u /* a row's values are a multiple of this */
#define MEMORY_MAX (UINT64_C(1) << 30)

#define SIDE_MAX 16384u          /* of the result */
#define IMAGE_ALIGN UINT64_C(64) /* where a sample has several */
#define SOURCE_PIXELS 178956970u /* PIL's limit against decompression bombs */
#define ROOM_MAX (UINT64_C(1) << 30)
#define EACH_LEAST (UINT64_C(4) << 20)   /* of a thread, however little memory there is */
#define SCRATCH_KEPT (UINT64_C(4) << 20) /* from one picture to the next */
#define FILE_ALWAYS (UINT64_C(32) << 20) /* files that are read with any budget */
#define GREY 128

/* ---- cropping ---- */

/* The finaliser of splitmix64: each bit of the result depends on each bit of x. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

#define STEP UINT64_C(0x9e3779b97f4a7c15)

static uint64_t draws_begin(const struct images_place *place)
{
    uint64_t x = mix(place->seed + STEP);
    x = mix(x + place->epoch + STEP);
    return mix(x + place->index + STEP);
}

/* The next number of the stream, in [low, high). */
static double draw(uint64_t *stream, double low, double high)
{
    *stream += STEP;
    return low + (double)(mix(*stream) >> 11) * 0x1p-53 * (high - low);
}

/* A whole number from 0 to `most`. */
static uint32_t draw_to(uint64_t *stream, uint32_t most)
{
    return min_u32((uint32_t)draw(stream, 0, (double)most + 1), most);
}

/* All `count` results from `size` pixels at `from`. */
static struct axis axis_of(uint32_t from, uint32_t size, uint32_t count)
{
    return (struct axis){.start = from,
                         .step = (double)size / count,
                         .low = from,
                         .high = from + size,
                         .count = count};
}

static void crop_to(const struct onepot_images *o, uint32_t x, uint32_t y, uint32_t width,
                    uint32_t height, struct axis *ret_x, struct axis *ret_y)
{
    *ret_x = axis_of(x, width, o->width);
    *ret_y = axis_of(y, height, o->height);
}

/* The largest centred part with a ratio that is allowed. */
static void crop_largest(const struct onepot_images *o, uint32_t width, uint32_t height,
                         struct axis *ret_x, struct axis *ret_y)
{
    double is = (double)width / height;
    uint32_t w = width, h = height;
    if (is < (double)o->ratio[0])
        h = min_u32((uint32_t)lrint(width / (double)o->ratio[0]), height);
    else if (is > (double)o->ratio[1])
        w = min_u32((uint32_t)lrint(height * (double)o->ratio[1]), width);
    w = max_u32(w, 1);
    h = max_u32(h, 1);
    crop_to(o, (width - w) / 2, (height - h) / 2, w, h, ret_x, ret_y);
}

/*
 * As torchvision's RandomResizedCrop.get_params draws: ten tries of an area and a ratio, then
 * the largest centred part whose ratio is allowed. The draws are numbers of a stream that
 * starts at a hash of seed, epoch and index, so that no other sample, thread or rank has a part
 * in them.
 */
static void crop_random(const struct onepot_images *o, const struct images_place *place,
                        uint32_t width, uint32_t height, struct axis *ret_x, struct axis *ret_y)
{
    const double ratio[] = {(double)o->ratio[0], (double)o->ratio[1]};
    uint64_t stream = draws_begin(place);
    bool flip = draw(&stream, 0, 1) < 0.5, found = false;
    double area = (double)width * height;
    for (unsigned i = 0; i < TRIES && !found; i++) {
        double target = area * draw(&stream, (double)o->scale[0], (double)o->scale[1]);
        double is = exp(draw(&stream, log(ratio[0]), log(ratio[1])));
        double w = rint(sqrt(target * is)), h = rint(sqrt(target / is));
        found = w >= 1 && w <= width && h >= 1 && h <= height;
        if (!found)
            continue;
        uint32_t y = draw_to(&stream, height - (uint32_t)h);
        uint32_t x = draw_to(&stream, width - (uint32_t)w);
        crop_to(o, x, y, (uint32_t)w, (uint32_t)h, ret_x, ret_y);
    }
    if (!found)
        crop_largest(o, width, height, ret_x, ret_y);
    ret_x->reversed = flip && !o->no_flip;
}

/*
 * Of `size` pixels, resized in the proportion resize / shorter, the `count` in the middle.
 * Rounds as torchvision's Resize and CenterCrop do.
 */
static struct axis central_axis(uint32_t size, uint32_t shorter, uint32_t resize,
                                uint32_t count)
{
    double resized = floor((double)resize * size / shorter);
    double step = size / resized;
    return (struct axis){.start = rint((resized - count) / 2) * step,
                         .step = step,
                         .high = size,
                         .count = count};
}

static void axis_shrink(struct axis *a, unsigned times)
{
    a->start /= times;
    a->step /= times;
    a->low /= times;
    a->high = (a->high + times - 1) / times;
}

unsigned crop_plan(const struct onepot_images *o, const struct images_place *place,
                   uint32_t width, uint32_t height, bool can_shrink, struct axis *ret_x,
                   struct axis *ret_y)
{
    uint32_t shorter = min_u32(width, height);
    switch (o->crop) {
    case ONEPOT_CROP_RANDOM:
        crop_random(o, place, width, height, ret_x, ret_y);
        break;
    case ONEPOT_CROP_CENTRE:
        *ret_x = central_axis(width, shorter, o->resize, o->width);
        *ret_y = central_axis(height, shorter, o->resize, o->height);
        break;
    default:
        crop_to(o, 0, 0, width, height, ret_x, ret_y);
    }
    double most = (ret_x->step < ret_y->step ? ret_x->step : ret_y->step) /
                  (o->crop == ONEPOT_CROP_RANDOM ? 1 : 3);
    unsigned shrinks = most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
    if (shrinks == 1 || !can_shrink || o->exact || o->interpolation == ONEPOT_NEAREST)
        return 1;
    axis_shrink(ret_x, shrinks);
    axis_shrink(ret_y, shrinks);
    return shrinks;
}

/* ---- filters ---- */

/* A triangle, or Keys' cubic with a = -1/2, as in PIL. */
static double filter_at(enum onepot_interpolation interpolation, double x)
{
    x = fabs(x);
    if (interpolation == ONEPOT_NEAREST)
        return 1;
    if (interpolation != ONEPOT_BICUBIC)
        return x < 1 ? 1 - x : 0;
    if (x < 1)
        return (1.5 * x - 2.5) * x * x + 1;
    return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static double filter_support(const struct axis *a, enum onepot_interpolation interpolation)
{
    double support = interpolation == ONEPOT_BICUBIC ? 2 : 1;
    if (interpolation == ONEPOT_NEAREST)
        return support;
    return a->step > 1 ? support * a->step : support;
}

/* Weights of one result: an even number, so that they are taken two at a time. */
static uint64_t filter_most(const struct axis *a, enum onepot_interpolation interpolation)
{
    uint64_t most = 2 * (uint64_t)ceil(filter_support(a, interpolation)) + 1;
    uint64_t there = a->high - a->low;
    return ((most < there ? most : there) + 1) & ~UINT64_C(1);
}

/* The pixels that take part in a result centred there; at least one. */
static struct filter_span filter_range(const struct axis *a, double centre, double support)
{
    double from = floor(centre - support + 0.5), to = floor(centre + support + 0.5);
    uint32_t low = from > a->low ? (uint32_t)from : a->low;
    low = low < a->high - 1 ? low : a->high - 1;
    uint32_t high = to < a->high ? (uint32_t)(to > 0 ? to : 0) : a->high;
    struct filter_span span = {low, high > low ? high - low : 1};
    return span;
}

static int32_t filter_rounded(double x)
{
    return (int32_t)(x + 0.5 + 4 * FILTER_ONE) - 4 * FILTER_ONE;
}

/*
 * The pixels of result i, and their weights in `weights`, of which there are `most`: zeros
 * beyond the number of pixels. They are rounded so that their sums from the first one on are:
 * all together are FILTER_ONE, and where each is less than one part some of them stand for all.
 */
static struct filter_span filter_one(const struct axis *a, uint32_t i,
                                     enum onepot_interpolation interpolation, uint64_t most,
                                     int16_t *weights)
{
    double support = filter_support(a, interpolation), centre = a->start + (i + 0.5) * a->step;
    double narrowed = a->step > 1 ? 1 / a->step : 1, sum = 0, part = 0;
    struct filter_span span = filter_range(a, centre, support);
    int32_t before = 0;
    if (interpolation == ONEPOT_NEAREST) { /* as PIL: the pixel in which the centre lies */
        span = filter_range(a, floor(centre) + 0.5, 0.5);
        span.number = 1;
    }
    span.number = span.number < most ? span.number : (uint32_t)most;
    for (uint32_t n = 0; n < span.number; n++)
        sum += filter_at(interpolation, (span.first + n + 0.5 - centre) * narrowed);
    double scale = sum != 0 ? FILTER_ONE / sum : 0;
    span.number = sum != 0 ? span.number : 1;
    for (uint32_t n = 0; n < span.number; n++) {
        part += filter_at(interpolation, (span.first + n + 0.5 - centre) * narrowed) * scale;
        int32_t now = n + 1 < span.number ? filter_rounded(part) : FILTER_ONE;
        weights[n] = (int16_t)(now - before);
        before = now;
    }
    for (uint32_t n = span.number; n < most; n++)
        weights[n] = 0;
    return span;
}

/* In memory for count spans and count * most weights. Returns the rest of it. */
static void *filter_make(struct filter *t, const struct axis *a,
                         enum onepot_interpolation interpolation, void *memory)
{
    uint64_t most = filter_most(a, interpolation);
    struct filter_span *spans = memory;
    int16_t *weights = (int16_t *)(spans + a->count);
    *t = (struct filter){.count = a->count,
                         .most = (uint32_t)most,
                         .begin = UINT32_MAX,
                         .spans = spans,
                         .weights = weights};
    for (uint32_t i = 0; i < a->count; i++) {
        uint32_t to = a->reversed ? a->count - 1 - i : i;
        spans[to] = filter_one(a, i, interpolation, most, weights + to * most);
        t->begin = min_u32(t->begin, spans[to].first);
        t->end = max_u32(t->end, spans[to].first + spans[to].number);
        t->widest = max_u32(t->widest, (spans[to].number + 1) & ~1u);
    }
    return weights + a->count * most;
}

/* Values of a row; beyond its pixels there are zeros, for weights that are not needed. */
static uint64_t line_values(uint64_t pixels, uint64_t most)
{
    return ((pixels + most) * 4 + LANES - 1) / LANES * LANES;
}

static uint64_t filter_bytes(uint64_t count, uint64_t most)
{
    return count * (most * sizeof(int16_t) + sizeof(struct filter_span));
}

static uint64_t fours(uint64_t count)
{
    return (count + 3) & ~UINT64_C(3);
}

size_t resample_bytes(const struct axis *x, const struct axis *y,
                      enum onepot_interpolation interpolation)
{
    uint64_t most_x = filter_most(x, interpolation), most_y = filter_most(y, interpolation);
    uint64_t bytes = (most_y + 1) * line_values(x->high - x->low, most_x) * sizeof(int16_t) +
                     filter_bytes(x->count, most_x) +
                     filter_bytes(fours(x->count), 4 * most_x) +
                     filter_bytes(y->count, most_y) + fours(x->count) * 4 + LANES;
    return bytes <= MEMORY_MAX ? bytes : 0;
}

/*
 * Arrange the filter of x for four results at a time, of which some may be one too many.
 * Returns the rest of the memory.
 */
static void *filter_arrange(struct filter *t, void *memory)
{
    uint32_t count = (uint32_t)fours(t->count);
    struct filter_span *spans = memory;
    int16_t *weights = (int16_t *)(spans + count), *to = weights;
    for (uint32_t i = 0; i < count; i++)
        spans[i] = t->spans[min_u32(i, t->count - 1)];
    for (uint32_t i = 0; i < count; i += 2)
        for (uint32_t at = 0; at < t->widest; at += 2)
            for (uint32_t k = 0; k < 4; k++, to += 4) {
                uint32_t from = min_u32(i + k / 2, t->count - 1);
                int16_t weight = t->weights[(size_t)from * t->most + at + k % 2];
                to[0] = to[1] = to[2] = to[3] = weight;
            }
    t->spans = spans;
    t->weights = weights;
    return to;
}

static const struct resample_loops *loops_for(uint32_t most);

void resample_begin(struct resample *r, const struct axis *x, const struct axis *y,
                    enum onepot_interpolation interpolation, void *memory)
{
    *r = (struct resample){0};
    void *left = filter_make(&r->x, x, interpolation, memory);
    left = filter_arrange(&r->x, left);
    left = filter_make(&r->y, y, interpolation, left);
    r->loops = loops_for(max_u32(r->x.widest, r->y.widest));
    r->row = left;
    r->rows = (int16_t *)(void *)(((uintptr_t)(r->row + fours(x->count) * 4) + LANES - 1) &
                                  ~(uintptr_t)(LANES - 1));
    r->line_values = line_values(r->x.end - r->x.begin, r->x.most);
    r->line = r->rows + r->y.most * r->line_values;
    size_t used = (size_t)(r->x.end - r->x.begin) * 4;
    for (uint32_t i = 0; i < r->y.most; i++)
        memset(r->rows + i * r->line_values + used, 0,
               (r->line_values - used) * sizeof(*r->rows));
}

/* ---- loops ---- */

struct resample_loops {
    /* Sum the rows of a span, in a ring of `rows` rows. */
    void (*vertical)(int16_t *to, const int16_t *ring, size_t values, uint32_t rows,
                     struct filter_span span, const int16_t *weights);
    void (*horizontal)(uint8_t *to, const int16_t *line, const struct filter *filter);
    void (*widen)(int16_t *to, const uint8_t *from, size_t count);
};

#define LOOP static inline __attribute__((always_inline))

LOOP void loop_widen(int16_t *restrict to, const uint8_t *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = (int16_t)(from[i] << FILTER_IN_BITS);
}

typedef int16_t eight __attribute__((vector_size(16)));

LOOP eight eight_at(const int16_t *from)
{
    eight values;
    memcpy(&values, from, sizeof(values));
    return values;
}

/* Values times weights, rounded, with one bit less after the point. */
LOOP eight weighed(eight values, eight weights)
{
#if defined(__x86_64__)
    __m128i high = _mm_mulhi_epi16((__m128i)values, (__m128i)weights);
    __m128i low = _mm_mullo_epi16((__m128i)values, (__m128i)weights);
    __m128i up = _mm_avg_epu16(_mm_srli_epi16(low, FILTER_BITS), _mm_setzero_si128());
    return (eight)_mm_add_epi16(_mm_add_epi16(high, high), up);
#elif defined(__aarch64__)
    return (eight)vqrdmulhq_s16((int16x8_t)values, (int16x8_t)weights);
#else
    for (unsigned lane = 0; lane < 8; lane++)
        values[lane] =
            (int16_t)((((int32_t)values[lane] * weights[lane] >> FILTER_BITS) + 1) >> 1);
    return values;
#endif
}

LOOP uint8_t narrowed(int32_t value)
{
    value = (value + (1 << (FILTER_OUT_BITS - 1))) >> FILTER_OUT_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void resample_any_widen(int16_t *to, const uint8_t *from, size_t count)
{
    loop_widen(to, from, count);
}

/* The row of this pixel of the source. */
LOOP const int16_t *ring_row(const int16_t *ring, size_t values, uint32_t rows, uint32_t pixel)
{
    return ring + pixel % rows * values;
}

static void resample_any_vertical(int16_t *to, const int16_t *ring, size_t values,
                                  uint32_t rows, struct filter_span span,
                                  const int16_t *weights)
{
    for (size_t at = 0; at < values; at += 32) {
        eight sum[4] = {{0}};
        for (uint32_t t = 0; t < span.number; t++) {
            const int16_t *row = ring_row(ring, values, rows, span.first + t) + at;
            eight by = (eight){0} + weights[t];
            for (unsigned k = 0; k < 4; k++)
                sum[k] += weighed(eight_at(row + 8 * k), by);
        }
        memcpy(to + at, sum, sizeof(sum));
    }
}

static void resample_any_horizontal(uint8_t *to, const int16_t *line,
                                    const struct filter *filter)
{
    for (uint32_t i = 0; i < filter->count; i++) {
        const int16_t *pixel = line + (size_t)(filter->spans[i].first - filter->begin) * 4;
        const int16_t *weights =
            filter->weights + (size_t)(i / 2) * filter->widest * 8 + i % 2 * 8;
        eight sum = {0};
        for (uint32_t t = 0; t < filter->widest; t += 2, pixel += 8, weights += 16)
            sum += weighed(eight_at(pixel), eight_at(weights));
        for (unsigned c = 0; c < 4; c++)
            to[4 * (size_t)i + c] = narrowed(sum[c] + sum[4 + c]);
    }
}

static const struct resample_loops loops_any = {resample_any_vertical, resample_any_horizontal,
                                                resample_any_widen};

/* ---- many weights ---- */

static int16_t resample_many_rounded(int32_t sum)
{
    return (int16_t)((sum + (1 << FILTER_BITS)) >> (FILTER_BITS + 1));
}

static void resample_many_vertical(int16_t *restrict to, const int16_t *restrict ring,
                                   size_t values, uint32_t rows, struct filter_span span,
                                   const int16_t *restrict weights)
{
    for (size_t at = 0; at < values; at += LANES) {
        int32_t sum[LANES] = {0};
        for (uint32_t t = 0; t < span.number; t++) {
            const int16_t *row = ring_row(ring, values, rows, span.first + t) + at;
            for (unsigned lane = 0; lane < LANES; lane++)
                sum[lane] += row[lane] * weights[t];
        }
        for (unsigned lane = 0; lane < LANES; lane++)
            to[at + lane] = resample_many_rounded(sum[lane]);
    }
}

static void resample_many_horizontal(uint8_t *to, const int16_t *line,
                                     const struct filter *filter)
{
    for (uint32_t i = 0; i < filter->count; i++) {
        const int16_t *pixel = line + (size_t)(filter->spans[i].first - filter->begin) * 4;
        const int16_t *weights =
            filter->weights + (size_t)(i / 2) * filter->widest * 8 + i % 2 * 8;
        int32_t sum[8] = {0};
        for (uint32_t t = 0; t < filter->widest; t += 2, pixel += 8, weights += 16)
            for (unsigned lane = 0; lane < 8; lane++)
                sum[lane] += pixel[lane] * weights[lane];
        for (unsigned c = 0; c < 4; c++)
            to[4 * (size_t)i + c] = narrowed(resample_many_rounded(sum[c] + sum[4 + c]));
    }
}

static const struct resample_loops loops_many = {resample_many_vertical,
                                                 resample_many_horizontal, resample_any_widen};

/* ---- AVX2 ---- */

#ifdef __x86_64__

#define AVX2 __attribute__((target("avx2")))

AVX2 static void avx2_widen(int16_t *to, const uint8_t *from, size_t count)
{
    loop_widen(to, from, count);
}

/* A quarter of LANES of one row, weighed. */
AVX2 LOOP __m256i avx2_weighed(const int16_t *row, unsigned quarter, __m256i by)
{
    const int16_t *values = row + quarter * 16;
    return _mm256_mulhrs_epi16(_mm256_load_si256((const __m256i *)(const void *)values), by);
}

AVX2 static void avx2_vertical(int16_t *to, const int16_t *ring, size_t values, uint32_t rows,
                               struct filter_span span, const int16_t *weights)
{
    const int16_t *from[FILTER_FEW];
    for (uint32_t t = 0; t < span.number; t++)
        from[t] = ring_row(ring, values, rows, span.first + t);
    for (size_t at = 0; at < values; at += LANES) {
        __m256i sum[4];
        __m256i by = _mm256_set1_epi16(weights[0]);
        for (unsigned q = 0; q < 4; q++)
            sum[q] = avx2_weighed(from[0] + at, q, by);
        for (uint32_t t = 1; t < span.number; t++) {
            by = _mm256_set1_epi16(weights[t]);
            for (unsigned q = 0; q < 4; q++)
                sum[q] = _mm256_add_epi16(sum[q], avx2_weighed(from[t] + at, q, by));
        }
        for (unsigned q = 0; q < 4; q++)
            _mm256_store_si256((__m256i *)(void *)(to + at + q * 16), sum[q]);
    }
}

/* Two pixels at a time of two results: each half of the result is a sum of four channels. */
AVX2 LOOP __m256i avx2_two(const int16_t *one, const int16_t *other, const int16_t *weights,
                           uint32_t number)
{
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t t = 0; t < number; t += 2, one += 8, other += 8, weights += 16) {
        __m256i pixels = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)one)),
            _mm_loadu_si128((const __m128i *)(const void *)other), 1);
        __m256i by = _mm256_loadu_si256((const __m256i *)(const void *)weights);
        sum = _mm256_add_epi16(sum, _mm256_mulhrs_epi16(pixels, by));
    }
    return sum;
}

AVX2 LOOP void avx2_results(uint8_t *restrict to, const int16_t *restrict line,
                            const struct filter *restrict filter, uint32_t number)
{
    const int16_t *restrict weights = filter->weights;
    const struct filter_span *restrict s = filter->spans;
    const __m256i half = _mm256_set1_epi16(1 << (FILTER_OUT_BITS - 1));
    const size_t step = (size_t)number * 8;
    line -= (size_t)filter->begin * 4;
    for (uint32_t left = (filter->count + 3) / 4; left; left--, s += 4, to += 16) {
        const int16_t *from[4];
        for (unsigned k = 0; k < 4; k++)
            from[k] = line + (size_t)s[k].first * 4;
        __m256i a = avx2_two(from[0], from[1], weights, number);
        __m256i b = avx2_two(from[2], from[3], weights + step, number);
        /* results 0 and 2 in the lower half, 1 and 3 in the upper one */
        __m256i sum =
            _mm256_add_epi16(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
        sum = _mm256_srai_epi16(_mm256_add_epi16(sum, half), FILTER_OUT_BITS);
        __m256i bytes = _mm256_packus_epi16(sum, sum);
        _mm_storeu_si128((__m128i *)(void *)to,
                         _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes),
                                            _mm256_extracti128_si256(bytes, 1)));
        weights += 2 * step;
    }
}

/* Loops of a known length become straight code. */
AVX2 static void avx2_horizontal(uint8_t *to, const int16_t *line, const struct filter *filter)
{
    if (filter->widest == 2)
        avx2_results(to, line, filter, 2);
    else if (filter->widest == 4)
        avx2_results(to, line, filter, 4);
    else if (filter->widest == 6)
        avx2_results(to, line, filter, 6);
    else
        avx2_results(to, line, filter, filter->widest);
}

static const struct resample_loops loops_avx2 = {avx2_vertical, avx2_horizontal, avx2_widen};
#endif

static const struct resample_loops *loops_for(uint32_t most)
{
    if (most > FILTER_FEW)
        return &loops_many;
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
    r->loops->widen(r->rows + slot * r->line_values, pixels,
                    (size_t)(r->x.end - r->x.begin) * 4);
}

bool resample_take(struct resample *r)
{
    const struct filter *y = &r->y;
    if (r->made == y->count)
        return false;
    struct filter_span span = y->spans[r->made];
    if (y->begin + r->given < span.first + span.number)
        return false;
    r->loops->vertical(r->line, r->rows, r->line_values, y->most, span,
                       y->weights + (size_t)r->made * y->most);
    r->loops->horizontal(r->row, r->line, &r->x);
    r->made++;
    return true;
}

/* ---- pixels ---- */

/* A row of bytes to three channels, `step` apart, whose values are `stride` apart. */
static void write_bytes(const uint8_t *restrict from, size_t count, uint8_t *restrict to,
                        size_t step, size_t stride)
{
    if (stride == 1) {
        for (unsigned c = 0; c < 3; c++)
            for (size_t i = 0; i < count; i++)
                to[c * step + i] = from[4 * i + c];
        return;
    }
    for (size_t i = 0; i < count; i++)
        memcpy(to + stride * i, from + 4 * i, 3);
}

static void write_values(const struct images_plan *plan, const uint8_t *from, size_t count,
                         uint8_t *to, size_t step, size_t stride)
{
    for (unsigned c = 0; c < 3; c++) {
        const union images_value *values = plan->values[c];
        float *single = (float *)(void *)to + c * step;
        uint16_t *half = (uint16_t *)(void *)to + c * step;
        if (plan->o.type == ONEPOT_FLOAT)
            for (size_t i = 0; i < count; i++)
                single[i * stride] = values[from[4 * i + c]].single;
        else
            for (size_t i = 0; i < count; i++)
                half[i * stride] = values[from[4 * i + c]].half;
    }
}

/* `count` pixels to their places, from pixel `at` of the image on. */
static void write_pixels(const struct images_plan *plan, const uint8_t *from, size_t count,
                         void *image, size_t at)
{
    const struct onepot_images *o = &plan->o;
    size_t step = o->channels_last ? 1 : (size_t)o->width * o->height;
    size_t stride = o->channels_last ? 3 : 1;
    uint8_t *to = (uint8_t *)image + at * stride * picture_item_bytes(o);
    if (o->type)
        write_values(plan, from, count, to, step, stride);
    else
        write_bytes(from, count, to, step, stride);
}

void images_grey(const struct images_plan *plan, void *to)
{
    const struct onepot_images *o = &plan->o;
    uint8_t row[4 * 64];
    memset(row, GREY, sizeof(row));
    size_t pixels = (size_t)o->height * o->width;
    for (size_t at = 0; at < pixels; at += 64)
        write_pixels(plan, row, pixels - at < 64 ? pixels - at : 64, to, at);
}

/* ---- a picture ---- */

int picture_fail(struct picture *p, int err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(p->why, IMAGES_WHY_MAX, format, args);
    va_end(args);
    return err;
}

void images_budget_init(struct images_budget *budget, uint64_t bytes, uint32_t threads)
{
    pthread_mutex_init(&budget->large, NULL);
    budget->each = max_u64(bytes / 2 / max_u64(threads, 1), EACH_LEAST);
    budget->most = max_u64(bytes / 2, budget->each);
}

int images_check_file(const struct images_budget *budget, uint64_t len, char *why)
{
    if (!budget || len <= max_u64(budget->each, FILE_ALWAYS))
        return 0;
    snprintf(why, IMAGES_WHY_MAX,
             "its file has %" PRIu64 " MiB, and %" PRIu64 " MiB of memory are for it; "
             "give the loader more memory",
             (len >> 20) + 1, max_u64(budget->each, FILE_ALWAYS) >> 20);
    return -EILSEQ;
}

/* The picture takes so many bytes: is that within the budget? Waits for its turn. */
static int budget_take(struct picture *p, uint64_t bytes)
{
    struct images_budget *budget = p->scratch->budget;
    if (!budget || bytes <= budget->each)
        return 0;
    if (bytes > budget->most)
        return picture_fail(p, -EILSEQ,
                            "decoding it takes %" PRIu64 " MiB of memory, and %" PRIu64
                            " MiB are for it; give the loader more memory",
                            (bytes >> 20) + 1, budget->most >> 20);
    pthread_mutex_lock(&budget->large);
    p->is_large = true;
    return 0;
}

static void scratch_free(struct images_scratch *scratch)
{
    free(scratch->memory);
    scratch->memory = NULL;
    scratch->size = 0;
}

/* Gives memory that grew for this picture back, before the next large one may begin. */
static void picture_end(struct picture *p)
{
    if (p->scratch->size > SCRATCH_KEPT)
        scratch_free(p->scratch);
    if (p->is_large)
        pthread_mutex_unlock(&p->scratch->budget->large);
}

static int scratch_take(struct picture *p, uint64_t bytes)
{
    struct images_scratch *s = p->scratch;
    if (bytes <= s->size)
        return 0;
    scratch_free(s);
    uint64_t generous = bytes <= SCRATCH_KEPT / 2 ? bytes + bytes / 4 : bytes;
    s->memory = malloc(generous);
    if (!s->memory)
        return picture_fail(p, -ENOMEM, "no memory to decode it");
    s->size = generous;
    return 0;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + PICTURE_SLACK - 1) / PICTURE_SLACK * PICTURE_SLACK;
}

int picture_begin(struct picture *p, uint32_t width, uint32_t height, bool can_shrink,
                  uint64_t rooms, uint64_t own_bytes)
{
    const struct onepot_images *o = &p->plan->o;
    struct axis to_x, to_y;
    if (width < 1 || height < 1 || width > PICTURE_SIDE_MAX || height > PICTURE_SIDE_MAX ||
        (uint64_t)width * height > SOURCE_PIXELS)
        return picture_fail(p, -EILSEQ, "it has %u by %u pixels, and at most %u are decoded",
                            width, height, SOURCE_PIXELS);
    p->shrinks = crop_plan(o, p->place, width, height, can_shrink, &to_x, &to_y);
    width = (width + p->shrinks - 1) / p->shrinks;
    uint64_t room = rounded(rooms * rounded((uint64_t)width * 4) + PICTURE_SLACK);
    uint64_t bytes = resample_bytes(&to_x, &to_y, o->interpolation);
    if (!bytes || room > ROOM_MAX || own_bytes > ROOM_MAX)
        return picture_fail(p, -EILSEQ, "it has too many pixels for one pixel of the result");
    int r = budget_take(p, room + bytes + own_bytes);
    if (r == 0)
        r = scratch_take(p, room + bytes);
    if (r < 0)
        return r;
    p->room = p->scratch->memory;
    resample_begin(&p->resample, &to_x, &to_y, o->interpolation, p->room + room);
    const struct filter *x = &p->resample.x, *y = &p->resample.y;
    p->x = x->begin;
    p->y = y->begin;
    p->width = x->end - x->begin;
    p->height = y->end - y->begin;
    return 0;
}

void picture_row(struct picture *p, const uint8_t *pixels)
{
    struct resample *r = &p->resample;
    resample_give(r, pixels);
    while (resample_take(r))
        write_pixels(p->plan, r->row, r->x.count, p->to, (size_t)(r->made - 1) * r->x.count);
}

/* ---- decoders ---- */

/* The last one takes what no other knows. */
static const struct picture_decoder *const decoders[] = {&decoder_jpeg, &decoder_png,
                                                         &decoder_npy, &decoder_raw};

/* ---- options ---- */

static void plan_defaults(struct onepot_images *o)
{
    o->height = o->height ? o->height : 224;
    o->width = o->width ? o->width : 224;
    uint32_t longer = o->height > o->width ? o->height : o->width;
    o->resize = o->resize ? o->resize : (uint32_t)((longer * UINT64_C(256) + 112) / 224);
    if (o->scale[0] == 0 && o->scale[1] == 0) {
        o->scale[0] = 0.08f;
        o->scale[1] = 1;
    }
    if (o->ratio[0] == 0 && o->ratio[1] == 0) {
        o->ratio[0] = 3.0f / 4;
        o->ratio[1] = 4.0f / 3;
    }
    bool has_values = o->std[0] != 0 || o->std[1] != 0 || o->std[2] != 0;
    for (unsigned c = 0; c < 3 && !has_values; c++) {
        o->mean[c] = 0;
        o->std[c] = 1;
    }
}

static bool is_range(const float range[2], float most)
{
    return range[0] > 0 && range[0] <= range[1] && range[1] <= most;
}

static int plan_check(const struct onepot_images *o, struct onepot_error *error)
{
    uint32_t longer = o->height > o->width ? o->height : o->width;
    if (longer > SIDE_MAX)
        return error_set(error, -EINVAL, "images of %u by %u pixels", o->height, o->width);
    if (o->crop > ONEPOT_CROP_NONE || o->interpolation > ONEPOT_NEAREST ||
        o->type > ONEPOT_BFLOAT16 || o->on_error > ONEPOT_ERROR_GREY)
        return error_set(error, -EINVAL, "images: no such crop, interpolation or type");
    if (o->crop == ONEPOT_CROP_CENTRE && (o->resize < longer || o->resize > PICTURE_SIDE_MAX))
        return error_set(error, -EINVAL, "images: resize is %u, and %u pixels are cut out",
                         o->resize, longer);
    if (o->on_error == ONEPOT_ERROR_GREY && o->interpolation == ONEPOT_NEAREST)
        return error_set(error, -EINVAL, "images: grey is no value of a mask");
    if (!is_range(o->scale, 1))
        return error_set(error, -EINVAL, "images: scale is a range in (0, 1]");
    if (!is_range(o->ratio, 1e6f))
        return error_set(error, -EINVAL, "images: ratio is a range above 0");
    for (unsigned c = 0; c < 3; c++)
        if (!(o->std[c] > 0 || o->std[c] < 0) || o->mean[c] - o->mean[c] != 0)
            return error_set(error, -EINVAL, "images: no such mean or std");
    if (!o->type && (o->std[0] != 1 || o->std[1] != 1 || o->std[2] != 1 || o->mean[0] != 0 ||
                     o->mean[1] != 0 || o->mean[2] != 0))
        return error_set(error, -EINVAL,
                         "images: mean and std are for float types, not for bytes");
    if (o->raw_channels > 4 || o->raw_channels == 2 || o->raw_height > PICTURE_SIDE_MAX ||
        o->raw_width > PICTURE_SIDE_MAX)
        return error_set(error, -EINVAL, "images: raw pixels of no such shape");
    return 0;
}

static void plan_values(struct images_plan *plan)
{
    const struct onepot_images *o = &plan->o;
    for (unsigned c = 0; c < 3; c++)
        for (unsigned byte = 0; byte < 256; byte++) {
            float x = convert_scale((uint8_t)byte, images_mean(o, c), images_scale(o, c));
            if (o->type == ONEPOT_HALF)
                plan->values[c][byte].half = convert_half(x);
            else if (o->type == ONEPOT_BFLOAT16)
                plan->values[c][byte].half = convert_bfloat16(x);
            else
                plan->values[c][byte].single = x;
        }
}

int images_plan(const struct onepot_images *given, struct onepot_error *error,
                struct images_plan *ret_plan)
{
    struct images_plan plan = {0};
    int r = options_read(&plan.o, sizeof(plan.o), given, error);
    if (r < 0)
        return r;
    plan_defaults(&plan.o);
    r = plan_check(&plan.o, error);
    if (r < 0)
        return r;
    if (plan.o.part && strlen(plan.o.part) >= IMAGES_PART_MAX)
        return error_set(error, -EINVAL, "images: the name of a part is too long");
    strcpy(plan.part, plan.o.part ? plan.o.part : "");
    plan.o.part = NULL;
    plan.o.next = NULL;
    plan.bytes = (uint64_t)plan.o.height * plan.o.width * 3 * picture_item_bytes(&plan.o);
    plan.all_bytes = plan.bytes;
    plan_values(&plan);
    *ret_plan = plan;
    return 0;
}

int images_plan_all(const struct onepot_images *given, struct onepot_error *error,
                    struct images_plan **ret_plans)
{
    struct images_plan *plans = calloc(ONEPOT_IMAGES_MAX, sizeof(*plans));
    uint64_t at = 0;
    int r = plans ? 0 : error_set(error, -ENOMEM, "no memory for images");
    for (size_t i = 0; r == 0 && given; i++) {
        struct onepot_images o = {0};
        if (i == ONEPOT_IMAGES_MAX)
            r = error_set(error, -EINVAL, "more than %u images of a sample", ONEPOT_IMAGES_MAX);
        if (r == 0)
            r = options_read(&o, sizeof(o), given, error);
        if (r == 0)
            r = images_plan(&o, error, &plans[i]);
        if (r == 0 && o.on_error != plans[0].o.on_error)
            r = error_set(error, -EINVAL, "images of one sample have one on_error");
        if (r < 0)
            break;
        if (i > 0) {
            plans[i].at = at = (at + IMAGE_ALIGN - 1) & ~(IMAGE_ALIGN - 1);
            plans[i - 1].next = &plans[i];
        }
        at += plans[i].bytes;
        given = o.next;
    }
    if (r < 0) {
        free(plans);
        return r;
    }
    plans->all_bytes = plans->next ? (at + IMAGE_ALIGN - 1) & ~(IMAGE_ALIGN - 1) : at;
    *ret_plans = plans;
    return 0;
}

int onepot_images_bytes(const struct onepot_images *images, struct onepot_error *error,
                        uint64_t *ret_bytes)
{
    struct images_plan *plans;
    int r = images_plan_all(images, error, &plans);
    if (r < 0)
        return r;
    *ret_bytes = plans->all_bytes;
    free(plans);
    return 0;
}

/* ---- decoding ---- */

bool images_knows(const uint8_t *bytes, size_t len)
{
    for (const struct picture_decoder *const *d = decoders; (*d)->knows; d++)
        if ((*d)->knows(bytes, len))
            return true;
    return false;
}

int images_decode(const struct images_plan *plan, struct images_scratch *scratch,
                  const struct images_place *place, const uint8_t *bytes, size_t len, void *to,
                  char *why)
{
    struct picture p = {.plan = plan,
                        .place = place,
                        .bytes = bytes,
                        .len = len,
                        .why = why,
                        .to = to,
                        .scratch = scratch};
    const struct picture_decoder *const *d = decoders;
    while ((*d)->knows && !(*d)->knows(bytes, len))
        d++;
    int r = (*d)->decode(&p);
    picture_end(&p);
    return r;
}
