/*
 * How far has ISA-L read when a block ends? It takes up to eight bytes ahead into `read_in`,
 * and later versions drop these bits once all content was handed out. So it never hands out
 * any: without room (avail_out = 0) it decompresses into its own buffer, where the window lies,
 * up to 64 KB in all. The content is copied from there.
 */
#include "block_inflate.h"

#include <errno.h>

#ifdef HAVE_ISAL
#include <isa-l/igzip_lib.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

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

void block_inflate_free(struct block_inflate *b)
{
    free(b);
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

bool block_inflate_probe(struct block_inflate *b, const uint8_t *packed, size_t packed_len,
                         unsigned first_bit, const uint8_t *window, size_t window_len,
                         uint8_t *out, size_t len)
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
    return isal_inflate(s) == ISAL_DECOMP_OK && s->avail_out == 0;
}

#else

int block_inflate_new(struct block_inflate **ret_inflate)
{
    (void)ret_inflate;
    return -ENOTSUP;
}

void block_inflate_free(struct block_inflate *b)
{
    (void)b;
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

bool block_inflate_probe(struct block_inflate *b, const uint8_t *packed, size_t packed_len,
                         unsigned first_bit, const uint8_t *window, size_t window_len,
                         uint8_t *out, size_t len)
{
    (void)b, (void)packed, (void)packed_len, (void)first_bit, (void)window, (void)window_len;
    (void)out, (void)len;
    return false;
}

#endif
