/*
 * Reading samples. A cursor goes back to the readers of the process that made it, or nowhere
 * (see readers.c).
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dataset.h"
#include "error.h"

/* Samples that threads read out of turn: what is due so lately may still be wanted. */
#define CLOCK_LAG 4096u

int cursor_get(struct dataset *dataset, struct onepot_error *error, struct cursor **ret_cursor)
{
    struct readers *readers;
    int r = readers_get(dataset, error, &readers);
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

static int read_past_cache(struct readers *readers, const struct source *source, void *buf,
                           size_t len, uint64_t offset)
{
    int r = source_read(source, buf, len, offset);
    atomic_fetch_add_explicit(&readers->reads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&readers->read_bytes, len, memory_order_relaxed);
    return r == 0 || r == -ENODATA ? r : -EIO;
}

int cursor_read(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                uint64_t offset, void *buf, size_t len)
{
    uint32_t archive = record_archive(record);
    struct pot *pot = dataset->pots[archive];
    if (len == 0)
        return 0;
    bool in_one_piece = record_offset(record) != RECORD_OFFSET_NONE;
    if (in_one_piece && (source_is_staged(pot->source) || dataset->maps[archive] ||
                         !readers_keep(cursor->readers)))
        return read_past_cache(cursor->readers, pot->source, buf, len,
                               record_offset(record) + offset);
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

void cursor_again(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                  uint64_t distance)
{
    struct readers *readers = cursor->readers;
    uint32_t archive = record_archive(record);
    if (dataset->maps[archive] || record_offset(record) == RECORD_OFFSET_NONE ||
        !readers_keep(readers))
        return;
    uint64_t now = atomic_load_explicit(&readers->clock, memory_order_relaxed);
    reader_note_due(readers->reader[archive], record->entry, now + distance);
}

void cursor_advance(struct cursor *cursor, uint64_t samples)
{
    struct readers *readers = cursor->readers;
    uint64_t now = samples + atomic_fetch_add(&readers->clock, samples);
    for (size_t i = 0; i < readers->count && now > CLOCK_LAG; i++)
        reader_passed(readers->reader[i], now - CLOCK_LAG);
}

void dataset_free(struct dataset *dataset)
{
    if (!dataset || atomic_fetch_sub(&dataset->users, 1) > 1)
        return;
    readers_free_own(dataset);
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
