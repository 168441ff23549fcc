/*
 * The records of a zip (PKWARE's APPNOTE.TXT 6.3), as bytes. Nothing here allocates, reads a
 * source or keeps state: each function takes bytes and says what they mean, or that they make
 * no sense.
 *
 * Threads: any.
 */
#ifndef ONEPOT_ZIP_RECORDS_H
#define ONEPOT_ZIP_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* Where the central directory is. */
struct zip_end {
    uint64_t entries;
    uint64_t directory_bytes;
    uint64_t directory_offset;         /* as recorded: from the first byte of its volume */
    uint32_t volume, directory_volume; /* where the end lies, and the directory begins */
    bool is_split;                     /* one of several volumes */
    bool has_64;                       /* some values are in the zip64 end */
};

void zip_read_end(const uint8_t bytes[ZIP_END_BYTES], struct zip_end *ret_end);

/* Offset of the zip64 end, as recorded. False: these bytes are no locator. */
bool zip_read_locator(const uint8_t bytes[ZIP_LOCATOR_BYTES], uint64_t *ret_offset);

/* False: these bytes are no zip64 end. */
bool zip_read_end64(const uint8_t bytes[ZIP_END64_BYTES], struct zip_end *ret_end);

/* A member, as the central directory has it. Names are not terminated. */
struct zip_entry {
    const uint8_t *name; /* in UTF-8 where the archive has that */
    size_t name_len;
    const uint8_t *raw_name; /* as in the local header */
    size_t raw_name_len;
    bool has_backslashes; /* in place of slashes, as some programs for Windows write them */
    /* Its zip64 field has not the length of the values that it should have; or less. */
    bool is_odd_64, is_short_64;
#define ZIP_ODD_64 "has a zip64 field of the wrong length"
    uint16_t method, flags;
    uint32_t crc32;
    uint64_t packed_bytes, size_bytes;
    uint64_t local_offset; /* as recorded: from the first byte of its volume */
    uint32_t volume;
    uint32_t mode;     /* with type; from the DOS attributes where Unix' are not there */
    uint32_t uid, gid; /* 0 where they are not recorded */
    int64_t mtime_sec;
    uint32_t mtime_nsec;
};

/* How many bytes the entry at `bytes` (ZIP_ENTRY_BYTES of it) has. 0: it is none. */
size_t zip_entry_bytes(const uint8_t *bytes);

/* Is this a digital signature of the directory, which ends it? */
bool zip_is_signature(const uint8_t *bytes, size_t len);

/* Read an entry of zip_entry_bytes bytes. */
void zip_read_entry(const uint8_t *bytes, struct zip_entry *ret_entry);

/* A member's own header, beside its entry in the directory. */
struct zip_local {
    uint64_t header_bytes; /* up to the data */
    const char *differs;   /* NULL, or how it disagrees with the entry */
    bool sizes_agree;      /* it has the same sizes and sum, or none */
};

/*
 * Compare a local header (ZIP_LOCAL_BYTES, followed by its name as far as `len` goes) with its
 * entry. NULL, or why it is none.
 */
const char *zip_read_local(const uint8_t *bytes, size_t len, const struct zip_entry *entry,
                           struct zip_local *ret_local);

/* Do these bytes, which follow a member's data, begin another record, or tell the same sum? */
#define ZIP_BEHIND_BYTES 8u
bool zip_is_behind(const uint8_t bytes[ZIP_BEHIND_BYTES], const struct zip_entry *entry);

#endif
