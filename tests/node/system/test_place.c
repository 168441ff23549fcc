/*
 * Which places are trusted. Each test has a folder below /tmp, which is sticky and root's.
 * Other users are made by chown, so most tests need root.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "place.h"
#include "suite.h"

#define US 4242u    /* a user of no name, when the tests run as root */
#define OTHER 4343u /* another */

/* A process that has become another user is not to be traced, and the search for leaks traces.
 */
const char *__lsan_default_options(void) __attribute__((visibility("default")));
const char *__lsan_default_options(void)
{
    return "detect_leaks=0";
}

static char base[96];

static void give_base(uid_t uid, mode_t mode)
{
    const char *above = getenv(SUITE_FOLDER);
    ck_assert_int_eq(chown(base, uid, uid), 0);
    ck_assert_int_eq(chmod(base, mode), 0);
    ck_assert_int_eq(chown(above, uid, uid), 0);
    ck_assert_int_eq(chmod(above, mode), 0);
}

static void place_setup(void)
{
    suite_make_folder("place", base, sizeof(base));
    give_base(geteuid(), 0755);
}

static const char *under(const char *name)
{
    static char path[4][160];
    static unsigned next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof(path[0]), "%s/%s", base, name);
    return p;
}

static const char *make(const char *name, uid_t uid, mode_t mode)
{
    const char *path = under(name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(chown(path, uid, uid), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
    return path;
}

static int judge(const char *path, enum place_rule rule, struct place *ret_refused)
{
    struct place place;
    int r = place_open(path, rule, &place);
    if (ret_refused)
        *ret_refused = place;
    if (r == 0) {
        struct stat st;
        ck_assert_int_eq(stat(place.path, &st), 0);
        ck_assert_uint_eq(st.st_ino, place.st.st_ino);
        ck_assert_int_eq(fstat(place.fd, &st), 0);
        ck_assert_uint_eq(st.st_ino, place.st.st_ino);
        close(place.fd);
    }
    return r;
}

static void be_us(void)
{
    ck_assert_int_eq(seteuid(US), 0);
}

static bool is_root(void)
{
    if (geteuid() == 0)
        return true;
    fprintf(stderr, "skipped: only root can make other users' folders\n");
    return false;
}

/* ---- the rule ---- */

START_TEST(a_sticky_folder_of_root_will_do_unless_it_must_be_closed)
{
    struct place refused;
    ck_assert_int_eq(judge("/tmp", PLACE_SHARED, NULL), 0);
    ck_assert_int_eq(judge(base, PLACE_SHARED, NULL), 0);
    ck_assert_int_eq(judge(base, PLACE_CLOSED, &refused), -EPERM);
    ck_assert_str_eq(refused.path, "/tmp");
    ck_assert_int_eq(judge("/", PLACE_CLOSED, NULL), 0);
}
END_TEST

START_TEST(no_folder_above_may_be_another_user_s)
{
    struct place refused;
    char text[512];
    if (!is_root())
        return;
    const char *theirs = make("theirs", OTHER, 0755);
    const char *ours = make("theirs/ours", US, 0700);
    make("mine", US, 0755);
    const char *inside = make("mine/inside", US, 0700);
    be_us();
    ck_assert_int_eq(judge(inside, PLACE_SHARED, NULL), 0);
    ck_assert_int_eq(judge(ours, PLACE_SHARED, &refused), -EPERM);
    ck_assert_str_eq(refused.path, theirs);
    ck_assert_uint_eq(refused.st.st_uid, OTHER);
    ck_assert_ptr_nonnull(strstr(place_explain(&refused, text, sizeof(text)), "user 4343"));
}
END_TEST

START_TEST(root_trusts_no_user_and_a_user_trusts_root)
{
    if (!is_root())
        return;
    const char *theirs = make("theirs", OTHER, 0755);
    const char *roots = make("theirs/roots", 0, 0700);
    const char *open = make("open", 0, 0755);
    ck_assert_int_eq(judge(theirs, PLACE_SHARED, NULL), -EPERM);
    ck_assert_int_eq(judge(roots, PLACE_SHARED, NULL), -EPERM);
    be_us();
    ck_assert_int_eq(judge(open, PLACE_SHARED, NULL), 0);
}
END_TEST

START_TEST(what_others_may_write_to_is_refused_unless_sticky)
{
    struct place refused;
    char text[512];
    if (!is_root())
        return;
    make("open", US, 0777);
    const char *inside = make("open/inside", US, 0700);
    const char *sticky = make("sticky", US, 01777);
    make("theirs", OTHER, 01777); /* its owner renames what lies there, sticky or not */
    const char *in_theirs = make("theirs/ours", US, 0700);
    be_us();
    ck_assert_int_eq(judge(inside, PLACE_SHARED, &refused), -EPERM);
    ck_assert_ptr_nonnull(strstr(place_explain(&refused, text, sizeof(text)), "0777"));
    ck_assert_int_eq(judge(sticky, PLACE_SHARED, NULL), 0);
    ck_assert_int_eq(judge(sticky, PLACE_CLOSED, NULL), -EPERM);
    ck_assert_int_eq(judge(in_theirs, PLACE_SHARED, NULL), -EPERM);
}
END_TEST

START_TEST(a_group_may_write_only_if_it_is_the_owner_s_alone)
{
    if (!is_root())
        return;
    const char *private = make("private", US, 0775);
    const char *shared = make("shared", US, 0775);
    ck_assert_int_eq(chown(shared, US, OTHER), 0);
    be_us();
    ck_assert_int_eq(judge(private, PLACE_SHARED, NULL), 0);
    ck_assert_int_eq(judge(shared, PLACE_SHARED, NULL), -EPERM);
}
END_TEST

static void write_text(const char *name, const char *text)
{
    int fd = open(under(name), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
}

/* For this process alone, the node's users and groups are what these two files say. */
static bool mount_accounts(const char *users, const char *groups)
{
    write_text(users, "");
    write_text(groups, "");
    if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
        mount(under(users), "/etc/passwd", NULL, MS_BIND, NULL) == 0 &&
        mount(under(groups), "/etc/group", NULL, MS_BIND, NULL) == 0)
        return true;
    fprintf(stderr, "skipped: other users' accounts need a mount namespace\n");
    return false;
}

START_TEST(a_group_of_which_others_are_is_not_the_owner_s_alone)
{
    static const struct {
        const char *users, *groups;
        int answer;
    } nodes[] = {
        {"", "", 0},
        {"us:x:4242:4242::/:/bin/sh\nother:x:4343:4343::/:/bin/sh\n", "us:x:4242:\n", 0},
        {"us:x:4242:4242::/:/bin/sh\n", "others:x:4343:other\n", 0},
        {"us:x:4242:4242::/:/bin/sh\nother:x:4343:4242::/:/bin/sh\n", "us:x:4242:\n", -EPERM},
        {"us:x:4242:4242::/:/bin/sh\n", "root:x:0:\nus:x:4242:other\n", -EPERM},
    };
    if (!is_root() || !mount_accounts("users", "groups"))
        return;
    make("private", US, 0775);
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++) {
        ck_assert_int_eq(seteuid(0), 0);
        write_text("users", nodes[i].users);
        write_text("groups", nodes[i].groups);
        be_us();
        ck_assert_int_eq(judge(under("private"), PLACE_SHARED, NULL), nodes[i].answer);
    }
}
END_TEST

/* A list of named users shows in the group's bits, whoever the group is. */
START_TEST(an_access_list_is_not_a_private_group)
{
    static const unsigned char list[] = {
        2,  0, 0, 0,                                    /* version */
        1,  0, 7, 0, 255,         255,        255, 255, /* owner rwx */
        2,  0, 7, 0, OTHER & 255, OTHER >> 8, 0,   0,   /* user OTHER rwx */
        4,  0, 5, 0, 255,         255,        255, 255, /* group r-x */
        16, 0, 7, 0, 255,         255,        255, 255, /* mask rwx */
        32, 0, 5, 0, 255,         255,        255, 255, /* others r-x */
    };
    if (!is_root())
        return;
    const char *path = make("listed", US, 0755);
    if (setxattr(path, "system.posix_acl_access", list, sizeof(list), 0) < 0) {
        fprintf(stderr, "skipped: no access lists in /tmp\n");
        return;
    }
    be_us();
    ck_assert_int_eq(judge(path, PLACE_SHARED, NULL), -EPERM);
}
END_TEST

START_TEST(links_lead_where_they_lead_and_that_is_judged)
{
    struct place place;
    if (!is_root())
        return;
    make("theirs", OTHER, 0755);
    const char *ours = make("ours", US, 0700);
    ck_assert_int_eq(symlink(ours, under("theirs/link")), 0);
    ck_assert_int_eq(symlink("theirs", under("to_theirs")), 0);
    be_us();
    ck_assert_int_eq(place_open(under("theirs/link"), PLACE_SHARED, &place), 0);
    ck_assert_str_eq(place.path, ours);
    close(place.fd);
    ck_assert_int_eq(judge(under("to_theirs"), PLACE_SHARED, NULL), -EPERM);
    ck_assert_int_eq(judge(under("ours/../theirs"), PLACE_SHARED, NULL), -EPERM);
}
END_TEST

START_TEST(a_file_is_judged_as_folders_are)
{
    if (!is_root())
        return;
    int fd = open(under("file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0644);
    ck_assert_int_ge(fd, 0);
    be_us();
    ck_assert_int_eq(judge(under("file"), PLACE_SHARED, NULL), 0);
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(fchmod(fd, 01666), 0); /* the bit means nothing here */
    be_us();
    ck_assert_int_eq(judge(under("file"), PLACE_SHARED, NULL), -EPERM);
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(fchmod(fd, 0644), 0);
    ck_assert_int_eq(fchown(fd, OTHER, OTHER), 0);
    be_us();
    ck_assert_int_eq(judge(under("file"), PLACE_SHARED, NULL), -EPERM);
    close(fd);
}
END_TEST

START_TEST(a_path_that_is_none_is_an_error)
{
    struct place refused;
    ck_assert_int_eq(judge("tmp", PLACE_SHARED, &refused), -EINVAL);
    ck_assert_int_eq(judge("", PLACE_SHARED, &refused), -EINVAL);
    ck_assert_int_eq(judge(under("absent"), PLACE_SHARED, &refused), -ENOENT);
    ck_assert_str_eq(refused.path, under("absent"));
    ck_assert_int_eq(judge("/etc/passwd/x", PLACE_SHARED, &refused), -ENOTDIR);
}
END_TEST

START_TEST(without_a_list_of_mounts_the_type_decides)
{
    const char *path = under("mounted");
    if (!is_root())
        return;
    make("mounted", geteuid(), 0700);
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
        mount("none", path, "tmpfs", 0, "mode=0700") < 0 ||
        mount("none", "/proc", "tmpfs", 0, NULL) < 0) {
        fprintf(stderr, "skipped: needs a mount namespace\n");
        return;
    }
    ck_assert_int_eq(judge(path, PLACE_SHARED, NULL), 0);
}
END_TEST

/*
 * A folder of ours that the list of mounts shows as a FUSE program's: `program` is the end of
 * its line. False: skipped.
 */
static bool list_as_program(const char *path, const char *program)
{
    char line[8192], at[PATH_MAX];
    make("mounted", geteuid(), 0700);
    if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_SLAVE, NULL) < 0 ||
        mount("none", path, "tmpfs", 0, "mode=0700") < 0) {
        fprintf(stderr, "skipped: needs a mount namespace\n");
        return false;
    }
    const char *list = under("list");
    FILE *from = fopen("/proc/self/mountinfo", "re"), *to = fopen(list, "we");
    ck_assert(from && to);
    while (fgets(line, sizeof(line), from)) {
        if (sscanf(line, "%*s %*s %*s %*s %s", at) == 1 && strcmp(at, path) == 0)
            strcpy(strstr(line, " - ") + 3, program);
        fputs(line, to);
    }
    fclose(from);
    fclose(to);
    ck_assert_int_eq(mount(list, "/proc/self/mountinfo", NULL, MS_BIND, NULL), 0);
    return true;
}

START_TEST(a_program_is_its_users)
{
    static const struct {
        const char *line;
        int judged;
    } cases[] = {
        {"fuse.x x rw,user_id=0,group_id=0\n", 0},
        {"fuse.x x rw,user_id=1234,group_id=0\n", -EPERM},
        {"fuse.x  rw,user_id=1234,group_id=0\n", -EPERM}, /* old kernels: an empty source */
        {"fuse.x x rw\n", -EPERM},
    };
    const char *path = under("mounted");
    if (is_root() && list_as_program(path, cases[_i].line))
        ck_assert_int_eq(judge(path, PLACE_SHARED, NULL), cases[_i].judged);
}
END_TEST

/* ---- user namespaces ---- */

static void write_map(const char *file, const char *text)
{
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        _exit(77);
    close(fd);
}

/* In a new user namespace, what `ask` returns there; `number`: our user's there, or -1: none.
 */
static int in_namespace(int number, int (*ask)(void))
{
    char line[64];
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        snprintf(line, sizeof(line), "%d %u 1", number, (unsigned)geteuid());
        if (unshare(CLONE_NEWUSER) < 0)
            _exit(77);
        if (number >= 0)
            write_map("/proc/self/uid_map", line);
        _exit(-ask());
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return -WEXITSTATUS(status);
}

static int ask_tmp(void)
{
    return judge("/tmp", PLACE_SHARED, NULL);
}

static int ask_usr(void)
{
    return judge("/usr/bin", PLACE_CLOSED, NULL);
}

static int ask_ours(void)
{
    return judge(under("ours"), PLACE_SHARED, NULL);
}

static int ask_theirs(void)
{
    return judge(under("theirs"), PLACE_SHARED, NULL);
}

static int ask_whose(void)
{
    struct stat st;
    return stat(under("ours"), &st) == 0 && place_is_ours(&st) ? 0 : -EPERM;
}

/* A namespace can't be had everywhere: then each answer is 77. */
START_TEST(in_a_user_namespace_root_is_known_by_its_folders_names)
{
    if (!is_root())
        return;
    make("theirs", OTHER, 0755);
    make("ours", US, 0700);
    give_base(US, 0755);
    ck_assert_int_eq(setresuid(US, US, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0); /* its files in /proc are then its own */
    if (in_namespace(0, ask_tmp) == -77)
        return;
    ck_assert_int_eq(in_namespace(0, ask_tmp), 0);
    ck_assert_int_eq(in_namespace(0, ask_usr), 0);
    ck_assert_int_eq(in_namespace(0, ask_ours), 0);
    ck_assert_int_eq(in_namespace(0, ask_whose), 0);
    ck_assert_int_eq(in_namespace(0, ask_theirs), -EPERM);
}
END_TEST

START_TEST(a_program_of_a_user_with_our_number_here_is_anothers)
{
    const char *path = under("mounted");
    if (!is_root() || in_namespace(-1, ask_tmp) == -77 ||
        !list_as_program(path, "fuse.x x rw,user_id=1234\n"))
        return;
    ck_assert_int_eq(unshare(CLONE_NEWUSER), 0);
    write_map("/proc/self/uid_map", "1234 0 1");
    ck_assert_uint_eq(geteuid(), 1234);
    ck_assert_int_eq(judge(path, PLACE_SHARED, NULL), -EPERM);
}
END_TEST

START_TEST(without_a_number_nothing_is_ours)
{
    if (!is_root())
        return;
    make("ours", US, 0700);
    give_base(US, 0755);
    ck_assert_int_eq(setresuid(US, US, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_DUMPABLE, 1), 0); /* its files in /proc are then its own */
    if (in_namespace(-1, ask_tmp) != -77) {
        ck_assert_int_eq(in_namespace(-1, ask_ours), -EPERM);
        ck_assert_int_eq(in_namespace(-1, ask_whose), -EPERM);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("place");
    TCase *c = tcase_create("place");
    tcase_add_checked_fixture(c, place_setup, NULL);
    tcase_add_test(c, a_sticky_folder_of_root_will_do_unless_it_must_be_closed);
    tcase_add_test(c, no_folder_above_may_be_another_user_s);
    tcase_add_test(c, root_trusts_no_user_and_a_user_trusts_root);
    tcase_add_test(c, what_others_may_write_to_is_refused_unless_sticky);
    tcase_add_test(c, a_group_may_write_only_if_it_is_the_owner_s_alone);
    tcase_add_test(c, a_group_of_which_others_are_is_not_the_owner_s_alone);
    tcase_add_test(c, an_access_list_is_not_a_private_group);
    tcase_add_test(c, links_lead_where_they_lead_and_that_is_judged);
    tcase_add_test(c, a_file_is_judged_as_folders_are);
    tcase_add_test(c, a_path_that_is_none_is_an_error);
    tcase_add_test(c, without_a_list_of_mounts_the_type_decides);
    tcase_add_loop_test(c, a_program_is_its_users, 0, 4);
    tcase_add_test(c, a_program_of_a_user_with_our_number_here_is_anothers);
    tcase_add_test(c, in_a_user_namespace_root_is_known_by_its_folders_names);
    tcase_add_test(c, without_a_number_nothing_is_ours);
    suite_add_tcase(s, c);
    return run_suite(s);
}
