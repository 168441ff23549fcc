/*
 * The index, reading side: open an image, and check what must be checked at once.
 *
 * Opening maps the image and checks header, section table and the table of page sums; it
 * touches one page of the entries. It allocates a byte for each page of 64 KB and a bit for
 * each entry, all zero, so that memory is used only where the index is.
 *
 * All checks assume bytes that don't change. A file that other users may write to can change
 * between a check and the use, so its image is first read into memory of this process. So is
 * an image on a network, which is never mapped.
 */
#include "index.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "checksum.h"
#include "cleanup.h"
#include "index_private.h"
#include "numbers.h"
#include "write_at.h"

/* An image of so few bytes is read: that takes half as long, and a union opens thousands. */
#define READ_BYTES (16u << 10)

static int image_damaged(struct fault *fault, uint64_t offset, const char *what)
{
    return fault_set(fault, -EUCLEAN, NULL, offset, "the index is damaged: %s", what);
}

/* Map the image, if nobody else can change it. False: it has to be read. */
static bool image_map(struct index *index, const struct source *source, uint64_t offset,
                      uint64_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const struct source *file = source_at(source, &offset);
    bool is_in_one = len <= source_size(file) - offset; /* not in several files */
    offset += source_start(file);
    if (!is_in_one || offset % sizeof(uint64_t) || !source_is_local(source) ||
        !source_is_ours(source) || page > DISK_PAGE_BYTES)
        return false;
    size_t skip = (size_t)(offset & (page - 1)), bytes = len + skip;
    void *map =
        mmap(NULL, bytes, PROT_READ, MAP_SHARED, source_fd(file), (off_t)(offset - skip));
    if (map == MAP_FAILED)
        return false;
    index->guard = lost_pages_guard(map, bytes);
    if (!index->guard) {
        munmap(map, bytes);
        return false;
    }
    index->map = map;
    index->map_bytes = bytes;
    index->image = (const uint8_t *)map + skip;
    return true;
}

/* Read the image into memory that no other process can change. */
static int image_read(struct index *index, const struct source *source, uint64_t offset,
                      uint64_t len)
{
    index->copy = malloc(len);
    if (!index->copy)
        return -ENOMEM;
    index->image = index->copy;
    return source_read(source, index->copy, len, offset);
}

static void image_decode_info(const struct disk_header *h, struct index_info *info)
{
    uint32_t features = le32toh(h->features);
    *info = (struct index_info){
        .format = le32toh(h->format),
        .codec = (enum codec)le32toh(h->codec),
        .codecs = le16toh(h->codecs),
        .sum_kind = (enum sum_kind)le16toh(h->sum_kind),
        .block_bytes = le32toh(h->block_bytes),
        .entries = le32toh(h->entries),
        .files = le64toh(h->files),
        .directories = le64toh(h->directories),
        .inodes = le64toh(h->inodes),
        .total_bytes = le64toh(h->total_bytes),
        .data_bytes = le64toh(h->data_bytes),
        .name_bytes = le64toh(h->name_bytes),
        .image_bytes = le64toh(h->image_bytes),
        .has_xattrs = features & DISK_HAS_XATTRS,
        .has_holes = features & DISK_HAS_HOLES,
        .has_hardlinks = features & DISK_HAS_HARDLINKS,
        .has_joined = features & DISK_HAS_JOINED,
        .has_sums = features & DISK_HAS_SUMS,
        .archive_bytes = le64toh(h->archive_bytes),
        .archive_mtime_sec = (int64_t)le64toh((uint64_t)h->archive_mtime_sec),
        .archive_mtime_nsec = le32toh(h->archive_mtime_nsec),
        .archive_fingerprint = le64toh(h->archive_fingerprint),
        .end_marker_offset = le64toh(h->end_marker_offset),
        .digest_kind = (enum digest_kind)le32toh(h->digest_kind),
    };
    memcpy(info->identifier, h->identifier, sizeof(info->identifier));
    memcpy(info->digest, h->digest, sizeof(info->digest));
    memcpy(info->made_by, h->made_by, sizeof(h->made_by));
}

/*
 * Check the first bytes of the image: enough to know the lengths of header and table, and that
 * they are as written. Nothing is copied except the field of the sum.
 */
static int image_check_header(const uint8_t *image, uint64_t offset, uint64_t len,
                              struct fault *fault)
{
    struct disk_header h;
    if (len < sizeof(h))
        return image_damaged(fault, offset, "it is too short");
    memcpy(&h, image, sizeof(h));
    if (memcmp(h.magic, DISK_MAGIC, sizeof(h.magic)) != 0)
        return image_damaged(fault, offset, "it does not begin as an index does");

    uint32_t header_bytes = le32toh(h.header_bytes);
    if (header_bytes < sizeof(h) || header_bytes > DISK_HEADER_MAX || header_bytes > len)
        return image_damaged(fault, offset, "its header has a wrong length");
    auto_free uint8_t *copy = malloc(header_bytes);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, image, header_bytes);
    memset(copy + offsetof(struct disk_header, header_sum), 0, sizeof(h.header_sum));
    if (XXH3_64bits(copy, header_bytes) != le64toh(h.header_sum))
        return image_damaged(fault, offset, "its header does not have the sum it should have");

    if (le32toh(h.version) != DISK_VERSION || (le64toh(h.incompatible) & ~DISK_NEEDS_KNOWN))
        return fault_set_advised(fault, -ENOTSUP, NULL, offset,
                                 "use that version, or pack the archive anew with this one",
                                 "the index was made by a later onepot");
    if (le64toh(h.image_bytes) > len)
        return image_damaged(fault, offset, "it is cut off");
    return 0;
}

/* Check that area and page sums lie in the image, and that the sums are intact. */
static int image_check_area(struct index *index, const struct disk_header *h,
                            const uint8_t *image, uint64_t offset, struct fault *fault)
{
    uint64_t image_bytes = le64toh(h->image_bytes);
    uint64_t area_offset = le64toh(h->area_offset);
    uint64_t area_bytes = le64toh(h->area_bytes);
    uint64_t sums_offset = le64toh(h->sums_offset);
    if (le32toh(h->page_bytes) != DISK_PAGE_BYTES || area_offset % 8 || sums_offset % 8 ||
        area_offset > image_bytes || area_bytes > image_bytes - area_offset || area_bytes == 0)
        return image_damaged(fault, offset, "its parts do not fit in it");

    uint64_t pages = (area_bytes - 1) / DISK_PAGE_BYTES + 1;
    if (sums_offset > image_bytes || pages * 8 > image_bytes - sums_offset)
        return image_damaged(fault, offset, "its page sums do not fit in it");
    if (XXH3_64bits(image + sums_offset, pages * 8) != le64toh(h->sums_sum))
        return image_damaged(fault, offset + sums_offset, "its page sums are not sound");

    index->area = image + area_offset;
    index->area_bytes = area_bytes;
    index->page_sums = (const uint64_t *)(const void *)(image + sums_offset);
    index->page_good = calloc(pages, 1);
    return index->page_good ? 0 : -ENOMEM;
}

static int image_read_sections(struct index *index, const struct disk_header *h,
                               const uint8_t *image, uint64_t offset, struct fault *fault)
{
    uint64_t table = le32toh(h->sections_offset);
    uint64_t count = le32toh(h->sections);
    uint64_t area_offset = le64toh(h->area_offset);
    uint64_t header_bytes = le32toh(h->header_bytes);
    if (table % 8 || table > header_bytes ||
        count * sizeof(struct disk_section) > header_bytes - table)
        return image_damaged(fault, offset, "its section table does not fit in its header");

    for (uint64_t i = 0; i < count; i++) {
        struct disk_section s;
        memcpy(&s, image + table + i * sizeof(s), sizeof(s));
        uint32_t id = le32toh(s.id);
        uint64_t at = le64toh(s.offset);
        uint64_t length = le64toh(s.length);
        uint32_t record_bytes = id < SECTION_IDS ? disk_record_bytes(id) : 0;
        if (record_bytes == 0) /* of a later version, or of none */
            continue;
        if (index->sections[id].bytes || le32toh(s.record_bytes) != record_bytes ||
            length % record_bytes || at % 8 || at < area_offset ||
            at - area_offset > index->area_bytes ||
            length > index->area_bytes - (at - area_offset))
            return image_damaged(fault, offset, "a section does not lie where sections may");
        index->sections[id] = (struct index_section){
            .bytes = image + at,
            .area_offset = at - area_offset,
            .length = length,
        };
    }
    return 0;
}

static int image_count_records(struct index *index, const struct disk_header *h,
                               uint64_t offset, struct fault *fault)
{
    const struct index_section *s = index->sections;
    uint64_t entries = le32toh(h->entries);
    uint64_t blocks = s[SECTION_BLOCKS].length / sizeof(struct disk_block);
    uint64_t dirs = s[SECTION_DIRS].length / 4;
    uint64_t attrs = s[SECTION_ATTRS].length / sizeof(struct disk_attr);
    if (entries == 0 || s[SECTION_ENTRIES].length != entries * sizeof(struct disk_entry) ||
        dirs == 0 || dirs > entries || attrs == 0 || attrs > DISK_ATTR_LIMIT ||
        blocks > UINT32_MAX || s[SECTION_NAMES].length >= DISK_NAME_LIMIT ||
        (s[SECTION_SUMS].bytes && s[SECTION_SUMS].length != entries * 8) ||
        (s[SECTION_PIECES].bytes && s[SECTION_PIECES].length / POINT_PIECES_BYTES !=
                                        s[SECTION_POINTS].length / sizeof(struct disk_point)))
        return image_damaged(fault, offset, "the sizes of its sections contradict each other");

    index->dirs = (uint32_t)dirs;
    index->blocks = (uint32_t)blocks;
    index->extras = s[SECTION_EXTRA].length / sizeof(struct disk_extra);
    index->points = s[SECTION_POINTS].length / sizeof(struct disk_point);
    index->info.has_some_sums = index->info.has_sums && s[SECTION_SUMS].bytes &&
                                checksum_available(index->info.sum_kind);
    index->info.has_sums = index->info.has_some_sums && index->info.sum_kind != SUM_MIXED;
    index->dir_good = calloc(entries / 8 + 1, 1);
    return index->dir_good ? 0 : -ENOMEM;
}

static int image_check_root(const struct index *index, uint64_t offset, struct fault *fault)
{
    struct index_entry root;
    if (index_entry(index, INDEX_ROOT, &root) < 0)
        return image_damaged(fault, offset, "its first entry can't be read");
    if (!S_ISDIR(root.mode))
        return image_damaged(fault, offset, "its first entry is not a directory");
    return 0;
}

static int image_open(struct index *index, uint64_t offset, uint64_t len, struct fault *fault)
{
    const uint8_t *image = index->image;
    int r = image_check_header(image, offset, len, fault);
    if (r < 0)
        return r;
    struct disk_header h;
    memcpy(&h, image, sizeof(h));
    index->offset = offset;
    image_decode_info(&h, &index->info);
    r = image_check_area(index, &h, image, offset, fault);
    if (r == 0)
        r = image_read_sections(index, &h, image, offset, fault);
    if (r == 0)
        r = image_count_records(index, &h, offset, fault);
    return r < 0 ? r : image_check_root(index, offset, fault);
}

int index_open(struct source *source, uint64_t offset, uint64_t len, struct fault *fault,
               struct index **ret_index)
{
    uint64_t size = source_size(source);
    if (offset % 8 || len == 0 || offset > size || len > size - offset)
        return image_damaged(fault, offset, "it does not lie within its file");
    struct index *index = calloc(1, sizeof(*index));
    if (!index)
        return -ENOMEM;
    int r = -ENOMEM;
    if (len <= SIZE_MAX - DISK_PAGE_BYTES) /* a system of 32 bits can't address more */
        r = len > READ_BYTES && image_map(index, source, offset, len)
                ? 0
                : image_read(index, source, offset, len);
    if (r < 0)
        fault_set(fault, r, NULL, offset, "the index can't be read: %s", fault_errno(r));
    else
        r = image_open(index, offset, len, fault);
    if (r < 0) {
        index_close(index);
        return r;
    }
    *ret_index = index;
    return 0;
}

/* Write the header anew, with the digest of index_set_digest. */
static int index_write_digest(const struct index *index, int fd)
{
    struct disk_header h;
    memcpy(&h, index->image, sizeof(h));
    size_t len = le32toh(h.header_bytes);
    auto_free uint8_t *header = malloc(len);
    if (!header)
        return -ENOMEM;
    memcpy(header, index->image, len);
    h.digest_kind = htole32(index->info.digest_kind);
    memcpy(h.digest, index->info.digest, sizeof(h.digest));
    h.header_sum = 0;
    memcpy(header, &h, sizeof(h));
    h.header_sum = htole64(XXH3_64bits(header, len));
    memcpy(header, &h, sizeof(h));
    return write_at(fd, header, len, 0);
}

int index_write(const struct index *index, int fd)
{
    const struct disk_header *h = (const void *)index->image;
    int r = write_at(fd, index->image, index->info.image_bytes, 0);
    bool has_digest = le32toh(h->digest_kind) == index->info.digest_kind;
    return r == 0 && !has_digest ? index_write_digest(index, fd) : r;
}

#ifdef __SANITIZE_THREAD__
/* ThreadSanitizer takes mmap for a write. The mapped bytes do not change by it. */
const char *__tsan_default_suppressions(void) __attribute__((visibility("default")));
const char *__tsan_default_suppressions(void)
{
    return "race:^index_move$\n";
}
#endif

int index_move(const struct index *index, int fd, uint64_t offset)
{
    uint64_t skip = (uint64_t)(index->image - (const uint8_t *)index->map);
    struct disk_header there;
    if (!index->guard || offset < skip || (offset - skip) % (uint64_t)sysconf(_SC_PAGESIZE) ||
        read_at(fd, &there, sizeof(there), offset) < 0 ||
        le64toh(there.image_bytes) != index->info.image_bytes ||
        memcmp(there.identifier, index->info.identifier, sizeof(there.identifier)) != 0)
        return -ENOTSUP;
    /* At the same address, so that readers see the same bytes all the time. */
    return mmap(index->map, index->map_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd,
                (off_t)(offset - skip)) == MAP_FAILED
               ? -errno
               : 0;
}

uint64_t index_offset(const struct index *index)
{
    return index->offset;
}

void index_close(struct index *index)
{
    if (!index)
        return;
    lost_pages_release(index->guard);
    if (index->map)
        munmap(index->map, index->map_bytes);
    free(index->copy);
    free((void *)index->page_good);
    free((void *)index->dir_good);
    free(index);
}

const struct index_info *index_info(const struct index *index)
{
    return &index->info;
}

bool index_is_lost(const struct index *index)
{
    return lost_pages_any(index->guard);
}

/* ---- the whole of it ---- */

int index_check(const struct index *index, struct fault *fault)
{
    struct disk_header h;
    memcpy(&h, index->image, sizeof(h));
    uint64_t area_offset = le64toh(h.area_offset), sums_offset = le64toh(h.sums_offset);
    uint64_t pages = (index->area_bytes - 1) / DISK_PAGE_BYTES + 1;
    int r = image_check_header(index->image, index->offset, le64toh(h.image_bytes), fault);
    if (r == 0 && XXH3_64bits(index->page_sums, pages * 8) != le64toh(h.sums_sum))
        r = image_damaged(fault, index->offset + sums_offset, "its page sums are not sound");
    for (uint64_t page = 0; r == 0 && page < pages; page++)
        if (!index_check_page(index, page))
            r = image_damaged(fault, index->offset + area_offset + (page << DISK_PAGE_BITS),
                              "a page of it does not have the sum it should have");
    const uint64_t gaps[][2] = {{le32toh(h.header_bytes), area_offset},
                                {area_offset + index->area_bytes, sums_offset},
                                {sums_offset + pages * 8, le64toh(h.image_bytes)}};
    for (size_t i = 0; i < 3; i++)
        for (uint64_t at = gaps[i][0]; r == 0 && at < gaps[i][1]; at++)
            if (index->image[at])
                r = image_damaged(fault, index->offset + at,
                                  "there is something between its parts");
    return r;
}
