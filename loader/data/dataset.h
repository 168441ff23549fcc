/*
 * The samples of opened archives: one table of records in a stable order, and views of it
 * (all of it, a split, a fold) that share it. What an onepot_archive points to.
 *
 * Order of records: by class (first directory level, byte order), then by the path of the
 * directory, then by archive, then by name: what torchvision's ImageFolder makes of the same
 * tree. Files at the top have no class and come first.
 *
 * Threads: a dataset never changes after it was opened. A cursor belongs to one thread.
 */
#ifndef ONEPOT_DATASET_H
#define ONEPOT_DATASET_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "index.h"
#include "onepot.h"
#include "pot.h"
#include "reader.h"

#define RECORD_OFFSET_BITS 48
#define RECORD_OFFSET_NONE ((UINT64_C(1) << RECORD_OFFSET_BITS) - 1)
#define ARCHIVES_MAX 65535u
#define MEMBER_PATH_MAX (16 * PATH_MAX)

/* A file. */
struct record {
    uint64_t where; /* archive << 48 | offset of its bytes, or RECORD_OFFSET_NONE: in extents */
    uint64_t size_bytes;
    uint32_t entry; /* its position in the archive's index */
    int32_t label;  /* its class, or -1 */
};

static inline uint32_t record_archive(const struct record *record)
{
    return (uint32_t)(record->where >> RECORD_OFFSET_BITS);
}

static inline uint64_t record_offset(const struct record *record)
{
    return record->where & RECORD_OFFSET_NONE;
}

struct readers;
struct cursor;
struct loader_clock;

struct dataset {
    _Atomic unsigned users;
    struct pot **pots;
    const uint8_t **maps; /* of each archive, NULL: it is read */
    size_t pot_count;
    struct record *records;
    size_t record_bytes; /* of the mapping */
    uint64_t record_count;
    uint64_t group_count;    /* samples */
    uint32_t *group_starts;  /* first record of each sample, and the end; NULL: a file each */
    enum onepot_group group; /* what the samples are */
    char **classes;
    uint32_t class_count;
    uint64_t cache_bytes; /* of all archives, as it was asked for; 0: a part of the job's */
    uint64_t hole_bytes;  /* of a file that is mostly holes, at most */
    _Atomic(struct readers *) readers;
    const struct loader_clock *clock; /* a test's; NULL: the system's */
};

struct onepot_archive {
    struct dataset *dataset;
    uint32_t *chosen; /* samples of the dataset; NULL: all */
    uint64_t count;
};

/* Records [*ret_first, *ret_end) of sample i, which exists. */
static inline void archive_records(const struct onepot_archive *archive, uint64_t i,
                                   uint64_t *ret_first, uint64_t *ret_end)
{
    const struct dataset *dataset = archive->dataset;
    uint64_t group = archive->chosen ? archive->chosen[i] : i;
    *ret_first = dataset->group_starts ? dataset->group_starts[group] : group;
    *ret_end = dataset->group_starts ? dataset->group_starts[group + 1] : group + 1;
}

/* The first record of sample i, which exists: of a file the only one. */
static inline const struct record *archive_first(const struct onepot_archive *archive,
                                                 uint64_t i)
{
    uint64_t first, end;
    archive_records(archive, i, &first, &end);
    return &archive->dataset->records[first];
}

struct dataset_options {
    const char *const *filters; /* globs */
    size_t filter_count;
    const char *const *extensions;
    size_t extension_count;
    const char *root; /* the directory of which the classes are children */
    enum onepot_group group;
    uint64_t cache_bytes;
    uint64_t hole_bytes; /* 0: the default */
};

/* Takes the pots over, also on failure. */
int dataset_new(struct pot **pots, size_t count, const struct dataset_options *options,
                struct onepot_error *error, struct dataset **ret_dataset);
void dataset_free(struct dataset *dataset);

/* Are all its archives mapped, and on this node? */
bool dataset_is_mapped(const struct dataset *dataset);

/* The path of a record within its archive; -ENAMETOOLONG. */
int dataset_path(const struct dataset *dataset, const struct record *record, char *buf,
                 size_t size, size_t *ret_len);

/* "FILE: MEMBER: what it means": returns err. */
int dataset_error(struct onepot_error *error, int err, const struct dataset *dataset,
                  const struct record *record);

/* A read of it has been waiting for so long: returns -ETIME. */
int dataset_stalled(struct onepot_error *error, const struct dataset *dataset,
                    const struct record *record, uint64_t age_ns);

/* A cursor of this process; -ENOMEM, -ENOTSUP. To be put back when it isn't used for long. */
int cursor_get(struct dataset *dataset, struct onepot_error *error, struct cursor **ret_cursor);
void cursor_put(struct cursor *cursor);

/* `len` bytes at `offset` of a file, all of which exist. By reads, never by the mapping. */
int cursor_read(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                uint64_t offset, void *buf, size_t len);

/*
 * A file that was just read will be read again, so many samples of this loader later: its
 * cached bytes are kept by that (see readers.c).
 */
void cursor_again(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                  uint64_t distance);

/* A loader has read so many samples. */
void cursor_advance(struct cursor *cursor, uint64_t samples);

/* The fields of the caches and of the storage, of this process. */
void dataset_cache_stats(struct dataset *dataset, struct onepot_stats *stats);

/* The readers of this process; no cursor may be in use. */
void dataset_free_readers(struct dataset *dataset);

#endif
