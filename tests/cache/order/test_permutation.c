/*
 * Permutations against known ones of torch, and against the formulas written down plainly.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "permutation.h"
#include "suite.h"

static void expect(uint64_t n, uint64_t seed, const uint64_t *golden, unsigned count)
{
    struct permutation *p;
    ck_assert_int_eq(permutation_new(n, seed, NULL, &p), 0);
    for (unsigned i = 0; i < count; i++)
        ck_assert_uint_eq(permutation_at(p, i), golden[i]);
    permutation_free(p);
}

START_TEST(ten_elements_are_in_torchs_order)
{
    expect(10, 0, (uint64_t[]){4, 1, 7, 5, 3, 9, 0, 8, 6, 2}, 10);
    expect(10, 42, (uint64_t[]){2, 6, 1, 8, 4, 5, 0, 9, 3, 7}, 10);
}
END_TEST

START_TEST(only_the_low_half_of_a_seed_counts)
{
    expect(10, (UINT64_C(7) << 32) + 42, (uint64_t[]){2, 6, 1, 8, 4, 5, 0, 9, 3, 7}, 10);
}
END_TEST

START_TEST(the_front_is_that_of_the_whole)
{
    const uint64_t sizes[] = {0, 1, 2, 10, 1000, 50000};
    for (unsigned s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        for (uint64_t seed = 0; seed < 20; seed++) {
            struct permutation *p;
            uint32_t count = (uint32_t)(seed % 2 ? sizes[s] : sizes[s] / 3);
            uint32_t *front = malloc((count + 1) * sizeof(*front));
            ck_assert_int_eq(permutation_new(sizes[s], seed, NULL, &p), 0);
            ck_assert_int_eq(permutation_front(sizes[s], seed, count, front), 0);
            for (uint32_t i = 0; i < count; i++)
                ck_assert_uint_eq(front[i], permutation_at(p, i));
            permutation_free(p);
            free(front);
        }
    }
    uint32_t one;
    ck_assert_int_eq(permutation_front(0, 1, 1, &one), -EINVAL);
    ck_assert_int_eq(permutation_front(PERMUTATION_NARROW_MAX, 1, 1, &one), -EINVAL);
    ck_assert_int_eq(permutation_front(PERMUTATION_NARROW_MAX - 1, 1, 1, &one), 0);
}
END_TEST

START_TEST(none_and_one)
{
    expect(0, 5, NULL, 0);
    expect(1, 5, (uint64_t[]){0}, 1);
}
END_TEST

/* The generator as its authors describe it, one number at a time. */
struct plain {
    uint32_t s[624];
    int at;
};

static void plain_seed(struct plain *g, uint32_t seed)
{
    g->s[0] = seed;
    for (uint32_t j = 1; j < 624; j++)
        g->s[j] = 1812433253u * (g->s[j - 1] ^ (g->s[j - 1] >> 30)) + j;
    g->at = 0;
}

static uint32_t plain_next(struct plain *g)
{
    int i = g->at, next = (i + 1) % 624;
    uint32_t y = (g->s[i] & 0x80000000u) | (g->s[next] & 0x7fffffffu);
    g->s[i] = g->s[(i + 397) % 624] ^ (y >> 1) ^ (y % 2 ? 0x9908b0dfu : 0);
    y = g->s[i];
    g->at = next;
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

static void plain_permutation(uint64_t *a, uint64_t n, uint32_t seed, bool draw_64_bits)
{
    struct plain g;
    plain_seed(&g, seed);
    for (uint64_t i = 0; i < n; i++)
        a[i] = i;
    for (uint64_t i = 0; !draw_64_bits && i + 1 < n; i++) {
        uint64_t z = plain_next(&g) % (n - i), kept = a[i];
        a[i] = a[i + z];
        a[i + z] = kept;
    }
    for (uint64_t i = 0; draw_64_bits && i < n; i++) {
        uint64_t high = plain_next(&g), z = (high << 32 | plain_next(&g)) % (i + 1);
        a[i] = a[z];
        a[z] = i;
    }
}

START_TEST(both_ways_of_drawing_follow_their_formula)
{
    static const uint64_t sizes[] = {0, 1, 2, 3, 207, 208, 209, 623, 624, 625, 4999, 100003};
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t n = sizes[i], *plain = calloc(n + 1, sizeof(*plain));
        for (uint32_t seed = 0; seed < 3; seed++) {
            struct permutation *p;
            plain_permutation(plain, n, seed, _i);
            ck_assert_int_eq(permutation_new_as(n, seed, _i, NULL, &p), 0);
            for (uint64_t j = 0; j < n; j++)
                ck_assert_uint_eq(permutation_at(p, j), plain[j]);
            permutation_free(p);
        }
        free(plain);
    }
}
END_TEST

START_TEST(taking_every_kth_element_wraps_around)
{
    struct permutation *all, *some;
    ck_assert_int_eq(permutation_new(11, 3, NULL, &all), 0);
    for (uint64_t step = 1; step < 30; step++) {
        ck_assert_int_eq(permutation_new(11, 3, NULL, &some), 0);
        ck_assert_int_eq(permutation_take(some, 13, step, 25, NULL), 0);
        for (uint64_t i = 0; i < 25; i++)
            ck_assert_uint_eq(permutation_at(some, i),
                              permutation_at(all, (13 + i * step) % 11));
        permutation_free(some);
    }
    permutation_free(all);
}
END_TEST

/* Different classes among 256 elements that follow one another, of 100 sorted classes. */
static double mean_classes(const struct permutation *p, uint64_t n)
{
    uint64_t batches = n / 256, sum = 0;
    for (uint64_t b = 0; b < batches; b++) {
        bool seen[100] = {false};
        for (uint64_t i = 0; i < 256; i++)
            seen[permutation_at(p, b * 256 + i) / (n / 100)] = true;
        for (int c = 0; c < 100; c++)
            sum += seen[c];
    }
    return (double)sum / (double)batches;
}

START_TEST(blocks_hold_each_element_once)
{
    static const uint64_t blocks[] = {1, 7, 100, 1000, 5000};
    uint8_t *seen = calloc(1, 1000);
    for (unsigned b = 0; b < 5; b++) {
        for (uint64_t window = 1; window < 40; window += 13) {
            struct permutation *p;
            ck_assert_int_eq(permutation_new_blocks(1000, 9, blocks[b], window, NULL, &p), 0);
            memset(seen, 0, 1000);
            for (uint64_t i = 0; i < 1000; i++)
                seen[permutation_at(p, i)]++;
            for (unsigned i = 0; i < 1000; i++)
                ck_assert_uint_eq(seen[i], 1);
            permutation_free(p);
        }
    }
    free(seen);
    struct permutation *none;
    ck_assert_int_eq(permutation_new_blocks(5, 0, 0, 1, NULL, &none), -EINVAL);
    ck_assert_int_eq(permutation_new_blocks(5, 0, 1, 0, NULL, &none), -EINVAL);
}
END_TEST

START_TEST(blocks_in_a_window_mix_nearly_as_well_as_a_true_shuffle)
{
    /* 92.4 classes of 100 are expected among 256 that are drawn at random; and of 64
     * blocks drawn among those of 100 classes about 47 classes, of 1000 nearly all. */
    struct permutation *shuffle, *window, *blocks;
    ck_assert_int_eq(permutation_new(1000000, 1, NULL, &shuffle), 0);
    ck_assert_int_eq(permutation_new_blocks(1000000, 1, 100, 1000, NULL, &window), 0);
    ck_assert_int_eq(permutation_new_blocks(1000000, 1, 100, 64, NULL, &blocks), 0);
    ck_assert_double_gt(mean_classes(shuffle, 1000000), 92);
    ck_assert_double_gt(mean_classes(window, 1000000), 89.5);
    ck_assert_double_gt(mean_classes(blocks, 1000000), 44);
    permutation_free(shuffle);
    permutation_free(window);
    permutation_free(blocks);
}
END_TEST

START_TEST(what_is_read_in_a_window_lies_in_few_places)
{
    struct permutation *p;
    ck_assert_int_eq(permutation_new_blocks(100000, 1, 100, 10, NULL, &p), 0);
    for (uint64_t w = 0; w < 100; w++) {
        bool seen[1000] = {false};
        unsigned places = 0;
        for (uint64_t i = 0; i < 1000; i++) {
            uint64_t block = permutation_at(p, w * 1000 + i) / 100;
            places += !seen[block];
            seen[block] = true;
        }
        ck_assert_uint_eq(places, 10);
    }
    permutation_free(p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("permutation");
    TCase *t = tcase_create("permutation");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, ten_elements_are_in_torchs_order);
    tcase_add_test(t, only_the_low_half_of_a_seed_counts);
    tcase_add_test(t, none_and_one);
    tcase_add_test(t, the_front_is_that_of_the_whole);
    tcase_add_loop_test(t, both_ways_of_drawing_follow_their_formula, 0, 2);
    tcase_add_test(t, taking_every_kth_element_wraps_around);
    tcase_add_test(t, blocks_hold_each_element_once);
    tcase_add_test(t, blocks_in_a_window_mix_nearly_as_well_as_a_true_shuffle);
    tcase_add_test(t, what_is_read_in_a_window_lies_in_few_places);
    suite_add_tcase(s, t);
    return run_suite(s);
}
