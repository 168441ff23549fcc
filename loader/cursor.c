/*
 * Reading samples. Readers hold locks and caches, and a thread of the parent may have been
 * inside one when the process forked; so a child never touches them, and makes its own at its
 * first read. What it leaves alone costs it nothing but address space.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dataset.h"
#include "error.h"

static void cursor_free(struct cursor *cursor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        reader_scratch_free(cursor->scratch[i]);
    free(cursor);
}

static void readers_free(struct readers *readers, size_t count)
{
    while (readers->idle) {
        struct cursor *cursor = readers->idle;
        readers->idle = cursor->next;
        cursor_free(cursor, count);
    }
    for (size_t i = 0; i < count; i++)
        reader_free(readers->reader[i]);
    pthread_mutex_destroy(&readers->lock);
    free(readers);
}

static int readers_new(struct dataset *dataset, struct onepot_error *error,
                       struct readers **ret_readers)
{
    struct reader_options options = {.cache_bytes = dataset->cache_bytes};
    size_t count = dataset->pot_count;
    struct readers *readers = calloc(1, sizeof(*readers) + count * sizeof(struct reader *));
    if (!readers)
        return error_set(error, -ENOMEM, "out of memory");
    readers->pid = getpid();
    pthread_mutex_init(&readers->lock, NULL);
    for (size_t i = 0; i < count; i++) {
        struct fault fault = {0};
        int r = reader_new(dataset->pots[i], &options, &fault, &readers->reader[i]);
        if (r < 0) {
            error_from_fault(error, r, &fault, dataset->pots[i]->path);
            readers_free(readers, count);
            return r;
        }
    }
    *ret_readers = readers;
    return 0;
}

/* The readers of this process. Two threads may both make some; one of them keeps its own. */
static int own_readers(struct dataset *dataset, struct onepot_error *error,
                       struct readers **ret_readers)
{
    struct readers *readers = atomic_load(&dataset->readers);
    if (!readers || readers->pid != getpid()) {
        struct readers *made;
        int r = readers_new(dataset, error, &made);
        if (r < 0)
            return r;
        if (atomic_compare_exchange_strong(&dataset->readers, &readers, made))
            readers = made;
        else
            readers_free(made, dataset->pot_count);
    }
    *ret_readers = readers;
    return 0;
}

int cursor_get(struct dataset *dataset, struct onepot_error *error, struct cursor **ret_cursor)
{
    struct readers *readers;
    int r = own_readers(dataset, error, &readers);
    if (r < 0)
        return r;
    pthread_mutex_lock(&readers->lock);
    struct cursor *cursor = readers->idle;
    if (cursor)
        readers->idle = cursor->next;
    pthread_mutex_unlock(&readers->lock);
    if (!cursor) {
        cursor =
            calloc(1, sizeof(*cursor) + dataset->pot_count * sizeof(struct reader_scratch *));
        if (!cursor)
            return error_set(error, -ENOMEM, "out of memory");
        cursor->readers = readers;
    }
    *ret_cursor = cursor;
    return 0;
}

void cursor_put(struct cursor *cursor)
{
    struct readers *readers = cursor->readers;
    if (readers->pid != getpid())
        return; /* the parent's */
    pthread_mutex_lock(&readers->lock);
    cursor->next = readers->idle;
    readers->idle = cursor;
    pthread_mutex_unlock(&readers->lock);
}

int cursor_read(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                uint64_t offset, void *buf, size_t len)
{
    uint32_t archive = record_archive(record);
    struct pot *pot = dataset->pots[archive];
    if (len == 0)
        return 0;
    if (record_offset(record) != RECORD_OFFSET_NONE) {
        int r = source_read(pot->source, buf, len, record_offset(record) + offset);
        return r == 0 || r == -ENODATA ? r : -EIO;
    }
    struct reader *reader = cursor->readers->reader[archive];
    struct reader_scratch **scratch = &cursor->scratch[archive];
    size_t got;
    int r = *scratch ? 0 : reader_scratch_new(reader, scratch);
    if (r == 0)
        r = reader_copy(reader, *scratch, record->entry, offset, buf, len, &got);
    if (r == 0 && got < len)
        r = -EUCLEAN;
    return r;
}

uint8_t *dataset_private_map(struct dataset *dataset, uint32_t archive)
{
    _Atomic(uint8_t *) *place = &dataset->privates[archive];
    uint8_t *map = atomic_load(place);
    if (map || !dataset->maps[archive])
        return map;
    const struct source *source = dataset->pots[archive]->source;
    void *made = mmap(NULL, source_size(source), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_NORESERVE, source_map_fd(source), 0);
    if (made == MAP_FAILED)
        return NULL;
    if (atomic_compare_exchange_strong(place, &map, made))
        return made;
    munmap(made, source_size(source)); /* another thread was first */
    return map;
}

static void free_private_maps(struct dataset *dataset)
{
    for (size_t i = 0; dataset->privates && i < dataset->pot_count; i++) {
        uint8_t *map = atomic_load(&dataset->privates[i]);
        if (map)
            munmap(map, source_size(dataset->pots[i]->source));
    }
    free(dataset->privates);
}

void dataset_free(struct dataset *dataset)
{
    if (!dataset || atomic_fetch_sub(&dataset->users, 1) > 1)
        return;
    struct readers *readers = atomic_load(&dataset->readers);
    if (readers && readers->pid == getpid())
        readers_free(readers, dataset->pot_count);
    free_private_maps(dataset);
    for (size_t i = 0; i < dataset->pot_count; i++)
        pot_close(dataset->pots[i]);
    free(dataset->pots);
    free(dataset->maps);
    if (dataset->records)
        munmap(dataset->records, dataset->record_bytes);
    free(dataset->group_starts);
    for (uint32_t i = 0; dataset->classes && i < dataset->class_count; i++)
        free(dataset->classes[i]);
    free(dataset->classes);
    free(dataset);
}
