/* Parts of deflate streams: each is decompressed alone, and together they are the stream. */
#include <check.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "codec.h"
#include "deflate_scan.h"
#include "suite.h"

#ifdef HAVE_ZLIB
#include <xxhash.h>
#include <zlib.h>

#define FRONT 3u /* bytes before the stream, and as many behind it */

struct deflated {
    uint8_t *plain, *packed; /* `packed` has FRONT bytes at both ends */
    size_t plain_len, packed_len;
};

/* Bytes that refer to others, near and far. */
static uint8_t *make_plain(size_t len, unsigned seed)
{
    uint8_t *plain = malloc(len + 1);
    ck_assert_ptr_nonnull(plain);
    for (size_t i = 0; i < len;) {
        size_t n = 3 + (size_t)rand_r(&seed) % 40;
        size_t from = i > 100 ? (size_t)rand_r(&seed) % (i < 40000 ? i : 40000) + 1 : 0;
        bool copies = from > 0 && rand_r(&seed) % 3;
        for (; n > 0 && i < len; n--, i++)
            plain[i] = copies ? plain[i - from] : (uint8_t)rand_r(&seed);
    }
    return plain;
}

static struct deflated make_stream(size_t len, int level, int strategy, bool flushes)
{
    static const int modes[] = {Z_SYNC_FLUSH, Z_PARTIAL_FLUSH, Z_BLOCK, Z_FULL_FLUSH};
    struct deflated s = {.plain = make_plain(len, (unsigned)len + 7), .plain_len = len};
    size_t room = len + len / 4 + 10000;
    s.packed = calloc(1, room);
    ck_assert_ptr_nonnull(s.packed);
    z_stream z = {0};
    ck_assert_int_eq(deflateInit2(&z, level, Z_DEFLATED, -15, 8, strategy), Z_OK);
    z.next_out = s.packed + FRONT;
    z.avail_out = (uInt)(room - 2 * FRONT);
    for (size_t at = 0, i = 0; at < len; i++) {
        size_t n = len - at < 30011 ? len - at : 30011;
        z.next_in = s.plain + at;
        z.avail_in = (uInt)n;
        ck_assert_int_eq(deflate(&z, flushes ? modes[i % 4] : Z_NO_FLUSH), Z_OK);
        at += n;
    }
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    s.packed_len = z.total_out;
    deflateEnd(&z);
    return s;
}

static void free_stream(struct deflated *s)
{
    free(s->plain);
    free(s->packed);
}

static struct source *source_of(const struct deflated *s, size_t packed_len)
{
    struct source *source = NULL;
    int fd = memfd_create("stream", MFD_CLOEXEC);
    ck_assert_int_eq(write(fd, s->packed, packed_len + 2 * FRONT),
                     (ssize_t)(packed_len + 2 * FRONT));
    ck_assert_int_eq(source_from_fd(fd, "stream", &source), 0);
    return source;
}

/* A part as it is kept: with its own window. */
struct kept {
    struct builder_block block;
    struct block_point point;
    size_t at; /* of its content */
    uint8_t pieces[POINT_PIECES_BYTES];
};

struct parts {
    struct kept list[4000];
    size_t count;
    uint64_t windows; /* bytes */
};

static void keep(struct parts *parts, const struct stream_part *part, size_t at)
{
    ck_assert_uint_lt(parts->count, sizeof(parts->list) / sizeof(parts->list[0]));
    struct kept *kept = &parts->list[parts->count++];
    *kept = (struct kept){part->block, part->point, at, {0}};
    void *window = malloc(part->point.window_packed + 1);
    if (part->point.window_packed > 0)
        memcpy(window, part->point.window, part->point.window_packed);
    kept->point.window = window;
    kept->point.pieces = memcpy(kept->pieces, part->point.pieces, sizeof(kept->pieces));
    parts->windows += part->point.window_packed;
}

static void free_parts(struct parts *parts)
{
    for (size_t i = 0; i < parts->count; i++)
        free((void *)(uintptr_t)parts->list[i].point.window);
    free(parts);
}

static struct parts *scan_with(const struct deflated *s, struct source *source, bool often,
                               bool with_zlib)
{
    struct parts *parts = calloc(1, sizeof(*parts));
    struct stream_scan *scan;
    struct stream_buffer buffer = {0};
    struct stream_part part = {0};
    struct fault fault = {0};
    ck_assert_int_eq(stream_scan_new(source, "deflate", NULL, &scan), 0);
    if (often)
        deflate_scan_cut_often(scan);
    if (with_zlib)
        deflate_scan_with_zlib(scan);
    ck_assert_int_eq(stream_scan_begin(scan, FRONT, UINT64_MAX, &fault), 0);
    for (size_t at = 0; !part.is_last; at += part.block.block_bytes) {
        int r = stream_scan_next(scan, &buffer, &fault, &part);
        ck_assert_msg(r == 0, "%d %s", r, fault.what);
        ck_assert(part.block.block_bytes > 0 || part.is_last);
        ck_assert_uint_le(part.block.block_bytes, s->plain_len - at);
        ck_assert_int_eq(memcmp(buffer.at, s->plain + at, part.block.block_bytes), 0);
        keep(parts, &part, at);
    }
    ck_assert_uint_eq(scan->bytes, s->plain_len);
    ck_assert_uint_eq(scan->offset, FRONT + s->packed_len);
    ck_assert_uint_eq(scan->crc, (uint32_t)crc32(0, s->plain, (uInt)s->plain_len));
    free(buffer.at);
    stream_scan_free(scan);
    return parts;
}

static struct parts *scan(const struct deflated *s, struct source *source, bool often)
{
    return scan_with(s, source, often, false);
}

static int unpack(struct codec_context *context, const struct deflated *s,
                  const struct kept *kept, uint8_t *out)
{
    return codec_unpack_part(context, kept->block.codec, &kept->point,
                             s->packed + kept->block.source_offset, kept->block.packed_bytes,
                             out, kept->block.block_bytes);
}

/* The beginning of a part, of one piece and of as many as are whole. */
static void check_start(struct codec_context *context, const struct deflated *s,
                        const struct kept *kept, uint8_t *out)
{
    const size_t size = kept->block.block_bytes, piece = point_piece_bytes((uint32_t)size);
    const size_t lengths[] = {piece, size / piece * piece};
    ck_assert_int_eq(codec_unpack_start(context, CODEC_DEFLATE_POINT, &kept->point,
                                        s->packed + kept->block.source_offset,
                                        kept->block.packed_bytes, out, 0, 0),
                     -ENOTSUP);
    ck_assert_int_eq(codec_unpack_part(context, CODEC_DEFLATE_POINT, &kept->point,
                                       s->packed + kept->block.source_offset,
                                       kept->block.packed_bytes, out, 0),
                     -EUCLEAN);
    for (size_t i = 0; piece <= size && i < 2; i++) {
        struct block_point point = kept->point;
        uint8_t pieces[POINT_PIECES_BYTES];
        for (unsigned j = 0; j < 3; j++) {
            memset(out, 0x55, size);
            int r = codec_unpack_start(
                context, CODEC_DEFLATE_POINT, &point, s->packed + kept->block.source_offset,
                kept->block.packed_bytes - (j == 2 ? kept->block.packed_bytes / 2 : 0), out,
                lengths[i], size);
            /* In half of the part there may be enough. */
            bool is_good = r == 0 && memcmp(out, s->plain + kept->at, lengths[i]) == 0;
            ck_assert(j == 0 ? is_good : r == -EUCLEAN || (j == 2 && is_good));
            memcpy(pieces, kept->pieces, sizeof(pieces));
            pieces[0] ^= j == 0; /* a wrong sum, then a part that is cut short */
            point.pieces = pieces;
        }
    }
}

/* Each part alone, from the last one to the first. */
static void check_parts(const struct deflated *s, const struct parts *parts)
{
    struct codec_context *context;
    uint8_t *out = malloc(s->plain_len + 1);
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    for (size_t i = parts->count; i-- > 0;) {
        const struct kept *kept = &parts->list[i];
        if (kept->block.block_bytes == 0)
            continue;
        memset(out, 0x55, kept->block.block_bytes + 1);
        ck_assert_msg(unpack(context, s, kept, out) == 0, "part %zu of %zu", i, parts->count);
        ck_assert_int_eq(memcmp(out, s->plain + kept->at, kept->block.block_bytes), 0);
        ck_assert_uint_eq(out[kept->block.block_bytes], 0x55);
        check_start(context, s, kept, out);
    }
    codec_context_free(context);
    free(out);
}

static const struct {
    int level, strategy;
    bool flushes;
} kinds[] = {
    {6, Z_DEFAULT_STRATEGY, false}, {6, Z_DEFAULT_STRATEGY, true}, {1, Z_FIXED, true},
    {9, Z_HUFFMAN_ONLY, false},     {0, Z_DEFAULT_STRATEGY, true}, {1, Z_RLE, true},
};

START_TEST(parts_are_the_stream)
{
    static const size_t lengths[] = {0, 1, 100, 32768, 1500000};
    for (int remote = 0; remote < 2; remote++)
        for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
            setenv("ONEPOT_ASSUME_REMOTE", remote ? "1" : "0", 1);
            struct deflated s =
                make_stream(lengths[i], kinds[_i].level, kinds[_i].strategy, kinds[_i].flushes);
            struct source *source = source_of(&s, s.packed_len);
            struct parts *parts = scan(&s, source, true);
            ck_assert(kinds[_i].strategy == Z_FIXED || lengths[i] < 1000000 ||
                      parts->count > 5);
            check_parts(&s, parts);
            free_parts(parts);
            source_close(source);
            free_stream(&s);
        }
}
END_TEST

START_TEST(points_take_a_hundredth_of_the_stream)
{
    struct deflated s = make_stream(12000000, 1, Z_DEFAULT_STRATEGY, false);
    struct source *source = source_of(&s, s.packed_len);
    struct parts *parts = scan(&s, source, false);
    ck_assert_uint_gt(parts->count, 3);
    ck_assert_uint_gt(parts->windows, 0);
    ck_assert_uint_le(parts->windows + parts->count * 48, s.packed_len * 3 / 200 + 4096);
    for (size_t i = 0; i + 1 < parts->count; i++)
        ck_assert_uint_ge(parts->list[i].block.block_bytes, DEFLATE_PART_LEAST);
    check_parts(&s, parts);
    free_parts(parts);
    source_close(source);
    free_stream(&s);
}
END_TEST

static void check_same_parts(const struct parts *one, const struct parts *other)
{
    ck_assert_uint_eq(one->count, other->count);
    for (size_t i = 0; i < one->count; i++) {
        const struct kept *a = &one->list[i], *b = &other->list[i];
        ck_assert_uint_eq(a->block.source_offset, b->block.source_offset);
        ck_assert_uint_eq(a->block.packed_bytes, b->block.packed_bytes);
        ck_assert_uint_eq(a->block.block_bytes, b->block.block_bytes);
        ck_assert_uint_eq(a->point.first_bit, b->point.first_bit);
        ck_assert_uint_eq(a->point.last_bits, b->point.last_bits);
        ck_assert_uint_eq(a->point.sum, b->point.sum);
        ck_assert_uint_eq(a->point.window_bytes, b->point.window_bytes);
        ck_assert_uint_eq(a->point.window_packed, b->point.window_packed);
        ck_assert_int_eq(memcmp(a->point.window, b->point.window, a->point.window_packed), 0);
    }
}

START_TEST(isal_makes_the_parts_that_zlib_makes)
{
    for (int remote = 0; remote < 2; remote++)
        for (int often = 0; often < 2; often++) {
            setenv("ONEPOT_ASSUME_REMOTE", remote ? "1" : "0", 1);
            struct deflated s =
                make_stream(2000000, kinds[_i].level, kinds[_i].strategy, kinds[_i].flushes);
            struct source *source = source_of(&s, s.packed_len);
            struct parts *ours = scan_with(&s, source, often, false),
                         *zlibs = scan_with(&s, source, often, true);
            check_same_parts(ours, zlibs);
            free_parts(ours);
            free_parts(zlibs);
            source_close(source);
            free_stream(&s);
        }
}
END_TEST

/*
 * Blocks end at the same bits, whatever pieces the input comes in and how little room there is.
 * Small pieces, of which each moves the window, come around the ends of blocks alone.
 */
START_TEST(isal_stops_between_blocks)
{
    static const size_t pieces[] = {1, 7, 1000, SIZE_MAX}, rooms[] = {SIZE_MAX, 1, 300};
    const size_t around = 1000; /* more than a block's header takes */
    struct block_inflate *b;
    if (block_inflate_new(&b) == -ENOTSUP) {
        puts("not tested: blocks of ISA-L (onepot was built without)");
        return;
    }
    struct deflated s =
        make_stream(150000, kinds[_i].level, kinds[_i].strategy, kinds[_i].flushes);
    uint8_t *out = malloc(s.plain_len), *again = malloc(s.plain_len);
    for (size_t i = 0; i < 12; i++) {
        z_stream z = {.next_in = s.packed + FRONT,
                      .avail_in = (uInt)s.packed_len,
                      .next_out = out,
                      .avail_out = (uInt)s.plain_len};
        ck_assert_int_eq(inflateInit2(&z, -15), Z_OK);
        const uint8_t *next_in = s.packed + FRONT, *end = next_in + s.packed_len;
        size_t at = 0, blocks = 0;
        enum block_inflate_result result;
        block_inflate_begin(b);
        do {
            ck_assert_int_eq(inflate(&z, Z_BLOCK), Z_OK);
            const size_t begins = (size_t)(next_in - s.packed) - FRONT, ends = z.total_in;
            do {
                size_t left = (size_t)(end - next_in), room = s.plain_len - at, len;
                size_t piece = pieces[i % 4], from = (size_t)(next_in - s.packed) - FRONT;
                if (from >= begins + around && from + around < ends && piece < around)
                    piece = ends - around - from;
                uint32_t avail_in = (uint32_t)(left < piece ? left : piece);
                room = room < rooms[i / 4] ? room : rooms[i / 4];
                result = block_inflate_step(b, &next_in, &avail_in, again + at, room, &len);
                at += len;
                ck_assert(result != BLOCK_INFLATE_UNSURE);
            } while (result == BLOCK_INFLATE_MORE);
            ck_assert_uint_eq(at, z.total_out);
            ck_assert_int_eq(result == BLOCK_INFLATE_LAST, (z.data_type & 64) != 0);
            size_t bits = (size_t)(next_in - s.packed - FRONT) * 8 - block_inflate_ahead(b);
            ck_assert_uint_eq(bits, z.total_in * 8 - (z.data_type & 7));
            blocks++;
        } while (result != BLOCK_INFLATE_LAST);
        ck_assert_uint_eq(at, s.plain_len);
        ck_assert_int_eq(memcmp(again, s.plain, at), 0);
        ck_assert(blocks > 1 || kinds[_i].strategy == Z_FIXED);
        inflateEnd(&z);
    }
    free(b);
    free(out);
    free(again);
    free_stream(&s);
}
END_TEST

/* Of one stream, by ISA-L and by zlib: each serves for all that is done to the stream. */
struct scans {
    struct source *source;
    struct stream_scan *scan[2];
    struct stream_buffer buffer;
};

static struct scans scans_of(const struct deflated *s)
{
    struct scans scans = {.source = source_of(s, s->packed_len)};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(stream_scan_new(scans.source, "deflate", NULL, &scans.scan[i]), 0);
        deflate_scan_cut_often(scans.scan[i]);
    }
    deflate_scan_with_zlib(scans.scan[1]);
    return scans;
}

static void free_scans(struct scans *scans)
{
    for (int i = 0; i < 2; i++)
        stream_scan_free(scans->scan[i]);
    free(scans->buffer.at);
    source_close(scans->source);
}

/* The source gets these bytes of the stream. */
static void copy_to_source(const struct scans *scans, const struct deflated *s, size_t at,
                           size_t len)
{
    ck_assert_int_eq(pwrite(source_fd(scans->source), s->packed + at, len, (off_t)at),
                     (ssize_t)len);
}

/* Scans to the end or the first error. `windows`: of the parts before it, bytes in all. */
static int scan_all_with(const struct deflated *s, struct scans *scans, int which, uint64_t end,
                         struct fault *fault, uint32_t *ret_crc, uint64_t *ret_windows)
{
    struct stream_scan *scan = scans->scan[which];
    struct stream_part part = {0};
    int r = stream_scan_begin(scan, FRONT, end, fault);
    *ret_windows = 0;
    while (r == 0 && !part.is_last) {
        r = stream_scan_next(scan, &scans->buffer, fault, &part);
        *ret_windows += r == 0 ? part.point.window_bytes : 0;
    }
    *ret_crc = scan->crc;
    ck_assert_uint_le(scan->offset, FRONT + s->packed_len + FRONT);
    return r;
}

/* As above, twice: it has to be the same. */
static int scan_all(const struct deflated *s, struct scans *scans, uint64_t end,
                    struct fault *fault, uint32_t *ret_crc)
{
    struct fault zlibs = {0};
    uint32_t crc;
    uint64_t windows[2];
    int r = scan_all_with(s, scans, 0, end, fault, ret_crc, &windows[0]);
    ck_assert_int_eq(r, scan_all_with(s, scans, 1, end, &zlibs, &crc, &windows[1]));
    ck_assert_uint_eq(*ret_crc, crc);
    ck_assert_uint_eq(windows[0], windows[1]);
    ck_assert_msg(strcmp(fault->what, zlibs.what) == 0 && fault->offset == zlibs.offset,
                  "%s at %llu, with zlib %s at %llu", fault->what,
                  (unsigned long long)fault->offset, zlibs.what,
                  (unsigned long long)zlibs.offset);
    return r;
}

START_TEST(a_stream_that_was_cut_off_is_damaged)
{
    struct deflated s = make_stream(3000, 6, Z_DEFAULT_STRATEGY, false);
    struct scans scans = scans_of(&s);
    uint32_t crc;
    for (size_t len = 0; len <= s.packed_len; len++) {
        struct fault fault = {0};
        int r = scan_all(&s, &scans, FRONT + len, &fault, &crc);
        ck_assert_msg(r == (len == s.packed_len ? 0 : -EUCLEAN), "%zu: %d", len, r);
        ck_assert(r == 0 || strstr(fault.what, "damaged deflate data: it ends too early"));
        ck_assert(r == 0 || fault.offset == FRONT + len);
    }
    free_scans(&scans);
    free_stream(&s);
}
END_TEST

START_TEST(a_damaged_stream_is_an_error_or_has_another_sum)
{
    struct deflated s = make_stream(3000, 6, Z_DEFAULT_STRATEGY, false);
    struct scans scans = scans_of(&s);
    uint32_t sound = (uint32_t)crc32(0, s.plain, 3000), crc;
    for (size_t at = FRONT; at < FRONT + s.packed_len; at++) {
        struct fault fault = {0};
        s.packed[at] ^= 0x10;
        copy_to_source(&scans, &s, at, 1);
        int r = scan_all(&s, &scans, FRONT + s.packed_len, &fault, &crc);
        ck_assert_msg(r == -EUCLEAN || (r == 0 && crc != sound) ||
                          at + 1 == FRONT + s.packed_len,
                      "byte %zu: %d", at, r);
        ck_assert(r == 0 || fault.err == EUCLEAN);
        s.packed[at] ^= 0x10;
        copy_to_source(&scans, &s, at, 1);
    }
    free_scans(&scans);
    free_stream(&s);
}
END_TEST

/* Of each kind, with the bytes of one place changed, or all behind it. */
START_TEST(isal_finds_the_damage_that_zlib_finds)
{
    unsigned seed = 7, damaged = 0;
    setenv("ONEPOT_ASSUME_REMOTE", _i % 2 ? "1" : "0", 1);
    struct deflated s =
        make_stream(70000, kinds[_i / 2].level, kinds[_i / 2].strategy, kinds[_i / 2].flushes);
    uint8_t *sound = malloc(s.packed_len + 2 * FRONT);
    memcpy(sound, s.packed, s.packed_len + 2 * FRONT);
    struct scans scans = scans_of(&s);
    for (int i = 0; i < 100; i++) {
        struct fault fault = {0};
        uint32_t crc;
        size_t at = FRONT + (size_t)rand_r(&seed) % s.packed_len;
        size_t len = i % 4 ? 1 : s.packed_len + FRONT - at;
        for (size_t k = 0; k < len; k++)
            s.packed[at + k] = (uint8_t)rand_r(&seed);
        copy_to_source(&scans, &s, at, len);
        damaged += scan_all(&s, &scans, FRONT + s.packed_len, &fault, &crc) < 0;
        memcpy(s.packed + at, sound + at, len);
        copy_to_source(&scans, &s, at, len);
    }
    ck_assert_uint_gt(damaged, 20);
    free_scans(&scans);
    free(sound);
    free_stream(&s);
}
END_TEST

START_TEST(a_part_with_another_point_is_damaged)
{
    struct deflated s = make_stream(400000, 6, Z_DEFAULT_STRATEGY, true);
    struct source *source = source_of(&s, s.packed_len);
    struct parts *parts = scan(&s, source, true);
    struct codec_context *context;
    uint8_t *out = malloc(s.plain_len);
    unsigned tried = 0;
    ck_assert_int_eq(codec_context_new(false, &context), 0);
    for (size_t i = 1; i + 1 < parts->count; i++) {
        const struct kept *sound = &parts->list[i];
        if (sound->block.block_bytes < 1000 || sound->point.window_bytes < 2)
            continue;
        struct kept bad[9];
        for (size_t k = 0; k < 9; k++)
            bad[k] = *sound;
        bad[0].point.first_bit = (sound->point.first_bit + 1) % 8;
        bad[1].point.sum ^= 1;
        bad[2].point.window_bytes--;
        bad[3].point.window_packed--;
        bad[4].point.window_bytes = bad[4].point.window_packed = 0;
        bad[5].block.packed_bytes /= 2;
        bad[6].block.packed_bytes = 0;
        bad[7].block.block_bytes--;
        bad[8].block.codec = CODEC_DEFLATE; /* which has no points */
        for (size_t k = 1; k < 9; k++)
            ck_assert_int_eq(unpack(context, &s, &bad[k], out), k == 8 ? -ENOTSUP : -EUCLEAN);
        /* A stored block begins with padding, and may begin later: then it is the same. */
        int r = unpack(context, &s, &bad[0], out);
        ck_assert(r == -EUCLEAN ||
                  (r == 0 && memcmp(out, s.plain + sound->at, sound->block.block_bytes) == 0));
        ck_assert_int_eq(unpack(context, &s, sound, out), 0);
        tried++;
    }
    ck_assert_uint_gt(tried, 2);
    codec_context_free(context);
    ck_assert_int_eq(codec_context_new(true, &context), 0);
    struct kept other = parts->list[0];
    other.point.sum ^= 1;
    ck_assert_int_eq(unpack(context, &s, &other, out), 0);
    codec_context_free(context);
    free(out);
    free_parts(parts);
    source_close(source);
    free_stream(&s);
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("deflate_scan");
    TCase *tests = tcase_create("deflate_scan");
#ifdef HAVE_ZLIB
    tcase_add_loop_test(tests, parts_are_the_stream, 0, sizeof(kinds) / sizeof(kinds[0]));
    tcase_add_loop_test(tests, isal_makes_the_parts_that_zlib_makes, 0,
                        sizeof(kinds) / sizeof(kinds[0]));
    tcase_add_loop_test(tests, isal_stops_between_blocks, 0, sizeof(kinds) / sizeof(kinds[0]));
    tcase_add_loop_test(tests, isal_finds_the_damage_that_zlib_finds, 0,
                        2 * sizeof(kinds) / sizeof(kinds[0]));
    tcase_add_test(tests, points_take_a_hundredth_of_the_stream);
    tcase_add_test(tests, a_stream_that_was_cut_off_is_damaged);
    tcase_add_test(tests, a_damaged_stream_is_an_error_or_has_another_sum);
    tcase_add_test(tests, a_part_with_another_point_is_damaged);
#endif
    suite_add_tcase(suite, tests);
    return run_suite(suite);
}
