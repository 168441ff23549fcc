/*
 * The TFRecord back end: TensorFlow's files of records.
 *
 *     each record:  u64 length | u32 sum of the length | data | u32 sum of the data
 *
 * A record is a sample, and its number the beginning of the names of its files. Each feature of
 * a tf.train.Example is a file, as in a tar for WebDataset:
 *
 *     00000000.image.encoded.jpg    bytes; a slash in a feature's name is shown as a dot
 *     00000000.label.cls            integers, in decimal, one a line
 *     00000000.box.f32              floats, as they lie there: little-endian
 *     00000000.frames.0             bytes of several values: a file each
 *
 * The ending of bytes follows from their first ones (JPEG, PNG). Endings that a name has
 * already are not put there twice. A feature without values has no file. Any other record is
 * one file, 00000000.bin.
 *
 * Files lie in place. Integers have no fixed width in the file, so each list of them is a block
 * of a codec that makes text of it.
 *
 * An index takes the lengths and names alone. Sums of the data, which are of whole records, are
 * compared for verify: `check_end` finds the records by their lengths, and each is a part.
 */
#include "backend.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "bytes.h"
#include "numbers.h"
#include "protobuf.h"
#include "source_window.h"
#include "tfrecord.h"
#include "vector.h"

#define HEAD_BYTES 12u /* a length and its sum */
#define TAIL_BYTES 4u  /* the data's sum */
#define WINDOW_BYTES (1u << 20)
#define EXAMPLE_MAX (256u << 20) /* a longer record is one file */
#define FLOAT_BYTES 4u
#define LIST_MAX (64u << 20) /* integers: what a block may have */
#define PROGRESS_RECORDS 64u

/* ---- sums ---- */

/* The remainders of 0 to 15, for the polynomial 0x82f63b78 (bits reversed). */
uint32_t crc32c_by_table(uint32_t crc, const void *bytes, size_t len)
{
    static const uint32_t table[16] = {
        0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3,
        0x61c69362, 0x7198540d, 0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9,
        0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
    };
    const uint8_t *p = bytes;
    for (crc = ~crc; len > 0; p++, len--) {
        crc ^= *p;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) static uint32_t
crc32c_by_instruction(uint32_t crc, const uint8_t *p, size_t len)
{
    uint64_t wide = crc;
    for (; len >= 8; p += 8, len -= 8)
        wide = __builtin_ia32_crc32di(wide, bytes_le64(p));
    crc = (uint32_t)wide;
    for (; len > 0; p++, len--)
        crc = __builtin_ia32_crc32qi(crc, *p);
    return crc;
}
#endif

uint32_t crc32c(uint32_t crc, const void *bytes, size_t len)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc32c_by_instruction(~crc, bytes, len);
#endif
    return crc32c_by_table(crc, bytes, len);
}

/* ---- a tf.train.Example ---- */

/*
 * A tf.train.Example, as bytes: named features, each a list of texts, of floats or of integers.
 *
 *     Example:  1 Features         Feature:    1 BytesList, 2 FloatList or 3 Int64List
 *     Features: 1 entries          BytesList:  1 values
 *     entry:    1 name, 2 Feature  FloatList:  1 values, one by one or in a row; Int64List, too
 *
 * A message with any other field is none: it may be one of another kind (a SequenceExample has
 * a field 2) that looks alike.
 *
 * Lists are checked to their ends as soon as their feature is found: the functions that walk
 * over them later meet nothing unexpected.
 */
enum feature_kind {
    FEATURE_NONE, /* without values */
    FEATURE_BYTES,
    FEATURE_FLOATS,
    FEATURE_INTEGERS,
};

struct feature {
    struct cursor name; /* any bytes, and maybe none */
    enum feature_kind kind;
    struct cursor list; /* the message with the values */
    uint64_t values;
    size_t text_bytes; /* of integers: as decimal text */
};

/* A field of this number that is bytes. */
static bool example_take_message(struct cursor *c, uint32_t number, struct cursor *ret_message)
{
    struct protobuf_field field;
    if (!protobuf_next(c, &field) || field.number != number || field.form != PROTOBUF_BYTES)
        return false;
    *ret_message = field.bytes;
    return true;
}

/* Take the next value of a list of bytes, or the next row of floats. False: the end. */
static bool feature_next(struct cursor *list, struct cursor *ret_value)
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

/*
 * The features one by one, from `message`, the rest of the record, and `features`, the rest of
 * its Features, empty at first. 1: one; 0: the end; -EUCLEAN.
 */
static int example_next(struct cursor *message, struct cursor *features,
                        struct feature *ret_feature)
{
    struct cursor entry;
    while (features->left == 0) {
        if (message->left == 0)
            return 0;
        if (!example_take_message(message, 1, features))
            return -EUCLEAN;
    }
    if (!example_take_message(features, 1, &entry))
        return -EUCLEAN;
    int r = feature_read_entry(entry, ret_feature);
    return r < 0 ? r : 1;
}

/* ---- the file ---- */

struct tfrecord {
    struct source *source;
    struct builder *builder;
    struct progress *progress;
    struct fault *fault;
    struct source_window window;
    struct source_identity identity;
    uint64_t number; /* of the record */
    uint64_t at;     /* of its data */
    uint32_t largest_block;
    VECTOR(struct builder_piece) pieces; /* of a file */
    char stem[16 + INDEX_NAME_MAX];      /* NUMBER.FEATURE */
};

static bool tfrecord_is_head(const uint8_t *head)
{
    return crc32c_masked(crc32c(0, head, 8)) == bytes_le32(head + 8);
}

static int tfrecord_fault(struct fault *fault, int err, uint64_t number, uint64_t offset,
                          const char *what)
{
    char member[40];
    snprintf(member, sizeof(member), "record %" PRIu64, number);
    return fault_set_advised(fault, err, member, offset,
                             err == -EUCLEAN ? "make the file again, or copy it again" : "",
                             "%s", what);
}

/*
 * The length of the record at `at`, whose first bytes are `head`. -EUCLEAN: it is damaged, or
 * goes beyond the file.
 */
static int tfrecord_read_head(const uint8_t *head, size_t head_len, uint64_t at,
                              uint64_t size_bytes, uint64_t number, struct fault *fault,
                              uint64_t *ret_length)
{
    if (head_len < HEAD_BYTES)
        return tfrecord_fault(fault, -EUCLEAN, number, at,
                              "the file is truncated in its length");
    if (!tfrecord_is_head(head))
        return tfrecord_fault(fault, -EUCLEAN, number, at,
                              "its length is damaged: it does not have the sum that it should "
                              "have");
    uint64_t length = bytes_le64(head), left = size_bytes - at - HEAD_BYTES;
    if (left < TAIL_BYTES || length > left - TAIL_BYTES)
        return tfrecord_fault(fault, -EUCLEAN, number, at, "the file is truncated in it");
    *ret_length = length;
    return 0;
}

/* ---- files ---- */

/* The error means that only this file can't be shown. */
static int tfrecord_leave_out(struct tfrecord *t, int err)
{
    if (!builder_may_leave_out(err) && err != -ENOTSUP)
        return err;
    int r = builder_leave_out(t->builder, t->fault);
    *t->fault = (struct fault){0};
    return r;
}

static int tfrecord_add(struct tfrecord *t, const char *name, struct node *member,
                        uint32_t *ret_inode)
{
    size_t len = strlen(name);
    member->mode = S_IFREG | 0644;
    member->mtime_sec = t->identity.mtime_sec;
    member->mtime_nsec = t->identity.mtime_nsec;
    member->header_offset = t->at - HEAD_BYTES;
    int r = len > INDEX_NAME_MAX ? 0 : builder_has(t->builder, name, len);
    if (r == 1)
        r = fault_set(t->fault, -EINVAL, name, member->header_offset,
                      "is the name of two features");
    return r < 0 ? r : builder_add(t->builder, name, len, member, t->fault, ret_inode);
}

/* Puts the stem and an ending together, if the stem does not end so. */
static void tfrecord_name(const struct tfrecord *t, const char *ending,
                          char name[sizeof(t->stem) + 32])
{
    size_t len = strlen(t->stem), more = strlen(ending);
    bool has_it = len >= more && strcmp(t->stem + len - more, ending) == 0;
    snprintf(name, sizeof(t->stem) + 32, "%s%s", t->stem, has_it ? "" : ending);
}

static int tfrecord_add_whole(struct tfrecord *t, uint64_t length)
{
    char name[40];
    uint32_t inode;
    struct node member = {.size_bytes = length, .data_offset = t->at};
    snprintf(name, sizeof(name), "%08" PRIu64 ".bin", t->number);
    return tfrecord_add(t, name, &member, &inode);
}

/* ---- features ---- */

static const char *feature_ending(struct cursor value)
{
    static const struct {
        const char *magic, *ending;
    } types[] = {{"\xff\xd8\xff", ".jpg"}, {"\x89PNG\r\n\x1a\n", ".png"}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        size_t len = strlen(types[i].magic);
        if (value.left >= len && memcmp(value.at, types[i].magic, len) == 0)
            return types[i].ending;
    }
    return "";
}

/* `record` is the record's data in memory. */
static int tfrecord_add_bytes(struct tfrecord *t, const struct feature *f,
                              const uint8_t *record)
{
    char name[sizeof(t->stem) + 32], ending[32];
    struct cursor list = f->list, value;
    int r = 0;
    for (uint64_t i = 0; r == 0 && feature_next(&list, &value); i++) {
        struct node member = {.size_bytes = value.left,
                              .data_offset = t->at + (uint64_t)(value.at - record)};
        uint32_t inode;
        if (f->values == 1)
            snprintf(ending, sizeof(ending), "%s", feature_ending(value));
        else
            snprintf(ending, sizeof(ending), ".%" PRIu64 "%s", i, feature_ending(value));
        tfrecord_name(t, ending, name);
        r = tfrecord_add(t, name, &member, &inode);
        if (r < 0)
            r = tfrecord_leave_out(t, r);
        t->progress->beats++;
    }
    return r;
}

static int tfrecord_add_floats(struct tfrecord *t, const struct feature *f,
                               const uint8_t *record)
{
    char name[sizeof(t->stem) + 32];
    struct cursor list = f->list, row;
    struct node member = {.size_bytes = f->values * 4, .has_pieces = true};
    uint32_t inode;
    tfrecord_name(t, ".f32", name);
    int r = tfrecord_add(t, name, &member, &inode);
    t->pieces.count = 0;
    for (uint64_t offset = 0; r == 0 && feature_next(&list, &row); offset += row.left) {
        struct builder_piece piece = {.offset = offset,
                                      .length = row.left,
                                      .source_offset = t->at + (uint64_t)(row.at - record),
                                      .block = BUILDER_NO_BLOCK};
        r = piece.length > 0 ? vector_push(&t->pieces, piece) : 0;
    }
    return r < 0 ? r : builder_set_pieces(t->builder, inode, t->pieces.at, t->pieces.count);
}

static int tfrecord_add_integers(struct tfrecord *t, const struct feature *f,
                                 const uint8_t *record)
{
    char name[sizeof(t->stem) + 32];
    struct node member = {.size_bytes = f->text_bytes, .has_pieces = true};
    struct builder_piece piece = {.length = f->text_bytes};
    uint64_t most = max_u64(f->text_bytes, f->list.left);
    uint32_t inode;
    tfrecord_name(t, ".cls", name);
    if (most > LIST_MAX)
        return fault_set(t->fault, -ENOTSUP, name, t->at - HEAD_BYTES,
                         "has more integers than fit in %u MiB of text", LIST_MAX >> 20);
    struct builder_block block = {
        .source_offset = t->at + (uint64_t)(f->list.at - record),
        .packed_bytes = (uint32_t)f->list.left,
        .block_bytes = (uint32_t)most,
        .codec = CODEC_INT64,
    };
    int r = tfrecord_add(t, name, &member, &inode);
    if (r == 0)
        r = builder_add_block(t->builder, &block, &piece.block);
    if (r == 0)
        r = builder_set_pieces(t->builder, inode, &piece, 1);
    t->largest_block = max_u32(t->largest_block, block.block_bytes);
    return r;
}

/* NUMBER.FEATURE. -EINVAL, -ENAMETOOLONG. */
static int tfrecord_set_stem(struct tfrecord *t, const struct feature *f)
{
    if (f->name.left > INDEX_NAME_MAX)
        return tfrecord_fault(t->fault, -ENAMETOOLONG, t->number, t->at - HEAD_BYTES,
                              "has a feature whose name is longer than a file's may be");
    if (f->name.left && memchr(f->name.at, '\0', f->name.left))
        return tfrecord_fault(t->fault, -EINVAL, t->number, t->at - HEAD_BYTES,
                              "has a feature with a zero byte in its name");
    snprintf(t->stem, sizeof(t->stem), "%08" PRIu64 ".%.*s", t->number, (int)f->name.left,
             f->name.left ? (const char *)f->name.at : "");
    for (char *p = t->stem; (p = strchr(p, '/'));)
        *p = '.';
    return 0;
}

static int tfrecord_add_feature(struct tfrecord *t, const struct feature *f,
                                const uint8_t *record)
{
    if (f->values == 0)
        return 0;
    int r = tfrecord_set_stem(t, f);
    if (r == 0 && f->kind == FEATURE_BYTES)
        r = tfrecord_add_bytes(t, f, record);
    else if (r == 0 && f->kind == FEATURE_FLOATS)
        r = tfrecord_add_floats(t, f, record);
    else if (r == 0)
        r = tfrecord_add_integers(t, f, record);
    return r < 0 ? tfrecord_leave_out(t, r) : r;
}

/* ---- records ---- */

/* How many values an Example has; 0: the record is none, or is empty. */
static uint64_t tfrecord_count_values(const uint8_t *record, size_t length)
{
    struct cursor message = {record, length}, features = {0};
    struct feature f;
    uint64_t values = 0;
    int r;
    while ((r = example_next(&message, &features, &f)) == 1)
        values += f.values;
    return r < 0 ? 0 : values;
}

static int tfrecord_add_record(struct tfrecord *t, uint64_t length)
{
    const uint8_t *record;
    size_t len = 0;
    int r = 0;
    if (length <= EXAMPLE_MAX)
        r = source_window_get(&t->window, t->at, (size_t)length, &record, &len);
    if (r < 0)
        return tfrecord_fault(t->fault, r, t->number, t->at, "can't be read");
    if (len == 0 || tfrecord_count_values(record, len) == 0)
        return tfrecord_add_whole(t, length);
    struct cursor message = {record, len}, features = {0};
    struct feature f;
    while (r == 0 && example_next(&message, &features, &f) == 1) {
        r = tfrecord_add_feature(t, &f, record);
        t->progress->beats++;
    }
    return r;
}

static int tfrecord_add_records(struct tfrecord *t)
{
    uint64_t size = source_size(t->source), length;
    for (uint64_t at = 0; at < size; at += HEAD_BYTES + length + TAIL_BYTES, t->number++) {
        const uint8_t *head;
        size_t len;
        int r = source_window_get(&t->window, at, HEAD_BYTES, &head, &len);
        if (r < 0)
            return tfrecord_fault(t->fault, r, t->number, at, "can't be read");
        r = tfrecord_read_head(head, len, at, size, t->number, t->fault, &length);
        t->at = at + HEAD_BYTES;
        if (r == 0)
            r = tfrecord_add_record(t, length);
        if (r < 0)
            return r;
        t->progress->beats++;
        if (t->number % PROGRESS_RECORDS == 0) {
            t->progress->members = t->number;
            t->progress->bytes_done = at;
        }
    }
    return 0;
}

static int tfrecord_index(struct source *source, struct builder *builder,
                          struct builder_header *header, struct progress *progress,
                          struct fault *fault)
{
    struct tfrecord t = {
        .source = source, .builder = builder, .progress = progress, .fault = fault};
    struct node root = {.mode = S_IFDIR | 0755};
    uint32_t inode;
    source_identity(source, &t.identity);
    root.mtime_sec = t.identity.mtime_sec;
    root.mtime_nsec = t.identity.mtime_nsec;
    progress->bytes_total = source_size(source);
    int r = builder_add(builder, ".", 1, &root, fault, &inode);
    if (r == 0)
        r = source_window_open(&t.window, source, WINDOW_BYTES);
    if (r == 0)
        r = tfrecord_add_records(&t);
    source_window_close(&t.window);
    vector_free(&t.pieces);
    if (r == 0 && source_size(source) == 0)
        snprintf(progress->note, sizeof(progress->note),
                 "it is empty: a file of no records, or its writer did not finish");
    progress->members = t.number;
    header->block_bytes = t.largest_block;
    return r;
}

/* ---- questions that need no index ---- */

/* A file of no records has no bytes: only its name tells the format. */
static int tfrecord_probe(const struct source *source, const uint8_t *head, size_t head_len)
{
    const char *ending = strrchr(source_name(source), '.');
    return head_len >= HEAD_BYTES
               ? tfrecord_is_head(head)
               : head_len == 0 && ending &&
                     (strcmp(ending, ".tfrecord") == 0 || strcmp(ending, ".tfrecords") == 0);
}

/* The sum of the data of one record. */
static int tfrecord_sum(const struct archive_end *end, uint64_t at, uint64_t length,
                        uint8_t *buf, _Atomic uint64_t *read_bytes, uint32_t *ret_sum)
{
    uint32_t sum = 0;
    for (uint64_t done = 0; done < length && !archive_end_stopped(end);) {
        size_t n = (size_t)min_u64(length - done, ARCHIVE_PART_BYTES);
        int r = source_read(end->source, buf, n, at + done);
        if (r < 0)
            return r;
        sum = crc32c(sum, buf, n);
        done += n;
        atomic_fetch_add_explicit(read_bytes, n, memory_order_relaxed);
    }
    *ret_sum = crc32c_masked(sum);
    return 0;
}

/* The length of the record at `at`; the fault says why there is none. */
static int tfrecord_length(const struct archive_end *end, uint64_t at, uint64_t number,
                           struct fault *fault, uint64_t *ret_length)
{
    uint8_t head[HEAD_BYTES];
    uint64_t size = source_size(end->source);
    size_t head_len = (size_t)min_u64(sizeof(head), size - at);
    int r = source_read(end->source, head, head_len, at);
    return r < 0 ? tfrecord_fault(fault, r, number, at, "can't be read")
                 : tfrecord_read_head(head, head_len, at, size, number, fault, ret_length);
}

static void tfrecord_check_part(const struct archive_end *end, uint64_t offset, uint32_t number,
                                uint8_t *buf, _Atomic uint64_t *done)
{
    struct fault fault = {0};
    uint8_t tail[TAIL_BYTES];
    uint64_t length, data = offset + HEAD_BYTES;
    uint32_t sum = 0;
    if (tfrecord_length(end, offset, number, &fault, &length) == 0) {
        int r = tfrecord_sum(end, data, length, buf, done, &sum);
        if (r == 0)
            r = source_read(end->source, tail, sizeof(tail), data + length);
        if (r < 0)
            tfrecord_fault(&fault, r, number, data, "can't be read");
        else if (!archive_end_stopped(end) && sum != bytes_le32(tail))
            tfrecord_fault(&fault, -EBADMSG, number, data,
                           "its bytes do not have the sum that they were written with");
    }
    if (fault.err)
        end->report(end->ctx, &fault);
}

static int tfrecord_check_end(const struct archive_end *end)
{
    uint64_t size = source_size(end->source), number = 0, length;
    for (uint64_t at = 0; at < size && !archive_end_stopped(end); number++) {
        struct fault fault = {0};
        int r = number > UINT32_MAX ? -EFBIG : 0;
        if (r == 0 && tfrecord_length(end, at, number, &fault, &length) < 0) {
            end->report(end->ctx, &fault);
            break;
        }
        if (r == 0)
            r = end->add_part(end->ctx, at, (uint32_t)number, length);
        if (r < 0)
            return r;
        at += HEAD_BYTES + length + TAIL_BYTES;
    }
    return 0;
}

static const char *const endings[] = {".tfrecord", ".tfrecords", NULL};

static const struct backend_trailer tfrecord_trailer = {
    .check_end = tfrecord_check_end,
    .check_part = tfrecord_check_part,
};

const struct backend backend_tfrecord = {
    .name = "TFRecord",
    .file = "a TFRecord file",
    .endings = endings,
    .checked = "every record has the sum that it was written with",
    .number = 5,
    .least_memory_bytes = UINT64_MAX, /* features of few bytes: all available ones */
    .probe = tfrecord_probe,
    .index = tfrecord_index,
    .trailer = &tfrecord_trailer,
};
