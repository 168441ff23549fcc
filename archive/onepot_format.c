/*
 * The trailer of onepot's own archives, and the back end that finds it.
 *
 * The trailer is only an offer: the tar before it is complete without. So the reader's
 * question is always whether the trailer still describes the tar. Tools that append
 * overwrite the end-of-archive marker and may leave a footer behind that looks right,
 * in place and with a good sum; therefore the marker itself is looked at, at the
 * offset that footer and index both name. Whatever does not agree makes the archive
 * one without an index, to be read as the tar that it is.
 */
#include "onepot_format.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "backend.h"
#include "index_format.h"
#include "source.h"

#define FOOTER_MAGIC "onepotFT"
#define FOOTER_VERSION 1u
#define FOOTER_BYTES 512u

/* Offsets in the footer. What is not listed is zero. */
enum footer_offset {
    AT_MAGIC = 0,
    AT_VERSION = 8,
    AT_FOOTER_BYTES = 12,
    AT_INCOMPATIBLE = 16,
    AT_IDENTIFIER = 32,
    AT_END_MARKER = 48,
    AT_IMAGE_OFFSET = 56,
    AT_IMAGE_BYTES = 64,
    AT_FILE_BYTES = 72,
    AT_SUM = FOOTER_BYTES - 8,
};

struct footer {
    uint32_t version;
    uint64_t incompatible;
    uint8_t identifier[16];
    uint64_t end_marker_offset;
    uint64_t image_offset;
    uint64_t image_bytes;
    uint64_t file_bytes;
};

static void put32(uint8_t *bytes, enum footer_offset at, uint32_t value)
{
    value = htole32(value);
    memcpy(bytes + at, &value, sizeof(value));
}

static void put64(uint8_t *bytes, enum footer_offset at, uint64_t value)
{
    value = htole64(value);
    memcpy(bytes + at, &value, sizeof(value));
}

static uint32_t get32(const uint8_t bytes[FOOTER_BYTES], enum footer_offset at)
{
    uint32_t value;
    memcpy(&value, bytes + at, sizeof(value));
    return le32toh(value);
}

static uint64_t get64(const uint8_t bytes[FOOTER_BYTES], enum footer_offset at)
{
    uint64_t value;
    memcpy(&value, bytes + at, sizeof(value));
    return le64toh(value);
}

static int write_at(int fd, const uint8_t *bytes, size_t len, uint64_t offset)
{
    while (len > 0) {
        ssize_t n = pwrite(fd, bytes, len, (off_t)offset);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        bytes += n;
        offset += (uint64_t)n;
        len -= (size_t)n;
    }
    return 0;
}

/* Where the file ends whose index ends at `image_end`: 0 if that is no 63-bit number. */
static uint64_t end_of_file(uint64_t image_end)
{
    uint64_t end;
    if (__builtin_add_overflow(image_end, FOOTER_BYTES + ONEPOT_RECORD_BYTES - 1, &end) ||
        end > INT64_MAX)
        return 0;
    return end - end % ONEPOT_RECORD_BYTES;
}

static void make_footer(uint8_t bytes[FOOTER_BYTES], const struct onepot_tar *tar,
                        uint64_t image_bytes, uint64_t file_bytes)
{
    memset(bytes, 0, FOOTER_BYTES);
    memcpy(bytes + AT_MAGIC, FOOTER_MAGIC, 8);
    put32(bytes, AT_VERSION, FOOTER_VERSION);
    put32(bytes, AT_FOOTER_BYTES, FOOTER_BYTES);
    memcpy(bytes + AT_IDENTIFIER, tar->identifier, sizeof(tar->identifier));
    put64(bytes, AT_END_MARKER, tar->end_marker_offset);
    put64(bytes, AT_IMAGE_OFFSET, tar->tar_bytes);
    put64(bytes, AT_IMAGE_BYTES, image_bytes);
    put64(bytes, AT_FILE_BYTES, file_bytes);
    put64(bytes, AT_SUM, XXH3_64bits(bytes, AT_SUM));
}

/* Zeros up to the end of the file, the footer in its last block. */
static int write_end(int fd, const struct onepot_tar *tar, uint64_t image_bytes,
                     uint64_t file_bytes)
{
    uint8_t end[ONEPOT_RECORD_BYTES + FOOTER_BYTES] = {0};
    uint64_t image_end = tar->tar_bytes + image_bytes;
    size_t len = (size_t)(file_bytes - image_end);
    make_footer(end + len - FOOTER_BYTES, tar, image_bytes, file_bytes);
    return write_at(fd, end, len, image_end);
}

int onepot_format_append(struct builder *builder, struct builder_header *header, int fd,
                         const struct onepot_tar *tar, struct fault *fault,
                         uint64_t *ret_file_bytes)
{
    header->format = FORMAT_ONEPOT;
    header->archive_bytes = tar->tar_bytes;
    header->end_marker_offset = tar->end_marker_offset;
    memcpy(header->identifier, tar->identifier, sizeof(header->identifier));

    uint64_t image_bytes;
    int r = builder_write(builder, header, fd, tar->tar_bytes, NULL, &image_bytes);
    if (r < 0)
        return r;
    uint64_t file_bytes = end_of_file(tar->tar_bytes + image_bytes);
    if (!file_bytes)
        return fault_set(fault, -EFBIG, NULL, FAULT_NO_OFFSET, "archive grows too large");
    r = write_end(fd, tar, image_bytes, file_bytes);
    if (r < 0)
        return r;
    *ret_file_bytes = file_bytes;
    return 0;
}

/* ---- the reader's side ---- */

/* The last block of the file: 1, 0 if it is no footer, -errno. */
static int read_footer(const struct source *source, uint8_t bytes[FOOTER_BYTES])
{
    uint64_t size = source_size(source);
    if (size < ONEPOT_RECORD_BYTES)
        return 0;
    int r = source_read(source, bytes, FOOTER_BYTES, size - FOOTER_BYTES);
    if (r < 0)
        return r;
    return memcmp(bytes + AT_MAGIC, FOOTER_MAGIC, 8) == 0;
}

static int probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    (void)head;
    (void)head_len;
    uint8_t bytes[FOOTER_BYTES];
    return read_footer(source, bytes);
}

static int damaged(struct fault *fault, uint64_t offset, const char *what)
{
    return fault_set(fault, -EUCLEAN, NULL, offset, "%s", what);
}

static int stale(struct fault *fault, uint64_t offset, const char *what)
{
    fault_set(fault, -ESTALE, NULL, offset, "%s", what);
    fault_advise(fault, "it is read as a plain tar; pack it anew to mount it at once");
    return -ESTALE;
}

/* Does the footer agree with itself? */
static int check_layout(const struct footer *f, uint64_t at, struct fault *fault)
{
    uint64_t marker_end, image_end;
    if (__builtin_add_overflow(f->end_marker_offset, ONEPOT_MARKER_BYTES, &marker_end) ||
        f->end_marker_offset % FOOTER_BYTES || marker_end > f->image_offset ||
        f->image_offset - marker_end >= ONEPOT_RECORD_BYTES ||
        f->image_offset % ONEPOT_RECORD_BYTES)
        return damaged(fault, at, "footer names an impossible place for the end of the tar");
    if (__builtin_add_overflow(f->image_offset, f->image_bytes, &image_end) ||
        f->image_bytes < sizeof(struct disk_header) || end_of_file(image_end) != f->file_bytes)
        return damaged(fault, at, "footer names an impossible place for the index");
    return 0;
}

static int decode_footer(const uint8_t bytes[FOOTER_BYTES], uint64_t size, struct fault *fault,
                         struct footer *ret_footer)
{
    uint64_t at = size - FOOTER_BYTES;
    if (get64(bytes, AT_SUM) != XXH3_64bits(bytes, AT_SUM))
        return damaged(fault, at, "footer is damaged: its sum is wrong");
    struct footer f = {
        .version = get32(bytes, AT_VERSION),
        .incompatible = get64(bytes, AT_INCOMPATIBLE),
        .end_marker_offset = get64(bytes, AT_END_MARKER),
        .image_offset = get64(bytes, AT_IMAGE_OFFSET),
        .image_bytes = get64(bytes, AT_IMAGE_BYTES),
        .file_bytes = get64(bytes, AT_FILE_BYTES),
    };
    memcpy(f.identifier, bytes + AT_IDENTIFIER, sizeof(f.identifier));
    if (f.version != FOOTER_VERSION || f.incompatible)
        return stale(fault, at, "its index was made by a later version of onepot");
    if (f.file_bytes != size)
        return stale(fault, at, "the file has another size than when it was packed");
    int r = check_layout(&f, at, fault);
    if (r == 0)
        *ret_footer = f;
    return r;
}

static int check_marker(const struct source *source, const struct footer *f,
                        struct fault *fault)
{
    static const uint8_t zeros[ONEPOT_MARKER_BYTES];
    uint8_t marker[ONEPOT_MARKER_BYTES];
    int r = source_read(source, marker, sizeof(marker), f->end_marker_offset);
    if (r < 0)
        return r;
    if (memcmp(marker, zeros, sizeof(zeros)) != 0)
        return stale(fault, f->end_marker_offset, "something was appended after it was packed");
    return 0;
}

/* Is the index that the footer names this archive's? The rest of it is index_open's. */
static int check_image(const struct source *source, const struct footer *f, struct fault *fault)
{
    struct disk_header header;
    int r = source_read(source, &header, sizeof(header), f->image_offset);
    if (r < 0)
        return r;
    if (memcmp(header.magic, DISK_MAGIC, sizeof(header.magic)) != 0)
        return damaged(fault, f->image_offset, "there is no index where the footer has it");
    if (memcmp(header.identifier, f->identifier, sizeof(f->identifier)) != 0 ||
        le64toh(header.end_marker_offset) != f->end_marker_offset ||
        le64toh(header.archive_bytes) != f->image_offset ||
        le64toh(header.image_bytes) != f->image_bytes)
        return damaged(fault, f->image_offset, "index and footer are not of the same archive");
    return 0;
}

static int find(struct source *source, struct fault *fault, struct embedded_index *ret_where)
{
    uint8_t bytes[FOOTER_BYTES];
    struct footer footer;
    int r = read_footer(source, bytes);
    if (r <= 0)
        return r < 0 ? r : -ENOENT;
    r = decode_footer(bytes, source_size(source), fault, &footer);
    if (r == 0)
        r = check_marker(source, &footer, fault);
    if (r == 0)
        r = check_image(source, &footer, fault);
    if (r == 0)
        *ret_where = (struct embedded_index){footer.image_offset, footer.image_bytes};
    return r;
}

/* Are the bytes from `from` to `to` zeros? There are not many. */
static int check_zeros(const struct source *source, uint64_t from, uint64_t to,
                       struct fault *fault)
{
    static const uint8_t zeros[4096];
    uint8_t bytes[sizeof(zeros)];
    while (from < to) {
        size_t n = to - from < sizeof(bytes) ? (size_t)(to - from) : sizeof(bytes);
        int r = source_read(source, bytes, n, from);
        if (r < 0)
            return fault_set(fault, r, NULL, from, "read error: %s", strerror(-r));
        if (memcmp(bytes, zeros, n) != 0)
            return damaged(fault, from, "there should be zeros");
        from += n;
    }
    return 0;
}

int onepot_check_trailer(struct source *source, const struct index *index, struct fault *fault)
{
    struct embedded_index where;
    int r = find(source, fault, &where);
    if (r == 0)
        r = index_check(index, fault);
    if (r < 0)
        return r;
    uint64_t image_end = where.offset + index_info(index)->image_bytes;
    return check_zeros(source, image_end, source_size(source) - FOOTER_BYTES, fault);
}

/* Without its trailer it is a tar like any other, up to the first end-of-archive marker. */
static int index_as_tar(struct source *source, struct builder *builder,
                        struct builder_header *header, struct progress *progress,
                        struct fault *fault)
{
    return backend_tar.index(source, builder, header, progress, fault);
}

const struct backend backend_onepot = {
    .name = "onepot",
    .format = FORMAT_ONEPOT,
    .probe = probe,
    .find = find,
    .index = index_as_tar,
};
