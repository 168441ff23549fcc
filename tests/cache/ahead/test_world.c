/*
 * Which part of a shuffle is read on this node, from the distances between reads.
 */
#include "chooser.h"

#include <errno.h>
#include <string.h>

#include "suite.h"
#include "training.h"

#define FILES 10000u

struct world_read {
    uint64_t place;
    uint32_t task;
};

static int infer(const struct world_read *reads, unsigned count, struct world *ret_world)
{
    static uint64_t places[2 * WORLD_READS_MAX];
    static uint32_t tasks[2 * WORLD_READS_MAX];

    for (unsigned i = 0; i < count; i++) {
        places[i] = reads[i].place;
        tasks[i] = reads[i].task;
    }
    return world_infer(places, tasks, count, ret_world);
}

static void expect_world(struct training t, unsigned count, uint32_t size, uint32_t local)
{
    struct world_read reads[WORLD_READS_MAX];
    struct training_read read;
    struct world world;
    uint32_t *inverse = malloc(FILES * sizeof(*inverse));

    t.n = FILES;
    training_epoch(&t, 0);
    for (uint32_t i = 0; i < FILES; i++)
        inverse[permutation_at(t.permutation, i)] = i;
    for (unsigned i = 0; i < count; i++) {
        ck_assert(training_next(&t, &read));
        reads[i] = (struct world_read){inverse[read.number], read.task};
    }
    ck_assert_int_eq(infer(reads, count, &world), 0);
    ck_assert_uint_eq(world.size, size);
    ck_assert_uint_eq(world.local, local);
    for (unsigned i = 0; i < t.ranks; i++)
        ck_assert(world_reads(&world, t.first_rank + i + 3 * (uint64_t)size));
    permutation_free(t.permutation);
    free(inverse);
}

START_TEST(the_world_is_found)
{
    expect_world((struct training){.world = 1, .ranks = 1, .workers = 1, .batch = 4}, 20, 1, 1);
    expect_world((struct training){.world = 1, .ranks = 1, .workers = 8, .batch = 64}, 64, 1,
                 1);
    expect_world(
        (struct training){.world = 64, .ranks = 8, .workers = 2, .batch = 8, .first_rank = 16},
        128, 64, 8);
    expect_world(
        (struct training){.world = 7, .ranks = 1, .workers = 4, .batch = 8, .first_rank = 6},
        64, 7, 1);
    expect_world((struct training){.world = 4, .ranks = 4, .workers = 2, .batch = 16}, 128, 4,
                 4);
}
END_TEST

/* One stray read, of a file that another rank reads, adds no rank. */
START_TEST(a_rank_counts_from_its_second_read_on)
{
    struct world_read reads[66];
    struct world world;

    for (unsigned i = 0; i < 64; i++)
        reads[i] = (struct world_read){3 + 8 * (uint64_t)i, 1};
    reads[64] = (struct world_read){8 * 100 + 5, 2};
    ck_assert_int_eq(infer(reads, 65, &world), 0);
    ck_assert_uint_eq(world.size, 8);
    ck_assert_uint_eq(world.local, 1);
    ck_assert(world_reads(&world, 3) && !world_reads(&world, 5));
    reads[65] = (struct world_read){8 * 101 + 5, 2};
    ck_assert_int_eq(infer(reads, 66, &world), 0);
    ck_assert_uint_eq(world.local, 2);
    ck_assert(world_reads(&world, 3) && world_reads(&world, 5));
}
END_TEST

/* A tenth of the distances may be wrong: a reader that starts anew, a file that is read twice.
 */
START_TEST(a_few_odd_distances_do_not_hurt)
{
    struct world_read reads[100];
    struct world world;

    for (unsigned i = 0; i < 100; i++)
        reads[i] = (struct world_read){6 * (uint64_t)i + (i % 25 == 24), 1};
    ck_assert_int_eq(infer(reads, 100, &world), 0);
    ck_assert_uint_eq(world.size, 6);
}
END_TEST

START_TEST(only_the_last_reads_are_looked_at)
{
    static struct world_read reads[2 * WORLD_READS_MAX];
    struct world world;

    for (unsigned i = 0; i < 2 * WORLD_READS_MAX; i++)
        reads[i] = (struct world_read){(i < WORLD_READS_MAX ? 2 : 4) * (uint64_t)i, 1};
    ck_assert_int_eq(infer(reads, 2 * WORLD_READS_MAX, &world), 0);
    ck_assert_uint_eq(world.size, 4);
}
END_TEST

START_TEST(a_world_holds_another_with_no_more_ranks)
{
    struct world all = {.size = 4, .local = 2, .bits = {0x5}}, one = all, other;

    one.bits[0] = 0x4;
    ck_assert(world_holds(&all, &one) && world_holds(&all, &all));
    ck_assert(!world_holds(&one, &all));
    world_all(&other);
    ck_assert(!world_holds(&all, &other));
    for (uint64_t place = 0; place < 10; place++)
        ck_assert(world_reads(&other, place));
}
END_TEST

START_TEST(too_few_reads_of_a_thread_say_nothing_of_the_world)
{
    struct world_read reads[64];
    struct world world;

    for (unsigned i = 0; i < 64; i++)
        reads[i] = (struct world_read){i * 64, i};
    ck_assert_int_eq(infer(reads, 64, &world), -EAGAIN);
    ck_assert_int_eq(infer(reads, 0, &world), -EAGAIN);
    for (unsigned i = 0; i < 64; i++)
        reads[i].task = 1;
    ck_assert_int_eq(infer(reads, WORLD_DISTANCES_MIN, &world), -EAGAIN);
    ck_assert_int_eq(infer(reads, WORLD_DISTANCES_MIN + 1, &world), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("world");
    TCase *c = tcase_create("world");
    tcase_add_test(c, the_world_is_found);
    tcase_add_test(c, a_rank_counts_from_its_second_read_on);
    tcase_add_test(c, a_few_odd_distances_do_not_hurt);
    tcase_add_test(c, only_the_last_reads_are_looked_at);
    tcase_add_test(c, a_world_holds_another_with_no_more_ranks);
    tcase_add_test(c, too_few_reads_of_a_thread_say_nothing_of_the_world);
    suite_add_tcase(s, c);
    return run_suite(s);
}
