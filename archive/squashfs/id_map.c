/*
 * Open addressing, at most half full. The seed keeps an archive from choosing keys
 * that all fall into one place.
 */
#include "id_map.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/random.h>

struct id_map_slot {
    uint64_t key;
    uint32_t value;
    bool used;
};

static struct id_map_slot *find(const struct id_map *map, uint64_t key)
{
    uint64_t hash = (key ^ map->seed) * 0x9e3779b97f4a7c15u;
    size_t mask = map->slot_count - 1;
    size_t i = (hash ^ (hash >> 32)) & mask;
    while (map->slots[i].used && map->slots[i].key != key)
        i = (i + 1) & mask;
    return &map->slots[i];
}

static int grow(struct id_map *map)
{
    struct id_map bigger = {.slot_count = map->slot_count ? map->slot_count * 2 : 256};
    bigger.slots = calloc(bigger.slot_count, sizeof(*bigger.slots));
    if (!bigger.slots)
        return -ENOMEM;
    if (getrandom(&bigger.seed, sizeof(bigger.seed), GRND_NONBLOCK) < 0)
        bigger.seed = (uint64_t)(uintptr_t)bigger.slots;
    for (size_t i = 0; i < map->slot_count; i++)
        if (map->slots[i].used)
            *find(&bigger, map->slots[i].key) = map->slots[i];
    bigger.count = map->count;
    free(map->slots);
    *map = bigger;
    return 0;
}

int id_map_get(const struct id_map *map, uint64_t key, uint32_t *ret_value)
{
    if (map->count == 0)
        return -ENOENT;
    const struct id_map_slot *slot = find(map, key);
    if (!slot->used)
        return -ENOENT;
    *ret_value = slot->value;
    return 0;
}

int id_map_put(struct id_map *map, uint64_t key, uint32_t value)
{
    if (map->count >= map->slot_count / 2 && grow(map) < 0)
        return -ENOMEM;
    struct id_map_slot *slot = find(map, key);
    if (slot->used)
        return -EEXIST;
    *slot = (struct id_map_slot){key, value, true};
    map->count++;
    return 0;
}

void id_map_free(struct id_map *map)
{
    free(map->slots);
    *map = (struct id_map){0};
}
