/*
 * The trailer of onepot's own archives, and the back end that finds it.
 *
 * The trailer is only an offer: the tar is complete without it. So the reader must always ask
 * whether the trailer still describes the tar. Tools that append overwrite the end-of-archive
 * marker and may leave behind a footer that looks right, in place and with a good sum.
 * Therefore the marker itself is read, at the offset that both footer and index name. If
 * anything disagrees, the archive counts as one without an index and is read as a plain tar.
 */
#include "onepot_format.h"

#include <assert.h>
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "backend.h"
#include "bytes.h"
#include "index_format.h"
#include "numbers.h"
#include "source.h"
#include "write_at.h"
#include "writer.h"

#define FOOTER_MAGIC ONEPOT_FOOTER_MAGIC
#define FOOTER_BYTES ONEPOT_FOOTER_BYTES
#define FOOTER_ZSTD                                                                            \
    UINT64_C(1) /* incompatible: the tar is in zstd frames, the trailer in skippable ones */

#define SKIPPABLE_MAGIC 0x184d2a5au
#define SKIPPABLE_BYTES 8u                    /* a frame's header: magic and length */
#define INDEX_FRAME_BYTES (UINT64_C(1) << 32) /* of a compressed archive; else 0 */

/* As it is on disk; in memory in host order. Bytes without a name are zero. */
struct footer {
    char magic[8];
    uint32_t version;
    uint32_t footer_bytes;
    uint64_t incompatible;
    uint8_t zeros[8];
    uint8_t identifier[16];
    uint64_t end_marker_offset;
    uint64_t image_offset;
    uint64_t image_bytes;
    uint64_t file_bytes;
    uint64_t archive_bytes;
    uint64_t tar_bytes;
    uint64_t index_frame_bytes; /* no frame with an index is longer: see INDEX_FRAME_BYTES */
    uint8_t more_zeros[400];
    uint64_t sum; /* XXH3-64 of all before it */
};
static_assert(sizeof(struct footer) == FOOTER_BYTES, "footer");

/* From host order to that on disk, or back. */
static void footer_convert(struct footer *f)
{
    uint64_t *const numbers[] = {
        &f->incompatible,      &f->image_offset,      &f->image_bytes,
        &f->end_marker_offset, &f->file_bytes,        &f->archive_bytes,
        &f->tar_bytes,         &f->index_frame_bytes, &f->sum};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        *numbers[i] = le64toh(*numbers[i]);
    f->version = le32toh(f->version);
    f->footer_bytes = le32toh(f->footer_bytes);
}

static bool footer_is_zstd(const struct footer *f)
{
    return f->incompatible & FOOTER_ZSTD;
}

/* Where the file ends, if its index ends at `image_end`. 0: that is not a 63-bit number. */
static uint64_t footer_end_of_file(uint64_t image_end)
{
    uint64_t end;
    if (__builtin_add_overflow(image_end, FOOTER_BYTES + ONEPOT_RECORD_BYTES - 1, &end) ||
        end > INT64_MAX)
        return 0;
    return end - end % ONEPOT_RECORD_BYTES;
}

static void footer_encode(uint8_t bytes[FOOTER_BYTES], const struct footer *f)
{
    struct footer disk = *f;
    memcpy(disk.magic, FOOTER_MAGIC, sizeof(disk.magic));
    disk.version = ONEPOT_FOOTER_VERSION;
    disk.footer_bytes = FOOTER_BYTES;
    footer_convert(&disk);
    disk.sum = htole64(XXH3_64bits(&disk, offsetof(struct footer, sum)));
    memcpy(bytes, &disk, sizeof(disk));
}

static void onepot_put_skippable(uint8_t bytes[SKIPPABLE_BYTES], uint64_t content_bytes)
{
    bytes_put_le32(bytes, SKIPPABLE_MAGIC);
    bytes_put_le32(bytes + 4, (uint32_t)content_bytes);
}

static uint64_t footer_image_end(const struct footer *f)
{
    return f->image_offset + f->image_bytes;
}

/* Writes the header of the frame that holds the index, and the zeros up to the index. */
static int onepot_write_index_frame(int fd, const struct footer *f)
{
    uint8_t head[SKIPPABLE_BYTES + 8] = {0};
    onepot_put_skippable(head, footer_image_end(f) - f->archive_bytes - SKIPPABLE_BYTES);
    return write_at(fd, head, (size_t)(f->image_offset - f->archive_bytes), f->archive_bytes);
}

/* Writes the footer behind the index of a compressed archive, in a separate frame. */
static int onepot_write_zstd_end(int fd, struct footer *f)
{
    uint8_t end[SKIPPABLE_BYTES + FOOTER_BYTES];
    uint64_t end_of_image = footer_image_end(f);
    f->file_bytes = end_of_image + sizeof(end);
    if (f->file_bytes > INT64_MAX || f->image_bytes > ONEPOT_ZSTD_INDEX_MAX)
        return -EFBIG;
    int r = onepot_write_index_frame(fd, f);
    onepot_put_skippable(end, FOOTER_BYTES);
    footer_encode(end + SKIPPABLE_BYTES, f);
    return r < 0 ? r : write_at(fd, end, sizeof(end), end_of_image);
}

/* Writes zeros up to the end of the file, with the footer in its last block. */
static int onepot_write_plain_end(int fd, struct footer *f)
{
    uint8_t end[ONEPOT_RECORD_BYTES + FOOTER_BYTES] = {0};
    uint64_t end_of_image = footer_image_end(f);
    f->file_bytes = footer_end_of_file(end_of_image);
    if (!f->file_bytes)
        return -EFBIG;
    size_t len = (size_t)(f->file_bytes - end_of_image);
    footer_encode(end + len - FOOTER_BYTES, f);
    return write_at(fd, end, len, end_of_image);
}

/* Where the image begins whose frame begins at `start`. */
static uint64_t footer_zstd_image_offset(uint64_t start)
{
    return (start + SKIPPABLE_BYTES + 7) & ~UINT64_C(7);
}

int onepot_format_append(struct builder *builder, struct builder_header *header,
                         uint64_t tar_bytes, int fd, struct fault *fault,
                         uint64_t *ret_file_bytes)
{
    bool is_zstd = header->codec == CODEC_ZSTD;
    struct footer f = {
        .end_marker_offset = header->end_marker_offset,
        .image_offset = is_zstd ? footer_zstd_image_offset(header->archive_bytes) : tar_bytes,
        .archive_bytes = header->archive_bytes,
        .tar_bytes = tar_bytes,
        .index_frame_bytes = is_zstd ? INDEX_FRAME_BYTES : 0,
        .incompatible = is_zstd ? FOOTER_ZSTD : 0,
    };
    memcpy(f.identifier, header->identifier, sizeof(f.identifier));
    header->format = backend_onepot.number;
    int r = builder_write(builder, header, fd, f.image_offset, fault, &f.image_bytes);
    if (r == 0)
        r = is_zstd ? onepot_write_zstd_end(fd, &f) : onepot_write_plain_end(fd, &f);
    if (r == -EFBIG)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "archive grows too large");
    if (r == 0)
        *ret_file_bytes = f.file_bytes;
    return r;
}

/* ---- the reader's side ---- */

/* Reads the last block of the file, as it is on disk. 1; 0: it is not a footer; -errno. */
static int footer_read(const struct source *source, struct footer *ret_footer)
{
    uint64_t size = source_size(source);
    if (size < FOOTER_BYTES)
        return 0;
    int r = source_read(source, ret_footer, FOOTER_BYTES, size - FOOTER_BYTES);
    return r < 0 ? r : memcmp(ret_footer->magic, FOOTER_MAGIC, 8) == 0;
}

/*
 * The footer tells the file's length. A footer with another length may belong to a tar's last
 * member: then the file's beginning decides.
 */
static int onepot_probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    const char *compression;
    struct footer footer;
    int r = footer_read(source, &footer);
    if (r <= 0 || le64toh(footer.file_bytes) == source_size(source))
        return r;
    r = backend_tar.probe(source, head, head_len);
    return r ? r : backend_tar.stream->is_packed(source, head, head_len, &compression);
}

static int onepot_damaged(struct fault *fault, uint64_t offset, const char *what)
{
    return fault_set(fault, -EUCLEAN, NULL, offset, "%s", what);
}

static int onepot_stale(struct fault *fault, uint64_t offset, const char *what)
{
    fault_set(fault, -ESTALE, NULL, offset, "%s", what);
    fault_advise(fault, "it is read as a plain tar; to mount it at once, save an index with "
                        "'onepot index', or pack it anew");
    return -ESTALE;
}

static int footer_impossible(struct fault *fault, uint64_t at, const char *what)
{
    return fault_set(fault, -EUCLEAN, NULL, at, "footer names an impossible place for %s",
                     what);
}

/* Is the footer consistent? */
static int footer_check_layout(const struct footer *f, uint64_t at, struct fault *fault)
{
    uint64_t marker_end, end;
    if (__builtin_add_overflow(f->end_marker_offset, ONEPOT_MARKER_BYTES, &marker_end) ||
        f->end_marker_offset % FOOTER_BYTES || marker_end > f->tar_bytes ||
        f->tar_bytes - marker_end >= ONEPOT_RECORD_BYTES || f->tar_bytes % ONEPOT_RECORD_BYTES)
        return footer_impossible(fault, at, "the end of the tar");
    if (__builtin_add_overflow(f->image_offset, f->image_bytes, &end) || end > f->file_bytes ||
        f->image_bytes < sizeof(struct disk_header))
        return footer_impossible(fault, at, "the index");
    if (!footer_is_zstd(f) &&
        (f->index_frame_bytes || f->image_offset != f->tar_bytes ||
         f->archive_bytes != f->tar_bytes || footer_end_of_file(end) != f->file_bytes))
        return footer_impossible(fault, at, "the index");
    if (footer_is_zstd(f) &&
        (f->index_frame_bytes != INDEX_FRAME_BYTES || f->image_bytes > ONEPOT_ZSTD_INDEX_MAX ||
         f->archive_bytes > f->image_offset ||
         f->image_offset != footer_zstd_image_offset(f->archive_bytes) ||
         footer_image_end(f) + SKIPPABLE_BYTES + FOOTER_BYTES != f->file_bytes))
        return footer_impossible(fault, at, "the index");
    return 0;
}

static int footer_decode(struct footer *f, uint64_t size, struct fault *fault)
{
    uint64_t at = size - FOOTER_BYTES, sum = XXH3_64bits(f, offsetof(struct footer, sum));
    footer_convert(f);
    if (f->sum != sum)
        return onepot_damaged(fault, at, "footer is damaged: its sum is wrong");
    if (f->version != ONEPOT_FOOTER_VERSION || f->incompatible & ~FOOTER_ZSTD)
        return fault_set_advised(
            fault, -ESTALE, NULL, at,
            "it is read as a plain tar; use that version, or save an index with "
            "'onepot index', or pack it anew with this one",
            "its index was made by a later version of onepot");
    if (f->file_bytes != size)
        return onepot_stale(fault, at, "the file has another size than when it was packed");
    return footer_check_layout(f, at, fault);
}

/*
 * Does the index that the footer names belong to this archive, which begins at `start`?
 * index_open checks the rest of it.
 */
static int footer_check_image(const struct source *source, uint64_t start,
                              const struct footer *f, struct fault *fault)
{
    struct disk_header header;
    int r = source_read(source, &header, sizeof(header), start + f->image_offset);
    if (r < 0)
        return r;
    if (memcmp(header.magic, DISK_MAGIC, sizeof(header.magic)) != 0)
        return onepot_damaged(fault, f->image_offset,
                              "there is no index where the footer has it");
    if (memcmp(header.identifier, f->identifier, sizeof(f->identifier)) != 0 ||
        le64toh(header.end_marker_offset) != f->end_marker_offset ||
        le64toh(header.archive_bytes) != f->archive_bytes ||
        le64toh(header.image_bytes) != f->image_bytes)
        return onepot_damaged(fault, f->image_offset,
                              "index and footer are not of the same archive");
    return 0;
}

static int footer_find(struct source *source, struct fault *fault, struct footer *ret_footer)
{
    static const uint8_t zeros[ONEPOT_MARKER_BYTES];
    uint8_t marker[ONEPOT_MARKER_BYTES];
    int r = footer_read(source, ret_footer);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    r = footer_decode(ret_footer, source_size(source), fault);
    if (r == 0 && !footer_is_zstd(ret_footer)) { /* compressed ones are not changed in place */
        r = source_read(source, marker, sizeof(marker), ret_footer->end_marker_offset);
        if (r == 0 && memcmp(marker, zeros, sizeof(zeros)) != 0)
            r = onepot_stale(fault, ret_footer->end_marker_offset,
                             "something was appended after it was packed");
    }
    return r < 0 ? r : footer_check_image(source, 0, ret_footer, fault);
}

/* The footer says how long the archive is, and so where it begins. */
static int onepot_find_behind(const struct front *front, uint64_t *ret_offset)
{
    struct footer f;
    uint64_t size = source_size(front->source);
    int r = footer_read(front->source, &f);
    if (r <= 0)
        return r;
    uint64_t bytes = le64toh(f.file_bytes);
    if (bytes >= size || footer_decode(&f, bytes, NULL) < 0)
        return 0;
    r = footer_check_image(front->source, size - bytes, &f, NULL);
    *ret_offset = size - bytes;
    return r == 0 ? 1 : r == -EUCLEAN ? 0 : r;
}

static int onepot_find(struct source *source, struct fault *fault,
                       struct embedded_index *ret_where)
{
    struct footer f;
    int r = footer_find(source, fault, &f);
    if (r == 0)
        *ret_where = (struct embedded_index){f.image_offset, f.image_bytes};
    return r;
}

/* Are the bytes from `from` to `to`, which are few, all zeros? -EUCLEAN if not. */
static int onepot_check_zeros(const struct source *source, uint64_t from, uint64_t to,
                              struct fault *fault)
{
    static const uint8_t zeros[4096];
    uint8_t bytes[sizeof(zeros)];
    while (from < to) {
        size_t n = (size_t)min_u64(to - from, sizeof(bytes));
        int r = source_read_fault(source, bytes, n, from, fault);
        if (r < 0)
            return r;
        if (memcmp(bytes, zeros, n) != 0)
            return onepot_damaged(fault, from, "there should be zeros");
        from += n;
    }
    return 0;
}

/* Checks a skippable frame's header and the length in it. */
static int onepot_check_skippable(const struct source *source, uint64_t start, uint64_t end,
                                  struct fault *fault)
{
    uint8_t wanted[SKIPPABLE_BYTES], found[SKIPPABLE_BYTES];
    onepot_put_skippable(wanted, end - start - SKIPPABLE_BYTES);
    int r = source_read_fault(source, found, sizeof(found), start, fault);
    if (r < 0)
        return r;
    return memcmp(wanted, found, sizeof(found)) == 0
               ? 0
               : onepot_damaged(fault, start, "the header of a skippable frame is damaged");
}

static int onepot_check_index_frame(const struct source *source, const struct footer *f,
                                    struct fault *fault)
{
    int r = onepot_check_skippable(source, f->archive_bytes, footer_image_end(f), fault);
    return r < 0 ? r
                 : onepot_check_zeros(source, f->archive_bytes + SKIPPABLE_BYTES,
                                      f->image_offset, fault);
}

int onepot_check_trailer(struct source *source, const struct index *index, struct fault *fault)
{
    struct footer f;
    int r = footer_find(source, fault, &f);
    if (r == 0)
        r = index_check(index, fault);
    if (r < 0)
        return r;
    if (!footer_is_zstd(&f))
        return onepot_check_zeros(source, footer_image_end(&f), f.file_bytes - FOOTER_BYTES,
                                  fault);
    r = onepot_check_index_frame(source, &f, fault);
    return r < 0 ? r
                 : onepot_check_skippable(source, footer_image_end(&f), f.file_bytes, fault);
}

/* An archive without its trailer is an ordinary tar, up to the first end-of-archive marker. */
/* ---- lost ends ---- */

/*
 * The lost ends of onepot archives. One whose footer is cut off is taken for a plain tar; the
 * remains of its index show that it was more.
 */

static void report_lost_index(const struct archive_end *end, uint64_t at)
{
    struct fault fault = {0};
    fault_set(&fault, -EUCLEAN, NULL, at,
              "there is an index behind the tar, but no footer: its end was cut off");
    fault_advise(&fault, "copy it again; until then it can be used as a tar");
    end->report(end->ctx, &fault);
}

/*
 * Look for an index in [at, size). It records where the tar ends: right before it, or before
 * the frame that it lies in.
 */
static int check_lost_index(const struct archive_end *end, const struct source *source,
                            uint64_t at, uint64_t size)
{
    uint8_t bytes[32u << 10];
    const size_t head = sizeof(struct disk_header);
    at = (at + 7) & ~UINT64_C(7);
    while (at < size && size - at >= head && !archive_end_stopped(end)) {
        size_t n = (size_t)min_u64(size - at, sizeof(bytes));
        int r = source_read(source, bytes, n, at);
        if (r < 0)
            return r;
        for (size_t i = 0; i + head <= n; i += 8) {
            struct disk_header header;
            memcpy(&header, bytes + i, head);
            uint64_t begin = le64toh(header.archive_bytes);
            if (memcmp(header.magic, DISK_MAGIC, sizeof(header.magic)) != 0 || begin > at + i ||
                at + i - begin >= 16)
                continue;
            report_lost_index(end, at + i);
            return 0;
        }
        at += (n - head) / 8 * 8 + 8;
    }
    return 0;
}

/* Has the file a footer? Something appended to the tar leaves index and footer as they were. */
static bool has_footer(const struct archive_end *end)
{
    uint64_t size = source_size(end->source);
    char magic[8];
    return size >= FOOTER_BYTES &&
           source_read(end->source, magic, sizeof(magic), size - FOOTER_BYTES) == 0 &&
           memcmp(magic, FOOTER_MAGIC, sizeof(magic)) == 0;
}

static int onepot_check_end(const struct archive_end *end)
{
    struct source *packed;
    if (!end->compression)
        return has_footer(end) ? 0
                               : check_lost_index(end, end->source, end->data_end,
                                                  source_size(end->source));
    /* A small one is a single frame, and counts as a stream: its index is near the start. */
    if (strcmp(end->compression, "zstd") != 0 || source_open(end->path, NULL, &packed) < 0)
        return 0;
    int r =
        check_lost_index(end, packed, 0, min_u64(source_size(packed), 2 * WRITER_BLOCK_MAX));
    source_close(packed);
    return r;
}

static int onepot_check_lost_footer(const struct source *source, struct fault *fault)
{
    uint8_t footer[FOOTER_BYTES];
    uint64_t size = source_size(source);
    if (size < sizeof(footer) ||
        source_read(source, footer, sizeof(footer), size - sizeof(footer)) < 0)
        return 0;
    memcpy(footer, FOOTER_MAGIC, 8);
    if (bytes_le64(footer + sizeof(footer) - 8) != XXH3_64bits(footer, sizeof(footer) - 8))
        return 0;
    return fault_set(fault, -EUCLEAN, NULL, size - sizeof(footer), "footer is damaged");
}

static const struct backend_trailer onepot_trailer = {
    .find = onepot_find,
    .without_index = &backend_tar,
    .check_lost = onepot_check_lost_footer,
    .check_end = onepot_check_end,
};

static const char *const endings[] = {".tar", NULL};

const struct backend backend_onepot = {
    .name = "onepot",
    .file = "an onepot archive",
    .endings = endings,
    .number = 3,
    .probe = onepot_probe,
    .find_behind = onepot_find_behind,
    .trailer = &onepot_trailer,
};
