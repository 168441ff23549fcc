/* Verification: each byte of an onepot archive counts, and a problem is told with its place. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "index_helper.h"
#include "pack.h"
#include "suite.h"
#include "verify.h"

#define MIB (1u << 20)

static char folder[64];

static void make_folder(void)
{
    suite_make_folder("verify", folder, sizeof(folder));
    ck_assert_int_eq(chdir(folder), 0);
    ck_assert_int_eq(
        system("mkdir -p tree/sub && echo one >tree/one && : >tree/empty && "
               "seq 3000 >tree/sub/numbers && ln -s one tree/link && ln tree/one tree/same && "
               "tar -cf plain.tar -C tree ."),
        0);
}

static void enter(void)
{
    ck_assert_int_eq(chdir(folder), 0);
    setenv("XDG_CACHE_HOME", folder, 1);
}

static void pack_tree(const char *output, int zstd_level)
{
    static const char *const sources[] = {"tree"};
    struct fault fault = {0};
    struct pack_result result;
    struct pack_options options = {.sources = sources,
                                   .source_count = 1,
                                   .output = output,
                                   .overwrite = true,
                                   .no_sync = true,
                                   .writer.zstd_level = zstd_level,
                                   .writer.threads = 1};
    ck_assert_int_eq(pack_run(&options, &fault, &result), 0);
}

/* What was reported first, and how much of it there was. */
struct reports {
    struct fault first;
    uint64_t count;
};

static void take(void *ctx, const struct fault *what)
{
    struct reports *reports = ctx;
    if (reports->count++ == 0)
        reports->first = *what;
}

/* As `onepot verify` does it: how many problems there are, also such that it can't be opened.
 */
static uint64_t problems_of(const char *path, struct reports *ret_reports,
                            struct verify_result *ret_result)
{
    struct fault fault = {0};
    struct fileset *fileset;
    *ret_reports = (struct reports){0};
    *ret_result = (struct verify_result){0};
    const struct work_options work = {.threads = 2, .report = take, .ctx = ret_reports};
    const bool trailer_is_good = verify_trailer(path, 0, &fault) == 0;
    if (!trailer_is_good)
        take(ret_reports, &fault);
    const struct fileset_options opening = {
        .save = FILESET_SAVE_NEVER, .lists_left_out = true, .rebuild = true};
    fault = (struct fault){0};
    if (fileset_open(path, &opening, &fault, &fileset) < 0) {
        take(ret_reports, &fault);
        return ret_reports->count;
    }
    ck_assert_int_eq(verify_run(fileset, &work, trailer_is_good, &fault, ret_result), 0);
    fileset_close(fileset);
    return ret_reports->count;
}

static size_t size_of(const char *path)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return (size_t)st.st_size;
}

/* A copy with one other byte at `at`. */
static void copy_with_another_byte(const char *from, const char *to, size_t at)
{
    static uint8_t bytes[4 * MIB];
    int fd = open(from, O_RDONLY);
    ssize_t len = read(fd, bytes, sizeof(bytes));
    close(fd);
    ck_assert_int_gt(len, (ssize_t)at);
    bytes[at] ^= 0x20;
    fd = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq(write(fd, bytes, (size_t)len), len);
    close(fd);
}

START_TEST(a_sound_archive_is_whole)
{
    struct reports reports;
    struct verify_result result;
    for (int level = 0; level < 2; level++) {
        pack_tree("a.tar", level);
        ck_assert_msg(problems_of("a.tar", &reports, &result) == 0, "%s", reports.first.what);
        ck_assert(result.sums.every && result.whole);
        ck_assert_uint_eq(result.problems, 0);
        ck_assert_uint_eq(result.files, 3);
        ck_assert_uint_eq(result.bytes, 4 + size_of("tree/sub/numbers"));
    }
}
END_TEST

START_TEST(each_byte_counts)
{
    struct reports reports;
    struct verify_result result;
    for (int level = 0; level < 2; level++) {
        pack_tree("a.tar", level);
        size_t size = size_of("a.tar");
        for (size_t at = (size_t)_i; at < size; at += 16 * 61) {
            copy_with_another_byte("a.tar", "b.tar", at);
            ck_assert_msg(problems_of("b.tar", &reports, &result) > 0,
                          "byte %zu of %zu, level %d", at, size, level);
        }
    }
}
END_TEST

START_TEST(a_damaged_file_is_named)
{
    struct reports reports;
    struct verify_result result;
    pack_tree("a.tar", 0);
    ck_assert_int_eq(system("grep -abo 2999 a.tar | tail -n 1 | cut -d: -f1 >at"), 0);
    FILE *file = fopen("at", "r");
    unsigned long at = 0;
    ck_assert_int_eq(fscanf(file, "%lu", &at), 1);
    fclose(file);
    copy_with_another_byte("a.tar", "b.tar", at);
    ck_assert_uint_eq(problems_of("b.tar", &reports, &result), 1);
    ck_assert_uint_eq(result.problems, 1);
    ck_assert_str_eq(reports.first.member, "sub/numbers");
    ck_assert_ptr_nonnull(strstr(reports.first.what, "sum"));
}
END_TEST

START_TEST(without_sums_it_says_so_and_reads_all_the_same)
{
    struct reports reports;
    struct verify_result result;
    ck_assert_uint_eq(problems_of("plain.tar", &reports, &result), 0);
    ck_assert(!result.sums.every && !result.whole && !result.sums.some);
    ck_assert_uint_eq(result.files, 3);
    ck_assert_uint_eq(result.bytes, 4 + size_of("tree/sub/numbers"));
}
END_TEST

/* Changes a name in the index, whose sums are right afterwards, as somebody hostile would. */
static void change_name(const char *path, const char *name, char last)
{
    struct fault fault = {0};
    struct fileset *fileset;
    ck_assert_int_eq(fileset_open(path, &(struct fileset_options){0}, &fault, &fileset), 0);
    const uint64_t at = index_info(fileset->index)->image_offset,
                   len = index_info(fileset->index)->image_bytes;
    fileset_close(fileset);
    uint8_t *image = malloc(len);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(pread(fd, image, len, (off_t)at), (ssize_t)len);
    uint8_t *there = memmem(image, len, name, strlen(name));
    ck_assert_ptr_nonnull(there);
    there[strlen(name) - 1] = (uint8_t)last;
    reseal(image, len);
    ck_assert_int_eq(pwrite(fd, image, len, (off_t)at), (ssize_t)len);
    close(fd);
    free(image);
}

START_TEST(a_name_that_a_folder_has_twice_is_told)
{
    struct reports reports;
    struct verify_result result;
    ck_assert_int_eq(system("mkdir -p names/tree && echo 1 >names/tree/name_a && "
                            "echo 2 >names/tree/name_b"),
                     0);
    ck_assert_int_eq(chdir("names"), 0);
    pack_tree("a.tar", 0);
    change_name("a.tar", "name_b", 'c');
    ck_assert_uint_eq(problems_of("a.tar", &reports, &result), 1); /* the digest is another */
    change_name("a.tar", "name_c", 'a');
    ck_assert_uint_eq(problems_of("a.tar", &reports, &result), 2);
}
END_TEST

/* What is left is a whole archive only if no byte of a file is missing. */
START_TEST(what_is_cut_off_is_missed)
{
    struct reports reports;
    struct verify_result result;
    static const char *const names[] = {"a.tar", "plain.tar"};
    uint64_t all = 4 + size_of("tree/sub/numbers");
    pack_tree("a.tar", 0);
    for (size_t i = 0; i < 2; i++) {
        for (size_t left = 512; left < size_of(names[i]); left += 1536) {
            char command[128];
            snprintf(command, sizeof(command), "head -c %zu %s >b.tar", left, names[i]);
            ck_assert_int_eq(system(command), 0);
            ck_assert_msg(problems_of("b.tar", &reports, &result) > 0 || result.bytes == all,
                          "%s: %zu bytes", names[i], left);
        }
    }
}
END_TEST

START_TEST(it_ends_when_it_is_told_to)
{
    struct fault fault = {0};
    struct fileset *fileset;
    struct verify_result result;
    _Atomic int stop = 1;
    const struct fileset_options opening = {.save = FILESET_SAVE_NEVER};
    const struct work_options work = {.threads = 2, .stop = &stop};
    ck_assert_int_eq(fileset_open("plain.tar", &opening, &fault, &fileset), 0);
    ck_assert_int_eq(verify_run(fileset, &work, false, &fault, &result), -EINTR);
    fileset_close(fileset);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("verify");
    TCase *tests = tcase_create("all");
    tcase_add_unchecked_fixture(tests, make_folder, NULL);
    tcase_add_checked_fixture(tests, enter, NULL);
    tcase_add_test(tests, a_sound_archive_is_whole);
    tcase_add_loop_test(tests, each_byte_counts, 0, 16);
    tcase_add_test(tests, a_damaged_file_is_named);
    tcase_add_test(tests, without_sums_it_says_so_and_reads_all_the_same);
    tcase_add_test(tests, a_name_that_a_folder_has_twice_is_told);
    tcase_add_test(tests, what_is_cut_off_is_missed);
    tcase_add_test(tests, it_ends_when_it_is_told_to);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
