/*
 * Two representations behind one interface. A shuffle keeps the permutation and its inverse. A
 * list keeps its files, and their places sorted by file.
 */
#include "known_reads.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "permutation.h"

struct known_reads {
    _Atomic unsigned owners;
    uint64_t count;
    struct folder_files *folder; /* of a shuffle; NULL: a list */
    uint32_t *files;  /* shuffle: the number of the file at a place; list: the file */
    uint32_t *places; /* shuffle: by number; list: sorted by file, then by place */
};

/* Takes over `files`, also on failure. */
static int known_reads_new(uint32_t *files, uint64_t count, struct known_reads **ret_order)
{
    struct known_reads *o = calloc(1, sizeof(*o));
    uint32_t *places = malloc((count + 1) * sizeof(*places));

    if (!o || !places) {
        free(files);
        free(places);
        free(o);
        return -ENOMEM;
    }
    o->owners = 1;
    o->count = count;
    o->files = files;
    o->places = places;
    *ret_order = o;
    return 0;
}

/* ---- a shuffle ---- */

static int known_reads_fill_shuffle(struct known_reads *o, uint64_t seed)
{
    struct permutation *p;
    int r = permutation_new(o->count, seed, NULL, &p);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i < o->count; i++) {
        uint32_t number = (uint32_t)permutation_at(p, i);
        o->files[i] = number;
        o->places[number] = i;
    }
    permutation_free(p);
    return 0;
}

int known_reads_shuffled(struct folder_files *folder, uint64_t seed, uint64_t most_bytes,
                         struct known_reads **ret_order)
{
    uint64_t count = folder_files_count(folder);
    uint32_t *files = NULL;
    struct known_reads *o;

    if (count > most_bytes / (2 * sizeof(*files)))
        return -E2BIG;
    files = malloc((count + 1) * sizeof(*files));
    int r = files ? known_reads_new(files, count, &o) : -ENOMEM;
    if (r < 0)
        return r;
    o->folder = folder_files_share(folder);
    r = known_reads_fill_shuffle(o, seed);
    if (r < 0) {
        known_reads_free(o);
        return r;
    }
    *ret_order = o;
    return 0;
}

/* ---- a list ---- */

static int compare_places(const void *a, const void *b, void *files)
{
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    uint32_t x = ((const uint32_t *)files)[i], y = ((const uint32_t *)files)[j];

    return x != y ? (x > y) - (x < y) : (i > j) - (i < j);
}

int known_reads_listed(uint32_t *positions, uint64_t count, struct known_reads **ret_order)
{
    struct known_reads *o;
    int r = known_reads_new(positions, count, &o);

    if (r < 0)
        return r;
    for (uint32_t i = 0; i < count; i++)
        o->places[i] = i;
    qsort_r(o->places, count, sizeof(*o->places), compare_places, o->files);
    *ret_order = o;
    return 0;
}

/* The first of the sorted places whose file is `position`, from `from` on, or one behind it. */
static uint64_t known_reads_bisect(const struct known_reads *o, uint32_t position,
                                   uint64_t from)
{
    uint64_t low = 0, high = o->count;

    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        uint32_t place = o->places[middle], file = o->files[place];
        if (file < position || (file == position && place < from))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- both ---- */

struct known_reads *known_reads_share(struct known_reads *order)
{
    atomic_fetch_add(&order->owners, 1);
    return order;
}

void known_reads_free(struct known_reads *order)
{
    if (!order || atomic_fetch_sub(&order->owners, 1) > 1)
        return;
    folder_files_free(order->folder);
    free(order->files);
    free(order->places);
    free(order);
}

uint64_t known_reads_count(const struct known_reads *order)
{
    return order->count;
}

uint32_t known_reads_at(const struct known_reads *order, uint64_t place)
{
    uint32_t file = order->files[place];

    return order->folder ? folder_files_at(order->folder, file) : file;
}

int known_reads_place(const struct known_reads *o, uint32_t position, uint64_t from,
                      uint64_t *ret_place)
{
    uint32_t number;

    if (!o->folder) {
        uint64_t at = known_reads_bisect(o, position, from);
        if (at == o->count || o->files[o->places[at]] != position)
            return -ENOENT;
        *ret_place = o->places[at];
        return 0;
    }
    int r = folder_files_number(o->folder, position, &number);
    if (r < 0 || o->places[number] < from)
        return -ENOENT;
    *ret_place = o->places[number];
    return 0;
}
