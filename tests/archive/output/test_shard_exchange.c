/* Sets of shards get their names all or none, whatever lies in the folder and the record. */
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "output.h"
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
    fault = (struct fault){0};
    ck_assert_int_eq(shard_exchange_begin(&names, overwrite, NULL, &fault, &x), 0);
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

/* Four shards are to be replaced by two, and the process ends behind the record. */
struct made {
    char text[512];
    size_t header, len;
};

static uint64_t inode(const char *name)
{
    struct stat st;
    return lstat(name, &st) == 0 ? st.st_ino : 0;
}

static uint64_t birth(const char *name)
{
    struct statx st;
    if (statx(AT_FDCWD, name, 0, STATX_BTIME, &st) < 0 || !(st.stx_mask & STATX_BTIME))
        return 0;
    return (uint64_t)st.stx_btime.tv_sec * 1000000000u + st.stx_btime.tv_nsec;
}

static void sum_record(struct made *m)
{
    char sum[17];
    snprintf(sum, sizeof(sum), "%016llx",
             (unsigned long long)XXH3_64bits(m->text + 16, m->len - 16));
    memcpy(m->text, sum, 16);
}

/* Into the file that is there, whose inode it names. */
static struct made make_record(const char *letters, const char *before)
{
    struct made m = {.len = 0};
    write_file(RECORD, "", 0);
    int len = snprintf(m.text + 16, 400, "%s%c2%c4%c1%c%s%c.tar%c%llu%c%llu", letters, 0, 0, 0,
                       0, before, 0, 0, (unsigned long long)inode(RECORD), 0,
                       (unsigned long long)birth(RECORD));
    m.header = m.len = 16 + (size_t)len + 1;
    for (unsigned i = 0; i < 4; i++, m.len += 16) {
        char name[32];
        snprintf(name, sizeof(name), "s-%u.tar." LETTERS ".ready", i);
        uint64_t is = i < 2 ? inode(name) : 0;
        name[strlen(name) - strlen("." LETTERS ".ready")] = '\0';
        uint64_t was = inode(name);
        is = htole64(is), was = htole64(was);
        memcpy(m.text + m.len, &is, 8);
        memcpy(m.text + m.len + 8, &was, 8);
    }
    sum_record(&m);
    write_file(RECORD, m.text, m.len);
    return m;
}

static struct made make_interrupted(void)
{
    make_shards(4, 'o', "");
    make_shards(2, 'n', "." LETTERS ".ready");
    return make_record(LETTERS, "s-");
}

static int check(const char *path)
{
    struct shard_records records = {0};
    char byte;
    auto_close int fd = open(path, O_RDONLY);
    fault = (struct fault){0};
    int r = shard_exchange_check(&records, path, readlink(path, &byte, 1) == 1, fd, &fault);
    shard_records_free(&records);
    return r;
}

/* The set, the record and what waits are as make_interrupted left them. */
static void check_untouched(void)
{
    ck_assert_str_eq(shards(), "oooo");
    ck_assert_int_eq(access(RECORD, F_OK), 0);
    ck_assert_int_eq(access("s-0.tar." LETTERS ".ready", F_OK), 0);
    ck_assert_int_eq(access("s-1.tar." LETTERS ".ready", F_OK), 0);
}

START_TEST(who_opens_a_shard_is_told_of_the_exchange_and_changes_nothing)
{
    static const char *const opened[] = {"s-0.tar", "s-3.tar", "./s-1.tar", "link"};
    ck_assert_int_eq(symlink("s-1.tar", "link"), 0);
    make_interrupted();
    int held = open(RECORD, O_RDONLY);
    ck_assert_int_eq(flock(held, LOCK_EX), 0); /* nobody waits for it */
    for (size_t i = 0; i < sizeof(opened) / sizeof(opened[0]); i++) {
        ck_assert_int_eq(check(opened[i]), -EBUSY);
        ck_assert_ptr_nonnull(strstr(fault.advice, "onepot pack -f --shards 2 -o '"));
        ck_assert_ptr_nonnull(strstr(fault.advice, "s-%d.tar'"));
    }
    close(held);
    write_file("other.tar", "", 0);
    write_file("s-4.tar", "", 0);
    ck_assert_int_eq(check("other.tar"), 0);
    ck_assert_int_eq(check("s-4.tar"), 0); /* in neither set */
    ck_assert_int_eq(unlink("s-4.tar"), 0);
    check_untouched();
    ck_assert_int_eq(unlink("s-1.tar"), 0); /* not there yet: the user's own record counts */
    ck_assert_int_eq(check("s-1.tar"), -EBUSY);
}
END_TEST

START_TEST(the_next_pack_finishes_what_was_interrupted_first)
{
    make_interrupted();
    ck_assert_int_eq(exchange(2, true), 0); /* its shards have their names by now */
    ck_assert_str_eq(shards(), "nn");
}
END_TEST

START_TEST(a_pack_that_may_not_replace_finishes_nothing)
{
    struct shard_names names;
    struct shard_exchange x;
    make_interrupted();
    ck_assert_int_eq(shard_names_parse("s-%d.tar", 2, &names), 0);
    fault = (struct fault){0};
    ck_assert_int_eq(shard_exchange_begin(&names, false, NULL, &fault, &x), -EEXIST);
    ck_assert_str_eq(fault.member, RECORD);
    shard_names_free(&names);
    check_untouched();
}
END_TEST

/* Also one of several shards of which some have their names already. */
START_TEST(each_step_may_be_done_again)
{
    make_interrupted();
    ck_assert_int_eq(rename("s-0.tar." LETTERS ".ready", "s-0.tar"), 0);
    unlink("s-3.tar");
    ck_assert_int_eq(check("s-0.tar"), -EBUSY);
    ck_assert_int_eq(exchange(2, true), 0);
    ck_assert_str_eq(shards(), "nn");
    ck_assert_int_ne(access("s-2.tar", F_OK), 0);
}
END_TEST

/* The folder with an interrupted exchange is opened and packed: nothing is moved or removed. */
static void check_is_void(int told)
{
    check_untouched();
    ck_assert_int_eq(check("s-0.tar"), told);
    ck_assert(!told || strstr(fault.what, RECORD));
    check_untouched();
    ck_assert_int_eq(exchange(3, true), 0); /* withdraws s-0.tar's ready file, and the record */
    ck_assert_str_eq(shards(), "oooo");
}

START_TEST(a_damaged_record_means_nothing)
{
    struct made m = make_interrupted(), other;
    for (size_t i = 0; i < m.len; i++) {
        other = m;
        other.text[i] ^= 1;
        write_file(RECORD, other.text, m.len);
        ck_assert_int_eq(check("s-0.tar"), 0);
        write_file(RECORD, m.text, i);
        ck_assert_int_eq(check("s-0.tar"), 0);
    }
    check_is_void(0);
}
END_TEST

/* As tar extracts one, or cp copies one: its sum is right. */
START_TEST(a_record_that_does_not_name_itself_is_void)
{
    struct made m = make_interrupted();
    int kept = open(RECORD, O_RDONLY); /* so that its number is not given again */
    ck_assert_int_eq(unlink(RECORD), 0);
    write_file(RECORD, m.text, m.len);
    check_is_void(1);
    close(kept);
}
END_TEST

/* As tar may extract one: its inode number may be guessed, and its birth can't. */
START_TEST(a_record_of_another_inode_or_birth_is_void)
{
    for (unsigned i = 0; i < 2; i++) {
        struct made m = make_interrupted();
        char *last = m.text + m.header - 2; /* digit of the birth */
        if (i == 0)
            last = (char *)memrchr(m.text, '\0', m.header - 1) - 1; /* of the number */
        else if (!birth(RECORD))
            return;
        *last = *last == '1' ? '2' : '1';
        sum_record(&m);
        write_file(RECORD, m.text, m.len);
        check_is_void(1);
    }
}
END_TEST

START_TEST(only_files_that_the_record_names_are_moved_or_removed)
{
    static const char *const names[] = {"s-0.tar", "s-2.tar", "s-0.tar." LETTERS ".ready"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct shard_names set;
        struct shard_exchange x;
        make_interrupted();
        int kept = open(names[i], O_RDONLY);
        ck_assert_int_eq(unlink(names[i]), 0);
        write_file(names[i], "x", 1);
        if (i == 0)
            ck_assert_int_eq(check(names[i]), 1); /* it speaks of another one */
        ck_assert_int_eq(shard_names_parse("s-%d.tar", 2, &set), 0);
        fault = (struct fault){0};
        ck_assert_int_eq(shard_exchange_begin(&set, true, NULL, &fault, &x), -EEXIST);
        ck_assert_str_eq(fault.member, names[i]);
        shard_names_free(&set);
        ck_assert_int_eq(access(names[i], F_OK), 0);
        close(kept);
    }
}
END_TEST

START_TEST(a_record_is_bounded)
{
    struct made m = make_interrupted();
    /* letters, then the count and the end */
    char *end = m.text + 16 + sizeof(LETTERS) + 2;
    ck_assert_int_eq(*end, '4');
    *end = '9';
    sum_record(&m);
    write_file(RECORD, m.text, m.len); /* with four shards */
    check_is_void(1);
    m = make_interrupted();
    m.text[16 + sizeof(LETTERS)] = '0';
    sum_record(&m);
    write_file(RECORD, m.text, m.len);
    check_is_void(1);
}
END_TEST

/* With a right sum, as somebody else may write one: no path leads out of the folder. */
START_TEST(a_record_names_nothing_elsewhere)
{
    make_interrupted();
    ck_assert_int_eq(mkdir("in", 0755), 0);
    write_file("in/s-0.tar.x.ready", "x", 1);
    make_record("x/../../s-0.tar." LETTERS, "s-");
    ck_assert_int_eq(check("s-0.tar"), 1);
    struct made m = make_record("abcdef", "in/s-");
    ck_assert_int_eq(check("s-0.tar"), 1);
    ck_assert_int_eq(unlink(RECORD), 0);
    write_file("elsewhere", m.text, m.len);
    ck_assert_int_eq(symlink("elsewhere", RECORD), 0);
    ck_assert_int_eq(check("s-0.tar"), 0);
    ck_assert_int_eq(unlink(RECORD), 0);
    ck_assert_int_eq(mkfifo(RECORD, 0600), 0); /* which nobody writes to */
    ck_assert_int_eq(check("s-0.tar"), 0);
    ck_assert_str_eq(shards(), "oooo");
    ck_assert_int_eq(access("in/s-0.tar.x.ready", F_OK), 0);
}
END_TEST

START_TEST(another_users_record_is_told_and_ignored)
{
    struct shard_names names;
    struct shard_exchange x;
    if (geteuid() != 0)
        return;
    make_interrupted();
    ck_assert_int_eq(chown(RECORD, 54321, 54321), 0);
    ck_assert_int_eq(check("s-0.tar"), 1);
    ck_assert_ptr_nonnull(strstr(fault.what, "54321"));
    ck_assert_int_eq(shard_names_parse("s-%d.tar", 2, &names), 0);
    fault = (struct fault){0};
    ck_assert_int_eq(shard_exchange_begin(&names, true, NULL, &fault, &x), -EPERM);
    ck_assert_ptr_nonnull(strstr(fault.what, "54321"));
    check_untouched();
    /* A ready shard of another user is none. */
    ck_assert_int_eq(unlink(RECORD), 0);
    ck_assert_int_eq(chown("s-1.tar." LETTERS ".ready", 54321, 54321), 0);
    ck_assert_int_eq(exchange(2, true), 0);
    ck_assert_str_eq(shards(), "oooo");
    shard_names_free(&names);
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
    tcase_add_test(tests, who_opens_a_shard_is_told_of_the_exchange_and_changes_nothing);
    tcase_add_test(tests, the_next_pack_finishes_what_was_interrupted_first);
    tcase_add_test(tests, a_pack_that_may_not_replace_finishes_nothing);
    tcase_add_test(tests, each_step_may_be_done_again);
    tcase_add_test(tests, a_damaged_record_means_nothing);
    tcase_add_test(tests, a_record_that_does_not_name_itself_is_void);
    tcase_add_test(tests, a_record_of_another_inode_or_birth_is_void);
    tcase_add_test(tests, only_files_that_the_record_names_are_moved_or_removed);
    tcase_add_test(tests, a_record_is_bounded);
    tcase_add_test(tests, a_record_names_nothing_elsewhere);
    tcase_add_test(tests, another_users_record_is_told_and_ignored);
    tcase_add_test(tests, names_of_shards_are_known_again);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
