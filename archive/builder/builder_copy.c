/*
 * The builder, copied entries.
 *
 * builder_copy takes over what entries refer to: tables of attributes, ranges, blocks, link
 * targets and extended attributes are put behind each other, with the numbers in them shifted
 * to their new places. Where some files of a part are not copied, only the words are taken that
 * the others refer to, which costs one look at each copied entry more. The entries
 * themselves, their names and sums go straight from the old image to the new one while that is
 * written, run by run.
 *
 * The values of an entry are checked when it is written, which is when they are read anyway. So
 * damage may turn up only then.
 *
 * The names of an inode are counted anew, since some may not be copied, and others twice. The
 * first one has the inode; the others become aliases of it, whatever they were.
 */
#include "builder_copy.h"

#include <endian.h>
#include <string.h>

#include "builder_copy_private.h"
#include "bytes.h"
#include "checksum.h"
#include "digest.h"
#include "index_records.h"
#include "numbers.h"

enum { BATCH = 256 }; /* entries that are written at once */

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

/* 64 words of a table, of 8 bytes each. */
struct copy_words {
    uint64_t kept;   /* a bit for each */
    uint64_t before; /* how many are kept before these */
};

/* A section of a part, of which the words are copied that copied entries refer to. */
struct copy_table {
    const struct index *index;
    enum disk_section_id id;
    uint64_t bytes;
    struct copy_words *words; /* NULL: all are kept; one more than needed */
    uint64_t work;            /* of keeping, in 64 words at a time */
    uint64_t start;           /* in the new section, in bytes */
};

enum copy_table_name { BLOCKS, WINDOWS, EXTENTS, STRINGS, XATTRS, TABLES };

static const enum disk_section_id table_sections[TABLES] = {
    [BLOCKS] = SECTION_BLOCKS,   [WINDOWS] = SECTION_WINDOWS, [EXTENTS] = SECTION_EXTENTS,
    [STRINGS] = SECTION_STRINGS, [XATTRS] = SECTION_XATTRS,
};

struct copy_source {
    const struct index *index;
    uint64_t base;
    uint64_t archive_bytes; /* as many of them as the new archive has */
    uint32_t entries;
    size_t attrs; /* its first of `attrs` */
    uint32_t attr_count;
    uint64_t copied; /* entries */
    bool is_whole;   /* all its files are copied */
    struct copy_table tables[TABLES];
    uint32_t block_bytes;
    bool repeats;
    struct copy_link *links; /* by position of the inode; NULL: each has one name */
};

struct builder_copying {
    struct builder_copy copy;
    struct copy_source *sources;
    VECTOR(struct copy_attr) attrs;
    uint32_t entries;
    bool has_sums, mixes_sums;
    uint32_t damaged_part, damaged_position;
};

/* ---- tables ---- */

static void table_keep_all(struct copy_table *t)
{
    free(t->words);
    t->words = NULL;
}

/* Keep bytes, which must be the table's. */
static int table_keep(struct copy_table *t, uint64_t offset, uint64_t len)
{
    if (len > t->bytes || offset > t->bytes - len)
        return -EUCLEAN;
    if (!t->words)
        return 0;
    for (uint64_t at = offset / 8, end = (offset + len + 7) / 8, n; at < end; at += n) {
        n = min_u64(64 - at % 64, end - at);
        t->words[at / 64].kept |= UINT64_MAX >> (64 - n) << at % 64;
    }
    /* Entries of a good index share little; where all lead to the same long piece, the whole
     * table costs less than looking at the piece each time. */
    t->work += len / 512;
    if (t->work > t->bytes / 8)
        table_keep_all(t);
    return 0;
}

/* After the last table_keep. */
static void table_settle(struct copy_table *t, uint64_t start)
{
    uint64_t kept = 0;
    t->start = start;
    for (uint64_t i = 0; t->words && i < t->bytes / 512 + 2; i++) {
        t->words[i].before = kept;
        kept += (uint64_t)__builtin_popcountll(t->words[i].kept);
    }
}

static uint64_t table_before(const struct copy_table *t, uint64_t word)
{
    if (!t->words)
        return word;
    const struct copy_words *w = &t->words[word / 64];
    uint64_t below = w->kept & ((UINT64_C(1) << word % 64) - 1);
    return w->before + (uint64_t)__builtin_popcountll(below);
}

/* The new place of bytes, which must all be kept. */
static int table_place(const struct copy_table *t, uint64_t offset, uint64_t len,
                       uint64_t *ret_offset)
{
    if (len > t->bytes || offset > t->bytes - len)
        return -EUCLEAN;
    uint64_t first = offset / 8, end = (offset + len + 7) / 8, before = table_before(t, first);
    if (table_before(t, end) - before != end - first)
        return -EUCLEAN;
    *ret_offset = t->start + before * 8 + offset % 8;
    return 0;
}

/*
 * Find kept bytes from *at on, as many as lie in a row, and move *at behind them. 0: there are
 * none, or they are damaged (*ret_bytes is then NULL).
 */
static uint64_t table_next(const struct copy_table *t, uint64_t *at, const void **ret_bytes)
{
    uint64_t word = (*at + 7) / 8, words = (t->bytes + 7) / 8, end = words;
    *ret_bytes = "";
    if (t->words) {
        while (word < words && !(t->words[word / 64].kept >> word % 64 & 1))
            word = t->words[word / 64].kept >> word % 64 ? word + 1 : (word | 63) + 1;
        for (end = word; end < words && t->words[end / 64].kept >> end % 64 & 1;)
            end = end % 64 == 0 && t->words[end / 64].kept == UINT64_MAX ? end + 64 : end + 1;
    }
    if (word >= words)
        return 0;
    *at = min_u64(end * 8, t->bytes);
    *ret_bytes = index_records(t->index, t->id, word * 8, *at - word * 8);
    return *ret_bytes ? *at - word * 8 : 0;
}

/* Append the kept words to a vector. */
static int table_copy(struct copy_table *t, void *at, size_t *count, size_t *capacity,
                      size_t item_bytes)
{
    const void *bytes;
    uint64_t next = 0, len;
    table_settle(t, *count * item_bytes);
    while ((len = table_next(t, &next, &bytes)) > 0) {
        if (vector_grow(at, *count, len / item_bytes, capacity, item_bytes) < 0)
            return -ENOMEM;
        memcpy(*(char **)at + *count * item_bytes, bytes, len);
        *count += len / item_bytes;
    }
    return bytes ? 0 : -EUCLEAN;
}

#define TABLE_COPY(t, v)                                                                       \
    table_copy((t), &(v)->at, &(v)->count, &(v)->capacity, sizeof(*(v)->at))

/* ---- what entries refer to ---- */

static enum copy_kind copy_kind_of(uint32_t mode, uint32_t flags)
{
    static const enum copy_kind kinds[DATA_KIND_MASK + 1] = {
        [DATA_KIND_STORED] = COPY_STORED,
        [DATA_KIND_PACKED] = COPY_PACKED,
        [DATA_KIND_EXTENTS] = COPY_EXTENTS,
    };
    uint32_t kind = flags & DATA_KIND_MASK;
    if (kind == 0 || !index_mode_is_valid(mode))
        return COPY_REFUSED;
    if (kind == DATA_KIND_ALIAS)
        return S_ISDIR(mode) ? COPY_REFUSED : COPY_ALIAS;
    if (S_ISDIR(mode))
        return kind == DATA_KIND_NONE ? COPY_DIRECTORY : COPY_REFUSED;
    return S_ISREG(mode) ? kinds[kind] : S_ISLNK(mode) ? COPY_SYMLINK : COPY_PLAIN;
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
static int copy_attr_number(struct image *image, struct copy_attr *attr, enum copy_form form,
                            uint32_t *ret_number)
{
    struct disk_attr new = attr->attr;
    new.flags = form == FORM_ALIAS    ? DATA_KIND_ALIAS
                : form == FORM_LINKED ? new.flags | ATTR_NLINK
                                      : new.flags & ~ATTR_NLINK;
    int r =
        attr->numbers[form] ? 0 : attr_table_number(&image->attrs, &new, &attr->numbers[form]);
    *ret_number = attr->numbers[form];
    return r;
}

static bool copy_in_archive(const struct copy_source *s, uint64_t offset, uint64_t len)
{
    return len <= s->archive_bytes && offset <= s->archive_bytes - len;
}

/* The blocks of packed data, as bytes of their table, which must all be the source's. */
static int copy_find_blocks(const struct copy_source *s, uint64_t place, uint64_t length,
                            uint64_t *ret_offset, uint64_t *ret_len)
{
    uint64_t end, offset = (uint32_t)place * sizeof(struct disk_block);
    const struct disk_block *block =
        index_records(s->index, SECTION_BLOCKS, offset, sizeof(*block));
    if (!block || block->block_bytes == 0 || length == 0 ||
        __builtin_add_overflow((place & ~RANGE_PACKED) >> 32, length - 1, &end))
        return -EUCLEAN;
    uint64_t last = end / le32toh(block->block_bytes);
    *ret_offset = offset;
    *ret_len = (last + 1) * sizeof(*block);
    return last < UINT32_MAX ? 0 : -EUCLEAN;
}

static int copy_keep_packed(struct copy_source *s, uint64_t place, uint64_t length)
{
    uint64_t offset, len;
    int r = copy_find_blocks(s, place, length, &offset, &len);
    return r < 0 ? r : table_keep(&s->tables[BLOCKS], offset, len);
}

/* The new place of packed data. */
static int copy_packed(const struct copy_source *s, uint64_t length, uint64_t *place)
{
    uint64_t offset, len, new;
    int r = copy_find_blocks(s, *place, length, &offset, &len);
    if (r == 0)
        r = table_place(&s->tables[BLOCKS], offset, len, &new);
    if (r == 0)
        *place += new / sizeof(struct disk_block) - (uint32_t)*place;
    return r;
}

static int copy_keep_range(struct copy_source *s, uint64_t *range)
{
    uint64_t source = le64toh(range[0]);
    return source & RANGE_PACKED ? copy_keep_packed(s, source, le64toh(range[2])) : 0;
}

static int copy_range(struct copy_source *s, uint64_t *range)
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

typedef int copy_range_fn(struct copy_source *s, uint64_t *range);

/* The ranges of a list: ascending, without overlap, as many bytes as it says. */
static int copy_ranges(struct copy_source *s, uint64_t *list, uint64_t count,
                       copy_range_fn *each)
{
    uint64_t end = 0, bytes = 0;
    for (uint64_t *range = list + 2; count > 0; range += 3, count--) {
        uint64_t logical = le64toh(range[1]), length = le64toh(range[2]);
        if (copy_begins_list(range[0]) || copy_begins_list(range[1]) ||
            copy_begins_list(range[2]) || logical < end ||
            __builtin_add_overflow(logical, length, &end) || each(s, range) < 0)
            return -EUCLEAN;
        bytes += length;
    }
    return bytes == le64toh(list[1]) && !copy_begins_list(list[1]) ? 0 : -EUCLEAN;
}

/* The lists of a source, from `start` on. */
static int copy_lists(struct builder *b, struct copy_source *s, size_t start,
                      copy_range_fn *each)
{
    if (b->extents.count == start)
        return 0;
    uint64_t *list = b->extents.at + start, left = b->extents.count - start;
    while (left > 0) {
        uint64_t count = left < 2 ? 0 : (uint32_t)le64toh(list[0]);
        if (left < 2 || !copy_begins_list(list[0]) || count > (left - 2) / 3 ||
            copy_ranges(s, list, count, each) < 0)
            return -EUCLEAN;
        list += 2 + 3 * count;
        left -= 2 + 3 * count;
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
    size_t start = b->blocks.count;
    int r = TABLE_COPY(&s->tables[BLOCKS], &b->blocks);
    if (r == 0 && b->blocks.count > UINT32_MAX)
        return -EOVERFLOW;
    for (size_t i = start; r == 0 && i < b->blocks.count; i++)
        r = copy_block(b, s, &b->blocks.at[i]);
    return r;
}

/* Add the point of a block, if that is kept, as it is, with the sums of the block's pieces. */
static int copy_point(struct builder *b, struct copy_source *s, const struct disk_point *point,
                      const char *pieces)
{
    uint64_t place, offset = (uint64_t)le32toh(point->block) * sizeof(struct disk_block);
    if (table_place(&s->tables[BLOCKS], offset, sizeof(struct disk_block), &place) < 0)
        return offset < s->tables[BLOCKS].bytes ? 0 : -EUCLEAN;
    int r = table_keep(&s->tables[WINDOWS], point->window_packed ? le64toh(point->window) : 0,
                       le32toh(point->window_packed));
    if (r == 0)
        r = builder_append_pieces(b, pieces);
    return r < 0 ? r : vector_push(&b->points, *point);
}

/* Shift the numbers in a point that was added. */
static int copy_shift_point(const struct copy_source *s, struct disk_point *point)
{
    uint64_t place = 0, window = 0;
    int r = table_place(&s->tables[BLOCKS],
                        (uint64_t)le32toh(point->block) * sizeof(struct disk_block),
                        sizeof(struct disk_block), &place);
    if (r == 0 && point->window_packed)
        r = table_place(&s->tables[WINDOWS], le64toh(point->window),
                        le32toh(point->window_packed), &window);
    point->block = htole32((uint32_t)(place / sizeof(struct disk_block)));
    point->window = htole64(window);
    return r;
}

/* The points of blocks that are parts of streams, their windows, the sums of their pieces. */
static int copy_points(struct builder *b, struct copy_source *s)
{
    uint64_t count = index_points(s->index), start = b->points.count, next = 0;
    bool has_pieces = index_has_pieces(s->index);
    const struct disk_point *points =
        index_records(s->index, SECTION_POINTS, 0, count * sizeof(*points));
    const char *pieces = index_records(s->index, SECTION_PIECES, 0, count * POINT_PIECES_BYTES);
    int r = count > 0 && (!points || (!pieces && has_pieces)) ? -EUCLEAN : 0;
    for (uint64_t i = 0; r == 0 && i < count; i++) {
        r = le32toh(points[i].block) < next ? -EUCLEAN : 0;
        next = (uint64_t)le32toh(points[i].block) + 1;
        if (r == 0)
            r = copy_point(b, s, &points[i],
                           has_pieces ? pieces + i * POINT_PIECES_BYTES : NULL);
    }
    if (r == 0)
        r = TABLE_COPY(&s->tables[WINDOWS], &b->windows);
    for (uint64_t i = start; r == 0 && i < b->points.count; i++)
        r = copy_shift_point(s, &b->points.at[i]);
    return r;
}

/* Lists of ranges say which blocks are kept, and later where these are now. */
static int copy_tables(struct builder *b, struct copy_source *s)
{
    size_t lists = b->extents.count;
    int r = TABLE_COPY(&s->tables[EXTENTS], &b->extents);
    if (r == 0 && s->tables[BLOCKS].words)
        r = copy_lists(b, s, lists, copy_keep_range);
    if (r == 0)
        r = copy_blocks(b, s);
    if (r == 0)
        r = copy_points(b, s);
    if (r == 0)
        r = copy_lists(b, s, lists, copy_range);
    if (r == 0)
        r = TABLE_COPY(&s->tables[STRINGS], &b->strings);
    return r < 0 ? r : TABLE_COPY(&s->tables[XATTRS], &b->xattrs);
}

static int copy_begin_source(const struct builder_copy_part *part, uint64_t archive_bytes,
                             struct copy_source *s)
{
    const struct index_info *info = index_info(part->index);
    *s = (struct copy_source){
        .index = part->index,
        .base = part->base,
        .entries = info->entries,
        .copied = s->copied,
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

static int copy_begin_tables(struct copy_source *s)
{
    /* Directories that merged with others' are not copied. */
    s->is_whole = s->copied + index_info(s->index)->directories >= s->entries;
    for (int i = 0; i < TABLES; i++) {
        uint64_t bytes = index_section_bytes(s->index, table_sections[i]);
        struct copy_words *words =
            s->is_whole || !bytes ? NULL : calloc(bytes / 512 + 2, sizeof(*words));
        s->tables[i] = (struct copy_table){
            .index = s->index, .id = table_sections[i], .bytes = bytes, .words = words};
        if (!s->is_whole && bytes && !words)
            return -ENOMEM;
    }
    return 0;
}

/* Fill in the header's part that depends on all. */
static void copy_describe(struct builder_copying *c, struct builder_header *header)
{
    enum sum_kind first = SUM_XXH3;
    bool differ = false; /* some parts lack sums, or have another kind */
    header->codec = CODEC_NONE;
    header->block_bytes = 0;
    for (size_t i = 0; i < c->copy.part_count; i++) {
        const struct index_info *info = index_info(c->copy.parts[i].index);
        header->block_bytes = max_u32(header->block_bytes, info->block_bytes);
        first = i == 0 ? info->sum_kind : first;
        differ = differ || !info->has_some_sums || info->sum_kind != first;
        c->has_sums = c->has_sums || info->has_some_sums;
    }
    c->mixes_sums = c->has_sums && differ;
    header->sum_kind = c->mixes_sums ? SUM_MIXED : c->has_sums ? first : SUM_XXH3;
}

static int copy_begin(struct builder_copying *c, uint64_t archive_bytes)
{
    uint64_t entries = 0;
    c->sources = calloc(c->copy.part_count, sizeof(*c->sources));
    if (!c->sources)
        return -ENOMEM;
    for (size_t i = 0; i < c->copy.run_count; i++) {
        const struct builder_copy_run *run = &c->copy.runs[i];
        entries += run->count;
        if (run->part != BUILDER_COPY_NO_PART)
            c->sources[run->part].copied += run->count;
    }
    if (entries > ENTRIES_MAX)
        return -EOVERFLOW;
    c->entries = (uint32_t)entries;
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->copy.part_count; i++) {
        c->damaged_part = (uint32_t)i;
        r = copy_begin_source(&c->copy.parts[i], archive_bytes, &c->sources[i]);
        if (r == 0)
            r = copy_attrs(c, &c->sources[i]);
        if (r == 0)
            r = copy_begin_tables(&c->sources[i]);
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
    for (size_t i = 0; c->sources && i < c->copy.part_count; i++) {
        struct copy_source *s = &c->sources[i];
        free(s->links);
        for (int j = 0; j < TABLES; j++)
            table_keep_all(&s->tables[j]);
    }
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

/* An inode's set of extended attributes. */
static int copy_find_xattrs(const struct copy_source *s, uint64_t inode, uint64_t *ret_offset,
                            uint64_t *ret_len)
{
    int r = index_extra(s->index, (uint32_t)inode, EXTRA_XATTRS, ret_offset);
    const uint8_t *head =
        r == 0 ? index_records(s->index, SECTION_XATTRS, *ret_offset, 8) : NULL;
    *ret_len = head ? 8 + (uint64_t)bytes_le32(head + 4) : 0;
    return head ? 0 : -EUCLEAN;
}

static int copy_find_list(const struct copy_source *s, uint64_t offset,
                          const uint64_t **ret_list, uint64_t *ret_len)
{
    const uint64_t *list = index_records(s->index, SECTION_EXTENTS, offset, 16);
    if (!list || offset % 8 || !copy_begins_list(list[0]))
        return -EUCLEAN;
    *ret_list = list;
    *ret_len = 16 + (uint64_t)(uint32_t)le64toh(list[0]) * 24;
    return 0;
}

/* Keep what an inode refers to. */
static int copy_keep(struct copy_source *s, uint64_t inode, const struct copy_attr *attr,
                     const struct disk_entry *e)
{
    uint64_t size = le64toh(e->size), data = le64toh(e->data), len;
    const uint64_t *list;
    int r = 0;
    if (attr->kind == COPY_SYMLINK)
        r = table_keep(&s->tables[STRINGS], data, size);
    else if (attr->kind == COPY_PACKED)
        r = copy_keep_packed(s, data, size);
    else if (attr->kind == COPY_EXTENTS && (r = copy_find_list(s, data, &list, &len)) == 0)
        r = table_keep(&s->tables[EXTENTS], data, len);
    if (r == 0 && attr->attr.flags & ATTR_XATTRS) {
        r = copy_find_xattrs(s, inode, &data, &len);
        r = r < 0 ? r : table_keep(&s->tables[XATTRS], data, len);
    }
    return r;
}

/* Note an inode's name, which has this new position, and its references. */
static int copy_note(struct builder_copying *c, struct copy_source *s, uint64_t inode,
                     const struct disk_entry *e, uint32_t position)
{
    struct copy_attr *attr = copy_attr_of(c, s, e);
    bool is_alias = attr && attr->kind == COPY_ALIAS;
    if (is_alias) {
        inode = le64toh(e->data);
        e = copy_inode_of(c, s, inode, &attr);
    }
    if (!e || !attr)
        return -EUCLEAN;
    if (s->links && attr->kind != COPY_DIRECTORY &&
        (s->repeats || attr->attr.flags & ATTR_NLINK) && s->links[inode].names++ == 0)
        s->links[inode].position = position;
    return s->is_whole ? 0 : copy_keep(s, inode, attr, e);
}

/* The same for a run, whose first entry has this new position. */
static int copy_note_run(struct builder_copying *c, size_t number, uint32_t position)
{
    const struct builder_copy_run *run = &c->copy.runs[number];
    struct copy_source *s = &c->sources[run->part];
    struct copy_span span;
    c->damaged_part = run->part;
    int r = copy_open_run(c, number, &span);
    for (uint32_t i = 0; r == 0 && i < run->count; i++) {
        c->damaged_position = run->first + i;
        r = copy_note(c, s, run->first + (uint64_t)i, &span.e[i], position + i);
    }
    return r;
}

/* The names of inodes, and what they refer to, where that is not simply all. */
static int copy_note_all(struct builder_copying *c)
{
    uint32_t position = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->copy.run_count; i++) {
        const struct builder_copy_run *run = &c->copy.runs[i];
        const struct copy_source *s =
            run->part != BUILDER_COPY_NO_PART ? &c->sources[run->part] : NULL;
        if (s && (s->links || !s->is_whole))
            r = copy_note_run(c, i, position);
        position += run->count;
    }
    return r;
}

static int copy_all_tables(struct builder *b, struct builder_copying *c)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < c->copy.part_count; i++) {
        c->damaged_part = (uint32_t)i;
        c->damaged_position = INDEX_ROOT;
        r = copy_tables(b, &c->sources[i]);
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
    int r = copy_begin(c, header->archive_bytes);
    if (r == 0)
        r = copy_note_all(c);
    if (r == 0)
        r = copy_all_tables(b, c);
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
    bool has_digest;
    struct digest digest;
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
    const uint64_t *list, *last;
    uint64_t len, end;
    if (copy_find_list(s, *data, &list, &len) < 0) /* copy_lists checked the list */
        return -EUCLEAN;
    last = index_records(s->index, SECTION_EXTENTS, *data + len - 24, 24);
    if (len > 16 &&
        (!last || __builtin_add_overflow(le64toh(last[1]), le64toh(last[2]), &end) ||
         end > size))
        return -EUCLEAN;
    *ret_bytes = le64toh(list[1]);
    return *ret_bytes <= size ? table_place(&s->tables[EXTENTS], *data, len, data) : -EUCLEAN;
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
    image_add_saturated(&w->image->header.total_bytes, size);
    image_add_saturated(&w->image->header.data_bytes, bytes);
    return r;
}

static int copy_symlink(const struct copy_source *s, uint64_t size, uint64_t *data)
{
    const char *target = size && size <= INDEX_SYMLINK_MAX
                             ? index_records(s->index, SECTION_STRINGS, *data, size)
                             : NULL;
    if (!target || memchr(target, '\0', size))
        return -EUCLEAN;
    return table_place(&s->tables[STRINGS], *data, size, data);
}

/* An inode's values in EXTRA, but for the number of its names. */
static int copy_extras(struct copy_walk *w, const struct copy_source *s, uint64_t inode,
                       uint32_t flags)
{
    uint64_t value, len;
    int r = 0;
    if (flags & ATTR_XATTRS) {
        r = copy_find_xattrs(s, inode, &value, &len);
        if (r == 0)
            r = table_place(&s->tables[XATTRS], value, len, &value);
        if (r == 0)
            r = image_add_extra(w->image, w->position, EXTRA_XATTRS, value);
    }
    if (r == 0 && flags & ATTR_WIDE_MTIME) {
        r = index_extra(s->index, (uint32_t)inode, EXTRA_MTIME, &value);
        r = r == 0 ? image_add_extra(w->image, w->position, EXTRA_MTIME, value) : -EUCLEAN;
    }
    return r;
}

/* Give *to, if it is an alias, its inode's fields. */
static int copy_resolve(const struct copy_walk *w, const struct copy_source *s,
                        struct disk_entry *to, struct copy_attr **attr, uint64_t *inode)
{
    if ((*attr)->kind != COPY_ALIAS)
        return 0;
    *inode = le64toh(to->data);
    const struct disk_entry *e = s->links ? copy_inode_of(w->c, s, *inode, attr) : NULL;
    if (!e)
        return -EUCLEAN;
    to->size = e->size;
    to->data = e->data;
    to->mtime = e->mtime;
    return 0;
}

/* Has the inode a name before this one? Then *to becomes an alias of that. */
static bool copy_is_alias(const struct copy_walk *w, const struct copy_source *s,
                          const struct copy_attr *attr, uint64_t inode, struct disk_entry *to,
                          uint32_t *ret_names)
{
    const struct copy_link *link =
        s->links && attr->kind != COPY_DIRECTORY ? &s->links[inode] : NULL;
    *ret_names = link ? link->names : 1;
    if (*ret_names < 2 || link->position == w->position)
        return false;
    to->size = 0;
    to->data = htole64(link->position);
    return true;
}

/* Add an entry, with its inode's fields, to the digest. */
static int copy_digest(struct copy_walk *w, const struct copy_source *s,
                       const struct copy_attr *attr, uint64_t inode, const char *name,
                       uint64_t name_len, const struct disk_entry *entry)
{
    const struct builder_copy *copy = &w->c->copy;
    struct digest_entry e = {
        .name = name,
        .name_len = name_len,
        .mode = attr->attr.mode,
        .size = le64toh(entry->size),
        .data = le64toh(entry->data),
        .has_holes = attr->attr.flags & ATTR_HOLES,
    };
    if (attr->kind == COPY_DIRECTORY) {
        if (w->dir == copy->dir_count)
            return -EUCLEAN;
        e.data = (uint64_t)copy->dirs[w->dir].children << 32;
    } else if (S_ISREG(e.mode)) {
        const uint64_t *sum = index_records(s->index, SECTION_SUMS, inode * 8, 8);
        e.sum = sum ? le64toh(*sum) : 0;
    } else if (S_ISLNK(e.mode)) {
        e.target = index_records(s->index, SECTION_STRINGS, e.data, e.size);
        if (!e.target)
            return -EUCLEAN;
    }
    digest_add(&w->digest, &e);
    return 0;
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

/* An entry of this name. `to` is a copy of it. */
static int copy_entry(struct copy_walk *w, const struct copy_source *s, uint64_t position,
                      const char *name, uint64_t name_len, struct disk_entry *to)
{
    struct copy_attr *attr = copy_attr_of(w->c, s, to);
    uint32_t names = 1, number = 0;
    if (!attr || name_len > INDEX_NAME_MAX || (name_len == 0 && w->position > 0) ||
        copy_resolve(w, s, to, &attr, &position) < 0 || to->mtime == 0 ||
        (le64toh(to->mtime) & ((1u << DISK_NSEC_BITS) - 1)) > 999999999)
        return -EUCLEAN;
    int r = w->has_digest ? copy_digest(w, s, attr, position, name, name_len, to) : 0;
    bool is_alias = copy_is_alias(w, s, attr, position, to, &names);
    if (r == 0 && !is_alias)
        r = copy_data(w, s, attr->kind, to);
    if (r == 0 && names > 1 && !is_alias)
        r = image_add_extra(w->image, w->position, EXTRA_NLINK, names);
    if (r == 0 && !is_alias)
        r = copy_extras(w, s, position, attr->attr.flags);
    if (r == 0)
        r = copy_attr_number(w->image, attr,
                             is_alias    ? FORM_ALIAS
                             : names > 1 ? FORM_LINKED
                                         : FORM_SINGLE,
                             &number);
    to->name_attr = htole64(w->name_offset | (uint64_t)number << DISK_NAME_BITS);
    w->name_offset += name_len;
    image_add_saturated(&w->image->header.files, S_ISREG(attr->attr.mode));
    image_add_saturated(&w->image->header.inodes, !is_alias);
    w->position++;
    return r;
}

static int copy_run(struct copy_walk *w, size_t number)
{
    const struct builder_copy_run *run = &w->c->copy.runs[number];
    struct disk_entry batch[BATCH];
    struct copy_span span;
    uint64_t at = 0; /* in the names */
    int r = copy_open_run(w->c, number, &span);
    w->c->damaged_part = run->part;
    w->c->damaged_position = run->first;
    for (uint32_t i = 0, n; r == 0 && i < run->count; i += n) {
        n = min_u32(run->count - i, BATCH);
        memcpy(batch, span.e + i, n * sizeof(*batch));
        for (uint32_t j = 0; r == 0 && j < n; j++) {
            uint64_t len = copy_name_len(&span, i + j);
            w->c->damaged_position = run->first + i + j;
            r = len <= span.name_bytes - at
                    ? copy_entry(w, span.s, run->first + (uint64_t)i + j, span.names + at, len,
                                 &batch[j])
                    : -EUCLEAN;
            at += len;
        }
        if (r == 0)
            r = image_put(w->image, batch, n * sizeof(*batch));
    }
    return r;
}

/* A root as in an empty builder. */
static int copy_plain_root(struct copy_walk *w)
{
    uint32_t attr = 0;
    int r = attr_table_number(&w->image->attrs, &builder_directory, &attr);
    struct disk_entry root = {
        .name_attr = htole64((uint64_t)attr << DISK_NAME_BITS),
        .mtime = htole64((uint64_t)DISK_MTIME_BIAS << DISK_NSEC_BITS),
    };
    if (r == 0)
        r = copy_directory(w, &root);
    if (r == 0 && w->has_digest) {
        struct digest_entry e = {.name = "", .mode = S_IFDIR, .data = le64toh(root.data)};
        digest_add(&w->digest, &e);
    }
    w->position++;
    image_add_saturated(&w->image->header.inodes, 1);
    return r < 0 ? r : image_put(w->image, &root, sizeof(root));
}

int copying_put_entries(struct image *image)
{
    struct builder_copying *c = image->b->copying;
    struct copy_walk w = {.image = image, .c = c, .child = 1};
    w.has_digest = c->has_sums && image->about->sum_kind == SUM_XXH3;
    int r = w.has_digest ? digest_begin(&w.digest, true) : 0;
    if (r < 0)
        return r;
    r = image_begin_section(image, SECTION_ENTRIES);
    for (size_t i = 0; r == 0 && i < c->copy.run_count; i++) {
        r = c->copy.runs[i].part == BUILDER_COPY_NO_PART ? copy_plain_root(&w)
                                                         : copy_run(&w, i);
    }
    image_end_section(image);
    if (r == 0 && w.name_offset >= DISK_NAME_LIMIT)
        r = -EOVERFLOW;
    if (r == 0 && (w.dir != c->copy.dir_count || w.child != c->entries))
        r = -EUCLEAN;
    image->header.name_bytes = htole64(w.name_offset);
    if (w.has_digest)
        image->header.digest_kind = htole32(digest_end(&w.digest, image->header.digest));
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
