/*
 * Cuts a tar into zstd frames, each of which can be decompressed alone.
 *
 * There are two kinds. A packed frame holds up to block_bytes of the tar: headers, small files
 * and their padding, or a block of a large file. It is cut where a member begins, so that a
 * file smaller than a block lies in one frame. A larger file fills separate frames from its
 * first byte on, and shares the last with what follows.
 *
 * A raw frame is for data that does not get smaller (pictures, compressed files). It uses
 * zstd's blocks without compression. They are written by hand (RFC 8878), so that their places
 * are known: cut between members, never inside one that fits in a block. So the data is in the
 * file as it is, and the index calls it stored. No byte of it is copied or compressed. Headers
 * and padding in between stay as they are, too, which costs no more than in an uncompressed
 * archive.
 *
 * A thousand bytes of the data are sampled to guess whether it gets smaller: of random bytes
 * one in 256 pairs is equal, of compressible ones far more. A few kilobytes that don't get
 * smaller go along in the open frame, because a separate frame would cost the neighbours more
 * than it saves. Likewise small members go along in a raw frame, as long as they are few.
 *
 * The bytes alone decide, here and in one thread, which bytes go in which frame. Only the
 * compression itself happens elsewhere. So the archive is the same for any number of threads. A
 * frame that turns out not to be worth compressing becomes a raw one in the end.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "compress.h"
#include "numbers.h"
#include "vector.h"
#include "writer_private.h"

#define RAW_FRAME_BYTES (1u << 20) /* a raw frame ends at this size */
#define RAW_DATA_MAX (4u << 20)    /* per call; a frame is a window of at most 8 MB */
#define SAMPLE_LEAST 4096u         /* smaller data is not sampled */
#define RUN_BYTES 32768u /* a run that does not get smaller is this long before a raw frame */
#define RIDE_SHARE 32u   /* members that were not sampled take at most 1/32 of a raw frame */

#define RAW_BLOCK_BYTES (128u << 10) /* zstd's largest block */
#define RAW_HEADER_BYTES 9u

/* A run of bytes in a frame. A packed frame has one, which is `in`. */
struct part {
    uint8_t *bytes;
    size_t len;
    void *owned;
};

/* Where data of a member lies in a frame. */
struct place {
    uint32_t inode;
    uint32_t offset; /* in the frame */
    uint32_t length;
    bool last;       /* the member's data ends here */
    uint64_t stream; /* offset in the file */
};

struct frame {
    struct compress_job job; /* must be first */
    bool raw;
    uint8_t *in; /* block_bytes long; NULL in a raw frame */
    size_t len;
    size_t ridden_bytes; /* bytes of members that were not sampled */
    VECTOR(struct part) parts;
    VECTOR(struct place) places;
};

struct framer {
    struct writer *w;
    struct compressor compressor;
    struct compress_pool *own_pool; /* NULL: the pool belongs to the caller */
    size_t block_bytes;

    struct frame *open;
    uint64_t run_bytes; /* length of the current run of data that does not get smaller */

    struct pax_buffer header;          /* of a member whose data has not come yet */
    uint32_t inode;                    /* of the current member */
    uint64_t stored, done;             /* bytes of its data: in all, so far */
    VECTOR(struct pax_extent) extents; /* of its data: a file without holes has one */
    size_t extent;                     /* the next byte of data is in this one, */
    uint64_t extent_done;              /* after so many others */

    /* For the member whose data is being written. */
    VECTOR(struct builder_piece) pieces;
};

/* ---- frames ---- */

static void frame_free(struct frame *frame)
{
    for (size_t i = 0; i < frame->parts.count; i++)
        free(frame->parts.at[i].owned);
    vector_free(&frame->parts);
    vector_free(&frame->places);
    free(frame->job.out);
    free(frame->in);
    free(frame);
}

static int frame_new(const struct framer *f, bool raw, struct frame **ret_frame)
{
    struct frame *frame = calloc(1, sizeof(*frame));
    if (!frame)
        return -ENOMEM;
    frame->raw = raw;
    if (!raw) {
        frame->in = malloc(f->block_bytes);
        if (!frame->in) {
            free(frame);
            return -ENOMEM;
        }
    }
    *ret_frame = frame;
    return 0;
}

/*
 * Appends bytes to a raw frame. `owned` (or NULL) is freed with the frame; on failure at once.
 */
static int frame_add_part(struct frame *frame, uint8_t *bytes, size_t len, void *owned)
{
    struct part part = {bytes, len, owned};
    int r = vector_push(&frame->parts, part);
    if (r < 0)
        free(owned);
    else
        frame->len += len;
    return r;
}

/*
 * Records that the next `len` bytes of the frame are data of the current member: a place for
 * each of its extents. The writer lets no more data in than the extents have.
 */
static int frame_add_place(struct framer *f, struct frame *frame, size_t len)
{
    uint32_t at = (uint32_t)frame->len;
    while (len > 0) {
        const struct pax_extent *e = &f->extents.at[f->extent];
        uint32_t n = (uint32_t)min_u64(len, e->length - f->extent_done);
        struct place place = {f->inode, at, n, false, e->offset + f->extent_done};
        struct place *last =
            frame->places.count ? &frame->places.at[frame->places.count - 1] : NULL;
        if (f->extent_done && last && last->inode == f->inode &&
            last->offset + last->length == at)
            last->length += n;
        else if (vector_push(&frame->places, place) < 0)
            return -ENOMEM;
        f->done += n;
        f->extent_done += n;
        if (f->extent_done == e->length) {
            f->extent++;
            f->extent_done = 0;
        }
        at += n;
        len -= n;
    }
    frame->places.at[frame->places.count - 1].last = f->done == f->stored;
    return 0;
}

/* ---- output: the places of members' data go to the index ---- */

/* All data of an inode was written. */
static int framer_end_pieces(struct framer *f, uint32_t inode)
{
    int r = builder_set_pieces(f->w->builder, inode, f->pieces.at, f->pieces.count);
    f->pieces.count = 0;
    return r;
}

/* ---- output: frames go to the file (raw ones by hand, RFC 8878) ---- */

/* Writes the compressed frame to the file, and its places to the index. */
static int framer_emit_packed(struct framer *f, struct frame *frame, struct fault *fault)
{
    struct builder_block block = {
        .source_offset = f->w->offset,
        .packed_bytes = (uint32_t)frame->job.out_len,
        .block_bytes = (uint32_t)frame->len,
    };
    uint32_t number;
    int r = builder_add_block(f->w->builder, &block, &number);
    for (size_t i = 0; r == 0 && i < frame->places.count; i++) {
        const struct place *p = &frame->places.at[i];
        struct builder_piece piece = {.offset = p->stream,
                                      .length = p->length,
                                      .block = number,
                                      .block_offset = p->offset};
        r = vector_push(&f->pieces, piece);
        if (r == 0 && p->last)
            r = framer_end_pieces(f, p->inode);
    }
    if (r < 0)
        return r;
    uint8_t *out = steal_ptr(&frame->job.out);
    return writer_put(f->w, out, frame->job.out_len, out, fault);
}

/* Progress through the parts and places of a raw frame that is being written. */
struct raw_writer {
    struct framer *f;
    struct frame *frame;
    size_t part, part_done;
    size_t place;
    size_t at;      /* in the frame's content */
    uint8_t *heads; /* headers of the frame and its blocks; the queue will own them */
};

/* Where the block that begins at `start` ends: between members, if possible. */
static size_t framer_block_end(const struct raw_writer *raw, size_t start)
{
    const struct frame *frame = raw->frame;
    size_t end = (size_t)min_u64(frame->len, start + RAW_BLOCK_BYTES);
    for (size_t i = raw->place; end < frame->len && i < frame->places.count; i++) {
        const struct place *p = &frame->places.at[i];
        if (p->offset >= end)
            break;
        if (p->offset > start && (size_t)p->offset + p->length > end)
            end = p->offset;
    }
    return end;
}

/* Writes the next `len` bytes of the content. */
static int framer_put_parts(struct raw_writer *raw, size_t len, struct fault *fault)
{
    raw->at += len;
    while (len > 0) {
        struct part *part = &raw->frame->parts.at[raw->part];
        size_t n = (size_t)min_u64(part->len - raw->part_done, len);
        uint8_t *bytes = part->bytes + raw->part_done;
        void *owned = NULL;
        raw->part_done += n;
        len -= n;
        if (raw->part_done == part->len) {
            owned = part->owned;
            part->owned = NULL;
            raw->part++;
            raw->part_done = 0;
        }
        int r = writer_put(raw->f->w, bytes, n, owned, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Writes data of the current place, up to `end`. */
static int framer_put_place(struct raw_writer *raw, size_t end, struct fault *fault)
{
    const struct place *p = &raw->frame->places.at[raw->place];
    size_t place_end = (size_t)p->offset + p->length;
    size_t len = (size_t)min_u64(place_end, end) - raw->at;
    struct builder_piece piece = {.offset = p->stream + (raw->at - p->offset),
                                  .length = len,
                                  .source_offset = raw->f->w->offset,
                                  .block = BUILDER_NO_BLOCK};
    int r = vector_push(&raw->f->pieces, piece);
    if (r == 0 && raw->at + len == place_end) {
        raw->place++;
        if (p->last)
            r = framer_end_pieces(raw->f, p->inode);
    }
    return r < 0 ? r : framer_put_parts(raw, len, fault);
}

/* Writes the content up to `end`: places and the bytes between them. */
static int framer_put_block(struct raw_writer *raw, size_t end, struct fault *fault)
{
    int r = 0;
    while (r == 0 && raw->at < end) {
        size_t next = end;
        if (raw->place < raw->frame->places.count &&
            raw->frame->places.at[raw->place].offset < end)
            next = raw->frame->places.at[raw->place].offset;
        r = next > raw->at ? framer_put_parts(raw, next - raw->at, fault)
                           : framer_put_place(raw, end, fault);
    }
    return r;
}

/* A block's header: its length, no compression, whether it is the last. */
static void framer_put_block_head(uint8_t *head, size_t len, bool last)
{
    uint32_t word = (uint32_t)len << 3 | last;
    head[0] = (uint8_t)word;
    head[1] = (uint8_t)(word >> 8);
    head[2] = (uint8_t)(word >> 16);
}

/* Magic; descriptor: content size in 4 bytes, which is also the window; content size. */
static void framer_put_frame_head(uint8_t *head, size_t len)
{
    static const uint8_t fixed[] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0};
    uint32_t size = htole32((uint32_t)len);
    memcpy(head, fixed, sizeof(fixed));
    memcpy(head + sizeof(fixed), &size, sizeof(size));
}

static int framer_emit_raw(struct framer *f, struct frame *frame, struct fault *fault)
{
    struct raw_writer raw = {.f = f, .frame = frame};
    /* Each block but the last is full, or ends where a place begins. */
    size_t most_blocks = frame->len / RAW_BLOCK_BYTES + frame->places.count + 1;
    raw.heads = malloc(RAW_HEADER_BYTES + 3 * most_blocks);
    if (!raw.heads)
        return -ENOMEM;
    uint8_t *head = raw.heads;
    framer_put_frame_head(head, frame->len);
    int r = writer_put(f->w, head, RAW_HEADER_BYTES, NULL, fault);
    head += RAW_HEADER_BYTES;
    bool owned = false;
    while (r == 0 && raw.at < frame->len) {
        size_t end = framer_block_end(&raw, raw.at);
        owned = end == frame->len;
        framer_put_block_head(head, end - raw.at, owned);
        r = writer_put(f->w, head, 3, owned ? raw.heads : NULL, fault);
        head += 3;
        if (r == 0)
            r = framer_put_block(&raw, end, fault);
    }
    if (!owned)
        free(raw.heads); /* their queued bytes will not be written any more */
    return r;
}

/* Writes a frame whose job is done to the file, in the order of the tar, and frees it. */
static int framer_emit_frame(struct framer *f, struct frame *frame, struct fault *fault)
{
    int r = frame->job.error;
    if (r == 0 && frame->job.out) {
        r = framer_emit_packed(f, frame, fault);
    } else if (r == 0) {
        if (frame->in) { /* it was not worth compressing */
            size_t len = frame->len;
            uint8_t *in = steal_ptr(&frame->in);
            frame->len = 0;
            r = frame_add_part(frame, in, len, in);
        }
        if (r == 0)
            r = framer_emit_raw(f, frame, fault);
    }
    frame_free(frame);
    return r;
}

/* ---- frames on their way out ---- */

/* Writes finished frames. With `wait`, all that are in flight; else until there is room. */
static int framer_drain(struct framer *f, bool wait, struct fault *fault)
{
    struct compress_job *job;
    while ((job = compressor_take(&f->compressor, wait ? 0 : f->block_bytes))) {
        int r = framer_emit_frame(f, (struct frame *)job, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Closes the open frame. */
static int framer_close_frame(struct framer *f, struct fault *fault)
{
    struct frame *frame = f->open;
    if (!frame)
        return 0;
    f->open = NULL;
    if (frame->len == 0) {
        frame_free(frame);
        return 0;
    }
    frame->job.in = frame->in;
    frame->job.in_len = frame->len;
    compressor_put(&f->compressor, &frame->job);
    return framer_drain(f, false, fault);
}

/* ---- what goes in ---- */

/* Makes sure that a frame of this kind is open and has room. */
static int framer_open_frame(struct framer *f, bool raw, struct fault *fault)
{
    int r = 0;
    if (f->open && (f->open->raw != raw || (raw && f->open->len >= RAW_FRAME_BYTES)))
        r = framer_close_frame(f, fault);
    if (r == 0 && !f->open)
        r = frame_new(f, raw, &f->open);
    return r;
}

/* Copies bytes into packed frames. `data`: they belong to the current member. */
static int framer_pack_bytes(struct framer *f, const uint8_t *bytes, size_t len, bool data,
                             struct fault *fault)
{
    int r = 0;
    while (r == 0 && len > 0) {
        r = framer_open_frame(f, false, fault);
        if (r < 0)
            return r;
        struct frame *frame = f->open;
        size_t n = (size_t)min_u64(len, f->block_bytes - frame->len);
        if (data)
            r = frame_add_place(f, frame, n);
        if (r < 0)
            return r;
        if (bytes)
            memcpy(frame->in + frame->len, bytes, n);
        else
            memset(frame->in + frame->len, 0, n);
        frame->len += n;
        bytes = bytes ? bytes + n : NULL;
        len -= n;
        if (frame->len == f->block_bytes)
            r = framer_close_frame(f, fault);
    }
    return r;
}

/* Adds bytes as they are to the open raw frame, and takes them. */
static int framer_put_raw(struct framer *f, uint8_t *bytes, size_t len, bool data)
{
    struct frame *frame = f->open;
    int r = data ? frame_add_place(f, frame, len) : 0;
    if (r < 0) {
        free(bytes);
        return r;
    }
    return frame_add_part(frame, bytes, len, bytes);
}

/*
 * Takes four samples of 256 bytes, spread over the data. In n random bytes each byte equals (n
 * - 1)/256 others, within about 2 percent. Up to a third more still counts as random: JPEG has
 * a tenth more, floating point numbers several times as many.
 */
static bool framer_looks_random(const uint8_t *bytes, size_t len)
{
    enum { PIECE = 256, PIECES = 4, N = PIECE * PIECES };
    uint32_t counts[256] = {0}, squares = 0;
    if (len < SAMPLE_LEAST)
        return false;
    size_t step = (len - PIECE) / (PIECES - 1);
    for (size_t i = 0; i < N; i++)
        counts[bytes[i / PIECE * step + i % PIECE]]++;
    for (size_t i = 0; i < 256; i++)
        squares += counts[i] * counts[i];
    return (squares - N) / 4 * 3 < N * (N - 1u) / 256;
}

/* May a small member go along in the open raw frame? Yes, as long as there are few of them. */
static bool framer_may_ride(const struct framer *f, size_t len)
{
    return f->open && f->open->raw && len < SAMPLE_LEAST &&
           (f->open->ridden_bytes + len) < f->open->len / RIDE_SHARE;
}

/* Puts the header into packed frames, and begins a new frame if the data calls for it. */
static int framer_pack_header(struct framer *f, const struct pax_buffer *header,
                              struct fault *fault)
{
    uint64_t whole = header->count + f->stored + pax_padding(f->stored);
    size_t used = f->open && !f->open->raw ? f->open->len : 0;
    bool apart = whole > f->block_bytes || whole < f->stored;
    size_t together = apart ? header->count : (size_t)whole;
    int r = used + together > f->block_bytes ? framer_close_frame(f, fault) : 0;
    if (r == 0)
        r = framer_pack_bytes(f, header->at, header->count, false, fault);
    if (r == 0 && apart && f->stored)
        r = framer_close_frame(f, fault);
    return r;
}

/* Puts the waiting header into a frame of the kind that its data will be in. */
static int framer_flush_header(struct framer *f, bool raw, struct fault *fault)
{
    struct pax_buffer header = f->header;
    f->header = (struct pax_buffer){0};
    if (!header.count)
        return 0;
    if (raw && header.count < RAW_BLOCK_BYTES) {
        int r = framer_open_frame(f, true, fault);
        if (r < 0)
            free(header.at);
        return r < 0 ? r : framer_put_raw(f, header.at, header.count, false);
    }
    int r = framer_pack_header(f, &header, fault);
    vector_free(&header);
    return r;
}

int framer_member(struct framer *f, const struct pax_member *member, struct pax_buffer *header,
                  uint64_t stored, struct fault *fault)
{
    f->header = *header;
    *header = (struct pax_buffer){0};
    f->inode = f->w->inode;
    f->stored = stored;
    f->done = 0;
    f->extents.count = f->extent = f->extent_done = 0;
    int r = member->sparse ? vector_append(&f->extents, member->extents, member->extent_count)
                           : vector_push(&f->extents, (struct pax_extent){0, stored});
    if (r < 0 || stored)
        return r;
    size_t len = f->header.count;
    bool ride = framer_may_ride(f, len);
    if (ride)
        f->open->ridden_bytes += len;
    return framer_flush_header(f, ride, fault);
}

/* Should the next `len` bytes of data go into a raw frame? */
static bool framer_choose_raw(struct framer *f, const uint8_t *bytes, size_t len)
{
    if (f->done == 0 && framer_may_ride(f, len + f->header.count)) {
        f->open->ridden_bytes += len + f->header.count;
        return true;
    }
    if (len < SAMPLE_LEAST)
        return f->done && f->open && f->open->raw;
    if (!framer_looks_random(bytes, len)) {
        f->run_bytes = 0;
        return false;
    }
    f->run_bytes += len;
    return (f->open && f->open->raw) || f->run_bytes >= RUN_BYTES;
}

int framer_data(struct framer *f, uint8_t *bytes, size_t len, struct fault *fault)
{
    if (len == 0) {
        free(bytes);
        return 0;
    }
    bool raw = len <= RAW_DATA_MAX && framer_choose_raw(f, bytes, len);
    int r = framer_flush_header(f, raw, fault);
    if (r == 0 && raw)
        r = framer_open_frame(f, true, fault);
    if (r == 0 && raw)
        return framer_put_raw(f, bytes, len, true);
    if (r == 0)
        r = framer_pack_bytes(f, bytes, len, true, fault);
    free(bytes);
    return r;
}

int framer_zeros(struct framer *f, size_t len, struct fault *fault)
{
    static uint8_t zeros[PAX_BLOCK_BYTES];
    if (len == 0)
        return 0;
    if (len > sizeof(zeros) || !f->open || !f->open->raw)
        return framer_pack_bytes(f, NULL, len, false, fault);
    return frame_add_part(f->open, zeros, len, NULL);
}

int framer_finish(struct framer *f, struct fault *fault)
{
    int r = framer_close_frame(f, fault);
    return r < 0 ? r : framer_drain(f, true, fault);
}

/* ---- life ---- */

int framer_new(struct writer *w, const struct writer_options *options,
               struct framer **ret_framer)
{
    struct framer *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->w = w;
    f->block_bytes = w->block_bytes;
    int r = options->pool
                ? 0
                : compress_pool_new(options->threads, options->zstd_level, &f->own_pool);
    if (r < 0) {
        free(f);
        return r;
    }
    f->compressor.pool = options->pool ? options->pool : f->own_pool;
    *ret_framer = f;
    return 0;
}

void framer_free(struct framer *f)
{
    if (!f)
        return;
    struct compress_job *job;
    while ((job = compressor_cancel(&f->compressor)))
        frame_free((struct frame *)job);
    compress_pool_free(f->own_pool);
    if (f->open)
        frame_free(f->open);
    vector_free(&f->header);
    vector_free(&f->pieces);
    vector_free(&f->extents);
    free(f);
}
