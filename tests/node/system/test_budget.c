/*
 * What a job may use: limits of cgroups of both versions, at every level, in a tree of
 * files that looks like a node's.
 */
#include "budget.h"
#include "made_up_node.h"
#include "suite.h"

#define GB (UINT64_C(1) << 30)

START_TEST(without_limits_it_is_what_the_node_has_left)
{
    ck_assert_uint_eq(budget_memory_bytes(root), UINT64_MAX);
    put("/proc/meminfo", "MemTotal: 99 kB\nMemAvailable:   8388608 kB\n");
    ck_assert_uint_eq(budget_memory_bytes(root), 8 * GB);
}
END_TEST

START_TEST(version_2_the_least_limit_of_all_levels_counts)
{
    put("/proc/meminfo", "MemAvailable: 104857600 kB\n");
    put("/proc/self/cgroup", "0::/slurm/job_1/step_0\n");
    put("/proc/self/mountinfo",
        "30 1 0:20 / /proc rw - proc proc rw\n"
        "31 1 0:21 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cg rw\n");
    put("/sys/fs/cgroup/slurm/job_1/step_0/memory.max", "max\n");
    put("/sys/fs/cgroup/slurm/job_1/memory.max", "4294967296\n");
    put("/sys/fs/cgroup/slurm/memory.max", "8589934592\n");
    ck_assert_uint_eq(budget_memory_bytes(root), 4 * GB);
    put("/sys/fs/cgroup/slurm/memory.high", "2147483648\n");
    ck_assert_uint_eq(budget_memory_bytes(root), 2 * GB);
}
END_TEST

START_TEST(version_1_is_found_by_its_controller)
{
    put("/proc/meminfo", "MemAvailable: 104857600 kB\n");
    put("/proc/self/cgroup", "11:cpuset:/wrong\n4:cpu,memory:/slurm/job_1\n0::/\n");
    put("/proc/self/mountinfo",
        "31 1 0:21 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n"
        "32 1 0:22 / /cg/my\\040memory rw - cgroup cgroup rw,cpu,memory\n"
        "33 1 0:23 / /cg/unified rw - cgroup2 cgroup2 rw\n");
    put("/cg/my memory/slurm/job_1/memory.limit_in_bytes", "3221225472\n");
    put("/cg/my memory/memory.limit_in_bytes", "9223372036854771712\n");
    ck_assert_uint_eq(budget_memory_bytes(root), 3 * GB);
}
END_TEST

START_TEST(in_a_container_the_mounted_part_is_the_top)
{
    put("/proc/meminfo", "MemAvailable: 104857600 kB\n");
    put("/proc/self/cgroup", "0::/docker/abc/inner\n");
    put("/proc/self/mountinfo", "31 1 0:21 /docker/abc /sys/fs/cgroup ro - cgroup2 cg rw\n");
    put("/sys/fs/cgroup/memory.max", "1073741824\n");
    put("/sys/fs/cgroup/inner/memory.max", "max\n");
    ck_assert_uint_eq(budget_memory_bytes(root), GB);
}
END_TEST

START_TEST(what_can_not_be_understood_is_no_limit)
{
    put("/proc/meminfo", "MemAvailable: 1048576 kB\n");
    put("/proc/self/cgroup", "\n:::\nno colons\n0::\n4:memory\n");
    put("/proc/self/mountinfo", "\n1\n1 2 3\n1 2 x:y / / rw - cgroup2 c rw\n1 2 0:1 / /a rw\n");
    ck_assert_uint_eq(budget_memory_bytes(root), GB);
}
END_TEST

START_TEST(the_cache_gets_a_quarter_within_reason)
{
    ck_assert_uint_ge(budget_cache_bytes(), UINT64_C(16) << 20);
    ck_assert_uint_le(budget_cache_bytes(), UINT64_C(1) << 40);
}
END_TEST

START_TEST(pages_of_files_can_be_given_back)
{
    put("/proc/meminfo", "MemAvailable: 104857600 kB\n");
    put("/proc/self/cgroup", "0::/job\n");
    put("/proc/self/mountinfo", "31 1 0:21 / /cg rw - cgroup2 cg rw\n");
    put("/cg/job/memory.max", "4294967296\n");
    put("/cg/job/memory.current", "3221225472\n");
    ck_assert_uint_eq(budget_free_bytes(root), GB);
    put("/cg/job/memory.stat", "anon 7\nfile 2147483648\ninactive_anon 536870912\n"
                               "inactive_file 1073741824\nactive_file 536870912\n");
    ck_assert_uint_eq(budget_room_bytes(root), GB);
    ck_assert_uint_eq(budget_free_bytes(root), 2 * GB + GB / 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("budget");
    TCase *c = tcase_create("budget");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, without_limits_it_is_what_the_node_has_left);
    tcase_add_test(c, version_2_the_least_limit_of_all_levels_counts);
    tcase_add_test(c, version_1_is_found_by_its_controller);
    tcase_add_test(c, in_a_container_the_mounted_part_is_the_top);
    tcase_add_test(c, what_can_not_be_understood_is_no_limit);
    tcase_add_test(c, pages_of_files_can_be_given_back);
    tcase_add_test(c, the_cache_gets_a_quarter_within_reason);
    suite_add_tcase(s, c);
    return run_suite(s);
}
