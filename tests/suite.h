/* How each suite runs: with a process for each test, and as the environment wants its words. */
#ifndef ONEPOT_TESTS_SUITE_H
#define ONEPOT_TESTS_SUITE_H

#include <check.h>
#include <stdlib.h>

/* Four seconds a test, which is Check's default, are few on a machine that others use, too. */
__attribute__((constructor)) static void give_time(void)
{
    setenv("CK_DEFAULT_TIMEOUT", "120", 0);
}

static inline int run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
