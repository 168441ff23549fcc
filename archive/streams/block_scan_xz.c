/*
 * The index at the end of each xz stream says where its blocks lie, and how long their contents
 * are. Streams are found from the last one to the first, as each ends with a footer that leads
 * to its index, and the index to its header. Nothing of that is believed until a block was
 * decompressed: it has to be as long as the index says.
 *
 *     header | block | block | ... | index | footer | zeros | next stream
 */
#include "block_scan.h"

#include <errno.h>
#include <stdlib.h>

#include <lzma.h>

#include "cleanup.h"
#include "numbers.h"
#include "vector.h"
#include "xz_block.h"

#define INDEX_MEMORY_BYTES (64u << 20)
#define BLOCKS_MAX (1u << 20)
#define STREAMS_MAX (1u << 16)
#define PADDING_MAX (64u << 20)
#define PACKED_MAX (BLOCK_SCAN_MAX + BLOCK_SCAN_MAX / 8)

struct xz_place {
    uint64_t offset;
    uint32_t packed_len; /* with its sum, */
    uint32_t sum_len;    /* which is so long */
    uint32_t len;
    uint32_t check;
};

struct xz_state {
    VECTOR(struct xz_place) blocks;
    size_t begun;
};

/* A stream, as its footer describes it. */
struct xz_stream {
    lzma_stream_flags flags;
    uint64_t index_at;
};

/* ---- where the blocks are ---- */

/* Blocks of the last stream come first: turns them around. */
static void xz_reverse(struct xz_place *places, size_t count)
{
    for (size_t i = 0; i < count / 2; i++) {
        struct xz_place place = places[i];
        places[i] = places[count - 1 - i];
        places[count - 1 - i] = place;
    }
}

static int xz_add_block(struct xz_state *x, const lzma_index_iter *at, uint64_t stream_at,
                        lzma_check check)
{
    uint32_t sum_len = lzma_check_size(check);
    if (at->block.uncompressed_size == 0)
        return 0;
    if (at->block.uncompressed_size > BLOCK_SCAN_MAX || at->block.total_size > PACKED_MAX ||
        x->blocks.count >= BLOCKS_MAX)
        return -ENOTSUP;
    return vector_push(&x->blocks, (struct xz_place){
                                       .offset = stream_at + at->block.compressed_stream_offset,
                                       .packed_len = (uint32_t)at->block.total_size,
                                       .sum_len = sum_len,
                                       .len = (uint32_t)at->block.uncompressed_size,
                                       .check = check,
                                   });
}

/* The blocks of a stream that ends at `end`: from the last to the first. */
static int xz_add_blocks(struct block_scan *s, const lzma_index *index,
                         const struct xz_stream *stream, struct fault *fault,
                         uint64_t *ret_stream_at)
{
    struct xz_state *x = s->state;
    uint8_t head[LZMA_STREAM_HEADER_SIZE];
    lzma_stream_flags flags;
    uint64_t bytes = lzma_index_total_size(index) + sizeof(head);
    if (bytes > stream->index_at - s->scan.start)
        return -EUCLEAN;
    uint64_t at = stream->index_at - bytes;
    int r = scan_read(s, head, sizeof(head), at, fault);
    if (r < 0)
        return r;
    if (lzma_stream_header_decode(&flags, head) != LZMA_OK ||
        lzma_stream_flags_compare(&flags, &stream->flags) != LZMA_OK)
        return -EUCLEAN;

    lzma_index_iter iter;
    size_t first = x->blocks.count;
    lzma_index_iter_init(&iter, index);
    while (r == 0 && !lzma_index_iter_next(&iter, LZMA_INDEX_ITER_BLOCK))
        r = xz_add_block(x, &iter, at, stream->flags.check);
    if (r == 0)
        xz_reverse(x->blocks.at + first, x->blocks.count - first);
    *ret_stream_at = at;
    return r;
}

static int xz_read_index(struct block_scan *s, uint64_t end, struct fault *fault,
                         struct xz_stream *ret_stream, lzma_index **ret_index)
{
    uint8_t footer[LZMA_STREAM_HEADER_SIZE];
    uint64_t room = end - s->scan.start, memory = INDEX_MEMORY_BYTES;
    size_t used = 0;
    if (room < 2 * sizeof(footer))
        return -EUCLEAN;
    int r = scan_read(s, footer, sizeof(footer), end - sizeof(footer), fault);
    if (r < 0)
        return r;
    if (lzma_stream_footer_decode(&ret_stream->flags, footer) != LZMA_OK)
        return -EUCLEAN;
    uint64_t len = ret_stream->flags.backward_size;
    if (len > room - 2 * sizeof(footer))
        return -EUCLEAN;
    if (len > INDEX_MEMORY_BYTES)
        return -ENOTSUP;
    auto_free uint8_t *bytes = malloc((size_t)len);
    if (!bytes)
        return -ENOMEM;
    ret_stream->index_at = end - sizeof(footer) - len;
    r = scan_read(s, bytes, (size_t)len, ret_stream->index_at, fault);
    if (r < 0)
        return r;
    switch (lzma_index_buffer_decode(ret_index, &memory, NULL, bytes, &used, (size_t)len)) {
    case LZMA_OK: /* the footer has to say how long it is */
        return used == len ? 0 : -EUCLEAN;
    case LZMA_MEM_ERROR:
        return -ENOMEM;
    case LZMA_MEMLIMIT_ERROR:
        return -ENOTSUP;
    default:
        return -EUCLEAN;
    }
}

/* Where the zeros behind a stream begin: four at a time, as the format has them. */
static int xz_skip_padding(struct block_scan *s, uint64_t *end, struct fault *fault)
{
    uint8_t bytes[4096];
    uint64_t before = *end;
    for (;;) {
        size_t len = (size_t)min_u64(*end - s->scan.start, sizeof(bytes)), zeros = 0;
        int r = scan_read(s, bytes, len, *end - len, fault);
        if (r < 0)
            return r;
        while (zeros < len && bytes[len - 1 - zeros] == 0)
            zeros++;
        *end -= zeros - zeros % 4; /* a footer's last byte is 'Z' */
        if (zeros < len || len < sizeof(bytes))
            return zeros % 4 ? -EUCLEAN : 0;
        if (before - *end > PADDING_MAX)
            return -ENOTSUP;
    }
}

static int xz_find_stream(struct block_scan *s, struct fault *fault, uint64_t *end)
{
    struct xz_stream stream;
    lzma_index *index = NULL;
    int r = xz_skip_padding(s, end, fault);
    if (r == 0)
        r = xz_read_index(s, *end, fault, &stream, &index);
    if (r == 0)
        r = xz_add_blocks(s, index, &stream, fault, end);
    lzma_index_end(index, NULL);
    return r;
}

static int xz_begin(struct block_scan *s, struct fault *fault)
{
    struct xz_state *x = s->state;
    uint64_t end = s->scan.end;
    int r = 0;
    x->blocks.count = x->begun = 0;
    for (unsigned streams = 0; r == 0 && end > s->scan.start; streams++)
        r = streams < STREAMS_MAX ? xz_find_stream(s, fault, &end) : -ENOTSUP;
    if (r == -EUCLEAN)
        return scan_damaged(s, fault, end,
                            end == s->scan.end
                                ? "it is cut off, or what ends it is not the end of xz data"
                                : "the index of its blocks is missing or makes no sense");
    if (r == 0)
        xz_reverse(x->blocks.at, x->blocks.count);
    s->scan.count = x->blocks.count;
    return r;
}

/* ---- blocks ---- */

static int xz_unpack(struct scan_job *job)
{
    int r = stream_buffer_room(&job->out, job->expected_len);
    job->len = job->expected_len;
    return r < 0 ? r
                 : xz_block_unpack(job->packed, job->packed_len, job->check, job->out.at,
                                   job->len);
}

static int xz_begin_jobs(struct block_scan *s, struct fault *fault)
{
    struct xz_state *x = s->state;
    struct scan_job *job;
    int r = 0;
    while (r == 0 && x->begun < x->blocks.count && (job = scan_job_new(s))) {
        const struct xz_place *place = &x->blocks.at[x->begun++];
        job->unpack = xz_unpack;
        job->offset = place->offset;
        job->packed_len = place->packed_len;
        job->last_bits = 8;
        job->expected_len = place->len;
        job->check = place->check;
        r = scan_job_begin(s, job, fault);
    }
    return r;
}

static int xz_next(struct block_scan *s, struct stream_buffer *buffer, struct fault *fault,
                   struct stream_part *ret_part)
{
    struct xz_state *x = s->state;
    int r = xz_begin_jobs(s, fault);
    if (r < 0)
        return r;
    if (s->jobs_count > 0) {
        uint64_t offset = scan_job_at(s, 0)->offset;
        r = scan_job_finish(s);
        if (r == -EUCLEAN)
            return scan_damaged(s, fault, offset, "a block makes no sense, or has a wrong sum");
        if (r < 0)
            return r;
        size_t number = x->begun - s->jobs_count;
        scan_job_give(s, buffer, ret_part);
        /* The point has a better sum, so the kind of this one need not be known later. */
        ret_part->block.packed_bytes -= x->blocks.at[number].sum_len;
        s->scan.offset = offset + ret_part->block.packed_bytes;
    }
    ret_part->is_last = s->jobs_count == 0 && x->begun == x->blocks.count;
    if (ret_part->is_last)
        s->scan.offset = s->scan.end;
    return 0;
}

static void xz_end(struct block_scan *s)
{
    struct xz_state *x = s->state;
    vector_free(&x->blocks);
}

static int xz_unpack_part(struct stream_memory **memory, const struct block_point *point,
                          const void *packed, size_t packed_len, void *block, size_t size)
{
    (void)memory, (void)point;
    return xz_block_unpack(packed, packed_len, XZ_NO_CHECK, block, size);
}

static const struct scan_kind xz_kind = {
    .state_bytes = sizeof(struct xz_state),
    .begin = xz_begin,
    .next = xz_next,
    .end = xz_end,
};

const struct stream stream_xz = {
    .name = "xz",
    .codec = CODEC_XZ_BLOCK,
    BLOCK_SCAN,
    .unpack = xz_unpack_part,
    .kind = &xz_kind,
};
