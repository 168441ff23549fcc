/*
 * Work handed out to threads: everything once, forwards, blocks in one piece.
 */
#include <check.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "suite.h"
#include "workers.h"

#define ITEMS 5000u

static char folder[64];
static struct fileset *fileset;

/* Any archive will do: nothing is read from it. */
static void make_folder(void)
{
    suite_make_folder("worklist", folder, sizeof(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(system("echo x >x && tar -cf a.tar x"), 0);
}

/* What became of the items, `same` of them in each block. */
static struct {
    uint32_t same;
    _Atomic unsigned owner[ITEMS];    /* of each block: 1 + the thread */
    _Atomic unsigned taken[ITEMS];    /* how often each item was */
    _Atomic uint32_t furthest[ITEMS]; /* in each block: 1 + the item */
    _Atomic unsigned parted, backwards;
    uint64_t last_key[16];  /* of each thread */
    _Atomic unsigned leaps; /* back to an earlier block */
} seen;

static void take_item(struct worker *w, const struct work_item *item)
{
    uint32_t block = item->position / seen.same;
    unsigned before = atomic_exchange(&seen.owner[block], w->number + 1);
    if (before && before != w->number + 1)
        seen.parted++;
    if (atomic_exchange(&seen.furthest[block], item->position + 1) > item->position)
        seen.backwards++;
    if (item->key < seen.last_key[w->number])
        seen.leaps++;
    seen.last_key[w->number] = item->key;
    seen.taken[item->position]++;
}

static void take_by(unsigned threads, uint32_t same, uint32_t items)
{
    const struct work_options options = {.threads = threads};
    const struct fileset_options opening = {.save = FILESET_SAVE_NEVER};
    struct fault fault = {0};
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(fileset_open("a.tar", &opening, &fault, &fileset), 0);
    struct workers workers = {
        .options = &options, .fileset = fileset, .buffer_bytes = 1, .work = take_item};
    seen.same = same;
    ck_assert_int_eq(workers_init(&workers, &fault), 0);
    for (uint32_t i = 0; i < items; i++) { /* in another order than the archive's */
        uint32_t n = (i * 2477u) % items;  /* prime to ITEMS */
        struct work_item item = {(uint64_t)(n / same) * 30000, n, 0};
        ck_assert_int_eq(worklist_add(&workers, item), 0);
    }
    ck_assert_int_eq(workers_run(&workers), 0);
    workers_free(&workers);
    fileset_close(fileset);
    ck_assert_uint_eq(seen.parted, 0);
    ck_assert_uint_eq(seen.backwards, 0);
    for (uint32_t i = 0; i < ITEMS; i++)
        ck_assert_uint_eq(seen.taken[i], i < items);
    /* A thread goes back only to steal, and not for each of 78 portions. */
    ck_assert_uint_lt(seen.leaps, threads == 1 ? 1 : 60);
}

START_TEST(one_thread_gets_everything_in_order)
{
    take_by(1, 1, ITEMS);
}
END_TEST

START_TEST(threads_get_everything_once)
{
    take_by(7, 1, ITEMS);
}
END_TEST

START_TEST(a_block_is_never_parted)
{
    take_by(5, 37, ITEMS);
}
END_TEST

START_TEST(one_block_goes_to_one_thread)
{
    take_by(3, ITEMS, ITEMS);
}
END_TEST

START_TEST(more_threads_than_items_is_fine)
{
    take_by(16, 1, 1);
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
    tcase_add_unchecked_fixture(c, make_folder, NULL);
    tcase_add_test(c, one_thread_gets_everything_in_order);
    tcase_add_test(c, threads_get_everything_once);
    tcase_add_test(c, a_block_is_never_parted);
    tcase_add_test(c, one_block_goes_to_one_thread);
    tcase_add_test(c, more_threads_than_items_is_fine);
    tcase_add_test(c, what_is_near_is_told);
    suite_add_tcase(s, c);
    return run_suite(s);
}
