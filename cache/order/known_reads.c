/*
 * A list is read as its files are numbered. A shuffle keeps the permutation of their numbers
 * and its inverse.
 */
#include "known_reads.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "permutation.h"

struct known_reads {
    _Atomic unsigned owners;
    uint64_t count;
    struct folder_files *folder;
    uint32_t *numbers; /* of a shuffle, by place; NULL: a list */
    uint32_t *places;  /* of a shuffle, by number */
};

/* Takes over an owner of the folder, also on failure. */
static int known_reads_new(struct folder_files *folder, struct known_reads **ret_order)
{
    struct known_reads *o = calloc(1, sizeof(*o));

    if (!o) {
        folder_files_free(folder);
        return -ENOMEM;
    }
    o->owners = 1;
    o->count = folder_files_count(folder);
    o->folder = folder;
    *ret_order = o;
    return 0;
}

int known_reads_listed(uint32_t *positions, uint64_t count, struct known_reads **ret_order)
{
    struct folder_files *folder;
    int r = folder_files_listed(positions, count, &folder);

    return r < 0 ? r : known_reads_new(folder, ret_order);
}

static int known_reads_shuffle(struct known_reads *o, uint64_t seed)
{
    struct permutation *p;

    o->numbers = malloc((o->count + 1) * sizeof(*o->numbers));
    o->places = malloc((o->count + 1) * sizeof(*o->places));
    int r = o->numbers && o->places ? permutation_new(o->count, seed, NULL, &p) : -ENOMEM;
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < o->count; i++) {
        o->numbers[i] = (uint32_t)permutation_at(p, i);
        o->places[o->numbers[i]] = i;
    }
    permutation_free(p);
    return 0;
}

int known_reads_shuffled(struct folder_files *folder, uint64_t seed, uint64_t most_bytes,
                         struct known_reads **ret_order)
{
    struct known_reads *o;

    if (folder_files_count(folder) > most_bytes / (2 * sizeof(uint32_t)))
        return -E2BIG;
    int r = known_reads_new(folder_files_share(folder), &o);
    if (r < 0)
        return r;
    r = known_reads_shuffle(o, seed);
    if (r < 0)
        known_reads_free(o);
    else
        *ret_order = o;
    return r;
}

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
    free(order->numbers);
    free(order->places);
    free(order);
}

uint64_t known_reads_count(const struct known_reads *order)
{
    return order->count;
}

uint32_t known_reads_at(const struct known_reads *order, uint64_t place)
{
    return folder_files_at(order->folder,
                           order->numbers ? order->numbers[place] : (uint32_t)place);
}

int known_reads_place(const struct known_reads *o, uint32_t position, uint64_t from,
                      uint64_t *ret_place)
{
    uint64_t next = o->places ? 0 : from, found = UINT64_MAX;
    uint32_t number;

    for (unsigned i = 0; i < FOLDER_NUMBERS_MOST; i++, next = (uint64_t)number + 1) {
        if (folder_files_number(o->folder, position, next, &number) < 0)
            break;
        uint64_t place = o->places ? o->places[number] : number;
        if (place >= from && place < found)
            found = place;
        if (!o->places)
            break; /* numbers are places, and this is the first */
    }
    if (found == UINT64_MAX)
        return -ENOENT;
    *ret_place = found;
    return 0;
}
