/* The answer to INIT, byte for byte as kernels of several ages expect it. */
#include <check.h>
#include <errno.h>
#include <stdint.h>
#include <unistd.h>

#include "core.h"
#include "suite.h"

#define FROM_LINUX_6_18                                                                        \
    {                                                                                          \
        .major = 7, .minor = 45, .max_readahead = 128 << 10, .flags = 0x73fffffb               \
    }

START_TEST(a_new_kernel)
{
    const struct fuse_init_in in = FROM_LINUX_6_18;
    struct fuse_init_out out;

    ck_assert_int_eq(init_answer(&in, false, &out), 64);
    ck_assert_uint_eq(out.major, 7);
    ck_assert_uint_eq(out.minor, 31);
    ck_assert_uint_eq(out.max_readahead, 128 << 10);
    ck_assert_uint_eq(out.flags, 0x40c4a039);
    ck_assert_uint_eq(out.max_background, 512);
    ck_assert_uint_eq(out.congestion_threshold, 512);
    ck_assert_uint_eq(out.max_write, 1 << 20);
    ck_assert_uint_eq(out.time_gran, 1);
    ck_assert_uint_eq(out.max_pages, (1 << 20) / sysconf(_SC_PAGESIZE));
    ck_assert_uint_eq(out.flags2, 0);
}
END_TEST

START_TEST(access_lists_are_asked_for)
{
    struct fuse_init_in in = FROM_LINUX_6_18;
    struct fuse_init_out out;

    ck_assert_int_gt(init_answer(&in, true, &out), 0);
    ck_assert_uint_eq(out.flags, 0x40c4a039 | FUSE_POSIX_ACL);
    in.flags &= ~(uint32_t)FUSE_POSIX_ACL;
    ck_assert_int_gt(init_answer(&in, true, &out), 0);
    ck_assert_uint_eq(out.flags, 0x40c4a039);
}
END_TEST

START_TEST(an_old_kernel_is_not_asked_for_more_than_it_has)
{
    const struct fuse_init_in in = {
        .major = 7, .minor = 22, .flags = FUSE_ASYNC_READ | FUSE_BIG_WRITES};
    struct fuse_init_out out;

    ck_assert_int_eq(init_answer(&in, true, &out), FUSE_COMPAT_22_INIT_OUT_SIZE);
    ck_assert_uint_eq(out.flags, FUSE_ASYNC_READ | FUSE_BIG_WRITES);
    ck_assert_uint_eq(out.max_pages, 0);
    ck_assert_uint_eq(out.max_write, 32 * sysconf(_SC_PAGESIZE));
}
END_TEST

START_TEST(versions_that_are_not_spoken)
{
    struct fuse_init_in in = {.major = 8, .minor = 1};
    struct fuse_init_out out;

    ck_assert_int_gt(init_answer(&in, false, &out), 0);
    ck_assert_uint_eq(out.major, 7); /* the kernel asks again */
    in = (struct fuse_init_in){.major = 7, .minor = 8};
    ck_assert_int_eq(init_answer(&in, false, &out), -EPROTO);
    in = (struct fuse_init_in){.major = 6, .minor = 30};
    ck_assert_int_eq(init_answer(&in, false, &out), -EPROTO);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("init");
    TCase *tc = tcase_create("init");
    tcase_add_test(tc, a_new_kernel);
    tcase_add_test(tc, access_lists_are_asked_for);
    tcase_add_test(tc, an_old_kernel_is_not_asked_for_more_than_it_has);
    tcase_add_test(tc, versions_that_are_not_spoken);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
