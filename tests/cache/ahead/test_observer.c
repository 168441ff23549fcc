/*
 * Observations arrive once each, in the order of their times, or are counted as lost; whoever
 * sleeps until there is one is woken.
 */
#include "observer.h"

#include <check.h>
#include <pthread.h>
#include <semaphore.h>

#include "suite.h"

static void *note_many(void *arg)
{
    struct observer *o = arg;

    for (uint32_t i = 0; i < 100000; i++) {
        const struct observation one = {.time_ns = i, .position = i};
        observer_note(o, &one);
    }
    return NULL;
}

START_TEST(observations_arrive_once_or_are_counted_as_lost)
{
    struct observers *all;
    struct observer *mine[3];
    pthread_t threads[3];
    static struct observation batch[1000];
    uint64_t got = 0;

    ck_assert_int_eq(observers_new(&all), 0);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(observer_new(all, &mine[i]), 0);
    for (unsigned i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, note_many, mine[i]), 0);
    while (got + observers_lost(all) < 300000) {
        unsigned n = observers_take(all, batch, 1000);
        for (unsigned i = 1; i < n; i++)
            ck_assert_uint_le(batch[i - 1].time_ns, batch[i].time_ns);
        got += n;
        if (n == 0)
            observers_wait(all, 100);
    }
    for (unsigned i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    ck_assert_uint_eq(got + observers_take(all, batch, 1000) + observers_lost(all), 300000);
    observers_free(all);
}
END_TEST

#define TURNS 2000u

struct turns {
    struct observer *observer;
    sem_t next;
};

static void *note_in_turn(void *arg)
{
    struct turns *t = arg;

    for (uint32_t i = 0; i < TURNS; i++) {
        const struct observation one = {.position = i};
        sem_wait(&t->next);
        observer_note(t->observer, &one);
    }
    return NULL;
}

/* Mostly it sleeps by then; now and then the observation comes first. */
START_TEST(one_that_sleeps_is_woken_by_the_first)
{
    struct observers *all;
    struct observation got;
    struct turns turns;
    pthread_t thread;

    ck_assert_int_eq(observers_new(&all), 0);
    ck_assert_int_eq(observer_new(all, &turns.observer), 0);
    ck_assert_int_eq(sem_init(&turns.next, 0, 0), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, note_in_turn, &turns), 0);
    for (uint32_t i = 0; i < TURNS; i++) {
        sem_post(&turns.next);
        while (observers_take(all, &got, 1) == 0)
            observers_wait(all, 0);
        ck_assert_uint_eq(got.position, i);
    }
    pthread_join(thread, NULL);
    observers_free(all);
}
END_TEST

/* The first observations are taken, the others counted. */
START_TEST(a_full_ring_loses_what_comes_next)
{
    static struct observation batch[OBSERVER_RING];
    struct observers *all;
    struct observer *mine;

    ck_assert_int_eq(observers_new(&all), 0);
    ck_assert_int_eq(observer_new(all, &mine), 0);
    for (uint32_t i = 0; i < OBSERVER_RING + 10; i++) {
        const struct observation one = {.position = i};
        observer_note(mine, &one);
    }
    ck_assert_uint_eq(observers_lost(all), 10);
    ck_assert_uint_eq(observers_take(all, batch, OBSERVER_RING), OBSERVER_RING);
    ck_assert_uint_eq(batch[OBSERVER_RING - 1].position, OBSERVER_RING - 1);
    observers_free(all);
}
END_TEST

START_TEST(a_call_that_comes_before_the_sleep_is_not_lost)
{
    struct observers *all;

    ck_assert_int_eq(observers_new(&all), 0);
    observers_wake(all);
    observers_wait(all, 0);
    observers_free(all);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("observer");
    TCase *c = tcase_create("observer");
    tcase_add_test(c, observations_arrive_once_or_are_counted_as_lost);
    tcase_add_test(c, one_that_sleeps_is_woken_by_the_first);
    tcase_add_test(c, a_full_ring_loses_what_comes_next);
    tcase_add_test(c, a_call_that_comes_before_the_sleep_is_not_lost);
    suite_add_tcase(s, c);
    return run_suite(s);
}
