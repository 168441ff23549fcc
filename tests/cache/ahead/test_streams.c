/*
 * Readers in sequence are noticed, alone or several at once, and what lies ahead of them is
 * handed out; readers in random order are not taken for one.
 */
#include "streams.h"

#include <check.h>
#include <stdlib.h>

#include "suite.h"

/* All that is handed out now. The furthest of it, and how much. */
static unsigned take_all(struct streams *s, uint64_t *ret_furthest)
{
    uint64_t place;
    unsigned count = 0;

    for (*ret_furthest = 0; streams_next(s, &place); count++)
        if (place > *ret_furthest)
            *ret_furthest = place;
    return count;
}

START_TEST(a_sequence_is_believed_after_a_few_reads)
{
    struct streams s = {0};
    uint64_t furthest;

    for (uint64_t place = 100; place < 100 + STREAM_CONFIDENT - 1; place++) {
        ck_assert(!streams_read(&s, place));
        ck_assert_uint_eq(take_all(&s, &furthest), 0);
    }
    ck_assert(streams_read(&s, 100 + STREAM_CONFIDENT - 1));
    ck_assert_uint_gt(take_all(&s, &furthest), 0);
    ck_assert_uint_ge(furthest, 100 + STREAM_CONFIDENT);
}
END_TEST

START_TEST(each_place_is_handed_out_once_and_in_order)
{
    struct streams s = {0};
    uint64_t place, last = 0;

    for (uint64_t read = 0; read < 5000; read++) {
        streams_read(&s, read);
        while (streams_next(&s, &place)) {
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
    struct streams s = {0};
    uint64_t furthest, read = 0;
    unsigned count = 0;

    for (; read < STREAM_CONFIDENT; read++)
        streams_read(&s, read);
    for (unsigned round = 0; round < 20; round++) {
        unsigned before = count;
        count = take_all(&s, &furthest);
        ck_assert_uint_ge(count, before);
        ck_assert_uint_le(count, 512 + 1);
        for (; read <= furthest; read++)
            streams_read(&s, read);
    }
    ck_assert_uint_ge(count, 256);
}
END_TEST

START_TEST(steps_are_kept)
{
    struct streams s = {0};
    uint64_t place;
    unsigned handed = 0;

    for (uint64_t read = 5; read < 8000; read += 8) {
        streams_read(&s, read);
        for (; streams_next(&s, &place); handed++)
            ck_assert_uint_eq(place % 8, 5);
    }
    ck_assert_uint_ge(handed, 900);
}
END_TEST

/* Two workers that take turns at batches, or a kernel that asks early. */
START_TEST(reads_a_little_out_of_order_are_one_stream)
{
    struct streams s = {0};
    uint64_t furthest;
    unsigned handed = 0, believed = 0;

    for (uint64_t batch = 0; batch < 100; batch += 2)
        for (uint64_t i = 0; i < 16; i++)
            for (uint64_t worker = 0; worker < 2; worker++) {
                believed += streams_read(&s, (batch + worker) * 16 + i);
                handed += take_all(&s, &furthest);
            }
    ck_assert_uint_ge(believed, 1500);
    ck_assert_uint_ge(handed, 1500);
}
END_TEST

START_TEST(several_readers_have_a_stream_each)
{
    struct streams s = {0};
    uint64_t furthest;
    unsigned handed = 0;

    for (uint64_t i = 0; i < 1000; i++)
        for (uint64_t reader = 0; reader < STREAMS; reader++) {
            streams_read(&s, reader * 1000000 + i);
            handed += take_all(&s, &furthest);
        }
    ck_assert_uint_ge(handed, STREAMS * 990);
}
END_TEST

START_TEST(a_stray_read_takes_the_place_of_what_was_idle_longest)
{
    struct streams s = {0};
    uint64_t furthest;
    unsigned handed = 0;

    for (uint64_t i = 0; i < 1000; i++) {
        for (uint64_t reader = 0; reader < STREAMS - 1; reader++) {
            streams_read(&s, reader * 1000000 + i);
            handed += take_all(&s, &furthest);
        }
        streams_read(&s, (STREAMS + i) * 1000000);
    }
    ck_assert_uint_ge(handed, (STREAMS - 1) * 990);
}
END_TEST

START_TEST(random_reads_are_no_stream)
{
    struct streams s = {0};
    unsigned seed = 4, believed = 0, handed = 0;
    uint64_t furthest;

    for (unsigned i = 0; i < 20000; i++) {
        believed += streams_read(&s, (uint64_t)rand_r(&seed) % 100000);
        handed += take_all(&s, &furthest);
    }
    ck_assert_uint_lt(believed, 50);
    ck_assert_uint_lt(handed, 200);
}
END_TEST

START_TEST(the_same_place_again_is_no_progress)
{
    struct streams s = {0};
    uint64_t furthest;

    for (unsigned i = 0; i < 100; i++)
        ck_assert(!streams_read(&s, 7));
    ck_assert_uint_eq(take_all(&s, &furthest), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("streams");
    TCase *c = tcase_create("streams");
    tcase_add_test(c, a_sequence_is_believed_after_a_few_reads);
    tcase_add_test(c, each_place_is_handed_out_once_and_in_order);
    tcase_add_test(c, a_fast_reader_gets_more_each_time_up_to_a_limit);
    tcase_add_test(c, steps_are_kept);
    tcase_add_test(c, reads_a_little_out_of_order_are_one_stream);
    tcase_add_test(c, several_readers_have_a_stream_each);
    tcase_add_test(c, a_stray_read_takes_the_place_of_what_was_idle_longest);
    tcase_add_test(c, random_reads_are_no_stream);
    tcase_add_test(c, the_same_place_again_is_no_progress);
    suite_add_tcase(s, c);
    return run_suite(s);
}
