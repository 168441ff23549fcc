/* How each suite runs: with a process for each test, and as the environment wants its words. */
#ifndef ONEPOT_TESTS_SUITE_H
#define ONEPOT_TESTS_SUITE_H

#include <check.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/*
 * At each assertion Check writes to a file where the test is, for its message if it crashes.
 * Here each place in the source says so once: tests of damaged images make millions of
 * assertions, and took five times as long for those writes.
 */
static inline void suite_mark(char *is_marked, const char *file, int line)
{
    if (!__atomic_exchange_n(is_marked, 1, __ATOMIC_RELAXED))
        _mark_point(file, line);
}

#define _mark_point(file, line)                                                                \
    __extension__({                                                                            \
        static char is_marked_;                                                                \
        suite_mark(&is_marked_, file, line);                                                   \
    })

/* Four seconds a test, which is Check's default, are few on a machine that others use, too. */
__attribute__((constructor)) static void give_time(void)
{
    setenv("CK_DEFAULT_TIMEOUT", "120", 0);
}

/*
 * Where tests have their files. It is removed by the process that runs all tests: one that
 * fails ends before its fixture is undone.
 */
#define SUITE_FOLDER "ONEPOT_SUITE_FOLDER"

/* A folder of its own in there, for a test or a fixture. */
static inline void suite_make_folder(const char *name, char *ret_path, size_t size)
{
    int len = snprintf(ret_path, size, "%s/%s-XXXXXX", getenv(SUITE_FOLDER), name);
    ck_assert_int_lt(len, (int)size);
    ck_assert_ptr_nonnull(mkdtemp(ret_path));
}

/* The same bytes each time, without a pattern. */
static inline void suite_fill_noise(void *bytes, size_t len)
{
    unsigned char *to = (unsigned char *)bytes;
    uint32_t x = 1;
    for (size_t i = 0; i < len; i++) {
        x = x * 1664525u + 1013904223u;
        to[i] = (unsigned char)(x >> 24);
    }
}

/*
 * A suite that makes many files, and needs no disk for what it tests, defines SUITE_IN_MEMORY:
 * an ext4 without a journal looks at every inode that was lately removed before it gives a new
 * one.
 */
static inline const char *suite_place(void)
{
#ifdef SUITE_IN_MEMORY
    const char *memory = getenv("ONEPOT_TESTS_MEMORY"); /* of run_build, where there is room */
    if (memory)
        return memory;
#endif
    return "/tmp";
}

static inline int run_suite(Suite *suite)
{
    char suite_folder[80], remove_it[100];
    snprintf(suite_folder, sizeof(suite_folder), "%.50s/onepot-suite.XXXXXX", suite_place());
    if (!mkdtemp(suite_folder) || setenv(SUITE_FOLDER, suite_folder, 1) < 0)
        return EXIT_FAILURE;
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    snprintf(remove_it, sizeof(remove_it), "rm -rf '%s'", suite_folder);
    failed |= system(remove_it);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
