/*
 * A request goes to the member with its first byte, which is found by bisection; one that
 * reaches beyond the member goes on in the next. Nearly all lie in one member: no file of an
 * archive lies in two, and few lie in two pieces of one.
 *
 * Each member has its own mapping, made when bytes of it are asked for: to map a thousand takes
 * longer than all else in opening them, and each is one more to copy in a fork, while small
 * files are never read so.
 */
#include "source_concat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "numbers.h"
#include "search.h"
#include "source_ops.h"

struct concat_member {
    struct source *source;
    uint64_t base, bytes;
    _Atomic bool is_distrusted;
};

struct source_concat {
    struct source source;
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
    /* The next one behind the last that begins at or before the offset. */
    size_t next = (size_t)search_first(i, 1, c->count, c->members[i].base > offset);
    const struct concat_member *member = &c->members[next - 1];
    struct concat_place place = {.member = member, .within = offset - member->base};
    uint64_t bytes = member->bytes;
    place.is_gap = place.within >= bytes;
    uint64_t room = place.is_gap
                        ? (next < c->count ? c->members[next].base : UINT64_MAX) - offset
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

/* Bytes of one place, by source_read or source_read_cached; a gap reads as zeros. */
static int concat_read_place(const struct concat_place *place, void *to, size_t len,
                             int (*read)(const struct source *, void *, size_t, uint64_t))
{
    if (place->is_gap) {
        memset(to, 0, len);
        return 0;
    }
    return place->member->is_distrusted ? -ESTALE
                                        : read(place->member->source, to, len, place->within);
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
        int r = concat_read_place(&place, cursor->iov->iov_base, n, source_read);
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
        int r = concat_read_place(&place, to, place.length, source_read_cached);
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

static const uint8_t *concat_map(const struct source *source, uint64_t offset, uint64_t len)
{
    struct concat_place place = concat_find(concat_of(source), offset, len);
    return place.is_gap || place.length < len || place.member->is_distrusted
               ? NULL
               : source_map_at(place.member->source, place.within, len);
}

static int concat_bring(const struct source *source, uint64_t offset, uint64_t len,
                        bool may_wait)
{
    const struct source_concat *c = concat_of(source);
    int r = 0;
    while (r == 0 && len > 0) {
        struct concat_place place = concat_find(c, offset, len);
        const struct source *member = place.member->source;
        if (!place.is_gap && may_wait)
            r = source_bring(member, place.within, place.length);
        else if (!place.is_gap && !source_has(member, place.within, place.length))
            r = -EAGAIN;
        offset += place.length;
        len -= place.length;
    }
    return r;
}

static bool concat_is_whole(const struct source *source)
{
    const struct source_concat *c = concat_of(source);
    bool whole = true;
    for (size_t i = 0; i < c->count; i++) /* all, since each of them remembers */
        whole &= source_is_whole(c->members[i].source);
    return whole;
}

/* ---- the rest ---- */

static bool concat_range_is_whole(const struct source *source, uint64_t offset, uint64_t len)
{
    struct concat_place place = concat_find(concat_of(source), offset, len);
    return place.length == len &&
           (place.is_gap || source_range_is_whole(place.member->source, place.within, len));
}

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
    return source_at(place.member->source, offset);
}

static bool concat_close(struct source *source)
{
    struct source_concat *c = concat_of(source);
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
    .range_is_whole = concat_range_is_whole,
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

static int concat_new(struct source *const *members, size_t count, bool has_gaps,
                      const char *name, struct source **ret_source)
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
        bool is_aligned = has_gaps && source_size(members[i]) >= SOURCE_CONCAT_ALIGN;
        uint64_t base = is_aligned ? source_concat_next(end) : end;
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

int source_concat(struct source *const *members, size_t count, const char *name,
                  struct source **ret_source)
{
    return concat_new(members, count, true, name, ret_source);
}

int source_join(struct source *const *members, size_t count, const char *name,
                struct source **ret_source)
{
    return concat_new(members, count, false, name, ret_source);
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
