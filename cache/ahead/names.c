/*
 * The index is cut into chunks of 256 entries; neighbours in a directory are neighbours there.
 * The chunk in which a name was looked up last comes next, then the chunks after it. A listing
 * costs a fifteenth of a LOOKUP for each name, so a LOOKUP pays for 64 entries: a job that
 * opens few of many files lists few more. Directories of fewer than 16 entries are passed over,
 * since opening and closing one costs as much as the LOOKUPs that it saves.
 *
 * A program that has asked for next to nothing NAMES_BEGIN_NS after the mount began is still
 * starting, and the CPUs have time: then all names of an archive that is neither small nor
 * large are paid for (ahead_options.all_names), and the first epoch of four readers on two CPUs
 * takes 0.8 of the time. Where they are not opened, each costs 1.7 us when the mount ends.
 *
 * Once all is listed no LOOKUPs come, and it ends. It ends for good when listings carry no more
 * attributes.
 */
#include "chooser.h"

#include <errno.h>
#include <stdlib.h>

#include "bits.h"
#include "numbers.h"

#define CHUNK_ENTRIES (1u << NAMES_CHUNK_BITS)
#define DIRECTORY_LEAST 16u /* entries of a directory that is worth a listing */
#define REST_NS UINT64_C(300000000)
#define UNASKED_NS UINT64_C(2000000000) /* for names that nobody asked for, at most */

struct names {
    const struct ahead_options *options;
    size_t chunks, next;     /* `next`: to be looked at next */
    _Atomic uint64_t *taken; /* bitmap, by chunk: the kernel has its names, or will have */
    size_t left;             /* chunks that are not taken */
    uint64_t lookups;        /* since it rested last */
    uint64_t entries;        /* that these pay for, and that were not listed yet */
    uint64_t last_ns;        /* of the last LOOKUP; it rests REST_NS later */
    uint64_t begin_ns;       /* all entries are paid for then, if nobody has asked before */
    bool full;               /* listings carry no more attributes, or the mount has ended */
};

static void names_free(void *chooser)
{
    struct names *n = chooser;

    free((void *)n->taken);
    free(n);
}

static int names_make(const struct ahead_options *options, void **ret_chooser)
{
    struct names *n = calloc(1, sizeof(*n));

    if (!n)
        return -ENOMEM;
    n->options = options;
    n->chunks = n->left = (index_info(options->index)->entries >> NAMES_CHUNK_BITS) + 1;
    n->taken = calloc((n->chunks + 63) / 64, sizeof(*n->taken));
    if (!n->taken) {
        free(n);
        return -ENOMEM;
    }
    n->begin_ns = options->all_names ? options->now_ns() + NAMES_BEGIN_NS : UINT64_MAX;
    *ret_chooser = n;
    return 0;
}

static bool names_observe(void *chooser, const struct observation *o, bool expected)
{
    struct names *n = chooser;

    if (o->kind == OBSERVED_LISTING) {
        uint32_t from = (uint32_t)o->offset;
        n->full |= o->names_only;
        n->begin_ns = o->own ? n->begin_ns : UINT64_MAX;
        for (uint32_t i = from | (CHUNK_ENTRIES - 1); i - from < o->len; i += CHUNK_ENTRIES)
            n->left -= bit_take(n->taken, i >> NAMES_CHUNK_BITS);
    } else if (o->kind == OBSERVED_LOOKUP && !o->own) {
        if (o->time_ns > n->last_ns + REST_NS)
            n->lookups = n->entries = 0;
        n->last_ns = o->time_ns;
        n->lookups++;
        n->entries += NAMES_PER_LOOKUP;
        n->begin_ns = n->lookups < NAMES_FIRST ? n->begin_ns : UINT64_MAX;
        if (!bit_get(n->taken, o->position >> NAMES_CHUNK_BITS))
            n->next = o->position >> NAMES_CHUNK_BITS;
    }
    return expected;
}

static bool names_is_lost(void *chooser, uint64_t now_ns)
{
    struct names *n = chooser;

    if (now_ns >= n->begin_ns) {
        n->begin_ns = UINT64_MAX;
        n->last_ns = now_ns + UNASKED_NS - REST_NS;
        n->lookups = NAMES_FIRST;
        n->entries = n->chunks * CHUNK_ENTRIES;
    }
    return n->lookups < NAMES_FIRST || n->entries < CHUNK_ENTRIES || n->left == 0 || n->full ||
           now_ns > n->last_ns + REST_NS;
}

/* The parts of directories that lie in a chunk, as far as they are worth a listing. */
static size_t names_fill(const struct names *n, size_t chunk, struct reader_want *wants,
                         size_t max)
{
    const struct index *index = n->options->index;
    uint32_t at = (uint32_t)(chunk << NAMES_CHUNK_BITS), directory, first, entries;
    uint32_t end = min_u32(index_info(index)->entries - at, CHUNK_ENTRIES) + at;
    size_t count = 0;

    while (at < end && count < max) {
        if (index_parent(index, at, &directory) < 0 ||
            index_children(index, directory, &first, &entries) < 0 || at < first ||
            at - first >= entries) { /* the root, or damage */
            at++;
            continue;
        }
        uint32_t some = min_u32(entries - (at - first), end - at);
        if (entries >= DIRECTORY_LEAST)
            wants[count++] =
                (struct reader_want){directory, at - first, some, BLOCK_DUE_UNKNOWN};
        at += some;
    }
    return count;
}

static size_t names_take(void *chooser, struct reader_want *wants, size_t max)
{
    struct names *n = chooser;
    size_t count = 0;

    while (count == 0 && n->left > 0 && n->entries >= CHUNK_ENTRIES) {
        while (bit_get(n->taken, n->next))
            n->next = (n->next + 1) % n->chunks;
        bit_take(n->taken, n->next);
        n->left--;
        n->entries -= CHUNK_ENTRIES;
        count = names_fill(n, n->next, wants, max);
    }
    return count;
}

static void names_finished(void *chooser, const struct reader_want *wants, size_t count,
                           int result)
{
    struct names *n = chooser;

    (void)wants;
    (void)count;
    n->full |= result == -ENOTCONN;
}

const struct chooser names_chooser = {
    .make = names_make,
    .free = names_free,
    .observe = names_observe,
    .is_lost = names_is_lost,
    .take = names_take,
    .finished = names_finished,
};
