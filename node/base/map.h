/*
 * A map from 128-bit keys to 64-bit values, such as inode numbers of an archive, or files by
 * device and inode. Keys are never removed. The hash has a random seed, so that nobody can
 * choose keys that collide. One thread at a time.
 */
#ifndef ONEPOT_MAP_H
#define ONEPOT_MAP_H

#include <stddef.h>
#include <stdint.h>

struct map_key {
    uint64_t high, low;
};

/* Empty when all zero. */
struct map {
    struct map_slot *slots;
    size_t slot_count;
    size_t count;
    uint64_t seed;
};

int map_get(const struct map *map, struct map_key key, uint64_t *ret_value); /* -ENOENT */
int map_put(struct map *map, struct map_key key, uint64_t value); /* -EEXIST, -ENOMEM */
void map_free(struct map *map);

static inline struct map_key map_key_of(uint64_t number)
{
    return (struct map_key){0, number};
}

#endif
