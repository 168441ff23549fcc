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

#define INDEX_MEMORY_BYTES (64u << 20)
#define BLOCKS_MAX (1u << 20)
#define STREAMS_MAX (1u << 16)
#define PADDING_MAX (64u << 20)
#define PACKED_MAX (BLOCK_SCAN_MAX + BLOCK_SCAN_MAX / 8)

struct xz_scan {
    struct stream_scan scan; /* must be first */
    struct scan_jobs jobs;
    VECTOR(struct lzma_index_s *) streams; /* until they are joined; the last one is first */
    uint64_t blocks;                       /* in all of them */
    lzma_index *index;                     /* of all streams */
    lzma_index_iter at;                    /* the block that was begun last */
    size_t left;                           /* how many follow */
};

/* ---- one block ---- */

static int xz_error(lzma_ret r)
{
    return r == LZMA_OK                                          ? 0
           : r == LZMA_MEM_ERROR                                 ? -ENOMEM
           : r == LZMA_OPTIONS_ERROR || r == LZMA_MEMLIMIT_ERROR ? -ENOTSUP
                                                                 : -EUCLEAN;
}

/*
 * A dictionary larger than the content is of no use. So the header's claim is reduced to that,
 * and no limit on memory is needed.
 */
static void xz_limit_dictionary(lzma_filter *filters, size_t len)
{
    for (lzma_filter *f = filters; f->id != LZMA_VLI_UNKNOWN; f++) {
        lzma_options_lzma *options = f->options;
        if (f->id == LZMA_FILTER_LZMA2 && options->dict_size > len)
            options->dict_size = len > LZMA_DICT_SIZE_MIN ? (uint32_t)len : LZMA_DICT_SIZE_MIN;
    }
}

/* Decodes what follows the header, which is read already. */
static int xz_unpack_body(lzma_block *block, const uint8_t *packed, size_t packed_len,
                          uint8_t *out, size_t len)
{
    size_t in_at = block->header_size, out_at = 0;
    if (block->uncompressed_size != LZMA_VLI_UNKNOWN && block->uncompressed_size != len)
        return -EUCLEAN;
    block->uncompressed_size = len;
    xz_limit_dictionary(block->filters, len);
    lzma_ret r =
        lzma_block_buffer_decode(block, NULL, packed, &in_at, packed_len, out, &out_at, len);
    if (r != LZMA_OK)
        return xz_error(r);
    return in_at == packed_len && out_at == len ? 0 : -EUCLEAN;
}

/*
 * Decompresses a block into exactly `len` bytes; it has to be exactly `packed_len` bytes long.
 * It begins with a header that names its filters; the sum behind it is of the kind that the
 * stream's header names, or left out with LZMA_CHECK_NONE. -EUCLEAN: it is damaged; -ENOTSUP:
 * by a filter that this liblzma lacks; -ENOMEM.
 */
static int xz_unpack_block(const uint8_t *packed, size_t packed_len, lzma_check check,
                           uint8_t *out, size_t len)
{
    lzma_filter filters[LZMA_FILTERS_MAX + 1];
    lzma_block block = {.version = 0, .check = check, .filters = filters};
    if (packed_len == 0 || packed[0] == 0)
        return -EUCLEAN;
    block.header_size = lzma_block_header_size_decode(packed[0]);
    if (block.header_size > packed_len)
        return -EUCLEAN;
    lzma_ret r = lzma_block_header_decode(&block, NULL, packed);
    if (r != LZMA_OK)
        return xz_error(r);
    int err = xz_unpack_body(&block, packed, packed_len, out, len);
    for (size_t i = 0; i < LZMA_FILTERS_MAX && filters[i].id != LZMA_VLI_UNKNOWN; i++)
        free(filters[i].options);
    return err;
}

/* ---- where the blocks are ---- */

/* Does the stream begin where its index, which lies at `index_at`, says? */
static int xz_check_header(struct xz_scan *s, const lzma_index *index, uint64_t index_at,
                           const lzma_stream_flags *footer, struct fault *fault,
                           uint64_t *ret_stream_at)
{
    uint8_t head[LZMA_STREAM_HEADER_SIZE];
    lzma_stream_flags flags;
    uint64_t bytes = lzma_index_total_size(index) + sizeof(head);
    if (bytes > index_at - s->scan.start)
        return -EUCLEAN;
    int r = source_read_fault(s->scan.source, head, sizeof(head), index_at - bytes, fault);
    if (r < 0)
        return r;
    if (lzma_stream_header_decode(&flags, head) != LZMA_OK ||
        lzma_stream_flags_compare(&flags, footer) != LZMA_OK)
        return -EUCLEAN;
    *ret_stream_at = index_at - bytes;
    return 0;
}

/* The index of a stream that ends at `end`. */
static int xz_read_index(struct xz_scan *s, uint64_t end, struct fault *fault,
                         lzma_stream_flags *ret_flags, lzma_index **ret_index)
{
    uint8_t footer[LZMA_STREAM_HEADER_SIZE];
    uint64_t room = end - s->scan.start, memory = INDEX_MEMORY_BYTES;
    size_t used = 0;
    if (room < 2 * sizeof(footer))
        return -EUCLEAN;
    int r =
        source_read_fault(s->scan.source, footer, sizeof(footer), end - sizeof(footer), fault);
    if (r < 0)
        return r;
    if (lzma_stream_footer_decode(ret_flags, footer) != LZMA_OK)
        return -EUCLEAN;
    uint64_t len = ret_flags->backward_size;
    if (len > room - 2 * sizeof(footer))
        return -EUCLEAN;
    if (len > INDEX_MEMORY_BYTES)
        return -ENOTSUP;
    auto_free uint8_t *bytes = malloc((size_t)len);
    if (!bytes)
        return -ENOMEM;
    r = source_read_fault(s->scan.source, bytes, (size_t)len, end - sizeof(footer) - len,
                          fault);
    if (r < 0)
        return r;
    r = xz_error(lzma_index_buffer_decode(ret_index, &memory, NULL, bytes, &used, (size_t)len));
    return r == 0 && used != len ? -EUCLEAN : r; /* the footer has to say how long it is */
}

/* Where the zeros behind a stream begin: four at a time, as the format has them. */
static int xz_skip_padding(struct xz_scan *s, uint64_t *end, struct fault *fault)
{
    uint8_t bytes[4096];
    uint64_t before = *end;
    for (;;) {
        size_t len = (size_t)min_u64(*end - s->scan.start, sizeof(bytes)), zeros = 0;
        int r = source_read_fault(s->scan.source, bytes, len, *end - len, fault);
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

/* Adds the index of the stream that ends at `end`. */
static int xz_find_stream(struct xz_scan *s, struct fault *fault, uint64_t *end)
{
    lzma_stream_flags flags;
    lzma_index *index = NULL;
    uint64_t behind = *end;
    int r = xz_skip_padding(s, end, fault);
    uint64_t padding = behind - *end;
    if (r == 0)
        r = xz_read_index(s, *end, fault, &flags, &index);
    if (r == 0)
        r = xz_check_header(s, index, *end - LZMA_STREAM_HEADER_SIZE - flags.backward_size,
                            &flags, fault, end);
    if (r == 0)
        r = xz_error(lzma_index_stream_flags(index, &flags));
    if (r == 0)
        r = xz_error(lzma_index_stream_padding(index, padding));
    if (r == 0)
        r = vector_push(&s->streams, index);
    if (r < 0) {
        lzma_index_end(index, NULL);
        return r;
    }
    s->blocks += lzma_index_block_count(index);
    return s->blocks > BLOCKS_MAX ? -ENOTSUP : 0;
}

/* Join the indexes, beginning with the first stream's: each call walks the index appended. */
static int xz_join_streams(struct xz_scan *s)
{
    int r = 0;
    while (r == 0 && s->streams.count > 0) {
        lzma_index *next = s->streams.at[s->streams.count - 1];
        if (s->index)
            r = xz_error(lzma_index_cat(s->index, next, NULL));
        else
            s->index = next;
        s->streams.count -= r == 0;
    }
    return r;
}

static void xz_drop_indexes(struct xz_scan *s)
{
    while (s->streams.count > 0)
        lzma_index_end(s->streams.at[--s->streams.count], NULL);
    lzma_index_end(s->index, NULL);
    s->index = NULL;
    s->blocks = 0;
}

/* Counts the blocks, and makes sure that each can be used. */
static int xz_check_blocks(struct xz_scan *s)
{
    lzma_index_iter_init(&s->at, s->index);
    while (!lzma_index_iter_next(&s->at, LZMA_INDEX_ITER_NONEMPTY_BLOCK)) {
        if (s->at.block.uncompressed_size > BLOCK_SCAN_MAX ||
            s->at.block.total_size > PACKED_MAX)
            return -ENOTSUP;
        s->left++;
    }
    lzma_index_iter_rewind(&s->at);
    return 0;
}

static int xz_begin(struct stream_scan *scan, struct fault *fault)
{
    struct xz_scan *s = (struct xz_scan *)scan;
    uint64_t end = scan->end;
    int r = 0;
    scan_jobs_begin(&s->jobs, scan);
    xz_drop_indexes(s);
    s->left = 0;
    for (unsigned streams = 0; r == 0 && end > scan->start; streams++)
        r = streams < STREAMS_MAX ? xz_find_stream(s, fault, &end) : -ENOTSUP;
    if (r == 0)
        r = xz_join_streams(s);
    if (r == -EUCLEAN)
        return scan_damaged(scan, fault, end,
                            end == scan->end
                                ? "it is cut off, or what ends it is not the end of xz data"
                                : "the index of its blocks is missing or makes no sense");
    if (r == 0 && s->index)
        r = xz_check_blocks(s);
    scan->count = s->left;
    return r;
}

/* ---- blocks ---- */

static int xz_unpack(struct scan_job *job)
{
    int r = stream_buffer_room(&job->out, job->expected_len);
    job->len = job->expected_len;
    return r < 0 ? r
                 : xz_unpack_block(job->packed, job->packed_len, job->check, job->out.at,
                                   job->len);
}

static int xz_begin_jobs(struct xz_scan *s, struct fault *fault)
{
    struct scan_job *job;
    int r = 0;
    while (r == 0 && s->left > 0 && (job = scan_job_new(&s->jobs)) &&
           !lzma_index_iter_next(&s->at, LZMA_INDEX_ITER_NONEMPTY_BLOCK)) {
        s->left--;
        job->unpack = xz_unpack;
        job->offset = s->scan.start + s->at.block.compressed_file_offset;
        job->packed_len = (uint32_t)s->at.block.total_size;
        job->last_bits = 8;
        job->expected_len = s->at.block.uncompressed_size;
        job->check = s->at.stream.flags->check;
        r = scan_job_begin(&s->jobs, job, fault);
    }
    return r;
}

static int xz_next(struct stream_scan *scan, struct stream_buffer *buffer, struct fault *fault,
                   struct stream_part *ret_part)
{
    struct xz_scan *s = (struct xz_scan *)scan;
    int r = xz_begin_jobs(s, fault);
    if (r < 0)
        return r;
    if (s->jobs.count > 0) {
        struct scan_job *job = scan_job_at(&s->jobs, 0);
        uint64_t offset = job->offset;
        uint32_t sum_len = lzma_check_size((lzma_check)job->check);
        r = scan_job_finish(&s->jobs, job);
        if (r == -EUCLEAN)
            return scan_damaged(&s->scan, fault, offset,
                                "a block makes no sense, or has a wrong sum");
        if (r < 0)
            return r;
        scan_job_give(&s->jobs, buffer, ret_part);
        /* The point has a better sum, so the kind of this one need not be known later. */
        ret_part->block.packed_bytes -= sum_len;
        s->scan.offset = offset + ret_part->block.packed_bytes;
    }
    ret_part->is_last = s->jobs.count == 0 && s->left == 0;
    if (ret_part->is_last)
        s->scan.offset = s->scan.end;
    return 0;
}

static void xz_end(struct stream_scan *scan)
{
    struct xz_scan *s = (struct xz_scan *)scan;
    scan_jobs_free(&s->jobs);
    xz_drop_indexes(s);
    vector_free(&s->streams);
}

static int xz_unpack_part(struct stream_memory **memory, const struct block_point *point,
                          const void *packed, size_t packed_len, void *block, size_t size)
{
    (void)memory, (void)point;
    return xz_unpack_block(packed, packed_len, LZMA_CHECK_NONE, block, size);
}

const struct stream stream_xz = {
    .name = "xz",
    .codec = CODEC_XZ_BLOCK,
    .scan_bytes = sizeof(struct xz_scan),
    .begin = xz_begin,
    .next = xz_next,
    .end = xz_end,
    .unpack = xz_unpack_part,
};
