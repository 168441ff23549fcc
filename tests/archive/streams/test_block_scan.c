/* Blocks of bzip2 and xz: each is decompressed alone, and together they are the file. */
#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "block_scan.h"
#include "codec.h"
#include "suite.h"

#define FRONT 3u /* bytes before the file */

struct file {
    uint8_t *plain, *packed; /* `packed` begins with FRONT bytes */
    size_t plain_len, packed_len;
    const char *compression;
};

#if defined(HAVE_BZ2) || defined(HAVE_XZ)
static void file_begin(struct file *f, const char *compression)
{
    *f = (struct file){.compression = compression};
    f->plain = malloc(4u << 20);
    f->packed = calloc(1, 4u << 20);
    ck_assert(f->plain && f->packed);
}

static void file_free(struct file *f)
{
    free(f->plain);
    free(f->packed);
}

/* More plain bytes: words, runs and noise. Returns where they begin. */
static uint8_t *file_more(struct file *f, size_t len)
{
    uint8_t *plain = f->plain + f->plain_len;
    unsigned seed = (unsigned)(f->plain_len + len);
    for (size_t i = 0; i < len;) {
        size_t n = 1 + (size_t)rand_r(&seed) % 60, kind = (size_t)rand_r(&seed) % 3;
        for (size_t k = 0; k < n && i < len; k++, i++)
            plain[i] = kind == 0   ? 'x'
                       : kind == 1 ? (uint8_t)rand_r(&seed)
                       : i < 5000  ? (uint8_t)k
                                   : plain[i - 5000];
    }
    f->plain_len += len;
    return plain;
}

static void file_take(struct file *f, const void *bytes, size_t len)
{
    memcpy(f->packed + FRONT + f->packed_len, bytes, len);
    f->packed_len += len;
}
#endif

#ifdef HAVE_BZ2
#include <bzlib.h>

/* A stream with both marks in the data of its one block, which libbz2 reads all the same. */
static const uint8_t false_marks[] = {
    0x42, 0x5a, 0x68, 0x31, 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, 0x13, 0xaa, 0x97, 0xbc, 0x00,
    0x00, 0x03, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0xff, 0xff, 0xff, 0xff, 0xff, 0xfe, 0x20, 0x00, 0x42, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x7d,
    0x33, 0x1a, 0x46, 0xc1, 0xd9, 0x38, 0xf7, 0x45, 0x2c, 0x25, 0x3a, 0x0b, 0xd5, 0xb0, 0xf4,
    0x89, 0x1e, 0x7a, 0x66, 0x62, 0x82, 0xb2, 0x4c, 0xa6, 0xb3, 0x72, 0xf5, 0x19, 0xb1, 0x1c,
    0xf6, 0xcf, 0x4b, 0xbc, 0x2e, 0xe4, 0x8a, 0x70, 0xa1, 0x20, 0x50, 0x7b, 0x48, 0x51, 0xc1,
    0xdf, 0x0e, 0xcb, 0x7e, 0x0b, 0x5b, 0x90, 0x24, 0x55, 0x89, 0xfe, 0x2e, 0xe4, 0x8a, 0x70,
    0xa1, 0x20, 0x27, 0x55, 0x2f, 0x78,
};
#define FALSE_MARKS_LEN 56u

static void add_bzip2(struct file *f, size_t len)
{
    char *plain = (char *)file_more(f, len);
    unsigned room = (unsigned)(len + len / 50 + 1000);
    char *packed = malloc(room);
    ck_assert_int_eq(BZ2_bzBuffToBuffCompress(packed, &room, plain, (unsigned)len, 1, 0, 0),
                     BZ_OK);
    file_take(f, packed, room);
    free(packed);
}

static void add_false_marks(struct file *f)
{
    unsigned len = FALSE_MARKS_LEN;
    ck_assert_int_eq(BZ2_bzBuffToBuffDecompress((char *)f->plain + f->plain_len, &len,
                                                (char *)(uintptr_t)false_marks,
                                                sizeof(false_marks), 0, 0),
                     BZ_OK);
    f->plain_len += len;
    file_take(f, false_marks, sizeof(false_marks));
}

static void make_bzip2(struct file *f)
{
    file_begin(f, "bzip2");
    add_bzip2(f, 1);
    add_bzip2(f, 450000);
    add_bzip2(f, 0);
    add_false_marks(f);
    add_bzip2(f, 100000);
    add_false_marks(f);
    add_bzip2(f, 0);
    add_false_marks(f);
}

static void make_small_bzip2(struct file *f)
{
    file_begin(f, "bzip2");
    add_bzip2(f, 900);
    add_false_marks(f);
}
#endif

#ifdef HAVE_XZ
#include <lzma.h>

/* A stream of blocks: with their sizes in their headers, as xz -T has it, or without. */
static void add_xz(struct file *f, size_t len, size_t block_len, lzma_check check,
                   bool has_sizes)
{
    const lzma_mt mt = {.threads = 1, .block_size = block_len, .preset = 0, .check = check};
    lzma_stream z = LZMA_STREAM_INIT;
    ck_assert_int_eq(
        has_sizes ? lzma_stream_encoder_mt(&z, &mt) : lzma_easy_encoder(&z, 0, check), LZMA_OK);
    z.next_in = file_more(f, len);
    z.next_out = f->packed + FRONT + f->packed_len;
    z.avail_out = 1u << 20;
    for (size_t at = 0; !has_sizes && at + block_len < len; at += block_len) {
        z.avail_in = block_len;
        while (lzma_code(&z, LZMA_FULL_FLUSH) != LZMA_STREAM_END)
            ;
    }
    z.avail_in = len - z.total_in;
    while (lzma_code(&z, LZMA_FINISH) != LZMA_STREAM_END)
        ;
    f->packed_len += z.total_out;
    lzma_end(&z);
}

static void add_padding(struct file *f, size_t len)
{
    f->packed_len += len;
}

static void make_xz(struct file *f)
{
    file_begin(f, "xz");
    add_xz(f, 300000, 40000, LZMA_CHECK_CRC64, true);
    add_xz(f, 0, 1000, LZMA_CHECK_CRC32, false);
    add_padding(f, 4);
    add_xz(f, 100000, 30000, LZMA_CHECK_NONE, false);
    add_padding(f, 9000);
    add_xz(f, 100001, 50001, LZMA_CHECK_SHA256, true);
    add_xz(f, 1, 1000, LZMA_CHECK_CRC32, false);
    add_padding(f, 8);
}

static void make_small_xz(struct file *f)
{
    file_begin(f, "xz");
    add_xz(f, 900, 500, LZMA_CHECK_CRC32, true);
    add_xz(f, 700, 300, LZMA_CHECK_CRC64, false);
}
#endif

#if defined(HAVE_BZ2) || defined(HAVE_XZ)
static const struct {
    void (*make)(struct file *f);
    void (*make_small)(struct file *f);
} kinds[] = {
#ifdef HAVE_BZ2
    {make_bzip2, make_small_bzip2},
#endif
#ifdef HAVE_XZ
    {make_xz, make_small_xz},
#endif
};
#define KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static struct source *source_of(const struct file *f, size_t packed_len)
{
    struct source *source = NULL;
    int fd = memfd_create("file", MFD_CLOEXEC);
    ck_assert_int_eq(write(fd, f->packed, packed_len + FRONT), (ssize_t)(packed_len + FRONT));
    ck_assert_int_eq(source_from_fd(fd, "file", &source), 0);
    return source;
}

struct parts {
    struct stream_part list[200];
    size_t count, bytes;
    uint64_t end; /* of what was used */
};

/* Scans to the end or the first error; what comes has to be the content. */
static int scan(const struct file *f, struct source *source, struct helpers *helpers,
                struct fault *fault, struct parts *ret_parts)
{
    struct stream_scan *scan;
    struct stream_buffer buffer = {0};
    struct stream_part part = {0};
    *ret_parts = (struct parts){0};
    ck_assert_int_eq(stream_scan_new(source, f->compression, helpers, &scan), 0);
    int r = stream_scan_begin(scan, FRONT, UINT64_MAX, fault);
    while (r == 0 && !part.is_last) {
        r = stream_scan_next(scan, &buffer, fault, &part);
        if (r < 0 || part.block.block_bytes == 0)
            continue;
        ck_assert_uint_le(part.block.block_bytes, f->plain_len - ret_parts->bytes);
        ck_assert_int_eq(memcmp(buffer.at, f->plain + ret_parts->bytes, part.block.block_bytes),
                         0);
        ret_parts->bytes += part.block.block_bytes;
        ck_assert_uint_lt(ret_parts->count, 200);
        ret_parts->list[ret_parts->count++] = part;
    }
    ret_parts->end = scan->offset;
    ck_assert_uint_le(ret_parts->end, source_size(source));
    free(buffer.at);
    stream_scan_free(scan);
    return r;
}

static int unpack(struct codec_context *context, const struct file *f,
                  const struct stream_part *part, uint8_t *out)
{
    return codec_unpack_part(context, part->block.codec, &part->point,
                             f->packed + part->block.source_offset, part->block.packed_bytes,
                             out, part->block.block_bytes);
}

/* Each part alone, from the last one to the first. */
static void check_parts(const struct file *f, const struct parts *parts)
{
    struct codec_context *context;
    uint8_t *out = malloc(f->plain_len + 1);
    size_t at = f->plain_len;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    for (size_t i = parts->count; i-- > 0;) {
        const struct stream_part *part = &parts->list[i];
        at -= part->block.block_bytes;
        out[part->block.block_bytes] = 0x55;
        ck_assert_int_eq(unpack(context, f, part, out), 0);
        ck_assert_int_eq(memcmp(out, f->plain + at, part->block.block_bytes), 0);
        ck_assert_uint_eq(out[part->block.block_bytes], 0x55);
    }
    codec_context_free(context);
    free(out);
}

START_TEST(parts_are_the_file)
{
    struct file f;
    kinds[_i].make(&f);
    for (int remote = 0; remote < 2; remote++)
        for (unsigned threads = 0; threads < 4; threads++) {
            struct parts parts;
            struct fault fault = {0};
            struct helpers *helpers = NULL;
            setenv("ONEPOT_ASSUME_REMOTE", remote ? "1" : "0", 1);
            struct source *source = source_of(&f, f.packed_len);
            ck_assert(threads == 0 || helpers_new(threads, &helpers) == 0);
            int r = scan(&f, source, helpers, &fault, &parts);
            ck_assert_msg(r == 0, "%d %s at %d", r, fault.what, (int)fault.offset);
            ck_assert_uint_eq(parts.bytes, f.plain_len);
            ck_assert_uint_eq(parts.end, FRONT + f.packed_len);
            ck_assert_uint_gt(parts.count, 7);
            check_parts(&f, &parts);
            helpers_free(helpers);
            source_close(source);
        }
    file_free(&f);
}
END_TEST

START_TEST(a_file_that_was_cut_off_is_damaged)
{
    struct file f;
    kinds[_i].make_small(&f);
    unsigned whole = 0;
    for (size_t len = 0; len <= f.packed_len; len++) {
        struct parts parts;
        struct fault fault = {0};
        struct source *source = source_of(&f, len);
        int r = scan(&f, source, NULL, &fault, &parts);
        whole += r == 0 && parts.bytes > 0;
        ck_assert_msg(r == -EUCLEAN || r == 0, "%zu: %d", len, r);
        ck_assert(r == 0 || (fault.err == EUCLEAN && strstr(fault.what, "damaged ")));
        source_close(source);
    }
    ck_assert_uint_eq(whole, 2); /* streams */
    file_free(&f);
}
END_TEST

/* What was read before, of a longer part of the source, is not looked at. */
START_TEST(a_scan_that_begins_again_ends_where_it_is_told)
{
    struct file f;
    struct stream_scan *scan;
    struct stream_buffer buffer = {0};
    struct fault fault = {0};
    struct stream_part part = {0};
    setenv("ONEPOT_ASSUME_REMOTE", "1", 1);
    kinds[_i].make(&f);
    struct source *source = source_of(&f, f.packed_len);
    ck_assert_int_eq(stream_scan_new(source, f.compression, NULL, &scan), 0);
    ck_assert_int_eq(stream_scan_begin(scan, FRONT, UINT64_MAX, &fault), 0);
    ck_assert_int_eq(stream_scan_next(scan, &buffer, &fault, &part), 0);
    uint64_t end = FRONT + f.packed_len / 2;
    int r = stream_scan_begin(scan, FRONT, end, &fault);
    while (r == 0 && !part.is_last) {
        ck_assert_uint_le(part.block.source_offset + part.block.packed_bytes, end);
        r = stream_scan_next(scan, &buffer, &fault, &part);
    }
    ck_assert_int_eq(r, -EUCLEAN);
    ck_assert_uint_eq(fault.offset, end);
    stream_scan_free(scan);
    source_close(source);
    free(buffer.at);
    file_free(&f);
}
END_TEST

START_TEST(zeros_alone_are_damaged)
{
    struct file f;
    kinds[_i].make_small(&f);
    memset(f.packed, 0, 100);
    for (size_t len = 1; len <= 6; len++) {
        struct parts parts;
        struct fault fault = {0};
        struct source *source = source_of(&f, len);
        int r = scan(&f, source, NULL, &fault, &parts);
        ck_assert_msg(r == -EUCLEAN || r == 0, "%zu: %d", len, r);
        source_close(source);
    }
    file_free(&f);
}
END_TEST

/*
 * In a bzip2 file, the level, and bits that fill a byte, are of no use, and what is no header
 * of another stream is ignored.
 */
START_TEST(a_changed_byte_is_an_error_or_changes_nothing)
{
    struct file f;
    kinds[_i].make_small(&f);
    unsigned unnoticed = 0;
    for (size_t i = 0; i < f.packed_len; i++) {
        struct parts parts;
        struct fault fault = {0};
        f.packed[FRONT + i] ^= (uint8_t)(1u << i % 8);
        struct source *source = source_of(&f, f.packed_len);
        int r = scan(&f, source, NULL, &fault, &parts);
        ck_assert_msg(r == -EUCLEAN || r == -ENOTSUP || r == 0, "%zu: %d", i, r);
        unnoticed += r == 0;
        source_close(source);
        f.packed[FRONT + i] ^= (uint8_t)(1u << i % 8);
    }
    ck_assert_uint_le(unnoticed, strcmp(f.compression, "xz") == 0 ? 0 : 12);
    file_free(&f);
}
END_TEST

START_TEST(a_part_with_another_point_is_damaged)
{
    struct file f;
    struct parts parts;
    struct fault fault = {0};
    struct codec_context *context;
    kinds[_i].make(&f);
    struct source *source = source_of(&f, f.packed_len);
    uint8_t *out = malloc(f.plain_len);
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    ck_assert_int_eq(scan(&f, source, NULL, &fault, &parts), 0);
    for (size_t i = 0; i < parts.count; i++) {
        const struct stream_part *sound = &parts.list[i];
        struct stream_part bad[8];
        for (size_t k = 0; k < 8; k++)
            bad[k] = *sound;
        bad[0].point.sum ^= 1;
        bad[1].block.packed_bytes /= 2;
        bad[2].block.packed_bytes = 0;
        bad[3].block.block_bytes--;
        bad[4].block.source_offset++;
        bad[5].block.packed_bytes -= 4;
        bad[6].point.first_bit = (sound->point.first_bit + 1) % 8;
        bad[7].point.last_bits = sound->point.last_bits % 8 + 1;
        /* Blocks of xz have no bits. */
        size_t kinds_of_bad = sound->block.codec == CODEC_BZIP2 ? 8 : 6;
        for (size_t k = 0; k < kinds_of_bad; k++)
            ck_assert_msg(unpack(context, &f, &bad[k], out) == -EUCLEAN, "%zu %zu", i, k);
        ck_assert_int_eq(unpack(context, &f, sound, out), 0);
    }
    codec_context_free(context);
    free(out);
    source_close(source);
    file_free(&f);
}
END_TEST
#endif

#ifdef HAVE_BZ2
START_TEST(a_block_of_zeros_is_46_mb_long)
{
    struct file f = {.compression = "bzip2", .plain_len = 50u << 20};
    unsigned room = 10000;
    struct parts parts;
    struct fault fault = {0};
    f.plain = calloc(1, f.plain_len);
    f.packed = calloc(1, room + FRONT);
    ck_assert_int_eq(BZ2_bzBuffToBuffCompress((char *)f.packed + FRONT, &room, (char *)f.plain,
                                              (unsigned)f.plain_len, 9, 0, 0),
                     BZ_OK);
    f.packed_len = room;
    struct source *source = source_of(&f, f.packed_len);
    ck_assert_int_eq(scan(&f, source, NULL, &fault, &parts), 0);
    ck_assert_uint_gt(parts.list[0].block.block_bytes, 45000000);
    ck_assert_uint_lt(parts.list[0].block.block_bytes, CODEC_BLOCK_MAX);
    check_parts(&f, &parts);
    source_close(source);
    file_free(&f);
}
END_TEST

/* Nothing but marks, as a stream without end and in it. */
START_TEST(many_false_marks_are_given_up)
{
    static const uint8_t mark[] = {0x31, 0x41, 0x59, 0x26, 0x53, 0x59};
    for (unsigned threads = 0; threads < 2; threads++) {
        struct file f;
        struct parts parts;
        struct fault fault = {0};
        struct helpers *helpers = NULL;
        ck_assert(threads == 0 || helpers_new(threads, &helpers) == 0);
        file_begin(&f, "bzip2");
        file_take(&f, "BZh9", 4);
        while (f.packed_len < 3000000)
            file_take(&f, mark, sizeof(mark));
        struct source *source = source_of(&f, f.packed_len);
        int r = scan(&f, source, helpers, &fault, &parts);
        ck_assert(r == -EUCLEAN || r == -ENOTSUP);
        source_close(source);
        helpers_free(helpers);
        file_free(&f);
    }
}
END_TEST
#endif

#ifdef HAVE_XZ
START_TEST(a_block_that_is_too_long_is_not_supported)
{
    struct file f = {.compression = "xz"};
    struct parts parts;
    struct fault fault = {0};
    size_t len = BLOCK_SCAN_MAX + 1u;
    uint8_t *zeros = calloc(1, len);
    f.packed = calloc(1, 100000);
    ck_assert_int_eq(lzma_easy_buffer_encode(0, LZMA_CHECK_NONE, NULL, zeros, len,
                                             f.packed + FRONT, &f.packed_len, 90000),
                     LZMA_OK);
    struct source *source = source_of(&f, f.packed_len);
    ck_assert_int_eq(scan(&f, source, NULL, &fault, &parts), -ENOTSUP);
    source_close(source);
    free(zeros);
    file_free(&f);
}
END_TEST
#endif

#ifdef HAVE_XZ
/* Their indexes are joined in a time that grows with their number, not with its square. */
START_TEST(tens_of_thousands_of_streams_are_one_file)
{
    struct file f;
    struct parts parts;
    struct fault fault = {0};
    file_begin(&f, "xz");
    add_xz(&f, 1000, 500, LZMA_CHECK_CRC32, true);
    size_t empty = f.packed_len;
    add_xz(&f, 0, 1000, LZMA_CHECK_CRC32, false);
    const size_t len = f.packed_len - empty;
    for (unsigned i = 1; i < 60000; i++)
        file_take(&f, f.packed + FRONT + empty, len);
    struct source *source = source_of(&f, f.packed_len);
    ck_assert_int_eq(scan(&f, source, NULL, &fault, &parts), 0);
    source_close(source);
    file_free(&f);
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("block_scan");
    TCase *tests = tcase_create("block_scan");
#if defined(HAVE_BZ2) || defined(HAVE_XZ)
    tcase_add_loop_test(tests, parts_are_the_file, 0, KINDS);
    tcase_add_loop_test(tests, a_file_that_was_cut_off_is_damaged, 0, KINDS);
    tcase_add_loop_test(tests, a_scan_that_begins_again_ends_where_it_is_told, 0, KINDS);
    tcase_add_loop_test(tests, zeros_alone_are_damaged, 0, KINDS);
    tcase_add_loop_test(tests, a_changed_byte_is_an_error_or_changes_nothing, 0, KINDS);
    tcase_add_loop_test(tests, a_part_with_another_point_is_damaged, 0, KINDS);
#endif
#ifdef HAVE_BZ2
    tcase_add_test(tests, a_block_of_zeros_is_46_mb_long);
    tcase_add_test(tests, many_false_marks_are_given_up);
#endif
#ifdef HAVE_XZ
    tcase_add_test(tests, a_block_that_is_too_long_is_not_supported);
    tcase_add_test(tests, tens_of_thousands_of_streams_are_one_file);
#endif
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
