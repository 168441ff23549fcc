/*
 * Opening an archive: from a path to bytes, index and format.
 *
 * Each way to an index is an opener, in order of trust and cost. The list of them, `openers`,
 * is all that decides which one is taken.
 */
#include "pot.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "pot_private.h"
#include "source_slice.h"
#include "volumes.h"

/* The index in the archive. Without a good one, the archive counts as one of a plainer format.
 */
static int pot_open_embedded(struct opening *o, struct fault *fault)
{
    struct pot *pot = o->pot;
    struct embedded_index where;
    if (!pot->backend->trailer || !pot->backend->trailer->find)
        return OPENER_NOT_MINE;
    int r = pot->backend->trailer->find(pot->source, fault, &where);
    if (r == 0)
        r = index_open(pot->source, where.offset, where.length, fault, &pot->index);
    if (r == 0)
        r = pot_check_index(pot, fault);
    if (r == 0) {
        pot->origin = POT_INDEX_EMBEDDED;
        return 0;
    }
    index_close(pot->index);
    pot->index = NULL;
    if (r != -ENOENT && r != -ESTALE && r != -EUCLEAN && r != -ENOTSUP)
        return r;
    pot->backend = pot->backend->trailer->without_index;
    if (r != -ENOENT && !fault->advice[0])
        fault_advise(fault, "it is read as a plain %s", pot->backend->name);
    if (r == -ESTALE && !pot->packed)
        o->stale = *fault;
    else if (r != -ENOENT)
        pot_note_fault(o->options, pot->path, fault);
    r = pot->packed ? 0 : backend_compression(pot->backend, pot->source, &o->compression);
    return r < 0 ? r : OPENER_NOT_MINE;
}

static opener *const openers[] = {
    composed_open_saved,   pot_open_embedded, saved_index_open, unpacked_open_stream,
    built_index_of_frames, unpacked_open, /* always leaves it to the following ones: */
    pot_open_embedded,     built_index_open,
};

static int pot_open_index(struct opening *o, struct fault *fault)
{
    int r = OPENER_NOT_MINE;
    for (size_t i = 0; r == OPENER_NOT_MINE; i++) {
        struct fault own = {0};
        if (o->options->only_ready &&
            openers[i] ==
                (o->options->names_only ? built_index_of_frames : unpacked_open_stream))
            return -EAGAIN; /* it would take time */
        r = openers[i](o, &own);
        if (r < 0 && fault && !fault->err)
            *fault = own;
    }
    return r;
}

/* Put the archive's own bytes in place of the file, where they are a part of it. */
static int pot_slice(struct source **source, uint64_t offset, struct fault *fault,
                     struct container *ret_container)
{
    uint64_t size = source_size(*source);
    *ret_container = (struct container){0};
    if (offset == 0) {
        int r = container_find(*source, fault, ret_container);
        return r < 0 || !ret_container->name
                   ? r
                   : source_slice(source, ret_container->offset, ret_container->length);
    }
    if (offset >= size)
        return fault_set(fault, -EINVAL, NULL, size, "ends before the offset %" PRIu64, offset);
    *ret_container = (struct container){"a file", offset, size - offset};
    return source_slice(source, offset, size - offset);
}

int pot_open_source(const char *path, uint64_t offset, struct fault *fault,
                    struct container *ret_container, struct source **ret_source)
{
    struct source *source = NULL;
    int r = volumes_open(path, NULL, fault, &source);
    if (r == 0)
        r = pot_slice(&source, offset, fault, ret_container);
    if (r < 0)
        source_close(source);
    else
        *ret_source = source;
    return r;
}

static int file_identify(const char *path, struct fault *fault,
                         struct source_identity *ret_identity)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        int r = source_open_fault(path, fault, -errno);
        fault_set_file(fault, path);
        return r;
    }
    *ret_identity = source_identity_of(&st);
    return 0;
}

int pot_identify(const char *path, bool is_whole, struct fault *fault,
                 struct source_identity *ret_identity)
{
    volume_paths parts = {0};
    int r = is_whole ? 0 : volumes_find(path, &parts);
    if (r < 0 || parts.count == 0)
        return r < 0 ? r : file_identify(path, fault, ret_identity);
    auto_free struct source_identity *all = calloc(parts.count, sizeof(*all));
    r = all ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < parts.count; i++)
        r = file_identify(parts.at[i], fault, &all[i]);
    if (r == 0)
        source_identity_join(all, parts.count, ret_identity);
    volumes_free(&parts);
    return r;
}

int pot_look(struct source *source, uint64_t offset, struct fault *fault,
             struct pot_found *ret_found)
{
    struct pot_found found = {.source = source};
    int r = pot_slice(&found.source, offset, fault, &found.container);
    if (r == 0) {
        r = backend_find(found.source, fault, &found.backend, &found.compression);
        if (r < 0)
            pot_place_fault(found.source, fault);
    }
    if (r < 0)
        source_close(found.source);
    else
        *ret_found = found;
    return r;
}

int pot_open_found(struct pot_found *found, const struct pot_options *options,
                   struct fault *fault, struct pot **ret_pot)
{
    static const struct pot_options defaults = {0};
    struct pot *pot = calloc(1, sizeof(*pot));
    if (!pot) {
        source_close(found->source);
        found->source = NULL;
        return -ENOMEM;
    }
    struct opening o = {.pot = pot,
                        .options = options ? options : &defaults,
                        .compression = found->compression};
    pot->source = steal_ptr(&found->source);
    pot->container = found->container;
    pot->backend = found->backend;
    source_identity(pot->source, &pot->identity);
    pot->identity.slice_start = pot->identity.slice_bytes = 0; /* of the file */
    pot->path = strdup(source_name(pot->source));
    int r = pot->path ? pot_open_index(&o, fault) : -ENOMEM;
    if (r == 0)
        r = composed_apply(&o, fault);
    index_close(o.stream_index);
    composition_free(&o.steps);
    if (r < 0) {
        if (!pot->packed)
            pot_place_fault(pot->source, fault);
        volumes_advise(pot->packed ? pot->packed : pot->source, fault);
        if (r == -EAGAIN && o.options->only_ready && !pot->packed)
            found->source = steal_ptr(&pot->source);
        pot_close(pot);
        return r;
    }
    if (!o.options->lists_left_out)
        pot_note_left_out(o.options, pot);
    *ret_pot = pot;
    return 0;
}

int pot_check_exchange(struct shard_records *records, const char *path,
                       const struct source *source, const struct pot_options *options,
                       struct fault *fault)
{
    struct fault own = {0};
    int r = shard_exchange_check(records, path, source && source_is_by_link(source),
                                 source ? source_fd(source) : -1, &own);
    if (r > 0)
        pot_note_fault(options, path, &own);
    if (r < 0 && fault)
        *fault = own; /* also where there is no such file yet */
    return r < 0 ? r : 0;
}

int pot_open(const char *path, const struct pot_options *options, struct fault *fault,
             struct pot **ret_pot)
{
    static const struct pot_options defaults = {0};
    struct pot_found found;
    struct source *source = NULL;
    struct shard_records records = {0};
    const struct pot_options *o = options ? options : &defaults;
    int r =
        o->is_whole ? source_open(path, fault, &source) : volumes_open(path, o, fault, &source);
    if ((r == 0 || r == -ENOENT) && !o->only_ready) {
        int busy = pot_check_exchange(&records, path, r == 0 ? source : NULL, o, fault);
        if (r == 0 && busy < 0)
            source_close(source);
        r = busy < 0 ? busy : r;
        shard_records_free(&records);
    }
    if (r == 0)
        r = pot_look(source, o->offset, fault, &found);
    if (r < 0)
        return r;
    r = pot_open_found(&found, options, fault, ret_pot);
    source_close(found.source);
    return r;
}

/* Which of several files was cut short. */
static void pot_name_cut(const struct pot *pot, struct fault *fault)
{
    const struct source *file;
    for (size_t at[2] = {0}; pot_is_several(pot) && (file = source_file_next(pot->source, at));)
        if (source_was_cut(file) || source_was_changed(file) > 0) {
            fault_set_file(fault, source_name(file));
            return;
        }
}

int pot_check_whole(const struct pot *pot, struct fault *fault)
{
    int r = !source_is_whole(pot->source) ? -ENODATA : index_is_lost(pot->index) ? -EIO : 0;
    if (r < 0)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET, "%s",
                  r == -ENODATA ? "it was cut short while it was read"
                                : "its index can't be read any more");
    if (r == -ENODATA)
        pot_name_cut(pot, fault);
    return r;
}

void pot_close(struct pot *pot)
{
    if (!pot)
        return;
    source_close(pot->source); /* first, as the rest provides its copy */
    source_close(pot->packed);
    index_close(pot->index);
    index_close(pot->stream_index);
    for (size_t i = 0; i < pot->part_count; i++)
        free(pot->parts[i].path);
    free(pot->parts);
    free(pot->unsaved);
    free(pot->index_path);
    free(pot->path);
    free(pot);
}
