/*
 * The layout, from the specification of SIF 1. All numbers are little-endian, signed, and
 * without padding between them.
 *
 *     header, 128 bytes                         descriptor, 585 bytes
 *       0  32  a line for the shell               0    4  kind of object (0x4004: partition)
 *      32  10  "SIF_MAGIC\0"                      4    1  1: in use
 *      42   3  version, "01\0"                    5    4  its number
 *      45   3  architecture                       9    4  its group
 *      48  16  UUID                              13    4  the object that it belongs to
 *      64   8  time of creation                  17    8  offset of the object in the file
 *      72   8  time of change                    25    8  its length
 *      80   8  descriptors that are free         33    8  the same, with padding
 *      88   8  descriptors in all                41   16  times of creation and change
 *      96   8  offset of the first               57   16  user, group
 *     104   8  bytes of all                      73  128  name
 *     112   8  offset of the objects            201  384  by kind; of a partition:
 *     120   8  bytes of them                              201  4  filesystem (1: SquashFS)
 *                                                         205  4  use (1: system, 2: primary
 *                                                                 system, 3: data, 4: overlay)
 *
 * Programs write 48 descriptors. A table may have more, but not so many that reading it takes
 * long.
 */
#include "sif.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "bytes.h"

#define HEADER_BYTES 128u
#define MAGIC_AT 32u
#define VERSION_AT 42u
#define TOTAL_AT 88u
#define TABLE_AT 96u
#define DESCRIPTOR_BYTES 585u
#define DESCRIPTORS_MAX 4096u

enum {
    KIND_PARTITION = 0x4004,
    FILESYSTEM_SQUASHFS = 1,
    FILESYSTEM_ENCRYPTED = 5,
};

/* A partition, and how well it suits. */
struct partition {
    uint64_t offset, length;
    uint32_t filesystem;
    unsigned rank; /* 0: not at all */
};

bool sif_probe(const uint8_t *head, size_t head_len)
{
    static const char magic[10] = "SIF_MAGIC";
    return head_len >= HEADER_BYTES && memcmp(head + MAGIC_AT, magic, sizeof(magic)) == 0;
}

static unsigned sif_rank(uint32_t use)
{
    static const unsigned ranks[] = {[1] = 2, [2] = 3, [3] = 1};
    return use < sizeof(ranks) / sizeof(ranks[0]) ? ranks[use] : 0;
}

/* False: it describes no partition. */
static bool sif_read_descriptor(const uint8_t *d, struct partition *ret_partition)
{
    if (bytes_le32(d) != KIND_PARTITION || d[4] != 1)
        return false;
    *ret_partition = (struct partition){.offset = bytes_le64(d + 17),
                                        .length = bytes_le64(d + 25),
                                        .filesystem = bytes_le32(d + 201),
                                        .rank = sif_rank(bytes_le32(d + 205))};
    return true;
}

/* The table's place: 0, or -EUCLEAN. */
static int sif_read_header(const struct source *source, struct fault *fault,
                           uint64_t *ret_table, uint64_t *ret_count)
{
    uint8_t header[HEADER_BYTES];
    uint64_t size = source_size(source);
    int r = source_read_fault(source, header, sizeof(header), 0, fault);
    if (r < 0)
        return r;
    if (memcmp(header + VERSION_AT, "01", 2) != 0)
        return fault_set(fault, -ENOTSUP, NULL, VERSION_AT,
                         "is a SIF of another version than 1");
    *ret_count = bytes_le64(header + TOTAL_AT);
    *ret_table = bytes_le64(header + TABLE_AT);
    if (*ret_count > DESCRIPTORS_MAX)
        return fault_set(fault, -EUCLEAN, NULL, TOTAL_AT,
                         "claims a table of %" PRIu64 " descriptors: damaged SIF", *ret_count);
    if (*ret_table > size || *ret_count * DESCRIPTOR_BYTES > size - *ret_table)
        return fault_set(fault, -EUCLEAN, NULL, TABLE_AT,
                         "has its descriptors past its end: damaged or truncated SIF");
    return 0;
}

/* The best partition with SquashFS; `ret_other` is any with another filesystem. */
static int sif_search(const struct source *source, uint64_t table, uint64_t count,
                      struct fault *fault, struct partition *ret_best,
                      struct partition *ret_other, uint64_t *ret_at)
{
    for (uint64_t i = 0, at = table; i < count; i++, at += DESCRIPTOR_BYTES) {
        uint8_t bytes[DESCRIPTOR_BYTES];
        struct partition p;
        int r = source_read_fault(source, bytes, sizeof(bytes), at, fault);
        if (r < 0)
            return r;
        if (!sif_read_descriptor(bytes, &p))
            continue;
        if (p.filesystem != FILESYSTEM_SQUASHFS) {
            *ret_other = p;
        } else if (p.rank > ret_best->rank) {
            *ret_best = p;
            *ret_at = at;
        }
    }
    return 0;
}

static int sif_without_image(const struct partition *other, struct fault *fault)
{
    if (other->filesystem == FILESYSTEM_ENCRYPTED)
        return fault_set_advised(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                                 "build it without encryption",
                                 "is a container whose image is encrypted");
    return fault_set_advised(fault, -ENOTSUP, NULL, FAULT_NO_OFFSET,
                             "'apptainer sif list' tells what it has",
                             "is a container (SIF) without a SquashFS image");
}

int sif_find_image(const struct source *source, struct fault *fault, uint64_t *ret_offset,
                   uint64_t *ret_length)
{
    struct partition best = {0}, other = {0};
    uint64_t table = 0, count = 0, at = 0, size = source_size(source);
    int r = sif_read_header(source, fault, &table, &count);
    if (r == 0)
        r = sif_search(source, table, count, fault, &best, &other, &at);
    if (r < 0)
        return r;
    if (best.rank == 0)
        return sif_without_image(&other, fault);
    if (best.offset > size || best.length > size - best.offset)
        return fault_set_advised(fault, -EUCLEAN, NULL, at, "copy it again",
                                 "has its image past its end (%" PRIu64 " bytes at %" PRIu64
                                 "): damaged or truncated SIF",
                                 best.length, best.offset);
    *ret_offset = best.offset;
    *ret_length = best.length;
    return 0;
}
