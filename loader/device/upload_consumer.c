/*
 * The consumer's side of a batch on a device: its streams follow the batch's arrival, and are
 * noted, so that the next copy into the slab follows them.
 */
#include <errno.h>
#include <string.h>

#include "error.h"
#include "upload.h"
#include "upload_private.h"

static bool is_known(const struct twin *t, const void *stream)
{
    for (size_t i = 0; i < t->use_count; i++)
        if (t->uses.at[i].stream == stream)
            return true;
    return false;
}

/* Add a use, with an event that an earlier batch may have left there. */
static int add_use(struct upload *u, struct twin *t, void *stream, struct onepot_error *error)
{
    if (t->use_count == t->uses.count && vector_push(&t->uses, (struct use){0}) < 0)
        return error_set(error, -ENOMEM, "no memory for an event");
    struct use *use = &t->uses.at[t->use_count];
    int r = use->event ? 0 : u->type->event_new(u->device, false, error, &use->event);
    if (r < 0)
        return r;
    use->stream = stream;
    t->use_count++;
    return 0;
}

int onepot_batch_use(const struct onepot_batch *batch, void *stream, struct onepot_error *error)
{
    struct twin *t = slab_of(batch)->twin;
    struct onepot_error why;
    if (!t)
        return 0;
    struct upload *u = t->upload;
    pthread_mutex_lock(&u->lock);
    int r = u->type->stream_check(u->device, stream, &why);
    if (r == 0 && !is_known(t, stream))
        r = add_use(u, t, stream, &why);
    if (r == 0)
        r = u->type->follow(u->device, stream, upload_arrival(t), &why);
    if (r != -EBUSY && r != -EINVAL)
        upload_note(u, r, &why);
    pthread_mutex_unlock(&u->lock);
    return r < 0 ? error_set(error, r, "%s: %.*s", u->shared->name,
                             (int)sizeof(why.text) - NAME_ROOM, why.text)
                 : 0;
}

int onepot_batch_lend(const struct onepot_batch *batch, void *stream,
                      struct onepot_error *error)
{
    struct twin *t = slab_of(batch)->twin;
    if (!t)
        return 0;
    pthread_mutex_lock(&t->upload->lock);
    bool was_known = stream != ONEPOT_NO_STREAM && is_known(t, stream);
    pthread_mutex_unlock(&t->upload->lock);
    int r = stream == ONEPOT_NO_STREAM ? 0 : onepot_batch_use(batch, stream, error);
    if (r < 0)
        return r;
    pthread_mutex_lock(&t->upload->lock);
    t->lent = t->lent || !was_known;
    pthread_mutex_unlock(&t->upload->lock);
    return 0;
}

int onepot_batch_copy(const struct onepot_batch *batch, void *stream, void *to, size_t room,
                      const void *from, size_t bytes, struct onepot_error *error)
{
    const struct twin *t = slab_of(batch)->twin;
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

int onepot_batch_wait(const struct onepot_batch *batch, struct onepot_error *error)
{
    struct twin *t = slab_of(batch)->twin;
    return t ? t->upload->type->event_wait(t->upload->device, upload_arrival(t), error) : 0;
}

int onepot_batch_on_device(const struct onepot_batch *batch,
                           struct onepot_device_batch *ret_where)
{
    const struct slab *slab = slab_of(batch);
    const struct twin *t = slab->twin;
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
    result_write(ret_where, &where, sizeof(where));
    return 0;
}
