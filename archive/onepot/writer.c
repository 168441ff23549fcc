/*
 * The writer puts headers, data and padding in one stream, and collects the trailer's
 * index and sums. In a compressed archive the stream passes through the framer, which
 * cuts it into frames.
 *
 * The identifier is XXH3-128 of every member's headers, each followed by the sum of its data,
 * if any. It names the content and uses neither a time stamp nor a random number.
 */
#include "writer.h"

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

#include "onepot_format.h"
#include "output.h"
#include "writer_private.h"

static uint8_t zeros[ONEPOT_RECORD_BYTES]; /* not const, because an iovec is not */

void writer_discard(struct writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->queued; i++)
        free(w->owned[i]);
    framer_free(w->framer);
    vector_free(&w->pieces);
    builder_free(w->builder);
    XXH3_freeState(w->window_state);
    vector_free(&w->window_sums);
    XXH3_freeState(w->identifier_state);
    XXH3_freeState(w->sum_state);
    free(w);
}

/* Is it 0, for the default, or a power of two within the limits? */
static bool writer_is_power_within(uint32_t bytes, uint32_t least, uint32_t most)
{
    return !bytes || (bytes >= least && bytes <= most && !(bytes & (bytes - 1)));
}

static bool writer_is_sane(const struct writer_options *o)
{
    return (!o->zstd_level || !o->align_bytes) && o->zstd_level >= 0 &&
           o->zstd_level <= WRITER_LEVEL_MAX &&
           writer_is_power_within(o->block_bytes, WRITER_BLOCK_MIN, WRITER_BLOCK_MAX) &&
           writer_is_power_within(o->align_bytes, PAX_BLOCK_BYTES, WRITER_ALIGN_MAX);
}

int writer_new(struct output *output, const struct writer_options *options,
               struct writer **ret_writer)
{
    if (!writer_is_sane(options))
        return -EINVAL;
    struct writer *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->align_bytes = options->align_bytes;
    w->block_bytes = options->block_bytes ? options->block_bytes : WRITER_BLOCK_BYTES;
    w->identifier_state = XXH3_createState();
    w->sum_state = XXH3_createState();
    w->window_state = XXH3_createState();
    int r = w->identifier_state && w->sum_state && w->window_state ? 0 : -ENOMEM;
    if (r == 0)
        r = builder_new(&w->builder);
    if (r == 0 && options->zstd_level)
        r = framer_new(w, options, &w->framer);
    if (r < 0) {
        writer_discard(w);
        return r;
    }
    w->output = output;
    XXH3_128bits_reset(w->identifier_state);
    XXH3_64bits_reset(w->window_state);
    *ret_writer = w;
    return 0;
}

int writer_has(struct writer *w, const char *path, size_t len)
{
    return builder_has(w->builder, path, len);
}

uint64_t writer_offset(const struct writer *w)
{
    return w->tar_offset;
}

static int writer_put_zeros(struct writer *w, size_t len, struct fault *fault)
{
    w->tar_offset += len;
    return w->framer ? framer_zeros(w->framer, len, fault)
                     : writer_put(w, zeros, len, NULL, fault);
}

/* ---- members ---- */

/* Passes the places of the data, which starts at `offset`, to the builder. */
static int writer_add_extents(struct writer *w, const struct pax_member *m, uint64_t offset)
{
    w->pieces.count = 0;
    for (size_t i = 0; i < m->extent_count; i++) {
        struct builder_piece piece = {.offset = m->extents[i].offset,
                                      .length = m->extents[i].length,
                                      .source_offset = offset,
                                      .block = BUILDER_NO_BLOCK};
        if (piece.length > 0 && vector_push(&w->pieces, piece) < 0)
            return -ENOMEM;
        offset += piece.length;
    }
    return builder_set_pieces(w->builder, w->inode, w->pieces.at, w->pieces.count);
}

static int writer_add_inode(struct writer *w, const struct pax_member *m, uint64_t data_offset,
                            struct fault *fault)
{
    bool link = S_ISLNK(m->mode);
    struct builder_member b = {
        .mode = m->mode,
        .uid = m->uid,
        .gid = m->gid,
        .rdev_major = m->rdev_major,
        .rdev_minor = m->rdev_minor,
        .mtime_sec = m->mtime_sec,
        .mtime_nsec = m->mtime_nsec,
        .size_bytes = S_ISREG(m->mode) ? m->size_bytes : 0,
        .data = m->sparse || w->framer ? DATA_PIECES : DATA_STORED,
        .data_offset = w->framer ? 0 : data_offset,
        .header_offset = w->tar_offset,
        .symlink = link ? m->link : NULL,
        .symlink_len = link ? m->link_len : 0,
    };
    const char *path = m->path_len ? m->path : ".";
    size_t path_len = m->path_len ? m->path_len : 1;
    int r = builder_add(w->builder, path, path_len, &b, fault, &w->inode);
    for (size_t i = 0; r == 0 && i < m->xattr_count; i++)
        r = builder_add_xattr(w->builder, w->inode, m->xattrs[i].name, m->xattrs[i].name_len,
                              m->xattrs[i].value, m->xattrs[i].value_len);
    /* The framer knows the places of later bytes. */
    if (r == 0 && m->sparse && (!w->framer || !w->stored_bytes))
        r = writer_add_extents(w, m, data_offset);
    return r;
}

static int writer_add_to_index(struct writer *w, const struct pax_member *m, size_t header_len,
                               struct fault *fault)
{
    uint64_t data_offset = w->tar_offset + header_len, end;
    if (__builtin_add_overflow(data_offset, w->stored_bytes, &end) || end > INT64_MAX)
        return fault_set(fault, -EFBIG, NULL, w->tar_offset, "archive grows too large");
    if (m->hardlink)
        return builder_link(w->builder, m->path, m->path_len, m->link, m->link_len,
                            w->tar_offset, fault, &w->inode);
    return writer_add_inode(w, m, data_offset, fault);
}

/* Would the index no longer fit in its frame? Known before more of the tar is written. */
static int writer_check_index_room(const struct writer *w, struct fault *fault)
{
    uint64_t windows = (w->tar_offset + w->stored_bytes) / INDEX_WINDOW_BYTES + 1;
    uint64_t sums_bytes = 2 * sizeof(uint64_t) * windows;
    if (!w->framer || builder_image_bytes_max(w->builder) + sums_bytes <= ONEPOT_ZSTD_INDEX_MAX)
        return 0;
    fault_set(fault, -EFBIG, NULL, FAULT_NO_OFFSET,
              "is more than the index of one compressed archive can hold (4 GiB)");
    fault_advise(fault, "make several archives (--shards N), or one without --zstd");
    return -EFBIG;
}

/* Ends the member, whose data is complete. */
static int writer_finish_data(struct writer *w, struct fault *fault)
{
    uint64_t sum = w->sum_known ? w->sum : XXH3_64bits_digest(w->sum_state);
    int r = builder_set_sum(w->builder, w->inode, sum);
    if (r < 0)
        return w->error = r;
    if (!w->stored_bytes)
        return 0;
    uint64_t le = htole64(sum);
    XXH3_128bits_update(w->identifier_state, &le, sizeof(le));
    return writer_put_zeros(w, pax_padding(w->stored_bytes), fault);
}

static int writer_put_header(struct writer *w, const struct pax_member *m,
                             struct pax_buffer *header, struct fault *fault)
{
    w->tar_offset += header->count;
    if (w->framer)
        return framer_member(w->framer, m, header, w->stored_bytes, fault);
    struct pax_buffer mine = *header;
    *header = (struct pax_buffer){0};
    return writer_put(w, mine.at, mine.count, mine.at, fault);
}

int writer_add(struct writer *w, const struct pax_member *m, struct pax_buffer *header,
               const uint64_t *sum, struct fault *fault)
{
    if (w->error)
        return w->error;
    if (w->missing_bytes)
        return -EINVAL;
    w->stored_bytes = w->missing_bytes = pax_stored_bytes(m);
    w->sum_known = sum != NULL;
    w->sum = sum ? *sum : 0;
    int r = w->align_bytes && w->stored_bytes ? pax_align(header, w->tar_offset, w->align_bytes)
                                              : 0;
    if (r == 0)
        r = writer_add_to_index(w, m, header->count, fault);
    bool is_refused = builder_may_leave_out(r); /* nothing of it was written */
    if (r == 0)
        r = writer_check_index_room(w, fault);
    if (is_refused)
        w->missing_bytes = 0;
    if (r < 0)
        return is_refused ? r : (w->error = r);
    w->totals.files += m->hardlink || S_ISREG(m->mode);
    w->totals.data_bytes += w->stored_bytes;
    XXH3_128bits_update(w->identifier_state, header->at, header->count);
    XXH3_64bits_reset(w->sum_state);
    r = writer_put_header(w, m, header, fault);
    if (r == 0 && S_ISREG(m->mode) && !m->hardlink && !w->stored_bytes)
        r = writer_finish_data(w, fault);
    return r < 0 ? w->error = r : 0;
}

int writer_data(struct writer *w, void *bytes, size_t len, struct fault *fault)
{
    if (w->error || len > w->missing_bytes || (w->sum_known && len != w->stored_bytes)) {
        free(bytes);
        return w->error ? w->error : -EINVAL;
    }
    if (!w->sum_known)
        XXH3_64bits_update(w->sum_state, bytes, len);
    w->missing_bytes -= len;
    w->tar_offset += len;
    int r = w->framer ? framer_data(w->framer, bytes, len, fault)
                      : writer_put(w, bytes, len, bytes, fault);
    if (r == 0 && len && !w->missing_bytes)
        r = writer_finish_data(w, fault);
    return r < 0 ? w->error = r : 0;
}

/* ---- the end ---- */

static int writer_end_tar(struct writer *w, struct fault *fault)
{
    int r = writer_put_zeros(w, ONEPOT_MARKER_BYTES, fault);
    if (r == 0 && w->tar_offset % ONEPOT_RECORD_BYTES)
        r = writer_put_zeros(w, ONEPOT_RECORD_BYTES - w->tar_offset % ONEPOT_RECORD_BYTES,
                             fault);
    if (r == 0 && w->framer)
        r = framer_finish(w->framer, fault);
    if (r == 0 && w->offset % INDEX_WINDOW_BYTES)
        r = writer_end_window(w);
    return r < 0 ? r : writer_flush(w, fault);
}

static int writer_write_trailer(struct writer *w, struct fault *fault)
{
    struct builder_header header = {
        .codec = w->framer ? CODEC_ZSTD : CODEC_NONE,
        .block_bytes = w->framer ? w->block_bytes : 0,
        .end_marker_offset = w->tar_offset,
        .has_sums = true,
    };
    XXH128_canonical_t id;
    int r = w->error ? w->error : w->missing_bytes ? -EINVAL : writer_end_tar(w, fault);
    if (r < 0)
        return r;
    header.archive_bytes = w->offset;
    header.window_sums = w->window_sums.at;
    header.window_count = w->window_sums.count;
    XXH128_canonicalFromHash(&id, XXH3_128bits_digest(w->identifier_state));
    memcpy(header.identifier, id.digest, sizeof(header.identifier));
    r = onepot_format_append(w->builder, &header, w->tar_offset, w->output->fd, fault,
                             &w->totals.file_bytes);
    return r < 0 ? writer_write_failed(w, r, fault) : 0;
}

int writer_finish(struct writer *w, struct fault *fault, struct writer_totals *ret_totals)
{
    int r = writer_write_trailer(w, fault);
    if (r == 0)
        *ret_totals = w->totals;
    writer_discard(w);
    return r;
}
