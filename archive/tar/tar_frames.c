/*
 * A tar in frames that are compressed one by one: zstd frames (pzstd, t2sz, the seekable
 * format), members of a gzip file (bgzip), blocks of bzip2 and xz. Each frame can be
 * decompressed alone. So an index can point into frames, and no unpacked copy is needed.
 *
 * Frames are read one after the other, whole, while libarchive reads the tar in them. The table
 * that this makes gives the frames in which a member's bytes lie. Tables of frames that files
 * carry themselves (seekable zstd, .gzi) are not read: they could lie. A member's data follows
 * its header, so its ranges wait until libarchive has found the next header.
 *
 * The end of a frame is known only after it was decompressed (gzip, bzip2) or its blocks were
 * walked through (zstd). Until then nothing that a frame claims is believed: its sizes only
 * choose the first buffer.
 *
 * The file is seen through a window: the mapping, or memory that grows until it holds a whole
 * frame. If a frame does not end within the largest supported size, the file has to be unpacked
 * as a whole (-ENOTSUP). So does a file that is one frame.
 */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "bytes.h"
#include "cleanup.h"
#include "codec.h"
#include "decompressor.h"
#include "numbers.h"
#include "source.h"
#include "source_window.h"
#include "stream.h"
#include "tar_private.h"
#include "backend.h"
#include "vector.h"
#include "write_at.h"

/*
 * Unpacks a tar that is compressed as a whole. A gzip file comes here only if its parts are too
 * long or hold mostly zeros.
 *
 * Only what the magic calls for is undone. After the first 64 KB it is clear whether the
 * content is a tar, so that a compressed database dump is not unpacked to its end to find out
 * that it is not. Runs of zeros become holes, which cost no memory where the file lies in
 * memory.
 */

enum {
    HEAD_BYTES = 64 << 10,
    FEED_BYTES = 1 << 20, /* of the source, at once */
    HOLE_BYTES = 4096,
    NOTHING_BYTES = 4096, /* a file that unpacks to nothing is not longer */
    ZEROS_MORE =
        10, /* zeros take time, but no room: so many times the limit may come of them */
};

struct unpacking {
    struct source *source;
    const char *compression;
    uint8_t *packed; /* FEED_BYTES */
    uint64_t offset; /* in the source: all before it was read */
    int fd;
    uint64_t kept;  /* bytes that are in the file already, and not written again */
    uint64_t bytes; /* unpacked so far */
    uint64_t data;  /* bytes of them that were written */
    uint64_t most;  /* limit on `data` */
    bool is_tar;    /* already checked */
    struct progress *progress;
    struct fault *fault;
};

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
            source_read(u->source, packed, size, 0) == 0 &&
            codec_context_new(false, &context) == 0 &&
            codec_unpack(context, codecs[i].codec, packed, size, &byte, 1, &len) < 0)
            len = 1;
    codec_context_free(context);
    return len == 0;
}

/* The stream unpacks to nothing: only its name can tell whether it is an empty tar. */
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
    const char *container = u->is_tar ? NULL : backend_container(head, (size_t)len);
    if (container)
        return fault_set_advised(u->fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                                 "make an archive of it: onepot pack -o NEW.tar - <FILE",
                                 "is %s data of a %s archive", u->compression, container);
    const char *again;
    if (!u->is_tar && tar_is_packed(NULL, head, (size_t)len, &again) == 1)
        return fault_set_advised(u->fault, -ENOMSG, NULL, FAULT_NO_OFFSET,
                                 "decompress it first, once", "is %s data of %s data",
                                 u->compression, again);
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
        if (u->bytes >= HEAD_BYTES && n == HOLE_BYTES && bytes_are_zero(bytes + at, n)) {
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

/* For the decompressor. */
static ssize_t tar_unpack_feed(void *ctx, const void **ret_bytes)
{
    struct unpacking *u = ctx;
    size_t len = (size_t)min_u64(source_size(u->source) - u->offset, FEED_BYTES);
    int r = len ? source_read_fault(u->source, u->packed, len, u->offset, u->fault) : 0;
    u->offset += len;
    u->progress->bytes_done = u->offset;
    *ret_bytes = u->packed;
    return r < 0 ? r : (ssize_t)len;
}

static int tar_unpack_all(struct unpacking *u, uint8_t *block)
{
    struct decompressor *d;
    int r = decompressor_new(u->compression, tar_unpack_feed, u, u->fault, &d);
    if (r == -ENOTSUP)
        fault_advise(u->fault, "decompress it first: %s -dc FILE > FILE.tar", u->compression);
    if (r < 0)
        return r;
    ssize_t n;
    do {
        n = decompressor_read(d, block, HEAD_BYTES);
        r = n < 0 ? (int)n : tar_unpack_take_block(u, block, (size_t)n);
    } while (r == 0 && n == HEAD_BYTES);
    decompressor_free(d);
    return r < 0 ? r : tar_unpack_finish(u);
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
    int r = source_read(source, head, min_u64(size, sizeof(head)), 0);
    if (r < 0)
        return r;
    if (tar_is_packed(source, head, sizeof(head), &u.compression) != 1)
        return -ENOMSG;
    progress->bytes_total = size;
    u.packed = malloc(FEED_BYTES + HEAD_BYTES);
    r = u.packed ? tar_unpack_all(&u, u.packed + FEED_BYTES) : -ENOMEM;
    free(u.packed);
    return r;
}

/* Larger frames are not worth supporting: each read of a file decompresses a whole frame. */
#define TAR_FRAME_BYTES_MAX (64u << 20)
/* Frames larger than this are worth a remark. */
#define LARGE_FRAME_BYTES (1u << 20)
/* How much behind the end-of-archive marker is read to look for damage. */
#define DRAIN_BYTES (64u << 20)
/* No codec makes a frame much larger than its content; the reader rejects such frames. */
#define PACKED_BYTES_MAX (TAR_FRAME_BYTES_MAX + TAR_FRAME_BYTES_MAX / 8)
#define WINDOW_BYTES (4u << 20)
#define FRAME_FIRST_BYTES (256u << 10) /* that a frame is looked for in */
#define OUT_FIRST_BYTES (256u << 10)
/*
 * Data that expands more than this is mostly zeros, and better unpacked to a file with holes.
 */
#define EXPANSION_MAX 1000u
#define EXPANSION_FROM (UINT64_C(1) << 30)

struct frame {
    uint64_t start; /* in the tar */
    uint32_t bytes;
    uint32_t block; /* its number in the builder */
};

struct tar_framed {
    struct source *source;
    struct builder *builder;
    struct progress *progress;
    struct fault *fault;
    int err; /* of the frame that could not be read */
    enum codec codec;
    uint64_t size_bytes;  /* of the file */
    uint64_t offset;      /* of the next frame */
    uint64_t bytes;       /* of the tar so far */
    uint64_t *left_bytes; /* that may still be decompressed; NULL: no limit */
    uint32_t largest;
    bool has_frames; /* not only parts of streams */

    struct stream_buffer out, before; /* the last frame, and the one before it */
    VECTOR(struct frame) list;
    VECTOR(struct builder_piece) pieces; /* of one file */
    ZSTD_DCtx *zstd;
    struct source_window window; /* of zstd */
    struct stream_scan *blocks;  /* of all others */
    bool blocks_ended;
};

/* ---- making one ---- */

static int frames_set_codec(struct tar_framed *f, const char *compression,
                            struct helpers *helpers)
{
    if (strcmp(compression, "zstd") != 0) {
        int r = stream_scan_new(f->source, compression, helpers, &f->blocks);
        f->codec = r < 0 ? CODEC_NONE : f->blocks->stream->codec;
        return r;
    }
    f->codec = CODEC_ZSTD;
    f->zstd = ZSTD_createDCtx();
    return f->zstd ? source_window_open(&f->window, f->source, WINDOW_BYTES) : -ENOMEM;
}

/* A bzip2 file may be one block, which is short; one of xz may be as long as the tar. */
static int frames_begin_blocks(struct tar_framed *f)
{
    int r = stream_scan_begin(f->blocks, 0, f->size_bytes, f->fault);
    return r == 0 && f->codec == CODEC_XZ_BLOCK && f->blocks->count < 2 ? -ENOTSUP : r;
}

int tar_framed_new(struct source *source, const char *compression, struct helpers *helpers,
                   uint64_t *left_bytes, struct builder *builder, struct progress *progress,
                   struct fault *fault, struct tar_framed **ret_framed)
{
    struct tar_framed *f = calloc(1, sizeof(*f));
    if (!f)
        return -ENOMEM;
    f->source = source;
    f->left_bytes = left_bytes;
    f->builder = builder;
    f->progress = progress;
    f->fault = fault;
    f->size_bytes = source_size(source);
    int r = frames_set_codec(f, compression, helpers);
    if (r == 0 && f->blocks)
        r = frames_begin_blocks(f);
    if (r < 0) {
        tar_framed_free(f);
        return r;
    }
    *ret_framed = f;
    return 0;
}

void tar_framed_free(struct tar_framed *f)
{
    if (!f)
        return;
    ZSTD_freeDCtx(f->zstd);
    stream_scan_free(f->blocks);
    source_window_close(&f->window);
    free(f->out.at);
    free(f->before.at);
    vector_free(&f->list);
    vector_free(&f->pieces);
    free(f);
}

/* ---- one frame ---- */

/* Result: more of the file is needed. */
#define NEED_MORE 1

static int frames_damaged(struct tar_framed *f, const char *what)
{
    return fault_set(f->fault, -EUCLEAN, NULL, f->offset, "damaged zstd data: %s", what);
}

/*
 * Makes room for `len` bytes and drops the old content. -ENOTSUP: more than a frame may have.
 */
static int frames_out_room(struct tar_framed *f, uint64_t len)
{
    if (len > TAR_FRAME_BYTES_MAX)
        return -ENOTSUP;
    return stream_buffer_room(&f->out, (size_t)len);
}

/* Doubles the room when a decompressor has run out of it. */
static int frames_more_room(struct tar_framed *f)
{
    if (f->out.room >= TAR_FRAME_BYTES_MAX)
        return -ENOTSUP;
    size_t len = f->out.room ? 2 * f->out.room : OUT_FIRST_BYTES;
    return frames_out_room(f, len < TAR_FRAME_BYTES_MAX ? len : TAR_FRAME_BYTES_MAX);
}

static int frames_unpack_zstd(struct tar_framed *f, const uint8_t *from, size_t len,
                              struct builder_block *ret_block, uint64_t *ret_packed)
{
    size_t packed = ZSTD_findFrameCompressedSize(from, len);
    if (ZSTD_isError(packed)) {
        if (len == PACKED_BYTES_MAX)
            return -ENOTSUP;
        if (len < f->size_bytes - f->offset)
            return NEED_MORE;
        return frames_damaged(f, len < 4 || memcmp(from, "\x28\xb5\x2f\xfd", 4) == 0
                                     ? "it is cut off"
                                     : "no frame begins here");
    }
    unsigned long long bytes = ZSTD_getFrameContentSize(from, packed);
    bool known = bytes != ZSTD_CONTENTSIZE_UNKNOWN && bytes != ZSTD_CONTENTSIZE_ERROR;
    int r = frames_out_room(f, known && bytes > OUT_FIRST_BYTES ? bytes : OUT_FIRST_BYTES);
    while (r == 0) {
        size_t n = ZSTD_decompressDCtx(f->zstd, f->out.at, f->out.room, from, packed);
        if (!ZSTD_isError(n)) {
            *ret_block = (struct builder_block){.source_offset = f->offset,
                                                .packed_bytes = (uint32_t)packed,
                                                .block_bytes = (uint32_t)n};
            *ret_packed = packed;
            return 0;
        }
        /* (Error codes have no stable names, so a frame of unknown size gets more room.) */
        if (known || f->out.room >= TAR_FRAME_BYTES_MAX)
            return tar_zstd_fault(n, f->offset, f->fault);
        r = frames_more_room(f);
    }
    return r;
}

/* Finds the zstd frame at the current offset, using as much of the file as it needs. */
static int frames_find_zstd(struct tar_framed *f, struct builder_block *ret_block,
                            uint64_t *ret_packed)
{
    for (size_t most = FRAME_FIRST_BYTES;; most *= 2) {
        const uint8_t *bytes = NULL;
        size_t len;
        int r = source_window_get(&f->window, f->offset, min_u64(most, PACKED_BYTES_MAX),
                                  &bytes, &len);
        if (r == 0)
            r = frames_unpack_zstd(f, bytes, len, ret_block, ret_packed);
        if (r != NEED_MORE)
            return r;
    }
}

/* ---- blocks of bzip2 and xz, members of gzip ---- */

/* Like gzip and bzip2, ignore bytes behind the end of the data; but note them. */
static int frames_note_rest(struct tar_framed *f)
{
    uint8_t bytes[TAR_BLOCK_BYTES];
    size_t len = (size_t)min_u64(f->size_bytes - f->offset, sizeof(bytes));
    int r = source_read(f->source, bytes, len, f->offset);
    if (r == 0 && !bytes_are_zero(bytes, len) && !f->progress->note[0])
        snprintf(f->progress->note, sizeof(f->progress->note),
                 "%llu bytes behind the end of its %s data (offset %llu) are ignored",
                 (unsigned long long)(f->size_bytes - f->offset),
                 f->codec == CODEC_GZIP ? "gzip" : "bzip2", (unsigned long long)f->offset);
    return r;
}

static int frames_find_block(struct tar_framed *f, struct stream_part *part,
                             uint64_t *ret_packed)
{
    if (f->blocks_ended)
        return frames_note_rest(f);
    int r = stream_scan_next(f->blocks, &f->out, f->fault, part);
    if (r < 0)
        return r;
    f->blocks_ended = part->is_last;
    *ret_packed = f->blocks->offset - f->offset;
    if (!codec_has_point(part->block.codec))
        part->block =
            (struct builder_block){.source_offset = f->offset,
                                   .packed_bytes = (uint32_t)min_u64(*ret_packed, UINT32_MAX),
                                   .block_bytes = part->block.block_bytes};
    return *ret_packed > 0 ? 0 : frames_note_rest(f);
}

/*
 * Find what can be decompressed alone at the current offset, a frame or a part of a stream, and
 * decompress it to f->out. part->block is what the builder takes, and may point into the part.
 * *ret_packed: bytes of the file that it takes; 0, and a block of none: nothing more follows.
 * Its bytes are taken off the ones that may be decompressed.
 */
static int frames_find_next(struct tar_framed *f, struct stream_part *part,
                            uint64_t *ret_packed)
{
    *ret_packed = 0;
    if (f->left_bytes && *f->left_bytes == 0)
        return -E2BIG;
    int r = f->blocks ? frames_find_block(f, part, ret_packed)
                      : frames_find_zstd(f, &part->block, ret_packed);
    /* A failure may come after all that a frame may have, tried with twice the room each time.
     */
    uint64_t used = r < 0 ? 2 * TAR_FRAME_BYTES_MAX : part->block.block_bytes;
    if (f->left_bytes)
        *f->left_bytes -= min_u64(used, *f->left_bytes);
    return r;
}

/* ---- the table ---- */

static int frames_add(struct tar_framed *f, const struct builder_block *block)
{
    struct frame frame = {.start = f->bytes, .bytes = block->block_bytes};
    int r = builder_add_block(f->builder, block, &frame.block);
    if (r == 0)
        r = vector_push(&f->list, frame);
    f->bytes += block->block_bytes;
    f->largest = max_u32(f->largest, block->block_bytes);
    f->has_frames = f->has_frames || !codec_has_point(block->codec);
    return r;
}

/* Can parts of the tar be read alone? */
static bool frames_are_enough(const struct tar_framed *f)
{
    return f->list.count >= (f->codec == CODEC_ZSTD ? 2 : 1);
}

/* Can the reader handle this frame, and is this way worth it for the file? */
static bool frames_is_fit(const struct tar_framed *f, const struct builder_block *block,
                          uint64_t packed)
{
    uint64_t offset = f->offset + packed, bytes = f->bytes + block->block_bytes;
    if (block->packed_bytes > codec_packed_max(block->block_bytes))
        return false;
    if (f->codec == CODEC_ZSTD && f->list.count == 0 && offset == f->size_bytes) /* only one */
        return false;
    return bytes < EXPANSION_FROM || bytes / offset < EXPANSION_MAX;
}

/*
 * The next frame's bytes, valid until the next call but one; 0 bytes at the end. -ENOTSUP: a
 * frame is too large, or the whole file is one frame, so that it has to be unpacked instead.
 * -E2BIG: no more may be decompressed. -EUCLEAN: the frame is damaged, and the fault names its
 * offset. Also errors of reading.
 */
static int frames_next(struct tar_framed *f, const void **ret_bytes, size_t *ret_len)
{
    struct stream_buffer spare = f->before;
    f->before = f->out;
    f->out = spare;
    *ret_len = 0;
    while (f->offset < f->size_bytes) {
        struct stream_part part = {0};
        const struct builder_block *block = &part.block;
        uint64_t packed;
        int r = frames_find_next(f, &part, &packed);
        /* Unpacking reports more about this. But for gzip it checks only the last sum. */
        if (r == -EUCLEAN && f->list.count == 0 && f->codec != CODEC_GZIP)
            return -ENOTSUP;
        if (r < 0)
            return r;
        if (packed == 0 && block->block_bytes == 0)
            break;
        if (block->block_bytes > 0) { /* else a skippable frame or an end marker */
            r = frames_is_fit(f, block, packed) ? frames_add(f, block) : -ENOTSUP;
            if (r < 0)
                return r;
        }
        f->offset += packed;
        if (block->block_bytes > 0) {
            *ret_bytes = f->out.at;
            *ret_len = block->block_bytes;
            return 0;
        }
    }
    return frames_are_enough(f) ? 0 : -ENOTSUP;
}

/* The frame that holds the byte at `offset`, which must have been read. */
static size_t frames_find(const struct tar_framed *f, uint64_t offset)
{
    return (size_t)search_first(i, 1, f->list.count, f->list.at[i].start > offset) - 1;
}

/* Append to f->pieces where this piece of the tar, which must have been read, lies. */
static int frames_locate(struct tar_framed *f, const struct builder_piece *in_tar)
{
    uint64_t offset = in_tar->source_offset, length = in_tar->length,
             file_offset = in_tar->offset;
    if (offset > f->bytes || length > f->bytes - offset)
        return -EUCLEAN;
    for (size_t i = frames_find(f, offset); length > 0; i++) {
        const struct frame *frame = &f->list.at[i];
        uint64_t at = offset - frame->start, n = min_u64(frame->bytes - at, length);
        struct builder_piece piece = {.offset = file_offset,
                                      .length = n,
                                      .block = frame->block,
                                      .block_offset = (uint32_t)at};
        if (vector_push(&f->pieces, piece) < 0)
            return -ENOMEM;
        offset += n;
        file_offset += n;
        length -= n;
    }
    return 0;
}

/* ---- for the walk over the members ---- */

static ssize_t frames_feed(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct tar_framed *f = ctx;
    size_t len = 0;
    f->err = frames_next(f, ret_bytes, &len);
    if (f->err < 0) {
        archive_set_error(a, -f->err, "read error");
        return ARCHIVE_FATAL;
    }
    f->progress->bytes_done = f->offset;
    f->progress->beats++;
    return (ssize_t)len;
}

struct tar_stream tar_framed_stream(struct tar_framed *f)
{
    return (struct tar_stream){.next = frames_feed, .error = &f->err, .ctx = f};
}

int tar_framed_set_pieces(struct tar_framed *f, uint32_t inode,
                          const struct builder_piece *pieces, size_t count)
{
    int r = 0;
    f->pieces.count = 0;
    for (size_t i = 0; r == 0 && i < count; i++)
        r = frames_locate(f, &pieces[i]);
    return r < 0 ? r : builder_set_pieces(f->builder, inode, f->pieces.at, f->pieces.count);
}

int tar_framed_finish(struct tar_framed *f, struct builder_header *header)
{
    uint64_t end = f->bytes + DRAIN_BYTES;
    const void *ignored;
    size_t len = 1;
    int r = 0;
    while (r == 0 && len > 0 && f->bytes < end)
        r = frames_next(f, &ignored, &len);
    if (r == 0 && !frames_are_enough(f))
        r = -ENOTSUP;
    if (r < 0)
        return r;
    uint32_t largest = f->largest;
    if ((f->codec == CODEC_ZSTD || f->codec == CODEC_XZ_BLOCK) && largest > LARGE_FRAME_BYTES &&
        !f->progress->note[0])
        snprintf(f->progress->note, sizeof(f->progress->note),
                 "is read through its %s, of up to %u MiB: each read at random decompresses "
                 "a whole one; 'onepot pack --zstd' makes small ones",
                 f->blocks ? "blocks" : "frames", (largest + (1u << 20) - 1) >> 20);
    header->codec = f->has_frames ? f->codec : CODEC_NONE;
    header->block_bytes = largest;
    return 0;
}
