/* Streams that are decompressed from front to back, however their bytes come. */
#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_LZ4
#include <lz4frame.h>
#endif

#include "block_packers.h"
#include "decompressor.h"
#include "numbers.h"
#include "suite.h"

#define PLAIN_BYTES 6000u

#ifdef HAVE_LZ4
static size_t pack_lz4_frame(const void *in, size_t len, void *out)
{
    const LZ4F_preferences_t sums = {.frameInfo.contentChecksumFlag =
                                         LZ4F_contentChecksumEnabled};
    size_t n = LZ4F_compressFrame(out, PACKED_MAX, in, len, &sums);
    return LZ4F_isError(n) ? 0 : n;
}
#endif

static const struct {
    const char *name;
    size_t (*pack)(const void *in, size_t len, void *out);
    bool has_sum;
    unsigned ignored; /* so many bytes behind a stream, if they are not the next one's first */
} kinds[] = {
    {"zstd", pack_zstd, false, 0},
#ifdef HAVE_ZLIB
    {"gzip", pack_gzip, true, 2},
#endif
#ifdef HAVE_XZ
    {"xz", pack_xz, true, 0},
#endif
#ifdef HAVE_BZ2
    {"bzip2", pack_bzip2, true, 3},
#endif
#ifdef HAVE_LZ4
    {"lz4", pack_lz4_frame, true, 0},
#endif
};
#define KINDS ((int)(sizeof(kinds) / sizeof(*kinds)))

static uint8_t plain[PLAIN_BYTES], packed[3 * PACKED_MAX], out[8 * PLAIN_BYTES];
static size_t packed_len;

static void pack_one(int kind, size_t from, size_t len)
{
    packed_len += kinds[kind].pack(plain + from, len, packed + packed_len);
}

/* Two streams, one behind the other. */
static void pack_two(int kind)
{
    unsigned seed = 7;
    for (size_t i = 0; i < PLAIN_BYTES; i++)
        plain[i] = (uint8_t)(i % 1500 < 500 ? rand_r(&seed) : 'x');
    packed_len = 0;
    pack_one(kind, 0, PLAIN_BYTES / 3);
    pack_one(kind, PLAIN_BYTES / 3, PLAIN_BYTES - PLAIN_BYTES / 3);
    ck_assert_uint_gt(packed_len, 100);
}

struct feed {
    size_t at, step;
    int error; /* in place of the end */
};

static ssize_t feed_next(void *ctx, const void **ret_bytes)
{
    struct feed *f = ctx;
    size_t len = packed_len - f->at < f->step ? packed_len - f->at : f->step;
    *ret_bytes = packed + f->at;
    f->at += len;
    return len ? (ssize_t)len : f->error;
}

/* Decompresses all by reads of so many bytes into `out`; returns how many came. */
static ssize_t unpack(int kind, struct feed *f, size_t read_bytes)
{
    struct fault fault = {0};
    struct decompressor *d;
    size_t done = 0;
    ssize_t n = decompressor_new(kinds[kind].name, feed_next, f, &fault, &d);
    if (n == 0) {
        do {
            ck_assert_uint_le(done + read_bytes, sizeof(out));
            n = decompressor_read(d, out + done, read_bytes);
            done += n > 0 ? (size_t)n : 0;
        } while (n == (ssize_t)read_bytes);
        decompressor_free(d);
    }
    ck_assert(n >= 0 || n == f->error || (fault.err == -n && fault.what[0]));
    return n < 0 ? n : (ssize_t)done;
}

static bool is_plain(ssize_t n)
{
    return n == PLAIN_BYTES && memcmp(out, plain, PLAIN_BYTES) == 0;
}

START_TEST(a_stream_comes_in_pieces_of_any_size)
{
    pack_two(_i);
    for (size_t step = 1; step < packed_len; step = 2 * step + 1)
        for (size_t read_bytes = 1; read_bytes < 3 * PLAIN_BYTES / 2;
             read_bytes = 9 * read_bytes)
            ck_assert(is_plain(unpack(_i, &(struct feed){.step = step}, read_bytes)));
}
END_TEST

/* But right behind the first of two. */
START_TEST(a_stream_that_ends_too_early_is_damaged)
{
    pack_two(_i);
    unsigned whole = 0;
    for (size_t all = packed_len; packed_len-- > 14;) { /* enough to know what it is */
        ssize_t n = unpack(_i, &(struct feed){.step = all}, PLAIN_BYTES);
        whole += n == PLAIN_BYTES / 3;
        ck_assert(n == -EUCLEAN || n == PLAIN_BYTES / 3);
    }
    ck_assert_uint_le(whole, max_u32(kinds[_i].ignored, 1));
    ck_assert_uint_gt(whole, 0);
}
END_TEST

START_TEST(a_changed_byte_is_an_error_or_changes_nothing)
{
    pack_two(_i);
    unsigned first = 0;
    for (size_t at = 4; kinds[_i].has_sum && at < packed_len; at++) {
        packed[at] ^= 1;
        ssize_t n = unpack(_i, &(struct feed){.step = 1000}, PLAIN_BYTES);
        packed[at] ^= 1;
        first += n == PLAIN_BYTES / 3;
        ck_assert(n < 0 || is_plain(n) || n == PLAIN_BYTES / 3);
    }
    ck_assert_uint_le(first, kinds[_i].ignored);
}
END_TEST

START_TEST(an_error_of_the_feed_is_returned)
{
    pack_two(_i);
    for (size_t all = packed_len; packed_len > 0; packed_len--) {
        struct feed f = {.step = packed_len % 2 ? 100 : all, .error = -EIO};
        ck_assert_int_eq(unpack(_i, &f, PLAIN_BYTES), -EIO);
    }
}
END_TEST

#ifdef HAVE_LZ4
/* libarchive takes it for the end. */
START_TEST(what_follows_an_empty_frame_of_lz4_is_not_lost)
{
    pack_two(KINDS - 1);
    pack_one(KINDS - 1, 0, 0);
    ck_assert(is_plain(unpack(KINDS - 1, &(struct feed){.step = 100}, PLAIN_BYTES)));
    pack_one(KINDS - 1, 0, 1);
    ck_assert_int_eq(unpack(KINDS - 1, &(struct feed){.step = 100}, PLAIN_BYTES), -EUCLEAN);
}
END_TEST
#endif

/* As gzip and bzip2 do; also bytes that begin like a member. */
START_TEST(what_follows_is_ignored)
{
    static const char *const behind[] = {"x", "\x1fxyz", "junk behind", "\0\0\0\0"};
    const size_t last = sizeof(behind) / sizeof(*behind) - 1; /* zeros: but behind zstd, fine */
    for (size_t i = kinds[_i].ignored ? 0 : last; _i > 0 && i <= last; i++)
        for (size_t step = 1; step < 8000; step += step < 64 ? 1 : 2 * step) {
            pack_two(_i);
            size_t len = i == 0 ? 1 : 4;
            memcpy(packed + packed_len, behind[i], len);
            packed_len += len;
            ck_assert(is_plain(unpack(_i, &(struct feed){.step = step}, PLAIN_BYTES + 1)));
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("decompressor");
    TCase *tests = tcase_create("decompressor");
    tcase_add_loop_test(tests, a_stream_comes_in_pieces_of_any_size, 0, KINDS);
    tcase_add_loop_test(tests, a_stream_that_ends_too_early_is_damaged, 0, KINDS);
    tcase_add_loop_test(tests, a_changed_byte_is_an_error_or_changes_nothing, 0, KINDS);
    tcase_add_loop_test(tests, an_error_of_the_feed_is_returned, 0, KINDS);
#ifdef HAVE_LZ4
    tcase_add_test(tests, what_follows_an_empty_frame_of_lz4_is_not_lost);
#endif
    tcase_add_loop_test(tests, what_follows_is_ignored, 0, KINDS);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
