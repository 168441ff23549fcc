/*
 * CPUs of a job: quotas and sets of cgroups of both versions, at every level, in a tree of
 * files that looks like a node's; and when a mask may be widened.
 */
#include "cpus.h"

#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <unistd.h>

#include "made_up_node.h"
#include "suite.h"

static struct cpus look(void)
{
    struct cpus cpus;
    cpus_look(root, &cpus);
    return cpus;
}

static void put_version_2(void)
{
    put("/proc/self/cgroup", "0::/slurm/job_1/step_0\n");
    put("/proc/self/mountinfo", "31 1 0:21 / /sys/fs/cgroup rw - cgroup2 cg rw\n");
}

START_TEST(without_limits_there_is_the_mask)
{
    struct cpus cpus = look();
    ck_assert_uint_gt(cpus.mask, 0);
    ck_assert_uint_gt(cpus.online, 0);
    ck_assert_uint_eq(cpus.quota, 0);
    ck_assert_uint_eq(cpus.cpuset, 0);
    ck_assert_uint_ge(cpus_allowed(), 1);
    ck_assert_uint_le(cpus_allowed(), cpus.mask);
}
END_TEST

START_TEST(version_2_the_least_quota_of_all_levels_counts_rounded_up)
{
    put_version_2();
    put("/sys/fs/cgroup/slurm/job_1/step_0/cpu.max", "max 100000\n");
    ck_assert_uint_eq(look().quota, 0);
    put("/sys/fs/cgroup/slurm/cpu.max", "800000 100000\n");
    ck_assert_uint_eq(look().quota, 8);
    put("/sys/fs/cgroup/slurm/job_1/cpu.max", "250000 100000\n");
    ck_assert_uint_eq(look().quota, 3);
    put("/sys/fs/cgroup/slurm/job_1/cpu.max", "50000 100000\n");
    ck_assert_uint_eq(look().quota, 1);
}
END_TEST

START_TEST(version_1_has_quota_and_set_in_hierarchies_of_their_own)
{
    put("/proc/self/cgroup", "4:cpu,cpuacct:/slurm/job_1\n7:cpuset:/slurm/job_1/step_0\n");
    put("/proc/self/mountinfo", "31 1 0:21 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
                                "32 1 0:22 / /cg/cpuset rw - cgroup cgroup rw,cpuset\n");
    put("/cg/cpu/cpu.cfs_quota_us", "-1\n");
    put("/cg/cpu/cpu.cfs_period_us", "100000\n");
    put("/cg/cpu/slurm/job_1/cpu.cfs_quota_us", "400000\n");
    put("/cg/cpu/slurm/job_1/cpu.cfs_period_us", "100000\n");
    put("/cg/cpuset/slurm/job_1/step_0/cpuset.cpus", "0-3,8,10-11\n");
    struct cpus cpus = look();
    ck_assert_uint_eq(cpus.quota, 4);
    ck_assert_uint_eq(cpus.cpuset, 7);
}
END_TEST

START_TEST(version_2_the_nearest_set_counts)
{
    put_version_2();
    put("/sys/fs/cgroup/cpuset.cpus.effective", "0-63\n");
    put("/sys/fs/cgroup/slurm/cpuset.cpus.effective", "0-15\n");
    ck_assert_uint_eq(look().cpuset, 16);
    put("/sys/fs/cgroup/slurm/job_1/step_0/cpuset.cpus.effective", "5\n");
    ck_assert_uint_eq(look().cpuset, 1);
}
END_TEST

START_TEST(what_can_not_be_understood_is_no_limit)
{
    put_version_2();
    put("/sys/fs/cgroup/slurm/job_1/cpu.max", "lots\n");
    put("/sys/fs/cgroup/slurm/cpu.max", "100000 0\n");
    put("/sys/fs/cgroup/slurm/cpuset.cpus.effective", "9-1\n");
    put("/sys/fs/cgroup/cpuset.cpus.effective", "\n");
    struct cpus cpus = look();
    ck_assert_uint_eq(cpus.quota, 0);
    ck_assert_uint_eq(cpus.cpuset, 0);
}
END_TEST

START_TEST(a_mask_is_widened_to_what_the_job_has_and_never_to_the_node)
{
    static const struct {
        struct cpus cpus;
        bool all_ours, expect;
    } cases[] = {
        {{.mask = 1, .cpuset = 16, .online = 64}, false, true},
        {{.mask = 16, .cpuset = 16, .online = 64}, false, false},
        {{.mask = 1, .cpuset = 64, .online = 64}, false, false}, /* whose are the others? */
        {{.mask = 1, .cpuset = 64, .online = 64}, true, true},
        {{.mask = 1, .cpuset = 0, .online = 64}, false, false},
        {{.mask = 1, .cpuset = 0, .online = 64}, true, true},
        {{.mask = 0, .cpuset = 16, .online = 64}, false, false}, /* not known */
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        ck_assert_int_eq(cpus_may_widen(&cases[i].cpus, cases[i].all_ours), cases[i].expect);
}
END_TEST

/* The lists that tell of the groups are gone afterwards, and the groups' files are there. */
START_TEST(groups_are_found_once)
{
    struct cpus before, now;
    cpus_look("", &before);
    if (before.cpuset == 0 || geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
        mount("none", "/proc", "tmpfs", 0, NULL) < 0) {
        printf("skipped: needs a set of CPUs and a mount namespace\n");
        return;
    }
    cpus_look("", &now);
    ck_assert_int_eq(umount2("/proc", MNT_DETACH), 0); /* who looks for leaks needs it */
    ck_assert_uint_eq(now.cpuset, before.cpuset);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cpus");
    TCase *c = tcase_create("cpus");
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, without_limits_there_is_the_mask);
    tcase_add_test(c, version_2_the_least_quota_of_all_levels_counts_rounded_up);
    tcase_add_test(c, version_1_has_quota_and_set_in_hierarchies_of_their_own);
    tcase_add_test(c, version_2_the_nearest_set_counts);
    tcase_add_test(c, what_can_not_be_understood_is_no_limit);
    tcase_add_test(c, a_mask_is_widened_to_what_the_job_has_and_never_to_the_node);
    tcase_add_test(c, groups_are_found_once);
    suite_add_tcase(s, c);
    return run_suite(s);
}
