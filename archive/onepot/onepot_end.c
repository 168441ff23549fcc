/*
 * The lost ends of onepot archives. One whose footer is cut off is taken for a plain tar; the
 * remains of its index show that it was more.
 */
#include "onepot_format.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include <xxhash.h>

#include "backend.h"
#include "bytes.h"
#include "index_format.h"
#include "numbers.h"
#include "writer.h"

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
    return size >= ONEPOT_FOOTER_BYTES &&
           source_read(end->source, magic, sizeof(magic), size - ONEPOT_FOOTER_BYTES) == 0 &&
           memcmp(magic, ONEPOT_FOOTER_MAGIC, sizeof(magic)) == 0;
}

int onepot_check_end(const struct archive_end *end)
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

int onepot_check_lost_footer(const struct source *source, struct fault *fault)
{
    uint8_t footer[ONEPOT_FOOTER_BYTES];
    uint64_t size = source_size(source);
    if (size < sizeof(footer) ||
        source_read(source, footer, sizeof(footer), size - sizeof(footer)) < 0)
        return 0;
    memcpy(footer, ONEPOT_FOOTER_MAGIC, 8);
    if (bytes_le64(footer + sizeof(footer) - 8) != XXH3_64bits(footer, sizeof(footer) - 8))
        return 0;
    return fault_set(fault, -EUCLEAN, NULL, size - sizeof(footer), "footer is damaged");
}
