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

#include "cleanup.h"
#include "codec.h"
#include "numbers.h"
#include "source_window.h"

#define HEAD_BYTES 4u
#define MARK_BITS 48u
#define BLOCK_MARK UINT64_C(0x314159265359)
#define END_MARK UINT64_C(0x177245385090)
#define SUM_BITS 32u
#define LEVEL_BYTES 100000u
/* A run of 259 bytes takes 5 of the 900,000 bytes of a block. */
#define BLOCK_BYTES_MAX (9 * LEVEL_BYTES / 5 * 259)
/* 20 bits for each of them; tables; and 3 bits for each table's choice of six. */
#define PACKED_MAX (3u << 20)
#define STREAM_EXTRA 24u

#define TRIES 8u      /* marks in one block. More than one are no accident. */
#define MARKS_MAX 40u /* known ahead: SCAN_JOBS_MAX, TRIES and some */
#define CHUNK_BYTES (256u << 10)
#define WINDOW_BYTES (4 * CHUNK_BYTES)
#define MARK_BYTES 8u /* a mark, wherever in a byte it begins */
#define STEP 4u       /* of the search */
#define OUT_FIRST_BYTES (1u << 20)

struct mark {
    uint64_t bit; /* from the start of the source */
    bool is_end;  /* of a stream */
};

struct bzip2_scan {
    struct stream_scan scan; /* must be first */
    struct scan_jobs jobs;
    uint64_t bit;      /* where the next block or end must begin */
    uint32_t sum;      /* of the blocks so far */
    size_t usual;      /* bytes of the largest block so far */
    bool is_done;      /* no stream follows */
    bool found_all;    /* no mark follows the last one known */
    uint64_t searched; /* bit up to which marks have been looked for */
    struct mark marks[MARKS_MAX];
    unsigned first, count; /* of the marks */
    unsigned begun;        /* how many of the first marks have been looked at for jobs */

    struct source_window window; /* that marks are looked for in */
    uint8_t may_be[1u << 16];    /* pairs of bytes that occur in a mark */
};

/* ---- one block ---- */

/* `count` bits of the bytes, at most 57, from a bit on; the highest bit of a byte is first. */
static uint64_t bzip2_bits(const uint8_t *bytes, size_t bit, unsigned count)
{
    const uint8_t *at = bytes + bit / 8;
    unsigned skip = bit % 8, have = 0;
    uint64_t value = 0;
    for (; have < skip + count; have += 8)
        value = value << 8 | *at++;
    return value >> (have - skip - count) & ((UINT64_C(1) << count) - 1);
}

static void bits_put(uint8_t *bytes, size_t bit, uint64_t value, unsigned count)
{
    for (unsigned i = count; i-- > 0; bit++) {
        unsigned mask = 0x80u >> bit % 8;
        unsigned rest = bytes[bit / 8] & ~mask;
        bytes[bit / 8] = (uint8_t)(value >> i & 1 ? rest | mask : rest);
    }
}

/* Makes a stream of the block's `bits`, and returns its length. Its sum is the block's. */
static size_t bzip2_make_stream(const uint8_t *packed, size_t packed_len, unsigned first_bit,
                                size_t bits, uint8_t *stream)
{
    uint8_t *to = stream + HEAD_BYTES;
    memcpy(stream, "BZh9", HEAD_BYTES);
    if (first_bit == 0) {
        memcpy(to, packed, packed_len);
    } else {
        for (size_t i = 0; i + 1 < packed_len; i++)
            to[i] = (uint8_t)(packed[i] << first_bit | packed[i + 1] >> (8 - first_bit));
        to[packed_len - 1] = (uint8_t)(packed[packed_len - 1] << first_bit);
    }
    memset(to + packed_len, 0, STREAM_EXTRA - HEAD_BYTES);
    bits_put(to, bits, END_MARK, MARK_BITS);
    bits_put(to, bits + MARK_BITS, bzip2_bits(to, MARK_BITS, SUM_BITS), SUM_BITS);
    return HEAD_BYTES + (bits + MARK_BITS + SUM_BITS + 7) / 8;
}

/*
 * Decompresses the block that begins with bit `first_bit` of `packed` and ends with the first
 * `last_bits` bits of its last byte. Blocks do not refer to each other, and each has its own
 * sum, but libbz2 knows only streams. So the block's bits are moved to where a stream with one
 * block has them: `stream` is room for packed_len + STREAM_EXTRA bytes. -ENOSPC: the block is
 * longer than `room`. -EUCLEAN: these bits are no block, or it has another sum.
 */
static int bzip2_unpack_block(const uint8_t *packed, size_t packed_len, unsigned first_bit,
                              unsigned last_bits, uint8_t *stream, uint8_t *out, size_t room,
                              size_t *ret_len)
{
    size_t bits = packed_len * 8 - first_bit - (8 - last_bits);
    size_t least_bits = MARK_BITS + SUM_BITS;
    if (packed_len < least_bits / 8 || packed_len > PACKED_MAX || bits < least_bits)
        return -EUCLEAN;
    size_t len = bzip2_make_stream(packed, packed_len, first_bit, bits, stream);
    return bzip2_file_unpack(stream, len, out, min_u64(room, BLOCK_BYTES_MAX), ret_len);
}

/* ---- marks ---- */

/*
 * A mark covers five whole bytes or more, so it covers two neighbours of which the first is at
 * a multiple of four. The search looks at those pairs alone, and closer where one fits.
 */
static void bzip2_learn_pairs(struct bzip2_scan *s)
{
    static const uint64_t marks[] = {BLOCK_MARK, END_MARK};
    for (unsigned m = 0; m < 2; m++)
        for (unsigned shift = 0; shift <= MARK_BITS - 16; shift++)
            s->may_be[marks[m] >> shift & 0xffff] = 1;
}

static struct mark *bzip2_mark(struct bzip2_scan *s, unsigned i)
{
    return &s->marks[(s->first + i) % MARKS_MAX];
}

/* Looks for a mark that begins in these bits. Returns the bit; `to`: there is none. */
static size_t bzip2_find_at(const uint8_t *bytes, size_t from, size_t to, bool *ret_is_end)
{
    for (size_t bit = from; bit < to; bit++) {
        uint64_t value = bzip2_bits(bytes, bit, MARK_BITS);
        *ret_is_end = value == END_MARK;
        if (*ret_is_end || value == BLOCK_MARK)
            return bit;
    }
    return to;
}

/*
 * The first mark in the bytes that begins at bit `from` or behind, and leaves room for itself.
 * Returns its bit; `len` * 8: there is none.
 */
static size_t bzip2_find_mark(const struct bzip2_scan *s, const uint8_t *bytes, size_t len,
                              size_t from, bool *ret_is_end)
{
    size_t last = len >= MARK_BITS / 8 ? len * 8 - MARK_BITS + 1 : 0;
    for (size_t at = from / 8 / STEP * STEP; at + 1 < len; at += STEP) {
        if (!s->may_be[(unsigned)bytes[at] << 8 | bytes[at + 1]])
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
static int bzip2_next_mark(struct bzip2_scan *s, struct fault *fault)
{
    while (!s->found_all && s->count < MARKS_MAX) {
        const uint8_t *bytes = NULL;
        size_t len;
        bool is_end;
        uint64_t byte = s->searched / 8;
        size_t most = (size_t)min_u64(s->scan.end - byte, CHUNK_BYTES);
        int r = source_window_get(&s->window, byte, most, &bytes, &len);
        if (r < 0)
            return r == -ENOMEM ? r : fault_set_read(fault, r, NULL, byte);
        size_t from = s->searched % 8;
        size_t bit = bzip2_find_mark(s, bytes, len, from, &is_end);
        if (bit < len * 8) {
            *bzip2_mark(s, s->count++) = (struct mark){byte * 8 + bit, is_end};
            s->searched = byte * 8 + bit + 1;
            return 0;
        }
        s->found_all = byte + len == s->scan.end;
        s->searched = (byte + len - min_u64(len, MARK_BYTES)) * 8;
    }
    return 0;
}

/* ---- blocks ---- */

static int bzip2_unpack(struct scan_job *job)
{
    int r = stream_buffer_room(&job->work, job->packed_len + STREAM_EXTRA);
    if (r == 0)
        r = stream_buffer_room(&job->out, job->expected_len);
    if (r < 0)
        return r;
    r = bzip2_unpack_block(job->packed, job->packed_len, job->first_bit, job->last_bits,
                           job->work.at, job->out.at, job->out.room, &job->len);
    if (r != -ENOSPC)
        return r;
    r = stream_buffer_room(&job->out, BLOCK_BYTES_MAX);
    if (r < 0)
        return r;
    return bzip2_unpack_block(job->packed, job->packed_len, job->first_bit, job->last_bits,
                              job->work.at, job->out.at, job->out.room, &job->len);
}

/* The bits between two marks. False: they are too many for a block. */
static bool bzip2_set_job(const struct bzip2_scan *s, struct scan_job *job, uint64_t from,
                          uint64_t to)
{
    uint64_t end = (to + 7) / 8, len = end - from / 8;
    job->unpack = bzip2_unpack;
    job->offset = from / 8;
    job->first_bit = from % 8;
    job->last_bits = to % 8 ? to % 8 : 8;
    job->expected_len = s->usual;
    job->packed_len = (uint32_t)min_u64(len, PACKED_MAX);
    return len <= PACKED_MAX;
}

static uint64_t bzip2_job_bit(const struct scan_job *job)
{
    return job->offset * 8 + job->first_bit;
}

/* Begins as many jobs as may be: for each mark of a block that has one behind it. */
static int bzip2_begin_jobs(struct bzip2_scan *s, struct fault *fault)
{
    int r = 0;
    while (r == 0 && s->jobs.count < s->jobs.most) {
        while (r == 0 && s->count < s->begun + 2 && s->count < MARKS_MAX && !s->found_all)
            r = bzip2_next_mark(s, fault);
        if (r < 0 || s->count < s->begun + 2)
            return r;
        struct mark *mark = bzip2_mark(s, s->begun++), *next = bzip2_mark(s, s->begun);
        if (mark->is_end)
            continue;
        struct scan_job *job = scan_job_new(&s->jobs);
        if (bzip2_set_job(s, job, mark->bit, next->bit))
            r = scan_job_begin(&s->jobs, job, fault);
        else
            s->jobs.count--; /* the chain shows whether it is one */
    }
    return r;
}

/* Forgets marks and jobs before the next block. */
static void bzip2_forget(struct bzip2_scan *s)
{
    while (s->jobs.count > 0 && bzip2_job_bit(scan_job_at(&s->jobs, 0)) < s->bit)
        scan_job_drop(&s->jobs);
    while (s->count > 0 && bzip2_mark(s, 0)->bit < s->bit) {
        s->first = (s->first + 1) % MARKS_MAX;
        s->count--;
        s->begun -= s->begun > 0;
    }
}

/* Does the second mark begin a sound block? Then the first block is damaged. */
static bool bzip2_next_is_sound(struct bzip2_scan *s)
{
    struct scan_job *next = scan_job_at(&s->jobs, 1);
    if (s->jobs.count < 2 || bzip2_job_bit(next) != bzip2_mark(s, 1)->bit)
        return false;
    return scan_job_finish(&s->jobs, next) == 0;
}

/*
 * The block at the first mark does not end at the second one. Tries the marks behind that. The
 * job is the first one, whose bytes are read again.
 */
static int bzip2_try_longer(struct bzip2_scan *s, struct fault *fault, unsigned *ret_mark)
{
    struct scan_job *job = scan_job_at(&s->jobs, 0);
    if (bzip2_next_is_sound(s))
        return -EUCLEAN;
    for (unsigned i = 2; i < TRIES + 2; i++) {
        while (s->count <= i && !s->found_all) {
            int r = bzip2_next_mark(s, fault);
            if (r < 0)
                return r;
        }
        if (s->count <= i || !bzip2_set_job(s, job, s->bit, bzip2_mark(s, i)->bit))
            return -EUCLEAN;
        int r = scan_job_begin(&s->jobs, job, fault);
        if (r == 0)
            r = scan_job_finish(&s->jobs, job);
        if (r != -EUCLEAN) {
            *ret_mark = i;
            return r;
        }
    }
    return -ENOTSUP;
}

/* The block at s->bit. */
static int bzip2_take_block(struct bzip2_scan *s, struct stream_buffer *buffer,
                            struct fault *fault, struct stream_part *ret_part)
{
    unsigned end = 1;
    uint8_t head[(7 + MARK_BITS + SUM_BITS + 7) / 8];
    if (s->count < 2)
        return scan_damaged(&s->scan, fault, s->scan.end, "it ends too early");
    if (s->jobs.count == 0 || bzip2_job_bit(scan_job_at(&s->jobs, 0)) != s->bit)
        return scan_damaged(&s->scan, fault, s->bit / 8, "a block is too long");
    int r = scan_job_finish(&s->jobs, scan_job_at(&s->jobs, 0));
    if (r == -EUCLEAN)
        r = bzip2_try_longer(s, fault, &end);
    if (r == -EUCLEAN)
        return scan_damaged(&s->scan, fault, s->bit / 8,
                            "a block makes no sense, or has a wrong sum");
    if (r == 0)
        r = source_read_fault(s->scan.source, head, sizeof(head), s->bit / 8, fault);
    if (r < 0)
        return r;
    uint32_t sum = (uint32_t)bzip2_bits(head, s->bit % 8 + MARK_BITS, SUM_BITS);
    s->sum = (s->sum << 1 | s->sum >> 31) ^ sum;
    s->bit = bzip2_mark(s, end)->bit;
    scan_job_give(&s->jobs, buffer, ret_part);
    uint64_t len = ret_part->block.block_bytes;
    s->usual = max_u64(s->usual, len + len / 8);
    return 0;
}

/* A stream's header at `offset`? */
static int bzip2_read_header(struct bzip2_scan *s, uint64_t offset, struct fault *fault,
                             bool *ret_is_one)
{
    uint8_t head[HEAD_BYTES] = {0};
    size_t len = (size_t)min_u64(s->scan.end - offset, sizeof(head));
    int r = source_read_fault(s->scan.source, head, len, offset, fault);
    bool begins = len > 0 && memcmp(head, "BZh", min_u64(len, 3)) == 0;
    *ret_is_one = begins && head[3] >= '1' && head[3] <= '9';
    if (r == 0 && begins && len < sizeof(head))
        return scan_damaged(&s->scan, fault, s->scan.end, "it ends too early");
    return r;
}

/* The end of a stream at s->bit. Another may follow. */
static int bzip2_take_end(struct bzip2_scan *s, struct fault *fault)
{
    uint8_t sum[SUM_BITS / 8 + 1] = {0};
    uint64_t bit = s->bit + MARK_BITS, end = (bit + SUM_BITS + 7) / 8;
    if (end > s->scan.end)
        return scan_damaged(&s->scan, fault, s->scan.end, "it ends too early");
    int r = source_read_fault(s->scan.source, sum, end - bit / 8, bit / 8, fault);
    if (r < 0)
        return r;
    if (bzip2_bits(sum, bit % 8, SUM_BITS) != s->sum)
        return scan_damaged(&s->scan, fault, bit / 8, "its checksum does not fit");
    bool is_one;
    r = bzip2_read_header(s, end, fault, &is_one);
    s->scan.offset = end;
    s->sum = 0;
    s->is_done = !is_one;
    s->bit = (end + HEAD_BYTES) * 8;
    return r;
}

static int bzip2_next(struct stream_scan *scan, struct stream_buffer *buffer,
                      struct fault *fault, struct stream_part *ret_part)
{
    struct bzip2_scan *s = (struct bzip2_scan *)scan;
    while (!s->is_done) {
        bzip2_forget(s);
        int r = bzip2_begin_jobs(s, fault);
        if (r < 0)
            return r;
        if (s->count == 0 || bzip2_mark(s, 0)->bit != s->bit) {
            bool is_cut = s->bit / 8 + MARK_BITS / 8 >= s->scan.end;
            return scan_damaged(&s->scan, fault, is_cut ? s->scan.end : s->bit / 8,
                                is_cut ? "it ends too early" : "no block begins here");
        }
        if (!bzip2_mark(s, 0)->is_end) {
            r = bzip2_take_block(s, buffer, fault, ret_part);
            s->scan.offset = s->bit / 8;
            return r;
        }
        r = bzip2_take_end(s, fault);
        if (r < 0)
            return r;
    }
    ret_part->is_last = true;
    return 0;
}

static int bzip2_begin(struct stream_scan *scan, struct fault *fault)
{
    struct bzip2_scan *s = (struct bzip2_scan *)scan;
    bool is_one;
    int r = bzip2_read_header(s, scan->start, fault, &is_one);
    if (r < 0)
        return r;
    if (!is_one)
        return scan_damaged(scan, fault, scan->start, "it has no sound header");
    source_window_close(&s->window);
    r = source_window_open(&s->window, scan->source, WINDOW_BYTES);
    scan_jobs_begin(&s->jobs, scan);
    s->bit = s->searched = (scan->start + HEAD_BYTES) * 8;
    s->sum = 0;
    s->usual = OUT_FIRST_BYTES;
    s->is_done = s->found_all = false;
    s->first = s->count = s->begun = 0;
    bzip2_learn_pairs(s);
    return r;
}

static void bzip2_end(struct stream_scan *scan)
{
    struct bzip2_scan *s = (struct bzip2_scan *)scan;
    scan_jobs_free(&s->jobs);
    source_window_close(&s->window);
}

/* struct stream; for one block a buffer of its size costs nothing. */
static int bzip2_unpack_part(struct stream_memory **memory, const struct block_point *point,
                             const void *packed, size_t packed_len, void *block, size_t size)
{
    size_t len;
    (void)memory;
    if (packed_len > PACKED_MAX)
        return -EUCLEAN;
    auto_free uint8_t *stream = malloc(packed_len + STREAM_EXTRA);
    if (!stream)
        return -ENOMEM;
    int r = bzip2_unpack_block(packed, packed_len, point->first_bit, point->last_bits, stream,
                               block, size, &len);
    return r == -ENOSPC || (r == 0 && len != size) ? -EUCLEAN : r;
}

const struct stream stream_bzip2 = {
    .name = "bzip2",
    .codec = CODEC_BZIP2,
    .scan_bytes = sizeof(struct bzip2_scan),
    .begin = bzip2_begin,
    .next = bzip2_next,
    .end = bzip2_end,
    .unpack = bzip2_unpack_part,
};
