/*
 * zlib stops between blocks if asked to (Z_BLOCK), and says how many bits of the last byte it
 * left. That is where a part can end. ISA-L does the same, with help (block_inflate_step), in
 * half the time. Where it is in doubt, zlib begins the block anew, and goes on to the stream's
 * end. So parts and errors are zlib's, whoever decompresses. To that end zlib also reads the
 * header of each block, which takes a fifteenth of the time.
 *
 * Which bytes of the window does a part refer to? Only its first 32 KB can, so these are
 * decompressed twice more, with windows whose bytes name their places. What comes out differs
 * wherever it came from the window, and together both bytes say from where.
 */
#include "deflate_scan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_ISAL
#include <isa-l/igzip_lib.h>
#endif
#include <libdeflate.h>
#include <xxhash.h>
#include <zlib.h>
#include <zstd.h>

#include "block_scan.h"
#include "bytes.h"
#include "numbers.h"

#define IN_BYTES (256u << 10)
#define MAPPED_BYTES (1u << 30) /* zlib counts in 32 bits */
#define OUT_FIRST_BYTES (1u << 20)
#define PACKED_MAX (1u << 30)
#define PROBE_IN_BYTES (64u << 10)
#define WINDOW_LEVEL 6 /* of zstd: higher ones gain less than a hundredth */
/* The cost of a point besides its window: its records, and a page sum now and then. */
#define POINT_BYTES 56u
#define WINDOW_GUESS_BYTES 2048u
#define STREAM_SHARE 133u /* of so many bytes of the stream, one may be spent on points */
#define FIRST_SHARE_BYTES 4096u
#define RAW_DEFLATE (-15)
#define HEADER_MAX 330u /* bytes of a block's header, and the one before */
#define SCAN_UNSURE 2

/* Of unpacking. */
#define STORED_HEAD_BYTES 5u
#define FILLER_BYTES 20u /* 99 bits, three times 10, and the part's first byte */
#define LAST_BYTES 3u
/* Parts are mostly of 1 MiB. Room for longer ones is given back: each thread would keep it. */
#define KEPT_BYTES (8u << 20)
#define MATCH_MAX 258u

/* ---- deflate, one block at a time, with ISA-L ---- */

#ifdef HAVE_ISAL

/*
 * ISA-L itself does not stop between blocks, but it stops behind the last one. So it is told
 * that each block is the last: the first bit of a block says so, and we hand it over.
 *
 * How far has ISA-L read when a block ends? It takes up to eight bytes ahead into `read_in`,
 * and later versions drop these bits once all content was handed out. So it never hands out
 * any: without room (avail_out = 0) it decompresses into its own buffer, where the window lies,
 * up to 64 KB in all. The content is copied from there.
 */
struct block_inflate {
    struct inflate_state state;
    struct inflate_state probe;
    size_t taken;    /* bytes of its buffer that are the window, or were copied */
    bool is_between; /* two blocks */
    bool is_last;
};

int block_inflate_new(struct block_inflate **ret_inflate)
{
    struct block_inflate *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    isal_inflate_init(&b->state);
    isal_inflate_init(&b->probe);
    block_inflate_begin(b);
    *ret_inflate = b;
    return 0;
}

void block_inflate_begin(struct block_inflate *b)
{
    isal_inflate_reset(&b->state);
    b->taken = 0;
    b->is_between = true;
    b->is_last = false;
}

unsigned block_inflate_ahead(const struct block_inflate *b)
{
    return (unsigned)b->state.read_in_length;
}

/* Reads the first bit of a block, and sets it. False: there is none yet. */
static bool enter_block(struct block_inflate *b, const uint8_t **next_in, uint32_t *avail_in)
{
    struct inflate_state *s = &b->state;
    if (s->read_in_length == 0) {
        if (*avail_in == 0)
            return false;
        s->read_in = *(*next_in)++;
        s->read_in_length = 8;
        --*avail_in;
    }
    b->is_last = s->read_in & 1;
    b->is_between = false;
    s->read_in |= 1;
    s->block_state = ISAL_BLOCK_NEW_HDR;
    return true;
}

/* Copies the buffered bytes. True: there were no more. */
static bool take_content(struct block_inflate *b, uint8_t **out, size_t *room)
{
    struct inflate_state *s = &b->state;
    size_t len = (size_t)min_u64((uint64_t)s->tmp_out_valid - b->taken, *room);
    memcpy(*out, s->tmp_out_buffer + b->taken, len);
    *out += len;
    *room -= len;
    b->taken += len;
    return b->taken == (size_t)s->tmp_out_valid;
}

/* Keeps the window of its buffer alone. */
static void move_window(struct block_inflate *b)
{
    struct inflate_state *s = &b->state;
    size_t valid = (size_t)s->tmp_out_valid, keep = (size_t)min_u64(valid, ISAL_DEF_HIST_SIZE);
    memmove(s->tmp_out_buffer, s->tmp_out_buffer + valid - keep, keep);
    s->tmp_out_valid = (int32_t)keep;
    b->taken = keep;
}

/* Fills its buffer: 1; 0: not without input; -1: damaged, or a stream's empty first block. */
static int fill_buffer(struct block_inflate *b, const uint8_t **next_in, uint32_t *avail_in)
{
    struct inflate_state *s = &b->state;
    uint8_t none;
    move_window(b);
    s->tmp_out_processed = 0; /* not all of it, whatever is in it: else it may be done */
    s->next_in = (uint8_t *)(uintptr_t)*next_in;
    s->avail_in = *avail_in;
    s->next_out = &none;
    s->avail_out = 0;
    int r = isal_inflate(s);
    bool did_nothing = s->avail_in == *avail_in && (size_t)s->tmp_out_valid == b->taken &&
                       s->block_state != ISAL_BLOCK_INPUT_DONE;
    *next_in = s->next_in;
    *avail_in = s->avail_in;
    if (r != ISAL_DECOMP_OK || s->block_state == ISAL_BLOCK_FINISH ||
        (size_t)s->tmp_out_valid < b->taken || (did_nothing && *avail_in > 0))
        return -1;
    return did_nothing ? 0 : 1;
}

enum block_inflate_result block_inflate_step(struct block_inflate *b, const uint8_t **next_in,
                                             uint32_t *avail_in, uint8_t *out, size_t room,
                                             size_t *ret_len)
{
    int filled = 1;
    const uint8_t *begin = out;
    *ret_len = 0;
    if (b->is_between && !enter_block(b, next_in, avail_in))
        return BLOCK_INFLATE_MORE;
    while (filled > 0 && take_content(b, &out, &room) && !b->is_between) {
        b->is_between = b->state.block_state == ISAL_BLOCK_INPUT_DONE;
        if (!b->is_between)
            filled = fill_buffer(b, next_in, avail_in);
    }
    *ret_len = (size_t)(out - begin);
    if (filled < 0)
        return BLOCK_INFLATE_UNSURE;
    if (!b->is_between)
        return BLOCK_INFLATE_MORE;
    return b->is_last ? BLOCK_INFLATE_LAST : BLOCK_INFLATE_END;
}

static bool block_inflate_probe(struct block_inflate *b, const uint8_t *packed,
                                size_t packed_len, unsigned first_bit, const uint8_t *window,
                                size_t window_len, uint8_t *out, size_t len)
{
    struct inflate_state *s = &b->probe;
    isal_inflate_reset(s);
    if (isal_inflate_set_dict(s, (uint8_t *)(uintptr_t)window, (uint32_t)window_len) != COMP_OK)
        return false;
    if (first_bit > 0) {
        s->read_in = *packed++ >> first_bit;
        s->read_in_length = (int32_t)(8 - first_bit);
        packed_len--;
    }
    s->next_in = (uint8_t *)(uintptr_t)packed;
    s->avail_in = (uint32_t)packed_len;
    s->next_out = out;
    s->avail_out = (uint32_t)len;
    (void)isal_inflate(s);
    return s->avail_out == 0;
}

#else

int block_inflate_new(struct block_inflate **ret_inflate)
{
    (void)ret_inflate;
    return -ENOTSUP;
}

void block_inflate_begin(struct block_inflate *b)
{
    (void)b;
}

enum block_inflate_result block_inflate_step(struct block_inflate *b, const uint8_t **next_in,
                                             uint32_t *avail_in, uint8_t *out, size_t room,
                                             size_t *ret_len)
{
    (void)b, (void)next_in, (void)avail_in, (void)out, (void)room, (void)ret_len;
    return BLOCK_INFLATE_UNSURE;
}

unsigned block_inflate_ahead(const struct block_inflate *b)
{
    (void)b;
    return 0;
}

static bool block_inflate_probe(struct block_inflate *b, const uint8_t *packed,
                                size_t packed_len, unsigned first_bit, const uint8_t *window,
                                size_t window_len, uint8_t *out, size_t len)
{
    (void)b, (void)packed, (void)packed_len, (void)first_bit, (void)window, (void)window_len;
    (void)out, (void)len;
    return false;
}

#endif

/* ---- the scan ---- */

struct deflate_scan {
    struct stream_scan scan; /* must be first */
    const uint8_t *map;
    uint8_t *in; /* only without a map */
    size_t in_len;
    uint64_t in_end;              /* the offset of the byte behind the input at hand */
    z_stream z;                   /* all of the stream; its input also where ISA-L takes it */
    z_stream probe;               /* the beginning of a part, or of a block */
    struct block_inflate *blocks; /* NULL: without ISA-L */
    bool uses_zlib;
    uint64_t spent; /* on the stream's points */
    uint64_t guess; /* bytes that the next point takes */
    bool cuts_often, is_without_isal;

    /* The part that comes next. */
    uint64_t part_offset;
    unsigned first_bit;
    size_t window_len;
    uint8_t window[POINT_WINDOW_MAX];

    ZSTD_CCtx *zstd;
    uint8_t *packed_window;             /* of the last part */
    uint8_t pieces[POINT_PIECES_BYTES]; /* sums of the last part's */
    uint8_t marked[2][POINT_WINDOW_MAX], probed[2][POINT_WINDOW_MAX];
    bool used[POINT_WINDOW_MAX];
    uint8_t sparse[POINT_WINDOW_MAX];
    uint8_t probe_in[PROBE_IN_BYTES];
};

/* The bytes that stand for place i in the two windows. They always differ. */
static uint8_t mark_of(unsigned which, uint32_t i)
{
    uint8_t low = (uint8_t)i;
    return which == 0 ? low : (uint8_t)(low ^ (uint8_t)((i >> 8) + 1));
}

static uint32_t marked_place(uint8_t first, uint8_t second)
{
    return (uint32_t)((first ^ second) - 1) << 8 | first;
}

void deflate_scan_cut_often(struct stream_scan *scan)
{
    ((struct deflate_scan *)scan)->cuts_often = true;
}

void deflate_scan_with_zlib(struct stream_scan *scan)
{
    ((struct deflate_scan *)scan)->is_without_isal = true;
}

/* How far the source was used. */
static uint64_t scan_offset(const struct deflate_scan *s)
{
    return s->in_end - s->z.avail_in - (s->uses_zlib ? 0 : block_inflate_ahead(s->blocks) / 8);
}

/* Bits of the last byte that belong to the next block. */
static unsigned scan_unused_bits(const struct deflate_scan *s)
{
    return s->uses_zlib ? s->z.data_type & 7 : block_inflate_ahead(s->blocks) % 8;
}

/* ---- the windows ---- */

/* `len` bytes of the source, at most PROBE_IN_BYTES. */
static int scan_look(struct deflate_scan *s, uint64_t offset, size_t len,
                     const uint8_t **ret_bytes)
{
    uint64_t in_offset = s->in_end - s->in_len;
    bool is_at_hand = offset >= in_offset && offset + len <= s->in_end;
    *ret_bytes = s->map       ? s->map + offset
                 : is_at_hand ? s->in + (offset - in_offset)
                              : s->probe_in;
    return s->map || is_at_hand ? 0 : source_read(s->scan.source, s->probe_in, len, offset);
}

/* Lets zlib begin between two blocks. */
static bool scan_enter(z_stream *z, const uint8_t *packed, size_t packed_len,
                       unsigned first_bit, const uint8_t *window, size_t window_len)
{
    if (inflateReset(z) != Z_OK ||
        (first_bit && inflatePrime(z, (int)(8 - first_bit), packed[0] >> first_bit) != Z_OK) ||
        inflateSetDictionary(z, window, (uInt)window_len) != Z_OK)
        return false;
    z->next_in = (Bytef *)(uintptr_t)(packed + (first_bit != 0));
    z->avail_in = (uInt)(packed_len - (first_bit != 0));
    return true;
}

/*
 * Decompresses the start of the part with another window. False: that does not work. What came
 * out is right, also where what follows is refused: the next block begins in the last byte.
 */
static bool scan_probe_with(struct deflate_scan *s, const uint8_t *packed, size_t packed_len,
                            const uint8_t *window, uint8_t *out, size_t len)
{
    z_stream *z = &s->probe;
    if (!s->uses_zlib)
        return block_inflate_probe(s->blocks, packed, packed_len, s->first_bit, window,
                                   s->window_len, out, len);
    if (!scan_enter(z, packed, packed_len, s->first_bit, window, s->window_len))
        return false;
    z->next_out = out;
    z->avail_out = (uInt)len;
    (void)inflate(z, Z_SYNC_FLUSH);
    return z->avail_out == 0;
}

/* Finds out which bytes of the window the part refers to. In doubt, all. */
static int scan_find_used(struct deflate_scan *s, uint32_t packed, uint32_t bytes)
{
    const uint8_t *start;
    size_t start_len = (size_t)min_u64(packed, PROBE_IN_BYTES);
    size_t len = (size_t)min_u64(bytes, POINT_WINDOW_MAX);
    int r = scan_look(s, s->part_offset, start_len, &start);
    if (r < 0)
        return r;
    bool is_known = true;
    for (unsigned i = 0; i < 2 && is_known; i++)
        is_known = scan_probe_with(s, start, start_len, s->marked[i], s->probed[i], len);
    memset(s->used, !is_known, sizeof(s->used));
    for (size_t i = 0; is_known && i < len; i++)
        if (s->probed[0][i] != s->probed[1][i])
            s->used[marked_place(s->probed[0][i], s->probed[1][i]) % POINT_WINDOW_MAX] = true;
    return 0;
}

static int scan_make_window(struct deflate_scan *s, uint32_t packed, uint32_t bytes,
                            struct block_point *point)
{
    size_t first = 0, n = s->window_len;
    point->window = NULL;
    point->window_bytes = point->window_packed = 0;
    if (n == 0 || bytes == 0)
        return 0;
    int r = scan_find_used(s, packed, bytes);
    if (r < 0)
        return r;
    while (first < n && !s->used[first])
        first++;
    if (first == n)
        return 0;
    for (size_t i = first; i < n; i++)
        s->sparse[i] = s->used[i] ? s->window[i] : 0;
    size_t len = ZSTD_compressCCtx(s->zstd, s->packed_window, ZSTD_compressBound(n - first),
                                   s->sparse + first, n - first, WINDOW_LEVEL);
    if (ZSTD_isError(len))
        return -ENOMEM;
    point->window = s->packed_window;
    point->window_bytes = (uint32_t)(n - first);
    point->window_packed = (uint32_t)len;
    return 0;
}

/* The last bytes of the part, and of the window before it, are the next one's window. */
static void scan_move_window(struct deflate_scan *s, const uint8_t *out, size_t len)
{
    if (len >= POINT_WINDOW_MAX) {
        memcpy(s->window, out + len - POINT_WINDOW_MAX, POINT_WINDOW_MAX);
        s->window_len = POINT_WINDOW_MAX;
        return;
    }
    size_t keep = (size_t)min_u64(s->window_len, POINT_WINDOW_MAX - len);
    memmove(s->window, s->window + s->window_len - keep, keep);
    if (len > 0)
        memcpy(s->window + keep, out, len);
    s->window_len = keep + len;
}

/* ---- parts ---- */

static void scan_sum_pieces(struct deflate_scan *s, const uint8_t *out, size_t len)
{
    const size_t piece = point_piece_bytes((uint32_t)len);
    for (size_t i = 0, at = 0; i < POINT_PIECES; i++, at += piece) {
        size_t n = at < len ? (size_t)min_u64(len - at, piece) : 0;
        bytes_put_le32(s->pieces + 4 * i, n > 0 ? (uint32_t)XXH3_64bits(out + at, n) : 0);
    }
}

/* Gets more input. At the end there is none. */
static int scan_refill(struct deflate_scan *s, struct fault *fault)
{
    size_t len = (size_t)min_u64(s->scan.end - s->in_end, s->map ? MAPPED_BYTES : IN_BYTES);
    int r = s->map || len == 0
                ? 0
                : source_read_fault(s->scan.source, s->in, len, s->in_end, fault);
    if (r < 0)
        return r;
    s->z.next_in = (Bytef *)(uintptr_t)(s->map ? s->map + s->in_end : s->in);
    s->z.avail_in = (uInt)len;
    s->in_end += len;
    s->in_len = s->map ? 0 : len;
    return 0;
}

/* Makes room behind `len` bytes. */
static int scan_grow(struct stream_buffer *buffer, size_t len)
{
    if (len < buffer->room)
        return 0;
    if (buffer->room >= DEFLATE_PART_MAX)
        return -ENOTSUP;
    size_t room = buffer->room ? 2 * buffer->room : OUT_FIRST_BYTES;
    uint8_t *larger = realloc(buffer->at, room);
    if (!larger)
        return -ENOMEM;
    buffer->at = larger;
    buffer->room = room;
    return 0;
}

static bool scan_is_too_long(const struct deflate_scan *s)
{
    return scan_offset(s) - s->part_offset > PACKED_MAX;
}

/* Sees to input and to room behind `len` bytes. */
static int scan_get_ready(struct deflate_scan *s, struct stream_buffer *buffer, size_t len,
                          struct fault *fault)
{
    int r = scan_is_too_long(s) ? -ENOTSUP : scan_grow(buffer, len);
    return r == 0 && s->z.avail_in == 0 ? scan_refill(s, fault) : r;
}

/* Does it pay to end the part here, between two blocks? */
static bool scan_may_cut(const struct deflate_scan *s, size_t len)
{
    uint64_t share = (scan_offset(s) - s->scan.start) / STREAM_SHARE + FIRST_SHARE_BYTES;
    return len >= DEFLATE_PART_LARGE || (s->cuts_often && len > 0) ||
           (len >= DEFLATE_PART_LEAST && s->spent + s->guess <= share);
}

/* Both kinds of it decompress to the end of a block: 0, or 1 if it is the stream's last one. */
static int scan_block_with_zlib(struct deflate_scan *s, struct stream_buffer *buffer,
                                struct fault *fault, size_t *len)
{
    for (;;) {
        int r = scan_get_ready(s, buffer, *len, fault);
        if (r < 0)
            return r;
        size_t room = buffer->room - *len;
        bool is_end = s->z.avail_in == 0;
        s->z.next_out = buffer->at + *len;
        s->z.avail_out = (uInt)room;
        int z = inflate(&s->z, Z_BLOCK);
        *len += room - s->z.avail_out;
        if (z == Z_STREAM_END)
            return 1;
        if (z == Z_MEM_ERROR)
            return -ENOMEM;
        if (z != Z_OK && z != Z_BUF_ERROR)
            return scan_damaged(&s->scan, fault, scan_offset(s),
                                s->z.msg ? s->z.msg : "it makes no sense");
        if (is_end && z == Z_BUF_ERROR && !(s->z.data_type & 128))
            return scan_damaged(&s->scan, fault, scan_offset(s), "it ends too early");
        if ((s->z.data_type & (128 | 64)) == 128)
            return 0;
    }
}

/* Does zlib take the header of the block that begins here? In doubt, no. */
static bool scan_header_is_sound(struct deflate_scan *s, uint64_t offset, unsigned first_bit)
{
    const uint8_t *header;
    uint8_t none;
    size_t len = (size_t)min_u64(s->scan.end - offset, HEADER_MAX);
    if (len == 0 || scan_look(s, offset, len, &header) < 0 ||
        !scan_enter(&s->probe, header, len, first_bit, s->window, 0))
        return false;
    s->probe.next_out = &none;
    s->probe.avail_out = 0;
    int z = inflate(&s->probe, Z_TREES);
    return (z == Z_OK || z == Z_BUF_ERROR) && (s->probe.data_type & 256);
}

static int scan_block_with_isal(struct deflate_scan *s, struct stream_buffer *buffer,
                                struct fault *fault, size_t *len)
{
    for (;;) {
        int r = scan_get_ready(s, buffer, *len, fault);
        if (r < 0)
            return r;
        bool is_end = s->z.avail_in == 0;
        const uint8_t *next_in = s->z.next_in;
        uint32_t avail_in = s->z.avail_in;
        size_t more;
        enum block_inflate_result result = block_inflate_step(
            s->blocks, &next_in, &avail_in, buffer->at + *len, buffer->room - *len, &more);
        s->z.next_in = (Bytef *)(uintptr_t)next_in;
        s->z.avail_in = avail_in;
        *len += more;
        if (result == BLOCK_INFLATE_END || result == BLOCK_INFLATE_LAST)
            return result == BLOCK_INFLATE_LAST;
        if (result == BLOCK_INFLATE_UNSURE || (is_end && more == 0))
            return SCAN_UNSURE;
    }
}

/* Go on with zlib, behind the first `len` bytes of the part, which are unpacked already. */
static int scan_go_on_with_zlib(struct deflate_scan *s, uint64_t offset, unsigned first_bit,
                                const uint8_t *out, size_t len)
{
    size_t keep = s->window_len;
    const uint8_t *first = s->window; /* any */
    memcpy(s->sparse, s->window, keep);
    scan_move_window(s, out, len);
    int r = first_bit ? scan_look(s, offset, 1, &first) : 0;
    bool is_fine =
        r == 0 && scan_enter(&s->z, first, first_bit != 0, first_bit, s->window, s->window_len);
    memcpy(s->window, s->sparse, keep);
    s->window_len = keep;
    s->uses_zlib = true;
    s->z.avail_in = 0;
    s->in_len = 0;
    s->in_end = offset + (first_bit != 0);
    return r < 0 || is_fine ? r : -ENOMEM;
}

static int scan_block(struct deflate_scan *s, struct stream_buffer *buffer, struct fault *fault,
                      size_t *len)
{
    if (s->uses_zlib)
        return scan_block_with_zlib(s, buffer, fault, len);
    unsigned first_bit = (8 - scan_unused_bits(s)) % 8;
    uint64_t offset = scan_offset(s) - (first_bit != 0);
    size_t len_before = *len;
    int r = SCAN_UNSURE;
    if (scan_header_is_sound(s, offset, first_bit))
        r = scan_block_with_isal(s, buffer, fault, len);
    if (r != SCAN_UNSURE)
        return r;
    *len = len_before;
    r = scan_go_on_with_zlib(s, offset, first_bit, buffer->at, *len);
    if (r < 0)
        return fault_set_read(fault, r, NULL, offset);
    return scan_block_with_zlib(s, buffer, fault, len);
}

/* Decompresses to the end of a part: 1 if it is the stream's end, or 0. */
static int scan_inflate(struct deflate_scan *s, struct stream_buffer *buffer,
                        struct fault *fault, size_t *ret_len)
{
    int r;
    *ret_len = 0;
    do
        r = scan_block(s, buffer, fault, ret_len);
    while (r == 0 && !scan_is_too_long(s) && !scan_may_cut(s, *ret_len));
    return r == 0 && scan_is_too_long(s) ? -ENOTSUP : r;
}

static int scan_next_part(struct deflate_scan *s, struct stream_buffer *buffer,
                          struct fault *fault, struct stream_part *ret_part)
{
    size_t len = 0;
    int r = scan_inflate(s, buffer, fault, &len);
    if (r < 0)
        return r;
    bool is_last = r == 1;
    unsigned unused = is_last ? 0 : scan_unused_bits(s);
    uint64_t end = scan_offset(s);
    *ret_part = (struct stream_part){
        .block = {.source_offset = s->part_offset,
                  .packed_bytes = (uint32_t)(end - s->part_offset),
                  .block_bytes = (uint32_t)len,
                  .codec = CODEC_DEFLATE_POINT,
                  .point = &ret_part->point},
        .point = {.sum = XXH3_64bits(buffer->at, len),
                  .first_bit = s->first_bit,
                  .last_bits = 8 - unused},
        .is_last = is_last,
    };
    scan_sum_pieces(s, buffer->at, len);
    ret_part->point.pieces = s->pieces;
    r = scan_make_window(s, ret_part->block.packed_bytes, (uint32_t)len, &ret_part->point);
    if (r < 0)
        return fault_set_read(fault, r, NULL, s->part_offset);
    s->guess = ret_part->point.window_packed + POINT_BYTES;
    s->spent += s->guess;
    s->scan.crc = libdeflate_crc32(s->scan.crc, buffer->at, len);
    s->scan.bytes += len;
    scan_move_window(s, buffer->at, len);
    s->part_offset = end - (unused != 0);
    s->first_bit = (8 - unused) % 8;
    return 0;
}

static int deflate_next(struct stream_scan *scan, struct stream_buffer *buffer,
                        struct fault *fault, struct stream_part *ret_part)
{
    struct deflate_scan *s = (struct deflate_scan *)scan;
    int r = scan_next_part(s, buffer, fault, ret_part);
    scan->offset = scan_offset(s);
    return r;
}

/* ---- life ---- */

/* Before the first stream. What was made is freed by deflate_end. */
static int scan_prepare(struct deflate_scan *s)
{
    s->map = source_map(s->scan.source);
    s->guess = WINDOW_GUESS_BYTES + POINT_BYTES;
    s->in = s->map ? NULL : malloc(IN_BYTES);
    s->packed_window = malloc(ZSTD_compressBound(POINT_WINDOW_MAX));
    s->zstd = ZSTD_createCCtx();
    int r = s->is_without_isal ? 0 : block_inflate_new(&s->blocks);
    for (uint32_t i = 0; i < POINT_WINDOW_MAX; i++) {
        s->marked[0][i] = mark_of(0, i);
        s->marked[1][i] = mark_of(1, i);
    }
    return r != -ENOMEM && (s->map || s->in) && s->packed_window && s->zstd &&
                   inflateInit2(&s->z, RAW_DEFLATE) == Z_OK &&
                   inflateInit2(&s->probe, RAW_DEFLATE) == Z_OK
               ? 0
               : -ENOMEM;
}

static int deflate_begin(struct stream_scan *scan, struct fault *fault)
{
    struct deflate_scan *s = (struct deflate_scan *)scan;
    (void)fault;
    int r = s->packed_window ? 0 : scan_prepare(s);
    if (r < 0 || inflateReset(&s->z) != Z_OK)
        return -ENOMEM;
    s->uses_zlib = !s->blocks;
    if (s->blocks)
        block_inflate_begin(s->blocks);
    s->z.avail_in = 0;
    s->in_len = 0;
    s->in_end = s->part_offset = scan->start;
    scan->crc = 0;
    scan->bytes = s->spent = 0;
    s->first_bit = 0;
    s->window_len = 0;
    return 0;
}

static void deflate_end(struct stream_scan *scan)
{
    struct deflate_scan *s = (struct deflate_scan *)scan;
    inflateEnd(&s->z);
    inflateEnd(&s->probe);
    free(s->blocks);
    ZSTD_freeCCtx(s->zstd);
    free(s->packed_window);
    free(s->in);
}

/* ---- unpacking ---- */

/*
 * libdeflate decompresses whole streams only, but twice as fast as zlib. So the part
 * becomes a whole stream:
 *
 *     the window, as a stored block | filler | the part | an empty last block
 *
 * The part keeps its place within bytes, because stored blocks in it are aligned to bytes. The
 * filler brings the stream to the bit in which the part begins. It is made of blocks without
 * content: of fixed codes with 10 bits each, and, for an odd number of bits, of codes of its
 * own with 99. The window comes out again before the part, and is dropped.
 */
struct deflate_parts {
    struct stream_memory memory;
    ZSTD_DCtx *zstd; /* for windows */
    struct stream_buffer in, out;
    struct libdeflate_decompressor *deflate;
};

static void parts_free(struct stream_memory *memory)
{
    struct deflate_parts *parts = (struct deflate_parts *)memory;
    ZSTD_freeDCtx(parts->zstd);
    if (parts->deflate)
        libdeflate_free_decompressor(parts->deflate);
    free(parts->in.at);
    free(parts->out.at);
    free(parts);
}

/* The parts that the memory belongs to, which are made at first. NULL: -ENOMEM. */
static struct deflate_parts *parts_of(struct stream_memory **memory)
{
    if (*memory)
        return (struct deflate_parts *)*memory;
    struct deflate_parts *parts = calloc(1, sizeof(*parts));
    if (!parts)
        return NULL;
    parts->memory.free = parts_free;
    parts->zstd = ZSTD_createDCtx();
    parts->deflate = libdeflate_alloc_decompressor();
    if (!parts->zstd || !parts->deflate) {
        parts_free(&parts->memory);
        return NULL;
    }
    *memory = &parts->memory;
    return parts;
}

static void parts_give_back(struct stream_buffer *buffer)
{
    if (buffer->room <= KEPT_BYTES)
        return;
    free(buffer->at);
    *buffer = (struct stream_buffer){0};
}

/* How many bits of `packed_len` bytes belong to the part and what comes before it; 0: none. */
static size_t parts_bits(const struct block_point *point, size_t packed_len)
{
    size_t end = packed_len * 8 - (8 - point->last_bits);
    return packed_len > 0 && end > point->first_bit ? end : 0;
}

/* Writes bits as deflate does: from the lowest bit of each byte on. The bytes are zero. */
static void bits_put(uint8_t *bytes, size_t *bit, uint32_t value, unsigned count)
{
    for (unsigned i = 0; i < count; i++, ++*bit)
        bytes[*bit / 8] |= (uint8_t)((value >> i & 1) << *bit % 8);
}

/*
 * A block without content of 99 bits. The lengths of its codes, 116 + 138 zeros and then 1, 2,
 * 2, 0, are themselves in a code with four symbols (0, 1, 2 and "11 to 138 zeros") of two bits.
 */
static void bits_put_odd_block(uint8_t *bytes, size_t *bit)
{
    static const uint8_t lengths[18] = {[2] = 2, [3] = 2, [15] = 2, [17] = 2};
    enum { ZERO = 0, ONE = 2, TWO = 1, MANY_ZEROS = 3 }; /* codes begin with the highest bit */
    bits_put(bytes, bit, 2u << 1, 3);                    /* not the last block; own codes */
    bits_put(bytes, bit, 0, 5);                          /* 257 codes for literals, */
    bits_put(bytes, bit, 0, 5);                          /* 1 for distances, */
    bits_put(bytes, bit, sizeof(lengths) - 4, 4);
    for (size_t i = 0; i < sizeof(lengths); i++)
        bits_put(bytes, bit, lengths[i], 3);
    bits_put(bytes, bit, MANY_ZEROS, 2);
    bits_put(bytes, bit, 138 - 11, 7);
    bits_put(bytes, bit, MANY_ZEROS, 2);
    bits_put(bytes, bit, 116 - 11, 7);
    bits_put(bytes, bit, ONE, 2);
    bits_put(bytes, bit, TWO, 2);
    bits_put(bytes, bit, TWO, 2); /* of the end of the block, whose code is then 11 */
    bits_put(bytes, bit, ZERO, 2);
    bits_put(bytes, bit, 3, 2);
}

/* The filler up to the part's first bit. */
static void bits_put_filler(uint8_t *bytes, size_t *bit, unsigned first_bit)
{
    if (first_bit % 2)
        bits_put_odd_block(bytes, bit);
    while (*bit % 8 != first_bit)
        bits_put(bytes, bit, 1u << 1, 10); /* not the last block, fixed codes: and at its end */
}

static size_t put_window(struct deflate_parts *parts, const struct block_point *point,
                         uint8_t *to)
{
    uint32_t n = point->window_bytes;
    if (n == 0)
        return 0;
    const uint8_t head[STORED_HEAD_BYTES] = {0, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)~n,
                                             (uint8_t)(~n >> 8)};
    memcpy(to, head, sizeof(head));
    size_t len = ZSTD_decompressDCtx(parts->zstd, to + sizeof(head), n, point->window,
                                     point->window_packed);
    return ZSTD_isError(len) || len != n ? 0 : sizeof(head) + n;
}

/* Makes a whole stream of the part, in `in`. -EUCLEAN: it can't be one. */
static int make_deflate_stream(struct deflate_parts *parts, const struct block_point *point,
                               const uint8_t *packed, size_t packed_len, size_t *ret_len)
{
    size_t bits = parts_bits(point, packed_len);
    if (bits == 0)
        return -EUCLEAN;
    int r = stream_buffer_room(&parts->in, STORED_HEAD_BYTES + point->window_bytes +
                                               FILLER_BYTES + packed_len + LAST_BYTES);
    if (r < 0)
        return r;
    size_t len = put_window(parts, point, parts->in.at);
    if (len == 0 && point->window_bytes > 0)
        return -EUCLEAN;

    uint8_t *filler = parts->in.at + len;
    size_t bit = 0;
    memset(filler, 0, FILLER_BYTES);
    bits_put_filler(filler, &bit, point->first_bit);
    uint8_t *part = filler + bit / 8, before = point->first_bit ? *part : 0;
    memcpy(part, packed, packed_len);
    part[0] = (uint8_t)((part[0] & (0xff << point->first_bit)) | before);

    bit = bits;
    if (bits % 8)
        part[bits / 8] &= (uint8_t)(0xff >> (8 - bits % 8));
    memset(part + (bits + 7) / 8, 0, LAST_BYTES);
    bits_put(part, &bit, 1 | 1u << 1, 10);
    *ret_len = (size_t)(part - parts->in.at) + (bit + 7) / 8;
    return 0;
}

/*
 * Decompresses the first `len` bytes: all of the part, if there is no room for `more`.
 *
 * libdeflate stops where the buffer is full, and then has written all but a last match. It does
 * not promise that, hence the sums.
 */
static int parts_unpack(struct stream_memory **memory, const struct block_point *point,
                        const void *packed, size_t packed_len, void *block, size_t len,
                        size_t more)
{
    struct deflate_parts *parts = parts_of(memory);
    size_t stream_len, out_len, whole = point->window_bytes + len;
    if (!parts)
        return -ENOMEM;
    int r = make_deflate_stream(parts, point, packed, packed_len, &stream_len);
    if (r == 0)
        r = stream_buffer_room(&parts->out, whole + more);
    if (r == 0) {
        enum libdeflate_result result = libdeflate_deflate_decompress(
            parts->deflate, parts->in.at, stream_len, parts->out.at, whole + more, &out_len);
        bool is_full = more > 0 && result == LIBDEFLATE_INSUFFICIENT_SPACE;
        if (is_full || (result == LIBDEFLATE_SUCCESS && out_len >= whole))
            memcpy(block, parts->out.at + point->window_bytes, len);
        else
            r = -EUCLEAN;
    }
    parts_give_back(&parts->in);
    parts_give_back(&parts->out);
    return r;
}

static int deflate_unpack(struct stream_memory **memory, const struct block_point *point,
                          const void *packed, size_t packed_len, void *block, size_t size)
{
    return parts_unpack(memory, point, packed, packed_len, block, size, 0);
}

static int deflate_unpack_start(struct stream_memory **memory, const struct block_point *point,
                                const void *packed, size_t packed_len, void *block, size_t len)
{
    return parts_unpack(memory, point, packed, packed_len, block, len, MATCH_MAX);
}

const struct stream stream_deflate = {
    .name = "deflate",
    .codec = CODEC_DEFLATE_POINT,
    .scan_bytes = sizeof(struct deflate_scan),
    .begin = deflate_begin,
    .next = deflate_next,
    .end = deflate_end,
    .unpack = deflate_unpack,
    .unpack_start = deflate_unpack_start,
};
