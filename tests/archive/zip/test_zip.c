/*
 * Zips that disagree with themselves, and fields that few writers write: what the central
 * directory says is shown where the data bears it out.
 */
#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <libdeflate.h>

#include "backend.h"
#include "index_helper.h"
#include "suite.h"
#include "zip_helper.h"

static uint8_t zip[300000];
static struct progress progress;
static struct fault fault;

static int index_bytes(size_t len, struct index **ret_index)
{
    struct source *source = NULL;
    struct builder *builder = new_builder();
    struct builder_header header = {.format = FORMAT_ZIP, .archive_bytes = len};
    memset(&progress, 0, sizeof(progress));
    fault = (struct fault){0};
    ck_assert_int_eq(source_from_memory(zip, len, "zip", &source), 0);
    builder_set_archive_size(builder, len);
    int r = backend_zip.index(source, builder, &header, &progress, &fault);
    source_close(source);
    if (r == 0)
        *ret_index = build(builder, &header);
    else
        builder_free(builder);
    return r;
}

static struct index *open_zip(struct zip_member *members, size_t count)
{
    struct index *index = NULL;
    int r = index_bytes(zip_put(zip, members, count, 0), &index);
    ck_assert_msg(r == 0, "%d %s: %s", r, fault.member, fault.what);
    return index;
}

static bool has(const struct index *index, const char *path)
{
    uint32_t position;
    return index_resolve(index, path, &position) == 0;
}

static void check_left_out(struct index *index, const char *words)
{
    struct fault why = {0};
    uint64_t cursor = 0;
    ck_assert_uint_eq(index_left_out(index), 1);
    ck_assert_int_eq(index_left_out_next(index, &cursor, &why), 0);
    ck_assert_msg(strstr(why.what, words), "%s", why.what);
}

/* Deflates the text; returns its length. */
static size_t deflate(const char *text, uint8_t *packed, size_t room)
{
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    size_t n = libdeflate_deflate_compress(c, text, strlen(text), packed, room);
    libdeflate_free_compressor(c);
    ck_assert_uint_gt(n, 0);
    return n;
}

static uint32_t sum_of(const char *text)
{
    return (uint32_t)checksum_of(SUM_CRC32, text, strlen(text));
}

/* ---- disagreement ---- */

static unsigned reports;

static void count_report(void *ctx, const struct fault *what)
{
    (void)ctx;
    ck_assert_ptr_nonnull(strstr(what->what, "; the central directory counts"));
    reports++;
}

static unsigned verify(size_t len)
{
    struct source *source = NULL;
    reports = 0;
    ck_assert_int_eq(source_from_memory(zip, len, "zip", &source), 0);
    const struct archive_end end = {.source = source, .report = count_report};
    ck_assert_int_eq(backend_zip.trailer->check_end(&end), 0);
    source_close(source);
    return reports;
}

START_TEST(the_name_in_the_directory_counts)
{
    struct zip_member members[] = {{.name = "d/one", .data = "1", .local_name = "d\\one"},
                                   {.name = "two", .data = "2"},
                                   {.name = "three", .data = "3", .local_name = "thr\x82"}};
    struct index *index = open_zip(members, 3);
    ck_assert_uint_eq(node_of(index, "d/one").size_bytes, 1);
    ck_assert(has(index, "three") && has(index, "two") && !has(index, "d\\one"));
    ck_assert_uint_eq(index_left_out(index), 0);
    ck_assert_msg(strstr(progress.note, "d/one: has another name") &&
                      strstr(progress.note, "and so is 1 more"),
                  "%s", progress.note);
    index_close(index);
    ck_assert_uint_eq(verify(zip_put(zip, members, 3, 0)), 2);
    members[0].local_name = members[2].local_name = NULL;
    index_close(open_zip(members, 3));
    ck_assert_str_eq(progress.note, "");
    ck_assert_uint_eq(verify(zip_put(zip, members, 3, 0)), 0);
}
END_TEST

START_TEST(sizes_and_sums_in_the_directory_count_if_the_data_has_them)
{
    struct zip_member members[] = {{.name = "one", .data = "1111", .local_size = 9},
                                   {.name = "two", .data = "2222", .local_crc = 9}};
    struct index *index = open_zip(members, 2);
    ck_assert_uint_eq(node_of(index, "one").size_bytes, 4);
    ck_assert(has(index, "two"));
    ck_assert_ptr_nonnull(strstr(progress.note, "another size or sum"));
    index_close(index);
    members[1].crc = 5; /* neither is right */
    index = open_zip(members, 2);
    ck_assert(has(index, "one") && !has(index, "two"));
    check_left_out(index, "its data is not what the central directory says");
    index_close(index);
}
END_TEST

START_TEST(a_method_counts_if_the_data_decodes_by_it)
{
    static const char text[] = "words words words words words words words words";
    uint8_t packed[200];
    size_t len = deflate(text, packed, sizeof(packed));
    struct zip_member members[] = {{.name = "packed",
                                    .data = packed,
                                    .packed = len,
                                    .method = 8,
                                    .size = sizeof(text) - 1,
                                    .crc = sum_of(text),
                                    .local_method = 1},
                                   {.name = "stored", .data = "plain", .local_method = 9},
                                   {.name = "open", .data = "open", .local_flags = 1}};
    struct index *index = open_zip(members, 3);
    ck_assert(has(index, "packed") && has(index, "stored") && has(index, "open"));
    ck_assert_ptr_nonnull(strstr(progress.note, "compressed in another way"));
    index_close(index);
    packed[len / 2] ^= 0x10;
    index = open_zip(members, 3);
    ck_assert(!has(index, "packed") && has(index, "stored"));
    check_left_out(index, "compressed in another way by its header");
    index_close(index);
}
END_TEST

/* ---- members that share bytes ---- */

START_TEST(a_member_that_is_listed_twice_is_one)
{
    struct zip_member members[3] = {{.name = "one", .data = "1"}, {.name = "two", .data = "2"}};
    members[2] = (struct zip_member){.name = "one", .data = "1", .same_as = &members[0]};
    struct index *index = open_zip(members, 3);
    ck_assert(has(index, "one") && has(index, "two"));
    ck_assert_uint_eq(index_info(index)->files, 2);
    index_close(index);
    members[2].name = "other";
    ck_assert_int_eq(index_bytes(zip_put(zip, members, 3, 0), &index), -EUCLEAN);
    ck_assert_str_eq(fault.what, "two members overlap here");
}
END_TEST

/* By a single byte, too. */
START_TEST(members_that_overlap_are_refused)
{
    struct zip_member members[] = {{.name = "one", .data = "1"}, {.name = "two", .data = "2"}};
    struct index *index = open_zip(members, 2);
    index_close(index);
    size_t len = zip_put(zip, members, 2, 0);
    uint8_t *local = zip + members[0].at, *directory = zip + bytes_le32(zip + len - 6);
    for (int i = 0; i < 2; i++) { /* the packed size and the other one */
        bytes_put_le32(local + 18 + 4 * i, 2);
        bytes_put_le32(directory + 20 + 4 * i, 2);
    }
    ck_assert_int_eq(index_bytes(len, &index), -EUCLEAN);
    ck_assert_str_eq(fault.what, "two members overlap here");
}
END_TEST

/* One that is longer than a block may be, and so is read when it is indexed. */
START_TEST(a_long_member_has_as_many_bytes_as_the_directory_says)
{
    const size_t size = (64u << 20) + 1000;
    char *text = malloc(size + 1);
    uint8_t *packed = malloc(200000);
    ck_assert(text && packed);
    memset(text, 'a', size);
    text[size] = '\0';
    struct zip_member members[] = {{.name = "long",
                                    .data = packed,
                                    .packed = deflate(text, packed, 200000),
                                    .method = 8,
                                    .size = (uint32_t)size,
                                    .crc = sum_of(text)},
                                   {.name = "other", .data = "1"}};
    struct index *index = open_zip(members, 2);
#ifdef HAVE_STREAMS
    ck_assert_uint_eq(node_of(index, "long").size_bytes, size);
    index_close(index);
    members[0].size++;
    index = open_zip(members, 2);
    check_left_out(index, "has fewer bytes than the directory says");
#else
    check_left_out(index, "can't be entered in the middle");
#endif
    index_close(index);
    free(text);
    free(packed);
}
END_TEST

/* ---- links ---- */

START_TEST(the_target_of_a_link_may_be_compressed)
{
    static const char target[] = "../somewhere/else/somewhere/else/somewhere/else";
    uint8_t packed[200];
    struct zip_member members[] = {{.name = "l",
                                    .mode = S_IFLNK | 0777,
                                    .data = packed,
                                    .packed = deflate(target, packed, sizeof(packed)),
                                    .method = 8,
                                    .size = sizeof(target) - 1,
                                    .crc = sum_of(target)},
                                   {.name = "file", .data = "1"}};
    struct index *index = open_zip(members, 2);
    const char *found;
    size_t len;
    ck_assert_int_eq(index_symlink(index, node_of(index, "l").position, &found, &len), 0);
    ck_assert_uint_eq(len, sizeof(target) - 1);
    ck_assert_mem_eq(found, target, len);
    index_close(index);
    members[0].crc++;
    index = open_zip(members, 2);
    ck_assert(has(index, "file") && !has(index, "l"));
    check_left_out(index, "whose sum is wrong");
    index_close(index);
    members[0].size = INDEX_SYMLINK_MAX + 1;
    index = open_zip(members, 2);
    check_left_out(index, "is a symbolic link of 4096 bytes");
    index_close(index);
}
END_TEST

/* ---- fields ---- */

START_TEST(unix_times_go_to_2106_where_the_dos_time_does)
{
    static const uint8_t after[] = {'U', 'T',  5,    0,   1,
                                    0,   0xca, 0x9a, 0xf4}; /* 2100-01-01 less */
    const uint32_t seconds = 0xf49aca00;
    struct zip_member members[] = {
        {.name = "2100",
         .data = "",
         .extra = after,
         .extra_len = 9,
         .date = 119 << 9 | 12 << 5 | 31},
        {.name = "1963", .data = "", .extra = after, .extra_len = 9, .date = 1 << 5 | 1},
        {.name = "2037", .data = "", .date = 57 << 9 | 1 << 5 | 1}};
    struct index *index = open_zip(members, 3);
    ck_assert_int_eq(node_of(index, "2100").mtime_sec, (int64_t)seconds);
    ck_assert_int_eq(node_of(index, "1963").mtime_sec, (int32_t)seconds);
    ck_assert_int_eq(node_of(index, "2037").mtime_sec, 2114380800);
    index_close(index);
}
END_TEST

START_TEST(backslashes_separate_in_a_name_of_unicode_too)
{
    static const char raw[] = "a/u.txt", path[] = "\xc3\xa4\\\xc3\xbc.txt";
    uint8_t extra[4 + 5 + sizeof(path) - 1] = {0x75, 0x70, 5 + sizeof(path) - 1, 0, 1};
    bytes_put_le32(extra + 5, sum_of(raw));
    memcpy(extra + 9, path, sizeof(path) - 1);
    for (uint8_t host = 3; host <= 10; host += 7) {
        struct zip_member members[] = {{.name = raw,
                                        .data = "1",
                                        .host = host,
                                        .extra = extra,
                                        .extra_len = sizeof(extra)}};
        struct index *index = open_zip(members, 1);
        ck_assert_int_eq(has(index, "\xc3\xa4/\xc3\xbc.txt"), host == 10);
        ck_assert_int_eq(has(index, path), host == 3);
        index_close(index);
    }
}
END_TEST

/* ---- the end ---- */

START_TEST(a_name_like_the_locator_of_zip64_is_a_name)
{
    static const char *const names[] = {"PK\6\7aaaaaaaaaaaaaaaa",
                                        "PK\6\7\1\1\1\1\x1e\1\1\1\1\1\1\1\1\1\1\1"};
    for (size_t i = 0; i < 2; i++) {
        struct zip_member members[] = {{.name = "first", .data = "PK\6\6 is no end of zip64"},
                                       {.name = names[i], .data = "1"}};
        struct index *index = open_zip(members, 2);
        ck_assert(has(index, names[i]) && has(index, "first"));
        index_close(index);
    }
}
END_TEST

/* Each byte of the directory and of both headers, in four ways: no crash, and an error has
 * words. */
/* Lengths are read in a zip64 field as far as they are there, whatever length it claims. */
START_TEST(a_zip64_field_of_the_wrong_length_costs_its_member_at_most)
{
    static const struct {
        const char *extra;
        size_t len;
        uint32_t size, packed;
        const char *left_out; /* NULL: it is shown */
        unsigned reports;
    } fields[] = {
        {"\1\0\10\0\5\0\0\0\0\0\0\0", 12, UINT32_MAX, 0, NULL, 0},
        {"\1\0\14\0\5\0\0\0\0\0\0\0\0\0\0\0", 16, UINT32_MAX, 0, NULL, 0},
        {"\1\0\10\0\5\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0", 20, UINT32_MAX, UINT32_MAX, NULL, 1},
        {"\1\0\40\0\5\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0", 20, UINT32_MAX, UINT32_MAX, NULL, 0},
        {"\1\0\10\0\5\0\0\0\0\0\0\0\6\0\0\0\0\0\0\0", 20, UINT32_MAX, UINT32_MAX, "two sizes",
         1},
        {"\1\0\10\0\4\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 20, UINT32_MAX, UINT32_MAX,
         "its data is not what", 1},
        {"\1\0\4\0\5\0\0\0", 8, UINT32_MAX, UINT32_MAX, "a zip64 field of the wrong length", 1},
        {"\1\0\0\0", 4, UINT32_MAX, UINT32_MAX, "a zip64 field of the wrong length", 1},
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        struct zip_member members[] = {{.name = "one", .data = "1"},
                                       {.name = "two",
                                        .data = "22222",
                                        .extra = fields[i].extra,
                                        .extra_len = fields[i].len,
                                        .entry_size = fields[i].size,
                                        .entry_packed = fields[i].packed},
                                       {.name = "three", .data = "3"}};
        struct index *index = open_zip(members, 3);
        ck_assert(has(index, "one") && has(index, "three"));
        ck_assert_msg(has(index, "two") == !fields[i].left_out, "%zu", i);
        if (fields[i].left_out)
            check_left_out(index, fields[i].left_out);
        else
            ck_assert_uint_eq(node_of(index, "two").size_bytes, 5);
        index_close(index);
        ck_assert_uint_eq(verify(zip_put(zip, members, 3, 0)), fields[i].reports);
    }
}
END_TEST

static bool is_whole(size_t len)
{
    struct source *source = NULL;
    ck_assert_int_eq(source_from_memory(zip, len, "zip", &source), 0);
    bool whole = backend_zip.is_whole(source, true);
    source_close(source);
    return whole;
}

START_TEST(the_end_tells_whether_a_zip_is_whole)
{
    struct zip_member members[] = {{.name = "one", .data = "1"}, {.name = "two", .data = "2"}};
    size_t len = zip_put(zip, members, 2, 0);
    ck_assert(is_whole(len) && !is_whole(len - 1));
    zip[len - 2] = 3; /* a comment of three bytes */
    memcpy(zip + len, "end", 3);
    ck_assert(is_whole(len + 3));
    zip[len - 2] = 0;
    zip[len - 18] = 1; /* the second of two volumes */
    ck_assert(!is_whole(len));
    zip[len - 18] = 0;
    memmove(zip + 40, zip, len); /* what ends here began elsewhere */
    ck_assert(!is_whole(len + 40));
}
END_TEST

START_TEST(any_byte_may_be_wrong)
{
    struct zip_member members[] = {{.name = "one", .data = "1111"},
                                   {.name = "l", .data = "one", .mode = S_IFLNK | 0777},
                                   {.name = "d/two", .data = "2222", .flags = 8}};
    static const uint8_t flips[] = {1, 0x80, 0xff, 0x41};
    size_t len = zip_put(zip, members, 3, 0);
    for (size_t at = 0; at < len * sizeof(flips); at++) {
        struct index *index = NULL;
        zip[at / sizeof(flips)] ^= flips[at % sizeof(flips)];
        if (index_bytes(len, &index) == 0) {
            index_close(index);
            verify(len);
        } else {
            ck_assert(fault.err && fault.what[0]);
        }
        zip[at / sizeof(flips)] ^= flips[at % sizeof(flips)];
    }
}
END_TEST

static Suite *zip_suite(void)
{
    Suite *suite = suite_create("zip");
    TCase *tcase = tcase_create("zip");
    tcase_add_test(tcase, the_name_in_the_directory_counts);
    tcase_add_test(tcase, sizes_and_sums_in_the_directory_count_if_the_data_has_them);
    tcase_add_test(tcase, a_method_counts_if_the_data_decodes_by_it);
    tcase_add_test(tcase, a_member_that_is_listed_twice_is_one);
    tcase_add_test(tcase, members_that_overlap_are_refused);
    tcase_add_test(tcase, a_long_member_has_as_many_bytes_as_the_directory_says);
    tcase_add_test(tcase, the_target_of_a_link_may_be_compressed);
    tcase_add_test(tcase, unix_times_go_to_2106_where_the_dos_time_does);
    tcase_add_test(tcase, backslashes_separate_in_a_name_of_unicode_too);
    tcase_add_test(tcase, a_name_like_the_locator_of_zip64_is_a_name);
    tcase_add_test(tcase, a_zip64_field_of_the_wrong_length_costs_its_member_at_most);
    tcase_add_test(tcase, the_end_tells_whether_a_zip_is_whole);
    tcase_add_test(tcase, any_byte_may_be_wrong);
    suite_add_tcase(suite, tcase);
    return suite;
}

int main(void)
{
    return run_suite(zip_suite());
}
