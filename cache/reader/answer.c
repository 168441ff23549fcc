/*
 * Puts a read together from the runs of bytes that the index names: extents, cut to what was
 * asked for. A short stored run is copied. A long run of a mapped source is answered by its
 * place in the mapping, if the page cache has it. If it has not, or nothing is mapped, the run
 * is read into the scratch buffer: a read distinguishes EIO from a truncated file and does not
 * fault its pages in one by one. Bytes of the mapping are handed out, but never touched here: a
 * missing page is an EFAULT for writev(2), but a SIGBUS for memcpy.
 *
 * To find out whether the page cache has a run, only its first and last pages are probed. The
 * last one also shows whether the file is as long as it was.
 */
#include "reader.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "reader_private.h"

/*
 * Stored runs up to this length are copied by one read that does not wait. It answers at once
 * the question of both probes of a mapped run, and costs less than faulting the run's pages
 * into the mapping on their first use.
 */
#define COPY_BYTES_MAX (64u << 10)

static void begin_request(struct reader_scratch *scratch)
{
    scratch->used = 0;
    scratch->waited = false;
    scratch->origin = READER_FROM_NOTHING;
}

/* The extent at `offset`, no longer than `len`. -ENXIO at the end of the file. */
static int next_run(const struct reader *reader, uint32_t position, uint64_t offset, size_t len,
                    struct extent *ret_run)
{
    struct extent run;
    int r = index_extent(reader->index, position, offset, &run);
    if (r < 0)
        return r;
    if (run.length == 0)
        return -EUCLEAN;
    if (run.length > len)
        run.length = len;
    if (run.kind == EXTENT_STORED && (run.source_offset > reader->source_bytes ||
                                      run.length > reader->source_bytes - run.source_offset))
        return -ENODATA;
    *ret_run = run;
    return 0;
}

/*
 * An answer in progress. Its bytes are named by a span, which pins their blocks, or copied to
 * one place.
 */
struct answer {
    struct reader *reader;
    struct reader_scratch *scratch;
    uint32_t position; /* of the file */
    uint64_t offset;   /* in it */
    size_t done;
    uint8_t *copy; /* NULL: the span names the bytes */
    struct span *span;
};

/* Adds bytes that stay in place as long as the span; in a copy, they are there already. */
static void answer_add(struct answer *a, const void *bytes, size_t len)
{
    struct span *span = a->span;
    if (!a->copy) {
        span->iov[span->iov_count++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
        span->bytes += len;
    }
    a->done += len;
}

/* Adds bytes of a block in use, which the answer takes over. */
static void answer_add_block(struct answer *a, struct block *block, size_t start, size_t len)
{
    if (a->copy)
        memcpy(a->copy + a->done, block->bytes + start, len);
    else
        a->span->pinned[a->span->pinned_count++] = block;
    answer_add(a, block->bytes + start, len);
    if (a->copy)
        block_cache_put(a->reader->cache, block);
}

/* Takes room from the scratch buffer: a span never needs more than READER_SPAN_MAX. */
static uint8_t *answer_take_scratch(struct reader_scratch *scratch, size_t len)
{
    uint8_t *bytes = scratch->buffer + scratch->used;
    scratch->used += len;
    return bytes;
}

static int answer_read(struct answer *a, size_t len, uint64_t source_offset)
{
    uint8_t *bytes = a->copy ? a->copy + a->done : answer_take_scratch(a->scratch, len);
    int r = reader_read_source(a->reader, a->scratch, bytes, len, source_offset);
    if (r == 0)
        answer_add(a, bytes, len);
    return r;
}

/* Is the page with this byte of a mapping in memory? */
static bool page_cached(const struct reader *reader, const uint8_t *byte)
{
    unsigned char state = 0;
    uintptr_t at = (uintptr_t)byte;
    return mincore((void *)(at - at % reader->page), 1, &state) == 0 && state & 1;
}

/*
 * Does the page cache have the range? For filesystems that don't answer cached reads. Also
 * checks the length of the file, because its last page reads as zeros behind its end.
 */
static bool range_cached(const struct reader *reader, const uint8_t *bytes, uint64_t offset,
                         uint64_t len)
{
    struct stat st;
    uint64_t end = offset + len - 1;
    const struct source *file = source_at(reader->source, &end);
    return page_cached(reader, bytes) && page_cached(reader, bytes + len - 1) &&
           fstat(source_fd(file), &st) == 0 &&
           (!S_ISREG(st.st_mode) || source_start(file) + end < (uint64_t)st.st_size);
}

/*
 * The range as it lies in a mapping, if it can be handed out so: 0; -EAGAIN if that would have
 * to wait, or can't be; -ENODATA if the file ends before.
 */
static int answer_mapped(const struct reader *reader, uint64_t offset, uint64_t len,
                         const uint8_t **ret_bytes)
{
    char byte;
    const uint8_t *bytes = source_map_at(reader->source, offset, len);
    if (!bytes)
        return -EAGAIN;
    *ret_bytes = bytes;
    if (reader->is_kept) /* it may have holes anywhere, and is never cut short */
        return source_has(reader->source, offset, len) ? 0 : -EAGAIN;
    int r = source_read_cached(reader->source, &byte, 1, offset + len - 1);
    if (r == 0 &&
        ((uintptr_t)bytes + len - 1) / reader->page != (uintptr_t)bytes / reader->page)
        r = source_read_cached(reader->source, &byte, 1, offset);
    if (r == -EAGAIN && reader->ask_mincore && range_cached(reader, bytes, offset, len))
        r = 0;
    return r == -EAGAIN ? r : reader_source_error(r);
}

static int answer_stored(struct answer *a, const struct extent *run)
{
    struct reader *reader = a->reader;
    if (!a->copy && reader->answers_mapped &&
        (run->length > COPY_BYTES_MAX || reader->ask_mincore)) {
        const uint8_t *mapped = NULL;
        int r = answer_mapped(reader, run->source_offset, run->length, &mapped);
        if (r == 0) {
            reader_came_from(a->scratch,
                             reader->is_kept ? READER_FROM_COPY : READER_FROM_PAGES);
            answer_add(a, mapped, run->length);
            reader_count_read(reader, run->length, run->source_offset);
        }
        if (r != -EAGAIN)
            return r;
        reader_may_wait(a->scratch);
    }
    return answer_read(a, run->length, run->source_offset);
}

/* Adds as many pieces as there is room for; the caller comes back for the rest. */
static int answer_pieces(struct answer *a, size_t len)
{
    struct piece pieces[PIECES_MAX];
    unsigned count = 0;
    unsigned room = a->copy ? PIECES_MAX : (unsigned)(READER_IOV_MAX - 1 - a->span->iov_count);
    int r = reader_get_pieces(a->reader, a->scratch, a->position, a->offset + a->done, len,
                              room, pieces, &count);
    for (unsigned i = 0; i < count; i++) {
        const struct piece *piece = &pieces[i];
        if (piece->block) /* also after an error, so that no block stays pinned */
            answer_add_block(a, piece->block, piece->start, piece->length);
        else if (r == 0)
            r = answer_read(a, piece->length, piece->source_offset + piece->start);
    }
    return r;
}

static int answer_run(struct answer *a, const struct extent *run)
{
    struct reader *reader = a->reader;
    struct block *block;
    int r;
    switch (run->kind) {
    case EXTENT_HOLE:
        if (a->copy)
            memset(a->copy + a->done, 0, run->length);
        answer_add(a, reader->zeros, run->length);
        return 0;
    case EXTENT_STORED:
        return reader->cache_stored ? answer_pieces(a, run->length) : answer_stored(a, run);
    case EXTENT_BLOCK:
        r = reader_get_block(reader, a->scratch, run, &block);
        if (r < 0)
            return r;
        if (reader->lets_go && run->length == block->len)
            block_cache_let_go(reader->cache, block);
        answer_add_block(a, block, run->block_offset, run->length);
        return 0;
    }
    return -EUCLEAN;
}

/* Adds bytes of the file until `len` are there, it ends, or the span is nearly full. */
static int answer_fill(struct answer *a, size_t len)
{
    bool at_end = false;
    int r = 0;
    while (r == 0 && !at_end && a->done < len &&
           (a->copy || a->span->iov_count < READER_IOV_MAX - 1)) {
        struct extent run;
        r = next_run(a->reader, a->position, a->offset + a->done, len - a->done, &run);
        if (r == -ENXIO)
            return 0;
        if (r == 0)
            r = answer_run(a, &run);
        at_end = r == 0 && run.is_last && a->offset + a->done == run.offset + run.length;
    }
    return r;
}

/* Copies the rest into the last iovec. */
static int answer_rest(struct answer *a, size_t len)
{
    struct answer rest = *a;
    rest.copy = answer_take_scratch(a->scratch, len);
    rest.offset += a->done;
    rest.done = 0;
    int r = answer_fill(&rest, len);
    if (r == 0 && rest.done > 0)
        answer_add(a, rest.copy, rest.done);
    return r;
}

int reader_copy(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                uint64_t offset, void *buf, size_t len, size_t *ret_len)
{
    struct answer a = {reader, scratch, position, offset, .copy = buf};
    begin_request(scratch);
    int r = answer_fill(&a, len);
    if (r == 0)
        *ret_len = a.done;
    return r;
}

int reader_get(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
               uint64_t offset, size_t len, struct span *ret_span)
{
    struct answer a = {reader, scratch, position, offset, .span = ret_span};
    ret_span->iov_count = ret_span->pinned_count = 0; /* in place because it is large */
    ret_span->bytes = 0;
    begin_request(scratch);
    if (len > READER_SPAN_MAX)
        len = READER_SPAN_MAX;
    int r = answer_fill(&a, len);
    if (r == 0 && a.done < len && ret_span->iov_count == READER_IOV_MAX - 1)
        r = answer_rest(&a, len - a.done);
    if (r < 0)
        reader_put(reader, ret_span);
    return r;
}

void reader_cut(struct span *span, size_t skip, size_t len)
{
    int kept = 0;
    span->bytes = 0;
    for (int i = 0; i < span->iov_count && span->bytes < len; i++) {
        struct iovec part = span->iov[i];
        size_t past = skip < part.iov_len ? skip : part.iov_len;
        skip -= past;
        part.iov_base = (uint8_t *)part.iov_base + past;
        part.iov_len -= past;
        if (part.iov_len > len - span->bytes)
            part.iov_len = len - span->bytes;
        if (part.iov_len > 0)
            span->iov[kept++] = part;
        span->bytes += part.iov_len;
    }
    span->iov_count = kept;
}

void reader_put(struct reader *reader, struct span *span)
{
    for (int i = 0; i < span->pinned_count; i++)
        block_cache_put(reader->cache, span->pinned[i]);
    span->iov_count = span->pinned_count = 0;
    span->bytes = 0;
}
