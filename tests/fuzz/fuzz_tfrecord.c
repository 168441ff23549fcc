/*
 * The TFRecord back end, in this process: the bytes as a file, and as the data of a record
 * whose sums are right; and as a list of integers, whose text has the length that was counted.
 */
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "bytes.h"
#include "tfrecord.h"
#include "fuzz.h"
#include "protobuf.h"

static uint8_t *frame(const uint8_t *data, size_t size, size_t *ret_size)
{
    uint8_t *record = malloc(size + 16);
    if (!record)
        abort();
    bytes_put_le64(record, size);
    bytes_put_le32(record + 8, crc32c_masked(crc32c(0, record, 8)));
    if (size)
        memcpy(record + 12, data, size);
    bytes_put_le32(record + 12 + size, crc32c_masked(crc32c(0, data, size)));
    *ret_size = size + 16;
    return record;
}

static void convert(const uint8_t *data, size_t size)
{
    size_t counted, len;
    uint64_t numbers, again;
    if (protobuf_int64_text(data, size, NULL, 0, &counted, &numbers) < 0)
        return;
    char *text = malloc(counted ? counted : 1);
    if (!text)
        abort();
    require(protobuf_int64_text(data, size, text, counted, &len, &again) == 0);
    require(len == counted && numbers == again);
    require(counted == 0 ||
            protobuf_int64_text(data, size, text, counted - 1, &len, &again) < 0);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t framed_size;
    uint8_t *framed = frame(data, size, &framed_size);
    fuzz_index(&backend_tfrecord, data, size);
    fuzz_index(&backend_tfrecord, framed, framed_size);
    convert(data, size);
    free(framed);
    return 0;
}

/* An Example: "a/b" is "\xff\xd8\xff", "f" floats of both forms, "i" integers of both forms. */
static const uint8_t example[] =
    "\x0a\x37"
    "\x0a\x10\x0a\x03\x61\x2f\x62\x12\x09\x0a\x07\x0a\x03\xff\xd8\xff\x0a\x00"
    "\x0a\x12\x0a\x01\x66\x12\x0d\x12\x0b\x0a\x04\x00\x00\x80\x3f\x0d\x00\x00\x00\x40"
    "\x0a\x0f\x0a\x01\x69\x12\x0a\x1a\x08\x08\x05\x0a\x04\x80\x01\x00\x7f";

uint8_t *fuzz_seed(unsigned number, size_t *ret_size)
{
    size_t first_size, second_size;
    uint8_t *first = frame(example, sizeof(example) - 1, &first_size), *seed;
    if (number == 0) { /* the record's data */
        free(first);
        seed = malloc(sizeof(example) - 1);
        memcpy(seed, example, *ret_size = sizeof(example) - 1);
        return seed;
    }
    if (number > 1) {
        free(first);
        return NULL;
    }
    uint8_t *second = frame((const uint8_t *)"no example", 10, &second_size);
    seed = malloc(first_size + second_size);
    memcpy(seed, first, first_size);
    memcpy(seed + first_size, second, second_size);
    *ret_size = first_size + second_size;
    free(first);
    free(second);
    return seed;
}
