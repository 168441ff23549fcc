/* Sources: files and memory give the same bytes by every way of reading them. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "source.h"
#include "suite.h"

static char folder[64];

static void setup(void)
{
    suite_make_folder("source", folder, sizeof(folder));
    unsetenv("ONEPOT_ASSUME_REMOTE");
}

static void teardown(void)
{
    static const char *const names[] = {"file", "fifo", "socket"};
    char path[128];
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static const char *make_file(const void *bytes, size_t len)
{
    const char *path = in_folder("file");
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, len), (ssize_t)len);
    close(fd);
    return path;
}

static struct source *open_file(const char *path)
{
    struct source *source = NULL;
    struct fault fault = {0};
    ck_assert_int_eq(source_open(path, &fault, &source), 0);
    return source;
}

static void check_reads(struct source *source, const uint8_t *bytes, size_t len)
{
    uint8_t buf[1000];
    ck_assert_uint_eq(source_size(source), len);
    for (size_t at = 0; at + sizeof(buf) <= len; at += 777) {
        ck_assert_int_eq(source_read(source, buf, sizeof(buf), at), 0);
        ck_assert_mem_eq(buf, bytes + at, sizeof(buf));
        int r = source_read_cached(source, buf, sizeof(buf), at);
        ck_assert(r == 0 || r == -EAGAIN);
        if (r == 0)
            ck_assert_mem_eq(buf, bytes + at, sizeof(buf));
    }
    ck_assert_int_eq(source_read(source, buf, 0, len), 0);
    ck_assert_int_eq(source_read(source, buf, 1, len), -ENODATA);
    ck_assert_int_eq(source_read(source, buf, 2, len - 1), -ENODATA);
    ck_assert_int_eq(source_read(source, buf, 1, UINT64_MAX), -ENODATA);
    ck_assert_int_eq(source_read(source, buf, 2, UINT64_MAX), -ENODATA);
    ck_assert_int_eq(source_read_cached(source, buf, 2, len - 1), -ENODATA);
}

START_TEST(file_and_memory_give_the_same_bytes)
{
    static uint8_t bytes[300000];
    suite_fill_noise(bytes, sizeof(bytes));
    struct source *file = open_file(make_file(bytes, sizeof(bytes)));
    struct source *memory = NULL;
    ck_assert_int_eq(source_from_memory(bytes, sizeof(bytes), "memory", &memory), 0);
    check_reads(file, bytes, sizeof(bytes));
    check_reads(memory, bytes, sizeof(bytes));

    const uint8_t *map = source_map(memory);
    ck_assert_ptr_nonnull(map);
    ck_assert_ptr_eq(map, source_map(memory));
    ck_assert_mem_eq(map, bytes, sizeof(bytes));
    ck_assert(source_is_local(memory));
    ck_assert_str_eq(source_name(memory), "memory");

    uint64_t one = 0, two = 1;
    ck_assert_int_eq(source_fingerprint(file, &one), 0);
    ck_assert_int_eq(source_fingerprint(memory, &two), 0);
    ck_assert_uint_eq(one, two);
    source_close(file);
    source_close(memory);
}
END_TEST

START_TEST(the_identity_is_that_of_the_file)
{
    struct stat st;
    struct source_identity identity;
    const char *path = make_file("abc", 3);
    struct source *source = open_file(path);
    ck_assert_int_eq(stat(path, &st), 0);
    source_identity(source, &identity);
    ck_assert_uint_eq(identity.dev, st.st_dev);
    ck_assert_uint_eq(identity.ino, st.st_ino);
    ck_assert_uint_eq(identity.size_bytes, 3);
    ck_assert_int_eq(identity.mtime_sec, st.st_mtim.tv_sec);
    ck_assert_int_eq(identity.mtime_nsec, st.st_mtim.tv_nsec);
    source_close(source);
}
END_TEST

START_TEST(memory_can_not_be_changed)
{
    struct source *source = NULL;
    struct source_identity identity, zero = {0};
    ck_assert_int_eq(source_from_memory("abc", 3, "m", &source), 0);
    ck_assert_int_eq(pwrite(source_fd(source), "x", 1, 0), -1);
    ck_assert_int_eq(ftruncate(source_fd(source), 0), -1);
    memset(&identity, 0xff, sizeof(identity));
    source_identity(source, &identity);
    ck_assert_uint_eq(identity.dev + identity.ino + identity.size_bytes, zero.dev);
    source_close(source);
}
END_TEST

START_TEST(what_is_no_file_is_refused_with_advice)
{
    struct source *source = NULL;
    struct fault fault = {0};
    ck_assert_int_eq(source_open(folder, &fault, &source), -EISDIR);
    ck_assert_str_ne(fault.advice, "");

    fault = (struct fault){0};
    ck_assert_int_eq(source_open(in_folder("none"), &fault, &source), -ENOENT);
    ck_assert_str_ne(fault.what, "");

    fault = (struct fault){0};
    ck_assert_int_eq(mkfifo(in_folder("fifo"), 0600), 0);
    ck_assert_int_eq(source_open(in_folder("fifo"), &fault, &source), -EINVAL);

    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, in_folder("socket"));
    ck_assert_int_eq(bind(s, (struct sockaddr *)&address, sizeof(address)), 0);
    fault = (struct fault){0};
    ck_assert_int_eq(source_open(in_folder("socket"), &fault, &source), -ENXIO);
    close(s);
    ck_assert_ptr_null(source);
}
END_TEST

START_TEST(a_descriptor_is_closed_when_it_is_refused)
{
    struct source *source = NULL;
    int fd = open(folder, O_RDONLY | O_DIRECTORY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(source_from_fd(fd, "folder", &source), -EISDIR);
    ck_assert_int_eq(fcntl(fd, F_GETFD), -1);
}
END_TEST

START_TEST(an_empty_file_has_no_map_and_a_fingerprint)
{
    struct source *source = open_file(make_file("", 0));
    uint64_t fingerprint = 0;
    ck_assert_ptr_null(source_map(source));
    ck_assert_int_eq(source_fingerprint(source, &fingerprint), 0);
    ck_assert_uint_ne(fingerprint, 0);
    source_close(source);
}
END_TEST

START_TEST(a_file_cut_off_later_is_noticed_by_reads)
{
    static uint8_t bytes[100000];
    uint8_t buf[10];
    const char *path = make_file(bytes, sizeof(bytes));
    struct source *source = open_file(path);
    ck_assert_int_eq(truncate(path, 50), 0);
    ck_assert_int_eq(source_read(source, buf, 10, 45), -ENODATA);
    int r = source_read_cached(source, buf, 10, 90000);
    ck_assert(r == -ENODATA || r == -EAGAIN);
    uint64_t fingerprint;
    ck_assert_int_eq(source_fingerprint(source, &fingerprint), -ENODATA);
    source_close(source);
}
END_TEST

START_TEST(a_range_of_the_mapping_is_whole_unless_the_file_was_cut)
{
    enum { PAGE_MOST = 64 << 10, BYTES = 4 * PAGE_MOST };
    static uint8_t bytes[BYTES];
    static const struct {
        off_t cut;
        uint64_t offset, len;
    } cases[] = {
        {100, 0, 200},                /* the rest of its last page is zeros now */
        {BYTES - 10, BYTES - 20, 20}, /* within the page that is still the last */
        {BYTES - 10, BYTES - 20, 5},
        {PAGE_MOST + 1, PAGE_MOST, 100},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct source *source;
        suite_fill_noise(bytes, BYTES);
        const char *path = make_file(bytes, BYTES);
        ck_assert_int_eq(source_open(path, NULL, &source), 0);
        const uint8_t *map = source_map(source);
        ck_assert_ptr_nonnull(map);
        ck_assert_int_eq(memcmp(map + cases[i].offset, bytes + cases[i].offset, cases[i].len),
                         0);
        ck_assert(source_range_is_whole(source, cases[i].offset, cases[i].len));
        ck_assert(source_range_is_whole(source, 0, BYTES));
        ck_assert_int_eq(truncate(path, cases[i].cut), 0);
        ck_assert(!source_range_is_whole(source, cases[i].offset, cases[i].len));
        ck_assert(source_was_cut(source));
        source_close(source);
    }
}
END_TEST

START_TEST(a_remote_file_is_read_but_not_mapped)
{
    uint8_t buf[3];
    const char *path = make_file("abc", 3);
    const struct source_requests before = source_requests();
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    struct source *source = open_file(path);
    unsetenv("ONEPOT_ASSUME_REMOTE");
    ck_assert(!source_is_local(source));
    ck_assert_ptr_null(source_map(source));
    ck_assert_int_eq(source_read(source, buf, 3, 0), 0);
    ck_assert_mem_eq(buf, "abc", 3);
    source_close(source);
    ck_assert_uint_eq(source_requests().count - before.count, 2); /* opened, read */
    ck_assert_uint_eq(source_requests().bytes - before.bytes, 3);
    source = open_file(path); /* of this node: no requests */
    ck_assert_int_eq(source_read(source, buf, 3, 0), 0);
    source_close(source);
    ck_assert_uint_eq(source_requests().count - before.count, 2);
}
END_TEST

START_TEST(the_fingerprint_sees_size_ends_and_samples)
{
    static uint8_t bytes[1000000];
    uint64_t base = 0, other = 0;
    suite_fill_noise(bytes, sizeof(bytes));
    struct source *source = open_file(make_file(bytes, sizeof(bytes)));
    ck_assert_int_eq(source_fingerprint(source, &base), 0);
    source_close(source);
    const size_t places[] = {0, 65535, 1000000 / 17 * 3 + 5, 1000000 - 65536, 999999};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        bytes[places[i]] ^= 1;
        source = open_file(make_file(bytes, sizeof(bytes)));
        ck_assert_int_eq(source_fingerprint(source, &other), 0);
        ck_assert_uint_ne(base, other);
        source_close(source);
        bytes[places[i]] ^= 1;
    }
    source = open_file(make_file(bytes, sizeof(bytes) - 1));
    ck_assert_int_eq(source_fingerprint(source, &other), 0);
    ck_assert_uint_ne(base, other);
    source_close(source);
}
END_TEST

static void *map_it(void *source)
{
    return (void *)source_map(source);
}

START_TEST(threads_get_one_map)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    struct source *source = NULL;
    ck_assert_int_eq(source_from_memory("abc", 3, "m", &source), 0);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, map_it, source), 0);
    for (int i = 0; i < THREADS; i++) {
        void *map = NULL;
        pthread_join(threads[i], &map);
        ck_assert_ptr_eq(map, source_map(source));
    }
    source_close(source);
}
END_TEST

START_TEST(a_descriptor_of_a_file_does_not_block_or_leak_to_children)
{
    struct source *source = open_file(make_file("abc", 3));
    ck_assert_int_eq(fcntl(source_fd(source), F_GETFL) & (O_NONBLOCK | O_ACCMODE), O_RDONLY);
    ck_assert_int_eq(fcntl(source_fd(source), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    source_close(source);
    source_close(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("source");
    TCase *tc = tcase_create("source");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, file_and_memory_give_the_same_bytes);
    tcase_add_test(tc, the_identity_is_that_of_the_file);
    tcase_add_test(tc, memory_can_not_be_changed);
    tcase_add_test(tc, what_is_no_file_is_refused_with_advice);
    tcase_add_test(tc, a_descriptor_is_closed_when_it_is_refused);
    tcase_add_test(tc, an_empty_file_has_no_map_and_a_fingerprint);
    tcase_add_test(tc, a_file_cut_off_later_is_noticed_by_reads);
    tcase_add_test(tc, a_range_of_the_mapping_is_whole_unless_the_file_was_cut);
    tcase_add_test(tc, a_remote_file_is_read_but_not_mapped);
    tcase_add_test(tc, the_fingerprint_sees_size_ends_and_samples);
    tcase_add_test(tc, threads_get_one_map);
    tcase_add_test(tc, a_descriptor_of_a_file_does_not_block_or_leak_to_children);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
