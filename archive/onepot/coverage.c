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

#include "numbers.h"
#include "vector.h"

struct coverage {
    const struct index *index;
    uint64_t archive_bytes;
    VECTOR(struct coverage_range) ranges;
};

static int coverage_add_range(struct coverage *c, const struct coverage_range *range)
{
    struct coverage_range *last = c->ranges.count ? &c->ranges.at[c->ranges.count - 1] : NULL;
    if (last && last->position == range->position &&
        last->offset + last->length == range->offset) {
        last->length += range->length;
        return 0;
    }
    return vector_push(&c->ranges, *range);
}

static int coverage_member_fault(const struct index *index, uint32_t position, const char *what,
                                 struct fault *fault)
{
    char path[4096];
    size_t len;
    if (index_path(index, position, path, sizeof(path), &len) < 0)
        path[0] = '\0';
    return fault_set(fault, -EUCLEAN, path, FAULT_NO_OFFSET, "%s", what);
}

static int coverage_add_file(struct coverage *c, uint32_t position, uint64_t size,
                             struct fault *fault)
{
    for (uint64_t at = 0; at < size;) {
        struct extent extent;
        int r = index_extent(c->index, position, at, &extent);
        if (r < 0 || extent.length == 0)
            return coverage_member_fault(c->index, position,
                                         "the index is damaged where its data is", fault);
        at += extent.length;
        struct coverage_range range = {extent.source_offset, extent.length, position};
        r = extent.kind == EXTENT_STORED ? coverage_add_range(c, &range) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int coverage_add_files(struct coverage *c, struct fault *fault)
{
    uint32_t entries = index_info(c->index)->entries;
    for (uint32_t i = 0; i < entries; i++) {
        struct node node;
        int r = index_node(c->index, i, &node);
        if (r < 0)
            return coverage_member_fault(c->index, i, "its entry in the index is damaged",
                                         fault);
        if (S_ISREG(node.mode) && node.position == i)
            r = coverage_add_file(c, i, node.size_bytes, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

static int coverage_compare_ranges(const void *a, const void *b)
{
    const struct coverage_range *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->position > y->position) - (x->position < y->position);
}

static int coverage_check_overlap(const struct coverage *c, struct fault *fault)
{
    for (uint64_t i = 1; i < c->ranges.count; i++)
        if (c->ranges.at[i].offset < c->ranges.at[i - 1].offset + c->ranges.at[i - 1].length)
            return coverage_member_fault(c->index, c->ranges.at[i].position,
                                         "its data overlaps that of another member", fault);
    return 0;
}

static int coverage_collect(struct coverage *c, struct fault *fault)
{
    if (index_windows(c->index, WINDOWS_OF_REST) != coverage_windows(c))
        return fault_set(fault, -EUCLEAN, NULL, FAULT_NO_OFFSET,
                         "the index lacks sums of bytes that are no data");
    int r = coverage_add_files(c, fault);
    if (r < 0)
        return r;
    if (c->ranges.count > 1)
        qsort(c->ranges.at, c->ranges.count, sizeof(*c->ranges.at), coverage_compare_ranges);
    return coverage_check_overlap(c, fault);
}

int coverage_new(const struct index *index, struct fault *fault, struct coverage **ret_coverage)
{
    struct coverage *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->index = index;
    c->archive_bytes = index_info(index)->archive_bytes;
    int r = coverage_collect(c, fault);
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
        vector_free(&c->ranges);
    free(c);
}

uint64_t coverage_windows(const struct coverage *c)
{
    return c->archive_bytes / INDEX_WINDOW_BYTES + (c->archive_bytes % INDEX_WINDOW_BYTES != 0);
}

/* The number of the first range that ends behind `from`. */
static uint64_t coverage_first_behind(const struct coverage *c, uint64_t from)
{
    uint64_t low = 0, high = c->ranges.count;
    while (low < high) {
        uint64_t mid = low + (high - low) / 2;
        if (c->ranges.at[mid].offset + c->ranges.at[mid].length <= from)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

uint64_t coverage_between(const struct coverage *c, uint64_t from, uint64_t to,
                          const struct coverage_range **ret_ranges)
{
    uint64_t first = coverage_first_behind(c, from), end = first;
    while (end < c->ranges.count && c->ranges.at[end].offset < to)
        end++;
    *ret_ranges =
        end > first ? &c->ranges.at[first] : NULL; /* without ranges there is no array */
    return end - first;
}

/* XXH3-64 of the bytes from `from` to `to` that are in no range; `buf` holds the bytes. */
static uint64_t coverage_sum_rest(const struct coverage *c, uint64_t from, uint64_t to,
                                  const uint8_t *buf, XXH3_state_t *state)
{
    uint64_t at = from;
    XXH3_64bits_reset(state);
    for (uint64_t i = coverage_first_behind(c, from); at < to; i++) {
        uint64_t end =
            i < c->ranges.count && c->ranges.at[i].offset < to ? c->ranges.at[i].offset : to;
        if (end > at)
            XXH3_64bits_update(state, buf + (at - from), (size_t)(end - at));
        if (end == to)
            break;
        at = c->ranges.at[i].offset + c->ranges.at[i].length;
    }
    return XXH3_64bits_digest(state);
}

int coverage_check_window(const struct coverage *c, const struct source *source,
                          uint64_t window, void *buf, struct fault *fault)
{
    if (window >= coverage_windows(c))
        return -EINVAL;
    uint64_t sum, from = window * INDEX_WINDOW_BYTES;
    uint64_t to = from + min_u64(c->archive_bytes - from, INDEX_WINDOW_BYTES);
    int r = index_window_sum(c->index, WINDOWS_OF_REST, window, &sum);
    if (r < 0)
        return fault_set(fault, r, NULL, FAULT_NO_OFFSET, "the index is damaged");
    r = source_read_fault(source, buf, (size_t)(to - from), from, fault);
    if (r < 0)
        return r;
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -ENOMEM;
    uint64_t found = coverage_sum_rest(c, from, to, buf, state);
    XXH3_freeState(state);
    if (found != sum)
        return fault_set(fault, -EUCLEAN, NULL, from,
                         "headers, padding or compressed data between here and %llu do not "
                         "have the sum they should have",
                         (unsigned long long)to);
    return 0;
}
