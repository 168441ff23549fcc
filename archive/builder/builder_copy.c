/*
 * The builder, copied entries.
 *
 * builder_copy takes over what entries refer to: sections of attributes, ranges, blocks, link
 * targets and extended attributes are put behind each other, with the numbers in them shifted
 * to their new places. The entries themselves, their names and sums go straight from the old
 * image to the new one while that is written, run by run.
 *
 * The values of an entry are checked when it is written, which is when they are read anyway. So
 * damage may turn up only then.
 *
 * The names of an inode are counted anew, since some may not be copied, and others twice. The
 * first one has the inode; the others become aliases of it, whatever they were.
 */
#include "builder_copy.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#include "builder_copy_private.h"
#include "builder_paths.h"
#include "bytes.h"
#include "checksum.h"
#include "digest.h"
#include "index_records.h"
#include "numbers.h"
#include "thread.h"

enum {
    BATCH = 256, /* entries that are written at once */
    DIGEST_STACK_BYTES = 128 << 10,
};

/* How the `data` of an entry becomes the new entry's. */
enum copy_kind {
    COPY_REFUSED, /* damaged */
    COPY_PLAIN,   /* as it is */
    COPY_DIRECTORY,
    COPY_SYMLINK,
    COPY_STORED,
    COPY_PACKED,
    COPY_EXTENTS,
    COPY_ALIAS,
};

/* The forms that an entry with these attributes may take. */
enum copy_form { FORM_SINGLE, FORM_LINKED, FORM_ALIAS, FORMS };

/* A part's record of attributes, in host order. */
struct copy_attr {
    struct disk_attr attr;
    uint32_t numbers[FORMS]; /* in the new index; 0: not there yet */
    enum copy_kind kind;
};

/* The names of an inode that are copied. */
struct copy_link {
    uint32_t position; /* new, of the first */
    uint32_t names;
};

struct copy_source {
    const struct index *index;
    uint64_t base;
    uint64_t archive_bytes; /* as many of them as the new archive has */
    uint32_t entries;
    size_t attrs; /* its first of `attrs` */
    uint32_t attr_count;
    /* Where its own begin in the new sections: bytes of these, */
    uint64_t strings, extents, xattrs;
    /* and the number of its first block. */
    uint32_t first_block, blocks;
    uint32_t block_bytes;
    bool repeats;
    struct copy_link *links; /* by position of the inode; NULL: each has one name */
};

struct builder_copying {
    struct builder_copy copy;
    struct copy_source *sources;
    VECTOR(struct copy_attr) attrs;
    uint32_t root_attr; /* of a root of no part */
    uint32_t entries;
    bool has_sums, mixes_sums;
    uint32_t flags; /* of all entries */
    uint32_t damaged_part, damaged_position;
    pthread_t thread;
    bool has_thread;
    int digest_error;
    uint8_t digest[INDEX_DIGEST_BYTES];
};

/* ---- what entries refer to ---- */

static enum copy_kind copy_kind_of(uint32_t mode, uint32_t flags)
{
    static const enum copy_kind kinds[DATA_KIND_MASK + 1] = {
        [DATA_KIND_STORED] = COPY_STORED,
        [DATA_KIND_PACKED] = COPY_PACKED,
        [DATA_KIND_EXTENTS] = COPY_EXTENTS,
    };
    uint32_t kind = flags & DATA_KIND_MASK;
    if (kind == 0 || mode & ~(uint32_t)(S_IFMT | 07777))
        return COPY_REFUSED;
    if (kind == DATA_KIND_ALIAS)
        return S_ISDIR(mode) ? COPY_REFUSED : COPY_ALIAS;
    switch (mode & S_IFMT) {
    case S_IFREG:
        return kinds[kind];
    case S_IFDIR:
        return kind == DATA_KIND_NONE ? COPY_DIRECTORY : COPY_REFUSED;
    case S_IFLNK:
        return COPY_SYMLINK;
    case S_IFCHR:
    case S_IFBLK:
    case S_IFIFO:
    case S_IFSOCK:
        return COPY_PLAIN;
    default:
        return COPY_REFUSED;
    }
}

static int copy_attrs(struct builder_copying *c, struct copy_source *s)
{
    uint64_t bytes = index_section_bytes(s->index, SECTION_ATTRS);
    const struct disk_attr *from = index_records(s->index, SECTION_ATTRS, 0, bytes);
    s->attrs = c->attrs.count;
    s->attr_count = (uint32_t)(bytes / sizeof(*from));
    if (!from)
        return -EUCLEAN;
    if (vector_reserve(&c->attrs, s->attr_count) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->attr_count; i++) {
        const struct disk_attr attr = {le32toh(from[i].mode), le32toh(from[i].uid),
                                       le32toh(from[i].gid), le32toh(from[i].flags)};
        c->attrs.at[c->attrs.count++] =
            (struct copy_attr){.attr = attr, .kind = copy_kind_of(attr.mode, attr.flags)};
    }
    return 0;
}

/* The new number of attributes; only used ones get one. */
static int copy_attr_number(struct builder *b, struct copy_attr *attr, enum copy_form form,
                            uint32_t *ret_number)
{
    struct disk_attr new = attr->attr;
    new.flags = form == FORM_ALIAS    ? DATA_KIND_ALIAS
                : form == FORM_LINKED ? new.flags | ATTR_NLINK
                                      : new.flags & ~ATTR_NLINK;
    int r = attr->numbers[form] ? 0 : builder_intern_attr(b, &new, &attr->numbers[form]);
    *ret_number = attr->numbers[form];
    return r;
}

static bool copy_in_archive(const struct copy_source *s, uint64_t offset, uint64_t len)
{
    return len <= s->archive_bytes && offset <= s->archive_bytes - len;
}

/* The new place of packed data, whose blocks must all be the source's. */
static int copy_packed(const struct copy_source *s, uint64_t length, uint64_t *place)
{
    uint64_t first = (uint32_t)*place, end;
    const struct disk_block *block =
        first < s->blocks
            ? index_records(s->index, SECTION_BLOCKS, first * sizeof(*block), sizeof(*block))
            : NULL;
    if (!block || block->block_bytes == 0 || length == 0 ||
        __builtin_add_overflow((*place & ~RANGE_PACKED) >> 32, length - 1, &end) ||
        end / le32toh(block->block_bytes) >= s->blocks - first)
        return -EUCLEAN;
    *place += s->first_block;
    return 0;
}

static int copy_range(const struct copy_source *s, uint64_t *range)
{
    uint64_t source = le64toh(range[0]), length = le64toh(range[2]);
    if (source & RANGE_PACKED) {
        int r = copy_packed(s, length, &source);
        range[0] = htole64(source);
        return r;
    }
    if (length == 0 || !copy_in_archive(s, source, length))
        return -EUCLEAN;
    range[0] = htole64(source + s->base);
    return 0;
}

/*
 * Could a list begin here? Where none does, no word may look so. Then an entry can't lead into
 * the middle of a list, where words would be taken for ranges that were never checked.
 */
static bool copy_begins_list(uint64_t word)
{
    return le64toh(word) >> 32 == DISK_RANGES;
}

/* The ranges of a list: ascending, without overlap, as many bytes as it says. */
static int copy_ranges(const struct copy_source *s, uint64_t *list, uint64_t count)
{
    uint64_t end = 0, bytes = 0;
    for (uint64_t *range = list + 2; count > 0; range += 3, count--) {
        uint64_t logical = le64toh(range[1]), length = le64toh(range[2]);
        if (copy_begins_list(range[0]) || copy_begins_list(range[1]) ||
            copy_begins_list(range[2]) || logical < end ||
            __builtin_add_overflow(logical, length, &end) || copy_range(s, range) < 0)
            return -EUCLEAN;
        bytes += length;
    }
    return bytes == le64toh(list[1]) && !copy_begins_list(list[1]) ? 0 : -EUCLEAN;
}

static int copy_extents(struct builder *b, struct copy_source *s)
{
    uint64_t words = index_section_bytes(s->index, SECTION_EXTENTS) / 8;
    const uint64_t *from = index_records(s->index, SECTION_EXTENTS, 0, words * 8);
    size_t start = b->extents.count;
    s->extents = start * 8;
    if (words == 0)
        return 0;
    if (!from)
        return -EUCLEAN;
    if (vector_append(&b->extents, from, words) < 0)
        return -ENOMEM;
    for (uint64_t at = 0; at < words;) {
        uint64_t *list = b->extents.at + start + at, left = words - at;
        uint64_t count = left < 2 ? 0 : (uint32_t)le64toh(list[0]);
        if (left < 2 || !copy_begins_list(list[0]) || count > (left - 2) / 3 ||
            copy_ranges(s, list, count) < 0)
            return -EUCLEAN;
        at += 2 + 3 * count;
    }
    return 0;
}

/* The block's own codec, where the new index has no common one. */
static int copy_codec(struct builder *b, const struct index_info *info, uint32_t codec,
                      uint64_t *ret_codec)
{
    if (codec && (codec >= CODEC_COUNT || !(info->codecs & 1u << codec)))
        return -EUCLEAN;
    bool is_own = codec != CODEC_NONE;
    codec = is_own ? codec : info->codec;
    if (codec == CODEC_NONE || codec >= CODEC_COUNT ||
        (codec_has_point((enum codec)codec) && !is_own))
        return -EUCLEAN;
    b->codecs |= 1u << codec;
    *ret_codec = codec;
    return 0;
}

static int copy_block(struct builder *b, const struct copy_source *s, struct disk_block *block)
{
    uint64_t place = le64toh(block->source_offset), codec = place >> BLOCK_CODEC_SHIFT;
    uint32_t packed_bytes = le32toh(block->packed), block_bytes = le32toh(block->block_bytes);
    place &= (UINT64_C(1) << BLOCK_CODEC_SHIFT) - 1;
    if (block_bytes == 0 || block_bytes > s->block_bytes || packed_bytes == 0 ||
        !copy_in_archive(s, place, packed_bytes) || (place + s->base) >> BLOCK_CODEC_SHIFT)
        return -EUCLEAN;
    int r = copy_codec(b, index_info(s->index), (uint32_t)codec, &codec);
    block->source_offset = htole64((place + s->base) | codec << BLOCK_CODEC_SHIFT);
    return r;
}

static int copy_blocks(struct builder *b, struct copy_source *s)
{
    const struct disk_block *records =
        index_records(s->index, SECTION_BLOCKS, 0, (uint64_t)s->blocks * sizeof(*records));
    size_t start = b->blocks.count;
    s->first_block = (uint32_t)start;
    if (s->blocks == 0)
        return 0;
    if (!records)
        return -EUCLEAN;
    if (start + s->blocks > UINT32_MAX)
        return -EOVERFLOW;
    if (vector_append(&b->blocks, records, s->blocks) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < s->blocks; i++)
        if (copy_block(b, s, &b->blocks.at[start + i]) < 0)
            return -EUCLEAN;
    return 0;
}

/* The points of blocks that are parts of streams, their windows, the sums of their pieces. */
static int copy_points(struct builder *b, const struct copy_source *s)
{
    uint64_t count = index_points(s->index), before = b->points.count, next = 0;
    uint64_t bytes = index_section_bytes(s->index, SECTION_WINDOWS), base = b->windows.count;
    uint64_t piece_bytes = count * POINT_PIECES_BYTES;
    bool has_pieces = index_has_pieces(s->index);
    const struct disk_point *points =
        index_records(s->index, SECTION_POINTS, 0, count * sizeof(*points));
    const char *windows = index_records(s->index, SECTION_WINDOWS, 0, bytes);
    const char *pieces = index_records(s->index, SECTION_PIECES, 0, piece_bytes);
    if (count == 0)
        return 0;
    if (!points || (!windows && bytes > 0) || (!pieces && has_pieces))
        return -EUCLEAN;
    if (vector_append(&b->points, points, count) < 0 ||
        vector_append(&b->windows, windows, bytes) < 0)
        return -ENOMEM;
    for (uint64_t i = before; i < before + count; i++) {
        struct disk_point *point = &b->points.at[i];
        uint32_t block = le32toh(point->block);
        uint64_t window = le64toh(point->window), len = le32toh(point->window_packed);
        if (block < next || block >= s->blocks ||
            (len > 0 && (window > bytes || len > bytes - window)))
            return -EUCLEAN;
        next = (uint64_t)block + 1;
        point->block = htole32(block + s->first_block);
        point->window = htole64(len ? window + base : 0);
    }
    if (!has_pieces && b->pieces.count == 0)
        return 0;
    int r = vector_extend(&b->pieces, before * POINT_PIECES_BYTES);
    if (r == 0 && has_pieces)
        r = vector_append(&b->pieces, pieces, piece_bytes);
    return r < 0 ? r : vector_extend(&b->pieces, b->points.count * POINT_PIECES_BYTES);
}

/* A section of bytes without numbers. */
static int copy_find_bytes(const struct copy_source *s, enum disk_section_id id,
                           const char **ret_bytes, uint64_t *ret_len)
{
    *ret_len = index_section_bytes(s->index, id);
    *ret_bytes = index_records(s->index, id, 0, *ret_len);
    return *ret_bytes || *ret_len == 0 ? 0 : -EUCLEAN;
}

static int copy_sections(struct builder *b, struct copy_source *s)
{
    const char *bytes;
    uint64_t len;
    int r = copy_blocks(b, s);
    if (r == 0)
        r = copy_points(b, s);
    if (r == 0)
        r = copy_extents(b, s);
    s->strings = b->strings.count;
    s->xattrs = b->xattrs.count;
    if (r == 0)
        r = copy_find_bytes(s, SECTION_STRINGS, &bytes, &len);
    if (r == 0)
        r = vector_append(&b->strings, bytes, len);
    if (r == 0)
        r = copy_find_bytes(s, SECTION_XATTRS, &bytes, &len);
    if (r == 0)
        r = vector_append(&b->xattrs, bytes, len);
    return r;
}

static int copy_begin_source(const struct builder_copy_part *part, uint64_t archive_bytes,
                             struct copy_source *s)
{
    const struct index_info *info = index_info(part->index);
    *s = (struct copy_source){
        .index = part->index,
        .base = part->base,
        .entries = info->entries,
        .blocks = (uint32_t)index_blocks(part->index),
        .block_bytes = info->block_bytes,
        .repeats = part->repeats,
    };
    if (part->base > archive_bytes || archive_bytes > INT64_MAX)
        return -EUCLEAN;
    s->archive_bytes = min_u64(info->archive_bytes, archive_bytes - part->base);
    if (info->has_hardlinks || part->repeats)
        s->links = calloc(s->entries, sizeof(*s->links));
    return s->links || !(info->has_hardlinks || part->repeats) ? 0 : -ENOMEM;
}

/* Fill in the header's part that depends on all. */
static void copy_describe(struct builder_copying *c, struct builder_header *header)
{
    struct sum_kinds kinds = {0};
    header->codec = CODEC_NONE;
    header->block_bytes = 0;
    for (size_t i = 0; i < c->copy.part_count; i++) {
        const struct index_info *info = index_info(c->copy.parts[i].index);
        header->block_bytes = max_u32(header->block_bytes, info->block_bytes);
        sum_kinds_add(&kinds, info->has_some_sums, info->sum_kind);
    }
    c->has_sums = kinds.some;
    header->sum_kind = sum_kinds_together(&kinds);
    c->mixes_sums = header->sum_kind == SUM_MIXED;
}

static int copy_begin(struct builder *b, struct builder_copying *c, uint64_t archive_bytes)
{
    uint64_t entries = 0;
    for (size_t i = 0; i < c->copy.run_count; i++)
        entries += c->copy.runs[i].count;
    if (entries > ENTRIES_MAX)
        return -EOVERFLOW;
    c->entries = (uint32_t)entries;
    c->sources = calloc(c->copy.part_count, sizeof(*c->sources));
    if (!c->sources)
        return -ENOMEM;
    int r = builder_intern_attr(b, &builder_directory, &c->root_attr);
    for (size_t i = 0; r == 0 && i < c->copy.part_count; i++) {
        c->damaged_part = (uint32_t)i;
        r = copy_begin_source(&c->copy.parts[i], archive_bytes, &c->sources[i]);
        if (r == 0)
            r = copy_attrs(c, &c->sources[i]);
        if (r == 0)
            r = copy_sections(b, &c->sources[i]);
    }
    return r;
}

int copying_damaged(const struct builder_copying *c, struct fault *fault)
{
    const struct builder_copy_part *part = &c->copy.parts[c->damaged_part];
    char path[INDEX_PATH_MAX + 1] = ""; /* the fault keeps its beginning */
    size_t len;
    (void)index_path(part->index, c->damaged_position, path, sizeof(path), &len);
    fault_set(fault, -EUCLEAN, path, FAULT_NO_OFFSET, "its entry in the index is damaged");
    if (part->name)
        fault_set_file(fault, part->name);
    return -EUCLEAN;
}

void copying_free(struct builder_copying *c)
{
    if (!c)
        return;
    for (size_t i = 0; c->sources && i < c->copy.part_count; i++)
        free(c->sources[i].links);
    free(c->sources);
    vector_free(&c->attrs);
    free(c);
}

uint32_t copying_entries(const struct builder_copying *c)
{
    return c->entries;
}

/* ---- names ---- */

static uint64_t copy_name_offset(const struct disk_entry *e)
{
    return le64toh(e->name_attr) & (DISK_NAME_LIMIT - 1);
}

/* A run of a part. */
struct copy_span {
    const struct copy_source *s;
    const struct disk_entry *e;
    uint32_t count;
    const char *names; /* of all, one behind the other */
    uint64_t name_bytes;
};

static int copy_open_run(const struct builder_copying *c, size_t number,
                         struct copy_span *ret_span)
{
    const struct builder_copy_run *run = &c->copy.runs[number];
    const struct copy_source *s = &c->sources[run->part];
    bool is_last = run->first + (uint64_t)run->count == s->entries;
    if (run->first >= s->entries || run->count == 0 || run->count > s->entries - run->first)
        return -EUCLEAN;
    const struct disk_entry *e =
        index_records(s->index, SECTION_ENTRIES, (uint64_t)run->first * sizeof(*e),
                      ((uint64_t)run->count + !is_last) * sizeof(*e));
    if (!e)
        return -EUCLEAN;
    *ret_span = (struct copy_span){.s = s, .e = e, .count = run->count, .names = ""};
    if (run->name) {
        const struct builder_copy_name *name = &c->copy.names[run->name - 1];
        ret_span->names = name->at;
        ret_span->name_bytes = name->len;
    } else if (number > 0) {
        uint64_t start = copy_name_offset(e),
                 end = is_last ? index_section_bytes(s->index, SECTION_NAMES)
                               : copy_name_offset(&e[run->count]);
        ret_span->name_bytes = end - start;
        ret_span->names =
            end > start ? index_records(s->index, SECTION_NAMES, start, end - start) : NULL;
    }
    return ret_span->names ? 0 : -EUCLEAN;
}

/* The length of the name of a run's entry; above INDEX_NAME_MAX if it is damaged. */
static uint64_t copy_name_len(const struct copy_span *span, uint32_t i)
{
    uint64_t start = copy_name_offset(&span->e[i]);
    return i + 1 < span->count ? copy_name_offset(&span->e[i + 1]) - start
                               : copy_name_offset(span->e) + span->name_bytes - start;
}

int copying_put_names(struct image *image)
{
    const struct builder_copying *c = image->b->copying;
    int r = image_begin_section(image, SECTION_NAMES);
    for (size_t i = 0; r == 0 && i < c->copy.run_count; i++) {
        struct copy_span span;
        if (c->copy.runs[i].part == BUILDER_COPY_NO_PART)
            continue;
        r = copy_open_run(c, i, &span);
        if (r == 0)
            r = image_put(image, span.names, span.name_bytes);
    }
    image_end_section(image);
    return r;
}

/* ---- inodes with several names ---- */

static struct copy_attr *copy_attr_of(const struct builder_copying *c,
                                      const struct copy_source *s, const struct disk_entry *e)
{
    uint64_t number = le64toh(e->name_attr) >> DISK_NAME_BITS;
    return number < s->attr_count ? &c->attrs.at[s->attrs + number] : NULL;
}

/* The entry of an alias's inode, and its attributes. NULL: it is none. */
static const struct disk_entry *copy_inode_of(const struct builder_copying *c,
                                              const struct copy_source *s, uint64_t inode,
                                              struct copy_attr **ret_attr)
{
    const struct disk_entry *e =
        inode < s->entries
            ? index_records(s->index, SECTION_ENTRIES, inode * sizeof(*e), sizeof(*e))
            : NULL;
    *ret_attr = e ? copy_attr_of(c, s, e) : NULL;
    return *ret_attr && (*ret_attr)->kind != COPY_ALIAS &&
                   (*ret_attr)->kind != COPY_DIRECTORY && (*ret_attr)->attr.flags & ATTR_NLINK
               ? e
               : NULL;
}

/* The names of a run's inodes; its first entry has this new position. */
static int copy_count_run(struct builder_copying *c, size_t number, uint32_t position)
{
    const struct builder_copy_run *run = &c->copy.runs[number];
    struct copy_span span;
    c->damaged_part = run->part;
    int r = copy_open_run(c, number, &span);
    for (uint32_t i = 0; r == 0 && i < run->count; i++) {
        const struct copy_attr *attr = copy_attr_of(c, span.s, &span.e[i]);
        bool is_alias = attr && attr->kind == COPY_ALIAS;
        uint64_t inode = is_alias ? le64toh(span.e[i].data) : run->first + (uint64_t)i;
        c->damaged_position = run->first + i;
        if (!attr || inode >= span.s->entries)
            return -EUCLEAN;
        if (attr->kind == COPY_DIRECTORY ||
            !(is_alias || span.s->repeats || attr->attr.flags & ATTR_NLINK))
            continue;
        struct copy_link *link = &span.s->links[inode];
        if (link->names++ == 0)
            link->position = position + i;
    }
    return r;
}

static int copy_count_links(struct builder_copying *c)
{
    uint32_t position = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->copy.run_count; i++) {
        const struct builder_copy_run *run = &c->copy.runs[i];
        if (run->part != BUILDER_COPY_NO_PART && c->sources[run->part].links)
            r = copy_count_run(c, i, position);
        position += run->count;
    }
    return r;
}

int builder_copy(struct builder *b, const struct builder_copy *copy,
                 struct builder_header *header, struct fault *fault)
{
    struct builder_copying *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    b->copying = c;
    c->copy = *copy;
    int r = copy_begin(b, c, header->archive_bytes);
    if (r == 0)
        r = copy_count_links(c);
    if (r == 0)
        copy_describe(c, header);
    return r == -EUCLEAN ? copying_damaged(c, fault) : r;
}

/* ---- entries ---- */

struct copy_walk {
    struct image *image;
    struct builder_copying *c;
    uint32_t position; /* of the next entry */
    uint32_t child;    /* of the next directory's children */
    size_t dir;        /* the next one */
    uint64_t name_offset;
    uint64_t files, inodes, total_bytes, data_bytes;
};

static int copy_directory(struct copy_walk *w, struct disk_entry *to)
{
    const struct builder_copy *copy = &w->c->copy;
    if (w->dir == copy->dir_count)
        return -EUCLEAN;
    const struct builder_copy_dir *dir = &copy->dirs[w->dir++];
    to->size = htole64(dir->directories);
    to->data = htole64(w->child | (uint64_t)dir->children << 32);
    w->child += dir->children;
    return vector_push(&w->image->b->dirs, htole32(w->position));
}

static int copy_file_extents(const struct copy_source *s, uint64_t size, uint64_t *data,
                             uint64_t *ret_bytes)
{
    const uint64_t *list = index_records(s->index, SECTION_EXTENTS, *data, 16), *last;
    if (!list || *data % 8 || !copy_begins_list(list[0])) /* copy_extents checked the list */
        return -EUCLEAN;
    uint64_t count = (uint32_t)le64toh(list[0]), end;
    last = index_records(s->index, SECTION_EXTENTS, *data + 16 + count * 24 - 24, 24);
    if (count && (!last || __builtin_add_overflow(le64toh(last[1]), le64toh(last[2]), &end) ||
                  end > size))
        return -EUCLEAN;
    *ret_bytes = le64toh(list[1]);
    *data += s->extents;
    return *ret_bytes <= size ? 0 : -EUCLEAN;
}

static int copy_file(struct copy_walk *w, const struct copy_source *s, enum copy_kind kind,
                     uint64_t size, uint64_t *data)
{
    uint64_t bytes = size;
    int r = 0;
    if (size > INT64_MAX)
        return -EUCLEAN;
    if (kind == COPY_STORED) {
        r = copy_in_archive(s, *data, size) || size == 0 ? 0 : -EUCLEAN;
        *data = size ? *data + s->base : 0;
    } else if (kind == COPY_EXTENTS) {
        r = copy_file_extents(s, size, data, &bytes);
    } else {
        r = *data & RANGE_PACKED ? -EUCLEAN : copy_packed(s, size, data);
    }
    image_add_saturated(&w->total_bytes, size);
    image_add_saturated(&w->data_bytes, bytes);
    return r;
}

static int copy_symlink(const struct copy_source *s, uint64_t size, uint64_t *data)
{
    const char *target = size && size <= INDEX_SYMLINK_MAX
                             ? index_records(s->index, SECTION_STRINGS, *data, size)
                             : NULL;
    if (!target || memchr(target, '\0', size))
        return -EUCLEAN;
    *data += s->strings;
    return 0;
}

static int copy_put_extra(struct copy_walk *w, uint32_t kind, uint64_t value)
{
    const struct disk_extra extra = {htole64(value), htole32(w->position), htole32(kind)};
    return vector_push(&w->image->extras, extra);
}

/* An inode's values in EXTRA, but for the number of its names. */
static int copy_extras(struct copy_walk *w, const struct copy_source *s, uint64_t inode,
                       uint32_t flags)
{
    uint64_t value;
    int r = 0;
    if (flags & ATTR_XATTRS) {
        r = index_extra(s->index, (uint32_t)inode, EXTRA_XATTRS, &value);
        const uint8_t *head = r == 0 ? index_records(s->index, SECTION_XATTRS, value, 8) : NULL;
        if (!head ||
            !index_records(s->index, SECTION_XATTRS, value, 8 + (uint64_t)bytes_le32(head + 4)))
            return -EUCLEAN;
        r = copy_put_extra(w, EXTRA_XATTRS, value + s->xattrs);
    }
    if (r == 0 && flags & ATTR_WIDE_MTIME) {
        r = index_extra(s->index, (uint32_t)inode, EXTRA_MTIME, &value);
        r = r == 0 ? copy_put_extra(w, EXTRA_MTIME, value) : -EUCLEAN;
    }
    return r;
}

/*
 * Give *to, if it is an alias, its inode's fields. 1: the inode has a name before this one, of
 * which *to is an alias now.
 */
static int copy_link(const struct copy_walk *w, const struct copy_source *s,
                     struct disk_entry *to, struct copy_attr **attr, uint64_t *inode,
                     uint32_t *ret_names)
{
    if ((*attr)->kind == COPY_ALIAS) {
        *inode = le64toh(to->data);
        const struct disk_entry *e = s->links ? copy_inode_of(w->c, s, *inode, attr) : NULL;
        if (!e)
            return -EUCLEAN;
        to->size = e->size;
        to->data = e->data;
        to->mtime = e->mtime;
    }
    const struct copy_link *link =
        s->links && (*attr)->kind != COPY_DIRECTORY ? &s->links[*inode] : NULL;
    *ret_names = link ? link->names : 1;
    if (*ret_names < 2 || link->position == w->position)
        return 0;
    to->size = 0;
    to->data = htole64(link->position);
    return 1;
}

/* The data of an inode that has its entry here. */
static int copy_data(struct copy_walk *w, const struct copy_source *s, enum copy_kind kind,
                     struct disk_entry *to)
{
    uint64_t size = le64toh(to->size), data = le64toh(to->data);
    int r = 0;
    switch (kind) {
    case COPY_REFUSED:
    case COPY_ALIAS:
        return -EUCLEAN;
    case COPY_PLAIN:
        break;
    case COPY_DIRECTORY:
        return copy_directory(w, to);
    case COPY_SYMLINK:
        r = copy_symlink(s, size, &data);
        break;
    default:
        r = copy_file(w, s, kind, size, &data);
    }
    to->data = htole64(data);
    return r;
}

/* An entry, whose name has `name_len` bytes. `to` is a copy of it. */
static int copy_entry(struct copy_walk *w, const struct copy_source *s, uint64_t position,
                      uint64_t name_len, struct disk_entry *to)
{
    struct builder_copying *c = w->c;
    struct copy_attr *attr = copy_attr_of(c, s, to);
    uint32_t names = 1, number = 0;
    if (!attr || name_len > INDEX_NAME_MAX || (name_len == 0 && w->position > 0))
        return -EUCLEAN;
    int r = copy_link(w, s, to, &attr, &position, &names);
    bool is_alias = r == 1;
    if (r < 0 || to->mtime == 0 ||
        (le64toh(to->mtime) & ((1u << DISK_NSEC_BITS) - 1)) > 999999999)
        return -EUCLEAN;
    r = is_alias ? 0 : copy_data(w, s, attr->kind, to);
    if (r == 0 && names > 1 && !is_alias)
        r = copy_put_extra(w, EXTRA_NLINK, names);
    if (r == 0 && !is_alias)
        r = copy_extras(w, s, position, attr->attr.flags);
    if (r == 0)
        r = copy_attr_number(w->image->b, attr,
                             is_alias    ? FORM_ALIAS
                             : names > 1 ? FORM_LINKED
                                         : FORM_SINGLE,
                             &number);
    to->name_attr = htole64(w->name_offset | (uint64_t)number << DISK_NAME_BITS);
    w->name_offset += name_len;
    w->files += S_ISREG(attr->attr.mode);
    w->inodes += !is_alias;
    c->flags |= names > 1 ? ATTR_NLINK : 0;
    c->flags |= is_alias ? 0 : attr->attr.flags & ~ATTR_NLINK;
    w->position++;
    return r;
}

static int copy_run(struct copy_walk *w, size_t number)
{
    const struct builder_copy_run *run = &w->c->copy.runs[number];
    struct disk_entry batch[BATCH];
    struct copy_span span;
    int r = copy_open_run(w->c, number, &span);
    w->c->damaged_part = run->part;
    w->c->damaged_position = run->first;
    for (uint32_t i = 0, n; r == 0 && i < run->count; i += n) {
        n = min_u32(run->count - i, BATCH);
        memcpy(batch, span.e + i, n * sizeof(*batch));
        for (uint32_t j = 0; r == 0 && j < n; j++) {
            w->c->damaged_position = run->first + i + j;
            r = copy_entry(w, span.s, run->first + (uint64_t)i + j, copy_name_len(&span, i + j),
                           &batch[j]);
        }
        if (r == 0)
            r = image_put(w->image, batch, n * sizeof(*batch));
    }
    return r;
}

/* A root as in an empty builder. */
static int copy_plain_root(struct copy_walk *w)
{
    struct disk_entry root = {
        .name_attr = htole64((uint64_t)w->c->root_attr << DISK_NAME_BITS),
        .mtime = htole64((uint64_t)DISK_MTIME_BIAS << DISK_NSEC_BITS),
    };
    int r = copy_directory(w, &root);
    w->position++;
    w->inodes++;
    return r < 0 ? r : image_put(w->image, &root, sizeof(root));
}

static void copy_count(const struct copy_walk *w, struct disk_header *header)
{
    uint32_t flags = w->c->flags;
    header->files = htole64(w->files);
    header->inodes = htole64(w->inodes);
    header->total_bytes = w->total_bytes;
    header->data_bytes = w->data_bytes;
    header->name_bytes = htole64(w->name_offset);
    header->features |= htole32((flags & ATTR_HOLES ? DISK_HAS_HOLES : 0) |
                                (flags & ATTR_NLINK ? DISK_HAS_HARDLINKS : 0) |
                                (flags & ATTR_XATTRS ? DISK_HAS_XATTRS : 0));
}

int copying_put_entries(struct image *image)
{
    struct builder_copying *c = image->b->copying;
    struct copy_walk w = {.image = image, .c = c, .child = 1};
    int r = image_begin_section(image, SECTION_ENTRIES);
    for (size_t i = 0; r == 0 && i < c->copy.run_count; i++) {
        r = c->copy.runs[i].part == BUILDER_COPY_NO_PART ? copy_plain_root(&w)
                                                         : copy_run(&w, i);
    }
    image_end_section(image);
    if (r == 0 && w.name_offset >= DISK_NAME_LIMIT)
        r = -EOVERFLOW;
    if (r == 0 && (w.dir != c->copy.dir_count || w.child != c->entries))
        r = -EUCLEAN;
    copy_count(&w, &image->header);
    return r;
}

/* ---- sums ---- */

/* The sum of an entry: its inode's, if the inode has its entry there. */
static uint64_t copy_sum(const struct builder_copying *c, const struct copy_span *span,
                         const uint64_t *sums, uint64_t inode, uint32_t i, uint32_t position)
{
    const struct copy_source *s = span->s;
    if (s->links) { /* copying_put_entries checked all this */
        if (copy_attr_of(c, s, &span->e[i])->kind == COPY_ALIAS)
            inode = le64toh(span->e[i].data);
        if (s->links[inode].names > 1 && s->links[inode].position != position)
            return 0;
    }
    return c->mixes_sums ? checksum_mixed(index_info(s->index)->sum_kind, le64toh(sums[inode]))
                         : le64toh(sums[inode]);
}

/* The sums of a run's entries, of which the first has this position in the new index. */
static int copy_put_run_sums(struct image *image, size_t number, uint32_t position)
{
    const struct builder_copying *c = image->b->copying;
    const struct builder_copy_run *run = &c->copy.runs[number];
    bool has_part = run->part != BUILDER_COPY_NO_PART;
    const struct copy_source *s = has_part ? &c->sources[run->part] : NULL;
    const uint64_t *sums = NULL;
    struct copy_span span = {0};
    int r = 0;
    if (s && index_info(s->index)->has_some_sums) {
        sums = index_records(s->index, SECTION_SUMS, 0, s->entries * sizeof(*sums));
        r = sums ? copy_open_run(c, number, &span) : -EUCLEAN;
    }
    if (sums && !c->mixes_sums && !s->links)
        return image_put(image, sums + run->first, run->count * sizeof(*sums));
    for (uint32_t i = 0; r == 0 && i < run->count; i++) {
        uint64_t sum = 0;
        if (sums)
            sum = htole64(copy_sum(c, &span, sums, run->first + (uint64_t)i, i, position + i));
        r = image_put(image, &sum, sizeof(sum));
    }
    return r;
}

int copying_put_sums(struct image *image)
{
    const struct builder_copying *c = image->b->copying;
    if (!c->has_sums)
        return 0;
    image->header.features |= htole32(DISK_HAS_SUMS);
    uint32_t position = 0;
    int r = image_begin_section(image, SECTION_SUMS);
    for (size_t i = 0; r == 0 && i < c->copy.run_count; i++) {
        r = copy_put_run_sums(image, i, position);
        position += c->copy.runs[i].count;
    }
    image_end_section(image);
    return r;
}

/* ---- digest ---- */

static int copy_digest_entry(const struct builder_copying *c, const struct copy_source *s,
                             uint64_t position, const struct disk_entry *e, size_t *dir,
                             struct digest *digest, struct digest_entry *to)
{
    struct copy_attr *attr = copy_attr_of(c, s, e);
    if (attr && attr->kind == COPY_ALIAS) {
        position = le64toh(e->data);
        e = copy_inode_of(c, s, position, &attr);
    }
    if (!e || !attr || attr->kind == COPY_REFUSED || to->name_len > INDEX_NAME_MAX ||
        (attr->kind == COPY_DIRECTORY && *dir == c->copy.dir_count))
        return -EUCLEAN;
    uint64_t data = le64toh(e->data);
    to->mode = attr->attr.mode;
    to->first = S_ISDIR(to->mode)   ? c->copy.dirs[(*dir)++].children
                : S_ISREG(to->mode) ? le64toh(e->size)
                                    : (uint32_t)data;
    to->second = data >> 32;
    if (S_ISREG(to->mode)) {
        const uint64_t *sum = index_records(s->index, SECTION_SUMS, position * 8, 8);
        to->second = sum ? le64toh(*sum) : 0;
    }
    to->target_len = le64toh(e->size);
    if (S_ISLNK(to->mode) &&
        !(to->target = index_records(s->index, SECTION_STRINGS, data, to->target_len)))
        return -EUCLEAN;
    digest_add(digest, to);
    return 0;
}

static int copy_digest_run(const struct builder_copying *c, size_t number, size_t *dir,
                           struct digest *digest)
{
    const struct builder_copy_run *run = &c->copy.runs[number];
    if (run->part == BUILDER_COPY_NO_PART) {
        struct digest_entry root = {
            .name = "", .mode = S_IFDIR, .first = c->copy.dirs[(*dir)++].children};
        digest_add(digest, &root);
        return 0;
    }
    struct copy_span span;
    uint64_t at = 0;
    int r = copy_open_run(c, number, &span);
    for (uint32_t i = 0; r == 0 && i < run->count; i++) {
        struct digest_entry to = {.name = span.names + at, .name_len = copy_name_len(&span, i)};
        if (to.name_len > span.name_bytes - at)
            return -EUCLEAN;
        at += to.name_len;
        r = copy_digest_entry(c, span.s, run->first + (uint64_t)i, &span.e[i], dir, digest,
                              &to);
    }
    return r;
}

static void *copy_make_digest(void *arg)
{
    struct builder_copying *c = arg;
    struct digest digest;
    size_t dir = 0;
    c->digest_error = digest_begin(&digest, true);
    if (c->digest_error < 0)
        return NULL;
    for (size_t i = 0; c->digest_error == 0 && i < c->copy.run_count; i++)
        c->digest_error = copy_digest_run(c, i, &dir, &digest);
    digest_end(&digest, c->digest);
    return NULL;
}

int copying_begin_digest(struct image *image)
{
    struct builder_copying *c = image->b->copying;
    if (!c->has_sums || image->about->sum_kind != SUM_XXH3)
        return 0;
    image->header.digest_kind = htole32(DIGEST_CONTENT);
    c->has_thread = c->entries >= 4 * BATCH &&
                    thread_start(&c->thread, DIGEST_STACK_BYTES, copy_make_digest, c) == 0;
    if (!c->has_thread)
        copy_make_digest(c);
    return 0;
}

int copying_end_digest(struct image *image)
{
    struct builder_copying *c = image->b->copying;
    if (c->has_thread)
        pthread_join(c->thread, NULL);
    c->has_thread = false;
    memcpy(image->header.digest, c->digest, sizeof(c->digest));
    return c->digest_error;
}
