/*
 * Options of mount and run: what is understood, what is refused and not ignored, and
 * which of them let mounts be shared.
 */
#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mount_options.h"
#include "suite.h"

static const struct cli_command command = {
    .name = "mount", .synopsis = "[OPTION...] ARCHIVE", .text = "Tests.\n"};

/* Parse words that are separated by blanks. */
static int parse(const char *words, bool for_run, struct mount_options *ret)
{
    static char text[1024];
    static char *argv[64];
    int argc = 0;
    argv[argc++] = (char *)"mount";
    snprintf(text, sizeof(text), "%s", words);
    for (char *save, *word = strtok_r(text, " ", &save); word;
         word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    optind = 0; /* getopt starts anew */
    return mount_options_parse(&command, for_run, argc, argv, ret);
}

static void quiet(void)
{
    int fd = open("/dev/null", O_WRONLY);
    dup2(fd, 2);
    close(fd);
}

START_TEST(all_options_arrive)
{
    struct mount_options o;
    ck_assert_int_eq(
        parse("-f a.tar --at /mnt --threads 3 --cache 2G --idle 60 --grace 7 --owner 77 "
              "--subdir x/y --allow-other --uid 5 --gid 0 --log l --io-timeout 0 "
              "-o noexec,fsname=me --readahead off",
              false, &o),
        CLI_GO_ON);
    ck_assert_str_eq(o.archive, "a.tar");
    ck_assert_uint_eq(o.archive_count, 1);
    ck_assert_str_eq(o.at, "/mnt");
    ck_assert_str_eq(o.subdir, "x/y");
    ck_assert_str_eq(o.log, "l");
    ck_assert_str_eq(o.fsname, "me");
    ck_assert(o.foreground && o.allow_other && o.default_permissions && o.noexec);
    ck_assert(o.override_uid && o.uid == 5 && o.override_gid && o.gid == 0);
    ck_assert(o.threads == 3 && o.idle_s == 60 && o.grace_s == 7 && o.io_timeout_s == 0 &&
              o.owner == 77);
    ck_assert(o.cache_given && o.cache_bytes == UINT64_C(2) << 30);
}
END_TEST

START_TEST(without_options_the_defaults_hold)
{
    struct mount_options o;
    ck_assert_int_eq(parse("a.tar -o ro,nosuid,nodev,noatime", false, &o), CLI_GO_ON);
    ck_assert(!o.at && !o.foreground && !o.allow_other && !o.override_uid && !o.nonempty);
    ck_assert(o.threads == 0 && o.idle_s == 0 && o.io_timeout_s == 60 && o.retries == 4 &&
              o.owner == 0);
    ck_assert(!o.cache_given);
    ck_assert_uint_eq(o.readahead_bytes, UINT64_MAX);
    ck_assert_int_eq(parse("a.tar --owner none", false, &o), CLI_GO_ON);
    ck_assert_int_eq(o.owner, MOUNT_NO_OWNER);
    ck_assert_int_eq(parse("a.tar --readahead 1M", false, &o), CLI_GO_ON);
    ck_assert_uint_eq(o.readahead_bytes, 1 << 20);
    ck_assert_int_eq(parse("a.tar --readahead auto", false, &o), CLI_GO_ON);
    ck_assert_uint_eq(o.readahead_bytes, UINT64_MAX);
    ck_assert_int_eq(parse("a.tar --readahead off", false, &o), CLI_GO_ON);
    ck_assert_uint_eq(o.readahead_bytes, 0);
    ck_assert(!o.stage);
    ck_assert_int_eq(parse("a.tar --stage", false, &o), CLI_GO_ON);
    ck_assert(o.stage && !o.stage_place);
    ck_assert_int_eq(parse("a.tar --stage=/x", false, &o), CLI_GO_ON);
    ck_assert(o.stage);
    ck_assert_str_eq(o.stage_place, "/x");
}
END_TEST

START_TEST(of_exec_and_noexec_the_last_one_counts)
{
    struct mount_options o;
    ck_assert_int_eq(parse("a.tar -o exec,nonempty,default_permissions", false, &o), CLI_GO_ON);
    ck_assert(!o.noexec && o.nonempty && o.default_permissions);
    ck_assert_int_eq(parse("a.tar -o exec,noexec", false, &o), CLI_GO_ON);
    ck_assert(o.noexec);
    ck_assert_int_eq(parse("a.tar -o noexec -o exec", false, &o), CLI_GO_ON);
    ck_assert(!o.noexec);
}
END_TEST

START_TEST(the_last_word_may_be_the_mount_point)
{
    struct mount_options o;
    char empty[64], words[256];
    suite_make_folder("options", empty, sizeof(empty));
    ck_assert_int_eq(parse("a.tar b.tar /dev/fd/3 -f", false, &o), CLI_GO_ON);
    ck_assert_str_eq(o.at, "/dev/fd/3");
    ck_assert(o.at_is_last && o.foreground && o.archive_count == 2);
    snprintf(words, sizeof(words), "a.tar %s -o ro,uid=1,gid=2,subdir=x,nofail,x-a=b", empty);
    ck_assert_int_eq(parse(words, false, &o), CLI_GO_ON);
    ck_assert_str_eq(o.at, empty);
    ck_assert_str_eq(o.subdir, "x");
    ck_assert(o.uid == 1 && o.override_uid && o.gid == 2 && o.override_gid);
    ck_assert_int_eq(parse("a.tar /etc", false, &o), CLI_GO_ON);
    ck_assert(!o.at && o.archive_count == 2);
    ck_assert_int_eq(parse("a.tar /etc -o nonempty", false, &o), CLI_GO_ON);
    ck_assert_str_eq(o.at, "/etc");
    snprintf(words, sizeof(words), "a.tar %s", empty);
    ck_assert_int_eq(parse(words, true, &o), CLI_GO_ON);
    ck_assert(!o.at);
    ck_assert_int_eq(parse(empty, false, &o), CLI_GO_ON);
    ck_assert(!o.at && o.archive_count == 1);
    ck_assert_int_eq(rmdir(empty), 0);
    ck_assert_int_eq(parse("a.tar nothing.tar", false, &o), CLI_GO_ON);
    ck_assert(!o.at);
}
END_TEST

START_TEST(what_is_not_served_is_refused)
{
    static const char *const lines[] = {
        "",
        "a.tar --on-conflict any",
        "a.tar --stage=",
        "a.tar --readahead much",
        "a.tar --seed x",
        "a.tar --order",
        "a.tar --threads -1",
        "a.tar --threads 5000",
        "a.tar --idle 0",
        "a.tar --grace 0",
        "a.tar --private",
        "a.tar --private maybe",
        "a.tar --private on",
        "a.tar --idle soon",
        "a.tar --owner 0",
        "a.tar --owner nobody",
        "a.tar --uid 4294967295",
        "a.tar --uid root",
        "a.tar --cache lots",
        "a.tar --at",
        "a.tar --allow-other",
        "a.tar -o allow_other",
        "a.tar -o rw",
        "a.tar -o suid",
        "a.tar -o max_read=1",
        "a.tar -o fsname=",
        "a.tar -o dev",
        "a.tar -o entry_timeout=1",
        "a.tar -o subtype=x",
        "a.tar -o allow_root",
        "a.tar -o auto_unmount",
        "a.tar -o uid=me",
        "a.tar -o subdir=",
        "a.tar -o off",
        "a.tar --progress sometimes",
    };
    struct mount_options o;
    quiet();
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        ck_assert_msg(parse(lines[i], false, &o) == CLI_USAGE, "%s", lines[i]);
    ck_assert_int_eq(parse("-f a.tar", true, &o), CLI_USAGE);
}
END_TEST

static uint64_t hash_of(const char *words, int64_t mtime)
{
    struct mount_options o;
    ck_assert_int_eq(parse(words, false, &o), CLI_GO_ON);
    return mount_options_hash(&o, o.at, mtime, 0, 0);
}

START_TEST(equal_options_make_equal_hashes_and_others_do_not)
{
    static const char *const lines[] = {
        "a",
        "a --stage",
        "a --stage=/x",
        "a --at /x",
        "a --at /y",
        "a --subdir x",
        "a --threads 1",
        "a --cache 1M",
        "a --idle 5",
        "a --grace 5",
        "a --owner 5",
        "a --uid 5",
        "a --gid 5",
        "a --uid 0",
        "a --log x",
        "a --io-timeout 5",
        "a -o noexec",
        "a -o fsname=x",
        "a -f",
        "a -o nonempty",
        "a -o default_permissions",
        "a --at /x --allow-other",
    };
    size_t count = sizeof(lines) / sizeof(lines[0]);
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++)
            ck_assert_msg((hash_of(lines[i], 1) == hash_of(lines[j], 1)) == (i == j), "%s / %s",
                          lines[i], lines[j]);
    ck_assert_uint_ne(hash_of("a", 1), hash_of("a", 2));
    ck_assert_uint_eq(hash_of("a --progress never", 1), hash_of("a", 1));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("mount_options");
    TCase *c = tcase_create("mount_options");
    tcase_add_test(c, all_options_arrive);
    tcase_add_test(c, without_options_the_defaults_hold);
    tcase_add_test(c, of_exec_and_noexec_the_last_one_counts);
    tcase_add_test(c, the_last_word_may_be_the_mount_point);
    tcase_add_test(c, what_is_not_served_is_refused);
    tcase_add_test(c, equal_options_make_equal_hashes_and_others_do_not);
    suite_add_tcase(s, c);
    return run_suite(s);
}
