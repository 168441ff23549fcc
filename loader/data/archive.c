/*
 * The public archive: questions about single samples.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "dataset.h"
#include "error.h"
#include "numbers.h"
#include "path.h"

#define HOLES_TO_DATA 16u

void onepot_archive_close(struct onepot_archive *archive)
{
    if (!archive)
        return;
    dataset_free(archive->dataset);
    free(archive->chosen);
    free(archive);
}

uint64_t onepot_archive_samples(const struct onepot_archive *archive)
{
    return archive->count;
}

/* ---- names ---- */

/* The length of the part of a file's path that names its group. */
static size_t group_name_length(enum onepot_group group, const char *path, size_t len)
{
    const char *slash = memrchr(path, '/', len);
    size_t start = slash ? (size_t)(slash - path) + 1 : 0;
    if (group == ONEPOT_GROUP_DIRECTORY)
        return start ? start - 1 : 0;
    return start + dataset_stem(group, path + start, len - start);
}

int archive_name(const struct onepot_archive *archive, uint64_t sample, char *buf, size_t size,
                 size_t *ret_len)
{
    const struct dataset *d = archive->dataset;
    size_t len;
    int r = dataset_path(d, archive_first(archive, sample), buf, size, &len);
    if (r < 0)
        return r;
    if (d->group != ONEPOT_GROUP_NONE) {
        len = group_name_length(d->group, buf, len) - d->part_prefix;
        memmove(buf, buf + d->part_prefix, len);
        buf[len] = '\0';
    }
    *ret_len = len;
    return 0;
}

int onepot_archive_name(const struct onepot_archive *archive, uint64_t sample, char *buf,
                        size_t size, size_t *ret_len)
{
    if (sample >= archive->count)
        return -ERANGE;
    return archive_name(archive, sample, buf, size, ret_len);
}

/*
 * Samples that are single files under their own names: the index finds the file without looking
 * at other names.
 */
static int find_file(const struct onepot_archive *archive, const char *name,
                     uint64_t *ret_sample)
{
    const struct dataset *d = archive->dataset;
    for (uint32_t a = 0; a < d->pot_count; a++) {
        uint32_t entry;
        int r = index_resolve(d->pots[a]->index, name, &entry);
        if (index_is_lost(d->pots[a]->index))
            return -EIO;
        if (r < 0)
            continue;
        for (uint64_t i = 0; i < archive->count; i++) {
            const struct record *record = &d->records[archive->chosen ? archive->chosen[i] : i];
            if (record->entry == entry && record_archive(record) == a) {
                *ret_sample = i;
                return 0;
            }
        }
    }
    return -ENOENT;
}

/* Is this the last part of the record's path? */
static bool has_base_name(const struct dataset *d, const struct record *record,
                          const char *base)
{
    const struct index *index;
    const char *name;
    size_t len;
    uint32_t named = record_named(d, record, &index);
    return index_name(index, named, &name, &len) == 0 && len == strlen(base) &&
           memcmp(name, base, len) == 0;
}

int onepot_archive_find(const struct onepot_archive *archive, const char *name,
                        uint64_t *ret_sample)
{
    const struct dataset *d = archive->dataset;
    bool by_file = d->group == ONEPOT_GROUP_NONE;
    if (by_file) {
        int r = find_file(archive, name, ret_sample);
        if (r != -ENOENT || d->links.count == 0)
            return r;
    }
    auto_free char *buf = malloc(MEMBER_PATH_MAX);
    if (!buf)
        return -ENOMEM;
    for (uint64_t i = 0; i < archive->count; i++) {
        const struct record *first = archive_first(archive, i);
        size_t len;
        if (by_file && (!record_link(d, first) || !has_base_name(d, first, path_base(name))))
            continue;
        int r = archive_name(archive, i, buf, MEMBER_PATH_MAX, &len);
        if (r < 0)
            return r;
        if (strcmp(buf, name) == 0) {
            *ret_sample = i;
            return 0;
        }
    }
    return -ENOENT;
}

/* ---- sizes, labels, parts ---- */

uint64_t archive_size(const struct onepot_archive *archive, uint64_t sample)
{
    uint64_t first, end, bytes = 0;
    archive_records(archive, sample, &first, &end);
    for (; first < end; first++)
        bytes = min_u64(bytes + archive->dataset->records[first].size_bytes, INT64_MAX);
    return bytes;
}

/*
 * Records in one piece and small records cost one comparison. No memory has INT64_MAX bytes, so
 * that who adds or allocates sizes after this check need not fear for their sum.
 */
int archive_check(const struct onepot_archive *archive, uint64_t sample, uint64_t *ret_record)
{
    const struct dataset *d = archive->dataset;
    uint64_t first, end;
    archive_records(archive, sample, &first, &end);
    if (archive_size(archive, sample) == INT64_MAX) { /* mostly holes, whatever was allowed */
        *ret_record = first;
        return -EFBIG;
    }
    for (; first < end; first++) {
        const struct record *record = &d->records[first];
        struct node node;
        if (record->size_bytes <= d->hole_bytes || record_offset(record) != RECORD_OFFSET_NONE)
            continue;
        int r =
            index_node(d->pots[record_archive(record)]->index, record_file(d, record), &node);
        if (r == 0 && record->size_bytes > node.data_bytes) {
            uint64_t holes = record->size_bytes - node.data_bytes;
            if (holes > d->hole_bytes && holes / HOLES_TO_DATA > node.data_bytes)
                r = -EFBIG;
        }
        if (r < 0) {
            *ret_record = first;
            return r;
        }
    }
    return 0;
}

int onepot_archive_check(const struct onepot_archive *archive, uint64_t sample,
                         struct onepot_error *error)
{
    const struct dataset *d = archive->dataset;
    uint64_t record;
    if (sample >= archive->count)
        return error_set(error, -ERANGE, "there is no sample %llu", (unsigned long long)sample);
    int r = archive_check(archive, sample, &record);
    return r < 0 ? dataset_error(error, r, d, &d->records[record]) : 0;
}

int onepot_archive_size(const struct onepot_archive *archive, uint64_t sample,
                        uint64_t *ret_bytes)
{
    if (sample >= archive->count)
        return -ERANGE;
    *ret_bytes = archive_size(archive, sample);
    return 0;
}

uint64_t onepot_archive_left_out(const struct onepot_archive *archive)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < archive->dataset->pot_count; i++)
        count += index_left_out(archive->dataset->pots[i]->index);
    return count;
}

uint64_t onepot_archive_passed_over(const struct onepot_archive *archive,
                                    const char **ret_first)
{
    *ret_first = archive->dataset->passed_over_first;
    return archive->dataset->passed_over;
}

uint64_t onepot_archive_unpaired(const struct onepot_archive *archive, const char **ret_first)
{
    *ret_first = archive->dataset->unpaired_first;
    return archive->dataset->unpaired;
}

uint64_t onepot_archive_common_size(const struct onepot_archive *archive)
{
    uint64_t size = archive->count ? archive_size(archive, 0) : 0;
    uint64_t record;
    for (uint64_t i = 0; i < archive->count && size; i++)
        if (archive_size(archive, i) != size || archive_check(archive, i, &record) < 0)
            return 0;
    return size;
}

int onepot_archive_label(const struct onepot_archive *archive, uint64_t sample,
                         struct onepot_error *error, int64_t *ret_label)
{
    if (sample >= archive->count)
        return error_set(error, -ERANGE, "there is no sample %llu", (unsigned long long)sample);
    const struct record *first = archive_first(archive, sample);
    if (archive->dataset->label_part)
        return label_read(archive->dataset, first, error, ret_label);
    *ret_label = first->label;
    return 0;
}

uint32_t onepot_archive_classes(const struct onepot_archive *archive)
{
    return archive->dataset->class_count;
}

const char *onepot_archive_class(const struct onepot_archive *archive, uint32_t label)
{
    return label < archive->dataset->class_count ? archive->dataset->classes[label] : NULL;
}

int onepot_archive_parts(const struct onepot_archive *archive, uint64_t sample,
                         uint64_t *ret_count)
{
    uint64_t first, end;
    if (sample >= archive->count)
        return -ERANGE;
    archive_records(archive, sample, &first, &end);
    *ret_count = end - first;
    return 0;
}

int onepot_archive_part(const struct onepot_archive *archive, uint64_t sample, uint64_t part,
                        struct onepot_part *ret_part)
{
    const struct dataset *d = archive->dataset;
    uint64_t first, end;
    if (sample >= archive->count)
        return -ERANGE;
    archive_records(archive, sample, &first, &end);
    if (part >= end - first)
        return -ERANGE;
    struct onepot_part found = {0};
    for (uint64_t i = 0; i < part; i++)
        found.offset += d->records[first + i].size_bytes;
    const struct record *record = &d->records[first + part];
    const struct index *index;
    uint32_t named = record_named(d, record, &index);
    int r = index_name(index, named, &found.name, &found.name_len);
    if (r < 0)
        return r;
    if (d->group == ONEPOT_GROUP_BASE_NAME) {
        size_t stem = dataset_stem(d->group, found.name, found.name_len);
        size_t skip = stem + (stem < found.name_len);
        found.name += skip;
        found.name_len -= skip;
    }
    if (d->group == ONEPOT_GROUP_FOLDERS) {
        found.name = d->part_names.at[part];
        found.name_len = strlen(found.name);
    }
    found.bytes = record->size_bytes;
    return result_write(ret_part, &found, sizeof(found), NULL);
}

/* ---- bytes ---- */

int onepot_archive_bytes(const struct onepot_archive *archive, uint64_t sample,
                         const void **ret_bytes, uint64_t *ret_len)
{
    const struct dataset *d = archive->dataset;
    uint64_t first, end;
    if (sample >= archive->count)
        return -ERANGE;
    archive_records(archive, sample, &first, &end);
    const struct record *record = &d->records[first];
    const uint8_t *map = d->maps[record_archive(record)];
    struct source *source = d->pots[record_archive(record)]->source;
    if (end - first != 1 || !map || record_offset(record) == RECORD_OFFSET_NONE ||
        source_bring(source, record_offset(record), record->size_bytes) < 0 ||
        !source_is_whole(source))
        return -ENOTSUP;
    *ret_bytes = map + record_offset(record);
    *ret_len = record->size_bytes;
    return 0;
}

int onepot_archive_read(const struct onepot_archive *archive, uint64_t sample, uint64_t offset,
                        void *buf, size_t len, struct onepot_error *error, size_t *ret_len)
{
    struct dataset *d = archive->dataset;
    struct cursor *cursor;
    uint64_t first, end;
    uint8_t *to = buf;
    if (sample >= archive->count)
        return error_set(error, -ERANGE, "there is no sample %llu", (unsigned long long)sample);
    int r = cursor_get(d, error, &cursor);
    if (r < 0)
        return r;
    archive_records(archive, sample, &first, &end);
    for (; first < end && len > 0 && r == 0; first++) {
        const struct record *record = &d->records[first];
        if (offset >= record->size_bytes) {
            offset -= record->size_bytes;
            continue;
        }
        size_t n =
            record->size_bytes - offset < len ? (size_t)(record->size_bytes - offset) : len;
        r = cursor_read(d, cursor, record, offset, to, n);
        if (r < 0)
            dataset_error(error, r, d, record);
        to += n;
        len -= n;
        offset = 0;
    }
    cursor_put(cursor);
    if (r == 0)
        *ret_len = (size_t)(to - (uint8_t *)buf);
    return r;
}
