/*
 * Protocol Buffers, as they lie in files: a message is fields, one behind the other, each with
 * a number and a value of one of four forms.
 *
 *     struct cursor c = {message, len};
 *     struct protobuf_field field;
 *     while (c.left > 0) {
 *         if (!protobuf_next(&c, &field))
 *             return -EUCLEAN;
 *         if (field.number == 1 && field.form == PROTOBUF_BYTES)
 *             use(field.bytes);
 *     }
 *
 * Nothing here allocates or keeps state. Threads: any.
 */
#ifndef ONEPOT_PROTOBUF_H
#define ONEPOT_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bytes.h"

enum protobuf_form {
    PROTOBUF_VARINT = 0,
    PROTOBUF_FIXED64 = 1,
    PROTOBUF_BYTES = 2, /* also of a text, a message, or numbers in a row */
    PROTOBUF_FIXED32 = 5,
};

struct protobuf_field {
    uint32_t number;
    enum protobuf_form form;
    uint64_t value;      /* of a number */
    struct cursor bytes; /* of all else; they stay where they are */
};

/* A number of 1 to 10 bytes. False: there is none. */
bool protobuf_varint(struct cursor *c, uint64_t *ret_value);

/* Take the next field. False: there is none, or it does not lie within the message. */
bool protobuf_next(struct cursor *c, struct protobuf_field *ret_field);

/*
 * A message that is a list of numbers (field 1: int64, one by one or in a row), in decimal, one
 * a line, without a newline at the end. `text` NULL: only count. -EUCLEAN: it is no such
 * message, or the text has more than `room` bytes.
 */
int protobuf_int64_text(const void *list, size_t list_len, char *text, size_t room,
                        size_t *ret_len, uint64_t *ret_numbers);

#endif
