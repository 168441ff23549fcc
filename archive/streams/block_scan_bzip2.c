/*
 * bzip2 has no table of its blocks. Each begins with a mark of 48 bits, at any bit, and so does
 * the end of a stream. Marks are looked for, and the bits between two of them are decompressed
 * as a block. Bits that look like a mark may also occur in a block: then the bits before them
 * have a wrong sum or no end, and are tried again up to the next mark, a few times.
 *
 * No guess remains: the first mark is behind the header of the first stream, a block's sum says
 * that it ended where the next mark is, and the stream's sum covers its blocks' sums.
 *
 *     "BZh", level | block | block | ... | end mark, sum | padding to a byte | next stream
 */
#include "block_scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bzip2_block.h"
#include "codec_parts.h"
#include "numbers.h"

#define HEAD_BYTES 4u
#define SUM_BITS 32u
#define TRIES 8u      /* marks in one block. More than one are no accident. */
#define MARKS_MAX 40u /* known ahead: SCAN_JOBS_MAX, TRIES and some */
#define CHUNK_BYTES (256u << 10)
#define MARK_BYTES 8u /* a mark, wherever in a byte it begins */
#define STEP 4u       /* of the search */
#define OUT_FIRST_BYTES (1u << 20)

struct mark {
    uint64_t bit; /* from the start of the source */
    bool is_end;  /* of a stream */
};

struct bzip2_state {
    uint64_t bit;      /* where the next block or end must begin */
    uint32_t sum;      /* of the blocks so far */
    size_t usual;      /* bytes of the largest block so far */
    bool is_done;      /* no stream follows */
    bool found_all;    /* no mark follows the last one known */
    uint64_t searched; /* bit up to which marks have been looked for */
    struct mark marks[MARKS_MAX];
    unsigned first, count; /* of the marks */
    unsigned begun;        /* how many of the first marks have been looked at for jobs */

    uint8_t *chunk; /* only without a map */
    uint64_t chunk_offset;
    size_t chunk_len;
    uint8_t may_be[1u << 16]; /* pairs of bytes that occur in a mark */
};

/* ---- marks ---- */

/*
 * A mark covers five whole bytes or more, so it covers two neighbours of which the first is at
 * a multiple of four. The search looks at those pairs alone, and closer where one fits.
 */
static void bzip2_learn_pairs(struct bzip2_state *b)
{
    static const uint64_t marks[] = {BZIP2_BLOCK_MARK, BZIP2_END_MARK};
    for (unsigned m = 0; m < 2; m++)
        for (unsigned shift = 0; shift <= BZIP2_MARK_BITS - 16; shift++)
            b->may_be[marks[m] >> shift & 0xffff] = 1;
}

static struct mark *bzip2_mark(struct bzip2_state *b, unsigned i)
{
    return &b->marks[(b->first + i) % MARKS_MAX];
}

/* Are there bytes from `offset` on that were read, enough for a search to get further? */
static bool bzip2_has_read(const struct bzip2_state *b, uint64_t offset, uint64_t end)
{
    uint64_t read_to = b->chunk_offset + b->chunk_len;
    return offset >= b->chunk_offset && offset < read_to &&
           (read_to - offset > MARK_BYTES || read_to == end);
}

/*
 * Bytes from `offset` on: up to CHUNK_BYTES, but more than MARK_BYTES, except at the end.
 */
static int bzip2_look(struct block_scan *s, uint64_t offset, struct fault *fault,
                      const uint8_t **ret_bytes, size_t *ret_len)
{
    struct bzip2_state *b = s->state;
    size_t len = (size_t)min_u64(s->scan.end - offset, CHUNK_BYTES);
    if (s->map) {
        *ret_bytes = s->map + offset;
        *ret_len = len;
        return 0;
    }
    if (!b->chunk && !(b->chunk = malloc(CHUNK_BYTES)))
        return -ENOMEM;
    if (!bzip2_has_read(b, offset, s->scan.end)) {
        b->chunk_len = 0;
        int r = scan_read(s, b->chunk, len, offset, fault);
        if (r < 0)
            return r;
        b->chunk_offset = offset;
        b->chunk_len = len;
    }
    *ret_bytes = b->chunk + (offset - b->chunk_offset);
    *ret_len = b->chunk_len - (size_t)(offset - b->chunk_offset);
    return 0;
}

/* Looks for a mark that begins in these bits. Returns the bit; `to`: there is none. */
static size_t bzip2_find_at(const uint8_t *bytes, size_t from, size_t to, bool *ret_is_end)
{
    for (size_t bit = from; bit < to; bit++) {
        uint64_t value = bzip2_bits(bytes, bit, BZIP2_MARK_BITS);
        *ret_is_end = value == BZIP2_END_MARK;
        if (*ret_is_end || value == BZIP2_BLOCK_MARK)
            return bit;
    }
    return to;
}

/*
 * The first mark in the bytes that begins at bit `from` or behind, and leaves room for itself.
 * Returns its bit; `len` * 8: there is none.
 */
static size_t bzip2_find_mark(const struct bzip2_state *b, const uint8_t *bytes, size_t len,
                              size_t from, bool *ret_is_end)
{
    size_t last = len >= BZIP2_MARK_BITS / 8 ? len * 8 - BZIP2_MARK_BITS + 1 : 0;
    for (size_t at = from / 8 / STEP * STEP; at + 1 < len; at += STEP) {
        if (!b->may_be[(unsigned)bytes[at] << 8 | bytes[at + 1]])
            continue;
        /* The pair is whole within the mark, and begins at most 32 bits behind its start. */
        size_t first = at * 8 > 32 ? at * 8 - 32 : 0, end = at * 8 + 1;
        size_t bit = bzip2_find_at(bytes, first > from ? first : from, end < last ? end : last,
                                   ret_is_end);
        if (bit < end && bit < last)
            return bit;
    }
    return len * 8;
}

/* Learns of one more mark, if there is room and one follows. */
static int bzip2_next_mark(struct block_scan *s, struct fault *fault)
{
    struct bzip2_state *b = s->state;
    while (!b->found_all && b->count < MARKS_MAX) {
        const uint8_t *bytes;
        size_t len;
        bool is_end;
        uint64_t byte = b->searched / 8;
        int r = bzip2_look(s, byte, fault, &bytes, &len);
        if (r < 0)
            return r;
        size_t from = b->searched % 8;
        size_t bit = bzip2_find_mark(b, bytes, len, from, &is_end);
        if (bit < len * 8) {
            *bzip2_mark(b, b->count++) = (struct mark){byte * 8 + bit, is_end};
            b->searched = byte * 8 + bit + 1;
            return 0;
        }
        b->found_all = byte + len == s->scan.end;
        b->searched = (byte + len - min_u64(len, MARK_BYTES)) * 8;
    }
    return 0;
}

/* ---- blocks ---- */

static int bzip2_unpack(struct scan_job *job)
{
    int r = stream_buffer_room(&job->work, job->packed_len + BZIP2_STREAM_EXTRA);
    if (r == 0)
        r = stream_buffer_room(&job->out, job->expected_len);
    if (r < 0)
        return r;
    r = bzip2_block_unpack(job->packed, job->packed_len, job->first_bit, job->last_bits,
                           job->work.at, job->out.at, job->out.room, &job->len);
    if (r != -ENOSPC)
        return r;
    r = stream_buffer_room(&job->out, BZIP2_BLOCK_BYTES_MAX);
    if (r < 0)
        return r;
    return bzip2_block_unpack(job->packed, job->packed_len, job->first_bit, job->last_bits,
                              job->work.at, job->out.at, job->out.room, &job->len);
}

/* The bits between two marks. False: they are too many for a block. */
static bool bzip2_set_job(const struct bzip2_state *b, struct scan_job *job, uint64_t from,
                          uint64_t to)
{
    uint64_t end = (to + 7) / 8, len = end - from / 8;
    job->unpack = bzip2_unpack;
    job->offset = from / 8;
    job->first_bit = from % 8;
    job->last_bits = to % 8 ? to % 8 : 8;
    job->expected_len = b->usual;
    job->packed_len = (uint32_t)min_u64(len, BZIP2_PACKED_MAX);
    return len <= BZIP2_PACKED_MAX;
}

static uint64_t bzip2_job_bit(const struct scan_job *job)
{
    return job->offset * 8 + job->first_bit;
}

/* Begins as many jobs as may be: for each mark of a block that has one behind it. */
static int bzip2_begin_jobs(struct block_scan *s, struct fault *fault)
{
    struct bzip2_state *b = s->state;
    int r = 0;
    while (r == 0 && s->jobs_count < s->jobs_most) {
        while (r == 0 && b->count < b->begun + 2 && b->count < MARKS_MAX && !b->found_all)
            r = bzip2_next_mark(s, fault);
        if (r < 0 || b->count < b->begun + 2)
            return r;
        struct mark *mark = bzip2_mark(b, b->begun++), *next = bzip2_mark(b, b->begun);
        if (mark->is_end)
            continue;
        struct scan_job *job = scan_job_new(s);
        if (bzip2_set_job(b, job, mark->bit, next->bit))
            r = scan_job_begin(s, job, fault);
        else
            s->jobs_count--; /* the chain shows whether it is one */
    }
    return r;
}

/* Forgets marks and jobs before the next block. */
static void bzip2_forget(struct block_scan *s)
{
    struct bzip2_state *b = s->state;
    while (s->jobs_count > 0 && bzip2_job_bit(scan_job_at(s, 0)) < b->bit)
        scan_job_drop(s);
    while (b->count > 0 && bzip2_mark(b, 0)->bit < b->bit) {
        b->first = (b->first + 1) % MARKS_MAX;
        b->count--;
        b->begun -= b->begun > 0;
    }
}

/* Does the second mark begin a sound block? Then the first block is damaged. */
static bool bzip2_next_is_sound(struct block_scan *s)
{
    struct scan_job *next = scan_job_at(s, 1);
    if (s->jobs_count < 2 || bzip2_job_bit(next) != bzip2_mark(s->state, 1)->bit)
        return false;
    helpers_finish(s->helpers, &next->task);
    return next->err == 0;
}

/*
 * The block at the first mark does not end at the second one. Tries the marks behind that. The
 * job is the first one, whose bytes are read again.
 */
static int bzip2_try_longer(struct block_scan *s, struct fault *fault, unsigned *ret_mark)
{
    struct bzip2_state *b = s->state;
    struct scan_job *job = scan_job_at(s, 0);
    if (bzip2_next_is_sound(s))
        return -EUCLEAN;
    for (unsigned i = 2; i < TRIES + 2; i++) {
        while (b->count <= i && !b->found_all) {
            int r = bzip2_next_mark(s, fault);
            if (r < 0)
                return r;
        }
        if (b->count <= i || !bzip2_set_job(b, job, b->bit, bzip2_mark(b, i)->bit))
            return -EUCLEAN;
        int r = scan_job_begin(s, job, fault);
        if (r == 0) {
            helpers_finish(s->helpers, &job->task);
            r = job->err;
        }
        if (r != -EUCLEAN) {
            *ret_mark = i;
            return r;
        }
    }
    return -ENOTSUP;
}

/* The block at b->bit. */
static int bzip2_take_block(struct block_scan *s, struct stream_buffer *buffer,
                            struct fault *fault, struct stream_part *ret_part)
{
    struct bzip2_state *b = s->state;
    unsigned end = 1;
    uint8_t head[(7 + BZIP2_MARK_BITS + SUM_BITS + 7) / 8];
    if (b->count < 2)
        return scan_damaged(s, fault, s->scan.end, "it ends too early");
    if (s->jobs_count == 0 || bzip2_job_bit(scan_job_at(s, 0)) != b->bit)
        return scan_damaged(s, fault, b->bit / 8, "a block is too long");
    int r = scan_job_finish(s);
    if (r == -EUCLEAN)
        r = bzip2_try_longer(s, fault, &end);
    if (r == -EUCLEAN)
        return scan_damaged(s, fault, b->bit / 8, "a block makes no sense, or has a wrong sum");
    if (r == 0)
        r = scan_read(s, head, sizeof(head), b->bit / 8, fault);
    if (r < 0)
        return r;
    uint32_t sum = (uint32_t)bzip2_bits(head, b->bit % 8 + BZIP2_MARK_BITS, SUM_BITS);
    b->sum = (b->sum << 1 | b->sum >> 31) ^ sum;
    b->bit = bzip2_mark(b, end)->bit;
    scan_job_give(s, buffer, ret_part);
    uint64_t len = ret_part->block.block_bytes;
    b->usual = max_u64(b->usual, len + len / 8);
    return 0;
}

/* A stream's header at `offset`? */
static int bzip2_read_header(struct block_scan *s, uint64_t offset, struct fault *fault,
                             bool *ret_is_one)
{
    uint8_t head[HEAD_BYTES] = {0};
    size_t len = (size_t)min_u64(s->scan.end - offset, sizeof(head));
    int r = scan_read(s, head, len, offset, fault);
    bool begins = len > 0 && memcmp(head, "BZh", min_u64(len, 3)) == 0;
    *ret_is_one = begins && head[3] >= '1' && head[3] <= '9';
    if (r == 0 && begins && len < sizeof(head))
        return scan_damaged(s, fault, s->scan.end, "it ends too early");
    return r;
}

/* The end of a stream at b->bit. Another may follow. */
static int bzip2_take_end(struct block_scan *s, struct fault *fault)
{
    struct bzip2_state *b = s->state;
    uint8_t sum[SUM_BITS / 8 + 1] = {0};
    uint64_t bit = b->bit + BZIP2_MARK_BITS, end = (bit + SUM_BITS + 7) / 8;
    if (end > s->scan.end)
        return scan_damaged(s, fault, s->scan.end, "it ends too early");
    int r = scan_read(s, sum, end - bit / 8, bit / 8, fault);
    if (r < 0)
        return r;
    if (bzip2_bits(sum, bit % 8, SUM_BITS) != b->sum)
        return scan_damaged(s, fault, bit / 8, "its checksum does not fit");
    bool is_one;
    r = bzip2_read_header(s, end, fault, &is_one);
    s->scan.offset = end;
    b->sum = 0;
    b->is_done = !is_one;
    b->bit = (end + HEAD_BYTES) * 8;
    return r;
}

static int bzip2_next(struct block_scan *s, struct stream_buffer *buffer, struct fault *fault,
                      struct stream_part *ret_part)
{
    struct bzip2_state *b = s->state;
    while (!b->is_done) {
        bzip2_forget(s);
        int r = bzip2_begin_jobs(s, fault);
        if (r < 0)
            return r;
        if (b->count == 0 || bzip2_mark(b, 0)->bit != b->bit) {
            bool is_cut = b->bit / 8 + BZIP2_MARK_BITS / 8 >= s->scan.end;
            return scan_damaged(s, fault, is_cut ? s->scan.end : b->bit / 8,
                                is_cut ? "it ends too early" : "no block begins here");
        }
        if (!bzip2_mark(b, 0)->is_end) {
            r = bzip2_take_block(s, buffer, fault, ret_part);
            s->scan.offset = b->bit / 8;
            return r;
        }
        r = bzip2_take_end(s, fault);
        if (r < 0)
            return r;
    }
    ret_part->is_last = true;
    return 0;
}

static int bzip2_begin(struct block_scan *s, struct fault *fault)
{
    struct bzip2_state *b = s->state;
    bool is_one;
    int r = bzip2_read_header(s, s->scan.start, fault, &is_one);
    if (r < 0)
        return r;
    if (!is_one)
        return scan_damaged(s, fault, s->scan.start, "it has no sound header");
    uint8_t *chunk = b->chunk;
    *b = (struct bzip2_state){.bit = (s->scan.start + HEAD_BYTES) * 8,
                              .searched = (s->scan.start + HEAD_BYTES) * 8,
                              .usual = OUT_FIRST_BYTES,
                              .chunk = chunk};
    bzip2_learn_pairs(b);
    return 0;
}

static void bzip2_end(struct block_scan *s)
{
    struct bzip2_state *b = s->state;
    free(b->chunk);
}

static const struct scan_kind bzip2_kind = {
    .state_bytes = sizeof(struct bzip2_state),
    .begin = bzip2_begin,
    .next = bzip2_next,
    .end = bzip2_end,
};

const struct stream stream_bzip2 = {
    .name = "bzip2",
    .codec = CODEC_BZIP2,
    BLOCK_SCAN,
    .unpack = codec_parts_bzip2,
    .kind = &bzip2_kind,
};
