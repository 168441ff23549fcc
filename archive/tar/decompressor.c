#include "decompressor.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

#include "numbers.h"
#include "tar_private.h"

/* A filter looks so far ahead, at most, before it asks for more. */
#define BEFORE_BYTES 16u

struct decompressor {
    const char *compression;
    decompressor_feed *feed;
    void *ctx;
    struct fault *fault;
    const uint8_t *packed; /* the rest of what the feed gave last, */
    size_t left;           /* of `given` bytes */
    size_t given;
    uint8_t before[BEFORE_BYTES]; /* the last ones before these */
    uint64_t packed_bytes;        /* that it gave so far */
    int error;                    /* its own */
    bool is_between;              /* a gzip member, or a frame of zstd, has ended */
    bool has_ended;               /* a gzip member has */
    bool is_at_end;
    /* One of these does the work. */
    struct archive *archive;
    ZSTD_DCtx *zstd;
#ifdef HAVE_ZLIB
    z_stream *gzip;
#endif
};

static int decompressor_damaged(struct decompressor *d, const char *how)
{
    return fault_set(d->fault, -EUCLEAN, NULL, d->packed_bytes - d->left, "damaged %s data: %s",
                     d->compression, how);
}

/* Gets more packed bytes if none are left; none then: the end. */
static int decompressor_fill(struct decompressor *d)
{
    const void *bytes;
    if (d->left)
        return 0;
    ssize_t n = d->feed(d->ctx, &bytes);
    if (n < 0)
        return (int)n;
    d->left = (size_t)n;
    d->packed_bytes += d->left;
    if (n > 0) {
        d->packed = bytes;
        d->given = d->left;
    }
    return 0;
}

/* ---- libarchive's filters ---- */

static ssize_t filter_feed(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct decompressor *d = ctx;
    uint8_t last[BEFORE_BYTES];
    size_t kept = min_u64(d->given, BEFORE_BYTES);
    if (kept > 0)
        memcpy(last, d->packed + d->given - kept, kept);
    if (d->error == 0)
        d->error = decompressor_fill(d);
    if (kept > 0 && d->left > 0) {
        memmove(d->before, d->before + kept, BEFORE_BYTES - kept);
        memcpy(d->before + BEFORE_BYTES - kept, last, kept);
    }
    if (d->error < 0) {
        archive_set_error(a, -d->error, "read error");
        return ARCHIVE_FATAL;
    }
    size_t len = d->left;
    *ret_bytes = d->packed;
    d->left = 0;
    return (ssize_t)len;
}

static int filter_complain(struct decompressor *d)
{
    if (d->error < 0)
        return d->error;
    if (archive_errno(d->archive) == ENOMEM)
        return -ENOMEM;
    return decompressor_damaged(d, tar_complaint(d->archive));
}

static int filter_enable(struct decompressor *d)
{
    static const struct {
        const char *name;
        int (*enable)(struct archive *a);
    } filters[] = {
        {"gzip", archive_read_support_filter_gzip},
        {"bzip2", archive_read_support_filter_bzip2},
        {"xz", archive_read_support_filter_xz},
        {"lz4", archive_read_support_filter_lz4},
        {"lzip", archive_read_support_filter_lzip},
        {"lzma", archive_read_support_filter_lzma},
        {"compress", archive_read_support_filter_compress},
    };
    if (archive_read_support_format_raw(d->archive) != ARCHIVE_OK ||
        archive_read_support_format_empty(d->archive) != ARCHIVE_OK)
        return -ENOMEM;
    for (size_t i = 0; i < sizeof(filters) / sizeof(filters[0]); i++)
        if (strcmp(filters[i].name, d->compression) == 0 &&
            filters[i].enable(d->archive) == ARCHIVE_OK) /* WARN: it would start a program */
            return 0;
    return fault_set(d->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                     "is %s data, which this libarchive can't unpack", d->compression);
}

/* Byte `i` of what a filter has left. */
static uint8_t filter_behind(const struct decompressor *d, size_t i)
{
    size_t early = d->left > d->given ? d->left - d->given : 0; /* of it, before `packed` */
    return i < early ? d->before[BEFORE_BYTES - early + i] : d->packed[d->given + i - d->left];
}

/*
 * An empty stream, one that makes no sense, and one that can't be read are the end for some
 * filters. What follows may be zeros, and of bzip2 anything, as bzip2 has it; else it is lost.
 */
static int filter_end(struct decompressor *d)
{
    d->left = d->packed_bytes - (uint64_t)archive_filter_bytes(d->archive, -1);
    int r = d->error < 0 ? d->error : decompressor_fill(d);
    if (r < 0)
        return r;
    bool is_seen = d->left <= d->given + BEFORE_BYTES, is_nothing = is_seen;
    for (size_t i = 0; is_nothing && i < d->left; i++)
        is_nothing = filter_behind(d, i) == 0;
    bool is_bzip2 = is_seen && strcmp(d->compression, "bzip2") == 0;
    for (size_t i = 0; is_bzip2 && !is_nothing && i < 3; i++)
        is_nothing = i == d->left || filter_behind(d, i) != (uint8_t) "BZh"[i];
    d->is_at_end = true;
    if (is_nothing)
        return 0;
    fault_set(d->fault, -EUCLEAN, NULL, d->packed_bytes - d->left,
              "is %s data, and libarchive reads nothing of what follows here", d->compression);
    fault_advise(d->fault, "if '%s -dc' reads it whole, pack what that writes", d->compression);
    return -EUCLEAN;
}

static int filter_open(struct decompressor *d)
{
    struct archive_entry *entry;
    if (!(d->archive = archive_read_new()))
        return -ENOMEM;
    int r = filter_enable(d);
    if (r < 0)
        return r;
    archive_read_set_read_callback(d->archive, filter_feed);
    archive_read_set_callback_data(d->archive, d);
    /* Data that fails at its first byte is taken for empty, but leaves an error code. */
    if (archive_read_open1(d->archive) != ARCHIVE_OK || archive_errno(d->archive) != 0)
        return filter_complain(d);
    if (archive_filter_count(d->archive) < 2) /* only the end of the chain */
        return fault_set(d->fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                         "is %s data that libarchive does not unpack: it is damaged, or has an "
                         "unusual dictionary",
                         d->compression);
    int status = archive_read_next_header(d->archive, &entry);
    if (status == ARCHIVE_EOF) /* data of nothing */
        return filter_end(d);
    return status == ARCHIVE_OK ? 0 : filter_complain(d);
}

/* ---- zstd ---- */

/* A window may be as large as memory allows: libarchive takes 128 MiB at most (--long=27). */
static int zstd_open(struct decompressor *d)
{
    if (!(d->zstd = ZSTD_createDCtx()))
        return -ENOMEM;
    ZSTD_DCtx_setParameter(d->zstd, ZSTD_d_windowLogMax,
                           ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
    return 0;
}

static int zstd_step(struct decompressor *d, uint8_t *bytes, size_t len, size_t *done)
{
    ZSTD_outBuffer out = {bytes, len, *done};
    ZSTD_inBuffer in = {d->packed, d->left, 0};
    size_t left = ZSTD_decompressStream(d->zstd, &out, &in);
    if (ZSTD_isError(left))
        return tar_zstd_fault(left, d->packed_bytes - d->left, d->fault);
    if (d->left || out.pos > *done)
        d->is_between = left == 0;
    d->packed += in.pos;
    d->left -= in.pos;
    *done = out.pos;
    return 0;
}

/* ---- gzip ---- */

#ifdef HAVE_ZLIB
static int gzip_open(struct decompressor *d)
{
    if (!(d->gzip = calloc(1, sizeof(*d->gzip))))
        return -ENOMEM;
    return inflateInit2(d->gzip, 16 + MAX_WBITS) == Z_OK ? 0 : -ENOMEM;
}

static void gzip_close(struct decompressor *d)
{
    if (d->gzip)
        inflateEnd(d->gzip);
    free(d->gzip);
}

/* Behind a gzip member another one may begin. Anything else is ignored, as gzip does. */
static int gzip_step(struct decompressor *d, uint8_t *bytes, size_t len, size_t *done)
{
    z_stream *z = d->gzip;
    if (!d->left)
        return 0;
    if (d->is_between && inflateReset(z) != Z_OK)
        return -ENOMEM;
    d->is_at_end = d->is_between && d->packed[0] != 0x1f;
    if (d->is_at_end)
        return 0;
    z->next_in = (Bytef *)d->packed;
    z->avail_in = (uInt)d->left;
    z->next_out = bytes + *done;
    z->avail_out = (uInt)(len - *done);
    int status = inflate(z, Z_NO_FLUSH);
    d->packed += d->left - z->avail_in;
    d->left = z->avail_in;
    *done = len - z->avail_out;
    d->is_between = status == Z_STREAM_END;
    d->has_ended |= d->is_between;
    d->is_at_end = d->has_ended && status == Z_DATA_ERROR && z->total_in <= 2;
    if (status == Z_MEM_ERROR)
        return -ENOMEM;
    return d->is_at_end || status == Z_OK || status == Z_STREAM_END
               ? 0
               : decompressor_damaged(d, z->msg ? z->msg : "it makes no sense");
}
#else
static int gzip_open(struct decompressor *d)
{
    return filter_open(d);
}

static void gzip_close(struct decompressor *d)
{
    (void)d;
}

static int gzip_step(struct decompressor *d, uint8_t *bytes, size_t len, size_t *done)
{
    (void)d, (void)bytes, (void)len, (void)done;
    return -ENOTSUP;
}
#endif

/* ---- all together ---- */

int decompressor_new(const char *compression, decompressor_feed *feed, void *ctx,
                     struct fault *fault, struct decompressor **ret_decompressor)
{
    struct decompressor *d = calloc(1, sizeof(*d));
    if (!d)
        return -ENOMEM;
    *d = (struct decompressor){
        .compression = compression, .feed = feed, .ctx = ctx, .fault = fault};
    int r = strcmp(compression, "zstd") == 0   ? zstd_open(d)
            : strcmp(compression, "gzip") == 0 ? gzip_open(d)
                                               : filter_open(d);
    if (r < 0)
        decompressor_free(d);
    else
        *ret_decompressor = d;
    return r;
}

ssize_t decompressor_read(struct decompressor *d, void *bytes, size_t len)
{
    size_t done = 0;
    if (d->archive) {
        la_ssize_t n = d->is_at_end ? 0 : archive_read_data(d->archive, bytes, len);
        int r = n >= 0 && (size_t)n < len && !d->is_at_end ? filter_end(d) : 0;
        return n < 0 ? filter_complain(d) : r < 0 ? r : n;
    }
    while (done < len && !d->is_at_end) {
        size_t before = done;
        int r = decompressor_fill(d);
        bool is_last = d->left == 0;
        if (r == 0)
            r = d->zstd ? zstd_step(d, bytes, len, &done) : gzip_step(d, bytes, len, &done);
        if (r < 0)
            return r;
        if (!is_last || done > before)
            continue;
        d->is_at_end = true;
        if (!d->is_between)
            return decompressor_damaged(d, "it ends too early");
    }
    return (ssize_t)done;
}

void decompressor_free(struct decompressor *d)
{
    if (!d)
        return;
    gzip_close(d);
    ZSTD_freeDCtx(d->zstd);
    archive_read_free(d->archive); /* NULL is fine */
    free(d);
}
