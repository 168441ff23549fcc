/*
 * The builder, image: sections through one buffer, which takes a page's sum as the page fills.
 * The header goes last, since it holds the totals counted on the way.
 */
#include "builder_image.h"

#include <endian.h>
#include <string.h>

#include <xxhash.h>

#include "numbers.h"
#include "write_at.h"

/* ---- output ---- */

static int image_write(const struct image *image, const uint8_t *bytes, size_t len, uint64_t at)
{
    return write_at(image->fd, bytes, len, image->offset + at);
}

int image_flush(struct image *image)
{
    for (size_t at = 0; at < image->used; at += DISK_PAGE_BYTES) {
        size_t len = (size_t)min_u64(image->used - at, DISK_PAGE_BYTES);
        if (vector_push(&image->page_sums, htole64(XXH3_64bits(image->buf + at, len))) < 0)
            return -ENOMEM;
    }
    uint64_t area = le64toh(image->header.area_offset);
    int r = image_write(image, image->buf, image->used, area + image->flushed);
    image->flushed += image->used;
    image->used = 0;
    return r;
}

int image_put(struct image *image, const void *bytes, size_t len)
{
    const uint8_t *p = bytes;
    while (len > 0) {
        size_t n = (size_t)min_u64(OUT_BYTES - image->used, len);
        memcpy(image->buf + image->used, p, n);
        image->used += n;
        p += n;
        len -= n;
        if (image->used == OUT_BYTES) {
            int r = image_flush(image);
            if (r < 0)
                return r;
        }
    }
    return 0;
}

int image_begin_section(struct image *image, enum disk_section_id id)
{
    static const uint8_t zeros[8];
    int r = image_put(image, zeros, (8 - image->used % 8) % 8);
    struct disk_section section = {
        .id = htole32(id),
        .record_bytes = htole32(disk_record_bytes(id)),
        .offset = htole64(le64toh(image->header.area_offset) + image->flushed + image->used),
    };
    return r < 0 ? r : vector_push(&image->sections, section);
}

void image_end_section(struct image *image)
{
    struct disk_section *s = &image->sections.at[image->sections.count - 1];
    uint64_t end = le64toh(image->header.area_offset) + image->flushed + image->used;
    s->length = htole64(end - le64toh(s->offset));
}

int image_put_section(struct image *image, enum disk_section_id id, const void *bytes,
                      uint64_t records)
{
    if (records == 0)
        return 0;
    int r = image_begin_section(image, id);
    if (r < 0)
        return r;
    r = image_put(image, bytes, records * disk_record_bytes(id));
    image_end_section(image);
    return r;
}

int image_put_sums(struct image *image, enum disk_section_id id, const uint64_t *sums,
                   uint64_t count)
{
    if (count == 0)
        return 0;
    int r = image_begin_section(image, id);
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        uint64_t sum = htole64(sums[i]);
        r = image_put(image, &sum, sizeof(sum));
    }
    image_end_section(image);
    return r;
}

int image_add_extra(struct image *image, uint32_t position, uint32_t kind, uint64_t value)
{
    struct disk_extra extra = {htole64(value), htole32(position), htole32(kind)};
    return vector_push(&image->extras, extra);
}

/* ---- header ---- */

void image_add_saturated(uint64_t *sum, uint64_t value)
{
    uint64_t total;
    if (__builtin_add_overflow(le64toh(*sum), value, &total))
        total = UINT64_MAX;
    *sum = htole64(total);
}

/*
 * Room for the table, reserved before its content is known; sections that few archives have
 * take none in the others.
 */
static size_t image_table_room(const struct image *image)
{
    size_t records = SECTIONS_MAX - (image->about->window_count == 0) -
                     2 * (image->b->left_out_count == 0) - (image->b->xattrs_left_out == 0) -
                     (image->about->recipe_len == 0) - (image->b->points.count == 0) -
                     (image->b->windows.count == 0) - (image->b->pieces.count == 0);
    return records * sizeof(struct disk_section);
}

void image_begin_header(struct image *image)
{
    const struct builder *b = image->b;
    const struct builder_header *about = image->about;
    struct disk_header *h = &image->header;
    *h = (struct disk_header){
        .version = htole32(DISK_VERSION),
        .sections_offset = htole32(sizeof(*h)),
        .area_offset = htole64(sizeof(*h) + image_table_room(image)),
        .page_bytes = htole32(DISK_PAGE_BYTES),
        .features = htole32(about->has_joined ? DISK_HAS_JOINED : 0),
        .format = htole32(about->format),
        .incompatible = htole64((b->codecs ? DISK_NEEDS_CODECS : 0) |
                                (about->sum_kind ? DISK_NEEDS_SUM_KIND : 0) |
                                (b->points.count ? DISK_NEEDS_POINTS : 0)),
        .codec = htole32(about->codec),
        .codecs = htole16((uint16_t)b->codecs),
        .sum_kind = htole16((uint16_t)about->sum_kind),
        .block_bytes = htole32(about->block_bytes),
        .entries = htole32(image->entries),
        .archive_mtime_nsec = htole32(about->archive_mtime_nsec),
        .archive_bytes = htole64(about->archive_bytes),
        .archive_mtime_sec = (int64_t)htole64((uint64_t)about->archive_mtime_sec),
        .archive_fingerprint = htole64(about->archive_fingerprint),
        .end_marker_offset = htole64(about->end_marker_offset),
    };
    memcpy(h->magic, DISK_MAGIC, sizeof(h->magic));
    memcpy(h->identifier, about->identifier, sizeof(h->identifier));
    static const char made_by[] = "onepot " ONEPOT_VERSION;
    static_assert(sizeof(made_by) <= sizeof(h->made_by), "the name of the program");
    memcpy(h->made_by, made_by, sizeof(made_by));
}

int image_put_header(struct image *image, uint64_t *ret_image_bytes)
{
    struct disk_header *h = &image->header;
    uint64_t sums_offset = (le64toh(h->area_offset) + image->flushed + 7) & ~UINT64_C(7);
    size_t sums_bytes = image->page_sums.count * 8;
    h->area_bytes = htole64(image->flushed);
    h->sums_offset = htole64(sums_offset);
    h->sums_sum = htole64(XXH3_64bits(image->page_sums.at, sums_bytes));
    h->image_bytes = htole64(sums_offset + sums_bytes);
    h->directories = htole64(image->b->dirs.count);
    h->sections = htole32((uint32_t)image->sections.count);

    uint8_t bytes[sizeof(*h) + SECTIONS_MAX * sizeof(struct disk_section)] = {0};
    size_t table_bytes = image->sections.count * sizeof(struct disk_section);
    h->header_bytes = htole32((uint32_t)(sizeof(*h) + table_bytes));
    h->header_sum = 0;
    memcpy(bytes, h, sizeof(*h));
    memcpy(bytes + sizeof(*h), image->sections.at, table_bytes);
    h->header_sum = htole64(XXH3_64bits(bytes, sizeof(*h) + table_bytes));
    memcpy(bytes, h, sizeof(*h));

    int r = image_write(image, (uint8_t *)image->page_sums.at, sums_bytes, sums_offset);
    if (r == 0)
        r = image_write(image, bytes, sizeof(*h) + image_table_room(image), 0);
    if (r == 0)
        *ret_image_bytes = sums_offset + sums_bytes;
    return r;
}
