/*
 * A part has the sample's name up to the first dot, and its own behind it. So it is one lookup
 * in the sample's directory, and nothing has to be kept for it.
 */
#include "dataset.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "error.h"

static int label_look_up(const struct dataset *d, const struct index *index, uint32_t directory,
                         const char *stem, size_t stem_len, const char *ending,
                         uint32_t *ret_position)
{
    char name[INDEX_NAME_MAX + 1];
    int len = snprintf(name, sizeof(name), "%.*s%s%s%s", (int)stem_len, stem,
                       stem_len ? "." : "", d->label_part, ending);
    return len < 0 || len > (int)INDEX_NAME_MAX
               ? -ENOENT
               : index_lookup(index, directory, name, (size_t)len, ret_position);
}

int label_find(const struct dataset *d, const struct record *first, struct record *ret_part)
{
    const struct dataset_link *link = record_link(d, first);
    const struct index *index;
    const char *name;
    size_t len;
    uint32_t named = record_named(d, first, &index), directory, position;
    struct index_file file;
    int r = index_name(index, named, &name, &len);
    if (r == 0)
        r = index_parent(index, named, &directory);
    if (r < 0)
        return r;
    size_t stem_len =
        d->group == ONEPOT_GROUP_DIRECTORY ? 0 : dataset_stem(d->group, name, len);
    r = label_look_up(d, index, directory, name, stem_len, "", &position);
    if (r == -ENOENT) /* integers of a TFRecord have this ending, if their name has not */
        r = label_look_up(d, index, directory, name, stem_len, ".cls", &position);
    if (r == 0)
        r = index_files(index, position, 1, &file);
    if (r == 0 && S_ISLNK(file.mode)) {
        r = index_follow(index, position, "", NULL, &position);
        if (r == 0)
            r = index_files(index, position, 1, &file);
        if (r < 0 && r != -EUCLEAN)
            return -ENOENT;
    }
    if (r < 0)
        return r;
    if (!S_ISREG(file.mode))
        return -ENOENT;
    uint64_t archive = link ? link->archive : record_archive(first);
    uint64_t offset = file.offset < RECORD_OFFSET_NONE ? file.offset : RECORD_OFFSET_NONE;
    *ret_part = (struct record){.where = archive << RECORD_OFFSET_BITS | offset,
                                .size_bytes = file.size_bytes,
                                .entry = position};
    return file.size_bytes > LABEL_TEXT_MAX ? -EDOM : 0;
}

int label_parse(const void *text, size_t len, int64_t *ret_label)
{
    char copy[LABEL_TEXT_MAX + 1], *end;
    if (len > LABEL_TEXT_MAX)
        return -EDOM;
    memcpy(copy, text, len);
    copy[len] = '\0';
    errno = 0;
    int64_t label = strtoll(copy, &end, 10);
    if (end == copy || errno)
        return -EDOM;
    end += strspn(end, " \t\n\v\f\r");
    if (end != copy + len)
        return -EDOM;
    *ret_label = label;
    return 0;
}

int label_error(struct onepot_error *error, int err, const struct dataset *d,
                const struct record *first)
{
    struct record part;
    int r = label_find(d, first, &part);
    if (r < 0 && r != -EDOM)
        return dataset_error(error, err, d, first);
    if (err == -EDOM)
        return dataset_error_because(error, err, d, &part,
                                     "it is to be a label, and is no integer");
    return dataset_error(error, err, d, &part);
}

int label_read(struct dataset *d, const struct record *first, struct onepot_error *error,
               int64_t *ret_label)
{
    char text[LABEL_TEXT_MAX];
    struct cursor *cursor;
    struct record part;
    int r = label_find(d, first, &part);
    if (r == -ENOENT) {
        *ret_label = -1;
        return 0;
    }
    if (r == 0) {
        r = cursor_get(d, error, &cursor);
        if (r < 0)
            return r;
        r = cursor_read(d, cursor, &part, 0, text, part.size_bytes);
        cursor_put(cursor);
    }
    if (r == 0)
        r = label_parse(text, part.size_bytes, ret_label);
    return r < 0 ? label_error(error, r, d, first) : 0;
}
