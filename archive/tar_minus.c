/*
 * A modification time of less than a second before 1970 ("-0.5"): libarchive gives it without
 * its sign. So the extended header is looked at again, where a time lies in that one second
 * after 1970 that it would be taken for, which no real file's does.
 */
#include "tar_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"

#define SIZE_AT 124
#define SIZE_LEN 12
#define TYPE_AT 156
#define RECORDS_MAX (1u << 20) /* longer extended headers libarchive does not take */

/* "LENGTH KEY=VALUE\n", one behind the other; the last of a key counts. */
static bool last_time_is_negative(const char *at, size_t len)
{
    bool negative = false;
    while (len > 0) {
        char *key;
        unsigned long record = strtoul(at, &key, 10);
        size_t digits = (size_t)(key - at);
        if (digits == 0 || record > len || record < digits + 8 || *key != ' ')
            break;
        if (memcmp(key + 1, "mtime=", 6) == 0)
            negative = key[7] == '-';
        at += record;
        len -= record;
    }
    return negative;
}

static uint64_t octal(const uint8_t *field, size_t len)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len && field[i] >= '0' && field[i] <= '7'; i++)
        value = value * 8 + (uint64_t)(field[i] - '0');
    return value;
}

static int read_records(tar_read *read, const void *ctx, uint64_t offset, uint64_t len,
                        bool *ret_negative)
{
    auto_free char *records = len <= RECORDS_MAX ? malloc(len + 1) : NULL;
    if (!records)
        return len <= RECORDS_MAX ? -ENOMEM : -EUCLEAN;
    int r = read(ctx, records, len, offset);
    if (r < 0)
        return r;
    records[len] = '\0';
    *ret_negative = last_time_is_negative(records, len);
    return 0;
}

int tar_time_is_negative(tar_read *read, const void *ctx, uint64_t from, uint64_t to,
                         bool *ret_negative)
{
    *ret_negative = false;
    while (from < to && to - from > TAR_BLOCK_BYTES) {
        uint8_t header[TAR_BLOCK_BYTES];
        int r = read(ctx, header, sizeof(header), from);
        if (r < 0)
            return r;
        uint64_t len = octal(header + SIZE_AT, SIZE_LEN);
        from += TAR_BLOCK_BYTES;
        if (!memchr("xXgLK", header[TYPE_AT], 5) || len > to - from)
            return 0;
        if (header[TYPE_AT] == 'x' || header[TYPE_AT] == 'X')
            r = read_records(read, ctx, from, len, ret_negative);
        if (r < 0)
            return r;
        from += (len + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1);
    }
    return 0;
}
