/*
 * Members of a gzip file. A short one is a block by itself (CODEC_GZIP; bgzip makes such
 * files); a longer one is cut into parts (deflate_scan.h). Behind a long member another long
 * one is expected, and not tried as a short one.
 */
#include "block_scan.h"

#include <errno.h>
#include <string.h>

#include <libdeflate.h>

#include "bytes.h"
#include "numbers.h"
#include "source_window.h"

/* Larger members are cut. */
#define MEMBER_BYTES_MAX (1u << 20)
/* The longest compressed member of that size, with its header. */
#define PACKED_BYTES_MAX (MEMBER_BYTES_MAX + MEMBER_BYTES_MAX / 8)
#define WINDOW_BYTES (4u << 20)

enum {
    HEAD_BYTES = 10,
    TRAILER_BYTES = 8,
    FLAGS_AT = 3,
    HAS_SUM = 2, /* flags */
    HAS_EXTRA = 4,
    HAS_NAME = 8,
    HAS_COMMENT = 16,
    FLAGS = 31,
};

struct gzip_scan {
    struct stream_scan scan; /* must be first */
    struct source_window window;
    struct libdeflate_decompressor *deflate;
    struct stream_scan *parts; /* of a long member */
    bool is_in_member, last_was_long;
};

static int gzip_begin(struct stream_scan *scan, struct fault *fault)
{
    struct gzip_scan *s = (struct gzip_scan *)scan;
    (void)fault;
    s->is_in_member = s->last_was_long = false;
    if (s->parts)
        return 0;
    if (!s->deflate)
        s->deflate = libdeflate_alloc_decompressor();
    int r = s->deflate ? source_window_open(&s->window, scan->source, WINDOW_BYTES) : -ENOMEM;
    if (r == 0)
        r = stream_scan_new(scan->source, "deflate", NULL, &s->parts);
    if (r == 0)
        s->parts->name = scan->name;
    return r;
}

static void gzip_end(struct stream_scan *scan)
{
    struct gzip_scan *s = (struct gzip_scan *)scan;
    if (s->deflate)
        libdeflate_free_decompressor(s->deflate);
    stream_scan_free(s->parts);
    source_window_close(&s->window);
}

/* The length of a member's header. 0: it is none, or longer than the given bytes. */
static size_t gzip_header_bytes(const uint8_t *head, size_t len)
{
    if (len < HEAD_BYTES || head[2] != 8 || head[FLAGS_AT] & ~FLAGS)
        return 0;
    unsigned flags = head[FLAGS_AT];
    size_t at = HEAD_BYTES;
    if (flags & HAS_EXTRA)
        at += len - at < 2 ? len : 2u + bytes_le16(head + at);
    for (unsigned text = HAS_NAME; text <= HAS_COMMENT; text *= 2) {
        const uint8_t *end = flags & text && at < len ? memchr(head + at, 0, len - at) : NULL;
        if (flags & text)
            at = end ? (size_t)(end - head) + 1 : len;
    }
    if (flags & HAS_SUM)
        at += 2;
    return at < len ? at : 0;
}

/*
 * Decompress a whole short member. 0: it is not there, or not short, or damaged, and the scan
 * finds out. 1: found.
 */
static int gzip_find_short(struct gzip_scan *s, const uint8_t *bytes, size_t len,
                           struct stream_buffer *buffer, struct stream_part *ret_part)
{
    size_t packed = 0, unpacked = 0;
    int r = stream_buffer_room(buffer, MEMBER_BYTES_MAX);
    if (r < 0)
        return r;
    if (libdeflate_gzip_decompress_ex(s->deflate, bytes, len, buffer->at, MEMBER_BYTES_MAX,
                                      &packed, &unpacked) != LIBDEFLATE_SUCCESS)
        return 0;
    ret_part->block = (struct builder_block){.source_offset = s->scan.offset,
                                             .packed_bytes = (uint32_t)packed,
                                             .block_bytes = (uint32_t)unpacked,
                                             .codec = CODEC_GZIP};
    s->scan.offset += packed;
    return 1;
}

/*
 * Begin the member at the current offset: 1 if it is a short one, which is found already, or
 * none, 0 if the scan has to go on in it.
 */
static int gzip_begin_member(struct gzip_scan *s, struct stream_buffer *buffer,
                             struct fault *fault, struct stream_part *ret_part)
{
    const uint8_t *bytes = NULL;
    size_t most = (size_t)min_u64(s->scan.end - s->scan.offset, PACKED_BYTES_MAX), len;
    int r = source_window_get(&s->window, s->scan.offset, most, &bytes, &len);
    if (r < 0)
        return r;
    if (len < 2 || memcmp(bytes, "\x1f\x8b", 2) != 0) {
        ret_part->is_last = true;
        return s->scan.offset > s->scan.start
                   ? 1
                   : scan_damaged(&s->scan, fault, s->scan.offset, "no member begins here");
    }
    r = s->last_was_long ? 0 : gzip_find_short(s, bytes, len, buffer, ret_part);
    if (r != 0)
        return r;
    size_t header = gzip_header_bytes(bytes, len);
    if (header == 0)
        return scan_damaged(&s->scan, fault, s->scan.offset, "it has no sound header");
    s->is_in_member = true;
    return stream_scan_begin(s->parts, s->scan.offset + header, s->scan.end, fault);
}

static int gzip_end_member(struct gzip_scan *s, struct fault *fault)
{
    uint8_t trailer[TRAILER_BYTES];
    uint64_t bytes = s->parts->bytes, at = s->scan.offset;
    s->is_in_member = false;
    s->last_was_long = bytes > MEMBER_BYTES_MAX;
    if (s->scan.end - at < sizeof(trailer))
        return scan_damaged(&s->scan, fault, s->scan.end, "it ends too early");
    int r = source_read_fault(s->scan.source, trailer, sizeof(trailer), at, fault);
    if (r < 0)
        return r;
    if (bytes_le32(trailer) != s->parts->crc)
        return scan_damaged(&s->scan, fault, at, "its checksum does not fit");
    if (bytes_le32(trailer + 4) != (uint32_t)bytes)
        return scan_damaged(&s->scan, fault, at, "its length does not fit");
    s->scan.offset += sizeof(trailer);
    return 0;
}

static int gzip_next(struct stream_scan *scan, struct stream_buffer *buffer,
                     struct fault *fault, struct stream_part *ret_part)
{
    struct gzip_scan *s = (struct gzip_scan *)scan;
    int r = s->is_in_member ? 0 : gzip_begin_member(s, buffer, fault, ret_part);
    if (r != 0)
        return r < 0 ? r : 0;
    r = stream_scan_next(s->parts, buffer, fault, ret_part);
    if (r < 0)
        return r;
    scan->offset = s->parts->offset;
    if (ret_part->is_last)
        r = gzip_end_member(s, fault);
    ret_part->is_last = false; /* of its member, not of the file */
    return r;
}

const struct stream stream_gzip = {
    .name = "gzip",
    .codec = CODEC_GZIP,
    .scan_bytes = sizeof(struct gzip_scan),
    .begin = gzip_begin,
    .next = gzip_next,
    .end = gzip_end,
};
