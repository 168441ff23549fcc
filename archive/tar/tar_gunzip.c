/*
 * Unpacks a gzip file and checks every sum in it. libarchive's filter skips the checksum and
 * the length at the end of each member, so damage to one member of many would go unnoticed.
 *
 * Members follow each other. Data behind the last one that is not a member is ignored, as gzip
 * does (padding of tapes), but reported if it is not zeros.
 */
#include "tar_private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef HAVE_ZLIB
#include <libdeflate.h>
#include <zlib.h>

#include "bytes.h"
#include "cleanup.h"
#include "numbers.h"
#include "source.h"

enum {
    IN_BYTES = 256 << 10, /* also the step of progress */
    OUT_BYTES = 256 << 10,
    TRAILER_BYTES = 8,
    GZIP_WINDOW = 15 + 16, /* zlib: the largest window, with gzip's header and trailer */
};

struct gunzip {
    struct source *source;
    const uint8_t *map;
    uint8_t *in, *out; /* `in` only without a map */
    uint64_t offset;   /* of the next byte to read */
    z_stream z;
    uint8_t trailer[TRAILER_BYTES]; /* the last bytes consumed */
    uint32_t crc, bytes;            /* of the member; `bytes` modulo 2^32, as in the trailer */
    struct fault *fault;
};

static uint64_t gunzip_position(const struct gunzip *g)
{
    return g->offset - g->z.avail_in;
}

static int gunzip_damaged(const struct gunzip *g, uint64_t offset, const char *what)
{
    return fault_set(g->fault, -EUCLEAN, NULL, offset, "damaged gzip data: %s", what);
}

/* Gets more input; at the end of the file there is none. */
static int gunzip_refill(struct gunzip *g)
{
    uint64_t left = source_size(g->source) - g->offset;
    size_t len = (size_t)min_u64(left, IN_BYTES);
    int r =
        g->map || len == 0 ? 0 : source_read_fault(g->source, g->in, len, g->offset, g->fault);
    if (r < 0)
        return r;
    g->z.next_in = (Bytef *)(uintptr_t)(g->map ? g->map + g->offset : g->in);
    g->z.avail_in = (uInt)len;
    g->offset += len;
    return 0;
}

/* Keeps the member's last bytes, wherever the buffers split them. */
static void gunzip_keep_trailer(struct gunzip *g, const uint8_t *consumed, size_t len)
{
    size_t keep = len < TRAILER_BYTES ? TRAILER_BYTES - len : 0;
    for (size_t i = 0; i < keep; i++)
        g->trailer[i] = g->trailer[TRAILER_BYTES - keep + i];
    for (size_t i = keep; i < TRAILER_BYTES; i++)
        g->trailer[i] = consumed[len - TRAILER_BYTES + i];
}

static int gunzip_check_trailer(const struct gunzip *g)
{
    uint64_t at = gunzip_position(g) - TRAILER_BYTES;
    if (bytes_le32(g->trailer) != g->crc)
        return gunzip_damaged(g, at, "its checksum does not fit");
    return bytes_le32(g->trailer + 4) == g->bytes
               ? 0
               : gunzip_damaged(g, at, "its length does not fit");
}

/* One step of zlib: 1 at the end of a member, 0, or an error. */
static int gunzip_step(struct gunzip *g, tar_take *take, void *ctx)
{
    if (g->z.avail_in == 0) {
        int r = gunzip_refill(g);
        if (r < 0)
            return r;
        if (g->z.avail_in == 0)
            return gunzip_damaged(g, g->offset, "it ends too early");
    }
    const uint8_t *before = g->z.next_in;
    g->z.next_out = g->out;
    g->z.avail_out = OUT_BYTES;
    int z = inflate(&g->z, Z_NO_FLUSH);
    if (z == Z_MEM_ERROR)
        return -ENOMEM;
    if (z != Z_OK && z != Z_STREAM_END && z != Z_BUF_ERROR)
        return gunzip_damaged(g, gunzip_position(g), g->z.msg ? g->z.msg : "it makes no sense");
    gunzip_keep_trailer(g, before, (size_t)(g->z.next_in - before));
    size_t len = OUT_BYTES - g->z.avail_out;
    g->crc = libdeflate_crc32(g->crc, g->out, len);
    g->bytes += (uint32_t)len;
    int r = len ? take(ctx, g->out, len, gunzip_position(g)) : 0;
    if (r < 0)
        return r;
    return z == Z_STREAM_END ? 1 : 0;
}

static int gunzip_read_member(struct gunzip *g, tar_take *take, void *ctx)
{
    int r;
    g->crc = g->bytes = 0;
    if (inflateReset2(&g->z, GZIP_WINDOW) != Z_OK)
        return -ENOMEM;
    inflateValidate(&g->z, 0); /* zlib's own sum is slower than inflating */
    while ((r = gunzip_step(g, take, ctx)) == 0)
        ;
    return r < 0 ? r : gunzip_check_trailer(g);
}

/* Does another member begin here? */
static int gunzip_has_more(const struct gunzip *g, struct progress *progress, bool *ret_more)
{
    uint8_t next[512];
    uint64_t at = gunzip_position(g), left = source_size(g->source) - at;
    size_t len = (size_t)min_u64(left, sizeof(next));
    int r = source_read(g->source, next, len, at);
    if (r < 0)
        return r;
    *ret_more = len >= 2 && next[0] == 0x1f && next[1] == 0x8b;
    if (!*ret_more && !tar_is_zero(next, len))
        snprintf(progress->note, sizeof(progress->note),
                 "%llu bytes behind the end of its gzip data (offset %llu) are ignored",
                 (unsigned long long)left, (unsigned long long)at);
    return 0;
}

static int gunzip_read_members(struct gunzip *g, struct progress *progress, tar_take *take,
                               void *ctx)
{
    bool more = true;
    int r = 0;
    while (r == 0 && more) {
        r = gunzip_read_member(g, take, ctx);
        if (r == 0)
            r = gunzip_has_more(g, progress, &more);
    }
    return r;
}

int tar_gunzip(struct source *source, struct progress *progress, tar_take *take, void *ctx,
               struct fault *fault)
{
    struct gunzip g = {.source = source, .map = source_map(source), .fault = fault};
    auto_free uint8_t *out = malloc(OUT_BYTES), *in = g.map ? NULL : malloc(IN_BYTES);
    if (!out || (!g.map && !in) || inflateInit2(&g.z, GZIP_WINDOW) != Z_OK)
        return -ENOMEM;
    g.in = in;
    g.out = out;
    int r = gunzip_read_members(&g, progress, take, ctx);
    inflateEnd(&g.z);
    return r;
}

#else

int tar_gunzip(struct source *source, struct progress *progress, tar_take *take, void *ctx,
               struct fault *fault)
{
    (void)source, (void)progress, (void)take, (void)ctx, (void)fault;
    return -ENOSYS;
}

#endif
