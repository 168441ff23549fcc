#include "world.h"

#include <errno.h>
#include <string.h>

void world_all(struct world *world)
{
    *world = (struct world){.size = 1, .local = 1, .bits = {1}};
}

/* Distances between successive reads of the same task. */
static unsigned world_find_distances(const struct world_read *reads, unsigned count,
                                     uint64_t *ret_distances)
{
    unsigned found = 0;

    for (unsigned i = 1; i < count; i++) {
        unsigned j = i;
        while (j > 0 && reads[j - 1].task != reads[i].task)
            j--;
        if (j == 0 || reads[j - 1].place == reads[i].place)
            continue;
        uint64_t a = reads[i].place, b = reads[j - 1].place;
        ret_distances[found++] = a > b ? a - b : b - a;
    }
    return found;
}

static bool world_divides_nearly_all(uint64_t size, const uint64_t *distances, unsigned count)
{
    unsigned misses = 0;

    for (unsigned i = 0; i < count; i++)
        if (distances[i] % size && ++misses > count / 10)
            return false;
    return true;
}

static void world_find_local(struct world *w, const struct world_read *reads, unsigned count)
{
    uint64_t once[WORLD_MAX / 64] = {0};

    for (unsigned i = 0; i < count; i++) {
        uint32_t rest = (uint32_t)(reads[i].place % w->size);
        uint64_t bit = UINT64_C(1) << (rest % 64);
        if (once[rest / 64] & bit && !(w->bits[rest / 64] & bit)) {
            w->bits[rest / 64] |= bit;
            w->local++;
        }
        once[rest / 64] |= bit;
    }
}

int world_infer(const struct world_read *reads, unsigned count, struct world *ret_world)
{
    uint64_t distances[WORLD_READS_MAX];
    struct world w = {0};

    if (count > WORLD_READS_MAX) {
        reads += count - WORLD_READS_MAX;
        count = WORLD_READS_MAX;
    }
    unsigned found = world_find_distances(reads, count, distances);
    if (found < WORLD_DISTANCES_MIN)
        return -EAGAIN;
    w.size = WORLD_MAX;
    while (w.size > 1 && !world_divides_nearly_all(w.size, distances, found))
        w.size--;
    world_find_local(&w, reads, count);
    if (w.local == 0)
        return -EAGAIN;
    *ret_world = w;
    return 0;
}

bool world_holds(const struct world *world, const struct world *other)
{
    for (unsigned i = 0; i < WORLD_MAX / 64; i++)
        if (other->bits[i] & ~world->bits[i])
            return false;
    return world->size == other->size;
}
