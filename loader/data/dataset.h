/*
 * The samples of opened archives: one table of records in a stable order, and views that share
 * it (the whole, a split, a fold). An onepot_archive points to a view.
 *
 * Order of records: by class (first directory level, byte order), then by path of the
 * directory, then by archive, then by name, as torchvision's ImageFolder orders the same tree.
 * Files at the top have no class and come first. Symbolic links are walked as its os.walk
 * follows them: a directory that links lead to several times is there several times, up to 40
 * links deep.
 *
 * Threads: a dataset never changes after it was opened, but for what is atomic. A cursor
 * belongs to one thread.
 */
#ifndef ONEPOT_DATASET_H
#define ONEPOT_DATASET_H

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "clock.h"
#include "index.h"
#include "onepot.h"
#include "fileset.h"
#include "reader.h"
#include "vector.h"

#define RECORD_OFFSET_BITS 48
#define RECORD_OFFSET_NONE ((UINT64_C(1) << RECORD_OFFSET_BITS) - 1)
#define ARCHIVES_MAX 65535u
#define MEMBER_PATH_MAX (16 * PATH_MAX)

/* One file. */
struct record {
    /* archive << 48 | offset of its bytes; RECORD_OFFSET_NONE as offset: see its extents */
    uint64_t where;
    uint64_t size_bytes;
    uint32_t entry; /* position in the archive's index, or beyond it: see dataset_link */
    int32_t label;  /* class, or -1 */
};

/*
 * A file that was reached through a symbolic link, and so has another name than its entry. The
 * record's `entry` is the number of these behind the entries of its archive.
 */
struct dataset_link {
    uint32_t file;          /* the entry with the bytes, in the record's archive */
    uint32_t archive, name; /* the entry with the name, and its archive */
    uint32_t folder;        /* number of the path before the name; none: the entry's own */
};
#define LINK_FOLDER_NONE UINT32_MAX

static inline uint32_t record_archive(const struct record *record)
{
    return (uint32_t)(record->where >> RECORD_OFFSET_BITS);
}

static inline uint64_t record_offset(const struct record *record)
{
    return record->where & RECORD_OFFSET_NONE;
}

/* The length of the part of a name that the files of one sample share: up to its first dot, or
 * where folders keep the parts apart, to the last one. */
static inline size_t dataset_stem(enum onepot_group group, const char *name, size_t len)
{
    const char *dot =
        group == ONEPOT_GROUP_FOLDERS ? memrchr(name, '.', len) : memchr(name, '.', len);
    return dot ? (size_t)(dot - name) : len;
}

struct readers;
struct cursor;

struct dataset {
    _Atomic unsigned users;
    struct fileset **filesets;
    char *opened_in;                /* where relative paths led from; NULL: not known */
    _Atomic(uint8_t *) data_digest; /* NULL: nobody has asked for it */
    const uint8_t **maps;    /* one for each archive; NULL: that archive is read, not mapped */
    bool *brings;            /* reads there have to be brought first */
    struct source **sources; /* of the archives, close together */
    size_t fileset_count;
    struct record *records;
    size_t record_bytes; /* length of the mapping that holds the records */
    uint64_t record_count;
    uint64_t group_count; /* samples */
    /* first record of each sample, and the end; NULL: each file is a sample */
    uint32_t *group_starts;
    VECTOR(struct dataset_link) links;
    VECTOR(char *) link_folders; /* paths of directories that were reached through links */
    uint64_t passed_over;        /* links that lead out of their archives or nowhere, */
    char *passed_over_first;     /* and the path of the first; NULL: there are none */
    enum onepot_group group;     /* the kind of samples */
    VECTOR(char *) part_names;   /* of files that have folders of their own */
    size_t part_prefix;          /* length of the first part's folder, and a slash */
    uint64_t unpaired;           /* files of such folders that are no samples, */
    char *unpaired_first;        /* and the path of the first; NULL: there are none */
    char *label_part; /* that has the label; NULL: classes are labels. See label_find */
    char **classes;
    uint32_t class_count;
    uint64_t cache_bytes; /* for all archives, as requested; 0: a part of the job's memory */
    uint64_t hole_bytes;  /* most bytes of holes in a file that is mostly holes */
    _Atomic(struct readers *) readers;
    /*
     * The time that loaders go by, and how their consumers wait for the condition, at most
     * until that time (UINT64_MAX: as long as it takes; false: it has come) while so many
     * threads work or hang. NULL: the system's. A test has its own, so that a read may hang for
     * a minute that takes no time.
     */
    uint64_t (*now_ns)(void);
    bool (*wait)(pthread_cond_t *ready, pthread_mutex_t *lock, uint64_t until_ns,
                 uint32_t at_work);
};

struct onepot_archive {
    struct dataset *dataset;
    uint32_t *chosen; /* numbers of the chosen samples; NULL: all */
    uint64_t count;
};

/* The records [*ret_first, *ret_end) of sample i. The sample must exist. */
static inline void archive_records(const struct onepot_archive *archive, uint64_t i,
                                   uint64_t *ret_first, uint64_t *ret_end)
{
    const struct dataset *dataset = archive->dataset;
    uint64_t group = archive->chosen ? archive->chosen[i] : i;
    *ret_first = dataset->group_starts ? dataset->group_starts[group] : group;
    *ret_end = dataset->group_starts ? dataset->group_starts[group + 1] : group + 1;
}

/* The first record of sample i, which must exist. A sample of one file has no other. */
static inline const struct record *archive_first(const struct onepot_archive *archive,
                                                 uint64_t i)
{
    uint64_t first, end;
    archive_records(archive, i, &first, &end);
    return &archive->dataset->records[first];
}

/* How a record was reached; NULL: by its entry's own path. */
static inline const struct dataset_link *record_link(const struct dataset *dataset,
                                                     const struct record *record)
{
    uint32_t entries = index_info(dataset->filesets[record_archive(record)]->index)->entries;
    return record->entry < entries ? NULL : &dataset->links.at[record->entry - entries];
}

/* The entry that has a record's bytes. */
static inline uint32_t record_file(const struct dataset *dataset, const struct record *record)
{
    const struct dataset_link *link = record_link(dataset, record);
    return link ? link->file : record->entry;
}

/* The entry that has a record's name, and its index. */
static inline uint32_t record_named(const struct dataset *dataset, const struct record *record,
                                    const struct index **ret_index)
{
    const struct dataset_link *link = record_link(dataset, record);
    *ret_index = dataset->filesets[link ? link->archive : record_archive(record)]->index;
    return link ? link->name : record->entry;
}

/* Make the table. Takes the filesets over, also on failure. */
int dataset_new(struct fileset **filesets, size_t count,
                const struct onepot_archive_options *options, struct onepot_error *error,
                struct dataset **ret_dataset);
void dataset_free(struct dataset *dataset);

/* CLOCK_MONOTONIC, or a test's. */
static inline uint64_t dataset_now_ns(const struct dataset *dataset)
{
    return dataset->now_ns ? dataset->now_ns() : now_ns();
}

/* Are all archives mapped, and on this node? */
bool dataset_is_mapped(const struct dataset *dataset);

/* Write a record's path within its archive. -ENAMETOOLONG. */
int dataset_path(const struct dataset *dataset, const struct record *record, char *buf,
                 size_t size, size_t *ret_len);

/* Put "FILE: MEMBER: reason" into *error. Returns err. */
int dataset_error(struct onepot_error *error, int err, const struct dataset *dataset,
                  const struct record *record);

/* The same, with the caller's reason. */
int dataset_error_because(struct onepot_error *error, int err, const struct dataset *dataset,
                          const struct record *record, const char *why);

/* A cursor of this process, to be put back when it is not used for long. -ENOMEM, -ENOTSUP. */
int cursor_get(struct dataset *dataset, struct onepot_error *error, struct cursor **ret_cursor);
void cursor_put(struct cursor *cursor);

/* Read `len` bytes at `offset` of a file, all of which must exist. Never uses the mapping. */
int cursor_read(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                uint64_t offset, void *buf, size_t len);

/*
 * Tell the cache after how many samples of this loader the file just read will be read again.
 * The cache decides by that which files it keeps.
 */
void cursor_again(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                  uint64_t distance);

/* Tell the cache that a loader has read `samples` more. */
void cursor_advance(struct cursor *cursor, uint64_t samples);

/* Fill in the statistics of this process's caches and storage. */
void dataset_cache_stats(struct dataset *dataset, struct onepot_stats *stats);

/* ---- labels ---- */

/*
 * Labels that are parts of samples: text files beside the others, such as x.cls of WebDataset's
 * x.jpg, or an integer feature of a TFRecord. The part is found by its name when a label is
 * wanted, so that opening an archive reads none, and that a filter may leave it out of the
 * sample.
 *
 * Threads: any.
 */

#define LABEL_TEXT_MAX 64u /* a longer part is no integer */

/*
 * The part with the label of a sample whose first record is `first`. -ENOENT: it has none;
 * -EDOM: it is too long; -EUCLEAN.
 */
int label_find(const struct dataset *dataset, const struct record *first,
               struct record *ret_part);

/* An integer in decimal, with nothing but blanks around it. -EDOM. */
int label_parse(const void *text, size_t len, int64_t *ret_label);

/* As dataset_error, about the part with the label of a sample. */
int label_error(struct onepot_error *error, int err, const struct dataset *dataset,
                const struct record *first);

/* ---- .npy files ---- */

/*
 * Reads the header of a .npy file (numpy's format, versions 1 to 3): a Python dict of three
 * entries. Anything else is refused, and so are arrays of objects.
 */

/* Bytes of a header at most, with what goes before it. */
#define NPY_HEADER_MAX (12u + 65536u)

/*
 * Read the header in the first `len` bytes of a file: type, shape and size in bytes of its
 * array, and where the data begins. -EAGAIN: the header is longer than `len`. -EUCLEAN: there
 * is no such header.
 */
int npy_parse(const void *bytes, size_t len, struct onepot_npy *ret_npy, size_t *ret_data);

/* ---- archives, beyond onepot.h ---- */

/*
 * Functions on archives for the files of this folder, beyond onepot.h. `sample` must be below
 * the number of samples.
 */

/* Another handle for the same samples, to be closed by the caller. NULL: no memory. */
struct onepot_archive *archive_share(const struct onepot_archive *archive);

/*
 * May all of the sample be brought into memory? -EFBIG and the record that is mostly holes;
 * -EUCLEAN.
 */
int archive_check(const struct onepot_archive *archive, uint64_t sample, uint64_t *ret_record);

uint64_t archive_size(const struct onepot_archive *archive, uint64_t sample);

#endif
