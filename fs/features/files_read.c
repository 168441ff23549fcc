/*
 * Counts the files that were read, and the ones that were read ahead before a reader came. The
 * marks are where processes that read for themselves see them, too (intercept.c), or else here.
 */
#include <errno.h>
#include <stdlib.h>

#include "core.h"
#include "file_marks.h"

struct files_read {
    _Atomic uint32_t *marks, *own; /* NULL: the marks are another feature's */
};

static int files_read_start(struct session *s, void **ret_state)
{
    struct files_read *f = calloc(1, sizeof(*f));

    if (!f)
        return -ENOMEM;
    *ret_state = f;
    if (!s->file_marks)
        f->own = calloc(index_info(s->index)->entries / 16 + 1, sizeof(*f->own));
    f->marks = s->file_marks ? s->file_marks : f->own;
    return f->marks ? 0 : -ENOMEM;
}

/* A file counts once, as read, as read ahead, or as both. */
static void files_read_after_read(void *state, struct read *read)
{
    const struct files_read *f = state;
    struct counter_slot *slot = read->rq->worker->slot;
    unsigned mark = read->rq->own ? FILE_AHEAD : FILE_READ, had;

    if (read->result < 0 || (had = file_mark(f->marks, read->position, mark)) & mark)
        return;
    atomic_fetch_add_explicit(read->rq->own ? &slot->ahead_files : &slot->read_files, 1,
                              memory_order_relaxed);
    if (had)
        atomic_fetch_add_explicit(&slot->foreseen_files, 1, memory_order_relaxed);
}

static void files_read_free(void *state)
{
    struct files_read *f = state;

    free((void *)f->own);
    free(f);
}

const struct feature files_read_feature = {
    .start = files_read_start,
    .after_read = files_read_after_read,
    .free = files_read_free,
};
