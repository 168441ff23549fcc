/*
 * Describes a file's fault, naming the file and its archive.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "codec.h"
#include "dataset.h"
#include "error.h"

int dataset_path(const struct dataset *dataset, const struct record *record, char *buf,
                 size_t size, size_t *ret_len)
{
    const struct dataset_link *link = record_link(dataset, record);
    const struct index *index;
    uint32_t named = record_named(dataset, record, &index);
    const char *name;
    int r;
    if (!link || link->folder == LINK_FOLDER_NONE) {
        r = index_path(index, named, buf, size, ret_len);
    } else {
        const char *folder = dataset->link_folders.at[link->folder];
        r = index_name(index, named, &name, ret_len);
        if (r == 0)
            *ret_len = (size_t)snprintf(buf, size, "%s/%.*s", folder, (int)*ret_len, name);
        if (r == 0 && *ret_len >= size)
            r = -ENAMETOOLONG;
    }
    return index_is_lost(index) ? -EIO : r;
}

static const char *dataset_describe(int err, const struct record *record, char *buf,
                                    size_t size)
{
    switch (-err) {
    case EFBIG:
        snprintf(buf, size, "has %llu bytes, and nearly all are holes",
                 (unsigned long long)record->size_bytes);
        return buf;
    case EUCLEAN:
        return "its data is damaged";
    case ENOTSUP:
        return CODEC_UNSUPPORTED;
    case ENODATA:
        return "the archive is shorter than its index says";
    case EBADMSG:
        return "its data does not match its sum";
    case EPROTOTYPE:
        return "it does not have the type and shape of the first sample";
    case EMSGSIZE:
        return "decoding it made more bytes than there is room for";
    case EIO:
        return "it can't be read";
    default:
        return fault_errno(err);
    }
}

static int file_error(struct onepot_error *error, int err, const struct dataset *dataset,
                      const struct record *record, const char *words, const char *advice)
{
    const struct pot *pot = dataset->pots[record_archive(record)];
    struct fault fault = {0};
    size_t len;
    auto_free char *path = calloc(1, MEMBER_PATH_MAX);
    if (path && dataset_path(dataset, record, path, MEMBER_PATH_MAX, &len) < 0)
        path[0] = '\0';
    uint64_t offset =
        record_offset(record) == RECORD_OFFSET_NONE ? FAULT_NO_OFFSET : record_offset(record);
    fault_set_advised(&fault, err, path, offset, advice, "%s", words);
    return error_from_fault(error, err, &fault, pot->path);
}

int dataset_error(struct onepot_error *error, int err, const struct dataset *dataset,
                  const struct record *record)
{
    char words[128];
    const char *advice = "";
    if (err == -EUCLEAN && index_is_lost(dataset->pots[record_archive(record)]->index))
        err = -EIO;
    if (err == -EFBIG)
        advice = "read it in pieces, or allow it when the archive is opened (hole_bytes)";
    if (err == -EUCLEAN || err == -ENODATA || err == -EBADMSG)
        advice = "compare the archive with its original, or copy it again";
    return file_error(error, err, dataset, record,
                      dataset_describe(err, record, words, sizeof(words)), advice);
}

int dataset_error_because(struct onepot_error *error, int err, const struct dataset *dataset,
                          const struct record *record, const char *why)
{
    const char *advice = err == -EILSEQ ? "leave it out, or have it replaced (on_error)" : "";
    return file_error(error, err, dataset, record, why, advice);
}

int dataset_stalled(struct onepot_error *error, const struct dataset *dataset,
                    const struct record *record, uint64_t age_ns)
{
    char words[64];
    snprintf(words, sizeof(words), "a read has been waiting for %.1f s", (double)age_ns / 1e9);
    return file_error(error, -ETIME, dataset, record, words,
                      "check the storage, or allow more time (io_timeout)");
}
