/*
 * Readers in sequence are noticed, alone or several at once, and what lies ahead of them is
 * handed out; readers in random order are not taken for one.
 */
#include "chooser.h"

#include <check.h>
#include <stdlib.h>

#include "suite.h"

/* All that is handed out now. The furthest of it, and how much. */
static unsigned take_all(struct sequences *s, uint64_t *ret_furthest)
{
    uint64_t place;
    unsigned count = 0;

    for (*ret_furthest = 0; sequences_next(s, &place); count++)
        if (place > *ret_furthest)
            *ret_furthest = place;
    return count;
}

START_TEST(a_sequence_is_believed_after_a_few_reads)
{
    struct sequences s = {0};
    uint64_t furthest;

    for (uint64_t place = 100; place < 100 + SEQUENCE_CONFIDENT - 1; place++) {
        ck_assert(!sequences_read(&s, place));
        ck_assert_uint_eq(take_all(&s, &furthest), 0);
    }
    ck_assert(sequences_read(&s, 100 + SEQUENCE_CONFIDENT - 1));
    ck_assert_uint_gt(take_all(&s, &furthest), 0);
    ck_assert_uint_ge(furthest, 100 + SEQUENCE_CONFIDENT);
}
END_TEST

START_TEST(each_place_is_handed_out_once_and_in_order)
{
    struct sequences s = {0};
    uint64_t place, last = 0;

    for (uint64_t read = 0; read < 5000; read++) {
        sequences_read(&s, read);
        while (sequences_next(&s, &place)) {
            ck_assert_uint_gt(place, read);
            ck_assert(last == 0 || place == last + 1);
            last = place;
        }
    }
    ck_assert_uint_ge(last, 5000);
}
END_TEST

/* A reader that uses up what was handed out, before anybody comes to ask for more. */
START_TEST(a_fast_reader_gets_more_each_time_up_to_a_limit)
{
    struct sequences s = {0};
    uint64_t furthest, read = 0;
    unsigned count = 0;

    for (; read < SEQUENCE_CONFIDENT; read++)
        sequences_read(&s, read);
    for (unsigned round = 0; round < 20; round++) {
        unsigned before = count;
        count = take_all(&s, &furthest);
        ck_assert_uint_ge(count, before);
        ck_assert_uint_le(count, 512 + 1);
        for (; read <= furthest; read++)
            sequences_read(&s, read);
    }
    ck_assert_uint_ge(count, 256);
}
END_TEST

START_TEST(steps_are_kept)
{
    struct sequences s = {0};
    uint64_t place;
    unsigned handed = 0;

    for (uint64_t read = 5; read < 8000; read += 8) {
        sequences_read(&s, read);
        for (; sequences_next(&s, &place); handed++)
            ck_assert_uint_eq(place % 8, 5);
    }
    ck_assert_uint_ge(handed, 900);
}
END_TEST

/* Two workers that take turns at batches, or a kernel that asks early. */
START_TEST(reads_a_little_out_of_order_are_one_sequence)
{
    struct sequences s = {0};
    uint64_t furthest;
    unsigned handed = 0, believed = 0;

    for (uint64_t batch = 0; batch < 100; batch += 2)
        for (uint64_t i = 0; i < 16; i++)
            for (uint64_t worker = 0; worker < 2; worker++) {
                believed += sequences_read(&s, (batch + worker) * 16 + i);
                handed += take_all(&s, &furthest);
            }
    ck_assert_uint_ge(believed, 1500);
    ck_assert_uint_ge(handed, 1500);
}
END_TEST

START_TEST(several_readers_have_a_sequence_each)
{
    struct sequences s = {0};
    uint64_t furthest;
    unsigned handed = 0;

    for (uint64_t i = 0; i < 1000; i++)
        for (uint64_t reader = 0; reader < SEQUENCES; reader++) {
            sequences_read(&s, reader * 1000000 + i);
            handed += take_all(&s, &furthest);
        }
    ck_assert_uint_ge(handed, SEQUENCES * 990);
}
END_TEST

START_TEST(a_stray_read_takes_the_place_of_what_was_idle_longest)
{
    struct sequences s = {0};
    uint64_t furthest;
    unsigned handed = 0;

    for (uint64_t i = 0; i < 1000; i++) {
        for (uint64_t reader = 0; reader < SEQUENCES - 1; reader++) {
            sequences_read(&s, reader * 1000000 + i);
            handed += take_all(&s, &furthest);
        }
        sequences_read(&s, (SEQUENCES + i) * 1000000);
    }
    ck_assert_uint_ge(handed, (SEQUENCES - 1) * 990);
}
END_TEST

START_TEST(random_reads_are_no_sequence)
{
    struct sequences s = {0};
    unsigned seed = 4, believed = 0, handed = 0;
    uint64_t furthest;

    for (unsigned i = 0; i < 20000; i++) {
        believed += sequences_read(&s, (uint64_t)rand_r(&seed) % 100000);
        handed += take_all(&s, &furthest);
    }
    ck_assert_uint_lt(believed, 50);
    ck_assert_uint_lt(handed, 200);
}
END_TEST

START_TEST(the_same_place_again_is_no_progress)
{
    struct sequences s = {0};
    uint64_t furthest;

    for (unsigned i = 0; i < 100; i++)
        ck_assert(!sequences_read(&s, 7));
    ck_assert_uint_eq(take_all(&s, &furthest), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sequences");
    TCase *c = tcase_create("sequences");
    tcase_add_test(c, a_sequence_is_believed_after_a_few_reads);
    tcase_add_test(c, each_place_is_handed_out_once_and_in_order);
    tcase_add_test(c, a_fast_reader_gets_more_each_time_up_to_a_limit);
    tcase_add_test(c, steps_are_kept);
    tcase_add_test(c, reads_a_little_out_of_order_are_one_sequence);
    tcase_add_test(c, several_readers_have_a_sequence_each);
    tcase_add_test(c, a_stray_read_takes_the_place_of_what_was_idle_longest);
    tcase_add_test(c, random_reads_are_no_sequence);
    tcase_add_test(c, the_same_place_again_is_no_progress);
    suite_add_tcase(s, c);
    return run_suite(s);
}
