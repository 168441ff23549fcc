/*
 * Unpacks a tar that is compressed as a whole: zstd by its own library, since libarchive
 * refuses large windows, and all else by libarchive's filters, none of which starts a program.
 *
 * A gzip file comes here only if its parts are too long or hold mostly zeros: libarchive does
 * not check its sums.
 *
 * Only the filter that the magic calls for is enabled: a tar is compressed once. After the
 * first 64 KB it is clear whether the content is a tar, so that a compressed database dump is
 * not unpacked to its end to find out that it is not. Runs of zeros become holes, which cost no
 * memory where the file lies in memory.
 */
#include "tar_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <archive.h>
#include <archive_entry.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "cleanup.h"
#include "codec.h"
#include "numbers.h"
#include "source.h"
#include "unknown_format.h"
#include "write_at.h"

enum {
    HEAD_BYTES = 64 << 10,
    FEED_BYTES = 256 << 10, /* per call: the step of progress */
    HOLE_BYTES = 4096,
    NOTHING_BYTES = 4096, /* of a file that unpacks to nothing */
    ZEROS_MORE = 10, /* zeros take time, but no room: there may be so many times more bytes */
};

struct unpacking {
    struct source *source;
    struct archive *archive;
    struct tar_feed feed;
    const char *compression;
    int fd;
    uint64_t kept;  /* bytes that are in the file already, and not written again */
    uint64_t bytes; /* unpacked so far */
    uint64_t data;  /* bytes of them that were written */
    uint64_t most;  /* limit on `data` */
    bool is_tar;    /* already checked */
    struct progress *progress;
    struct fault *fault;
};

int tar_enable_filter(struct archive *a, const char *compression, struct fault *fault)
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
    archive_read_support_format_raw(a);
    archive_read_support_format_empty(a);
    for (size_t i = 0; i < sizeof(filters) / sizeof(filters[0]); i++)
        if (strcmp(filters[i].name, compression) == 0 &&
            filters[i].enable(a) == ARCHIVE_OK) /* ARCHIVE_WARN: it would start a program */
            return 0;
    return fault_set(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                     "is %s data, which this libarchive can't unpack", compression);
}

int tar_check_filter(struct archive *a, const char *compression, struct fault *fault)
{
    if (archive_filter_count(a) > 1) /* not only the end of the chain */
        return 0;
    return fault_set(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                     "is %s data that libarchive does not unpack: its dictionary is too large "
                     "(64 MiB are read)",
                     compression);
}

struct ZSTD_DCtx_s *tar_zstd_new(void)
{
    ZSTD_DCtx *zstd = ZSTD_createDCtx();
    if (zstd)
        ZSTD_DCtx_setParameter(zstd, ZSTD_d_windowLogMax,
                               ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).upperBound);
    return zstd;
}

int tar_zstd_fault(size_t code, uint64_t offset, struct fault *fault)
{
    ZSTD_ErrorCode error = ZSTD_getErrorCode(code);
    if (error == ZSTD_error_memory_allocation ||
        error == ZSTD_error_frameParameter_windowTooLarge)
        return fault_set_advised(
            fault, -ENOTSUP, NULL, offset,
            "where there is more, 'zstd -dc --long=31 FILE | onepot pack -o "
            "NEW.tar -' makes an archive of it",
            "its zstd data has a larger window (zstd --long) than memory allows");
    if (error == ZSTD_error_dictionary_wrong)
        return fault_set_advised(
            fault, -ENOTSUP, NULL, offset,
            "'zstd -dc -D DICTIONARY FILE | onepot pack -o NEW.tar -' makes an "
            "archive of it",
            "its zstd data needs the dictionary that it was made with (zstd -D)");
    return fault_set(fault, -EUCLEAN, NULL, offset, "damaged zstd data: %s",
                     ZSTD_getErrorName(code));
}

static int tar_unpack_complain(struct unpacking *u)
{
    if (u->feed.err < 0)
        return u->feed.err;
    if (archive_errno(u->archive) == ENOMEM)
        return -ENOMEM;
    return fault_set(u->fault, -EUCLEAN, NULL, u->feed.offset, "damaged %s data: %s",
                     u->compression, tar_complaint(u->archive));
}

/* Does the file really unpack to nothing? libarchive takes some damage for an end. */
static bool tar_unpack_is_nothing(struct unpacking *u)
{
    static const struct {
        const char *name;
        enum codec codec;
    } codecs[] = {{"gzip", CODEC_GZIP},
                  {"bzip2", CODEC_BZIP2_FILE},
                  {"xz", CODEC_XZ},
                  {"zstd", CODEC_ZSTD}};
    uint8_t packed[NOTHING_BYTES], byte;
    uint64_t size = source_size(u->source);
    struct codec_context *context = NULL;
    size_t len = 1;
    for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++)
        if (strcmp(u->compression, codecs[i].name) == 0 && size <= sizeof(packed) &&
            source_read(u->source, packed, size, 0) == 0 && codec_context_new(&context) == 0 &&
            codec_unpack(context, codecs[i].codec, packed, size, &byte, 1, &len) < 0)
            len = 1;
    codec_context_free(context);
    return len == 0;
}

/* As a tar of nothing, it has nothing but its name to tell its format. */
static int tar_unpack_take_nothing(struct unpacking *u)
{
    const char *name = source_name(u->source);
    if (strcmp(u->compression, "lz4") == 0 || strcmp(u->compression, "lzma") == 0)
        return fault_set(u->fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                         "is %s data of nothing: its writer did not finish, or it is damaged",
                         u->compression);
    if (!tar_unpack_is_nothing(u))
        return fault_set(u->fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "damaged %s data: it unpacks to nothing", u->compression);
    u->is_tar = backend_stem(name, strlen(name)) < strlen(name);
    return 0;
}

/* Is this a tar? Checked once enough is unpacked to decide, or everything. */
static int tar_unpack_check_head(struct unpacking *u, bool at_end)
{
    if (u->is_tar || (u->bytes < HEAD_BYTES && !at_end))
        return 0;
    int r = u->bytes == 0 ? tar_unpack_take_nothing(u) : 0;
    if (r < 0 || u->is_tar)
        return r;
    auto_free uint8_t *head = malloc(HEAD_BYTES);
    if (!head)
        return -ENOMEM;
    ssize_t len = pread(u->fd, head, HEAD_BYTES, 0);
    if (len < 0)
        return -errno;
    u->is_tar = tar_probe_head(head, (size_t)len);
    const struct backend *other =
        u->is_tar || len == 0 ? NULL : backend_of_head(u->source, head, (size_t)len);
    if (other) {
        fault_set(u->fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                  "is %s data of %s, which can't be read where it is compressed as a whole",
                  u->compression, other->file);
        fault_advise(u->fault, "decompress it first: %s -d FILE", u->compression);
        return -ENOMSG;
    }
    const char *container = u->is_tar ? NULL : unknown_format_container(head, (size_t)len);
    if (container)
        return fault_set_advised(u->fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                                 "make an archive of it: onepot pack -o NEW.tar - <FILE",
                                 "is %s data of a %s archive", u->compression, container);
    if (!u->is_tar)
        return fault_set(u->fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                         "is %s data, but there is no tar archive in it", u->compression);
    return 0;
}

static int tar_unpack_too_much(struct unpacking *u, uint64_t most)
{
    uint64_t packed = source_size(u->source);
    return fault_set_advised(u->fault, -E2BIG, NULL, FAULT_NO_OFFSET,
                             "if you trust it, allow more: --max-ratio=N or off "
                             "(ONEPOT_MAX_RATIO for the loader)",
                             "unpacks to more than %llu MiB, %llu times its size",
                             (unsigned long long)(most >> 20),
                             (unsigned long long)(most / packed));
}

static int tar_unpack_write_data(struct unpacking *u, const uint8_t *bytes, size_t len,
                                 uint64_t offset)
{
    u->data += len;
    return u->data <= u->most ? write_at(u->fd, bytes, len, offset)
                              : tar_unpack_too_much(u, u->most);
}

/* Writes data that is neither zeros nor in the file already. */
static int tar_unpack_write_sparse(struct unpacking *u, const uint8_t *bytes, size_t len)
{
    uint64_t there = u->kept > u->bytes ? u->kept - u->bytes : 0;
    size_t from = there < len ? (size_t)there : len; /* not yet written */
    for (size_t at = from; at < len;) {
        size_t n = len - at < HOLE_BYTES ? len - at : HOLE_BYTES;
        if (u->bytes >= HEAD_BYTES && n == HOLE_BYTES && tar_is_zero(bytes + at, n)) {
            int r = tar_unpack_write_data(u, bytes + from, at - from, u->bytes + from);
            if (r < 0)
                return r;
            from = at + n;
        }
        at += n;
    }
    int r = tar_unpack_write_data(u, bytes + from, len - from, u->bytes + from);
    if (r < 0)
        return r;
    u->bytes += len;
    return u->bytes / ZEROS_MORE < u->most ? 0 : tar_unpack_too_much(u, u->most * ZEROS_MORE);
}

static int tar_unpack_take_block(struct unpacking *u, const void *bytes, size_t len)
{
    int r = tar_unpack_write_sparse(u, bytes, len);
    if (r < 0)
        return r;
    u->progress->bytes_done = u->feed.offset;
    u->progress->bytes_out = u->bytes;
    u->progress->beats++;
    return tar_unpack_check_head(u, false);
}

static int tar_unpack_finish(struct unpacking *u)
{
    off_t size = lseek(u->fd, 0, SEEK_END); /* the sandbox does not allow fstat */
    if (size < 0 || ((uint64_t)size < u->bytes && ftruncate(u->fd, (off_t)u->bytes) < 0))
        return -errno;
    return tar_unpack_check_head(u, true);
}

static int tar_unpack_all(struct unpacking *u)
{
    struct archive_entry *entry;
    int r = archive_read_next_header(u->archive, &entry);
    while (r == ARCHIVE_OK || r == ARCHIVE_WARN) {
        const void *bytes;
        size_t len;
        la_int64_t ignored;
        r = archive_read_data_block(u->archive, &bytes, &len, &ignored);
        if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
            break;
        int err = tar_unpack_take_block(u, bytes, len);
        if (err < 0)
            return err;
    }
    return r == ARCHIVE_EOF ? tar_unpack_finish(u) : tar_unpack_complain(u);
}

static int tar_unpack_filter(struct unpacking *u)
{
    int r = tar_enable_filter(u->archive, u->compression, u->fault);
    if (r < 0)
        return r;
    r = tar_feed_open(&u->feed, u->source, 0, FEED_BYTES, u->archive);
    /*
     * libarchive takes data that fails at its first byte for empty, but leaves an error code.
     */
    if (r == -EUCLEAN || (r == 0 && archive_errno(u->archive) != 0))
        return tar_unpack_complain(u);
    if (r == 0) {
        r = tar_check_filter(u->archive, u->compression, u->fault);
        if (r < 0)
            fault_advise(u->fault, "decompress it first: xz -dc FILE > FILE.tar");
    }
    return r < 0 ? r : tar_unpack_all(u);
}

/* Frames of zstd, one behind the other. `bytes`: FEED_BYTES for what is read, and as many more.
 */
static int tar_unpack_frames(struct unpacking *u, ZSTD_DCtx *zstd, uint8_t *bytes)
{
    size_t left = 0; /* of a frame: 0 behind its end */
    for (uint64_t size = source_size(u->source); u->feed.offset < size;) {
        ZSTD_inBuffer in = {bytes, (size_t)min_u64(size - u->feed.offset, FEED_BYTES), 0};
        ZSTD_outBuffer out = {bytes + FEED_BYTES, FEED_BYTES, 0};
        int r = source_read(u->source, bytes, in.size, u->feed.offset);
        u->feed.offset += in.size;
        while (r == 0 && (in.pos < in.size || (left && out.pos == out.size))) {
            out.pos = 0;
            left = ZSTD_decompressStream(zstd, &out, &in);
            r = ZSTD_isError(left)
                    ? tar_zstd_fault(left, u->feed.offset - in.size + in.pos, u->fault)
                    : tar_unpack_take_block(u, out.dst, out.pos);
        }
        if (r < 0)
            return r;
    }
    return left ? fault_set(u->fault, -EUCLEAN, NULL, u->feed.offset,
                            "damaged zstd data: it ends too early")
                : tar_unpack_finish(u);
}

static int tar_unpack_zstd(struct unpacking *u)
{
    ZSTD_DCtx *zstd = tar_zstd_new();
    uint8_t *bytes = malloc(2 * FEED_BYTES);
    int r = zstd && bytes ? tar_unpack_frames(u, zstd, bytes) : -ENOMEM;
    ZSTD_freeDCtx(zstd);
    free(bytes);
    return r;
}

int tar_unpack(struct source *source, int fd, uint64_t kept, uint64_t most,
               struct progress *progress, struct fault *fault)
{
    struct unpacking u = {.source = source,
                          .fd = fd,
                          .kept = kept,
                          .most = most,
                          .progress = progress,
                          .fault = fault};
    uint8_t head[16] = {0};
    uint64_t size = source_size(source);
    int r = source_read(source, head, size < sizeof(head) ? (size_t)size : sizeof(head), 0);
    if (r < 0)
        return r;
    if (tar_is_packed(source, head, sizeof(head), &u.compression) != 1)
        return -ENOMSG;
    progress->bytes_total = size;
    if (strcmp(u.compression, "zstd") == 0)
        return tar_unpack_zstd(&u);
    u.archive = archive_read_new();
    if (!u.archive)
        return -ENOMEM;
    r = tar_unpack_filter(&u);
    archive_read_free(u.archive);
    tar_feed_close(&u.feed);
    return r;
}
