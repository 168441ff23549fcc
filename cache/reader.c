/*
 * How a read is put together. The index names extents; neighbours in the archive are
 * joined to runs. A short stored run is copied; a long one of a mapped source is
 * answered by its place in the mapping, if the page cache has it. If it has not, or if nothing
 * is mapped, the run is read into the scratch buffer: a read tells EIO from a truncated file
 * and does not fault its pages in one by one. Bytes of the mapping are handed out, never
 * touched here: a page that is gone is an EFAULT for writev(2), but a SIGBUS for memcpy.
 *
 * Whether the page cache has a run is asked at its first and last page only; the last
 * one also shows whether the file is still as long as it was.
 */
#include "reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "codec.h"

/* Larger blocks are refused: each thread that decompresses one needs room for it. */
#define BLOCK_BYTES_MAX (64u << 20)

/*
 * Stored runs up to this length are copied by one read that is told not to wait: it
 * answers at once what the two probes of a mapped run ask, and costs less than having
 * the run's pages faulted into the mapping on their first use.
 */
#define COPY_BYTES_MAX (64u << 10)

struct reader {
    const struct index *index;
    struct source *source;
    uint64_t source_bytes;
    const uint8_t *map; /* NULL: not mapped */
    size_t page;
    bool is_copy;     /* that is made while it is read */
    bool ask_mincore; /* the filesystem can't tell a cached read from another */
    enum codec codec;
    uint32_t block_bytes;
    struct block_cache *cache;
    void *zeros; /* READER_SPAN_MAX bytes: every hole */
};

struct reader_scratch {
    struct reader *reader;
    uint8_t *buffer; /* READER_SPAN_MAX bytes; pages are touched when they are needed */
    size_t used;     /* by the current span */
    uint8_t *packed; /* a compressed block */
    size_t packed_size;
    struct codec_context *codec; /* NULL before the first block */
    void (*on_wait)(void *ctx);
    void *on_wait_ctx;
    bool waited; /* on_wait was called for the current request */
};

static void *map_zeros(size_t len, int protection)
{
    void *p = mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int check_blocks(const struct index_info *info, struct fault *fault)
{
    if (!codec_available(info->codec)) {
        fault_set(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                  "its blocks are compressed with %s, which this build does not read",
                  codec_name(info->codec));
        fault_advise(fault, "use a build of onepot with that library, or pack it anew");
        return -ENOTSUP;
    }
    if (info->block_bytes > BLOCK_BYTES_MAX)
        return fault_set(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                         "blocks of %u bytes are more than the %u that are supported",
                         info->block_bytes, BLOCK_BYTES_MAX);
    return 0;
}

/* Read a byte twice: if the second read is not cached, the filesystem never says so. */
static bool can_tell_cached(const struct source *source)
{
    char byte;
    return source_size(source) == 0 || source_read(source, &byte, 1, 0) < 0 ||
           source_read_cached(source, &byte, 1, 0) != -EAGAIN;
}

int reader_new(struct pot *pot, const struct reader_options *options, struct fault *fault,
               struct reader **ret_reader)
{
    const struct index_info *info = index_info(pot->index);
    int r = check_blocks(info, fault);
    if (r < 0)
        return r;
    struct reader *reader = calloc(1, sizeof(*reader));
    if (!reader)
        return -ENOMEM;
    reader->index = pot->index;
    reader->source = pot->source;
    reader->source_bytes = source_size(pot->source);
    reader->map = source_map(pot->source);
    reader->page = (size_t)sysconf(_SC_PAGESIZE);
    reader->is_copy = source_is_staged(pot->source);
    reader->ask_mincore = reader->map && !reader->is_copy && !can_tell_cached(pot->source);
    reader->codec = info->codec;
    reader->block_bytes = info->block_bytes;
    reader->zeros = map_zeros(READER_SPAN_MAX, PROT_READ);
    r = reader->zeros ? 0 : -ENOMEM;
    if (r == 0)
        r = block_cache_new(options->cache_bytes, info->block_bytes, &reader->cache);
    if (reader->cache && options->not_for_children)
        block_cache_not_for_children(reader->cache);
    if (r < 0) {
        reader_free(reader);
        return r;
    }
    *ret_reader = reader;
    return 0;
}

void reader_free(struct reader *reader)
{
    if (!reader)
        return;
    block_cache_free(reader->cache);
    if (reader->zeros)
        munmap(reader->zeros, READER_SPAN_MAX);
    free(reader);
}

int reader_scratch_new(struct reader *reader, struct reader_scratch **ret_scratch)
{
    struct reader_scratch *scratch = calloc(1, sizeof(*scratch));
    if (!scratch)
        return -ENOMEM;
    scratch->reader = reader;
    scratch->buffer = map_zeros(READER_SPAN_MAX, PROT_READ | PROT_WRITE);
    if (!scratch->buffer) {
        free(scratch);
        return -ENOMEM;
    }
    *ret_scratch = scratch;
    return 0;
}

void reader_scratch_free(struct reader_scratch *scratch)
{
    if (!scratch)
        return;
    codec_context_free(scratch->codec);
    free(scratch->packed);
    munmap(scratch->buffer, READER_SPAN_MAX);
    free(scratch);
}

void reader_scratch_on_wait(struct reader_scratch *scratch, void (*hook)(void *ctx), void *ctx)
{
    scratch->on_wait = hook;
    scratch->on_wait_ctx = ctx;
}

static void may_wait(struct reader_scratch *scratch)
{
    if (scratch->on_wait && !scratch->waited) {
        scratch->waited = true;
        scratch->on_wait(scratch->on_wait_ctx);
    }
}

static void begin_request(struct reader_scratch *scratch)
{
    scratch->used = 0;
    scratch->waited = false;
}

/* What a source can fail with, in the words of this interface. */
static int source_error(int err)
{
    return err == 0 || err == -ENODATA || err == -ENOMEM ? err : -EIO;
}

/* Bytes of the archive into memory of ours. */
static int read_source(struct reader *reader, struct reader_scratch *scratch, void *buf,
                       size_t len, uint64_t offset)
{
    int r = -EAGAIN;
    if (scratch->on_wait && !scratch->waited)
        r = source_read_cached(reader->source, buf, len, offset);
    if (r == -EAGAIN) {
        may_wait(scratch);
        r = source_read(reader->source, buf, len, offset);
    }
    return source_error(r);
}

/* Compressed blocks. */

struct block_request {
    struct reader *reader;
    struct reader_scratch *scratch;
    uint32_t packed_bytes;
};

static int packed_room(struct reader_scratch *scratch, size_t size)
{
    if (size <= scratch->packed_size)
        return 0;
    uint8_t *packed = malloc(size);
    if (!packed)
        return -ENOMEM;
    free(scratch->packed);
    scratch->packed = packed;
    scratch->packed_size = size;
    return 0;
}

/* block_fill: read and decompress. `key` is the offset of the block in the archive. */
static int fill_block(void *ctx, uint64_t key, void *buf, size_t size, size_t *ret_len)
{
    const struct block_request *request = ctx;
    struct reader_scratch *scratch = request->scratch;
    int r = packed_room(scratch, request->packed_bytes);
    if (r == 0 && !scratch->codec)
        r = codec_context_new(request->reader->codec, &scratch->codec);
    if (r == 0)
        r = read_source(request->reader, scratch, scratch->packed, request->packed_bytes, key);
    if (r == 0)
        r = codec_unpack(scratch->codec, scratch->packed, request->packed_bytes, buf, size,
                         ret_len);
    return r;
}

/* block_wait: another thread is at this block, and may itself wait for a device. */
static void wait_for_block(void *ctx)
{
    const struct block_request *request = ctx;
    may_wait(request->scratch);
}

/* No codec makes a block much larger than it was. */
static bool sane_block(const struct reader *reader, const struct extent *extent)
{
    return extent->block_bytes <= reader->block_bytes && extent->packed_bytes > 0 &&
           extent->packed_bytes <= reader->block_bytes + reader->block_bytes / 8 + 4096;
}

/* The block of an extent, pinned, and known to hold what the extent says. */
static int get_block(struct reader *reader, struct reader_scratch *scratch,
                     const struct extent *extent, struct block **ret_block)
{
    struct block *block;
    int r = block_cache_try(reader->cache, extent->source_offset, &block);
    if (r == -EAGAIN) {
        if (!sane_block(reader, extent))
            return -EUCLEAN;
        struct block_request request = {reader, scratch, extent->packed_bytes};
        r = block_cache_get(reader->cache, extent->source_offset, extent->block_bytes,
                            fill_block, wait_for_block, &request, &block);
    }
    if (r < 0)
        return r;
    if (extent->block_offset > block->len ||
        extent->length > block->len - extent->block_offset) {
        block_cache_put(reader->cache, block);
        return -EUCLEAN;
    }
    *ret_block = block;
    return 0;
}

/*
 * The extent at `offset`, no longer than `len`; stored extents that follow each other
 * in the archive are one. -ENXIO at the end of the file.
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
        return read_source(reader, scratch, buf, run->length, run->source_offset);
    case EXTENT_BLOCK:
        r = get_block(reader, scratch, run, &block);
        if (r < 0)
            return r;
        memcpy(buf, block->bytes + run->block_offset, run->length);
        block_cache_put(reader->cache, block);
        return 0;
    }
    return -EUCLEAN;
}

/* reader_copy within a request: `waited` is kept. */
static int copy(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                uint64_t offset, uint8_t *buf, size_t len, size_t *ret_len)
{
    size_t done = 0;
    while (done < len) {
        struct extent run;
        int r = next_run(reader, position, offset + done, len - done, &run);
        if (r == -ENXIO)
            break;
        if (r == 0)
            r = copy_run(reader, scratch, &run, buf + done);
        if (r < 0)
            return r;
        done += run.length;
    }
    *ret_len = done;
    return 0;
}

int reader_copy(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                uint64_t offset, void *buf, size_t len, size_t *ret_len)
{
    begin_request(scratch);
    return copy(reader, scratch, position, offset, buf, len, ret_len);
}

static void add_iov(struct span *span, const void *bytes, size_t len)
{
    span->iov[span->iov_count++] =
        (struct iovec){.iov_base = (void *)(uintptr_t)bytes, .iov_len = len};
    span->bytes += len;
}

/* Is the page with this byte of the mapping in memory? */
static bool page_cached(const struct reader *reader, uint64_t offset)
{
    unsigned char state = 0;
    void *page = (void *)(uintptr_t)(reader->map + offset - offset % reader->page);
    return mincore(page, 1, &state) == 0 && state & 1;
}

/*
 * The same question for filesystems that don't answer cached reads. The length of the
 * file is asked as well: its last page reads as zeros behind its end.
 */
static bool range_cached(const struct reader *reader, uint64_t offset, uint64_t last)
{
    struct stat st;
    return page_cached(reader, offset) && page_cached(reader, last) &&
           fstat(source_fd(reader->source), &st) == 0 &&
           (!S_ISREG(st.st_mode) || last < (uint64_t)st.st_size);
}

/*
 * Can this range be handed out as it lies in the mapping? 0; -EAGAIN if it would have
 * to be waited for; -ENODATA if the file ends before.
 */
static int check_mapped(const struct reader *reader, uint64_t offset, uint64_t len)
{
    char byte;
    uint64_t last = offset + len - 1;
    if (reader->is_copy) /* which has holes anywhere, and is never cut short */
        return source_has(reader->source, offset, len) ? 0 : -EAGAIN;
    int r = source_read_cached(reader->source, &byte, 1, last);
    if (r == 0 && last / reader->page != offset / reader->page)
        r = source_read_cached(reader->source, &byte, 1, offset);
    if (r == -EAGAIN && reader->ask_mincore && range_cached(reader, offset, last))
        r = 0;
    return r == -EAGAIN ? r : source_error(r);
}

/* Room in the scratch buffer: a span never needs more than its READER_SPAN_MAX. */
static uint8_t *take_scratch(struct reader_scratch *scratch, size_t len)
{
    uint8_t *bytes = scratch->buffer + scratch->used;
    scratch->used += len;
    return bytes;
}

static int add_stored(struct reader *reader, struct reader_scratch *scratch,
                      const struct extent *run, struct span *span)
{
    if (reader->map && (run->length > COPY_BYTES_MAX || reader->ask_mincore)) {
        int r = check_mapped(reader, run->source_offset, run->length);
        if (r == 0)
            add_iov(span, reader->map + run->source_offset, run->length);
        if (r != -EAGAIN)
            return r;
        may_wait(scratch);
    }
    uint8_t *bytes = take_scratch(scratch, run->length);
    int r = read_source(reader, scratch, bytes, run->length, run->source_offset);
    if (r == 0)
        add_iov(span, bytes, run->length);
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
        r = get_block(reader, scratch, run, &block);
        if (r < 0)
            return r;
        span->pinned[span->pinned_count++] = block;
        add_iov(span, block->bytes + run->block_offset, run->length);
        return 0;
    }
    return -EUCLEAN;
}

/* The last iovec takes whatever is left, copied. */
static int add_rest(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
                    uint64_t offset, size_t len, struct span *span)
{
    size_t copied;
    uint8_t *bytes = take_scratch(scratch, len);
    int r = copy(reader, scratch, position, offset, bytes, len, &copied);
    if (r == 0 && copied > 0)
        add_iov(span, bytes, copied);
    return r;
}

int reader_get(struct reader *reader, struct reader_scratch *scratch, uint32_t position,
               uint64_t offset, size_t len, struct span *ret_span)
{
    struct span *span = ret_span; /* filled in place, as it is large */
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
        if (r == 0)
            r = add_run(reader, scratch, &run, span);
        if (r < 0) {
            reader_put(reader, span);
            return r;
        }
    }
    return 0;
}

void reader_put(struct reader *reader, struct span *span)
{
    for (int i = 0; i < span->pinned_count; i++)
        block_cache_put(reader->cache, span->pinned[i]);
    span->iov_count = span->pinned_count = 0;
    span->bytes = 0;
}

void reader_cache_stats(const struct reader *reader, struct block_cache_stats *ret_stats)
{
    block_cache_stats(reader->cache, ret_stats);
}
