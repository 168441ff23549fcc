/* Which scheduling policy a worker of the daemon has, by how long it waited for its CPU. */
#include <check.h>

#include "policy.h"
#include "suite.h"

#define MS UINT64_C(1000000)

static uint64_t waited_ns, turns;

/* So many turns, each of which it waited for so long. */
static bool look(struct policy *p, uint64_t at_ns, unsigned more, uint64_t each_ns)
{
    turns += more;
    waited_ns += more * each_ns;
    return policy_is_ordinary(p, at_ns, waited_ns, turns);
}

START_TEST(batch_where_nobody_else_runs)
{
    struct policy p = {.stat_fd = -1};

    ck_assert(look(&p, 1000 * MS, 8, 5000)); /* begins now */
    ck_assert(look(&p, 1099 * MS, 8, 5000));
    ck_assert(!look(&p, 1100 * MS, 8, 5000));
    for (unsigned i = 1; i < 1000; i++)
        ck_assert(!look(&p, (1100 + i) * MS, 8, 20000));
    ck_assert(!look(&p, 2200 * MS, 0, 0));
}
END_TEST

START_TEST(ordinary_where_others_run_and_longer_each_time)
{
    struct policy p = {.stat_fd = -1};
    uint64_t at_ns = 1000 * MS, ordinary_ns = 100 * MS;

    ck_assert(look(&p, at_ns, 8, 0));
    for (unsigned i = 0; i < 12; i++) {
        ck_assert(
            look(&p, at_ns + ordinary_ns - 1, 8, 1000));    /* does not wait, being ordinary */
        ck_assert(!look(&p, at_ns + ordinary_ns, 8, 1000)); /* tries */
        at_ns += ordinary_ns + 20 * MS;
        ck_assert(look(&p, at_ns, 8, 3 * MS)); /* in vain */
        ordinary_ns = ordinary_ns * 2 < 64000 * MS ? ordinary_ns * 2 : 64000 * MS;
    }
    /* It goes well for long, then it is tried again soon. */
    at_ns += ordinary_ns;
    ck_assert(!look(&p, at_ns, 8, 1000));
    at_ns += 100000 * MS;
    ck_assert(!look(&p, at_ns, 8, 1000));
    ck_assert(look(&p, at_ns + MS, 8, 3 * MS));
    ck_assert(!look(&p, at_ns + 101 * MS, 8, 1000));
}
END_TEST

START_TEST(a_thread_asks_the_kernel)
{
    struct policy p;

    policy_begin(&p);
    for (unsigned i = 0; i < 100; i++)
        policy_after_request(&p);
    ck_assert_uint_eq(p.requests, p.stat_fd < 0 ? 0 : 100);
    policy_end(&p);
    policy_after_request(&p);
    ck_assert_int_eq(p.stat_fd, -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("policy");
    TCase *cases = tcase_create("policy");
    tcase_add_test(cases, batch_where_nobody_else_runs);
    tcase_add_test(cases, ordinary_where_others_run_and_longer_each_time);
    tcase_add_test(cases, a_thread_asks_the_kernel);
    suite_add_tcase(suite, cases);
    return run_suite(suite);
}
