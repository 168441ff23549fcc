/*
 * The private folder of a user: which is trusted, its lock, and which files in it are opened.
 * Each test has a folder of its own; other processes are real ones.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime.h"
#include "suite.h"

static char base[64];
static char folder[PATH_MAX];

static void registry_setup(void)
{
    suite_make_folder("registry", base, sizeof(base));
    snprintf(folder, sizeof(folder), "%s/onepot-%u", base, (unsigned)geteuid());
    setenv("ONEPOT_RUNTIME_DIR", base, 1);
}

/* ---- the folder ---- */

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

/* A folder above that is another user's, or open to others: he could rename ours away. */
START_TEST(a_folder_in_a_place_that_others_could_replace_is_not_used)
{
    struct registry registry;
    struct stat st;
    char text[PATH_MAX + 256];
    ck_assert_int_eq(chmod(base, 0777), 0);
    ck_assert_int_eq(registry_lock(folder, true, &registry), -EPERM);
    ck_assert_ptr_nonnull(strstr(runtime_explain(folder, -EPERM, text, sizeof(text)), "0777"));
    ck_assert_int_eq(chmod(base, 01777), 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(base, 12345, 12345), 0);
        ck_assert_int_eq(registry_lock(folder, true, &registry), -EPERM);
        runtime_explain(folder, -EPERM, text, sizeof(text));
        ck_assert_ptr_nonnull(strstr(text, "user 12345"));
        ck_assert_int_eq(strncmp(text, base, strlen(base)), 0);
    }
    ck_assert_int_eq(lstat(folder, &st), -1);
    ck_assert_int_eq(chown(base, geteuid(), getegid()), 0);
    ck_assert_int_eq(registry_lock(folder, true, &registry), 0);
    registry_unlock(&registry);
}
END_TEST

START_TEST(the_session_s_folder_comes_last_and_takes_no_copies)
{
    static char places[RUNTIME_FOLDERS_MAX][PATH_MAX];
    unsetenv("ONEPOT_RUNTIME_DIR");
    setenv("XDG_RUNTIME_DIR", base, 1);
    unsetenv("TMPDIR");
    size_t count = runtime_places(RUNTIME_STATE, places), at = 0;
    while (at < count && strcmp(places[at], base) != 0)
        at++;
    ck_assert_uint_ge(at, 1);
    ck_assert_uint_lt(at, count);
    ck_assert_str_eq(places[at - 1], "/tmp");
    count = runtime_places(RUNTIME_COPIES, places);
    for (size_t i = 0; i < count; i++)
        ck_assert_str_ne(places[i], base);
}
END_TEST

START_TEST(a_runtime_directory_of_one_s_own_is_the_only_one)
{
    static char folders[RUNTIME_FOLDERS_MAX][PATH_MAX];
    struct registry registry;
    char text[PATH_MAX + 256];
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
    setenv("ONEPOT_RUNTIME_DIR", "/nonexistent", 1);
    ck_assert_uint_eq(runtime_folders(folders), 1);
    ck_assert_int_eq(registry_lock(folders[0], true, &registry), -ENOTDIR);
    runtime_explain(folders[0], -ENOTDIR, text, sizeof(text));
    ck_assert_ptr_nonnull(strstr(text, "does not exist"));
}
END_TEST

START_TEST(a_lock_on_a_folder_that_was_removed_is_taken_again)
{
    struct registry first;
    ck_assert_int_eq(registry_lock(folder, true, &first), 0);
    char path[PATH_MAX + 8], event[4096];
    snprintf(path, sizeof(path), "%s/lock", folder);
    int watch = inotify_init1(IN_CLOEXEC);
    ck_assert_int_ge(inotify_add_watch(watch, path, IN_OPEN), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct registry second; /* waits for the first one, whose folder then goes */
        _exit(registry_lock(folder, true, &second) == 0 && registry_has(second.fd, "lock", "")
                  ? 0
                  : 1);
    }
    ck_assert_int_gt(read(watch, event, sizeof(event)), 0); /* it has opened the old lock */
    close(watch);
    registry_remove(&first);
    int status;
    waitpid(pid, &status, 0);
    ck_assert_int_eq(status, 0);
}
END_TEST

/* ---- files ---- */

static int open_entry(const struct registry *registry)
{
    int fd = -1;
    int r = registry_open(registry->fd, "a", ".stat", O_RDWR, &fd);
    if (r == 0)
        close(fd);
    return r;
}

/* A pipe would hold whoever opens it; a link leads to what others wrote. */
START_TEST(files_are_regular_ones_of_ours_closed_to_others)
{
    struct registry registry;
    struct stat st;
    int fd = -1;
    ck_assert_int_eq(registry_lock(folder, true, &registry), 0);
    mode_t old = umask(0777);
    ck_assert_int_eq(registry_open(registry.fd, "a", ".stat", O_RDWR | O_CREAT | O_EXCL, &fd),
                     0);
    umask(old);
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0600);
    close(fd);
    ck_assert_int_eq(renameat(registry.fd, "a.stat", registry.fd, "away"), 0);
    ck_assert_int_eq(open_entry(&registry), -ENOENT);
    ck_assert_int_eq(mkfifoat(registry.fd, "a.stat", 0600), 0);
    ck_assert_int_eq(open_entry(&registry), -EPERM);
    registry_unlink(registry.fd, "a", ".stat");
    ck_assert_int_eq(symlinkat("away", registry.fd, "a.stat"), 0);
    ck_assert_int_eq(open_entry(&registry), -EPERM);
    ck_assert(registry_has(registry.fd, "a", ".stat"));
    registry_unlink(registry.fd, "a", ".stat");
    ck_assert(!registry_has(registry.fd, "a", ".stat"));
    ck_assert_int_eq(renameat(registry.fd, "away", registry.fd, "a.stat"), 0);
    ck_assert_int_eq(open_entry(&registry), 0);
    ck_assert_int_eq(fchmodat(registry.fd, "a.stat", 0640, 0), 0);
    ck_assert_int_eq(open_entry(&registry), -EPERM);
    ck_assert_int_eq(fchmodat(registry.fd, "a.stat", 0600, 0), 0);
    if (geteuid() == 0) {
        ck_assert_int_eq(fchownat(registry.fd, "a.stat", 12345, 12345, 0), 0);
        ck_assert_int_eq(open_entry(&registry), -EPERM);
    }
    registry_unlock(&registry);
}
END_TEST

START_TEST(a_file_is_taken_once_and_only_while_nobody_holds_it)
{
    struct registry registry;
    int user = -1, other = -1;
    ck_assert_int_eq(registry_lock(folder, true, &registry), 0);
    ck_assert_int_eq(
        registry_open(registry.fd, "a", ".state", O_RDWR | O_CREAT | O_EXCL, &user), 0);
    ck_assert_int_eq(registry_open(registry.fd, "a", ".state", O_RDWR, &other), 0);
    ck_assert_int_eq(flock(user, LOCK_SH), 0);
    ck_assert(!registry_take(other));
    close(user);
    ck_assert(registry_take(other));
    close(other);
    registry_unlock(&registry);
}
END_TEST

START_TEST(names_are_told_from_their_suffix_and_long_ones_are_refused)
{
    char name[8], longer[NAME_MAX + 2];
    int fd = -1;
    ck_assert(registry_name("a.b.stat", ".stat", name, sizeof(name)));
    ck_assert_str_eq(name, "a.b");
    ck_assert(!registry_name(".stat", ".stat", name, sizeof(name)));
    ck_assert(!registry_name("a.lock", ".stat", name, sizeof(name)));
    ck_assert(registry_name("1234567.stat", ".stat", name, sizeof(name)));
    ck_assert(!registry_name("12345678.stat", ".stat", name, sizeof(name)));
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    ck_assert_int_eq(registry_open(AT_FDCWD, longer, "", O_RDONLY, &fd), -ENAMETOOLONG);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("registry");
    TCase *c = tcase_create("registry");
    tcase_add_checked_fixture(c, registry_setup, NULL);
    tcase_add_test(c, a_folder_that_is_a_link_or_open_to_others_is_not_used);
    tcase_add_test(c, another_user_s_folder_is_not_used);
    tcase_add_test(c, a_folder_in_a_place_that_others_could_replace_is_not_used);
    tcase_add_test(c, the_session_s_folder_comes_last_and_takes_no_copies);
    tcase_add_test(c, a_runtime_directory_of_one_s_own_is_the_only_one);
    tcase_add_test(c, a_lock_on_a_folder_that_was_removed_is_taken_again);
    tcase_add_test(c, files_are_regular_ones_of_ours_closed_to_others);
    tcase_add_test(c, a_file_is_taken_once_and_only_while_nobody_holds_it);
    tcase_add_test(c, names_are_told_from_their_suffix_and_long_ones_are_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
