/* A slice gives the bytes of its part, and no other, by every way of reading a source. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "builder.h"
#include "format_numbers.h"
#include "index.h"
#include "source_retry.h"
#include "source_slice.h"
#include "suite.h"

#define BYTES 100000u
#define START 12345u /* at no page's start */
#define LENGTH 54321u

static uint8_t bytes[BYTES];
static char path[64];

static void setup(void)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    snprintf(path, sizeof(path), "%s/slice-XXXXXX", getenv(SUITE_FOLDER));
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, bytes, BYTES), BYTES);
    close(fd);
    unsetenv("ONEPOT_ASSUME_REMOTE");
}

static void teardown(void)
{
    unlink(path);
}

static struct source *open_file(void)
{
    struct source *source = NULL;
    ck_assert_int_eq(source_open(path, NULL, &source), 0);
    return source;
}

static struct source *open_slice(uint64_t start, uint64_t length)
{
    struct source *source = open_file();
    ck_assert_int_eq(source_slice(&source, start, length), 0);
    return source;
}

static void check_bytes(struct source *source, const uint8_t *expected, size_t len)
{
    uint8_t buf[1000], other[500];
    ck_assert_uint_eq(source_size(source), len);
    for (size_t at = 0; at + sizeof(buf) <= len; at += 777) {
        ck_assert_int_eq(source_read(source, buf, sizeof(buf), at), 0);
        ck_assert_mem_eq(buf, expected + at, sizeof(buf));
        int r = source_read_cached(source, buf, sizeof(buf), at);
        ck_assert(r == 0 || r == -EAGAIN);
        if (r == 0)
            ck_assert_mem_eq(buf, expected + at, sizeof(buf));
        struct iovec iov[] = {{buf, 500}, {other, 500}};
        ck_assert_int_eq(source_readv(source, iov, 2, at), 0);
        ck_assert_mem_eq(other, expected + at + 500, 500);
    }
    ck_assert_int_eq(source_read(source, buf, 0, len), 0);
    ck_assert_int_eq(source_read(source, buf, 1, len), -ENODATA);
    ck_assert_int_eq(source_read(source, buf, 2, len - 1), -ENODATA);
    ck_assert_int_eq(source_read(source, buf, 1, UINT64_MAX), -ENODATA);
    ck_assert_int_eq(source_read_cached(source, buf, 2, len - 1), -ENODATA);
    ck_assert(source_has(source, 0, len));
    ck_assert_int_eq(source_bring(source, 0, len), 0);
}

START_TEST(a_slice_has_its_part_alone)
{
    struct source *source = open_slice(START, LENGTH);
    check_bytes(source, bytes + START, LENGTH);
    ck_assert_mem_eq(source_map(source), bytes + START, LENGTH);
    ck_assert_ptr_eq(source_map(source), source_map(source));
    ck_assert(source_is_local(source));
    ck_assert(!source_keeps(source));
    ck_assert_uint_eq(source_start(source), START);
    ck_assert_str_eq(source_name(source), path);
    source_advise(source, SOURCE_SOON, 0, LENGTH);
    source_advise(source, SOURCE_DROP, LENGTH - 1, 1);
    source_close(source);
}
END_TEST

START_TEST(a_slice_of_a_slice_adds_up)
{
    struct source *source = open_slice(START, LENGTH);
    ck_assert_int_eq(source_slice(&source, 1000, 30000), 0);
    check_bytes(source, bytes + START + 1000, 30000);
    ck_assert_mem_eq(source_map(source), bytes + START + 1000, 30000);
    ck_assert_uint_eq(source_start(source), START + 1000);
    source_close(source);
}
END_TEST

START_TEST(what_does_not_lie_in_the_source_is_refused)
{
    static const uint64_t cases[][2] = {
        {BYTES + 1, 0}, {0, BYTES + 1}, {BYTES, 1}, {1, UINT64_MAX}, {UINT64_MAX, 2}};
    struct source *source = open_file(), *before = source;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ck_assert_int_eq(source_slice(&source, cases[i][0], cases[i][1]), -ENODATA);
        ck_assert_ptr_eq(source, before);
    }
    ck_assert_int_eq(source_slice(&source, BYTES, 0), 0);
    ck_assert_ptr_null(source_map(source));
    ck_assert_int_eq(source_read(source, bytes, 1, 0), -ENODATA);
    source_close(source);
}
END_TEST

START_TEST(places_in_a_file_are_told_apart)
{
    struct source *sources[] = {open_file(), open_slice(0, BYTES), open_slice(0, LENGTH),
                                open_slice(1, LENGTH)};
    uint64_t prints[4], memory_print;
    struct source_identity ids[4];
    for (size_t i = 0; i < 4; i++) {
        source_identity(sources[i], &ids[i]);
        ck_assert_int_eq(source_fingerprint(sources[i], &prints[i]), 0);
        ck_assert_int_eq(source_was_changed(sources[i]), 0);
        for (size_t j = 0; j < i; j++)
            ck_assert(!source_identity_equal(&ids[i], &ids[j]));
    }
    ck_assert_uint_eq(prints[0], prints[1]); /* it is that of the bytes */
    ck_assert_uint_ne(prints[2], prints[3]);
    struct source *memory = NULL;
    ck_assert_int_eq(source_from_memory(bytes + 1, LENGTH, "memory", &memory), 0);
    ck_assert_int_eq(source_fingerprint(memory, &memory_print), 0);
    ck_assert_uint_eq(prints[3], memory_print);
    source_close(memory);
    for (size_t i = 0; i < 4; i++)
        source_close(sources[i]);
}
END_TEST

START_TEST(storage_that_is_not_mapped)
{
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    struct source *source = open_slice(START, LENGTH);
    check_bytes(source, bytes + START, LENGTH);
    ck_assert_ptr_null(source_map(source));
    ck_assert(!source_is_local(source));
    source_close(source);
}
END_TEST

START_TEST(a_file_that_is_cut_off_is_noticed)
{
    uint8_t byte;
    struct source *source = open_slice(START, LENGTH);
    ck_assert(source_is_whole(source));
    ck_assert_int_eq(truncate(path, START + 100), 0);
    ck_assert_int_eq(source_read(source, &byte, 1, 99), 0);
    ck_assert_int_eq(source_read(source, &byte, 1, 100), -ENODATA);
    ck_assert_int_eq(source_was_changed(source), 1);
    ck_assert(!source_is_whole(source));
    ck_assert(source_was_cut(source));
    source_set_retries(source, 0); /* reaches the source within */
    source_close(source);
}
END_TEST

/* An index is mapped from the descriptor, by pages that the slice need not begin at. */
START_TEST(an_index_in_a_slice_is_opened)
{
    static uint8_t image[1u << 20];
    static const uint64_t starts[] = {0, 1, 4095, 4096, 65536 + 8};
    struct builder_header header = {.format = FORMAT_TAR, .archive_bytes = 100};
    struct node member = {.mode = 0100644, .size_bytes = 10};
    for (size_t i = 0; i < sizeof(starts) / sizeof(starts[0]); i++) {
        struct builder *builder;
        struct index *index = NULL;
        uint64_t image_bytes;
        uint32_t number, position;
        int memory = memfd_create("image", MFD_CLOEXEC), fd = open(path, O_WRONLY);
        ck_assert_int_eq(builder_new(&builder), 0);
        ck_assert_int_eq(builder_add(builder, "name", 4, &member, NULL, &number), 0);
        ck_assert_int_eq(builder_write(builder, &header, memory, 0, NULL, &image_bytes), 0);
        builder_free(builder);
        ck_assert_int_le(image_bytes, sizeof(image));
        ck_assert_int_eq(pread(memory, image, image_bytes, 0), (ssize_t)image_bytes);
        ck_assert_int_eq(pwrite(fd, image, image_bytes, (off_t)starts[i] + 512),
                         (ssize_t)image_bytes);
        close(memory);
        close(fd);
        struct source *source = open_file();
        ck_assert_int_eq(source_slice(&source, starts[i], 512 + image_bytes), 0);
        ck_assert_int_eq(index_open(source, 512, image_bytes, NULL, &index), 0);
        source_close(source);
        ck_assert_int_eq(index_resolve(index, "name", &position), 0);
        ck_assert_int_eq(index_check(index, NULL), 0);
        index_close(index);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("source_slice");
    TCase *tc = tcase_create("source_slice");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_slice_has_its_part_alone);
    tcase_add_test(tc, a_slice_of_a_slice_adds_up);
    tcase_add_test(tc, what_does_not_lie_in_the_source_is_refused);
    tcase_add_test(tc, places_in_a_file_are_told_apart);
    tcase_add_test(tc, storage_that_is_not_mapped);
    tcase_add_test(tc, a_file_that_is_cut_off_is_noticed);
    tcase_add_test(tc, an_index_in_a_slice_is_opened);
    suite_add_tcase(suite, tc);
    return run_suite(suite);
}
