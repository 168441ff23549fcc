/*
 * Sort the names of a directory as memcmp would.
 *
 * Names in a dataset differ in a few digits behind a long common beginning, so the
 * beginning is found first, and the eight bytes behind it make a number to sort by;
 * names that agree in those are sorted the same way by what follows. Directories that
 * were archived in order, as many are, are noticed and cost one pass.
 */
#include "builder_private.h"

#include <endian.h>
#include <string.h>

/* Up to here moving items one by one is faster than counting bytes. */
#define INSERTION_MAX 32

static void insertion_sort(struct sort_item *items, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        struct sort_item item = items[i];
        size_t j = i;
        for (; j > 0 && items[j - 1].key > item.key; j--)
            items[j] = items[j - 1];
        items[j] = item;
    }
}

/* By bytes from the last to the first; a byte that all keys share needs no pass. */
static void radix_sort(struct sort_item *items, size_t count, struct sort_item *spare)
{
    size_t counts[8][256] = {0};
    for (size_t i = 0; i < count; i++)
        for (unsigned byte = 0; byte < 8; byte++)
            counts[byte][items[i].key >> (8 * byte) & 255]++;

    struct sort_item *from = items, *to = spare;
    for (unsigned byte = 0; byte < 8; byte++) {
        size_t *at = counts[byte];
        if (at[items[0].key >> (8 * byte) & 255] == count)
            continue;
        size_t sum = 0;
        for (unsigned v = 0; v < 256; v++) {
            size_t n = at[v];
            at[v] = sum;
            sum += n;
        }
        for (size_t i = 0; i < count; i++)
            to[at[from[i].key >> (8 * byte) & 255]++] = from[i];
        struct sort_item *swap = from;
        from = to;
        to = swap;
    }
    if (from != items)
        memcpy(items, from, count * sizeof(*items));
}

/* How many bytes from `depth` on all names have in common. */
static size_t common_length(const struct builder *b, const struct sort_item *items,
                            size_t count, size_t depth)
{
    uint32_t first = (uint32_t)items[0].name;
    const char *text = name_text(b, first) + depth;
    size_t common = name_length(b, first) - depth;
    for (size_t i = 1; i < count && common > 0; i++) {
        uint32_t name = (uint32_t)items[i].name;
        const char *other = name_text(b, name) + depth;
        size_t len = name_length(b, name) - depth;
        if (len < common)
            common = len;
        size_t same = 0;
        while (same < common && text[same] == other[same])
            same++;
        common = same;
    }
    return common;
}

/* No name has a zero byte, so a name that ends here sorts first, as it should. */
static uint64_t name_key(const struct builder *b, uint32_t name, size_t depth)
{
    size_t len = name_length(b, name);
    uint64_t key = 0;
    if (len > depth)
        memcpy(&key, name_text(b, name) + depth, len - depth < 8 ? len - depth : 8);
    return be64toh(key);
}

static void sort_from(const struct builder *b, struct sort_item *items, size_t count,
                      struct sort_item *spare, size_t depth)
{
    depth += common_length(b, items, count, depth);
    bool is_sorted = true;
    for (size_t i = 0; i < count; i++) {
        items[i].key = name_key(b, (uint32_t)items[i].name, depth);
        is_sorted = is_sorted && (i == 0 || items[i - 1].key <= items[i].key);
    }
    if (!is_sorted && count <= INSERTION_MAX)
        insertion_sort(items, count);
    else if (!is_sorted)
        radix_sort(items, count, spare);

    for (size_t i = 0, end; i < count; i = end) {
        for (end = i + 1; end < count && items[end].key == items[i].key; end++)
            ;
        if (end - i > 1)
            sort_from(b, items + i, end - i, spare, depth + 8);
    }
}

void builder_sort_names(const struct builder *b, struct sort_item *items, size_t count,
                        struct sort_item *spare)
{
    if (count > 1)
        sort_from(b, items, count, spare, 0);
}
