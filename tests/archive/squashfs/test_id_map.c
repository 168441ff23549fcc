/* The map from numbers of inodes to inodes. */
#include <check.h>
#include <errno.h>

#include "id_map.h"
#include "suite.h"

START_TEST(empty_map_has_nothing)
{
    struct id_map map = {0};
    uint32_t value;
    ck_assert_int_eq(id_map_get(&map, 0, &value), -ENOENT);
    ck_assert_int_eq(id_map_get(&map, UINT64_MAX, &value), -ENOENT);
    id_map_free(&map);
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
    struct id_map map = {0};
    uint32_t value = 0;
    unsigned wrong = 0;
    for (uint64_t i = 0; i < KEYS; i++)
        wrong += id_map_put(&map, key_of(i, _i), (uint32_t)i) != 0;
    for (uint64_t i = 0; i < KEYS; i++)
        wrong += id_map_get(&map, key_of(i, _i), &value) != 0 || value != i;
    for (uint64_t i = KEYS; i < 2 * KEYS; i++)
        wrong += id_map_get(&map, key_of(i, _i), &value) != -ENOENT;
    ck_assert_uint_eq(wrong, 0);
    ck_assert_uint_eq(map.count, KEYS);
    id_map_free(&map);
}
END_TEST

START_TEST(key_that_is_there_is_not_replaced)
{
    struct id_map map = {0};
    uint32_t value;
    ck_assert_int_eq(id_map_put(&map, 7, 1), 0);
    ck_assert_int_eq(id_map_put(&map, 7, 2), -EEXIST);
    ck_assert_int_eq(id_map_get(&map, 7, &value), 0);
    ck_assert_uint_eq(value, 1);
    id_map_free(&map);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("id_map");
    TCase *tests = tcase_create("all");
    tcase_add_test(tests, empty_map_has_nothing);
    tcase_add_loop_test(tests, every_key_keeps_its_value, 0, 3);
    tcase_add_test(tests, key_that_is_there_is_not_replaced);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
