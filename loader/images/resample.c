/*
 * A pixel's channel is a whole number of 16 bits: its byte times 2^7, after the vertical pass
 * times 2^6, after the horizontal one times 2^5. Weights are parts of 2^14. One instruction
 * multiplies sixteen such numbers and rounds them (bench/loader, row images: the two passes
 * take a third of the time that they took with floats). Where very many pixels make one, these
 * roundings would add up; there the sums have 32 bits.
 *
 * The loops are there twice: for any CPU, and for x86 with AVX2. All make the same sums.
 * Compilers don't find these vectors by themselves, as the loops within them are short.
 */
#include "crop.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "numbers.h"

#define LANES 64u /* a row's values are a multiple of this */
#define MEMORY_MAX (UINT64_C(1) << 30)

/* ---- weights ---- */

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

/* ---- memory ---- */

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

static void any_widen(int16_t *to, const uint8_t *from, size_t count)
{
    loop_widen(to, from, count);
}

/* The row of this pixel of the source. */
LOOP const int16_t *ring_row(const int16_t *ring, size_t values, uint32_t rows, uint32_t pixel)
{
    return ring + pixel % rows * values;
}

static void any_vertical(int16_t *to, const int16_t *ring, size_t values, uint32_t rows,
                         struct filter_span span, const int16_t *weights)
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

static void any_horizontal(uint8_t *to, const int16_t *line, const struct filter *filter)
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

static const struct resample_loops loops_any = {any_vertical, any_horizontal, any_widen};

/* ---- many weights ---- */

static int16_t many_rounded(int32_t sum)
{
    return (int16_t)((sum + (1 << FILTER_BITS)) >> (FILTER_BITS + 1));
}

static void many_vertical(int16_t *restrict to, const int16_t *restrict ring, size_t values,
                          uint32_t rows, struct filter_span span,
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
            to[at + lane] = many_rounded(sum[lane]);
    }
}

static void many_horizontal(uint8_t *to, const int16_t *line, const struct filter *filter)
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
            to[4 * (size_t)i + c] = narrowed(many_rounded(sum[c] + sum[4 + c]));
    }
}

static const struct resample_loops loops_many = {many_vertical, many_horizontal, any_widen};

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
