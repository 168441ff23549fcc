/*
 * Puts a read together. The index names extents; neighbours in the archive are joined to runs.
 * A short stored run is copied. A long run of a mapped source is answered by its place in the
 * mapping, if the page cache has it. If it has not, or nothing is mapped, the run is read into
 * the scratch buffer: a read distinguishes EIO from a truncated file and does not fault its
 * pages in one by one. Bytes of the mapping are handed out, but never touched here: a missing
 * page is an EFAULT for writev(2), but a SIGBUS for memcpy.
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

/*
 * The extent at `offset`, no longer than `len`. Stored extents that adjoin in the archive are
 * joined. -ENXIO at the end of the file.
 */
static int next_run(const struct reader *reader, uint32_t position, uint64_t offset, size_t len,
                    struct extent *ret_run)
{
    struct extent run, next;
    int r = index_extent(reader->index, position, offset, &run);
    if (r < 0)
        return r;
    while (run.kind == EXTENT_STORED && run.length < len) {
        r = index_extent(reader->index, position, offset + run.length, &next);
        if (r == -ENXIO)
            break;
        if (r < 0)
            return r;
        if (next.kind != EXTENT_STORED || next.length == 0 ||
            next.source_offset != run.source_offset + run.length)
            break;
        run.length += next.length;
    }
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

static int copy_run(struct reader *reader, struct reader_scratch *scratch,
                    const struct extent *run, uint8_t *buf)
{
    struct block *block;
    int r;
    switch (run->kind) {
    case EXTENT_HOLE:
        memset(buf, 0, run->length);
        return 0;
    case EXTENT_STORED:
        return reader_read_source(reader, scratch, buf, run->length, run->source_offset);
    case EXTENT_BLOCK:
        r = reader_get_block(reader, scratch, run, &block);
        if (r < 0)
            return r;
        memcpy(buf, block->bytes + run->block_offset, run->length);
        block_cache_put(reader->cache, block);
        return 0;
    }
    return -EUCLEAN;
}

/* Copies stored bytes of the file through the block cache, as many as fit in a few pieces. */
static int copy_pieces(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                       uint64_t offset, uint8_t *buf, size_t len, size_t *ret_len)
{
    struct piece pieces[PIECES_MAX];
    unsigned count = 0;
    size_t done = 0;
    int r =
        reader_get_pieces(reader, scratch, position, offset, len, PIECES_MAX, pieces, &count);
    for (unsigned i = 0; i < count; i++) {
        const struct piece *piece = &pieces[i];
        if (piece->block) {
            memcpy(buf + done, piece->block->bytes + piece->start, piece->length);
            block_cache_put(reader->cache, piece->block);
        } else if (r == 0) {
            r = reader_read_source(reader, scratch, buf + done, piece->length,
                                   piece->source_offset + piece->start);
        }
        done += piece->length;
    }
    *ret_len = done;
    return r;
}

/* reader_copy within a request: `waited` stays as it is. */
static int answer_copy(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                       uint64_t offset, uint8_t *buf, size_t len, size_t *ret_len)
{
    size_t done = 0;
    while (done < len) {
        struct extent run;
        int r = next_run(reader, position, offset + done, len - done, &run);
        if (r == -ENXIO)
            break;
        size_t copied = r == 0 ? run.length : 0;
        if (r == 0 && reader->cache_stored && run.kind == EXTENT_STORED)
            r = copy_pieces(reader, scratch, position, offset + done, buf + done, run.length,
                            &copied);
        else if (r == 0)
            r = copy_run(reader, scratch, &run, buf + done);
        if (r < 0)
            return r;
        done += copied;
    }
    *ret_len = done;
    return 0;
}

int reader_copy(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                uint64_t offset, void *buf, size_t len, size_t *ret_len)
{
    begin_request(scratch);
    return answer_copy(reader, scratch, position, offset, buf, len, ret_len);
}

static void add_iov(struct span *span, const void *bytes, size_t len)
{
    span->iov[span->iov_count++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    span->bytes += len;
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

/* Takes room from the scratch buffer: a span never needs more than READER_SPAN_MAX. */
static uint8_t *answer_take_scratch(struct reader_scratch *scratch, size_t len)
{
    uint8_t *bytes = scratch->buffer + scratch->used;
    scratch->used += len;
    return bytes;
}

static int add_stored(struct reader *reader, struct reader_scratch *scratch,
                      const struct extent *run, struct span *span)
{
    if (reader->answers_mapped && (run->length > COPY_BYTES_MAX || reader->ask_mincore)) {
        const uint8_t *mapped = NULL;
        int r = answer_mapped(reader, run->source_offset, run->length, &mapped);
        if (r == 0) {
            reader_came_from(scratch, reader->is_kept ? READER_FROM_COPY : READER_FROM_PAGES);
            add_iov(span, mapped, run->length);
            reader_count_read(reader, run->length, run->source_offset);
        }
        if (r != -EAGAIN)
            return r;
        reader_may_wait(scratch);
    }
    uint8_t *bytes = answer_take_scratch(scratch, run->length);
    int r = reader_read_source(reader, scratch, bytes, run->length, run->source_offset);
    if (r == 0)
        add_iov(span, bytes, run->length);
    return r;
}

/* Adds as many pieces as there is room for; the caller comes back for the rest. */
static int add_pieces(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                      uint64_t offset, size_t len, struct span *span)
{
    struct piece pieces[PIECES_MAX];
    unsigned count = 0, room = (unsigned)(READER_IOV_MAX - 1 - span->iov_count);
    int r = reader_get_pieces(reader, scratch, position, offset, len, room, pieces, &count);
    for (unsigned i = 0; i < count; i++) { /* pinned first, so that an error finds them */
        if (pieces[i].block)
            span->pinned[span->pinned_count++] = pieces[i].block;
    }
    for (unsigned i = 0; r == 0 && i < count; i++) {
        const struct piece *piece = &pieces[i];
        if (piece->block) {
            add_iov(span, piece->block->bytes + piece->start, piece->length);
            continue;
        }
        uint8_t *bytes = answer_take_scratch(scratch, piece->length);
        r = reader_read_source(reader, scratch, bytes, piece->length,
                               piece->source_offset + piece->start);
        add_iov(span, bytes, piece->length);
    }
    return r;
}

static int add_run(struct reader *reader, struct reader_scratch *scratch,
                   const struct extent *run, struct span *span)
{
    struct block *block;
    int r;
    switch (run->kind) {
    case EXTENT_HOLE:
        add_iov(span, reader->zeros, run->length);
        return 0;
    case EXTENT_STORED:
        return add_stored(reader, scratch, run, span);
    case EXTENT_BLOCK:
        r = reader_get_block(reader, scratch, run, &block);
        if (r < 0)
            return r;
        if (reader->lets_go && run->length == block->len)
            block_cache_let_go(reader->cache, block);
        span->pinned[span->pinned_count++] = block;
        add_iov(span, block->bytes + run->block_offset, run->length);
        return 0;
    }
    return -EUCLEAN;
}

/* Copies the rest into the last iovec. */
static int add_rest(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                    uint64_t offset, size_t len, struct span *span)
{
    size_t copied;
    uint8_t *bytes = answer_take_scratch(scratch, len);
    int r = answer_copy(reader, scratch, position, offset, bytes, len, &copied);
    if (r == 0 && copied > 0)
        add_iov(span, bytes, copied);
    return r;
}

int reader_get(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
               uint64_t offset, size_t len, struct span *ret_span)
{
    struct span *span = ret_span; /* filled in place because it is large */
    span->iov_count = span->pinned_count = 0;
    span->bytes = 0;
    begin_request(scratch);
    if (len > READER_SPAN_MAX)
        len = READER_SPAN_MAX;
    while (span->bytes < len) {
        if (span->iov_count == READER_IOV_MAX - 1) {
            int r = add_rest(reader, scratch, position, offset + span->bytes, len - span->bytes,
                             span);
            if (r < 0)
                reader_put(reader, span);
            return r;
        }
        struct extent run;
        int r = next_run(reader, position, offset + span->bytes, len - span->bytes, &run);
        if (r == -ENXIO)
            break;
        if (r == 0 && reader->cache_stored && run.kind == EXTENT_STORED)
            r = add_pieces(reader, scratch, position, offset + span->bytes, run.length, span);
        else if (r == 0)
            r = add_run(reader, scratch, &run, span);
        if (r < 0) {
            reader_put(reader, span);
            return r;
        }
    }
    return 0;
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
