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
#include "index_helper.h"
#include "pack.h"
#include "suite.h"

/* A folder with two folders in it, and three files in each of the three. */
static void make_tree(char dir[64])
{
    static const char *const folders[] = {".", "a", "a/b"};
    auto_free char *bytes = calloc(1, 2 << 20);
    snprintf(dir, 64, "/tmp/onepot-count-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (size_t i = 0; i < 3; i++)
        for (unsigned k = 0; k < 3; k++) {
            char path[64];
            mkdirat(fd, folders[i], 0700);
            snprintf(path, sizeof(path), "%s/%u", folders[i], k);
            int file = openat(fd, path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
            size_t len = k ? 0 : 2 << 20; /* enough for progress to be told */
            ck_assert_int_eq(write(file, bytes, len), (ssize_t)len);
            close(file);
        }
}

static void remove_tree(const char *dir)
{
    char command[96];
    snprintf(command, sizeof(command), "rm -r %s", dir);
    ck_assert_int_eq(system(command), 0);
}

/* The pack waits until the number is known, unless nobody will find it out. */
static void wait_for_number(void *ctx, const char *doing, const struct progress *progress)
{
    uint64_t *members = ctx, total = atomic_load(&progress->members_total);
    (void)doing;
    while (*members == 0 && (total = atomic_load(&progress->members_total)) == 0)
        poll(NULL, 0, 1);
    if (total)
        *members = total;
}

/* Pack the sources, and return the number that the progress tells of. */
static uint64_t counted(struct pack_options *options, uint64_t members)
{
    char output[96];
    struct fault fault = {0};
    struct pack_result result;
    snprintf(output, sizeof(output), "%s.tar", options->sources[0]);
    options->output = output;
    options->no_sync = true;
    options->progress = wait_for_number;
    options->ctx = &members;
    ck_assert_int_eq(pack_run(options, &fault, &result), 0);
    ck_assert_int_eq(unlink(output), 0);
    options->output = NULL;
    return members;
}

static void check_count(const char *const *patterns, size_t pattern_count, uint64_t expected)
{
    char dir[64];
    make_tree(dir);
    const char *source = dir;
    struct pack_options options = {.sources = &source,
                                   .source_count = 1,
                                   .excludes = patterns,
                                   .exclude_count = pattern_count};
    struct pack_survey survey;
    struct fault fault = {0};
    ck_assert_uint_eq(counted(&options, 0), expected);
    ck_assert_int_eq(pack_survey(&options, &fault, &survey), 0);
    ck_assert_uint_eq(survey.members, expected);
    pack_survey_free(&survey);
    remove_tree(dir);
}

START_TEST(all_members_are_counted_the_source_too)
{
    check_count(NULL, 0, 1 + 2 + 9);
}
END_TEST

START_TEST(what_is_left_out_is_not_counted)
{
    const char *patterns[] = {"b/", "2"};
    check_count(patterns, 2, 1 + 1 + 4);
}
END_TEST

/* Several sources are folders of the root, which is no member of any. */
START_TEST(the_members_of_all_sources_are_counted)
{
    char dirs[2][64];
    make_tree(dirs[0]);
    make_tree(dirs[1]);
    const char *sources[] = {dirs[0], dirs[1]};
    struct pack_options options = {.sources = sources, .source_count = 2};
    ck_assert_uint_eq(counted(&options, 0), 2 * (1 + 2 + 9));
    remove_tree(dirs[0]);
    remove_tree(dirs[1]);
}
END_TEST

START_TEST(an_archive_among_the_sources_leaves_the_number_unknown)
{
    char dir[64];
    make_tree(dir);
    const struct builder_header header = {0};
    const struct input archive = {.index = build(new_builder(), &header)};
    const char *sources[] = {dir, "x.tar"};
    const struct input *inputs[] = {NULL, &archive};
    struct pack_options options = {.sources = sources, .inputs = inputs, .source_count = 2};
    ck_assert_uint_eq(counted(&options, UINT64_MAX), UINT64_MAX);
    index_close((struct index *)archive.index);
    remove_tree(dir);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("count");
    TCase *tcase = tcase_create("count");
    tcase_add_test(tcase, all_members_are_counted_the_source_too);
    tcase_add_test(tcase, what_is_left_out_is_not_counted);
    tcase_add_test(tcase, an_archive_among_the_sources_leaves_the_number_unknown);
    tcase_add_test(tcase, the_members_of_all_sources_are_counted);
    suite_add_tcase(suite, tcase);
    return run_suite(suite);
}
