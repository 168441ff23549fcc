/*
 * The writer puts headers, data and padding in one stream, and collects the trailer's
 * index and sums. In a compressed archive the stream passes through the framer, which
 * cuts it into frames.
 *
 * The identifier is XXH3-128 of every member's headers, each followed by the sum of its data,
 * if any. It names the content and uses neither a time stamp nor a random number.
 */
#include "writer.h"

#include <endian.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "cleanup.h"
#include "cpus.h"
#include "helpers.h"
#include "numbers.h"
#include "onepot_format.h"
#include "output.h"
#include "vector.h"
#include "write_at.h"
#include "builder.h"

#define WRITER_QUEUE_MAX 1024 /* as many as writev(2) takes */

struct writer {
    struct output *output;
    struct builder *builder;
    struct framer *framer; /* NULL: not compressed */
    uint32_t block_bytes;
    uint32_t align_bytes;
    int error; /* sticky: an archive with a gap is useless */

    uint64_t tar_offset; /* in the tar; without a framer the same as `offset` */
    uint64_t offset;     /* in the file, queued bytes included */
    struct iovec queue[WRITER_QUEUE_MAX];
    void *owned[WRITER_QUEUE_MAX]; /* freed when written; NULL: not ours */
    int queued;
    size_t queued_bytes;

    VECTOR(struct builder_piece) pieces; /* of the current member */
    void *window_state;
    VECTOR(uint64_t) window_sums; /* of the complete windows, as on disk */
    void *identifier_state;
    void *sum_state; /* for the current member's data */

    uint32_t inode;         /* of the current member */
    uint64_t missing_bytes; /* data of it that is still to come */
    uint64_t stored_bytes;
    bool sum_known;
    uint64_t sum;

    struct writer_totals totals;
};

/*
 * The framer takes the tar piece by piece, in order, and passes to the builder where each
 * member's data lies. Memory: a few frames for each thread.
 */
static void framer_free(struct framer *framer); /* NULL is fine */

/*
 * Writes the next bytes of the file. `owned` (may be NULL) is freed when they were written,
 * also on failure.
 */
static int writer_put(struct writer *w, void *bytes, size_t len, void *owned,
                      struct fault *fault);

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
    struct helper_task task; /* that compresses it; must be first */
    struct compress_pool *pool;
    struct frame *next; /* that is on its way out */
    bool raw;
    uint8_t *in; /* block_bytes long; NULL in a raw frame, which only keeps its place */
    size_t len;
    size_t ridden_bytes; /* bytes of members that were not sampled */
    VECTOR(struct part) parts;
    VECTOR(struct place) places;

    /* Set when it was compressed: */
    int error;    /* 0 or -ENOMEM */
    uint8_t *out; /* a whole zstd frame; NULL: not worth it */
    size_t out_len;

    /* How much of a raw frame was written. */
    size_t part, part_done, place;
    size_t at; /* in the frame's content */
};

struct framer {
    struct writer *w;
    struct compress_pool *pool;
    struct compress_pool *own_pool; /* NULL: the pool belongs to the caller */
    struct frame *first, *last;     /* on their way out, in the order of the tar */
    size_t flight_bytes;            /* of these */
    size_t block_bytes;

    struct frame *open;
    uint64_t run_bytes; /* length of the current run of data that does not get smaller */

    struct pax_buffer header; /* of a member whose data has not come yet */
    uint32_t inode;           /* of the current member */
    uint64_t stored, done;    /* bytes of the member's data: in all, so far */
    VECTOR(struct builder_piece)
    extents;              /* of the member's data: a file without holes has one */
    size_t extent;        /* the extent that the next byte of data belongs to, */
    uint64_t extent_done; /* and how many of its bytes came before */

    /* For the member whose data is being written. */
    VECTOR(struct builder_piece) pieces;
};

/*
 * ---- compression ----
 *
 * Several threads compress frames, which come back in the order in which they were put in. The
 * same input gives the same bytes, whatever the number of threads. The helpers have one list of
 * frames that no thread has begun; each framer has a list of its own ones.
 *
 * With one thread, the work is done where frames are taken. With more, a caller that has to
 * wait works on frames that no thread has begun.
 */

struct compress_pool {
    int level;
    struct helpers *helpers; /* NULL: the caller does all the work */
    size_t flight_bytes;
    pthread_mutex_t lock;     /* for the rest */
    VECTOR(ZSTD_CCtx *) idle; /* contexts that no thread uses now */
};

/*
 * The level's default parameters. Shorter matches (4 bytes) make the Python library 1.6 %
 * smaller, but records of text 4 % larger. They also take a quarter more time, and a tenth more
 * to decompress.
 */
static ZSTD_CCtx *compress_new_context(int level)
{
    ZSTD_CCtx *context = ZSTD_createCCtx();
    if (!context)
        return NULL;
    ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
    ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
    return context;
}

static ZSTD_CCtx *compress_take_context(struct compress_pool *p)
{
    pthread_mutex_lock(&p->lock);
    ZSTD_CCtx *context = p->idle.count ? p->idle.at[--p->idle.count] : NULL;
    pthread_mutex_unlock(&p->lock);
    return context ? context : compress_new_context(p->level);
}

static void compress_give_context(struct compress_pool *p, ZSTD_CCtx *context)
{
    pthread_mutex_lock(&p->lock);
    if (vector_push(&p->idle, context) < 0)
        ZSTD_freeCCtx(context);
    pthread_mutex_unlock(&p->lock);
}

/* Is a frame of this size worth decompressing? */
static bool compress_is_worth(size_t in_len, size_t out_len)
{
    return out_len + in_len / 32 < in_len;
}

static void compress_do(ZSTD_CCtx *context, struct frame *frame)
{
    size_t room = ZSTD_compressBound(frame->len);
    uint8_t *out = malloc(room);
    if (!out) {
        frame->error = -ENOMEM;
        return;
    }
    size_t n = ZSTD_compress2(context, out, room, frame->in, frame->len);
    if (ZSTD_isError(n)) {
        free(out);
        frame->error = -ENOMEM; /* no other error is possible: the room suffices, the parameters
                                 are ours */
    } else if (!compress_is_worth(frame->len, n)) {
        free(out);
    } else {
        uint8_t *fit = realloc(out, n);
        frame->out = fit ? fit : out;
        frame->out_len = n;
    }
}

static void compress_run(struct helper_task *task)
{
    struct frame *frame = (struct frame *)task;
    ZSTD_CCtx *context = compress_take_context(frame->pool);
    if (!context) {
        frame->error = -ENOMEM;
        return;
    }
    compress_do(context, frame);
    compress_give_context(frame->pool, context);
}

int compress_pool_new(unsigned threads, int level, struct compress_pool **ret_pool)
{
    struct compress_pool *p = calloc(1, sizeof(*p));
    threads = threads ? threads : cpus_allowed();
    if (!p)
        return -ENOMEM;
    p->level = level;
    pthread_mutex_init(&p->lock, NULL);
    int r = threads > 1 ? helpers_new(threads, &p->helpers) : 0;
    if (r < 0)
        compress_pool_free(p);
    else
        *ret_pool = p;
    return r;
}

void compress_pool_free(struct compress_pool *p)
{
    if (!p)
        return;
    helpers_free(p->helpers);
    for (size_t i = 0; i < p->idle.count; i++)
        ZSTD_freeCCtx(p->idle.at[i]);
    vector_free(&p->idle);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void framer_put_frame(struct framer *f, struct frame *frame)
{
    frame->task.run = compress_run;
    frame->pool = f->pool;
    *(f->first ? &f->last->next : &f->first) = frame;
    f->last = frame;
    f->flight_bytes += frame->len;
    f->pool->flight_bytes += frame->len;
    if (frame->in)
        helpers_begin(f->pool->helpers, &frame->task);
}

static struct frame *framer_remove_first(struct framer *f)
{
    struct frame *frame = f->first;
    f->first = frame->next;
    f->flight_bytes -= frame->len;
    f->pool->flight_bytes -= frame->len;
    return frame;
}

/*
 * The oldest frame, done, if more bytes are in flight than frames of `block_bytes` that keep
 * all threads busy (0: in any case), or if there was no work to do. NULL: none.
 */
static struct frame *framer_take_frame(struct framer *f, size_t block_bytes)
{
    struct compress_pool *p = f->pool;
    size_t threads = helpers_threads(p->helpers);
    size_t most = threads ? (2 * threads + 2) * block_bytes : 0;
    bool is_full = f->flight_bytes > most || p->flight_bytes > 2 * most;
    if (!f->first || (f->first->in && !is_full))
        return NULL;
    if (f->first->in)
        helpers_finish(p->helpers, &f->first->task);
    return framer_remove_first(f);
}

/* The oldest frame, done or not; no thread works on it afterwards. NULL: none is left. */
static struct frame *framer_cancel_frame(struct framer *f)
{
    if (!f->first)
        return NULL;
    if (f->first->in)
        helpers_cancel(f->pool->helpers, &f->first->task);
    return framer_remove_first(f);
}

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

#define RAW_FRAME_BYTES (1u << 20) /* a raw frame ends at this size */
#define RAW_DATA_MAX (4u << 20)    /* per call; a frame is a window of at most 8 MB */
#define SAMPLE_LEAST 4096u         /* smaller data is not sampled */
#define RUN_BYTES 32768u /* a run that does not get smaller is this long before a raw frame */
#define RIDE_SHARE 32u   /* members that were not sampled take at most 1/32 of a raw frame */

#define RAW_BLOCK_BYTES (128u << 10) /* zstd's largest block */
#define RAW_HEADER_BYTES 9u

/* ---- frames ---- */

static void frame_free(struct frame *frame)
{
    for (size_t i = 0; i < frame->parts.count; i++)
        free(frame->parts.at[i].owned);
    vector_free(&frame->parts);
    vector_free(&frame->places);
    free(frame->out);
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
        const struct builder_piece *e = &f->extents.at[f->extent];
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
        .packed_bytes = (uint32_t)frame->out_len,
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
    uint8_t *out = steal_ptr(&frame->out);
    return writer_put(f->w, out, frame->out_len, out, fault);
}

/* Where the block that begins at `start` ends: between members, if possible. */
static size_t frame_block_end(const struct frame *frame, size_t start)
{
    size_t end = (size_t)min_u64(frame->len, start + RAW_BLOCK_BYTES);
    for (size_t i = frame->place; end < frame->len && i < frame->places.count; i++) {
        const struct place *p = &frame->places.at[i];
        if (p->offset >= end)
            break;
        if (p->offset > start && (size_t)p->offset + p->length > end)
            end = p->offset;
    }
    return end;
}

/* Writes the next `len` bytes of the content. */
static int framer_put_parts(struct framer *f, struct frame *frame, size_t len,
                            struct fault *fault)
{
    frame->at += len;
    while (len > 0) {
        struct part *part = &frame->parts.at[frame->part];
        size_t n = (size_t)min_u64(part->len - frame->part_done, len);
        uint8_t *bytes = part->bytes + frame->part_done;
        void *owned = NULL;
        frame->part_done += n;
        len -= n;
        if (frame->part_done == part->len) {
            owned = part->owned;
            part->owned = NULL;
            frame->part++;
            frame->part_done = 0;
        }
        int r = writer_put(f->w, bytes, n, owned, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

/* Writes data of the current place, up to `end`. */
static int framer_put_place(struct framer *f, struct frame *frame, size_t end,
                            struct fault *fault)
{
    const struct place *p = &frame->places.at[frame->place];
    size_t place_end = (size_t)p->offset + p->length;
    size_t len = (size_t)min_u64(place_end, end) - frame->at;
    struct builder_piece piece = {.offset = p->stream + (frame->at - p->offset),
                                  .length = len,
                                  .source_offset = f->w->offset,
                                  .block = BUILDER_NO_BLOCK};
    int r = vector_push(&f->pieces, piece);
    if (r == 0 && frame->at + len == place_end) {
        frame->place++;
        if (p->last)
            r = framer_end_pieces(f, p->inode);
    }
    return r < 0 ? r : framer_put_parts(f, frame, len, fault);
}

/* Writes the content up to `end`: places and the bytes between them. */
static int framer_put_block(struct framer *f, struct frame *frame, size_t end,
                            struct fault *fault)
{
    int r = 0;
    while (r == 0 && frame->at < end) {
        size_t next = end;
        if (frame->place < frame->places.count && frame->places.at[frame->place].offset < end)
            next = frame->places.at[frame->place].offset;
        r = next > frame->at ? framer_put_parts(f, frame, next - frame->at, fault)
                             : framer_put_place(f, frame, end, fault);
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
    /* Each block but the last is full, or ends where a place begins. */
    size_t most_blocks = frame->len / RAW_BLOCK_BYTES + frame->places.count + 1;
    uint8_t *heads = malloc(RAW_HEADER_BYTES + 3 * most_blocks), *head = heads;
    if (!heads)
        return -ENOMEM;
    framer_put_frame_head(head, frame->len);
    int r = writer_put(f->w, head, RAW_HEADER_BYTES, NULL, fault);
    head += RAW_HEADER_BYTES;
    bool owned = false;
    while (r == 0 && frame->at < frame->len) {
        size_t end = frame_block_end(frame, frame->at);
        owned = end == frame->len;
        framer_put_block_head(head, end - frame->at, owned);
        r = writer_put(f->w, head, 3, owned ? heads : NULL, fault);
        head += 3;
        if (r == 0)
            r = framer_put_block(f, frame, end, fault);
    }
    if (!owned)
        free(heads); /* their queued bytes will not be written any more */
    return r;
}

/* Writes a frame that is done to the file, in the order of the tar, and frees it. */
static int framer_emit_frame(struct framer *f, struct frame *frame, struct fault *fault)
{
    int r = frame->error;
    if (r == 0 && frame->out) {
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
    struct frame *frame;
    while ((frame = framer_take_frame(f, wait ? 0 : f->block_bytes))) {
        int r = framer_emit_frame(f, frame, fault);
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
    framer_put_frame(f, frame);
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

/* Begins a member. Takes its header; `stored` bytes of data must follow. */
static int framer_member(struct framer *f, const struct node *member, struct pax_buffer *header,
                         uint64_t stored, struct fault *fault)
{
    f->header = *header;
    *header = (struct pax_buffer){0};
    f->inode = f->w->inode;
    f->stored = stored;
    f->done = 0;
    f->extents.count = f->extent = f->extent_done = 0;
    int r = member->has_pieces
                ? vector_append(&f->extents, member->pieces, member->piece_count)
                : vector_push(&f->extents, (struct builder_piece){.length = stored});
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

/* Adds data of the member. Takes `bytes`, which must be from malloc. */
static int framer_data(struct framer *f, uint8_t *bytes, size_t len, struct fault *fault)
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

/* Adds padding. */
static int framer_zeros(struct framer *f, size_t len, struct fault *fault)
{
    static uint8_t zeros[PAX_BLOCK_BYTES];
    if (len == 0)
        return 0;
    if (len > sizeof(zeros) || !f->open || !f->open->raw)
        return framer_pack_bytes(f, NULL, len, false, fault);
    return frame_add_part(f->open, zeros, len, NULL);
}

/* Afterwards all input is in the file (or queued). */
static int framer_finish(struct framer *f, struct fault *fault)
{
    int r = framer_close_frame(f, fault);
    return r < 0 ? r : framer_drain(f, true, fault);
}

/* ---- life ---- */

static int framer_new(struct writer *w, const struct writer_options *options,
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
    f->pool = options->pool ? options->pool : f->own_pool;
    *ret_framer = f;
    return 0;
}

static void framer_free(struct framer *f)
{
    if (!f)
        return;
    struct frame *frame;
    while ((frame = framer_cancel_frame(f)))
        frame_free(frame);
    compress_pool_free(f->own_pool);
    if (f->open)
        frame_free(f->open);
    vector_free(&f->header);
    vector_free(&f->pieces);
    vector_free(&f->extents);
    free(f);
}

/*
 * The writer's output, summed window by window.
 *
 * Output is queued as it lies in memory and written by writev(2), so that no byte is copied on
 * its way to the page cache. The data has to pass the CPU for its sum anyway, so a copy inside
 * the kernel (copy_file_range) would save nothing.
 */

/*
 * Each call ends at a multiple of this in the file. The kernel (ext4 since Linux 6.16, XFS)
 * then keeps its bytes in large folios, which lie at multiples of their size. From these, 20 KB
 * are read in 1.9 us instead of 3.2 to 3.7, and a pack takes three quarters of the CPU time
 * (bench/RESULTS.md, rows unlisted and pack).
 */
#define WRITE_BYTES (256u << 10)

/* Notes and describes a failed write. Returns err. */
static int writer_write_failed(struct writer *w, int err, struct fault *fault)
{
    w->error = err;
    fault_set(fault, err, NULL, w->offset - w->queued_bytes, "can't be written: %s",
              fault_errno(err));
    if (err == -ENOSPC || err == -EDQUOT)
        fault_advise(fault, "free some space or choose another place with -o");
    if (err == -EFBIG)
        fault_advise(fault, "a limit (ulimit -f) or the filesystem allows no larger file");
    return err;
}

/* Writes up to the next multiple of WRITE_BYTES, by one call. Returns how much, or -errno. */
static ssize_t writer_write_some(const struct writer *w, struct iovec *iov, int count)
{
    size_t room = WRITE_BYTES - (w->offset - w->queued_bytes) % WRITE_BYTES, sum = 0;
    int n = 0;
    while (n < count && sum < room)
        sum += iov[n++].iov_len;
    size_t beyond = sum - min_u64(sum, room);
    iov[n - 1].iov_len -= beyond;
    ssize_t done = writev(w->output->fd, iov, n);
    iov[n - 1].iov_len += beyond;
    return done < 0 ? -errno : done;
}

/* Writes the queue until at most `most` bytes are left in it. */
static int writer_flush(struct writer *w, size_t most, struct fault *fault)
{
    struct iovec *iov = w->queue;
    int left = w->queued;
    while (left > 0 && w->queued_bytes > most) {
        ssize_t n = writer_write_some(w, iov, left);
        if (n < 0 && n != -EINTR)
            return writer_write_failed(w, (int)n, fault);
        if (n > 0) {
            w->queued_bytes -= (size_t)n;
            iovec_advance(&iov, &left, (size_t)n);
        }
    }
    int written = w->queued - left;
    for (int i = 0; i < written; i++)
        free(w->owned[i]);
    memmove(w->queue, iov, (size_t)left * sizeof(*iov));
    memmove(w->owned, w->owned + written, (size_t)left * sizeof(w->owned[0]));
    w->queued = left;
    return 0;
}

/* Ends a window, which may be the file's last and short. -ENOMEM. */
static int writer_end_window(struct writer *w)
{
    int r = vector_push(&w->window_sums, htole64(XXH3_64bits_digest(w->window_state)));
    XXH3_64bits_reset(w->window_state);
    return r;
}

/* Sums the next bytes of the file, window by window. */
static int writer_sum_windows(struct writer *w, const uint8_t *bytes, size_t len)
{
    int r = 0;
    for (size_t done = 0, n; r == 0 && done < len; done += n) {
        uint64_t room = INDEX_WINDOW_BYTES - (w->offset + done) % INDEX_WINDOW_BYTES;
        n = (size_t)min_u64(len - done, room);
        XXH3_64bits_update(w->window_state, bytes + done, n);
        if (n == room)
            r = writer_end_window(w);
    }
    return r;
}

static int writer_put(struct writer *w, void *bytes, size_t len, void *owned,
                      struct fault *fault)
{
    int r = writer_sum_windows(w, bytes, len);
    if (r < 0 || len == 0) {
        free(owned);
        return r;
    }
    w->queue[w->queued] = (struct iovec){bytes, len};
    w->owned[w->queued] = owned;
    w->queued++;
    w->queued_bytes += len;
    w->offset += len;
    if (w->queued == WRITER_QUEUE_MAX)
        return writer_flush(w, 0, fault);
    size_t behind = w->offset % WRITE_BYTES; /* the last multiple: these wait for more */
    return behind < len ? writer_flush(w, behind, fault) : 0;
}

static uint8_t zeros[ONEPOT_RECORD_BYTES]; /* not const, because an iovec is not */

void writer_discard(struct writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->queued; i++)
        free(w->owned[i]);
    framer_free(w->framer);
    vector_free(&w->pieces);
    builder_free(w->builder);
    XXH3_freeState(w->window_state);
    vector_free(&w->window_sums);
    XXH3_freeState(w->identifier_state);
    XXH3_freeState(w->sum_state);
    free(w);
}

/* Is it 0, for the default, or a power of two within the limits? */
static bool writer_is_power_within(uint32_t bytes, uint32_t least, uint32_t most)
{
    return !bytes || (bytes >= least && bytes <= most && !(bytes & (bytes - 1)));
}

static bool writer_is_sane(const struct writer_options *o)
{
    return (!o->zstd_level || !o->align_bytes) && o->zstd_level >= 0 &&
           o->zstd_level <= WRITER_LEVEL_MAX &&
           writer_is_power_within(o->block_bytes, WRITER_BLOCK_MIN, WRITER_BLOCK_MAX) &&
           writer_is_power_within(o->align_bytes, PAX_BLOCK_BYTES, WRITER_ALIGN_MAX);
}

int writer_new(struct output *output, const struct writer_options *options,
               struct writer **ret_writer)
{
    if (!writer_is_sane(options))
        return -EINVAL;
    struct writer *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->align_bytes = options->align_bytes;
    w->block_bytes = options->block_bytes ? options->block_bytes : WRITER_BLOCK_BYTES;
    w->identifier_state = XXH3_createState();
    w->sum_state = XXH3_createState();
    w->window_state = XXH3_createState();
    int r = w->identifier_state && w->sum_state && w->window_state ? 0 : -ENOMEM;
    if (r == 0)
        r = builder_new(&w->builder);
    if (r == 0 && options->zstd_level)
        r = framer_new(w, options, &w->framer);
    if (r < 0) {
        writer_discard(w);
        return r;
    }
    w->output = output;
    XXH3_128bits_reset(w->identifier_state);
    XXH3_64bits_reset(w->window_state);
    *ret_writer = w;
    return 0;
}

int writer_has(struct writer *w, const char *path, size_t len)
{
    return builder_has(w->builder, path, len);
}

uint64_t writer_offset(const struct writer *w)
{
    return w->tar_offset;
}

static int writer_put_zeros(struct writer *w, size_t len, struct fault *fault)
{
    w->tar_offset += len;
    return w->framer ? framer_zeros(w->framer, len, fault)
                     : writer_put(w, zeros, len, NULL, fault);
}

/* ---- members ---- */

/* Passes the places of the data, which starts at `offset`, to the builder. */
static int writer_add_pieces(struct writer *w, const struct node *m, uint64_t offset)
{
    w->pieces.count = 0;
    for (size_t i = 0; i < m->piece_count; i++) {
        struct builder_piece piece = m->pieces[i];
        piece.source_offset = offset;
        piece.block = BUILDER_NO_BLOCK;
        if (piece.length > 0 && vector_push(&w->pieces, piece) < 0)
            return -ENOMEM;
        offset += piece.length;
    }
    return builder_set_pieces(w->builder, w->inode, w->pieces.at, w->pieces.count);
}

static int writer_add_to_index(struct writer *w, const struct node *m, size_t header_len,
                               struct fault *fault)
{
    uint64_t data_offset = w->tar_offset + header_len, end;
    struct node placed = *m;
    if (__builtin_add_overflow(data_offset, w->stored_bytes, &end) || end > INT64_MAX)
        return fault_set(fault, -EFBIG, NULL, w->tar_offset, "archive grows too large");
    placed.has_pieces = w->framer || m->has_pieces;
    placed.data_offset = data_offset;
    placed.header_offset = w->tar_offset;
    const char *path = m->path_len ? m->path : ".";
    size_t path_len = m->path_len ? m->path_len : 1;
    int r = builder_add(w->builder, path, path_len, &placed, fault, &w->inode);
    if (r < 0 || m->is_hardlink)
        return r;
    for (size_t i = 0; r == 0 && i < m->xattr_count; i++)
        r = builder_add_xattr(w->builder, w->inode, m->xattrs[i].name, m->xattrs[i].name_len,
                              m->xattrs[i].value, m->xattrs[i].value_len);
    /* The framer knows the places of later bytes. */
    if (r == 0 && m->has_pieces && (!w->framer || !w->stored_bytes))
        r = writer_add_pieces(w, m, data_offset);
    return r;
}

/* Would the index no longer fit in its frame? Known before more of the tar is written. */
static int writer_check_index_room(const struct writer *w, struct fault *fault)
{
    uint64_t windows = (w->tar_offset + w->stored_bytes) / INDEX_WINDOW_BYTES + 1;
    uint64_t sums_bytes = 2 * sizeof(uint64_t) * windows;
    if (!w->framer || builder_image_bytes_max(w->builder) + sums_bytes <= ONEPOT_ZSTD_INDEX_MAX)
        return 0;
    fault_set(fault, -EFBIG, NULL, FAULT_NO_OFFSET,
              "is more than the index of one compressed archive can hold (4 GiB)");
    fault_advise(fault, "make several archives (--shards N), or one without --zstd");
    return -EFBIG;
}

/* Ends the member, whose data is complete. */
static int writer_finish_data(struct writer *w, struct fault *fault)
{
    uint64_t sum = w->sum_known ? w->sum : XXH3_64bits_digest(w->sum_state);
    int r = builder_set_sum(w->builder, w->inode, sum);
    if (r < 0)
        return w->error = r;
    if (!w->stored_bytes)
        return 0;
    uint64_t le = htole64(sum);
    XXH3_128bits_update(w->identifier_state, &le, sizeof(le));
    return writer_put_zeros(w, pax_padding(w->stored_bytes), fault);
}

static int writer_put_header(struct writer *w, const struct node *m, struct pax_buffer *header,
                             struct fault *fault)
{
    w->tar_offset += header->count;
    if (w->framer)
        return framer_member(w->framer, m, header, w->stored_bytes, fault);
    struct pax_buffer mine = *header;
    *header = (struct pax_buffer){0};
    return writer_put(w, mine.at, mine.count, mine.at, fault);
}

int writer_add(struct writer *w, const struct node *m, struct pax_buffer *header,
               struct fault *fault)
{
    if (w->error)
        return w->error;
    if (w->missing_bytes)
        return -EINVAL;
    w->stored_bytes = w->missing_bytes = pax_stored_bytes(m);
    w->sum_known = m->has_sum;
    w->sum = m->sum;
    int r = w->align_bytes && w->stored_bytes ? pax_align(header, w->tar_offset, w->align_bytes)
                                              : 0;
    if (r == 0)
        r = writer_add_to_index(w, m, header->count, fault);
    bool is_refused = builder_may_leave_out(r); /* nothing of it was written */
    if (r == 0)
        r = writer_check_index_room(w, fault);
    if (is_refused)
        w->missing_bytes = 0;
    if (r < 0)
        return is_refused ? r : (w->error = r);
    w->totals.files += m->is_hardlink || S_ISREG(m->mode);
    w->totals.data_bytes += w->stored_bytes;
    XXH3_128bits_update(w->identifier_state, header->at, header->count);
    XXH3_64bits_reset(w->sum_state);
    r = writer_put_header(w, m, header, fault);
    if (r == 0 && S_ISREG(m->mode) && !m->is_hardlink && !w->stored_bytes)
        r = writer_finish_data(w, fault);
    return r < 0 ? w->error = r : 0;
}

int writer_data(struct writer *w, void *bytes, size_t len, struct fault *fault)
{
    if (w->error || len > w->missing_bytes || (w->sum_known && len != w->stored_bytes)) {
        free(bytes);
        return w->error ? w->error : -EINVAL;
    }
    if (!w->sum_known)
        XXH3_64bits_update(w->sum_state, bytes, len);
    w->missing_bytes -= len;
    w->tar_offset += len;
    int r = w->framer ? framer_data(w->framer, bytes, len, fault)
                      : writer_put(w, bytes, len, bytes, fault);
    if (r == 0 && len && !w->missing_bytes)
        r = writer_finish_data(w, fault);
    return r < 0 ? w->error = r : 0;
}

/* ---- the end ---- */

static int writer_end_tar(struct writer *w, struct fault *fault)
{
    int r = writer_put_zeros(w, ONEPOT_MARKER_BYTES, fault);
    if (r == 0 && w->tar_offset % ONEPOT_RECORD_BYTES)
        r = writer_put_zeros(w, ONEPOT_RECORD_BYTES - w->tar_offset % ONEPOT_RECORD_BYTES,
                             fault);
    if (r == 0 && w->framer)
        r = framer_finish(w->framer, fault);
    if (r == 0 && w->offset % INDEX_WINDOW_BYTES)
        r = writer_end_window(w);
    return r < 0 ? r : writer_flush(w, 0, fault);
}

static int writer_write_trailer(struct writer *w, struct fault *fault)
{
    struct builder_header header = {
        .codec = w->framer ? CODEC_ZSTD : CODEC_NONE,
        .block_bytes = w->framer ? w->block_bytes : 0,
        .end_marker_offset = w->tar_offset,
        .has_sums = true,
    };
    XXH128_canonical_t id;
    int r = w->error ? w->error : w->missing_bytes ? -EINVAL : writer_end_tar(w, fault);
    if (r < 0)
        return r;
    header.archive_bytes = w->offset;
    header.window_sums = w->window_sums.at;
    header.window_count = w->window_sums.count;
    XXH128_canonicalFromHash(&id, XXH3_128bits_digest(w->identifier_state));
    memcpy(header.identifier, id.digest, sizeof(header.identifier));
    r = onepot_format_append(w->builder, &header, w->tar_offset, w->output->fd, fault,
                             &w->totals.file_bytes);
    return r < 0 ? writer_write_failed(w, r, fault) : 0;
}

int writer_finish(struct writer *w, struct fault *fault, struct writer_totals *ret_totals)
{
    int r = writer_write_trailer(w, fault);
    if (r == 0)
        *ret_totals = w->totals;
    writer_discard(w);
    return r;
}
