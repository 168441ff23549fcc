/*
 * The index on disk: builder.c writes it, index.c reads it. All integers are
 * little-endian. All offsets below count from the first byte of the image, which lies at a
 * multiple of 8 in its file.
 *
 *     header | section table | section area | page sums
 *
 * Header. struct disk_header and the section table are together `header_bytes` long.
 * `header_sum` is XXH3-64 (seed 0) of those bytes, with the field itself zero. A later version
 * may make the header longer: the section table is found by its offset. A reader refuses any
 * other `version` and any unknown bit in `incompatible` (DISK_NEEDS_*), and ignores sections
 * with an unknown id.
 *
 * Section area. It is `area_bytes` long and starts at `area_offset` (a multiple of 8). Each
 * section starts at a multiple of 8 within the image and lies inside the area. The area is cut
 * into pages of 64 KB from its start; the last one may be shorter. The table at `sums_offset`
 * has XXH3-64 of each page, 8 bytes a page; `sums_sum` is XXH3-64 of that table. So everything
 * but the area is checked when an index is opened, and a page of the area at its first use.
 *
 * Entries. One struct disk_entry for each name, breadth first: the root (with an empty name),
 * its children, their children, and so on. The children of a directory are contiguous, sorted
 * by name as memcmp does, and come after it; the groups of children are in the order of their
 * directories. Other records refer to an entry by its position, counted from 0.
 *
 *     word 0   bits 0..39: offset of the name in NAMES, where the names lie in the
 *              order of the entries; a name ends where the next one begins, the last
 *              one at the end of the section. Bits 40..63: number of a record in ATTRS.
 *     size     regular file: its size. Symbolic link: length of its target.
 *              Directory: how many directories are among its children.
 *     data     Directory: first child's position in the low 32 bits (if empty: where it
 *              would be), number of children in the high 32 bits.
 *              Symbolic link: offset of the target in STRINGS.
 *              Device: major number in the low 32 bits, minor in the high 32 bits.
 *              Regular file: by the kind of its data, see below.
 *              Alias (a further name of an inode): position of the inode's first name,
 *              which is less than its own.
 *     mtime    bits 0..29: nanoseconds; bits 30..63: seconds since 1901-12-13T20:45:52Z
 *              (Unix time plus 2^31), until the year 2446. For a time outside this
 *              range, EXTRA has the seconds and they are 1 here. Never 0 as a whole.
 *
 * Kinds of data (DATA_KIND_* in the attributes' flags):
 *     NONE      not a regular file.
 *     STORED    bytes [data, data + size) of the archive. Empty files: 0.
 *     PACKED    in compressed blocks: the first one's number in bits 0..31 of `data`, the
 *               offset in it in bits 32..62. The bytes go on in the blocks that follow it,
 *               as many from each as the first one's block_bytes; all but the last are full.
 *     EXTENTS   ranges with holes: `data` is the offset in EXTENTS of
 *               {u32 count, u32 DISK_RANGES, u64 data_bytes, count x {u64 source, u64
 *               logical, u64 length}}, ascending, not empty, without overlap; bytes in
 *               no range are a hole. data_bytes is the sum of the lengths. If bit 63 of
 *               `source` is set the range is packed, and the other bits are as in PACKED.
 *     ALIAS     see above. Mode, owner and flags of the alias itself give only its type.
 *
 * Sections (the table also has the record's size, which must be the one given here):
 *     ENTRIES  32  struct disk_entry
 *     NAMES     1  see above
 *     ATTRS    16  struct disk_attr: the distinct combinations of mode, owner, flags.
 *                  Number 0 is all zero, and no entry uses it.
 *     DIRS      4  u32 position of each directory, ascending. Their first children
 *                  ascend too, so the parent of an entry is the last directory whose
 *                  first child does not lie after it.
 *     EXTENTS   8  see above
 *     BLOCKS   16  struct disk_block. Bits 56..63 of `source_offset`: the codec, if it is not
 *                  the header's; else 0. A block decompresses to at most `block_bytes` of its
 *                  record, which is at most the header's.
 *     EXTRA    16  struct disk_extra, sorted by position and kind: values that few
 *                  inodes have
 *     STRINGS   1  targets of symbolic links
 *     XATTRS    8  sets of extended attributes: {u32 count, u32 bytes, then count x {u32
 *                  name_len, u32 value_len, name, value}}; `bytes` counts the bytes behind it;
 *                  a set starts at a multiple of 8; sorted by name
 *     SUMS 8 sum of each regular inode's content, by position; else 0. Its kind is the header's
 *     `sum_kind`; a CRC-32 is in the low 32 bits. With SUM_MIXED, the highest two bits are 0:
 *     no sum, 1: a CRC-32, 2: the low 62 bits of XXH3-64
 *     WINDOW_SUMS  8  XXH3-64 of each window of INDEX_WINDOW_BYTES of the archive's
 *                  `archive_bytes`, by number. In an index saved for one compressed stream:
 *                  of the tar in it, which the index describes
 *     POINTS 32 struct disk_point, sorted by block: for each block whose codec is for a part of
 *     a stream (codec_has_point). DISK_NEEDS_POINTS is set where there
 *                  are any. `first_bit` bits of the block's first byte belong to the bytes
 *                  before it, and the first `last_bits` bits of its last byte to the block, as
 *                  the stream's format counts bits. The decompressed bytes right before it
 *                  that it refers to, at most 32768, are a zstd frame of `window_packed` bytes
 *                  at `window` in WINDOWS; bytes of them that nothing refers to may be zeros.
 *                  The block decompresses to exactly its `block_bytes`, and `sum` is their
 *                  XXH3-64.
 *     WINDOWS   1  see POINTS
 *     PIECES   64  for each point, in their order: the low 32 bits of XXH3-64 of each of 16
 *                  pieces of the decompressed block, so that its beginning can be trusted
 *                  without the rest. A piece has a 16th of the block's bytes, rounded up to a
 *                  multiple of 4096; the last ones have fewer or none. All zero: there are no
 *                  such sums
 *     LEFT_OUT  8  members of the archive that the tree lacks: their number as a u64; then
 *                  for the first DISK_LEFT_OUT_TOLD {u64 offset of the header, u32
 *                  member_len, u32 what_len, member, what}, each padded to a multiple of 8
 *     XATTRS_LEFT_OUT  8  one u64: extended attributes of the archive that the tree lacks,
 *                  as Linux has no place for them; without the section, none
 *     RECIPE    1  of an index composed of others: its parts, and how it was made (recipe.h)
 *     LEFT_OUT_KINDS  8  how many of the left-out members are of each kind, a u64 each, in the
 *                  order of left_out_kind; kinds may be added at the end
 *
 * Zeros are invalid wherever possible: the last field of an entry, a range, a block,
 * a point and an extra is never 0, nor are the flags of an attribute, nor does a name or a
 * target hold a zero byte. The reason: a file cut short while it is mapped reads as zeros from
 * there on, even in pages whose sum was checked before.
 */
#ifndef ONEPOT_INDEX_FORMAT_H
#define ONEPOT_INDEX_FORMAT_H

#include <assert.h>
#include <stdint.h>

#define DISK_MAGIC "onepotIX"
#define DISK_VERSION 1u
#define DISK_PAGE_BITS 16
#define DISK_PAGE_BYTES (1u << DISK_PAGE_BITS)
#define DISK_HEADER_MAX 65536u /* header and section table: a larger one is damaged */

struct disk_header {
    uint8_t magic[8];
    uint32_t version;
    uint32_t header_bytes;
    uint32_t sections_offset;
    uint32_t sections;
    uint64_t image_bytes;
    uint64_t incompatible;
    uint64_t area_offset;
    uint64_t area_bytes;
    uint64_t sums_offset;
    uint64_t sums_sum;
    uint64_t header_sum;
    uint32_t page_bytes; /* DISK_PAGE_BYTES */
    uint32_t features;   /* DISK_HAS_* */
    uint32_t format;     /* a number of the registry of formats */
    uint32_t codec;      /* enum codec, of index.h */
    uint32_t block_bytes;
    uint32_t entries;
    uint32_t unused; /* 0 */
    uint32_t archive_mtime_nsec;
    uint64_t files;       /* names of regular files */
    uint64_t directories; /* the root included */
    uint64_t inodes;
    uint64_t total_bytes; /* sizes of regular inodes; 2^64 - 1 if they overflow */
    uint64_t data_bytes;  /* the same, without holes */
    uint64_t name_bytes;
    uint64_t archive_bytes;
    int64_t archive_mtime_sec;
    uint64_t archive_fingerprint;
    uint64_t end_marker_offset;
    uint8_t identifier[16];
    uint8_t digest[16];   /* see digest.h */
    uint32_t digest_kind; /* enum digest_kind, of index.h */
    uint16_t sum_kind;    /* enum sum_kind, of index.h */
    uint16_t codecs;      /* that blocks name: bit n is for codec n */
    char made_by[32];     /* the program that wrote it, padded with zeros */
};
static_assert(sizeof(struct disk_header) == 264, "header");

/*
 * Bits of `incompatible`. An index has them only where it must, so that older programs open all
 * others.
 */
#define DISK_NEEDS_CODECS 1u   /* `codecs` is not 0: blocks have codecs of their own */
#define DISK_NEEDS_SUM_KIND 2u /* `sum_kind` is not 0 */
#define DISK_NEEDS_POINTS 4u   /* there are blocks that are parts of streams */
#define DISK_NEEDS_KNOWN (DISK_NEEDS_CODECS | DISK_NEEDS_SUM_KIND | DISK_NEEDS_POINTS)

#define DISK_HAS_XATTRS 1u
#define DISK_HAS_HOLES 2u
#define DISK_HAS_HARDLINKS 4u
#define DISK_HAS_SUMS 8u
#define DISK_HAS_JOINED 16u /* members behind an end-of-archive mark (--ignore-zeros) */

enum disk_section_id {
    SECTION_ENTRIES = 1,
    SECTION_NAMES = 2,
    SECTION_ATTRS = 3,
    SECTION_DIRS = 4,
    SECTION_EXTENTS = 5,
    SECTION_BLOCKS = 6,
    SECTION_EXTRA = 7,
    SECTION_STRINGS = 8,
    SECTION_XATTRS = 9,
    SECTION_SUMS = 10,
    SECTION_WINDOW_SUMS = 11,
    SECTION_LEFT_OUT = 13,
    SECTION_RECIPE = 14,
    SECTION_POINTS = 15,
    SECTION_WINDOWS = 16,
    SECTION_PIECES = 17,
    SECTION_XATTRS_LEFT_OUT = 18,
    SECTION_LEFT_OUT_KINDS = 19,
    SECTION_IDS, /* one more than the last */
};

struct disk_section {
    uint32_t id;
    uint32_t record_bytes;
    uint64_t offset;
    uint64_t length; /* in bytes: a multiple of record_bytes */
};
static_assert(sizeof(struct disk_section) == 24, "section");

struct disk_entry {
    uint64_t name_attr;
    uint64_t size;
    uint64_t data;
    uint64_t mtime;
};
static_assert(sizeof(struct disk_entry) == 32, "entry");

#define DISK_RANGES 0x45474e52u /* "RNGE" */

#define DISK_NAME_BITS 40
#define DISK_NAME_LIMIT (UINT64_C(1) << DISK_NAME_BITS)
#define DISK_ATTR_LIMIT (1u << 24)

#define DISK_NSEC_BITS 30
#define DISK_MTIME_BIAS (INT64_C(1) << 31)
#define DISK_MTIME_LIMIT (INT64_C(1) << 34) /* of the biased seconds */

struct disk_attr {
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    uint32_t flags;
};
static_assert(sizeof(struct disk_attr) == 16, "attr");

#define DATA_KIND_MASK 15u
#define DATA_KIND_NONE 1u
#define DATA_KIND_STORED 2u
#define DATA_KIND_PACKED 3u
#define DATA_KIND_EXTENTS 4u
#define DATA_KIND_ALIAS 5u

/* Flags. The first three say what EXTRA holds for the inode. */
#define ATTR_NLINK 0x100u      /* EXTRA_NLINK: other than 1 */
#define ATTR_XATTRS 0x200u     /* EXTRA_XATTRS: offset of its set in XATTRS */
#define ATTR_WIDE_MTIME 0x400u /* EXTRA_MTIME: seconds, as i64 */
#define ATTR_HOLES 0x800u      /* the file has holes */

enum disk_extra_kind {
    EXTRA_NLINK = 1,
    EXTRA_XATTRS = 2,
    EXTRA_MTIME = 3,
};

struct disk_extra {
    uint64_t value;
    uint32_t position;
    uint32_t kind;
};
static_assert(sizeof(struct disk_extra) == 16, "extra");

struct disk_block {
    uint64_t source_offset;
    uint32_t packed;
    uint32_t block_bytes;
};
static_assert(sizeof(struct disk_block) == 16, "block");

struct disk_point {
    uint64_t sum;
    uint64_t window;
    uint32_t block;
    uint32_t window_packed;
    uint32_t window_bytes;
    uint16_t first_bit;
    uint16_t last_bits;
};
static_assert(sizeof(struct disk_point) == 32, "point");

#define BLOCK_CODEC_SHIFT 56 /* in source_offset */

/* The size of a section's records. */
static inline uint32_t disk_record_bytes(enum disk_section_id id)
{
    static const uint8_t bytes[SECTION_IDS] = {
        [SECTION_ENTRIES] = sizeof(struct disk_entry),
        [SECTION_NAMES] = 1,
        [SECTION_ATTRS] = sizeof(struct disk_attr),
        [SECTION_DIRS] = 4,
        [SECTION_EXTENTS] = 8,
        [SECTION_BLOCKS] = sizeof(struct disk_block),
        [SECTION_EXTRA] = sizeof(struct disk_extra),
        [SECTION_STRINGS] = 1,
        [SECTION_XATTRS] = 8,
        [SECTION_SUMS] = 8,
        [SECTION_WINDOW_SUMS] = 8,
        [SECTION_LEFT_OUT] = 8,
        [SECTION_RECIPE] = 1,
        [SECTION_POINTS] = sizeof(struct disk_point),
        [SECTION_WINDOWS] = 1,
        [SECTION_PIECES] = POINT_PIECES * 4,
        [SECTION_XATTRS_LEFT_OUT] = 8,
        [SECTION_LEFT_OUT_KINDS] = 8,
    };
    return bytes[id];
}

#define DISK_LEFT_OUT_TOLD 100u /* nobody reads more of a million */
#define DISK_LEFT_OUT_HEAD 16u  /* the numbers of its record; the texts after them take: */

static inline uint64_t disk_left_out_texts(uint32_t member_len, uint32_t what_len)
{
    return ((uint64_t)member_len + what_len + 7) & ~UINT64_C(7);
}

#define RANGE_PACKED (UINT64_C(1) << 63) /* in a range's `source` */

#endif
