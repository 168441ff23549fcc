/*
 * An open-addressed table, at most half full.
 */
#include "links.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void links_free(struct links *links)
{
    for (size_t i = 0; i < links->capacity; i++)
        free(links->table[i].path);
    free(links->table);
    *links = (struct links){0};
}

/* The file's slot in the table, or the slot where it would go. */
static struct link *place(struct link *table, size_t capacity, uint64_t dev, uint64_t ino)
{
    uint64_t hash = (ino ^ dev * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd);
    for (size_t i = (size_t)(hash >> 20);; i++) {
        struct link *link = &table[i & (capacity - 1)];
        if (!link->path || (link->dev == dev && link->ino == ino))
            return link;
    }
}

const struct link *links_find(const struct links *links, uint64_t dev, uint64_t ino)
{
    if (!links->count)
        return NULL;
    const struct link *link = place(links->table, links->capacity, dev, ino);
    return link->path ? link : NULL;
}

static int grow(struct links *links)
{
    size_t capacity = links->capacity ? links->capacity * 2 : 64;
    struct link *table = calloc(capacity, sizeof(*table));
    if (!table)
        return -ENOMEM;
    for (size_t i = 0; i < links->capacity; i++)
        if (links->table[i].path)
            *place(table, capacity, links->table[i].dev, links->table[i].ino) = links->table[i];
    free(links->table);
    links->table = table;
    links->capacity = capacity;
    return 0;
}

int links_add(struct links *links, uint64_t dev, uint64_t ino, const char *path, size_t len)
{
    if (links->count * 2 >= links->capacity && grow(links) < 0)
        return -ENOMEM;
    struct link *link = place(links->table, links->capacity, dev, ino);
    if (link->path)
        return 0;
    char *copy = malloc(len + 1);
    if (!copy)
        return -ENOMEM;
    memcpy(copy, path, len);
    copy[len] = '\0';
    *link = (struct link){dev, ino, copy, len};
    links->count++;
    return 0;
}
