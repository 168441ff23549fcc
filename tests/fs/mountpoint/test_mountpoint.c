/*
 * Mount points without mounting anything: their true paths, the table of the kernel,
 * the ways that are allowed, what is said when all of them fail.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mountinfo.h"
#include "mountpoint.h"
#include "process.h"
#include "suite.h"

static char base[PATH_MAX];

static void setup(void)
{
    char folder[64];
    suite_make_folder("mountpoint", folder, sizeof(folder));
    ck_assert_ptr_nonnull(realpath(folder, base));
    ck_assert_int_eq(chdir(base), 0);
}

static void check_resolve(const char *given, const char *below)
{
    char path[PATH_MAX], expected[PATH_MAX + 64];
    ck_assert_int_eq(mountinfo_resolve(given, path), 0);
    snprintf(expected, sizeof(expected), "%s%s", below[0] == '/' ? "" : base, below);
    if (below[0] && below[0] != '/')
        snprintf(expected, sizeof(expected), "%s/%s", base, below);
    ck_assert_str_eq(path, expected);
}

START_TEST(paths_are_made_canonical_without_the_last_component)
{
    mkdir("dir", 0700);
    check_resolve("dir", "dir");
    check_resolve("./dir//", "dir");
    check_resolve("dir/../dir", "dir");
    check_resolve("dir/.", "dir");
    check_resolve(".", "");
    check_resolve("absent", "absent");
    check_resolve("/", "/");
    check_resolve("/proc", "/proc");
}
END_TEST

START_TEST(links_are_followed_to_where_the_mount_would_be)
{
    char absolute[PATH_MAX + 8], path[PATH_MAX];
    mkdir("dir", 0700);
    snprintf(absolute, sizeof(absolute), "%s/dir", base);
    ck_assert_int_eq(symlink("dir", "relative") | symlink(absolute, "absolute") |
                         symlink("relative", "twice") | symlink("nowhere", "dangling") |
                         symlink("loop", "loop"),
                     0);
    check_resolve("relative", "dir");
    check_resolve("absolute/", "dir");
    check_resolve("twice", "dir");
    check_resolve("dangling", "nowhere");
    ck_assert_int_eq(mountinfo_resolve("loop", path), -ELOOP);
}
END_TEST

/* A user moves a folder away and puts a link there: root must not unmount what it leads to. */
START_TEST(what_a_link_in_the_path_leads_to_is_not_unmounted)
{
    char path[PATH_MAX + 16];
    ck_assert_int_eq(mkdir("real", 0700) | mkdir("real/at", 0700), 0);
    ck_assert_int_eq(symlink("real", "link"), 0);
    snprintf(path, sizeof(path), "%s/link/at", base);
    ck_assert_int_eq(mountpoint_unmount(path, false), -ELOOP);
    ck_assert_int_eq(mountpoint_unmount(path, true), -ELOOP);
    snprintf(path, sizeof(path), "%s/real/at", base);
    ck_assert_int_eq(mountpoint_unmount(path, false), -EINVAL);
}
END_TEST

START_TEST(paths_that_can_not_be_are_errors)
{
    char path[PATH_MAX], longest[PATH_MAX + 10];
    ck_assert_int_eq(mountinfo_resolve("", path), -ENOENT);
    ck_assert_int_eq(mountinfo_resolve("absent/dir", path), -ENOENT);
    memset(longest, 'x', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    ck_assert_int_eq(mountinfo_resolve(longest, path), -ENAMETOOLONG);
}
END_TEST

START_TEST(the_kernel_s_table_is_read)
{
    struct mount_entry entry;
    struct stat st;
    ck_assert_int_eq(mountinfo_find("/proc", &entry), 0);
    ck_assert_str_eq(entry.path, "/proc");
    ck_assert(!entry.is_onepot);
    ck_assert_int_eq(stat("/proc", &st), 0);
    ck_assert(mountinfo_has("/proc", entry.dev_major, entry.dev_minor));
    ck_assert(!mountinfo_has("/proc", entry.dev_major, entry.dev_minor + 12345));
    ck_assert(!mountinfo_has(base, entry.dev_major, entry.dev_minor));
    ck_assert_int_eq(mountinfo_find(base, &entry), -ENOENT);
}
END_TEST

START_TEST(ways_to_mount_can_be_left_out)
{
    unsigned methods;
    unsetenv("ONEPOT_MOUNT_METHODS");
    ck_assert_int_eq(mount_methods(&methods), 0);
    ck_assert_uint_eq(methods, 15);
    setenv("ONEPOT_MOUNT_METHODS", "fusermount,mount", 1);
    ck_assert_int_eq(mount_methods(&methods), 0);
    ck_assert_uint_eq(methods, MOUNT_BY_SYSCALL | MOUNT_BY_FUSERMOUNT);
    setenv("ONEPOT_MOUNT_METHODS", "fusermount4", 1);
    ck_assert_int_eq(mount_methods(&methods), -EINVAL);
    setenv("ONEPOT_MOUNT_METHODS", "mount,,namespace", 1);
    ck_assert_int_eq(mount_methods(&methods), -EINVAL);
}
END_TEST

START_TEST(a_report_says_once_who_said_what_and_stays_within_its_bounds)
{
    char report[MOUNT_REPORT_MAX] = "";
    mount_report_add(report, "mount(2)", "Operation not permitted");
    mount_report_add(report, "fusermount3", "fusermount3: mount failed: Permission denied");
    ck_assert_str_eq(report, "mount(2): Operation not permitted; "
                             "fusermount3: mount failed: Permission denied");
    for (int i = 0; i < 100; i++)
        mount_report_add(report, "fusermount", "something long that a helper may have said");
    ck_assert_uint_eq(strlen(report), sizeof(report) - 1);
}
END_TEST

START_TEST(a_helper_is_looked_for_in_the_path_first)
{
    char found[PATH_MAX], expected[PATH_MAX + 64];
    snprintf(expected, sizeof(expected), "%s/fusermount3", base);
    FILE *f = fopen(expected, "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    setenv("PATH", base, 1);
    if (process_find_program("fusermount3", found) == 0)
        ck_assert_str_ne(found, expected); /* it can't be executed */
    chmod(expected, 0700);
    ck_assert_int_eq(process_find_program("fusermount3", found), 0);
    ck_assert_str_eq(found, expected);
    setenv("PATH", ".:relative", 1); /* not from wherever we happen to be */
    if (process_find_program("fusermount3", found) == 0)
        ck_assert_str_ne(found, expected);
    ck_assert_int_eq(process_find_program("fusermount-of-nobody", found), -ENOENT);
}
END_TEST

/* What a helper may do wrong: a program of our own in its place. */
static int mount_with_helper(const char *script, char said[FUSERMOUNT_SAID_MAX])
{
    char path[PATH_MAX + 64];
    int fd = -1;
    snprintf(path, sizeof(path), "%s/helper", base);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fprintf(f, "#!/bin/sh\n%s\n", script);
    fclose(f);
    chmod(path, 0700);
    int r = fusermount_mount(path, base, "ro", said, &fd);
    if (r < 0)
        ck_assert_int_eq(fd, -1);
    return r;
}

START_TEST(a_helper_that_fails_is_quoted)
{
    char said[FUSERMOUNT_SAID_MAX];
    ck_assert_int_eq(mount_with_helper("echo first >&2; echo second >&2; exit 1", said),
                     -EPERM);
    ck_assert_str_eq(said, "first");
    ck_assert_int_eq(mount_with_helper("exit 7", said), -EPERM);
    ck_assert_ptr_nonnull(strstr(said, "exit status 7"));
    ck_assert_int_eq(mount_with_helper("kill -9 $$", said), -EPERM);
    ck_assert_int_lt(mount_with_helper("exit 0", said), 0); /* and no descriptor */
    ck_assert_ptr_nonnull(strstr(said, "sent no descriptor"));
    ck_assert_int_eq(mount_with_helper("head -c 100000 /dev/zero | tr '\\0' x; exit 1", said),
                     -EPERM);
    ck_assert_uint_eq(strlen(said), FUSERMOUNT_SAID_MAX - 1);
}
END_TEST

START_TEST(a_helper_is_told_mount_point_options_and_socket_and_gets_the_c_locale)
{
    char said[FUSERMOUNT_SAID_MAX], expected[PATH_MAX + 64];
    setenv("LC_ALL", "de_DE.UTF-8", 1);
    mount_with_helper(
        "echo \"$* $LC_ALL $(test -S /dev/fd/$_FUSE_COMMFD && echo socket)\"; exit 1", said);
    snprintf(expected, sizeof(expected), "-o ro -- %s C socket", base);
    ck_assert_str_eq(said, expected);
}
END_TEST

START_TEST(a_helper_is_told_a_name_with_commas_as_one_option)
{
    char report[MOUNT_REPORT_MAX] = "";
    struct mounted mounted;
    struct mount_request rq = {.methods = MOUNT_BY_FUSERMOUNT3,
                               .mountpoint = base,
                               .fsname = "a,b\\c.tar",
                               .noexec = true};
    char said[FUSERMOUNT_SAID_MAX];
    mount_with_helper("printf %s \"$2\"; exit 1", said);
    ck_assert_int_eq(rename("helper", "fusermount3"), 0);
    setenv("PATH", base, 1);
    ck_assert_int_eq(mountpoint_mount(&rq, report, &mounted), -EPERM);
    ck_assert_ptr_nonnull(strstr(report, ",noexec,fsname=a\\,b\\\\c.tar"));
}
END_TEST

START_TEST(busy_is_known_from_other_failures)
{
    char path[PATH_MAX + 64], said[FUSERMOUNT_SAID_MAX];
    snprintf(path, sizeof(path), "%s/helper", base);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs("#!/bin/sh\n[ \"$1\" = -uz ] && { echo no; exit 1; }\n"
          "echo \"fusermount: failed to unmount $3: Device or resource busy\"; exit 1\n",
          f);
    fclose(f);
    chmod(path, 0700);
    ck_assert_int_eq(fusermount_unmount(path, base, false, said), -EBUSY);
    ck_assert_int_eq(fusermount_unmount(path, base, true, said), -EPERM);
    ck_assert_int_eq(fusermount_unmount("/nonexistent", base, false, said), -ENOENT);
}
END_TEST

START_TEST(what_answers_is_told_from_what_does_not)
{
    ck_assert_int_eq(mountpoint_answers(base, 5000), 0);
    ck_assert_int_eq(mountpoint_answers("absent", 5000), -ENOENT);
}
END_TEST

START_TEST(unmounting_what_is_not_mounted_says_so)
{
    int r = mountpoint_unmount(base, false);
    ck_assert(r == -EINVAL || (geteuid() != 0 && r < 0));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("mountpoint");
    TCase *c = tcase_create("mountpoint");
    tcase_set_timeout(c, 120);
    tcase_add_checked_fixture(c, setup, NULL);
    tcase_add_test(c, paths_are_made_canonical_without_the_last_component);
    tcase_add_test(c, links_are_followed_to_where_the_mount_would_be);
    tcase_add_test(c, what_a_link_in_the_path_leads_to_is_not_unmounted);
    tcase_add_test(c, paths_that_can_not_be_are_errors);
    tcase_add_test(c, the_kernel_s_table_is_read);
    tcase_add_test(c, ways_to_mount_can_be_left_out);
    tcase_add_test(c, a_report_says_once_who_said_what_and_stays_within_its_bounds);
    tcase_add_test(c, a_helper_is_looked_for_in_the_path_first);
    tcase_add_test(c, a_helper_that_fails_is_quoted);
    tcase_add_test(c, a_helper_is_told_mount_point_options_and_socket_and_gets_the_c_locale);
    tcase_add_test(c, a_helper_is_told_a_name_with_commas_as_one_option);
    tcase_add_test(c, busy_is_known_from_other_failures);
    tcase_add_test(c, what_answers_is_told_from_what_does_not);
    tcase_add_test(c, unmounting_what_is_not_mounted_says_so);
    suite_add_tcase(s, c);
    return run_suite(s);
}
