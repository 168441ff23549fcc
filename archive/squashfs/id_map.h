/*
 * A map from 64-bit keys to 32-bit values, for formats whose members refer to inodes by number
 * or place. Keys are never removed. One thread at a time.
 */
#ifndef ONEPOT_ID_MAP_H
#define ONEPOT_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

/* Empty when all zero. */
struct id_map {
    struct id_map_slot *slots;
    size_t slot_count;
    size_t count;
    uint64_t seed;
};

int id_map_get(const struct id_map *map, uint64_t key, uint32_t *ret_value); /* -ENOENT */
int id_map_put(struct id_map *map, uint64_t key, uint32_t value); /* -EEXIST, -ENOMEM */
void id_map_free(struct id_map *map);

#endif
