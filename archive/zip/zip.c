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
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "bytes.h"
#include "checksum.h"
#include "cleanup.h"
#include "codec.h"
#include "numbers.h"
#include "source_concat.h"
#include "source_window.h"
#include "stream.h"
#include "vector.h"
#include "zip_end.h"

#define ZIP_END_BYTES 22u     /* end of central directory, without its comment */
#define ZIP_LOCATOR_BYTES 20u /* of the zip64 end, right before the end */
#define ZIP_END64_BYTES 56u   /* zip64 end of central directory */
#define ZIP_ENTRY_BYTES 46u   /* entry of the central directory, without names */
#define ZIP_LOCAL_BYTES 30u   /* local header, without names */
#define ZIP_COMMENT_MAX 65535u
#define ZIP_ENTRY_MAX (ZIP_ENTRY_BYTES + 3 * 65535u)

#define ZIP_LOCAL_MAGIC "PK\3\4"
#define ZIP_ENTRY_MAGIC "PK\1\2"
#define ZIP_END_MAGIC "PK\5\6"
#define ZIP_SPANNED_MAGIC "PK\7\10" /* before the first member of a split zip */
#define ZIP_WHOLE_MAGIC "PK00"      /* the same, of what was to be split and fits one file */

enum zip_method {
    ZIP_STORED = 0,
    ZIP_DEFLATED = 8,
    ZIP_BZIP2 = 12,
    ZIP_LZMA = 14,
    ZIP_ZSTD = 93,
    ZIP_XZ = 95,
};

enum zip_flag {
    ZIP_ENCRYPTED = 1u << 0,
    ZIP_HAS_DESCRIPTOR = 1u << 3, /* sizes and CRC-32 follow the data */
    ZIP_PATCH = 1u << 5,
    ZIP_HIDDEN = 1u << 13, /* the local header is masked: an encrypted directory */
};

/* The central directory, as the end of a zip describes it, and where it is. */
struct zip_end {
    uint64_t entries;
    uint64_t directory_bytes;
    uint64_t directory_offset;         /* as recorded: from the first byte of its volume */
    uint32_t volume, directory_volume; /* where the end lies, and the directory begins */
    bool is_split;                     /* one of several volumes */
    bool has_64; /* values are in the zip64 end; else `entries` may be the last 16 bits */
    uint64_t directory; /* where it begins, once it was found */
    int64_t shift;      /* where the zip's 0 is; below 0: in front of the source */
};

/* A member, as the central directory has it. Names are not terminated. */
struct zip_entry {
    const uint8_t *name; /* in UTF-8 where the archive has that */
    size_t name_len;
    const uint8_t *raw_name; /* as in the local header */
    size_t raw_name_len;
    bool has_backslashes; /* in place of slashes, as some programs for Windows write them */
    /* The zip64 field is not as long as the values that it must hold; or is shorter. */
    bool is_odd_64, is_short_64;
#define ZIP_ODD_64 "has a zip64 field of the wrong length"
    uint16_t method, flags;
    uint32_t crc32;
    uint64_t packed_bytes;
    uint64_t local_offset; /* as recorded: from the first byte of its volume */
    uint32_t volume;
    /* Size, time, owner (0 where it is not recorded), and mode: with type, and from the DOS
     * attributes where Unix' are not there. */
    struct node m;
};

/* Do these bytes, which follow a member's data, begin another record, or tell the same sum? */
#define ZIP_BEHIND_BYTES 8u

/*
 * Decodes records by offset, where their length was checked before, and extra fields by a
 * cursor, since these have any length.
 */

enum { /* ids of extra fields */
       EXTRA_ZIP64 = 0x0001,
       EXTRA_NTFS = 0x000a,
       EXTRA_TIME = 0x5455,         /* "UT" */
       EXTRA_OLD_UNIX = 0x5855,     /* "UX" */
       EXTRA_UNICODE_PATH = 0x7075, /* "up" */
       EXTRA_OWNER = 0x7875,        /* "ux" */
};

enum { HOST_FAT = 0, HOST_UNIX = 3, HOST_NTFS = 10, HOST_VFAT = 14, HOST_DARWIN = 19 };

#define DOS_SLACK_SEC (2 * 86400)         /* a DOS time is of any time zone */
#define NTFS_TO_UNIX INT64_C(11644473600) /* seconds from 1601 to 1970 */

/* ---- the end ---- */

/* False: these bytes are no zip64 end. */
static bool zip_read_end64(const uint8_t bytes[ZIP_END64_BYTES], struct zip_end *ret_end)
{
    if (memcmp(bytes, "PK\6\6", 4) != 0)
        return false;
    *ret_end = (struct zip_end){
        .entries = bytes_le64(bytes + 32),
        .directory_bytes = bytes_le64(bytes + 40),
        .directory_offset = bytes_le64(bytes + 48),
        .volume = bytes_le32(bytes + 16),
        .directory_volume = bytes_le32(bytes + 20),
        .is_split = bytes_le32(bytes + 16) != 0 || bytes_le32(bytes + 20) != 0 ||
                    bytes_le64(bytes + 24) != bytes_le64(bytes + 32),
        .has_64 = true,
    };
    return true;
}

/* ---- entries ---- */

/* How many bytes the entry at `bytes` (ZIP_ENTRY_BYTES of it) has. 0: it is none. */
static size_t zip_entry_bytes(const uint8_t *bytes)
{
    if (memcmp(bytes, ZIP_ENTRY_MAGIC, 4) != 0)
        return 0;
    return (size_t)ZIP_ENTRY_BYTES + bytes_le16(bytes + 28) + bytes_le16(bytes + 30) +
           bytes_le16(bytes + 32);
}

/* Is this a digital signature of the directory, which ends it? */
static bool zip_is_signature(const uint8_t *bytes, size_t len)
{
    return len >= 6 && memcmp(bytes, "PK\5\5", 4) == 0 &&
           (size_t)6 + bytes_le16(bytes + 4) == len;
}

/* Days from 1970-01-01 to a day of the Gregorian calendar. */
static int64_t zip_days(int64_t year, unsigned month, unsigned day)
{
    static const uint16_t before[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t leaps = (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    bool is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return (year - 1) * 365 + leaps - 719162 + before[month - 1] + (month > 2 && is_leap) +
           day - 1;
}

/*
 * Seconds of a DOS time. It is a local time of a place that the archive doesn't name, and read
 * as UTC, so that every node shows the same. Nonsense (month 0) gives 0.
 */
static int64_t zip_dos_time(uint16_t date, uint16_t time)
{
    unsigned month = date >> 5 & 15, day = date & 31;
    if (month < 1 || month > 12 || day < 1)
        return 0;
    return zip_days(1980 + (date >> 9), month, day) * 86400 + (time >> 11) * 3600 +
           (time >> 5 & 63) * 60 + (time & 31) * 2;
}

/*
 * Seconds of 32 bits. They are signed, but for a time from 2038 on, by the DOS time beside
 * them: so Info-ZIP reads them, too.
 */
static int64_t zip_unix_time(uint32_t seconds, int64_t dos_time)
{
    return dos_time >= INT32_MAX - DOS_SLACK_SEC ? (int64_t)seconds : (int32_t)seconds;
}

/*
 * Values of 32 bits that did not fit are in this field, those alone and in this order. Some
 * writers declare it shorter than it is: as unzip does, read on in what follows it.
 */
static void zip_extra64(struct cursor c, size_t declared, struct zip_entry *e, bool is_split)
{
    uint64_t *wanted[] = {&e->m.size_bytes, &e->packed_bytes, &e->local_offset};
    size_t needed = 0;
    for (size_t i = 0; i < 3; i++)
        if (*wanted[i] == UINT32_MAX) {
            needed += sizeof(*wanted[i]);
            e->is_short_64 |= !cursor_le64(&c, wanted[i]);
        }
    e->is_short_64 |= declared < needed;
    e->is_odd_64 = declared != needed + (is_split ? sizeof(e->volume) : 0);
    if (is_split && declared >= needed + sizeof(e->volume))
        cursor_le32(&c, &e->volume);
}

static void zip_extra_ntfs(struct cursor c, struct zip_entry *e)
{
    const uint8_t *value;
    uint16_t tag, len;
    uint64_t ticks; /* of 100 ns, since 1601 */
    if (!cursor_take(&c, 4, &value))
        return;
    while (cursor_le16(&c, &tag) && cursor_le16(&c, &len) && cursor_take(&c, len, &value)) {
        if (tag != 1 || len < 8)
            continue;
        ticks = bytes_le64(value);
        e->m.mtime_sec = (int64_t)(ticks / 10000000) - NTFS_TO_UNIX;
        e->m.mtime_nsec = (uint32_t)(ticks % 10000000) * 100;
    }
}

/* Owners of "ux": numbers of any width. One that does not fit is left at 0. */
static void zip_extra_owner(struct cursor c, struct zip_entry *e)
{
    const uint8_t *value;
    uint32_t *owner[] = {&e->m.uid, &e->m.gid};
    if (!cursor_take(&c, 1, &value) || value[0] != 1)
        return;
    for (size_t i = 0; i < 2; i++) {
        uint64_t number = 0;
        if (!cursor_take(&c, 1, &value))
            return;
        size_t len = value[0];
        if (!cursor_take(&c, len, &value))
            return;
        for (size_t k = len; k-- > 0;)
            number = number >> 56 ? UINT64_MAX : number << 8 | value[k];
        *owner[i] = number < UINT32_MAX ? (uint32_t)number : 0;
    }
}

/* The name in UTF-8, for a name that is in another encoding; with that name's CRC-32. */
static void zip_extra_path(struct cursor c, struct zip_entry *e)
{
    const uint8_t *version, *path;
    uint32_t crc32;
    size_t len = c.left < 5 ? 0 : c.left - 5;
    if (!cursor_take(&c, 1, &version) || version[0] != 1 || !cursor_le32(&c, &crc32) ||
        len == 0 || !checksum_available(SUM_CRC32) ||
        crc32 != checksum_of(SUM_CRC32, e->name, e->name_len) || !cursor_take(&c, len, &path))
        return;
    e->name = path;
    e->name_len = len;
}

/* Extra fields that make no sense are passed over, as unzip does. */
static void zip_read_extra(const uint8_t *bytes, size_t len, struct zip_entry *e, bool is_split)
{
    struct cursor c = {bytes, len};
    const uint8_t *value;
    uint16_t id, value_len;
    const int64_t dos_time = e->m.mtime_sec;
    bool needs_64 = e->m.size_bytes == UINT32_MAX || e->packed_bytes == UINT32_MAX ||
                    e->local_offset == UINT32_MAX;
    while (cursor_le16(&c, &id) && cursor_le16(&c, &value_len)) {
        if (id == EXTRA_ZIP64 && needs_64) {
            zip_extra64(c, value_len, e, is_split);
            needs_64 = false;
        }
        if (!cursor_take(&c, value_len, &value))
            break;
        struct cursor field = {value, value_len};
        if (id == EXTRA_TIME && value_len >= 5 && value[0] & 1) {
            e->m.mtime_sec = zip_unix_time(bytes_le32(value + 1), dos_time);
        } else if (id == EXTRA_OLD_UNIX && value_len >= 8) {
            e->m.mtime_sec = zip_unix_time(bytes_le32(value + 4), dos_time);
        } else if (id == EXTRA_NTFS) {
            zip_extra_ntfs(field, e);
        } else if (id == EXTRA_OWNER) {
            zip_extra_owner(field, e);
        } else if (id == EXTRA_UNICODE_PATH) {
            zip_extra_path(field, e);
        }
    }
}

/* The same rule as unzip's: no file of these systems can have a backslash in its name. */
static bool zip_has_backslashes(unsigned host, const uint8_t *name, size_t len)
{
    return (host == HOST_FAT || host == HOST_NTFS || host == HOST_VFAT) &&
           !memchr(name, '/', len) && memchr(name, '\\', len);
}

static uint32_t zip_mode(unsigned host, uint32_t attributes, const struct zip_entry *e)
{
    uint32_t mode = host == HOST_UNIX || host == HOST_DARWIN ? attributes >> 16 : 0;
    uint8_t slash = e->has_backslashes ? '\\' : '/';
    bool is_directory = e->name_len > 0 && e->name[e->name_len - 1] == slash;
    if (mode == 0) { /* by the DOS attributes: 16: a directory, 1: read-only */
        is_directory |= (attributes & 16) != 0;
        mode = is_directory ? 0755 : attributes & 1 ? 0444 : 0644;
    }
    /* Python's zipfile gives a directory 0600, without a type: nobody could enter it. */
    if (is_directory && !(mode & S_IFMT))
        mode |= (mode & 0444) >> 2;
    if (is_directory)
        return S_IFDIR | (mode & 07777);
    return mode & S_IFMT ? mode & 0177777 : S_IFREG | mode;
}

/* Read an entry of zip_entry_bytes bytes. */
static void zip_read_entry(const uint8_t *bytes, struct zip_entry *ret_entry)
{
    size_t name_len = bytes_le16(bytes + 28), extra_len = bytes_le16(bytes + 30);
    uint16_t volume = bytes_le16(bytes + 34);
    unsigned host = bytes[5];
    *ret_entry = (struct zip_entry){
        .name = bytes + ZIP_ENTRY_BYTES,
        .name_len = name_len,
        .raw_name = bytes + ZIP_ENTRY_BYTES,
        .raw_name_len = name_len,
        .flags = bytes_le16(bytes + 8),
        .method = bytes_le16(bytes + 10),
        .m.mtime_sec = zip_dos_time(bytes_le16(bytes + 14), bytes_le16(bytes + 12)),
        .crc32 = bytes_le32(bytes + 16),
        .packed_bytes = bytes_le32(bytes + 20),
        .m.size_bytes = bytes_le32(bytes + 24),
        .local_offset = bytes_le32(bytes + 42),
        .volume = volume == UINT16_MAX ? 0 : volume,
    };
    zip_read_extra(bytes + ZIP_ENTRY_BYTES + name_len, extra_len, ret_entry,
                   volume == UINT16_MAX);
    ret_entry->has_backslashes =
        zip_has_backslashes(host, ret_entry->name, ret_entry->name_len);
    ret_entry->m.mode = zip_mode(host, bytes_le32(bytes + 38), ret_entry);
    /* Data that zip read from a pipe has the pipe's type; unzip makes a file of it, too. */
    if (ret_entry->packed_bytes > 0 && !S_ISDIR(ret_entry->m.mode) &&
        !S_ISLNK(ret_entry->m.mode))
        ret_entry->m.mode = S_IFREG | (ret_entry->m.mode & 07777);
}

/* Sizes and sum may follow the data, or be 0, as some writers leave them; where they were too
 * large for 32 bits, the local header has them in a field that nobody reads. */
static bool zip_sizes_differ(const uint8_t *bytes, const struct zip_entry *entry)
{
    uint32_t crc32 = bytes_le32(bytes + 14), packed = bytes_le32(bytes + 18),
             size = bytes_le32(bytes + 22);
    return !((bytes_le16(bytes + 6) | entry->flags) & ZIP_HAS_DESCRIPTOR) &&
           ((packed && packed != UINT32_MAX && packed != entry->packed_bytes) ||
            (size && size != UINT32_MAX && size != entry->m.size_bytes) ||
            (crc32 && crc32 != entry->crc32));
}

static bool zip_is_behind(const uint8_t bytes[ZIP_BEHIND_BYTES], const struct zip_entry *entry)
{
    if (memcmp(bytes, "PK\7\10", 4) == 0)
        return bytes_le32(bytes + 4) == entry->crc32;
    return !(entry->flags & ZIP_HAS_DESCRIPTOR) && bytes[0] == 'P' && bytes[1] == 'K';
}

/*
 * The end of central directory holds offsets from the start of the zip. Where something was put
 * in front (a program that unpacks itself), the directory lies further behind than it says,
 * and so does everything else, by the same distance; or the offsets count from the start of
 * the file, of which the source has only the zip.
 *
 * Behind the end lies its comment, which may be cut off or followed by more, and may hold
 * anything, another zip's end as well. So each end that there is counts only if it leads to a
 * directory; one whose comment reaches the end of the file exactly goes before the others, and
 * a later one before an earlier.
 */

/* -EUCLEAN, with what to do about a damaged zip. */
static int zip_fault_damaged(struct fault *fault, const char *member, uint64_t offset,
                             const char *what)
{
    return fault_set_advised(fault, -EUCLEAN, member, offset,
                             "make the archive again, or copy it again", "%s", what);
}

static int end_damaged(struct fault *fault, uint64_t offset, const char *what)
{
    return zip_fault_damaged(fault, NULL, offset, what);
}

/* Values that fit are in both ends. What only looks like a zip64 end has others. */
static bool is_same_end(const struct zip_end *end, const struct zip_end *end64)
{
    return end->has_64 || ((end->entries == UINT16_MAX || end->entries == end64->entries) &&
                           end->directory_bytes == end64->directory_bytes &&
                           end->directory_offset == end64->directory_offset);
}

/*
 * Read the end, which lies at `end_at`, and the zip64 end, if there is one: right before its
 * locator, or where that says. The bytes before an end that needs none may belong to the last
 * member's name. *ret_directory_end: the first of the ends.
 */
static int zip_read_end(const struct source *source, const uint8_t bytes[ZIP_END_BYTES],
                        uint64_t end_at, struct zip_end *end, uint64_t *ret_directory_end,
                        struct fault *fault)
{
    static const char is_missing[] = "the zip64 end of its directory is missing";
    uint8_t locator[ZIP_LOCATOR_BYTES], bytes64[ZIP_END64_BYTES];
    const size_t least = sizeof(locator) + sizeof(bytes64);
    *ret_directory_end = end_at;
    *end = (struct zip_end){
        .entries = bytes_le16(bytes + 10),
        .directory_bytes = bytes_le32(bytes + 12),
        .directory_offset = bytes_le32(bytes + 16),
        .volume = bytes_le16(bytes + 4),
        .directory_volume = bytes_le16(bytes + 6),
    };
    /* A count of 65535 may be just that: Python writes it without zip64. */
    end->has_64 = end->directory_bytes == UINT32_MAX || end->directory_offset == UINT32_MAX ||
                  end->volume == UINT16_MAX;
    end->is_split = !end->has_64 && (end->volume != 0 || end->directory_volume != 0 ||
                                     bytes_le16(bytes + 8) != end->entries);
    if (end_at < least)
        return 0;
    int r =
        source_read_fault(source, locator, sizeof(locator), end_at - sizeof(locator), fault);
    if (r < 0)
        return r;
    if (memcmp(locator, "PK\6\7", 4) != 0)
        return end->has_64 ? end_damaged(fault, end_at, is_missing) : 0;
    const uint64_t recorded = bytes_le64(locator + 8), places[] = {recorded, end_at - least};
    for (size_t i = 0; i < 2; i++) {
        struct zip_end end64;
        if (places[i] > end_at - least)
            continue;
        r = source_read_fault(source, bytes64, sizeof(bytes64), places[i], fault);
        if (r < 0)
            return r;
        if (zip_read_end64(bytes64, &end64) && is_same_end(end, &end64)) {
            *end = end64;
            *ret_directory_end = places[i];
            return 0;
        }
    }
    return end->has_64 ? end_damaged(fault, recorded, is_missing) : 0;
}

static const char not_its_own[] =
    "the directory at its end is not its own: the archive was cut off, or has more than 4 GiB "
    "without zip64";

/* Does a directory begin at `at`? An empty one begins with its end, and is anywhere. */
static int check_start(const struct source *source, const struct zip_end *end, uint64_t at,
                       struct fault *fault)
{
    uint8_t magic[4];
    if (end->directory_bytes == 0)
        return 0;
    if (end->directory_bytes < ZIP_ENTRY_BYTES)
        return end_damaged(fault, at, "its directory is damaged");
    int r = source_read_fault(source, magic, sizeof(magic), at, fault);
    if (r < 0)
        return r;
    return memcmp(magic, ZIP_ENTRY_MAGIC, 4) == 0
               ? 0
               : end_damaged(fault, at, "its directory is damaged");
}

/*
 * The directory that ends at `directory_end`, or lies where the end says. A file that begins
 * like a zip has a member at its start, so nothing was put in front of it.
 */
static int place_directory(const struct source *source, struct zip_end *end,
                           uint64_t directory_end, struct fault *fault)
{
    uint8_t magic[4];
    end->directory = directory_end - end->directory_bytes;
    end->shift = (int64_t)(end->directory - end->directory_offset);
    int r = check_start(source, end, end->directory, fault);
    if (r == 0 && end->shift > 0) {
        r = source_read_fault(source, magic, sizeof(magic), 0, fault);
        if (r == 0 && memcmp(magic, ZIP_LOCAL_MAGIC, 4) == 0)
            r = end_damaged(fault, 0, not_its_own);
    }
    if (r != -EUCLEAN || end->shift <= 0)
        return r;
    /* Something may lie between the directory and its end instead. */
    end->directory = end->directory_offset;
    end->shift = 0;
    return check_start(source, end, end->directory, NULL) == 0 ? 0 : r;
}

/* Where volume `number` (from 0 on) begins in the source. False: it is not there. */
static bool zip_volume_base(const struct source *source, uint32_t number, uint64_t *ret_base)
{
    bool has_several = source_member(source, 0) != source && source_start(source) == 0;
    if (number > 0 && !(has_several && source_member(source, number)))
        return false;
    *ret_base = number > 0 ? source_concat_base(source, number) : 0;
    return true;
}

/* The directory of a zip of several volumes: its offset becomes one in all of them. */
static int find_in_volumes(const struct source *source, uint64_t end_at, struct zip_end *end,
                           struct fault *fault)
{
    uint64_t base;
    uint32_t here = 0;
    while (zip_volume_base(source, here, &base))
        here++;
    if (end->volume >= UINT16_MAX || here != end->volume + 1)
        return fault_set_advised(fault, -EINVAL, NULL, end_at,
                                 "copy all of them into one directory: NAME.z01 .. NAME.zip",
                                 "is one volume of a zip of %" PRIu32, end->volume + 1);
    if (!zip_volume_base(source, end->directory_volume, &base) ||
        __builtin_add_overflow(end->directory_offset, base, &end->directory_offset))
        return end_damaged(fault, end_at, "its directory lies in a volume that it lacks");
    return 0;
}

/* Find the directory by the end at `end_at`. */
static int find_by_end(const struct source *source, const uint8_t bytes[ZIP_END_BYTES],
                       uint64_t end_at, struct zip_end *end, struct fault *fault)
{
    uint64_t directory_end;
    int r = zip_read_end(source, bytes, end_at, end, &directory_end, fault);
    if (r == 0 && end->is_split)
        r = find_in_volumes(source, end_at, end, fault);
    if (r < 0)
        return r;
    if (end->directory_bytes > directory_end || end->directory_offset > INT64_MAX ||
        end->directory_offset > directory_end - end->directory_bytes + source_start(source))
        return end_damaged(fault, end_at,
                           "its directory lies outside the archive: bytes are missing");
    if (end->entries > end->directory_bytes / ZIP_ENTRY_BYTES)
        return end_damaged(fault, end_at, "its directory is too short for its members");
    r = place_directory(source, end, directory_end, fault);
    return r == 0 && end->is_split && end->shift != 0
               ? end_damaged(fault, end_at,
                             "its volumes are longer or shorter than they were, or of two zips")
               : r;
}

/* Is an end at `at`, and does its comment reach the end of `tail` exactly, or not? */
static bool is_end(const uint8_t *tail, size_t len, size_t at, bool is_exact)
{
    return memcmp(tail + at, ZIP_END_MAGIC, 4) == 0 &&
           is_exact == (bytes_le16(tail + at + 20) == len - at - ZIP_END_BYTES);
}

/*
 * Find the directory. Bytes in front of the zip and behind it are passed over, and so is an end
 * that leads to no directory, such as one in a comment.
 *
 * The members of a source are the zip's volumes, if it has several.
 *
 * 0, -EUCLEAN where there is none, -EINVAL for one volume of several, or an error of reading;
 * all with a fault.
 */
static int zip_find_directory(const struct source *source, struct zip_end *ret_end,
                              struct fault *fault)
{
    const uint64_t size = source_size(source);
    const size_t len = (size_t)min_u64(size, ZIP_END_BYTES + ZIP_COMMENT_MAX);
    auto_free uint8_t *tail = malloc(len ? len : 1);
    int first = tail ? source_read_fault(source, tail, len, size - len, fault) : -ENOMEM;
    if (first < 0)
        return first;
    for (int round = 0; round < 2 && len >= ZIP_END_BYTES; round++)
        for (size_t at = len - ZIP_END_BYTES + 1; at-- > 0;) {
            if (!is_end(tail, len, at, round == 0))
                continue;
            int r =
                find_by_end(source, tail + at, size - len + at, ret_end, first ? NULL : fault);
            if (r != -EUCLEAN && r != -EINVAL) {
                if (r == 0 && first && fault)
                    *fault = (struct fault){0};
                return r;
            }
            first = first ? first : r; /* an error tells of the end that comes first */
        }
    return first ? first
                 : end_damaged(fault, size,
                               "the archive is truncated: the directory at its end is missing");
}

int zip_count_volumes(const struct source *source, uint32_t *ret_count)
{
    size_t len = (size_t)min_u64(source_size(source), ZIP_END_BYTES + ZIP_COMMENT_MAX);
    auto_free uint8_t *tail = malloc(len ? len : 1);
    int r = tail ? source_read(source, tail, len, source_size(source) - len) : -ENOMEM;
    *ret_count = 0;
    for (size_t at = len - min_u64(len, ZIP_END_BYTES) + 1; r == 0 && at-- > 0;)
        if (len - at >= ZIP_END_BYTES && is_end(tail, len, at, true)) {
            struct zip_end end;
            uint64_t ignored;
            r = zip_read_end(source, tail + at, source_size(source) - len + at, &end, &ignored,
                             NULL);
            *ret_count = r == 0 ? end.volume + 1 : 0;
            break;
        }
    return r == -EUCLEAN ? 0 : r;
}

/*
 * The lowest offset of a member's header, as the directory records it. Entries that need zip64
 * for that are passed over: they are not the first. False: there is none.
 */
static int find_lowest(const struct source *source, const struct zip_end *place,
                       uint64_t *ret_lowest)
{
    uint8_t bytes[ZIP_ENTRY_BYTES];
    uint64_t end = place->directory + place->directory_bytes;
    *ret_lowest = UINT32_MAX;
    for (uint64_t at = place->directory; end - at >= sizeof(bytes);) {
        int r = source_read(source, bytes, sizeof(bytes), at);
        if (r < 0)
            return r;
        size_t len = zip_entry_bytes(bytes);
        if (len == 0 || len > end - at)
            break;
        *ret_lowest = min_u64(*ret_lowest, bytes_le32(bytes + 42));
        at += len;
    }
    return 0;
}

/*
 * Find where a zip with members begins that ends with the source: 1, 0 (there is none), or
 * -errno. Bytes at 0 are not looked at, so they may be damaged.
 */
static int zip_find_begin(const struct source *source, uint64_t *ret_begin)
{
    struct zip_end place;
    uint64_t lowest = UINT32_MAX, begin;
    uint8_t magic[4] = ZIP_LOCAL_MAGIC;
    int r = zip_find_directory(source, &place, NULL);
    if (r == 0)
        r = find_lowest(source, &place, &lowest);
    if (r < 0)
        return r == -EUCLEAN || r == -EINVAL ? 0 : r;
    if (lowest == UINT32_MAX || __builtin_add_overflow(place.shift, lowest, &begin) ||
        begin >= place.directory)
        return 0;
    r = begin == 0 ? 0 : source_read(source, magic, sizeof(magic), begin);
    *ret_begin = begin;
    return r < 0 ? r : memcmp(magic, ZIP_LOCAL_MAGIC, sizeof(magic)) == 0;
}

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
    struct zip_end place;
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
    struct front place;
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
           (e->m.size_bytes > MEMBER_MAX || e->packed_bytes >= 1u << 31);
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
        return e->packed_bytes == e->m.size_bytes
                   ? 0
                   : member_is_damaged(z, at, "is stored, and has two sizes");
    if (codec == CODEC_NONE)
        return fault_set(z->fault, -ENOTSUP, z->name, at,
                         "is compressed by method %u of zip, which onepot lacks", e->method);
    if (e->packed_bytes == 0 && e->m.size_bytes > 0)
        return member_is_damaged(z, at, "has no data, and claims some");
    if (codec == CODEC_DEFLATE &&
        e->m.size_bytes / DEFLATE_RATIO > e->packed_bytes + RATIO_SLACK)
        return member_is_damaged(z, at, "claims more bytes than its data can hold");
    if (is_long_deflated(e))
        return 0;
    if (e->m.size_bytes > MEMBER_MAX)
        return fault_set(z->fault, -ENOTSUP, z->name, at,
                         "is compressed by method %u of zip, and longer than %u MiB", e->method,
                         MEMBER_MAX >> 20);
    if (e->packed_bytes > codec_packed_max(e->m.size_bytes))
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
        r = codec_context_new(false, &z->codecs);
    if (r == 0)
        r = codec_unpack(z->codecs, zip_codec_of(e), packed, e->packed_bytes, bytes,
                         e->m.size_bytes, &len);
    return r == -ENOTSUP || (r == 0 && len != e->m.size_bytes) ? -EUCLEAN : r;
}

/*
 * The member's content, which begins at `data`, decompressed and compared with its length and
 * sum. The caller frees it. -EUCLEAN: it is damaged, or compressed as nobody here can read it.
 */
static int content_read(struct zip *z, const struct zip_entry *e, uint64_t data,
                        uint8_t **ret_bytes)
{
    auto_free uint8_t *bytes = malloc(e->m.size_bytes ? e->m.size_bytes : 1);
    int r = !bytes                    ? -ENOMEM
            : e->method == ZIP_STORED ? source_read(z->source, bytes, e->m.size_bytes, data)
                                      : content_unpack(z, e, data, bytes);
    if (r == 0 && checksum_available(SUM_CRC32) &&
        checksum_of(SUM_CRC32, bytes, e->m.size_bytes) != e->crc32)
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
    for (uint64_t at = 0; r == 0 && at < e->m.size_bytes; at += STEP_BYTES) {
        size_t len = (size_t)min_u64(e->m.size_bytes - at, STEP_BYTES);
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
    if (__builtin_add_overflow(z->proven_bytes, e->m.size_bytes, &z->proven_bytes) ||
        z->proven_bytes / PROOF_RATIO > most)
        return -E2BIG;
    if (e->method == ZIP_STORED)
        return content_prove_stored(z, e, data);
    auto_free uint8_t *bytes = NULL;
    return content_read(z, e, data, &bytes);
}

/* ---- members ---- */

static const char other_name[] = "has another name in its header";

/*
 * Read the member's own header, which ends at *ret_data, and compare it with its entry.
 * *ret_differs: NULL, or how they disagree; `other_name`: the header has the same sizes and
 * sum, or none.
 */
static int read_local(struct zip *z, const struct zip_entry *e, uint64_t at, uint64_t *ret_data,
                      const char **ret_differs)
{
    const uint16_t flags = ZIP_ENCRYPTED | ZIP_PATCH | ZIP_HIDDEN;
    const uint8_t *bytes;
    size_t len;
    int r = source_window_get(&z->headers, at, ZIP_LOCAL_BYTES + e->raw_name_len, &bytes, &len);
    if (r < 0)
        return zip_read_fault(z, r, at);
    if (len < ZIP_LOCAL_BYTES)
        return zip_damaged(z, at, "has its header outside the archive");
    if (memcmp(bytes, ZIP_LOCAL_MAGIC, 4) != 0)
        return zip_damaged(z, at, "has no header where the central directory says");
    const size_t name_len = bytes_le16(bytes + 26);
    *ret_data = at + ZIP_LOCAL_BYTES + name_len + bytes_le16(bytes + 28);
    *ret_differs = NULL;
    if (bytes_le16(bytes + 8) != e->method)
        *ret_differs = "is compressed in another way by its header";
    else if ((bytes_le16(bytes + 6) ^ e->flags) & flags)
        *ret_differs = "is encrypted, or is not, by its header";
    else if (zip_sizes_differ(bytes, e))
        *ret_differs = "has another size or sum in its header";
    else if (name_len != e->raw_name_len || len < ZIP_LOCAL_BYTES + name_len ||
             memcmp(bytes + ZIP_LOCAL_BYTES, e->raw_name, name_len) != 0)
        *ret_differs = other_name;
    else if (e->is_short_64)
        *ret_differs = ZIP_ODD_64;
    return 0;
}

/* Where the member's data begins. */
static int find_data(struct zip *z, const struct zip_entry *e, uint64_t at, uint64_t record,
                     const char **ret_differs, uint64_t *ret_data)
{
    uint64_t end;
    int r = read_local(z, e, at, ret_data, ret_differs);
    if (r < 0)
        return r;
    if (__builtin_add_overflow(*ret_data, e->packed_bytes, &end) || end > z->place.directory)
        return zip_damaged(z, at, "has data that lies outside the archive");
    return vector_push(&z->ranges, (struct zip_range){at, end, record});
}

/* The bytes behind the member tell that its data lies where the directory says. */
static bool is_followed(const struct zip *z, const struct zip_entry *e, uint64_t end)
{
    uint8_t bytes[ZIP_BEHIND_BYTES];
    return source_read(z->source, bytes, sizeof(bytes), end) == 0 && zip_is_behind(bytes, e);
}

/* The member's header disagrees with its entry: its data decides whether that is right. */
static int prove_content(struct zip *z, const struct zip_entry *e, const char *differs,
                         uint64_t data)
{
    bool is_right = differs == other_name && is_followed(z, e, data + e->packed_bytes);
    int r = is_right || is_long_deflated(e) /* which is read anyway */
                ? 0
                : content_prove(z, e, data);
    z->progress->beats++;
    if (r == -EUCLEAN || r == -E2BIG)
        return fault_set(z->fault, -EILSEQ, z->name, data, "%s, and %s", differs,
                         r == -E2BIG ? "there is more of this than can be compared"
                                     : "its data is not what the central directory says");
    if (r < 0)
        return zip_read_fault(z, r, data);
    if (z->odd++ == 0)
        snprintf(z->odd_what, sizeof(z->odd_what), "%.90s: %s", z->name, differs);
    return 0;
}

/* The target of a symbolic link is its content. */
static int read_target(struct zip *z, const struct zip_entry *e, uint64_t data, char *target)
{
    auto_free uint8_t *bytes = NULL;
    if (e->m.size_bytes == 0 || e->m.size_bytes > INDEX_SYMLINK_MAX)
        return fault_set(z->fault, -EINVAL, z->name, data,
                         "is a symbolic link of %" PRIu64 " bytes", e->m.size_bytes);
    int r = content_read(z, e, data, &bytes);
    if (r == -EUCLEAN)
        return member_is_damaged(z, data, "is a symbolic link whose sum is wrong");
    if (r < 0)
        return zip_read_fault(z, r, data);
    memcpy(target, bytes, e->m.size_bytes);
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
    if (part->block.block_bytes > e->m.size_bytes - at)
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
    if (at != e->m.size_bytes || z->scan->offset != data + e->packed_bytes)
        return member_is_damaged(z, data, "has fewer bytes than the directory says");
    return z->scan->crc == e->crc32 ? 0 : member_is_damaged(z, data, "has a wrong sum");
}

/* Add a compressed file: one block, which nobody else shares. */
static int add_block(struct zip *z, const struct zip_entry *e, uint32_t inode, uint64_t data)
{
    struct builder_block block = {
        .source_offset = data,
        .packed_bytes = (uint32_t)e->packed_bytes,
        .block_bytes = (uint32_t)e->m.size_bytes,
        .codec = zip_codec_of(e),
    };
    if (is_long_deflated(e))
        return builder_set_pieces(z->builder, inode, z->pieces.at, z->pieces.count);
    struct builder_piece piece = {.length = e->m.size_bytes};
    z->largest_block = max_u32(z->largest_block, block.block_bytes);
    int r = builder_add_block(z->builder, &block, &piece.block);
    if (r == 0)
        r = builder_set_pieces(z->builder, inode, &piece, 1);
    return r;
}

static int add_typed(struct zip *z, const struct zip_entry *e, uint64_t record,
                     struct node *member)
{
    uint64_t data = 0;
    uint32_t inode;
    const char *differs = NULL;
    char target[INDEX_SYMLINK_MAX];
    bool has_content = S_ISREG(e->m.mode) || S_ISLNK(e->m.mode);
    int r = has_content ? check_content(z, e, member->header_offset) : 0;
    if (r == 0)
        r = find_data(z, e, member->header_offset, record, &differs, &data);
    if (r == 0 && has_content && differs)
        r = prove_content(z, e, differs, data);
    if (r == 0 && S_ISREG(e->m.mode) && is_long_deflated(e))
        r = scan_long(z, e, data);
    if (r == 0 && S_ISLNK(e->m.mode)) {
        r = read_target(z, e, data, target);
        member->link = target;
        member->link_len = e->m.size_bytes;
        member->mode = S_IFLNK | 0777; /* as the system shows it, whatever was stored */
    } else if (S_ISREG(e->m.mode)) {
        member->has_pieces = e->method != ZIP_STORED && e->m.size_bytes > 0;
        member->data_offset = data;
    } else if (!S_ISDIR(e->m.mode) && !S_ISFIFO(e->m.mode) && !S_ISSOCK(e->m.mode)) {
        r = r < 0 ? r
                  : fault_set(z->fault, -ENOTBLK, z->name, data,
                              "is a device, whose number a zip lacks");
    }
    if (r == 0)
        r = builder_add(z->builder, (const char *)e->name, e->name_len, member, z->fault,
                        &inode);
    if (r == 0 && member->has_pieces)
        r = add_block(z, e, inode, data);
    if (r == 0 && S_ISREG(e->m.mode))
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
    struct node member = e->m;
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
    /* Without zip64, old programs store the lower 16 bits of the number of members. */
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
    const char *differs = NULL;
    struct fault fault = {0};
    uint64_t at = 0, data;
    if (archive_end_stopped(z->end))
        return -EINTR;
    if (find_header(z, e, record, &at) < 0 || read_local(z, e, at, &data, &differs) < 0 ||
        !differs)
        return 0; /* told when the zip was opened */
    fault_set(&fault, -EUCLEAN, z->name, at, "%s%s", differs, directory_counts);
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

/*
 * Nearly all zips end with an end that says where it lies itself. Only of others more than
 * these bytes is read; what lies in front of a zip tells that it is a member's.
 */
static bool zip_is_whole(const struct source *source, bool by_end)
{
    uint8_t bytes[ZIP_END_BYTES];
    struct zip_end end;
    const uint64_t size = source_size(source);
    (void)by_end;
    if (size >= sizeof(bytes) &&
        source_read(source, bytes, sizeof(bytes), size - sizeof(bytes)) == 0 &&
        memcmp(bytes, ZIP_END_MAGIC "\0\0\0", 8) == 0 && /* of one volume */
        bytes_le16(bytes + 8) == bytes_le16(bytes + 10) && bytes_le16(bytes + 20) == 0 &&
        (uint64_t)bytes_le32(bytes + 12) + bytes_le32(bytes + 16) == size - sizeof(bytes))
        return true;
    return zip_find_directory(source, &end, NULL) == 0 && end.shift == 0;
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
