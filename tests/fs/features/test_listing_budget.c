/* How many names the kernel gets with their attributes. */
#include <check.h>
#include <stdlib.h>

#include "core.h"
#include "index_helper.h"

#define ENTRY_BYTES 1100
#define PART 8

extern const struct feature listing_budget_feature;

static struct index *index_of_files;

/* The feature of a mount with this many entries, of which so many may have attributes. */
static void *for_entries(uint32_t entries, uint64_t allowed)
{
    struct session session = {.config.cache_bytes = allowed * ENTRY_BYTES * PART};
    struct builder *b = new_builder();
    char name[16];
    void *budget;

    for (uint32_t i = 1; i < entries; i++) { /* and the root */
        snprintf(name, sizeof(name), "%04u", i);
        add_file(b, name, i * UINT64_C(1024), 10);
    }
    session.index = index_of_files = build(b, &tar_header);
    ck_assert_uint_eq(index_info(session.index)->entries, entries);
    ck_assert_int_eq(listing_budget_feature.start(&session, &budget), 0);
    return budget;
}

static void end(void *budget)
{
    listing_budget_feature.free(budget);
    index_close(index_of_files);
}

static void list(void *budget, uint32_t from, uint32_t to, bool attributes)
{
    listing_budget_feature.after_listing(budget, NULL, from, to, attributes);
}

static bool is_left(void *budget)
{
    bool attributes = false;

    listing_budget_feature.before_listing(budget, &attributes);
    return attributes;
}

START_TEST(an_eighth_of_the_memory_may_go_into_names)
{
    void *budget = for_entries(1000, 100);

    list(budget, 0, 99, true);
    ck_assert(is_left(budget));
    list(budget, 99, 200, false);
    ck_assert(is_left(budget));
    list(budget, 99, 100, true);
    ck_assert(!is_left(budget));
    end(budget);
}
END_TEST

START_TEST(an_entry_counts_once)
{
    void *budget = for_entries(1000, 100);

    for (int i = 0; i < 100; i++)
        list(budget, 10, 80, true);
    ck_assert(is_left(budget));
    list(budget, 0, 100, true);
    ck_assert(!is_left(budget));
    end(budget);
}
END_TEST

START_TEST(what_lies_beyond_the_archive_is_not_counted)
{
    void *budget = for_entries(64, 65);

    list(budget, 0, UINT32_MAX, true);
    ck_assert(is_left(budget));
    end(budget);
}
END_TEST

START_TEST(without_memory_there_are_only_names)
{
    void *budget = for_entries(10, 0);

    ck_assert(!is_left(budget));
    end(budget);
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
