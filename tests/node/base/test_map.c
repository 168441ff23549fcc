/* The map from numbers to numbers. */
#include <check.h>
#include <errno.h>

#include "map.h"
#include "suite.h"

START_TEST(empty_map_has_nothing)
{
    struct map map = {0};
    uint64_t value;
    ck_assert_int_eq(map_get(&map, map_key_of(0), &value), -ENOENT);
    ck_assert_int_eq(map_get(&map, map_key_of(UINT64_MAX), &value), -ENOENT);
    map_free(&map);
}
END_TEST

/* Keys as archives have them: small numbers, and places far apart. */
static uint64_t key_of(uint64_t i, int kind)
{
    return kind == 0 ? i : kind == 1 ? i << 32 : UINT64_MAX - i * 4096;
}

START_TEST(every_key_keeps_its_value)
{
    enum { KEYS = 20000 };
    struct map map = {0};
    uint64_t value = 0;
    unsigned wrong = 0;
    for (uint64_t i = 0; i < KEYS; i++)
        wrong += map_put(&map, map_key_of(key_of(i, _i)), i) != 0;
    for (uint64_t i = 0; i < KEYS; i++)
        wrong += map_get(&map, map_key_of(key_of(i, _i)), &value) != 0 || value != i;
    for (uint64_t i = KEYS; i < 2 * KEYS; i++)
        wrong += map_get(&map, map_key_of(key_of(i, _i)), &value) != -ENOENT;
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_eq(map.count, KEYS);
    map_free(&map);
}
END_TEST

START_TEST(both_halves_of_a_key_count)
{
    struct map map = {0};
    uint64_t value;
    ck_assert_int_eq(map_put(&map, (struct map_key){1, 7}, 17), 0);
    ck_assert_int_eq(map_get(&map, (struct map_key){2, 7}, &value), -ENOENT);
    ck_assert_int_eq(map_get(&map, (struct map_key){1, 8}, &value), -ENOENT);
    ck_assert_int_eq(map_put(&map, (struct map_key){2, 7}, 27), 0);
    ck_assert_int_eq(map_get(&map, (struct map_key){1, 7}, &value), 0);
    ck_assert_uint_eq(value, 17);
    map_free(&map);
}
END_TEST

START_TEST(key_that_is_there_is_not_replaced)
{
    struct map map = {0};
    uint64_t value;
    ck_assert_int_eq(map_put(&map, map_key_of(7), 1), 0);
    ck_assert_int_eq(map_put(&map, map_key_of(7), 2), -EEXIST);
    ck_assert_int_eq(map_get(&map, map_key_of(7), &value), 0);
    ck_assert_uint_eq(value, 1);
    map_free(&map);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("map");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, empty_map_has_nothing);
    tcase_add_loop_test(tests, every_key_keeps_its_value, 0, 3);
    tcase_add_test(tests, both_halves_of_a_key_count);
    tcase_add_test(tests, key_that_is_there_is_not_replaced);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
