/*
 * Work handed out to threads: everything once, forwards, blocks in one piece.
 */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "worklist.h"
#include "suite.h"

#define ITEMS 5000u

static struct worklist *list;

static void setup(void)
{
    ck_assert_int_eq(worklist_new(&list), 0);
}

static void teardown(void)
{
    worklist_free(list);
}

/* Members in some other order than that of the archive; `same` of them in each block. */
static void fill(uint32_t same)
{
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t n = (i * 2477u) % ITEMS; /* prime to ITEMS */
        struct work_item item = {(uint64_t)(n / same) * 30000, n, 0};
        ck_assert_int_eq(worklist_add(list, item), 0);
    }
}

struct taker {
    unsigned number;
    pthread_t thread;
    _Atomic unsigned *owner; /* of each block: 1 + the thread */
    _Atomic unsigned *taken; /* how often each item was */
    uint32_t same;
    unsigned backwards;
};

static void *take_all(void *arg)
{
    struct taker *t = arg;
    const struct work_item *items;
    size_t n;
    while ((n = worklist_take(list, t->number, &items)) > 0) {
        for (size_t i = 0; i < n; i++) {
            uint32_t block = items[i].position / t->same;
            unsigned before = atomic_exchange(&t->owner[block], t->number + 1);
            if (before && before != t->number + 1)
                t->backwards++;
            atomic_fetch_add(&t->taken[items[i].position], 1);
            if (i > 0 && (items[i].key < items[i - 1].key ||
                          (items[i].key == items[i - 1].key &&
                           items[i].position < items[i - 1].position)))
                t->backwards++;
        }
    }
    return NULL;
}

static void take_by(unsigned threads, uint32_t same)
{
    _Atomic unsigned *owner = calloc(ITEMS, sizeof(*owner));
    _Atomic unsigned *taken = calloc(ITEMS, sizeof(*taken));
    struct taker *takers = calloc(threads, sizeof(*takers));
    ck_assert(owner && taken && takers);
    fill(same);
    ck_assert_int_eq(worklist_begin(list, threads), 0);
    for (unsigned t = 0; t < threads; t++) {
        takers[t] = (struct taker){.number = t, .owner = owner, .taken = taken, .same = same};
        ck_assert_int_eq(pthread_create(&takers[t].thread, NULL, take_all, &takers[t]), 0);
    }
    for (unsigned t = 0; t < threads; t++) {
        pthread_join(takers[t].thread, NULL);
        ck_assert_uint_eq(takers[t].backwards, 0);
    }
    for (uint32_t i = 0; i < ITEMS; i++)
        ck_assert_uint_eq(taken[i], 1);
    free((void *)owner);
    free((void *)taken);
    free(takers);
}

START_TEST(one_thread_gets_everything_in_order)
{
    take_by(1, 1);
}
END_TEST

START_TEST(threads_get_everything_once)
{
    take_by(7, 1);
}
END_TEST

START_TEST(a_block_is_never_parted)
{
    take_by(5, 37);
}
END_TEST

START_TEST(one_block_goes_to_one_thread)
{
    take_by(3, ITEMS);
}
END_TEST

START_TEST(more_threads_than_items_is_fine)
{
    const struct work_item *items;
    ck_assert_int_eq(worklist_add(list, (struct work_item){5, 1, 0}), 0);
    ck_assert_int_eq(worklist_begin(list, 16), 0);
    ck_assert_uint_eq(worklist_take(list, 3, &items), 1);
    for (unsigned t = 0; t < 16; t++)
        ck_assert_uint_eq(worklist_take(list, t, &items), 0);
}
END_TEST

START_TEST(what_is_near_is_told)
{
    const struct work_item items[] = {{0, 0, 0}, {100, 1, 0}, {150, 2, 0}, {9000, 3, 0}};
    ck_assert_uint_eq(worklist_near_end(items, 4, 0, 100), 150);
    ck_assert_uint_eq(worklist_near_end(items, 4, 2, 100), 0);
    ck_assert_uint_eq(worklist_near_end(items, 4, 3, 100), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("worklist");
    TCase *c = tcase_create("worklist");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, one_thread_gets_everything_in_order);
    tcase_add_test(c, threads_get_everything_once);
    tcase_add_test(c, a_block_is_never_parted);
    tcase_add_test(c, one_block_goes_to_one_thread);
    tcase_add_test(c, more_threads_than_items_is_fine);
    tcase_add_test(c, what_is_near_is_told);
    suite_add_tcase(s, c);
    return run_suite(s);
}
