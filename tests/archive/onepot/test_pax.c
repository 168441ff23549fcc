/*
 * Headers of tar members: what pax_encode writes, libarchive must read back as it was,
 * at every length where a name or a number changes its form.
 */
#include <check.h>

#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "index_helper.h"
#include "pax.h"
#include "suite.h"

static struct node file_called(const char *path)
{
    return (struct node){.mode = S_IFREG | 0644, .path = path, .path_len = strlen(path)};
}

/* Encode the member with zeros for data, and open it as an archive. */
static struct archive *read_back(const struct node *m, struct pax_buffer *buffer,
                                 struct archive_entry **ret_entry)
{
    ck_assert_int_eq(pax_encode(m, buffer), 0);
    ck_assert_uint_eq(buffer->count % PAX_BLOCK_BYTES, 0);
    struct archive *a = archive_read_new();
    archive_read_support_format_tar(a);
    ck_assert_int_eq(archive_read_open_memory(a, buffer->at, buffer->count), ARCHIVE_OK);
    int r = archive_read_next_header(a, ret_entry);
    ck_assert_msg(r == ARCHIVE_OK, "%d %s", r, archive_error_string(a));
    return a;
}

static bool has_extension(const struct pax_buffer *buffer)
{
    return buffer->at[156] == 'x' || buffer->at[156] == 'L' || buffer->at[156] == 'K';
}

/* ---- names ---- */

/* A path of `len` bytes with a slash at `slash` (0: none), of bytes `fill`. */
static void make_path(char *path, size_t len, size_t slash, char fill)
{
    memset(path, fill, len);
    if (slash)
        path[slash] = '/';
    path[len] = '\0';
}

static void check_path(const char *path)
{
    struct node m = file_called(path);
    struct pax_buffer buffer = {0};
    struct archive_entry *entry;
    struct archive *a = read_back(&m, &buffer, &entry);
    ck_assert_str_eq(archive_entry_pathname(entry), path);
    archive_read_free(a);
    vector_free(&buffer);
}

START_TEST(names_of_every_length_come_back)
{
    char path[600];
    for (size_t len = 1; len <= 520; len++) {
        make_path(path, len, 0, 'a');
        check_path(path);
        make_path(path, len, 0, '\xfe'); /* no UTF-8 */
        check_path(path);
        make_path(path, len, 0, '\x80'); /* the first that is no ASCII */
        check_path(path);
        for (size_t slash = 1; slash + 1 < len && len<270; slash += len> 90 ? 1 : 7) {
            make_path(path, len, slash, 'b');
            check_path(path);
        }
    }
}
END_TEST

START_TEST(a_name_that_a_plain_header_can_hold_gets_no_extension)
{
    static const struct {
        size_t len, slash;
        bool plain;
    } cases[] = {{100, 0, true},    {101, 0, false},   {101, 1, true},    {256, 155, true},
                 {256, 156, false}, {256, 154, false}, {257, 156, false}, {255, 154, true}};
    char path[300];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_path(path, cases[i].len, cases[i].slash, 'a');
        struct node m = file_called(path);
        struct pax_buffer buffer = {0};
        ck_assert_int_eq(pax_encode(&m, &buffer), 0);
        ck_assert_msg(has_extension(&buffer) == !cases[i].plain, "length %zu, slash at %zu",
                      cases[i].len, cases[i].slash);
        vector_free(&buffer);
    }
}
END_TEST

START_TEST(directories_end_with_a_slash_and_the_root_is_a_dot)
{
    struct node m = {.mode = S_IFDIR | 0755, .path = "d", .path_len = 1};
    struct pax_buffer buffer = {0};
    ck_assert_int_eq(pax_encode(&m, &buffer), 0);
    ck_assert_str_eq((char *)buffer.at, "d/");
    m.path_len = 0;
    ck_assert_int_eq(pax_encode(&m, &buffer), 0);
    ck_assert_str_eq((char *)buffer.at + PAX_BLOCK_BYTES, "./");
    vector_free(&buffer);
}
END_TEST

START_TEST(links_of_every_length_come_back)
{
    char target[600];
    for (size_t len = 1; len <= 520; len += len < 95 || len > 105 ? 13 : 1) {
        for (int i = 0; i < 4; i++) {
            make_path(target, len, 0, i & 1 ? '\xfe' : 'a');
            struct node m = file_called("name");
            m.mode = (i & 2 ? S_IFREG : S_IFLNK) | 0777;
            m.is_hardlink = i & 2;
            m.link = target;
            m.link_len = len;
            struct pax_buffer buffer = {0};
            struct archive_entry *entry;
            struct archive *a = read_back(&m, &buffer, &entry);
            ck_assert_str_eq(
                i & 2 ? archive_entry_hardlink(entry) : archive_entry_symlink(entry), target);
            archive_read_free(a);
            vector_free(&buffer);
        }
    }
}
END_TEST

/* ---- numbers ---- */

/* The block of "f" itself, behind its extension. */
static const uint8_t *header_of_f(const struct pax_buffer *buffer)
{
    const uint8_t *block = (const uint8_t *)buffer->at;
    while (strcmp((const char *)block, "f") != 0)
        block += PAX_BLOCK_BYTES;
    return block;
}

START_TEST(owners_of_32_bits_come_back)
{
    static const uint32_t ids[] = {0, 1000, 2097151, 2097152, 4294967294u};
    for (size_t i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
        struct node m = file_called("f");
        m.uid = ids[i];
        m.gid = ids[(i + 1) % 5];
        struct pax_buffer buffer = {0};
        struct archive_entry *entry;
        struct archive *a = read_back(&m, &buffer, &entry);
        ck_assert_int_eq(archive_entry_uid(entry), m.uid);
        ck_assert_int_eq(archive_entry_gid(entry), m.gid);
        ck_assert(has_extension(&buffer) == (m.uid > 2097151 || m.gid > 2097151));
        if (m.uid > 2097151) /* for readers without extensions: no other user's number */
            ck_assert_mem_eq(header_of_f(&buffer) + 108, "7777777", 8);
        archive_read_free(a);
        vector_free(&buffer);
    }
}
END_TEST

START_TEST(sizes_past_8_GiB_come_back)
{
    static const uint64_t sizes[] = {0,
                                     1,
                                     511,
                                     (UINT64_C(1) << 33) - 1,
                                     UINT64_C(1) << 33,
                                     UINT64_C(1) << 50,
                                     UINT64_C(1) << 62};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct node m = file_called("f");
        m.size_bytes = sizes[i];
        struct pax_buffer buffer = {0};
        struct archive_entry *entry;
        struct archive *a = read_back(&m, &buffer, &entry);
        ck_assert_int_eq(archive_entry_size(entry), (int64_t)sizes[i]);
        ck_assert(has_extension(&buffer) == (sizes[i] >= UINT64_C(1) << 33));
        ck_assert_uint_eq(pax_stored_bytes(&m), sizes[i]);
        archive_read_free(a);
        vector_free(&buffer);
    }
}
END_TEST

/* The record as text: libarchive 3.6 itself misreads fractions before 1970. */
static void check_mtime(int64_t sec, uint32_t nsec, const char *text)
{
    struct node m = file_called("f");
    m.mtime_sec = sec;
    m.mtime_nsec = nsec;
    struct pax_buffer buffer = {0};
    ck_assert_int_eq(pax_encode(&m, &buffer), 0);
    ck_assert(has_extension(&buffer) == (text != NULL));
    char *end = text ? strchr((char *)buffer.at + PAX_BLOCK_BYTES, '\n') : NULL;
    if (text) {
        ck_assert_ptr_nonnull(end);
        *end = '\0';
        const char *record = (char *)buffer.at + PAX_BLOCK_BYTES;
        ck_assert_str_eq(strchr(record, '=') + 1, text);
        ck_assert_int_eq(atoi(record), (int)strlen(record) + 1);
    }
    vector_free(&buffer);
}

START_TEST(times_are_exact_to_the_nanosecond)
{
    check_mtime(0, 0, NULL);
    check_mtime(8589934591, 0, NULL);
    check_mtime(8589934592, 0, "8589934592");
    check_mtime(5, 1, "5.000000001");
    check_mtime(5, 120000000, "5.12");
    check_mtime(-1, 0, "-1");
    check_mtime(-10, 0, "-10");
    check_mtime(-1, 999999999, "-0.000000001");
    check_mtime(-2, 750000000, "-1.25");
    check_mtime(INT64_MIN, 0, "-9223372036854775808");
    check_mtime(INT64_MAX, 999999999, "9223372036854775807.999999999");
}
END_TEST

/* ---- extended attributes ---- */

START_TEST(a_record_counts_its_own_length)
{
    /* Lengths around the places where the number gets a digit more. */
    for (size_t len = 0; len < 1200; len++) {
        char *value = calloc(1, len + 1);
        memset(value, 'v', len);
        struct xattr x = {"user.k", 6, value, len};
        struct node m = file_called("f");
        m.xattrs = &x;
        m.xattr_count = 1;
        struct pax_buffer buffer = {0};
        ck_assert_int_eq(pax_encode(&m, &buffer), 0);
        const char *record = (char *)buffer.at + PAX_BLOCK_BYTES;
        size_t record_len = (size_t)atol(record);
        const char *newline = memchr(record, '\n', buffer.count - PAX_BLOCK_BYTES);
        ck_assert_ptr_eq(newline, record + record_len - 1);
        vector_free(&buffer);
        free(value);
    }
}
END_TEST

START_TEST(attributes_with_any_bytes_come_back)
{
    static const char odd[] = "\n=\0\xff";
    struct xattr x[] = {{"user.empty", 10, "", 0}, {"user.odd", 8, odd, sizeof(odd)}};
    struct node m = file_called("f");
    m.xattrs = x;
    m.xattr_count = 2;
    struct pax_buffer buffer = {0};
    struct archive_entry *entry;
    struct archive *a = read_back(&m, &buffer, &entry);
    ck_assert_int_eq(archive_entry_xattr_reset(entry), 2);
    const char *name;
    const void *value;
    size_t len;
    while (archive_entry_xattr_next(entry, &name, &value, &len) == ARCHIVE_OK) {
        bool is_odd = strcmp(name, "user.odd") == 0;
        ck_assert_uint_eq(len, is_odd ? sizeof(odd) : 0);
        ck_assert(!is_odd || memcmp(value, odd, len) == 0);
    }
    archive_read_free(a);
    vector_free(&buffer);
}
END_TEST

/* ---- sparse files ---- */

static void check_sparse(const char *path, const struct builder_piece *pieces, size_t count,
                         uint64_t size)
{
    struct node m = file_called(path);
    m.has_pieces = true;
    m.size_bytes = size;
    m.pieces = pieces;
    m.piece_count = count;
    struct pax_buffer buffer = {0};
    struct archive_entry *entry;
    struct archive *a = read_back(&m, &buffer, &entry);
    ck_assert_str_eq(archive_entry_pathname(entry), path);
    ck_assert_int_eq(archive_entry_size(entry), (int64_t)size);
    archive_entry_sparse_reset(entry);
    int64_t offset, length;
    size_t i = 0;
    while (archive_entry_sparse_next(entry, &offset, &length) == ARCHIVE_OK) {
        if (i == count && length == 0)
            continue;
        ck_assert_uint_lt(i, count);
        ck_assert_int_eq(offset, (int64_t)pieces[i].offset);
        ck_assert_int_eq(length, (int64_t)pieces[i].length);
        i++;
    }
    ck_assert_uint_eq(i, count);
    archive_read_free(a);
    vector_free(&buffer);
}

START_TEST(maps_of_sparse_files_come_back)
{
    static const struct builder_piece two[] = {{.offset = 4096, .length = 512},
                                               {.offset = UINT64_C(1) << 40, .length = 100}};
    static const struct builder_piece first[] = {{.length = 4096}};
    struct builder_piece many[3000];
    for (size_t i = 0; i < 3000; i++)
        many[i] = (struct builder_piece){.offset = i * 65536, .length = 4096};
    char name[300];
    for (int i = 0; i < 3; i++) {
        make_path(name, i == 0 ? 5 : 200, i == 0 ? 0 : 50, i == 2 ? '\xfe' : 's');
        check_sparse(name, two, 2, (UINT64_C(1) << 40) + 100);
        check_sparse(name, two, 2, UINT64_C(1) << 41);
        check_sparse(name, first, 1, 8192);
        check_sparse(name, NULL, 0, UINT64_C(5) << 30);
        check_sparse(name, many, 3000, 3000 * 65536);
    }
}
END_TEST

START_TEST(a_socket_has_no_form_and_leaves_the_buffer_alone)
{
    struct pax_buffer buffer = {0};
    struct node m = file_called("f");
    ck_assert_int_eq(pax_encode(&m, &buffer), 0);
    size_t before = buffer.count;
    m.mode = S_IFSOCK | 0644;
    ck_assert_int_eq(pax_encode(&m, &buffer), -EINVAL);
    ck_assert_uint_eq(buffer.count, before);
    vector_free(&buffer);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pax");
    TCase *tests = tcase_create("pax");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, names_of_every_length_come_back);
    tcase_add_test(tests, a_name_that_a_plain_header_can_hold_gets_no_extension);
    tcase_add_test(tests, directories_end_with_a_slash_and_the_root_is_a_dot);
    tcase_add_test(tests, links_of_every_length_come_back);
    tcase_add_test(tests, owners_of_32_bits_come_back);
    tcase_add_test(tests, sizes_past_8_GiB_come_back);
    tcase_add_test(tests, times_are_exact_to_the_nanosecond);
    tcase_add_test(tests, a_record_counts_its_own_length);
    tcase_add_test(tests, attributes_with_any_bytes_come_back);
    tcase_add_test(tests, maps_of_sparse_files_come_back);
    tcase_add_test(tests, a_socket_has_no_form_and_leaves_the_buffer_alone);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
