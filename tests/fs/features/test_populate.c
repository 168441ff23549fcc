/* Which files are populated, and until when. */
#include <check.h>
#include <stdlib.h>

#include "populate.h"
#include "suite.h"

#define MS UINT64_C(1000000)
#define ENTRIES (100u << POPULATE_CHUNK_BITS)

static struct populate_ledger ledger;

static void setup(void)
{
    ledger = populate_ledger_at(calloc(1, populate_ledger_bytes(ENTRIES)), ENTRIES);
    ck_assert_ptr_nonnull(ledger.at);
}

static void teardown(void)
{
    free(ledger.at);
}

static void set(_Atomic uint64_t *bits, size_t i)
{
    bits[i / 64] |= UINT64_C(1) << (i % 64);
}

/* Exactly the chunks [from, to) are wanted. */
static void check_wanted(size_t from, size_t to)
{
    for (size_t i = 0; i < ledger.chunks; i++)
        ck_assert_int_eq(populate_wants(&ledger, i), i >= from && i < to);
}

START_TEST(at_first_nothing_is_wanted)
{
    ck_assert_uint_eq(ledger.chunks, 101);
    check_wanted(0, 0);
}
END_TEST

START_TEST(a_read_wants_its_chunk_and_the_next_four)
{
    set(ledger.touched, 60);
    check_wanted(60, 65);
}
END_TEST

START_TEST(the_last_chunk_has_none_behind_it)
{
    set(ledger.touched, 100);
    check_wanted(100, 101);
}
END_TEST

START_TEST(what_a_child_has_taken_is_not_wanted)
{
    set(ledger.touched, 60);
    set(ledger.taken, 60);
    check_wanted(61, 65);
}
END_TEST

START_TEST(bitmaps_do_not_overlap)
{
    for (size_t i = 0; i < ledger.chunks; i++)
        set(ledger.touched, i);
    ck_assert_uint_eq(ledger.listed[0], 0);
    ck_assert_uint_eq(ledger.taken[0], 0);
    check_wanted(0, 101);
}
END_TEST

START_TEST(it_pauses_when_readers_do)
{
    struct populate_pace pace = {.reads = 1000, .grown_ns = 500 * MS};

    ck_assert(!populate_pace_is_lost(&pace, 1000, 10, 520 * MS));
    ck_assert(populate_pace_is_lost(&pace, 1000, 10, 521 * MS));
    ck_assert(!populate_pace_is_lost(&pace, 1001, 10, 521 * MS)); /* they go on */
    ck_assert(!populate_pace_is_lost(&pace, 1001, 10, 541 * MS));
    ck_assert(populate_pace_is_lost(&pace, 1001, 10, 542 * MS));
}
END_TEST

START_TEST(it_populates_sixteen_files_a_read_at_most)
{
    struct populate_pace pace = {.reads = 100, .grown_ns = 0};

    ck_assert(!populate_pace_is_lost(&pace, 100, 1600, 0));
    ck_assert(populate_pace_is_lost(&pace, 100, 1601, 0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("populate");
    TCase *tc = tcase_create("populate");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, at_first_nothing_is_wanted);
    tcase_add_test(tc, a_read_wants_its_chunk_and_the_next_four);
    tcase_add_test(tc, the_last_chunk_has_none_behind_it);
    tcase_add_test(tc, what_a_child_has_taken_is_not_wanted);
    tcase_add_test(tc, bitmaps_do_not_overlap);
    tcase_add_test(tc, it_pauses_when_readers_do);
    tcase_add_test(tc, it_populates_sixteen_files_a_read_at_most);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
