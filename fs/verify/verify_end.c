/*
 * The ends of archives: nothing before the end shows that something was cut off there.
 */
#include "verify_private.h"

#include <endian.h>
#include <errno.h>
#include <string.h>

#include <xxhash.h>

#include "backend.h"
#include "index_format.h"
#include "onepot_format.h"
#include "writer.h"

static void report_lost_index(struct verification *v, uint64_t at)
{
    struct fault fault = {0};
    fault_set(&fault, -EUCLEAN, NULL, at,
              "there is an index behind the tar, but no footer: its end was cut off");
    fault_advise(&fault, "copy it again; until then it can be used as a tar");
    verify_report(v, &fault);
}

/*
 * Find the index of an onepot archive whose footer is lost. Without the footer it is a plain
 * tar, but not the archive that it was. The index lies after the tar, at a multiple of tar's
 * record.
 */
static void check_lost_index(struct verification *v)
{
    uint64_t size = source_size(v->pot->source);
    uint64_t at = v->data_end + ONEPOT_RECORD_BYTES - 1;
    char magic[8];
    for (at -= at % ONEPOT_RECORD_BYTES;
         at < size && size - at > sizeof(magic) && !verify_stopped(v);
         at += ONEPOT_RECORD_BYTES) {
        if (source_read(v->pot->source, magic, sizeof(magic), at) < 0 ||
            memcmp(magic, "onepotIX", sizeof(magic)) != 0)
            continue;
        report_lost_index(v, at);
        return;
    }
}

/*
 * The same for a tar in frames, which any program takes for whole if it was cut off between two
 * frames. The index records where its own frame begins, which is right before it.
 */
static int check_lost_frames(struct verification *v, const struct source *source, uint64_t at,
                             uint64_t size)
{
    uint8_t bytes[64u << 10];
    const size_t head = sizeof(struct disk_header);
    at = (at + 7) & ~UINT64_C(7);
    while (at < size && size - at >= head && !verify_stopped(v)) {
        size_t n = size - at < sizeof(bytes) ? (size_t)(size - at) : sizeof(bytes);
        int r = source_read(source, bytes, n, at);
        if (r < 0)
            return r;
        for (size_t i = 0; i + head <= n; i += 8) {
            struct disk_header header;
            memcpy(&header, bytes + i, head);
            uint64_t begin = le64toh(header.archive_bytes);
            if (memcmp(header.magic, DISK_MAGIC, sizeof(header.magic)) != 0 ||
                begin > at + i - 8 || at + i - begin >= 16)
                continue;
            report_lost_index(v, at + i);
            return 0;
        }
        at += (n - head) / 8 * 8 + 8;
    }
    return 0;
}

/* A small one is a single frame, and counts as a stream: its index is near the start. */
static int check_lost_small(struct verification *v)
{
    struct source *packed;
    if (source_open(v->pot->path, NULL, &packed) < 0)
        return 0; /* it has disappeared meanwhile */
    uint64_t size = source_size(packed), most = 2 * WRITER_BLOCK_MAX;
    int r = check_lost_frames(v, packed, 0, size < most ? size : most);
    source_close(packed);
    return r;
}

/*
 * Is there a block of zeros after the last data? If not, the tar may have been cut off between
 * two members: tar programs take that for its end.
 */
static int has_end_marker(struct verification *v, bool *ret_has)
{
    uint8_t blocks[64][512];
    uint64_t size = source_size(v->pot->source), at = (v->data_end + 511) & ~UINT64_C(511);
    *ret_has = false;
    while (!*ret_has && at < size && size - at >= sizeof(blocks[0]) && !verify_stopped(v)) {
        size_t n = size - at < sizeof(blocks) ? (size_t)(size - at) : sizeof(blocks);
        int r = source_read(v->pot->source, blocks, n, at);
        if (r < 0)
            return r;
        for (size_t i = 0; i < n / sizeof(blocks[0]) && !*ret_has; i++)
            *ret_has = blocks[i][0] == 0 &&
                       memcmp(blocks[i], blocks[i] + 1, sizeof(blocks[0]) - 1) == 0;
        at += n;
    }
    return 0;
}

static int check_end_marker(struct verification *v)
{
    bool has_marker;
    int r = has_end_marker(v, &has_marker);
    if (r < 0 || has_marker)
        return r;
    struct fault fault = {0};
    fault_set(&fault, -EUCLEAN, NULL, source_size(v->pot->source),
              "it has no end-of-archive marker: maybe it was cut off, and members are missing");
    fault_advise(&fault, "compare it with its original, or copy it again");
    verify_report(v, &fault);
    return 0;
}

int verify_lost_end(struct verification *v)
{
    const struct index_info *info = index_info(v->index);
    if (info->format != FORMAT_TAR || !v->options->trailer_is_good)
        return 0;
    if (v->pot->compression)
        return strcmp(v->pot->compression, "zstd") == 0 ? check_lost_small(v) : 0;
    if (info->codec != CODEC_NONE)
        return info->codec == CODEC_ZSTD ? check_lost_frames(v, v->pot->source, v->data_end,
                                                             source_size(v->pot->source))
                                         : 0;
    check_lost_index(v);
    return check_end_marker(v);
}

/* A footer whose only fault is that it can't be recognised as one. */
static int check_lost_footer(const struct source *source, struct fault *fault)
{
    uint8_t footer[512];
    uint64_t size = source_size(source), sum;
    if (size < sizeof(footer) ||
        source_read(source, footer, sizeof(footer), size - sizeof(footer)) < 0)
        return 0;
    memcpy(footer, "onepotFT", 8);
    memcpy(&sum, footer + sizeof(footer) - 8, 8);
    if (le64toh(sum) != XXH3_64bits(footer, sizeof(footer) - 8))
        return 0;
    return fault_set(fault, -EUCLEAN, NULL, size - sizeof(footer), "footer is damaged");
}

int verify_trailer(const char *path, struct fault *fault)
{
    struct source *source;
    const struct backend *backend;
    struct embedded_index where;
    int r = source_open(path, NULL, &source);
    if (r < 0)
        return 0; /* pot_open reports that */
    struct index *index = NULL;
    r = backend_find(source, NULL, &backend);
    if (r == 0)
        r = backend->find ? backend->find(source, fault, &where) : -ENOENT;
    if (r == 0)
        r = index_open(source, where.offset, where.length, fault, &index);
    index_close(index);
    if (r == -ENOENT)
        r = check_lost_footer(source, fault);
    if (r == -ENOMSG)
        r = 0;
    source_close(source);
    return r < 0 ? fault_set(fault, r, NULL, FAULT_NO_OFFSET, "its trailer can't be read: %s",
                             fault_errno(r))
                 : 0;
}
