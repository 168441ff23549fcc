/*
 * The cache folder of indexes is bounded, and only what nobody uses is removed. Each test has a
 * cache folder of its own, with files that look like indexes.
 */
#include <check.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "fileset.h"
#include "source.h"
#define SUITE_IN_MEMORY
#include "suite.h"

#define KEY "-0123456789abcdef.onepot-index"
#define LONG_KEY "-0123456789abcdef0123456789abcdef.onepot-index"
#define DAY_S 86400

static const struct fileset_options always = {.save = FILESET_SAVE_ALWAYS};
static char folder[PATH_MAX];

static void begin(void)
{
    char cache[PATH_MAX + 10];
    suite_make_folder("index-cache", folder, sizeof(folder));
    snprintf(cache, sizeof(cache), "%s/cache", folder);
    setenv("XDG_CACHE_HOME", cache, 1);
    unsetenv("ONEPOT_INDEX_CACHE");
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(system("mkdir -p -m 700 cache/onepot one two && seq 2000 | "
                            "sed 's,^,one/,' | xargs touch && echo x >two/x && "
                            "tar -cf a.tar one && tar -cf b.tar two"),
                     0);
    ck_assert_int_eq(chdir("cache/onepot"), 0);
}

/* Made and used so many days ago. */
static void put(const char *name, off_t bytes, int days)
{
    struct timespec then[2] = {{.tv_sec = time(NULL) - (time_t)days * DAY_S}};
    int fd = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, bytes), 0);
    then[1] = then[0];
    ck_assert_int_eq(futimens(fd, then), 0);
    close(fd);
}

static bool is_there(const char *name)
{
    struct stat st;
    return lstat(name, &st) == 0;
}

/* The index of a union always goes to the cache folder. */
static struct fileset *open_union(void)
{
    static const char *const paths[] = {"../../a.tar", "../../b.tar"};
    struct fault fault = {0};
    struct fileset *fileset = NULL;
    ck_assert_msg(fileset_open_many(paths, 2, "both", &always, &fault, &fileset) == 0, "%s",
                  fault.what);
    return fileset;
}

/* Nothing is saved in a folder that somebody else could put something into, and the line says
 * so. */
static void check_refused(const char *word)
{
    static const char *const paths[] = {"../../a.tar", "../../b.tar"};
    struct fault fault = {0};
    struct fileset *fileset = NULL;
    ck_assert_int_eq(fileset_open_many(paths, 2, "both", &always, &fault, &fileset), -EPERM);
    ck_assert_msg(strstr(fault.what, word) != NULL, "%s", fault.what);
}

/* Returns what can be removed and was. */
static struct fileset_cache clean(void)
{
    struct fileset_cache cache;
    struct fault fault = {0};
    ck_assert_msg(fileset_clean_cache(&cache, &fault) == 0, "%s", fault.what);
    return cache;
}

START_TEST(what_was_not_used_for_long_goes_when_another_is_saved)
{
    put("old" KEY, 10, 91);
    put("older" LONG_KEY, 10, 1000);
    put("read" KEY, 10, 1000);
    put("young" LONG_KEY, 10, 89);
    struct timespec read_today[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
    ck_assert_int_eq(utimensat(AT_FDCWD, "read" KEY, read_today, 0), 0);
    struct fileset *fileset = open_union();
    ck_assert(!is_there("old" KEY));
    ck_assert(!is_there("older" LONG_KEY));
    ck_assert(is_there("read" KEY));
    ck_assert(is_there("young" LONG_KEY));
    ck_assert(is_there(fileset->index_path));
    fileset_close(fileset);
}
END_TEST

START_TEST(the_last_used_stay_within_the_bound)
{
    setenv("ONEPOT_INDEX_CACHE", "1M", 1);
    put("first-1@512" KEY, 600 << 10, 1);
    put("second-0123456789abcdef@512.onepot-index", 600 << 10, 2);
    put("third" KEY, 100 << 10, 3); /* it has room beside the first one */
    put("fourth" KEY, 900 << 10, 4);
    fileset_close(open_union());
    ck_assert(is_there("first-1@512" KEY));
    ck_assert(!is_there("second-0123456789abcdef@512.onepot-index"));
    ck_assert(is_there("third" KEY));
    ck_assert(!is_there("fourth" KEY));

    setenv("ONEPOT_INDEX_CACHE", "0", 1);
    struct fileset *fileset = open_union(); /* that was saved already */
    ck_assert(is_there("third" KEY));
    ck_assert_int_eq(unlink(fileset->index_path), 0);
    fileset_close(fileset);
    fileset = open_union();
    ck_assert(!is_there("third" KEY));
    ck_assert(is_there(fileset->index_path)); /* the new one always stays */
    fileset_close(fileset);
}
END_TEST

START_TEST(without_a_bound_in_the_environment_it_is_2_gib)
{
    put("first" KEY, 1 << 30, 1);
    put("second" KEY, 1023 << 20, 2);
    put("third" KEY, 2 << 20, 3);
    fileset_close(open_union());
    ck_assert(is_there("first" KEY));
    ck_assert(is_there("second" KEY));
    ck_assert(!is_there("third" KEY));
}
END_TEST

START_TEST(what_has_another_name_or_is_no_file_stays)
{
    static const char *const others[] = {
        "notes" KEY ".bak",
        "a.tar.onepot-index",
        "a.tar-0123456789abcdeF.onepot-index",
        "a.tar-0123456789abcde.onepot-index",
        "a.tar-0123456789abcdef0.onepot-index",
        "a.tar-0123456789abcdefx.onepot-index",
        "a.tar-0123456789abcdef@x.onepot-index",
        "0123456789abcdef.onepot-index",
        "libonepot-io-0123456789abcdef.so",
        "link" KEY,
        "folder" KEY,
    };
    ck_assert_int_eq(mkdir("folder" KEY, 0700), 0);
    put("../outside" KEY, 10, 1000);
    ck_assert_int_eq(symlink("../outside" KEY, "link" KEY), 0);
    for (size_t i = 0; i < 9; i++)
        put(others[i], 10, 1000);
    put("gone" KEY, 10, 1000);
    fileset_close(open_union());
    ck_assert_uint_eq(clean().removed, 1); /* of the union */
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        ck_assert_msg(is_there(others[i]), "%s", others[i]);
    ck_assert(is_there("../outside" KEY));
    ck_assert(!is_there("gone" KEY));
}
END_TEST

START_TEST(what_a_killed_save_left_goes_and_one_under_way_stays)
{
    put("left" KEY ".abcdef.partial", 10, 0);
    put("busy" KEY ".abcdef.partial", 10, 0);
    put("data.tar.abcdef.partial", 10, 0);
    int fd = open("busy" KEY ".abcdef.partial", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    clean();
    ck_assert(!is_there("left" KEY ".abcdef.partial"));
    ck_assert(is_there("busy" KEY ".abcdef.partial"));
    ck_assert(is_there("data.tar.abcdef.partial"));
    close(fd);
}
END_TEST

/* Does a lock last as long as the mapping? */
static bool cache_keeps_locks(void)
{
    struct statfs fs;
    int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool keeps = fd >= 0 && storage_of(fd).is_local && fstatfs(fd, &fs) == 0 &&
                 fs.f_type != OVERLAYFS_SUPER_MAGIC;
    close(fd);
    if (!keeps)
        printf("skipped: %s is not on a local filesystem, or an overlay\n", folder);
    return keeps;
}

/* By the process that saved it, by one that found it, and by a child that outlives both. */
START_TEST(what_is_mapped_stays)
{
    if (!cache_keeps_locks())
        return;
    for (int i = 0; i < 2; i++) {
        struct fileset *fileset = open_union();
        ck_assert_int_eq((int)fileset->origin,
                         i == 0 ? FILESET_INDEX_BUILT : FILESET_INDEX_SAVED);
        put("other" KEY, 10, 0);
        struct fileset_cache cache = clean();
        ck_assert_uint_eq(cache.in_use, 1);
        ck_assert_uint_eq(cache.removed, 1);
        ck_assert_uint_eq(cache.removed_bytes, 10);
        ck_assert(is_there(fileset->index_path));
        fileset_close(fileset);
    }
    struct fileset *first = open_union(), *second = open_union();
    fileset_close(first);
    ck_assert_uint_eq(clean().in_use, 1);
    int wait_for[2];
    ck_assert_int_eq(pipe(wait_for), 0);
    pid_t child = fork();
    if (child == 0) {
        char c;
        close(wait_for[1]);
        _exit(read(wait_for[0], &c, 1) != 0);
    }
    fileset_close(second);
    ck_assert_uint_eq(clean().in_use, 1);
    close(wait_for[1]);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    ck_assert_uint_eq(clean().removed, 1);
}
END_TEST

START_TEST(an_index_that_is_saved_later_is_in_use_from_then_on)
{
    static const struct fileset_options later = {.save = FILESET_SAVE_ALWAYS,
                                                 .saves_later = true};
    static const char *const paths[] = {"../../a.tar", "../../b.tar"};
    struct fileset *fileset = NULL;
    if (!cache_keeps_locks())
        return;
    put("old" KEY, 10, 91);
    ck_assert_int_eq(fileset_open_many(paths, 2, "both", &later, NULL, &fileset), 0);
    ck_assert(is_there("old" KEY));
    ck_assert_int_eq(fileset_save(fileset, NULL), 0);
    ck_assert(!is_there("old" KEY));
    ck_assert_uint_eq(clean().in_use, 1);
    fileset_close(fileset);
    ck_assert_uint_eq(clean().removed, 1);
}
END_TEST

/* No lock is taken there; the index was read into memory, and works without its file. */
START_TEST(on_a_network_filesystem_what_is_open_may_go)
{
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    fileset_close(open_union());
    struct fileset *fileset = open_union();
    uint32_t position;
    ck_assert_int_eq((int)fileset->origin, FILESET_INDEX_SAVED);
    ck_assert_uint_eq(clean().removed, 1);
    ck_assert_int_eq(index_resolve(fileset->index, "one/17", &position), 0);
    ck_assert_int_eq(index_check(fileset->index, NULL), 0);
    fileset_close(fileset);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}
END_TEST

/* Using it sets its time of access, once a day, and nothing else. */
START_TEST(a_use_is_noted)
{
    struct stat before, after;
    struct fileset *fileset = open_union();
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s", fileset->index_path);
    fileset_close(fileset);
    for (int hours = 36; hours > 0; hours -= 24) {
        struct timespec then[2] = {{.tv_sec = time(NULL) - hours * 3600}};
        then[1] = (struct timespec){.tv_sec = time(NULL) - 7 * DAY_S};
        ck_assert_int_eq(utimensat(AT_FDCWD, path, then, 0), 0);
        ck_assert_int_eq(stat(path, &before), 0);
        fileset_close(open_union());
        ck_assert_int_eq(stat(path, &after), 0);
        ck_assert_int_eq(after.st_mtim.tv_sec, before.st_mtim.tv_sec);
        if (hours > 24)
            ck_assert_int_ge(after.st_atim.tv_sec, time(NULL) - 600);
    }
}
END_TEST

/* What others may put there is not touched, whatever its name. */
START_TEST(a_folder_that_others_may_write_to_is_left_alone)
{
    static const mode_t open_modes[] = {0777, 01777, 0702};
    struct fileset_cache cache;
    for (size_t i = 0; i < 3; i++) {
        struct fault fault = {0};
        put("old" KEY, 10, 91);
        ck_assert_int_eq(chmod(".", open_modes[i]), 0);
        check_refused("cache/onepot");
        ck_assert_int_eq(fileset_clean_cache(&cache, &fault), -EPERM);
        ck_assert_ptr_nonnull(strstr(fault.what, folder));
        ck_assert(is_there("old" KEY));
    }
    ck_assert_int_eq(chmod(".", 0755), 0);
    ck_assert_uint_eq(clean().removed, 1);
}
END_TEST

START_TEST(nothing_is_saved_below_another_users_folder)
{
    if (geteuid() != 0)
        return; /* only root can make one */
    ck_assert_int_eq(chown("..", 1001, 1001), 0);
    check_refused("it belongs to user 1001");
    ck_assert_int_eq(chown("..", 0, 0), 0);
    fileset_close(open_union());
}
END_TEST

START_TEST(a_missing_folder_is_made_for_this_user_alone)
{
    struct stat st;
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/new/cache", folder);
    setenv("XDG_CACHE_HOME", path, 1);
    mode_t before = umask(0277);
    fileset_close(open_union());
    umask(before);
    for (const char *name = "../../new\0../../new/cache\0../../new/cache/onepot\0"; *name;
         name += strlen(name) + 1) {
        ck_assert_int_eq(stat(name, &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0700);
    }
}
END_TEST

START_TEST(without_a_folder_there_is_nothing_to_do)
{
    struct fileset_cache cache = {1, 1, 1};
    struct fault fault = {0};
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(rmdir("cache/onepot"), 0);
    ck_assert_int_eq(fileset_clean_cache(&cache, &fault), 0);
    ck_assert_uint_eq(cache.removed + cache.in_use, 0);
    setenv("XDG_CACHE_HOME", "relative", 1);
    unsetenv("HOME");
    ck_assert_int_eq(fileset_clean_cache(&cache, &fault), 0);
    ck_assert_int_eq(fault.err, 0);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("index cache");
    tcase_add_checked_fixture(tests, begin, NULL);
    tcase_add_test(tests, what_was_not_used_for_long_goes_when_another_is_saved);
    tcase_add_test(tests, the_last_used_stay_within_the_bound);
    tcase_add_test(tests, without_a_bound_in_the_environment_it_is_2_gib);
    tcase_add_test(tests, what_has_another_name_or_is_no_file_stays);
    tcase_add_test(tests, what_a_killed_save_left_goes_and_one_under_way_stays);
    tcase_add_test(tests, what_is_mapped_stays);
    tcase_add_test(tests, an_index_that_is_saved_later_is_in_use_from_then_on);
    tcase_add_test(tests, on_a_network_filesystem_what_is_open_may_go);
    tcase_add_test(tests, a_use_is_noted);
    tcase_add_test(tests, a_folder_that_others_may_write_to_is_left_alone);
    tcase_add_test(tests, nothing_is_saved_below_another_users_folder);
    tcase_add_test(tests, a_missing_folder_is_made_for_this_user_alone);
    tcase_add_test(tests, without_a_folder_there_is_nothing_to_do);

    Suite *suite = suite_create("index_cache");
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
