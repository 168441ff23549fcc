/*
 * Reads the input and decompresses it.
 *
 * libarchive's filters decompress all but gzip and zstd. Its filter for gzip does not compare
 * the sums at the end, and a stream is the one chance to find damage: zlib does that here. Its
 * filter for zstd refuses large windows.
 *
 * Uncompressed input is read into the very block that libarchive gets.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <archive.h>
#include <archive_entry.h>
#include <zstd.h>

#include "pour_private.h"

#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

enum {
    READ_BYTES = 512 << 10,
    HEAD_LEAST = 64 << 10, /* enough to recognize it: an ISO 9660 image says so at 32 KB */
};

/* Between the input and the blocks. */
struct pour_unpacker {
    uint8_t *packed; /* READ_BYTES */
    size_t at, len;  /* the rest of it */
    uint64_t packed_bytes;
    struct archive *archive;
#ifdef HAVE_ZLIB
    z_stream gzip;
#endif
    ZSTD_DCtx *zstd;
    bool is_gzip;
    bool is_between; /* a gzip member, or a frame of zstd, has ended */
};

ssize_t pour_read_input(int fd, struct progress *progress, void *bytes, size_t len)
{
    ssize_t n;
    do {
        n = read(fd, bytes, len);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    progress->bytes_done += (uint64_t)n;
    return n;
}

static int stream_read_some(struct pour_stream *s, uint8_t *bytes, size_t len, size_t *ret_len)
{
    ssize_t n = pour_read_input(s->fd, s->progress, bytes, len);
    if (n < 0)
        return fault_set_read(s->fault, (int)n, NULL, s->progress->bytes_done);
    *ret_len = (size_t)n;
    return 0;
}

/* Reads until `len` bytes are there, or the input ends. */
static int stream_read_full(struct pour_stream *s, uint8_t *bytes, size_t len, size_t *ret_len)
{
    size_t n = 1;
    int r = 0;
    *ret_len = 0;
    while (r == 0 && n > 0 && *ret_len < len) {
        r = stream_read_some(s, bytes + *ret_len, len - *ret_len, &n);
        *ret_len += r == 0 ? n : 0;
    }
    return r;
}

static int stream_damaged(struct pour_stream *s, const char *how)
{
    return fault_set(s->fault, -EUCLEAN, NULL, s->unpacker->packed_bytes - s->unpacker->len,
                     "damaged %s data: %s", s->compression, how);
}

/* ---- packed bytes ---- */

/* Gets more packed bytes if none are left; none then: the end. */
static int stream_fill(struct pour_stream *s)
{
    struct pour_unpacker *u = s->unpacker;
    if (u->len)
        return 0;
    u->at = 0;
    int r = stream_read_some(s, u->packed, READ_BYTES, &u->len);
    u->packed_bytes += u->len;
    return r;
}

static ssize_t stream_feed_filter(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct pour_stream *s = ctx;
    struct pour_unpacker *u = s->unpacker;
    s->error = stream_fill(s);
    if (s->error < 0) {
        archive_set_error(a, -s->error, "read error");
        return ARCHIVE_FATAL;
    }
    size_t len = u->len;
    *ret_bytes = u->packed + u->at;
    u->len = 0;
    return (ssize_t)len;
}

/* ---- libarchive's filters ---- */

static int stream_complain(struct pour_stream *s)
{
    if (s->error < 0)
        return s->error;
    if (archive_errno(s->unpacker->archive) == ENOMEM)
        return -ENOMEM;
    return stream_damaged(s, tar_complaint(s->unpacker->archive));
}

static int stream_open_filter(struct pour_stream *s)
{
    struct pour_unpacker *u = s->unpacker;
    struct archive_entry *entry;
    u->archive = archive_read_new();
    if (!u->archive)
        return -ENOMEM;
    int r = tar_enable_filter(u->archive, s->compression, s->fault);
    if (r < 0)
        return r;
    archive_read_set_read_callback(u->archive, stream_feed_filter);
    archive_read_set_callback_data(u->archive, s);
    if (archive_read_open1(u->archive) != ARCHIVE_OK)
        return stream_complain(s);
    r = tar_check_filter(u->archive, s->compression, s->fault);
    if (r < 0)
        return r;
    int status = archive_read_next_header(u->archive, &entry);
    s->is_at_end = status == ARCHIVE_EOF; /* data of nothing */
    return status == ARCHIVE_OK || s->is_at_end ? 0 : stream_complain(s);
}

static int stream_unfilter(struct pour_stream *s, struct pour_block *b)
{
    la_ssize_t n =
        s->is_at_end ? 0 : archive_read_data(s->unpacker->archive, b->bytes, READ_BYTES);
    if (n < 0)
        return stream_complain(s);
    b->len = (size_t)n;
    return 0;
}

/* ---- zstd ---- */

static int stream_open_zstd(struct pour_stream *s)
{
    s->unpacker->zstd = tar_zstd_new();
    return s->unpacker->zstd ? 0 : -ENOMEM;
}

static int stream_unzstd(struct pour_stream *s, struct pour_block *b)
{
    struct pour_unpacker *u = s->unpacker;
    ZSTD_outBuffer out = {b->bytes, READ_BYTES, 0};
    while (out.pos < out.size) {
        int r = stream_fill(s);
        if (r < 0)
            return r;
        ZSTD_inBuffer in = {u->packed + u->at, u->len, 0};
        size_t before = out.pos, left = ZSTD_decompressStream(u->zstd, &out, &in);
        if (ZSTD_isError(left))
            return tar_zstd_fault(left, u->packed_bytes - u->len, s->fault);
        if (u->len == 0 && out.pos == before) { /* the end of the input */
            if (!u->is_between)
                return stream_damaged(s, "it ends too early");
            break;
        }
        u->at += in.pos;
        u->len -= in.pos;
        u->is_between = left == 0;
        s->progress->beats++;
    }
    b->len = out.pos;
    return 0;
}

/* ---- gzip ---- */

#ifdef HAVE_ZLIB
static int stream_open_gzip(struct pour_stream *s)
{
    s->unpacker->is_gzip = true;
    return inflateInit2(&s->unpacker->gzip, 16 + MAX_WBITS) == Z_OK ? 0 : -ENOMEM;
}

static void stream_close_gzip(struct pour_unpacker *u)
{
    if (u->is_gzip)
        inflateEnd(&u->gzip);
}

/* Behind a gzip member another one may begin. Anything else is ignored, as gzip does. */
static int stream_next_member(struct pour_stream *s)
{
    struct pour_unpacker *u = s->unpacker;
    u->is_between = false;
    if (u->packed[u->at] != 0x1f) {
        s->is_at_end = true;
        return 0;
    }
    return inflateReset(&u->gzip) == Z_OK ? 0 : -ENOMEM;
}

static int stream_inflate(struct pour_stream *s, struct pour_block *b)
{
    struct pour_unpacker *u = s->unpacker;
    int r = 0;
    while (r == 0 && b->len < READ_BYTES && !s->is_at_end) {
        r = stream_fill(s);
        if (r == 0 && u->len == 0) {
            if (!u->is_between)
                return stream_damaged(s, "it ends too early");
            return 0;
        }
        if (r == 0 && u->is_between)
            r = stream_next_member(s);
        if (r < 0 || s->is_at_end)
            break;
        u->gzip.next_in = u->packed + u->at;
        u->gzip.avail_in = (uInt)u->len;
        u->gzip.next_out = b->bytes + b->len;
        u->gzip.avail_out = (uInt)(READ_BYTES - b->len);
        int status = inflate(&u->gzip, Z_NO_FLUSH);
        u->at += u->len - u->gzip.avail_in;
        u->len = u->gzip.avail_in;
        b->len = READ_BYTES - u->gzip.avail_out;
        u->is_between = status == Z_STREAM_END;
        s->progress->beats++;
        if (status == Z_MEM_ERROR)
            return -ENOMEM;
        if (status != Z_OK && status != Z_STREAM_END)
            return stream_damaged(s, u->gzip.msg ? u->gzip.msg : "it makes no sense");
    }
    return r;
}
#else
static int stream_open_gzip(struct pour_stream *s)
{
    return fault_set_advised(s->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                             "decompress it on the way: gzip -dc",
                             "is gzip data, and zlib was not built in");
}

static void stream_close_gzip(struct pour_unpacker *u)
{
    (void)u;
}

static int stream_inflate(struct pour_stream *s, struct pour_block *b)
{
    (void)s, (void)b;
    return -ENOTSUP;
}
#endif

/* ---- blocks ---- */

static int stream_read_block(struct pour_stream *s, struct pour_block *b)
{
    struct pour_unpacker *u = s->unpacker;
    b->len = 0;
    if (!b->bytes && !(b->bytes = malloc(READ_BYTES)))
        return -ENOMEM;
    if (u && u->is_gzip)
        return stream_inflate(s, b);
    if (u && u->zstd)
        return stream_unzstd(s, b);
    if (u)
        return stream_unfilter(s, b);
    return stream_read_some(s, b->bytes, READ_BYTES, &b->len);
}

/* Gets the next block into s->blocks[s->last]. */
static int stream_advance(struct pour_stream *s)
{
    if (s->error < 0)
        return s->error;
    if (s->is_waiting) {
        s->is_waiting = false;
    } else {
        s->last = !s->last;
        struct pour_block *b = &s->blocks[s->last];
        b->len = 0;
        if (!s->is_at_end)
            s->error = stream_read_block(s, b);
        if (s->error < 0)
            b->len = 0;
    }
    s->given += s->blocks[s->last].len;
    s->is_at_end |= s->blocks[s->last].len == 0;
    return s->error;
}

ssize_t pour_stream_next(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct pour_stream *s = ctx;
    int r = stream_advance(s);
    if (r < 0) {
        archive_set_error(a, -r, "read error");
        return ARCHIVE_FATAL;
    }
    *ret_bytes = s->blocks[s->last].bytes;
    return (ssize_t)s->blocks[s->last].len;
}

int pour_stream_drain(struct pour_stream *s)
{
    int r = s->error;
    while (r == 0 && !s->is_at_end)
        r = stream_advance(s);
    return r;
}

/* ---- the beginning ---- */

/* Makes the first bytes the packed ones, and the first block their unpacked form. */
static int stream_begin_unpacking(struct pour_stream *s)
{
    struct pour_block *b = &s->blocks[0];
    struct pour_unpacker *u = s->unpacker = calloc(1, sizeof(*u));
    if (!u)
        return -ENOMEM;
    u->packed = b->bytes;
    u->len = u->packed_bytes = b->len;
    *b = (struct pour_block){0};
    int r = strcmp(s->compression, "gzip") == 0   ? stream_open_gzip(s)
            : strcmp(s->compression, "zstd") == 0 ? stream_open_zstd(s)
                                                  : stream_open_filter(s);
    return r < 0 ? r : stream_read_block(s, b);
}

int pour_stream_open(struct pour_stream *s, int fd, struct progress *progress,
                     struct fault *fault, const uint8_t **ret_head, size_t *ret_len)
{
    *s = (struct pour_stream){.fd = fd, .progress = progress, .fault = fault};
    struct pour_block *b = &s->blocks[0];
    b->bytes = malloc(READ_BYTES);
    int r = b->bytes ? stream_read_full(s, b->bytes, HEAD_LEAST, &b->len) : -ENOMEM;
    if (r == 0 && tar_is_packed(NULL, b->bytes, b->len, &s->compression) == 1)
        r = stream_begin_unpacking(s);
    s->is_waiting = true;
    *ret_head = b->bytes;
    *ret_len = b->len;
    return r;
}

void pour_stream_close(struct pour_stream *s)
{
    if (s->unpacker) {
        stream_close_gzip(s->unpacker);
        ZSTD_freeDCtx(s->unpacker->zstd);
        if (s->unpacker->archive)
            archive_read_free(s->unpacker->archive);
        free(s->unpacker->packed);
        free(s->unpacker);
    }
    free(s->blocks[0].bytes);
    free(s->blocks[1].bytes);
}
