/*
 * The folders that hold the slots: that nothing stays in them, and what is swept. Each test has
 * a folder of its own; other processes are real ones.
 */
#include "slot_helper.h"
#include "suite.h"

/* ---- the folder ---- */

START_TEST(the_folder_is_private_and_stays_empty_until_it_is_removed)
{
    struct stat st;
    mode_t old = umask(0);
    struct slot *slot = create("a");
    umask(old);
    ck_assert_int_eq(stat(folder, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    ck_assert(exists("a") && exists("a.stat") && exists("a.lock"));
    struct registry registry = lock_registry();
    slots_remove(&registry);
    ck_assert_int_eq(lstat(folder, &st), 0); /* a slot is in it */
    registry = lock_registry();
    slot_remove(slot);
    slots_unlock(&registry);
    slot_close(slot);
    ck_assert(exists("lock") && !exists("a") && !exists("a.stat") && !exists("a.lock"));
    registry = lock_registry();
    slots_remove(&registry);
    ck_assert_int_eq(lstat(folder, &st), -1);
}
END_TEST

START_TEST(a_umask_that_takes_everything_does_not_hurt)
{
    mode_t old = umask(0777);
    struct slot *slot = create("a");
    umask(old);
    slot_close(reopen(slot));
    slot_close(slot);
}
END_TEST

START_TEST(where_there_is_no_folder_none_is_made_to_look)
{
    struct registry registry;
    struct slot_list list;
    struct stat st;
    ck_assert_int_eq(registry_lock(folder, false, &registry), -ENOENT);
    ck_assert_int_eq(state_list(&list), 0);
    ck_assert_uint_eq(list.count, 0);
    ck_assert_int_eq(lstat(folder, &st), -1);
}
END_TEST

/* ---- leftovers ---- */

START_TEST(files_that_belong_to_no_slot_are_swept)
{
    struct slot *slot = create("a");
    struct registry registry = lock_registry();
    char path[PATH_MAX + 16];
    make_file("half.lock", "");
    make_file("other.stat", "");
    snprintf(path, sizeof(path), "%s/dir", folder);
    mkdir(path, 0700);
    make_file("old.stat", "of another version");
    make_file("old.lock", "");
    slots_sweep(&registry);
    ck_assert(!exists("half.lock") && !exists("other.stat") && !exists("dir"));
    ck_assert(!exists("old.stat") && !exists("old.lock"));
    ck_assert(exists("a") && exists("a.stat") && exists("a.lock") && exists("lock"));
    slots_unlock(&registry);
    slot_close(slot);
}
END_TEST

START_TEST(slots_of_other_versions_are_not_listed_and_stay_while_they_are_held)
{
    struct slot *slot = create("a");
    struct slot_list list;
    pid_t pid = child(be_daemon, slot);
    slot->counters->version++;
    slot_unlock(slot);
    ck_assert_int_eq(state_list(&list), 0);
    ck_assert_uint_eq(list.count, 0);
    struct registry registry = lock_registry();
    slots_sweep(&registry); /* its daemon holds it; next, a process that starts it */
    ck_assert(exists("a.stat") && exists("a.lock") && exists("a"));
    ck_assert_int_eq(slot_lock(slot, true, false), 0);
    kill_child(pid);
    slots_sweep(&registry);
    ck_assert(exists("a.stat") && exists("a.lock") && exists("a"));
    slot_unlock(slot);
    slots_sweep(&registry);
    ck_assert(!exists("a.stat") && !exists("a.lock") && !exists("a"));
    slots_unlock(&registry);
    slot_close(slot);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("state");
    TCase *c = tcase_create("state");
    tcase_add_checked_fixture(c, slots_setup, NULL);
    tcase_add_test(c, the_folder_is_private_and_stays_empty_until_it_is_removed);
    tcase_add_test(c, a_umask_that_takes_everything_does_not_hurt);
    tcase_add_test(c, where_there_is_no_folder_none_is_made_to_look);
    tcase_add_test(c, files_that_belong_to_no_slot_are_swept);
    tcase_add_test(c, slots_of_other_versions_are_not_listed_and_stay_while_they_are_held);
    suite_add_tcase(s, c);
    return run_suite(s);
}
