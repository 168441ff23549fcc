/*
 * Lists are checked to their ends as soon as their feature is found: the functions that walk
 * over them later meet nothing unexpected.
 */
#include "example.h"

#include <errno.h>

#define FLOAT_BYTES 4u

/* A field of this number that is bytes. */
static bool example_take_message(struct cursor *c, uint32_t number, struct cursor *ret_message)
{
    struct protobuf_field field;
    if (!protobuf_next(c, &field) || field.number != number || field.form != PROTOBUF_BYTES)
        return false;
    *ret_message = field.bytes;
    return true;
}

/* ---- lists ---- */

bool feature_next(struct cursor *list, struct cursor *ret_value)
{
    struct protobuf_field field;
    if (list->left == 0 || !protobuf_next(list, &field))
        return false;
    if (field.form == PROTOBUF_BYTES)
        *ret_value = field.bytes;
    else
        *ret_value = (struct cursor){list->at - FLOAT_BYTES, FLOAT_BYTES};
    return true;
}

static int feature_count_bytes(struct cursor list, uint64_t *ret_values)
{
    struct cursor value;
    *ret_values = 0;
    for (; list.left > 0; ++*ret_values)
        if (!example_take_message(&list, 1, &value))
            return -EUCLEAN;
    return 0;
}

static int feature_count_floats(struct cursor list, uint64_t *ret_values)
{
    *ret_values = 0;
    while (list.left > 0) {
        struct protobuf_field field;
        if (!protobuf_next(&list, &field) || field.number != 1)
            return -EUCLEAN;
        if (field.form == PROTOBUF_FIXED32)
            ++*ret_values;
        else if (field.form == PROTOBUF_BYTES && field.bytes.left % FLOAT_BYTES == 0)
            *ret_values += field.bytes.left / FLOAT_BYTES;
        else
            return -EUCLEAN;
    }
    return 0;
}

static int feature_count(struct feature *f)
{
    f->values = 0;
    switch (f->kind) {
    case FEATURE_NONE:
        return 0;
    case FEATURE_BYTES:
        return feature_count_bytes(f->list, &f->values);
    case FEATURE_FLOATS:
        return feature_count_floats(f->list, &f->values);
    case FEATURE_INTEGERS:
        return protobuf_int64_text(f->list.at, f->list.left, NULL, 0, &f->text_bytes,
                                   &f->values);
    }
    return -EUCLEAN;
}

/* ---- features ---- */

/* A Feature holds one list, or none. */
static int feature_read(struct cursor message, struct feature *f)
{
    struct protobuf_field field;
    if (message.left == 0)
        return 0;
    if (!protobuf_next(&message, &field) || field.form != PROTOBUF_BYTES || field.number < 1 ||
        field.number > 3 || message.left > 0)
        return -EUCLEAN;
    f->kind = (enum feature_kind)field.number;
    f->list = field.bytes;
    return feature_count(f);
}

static int feature_read_entry(struct cursor entry, struct feature *f)
{
    struct cursor value = {0};
    *f = (struct feature){.kind = FEATURE_NONE};
    while (entry.left > 0) {
        struct protobuf_field field;
        if (!protobuf_next(&entry, &field) || field.form != PROTOBUF_BYTES)
            return -EUCLEAN;
        if (field.number == 1)
            f->name = field.bytes;
        else if (field.number == 2)
            value = field.bytes;
        else
            return -EUCLEAN;
    }
    return feature_read(value, f);
}

int example_next(struct example *e, struct feature *ret_feature)
{
    struct cursor entry;
    while (e->features.left == 0) {
        if (e->message.left == 0)
            return 0;
        if (!example_take_message(&e->message, 1, &e->features))
            return -EUCLEAN;
    }
    if (!example_take_message(&e->features, 1, &entry))
        return -EUCLEAN;
    int r = feature_read_entry(entry, ret_feature);
    return r < 0 ? r : 1;
}
