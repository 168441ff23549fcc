/*
 * The sampler: lengths, padding and shares of DistributedSampler, for every small case; what
 * torch itself says is in sampler_torch.py.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "onepot.h"
#include "suite.h"

static struct onepot_sampler *make(const struct onepot_sampler_options *options)
{
    struct onepot_sampler *s;
    struct onepot_error error = {0};
    int r = onepot_sampler_new(options, &error, &s);
    ck_assert_msg(r == 0, "%s", error.text);
    return s;
}

START_TEST(a_seed_and_an_epoch_add_up)
{
    static const uint64_t golden[10] = {2, 6, 1, 8, 4, 5, 0, 9, 3, 7}; /* seed 42 */
    struct onepot_sampler_options o = {
        .size = sizeof(o), .samples = 10, .world_size = 1, .seed = 40, .epoch = 2};
    struct onepot_sampler *s = make(&o);
    uint64_t got[10];
    uint8_t valid[10];
    ck_assert_int_eq(onepot_sampler_get(s, 0, 10, got, valid), 0);
    ck_assert_mem_eq(got, golden, sizeof(got));
    ck_assert_int_eq(onepot_sampler_set_epoch(s, 3), 0);
    ck_assert_int_eq(onepot_sampler_get(s, 0, 10, got, NULL), 0);
    ck_assert_mem_ne(got, golden, sizeof(got));
    ck_assert_int_eq(onepot_sampler_set_epoch(s, 2), 0);
    ck_assert_int_eq(onepot_sampler_get(s, 4, 6, got, valid), 0);
    ck_assert_mem_eq(got, golden + 4, 6 * sizeof(got[0]));
    ck_assert_int_eq(onepot_sampler_get(s, 4, 7, got, valid), -ERANGE);
    onepot_sampler_free(s);
}
END_TEST

/* Each sample is valid once over all ranks and workers, or at most once with drop_last. */
static void check_epoch(uint64_t n, uint64_t world, uint64_t workers, bool drop_last,
                        bool shuffle, uint64_t block)
{
    uint8_t seen[64] = {0};
    uint64_t total = 0, k = drop_last ? n / world : (n + world - 1) / world;
    for (uint64_t rank = 0; rank < world; rank++) {
        uint64_t of_rank = 0;
        for (uint64_t w = 0; w < workers; w++) {
            struct onepot_sampler_options o = {.size = sizeof(o),
                                               .samples = n,
                                               .rank = rank,
                                               .world_size = world,
                                               .no_shuffle = !shuffle,
                                               .drop_last = drop_last,
                                               .worker = w,
                                               .workers = workers,
                                               .block = block,
                                               .window = 2};
            struct onepot_sampler *s = make(&o);
            uint64_t length = onepot_sampler_length(s), got[64];
            uint8_t valid[64];
            ck_assert_int_eq(onepot_sampler_get(s, 0, length, got, valid), 0);
            for (uint64_t i = 0; i < length; i++) {
                ck_assert_uint_lt(got[i], n);
                seen[got[i]] += valid[i];
                total += valid[i];
            }
            of_rank += length;
            onepot_sampler_free(s);
        }
        ck_assert_uint_eq(of_rank, k);
    }
    for (uint64_t i = 0; i < n; i++)
        ck_assert_uint_le(seen[i], 1);
    ck_assert_uint_eq(total, drop_last ? k * world : n);
}

START_TEST(every_sample_comes_once_over_ranks_and_workers)
{
    for (uint64_t n = 0; n < 20; n++)
        for (uint64_t world = 1; world < 24; world += world < 5 ? 1 : 6)
            for (uint64_t workers = 1; workers < 4; workers++)
                for (int mode = 0; mode < 4; mode++)
                    check_epoch(n, world, workers, mode & 1, mode & 2, _i);
}
END_TEST

START_TEST(workers_share_the_stream_of_their_rank)
{
    struct onepot_sampler_options o = {
        .size = sizeof(o), .samples = 53, .rank = 1, .world_size = 3, .seed = 4};
    struct onepot_sampler *whole = make(&o);
    o.workers = 4;
    for (o.worker = 0; o.worker < 4; o.worker++) {
        struct onepot_sampler *part = make(&o);
        for (uint64_t i = 0; i < onepot_sampler_length(part); i++) {
            uint64_t a, b;
            uint8_t valid_a, valid_b;
            ck_assert_int_eq(onepot_sampler_get(part, i, 1, &a, &valid_a), 0);
            ck_assert_int_eq(onepot_sampler_get(whole, o.worker + 4 * i, 1, &b, &valid_b), 0);
            ck_assert_uint_eq(a, b);
            ck_assert_uint_eq(valid_a, valid_b);
        }
        onepot_sampler_free(part);
    }
    onepot_sampler_free(whole);
}
END_TEST

START_TEST(a_constant_global_batch_has_the_same_samples_on_any_world_size)
{
    /* 96 samples, 12 a step: step t of 1, 2, 3, 4 and 6 ranks. */
    for (uint64_t step = 0; step < 8; step++) {
        uint64_t first_sum = 0;
        for (uint64_t world = 1; world <= 6; world += 1 + (world == 4)) {
            uint64_t sum = 0, batch = 12 / world;
            for (uint64_t rank = 0; rank < world; rank++) {
                struct onepot_sampler_options o = {
                    .size = sizeof(o), .samples = 96, .rank = rank, .world_size = world};
                struct onepot_sampler *s = make(&o);
                uint64_t got[12];
                ck_assert_int_eq(onepot_sampler_get(s, step * batch, batch, got, NULL), 0);
                for (uint64_t i = 0; i < batch; i++)
                    sum += UINT64_C(1) << (got[i] % 60) | got[i] * got[i];
                onepot_sampler_free(s);
            }
            if (world == 1)
                first_sum = sum;
            ck_assert_uint_eq(sum, first_sum);
        }
    }
}
END_TEST

START_TEST(what_makes_no_sense_is_refused)
{
    struct onepot_sampler *s = NULL;
    struct onepot_error error;
    struct onepot_sampler_options o = {
        .size = sizeof(o), .samples = 5, .rank = 2, .world_size = 2};
    ck_assert_int_eq(onepot_sampler_new(&o, &error, &s), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "rank 2"));
    o.rank = 0;
    o.workers = 2;
    o.worker = 2;
    ck_assert_int_eq(onepot_sampler_new(&o, &error, &s), -EINVAL);
    o = (struct onepot_sampler_options){.samples = 5};
    ck_assert_int_eq(onepot_sampler_new(&o, &error, &s), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "size"));
    o = (struct onepot_sampler_options){
        .size = sizeof(o), .samples = UINT64_MAX, .world_size = UINT64_MAX};
    ck_assert_int_eq(onepot_sampler_new(&o, NULL, &s), -EINVAL);
    ck_assert_ptr_null(s);
}
END_TEST

START_TEST(options_may_grow)
{
    struct {
        struct onepot_sampler_options now;
        uint64_t later;
    } o = {.now = {.size = sizeof(o), .samples = 5, .world_size = 1}};
    struct onepot_sampler *s;
    struct onepot_error error;
    ck_assert_int_eq(onepot_sampler_new(&o.now, &error, &s), 0);
    onepot_sampler_free(s);
    o.later = 1;
    ck_assert_int_eq(onepot_sampler_new(&o.now, &error, &s), -E2BIG);
    o.now.size = offsetof(struct onepot_sampler_options, seed);
    ck_assert_int_eq(onepot_sampler_new(&o.now, &error, &s), 0);
    onepot_sampler_free(s);
}
END_TEST

START_TEST(the_launcher_tells_rank_and_world_size)
{
    struct onepot_sampler_options o = {.size = sizeof(o), .samples = 5};
    setenv("RANK", "3", 1);
    setenv("WORLD_SIZE", "8", 1);
    struct onepot_sampler *s = make(&o);
    ck_assert_uint_eq(onepot_sampler_rank(s), 3);
    ck_assert_uint_eq(onepot_sampler_world_size(s), 8);
    onepot_sampler_free(s);
    setenv("RANK", "9", 1);
    struct onepot_error error;
    ck_assert_int_eq(onepot_sampler_new(&o, &error, &s), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "RANK"));
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sampler");
    TCase *t = tcase_create("sampler");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, a_seed_and_an_epoch_add_up);
    tcase_add_loop_test(t, every_sample_comes_once_over_ranks_and_workers, 0, 4);
    tcase_add_test(t, workers_share_the_stream_of_their_rank);
    tcase_add_test(t, a_constant_global_batch_has_the_same_samples_on_any_world_size);
    tcase_add_test(t, what_makes_no_sense_is_refused);
    tcase_add_test(t, options_may_grow);
    tcase_add_test(t, the_launcher_tells_rank_and_world_size);
    suite_add_tcase(s, t);
    return run_suite(s);
}
