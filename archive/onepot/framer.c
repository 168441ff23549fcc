/*
 * Cuts a tar into zstd frames, each of which can be decompressed alone.
 *
 * There are two kinds. A packed frame holds up to block_bytes of the tar: headers, small files
 * and their padding, or a block of a large file. It is cut where a member begins, so that a
 * file smaller than a block lies in one frame. A larger file fills frames of its own from its
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
 * smaller go along in the open frame, because a frame of their own would cost the neighbours
 * more than it saves. Likewise small members go along in a raw frame, as long as they are few.
 *
 * The bytes alone decide, here and in one thread, which bytes go in which frame. Only the
 * compression itself happens elsewhere. So the archive is the same for any number of threads. A
 * frame that turns out not to be worth compressing becomes a raw one in the end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "framer_private.h"

#define RAW_FRAME_BYTES (1u << 20) /* a raw frame ends at this size */
#define RAW_DATA_MAX (4u << 20)    /* per call; a frame is a window of at most 8 MB */
#define SAMPLE_LEAST 4096u         /* smaller data is not sampled */
#define RUN_BYTES 32768u /* a run that does not get smaller is this long before a raw frame */
#define RIDE_SHARE 32u   /* members that were not sampled take at most 1/32 of a raw frame */

int framer_grow(void *at, size_t count, size_t more, size_t *capacity, size_t item_bytes)
{
    if (count + more <= *capacity)
        return 0;
    size_t room = count + more + count / 2 + 8;
    void *p = reallocarray(*(void **)at, room, item_bytes);
    if (!p)
        return -ENOMEM;
    *(void **)at = p;
    *capacity = room;
    return 0;
}

/* ---- frames ---- */

void framer_free_frame(struct frame *frame)
{
    for (size_t i = 0; i < frame->part_count; i++)
        free(frame->parts[i].owned);
    free(frame->parts);
    free(frame->places);
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

int framer_add_part(struct frame *frame, uint8_t *bytes, size_t len, void *owned)
{
    if (framer_grow(&frame->parts, frame->part_count, 1, &frame->part_capacity,
                    sizeof(*frame->parts)) < 0) {
        free(owned);
        return -ENOMEM;
    }
    frame->parts[frame->part_count++] = (struct part){bytes, len, owned};
    frame->len += len;
    return 0;
}

/* Records that the next `len` bytes of the frame are data of the current member. */
static int add_place(struct framer *f, struct frame *frame, size_t len)
{
    if (framer_grow(&frame->places, frame->place_count, 1, &frame->place_capacity,
                    sizeof(*frame->places)) < 0)
        return -ENOMEM;
    struct place *last = frame->place_count ? &frame->places[frame->place_count - 1] : NULL;
    if (last && last->inode == f->inode && last->offset + last->length == frame->len &&
        last->stream + last->length == f->done) {
        last->length += (uint32_t)len;
    } else {
        last = &frame->places[frame->place_count++];
        *last = (struct place){f->inode, (uint32_t)frame->len, (uint32_t)len, false, f->done};
    }
    f->done += len;
    last->last = f->done == f->stored;
    return 0;
}

/* ---- frames on their way out ---- */

/* Writes finished frames. With `wait`, all that are in flight; else until there is room. */
static int drain(struct framer *f, bool wait, struct fault *fault)
{
    struct compress_job *job;
    while ((job = compressor_take(
                &f->compressor, wait || compressor_is_full(&f->compressor, f->block_bytes)))) {
        struct frame *frame = f->first;
        f->first = frame->next;
        int r = framer_emit(f, frame, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Closes the open frame. */
static int close_frame(struct framer *f, struct fault *fault)
{
    struct frame *frame = f->open;
    if (!frame)
        return 0;
    f->open = NULL;
    if (frame->len == 0) {
        framer_free_frame(frame);
        return 0;
    }
    frame->job.in = frame->in;
    frame->job.in_len = frame->len;
    *(f->first ? &f->last->next : &f->first) = frame;
    f->last = frame;
    compressor_put(&f->compressor, &frame->job);
    return drain(f, false, fault);
}

/* ---- what goes in ---- */

/* Makes sure that a frame of this kind is open and has room. */
static int open_frame(struct framer *f, bool raw, struct fault *fault)
{
    int r = 0;
    if (f->open && (f->open->raw != raw || (raw && f->open->len >= RAW_FRAME_BYTES)))
        r = close_frame(f, fault);
    if (r == 0 && !f->open)
        r = frame_new(f, raw, &f->open);
    return r;
}

/* Copies bytes into packed frames. `data`: they belong to the current member. */
static int pack_bytes(struct framer *f, const uint8_t *bytes, size_t len, bool data,
                      struct fault *fault)
{
    int r = 0;
    while (r == 0 && len > 0) {
        r = open_frame(f, false, fault);
        if (r < 0)
            return r;
        struct frame *frame = f->open;
        size_t room = f->block_bytes - frame->len, n = len < room ? len : room;
        if (data)
            r = add_place(f, frame, n);
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
            r = close_frame(f, fault);
    }
    return r;
}

/* Adds bytes as they are to the open raw frame, and takes them. */
static int put_raw(struct framer *f, uint8_t *bytes, size_t len, bool data)
{
    struct frame *frame = f->open;
    int r = data ? add_place(f, frame, len) : 0;
    if (r < 0) {
        free(bytes);
        return r;
    }
    return framer_add_part(frame, bytes, len, bytes);
}

static void count_pairs(const uint8_t *bytes, size_t len, uint32_t counts[256])
{
    for (size_t i = 0; i < len; i++)
        counts[bytes[i]]++;
}

/*
 * Takes four samples of 256 bytes, spread over the data. In n random bytes each byte equals (n
 * - 1)/256 others, within about 2 percent. Up to a third more still counts as random: JPEG has
 * a tenth more, floating point numbers several times as many.
 */
static bool looks_random(const uint8_t *bytes, size_t len)
{
    enum { PIECE = 256, PIECES = 4, N = PIECE * PIECES };
    uint32_t counts[256] = {0}, squares = 0;
    if (len < SAMPLE_LEAST)
        return false;
    size_t step = (len - PIECE) / (PIECES - 1);
    for (size_t i = 0; i < PIECES; i++)
        count_pairs(bytes + i * step, PIECE, counts);
    for (size_t i = 0; i < 256; i++)
        squares += counts[i] * counts[i];
    return (squares - N) / 4 * 3 < N * (N - 1u) / 256;
}

/* May a small member go along in the open raw frame? Yes, as long as there are few of them. */
static bool may_ride(const struct framer *f, size_t len)
{
    return f->open && f->open->raw && len < SAMPLE_LEAST &&
           (f->open->ridden_bytes + len) < f->open->len / RIDE_SHARE;
}

/* Puts the header into packed frames, and begins a new frame if the data calls for it. */
static int pack_header(struct framer *f, const struct pax_buffer *header, struct fault *fault)
{
    uint64_t whole = header->len + f->stored + pax_padding(f->stored);
    size_t used = f->open && !f->open->raw ? f->open->len : 0;
    bool apart = whole > f->block_bytes || whole < f->stored;
    size_t together = apart ? header->len : (size_t)whole;
    int r = used + together > f->block_bytes ? close_frame(f, fault) : 0;
    if (r == 0)
        r = pack_bytes(f, header->bytes, header->len, false, fault);
    if (r == 0 && apart && f->stored)
        r = close_frame(f, fault);
    return r;
}

/* Puts the waiting header into a frame of the kind that its data will be in. */
static int flush_header(struct framer *f, bool raw, struct fault *fault)
{
    struct pax_buffer header = f->header;
    f->header = (struct pax_buffer){0};
    if (!header.len)
        return 0;
    if (raw && header.len < RAW_BLOCK_BYTES) {
        int r = open_frame(f, true, fault);
        if (r < 0)
            free(header.bytes);
        return r < 0 ? r : put_raw(f, header.bytes, header.len, false);
    }
    int r = pack_header(f, &header, fault);
    pax_buffer_free(&header);
    return r;
}

static int keep_map(struct framer *f, const struct pax_member *m)
{
    struct map *map = malloc(sizeof(*map) + m->extent_count * sizeof(map->extents[0]));
    if (!map)
        return -ENOMEM;
    map->next = NULL;
    map->inode = f->inode;
    map->count = m->extent_count;
    memcpy(map->extents, m->extents, m->extent_count * sizeof(map->extents[0]));
    *(f->first_map ? &f->last_map->next : &f->first_map) = map;
    f->last_map = map;
    return 0;
}

int framer_member(struct framer *f, const struct pax_member *member, struct pax_buffer *header,
                  uint64_t stored, struct fault *fault)
{
    f->header = *header;
    *header = (struct pax_buffer){0};
    f->inode = f->w->inode;
    f->stored = stored;
    f->done = 0;
    int r = stored && member->sparse ? keep_map(f, member) : 0;
    if (r < 0 || stored)
        return r;
    size_t len = f->header.len;
    bool ride = may_ride(f, len);
    if (ride)
        f->open->ridden_bytes += len;
    return flush_header(f, ride, fault);
}

/* Should the next `len` bytes of data go into a raw frame? */
static bool choose_raw(struct framer *f, const uint8_t *bytes, size_t len)
{
    if (f->done == 0 && may_ride(f, len + f->header.len)) {
        f->open->ridden_bytes += len + f->header.len;
        return true;
    }
    if (len < SAMPLE_LEAST)
        return f->done && f->open && f->open->raw;
    if (!looks_random(bytes, len)) {
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
    bool raw = len <= RAW_DATA_MAX && choose_raw(f, bytes, len);
    int r = flush_header(f, raw, fault);
    if (r == 0 && raw)
        r = open_frame(f, true, fault);
    if (r == 0 && raw)
        return put_raw(f, bytes, len, true);
    if (r == 0)
        r = pack_bytes(f, bytes, len, true, fault);
    free(bytes);
    return r;
}

int framer_zeros(struct framer *f, size_t len, struct fault *fault)
{
    static uint8_t zeros[PAX_BLOCK_BYTES];
    if (len == 0)
        return 0;
    if (len > sizeof(zeros) || !f->open || !f->open->raw)
        return pack_bytes(f, NULL, len, false, fault);
    return framer_add_part(f->open, zeros, len, NULL);
}

int framer_finish(struct framer *f, struct fault *fault)
{
    int r = close_frame(f, fault);
    return r < 0 ? r : drain(f, true, fault);
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
    compressor_end(&f->compressor); /* before the frames, which it may be working on */
    compress_pool_free(f->own_pool);
    while (f->first) {
        struct frame *frame = f->first;
        f->first = frame->next;
        framer_free_frame(frame);
    }
    if (f->open)
        framer_free_frame(f->open);
    while (f->first_map) {
        struct map *map = f->first_map;
        f->first_map = map->next;
        free(map);
    }
    pax_buffer_free(&f->header);
    free(f->pieces);
    free(f);
}
