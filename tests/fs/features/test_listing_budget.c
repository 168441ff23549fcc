/* How many names the kernel gets with their attributes. */
#include <check.h>
#include <stdlib.h>

#include "listing_budget.h"
#include "suite.h"

#define ENTRY_BYTES 1100
#define PART 8

static struct listing_budget *for_entries(uint32_t entries, uint64_t allowed)
{
    struct listing_budget *budget;

    ck_assert_int_eq(listing_budget_new(entries, allowed * ENTRY_BYTES * PART, &budget), 0);
    return budget;
}

START_TEST(an_eighth_of_the_memory_may_go_into_names)
{
    struct listing_budget *budget = for_entries(1000, 100);

    listing_budget_spend(budget, 0, 99);
    ck_assert(listing_budget_is_left(budget));
    listing_budget_spend(budget, 99, 100);
    ck_assert(!listing_budget_is_left(budget));
    free(budget);
}
END_TEST

START_TEST(an_entry_counts_once)
{
    struct listing_budget *budget = for_entries(1000, 100);

    for (int i = 0; i < 100; i++)
        listing_budget_spend(budget, 10, 80);
    ck_assert(listing_budget_is_left(budget));
    listing_budget_spend(budget, 0, 100);
    ck_assert(!listing_budget_is_left(budget));
    free(budget);
}
END_TEST

START_TEST(what_lies_beyond_the_archive_is_not_counted)
{
    struct listing_budget *budget = for_entries(64, 65);

    listing_budget_spend(budget, 0, UINT32_MAX);
    ck_assert(listing_budget_is_left(budget));
    free(budget);
}
END_TEST

START_TEST(without_memory_there_are_only_names)
{
    struct listing_budget *budget = for_entries(10, 0);

    ck_assert(!listing_budget_is_left(budget));
    free(budget);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("listing_budget");
    TCase *tc = tcase_create("listing_budget");
    tcase_add_test(tc, an_eighth_of_the_memory_may_go_into_names);
    tcase_add_test(tc, an_entry_counts_once);
    tcase_add_test(tc, what_lies_beyond_the_archive_is_not_counted);
    tcase_add_test(tc, without_memory_there_are_only_names);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
