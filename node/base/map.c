/*
 * Open addressing, at most half full.
 */
#include "map.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/random.h>

struct map_slot {
    struct map_key key;
    uint64_t value;
    bool is_used;
};

/* The slot of a key, or the one where it would go. */
static struct map_slot *map_slot_of(const struct map *map, struct map_key key)
{
    uint64_t hash = (key.low ^ map->seed) * UINT64_C(0x9e3779b97f4a7c15);
    hash = (hash ^ hash >> 32 ^ key.high) * UINT64_C(0xff51afd7ed558ccd);
    size_t mask = map->slot_count - 1;
    size_t i = (hash ^ hash >> 32) & mask;
    while (map->slots[i].is_used &&
           (map->slots[i].key.low != key.low || map->slots[i].key.high != key.high))
        i = (i + 1) & mask;
    return &map->slots[i];
}

int map_get(const struct map *map, struct map_key key, uint64_t *ret_value)
{
    if (map->count == 0)
        return -ENOENT;
    const struct map_slot *slot = map_slot_of(map, key);
    if (!slot->is_used)
        return -ENOENT;
    *ret_value = slot->value;
    return 0;
}

int map_put(struct map *map, struct map_key key, uint64_t value)
{
    if (map->count >= map->slot_count / 2) {
        struct map larger = {.slot_count = map->slot_count ? map->slot_count * 2 : 64,
                             .count = map->count};
        larger.slots = calloc(larger.slot_count, sizeof(*larger.slots));
        if (!larger.slots)
            return -ENOMEM;
        if (getrandom(&larger.seed, sizeof(larger.seed), GRND_NONBLOCK) < 0)
            larger.seed = (uint64_t)(uintptr_t)larger.slots;
        for (size_t i = 0; i < map->slot_count; i++)
            if (map->slots[i].is_used)
                *map_slot_of(&larger, map->slots[i].key) = map->slots[i];
        free(map->slots);
        *map = larger;
    }
    struct map_slot *slot = map_slot_of(map, key);
    if (slot->is_used)
        return -EEXIST;
    *slot = (struct map_slot){key, value, true};
    map->count++;
    return 0;
}

void map_free(struct map *map)
{
    free(map->slots);
    *map = (struct map){0};
}
