/*
 * The file's own statement of its length decides where the archive begins, so that no magic is
 * looked for in the middle of other data: a SIF has a table, a program its sections. A script
 * ends where its text ends: makers of installers append the archive to the last line. So each
 * line may begin the archive, up to the first line with a NUL byte, which is no text; padding
 * of NULs may lie between. Formats with a sure magic or a sum are taken there.
 *
 * Formats that have a directory at their end (onepot, zip) may be found by that, but only
 * behind a script, a program, or --offset. Behind anything else such an end may be another
 * file's: a tar's last member, say, where the tar's beginning is damaged.
 */
#include "container.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "bytes.h"
#include "cleanup.h"
#include "numbers.h"
#include "unknown_format.h"
#include "fault.h"
#include "source.h"

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

static bool sif_probe(const uint8_t *head, size_t head_len)
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

/*
 * Where the SquashFS image lies: the primary system's; else a system's; else one of data. The
 * first of several. -EUCLEAN, -ENOTSUP (it has another filesystem, or none), or a read error,
 * each with a fault.
 */
static int sif_find_image(const struct source *source, struct fault *fault,
                          uint64_t *ret_offset, uint64_t *ret_length)
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

#define SCRIPT_BYTES (1u << 20) /* of a script before its archive */
#define BEGIN_BYTES 4096u       /* enough to know a format or a container by */

bool front_next(const struct front *front, size_t *cursor, struct front_place *ret_place)
{
    if (*cursor >= front->len)
        return false;
    const uint8_t *at = front->bytes + *cursor, *end = front->bytes + front->len;
    if (front->is_script) {
        const uint8_t *line = memchr(at, '\n', (size_t)(end - at));
        if (!line || memchr(at, '\0', (size_t)(line - at)))
            return false;
        at = line + 1;
        *cursor = (size_t)(at - front->bytes);
        while (at < end && *at == '\0')
            at++;
    } else {
        *cursor = front->len;
    }
    size_t skipped = (size_t)(at - front->bytes);
    *ret_place = (struct front_place){at, front->len - skipped, front->offset + skipped};
    return true;
}

/* The end of what an ELF file's own headers describe. 0: they are damaged. */
static uint64_t elf_end(const struct source *source, const uint8_t *head, size_t head_len)
{
    enum { ELF_32 = 1, ELF_64 = 2, LITTLE = 1 };
    uint8_t last[64];
    uint64_t table, end, section_end;
    if (head_len < 64 || (head[4] != ELF_32 && head[4] != ELF_64) || head[5] != LITTLE)
        return 0;
    bool is_64 = head[4] == ELF_64;
    uint32_t each = bytes_le16(head + (is_64 ? 58 : 46));
    uint32_t count = bytes_le16(head + (is_64 ? 60 : 48));
    table = is_64 ? bytes_le64(head + 40) : bytes_le32(head + 32);
    if (each != (is_64 ? 64 : 40) || count == 0 ||
        __builtin_add_overflow(table, (uint64_t)each * count, &end) ||
        source_read(source, last, each, end - each) < 0)
        return 0;
    uint64_t at = is_64 ? bytes_le64(last + 24) : bytes_le32(last + 16);
    uint64_t bytes = is_64 ? bytes_le64(last + 32) : bytes_le32(last + 20);
    /* The last section may lie behind the table. */
    return __builtin_add_overflow(at, bytes, &section_end) ? 0 : max_u64(end, section_end);
}

static bool container_begins(const uint8_t *head, size_t head_len, const char *magic)
{
    size_t len = strlen(magic);
    return head_len >= len && memcmp(head, magic, len) == 0;
}

/*
 * Read what may hold the archive's beginning. 0: the file is neither a script nor a program.
 * Nothing is read of a program that does not tell its end.
 */
static int container_read_front(const struct source *source, const uint8_t *head,
                                size_t head_len, struct front *front, uint8_t **ret_bytes)
{
    uint64_t size = source_size(source), most = BEGIN_BYTES;
    bool is_elf = container_begins(head, head_len, "\177ELF");
    front->is_script = container_begins(head, head_len, "#!");
    if ((!front->is_script && !is_elf && !container_begins(head, head_len, "MZ")) ||
        unknown_format_is_tar(head, head_len) || backend_of_head(source, head, head_len))
        return 0;
    if (is_elf)
        front->offset = elf_end(source, head, head_len);
    if (front->is_script)
        most += SCRIPT_BYTES;
    else if (front->offset == 0 || front->offset >= size)
        return 1;
    front->len = min_u64(size - front->offset, most);
    *ret_bytes = malloc(front->len);
    if (!*ret_bytes)
        return -ENOMEM;
    front->bytes = *ret_bytes;
    int r = source_read(source, *ret_bytes, front->len, front->offset);
    return r < 0 ? r : 1;
}

int front_find(const struct front *front, const struct backend **ret_backend,
               uint64_t *ret_offset)
{
    int r = 0;
    for (size_t i = 0; r == 0 && backend_registry[i]; i++) {
        *ret_backend = backend_registry[i];
        if (backend_registry[i]->find_behind)
            r = backend_registry[i]->find_behind(front, ret_offset);
    }
    return r;
}

/*
 * 1: a tar's header lies right before `offset`, so that the archive there is a member. The
 * tar's own beginning is damaged then, and only its first member's name looks like a program's
 * magic.
 */
static int container_is_member(const struct source *source, uint64_t offset)
{
    uint8_t header[UNKNOWN_TAR_BYTES];
    if (offset < sizeof(header))
        return 0;
    int r = source_read(source, header, sizeof(header), offset - sizeof(header));
    return r < 0 ? r : unknown_format_is_tar_header(header);
}

static int container_find_behind(const struct source *source, const uint8_t *head,
                                 size_t head_len, struct container *ret_container)
{
    struct front front = {.source = source};
    const struct backend *backend;
    auto_free uint8_t *bytes = NULL;
    uint64_t offset;
    int r = container_read_front(source, head, head_len, &front, &bytes);
    if (r == 1)
        r = front_find(&front, &backend, &offset);
    int is_member = r == 1 ? container_is_member(source, offset) : 0;
    if (r == 1 && offset > 0 && is_member == 0)
        *ret_container = (struct container){front.is_script ? "a script" : "a program", offset,
                                            source_size(source) - offset};
    return r < 0 ? r : is_member < 0 ? is_member : 0;
}

int container_find(const struct source *source, struct fault *fault,
                   struct container *ret_container)
{
    uint8_t head[BEGIN_BYTES];
    size_t len = min_u64(source_size(source), sizeof(head));
    struct container found = {0};
    int r = source_read(source, head, len, 0);
    if (r == 0 && sif_probe(head, len)) {
        r = sif_find_image(source, fault, &found.offset, &found.length);
        found.name = "a SIF";
    } else if (r == 0) {
        r = container_find_behind(source, head, len, &found);
    }
    if (r < 0)
        return r == -ENOMEM || (fault && fault->err) ? r : fault_set_read(fault, r, NULL, 0);
    *ret_container = found;
    return 0;
}
