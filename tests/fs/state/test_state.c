/*
 * The folders that hold the slots: which are trusted, that nothing stays in them, and what is
 * swept. Each test has a folder of its own; other processes are real ones.
 */
#include <sys/inotify.h>

#include "slot_helper.h"
#include "suite.h"

/* ---- the folder ---- */

START_TEST(the_folder_is_private_and_goes_with_its_last_slot)
{
    struct stat st;
    mode_t old = umask(0);
    struct slot *slot = create("a");
    umask(old);
    ck_assert_int_eq(stat(folder, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0700);
    ck_assert(exists("a") && exists("a.stat") && exists("a.lock"));
    struct registry registry = lock_registry();
    slot_remove(slot);
    registry_unlock(&registry);
    slot_close(slot);
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

START_TEST(a_folder_that_is_a_link_or_open_to_others_is_not_used)
{
    struct registry registry;
    char other[128];
    snprintf(other, sizeof(other), "%s/other", base);
    ck_assert_int_eq(mkdir(other, 0700), 0);
    ck_assert_int_eq(symlink(other, folder), 0);
    ck_assert_int_eq(registry_lock(folder, true, &registry), -EPERM);
    unlink(folder);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(chmod(folder, 0750), 0);
    ck_assert_int_eq(registry_lock(folder, true, &registry), -EPERM);
    rmdir(folder);
    FILE *f = fopen(folder, "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    ck_assert_int_eq(registry_lock(folder, true, &registry), -EPERM);
}
END_TEST

START_TEST(another_user_s_folder_is_not_used)
{
    struct registry registry;
    if (geteuid() != 0) {
        printf("skipped: only root can give a folder away\n");
        return;
    }
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_eq(chown(folder, 12345, 12345), 0);
    ck_assert_int_eq(registry_lock(folder, true, &registry), -EPERM);
}
END_TEST

START_TEST(a_runtime_directory_of_one_s_own_is_the_only_one)
{
    static char folders[RUNTIME_FOLDERS_MAX][PATH_MAX];
    ck_assert_uint_eq(runtime_folders(folders), 1);
    ck_assert_str_eq(folders[0], folder);
    unsetenv("ONEPOT_RUNTIME_DIR");
    setenv("TMPDIR", base, 1);
    size_t count = runtime_folders(folders);
    ck_assert_uint_ge(count, 2);
    bool found = false;
    for (size_t i = 0; i < count; i++)
        found |= strcmp(folders[i], folder) == 0;
    ck_assert(found);
    setenv("TMPDIR", "/nonexistent", 1);
    ck_assert_uint_lt(runtime_folders(folders), count);
}
END_TEST

START_TEST(a_lock_on_a_folder_that_was_removed_is_taken_again)
{
    struct registry first = lock_registry();
    char path[PATH_MAX + 8], event[4096];
    snprintf(path, sizeof(path), "%s/lock", folder);
    int watch = inotify_init1(IN_CLOEXEC);
    ck_assert_int_ge(inotify_add_watch(watch, path, IN_OPEN), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct registry second; /* waits for the first one, whose folder then goes */
        _exit(registry_lock(folder, true, &second) == 0 && exists("lock") ? 0 : 1);
    }
    ck_assert_int_gt(read(watch, event, sizeof(event)), 0); /* it has opened the old lock */
    close(watch);
    registry_unlock(&first);
    int status;
    waitpid(pid, &status, 0);
    ck_assert_int_eq(status, 0);
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
    registry_sweep(&registry);
    ck_assert(!exists("half.lock") && !exists("other.stat") && !exists("dir"));
    ck_assert(!exists("old.stat") && !exists("old.lock"));
    ck_assert(exists("a") && exists("a.stat") && exists("a.lock") && exists("lock"));
    registry_unlock(&registry);
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
    registry_sweep(&registry);
    ck_assert(exists("a.stat") && exists("a.lock") && exists("a"));
    kill_child(pid);
    registry_sweep(&registry);
    ck_assert(!exists("a.stat") && !exists("a.lock") && !exists("a"));
    registry_unlock(&registry);
    slot_close(slot);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("state");
    TCase *c = tcase_create("state");
    tcase_add_checked_fixture(c, slots_setup, slots_teardown);
    tcase_add_test(c, the_folder_is_private_and_goes_with_its_last_slot);
    tcase_add_test(c, a_umask_that_takes_everything_does_not_hurt);
    tcase_add_test(c, a_folder_that_is_a_link_or_open_to_others_is_not_used);
    tcase_add_test(c, another_user_s_folder_is_not_used);
    tcase_add_test(c, a_runtime_directory_of_one_s_own_is_the_only_one);
    tcase_add_test(c, a_lock_on_a_folder_that_was_removed_is_taken_again);
    tcase_add_test(c, where_there_is_no_folder_none_is_made_to_look);
    tcase_add_test(c, files_that_belong_to_no_slot_are_swept);
    tcase_add_test(c, slots_of_other_versions_are_not_listed_and_stay_while_they_are_held);
    suite_add_tcase(s, c);
    return run_suite(s);
}
