/* The buffers of the block cache: sizes, reuse, and what they leave in memory. */
#include <check.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "block_cache_private.h"
#include "suite.h"

static size_t page;

/* Pages of a buffer that are in memory. */
static size_t resident(void *buffer, size_t capacity)
{
    unsigned char *state = malloc(capacity / page);
    ck_assert_int_eq(mincore(buffer, capacity, state), 0);
    size_t n = 0;
    for (size_t i = 0; i < capacity / page; i++)
        n += state[i] & 1;
    free(state);
    return n;
}

START_TEST(capacity_is_whole_pages_and_at_most_a_sixteenth_more)
{
    struct buffer_pool *pool;
    ck_assert_int_eq(buffer_pool_new(0, 0, 0, false, &pool), 0);
    size_t last = 0;
    for (size_t size = 1; size < (5u << 20); size += size / 50 + 1) {
        size_t capacity = buffer_pool_capacity(pool, size);
        size_t whole = (size + page - 1) / page * page;
        ck_assert_uint_ge(capacity, size);
        ck_assert_uint_eq(capacity % page, 0);
        ck_assert_uint_le(capacity, whole + whole / 16);
        ck_assert_uint_eq(buffer_pool_capacity(pool, capacity), capacity);
        ck_assert_uint_ge(capacity, last);
        last = capacity;
    }
    ck_assert_uint_eq(buffer_pool_capacity(pool, 0), page);
    ck_assert_uint_eq(buffer_pool_capacity(pool, 1u << 20), 1u << 20);
    buffer_pool_free(pool);
}
END_TEST

START_TEST(buffers_do_not_overlap)
{
    size_t huge_max = _i ? 1u << 20 : 0;
    struct buffer_pool *pool;
    unsigned char *buffers[300];
    size_t sizes[300];
    ck_assert_int_eq(buffer_pool_new(0, 1, huge_max, false, &pool), 0);
    for (unsigned i = 0; i < 300; i++) {
        sizes[i] = 1 + (i * 7919u) % (i % 10 == 0 ? 3000000u : 100000u);
        ck_assert_int_eq(buffer_pool_get(pool, sizes[i], (void **)&buffers[i]), 0);
        memset(buffers[i], (int)i, buffer_pool_capacity(pool, sizes[i]));
    }
    size_t wrong = 0;
    for (unsigned i = 0; i < 300; i++)
        for (size_t j = 0; j < buffer_pool_capacity(pool, sizes[i]); j++)
            wrong += buffers[i][j] != (unsigned char)i;
    ck_assert_uint_eq(wrong, 0);
    for (unsigned i = 0; i < 300; i++)
        buffer_pool_put(pool, buffers[i], sizes[i]);
    buffer_pool_free(pool);
}
END_TEST

START_TEST(spare_memory_stays_within_its_bound)
{
    struct buffer_pool *pool;
    void *buffers[8];
    size_t size = 16 * page;
    ck_assert_int_eq(buffer_pool_new(3 * size, 0, 0, false, &pool), 0);
    for (unsigned i = 0; i < 8; i++) {
        ck_assert_int_eq(buffer_pool_get(pool, size, &buffers[i]), 0);
        memset(buffers[i], 1, size);
    }
    for (unsigned i = 0; i < 8; i++)
        buffer_pool_put(pool, buffers[i], size);
    size_t pages = 0;
    for (unsigned i = 0; i < 8; i++)
        pages += resident(buffers[i], size);
    ck_assert_uint_eq(pages, 3 * 16);
    buffer_pool_free(pool);
}
END_TEST

START_TEST(few_buffers_of_many_sizes_take_no_huge_pages)
{
    struct buffer_pool *pool;
    ck_assert_int_eq(buffer_pool_new(0, 0, 1u << 20, false, &pool), 0);
    size_t pages = 0;
    for (size_t size = 2 * page; size <= (1u << 20); size *= 2) {
        unsigned char *buffer;
        ck_assert_int_eq(buffer_pool_get(pool, size, (void **)&buffer), 0);
        buffer[0] = 1;
        pages += resident(buffer, size) - 1;
    }
    ck_assert_uint_eq(pages, 0);
    buffer_pool_free(pool);
}
END_TEST

START_TEST(spare_buffers_are_handed_out_first)
{
    struct buffer_pool *pool;
    void *a, *b;
    ck_assert_int_eq(buffer_pool_new(1u << 20, 0, 1u << 20, false, &pool), 0);
    ck_assert_int_eq(buffer_pool_get(pool, 100000, &a), 0);
    memset(a, 1, 100000);
    buffer_pool_put(pool, a, 100000);
    ck_assert_int_eq(buffer_pool_get(pool, 100000, &b), 0);
    ck_assert_ptr_eq(a, b);
    buffer_pool_put(pool, b, 100000);
    buffer_pool_free(pool);
}
END_TEST

START_TEST(sizes_that_cannot_be_are_refused)
{
    struct buffer_pool *pool;
    void *buffer = NULL;
    ck_assert_int_eq(buffer_pool_new(0, 0, 0, false, &pool), 0);
    ck_assert_int_lt(buffer_pool_get(pool, SIZE_MAX, &buffer), 0);
    ck_assert_int_lt(buffer_pool_get(pool, SIZE_MAX / 2, &buffer), 0);
    ck_assert_ptr_null(buffer);
    buffer_pool_free(pool);
}
END_TEST

static void *turn_over(void *arg)
{
    struct buffer_pool *pool = arg;
    unsigned seed = (unsigned)(uintptr_t)&seed;
    for (unsigned i = 0; i < 3000; i++) {
        size_t size = 1 + (size_t)rand_r(&seed) % 200000;
        unsigned char *buffer;
        if (buffer_pool_get(pool, size, (void **)&buffer) < 0)
            return "no memory";
        unsigned char mark = (unsigned char)rand_r(&seed);
        buffer[0] = buffer[size - 1] = mark;
        sched_yield();
        if (buffer[0] != mark || buffer[size - 1] != mark)
            return "somebody else wrote there";
        buffer_pool_put(pool, buffer, size);
    }
    return NULL;
}

START_TEST(many_threads_get_buffers_of_their_own)
{
    struct buffer_pool *pool;
    pthread_t threads[8];
    ck_assert_int_eq(buffer_pool_new(1u << 20, 0, 1u << 20, false, &pool), 0);
    for (unsigned i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, turn_over, pool);
    for (unsigned i = 0; i < 8; i++) {
        void *complaint;
        pthread_join(threads[i], &complaint);
        ck_assert_ptr_null(complaint);
    }
    buffer_pool_free(pool);
}
END_TEST

int main(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    Suite *suite = suite_create("buffer_pool");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, capacity_is_whole_pages_and_at_most_a_sixteenth_more);
    tcase_add_loop_test(tests, buffers_do_not_overlap, 0, 2);
    tcase_add_test(tests, spare_memory_stays_within_its_bound);
    tcase_add_test(tests, few_buffers_of_many_sizes_take_no_huge_pages);
    tcase_add_test(tests, spare_buffers_are_handed_out_first);
    tcase_add_test(tests, sizes_that_cannot_be_are_refused);
    tcase_add_test(tests, many_threads_get_buffers_of_their_own);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
