/*
 * The zip back end: reads the central directory, and of each member the local header, whose
 * length says where the data begins.
 *
 * Our own parser rather than a library's: libarchive does not tell where the data of a
 * compressed member lies, and minizip trusts the directory. The directory counts: a member
 * whose local header says something else is shown if its data agrees with the directory, and
 * the archive is said to disagree with itself. Members that share bytes are refused (bombs that
 * expand without nesting consist of them), but for one that is listed twice.
 *
 * A stored member is a range of the archive, a compressed one a separate block. A deflated
 * member that is longer than a block may be is decompressed once, here, and cut into parts. A
 * member that can't be shown (encrypted, compressed by a method that nobody here knows, or too
 * long for its method) is left out, and the index says why.
 */
#include "backend.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bytes.h"
#include "checksum.h"
#include "cleanup.h"
#include "codec.h"
#include "numbers.h"
#include "source_window.h"
#include "stream.h"
#include "vector.h"
#include "zip_end.h"
#include "zip_records.h"

#define WINDOW_BYTES (1u << 20) /* of the directory at once; more than the longest entry */
#define LOCAL_WINDOW_BYTES (32u << 10)
#define DEFLATE_RATIO 1032u /* deflate can't do better */
#define RATIO_SLACK 1024u
#define PROGRESS_MEMBERS 64u
#define STEP_BYTES (1u << 20)
#define PROOF_RATIO 64u /* of all proven content to the archive: text has 10 */
#define PROOF_FLOOR_BYTES (UINT64_C(256) << 20)

/* The bytes of the archive that a member occupies. */
struct zip_range {
    uint64_t start, end; /* sorted by the start, which is the first field */
    uint64_t record;     /* its entry in the directory */
};

struct zip {
    /* Each entry of the directory, which lies at `record`. */
    int (*take)(struct zip *z, const struct zip_entry *e, uint64_t record);
    struct source *source;
    struct builder *builder;
    struct progress *progress;
    struct fault *fault;
    struct zip_place place;
    struct source_window entries, headers;
    VECTOR(struct zip_range) ranges;
    uint32_t largest_block;
    const struct archive_end *end; /* while verifying: no builder is there */
    struct codec_context *codecs;  /* NULL before the first content is read */
    uint64_t proven_bytes;         /* that content_prove has read so far */
    uint64_t odd;                  /* members whose header differs, and the first of them: */
    char odd_what[160];
    struct stream_scan *scan; /* NULL before the first long member */
    struct stream_buffer part;
    VECTOR(struct builder_piece) pieces; /* of the long member */
    uint64_t scanned;                    /* compressed bytes of long members so far */
    char name[512];                      /* of the member that is read, for messages */
    uint8_t slashed[UINT16_MAX];         /* its name, if that has backslashes */
};

static const char directory_counts[] = "; the central directory counts";

static int zip_damaged(struct zip *z, uint64_t offset, const char *what)
{
    return zip_fault_damaged(z->fault, z->name, offset, what);
}

static int zip_read_fault(struct zip *z, int err, uint64_t offset)
{
    return fault_set_read(z->fault, err, z->name, offset);
}

/*
 * A zip is known by its beginning. Its end alone may be the end of another archive's last
 * member.
 */
static int zip_probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    static const char *const magics[] = {ZIP_LOCAL_MAGIC, ZIP_END_MAGIC, ZIP_SPANNED_MAGIC,
                                         ZIP_WHOLE_MAGIC};
    (void)source;
    for (size_t i = 0; head_len >= ZIP_END_BYTES && i < sizeof(magics) / sizeof(*magics); i++)
        if (memcmp(head, magics[i], 4) == 0)
            return 1;
    return 0;
}

/* A script's text leads to it. How long a program is its headers do not always tell. */
static int zip_find_behind(const struct front *front, uint64_t *ret_offset)
{
    struct front_place place;
    for (size_t cursor = 0; front->is_script && front_next(front, &cursor, &place);)
        if (zip_probe(front->source, place.bytes, place.len)) {
            *ret_offset = place.offset;
            return 1;
        }
    return front->is_script ? 0 : zip_find_begin(front->source, ret_offset);
}

/* ---- members that are left out ---- */

/* The error means that only this member can't be shown. */
static int leave_out(struct zip *z, int err)
{
    if (!builder_may_leave_out(err) && err != -ENOTSUP)
        return err;
    int r = builder_leave_out(z->builder, z->fault);
    *z->fault = (struct fault){0};
    return r;
}

/* The member's data disagrees with the directory: only this member is left out. */
static int member_is_damaged(struct zip *z, uint64_t offset, const char *what)
{
    return fault_set(z->fault, -EILSEQ, z->name, offset, "%s", what);
}

#define MEMBER_MAX (64u << 20) /* a compressed member is one block: codec_block_max */

/* A compressed member's codec; CODEC_NONE: it is stored, or by a method that is not here. */
static enum codec zip_codec_of(const struct zip_entry *e)
{
    static const struct {
        uint16_t method;
        enum codec codec;
    } codecs[] = {{ZIP_DEFLATED, CODEC_DEFLATE},
                  {ZIP_BZIP2, CODEC_BZIP2_FILE},
                  {ZIP_LZMA, CODEC_ZIP_LZMA},
                  {ZIP_XZ, CODEC_XZ},
                  {ZIP_ZSTD, CODEC_ZSTD}};
    for (size_t i = 0; i < sizeof(codecs) / sizeof(codecs[0]); i++)
        if (codecs[i].method == e->method && codec_available(codecs[i].codec))
            return codecs[i].codec;
    return CODEC_NONE;
}

static const char cant_be_entered[] =
    "is longer than 64 MiB, and can't be entered in the middle";
static const char too_long_packed[] = "has much more compressed data than content";

/* Is it deflated, and too long to be one block? */
static bool is_long_deflated(const struct zip_entry *e)
{
    return zip_codec_of(e) == CODEC_DEFLATE &&
           (e->size_bytes > MEMBER_MAX || e->packed_bytes >= 1u << 31);
}

/* Can its content be shown? 0, or a fault that leaves it out. */
static int check_content(struct zip *z, const struct zip_entry *e, uint64_t at)
{
    enum codec codec = zip_codec_of(e);
    if (e->flags & (ZIP_ENCRYPTED | ZIP_HIDDEN))
        return fault_set(z->fault, -ENOKEY, z->name, at, "is encrypted");
    if (e->flags & ZIP_PATCH)
        return fault_set(z->fault, -ENOTSUP, z->name, at, "is a patch of another file");
    if (e->method == ZIP_STORED)
        return e->packed_bytes == e->size_bytes
                   ? 0
                   : member_is_damaged(z, at, "is stored, and has two sizes");
    if (codec == CODEC_NONE)
        return fault_set(z->fault, -ENOTSUP, z->name, at,
                         "is compressed by method %u of zip, which onepot lacks", e->method);
    if (e->packed_bytes == 0 && e->size_bytes > 0)
        return member_is_damaged(z, at, "has no data, and claims some");
    if (codec == CODEC_DEFLATE && e->size_bytes / DEFLATE_RATIO > e->packed_bytes + RATIO_SLACK)
        return member_is_damaged(z, at, "claims more bytes than its data can hold");
    if (is_long_deflated(e))
        return 0;
    if (e->size_bytes > MEMBER_MAX)
        return fault_set(z->fault, -ENOTSUP, z->name, at,
                         "is compressed by method %u of zip, and longer than %u MiB", e->method,
                         MEMBER_MAX >> 20);
    if (e->packed_bytes > codec_packed_max(e->size_bytes))
        return fault_set(z->fault, -ENOTSUP, z->name, at, "%s", too_long_packed);
    return 0;
}

/* ---- content, as a block of at most 64 MiB; stored members may be longer ---- */

static int content_unpack(struct zip *z, const struct zip_entry *e, uint64_t data,
                          uint8_t *bytes)
{
    auto_free uint8_t *packed = malloc(e->packed_bytes ? e->packed_bytes : 1);
    size_t len;
    int r = packed ? source_read(z->source, packed, e->packed_bytes, data) : -ENOMEM;
    if (r == 0 && !z->codecs)
        r = codec_context_new(&z->codecs);
    if (r == 0)
        r = codec_unpack(z->codecs, zip_codec_of(e), packed, e->packed_bytes, bytes,
                         e->size_bytes, &len);
    return r == -ENOTSUP || (r == 0 && len != e->size_bytes) ? -EUCLEAN : r;
}

/*
 * The member's content, which begins at `data`, decompressed and compared with its length and
 * sum. The caller frees it. -EUCLEAN: it is damaged, or compressed as nobody here can read it.
 */
static int content_read(struct zip *z, const struct zip_entry *e, uint64_t data,
                        uint8_t **ret_bytes)
{
    auto_free uint8_t *bytes = malloc(e->size_bytes ? e->size_bytes : 1);
    int r = !bytes                    ? -ENOMEM
            : e->method == ZIP_STORED ? source_read(z->source, bytes, e->size_bytes, data)
                                      : content_unpack(z, e, data, bytes);
    if (r == 0 && checksum_available(SUM_CRC32) &&
        checksum_of(SUM_CRC32, bytes, e->size_bytes) != e->crc32)
        r = -EUCLEAN;
    if (r == 0)
        *ret_bytes = steal_ptr(&bytes);
    return r;
}

static int content_prove_stored(struct zip *z, const struct zip_entry *e, uint64_t data)
{
    auto_free uint8_t *bytes = malloc(STEP_BYTES);
    struct checksum *sum = NULL;
    int r = bytes ? checksum_new(SUM_CRC32, &sum) : -ENOMEM;
    if (r == 0)
        checksum_reset(sum);
    for (uint64_t at = 0; r == 0 && at < e->size_bytes; at += STEP_BYTES) {
        size_t len = (size_t)min_u64(e->size_bytes - at, STEP_BYTES);
        r = source_read(z->source, bytes, len, data + at);
        if (r == 0)
            checksum_add(sum, bytes, len);
    }
    if (r == 0 && !checksum_is(sum, e->crc32))
        r = -EUCLEAN;
    checksum_free(sum);
    return r;
}

/*
 * Does the data have the length and sum that the entry tells? 0; -EUCLEAN: no; -E2BIG: so much
 * was compared already that this archive must be made to take time.
 */
static int content_prove(struct zip *z, const struct zip_entry *e, uint64_t data)
{
    uint64_t most = max_u64(source_size(z->source), PROOF_FLOOR_BYTES / PROOF_RATIO);
    if (!checksum_available(SUM_CRC32))
        return -EUCLEAN;
    if (__builtin_add_overflow(z->proven_bytes, e->size_bytes, &z->proven_bytes) ||
        z->proven_bytes / PROOF_RATIO > most)
        return -E2BIG;
    if (e->method == ZIP_STORED)
        return content_prove_stored(z, e, data);
    auto_free uint8_t *bytes = NULL;
    return content_read(z, e, data, &bytes);
}

/* ---- members ---- */

/* The member's own header. */
static int read_local(struct zip *z, const struct zip_entry *e, uint64_t at,
                      struct zip_local *ret_local)
{
    const uint8_t *bytes;
    size_t len;
    int r = source_window_get(&z->headers, at, ZIP_LOCAL_BYTES + e->raw_name_len, &bytes, &len);
    if (r < 0)
        return zip_read_fault(z, r, at);
    const char *wrong = zip_read_local(len ? bytes : NULL, len, e, ret_local);
    return wrong ? zip_damaged(z, at, wrong) : 0;
}

/* Where the member's data begins. */
static int find_data(struct zip *z, const struct zip_entry *e, uint64_t at, uint64_t record,
                     struct zip_local *ret_local, uint64_t *ret_data)
{
    uint64_t end;
    int r = read_local(z, e, at, ret_local);
    if (r < 0)
        return r;
    if (__builtin_add_overflow(at + ret_local->header_bytes, e->packed_bytes, &end) ||
        end > z->place.directory)
        return zip_damaged(z, at, "has data that lies outside the archive");
    *ret_data = at + ret_local->header_bytes;
    return vector_push(&z->ranges, (struct zip_range){at, end, record});
}

/* The bytes behind the member tell that its data lies where the directory says. */
static bool is_followed(const struct zip *z, const struct zip_entry *e, uint64_t end)
{
    uint8_t bytes[ZIP_BEHIND_BYTES];
    return source_read(z->source, bytes, sizeof(bytes), end) == 0 && zip_is_behind(bytes, e);
}

/* The member's header disagrees with its entry: its data decides whether that is right. */
static int prove_content(struct zip *z, const struct zip_entry *e,
                         const struct zip_local *local, uint64_t data)
{
    bool is_right = local->sizes_agree && is_followed(z, e, data + e->packed_bytes);
    int r = is_right || is_long_deflated(e) /* which is read anyway */
                ? 0
                : content_prove(z, e, data);
    z->progress->beats++;
    if (r == -EUCLEAN || r == -E2BIG)
        return fault_set(z->fault, -EILSEQ, z->name, data, "%s, and %s", local->differs,
                         r == -E2BIG ? "there is more of this than can be compared"
                                     : "its data is not what the central directory says");
    if (r < 0)
        return zip_read_fault(z, r, data);
    if (z->odd++ == 0)
        snprintf(z->odd_what, sizeof(z->odd_what), "%.90s: %s", z->name, local->differs);
    return 0;
}

/* The target of a symbolic link is its content. */
static int read_target(struct zip *z, const struct zip_entry *e, uint64_t data, char *target)
{
    auto_free uint8_t *bytes = NULL;
    if (e->size_bytes == 0 || e->size_bytes > INDEX_SYMLINK_MAX)
        return fault_set(z->fault, -EINVAL, z->name, data,
                         "is a symbolic link of %" PRIu64 " bytes", e->size_bytes);
    int r = content_read(z, e, data, &bytes);
    if (r == -EUCLEAN)
        return member_is_damaged(z, data, "is a symbolic link whose sum is wrong");
    if (r < 0)
        return zip_read_fault(z, r, data);
    memcpy(target, bytes, e->size_bytes);
    return 0;
}

static int add_part(struct zip *z, const struct stream_part *part, uint64_t at)
{
    struct builder_piece piece = {.offset = at, .length = part->block.block_bytes};
    if (piece.length == 0)
        return 0;
    z->largest_block = max_u32(z->largest_block, part->block.block_bytes);
    int r = builder_add_block(z->builder, &part->block, &piece.block);
    return r < 0 ? r : vector_push(&z->pieces, piece);
}

/* The next part of a long member, of which `at` bytes are known. */
static int scan_part(struct zip *z, const struct zip_entry *e, uint64_t at,
                     struct stream_part *part)
{
    struct fault fault = {0};
    uint64_t offset = z->scan->offset;
    int r = stream_scan_next(z->scan, &z->part, &fault, part);
    z->progress->beats++;
    if (r == -EUCLEAN)
        return member_is_damaged(z, fault.offset, fault.what);
    if (r == -ENOTSUP)
        return fault_set(z->fault, -ENOTSUP, z->name, offset, "%s", cant_be_entered);
    if (r < 0)
        return fault_set(z->fault, r, z->name, offset, "%s", fault_errno(r));
    if (part->block.block_bytes > e->size_bytes - at)
        return member_is_damaged(z, offset, "has more bytes than the directory says");
    if (part->block.packed_bytes > codec_packed_max(part->block.block_bytes))
        return member_is_damaged(z, offset, too_long_packed);
    return add_part(z, part, at);
}

/*
 * Cuts a long member into parts: z->pieces. Members that overlap are found later, so the work
 * is limited here: all of them together have no more bytes than the archive.
 */
static int scan_long(struct zip *z, const struct zip_entry *e, uint64_t data)
{
    struct stream_part part = {0};
    uint64_t at = 0;
    if (e->packed_bytes > source_size(z->source) - z->scanned)
        return zip_damaged(z, data, "shares its bytes with other members");
    z->scanned += e->packed_bytes;
    z->pieces.count = 0;
    int r = z->scan ? 0 : stream_scan_new(z->source, "deflate", NULL, &z->scan);
    if (r == -ENOTSUP)
        return fault_set(z->fault, -ENOTSUP, z->name, data, "%s", cant_be_entered);
    if (r == 0)
        r = stream_scan_begin(z->scan, data, data + e->packed_bytes, z->fault);
    for (; r == 0 && !part.is_last; at += part.block.block_bytes)
        r = scan_part(z, e, at, &part);
    if (r < 0)
        return r;
    if (at != e->size_bytes || z->scan->offset != data + e->packed_bytes)
        return member_is_damaged(z, data, "has fewer bytes than the directory says");
    return z->scan->crc == e->crc32 ? 0 : member_is_damaged(z, data, "has a wrong sum");
}

/* Add a compressed file: one block, which nobody else shares. */
static int add_block(struct zip *z, const struct zip_entry *e, uint32_t inode, uint64_t data)
{
    struct builder_block block = {
        .source_offset = data,
        .packed_bytes = (uint32_t)e->packed_bytes,
        .block_bytes = (uint32_t)e->size_bytes,
        .codec = zip_codec_of(e),
    };
    if (is_long_deflated(e))
        return builder_set_pieces(z->builder, inode, z->pieces.at, z->pieces.count);
    struct builder_piece piece = {.length = e->size_bytes};
    z->largest_block = max_u32(z->largest_block, block.block_bytes);
    int r = builder_add_block(z->builder, &block, &piece.block);
    if (r == 0)
        r = builder_set_pieces(z->builder, inode, &piece, 1);
    return r;
}

static int add_typed(struct zip *z, const struct zip_entry *e, uint64_t record,
                     struct builder_member *member)
{
    uint64_t data = 0;
    uint32_t inode;
    struct zip_local local;
    char target[INDEX_SYMLINK_MAX];
    bool has_content = S_ISREG(e->mode) || S_ISLNK(e->mode);
    int r = has_content ? check_content(z, e, member->header_offset) : 0;
    if (r == 0)
        r = find_data(z, e, member->header_offset, record, &local, &data);
    if (r == 0 && has_content && local.differs)
        r = prove_content(z, e, &local, data);
    if (r == 0 && S_ISREG(e->mode) && is_long_deflated(e))
        r = scan_long(z, e, data);
    if (r == 0 && S_ISLNK(e->mode)) {
        r = read_target(z, e, data, target);
        member->symlink = target;
        member->symlink_len = e->size_bytes;
        member->mode = S_IFLNK | 0777; /* as the system shows it, whatever was stored */
    } else if (S_ISREG(e->mode)) {
        member->size_bytes = e->size_bytes;
        member->data = e->method == ZIP_STORED || !e->size_bytes ? DATA_STORED : DATA_PIECES;
        member->data_offset = data;
    } else if (!S_ISDIR(e->mode) && !S_ISFIFO(e->mode) && !S_ISSOCK(e->mode)) {
        r = r < 0 ? r
                  : fault_set(z->fault, -ENOTBLK, z->name, data,
                              "is a device, whose number a zip lacks");
    }
    if (r == 0)
        r = builder_add(z->builder, (const char *)e->name, e->name_len, member, z->fault,
                        &inode);
    if (r == 0 && member->data == DATA_PIECES)
        r = add_block(z, e, inode, data);
    if (r == 0 && S_ISREG(e->mode))
        r = builder_set_sum(z->builder, inode, e->crc32);
    return r;
}

/* The member that messages name from now on. */
static void zip_set_name(struct zip *z, const struct zip_entry *e)
{
    size_t keep = min_u64(e->name_len, sizeof(z->name) - 1);
    memcpy(z->name, e->name, keep);
    z->name[keep] = '\0';
}

static void replace_backslashes(struct zip *z, struct zip_entry *e)
{
    for (size_t i = 0; i < e->name_len; i++)
        z->slashed[i] = e->name[i] == '\\' ? '/' : e->name[i];
    e->name = z->slashed;
}

/* Where the member's header lies. */
static int find_header(struct zip *z, const struct zip_entry *e, uint64_t record,
                       uint64_t *ret_at)
{
    uint64_t base;
    if (!zip_volume_base(z->source, e->volume, &base))
        return zip_damaged(z, record, "lies in another volume");
    return __builtin_add_overflow(e->local_offset, base, &base) ||
                   __builtin_add_overflow(z->place.shift, base, ret_at)
               ? zip_damaged(z, record, "has its header outside the archive")
               : 0;
}

static int add_entry(struct zip *z, const struct zip_entry *e, uint64_t record)
{
    struct builder_member member = {
        .mode = e->mode,
        .uid = e->uid,
        .gid = e->gid,
        .mtime_sec = e->mtime_sec,
        .mtime_nsec = e->mtime_nsec,
        .data = DATA_STORED,
    };
    const size_t ranges = z->ranges.count;
    int r = find_header(z, e, record, &member.header_offset);
    if (r == 0 && (memchr(e->name, '\0', e->name_len) || e->name_len == 0))
        r = fault_set(z->fault, -EINVAL, z->name, record,
                      e->name_len ? "has a name with a zero byte" : "has no name");
    if (r == 0)
        r = add_typed(z, e, record, &member);
    if (r < 0 && e->is_odd_64) { /* its place and length are guesses, which concern no other */
        z->ranges.count = ranges;
        if (r == -EUCLEAN) {
            *z->fault = (struct fault){0};
            r = fault_set(z->fault, -EILSEQ, z->name, record, "%s", ZIP_ODD_64);
        }
    }
    return r < 0 ? leave_out(z, r) : 0;
}

static int read_directory(struct zip *z)
{
    uint64_t at = z->place.directory, end = z->place.directory + z->place.directory_bytes,
             i = 0;
    for (; at < end; i++) {
        const uint8_t *bytes;
        size_t len, record_bytes;
        struct zip_entry entry;
        int r = source_window_get(&z->entries, at, ZIP_ENTRY_MAX, &bytes, &len);
        if (r < 0)
            return zip_read_fault(z, r, at);
        len = min_u64(len, end - at);
        if (zip_is_signature(bytes, len))
            break;
        record_bytes = len < ZIP_ENTRY_BYTES ? 0 : zip_entry_bytes(bytes);
        if (record_bytes == 0 || record_bytes > len)
            return zip_damaged(z, at,
                               "is followed by a damaged entry of the central directory");
        zip_read_entry(bytes, &entry);
        if (entry.has_backslashes)
            replace_backslashes(z, &entry);
        zip_set_name(z, &entry);
        r = z->take(z, &entry, at);
        if (r < 0)
            return r;
        at += record_bytes;
        if (i % PROGRESS_MEMBERS == 0) {
            z->progress->members = i;
            z->progress->bytes_done = at - z->place.directory;
        }
    }
    z->name[0] = '\0';
    /* Without zip64, old programs store what 16 bits hold of the number. */
    if (z->place.has_64 ? i != z->place.entries : (uint16_t)i != z->place.entries)
        return zip_damaged(z, at,
                           "its directory has another number of members than its end says");
    z->place.entries = i;
    return 0;
}

/* Is one member listed twice? By another name, the same bytes would count twice. */
static int is_same_member(const struct zip *z, const struct zip_range *a,
                          const struct zip_range *b, bool *ret_is_same)
{
    uint8_t entries[2][ZIP_ENTRY_BYTES];
    auto_free uint8_t *names = malloc(2 * (size_t)UINT16_MAX);
    const struct zip_range *ranges[] = {a, b};
    size_t len[2];
    int r = names ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < 2; i++) {
        r = source_read(z->source, entries[i], ZIP_ENTRY_BYTES, ranges[i]->record);
        len[i] = r == 0 ? bytes_le16(entries[i] + 28) : 0;
        if (r == 0)
            r = source_read(z->source, names + i * UINT16_MAX, len[i],
                            ranges[i]->record + ZIP_ENTRY_BYTES);
    }
    if (r < 0)
        return r;
    *ret_is_same = a->start == b->start && a->end == b->end && len[0] == len[1] &&
                   memcmp(names, names + UINT16_MAX, len[0]) == 0;
    return 0;
}

static int check_overlaps(struct zip *z)
{
    bool is_sorted = true;
    for (size_t i = 1; i < z->ranges.count && is_sorted; i++)
        is_sorted = z->ranges.at[i - 1].start <= z->ranges.at[i].start;
    if (!is_sorted)
        qsort(z->ranges.at, z->ranges.count, sizeof(struct zip_range), compare_u64);
    for (size_t i = 1; i < z->ranges.count; i++) {
        const struct zip_range *range = &z->ranges.at[i];
        bool is_same = false;
        int r =
            range->start < range[-1].end ? is_same_member(z, &range[-1], range, &is_same) : 0;
        if (r < 0)
            return zip_read_fault(z, r, range->record);
        if (range->start < range[-1].end && !is_same)
            return zip_damaged(z, range->start, "two members overlap here");
    }
    return 0;
}

static void note_odd(struct zip *z)
{
    char others[40] = "";
    if (z->odd > 1)
        snprintf(others, sizeof(others), ", and so %s %" PRIu64 " more",
                 z->odd == 2 ? "is" : "are", z->odd - 1);
    if (z->odd)
        snprintf(z->progress->note, sizeof(z->progress->note), "%s%s%s", z->odd_what, others,
                 directory_counts);
}

static int zip_open(struct zip *z, struct source *source, struct progress *progress,
                    struct fault *fault)
{
    z->source = source;
    z->progress = progress;
    z->fault = fault;
    int r = zip_find_directory(source, &z->place, fault);
    if (r == 0)
        r = source_window_open(&z->entries, source, WINDOW_BYTES);
    return r < 0 ? r : source_window_open(&z->headers, source, LOCAL_WINDOW_BYTES);
}

static void zip_close(struct zip *z)
{
    codec_context_free(z->codecs);
    stream_scan_free(z->scan);
    free(z->part.at);
    vector_free(&z->pieces);
    source_window_close(&z->entries);
    source_window_close(&z->headers);
    vector_free(&z->ranges);
}

static int zip_index(struct source *source, struct builder *builder,
                     struct builder_header *header, struct progress *progress,
                     struct fault *fault)
{
    auto_free struct zip *z = calloc(1, sizeof(*z)); /* it has room for the longest name */
    if (!z)
        return -ENOMEM;
    z->take = add_entry;
    z->builder = builder;
    int r = zip_open(z, source, progress, fault);
    progress->members_total = z->place.entries;
    progress->bytes_total = z->place.directory_bytes;
    if (r == 0)
        r = read_directory(z);
    if (r == 0)
        r = check_overlaps(z);
    if (r == 0)
        note_odd(z);
    progress->members = z->place.entries;
    header->sum_kind = SUM_CRC32;
    header->block_bytes = z->largest_block;
    zip_close(z);
    return r;
}

/* ---- verification ---- */

/* -EINTR: give up. */
static int report_odd(struct zip *z, const struct zip_entry *e, uint64_t record)
{
    struct zip_local local = {0};
    struct fault fault = {0};
    uint64_t at = 0;
    if (archive_end_stopped(z->end))
        return -EINTR;
    if (find_header(z, e, record, &at) < 0 || read_local(z, e, at, &local) < 0 ||
        !local.differs)
        return 0; /* told when the zip was opened */
    fault_set(&fault, -EUCLEAN, z->name, at, "%s%s", local.differs, directory_counts);
    z->end->report(z->end->ctx, &fault);
    return 0;
}

static int zip_check_end(const struct archive_end *end)
{
    auto_free struct zip *z = calloc(1, sizeof(*z));
    struct progress progress = {0};
    struct fault ignored = {0};
    if (!z)
        return -ENOMEM;
    z->take = report_odd;
    z->end = end;
    int r = zip_open(z, end->source, &progress, &ignored);
    if (r == 0)
        r = read_directory(z);
    zip_close(z);
    return r == -EINTR ? 0 : r;
}

static bool zip_is_whole(const struct source *source, bool by_end)
{
    (void)by_end;
    struct zip_place place;
    return zip_find_directory(source, &place, NULL) == 0 &&
           place.shift == 0; /* else: a member's */
}

static const char *const endings[] = {".zip", NULL};

static const struct backend_trailer zip_trailer = {.check_end = zip_check_end};

const struct backend backend_zip = {
    .name = "zip",
    .file = "a zip",
    .endings = endings,
    .number = 4,
    .least_memory_bytes = UINT64_C(4) << 30, /* members may be smaller than a tar's blocks */
    .probe = zip_probe,
    .is_whole = zip_is_whole,
    .find_behind = zip_find_behind,
    .index = zip_index,
    .trailer = &zip_trailer,
};
