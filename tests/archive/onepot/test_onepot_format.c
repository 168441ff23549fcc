/*
 * The trailer of an onepot archive: found where it describes the tar before it, and in
 * no other case, whatever was done to the file since.
 */
#include <check.h>

#include <endian.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "backend.h"
#include "cleanup.h"
#include "index_helper.h"
#include "onepot_format.h"
#include "suite.h"
#include "writer.h"

enum { FOOTER = 512, RECORD = ONEPOT_RECORD_BYTES };

static char folder[64], path[72];
static uint8_t *bytes; /* of the archive */
static size_t len;
static struct writer_totals totals;
static unsigned writes, odd_writes; /* of the writer; not begun at a multiple of 256 KB */

/* In place of the C library's. */
ssize_t writev(int fd, const struct iovec *iov, int count)
{
    writes++;
    odd_writes += lseek(fd, 0, SEEK_CUR) % (256 << 10) != 0;
    return syscall(SYS_writev, fd, iov, count);
}

static void add_member(struct writer *w, const char *name, uint32_t mode, size_t size)
{
    struct node m = {.path = name,
                     .path_len = strlen(name),
                     .mode = mode,
                     .size_bytes = size,
                     .mtime_sec = 7};
    struct pax_buffer header = {0};
    struct fault fault = {0};
    ck_assert_int_eq(pax_encode(&m, &header), 0);
    ck_assert_int_eq(writer_add(w, &m, &header, &fault), 0);
    if (!size)
        return;
    uint8_t *data = malloc(size);
    memset(data, 'd', size);
    ck_assert_int_eq(writer_data(w, data, size, &fault), 0);
}

static struct writer *begin(const char *name, int level, struct output **ret_output)
{
    const struct writer_options options = {.zstd_level = level};
    struct writer *w = NULL;
    ck_assert_int_eq(output_open(name, OUTPUT_REPLACES, 0, NULL, ret_output), 0);
    ck_assert_int_eq(writer_new(*ret_output, &options, &w), 0);
    return w;
}

static void finish(struct writer *w, struct output *output)
{
    struct fault fault = {0};
    int r = writer_finish(w, &fault, &totals);
    ck_assert_msg(r == 0, "%d %s", r, fault.what);
    ck_assert_int_eq(output_commit(output, false, NULL), 0);
}

static void write_archive(size_t files)
{
    struct output *output;
    struct writer *w = begin(path, 0, &output);
    add_member(w, "", S_IFDIR | 0755, 0);
    for (size_t i = 0; i < files; i++) {
        char name[32];
        snprintf(name, sizeof(name), "file%04zu", i);
        add_member(w, name, S_IFREG | 0644, i * 37 % 5000);
    }
    finish(w, output);
}

static void load(void)
{
    auto_close int fd = open(path, O_RDONLY);
    struct stat st;
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &st), 0);
    free(bytes);
    len = (size_t)st.st_size;
    bytes = malloc(len);
    ck_assert_int_eq(read(fd, bytes, len), (ssize_t)len);
}

static void setup(void)
{
    suite_make_folder("format", folder, sizeof(folder));
    snprintf(path, sizeof(path), "%s/a.tar", folder);
    write_archive(20);
    load();
}

static void teardown(void)
{
    free(bytes);
    bytes = NULL;
    unlink(path);
    rmdir(folder);
}

/* -ENOENT where probe already says that it is no onepot archive. */
static int find_in(const uint8_t *image, size_t size, struct embedded_index *ret_where)
{
    struct source *source = NULL;
    struct fault fault = {0};
    ck_assert_int_eq(source_from_memory(image, size, "memory", &source), 0);
    int r = backend_onepot.probe(source, image, size < 65536 ? size : 65536);
    ck_assert(r == 0 || r == 1);
    if (r == 0) {
        ck_assert_int_lt(backend_onepot.trailer->find(source, &fault, ret_where), 0);
        source_close(source);
        return -ENOENT;
    }
    r = backend_onepot.trailer->find(source, &fault, ret_where);
    ck_assert_msg(r == 0 || fault.err == -r, "%d, but the fault has %d", r, fault.err);
    source_close(source);
    return r;
}

static int find(void)
{
    struct embedded_index where;
    return find_in(bytes, len, &where);
}

enum { END_MARKER = 48, IMAGE_OFFSET = 56, IMAGE_BYTES = 64, FILE_BYTES = 72 };

static uint64_t get(size_t at)
{
    uint64_t value;
    memcpy(&value, bytes + at, 8);
    return le64toh(value);
}

/* A footer that lies, with a sum that is right. */
static void put(size_t at, uint64_t value)
{
    uint8_t *footer = bytes + len - FOOTER;
    value = htole64(value);
    memcpy(footer + at, &value, 8);
    value = htole64(XXH3_64bits(footer, FOOTER - 8));
    memcpy(footer + FOOTER - 8, &value, 8);
}

/* ---- what is right ---- */

START_TEST(the_trailer_of_a_fresh_archive_is_found)
{
    struct embedded_index where = {0};
    ck_assert_int_eq(find_in(bytes, len, &where), 0);
    ck_assert_uint_eq(len % RECORD, 0);
    ck_assert_uint_eq(where.offset % RECORD, 0);
    ck_assert_uint_eq(len, totals.file_bytes);
    ck_assert_uint_lt(where.offset + where.length, len);

    struct source *source = NULL;
    struct index *index = NULL;
    struct fault fault = {0};
    ck_assert_int_eq(source_from_memory(bytes, len, "memory", &source), 0);
    ck_assert_int_eq(index_open(source, where.offset, where.length, &fault, &index), 0);
    const struct index_info *info = index_info(index);
    ck_assert_int_eq(info->format, FORMAT_ONEPOT);
    ck_assert_uint_eq(info->entries, 21);
    ck_assert_uint_eq(info->archive_bytes, where.offset);
    ck_assert_mem_eq(info->identifier, bytes + len - FOOTER + 32, 16);
    ck_assert_uint_eq(walk_all(index).errors, 0);
    index_close(index);
    source_close(source);
}
END_TEST

START_TEST(the_end_marker_is_where_footer_and_index_say)
{
    size_t footer = len - FOOTER;
    uint64_t marker = get(footer + END_MARKER), image = get(footer + IMAGE_OFFSET);
    for (uint64_t i = marker; i < image; i++)
        ck_assert_uint_eq(bytes[i], 0);
    ck_assert_uint_ge(image - marker, ONEPOT_MARKER_BYTES);
    ck_assert_uint_lt(image - marker, ONEPOT_MARKER_BYTES + RECORD);
    struct disk_header h;
    memcpy(&h, bytes + image, sizeof(h));
    ck_assert_uint_eq(le64toh(h.end_marker_offset), marker);
}
END_TEST

/* Compare the archive's windows with their sums: 0 or -EUCLEAN. */
static int check_windows(const struct index *index)
{
    uint64_t left = index_info(index)->archive_bytes, sum;
    if (index_windows(index) != index_windows_of(left))
        return -EUCLEAN;
    for (uint64_t i = 0, n; left > 0; i++, left -= n) {
        n = left < INDEX_WINDOW_BYTES ? left : INDEX_WINDOW_BYTES;
        if (index_window_sum(index, i, &sum) < 0 ||
            XXH3_64bits(bytes + i * INDEX_WINDOW_BYTES, n) != sum)
            return -EUCLEAN;
    }
    return 0;
}

/* Check windows and trailer of `bytes` as they are now: 0 if nothing is wrong. */
static int check_all(void)
{
    struct embedded_index where;
    struct source *source = NULL;
    struct index *index = NULL;
    struct fault fault = {0};
    ck_assert_int_eq(source_from_memory(bytes, len, "memory", &source), 0);
    int r = backend_onepot.trailer->find(source, &fault, &where);
    if (r == 0)
        r = index_open(source, where.offset, where.length, &fault, &index);
    if (r == 0)
        r = onepot_check_trailer(source, index, &fault);
    if (r == 0)
        r = check_windows(index);
    ck_assert(r == 0 || r == -ENOENT || r == -EUCLEAN || fault.err);
    index_close(index);
    source_close(source);
    return r;
}

START_TEST(sums_cover_all_that_is_no_data)
{
    /* Of an archive of empty files that is everything. */
    struct output *output;
    struct writer *w = begin(path, 0, &output);
    for (int i = 0; i < 9; i++) {
        char name[2] = {(char)('a' + i), 0};
        add_member(w, name, S_IFREG | 0644, 0);
    }
    finish(w, output);
    load();
    ck_assert_int_eq(check_all(), 0);
    for (size_t i = 0; i < len; i += i < len - FOOTER ? 7 : 1) {
        bytes[i] ^= 1;
        ck_assert_msg(check_all() != 0, "byte %zu", i);
        bytes[i] ^= 1;
    }
    ck_assert_int_eq(check_all(), 0);
}
END_TEST

START_TEST(the_digest_is_that_of_the_entries)
{
    struct embedded_index where;
    struct source *source = NULL;
    struct index *index = NULL;
    struct fault fault = {0};
    uint8_t digest[INDEX_DIGEST_BYTES], first[INDEX_DIGEST_BYTES] = {0};
    for (size_t files = 20; files < 22; files++) {
        enum digest_kind kind = DIGEST_NONE;
        write_archive(files);
        load();
        ck_assert_int_eq(source_from_memory(bytes, len, "memory", &source), 0);
        ck_assert_int_eq(backend_onepot.trailer->find(source, &fault, &where), 0);
        ck_assert_int_eq(index_open(source, where.offset, where.length, &fault, &index), 0);
        ck_assert_int_eq(index_digest(index, NULL, digest, &kind), 0);
        ck_assert_int_eq(kind, DIGEST_TREE);
        ck_assert_int_eq(index_info(index)->digest_kind, DIGEST_TREE);
        ck_assert_mem_eq(index_info(index)->digest, digest, sizeof(digest));
        ck_assert_mem_ne(first, digest, sizeof(digest));
        memcpy(first, digest, sizeof(digest));
        index_close(index);
        source_close(source);
    }
}
END_TEST

/* The bytes of an archive of `files` members in zstd frames. */
static void make_packed(uint32_t files)
{
    char packed[PATH_MAX];
    struct fault fault = {0};
    struct builder *b = NULL;
    static uint8_t rest[4099];
    uint64_t sum = htole64(XXH3_64bits(rest, sizeof(rest))), file_bytes;
    struct builder_header header = {.codec = CODEC_ZSTD,
                                    .block_bytes = 4096,
                                    .archive_bytes = 4099,
                                    .has_sums = true,
                                    .window_sums = &sum,
                                    .window_count = 1};
    snprintf(packed, sizeof(packed), "%s.packed", path);
    auto_close int fd = open(packed, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ck_assert_int_eq(write(fd, rest, sizeof(rest)), sizeof(rest));
    ck_assert_int_eq(builder_new(&b), 0);
    for (uint32_t i = 0; i < files; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%u", i);
        ck_assert_int_eq(builder_set_sum(b, add_file(b, name, 0, 0), i), 0);
    }
    uint64_t most = builder_image_bytes_max(b) + sizeof(sum);
    int r = onepot_format_append(b, &header, RECORD, fd, &fault, &file_bytes);
    ck_assert_msg(r == 0, "%s", fault.what);
    builder_free(b);
    free(bytes);
    len = (size_t)lseek(fd, 0, SEEK_END);
    bytes = malloc(len);
    ck_assert_int_eq(pread(fd, bytes, len, 0), (ssize_t)len);
    unlink(packed);
    struct embedded_index where;
    ck_assert_int_eq(find_in(bytes, len, &where), 0);
    ck_assert_uint_le(where.length, most);
    ck_assert_uint_eq(len, 4099 + 5 + 8 + where.length + 520);
}

START_TEST(every_byte_around_a_frame_with_an_index_is_checked)
{
    make_packed(4000);
    ck_assert_int_eq(check_all(), 0);
    for (size_t i = 0; i < len; i += i < 4200 || i > len - 600 ? 1 : 509) {
        bytes[i] ^= 4;
        ck_assert_msg(check_all() != 0, "byte %zu", i);
        bytes[i] ^= 4;
    }
}
END_TEST

/* Before any of the member is written. Without compression nothing limits the index. */
START_TEST(what_the_index_of_a_compressed_archive_cannot_hold_is_refused)
{
    const struct node member = {.path = "large",
                                .path_len = 5,
                                .mode = S_IFREG | 0644,
                                .size_bytes = UINT64_C(1) << 48};
    for (int level = 0; level < 2; level++) {
        struct pax_buffer header = {0};
        struct output *output;
        struct fault fault = {0};
        char name[PATH_MAX];
        snprintf(name, sizeof(name), "%s.large", path);
        struct writer *w = begin(name, level, &output);
        ck_assert_int_eq(pax_encode(&member, &header), 0);
        ck_assert_int_eq(writer_add(w, &member, &header, &fault), level ? -EFBIG : 0);
        ck_assert(!level || strstr(fault.advice, "--shards"));
        vector_free(&header);
        writer_discard(w);
        output_discard(output);
    }
}
END_TEST

START_TEST(a_lying_footer_of_a_compressed_archive_is_noticed)
{
    make_packed(4000);
    static const uint64_t values[] = {0,
                                      1,
                                      8,
                                      512,
                                      65536,
                                      131072,
                                      1u << 20,
                                      UINT64_C(1) << 32,
                                      INT64_MAX,
                                      UINT64_MAX,
                                      UINT64_MAX - 7,
                                      UINT64_MAX - 65535};
    for (size_t at = END_MARKER; at <= 96; at += 8) {
        uint64_t old = get(len - FOOTER + at);
        for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
            struct embedded_index where;
            put(at, values[i]);
            ck_assert(values[i] == old || find_in(bytes, len, &where) < 0);
        }
        put(at, old);
    }
    ck_assert_int_eq(check_all(), 0);
}
END_TEST

START_TEST(every_number_of_members_ends_on_records)
{
    for (size_t files = 0; files < 45; files++) {
        write_archive(files);
        load();
        ck_assert_uint_eq(len % RECORD, 0);
        ck_assert_int_eq(find(), 0);
    }
}
END_TEST

/* So that the kernel keeps it in large folios. */
START_TEST(it_is_written_in_aligned_pieces)
{
    struct output *output;
    struct writer *w = begin(path, 0, &output);
    writes = odd_writes = 0;
    for (unsigned i = 0; i < 2000; i++) {
        char name[32];
        snprintf(name, sizeof(name), "file%04u", i);
        add_member(w, name, S_IFREG | 0644, i == 1000 ? 3 << 20 : i % 3 ? i * 37 % 5000 : 1);
    }
    finish(w, output);
    ck_assert_uint_eq(odd_writes, 0);
    ck_assert_uint_gt(writes, 0);
    ck_assert_uint_le(writes, totals.file_bytes / (256 << 10) + 1);
    load();
    ck_assert_int_eq(find(), 0);
}
END_TEST

START_TEST(the_identifier_follows_the_content)
{
    uint8_t first[16];
    memcpy(first, bytes + len - FOOTER + 32, 16);
    write_archive(20);
    load();
    ck_assert_mem_eq(first, bytes + len - FOOTER + 32, 16);
    write_archive(21);
    load();
    ck_assert_mem_ne(first, bytes + len - FOOTER + 32, 16);
}
END_TEST

/* ---- what was changed since ---- */

static void run_tar(const char *format, const char *option)
{
    char command[512];
    snprintf(command, sizeof(command), format, option, path, folder);
    int status = system(command);
    ck_assert_msg(status == 0, "%s: %d", command, status);
}

START_TEST(appending_with_tar_is_noticed)
{
    /* From one that leaves the footer in place to one that overwrites it. */
    static const char *const sizes[] = {"0", "1", "600", "3000", "60000"};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        write_archive(20);
        run_tar("head -c %s /dev/zero >%s.new && cd / && tar rf %2$s %2$s.new 2>/dev/null && "
                "rm %2$s.new",
                sizes[i]);
        load();
        int r = find();
        ck_assert_msg(r == -ESTALE || r == -ENOENT, "%s bytes: %d", sizes[i], r);
        ck_assert(i > 2 || r == -ESTALE);
    }
}
END_TEST

START_TEST(deleting_with_tar_is_noticed)
{
    run_tar("tar --delete -f %2$s %1$s", "file0003");
    load();
    int r = find();
    ck_assert_msg(r == -ESTALE || r == -ENOENT, "%d", r);
}
END_TEST

START_TEST(appended_bytes_make_it_a_plain_tar)
{
    for (size_t extra = 1; extra < 3 * RECORD; extra += 511) {
        uint8_t *longer = calloc(1, len + extra);
        struct embedded_index where;
        memcpy(longer, bytes, len);
        ck_assert_int_eq(find_in(longer, len + extra, &where), -ENOENT);
        free(longer);
    }
}
END_TEST

START_TEST(two_archives_in_a_row_are_noticed)
{
    uint8_t *two = malloc(2 * len);
    struct embedded_index where;
    memcpy(two, bytes, len);
    memcpy(two + len, bytes, len);
    ck_assert_int_eq(find_in(two, 2 * len, &where), -ESTALE);
    free(two);
}
END_TEST

START_TEST(a_truncated_archive_has_no_trailer)
{
    struct embedded_index where;
    for (size_t cut = 0; cut < len; cut += cut < 2 * RECORD ? 97 : 509)
        ck_assert_int_eq(find_in(bytes, cut, &where), -ENOENT);
    ck_assert_int_eq(find_in(bytes, len - 1, &where), -ENOENT);
}
END_TEST

START_TEST(a_footer_on_another_archive_is_noticed)
{
    /* The trailer of this archive behind the tar of another one of the same size. */
    uint8_t *other = malloc(len);
    size_t other_len = len;
    memcpy(other, bytes, len);
    write_archive(19);
    load();
    if (len == other_len) {
        memcpy(bytes + len - FOOTER, other + len - FOOTER, FOOTER);
        int r = find();
        ck_assert_msg(r == -EUCLEAN || r == -ESTALE, "%d", r);
    }
    free(other);
    ck_assert_uint_eq(len, other_len);
}
END_TEST

/* ---- what is damaged ---- */

START_TEST(no_flipped_bit_of_the_footer_passes)
{
    struct embedded_index where;
    for (size_t bit = 0; bit < FOOTER * 8; bit++) {
        uint8_t *byte = bytes + len - FOOTER + bit / 8;
        *byte ^= (uint8_t)(1u << bit % 8);
        int r = find_in(bytes, len, &where);
        ck_assert_msg(r == -EUCLEAN || (bit < 64 && r == -ENOENT), "bit %zu: %d", bit, r);
        *byte ^= (uint8_t)(1u << bit % 8);
    }
}
END_TEST

START_TEST(no_flipped_bit_of_the_marker_passes)
{
    uint64_t marker = get(len - FOOTER + END_MARKER);
    for (size_t i = 0; i < ONEPOT_MARKER_BYTES; i++) {
        bytes[marker + i] ^= (uint8_t)(1u << i % 8);
        ck_assert_int_eq(find(), -ESTALE);
        bytes[marker + i] ^= (uint8_t)(1u << i % 8);
    }
}
END_TEST

START_TEST(an_index_of_another_archive_is_refused)
{
    static const size_t fields[] = {
        offsetof(struct disk_header, magic), offsetof(struct disk_header, identifier),
        offsetof(struct disk_header, end_marker_offset),
        offsetof(struct disk_header, archive_bytes), offsetof(struct disk_header, image_bytes)};
    uint64_t image = get(len - FOOTER + IMAGE_OFFSET);
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        bytes[image + fields[i]] ^= 1;
        ck_assert_int_eq(find(), -EUCLEAN);
        bytes[image + fields[i]] ^= 1;
    }
    ck_assert_int_eq(find(), 0);
}
END_TEST

START_TEST(a_footer_that_lies_is_refused)
{
    static const size_t fields[] = {END_MARKER, IMAGE_OFFSET, IMAGE_BYTES, FILE_BYTES};
    static const uint64_t lies[] = {0,
                                    1,
                                    512,
                                    RECORD,
                                    UINT64_MAX,
                                    UINT64_MAX - 511,
                                    INT64_MAX,
                                    UINT64_C(1) << 63,
                                    UINT64_MAX - RECORD + 1,
                                    UINT64_MAX / RECORD * RECORD};
    size_t footer = len - FOOTER;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        uint64_t truth = get(footer + fields[i]);
        for (size_t j = 0; j < sizeof(lies) / sizeof(lies[0]) + 6; j++) {
            const uint64_t near[] = {truth + 1,   truth - 1,      truth + 512,
                                     truth - 512, truth + RECORD, truth - RECORD};
            uint64_t lie = j < 6 ? near[j] : lies[j - 6];
            if (lie == truth)
                continue;
            put(fields[i], lie);
            int r = find();
            ck_assert_msg(r == -EUCLEAN || r == -ESTALE, "field %zu, lie %zu: %d", i, j, r);
        }
        put(fields[i], truth);
        ck_assert_int_eq(find(), 0);
    }
}
END_TEST

START_TEST(a_later_version_is_left_to_the_tar_reader)
{
    put(8, UINT64_C(512) << 32 | 2); /* version 2 */
    ck_assert_int_eq(find(), -ESTALE);
    put(8, UINT64_C(512) << 32 | 1);
    put(16, 2); /* a feature that it takes to read it */
    ck_assert_int_eq(find(), -ESTALE);
    put(16, 0);
    put(24, UINT64_MAX); /* features that may be ignored */
    ck_assert_int_eq(find(), 0);
}
END_TEST

START_TEST(files_too_small_for_a_trailer_are_none)
{
    struct embedded_index where;
    for (size_t size = 0; size < RECORD; size += size < 1030 ? 1 : 100)
        ck_assert_int_lt(find_in(bytes + len - size, size, &where), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("onepot_format");
    TCase *tests = tcase_create("trailer");
    tcase_set_timeout(tests, 120);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, the_trailer_of_a_fresh_archive_is_found);
    tcase_add_test(tests, the_end_marker_is_where_footer_and_index_say);
    tcase_add_test(tests, sums_cover_all_that_is_no_data);
    tcase_add_test(tests, every_byte_around_a_frame_with_an_index_is_checked);
    tcase_add_test(tests, what_the_index_of_a_compressed_archive_cannot_hold_is_refused);
    tcase_add_test(tests, a_lying_footer_of_a_compressed_archive_is_noticed);
    tcase_add_test(tests, the_digest_is_that_of_the_entries);
    tcase_add_test(tests, every_number_of_members_ends_on_records);
    tcase_add_test(tests, it_is_written_in_aligned_pieces);
    tcase_add_test(tests, the_identifier_follows_the_content);
    tcase_add_test(tests, appending_with_tar_is_noticed);
    tcase_add_test(tests, deleting_with_tar_is_noticed);
    tcase_add_test(tests, appended_bytes_make_it_a_plain_tar);
    tcase_add_test(tests, two_archives_in_a_row_are_noticed);
    tcase_add_test(tests, a_truncated_archive_has_no_trailer);
    tcase_add_test(tests, a_footer_on_another_archive_is_noticed);
    tcase_add_test(tests, no_flipped_bit_of_the_footer_passes);
    tcase_add_test(tests, no_flipped_bit_of_the_marker_passes);
    tcase_add_test(tests, an_index_of_another_archive_is_refused);
    tcase_add_test(tests, a_footer_that_lies_is_refused);
    tcase_add_test(tests, a_later_version_is_left_to_the_tar_reader);
    tcase_add_test(tests, files_too_small_for_a_trailer_are_none);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
