/* Every codec: what its library packed comes back, and what is damaged is refused. */
#include <check.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "block_packers.h"
#include "codec.h"
#include "suite.h"

#define SIZE 131072u

static unsigned char plain[SIZE], packed[PACKED_MAX], out[SIZE + 1];

/* Text-like bytes, so that all codecs find something. */
static void fill_plain(void)
{
    unsigned seed = 3;
    for (size_t i = 0; i < SIZE; i++)
        plain[i] = i > 100 && rand_r(&seed) % 4 ? plain[i - 1 - (size_t)rand_r(&seed) % 64]
                                                : (unsigned char)rand_r(&seed);
}

START_TEST(what_was_packed_comes_back)
{
    struct codec_context *context;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    static const size_t lengths[] = {SIZE, 1, 4096, 65536, SIZE - 1};
    for (unsigned i = 0; i < 5; i++) {
        size_t n = packers[_i].pack(plain, lengths[i], packed), len = 0;
        memset(out, 0x55, sizeof(out));
        ck_assert_int_eq(codec_unpack(context, packers[_i].codec, packed, n, out, SIZE, &len),
                         0);
        ck_assert_uint_eq(len, lengths[i]);
        ck_assert_int_eq(memcmp(out, plain, len), 0);
        /* Into a buffer that is just large enough. */
        ck_assert_int_eq(
            codec_unpack(context, packers[_i].codec, packed, n, out, lengths[i], &len), 0);
        ck_assert_uint_eq(len, lengths[i]);
    }
    codec_context_free(context);
}
END_TEST

START_TEST(more_than_the_buffer_holds_is_refused)
{
    if (packers[_i].codec == CODEC_ZIP_LZMA)
        return; /* which need not tell where it ends */
    struct codec_context *context;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    size_t n = packers[_i].pack(plain, SIZE, packed), len = 12345;
    memset(out, 0x55, sizeof(out));
    ck_assert_int_eq(codec_unpack(context, packers[_i].codec, packed, n, out, SIZE - 1, &len),
                     -EUCLEAN);
    ck_assert_int_eq(codec_unpack(context, packers[_i].codec, packed, n, out, 100, &len),
                     -EUCLEAN);
    ck_assert_int_eq(codec_unpack(context, packers[_i].codec, packed, n, out, 0, &len),
                     -EUCLEAN);
    ck_assert_uint_eq(len, 12345);
    ck_assert_int_eq(out[SIZE], 0x55);
    codec_context_free(context);
}
END_TEST

START_TEST(damage_is_an_error_or_other_bytes_but_never_worse)
{
    struct codec_context *context;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    size_t n = packers[_i].pack(plain, 20000, packed), len;
    /* An exact copy on the heap, for the address sanitizer to watch its ends. */
    unsigned seed = 11, errors = 0;
    for (unsigned round = 0; round < 400; round++) {
        size_t cut = round % 4 == 0 ? (size_t)rand_r(&seed) % n : n;
        unsigned char *copy = malloc(cut ? cut : 1);
        memcpy(copy, packed, cut);
        if (round % 4 != 0)
            copy[(size_t)rand_r(&seed) % (round < 200 ? 32 : n)] ^=
                (unsigned char)(1 << rand_r(&seed) % 8);
        unsigned char *block = malloc(20000);
        int r = codec_unpack(context, packers[_i].codec, copy, cut, block, 20000, &len);
        ck_assert(r == 0 || r == -EUCLEAN);
        ck_assert(r < 0 || len <= 20000);
        errors += r < 0;
        free(block);
        free(copy);
    }
    ck_assert_uint_gt(errors, 50);
    /* And the context is as good as before. */
    ck_assert_int_eq(codec_unpack(context, packers[_i].codec, packed, n, out, SIZE, &len), 0);
    ck_assert_uint_eq(len, 20000);
    ck_assert_int_eq(memcmp(out, plain, len), 0);
    codec_context_free(context);
}
END_TEST

#ifdef HAVE_XZ
START_TEST(xz_with_a_bcj_filter_comes_back)
{
    lzma_options_lzma options;
    lzma_lzma_preset(&options, 6);
    options.dict_size = SIZE;
    lzma_filter filters[] = {
        {LZMA_FILTER_X86, NULL}, {LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, NULL}};
    struct codec_context *context;
    size_t n = pack_xz_with(plain, SIZE, packed, filters), len;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    ck_assert_int_eq(codec_unpack(context, CODEC_XZ, packed, n, out, SIZE, &len), 0);
    ck_assert_uint_eq(len, SIZE);
    ck_assert_int_eq(memcmp(out, plain, SIZE), 0);
    codec_context_free(context);
}
END_TEST

START_TEST(xz_is_refused_only_where_it_wants_more_memory_than_xz_ever_does)
{
    lzma_options_lzma options;
    lzma_lzma_preset(&options, 6);
    options.dict_size = 256u << 20;
    lzma_filter filters[] = {{LZMA_FILTER_LZMA2, &options}, {LZMA_VLI_UNKNOWN, NULL}};
    struct codec_context *context;
    size_t n = pack_xz_with(plain, SIZE, packed, filters), len;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    ck_assert_int_eq(codec_unpack(context, CODEC_XZ, packed, n, out, SIZE, &len), 0);
    ck_assert_uint_eq(len, SIZE);

    uint8_t *head = packed + LZMA_STREAM_HEADER_SIZE;
    size_t sum_at = (head[0] + 1u) * 4 - 4;
    uint8_t *filter = memmem(head, sum_at, "\x21\x01", 2); /* LZMA2, with one byte */
    ck_assert_ptr_nonnull(filter);
    filter[2] = 40; /* a dictionary of 4 GiB */
    uint32_t sum = lzma_crc32(head, sum_at, 0);
    for (unsigned i = 0; i < 4; i++)
        head[sum_at + i] = (uint8_t)(sum >> 8 * i);
    ck_assert_int_eq(codec_unpack(context, CODEC_XZ, packed, n, out, SIZE, &len), -ENOTSUP);
    codec_context_free(context);
}
END_TEST

#ifdef LZMA_FILTER_LZMA1EXT
START_TEST(lzma_without_a_mark_at_its_end_comes_back)
{
    struct codec_context *context;
    size_t n = pack_zip_lzma_with(plain, SIZE, packed, LZMA_FILTER_LZMA1EXT), len;
    ck_assert_uint_gt(n, 0);
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    for (int i = 0; i < 2; i++) {
        memset(out, 0, SIZE);
        memset(packed + 5, 0xff, 4); /* a dictionary of 4 GiB, of which nothing is made */
        ck_assert_int_eq(codec_unpack(context, CODEC_ZIP_LZMA, packed, n, out, SIZE, &len), 0);
        ck_assert_uint_eq(len, SIZE);
        ck_assert_int_eq(memcmp(out, plain, SIZE), 0);
    }
    codec_context_free(context);
}
END_TEST
#endif
#endif

START_TEST(stored_is_a_copy)
{
    struct codec_context *context;
    size_t len;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    ck_assert_int_eq(codec_unpack(context, CODEC_NONE, plain, 1000, out, 1000, &len), 0);
    ck_assert_uint_eq(len, 1000);
    ck_assert_int_eq(memcmp(out, plain, 1000), 0);
    ck_assert_int_eq(codec_unpack(context, CODEC_NONE, plain, 1001, out, 1000, &len), -EUCLEAN);
    codec_context_free(context);
}
END_TEST

START_TEST(unknown_codecs_are_not_supported)
{
    struct codec_context *context;
    size_t len;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    ck_assert(!codec_available(CODEC_LZMA));
    ck_assert(!codec_available((enum codec)99));
    ck_assert_int_eq(codec_unpack(context, CODEC_LZMA, plain, 10, out, 10, &len), -ENOTSUP);
    ck_assert_int_eq(codec_unpack(context, (enum codec)99, plain, 10, out, 10, &len), -ENOTSUP);
    codec_context_free(context);
    ck_assert_str_eq(codec_name((enum codec)99), "unknown");
    ck_assert_str_eq(codec_name(CODEC_ZSTD), "zstd");
    ck_assert_str_eq(codec_name(CODEC_NONE), "none");
    codec_context_free(NULL);
}
END_TEST

int main(void)
{
    fill_plain();
    Suite *suite = suite_create("codec");
    TCase *tests = tcase_create("all");
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, what_was_packed_comes_back, 0, PACKERS);
    tcase_add_loop_test(tests, more_than_the_buffer_holds_is_refused, 0, PACKERS);
    tcase_add_loop_test(tests, damage_is_an_error_or_other_bytes_but_never_worse, 0, PACKERS);
#ifdef HAVE_XZ
    tcase_add_test(tests, xz_with_a_bcj_filter_comes_back);
    tcase_add_test(tests, xz_is_refused_only_where_it_wants_more_memory_than_xz_ever_does);
#ifdef LZMA_FILTER_LZMA1EXT
    tcase_add_test(tests, lzma_without_a_mark_at_its_end_comes_back);
#endif
#endif
    tcase_add_test(tests, stored_is_a_copy);
    tcase_add_test(tests, unknown_codecs_are_not_supported);
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
