/*
 * A copy that another program made becomes the stage, and only if it is one: of the archive, of
 * this user, and finished. What happens to its name or its bytes meanwhile does no harm.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "source_ops.h"
#include "source_slice.h"
#include "stage_private.h"
#include "suite.h"

#define MIB (1u << 20)
#define BYTES (3u * MIB + 12345u)
#define OTHER_USER 12345u
#define LIMIT_MS 100000u

static char folder[64], place[128], archive[128], copy[256], spare[256];
static uint8_t *bytes;
static char notes[1024];
static struct fault fault;
static struct source *source;
static struct stage *stage;
static void (*during_samples)(void); /* while the archive's samples are read; once */

static int hooked_read(const struct source *s, struct source_cursor *cursor)
{
    void (*hook)(void) = during_samples;
    during_samples = NULL;
    if (hook)
        hook();
    return source_read_on(s->wrapped, cursor);
}

static bool hooked_close(struct source *s)
{
    (void)s;
    return true;
}

static const struct source_ops hooked_ops = {.read = hooked_read, .close = hooked_close};

static void write_file(const char *path, const void *content, size_t len)
{
    FILE *f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(content, 1, len, f), len);
    ck_assert_int_eq(fclose(f), 0);
}

static void set_time(const char *path, time_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static void keep_note(void *ctx, const char *line)
{
    (void)ctx;
    snprintf(notes, sizeof(notes), "%s", line);
}

static void make_copy(const char *path)
{
    write_file(path, bytes, BYTES);
    set_time(path, 1000);
}

static void setup(void)
{
    umask(022);
    suite_make_folder("adopt", folder, sizeof(folder));
    snprintf(place, sizeof(place), "%s/place", folder);
    snprintf(archive, sizeof(archive), "%s/a.tar", folder);
    snprintf(copy, sizeof(copy), "%s/copy.tar", place);
    snprintf(spare, sizeof(spare), "%s/spare.tar", place);
    ck_assert_int_eq(mkdir(place, 0755), 0);
    bytes = malloc(BYTES);
    ck_assert_ptr_nonnull(bytes);
    suite_fill_noise(bytes, BYTES);
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    make_copy(archive);
    make_copy(copy);
    ck_assert_int_eq(chmod(copy, 0600), 0); /* a later time of change than the archive's */
    notes[0] = '\0';
}

static void teardown(void)
{
    char line[PATH_MAX];
    free(bytes);
    snprintf(line, sizeof(line), "rm -rf '%s'", folder);
    ck_assert_int_eq(system(line), 0);
}

static int adopt(const char *path)
{
    const struct stage_options options = {.place = place, .adopt = path, .note = keep_note};
    fault = (struct fault){0};
    ck_assert_int_eq(source_open(archive, NULL, &source), 0);
    struct source *wrapper = calloc(1, sizeof(*wrapper));
    ck_assert_ptr_nonnull(wrapper);
    source_wrap(wrapper, &hooked_ops, &source);
    int r = stage_open(source, &options, &fault, &stage);
    if (r < 0)
        source_close(source);
    else
        ck_assert_int_eq(stage_attach(stage, &source, false), 0);
    return r;
}

static void end(void)
{
    ck_assert_int_eq(stage_stop(stage), 0);
    source_close(source);
    stage_close(stage);
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

static void ck_refused(int r, int err, const char *why)
{
    ck_assert_int_eq(r, err);
    ck_assert_msg(strstr(fault.what, why) != NULL, "%s", fault.what);
    ck_assert(exists(copy) || err == -ENOENT);
}

static void check_bytes(void)
{
    uint8_t *got = malloc(BYTES);
    ck_assert_ptr_nonnull(got);
    ck_assert_int_eq(source_read(source, got, BYTES, 0), 0);
    ck_assert_mem_eq(got, bytes, BYTES);
    free(got);
}

static struct stage_report report(void)
{
    struct stage_report r;
    stage_get_report(stage, &r);
    return r;
}

START_TEST(copy_is_moved_and_whole_at_once)
{
    ck_assert_int_eq(chmod(copy, 0644), 0);
    ck_assert_int_eq(adopt(copy), 0);
    ck_assert(report().whole);
    ck_assert(report().was_moved);
    ck_assert(!exists(copy));
    ck_assert(source_is_local(source));
    check_bytes();
    ck_assert_int_eq(write(open(copy, O_WRONLY | O_CREAT, 0600), "other", 5), 5);
    check_bytes();
    end();
}
END_TEST

START_TEST(second_process_needs_no_copy_once_the_stage_is_whole)
{
    ck_assert_int_eq(adopt(copy), 0);
    struct stage *first = stage;
    struct source *first_source = source;
    ck_assert_int_eq(adopt(copy), 0);
    ck_assert(report().whole);
    ck_assert(!report().was_moved);
    check_bytes();
    end();
    stage = first;
    source = first_source;
    end();
    ck_refused(adopt(copy), -ENOENT, "No such file");
}
END_TEST

START_TEST(copy_with_another_name_is_copied_and_stays)
{
    ck_assert_int_eq(link(copy, spare), 0);
    ck_assert_int_eq(adopt(copy), 0);
    ck_assert(!report().whole);
    during_samples = abort; /* nothing is read from the archive */
    ck_assert_int_eq(stage_start(stage), 0);
    ck_assert(stage_wait_whole(stage, LIMIT_MS));
    ck_assert(exists(copy));
    check_bytes();
    end();
}
END_TEST

START_TEST(stage_that_is_begun_is_completed_from_it)
{
    const struct stage_options options = {.place = place};
    struct source *early_source;
    struct stage *early;
    uint8_t byte;
    ck_assert_int_eq(source_open(archive, NULL, &early_source), 0);
    ck_assert_int_eq(stage_open(early_source, &options, NULL, &early), 0);
    ck_assert_int_eq(stage_attach(early, &early_source, false), 0);
    ck_assert_int_eq(source_read(early_source, &byte, 1, MIB), 0);
    ck_assert_int_eq(adopt(copy), 0);
    during_samples = abort;
    ck_assert_int_eq(stage_start(stage), 0);
    ck_assert(stage_wait_whole(stage, LIMIT_MS));
    ck_assert_uint_eq(report().copied_bytes, BYTES - MIB);
    check_bytes();
    source_close(early_source);
    stage_close(early);
    end();
}
END_TEST

START_TEST(file_of_another_size_time_or_content_is_refused)
{
    set_time(copy, 1001);
    ck_refused(adopt(copy), -ESTALE, "another time");
    ck_assert_ptr_nonnull(strstr(fault.advice, "sbcast -p"));
    bytes[BYTES - 1] ^= 1;
    make_copy(copy);
    ck_refused(adopt(copy), -ESTALE, "other bytes");
    bytes[BYTES - 1] ^= 1;
    write_file(copy, bytes, BYTES - 1);
    set_time(copy, 1000);
    ck_refused(adopt(copy), -ESTALE, "another size");
}
END_TEST

START_TEST(link_folder_pipe_and_the_archive_itself_are_refused)
{
    ck_assert_int_eq(symlink(copy, spare), 0);
    ck_refused(adopt(spare), -ELOOP, "symbolic link");
    ck_refused(adopt(place), -EINVAL, "regular file");
    ck_assert_int_eq(unlink(spare), 0);
    ck_assert_int_eq(mkfifo(spare, 0600), 0);
    ck_refused(adopt(spare), -EINVAL, "regular file");
    ck_assert_int_eq(unlink(spare), 0);
    ck_refused(adopt(archive), -EINVAL, "archive itself");
    ck_assert_int_eq(link(archive, spare), 0);
    ck_refused(adopt(spare), -EINVAL, "archive itself");
    ck_refused(adopt(""), -ENOENT, "No such file");
}
END_TEST

START_TEST(file_that_others_may_change_is_refused)
{
    ck_assert_int_eq(chmod(copy, 0664), 0);
    ck_refused(adopt(copy), -EPERM, "written by others");
    ck_assert_int_eq(chmod(copy, 0600), 0);
    if (geteuid() == 0 && chown(copy, OTHER_USER, (gid_t)-1) == 0)
        ck_refused(adopt(copy), -EPERM, "another user's");
}
END_TEST

START_TEST(file_that_is_being_written_is_refused)
{
    int fd = open(copy, O_RDWR);
    ck_refused(adopt(copy), -EBUSY, "still being written");
    void *map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert(map != MAP_FAILED);
    close(fd);
    ck_refused(adopt(copy), -EBUSY, "still being written");
    munmap(map, BYTES);
    ck_assert_int_eq(adopt(copy), 0);
    end();
}
END_TEST

static void open_for_writing(void)
{
    ck_assert_int_lt(open(copy, O_WRONLY | O_NONBLOCK), 0);
    ck_assert_int_eq(errno, EWOULDBLOCK);
}

START_TEST(writer_that_comes_meanwhile_ends_it)
{
    during_samples = open_for_writing;
    ck_refused(adopt(copy), -EBUSY, "being written");
}
END_TEST

static void swap_name(void)
{
    char moved[PATH_MAX];
    snprintf(moved, sizeof(moved), "%s/moved", folder);
    ck_assert_int_eq(rename(copy, moved), 0);
    memset(bytes, 7, MIB);
    write_file(copy, bytes, BYTES);
}

START_TEST(other_file_that_gets_the_name_meanwhile_is_left_alone)
{
    uint8_t *right = malloc(MIB);
    ck_assert_ptr_nonnull(right);
    memcpy(right, bytes, MIB);
    during_samples = swap_name;
    ck_assert_int_eq(adopt(copy), 0);
    ck_assert(!report().was_moved);
    ck_assert_int_eq(stage_start(stage), 0);
    ck_assert(stage_wait_whole(stage, LIMIT_MS));
    memcpy(bytes, right, MIB);
    free(right);
    check_bytes();
    ck_assert(exists(copy));
    end();
}
END_TEST

START_TEST(copy_that_is_written_while_it_is_copied_gives_way_to_the_archive)
{
    uint8_t byte;
    ck_assert_int_eq(link(copy, spare), 0);
    ck_assert_int_eq(adopt(copy), 0);
    ck_assert_int_eq(source_read(source, &byte, 1, 0), 0);
    open_for_writing();
    ck_assert_int_eq(stage_start(stage), 0);
    ck_assert(stage_wait_whole(stage, LIMIT_MS));
    ck_assert_ptr_nonnull(strstr(notes, "is being written"));
    write_file(copy, "short", 5); /* the writer need not wait any longer */
    check_bytes();
    end();
}
END_TEST

/* A tmpfs for this process alone. */
static bool mount_small(const char *options)
{
    if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 ||
        mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
        mount("small", place, "tmpfs", 0, options) < 0) {
        printf("skipped: only root can mount a small tmpfs\n");
        return false;
    }
    return true;
}

START_TEST(full_memory_is_no_hindrance_to_moving)
{
    if (!mount_small("size=5m,mode=755"))
        return;
    make_copy(copy);
    ck_assert_int_eq(adopt(copy), 0);
    ck_assert(report().whole);
    check_bytes();
    end();
    umount2(place, MNT_DETACH);
}
END_TEST

START_TEST(copy_keeps_its_name_and_mode_where_the_folder_is_full)
{
    struct stat st;
    if (!mount_small("size=4m,mode=755"))
        return;
    make_copy(copy);
    ck_assert_int_eq(chmod(copy, 0444), 0);
    int fd = open(spare, O_WRONLY | O_CREAT, 0600);
    char page[4096] = {0};
    while (write(fd, page, sizeof(page)) > 0)
        ;
    close(fd);
    ck_refused(adopt(copy), -ENOSPC, "can't be staged");
    ck_assert_int_eq(stat(copy, &st), 0);
    ck_assert_uint_eq(st.st_mode & 07777, 0444);
    ck_assert_int_eq(st.st_size, BYTES);
    umount2(place, MNT_DETACH);
}
END_TEST

START_TEST(copy_of_a_file_that_has_the_archive_inside_is_copied_from_there)
{
    const struct stage_options options = {.place = place, .adopt = copy};
    ck_assert_int_eq(source_open(archive, NULL, &source), 0);
    ck_assert_int_eq(source_slice(&source, 1000, 2 * MIB), 0);
    ck_assert_int_eq(stage_open(source, &options, &fault, &stage), 0);
    ck_assert_int_eq(stage_attach(stage, &source, false), 0);
    ck_assert(!report().was_moved);
    ck_assert_int_eq(stage_start(stage), 0);
    ck_assert(stage_wait_whole(stage, LIMIT_MS));
    uint8_t *got = malloc(2 * MIB);
    ck_assert_ptr_nonnull(got);
    ck_assert_int_eq(source_read(source, got, 2 * MIB, 0), 0);
    ck_assert_mem_eq(got, bytes + 1000, 2 * MIB);
    free(got);
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("adopt");
    TCase *tc = tcase_create("adopt");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, copy_is_moved_and_whole_at_once);
    tcase_add_test(tc, second_process_needs_no_copy_once_the_stage_is_whole);
    tcase_add_test(tc, copy_with_another_name_is_copied_and_stays);
    tcase_add_test(tc, stage_that_is_begun_is_completed_from_it);
    tcase_add_test(tc, file_of_another_size_time_or_content_is_refused);
    tcase_add_test(tc, link_folder_pipe_and_the_archive_itself_are_refused);
    tcase_add_test(tc, file_that_others_may_change_is_refused);
    tcase_add_test(tc, file_that_is_being_written_is_refused);
    tcase_add_test(tc, writer_that_comes_meanwhile_ends_it);
    tcase_add_test(tc, other_file_that_gets_the_name_meanwhile_is_left_alone);
    tcase_add_test(tc, copy_that_is_written_while_it_is_copied_gives_way_to_the_archive);
    tcase_add_test(tc, full_memory_is_no_hindrance_to_moving);
    tcase_add_test(tc, copy_keeps_its_name_and_mode_where_the_folder_is_full);
    tcase_add_test(tc, copy_of_a_file_that_has_the_archive_inside_is_copied_from_there);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
