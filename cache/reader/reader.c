/*
 * Makes readers and scratches. answer.c answers reads.
 */
#include "reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "reader_private.h"

#define LARGE_BYTES (UINT64_C(64) << 20) /* of an archive: a megabyte is little of it */

static void *map_zeros(size_t len, int protection)
{
    void *p = mmap(NULL, len, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static int check_codec(enum codec codec, struct fault *fault)
{
    if (codec_available(codec))
        return 0;
    return fault_set_advised(
        fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
        "use a build of onepot with that library, or pack it anew",
        "its blocks are compressed with %s, which this build does not read", codec_name(codec));
}

static int check_blocks(const struct index_info *info, struct fault *fault)
{
    int r = check_codec(info->codec, fault);
    for (unsigned codec = 0; r == 0 && codec < 16; codec++) /* also a later onepot's */
        if (info->codecs & 1u << codec)
            r = check_codec((enum codec)codec, fault);
    uint32_t most = info->codecs ? CODEC_BLOCK_MAX : codec_block_max(info->codec);
    if (r == 0 && info->block_bytes > most)
        r = fault_set(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                      "blocks of %u bytes are more than the %u that are supported",
                      info->block_bytes, most);
    return r;
}

/*
 * Reads a byte twice: if the second read is not cached, the filesystem never reports cached
 * reads.
 */
static bool can_tell_cached(const struct source *source)
{
    char byte;
    return source_size(source) == 0 || source_read(source, &byte, 1, 0) < 0 ||
           source_read_cached(source, &byte, 1, 0) != -EAGAIN;
}

/*
 * The size of most blocks. Where stored files are cached, files of all sizes are blocks, too.
 */
static size_t block_size(const struct reader *reader, const struct index_info *info)
{
    size_t least = reader->cache_stored ? READER_WHOLE_BYTES : 0;
    return info->block_bytes > least ? info->block_bytes : least;
}

int reader_new(struct pot *pot, const struct reader_options *options, struct fault *fault,
               struct reader **ret_reader)
{
    const struct index_info *info = index_info(pot->index);
    int r = check_blocks(info, fault);
    if (r < 0)
        return r;
    struct reader *reader = aligned_alloc(64, sizeof(*reader));
    if (!reader)
        return -ENOMEM;
    memset(reader, 0, sizeof(*reader));
    permits_init(&reader->permits);
    reader->index = pot->index;
    reader->source = pot->source;
    reader->source_bytes = source_size(pot->source);
    reader->is_mapped = source_can_map(pot->source);
    reader->answers_mapped = reader->is_mapped && !options->copies;
    reader->page = (size_t)sysconf(_SC_PAGESIZE);
    reader->is_kept = source_keeps(pot->source);
    reader->ask_mincore =
        reader->is_mapped && !reader->is_kept && !can_tell_cached(pot->source);
    reader->block_bytes = info->block_bytes;
    reader->zeros = map_zeros(READER_SPAN_MAX, PROT_READ);
    r = reader->zeros ? 0 : -ENOMEM;
    reader->cache_stored = options->cache_stored && !reader->is_mapped && !reader->is_kept;
    reader->keep_pages = options->keep_pages;
    reader->lets_go = options->is_kept_above && reader->is_mapped;
    if (reader->cache_stored)
        source_advise(pot->source, SOURCE_AT_RANDOM, 0, 0);
    /* In spite of that, the kernel would read on from what it read ahead when opening began. */
    if (reader->cache_stored && !reader->keep_pages && reader->source_bytes >= LARGE_BYTES)
        source_advise(pot->source, SOURCE_DROP, 0, READER_SPAN_MAX);
    const struct block_cache_options cache = {
        .budget_bytes = options->cache_bytes,
        .block_bytes = block_size(reader, info),
        .huge_pages = !reader->cache_stored, /* with cache_stored, blocks have all sizes */
        .not_for_children = options->not_for_children,
        .stuck_ms = options->stuck_ms,
    };
    if (r == 0)
        r = block_cache_new(&cache, &reader->cache);
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
    permits_free(&reader->permits);
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

void reader_scratch_skip_sums(struct reader_scratch *scratch)
{
    scratch->skip_sums = true;
}

void reader_scratch_on_wait(struct reader_scratch *scratch, void (*hook)(void *ctx), void *ctx)
{
    scratch->on_wait = hook;
    scratch->on_wait_ctx = ctx;
}

void reader_scratch_on_unpack(struct reader_scratch *scratch,
                              void (*hook)(void *ctx, bool begins), void *ctx)
{
    scratch->on_unpack = hook;
    scratch->on_unpack_ctx = ctx;
}

void reader_limit_unpacking(struct reader *reader, unsigned threads)
{
    permits_limit(&reader->permits, threads);
}

enum reader_origin reader_scratch_origin(const struct reader_scratch *scratch)
{
    return scratch->origin;
}

void reader_cache_stats(const struct reader *reader, struct block_cache_stats *ret_stats)
{
    block_cache_stats(reader->cache, ret_stats);
}

void reader_source_stats(const struct reader *reader, struct reader_source_stats *ret_stats)
{
    ret_stats->reads = atomic_load_explicit(&reader->source_reads, memory_order_relaxed);
    ret_stats->bytes = atomic_load_explicit(&reader->source_read_bytes, memory_order_relaxed);
}

void reader_forget_order(struct reader *reader)
{
    block_cache_forget_order(reader->cache);
}

void reader_passed(struct reader *reader, uint64_t due)
{
    block_cache_passed(reader->cache, due);
}

void reader_set_budget(struct reader *reader, uint64_t cache_bytes)
{
    block_cache_set_budget(reader->cache, cache_bytes);
}
