/*
 * All stored ranges of an index, sorted by their place in the archive. The windows' sums cover
 * the bytes between them.
 *
 * Archives list their members in the order of their data, an index breadth first, so the ranges
 * have to be sorted. Adjacent ranges of one member are merged.
 */
#include "coverage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

struct coverage {
    const struct index *index;
    uint64_t archive_bytes;
    struct coverage_range *ranges;
    uint64_t count, capacity;
};

static int add_range(struct coverage *c, const struct coverage_range *range)
{
    struct coverage_range *last = c->count ? &c->ranges[c->count - 1] : NULL;
    if (last && last->position == range->position &&
        last->offset + last->length == range->offset) {
        last->length += range->length;
        return 0;
    }
    if (c->count == c->capacity) {
        uint64_t capacity = c->capacity + c->capacity / 2 + 64;
        struct coverage_range *ranges = reallocarray(c->ranges, capacity, sizeof(*ranges));
        if (!ranges)
            return -ENOMEM;
        c->ranges = ranges;
        c->capacity = capacity;
    }
    c->ranges[c->count++] = *range;
    return 0;
}

static int member_fault(const struct index *index, uint32_t position, const char *what,
                        struct fault *fault)
{
    char path[4096];
    size_t len;
    if (index_path(index, position, path, sizeof(path), &len) < 0)
        path[0] = '\0';
    return fault_set(fault, -EUCLEAN, path, FAULT_NO_OFFSET, "%s", what);
}

static int add_file(struct coverage *c, uint32_t position, uint64_t size, struct fault *fault)
{
    for (uint64_t at = 0; at < size;) {
        struct extent extent;
        int r = index_extent(c->index, position, at, &extent);
        if (r < 0 || extent.length == 0)
            return member_fault(c->index, position, "the index is damaged where its data is",
                                fault);
        at += extent.length;
        struct coverage_range range = {extent.source_offset, extent.length, position};
        r = extent.kind == EXTENT_STORED ? add_range(c, &range) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int add_files(struct coverage *c, struct fault *fault)
{
    uint32_t entries = index_info(c->index)->entries;
    for (uint32_t i = 0; i < entries; i++) {
        struct node node;
        int r = index_node(c->index, i, &node);
        if (r < 0)
            return member_fault(c->index, i, "its entry in the index is damaged", fault);
        if (S_ISREG(node.mode) && node.position == i)
            r = add_file(c, i, node.size_bytes, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

static int compare_ranges(const void *a, const void *b)
{
    const struct coverage_range *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

static int check_overlap(const struct coverage *c, struct fault *fault)
{
    for (uint64_t i = 1; i < c->count; i++)
        if (c->ranges[i].offset < c->ranges[i - 1].offset + c->ranges[i - 1].length)
            return member_fault(c->index, c->ranges[i].position,
                                "its data overlaps that of another member", fault);
    return 0;
}

static int collect(struct coverage *c, struct fault *fault)
{
    if (index_rest_windows(c->index) != coverage_windows(c))
        return fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "the index lacks sums of what is no data");
    int r = add_files(c, fault);
    if (r < 0)
        return r;
    if (c->count > 1)
        qsort(c->ranges, c->count, sizeof(*c->ranges), compare_ranges);
    return check_overlap(c, fault);
}

int coverage_new(const struct index *index, struct fault *fault, struct coverage **ret_coverage)
{
    struct coverage *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->index = index;
    c->archive_bytes = index_info(index)->archive_bytes;
    int r = collect(c, fault);
    if (r < 0) {
        coverage_free(c);
        return r;
    }
    *ret_coverage = c;
    return 0;
}

void coverage_free(struct coverage *c)
{
    if (c)
        free(c->ranges);
    free(c);
}

uint64_t coverage_windows(const struct coverage *c)
{
    return c->archive_bytes / INDEX_WINDOW_BYTES + (c->archive_bytes % INDEX_WINDOW_BYTES != 0);
}

/* The number of the first range that ends behind `from`. */
static uint64_t first_behind(const struct coverage *c, uint64_t from)
{
    uint64_t low = 0, high = c->count;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (c->ranges[mid].offset + c->ranges[mid].length <= from)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

uint64_t coverage_between(const struct coverage *c, uint64_t from, uint64_t to,
                          const struct coverage_range **ret_ranges)
{
    uint64_t first = first_behind(c, from), end = first;
    while (end < c->count && c->ranges[end].offset < to)
        end++;
    *ret_ranges = end > first ? &c->ranges[first] : NULL; /* without ranges there is no array */
    return end - first;
}

/* XXH3-64 of the bytes from `from` to `to` that are in no range; `buf` holds the bytes. */
static uint64_t sum_rest(const struct coverage *c, uint64_t from, uint64_t to,
                         const uint8_t *buf, XXH3_state_t *state)
{
    uint64_t at = from;
    XXH3_64bits_reset(state);
    for (uint64_t i = first_behind(c, from); at < to; i++) {
        uint64_t end = i < c->count && c->ranges[i].offset < to ? c->ranges[i].offset : to;
        if (end > at)
            XXH3_64bits_update(state, buf + (at - from), (size_t)(end - at));
        if (end == to)
            break;
        at = c->ranges[i].offset + c->ranges[i].length;
    }
    return XXH3_64bits_digest(state);
}

int coverage_check_window(const struct coverage *c, const struct source *source,
                          uint64_t window, void *buf, struct fault *fault)
{
    if (window >= coverage_windows(c))
        return -EINVAL;
    uint64_t sum, from = window * INDEX_WINDOW_BYTES;
    uint64_t left = c->archive_bytes - from;
    uint64_t to = from + (left < INDEX_WINDOW_BYTES ? left : INDEX_WINDOW_BYTES);
    int r = index_rest_sum(c->index, window, &sum);
    if (r < 0)
        return fault_set(fault, r, NULL, FAULT_NO_OFFSET, "the index is damaged");
    r = source_read(source, buf, (size_t)(to - from), from);
    if (r < 0)
        return fault_set(fault, r, NULL, from, "read error: %s", strerror(-r));
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -ENOMEM;
    uint64_t found = sum_rest(c, from, to, buf, state);
    XXH3_freeState(state);
    if (found != sum)
        return fault_set(fault, -EUCLEAN, NULL, from,
                         "headers, padding or compressed data between here and %llu do not "
                         "have the sum they should have",
                         (unsigned long long)to);
    return 0;
}
