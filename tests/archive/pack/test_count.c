/*
 * What a pack will have to do, counted ahead of it.
 */
#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "count.h"
#include "suite.h"

/* A folder with two folders in it, and three files in each of the three. */
static int make_tree(char dir[64])
{
    static const char *const folders[] = {".", "a", "a/b"};
    snprintf(dir, 64, "/tmp/onepot-count-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < 3; i++)
        for (unsigned k = 0; k < 3; k++) {
            char path[64];
            mkdirat(fd, folders[i], 0700);
            snprintf(path, sizeof(path), "%s/%u", folders[i], k);
            close(openat(fd, path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        }
    return fd;
}

static void remove_tree(const char *dir)
{
    char command[96];
    snprintf(command, sizeof(command), "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

/* It is told once the number is known. */
static uint64_t counted(const struct selection *selection, const char *name)
{
    char dir[64];
    struct pack_source source = {.name = (char *)name, .fd = make_tree(dir)};
    struct folder root = {.listing.count = 1};
    struct pipeline_sources sources = {.root = &root, .at = &source};
    struct progress progress = {0};
    struct count count = {.sources = &sources, .selection = selection, .progress = &progress};
    count_start(&count);
    close(source.fd); /* as the pipeline does */
    while (atomic_load(&progress.members_total) == 0)
        poll(NULL, 0, 1);
    count_stop(&count);
    remove_tree(dir);
    return progress.members_total;
}

START_TEST(all_members_are_counted_the_source_too)
{
    struct selection all = {0};
    ck_assert_uint_eq(counted(&all, ""), 1 + 2 + 9);
    ck_assert_uint_eq(counted(&all, "name"), 1 + 2 + 9);
}
END_TEST

START_TEST(what_is_left_out_is_not_counted)
{
    const char *patterns[] = {"b/", "2"};
    struct selection some = {.excludes = patterns, .exclude_count = 2};
    ck_assert_uint_eq(counted(&some, ""), 1 + 1 + 4);
    ck_assert_uint_eq(counted(&some, "b"), 1 + 1 + 4);
}
END_TEST

START_TEST(an_archive_among_the_sources_leaves_the_number_unknown)
{
    struct pack_source source = {.name = (char *)"", .fd = -1};
    struct folder root = {.listing.count = 1};
    struct pipeline_sources sources = {.root = &root, .at = &source};
    struct selection all = {0};
    struct progress progress = {0};
    struct count count = {.sources = &sources, .selection = &all, .progress = &progress};
    count_start(&count);
    count_stop(&count);
    ck_assert_uint_eq(progress.members_total, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("count");
    TCase *tcase = tcase_create("count");
    tcase_add_test(tcase, all_members_are_counted_the_source_too);
    tcase_add_test(tcase, what_is_left_out_is_not_counted);
    tcase_add_test(tcase, an_archive_among_the_sources_leaves_the_number_unknown);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
