/*
 * Varints have seven bits a byte, the lowest first; the highest bit says that more follow.
 */
#include "protobuf.h"

#include <errno.h>
#include <string.h>

#define VARINT_BYTES 10 /* for 64 bits */
#define DECIMAL_BYTES 20

bool protobuf_varint(struct cursor *c, uint64_t *ret_value)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < VARINT_BYTES && i < c->left; i++) {
        uint8_t byte = c->at[i];
        if (i == VARINT_BYTES - 1 && byte > 1)
            return false;
        value |= (uint64_t)(byte & 0x7f) << 7 * i;
        if (byte & 0x80)
            continue;
        c->at += i + 1;
        c->left -= i + 1;
        *ret_value = value;
        return true;
    }
    return false;
}

static bool protobuf_take_value(struct cursor *c, struct protobuf_field *field)
{
    uint32_t narrow;
    switch (field->form) {
    case PROTOBUF_VARINT:
        return protobuf_varint(c, &field->value);
    case PROTOBUF_FIXED64:
        return cursor_le64(c, &field->value);
    case PROTOBUF_FIXED32:
        if (!cursor_le32(c, &narrow))
            return false;
        field->value = narrow;
        return true;
    case PROTOBUF_BYTES:
        if (!protobuf_varint(c, &field->value) || field->value > c->left)
            return false;
        field->bytes.left = (size_t)field->value;
        return cursor_take(c, field->bytes.left, &field->bytes.at);
    }
    return false; /* groups, which nobody writes any more */
}

bool protobuf_next(struct cursor *c, struct protobuf_field *ret_field)
{
    uint64_t key;
    if (!protobuf_varint(c, &key) || key >> 3 == 0 || key >> 32)
        return false;
    struct protobuf_field field = {.number = (uint32_t)(key >> 3),
                                   .form = (enum protobuf_form)(key & 7)};
    if (!protobuf_take_value(c, &field))
        return false;
    *ret_field = field;
    return true;
}

/* ---- numbers as text ---- */

/* Add a number to the text, of which there are `*len` bytes; NULL: it is only counted. */
static int numbers_add(char *text, size_t room, uint64_t value, size_t *len, uint64_t *numbers)
{
    char digits[DECIMAL_BYTES + 1];
    size_t at = sizeof(digits);
    bool negative = value >> 63;
    if (negative)
        value = -value;
    do
        digits[--at] = (char)('0' + value % 10);
    while (value /= 10);
    if (negative)
        digits[--at] = '-';
    size_t more = sizeof(digits) - at, line = *numbers > 0;
    if (text && line + more > room - *len)
        return -EUCLEAN;
    if (text && line)
        text[*len] = '\n';
    if (text)
        memcpy(text + *len + line, digits + at, more);
    *len += line + more;
    ++*numbers;
    return 0;
}

int protobuf_int64_text(const void *list, size_t list_len, char *text, size_t room,
                        size_t *ret_len, uint64_t *ret_numbers)
{
    struct cursor c = {list, list_len};
    uint64_t numbers = 0;
    size_t len = 0;
    int r = 0;
    while (r == 0 && c.left > 0) {
        struct protobuf_field field;
        uint64_t value;
        if (!protobuf_next(&c, &field) || field.number != 1)
            return -EUCLEAN;
        if (field.form == PROTOBUF_VARINT)
            r = numbers_add(text, room, field.value, &len, &numbers);
        else if (field.form != PROTOBUF_BYTES)
            r = -EUCLEAN;
        for (struct cursor *row = &field.bytes; r == 0 && row->left > 0;)
            r = protobuf_varint(row, &value) ? numbers_add(text, room, value, &len, &numbers)
                                             : -EUCLEAN;
    }
    if (r < 0)
        return r;
    *ret_len = len;
    *ret_numbers = numbers;
    return 0;
}
