/*
 * Recognizes a tar, or a compressed file that may hold one, by its first bytes.
 *
 * This runs in the calling process, on bytes of unknown origin, and so calls no library. Tar's
 * oldest form has no magic, but every form has the sum of the header's bytes, in octal, in the
 * header. Together with a mode and a size that are numbers, the sum is surer than most magics.
 * (The time need not be a number: tar reads an invalid one as 0. A type that is not known is
 * a file.)
 */
#include "tar_private.h"

#include <errno.h>
#include <string.h>

#include "bytes.h"
#include "numbers.h"

/* Fields of a header block: offset and length. */
enum {
    MODE_AT = 100,
    MODE_BYTES = 8,
    SIZE_AT = 124,
    SIZE_BYTES = 12,
    SUM_AT = 148,
    SUM_BYTES = 8,
};

#define SIZE_LIMIT (UINT64_C(1) << 62)

static bool probe_is_blank(uint8_t byte)
{
    return byte == ' ' || byte == 0;
}

/* Reads octal digits, maybe behind blanks. Returns where they end; 0: there are none. */
static size_t probe_read_octal(const uint8_t *field, size_t len, uint64_t *ret_value)
{
    size_t i = 0;
    uint64_t value = 0;
    while (i < len && probe_is_blank(field[i]))
        i++;
    size_t first = i;
    for (; i < len && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0');
    *ret_value = value;
    return i > first ? i : 0;
}

/* Octal, with anything behind its end; binary (GNU, star); or empty. */
static bool probe_is_number(const uint8_t *field, size_t len)
{
    uint64_t ignored;
    size_t end = probe_read_octal(field, len, &ignored);
    return (end && (end == len || probe_is_blank(field[end]))) || (field[0] & 0x80) ||
           tar_is_zero(field, len) || memcmp(field, "            ", len) == 0;
}

bool tar_is_zero(const uint8_t *bytes, size_t len)
{
    return len == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0);
}

bool tar_is_header(const uint8_t *block)
{
    uint64_t expected;
    size_t end = probe_read_octal(block + SUM_AT, SUM_BYTES, &expected);
    if (!end || (end < SUM_BYTES && !probe_is_blank(block[SUM_AT + end])))
        return false; /* behind the blank, the field may hold anything */

    /* The sum counts its own field as spaces. Some old programs added signed bytes. */
    uint32_t sum = 0, signed_sum = 0;
    for (size_t i = 0; i < TAR_BLOCK_BYTES; i++) {
        uint8_t byte = i >= SUM_AT && i < SUM_AT + SUM_BYTES ? ' ' : block[i];
        sum += byte;
        signed_sum += (uint32_t)(int8_t)byte;
    }
    if (sum != expected && signed_sum != expected)
        return false;

    return probe_is_number(block + MODE_AT, MODE_BYTES) &&
           probe_is_number(block + SIZE_AT, SIZE_BYTES);
}

uint64_t tar_size(const uint8_t *header)
{
    const uint8_t *field = header + SIZE_AT;
    uint64_t size = 0;
    if (field[0] & 0x80)
        for (size_t i = SIZE_BYTES - sizeof(size); i < SIZE_BYTES; i++)
            size = size << 8 | field[i];
    else
        (void)probe_read_octal(field, SIZE_BYTES, &size);
    return min_u64(size, SIZE_LIMIT - 1);
}

bool tar_probe_head(const uint8_t *head, size_t head_len)
{
    size_t at = 0;
    while (head_len - at >= TAR_BLOCK_BYTES && tar_is_zero(head + at, TAR_BLOCK_BYTES))
        at += TAR_BLOCK_BYTES; /* an empty tar, which others may be joined to */
    return head_len >= TAR_BLOCK_BYTES &&
           (head_len - at >= TAR_BLOCK_BYTES ? tar_is_header(head + at)
                                             : tar_is_zero(head + at, head_len - at));
}

/* A file without bytes has nothing but its name to tell its format. */
static bool probe_is_named_tar(const struct source *source)
{
    const char *name = source_name(source);
    size_t len = strlen(name);
    return len > 4 && strcmp(name + len - 4, ".tar") == 0;
}

int tar_probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    return head_len ? tar_probe_head(head, head_len) : probe_is_named_tar(source);
}

/*
 * A .lzma header has no magic. Programs that make one have dictionaries of 2^n or 2^n + 2^(n-1)
 * bytes, and liblzma asks for that, too, and for at most 256 GiB of content.
 */
static bool probe_is_lzma(const uint8_t *head, size_t len)
{
    enum { PROPERTIES = 5 * 5 * 9, LC_LP_MAX = 4, DICTIONARY_LEAST = 4096 };
    static const uint8_t unknown[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    if (len < 13 || head[0] >= PROPERTIES || head[0] % 9 + head[0] / 9 % 5 > LC_LP_MAX)
        return false;
    uint32_t dictionary = bytes_le32(head + 1), lowest_bit = dictionary & -dictionary;
    if (dictionary < DICTIONARY_LEAST ||
        (dictionary != UINT32_MAX && dictionary / lowest_bit != 1 &&
         dictionary / lowest_bit != 3))
        return false;
    return (memcmp(head + 5, unknown, 8) == 0 || (head[9] < 0x40 && tar_is_zero(head + 10, 3)));
}

int tar_is_packed(const struct source *source, const uint8_t *head, size_t head_len,
                  const char **ret_compression)
{
    (void)source;
    static const struct {
        const char *name;
        uint8_t magic[6];
        uint8_t mask0; /* of the first byte */
        uint8_t len;
    } forms[] = {
        {"gzip", {0x1f, 0x8b, 8}, 0xff, 3},
        {"bzip2", {'B', 'Z', 'h'}, 0xff, 3},
        {"xz", {0xfd, '7', 'z', 'X', 'Z', 0}, 0xff, 6},
        {"zstd", {0x28, 0xb5, 0x2f, 0xfd}, 0xff, 4},
        {"zstd", {0x50, 0x2a, 0x4d, 0x18}, 0xf0, 4}, /* begins with a skippable frame */
        {"lz4", {0x04, 0x22, 0x4d, 0x18}, 0xff, 4},
        {"lz4", {0x02, 0x21, 0x4c, 0x18}, 0xff, 4}, /* of lz4 -l, and of programs before 2013 */
        {"lzip", {'L', 'Z', 'I', 'P'}, 0xff, 4},
        {"compress", {0x1f, 0x9d}, 0xff, 2},
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (head_len < 8 || (head[0] & forms[i].mask0) != forms[i].magic[0] ||
            memcmp(head + 1, forms[i].magic + 1, forms[i].len - 1u) != 0)
            continue;
        if (forms[i].magic[0] == 'B' && (head[3] < '1' || head[3] > '9'))
            continue;
        *ret_compression = forms[i].name;
        return 1;
    }
    if (!probe_is_lzma(head, head_len))
        return 0;
    *ret_compression = "lzma";
    return 1;
}

/* The magic of some compressions is text, but what follows it is not. */
static bool probe_is_text(const uint8_t *bytes, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((bytes[i] < ' ' && bytes[i] != '\n' && bytes[i] != '\t') || bytes[i] > '~')
            return false;
    return true;
}

int tar_find_behind(const struct front *front, uint64_t *ret_offset)
{
    enum { SAMPLE_BYTES = 64 };
    struct front place;
    const char *compression;
    for (size_t cursor = 0; front_next(front, &cursor, &place);) {
        bool is_tar = place.len >= TAR_BLOCK_BYTES && tar_is_header(place.bytes);
        if (!is_tar &&
            (tar_is_packed(front->source, place.bytes, place.len, &compression) != 1 ||
             probe_is_text(place.bytes, min_u64(place.len, SAMPLE_BYTES))))
            continue;
        *ret_offset = place.offset;
        return 1;
    }
    return 0;
}

/* Where the headers lead that can be found one after the other: to no header, or past the end.
 */
static uint64_t probe_walk(const struct source *source, uint8_t block[TAR_BLOCK_BYTES])
{
    uint64_t size = source_size(source), at = 0;
    while (size >= TAR_BLOCK_BYTES && at <= size - TAR_BLOCK_BYTES &&
           source_read(source, block, TAR_BLOCK_BYTES, at) == 0 && tar_is_header(block))
        at = tar_next(block, at);
    return at;
}

/*
 * Does it reach its end marker? Where a piece ends in zeros, and the next begins with a member,
 * only a walk can tell.
 */
bool tar_is_whole(const struct source *source, bool by_end)
{
    uint8_t bytes[2 * TAR_BLOCK_BYTES];
    uint64_t size = source_size(source);
    if (size < sizeof(bytes) ||
        source_read(source, bytes, sizeof(bytes), size - sizeof(bytes)) < 0 ||
        !tar_is_zero(bytes, sizeof(bytes)))
        return false;
    return by_end || (probe_walk(source, bytes) <= size - TAR_BLOCK_BYTES &&
                      tar_is_zero(bytes, TAR_BLOCK_BYTES));
}

/* The last member leads to a place in `next`, where another header lies, or the end marker. */
bool tar_continues(const struct source *source, const struct source *next, bool is_split)
{
    uint8_t block[TAR_BLOCK_BYTES];
    uint64_t size = source_size(source), at = probe_walk(source, block);
    if (at < size) /* a header is cut as well: not here */
        return size - at < TAR_BLOCK_BYTES;
    at -= size;
    if (at == 0 && is_split)
        return false;
    return source_size(next) < TAR_BLOCK_BYTES || at > source_size(next) - TAR_BLOCK_BYTES ||
           (source_read(next, block, sizeof(block), at) == 0 &&
            (tar_is_header(block) || tar_is_zero(block, sizeof(block))));
}

/* Is there a block of zeros after the last data? */
static int probe_has_end_marker(const struct archive_end *end, bool *ret_has)
{
    uint8_t blocks[64][TAR_BLOCK_BYTES];
    uint64_t size = source_size(end->source);
    uint64_t at = (end->data_end + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1);
    *ret_has = false;
    while (!*ret_has && at < size && size - at >= TAR_BLOCK_BYTES &&
           !archive_end_stopped(end)) {
        size_t n = (size_t)min_u64(size - at, sizeof(blocks));
        int r = source_read(end->source, blocks, n, at);
        if (r < 0)
            return r;
        for (size_t i = 0; i < n / TAR_BLOCK_BYTES && !*ret_has; i++)
            *ret_has = tar_is_zero(blocks[i], TAR_BLOCK_BYTES);
        at += n;
    }
    return 0;
}

int tar_check_end(const struct archive_end *end)
{
    bool has_marker;
    if (end->compression || end->info->block_bytes > 0)
        return 0;
    int r = probe_has_end_marker(end, &has_marker);
    if (r < 0 || has_marker)
        return r;
    struct fault fault = {0};
    fault_set(&fault, -EUCLEAN, NULL, source_size(end->source),
              "it has no end-of-archive marker: maybe it was cut off, and members are missing");
    fault_advise(&fault, "compare it with its original, or copy it again");
    end->report(end->ctx, &fault);
    return 0;
}
