/*
 * The consumer's side of a batch on a device: its streams follow the batch's arrival, and are
 * noted, so that the next copy into the slab follows them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "upload.h"
#include "upload_private.h"

static bool is_known(const struct device_slab *t, const void *stream)
{
    for (size_t i = 0; i < t->use_count; i++)
        if (t->uses.at[i].stream == stream && !t->uses.at[i].is_recorded)
            return true;
    return false;
}

/* Add a use, with an event that an earlier batch may have left there. */
static int add_use(struct upload *u, struct device_slab *t, void *stream,
                   struct onepot_error *error)
{
    if (t->use_count == t->uses.count && vector_push(&t->uses, (struct use){0}) < 0)
        return error_set(error, -ENOMEM, "no memory for an event");
    struct use *use = &t->uses.at[t->use_count];
    int r = use->event ? 0 : u->type->event_new(u->device, false, error, &use->event);
    if (r < 0)
        return r;
    use->stream = stream;
    use->is_recorded = false;
    t->use_count++;
    return 0;
}

/* Make the stream wait for the batch. is_used: the batch's memory waits for the stream. */
static int follow_arrival(struct device_slab *t, void *stream, bool is_used,
                          struct onepot_error *error)
{
    struct onepot_error why;
    struct upload *u = t->upload;
    int r = u->type->stream_check(u->device, stream, &why);
    if (r == 0 && is_used && !is_known(t, stream))
        r = add_use(u, t, stream, &why);
    if (r == 0)
        r = u->type->follow(u->device, stream, upload_arrival(t), &why);
    if (r != -EBUSY && r != -EINVAL)
        upload_note(u, r, &why);
    return r < 0 ? error_set(error, r, "%s: %.*s", u->shared->name,
                             (int)sizeof(why.text) - NAME_ROOM, why.text)
                 : 0;
}

int onepot_batch_use(const struct onepot_batch *batch, void *stream, struct onepot_error *error)
{
    struct device_slab *t = slab_of(batch)->device_slab;
    if (!t)
        return 0;
    pthread_mutex_lock(&t->upload->lock);
    int r = follow_arrival(t, stream, true, error);
    pthread_mutex_unlock(&t->upload->lock);
    return r;
}

int onepot_batch_lend(const struct onepot_batch *batch, void *stream,
                      struct onepot_error *error)
{
    struct device_slab *t = slab_of(batch)->device_slab;
    int r = 0;
    if (!t)
        return 0;
    pthread_mutex_lock(&t->upload->lock);
    bool is_named = stream != ONEPOT_NO_STREAM;
    if (is_named)
        r = follow_arrival(t, stream, false, error);
    t->lent = t->lent || (r == 0 && !(is_named && is_known(t, stream)));
    pthread_mutex_unlock(&t->upload->lock);
    return r;
}

int onepot_batch_copy(const struct onepot_batch *batch, void *stream, void *to, size_t room,
                      const void *from, size_t bytes, struct onepot_error *error)
{
    const struct device_slab *t = slab_of(batch)->device_slab;
    if (bytes > room)
        return error_set(error, -EINVAL, "%zu bytes for %zu that are copied", room, bytes);
    if (!t) {
        memcpy(to, from, bytes);
        memset((uint8_t *)to + bytes, 0, room - bytes);
        return 0;
    }
    const struct upload *u = t->upload;
    int r = onepot_batch_use(batch, stream, error);
    if (r == 0 && bytes)
        r = u->type->copy(u->device, stream, to, from, bytes, error);
    if (r == 0 && room > bytes)
        r = u->type->clear(u->device, stream, (uint8_t *)to + bytes, room - bytes, error);
    return r;
}

/* ---- copies that are the consumer's ---- */

struct onepot_duplicate {
    struct onepot_device *device;
    void *memory;
    size_t bytes;
    bool on_host;
};

/* The next copy into the batch's memory waits for this one: the event is recorded at once. */
static int queue_duplicate(struct device_slab *t, void *stream, void *to, const void *from,
                           size_t bytes, struct onepot_error *error)
{
    const struct device_type *type = t->upload->type;
    void *device = t->upload->device;
    int r = follow_arrival(t, stream, false, error);
    if (r == 0 && bytes)
        r = type->copy(device, stream, to, from, bytes, error);
    if (r < 0)
        return r;
    r = add_use(t->upload, t, stream, NULL);
    if (r == 0) {
        struct use *use = &t->uses.at[t->use_count - 1];
        use->is_recorded = true;
        r = type->record(device, use->event, stream, NULL);
    }
    t->lent = t->lent || r < 0;
    return 0;
}

static int fill_duplicate(struct device_slab *t, struct onepot_duplicate *d, void *stream,
                          const void *from, struct onepot_error *error)
{
    struct upload *u = t->upload;
    bool waits = d->on_host || stream == ONEPOT_NO_STREAM;
    int r = device_share(u->shared, error, &d->device);
    if (r == 0 && d->on_host)
        r = (d->memory = malloc(d->bytes + 1)) ? 0 : error_set(error, -ENOMEM, "no memory");
    else if (r == 0)
        r = u->type->allocate(u->device, DEVICE_MEMORY_OWN, d->bytes + 1, error, &d->memory);
    if (r < 0)
        return r;
    stream = waits ? NULL : stream;
    pthread_mutex_lock(&u->lock);
    r = queue_duplicate(t, stream, d->memory, from, d->bytes, error);
    pthread_mutex_unlock(&u->lock);
    return r == 0 && waits ? u->type->stream_wait(u->device, stream, error) : r;
}

int onepot_batch_duplicate(const struct onepot_batch *batch, bool on_host, void *stream,
                           const void *from, size_t bytes, struct onepot_error *error,
                           struct onepot_duplicate **ret_duplicate, void **ret_memory)
{
    struct device_slab *t = slab_of(batch)->device_slab;
    struct onepot_duplicate *d = t ? calloc(1, sizeof(*d)) : NULL;
    if (!d)
        return t ? error_set(error, -ENOMEM, "no memory for a copy")
                 : error_set(error, -ENOTSUP, "the batch is in host memory");
    d->bytes = bytes;
    d->on_host = on_host;
    int r = fill_duplicate(t, d, stream, from, error);
    if (r < 0) {
        onepot_duplicate_free(d);
        return r;
    }
    *ret_duplicate = d;
    *ret_memory = d->memory;
    return 0;
}

void onepot_duplicate_free(struct onepot_duplicate *d)
{
    if (!d)
        return;
    if (d->on_host)
        free(d->memory);
    else if (d->memory)
        d->device->type->release(d->device->device, DEVICE_MEMORY_OWN, d->memory, d->bytes + 1);
    onepot_device_close(d->device);
    free(d);
}

int onepot_batch_wait(const struct onepot_batch *batch, struct onepot_error *error)
{
    struct device_slab *t = slab_of(batch)->device_slab;
    return t ? t->upload->type->event_wait(t->upload->device, upload_arrival(t), error) : 0;
}

int onepot_batch_on_device(const struct onepot_batch *batch,
                           struct onepot_device_batch *ret_where)
{
    const struct slab *slab = slab_of(batch);
    const struct device_slab *t = slab->device_slab;
    if (!t)
        return -ENOTSUP;
    struct onepot_device_batch where = {
        .data = t->memory,
        .bytes = batch->bytes,
        .offsets = upload_on_device(slab, slab->offsets),
        .sizes = upload_on_device(slab, slab->sizes),
        .indices = upload_on_device(slab, slab->indices),
        .labels = upload_on_device(slab, slab->labels),
        .valid = upload_on_device(slab, slab->valid),
        .images = t->images,
        .image_bytes = t->images ? upload_image_room(t->upload, batch->bytes) : 0,
        .device = slab->device,
        .index = t->upload->shared->index,
    };
    return result_write(ret_where, &where, sizeof(where), NULL);
}
