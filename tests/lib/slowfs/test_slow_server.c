/*
 * The model behind slowfs, with a clock of the tests' own: when operations are due.
 */
#include <check.h>
#include <stdlib.h>

#include "server.h"
#include "suite.h"

#define MS UINT64_C(1000000)

static struct server *server;

static void make(struct server_config config)
{
    ck_assert_int_eq(server_new(&config, &server), 0);
}

static void teardown(void)
{
    server_free(server);
    server = NULL;
}

static struct op op_of(enum op_kind kind, uint64_t bytes)
{
    return (struct op){.kind = kind, .bytes = bytes};
}

START_TEST(each_kind_has_its_latency)
{
    struct op lookup = op_of(OP_LOOKUP, 0), data = op_of(OP_READ, 5);
    make((struct server_config){.latency_ns = {[OP_LOOKUP] = 3 * MS, [OP_READ] = MS}});
    server_submit(server, &lookup, 100);
    server_submit(server, &data, 200);
    ck_assert_uint_eq(server_next_ns(server), 200 + MS);
    ck_assert_ptr_null(server_take(server, 199 + MS));
    ck_assert_ptr_eq(server_take(server, 200 + MS), &data);
    ck_assert_ptr_null(server_take(server, 99 + 3 * MS));
    ck_assert_ptr_eq(server_take(server, 100 + 3 * MS), &lookup);
    ck_assert_uint_eq(server_next_ns(server), UINT64_MAX);
}
END_TEST

START_TEST(operations_in_flight_share_their_latency)
{
    enum { COUNT = 1000 };
    struct op ops[COUNT];
    make((struct server_config){.latency_ns = {[OP_GETATTR] = MS}});
    for (int i = 0; i < COUNT; i++) {
        ops[i] = op_of(OP_GETATTR, 0);
        server_submit(server, &ops[i], 0);
    }
    ck_assert_uint_eq(server_counts(server)->peak_in_flight, COUNT);
    ck_assert_ptr_null(server_take(server, MS - 1));
    for (int i = 0; i < COUNT; i++)
        ck_assert_ptr_nonnull(server_take(server, MS));
    ck_assert_uint_eq(server_counts(server)->in_flight, 0);
    ck_assert_uint_eq(server_counts(server)->ops[OP_GETATTR], COUNT);
}
END_TEST

START_TEST(who_finds_no_place_waits_for_one)
{
    struct op ops[5];
    make((struct server_config){.latency_ns = {[OP_OPEN] = MS}, .limit = 2});
    for (int i = 0; i < 5; i++) {
        ops[i] = op_of(OP_OPEN, 0);
        server_submit(server, &ops[i], 0);
    }
    ck_assert_uint_eq(server_counts(server)->waited, 3);
    for (int i = 0; i < 5; i++) {
        uint64_t due = (uint64_t)(i / 2 + 1) * MS;
        ck_assert_ptr_null(server_take(server, due - 1));
        ck_assert_uint_eq(server_take(server, due)->due_ns, due);
    }
}
END_TEST

START_TEST(one_link_carries_all_bytes)
{
    struct op ops[10];
    make((struct server_config){.latency_ns = {[OP_READ] = MS}, .bytes_per_s = 1000000});
    for (int i = 0; i < 10; i++) {
        ops[i] = op_of(OP_READ, 1000); /* a millisecond each on the link */
        server_submit(server, &ops[i], 0);
    }
    for (uint64_t i = 0; i < 10; i++)
        ck_assert_uint_eq(server_take(server, UINT64_MAX)->due_ns, (i + 2) * MS);
    ck_assert_uint_eq(server_counts(server)->bytes, 10000);
    /* A link that was idle is not ahead of time. */
    server_submit(server, &ops[0], 100 * MS);
    ck_assert_uint_eq(server_next_ns(server), 102 * MS);
    ck_assert_ptr_nonnull(server_take(server, UINT64_MAX));
}
END_TEST

START_TEST(a_late_owner_does_not_slow_the_rate)
{
    struct op ops[6];
    make((struct server_config){.latency_ns = {[OP_READ] = MS}, .limit = 1});
    for (int i = 0; i < 6; i++) {
        ops[i] = op_of(OP_READ, 0);
        server_submit(server, &ops[i], 0);
    }
    /* It looks after 4.5 ms only: four were due, the fifth is due at 5 ms as ever. */
    for (int i = 0; i < 4; i++)
        ck_assert_ptr_nonnull(server_take(server, 4 * MS + MS / 2));
    ck_assert_ptr_null(server_take(server, 4 * MS + MS / 2));
    ck_assert_uint_eq(server_next_ns(server), 5 * MS);
    while (server_take(server, UINT64_MAX))
        ;
}
END_TEST

START_TEST(the_heap_sorts)
{
    enum { COUNT = 3000 };
    static struct op ops[COUNT];
    uint64_t last = 0;
    make((struct server_config){.latency_ns = {[OP_LOOKUP] = 1}});
    for (uint64_t i = 0; i < COUNT; i++) {
        ops[i] = op_of(OP_LOOKUP, 0);
        server_submit(server, &ops[i], i * 7919 % COUNT);
    }
    for (int i = 0; i < COUNT; i++) {
        struct op *op = server_take(server, UINT64_MAX);
        ck_assert_ptr_nonnull(op);
        ck_assert_uint_ge(op->due_ns, last);
        last = op->due_ns;
    }
    ck_assert_ptr_null(server_take(server, UINT64_MAX));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("slow_server");
    TCase *c = tcase_create("slow_server");
    tcase_add_checked_fixture(c, NULL, teardown);
    tcase_add_test(c, each_kind_has_its_latency);
    tcase_add_test(c, operations_in_flight_share_their_latency);
    tcase_add_test(c, who_finds_no_place_waits_for_one);
    tcase_add_test(c, one_link_carries_all_bytes);
    tcase_add_test(c, a_late_owner_does_not_slow_the_rate);
    tcase_add_test(c, the_heap_sorts);
    suite_add_tcase(s, c);
    return run_suite(s);
}
