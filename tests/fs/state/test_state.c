/*
 * Slots: whose folder is trusted, who lives by which lock, and that nothing stays.
 * Each test has a folder of its own; other processes are real ones.
 */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "state.h"
#include "suite.h"

static char base[64];
static char folder[PATH_MAX];

static void setup(void)
{
    strcpy(base, "/tmp/onepot-state-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(base));
    snprintf(folder, sizeof(folder), "%s/onepot-%u", base, (unsigned)geteuid());
    setenv("ONEPOT_RUNTIME_DIR", base, 1);
}

static void teardown(void)
{
    char command[128];
    snprintf(command, sizeof(command), "/bin/rm -rf '%s'", base);
    ck_assert_int_eq(system(command), 0);
}

static bool exists(const char *name)
{
    char path[PATH_MAX + 256];
    struct stat st;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return lstat(path, &st) == 0;
}

static void make_file(const char *name, const char *content)
{
    char path[PATH_MAX + 256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs(content, f);
    fclose(f);
}

static struct registry lock_registry(void)
{
    struct registry registry;
    ck_assert_int_eq(registry_lock(folder, true, &registry), 0);
    return registry;
}

static struct slot *create(const char *name)
{
    struct registry registry = lock_registry();
    struct slot *slot;
    ck_assert_int_eq(slot_create(&registry, name, &slot), 0);
    registry_unlock(&registry);
    return slot;
}

static struct slot *reopen(const struct slot *slot)
{
    struct slot *other;
    ck_assert_int_eq(slot_open(slot->folder, slot->name, &other), 0);
    return other;
}

/* A child that does something, says so, and sleeps until it is killed. */
static pid_t child(void (*work)(const struct slot *), const struct slot *slot)
{
    int fds[2];
    char byte;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        work(slot);
        if (write(fds[1], "k", 1) < 0)
            _exit(1);
        for (;;)
            pause();
    }
    close(fds[1]);
    ck_assert_int_eq(read(fds[0], &byte, 1), 1);
    close(fds[0]);
    return pid;
}

static void kill_child(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void be_daemon(const struct slot *slot)
{
    int fd;
    if (slot_claim_daemon(slot, &fd) < 0)
        _exit(1);
}

static void be_run(const struct slot *slot)
{
    struct slot *mine;
    if (slot_open(slot->folder, slot->name, &mine) < 0 || slot_lock(mine, false, false) < 0)
        _exit(1);
}

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
    pid_t pid = fork();
    if (pid == 0) {
        struct registry second; /* waits for the first one, whose folder then goes */
        _exit(registry_lock(folder, true, &second) == 0 && exists("lock") ? 0 : 1);
    }
    usleep(20000);
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

/* ---- slots ---- */

START_TEST(names_that_are_taken_get_numbers)
{
    struct slot *a = create("x"), *b = create("x"), *c = create("x.lock"), *d = create("lock");
    ck_assert_str_eq(a->name, "x");
    ck_assert_str_eq(b->name, "x-2");
    ck_assert_str_eq(c->name, "x.lock-2"); /* a directory can't have the name of x's lock */
    ck_assert_str_eq(d->name, "lock-2");
    struct slot_list list;
    ck_assert_int_eq(state_list(&list), 0);
    ck_assert_uint_eq(list.count, 4);
    slot_list_free(&list);
    slot_close(a);
    slot_close(b);
    slot_close(c);
    slot_close(d);
}
END_TEST

START_TEST(a_slot_s_name_surprises_no_shell)
{
    static const struct {
        const char *job, *step, *archive, *name;
    } cases[] = {
        {"", "", "/data/train.onepot", "train.onepot"},
        {"12", "0", "train.tar", "12.0-train.tar"},
        {"12", "", "train.tar", "12-train.tar"},
        {"", "", "a b$(c);'\n.tar", "a_b__c____.tar"},
        {"", "", ".hidden", "_hidden"},
        {"", "", "-rf", "_rf"},
        {"", "", "/", "archive"},
        {"", "", "\xc3\xa9t\xc3\xa9", "__t__"},
    };
    char name[STATE_NAME_MAX], longest[5000];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        slot_name_for(cases[i].job, cases[i].step, cases[i].archive, name);
        ck_assert_str_eq(name, cases[i].name);
    }
    memset(longest, 'y', sizeof(longest) - 1);
    longest[sizeof(longest) - 1] = '\0';
    slot_name_for(longest, longest, longest, name);
    ck_assert_uint_lt(strlen(name), STATE_NAME_MAX - 8);
}
END_TEST

START_TEST(counters_are_shared_by_all_who_open_the_slot)
{
    struct slot *slot = create("a"), *other = reopen(slot);
    ck_assert_uint_eq(other->counters->size, sizeof(struct counters));
    atomic_store(&slot->counters->holders, 7);
    ck_assert_uint_eq(atomic_load(&other->counters->holders), 7);
    slot_close(other);
    slot_close(slot);
}
END_TEST

START_TEST(a_slot_is_starting_while_its_maker_holds_it_and_dead_after)
{
    struct slot *slot = create("a"), *other = reopen(slot);
    ck_assert_int_eq(slot_condition(other), SLOT_STARTING);
    ck_assert_int_eq(slot_lock(other, false, false), -EWOULDBLOCK);
    slot_close(slot);
    ck_assert_int_eq(slot_condition(other), SLOT_DEAD);
    slot_close(other);
}
END_TEST

START_TEST(a_slot_lives_as_long_as_its_daemon)
{
    struct slot *slot = create("a"), *other = reopen(slot);
    pid_t pid = child(be_daemon, slot);
    slot_unlock(slot);
    ck_assert(slot_daemon_lives(other));
    ck_assert(slot_daemon_lives(slot));
    ck_assert_int_eq(slot_condition(other), SLOT_ALIVE);
    ck_assert_int_eq(slot_wait_daemon(other, 0), -ETIMEDOUT);
    kill_child(pid);
    ck_assert_int_eq(slot_wait_daemon(other, 0), 0);
    ck_assert_int_eq(slot_condition(other), SLOT_DEAD);
    slot_close(other);
    slot_close(slot);
}
END_TEST

START_TEST(a_daemon_that_is_dead_is_so_for_runs_that_still_hold_it)
{
    struct slot *slot = create("a"), *other = reopen(slot);
    slot_unlock(slot);
    pid_t pid = child(be_run, slot);
    ck_assert_int_eq(slot_condition(other), SLOT_DEAD);
    kill_child(pid);
    slot_close(other);
    slot_close(slot);
}
END_TEST

START_TEST(a_shared_lock_keeps_the_last_one_from_going_and_names_its_holder)
{
    struct slot *slot = create("a"), *other = reopen(slot);
    int pids[4];
    slot_unlock(slot);
    pid_t pid = child(be_run, slot);
    ck_assert_int_eq(slot_lock(other, true, false), -EWOULDBLOCK);
    ck_assert_int_eq(slot_lock(other, false, false), 0);
    ck_assert_uint_eq(slot_lock_holders(other, pids, 4), 1);
    ck_assert_int_eq(pids[0], pid);
    kill_child(pid);
    ck_assert_int_eq(slot_lock(other, true, false), 0);
    ck_assert_uint_eq(slot_lock_holders(other, pids, 4), 0);
    slot_close(other);
    slot_close(slot);
}
END_TEST

START_TEST(a_slot_that_took_the_name_of_a_removed_one_is_left_alone)
{
    struct slot *old = create("a");
    struct registry registry = lock_registry();
    make_file("keep", ""); /* or the folder would go */
    slot_remove(old);
    ck_assert(!slot_is_current(old));
    registry_unlock(&registry);
    struct slot *young = create("a");
    ck_assert(slot_is_current(young));
    ck_assert(!slot_is_current(old));
    slot_remove(old);
    ck_assert(exists("a") && exists("a.stat") && exists("a.lock"));
    slot_close(old);
    slot_close(young);
}
END_TEST

START_TEST(a_directory_that_was_made_for_a_mount_goes_with_it)
{
    struct slot *slot = create("a");
    struct stat st;
    snprintf(slot->counters->mountpoint, sizeof(slot->counters->mountpoint), "%s/at", base);
    mkdir(slot->counters->mountpoint, 0700);
    struct registry registry = lock_registry();
    slot->counters->owns_mountpoint = 1;
    slot_remove(slot);
    ck_assert_int_eq(lstat(slot->counters->mountpoint, &st), -1);
    registry_unlock(&registry);
    slot_close(slot);
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

START_TEST(a_truncated_slot_is_no_trap)
{
    struct slot *slot = create("a"), *other;
    ck_assert_int_eq(ftruncate(slot->stat_fd, 100), 0);
    ck_assert_int_eq(slot_open(slot->folder, slot->name, &other), -EPROTO);
    ck_assert_int_eq(ftruncate(slot->stat_fd, 0), 0);
    ck_assert_int_eq(slot_open(slot->folder, slot->name, &other), -EPROTO);
    slot_close(slot);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("state");
    TCase *c = tcase_create("state");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, the_folder_is_private_and_goes_with_its_last_slot);
    tcase_add_test(c, a_umask_that_takes_everything_does_not_hurt);
    tcase_add_test(c, a_folder_that_is_a_link_or_open_to_others_is_not_used);
    tcase_add_test(c, another_user_s_folder_is_not_used);
    tcase_add_test(c, a_runtime_directory_of_one_s_own_is_the_only_one);
    tcase_add_test(c, a_lock_on_a_folder_that_was_removed_is_taken_again);
    tcase_add_test(c, where_there_is_no_folder_none_is_made_to_look);
    tcase_add_test(c, names_that_are_taken_get_numbers);
    tcase_add_test(c, a_slot_s_name_surprises_no_shell);
    tcase_add_test(c, counters_are_shared_by_all_who_open_the_slot);
    tcase_add_test(c, a_slot_is_starting_while_its_maker_holds_it_and_dead_after);
    tcase_add_test(c, a_slot_lives_as_long_as_its_daemon);
    tcase_add_test(c, a_daemon_that_is_dead_is_so_for_runs_that_still_hold_it);
    tcase_add_test(c, a_shared_lock_keeps_the_last_one_from_going_and_names_its_holder);
    tcase_add_test(c, a_slot_that_took_the_name_of_a_removed_one_is_left_alone);
    tcase_add_test(c, a_directory_that_was_made_for_a_mount_goes_with_it);
    tcase_add_test(c, files_that_belong_to_no_slot_are_swept);
    tcase_add_test(c, slots_of_other_versions_are_not_listed_and_stay_while_they_are_held);
    tcase_add_test(c, a_truncated_slot_is_no_trap);
    suite_add_tcase(s, c);
    return run_suite(s);
}
