/*
 * Slots: what they are called, what they hold, who lives by which lock, and what goes with
 * them. Each test has a folder of its own; other processes are real ones.
 */
#include "slot_helper.h"
#include "suite.h"

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

/* _i 0: a `run` uses it; 1: a mount command does; 2: neither, and there is no folder any more.
 */
START_TEST(an_unused_slot_is_claimed_and_one_in_use_is_let_go)
{
    struct slot *slot = create("a"), *other = reopen(slot);
    slot_unlock(slot);
    pid_t pid = _i == 0 ? child(be_run, slot) : 0;
    atomic_store(&slot->counters->holders, _i == 1);
    if (_i == 2) {
        slot_remove(slot);
        struct registry registry = lock_registry();
        slots_remove(&registry);
        ck_assert(!exists(""));
    }
    ck_assert_int_eq(slot_claim_unused(other), _i == 2);
    ck_assert_int_eq(slot_lock(slot, true, false), _i == 1 ? 0 : -EWOULDBLOCK);
    if (pid)
        kill_child(pid);
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
    slots_unlock(&registry);
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
    slots_unlock(&registry);
    slot_close(slot);
}
END_TEST

START_TEST(a_directory_that_another_mount_still_has_is_that_one_s)
{
    struct slot *first = create("a"), *second = create("b");
    struct stat st;
    char at[PATH_MAX];
    snprintf(at, sizeof(at), "%s/at", base);
    ck_assert_int_eq(mkdir(at, 0700), 0);
    strcpy(first->counters->mountpoint, at);
    strcpy(second->counters->mountpoint, at);
    first->counters->owns_mountpoint = 1;
    struct registry registry = lock_registry();
    slot_remove(first);
    ck_assert_int_eq(lstat(at, &st), 0);
    ck_assert_uint_eq(second->counters->owns_mountpoint, 1);
    slot_remove(second);
    ck_assert_int_eq(lstat(at, &st), -1);
    slots_unlock(&registry);
    slot_close(first);
    slot_close(second);
}
END_TEST

START_TEST(a_slot_that_can_not_be_made_whole_leaves_nothing)
{
    struct registry registry = lock_registry();
    struct slot *slot;
    char path[PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/a.stat", folder);
    ck_assert_int_eq(mkdir(path, 0700), 0); /* in the way of the counters, not of the lock */
    ck_assert_int_eq(slot_create(&registry, "a", &slot), 0);
    ck_assert_str_eq(slot->name, "a-2");
    ck_assert(!exists("a.lock") && !exists("a"));
    slot_remove(slot);
    ck_assert_int_eq(rmdir(path), 0);
    slots_unlock(&registry);
    slot_close(slot);
}
END_TEST

START_TEST(only_what_the_kernel_lists_is_mounted)
{
    struct slot *slot = create("a");
    ck_assert(!slot_is_mounted(slot));
    strcpy(slot->counters->mountpoint, base);
    slot->counters->mount_dev_minor = 77;
    ck_assert(!slot_is_mounted(slot));
    slot_close(slot);
}
END_TEST

static int open_again(const struct slot *slot)
{
    auto_slot struct slot *other = NULL;
    return slot_open(slot->folder, slot->folder_fd, slot->name, &other);
}

START_TEST(what_is_gone_can_not_be_opened)
{
    struct slot *slot = create("a"), *other;
    struct registry registry = lock_registry();
    ck_assert_int_eq(slot_open(folder, registry.fd, "b", &other), -ENOENT);
    slot_remove(slot);
    ck_assert_int_eq(slot_open(folder, registry.fd, "a", &other), -ENOENT);
    slots_unlock(&registry);
    slot_close(slot);
}
END_TEST

START_TEST(a_truncated_slot_is_no_trap)
{
    struct slot *slot = create("a");
    ck_assert_int_eq(ftruncate(slot->stat_fd, 100), 0);
    ck_assert_int_eq(open_again(slot), -EPROTO);
    ck_assert_int_eq(ftruncate(slot->stat_fd, 0), 0);
    ck_assert_int_eq(open_again(slot), -EPROTO);
    slot_close(slot);
}
END_TEST

/* Readers take the texts as strings. */
START_TEST(a_slot_whose_texts_do_not_end_is_no_trap)
{
    struct slot *slot = create("a");
    struct counters *c = slot->counters;
    ck_assert_int_eq(open_again(slot), 0);
    memset(c->mountpoint, '/', sizeof(c->mountpoint));
    ck_assert_int_eq(open_again(slot), -EPROTO);
    c->mountpoint[sizeof(c->mountpoint) - 1] = '\0';
    ck_assert_int_eq(open_again(slot), 0);
    c->archive_names_bytes = sizeof(c->archive_names) + 1;
    ck_assert_int_eq(open_again(slot), -EPROTO);
    slot_close(slot);
}
END_TEST

START_TEST(a_slot_is_found_in_the_folder_that_was_opened_whatever_has_its_path_now)
{
    struct slot *slot = create("a");
    char away[PATH_MAX + 16];
    snprintf(away, sizeof(away), "%s/away", base);
    ck_assert_int_eq(rename(folder, away), 0);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    make_file("a.stat", "another's");
    make_file("a.lock", "");
    ck_assert_int_eq(open_again(slot), 0);
    ck_assert(slot_is_current(slot));
    slot_remove(slot);
    ck_assert(exists("a.stat") && exists("a.lock"));
    ck_assert_int_eq(open_again(slot), -ENOENT);
    slot_close(slot);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("slot");
    TCase *c = tcase_create("slot");
    tcase_add_checked_fixture(c, slots_setup, NULL);
    tcase_add_test(c, names_that_are_taken_get_numbers);
    tcase_add_test(c, a_slot_s_name_surprises_no_shell);
    tcase_add_test(c, counters_are_shared_by_all_who_open_the_slot);
    tcase_add_test(c, a_slot_is_starting_while_its_maker_holds_it_and_dead_after);
    tcase_add_test(c, a_slot_lives_as_long_as_its_daemon);
    tcase_add_test(c, a_daemon_that_is_dead_is_so_for_runs_that_still_hold_it);
    tcase_add_test(c, a_shared_lock_keeps_the_last_one_from_going_and_names_its_holder);
    tcase_add_loop_test(c, an_unused_slot_is_claimed_and_one_in_use_is_let_go, 0, 3);
    tcase_add_test(c, a_slot_that_took_the_name_of_a_removed_one_is_left_alone);
    tcase_add_test(c, a_directory_that_was_made_for_a_mount_goes_with_it);
    tcase_add_test(c, a_directory_that_another_mount_still_has_is_that_one_s);
    tcase_add_test(c, a_slot_that_can_not_be_made_whole_leaves_nothing);
    tcase_add_test(c, only_what_the_kernel_lists_is_mounted);
    tcase_add_test(c, what_is_gone_can_not_be_opened);
    tcase_add_test(c, a_truncated_slot_is_no_trap);
    tcase_add_test(c, a_slot_whose_texts_do_not_end_is_no_trap);
    tcase_add_test(c, a_slot_is_found_in_the_folder_that_was_opened_whatever_has_its_path_now);
    suite_add_tcase(s, c);
    return run_suite(s);
}
