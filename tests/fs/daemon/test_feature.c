/* The order in which features are called, and which are not. */
#include <check.h>
#include <errno.h>
#include <string.h>

#include "core.h"
#include "suite.h"

static char calls[64];
static struct session session;

static void called(char what)
{
    calls[strlen(calls)] = what;
}

static int start(struct session *s, void **ret_state)
{
    *ret_state = s;
    return 0;
}

static int start_idle(struct session *s, void **ret_state)
{
    (void)s;
    (void)ret_state;
    return 0;
}

static int start_in_vain(struct session *s, void **ret_state)
{
    *ret_state = s;
    return -ENOMEM;
}

static int before_a(void *state, struct read *read)
{
    (void)state;
    called('a');
    return read->offset == 13 ? -EIO : 0;
}

static int before_b(void *state, struct read *read)
{
    (void)state;
    (void)read;
    called('b');
    return 0;
}

static void after_a(void *state, struct read *read)
{
    (void)state;
    called(read->result < 0 ? 'X' : 'A');
}

static void after_b(void *state, struct read *read)
{
    (void)state;
    called('B');
    if (read->offset == 7)
        read->result = -EBADMSG;
}

static void free_a(void *state)
{
    (void)state;
    called('1');
}

static void free_b(void *state)
{
    (void)state;
    called('2');
}

static const struct feature a = {
    .start = start, .before_read = before_a, .after_read = after_a, .free = free_a};
static const struct feature b = {
    .start = start, .before_read = before_b, .after_read = after_b, .free = free_b};
static const struct feature idle = {
    .start = start_idle, .before_read = before_b, .free = free_b};
static const struct feature other = {.start = start, .free = free_b};
static const struct feature in_vain = {.start = start_in_vain, .free = free_b};

static int start_all(const struct feature *const *list)
{
    memset(&session, 0, sizeof(session));
    memset(calls, 0, sizeof(calls));
    pthread_mutex_init(&session.counters_lock, NULL);
    session.config.features = list;
    return features_start(&session);
}

static int read_at(uint64_t offset)
{
    struct read read = {.offset = offset};

    calls[0] = '\0';
    read.result = features_before_read(&session.reading, &read);
    features_after_read(&session.reading, &read);
    return read.result;
}

START_TEST(reads_go_through_in_order_and_come_back_in_reverse)
{
    static const struct feature *const list[] = {&a, &idle, &b, NULL};

    ck_assert_int_eq(start_all(list), 0);
    ck_assert_int_eq(read_at(0), 0);
    ck_assert_str_eq(calls, "abBA");
}
END_TEST

START_TEST(an_error_before_keeps_later_features_from_the_read)
{
    static const struct feature *const list[] = {&a, &b, NULL};

    ck_assert_int_eq(start_all(list), 0);
    ck_assert_int_eq(read_at(13), -EIO);
    ck_assert_str_eq(calls, "aBX");
}
END_TEST

START_TEST(an_error_afterwards_is_seen_by_those_before)
{
    static const struct feature *const list[] = {&a, &b, NULL};

    ck_assert_int_eq(start_all(list), 0);
    ck_assert_int_eq(read_at(7), -EBADMSG);
    ck_assert_str_eq(calls, "abBX");
}
END_TEST

START_TEST(a_feature_without_state_is_not_called)
{
    static const struct feature *const list[] = {&idle, NULL};

    ck_assert_int_eq(start_all(list), 0);
    ck_assert_int_eq(read_at(0), 0);
    features_free(&session.features);
    ck_assert_str_eq(calls, "");
}
END_TEST

START_TEST(a_read_meets_only_features_that_have_to_do_with_reads)
{
    static const struct feature *const list[] = {&other, &a, &other, &b, NULL};

    ck_assert_int_eq(start_all(list), 0);
    ck_assert_uint_eq(session.features.count, 4);
    ck_assert_uint_eq(session.reading.count, 2);
    ck_assert_int_eq(read_at(0), 0);
    ck_assert_str_eq(calls, "abBA");
}
END_TEST

START_TEST(what_a_failed_start_left_is_freed_in_reverse)
{
    static const struct feature *const list[] = {&a, &in_vain, &b, NULL};

    ck_assert_int_eq(start_all(list), -ENOMEM);
    features_free(&session.features);
    ck_assert_str_eq(calls, "21");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("feature");
    TCase *tc = tcase_create("feature");
    tcase_add_test(tc, reads_go_through_in_order_and_come_back_in_reverse);
    tcase_add_test(tc, an_error_before_keeps_later_features_from_the_read);
    tcase_add_test(tc, an_error_afterwards_is_seen_by_those_before);
    tcase_add_test(tc, a_feature_without_state_is_not_called);
    tcase_add_test(tc, a_read_meets_only_features_that_have_to_do_with_reads);
    tcase_add_test(tc, what_a_failed_start_left_is_freed_in_reverse);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
