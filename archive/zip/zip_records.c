/*
 * Decodes records by offset, where their length was checked before, and extra fields by a
 * cursor, since these have any length.
 */
#include "zip_records.h"

#include <string.h>
#include <sys/stat.h>

#include "bytes.h"
#include "checksum.h"

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

void zip_read_end(const uint8_t bytes[ZIP_END_BYTES], struct zip_end *ret_end)
{
    uint16_t entries = bytes_le16(bytes + 10);
    struct zip_end end = {
        .entries = entries,
        .directory_bytes = bytes_le32(bytes + 12),
        .directory_offset = bytes_le32(bytes + 16),
    };
    uint16_t volume = bytes_le16(bytes + 4), first = bytes_le16(bytes + 6);
    /* A count of 65535 may be just that: Python writes it without zip64. */
    end.has_64 = end.directory_bytes == UINT32_MAX || end.directory_offset == UINT32_MAX ||
                 volume == UINT16_MAX;
    end.is_split =
        !end.has_64 && (volume != 0 || first != 0 || bytes_le16(bytes + 8) != entries);
    end.volume = volume;
    end.directory_volume = first;
    *ret_end = end;
}

bool zip_read_locator(const uint8_t bytes[ZIP_LOCATOR_BYTES], uint64_t *ret_offset)
{
    if (memcmp(bytes, "PK\6\7", 4) != 0)
        return false;
    *ret_offset = bytes_le64(bytes + 8);
    return true;
}

bool zip_read_end64(const uint8_t bytes[ZIP_END64_BYTES], struct zip_end *ret_end)
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

size_t zip_entry_bytes(const uint8_t *bytes)
{
    if (memcmp(bytes, ZIP_ENTRY_MAGIC, 4) != 0)
        return 0;
    return (size_t)ZIP_ENTRY_BYTES + bytes_le16(bytes + 28) + bytes_le16(bytes + 30) +
           bytes_le16(bytes + 32);
}

bool zip_is_signature(const uint8_t *bytes, size_t len)
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
    uint64_t *wanted[] = {&e->size_bytes, &e->packed_bytes, &e->local_offset};
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
        e->mtime_sec = (int64_t)(ticks / 10000000) - NTFS_TO_UNIX;
        e->mtime_nsec = (uint32_t)(ticks % 10000000) * 100;
    }
}

/* Owners of "ux": numbers of any width. One that does not fit is left at 0. */
static void zip_extra_owner(struct cursor c, struct zip_entry *e)
{
    const uint8_t *value;
    uint32_t *owner[] = {&e->uid, &e->gid};
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
    const int64_t dos_time = e->mtime_sec;
    bool needs_64 = e->size_bytes == UINT32_MAX || e->packed_bytes == UINT32_MAX ||
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
            e->mtime_sec = zip_unix_time(bytes_le32(value + 1), dos_time);
        } else if (id == EXTRA_OLD_UNIX && value_len >= 8) {
            e->mtime_sec = zip_unix_time(bytes_le32(value + 4), dos_time);
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

void zip_read_entry(const uint8_t *bytes, struct zip_entry *ret_entry)
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
        .mtime_sec = zip_dos_time(bytes_le16(bytes + 14), bytes_le16(bytes + 12)),
        .crc32 = bytes_le32(bytes + 16),
        .packed_bytes = bytes_le32(bytes + 20),
        .size_bytes = bytes_le32(bytes + 24),
        .local_offset = bytes_le32(bytes + 42),
        .volume = volume == UINT16_MAX ? 0 : volume,
    };
    zip_read_extra(bytes + ZIP_ENTRY_BYTES + name_len, extra_len, ret_entry,
                   volume == UINT16_MAX);
    ret_entry->has_backslashes =
        zip_has_backslashes(host, ret_entry->name, ret_entry->name_len);
    ret_entry->mode = zip_mode(host, bytes_le32(bytes + 38), ret_entry);
    /* Data that zip read from a pipe has the pipe's type; unzip makes a file of it, too. */
    if (ret_entry->packed_bytes > 0 && !S_ISDIR(ret_entry->mode) && !S_ISLNK(ret_entry->mode))
        ret_entry->mode = S_IFREG | (ret_entry->mode & 07777);
}

/* Sizes and sum may follow the data, or be 0, as some writers leave them; where they were too
 * large for 32 bits, the local header has them in a field that nobody reads. */
static bool zip_sizes_differ(const uint8_t *bytes, const struct zip_entry *entry)
{
    uint32_t crc32 = bytes_le32(bytes + 14), packed = bytes_le32(bytes + 18),
             size = bytes_le32(bytes + 22);
    return !((bytes_le16(bytes + 6) | entry->flags) & ZIP_HAS_DESCRIPTOR) &&
           ((packed && packed != UINT32_MAX && packed != entry->packed_bytes) ||
            (size && size != UINT32_MAX && size != entry->size_bytes) ||
            (crc32 && crc32 != entry->crc32));
}

const char *zip_read_local(const uint8_t *bytes, size_t len, const struct zip_entry *entry,
                           struct zip_local *ret_local)
{
    if (len < ZIP_LOCAL_BYTES)
        return "has its header outside the archive";
    if (memcmp(bytes, ZIP_LOCAL_MAGIC, 4) != 0)
        return "has no header where the central directory says";
    size_t name_len = bytes_le16(bytes + 26);
    const uint16_t flags = ZIP_ENCRYPTED | ZIP_PATCH | ZIP_HIDDEN;
    *ret_local = (struct zip_local){.header_bytes = (uint64_t)ZIP_LOCAL_BYTES + name_len +
                                                    bytes_le16(bytes + 28)};
    if (bytes_le16(bytes + 8) != entry->method)
        ret_local->differs = "is compressed in another way by its header";
    else if ((bytes_le16(bytes + 6) ^ entry->flags) & flags)
        ret_local->differs = "is encrypted, or is not, by its header";
    else if (zip_sizes_differ(bytes, entry))
        ret_local->differs = "has another size or sum in its header";
    else if (name_len != entry->raw_name_len || len < ZIP_LOCAL_BYTES + name_len ||
             memcmp(bytes + ZIP_LOCAL_BYTES, entry->raw_name, name_len) != 0)
        *ret_local = (struct zip_local){ret_local->header_bytes,
                                        "has another name in its header", .sizes_agree = true};
    else if (entry->is_short_64)
        *ret_local = (struct zip_local){ret_local->header_bytes, ZIP_ODD_64};
    return NULL;
}

bool zip_is_behind(const uint8_t bytes[ZIP_BEHIND_BYTES], const struct zip_entry *entry)
{
    if (memcmp(bytes, "PK\7\10", 4) == 0)
        return bytes_le32(bytes + 4) == entry->crc32;
    return !(entry->flags & ZIP_HAS_DESCRIPTOR) && bytes[0] == 'P' && bytes[1] == 'K';
}
