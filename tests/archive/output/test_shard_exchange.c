/* Sets of shards get their names all or none, whatever lies in the folder and the record. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "shard_exchange.h"
#include "suite.h"

#define LETTERS "abcdef"
#define RECORD ".s-%.tar.exchange"

static char base[64], folder[128];
static struct fault fault;

static void make_base(void)
{
    suite_make_folder("exchange", base, sizeof(base));
}

static void make_folder(void)
{
    snprintf(folder, sizeof(folder), "%s/XXXXXX", base);
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static void write_file(const char *name, const void *bytes, size_t len)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
    close(fd);
}

/* Shards of which each has a letter: of the old set, or one that waits to be named. */
static void make_shards(unsigned count, char content, const char *ending)
{
    char name[64];
    for (unsigned i = 0; i < count; i++) {
        snprintf(name, sizeof(name), "s-%u.tar%s", i, ending);
        write_file(name, &content, 1);
    }
}

/* The letters of s-0.tar and so on, until one is missing. */
static const char *shards(void)
{
    static char found[32];
    size_t n = 0;
    for (char name[16]; n < sizeof(found) - 1; n++) {
        snprintf(name, sizeof(name), "s-%zu.tar", n);
        int fd = open(name, O_RDONLY);
        bool is_shard = read(fd, &found[n], 1) == 1; /* and no folder */
        close(fd);
        if (!is_shard)
            break;
    }
    found[n] = '\0';
    return found;
}

static int exchange(unsigned count, bool overwrite)
{
    struct shard_names names;
    struct shard_exchange x;
    ck_assert_int_eq(shard_names_parse("s-%d.tar", count, &names), 0);
    ck_assert_int_eq(shard_exchange_begin(&names, NULL, &fault, &x), 0);
    int r = shard_exchange_run(&x, LETTERS, overwrite, true, &fault);
    ck_assert(!x.committed);
    if (r == 0)
        shard_exchange_withdraw(&x, 0, LETTERS);
    shard_exchange_end(&x);
    shard_names_free(&names);
    ck_assert_int_ne(access(RECORD, F_OK), 0);
    return r;
}

START_TEST(a_set_replaces_a_larger_one)
{
    make_shards(5, 'o', "");
    make_shards(3, 'n', "." LETTERS ".ready");
    ck_assert_int_eq(exchange(3, true), 1);
    ck_assert_str_eq(shards(), "nnn");
    ck_assert_int_ne(access("s-3.tar", F_OK), 0);
    ck_assert_int_ne(access("s-4.tar", F_OK), 0);
}
END_TEST

START_TEST(a_set_that_lacks_a_shard_waits)
{
    make_shards(2, 'o', "");
    make_shards(2, 'n', "." LETTERS ".ready");
    ck_assert_int_eq(exchange(3, true), 0);
    ck_assert_str_eq(shards(), "oo");
    ck_assert_int_ne(access("s-0.tar." LETTERS ".ready", F_OK), 0); /* withdrawn */
    ck_assert_int_eq(access("s-1.tar." LETTERS ".ready", F_OK), 0);
    make_shards(3, 'n', "." LETTERS ".ready");
    unlink("s-2.tar." LETTERS ".ready");
    ck_assert_int_eq(symlink("/etc/passwd", "s-2.tar." LETTERS ".ready"), 0);
    ck_assert_int_eq(exchange(3, true), 0);
    ck_assert_str_eq(shards(), "oo");
}
END_TEST

START_TEST(nothing_is_replaced_unasked_and_no_folder_ever)
{
    make_shards(1, 'o', "");
    make_shards(3, 'n', "." LETTERS ".ready");
    ck_assert_int_eq(exchange(3, false), -EEXIST);
    ck_assert_str_eq(fault.member, "s-0.tar");
    ck_assert_int_eq(unlink("s-0.tar"), 0);
    ck_assert_int_eq(mkdir("s-2.tar", 0755), 0);
    ck_assert_int_eq(exchange(3, true), -EEXIST);
    ck_assert_str_eq(shards(), "");
    ck_assert_int_eq(rmdir("s-2.tar"), 0);
    ck_assert_int_eq(mkdir("s-3.tar", 0755), 0); /* as an extra shard would be called */
    ck_assert_int_eq(exchange(3, true), -EEXIST);
    ck_assert_str_eq(shards(), "");
    ck_assert_int_eq(exchange(3, false), 1);
    ck_assert_str_eq(shards(), "nnn");
}
END_TEST

/* The record of an exchange from four shards to two, with its sum; its length. */
static size_t make_record(const char *letters, const char *before, char ret_text[256])
{
    int len = snprintf(ret_text + 16, 240, "%s%c%u%c%u%c%u%c%s%c%s", letters, 0, 2, 0, 4, 0, 1,
                       0, before, 0, ".tar");
    char sum[17];
    snprintf(sum, sizeof(sum), "%016llx",
             (unsigned long long)XXH3_64bits(ret_text + 16, (size_t)len + 1));
    memcpy(ret_text, sum, 16);
    return 16 + (size_t)len + 1;
}

static void make_interrupted(void)
{
    make_shards(4, 'o', "");
    make_shards(2, 'n', "." LETTERS ".ready");
}

START_TEST(an_interrupted_exchange_is_finished_by_whoever_opens_a_shard)
{
    static const char *const opened[] = {"s-0.tar", "s-3.tar", "./s-1.tar", "link"};
    char record[256];
    size_t len = make_record(LETTERS, "s-", record);
    ck_assert_int_eq(symlink("s-1.tar", "link"), 0);
    for (size_t i = 0; i < sizeof(opened) / sizeof(opened[0]); i++) {
        make_interrupted();
        write_file(RECORD, record, len);
        ck_assert_int_eq(shard_exchange_settle("other.tar", &fault), 0);
        ck_assert_int_eq(shard_exchange_settle("s-4.tar", &fault), 0); /* in neither set */
        ck_assert_str_eq(shards(), "oooo");
        ck_assert_int_eq(shard_exchange_settle(opened[i], &fault), 1);
        ck_assert_str_eq(shards(), "nn");
        ck_assert_int_ne(access(RECORD, F_OK), 0);
        ck_assert_int_eq(shard_exchange_settle(opened[i], &fault), 0);
    }
}
END_TEST

START_TEST(the_next_pack_finishes_what_was_interrupted_first)
{
    char record[256];
    make_interrupted();
    write_file(RECORD, record, make_record(LETTERS, "s-", record));
    ck_assert_int_eq(exchange(2, true), 0); /* its shards have their names by now */
    ck_assert_str_eq(shards(), "nn");
}
END_TEST

/* Also one of several shards of which some have their names already. */
START_TEST(each_step_may_be_done_again)
{
    char record[256];
    size_t len = make_record(LETTERS, "s-", record);
    make_shards(4, 'o', "");
    make_shards(1, 'n', "");
    make_shards(2, 'n', "." LETTERS ".ready");
    unlink("s-0.tar." LETTERS ".ready");
    unlink("s-3.tar");
    write_file(RECORD, record, len);
    ck_assert_int_eq(shard_exchange_settle("s-0.tar", &fault), 1);
    ck_assert_str_eq(shards(), "nn");
    ck_assert_int_ne(access("s-2.tar", F_OK), 0);
}
END_TEST

START_TEST(a_damaged_record_means_nothing)
{
    char record[256], other[256];
    size_t len = make_record(LETTERS, "s-", record);
    make_interrupted();
    for (size_t i = 0; i < len; i++) {
        memcpy(other, record, len);
        other[i] ^= 1;
        write_file(RECORD, other, len);
        ck_assert_int_eq(shard_exchange_settle("s-0.tar", &fault), 0);
        write_file(RECORD, record, i);
        ck_assert_int_eq(shard_exchange_settle("s-0.tar", &fault), 0);
    }
    ck_assert_str_eq(shards(), "oooo");
    ck_assert_int_eq(exchange(3, true), 0);
    ck_assert_str_eq(shards(), "oooo");
}
END_TEST

/* With a right sum, as somebody else may write one: no path leads out of the folder. */
START_TEST(a_record_names_nothing_elsewhere)
{
    char record[256];
    make_interrupted();
    ck_assert_int_eq(mkdir("in", 0755), 0);
    write_file("in/s-0.tar.x.ready", "x", 1);
    write_file(RECORD, record, make_record("x/../../s-0.tar." LETTERS, "s-", record));
    ck_assert_int_eq(shard_exchange_settle("s-0.tar", &fault), 0);
    write_file(RECORD, record, make_record("x", "in/s-", record));
    ck_assert_int_eq(shard_exchange_settle("s-0.tar", &fault), 0);
    ck_assert_int_eq(unlink(RECORD), 0);
    write_file("elsewhere", record, make_record(LETTERS, "s-", record));
    ck_assert_int_eq(symlink("elsewhere", RECORD), 0);
    ck_assert_int_eq(shard_exchange_settle("s-0.tar", &fault), 0);
    ck_assert_int_eq(unlink(RECORD), 0);
    ck_assert_int_eq(mkfifo(RECORD, 0600), 0); /* which nobody writes to */
    ck_assert_int_eq(shard_exchange_settle("s-0.tar", &fault), 0);
    ck_assert_str_eq(shards(), "oooo");
    ck_assert_int_eq(access("in/s-0.tar.x.ready", F_OK), 0);
}
END_TEST

START_TEST(names_of_shards_are_known_again)
{
    static const struct {
        const char *output, *third;
    } cases[] = {{"a/train.onepot.tar", "a/train-00003-of-00012.onepot.tar"},
                 {"train.tar.zst", "train-00003-of-00012.tar.zst"},
                 {"train", "train-00003-of-00012"},
                 {"t-%03d.x", "t-003.x"},
                 {"%d", "3"},
                 {"100%-%d.tar", "100%-3.tar"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct shard_names names;
        char *path;
        uint32_t number = 99;
        ck_assert_int_eq(shard_names_parse(cases[i].output, 12, &names), 0);
        ck_assert_int_eq(shard_name(&names, 3, &path), 0);
        ck_assert_str_eq(path, cases[i].third);
        const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
        ck_assert(shard_names_find(&names, name, strlen(name), &number));
        ck_assert_uint_eq(number, 3);
        ck_assert(!shard_names_find(&names, name, strlen(name) - 1, &number) || i == 4);
        free(path);
        ck_assert_int_eq(shard_name(&names, 12, &path), 0); /* there are 12 */
        name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
        ck_assert(!shard_names_find(&names, name, strlen(name), &number));
        free(path);
        shard_names_free(&names);
    }
    struct shard_names names;
    ck_assert_int_eq(shard_names_parse("a%d/b", 2, &names), -EINVAL);
    ck_assert_int_eq(shard_names_parse("a%101d", 2, &names), -EINVAL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shard_exchange");
    TCase *tests = tcase_create("all");
    tcase_add_unchecked_fixture(tests, make_base, NULL);
    tcase_add_checked_fixture(tests, make_folder, NULL);
    tcase_add_test(tests, a_set_replaces_a_larger_one);
    tcase_add_test(tests, a_set_that_lacks_a_shard_waits);
    tcase_add_test(tests, nothing_is_replaced_unasked_and_no_folder_ever);
    tcase_add_test(tests, an_interrupted_exchange_is_finished_by_whoever_opens_a_shard);
    tcase_add_test(tests, the_next_pack_finishes_what_was_interrupted_first);
    tcase_add_test(tests, each_step_may_be_done_again);
    tcase_add_test(tests, a_damaged_record_means_nothing);
    tcase_add_test(tests, a_record_names_nothing_elsewhere);
    tcase_add_test(tests, names_of_shards_are_known_again);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
