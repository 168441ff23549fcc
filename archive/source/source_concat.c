/*
 * A request goes to the member with its first byte, which is found by bisection; one that
 * reaches beyond the member goes on in the next. Nearly all lie in one member, since no file of
 * an archive lies in two.
 *
 * The mapping is one range of addresses, which is only reserved at first: to map a thousand
 * members takes longer than all else in opening them, and each is one more to copy in a fork,
 * while small files are never read so. A member takes its place when bytes of it are to be
 * brought. One guard watches the whole range for lost pages.
 */
#include "source_concat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"
#include "lost_pages.h"
#include "numbers.h"
#include "source_ops.h"

#define SAMPLE_BYTES 4096

struct concat_member {
    struct source *source;
    uint64_t base, bytes;
    _Atomic bool is_distrusted;
    _Atomic bool is_placed; /* in the mapping */
};

struct source_concat {
    struct source source;
    _Atomic bool map_failed;
    struct lost_pages *_Atomic map;
    size_t count;
    struct concat_member members[];
};

/* Its members that change are atomic. */
static struct source_concat *concat_of(const struct source *source)
{
    return (struct source_concat *)(uintptr_t)source;
}

/* A range within one member, or within the gap behind it. */
struct concat_place {
    const struct concat_member *member;
    uint64_t within; /* offset in the member */
    uint64_t length;
    bool is_gap;
};

/* The place of the byte at `offset`, and of at most `len` bytes from there on. */
static struct concat_place concat_find(const struct source_concat *c, uint64_t offset,
                                       uint64_t len)
{
    size_t low = 0, high = c->count;
    while (high - low > 1) { /* the last one that begins at or before the offset */
        size_t middle = low + (high - low) / 2;
        if (c->members[middle].base <= offset)
            low = middle;
        else
            high = middle;
    }
    const struct concat_member *member = &c->members[low];
    struct concat_place place = {.member = member, .within = offset - member->base};
    uint64_t bytes = member->bytes;
    place.is_gap = place.within >= bytes;
    uint64_t room = place.is_gap
                        ? (low + 1 < c->count ? c->members[low + 1].base : UINT64_MAX) - offset
                        : bytes - place.within;
    place.length = min_u64(room, len);
    return place;
}

/* ---- reads ---- */

static uint64_t concat_wanted(const struct source_cursor *cursor)
{
    uint64_t len = 0;
    for (int i = 0; i < cursor->count; i++)
        len += cursor->iov[i].iov_len;
    return len;
}

/* All of the request is one member's: its buffers go on to it as they are. */
static int concat_read_all(const struct concat_place *place, struct source_cursor *cursor)
{
    struct source_cursor own = {cursor->iov, cursor->count, place->within};
    if (place->member->is_distrusted)
        return -ESTALE;
    int r = source_read_on(place->member->source, &own);
    *cursor = (struct source_cursor){own.iov, own.count, place->member->base + own.offset};
    return r;
}

static int concat_read(const struct source *source, struct source_cursor *cursor)
{
    const struct source_concat *c = concat_of(source);
    while (cursor->count > 0) {
        uint64_t wanted = concat_wanted(cursor);
        struct concat_place place = concat_find(c, cursor->offset, wanted);
        if (!place.is_gap && place.length == wanted)
            return concat_read_all(&place, cursor);
        size_t n = min_u64(place.length, cursor->iov->iov_len);
        int r = 0;
        if (place.is_gap)
            memset(cursor->iov->iov_base, 0, n);
        else if (place.member->is_distrusted)
            r = -ESTALE;
        else
            r = source_read(place.member->source, cursor->iov->iov_base, n, place.within);
        if (r < 0)
            return r;
        source_cursor_step(cursor, n);
    }
    return 0;
}

static int concat_read_cached(const struct source *source, void *buf, size_t len,
                              uint64_t offset)
{
    for (uint8_t *to = buf; len > 0;) {
        struct concat_place place = concat_find(concat_of(source), offset, len);
        int r = 0;
        if (place.is_gap)
            memset(to, 0, place.length);
        else if (place.member->is_distrusted)
            r = -ESTALE;
        else
            r = source_read_cached(place.member->source, to, place.length, place.within);
        if (r < 0)
            return r;
        to += place.length;
        offset += place.length;
        len -= place.length;
    }
    return 0;
}

static void concat_advise(const struct source *source, enum source_advice advice,
                          uint64_t offset, uint64_t len)
{
    const struct source_concat *c = concat_of(source);
    if (advice == SOURCE_AT_RANDOM) {
        for (size_t i = 0; i < c->count; i++)
            source_advise(c->members[i].source, advice, 0, 0);
        return;
    }
    while (len > 0) {
        struct concat_place place = concat_find(c, offset, len);
        if (!place.is_gap)
            source_advise(place.member->source, advice, place.within, place.length);
        offset += place.length;
        len -= place.length;
    }
}

/* ---- the mapping ---- */

static const uint8_t *concat_start_of(const struct lost_pages *map)
{
    return (const uint8_t *)atomic_load_explicit(&map->start, memory_order_relaxed);
}

static void concat_unmap(struct lost_pages *map, uint64_t bytes)
{
    const uint8_t *start = concat_start_of(map);
    lost_pages_release(map);
    munmap((void *)(uintptr_t)start, bytes);
}

static bool concat_can_map(const struct source_concat *c)
{
    const struct source *source = &c->source;
    bool can =
        source->size_bytes > 0 && source_is_local(source) && source_may_map(source->size_bytes);
    for (size_t i = 0; can && i < c->count; i++)
        can = source_place(c->members[i].source, 0, 0, NULL) == 0;
    return can;
}

/* A guarded range of addresses for everything, or NULL. */
static struct lost_pages *concat_reserve(const struct source_concat *c)
{
    uint64_t bytes = c->source.size_bytes;
    if (!concat_can_map(c))
        return NULL;
    uint8_t *start =
        mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    struct lost_pages *guard = lost_pages_guard(start, bytes);
    if (!guard)
        munmap(start, bytes);
    return guard;
}

static const uint8_t *concat_map(const struct source *source)
{
    struct source_concat *c = concat_of(source);
    struct lost_pages *map = atomic_load_explicit(&c->map, memory_order_acquire);
    if (map)
        return concat_start_of(map);
    if (atomic_load(&c->map_failed))
        return NULL;
    struct lost_pages *guard = concat_reserve(c); /* no lock, as in source_file.c */
    if (!guard) {
        atomic_store(&c->map_failed, true);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&c->map, &map, guard))
        return concat_start_of(guard);
    concat_unmap(guard, source->size_bytes);
    return concat_start_of(map);
}

/* Make the gap behind a member readable: zeros. */
static int concat_open_gap(const struct source_concat *c, size_t i, uint8_t *start)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t end = c->members[i].base + c->members[i].bytes;
    uint64_t next = i + 1 < c->count ? c->members[i + 1].base : end;
    uint64_t gap = (end + page - 1) / page * page;
    return gap < next && mprotect(start + gap, next - gap, PROT_READ) < 0 ? -errno : 0;
}

/* Put the member into the mapping. If two threads do so at once, both put the same there. */
static int concat_place(struct source_concat *c, size_t i)
{
    struct concat_member *member = &c->members[i];
    uint8_t *start = (uint8_t *)(uintptr_t)concat_map(&c->source);
    if (!start)
        return -ENOTSUP;
    int r = concat_open_gap(c, i, start);
    if (r == 0)
        r = source_place(member->source, 0, member->bytes, start + member->base);
    if (r == 0)
        atomic_store_explicit(&member->is_placed, true, memory_order_release);
    return r;
}

static int concat_bring(const struct source *source, uint64_t offset, uint64_t len,
                        bool may_wait)
{
    struct source_concat *c = concat_of(source);
    int r = 0;
    while (r == 0 && len > 0) {
        struct concat_place place = concat_find(c, offset, len);
        size_t i = (size_t)(place.member - c->members);
        if (!atomic_load_explicit(&place.member->is_placed, memory_order_acquire))
            r = may_wait ? concat_place(c, i) : -EAGAIN;
        offset += place.length;
        len -= place.length;
    }
    return r;
}

static bool concat_is_whole(const struct source *source)
{
    const struct source_concat *c = concat_of(source);
    bool whole = !lost_pages_any(atomic_load(&c->map));
    for (size_t i = 0; i < c->count; i++) /* all, since each of them remembers */
        whole &= source_is_whole(c->members[i].source);
    return whole;
}

/* ---- the rest ---- */

static void concat_state(const struct source *source, struct source_state *ret_state)
{
    const struct source_concat *c = concat_of(source);
    struct source_state all = {.is_local = true, .is_memory = true};
    for (size_t i = 0; i < c->count; i++) {
        struct source_state state = source_state_of(c->members[i].source);
        all.is_local &= state.is_local;
        all.is_memory &= state.is_memory;
        all.keeps |= state.keeps;
        all.progress_ns = max_u64(all.progress_ns, state.progress_ns);
    }
    *ret_state = all;
}

static const struct source *concat_member(const struct source *source, size_t i)
{
    const struct source_concat *c = concat_of(source);
    return i < c->count ? c->members[i].source : NULL;
}

static const struct source *concat_at(const struct source *source, uint64_t *offset)
{
    struct concat_place place = concat_find(concat_of(source), *offset, 1);
    *offset = place.within;
    return place.member->source;
}

static bool concat_close(struct source *source)
{
    struct source_concat *c = concat_of(source);
    struct lost_pages *map = atomic_load(&c->map);
    if (map)
        concat_unmap(map, source->size_bytes);
    for (size_t i = 0; i < c->count; i++)
        source_close(c->members[i].source);
    return true;
}

static const struct source_ops concat_ops = {
    .read = concat_read,
    .read_cached = concat_read_cached,
    .map = concat_map,
    .bring = concat_bring,
    .is_whole = concat_is_whole,
    .state = concat_state,
    .advise = concat_advise,
    .member = concat_member,
    .at = concat_at,
    .close = concat_close,
};

static int concat_identify(struct source_concat *c)
{
    auto_free struct source_identity *all = calloc(c->count, sizeof(*all));
    if (!all)
        return -ENOMEM;
    for (size_t i = 0; i < c->count; i++)
        all[i] = c->members[i].source->identity;
    source_identity_join(all, c->count, &c->source.identity);
    return 0;
}

int source_concat(struct source *const *members, size_t count, const char *name,
                  struct source **ret_source)
{
    struct source_concat *c = calloc(1, sizeof(*c) + count * sizeof(c->members[0]));
    if (!c)
        return -ENOMEM;
    c->source.ops = &concat_ops;
    c->source.fd = -1;
    c->count = count;
    uint64_t end = 0;
    int r = 0;
    for (size_t i = 0; r == 0 && i < count; i++) {
        uint64_t base = source_concat_next(end);
        c->members[i].source = members[i];
        c->members[i].base = base;
        c->members[i].bytes = source_size(members[i]);
        if (base > INT64_MAX || source_size(members[i]) > INT64_MAX - base)
            r = -EFBIG;
        end = base + source_size(members[i]);
    }
    c->source.size_bytes = end;
    c->source.name = r == 0 ? strdup(name) : NULL;
    if (r == 0)
        r = c->source.name ? concat_identify(c) : -ENOMEM;
    if (r < 0) {
        free(c->source.name);
        free(c);
        return r;
    }
    *ret_source = &c->source;
    return 0;
}

static struct source_concat *concat_in(const struct source *source)
{
    while (source->ops != &concat_ops)
        source = source->wrapped;
    return concat_of(source);
}

uint64_t source_concat_base(const struct source *concat, size_t i)
{
    return concat_in(concat)->members[i].base;
}

void source_concat_distrust(const struct source *concat, size_t i)
{
    atomic_store(&concat_in(concat)->members[i].is_distrusted, true);
}

int source_concat_sample(const struct source *file, uint64_t *ret_sample)
{
    uint64_t size = source_size(file), sums[2];
    uint8_t bytes[SAMPLE_BYTES];
    size_t len = min_u64(size, SAMPLE_BYTES);
    int r = source_read(file, bytes, len, 0);
    sums[0] = XXH3_64bits(bytes, r == 0 ? len : 0);
    if (r == 0)
        r = source_read(file, bytes, len, size - len);
    sums[1] = XXH3_64bits(bytes, r == 0 ? len : 0);
    if (r == 0)
        *ret_sample = XXH3_64bits(sums, sizeof(sums));
    return r;
}
