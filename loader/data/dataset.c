/*
 * Makes the table of records. Each archive is walked directory by directory, and the files of a
 * directory become a run of records. Then the directories are sorted, and the runs put in their
 * order. An index holds the children of a directory sorted, so files are never compared: ten
 * million files in a thousand directories cost a sort of a thousand paths.
 *
 * Symbolic links are followed as os.walk follows them. Directories that contain links to
 * themselves end at 40 links. Where several such links multiply each other, the walk ends with
 * an error once its tables have grown too much (walk_spend).
 *
 * Reading: the readers of a process, one for each archive, and their caches. A fork may happen
 * while a thread is inside a reader, with its locks taken. So a child never touches its
 * parent's readers, and makes its own at its first read. The unused ones cost it nothing but
 * address space.
 *
 * The caches hold decompressed blocks, and stored samples of archives that are read from
 * storage. Once a cache is full its content stays, so that the share of reads it answers in
 * each epoch is the share of the data it has room for. With several ranks, a loader also tells
 * which samples this rank reads again in the next epoch (cursor_again), and the cache keeps
 * those. Other mounts and loaders of the job decide how much room there is (share.h). Mapped
 * archives need no cache.
 */
#include "dataset.h"

#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "codec.h"
#include "error.h"
#include "path.h"
#include "rank_share.h"
#include "share.h"
#include "vector.h"

#define HOLE_BYTES (UINT64_C(64) << 20)
#define WALK_RUN 128u                           /* children looked up in one call */
#define LINKED_BYTES_MOST (UINT64_C(256) << 20) /* of tables, for what links lead to; and */
#define LINKED_COPIES 4u                        /* room for so many copies of all entries */
#define LINKED_ENTRY_BYTES (sizeof(struct record) + sizeof(struct dataset_link))

/* A cache for a smaller share of the data is not worth a second copy of each sample. */
#define KEEP_LEAST 16u
#define ROOM_BYTES (UINT64_C(4) << 20) /* the cache's minimum */
#define STUCK_MS                                                                               \
    30000u /* after this time nobody waits for another thread's read of a block                \
            */

/*
 * Threads read samples out of turn, so one that became due this recently may still be wanted.
 */
#define CLOCK_LAG 4096u

/* ---- words for the fault of a file ---- */

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

static int dataset_file_error(struct onepot_error *error, int err,
                              const struct dataset *dataset, const struct record *record,
                              const char *words, const char *advice)
{
    const struct fileset *fileset = dataset->filesets[record_archive(record)];
    struct fault fault = {0};
    size_t len;
    auto_free char *path = calloc(1, MEMBER_PATH_MAX);
    if (path && dataset_path(dataset, record, path, MEMBER_PATH_MAX, &len) < 0)
        path[0] = '\0';
    uint64_t offset =
        record_offset(record) == RECORD_OFFSET_NONE ? FAULT_NO_OFFSET : record_offset(record);
    fault_set_advised(&fault, err, path, offset, advice, "%s", words);
    return error_from_fault(error, err, &fault, fileset->path);
}

int dataset_error(struct onepot_error *error, int err, const struct dataset *dataset,
                  const struct record *record)
{
    char words[128];
    const char *advice = "";
    if (err == -EUCLEAN && index_is_lost(dataset->filesets[record_archive(record)]->index))
        err = -EIO;
    if (err == -EFBIG)
        advice = "read it in pieces, or allow it when the archive is opened (hole_bytes)";
    if (err == -EUCLEAN || err == -ENODATA || err == -EBADMSG)
        advice = "compare the archive with its original, or copy it again";
    return dataset_file_error(error, err, dataset, record,
                              dataset_describe(err, record, words, sizeof(words)), advice);
}

int dataset_error_because(struct onepot_error *error, int err, const struct dataset *dataset,
                          const struct record *record, const char *why)
{
    const char *advice = err == -EILSEQ  ? "leave it out, or have it replaced (on_error)"
                         : err == -ETIME ? "check the storage, or allow more time (io_timeout)"
                                         : "";
    return dataset_file_error(error, err, dataset, record, why, advice);
}

/* ---- readers and their caches ---- */

/* The readers of one process. */
struct readers {
    pid_t pid;
    size_t count;         /* of archives */
    pthread_mutex_t lock; /* over the idle cursors */
    struct cursor *idle;
    struct share *share;          /* of the caches, with others of the job; NULL: with nobody */
    uint64_t *weights;            /* for each archive, the bytes that its cache could hold */
    uint64_t weight;              /* sum of the weights */
    _Atomic uint64_t cache_bytes; /* that all caches may have now */
    _Atomic uint64_t reads, read_bytes; /* of storage, where it is not mapped */
    _Atomic uint64_t clock;             /* samples that loaders have read */
    struct reader *reader[];            /* one for each archive */
};

/* Memory with which one thread reads: scratch for each archive, made when first used. */
struct cursor {
    struct readers *readers;
    struct cursor *next;
    struct reader_scratch *scratch[];
};

static void cursor_free(struct cursor *cursor, size_t count)
{
    for (size_t i = 0; i < count; i++)
        reader_scratch_free(cursor->scratch[i]);
    free(cursor);
}

static void readers_free(struct readers *readers)
{
    share_free(readers->share);
    while (readers->idle) {
        struct cursor *cursor = readers->idle;
        readers->idle = cursor->next;
        cursor_free(cursor, readers->count);
    }
    for (size_t i = 0; i < readers->count; i++)
        reader_free(readers->reader[i]);
    pthread_mutex_destroy(&readers->lock);
    free(readers->weights);
    free(readers);
}

/* ---- the size of the caches ---- */

static bool needs_cache(const struct dataset *d, size_t archive)
{
    const struct fileset *fileset = d->filesets[archive];
    return index_info(fileset->index)->block_bytes > 0 ||
           (!d->maps[archive] && !source_keeps(fileset->source));
}

/* The share's answer (claim_set). */
static uint64_t readers_told_part(void *ctx, uint64_t bytes, uint64_t most_bytes,
                                  unsigned processes)
{
    (void)most_bytes, (void)processes;
    struct readers *readers = ctx;
    if (atomic_exchange(&readers->cache_bytes, bytes) == bytes)
        return bytes;
    for (size_t i = 0; i < readers->count; i++) {
        double share =
            readers->weight ? (double)readers->weights[i] / (double)readers->weight : 0;
        reader_set_budget(readers->reader[i], (uint64_t)((double)bytes * share));
    }
    return bytes;
}

/* Ask for as much memory as the data needs. */
static void readers_share_memory(struct readers *readers, const struct dataset *d)
{
    const struct claim_options claim = {
        .total_bytes = budget_cache_bytes(),
        .fixed_bytes = d->cache_bytes,
        .most_bytes = readers->weight + readers->weight / 8 + ROOM_BYTES,
        .unwatched = true,
    };
    if (readers->weight == 0 ||
        share_new(&claim, readers_told_part, readers, &readers->share) == 0)
        return;
    readers->share = NULL;
    readers_told_part(readers,
                      d->cache_bytes ? d->cache_bytes : claim.total_bytes / rank_share_ranks(),
                      0, 0);
}

static int readers_weigh(struct readers *readers, const struct dataset *d)
{
    readers->weights = calloc(readers->count + 1, sizeof(*readers->weights));
    if (!readers->weights)
        return -ENOMEM;
    bool any = false;
    for (size_t i = 0; i < readers->count; i++)
        any = any || needs_cache(d, i);
    for (uint64_t i = 0; any && i < d->record_count; i++)
        readers->weights[record_archive(&d->records[i])] += d->records[i].size_bytes;
    for (size_t i = 0; i < readers->count; i++) {
        if (!needs_cache(d, i))
            readers->weights[i] = 0;
        readers->weight += readers->weights[i];
    }
    return 0;
}

/* Is it worth keeping stored bytes of an archive that is read from storage? */
static bool readers_keep(const struct readers *readers)
{
    return atomic_load_explicit(&readers->cache_bytes, memory_order_relaxed) >=
           readers->weight / KEEP_LEAST;
}

/* ---- making readers ---- */

/*
 * With one rank the kernel need not keep what our cache holds, so pages are dropped after a
 * read. Several ranks of a node that read the same archive share the kernel's cache, so there
 * the pages stay.
 */
static int readers_make(struct dataset *d, struct onepot_error *error, struct readers *readers)
{
    struct reader_options options = {
        .cache_stored = true, .keep_pages = rank_share_ranks() > 1, .stuck_ms = STUCK_MS};
    for (size_t i = 0; i < readers->count; i++) {
        struct fault fault = {0};
        int r = reader_new(d->filesets[i], &options, &fault, &readers->reader[i]);
        if (r < 0)
            return error_from_fault(error, r, &fault, d->filesets[i]->path);
    }
    int r = readers_weigh(readers, d);
    if (r < 0)
        return error_set(error, r, "out of memory");
    readers_share_memory(readers, d);
    return 0;
}

static int readers_new(struct dataset *dataset, struct onepot_error *error,
                       struct readers **ret_readers)
{
    size_t count = dataset->fileset_count;
    struct readers *readers = calloc(1, sizeof(*readers) + count * sizeof(struct reader *));
    if (!readers)
        return error_set(error, -ENOMEM, "out of memory");
    readers->pid = getpid();
    readers->count = count;
    pthread_mutex_init(&readers->lock, NULL);
    int r = readers_make(dataset, error, readers);
    if (r < 0) {
        readers_free(readers);
        return r;
    }
    *ret_readers = readers;
    return 0;
}

/* If two threads make readers at once, one of them keeps its own. */
static int readers_get(struct dataset *dataset, struct onepot_error *error,
                       struct readers **ret_readers)
{
    struct readers *readers = atomic_load(&dataset->readers);
    if (!readers || readers->pid != getpid()) {
        struct readers *made = NULL;
        int r = readers_new(dataset, error, &made);
        if (r < 0)
            return r;
        if (atomic_compare_exchange_strong(&dataset->readers, &readers, made))
            readers = made;
        else
            readers_free(made);
    }
    *ret_readers = readers;
    return 0;
}

/* ---- reading; a cursor returns only to the readers of the process that made it ---- */

int cursor_get(struct dataset *dataset, struct onepot_error *error, struct cursor **ret_cursor)
{
    struct readers *readers;
    int r = readers_get(dataset, error, &readers);
    if (r < 0)
        return r;
    pthread_mutex_lock(&readers->lock);
    struct cursor *cursor = readers->idle;
    if (cursor)
        readers->idle = cursor->next;
    pthread_mutex_unlock(&readers->lock);
    if (!cursor) {
        cursor = calloc(1, sizeof(*cursor) +
                               dataset->fileset_count * sizeof(struct reader_scratch *));
        if (!cursor)
            return error_set(error, -ENOMEM, "out of memory");
        cursor->readers = readers;
    }
    *ret_cursor = cursor;
    return 0;
}

void cursor_put(struct cursor *cursor)
{
    struct readers *readers = cursor->readers;
    if (readers->pid != getpid())
        return; /* made by the parent */
    pthread_mutex_lock(&readers->lock);
    cursor->next = readers->idle;
    readers->idle = cursor;
    pthread_mutex_unlock(&readers->lock);
}

static int read_past_cache(struct readers *readers, const struct source *source, void *buf,
                           size_t len, uint64_t offset)
{
    int r = source_read(source, buf, len, offset);
    atomic_fetch_add_explicit(&readers->reads, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&readers->read_bytes, len, memory_order_relaxed);
    return r == 0 || r == -ENODATA ? r : -EIO;
}

int cursor_read(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                uint64_t offset, void *buf, size_t len)
{
    uint32_t archive = record_archive(record);
    struct fileset *fileset = dataset->filesets[archive];
    if (len == 0)
        return 0;
    bool in_one_piece = record_offset(record) != RECORD_OFFSET_NONE;
    if (in_one_piece && (source_keeps(fileset->source) || dataset->maps[archive] ||
                         !readers_keep(cursor->readers)))
        return read_past_cache(cursor->readers, fileset->source, buf, len,
                               record_offset(record) + offset);
    struct reader *reader = cursor->readers->reader[archive];
    struct reader_scratch **scratch = &cursor->scratch[archive];
    size_t got;
    int r = *scratch ? 0 : reader_scratch_new(reader, scratch);
    if (r == 0)
        r = reader_copy(reader, *scratch, record_file(dataset, record), offset, buf, len, &got);
    if (r == 0 && got < len)
        r = -EUCLEAN;
    return r;
}

void cursor_again(struct dataset *dataset, struct cursor *cursor, const struct record *record,
                  uint64_t distance)
{
    struct readers *readers = cursor->readers;
    uint32_t archive = record_archive(record);
    if (dataset->maps[archive] || record_offset(record) == RECORD_OFFSET_NONE ||
        !readers_keep(readers))
        return;
    uint64_t now = atomic_load_explicit(&readers->clock, memory_order_relaxed);
    reader_note_due(readers->reader[archive], record_file(dataset, record), now + distance);
}

void cursor_advance(struct cursor *cursor, uint64_t samples)
{
    struct readers *readers = cursor->readers;
    uint64_t now = samples + atomic_fetch_add(&readers->clock, samples);
    for (size_t i = 0; i < readers->count && now > CLOCK_LAG; i++)
        reader_passed(readers->reader[i], now - CLOCK_LAG, false);
}

/* ---- the readers of this process, if it has any ---- */

static struct readers *readers_of(struct dataset *dataset)
{
    struct readers *readers = atomic_load(&dataset->readers);
    return readers && readers->pid == getpid() ? readers : NULL;
}

/* No cursor may be in use. */
static void dataset_free_readers(struct dataset *dataset)
{
    struct readers *readers = readers_of(dataset);
    if (readers)
        readers_free(readers);
}

void dataset_cache_stats(struct dataset *dataset, struct onepot_stats *stats)
{
    const struct readers *readers = readers_of(dataset);
    if (!readers)
        return;
    stats->reads = atomic_load(&readers->reads);
    stats->read_bytes = atomic_load(&readers->read_bytes);
    stats->cache_part_bytes = atomic_load(&readers->cache_bytes);
    for (size_t i = 0; i < readers->count; i++) {
        struct block_cache_stats cache;
        uint64_t reads, bytes;
        reader_stats(readers->reader[i], &cache, &reads, &bytes);
        stats->cache_hits += cache.hits;
        stats->cache_misses += cache.misses;
        stats->cache_bytes += cache.bytes;
        stats->reads += reads;
        stats->read_bytes += bytes;
    }
}

/* ---- the walk ---- */

/* A directory, and the run of its files. */
struct folder {
    char *path; /* below the root; "" is the root itself */
    uint32_t archive;
    uint32_t position;
    int32_t label;
    uint32_t part;  /* that its files are, if folders keep the parts of samples apart */
    uint32_t shown; /* number of its path in link_folders, if links led to it */
    unsigned links; /* that were followed on the way to it */
    uint64_t first, count;
};

struct walk {
    struct dataset *dataset;
    const struct onepot_archive_options *options;
    struct onepot_error *error;
    VECTOR(struct folder) folders;
    char *path;       /* MEMBER_PATH_MAX bytes, for the path of the present file */
    struct folder at; /* whose children are looked at */
    uint32_t part;    /* whose folder is walked */
    bool is_plain;    /* its files are samples whatever their names, and not behind links */
    char *root, *root_led;              /* its path; and where links in it lead, or NULL */
    unsigned root_links;                /* how many these are */
    uint64_t linked_bytes, linked_most; /* of tables, for what links lead to */
    uint64_t roots, unwanted, special;  /* for a message: what there is beside samples */
};

/* ---- folders and classes ---- */

static int add_folder(struct walk *w, const struct folder *folder)
{
    struct folder added = *folder;
    added.path = strdup(folder->path);
    added.part = w->part;
    added.label = -1;
    int r = added.path ? vector_push(&w->folders, added) : -ENOMEM;
    if (r < 0)
        free(added.path);
    return r;
}

/* The path in its archive of a path below the root. NULL: no memory. */
static char *full_path(const struct walk *w, const char *path)
{
    char *full;
    const char *slash = *w->root && *path ? "/" : "";
    return asprintf(&full, "%s%s%s", w->root, slash, path) < 0 ? NULL : full;
}

/* Count bytes of tables, or names that were looked up. */
static int walk_spend(struct walk *w, uint64_t bytes)
{
    struct fault fault = {0};
    w->linked_bytes += bytes;
    if (w->linked_bytes <= w->linked_most)
        return 0;
    fault_set_advised(&fault, -EOVERFLOW, w->path, FAULT_NO_OFFSET,
                      "leave such links out (exclude)",
                      "symbolic links that lead to directories above them multiply the files "
                      "beyond any memory");
    return error_from_fault(w->error, -EOVERFLOW, &fault,
                            w->dataset->filesets[w->at.archive]->path);
}

/* The link at w->path leads out of its archive or nowhere. */
static int walk_pass_over(struct walk *w)
{
    struct dataset *d = w->dataset;
    if (d->passed_over++ == 0 && !(d->passed_over_first = full_path(w, w->path)))
        return -ENOMEM;
    return 0;
}

/* A directory at w->path, on whose way there are links. The kernel opens no longer path. */
static int add_linked_folder(struct walk *w, uint32_t archive, uint32_t position,
                             unsigned links)
{
    struct dataset *d = w->dataset;
    char *shown = full_path(w, w->path);
    if (!shown)
        return -ENOMEM;
    size_t len = strlen(shown);
    int r = walk_spend(w, sizeof(struct folder) + 2 * len);
    if (r < 0 || len > INDEX_PATH_MAX) {
        free(shown);
        return r < 0 ? r : walk_pass_over(w);
    }
    r = vector_push(&d->link_folders, shown);
    if (r < 0) {
        free(shown);
        return r;
    }
    return add_folder(w, &(struct folder){.path = w->path,
                                          .archive = archive,
                                          .position = position,
                                          .shown = (uint32_t)(d->link_folders.count - 1),
                                          .links = links});
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* By first component, then by path, then by archive. */
static int compare_folders(const void *a, const void *b)
{
    const struct folder *x = a, *y = b;
    if (x->label != y->label)
        return x->label < y->label ? -1 : 1;
    int compared = strcmp(x->path, y->path);
    if (compared != 0)
        return compared;
    return x->archive < y->archive ? -1 : x->archive > y->archive;
}

/* Classes are the folders of the first level, each name once. */
static int make_classes(struct walk *w)
{
    struct dataset *d = w->dataset;
    size_t count = 0;
    d->classes = calloc(w->folders.count + 1, sizeof(*d->classes));
    if (!d->classes)
        return -ENOMEM;
    for (size_t i = 0; i < w->folders.count; i++) {
        const char *path = w->folders.at[i].path;
        if (!*path || strchr(path, '/'))
            continue;
        if (!(d->classes[count++] = strdup(path)))
            return -ENOMEM;
    }
    qsort(d->classes, count, sizeof(*d->classes), compare_text);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (kept && strcmp(d->classes[kept - 1], d->classes[i]) == 0)
            free(d->classes[i]);
        else
            d->classes[kept++] = d->classes[i];
    }
    memset(d->classes + kept, 0, (count - kept) * sizeof(*d->classes));
    d->class_count = (uint32_t)kept;
    return 0;
}

static void label_folders(struct walk *w)
{
    struct dataset *d = w->dataset;
    for (size_t i = 0; i < w->folders.count; i++) {
        struct folder *f = &w->folders.at[i];
        size_t len = strcspn(f->path, "/");
        char kept = f->path[len];
        f->path[len] = '\0';
        char **class = len == 0 ? NULL
                                : bsearch(&f->path, d->classes, d->class_count,
                                          sizeof(*d->classes), compare_text);
        f->path[len] = kept;
        f->label = class ? (int32_t)(class - d->classes) : -1;
    }
}

/* ---- files ---- */

static bool has_extension(const struct walk *w, const char *name)
{
    if (w->options->extension_count == 0)
        return true;
    size_t len = strlen(name);
    for (size_t i = 0; i < w->options->extension_count; i++) {
        size_t n = strlen(w->options->extensions[i]);
        if (n <= len && strcasecmp(name + len - n, w->options->extensions[i]) == 0)
            return true;
    }
    return false;
}

static bool passes_filter(const struct walk *w, const char *path, const char *name)
{
    for (size_t i = 0; i < w->options->filter_count; i++) {
        const char *pattern = w->options->filters[i];
        if (fnmatch(pattern, strchr(pattern, '/') ? path : name, 0) == 0)
            return true;
    }
    return w->options->filter_count == 0;
}

/* More room for records than there are entries, as links lead to some several times. */
static int grow_records(struct dataset *d)
{
    size_t bytes = d->record_bytes + d->record_bytes / 2 + 4096;
    void *p = mremap(d->records, d->record_bytes, bytes, MREMAP_MAYMOVE);
    if (p == MAP_FAILED)
        return -ENOMEM;
    d->records = p;
    d->record_bytes = bytes;
    return 0;
}

static inline int add_file(struct walk *w, uint32_t archive, uint32_t entry,
                           const struct index_file *file)
{
    struct dataset *d = w->dataset;
    if (d->record_count == UINT32_MAX)
        return -EOVERFLOW;
    if (d->record_count == d->record_bytes / sizeof(*d->records)) {
        int r = d->links.count ? grow_records(d) : -EUCLEAN;
        if (r < 0)
            return r;
    }
    uint64_t offset = file->offset < RECORD_OFFSET_NONE ? file->offset : RECORD_OFFSET_NONE;
    d->records[d->record_count++] =
        (struct record){.where = (uint64_t)archive << RECORD_OFFSET_BITS | offset,
                        .size_bytes = file->size_bytes,
                        .entry = entry,
                        .label = -1};
    return 0;
}

/* The file at `position` of an archive, which the present folder shows by its entry `name`. */
static int add_linked_file(struct walk *w, uint32_t archive, uint32_t position, uint32_t name,
                           const struct index_file *file)
{
    struct dataset *d = w->dataset;
    uint32_t entries = index_info(d->filesets[archive]->index)->entries;
    uint64_t entry = (uint64_t)entries + d->links.count;
    if (entry > UINT32_MAX)
        return -EOVERFLOW;
    const struct dataset_link link = {position, w->at.archive, name, w->at.shown};
    return vector_push(&d->links, link) < 0 ? -ENOMEM
                                            : add_file(w, archive, (uint32_t)entry, file);
}

/*
 * Write a child's path into w->path, which holds the folder's path and a slash up to `dir_len`.
 */
static int complete_path(struct walk *w, uint32_t archive, uint32_t position, size_t dir_len)
{
    const char *name;
    size_t len;
    int r = index_name(w->dataset->filesets[archive]->index, position, &name, &len);
    if (r < 0)
        return r;
    if (dir_len + len + 1 > MEMBER_PATH_MAX)
        return -ENAMETOOLONG;
    memcpy(w->path + dir_len, name, len);
    w->path[dir_len + len] = '\0';
    return 0;
}

/*
 * Find what a link leads to, and from where: another archive may have it, as the shards of one
 * tree have its files.
 */
static int walk_follow(const struct walk *w, uint32_t link, struct index_way *way,
                       uint32_t *ret_archive, uint32_t *ret_position)
{
    const struct dataset *d = w->dataset;
    const struct index *index = d->filesets[w->at.archive]->index;
    const char *target;
    size_t len, target_len;
    *ret_archive = w->at.archive;
    int r = index_follow(index, link, "", way, ret_position);
    if (r != -ENOENT || d->fileset_count == 1)
        return r;
    auto_free char *folder = malloc(MEMBER_PATH_MAX), *path = NULL;
    if (!folder)
        return -ENOMEM;
    if (index_path(index, w->at.position, folder, MEMBER_PATH_MAX, &len) < 0 ||
        index_symlink(index, link, &target, &target_len) < 0)
        return -EUCLEAN;
    auto_free char *copy = strndup(target, target_len);
    const char *rest = copy;
    while (rest && strncmp(rest, "..", 2) == 0 && (rest[2] == '/' || !rest[2])) {
        if (!*folder)
            return -EXDEV;
        char *slash = strrchr(folder, '/');
        *(slash ? slash : folder) = '\0';
        rest += 2 + strspn(rest + 2, "/");
    }
    if (!rest || asprintf(&path, "%s/%s", folder, rest) < 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < d->fileset_count && r == -ENOENT; i++) {
        struct index_way there = {.links = w->at.links + 1};
        r = index_follow(d->filesets[i]->index, INDEX_ROOT, path, &there, ret_position);
        *ret_archive = i;
        way->steps += there.steps;
        way->links = there.links;
    }
    return r;
}

/* A link to a directory that several archives may have in part: all parts, once. */
static int add_linked_parts(struct walk *w, uint32_t link, uint32_t archive, uint32_t position,
                            unsigned links)
{
    const struct dataset *d = w->dataset;
    const struct index *own = d->filesets[w->at.archive]->index;
    const char *target, *other;
    size_t len, target_len, other_len;
    uint32_t there;
    struct node node;
    auto_free char *path = malloc(MEMBER_PATH_MAX), *led = malloc(MEMBER_PATH_MAX);
    if (!path || !led)
        return -ENOMEM;
    int r = index_path(own, link, path, MEMBER_PATH_MAX, &len);
    if (r == 0)
        r = index_symlink(own, link, &target, &target_len);
    if (r == 0)
        r = index_path(d->filesets[archive]->index, position, led, MEMBER_PATH_MAX, &len);
    for (uint32_t i = 0; r == 0 && i < w->at.archive; i++)
        if (index_resolve(d->filesets[i]->index, path, &there) == 0 &&
            index_symlink(d->filesets[i]->index, there, &other, &other_len) == 0 &&
            other_len == target_len && memcmp(other, target, target_len) == 0)
            return 0; /* that archive's link has added them */
    for (uint32_t i = 0; r == 0 && i < d->fileset_count; i++)
        if (index_resolve(d->filesets[i]->index, led, &there) == 0 &&
            index_node(d->filesets[i]->index, there, &node) == 0 && S_ISDIR(node.mode))
            r = add_linked_folder(w, i, there, links);
    return r;
}

/* Take in what was found at w->path. A file's name is looked at only if a filter needs it. */
static int walk_take(struct walk *w, uint32_t name, size_t dir_len, uint32_t archive,
                     uint32_t position, const struct index_file *file)
{
    if (!S_ISREG(file->mode)) {
        w->special++;
        return 0;
    }
    if (!has_extension(w, w->path + dir_len) || !passes_filter(w, w->path, w->path + dir_len)) {
        w->unwanted++;
        return 0;
    }
    if (position == name && archive == w->at.archive && w->at.shown == LINK_FOLDER_NONE)
        return add_file(w, archive, position, file);
    return add_linked_file(w, archive, position, name, file);
}

static int walk_link(struct walk *w, uint32_t link, size_t dir_len)
{
    struct index_way way = {.links = w->at.links};
    uint32_t archive, position;
    struct index_file file;
    int r = walk_follow(w, link, &way, &archive, &position);
    int spent = walk_spend(w, way.steps);
    if (spent < 0)
        return spent;
    if (r == -ENOENT || r == -ENOTDIR || r == -ELOOP || r == -EXDEV)
        return walk_pass_over(w);
    if (r == 0)
        r = index_files(w->dataset->filesets[archive]->index, position, 1, &file);
    if (r < 0)
        return r;
    if (!S_ISDIR(file.mode))
        return walk_take(w, link, dir_len, archive, position, &file);
    return w->dataset->fileset_count == 1
               ? add_linked_folder(w, archive, position, way.links)
               : add_linked_parts(w, link, archive, position, way.links);
}

/* Take one child of the present folder in. */
static int dataset_look_at(struct walk *w, uint32_t position, size_t dir_len,
                           const struct index_file *file)
{
    uint32_t archive = w->at.archive;
    if (S_ISREG(file->mode) && w->is_plain)
        return add_file(w, archive, position, file);
    int r = complete_path(w, archive, position, dir_len);
    if (r < 0)
        return r;
    if (S_ISLNK(file->mode))
        return walk_link(w, position, dir_len);
    if (!S_ISDIR(file->mode))
        return walk_take(w, position, dir_len, archive, position, file);
    if (w->at.shown != LINK_FOLDER_NONE)
        return add_linked_folder(w, archive, position, w->at.links);
    return add_folder(w, &(struct folder){.path = w->path,
                                          .archive = archive,
                                          .position = position,
                                          .shown = LINK_FOLDER_NONE});
}

static int walk_children(struct walk *w, uint32_t first, uint32_t count, size_t dir_len)
{
    struct index_file files[WALK_RUN];
    for (uint32_t i = 0; i < count;) {
        uint32_t run = count - i < WALK_RUN ? count - i : WALK_RUN;
        int r = index_files(w->dataset->filesets[w->at.archive]->index, first + i, run, files);
        for (uint32_t j = 0; j < run && r == 0; j++)
            r = dataset_look_at(w, first + i + j, dir_len, &files[j]);
        if (r < 0)
            return r;
        i += run;
    }
    return 0;
}

static int walk_folder(struct walk *w, size_t number)
{
    w->at = w->folders.at[number]; /* they move when one is added */
    uint32_t first, count;
    size_t len = strlen(w->at.path);
    int r = index_children(w->dataset->filesets[w->at.archive]->index, w->at.position, &first,
                           &count);
    if (r < 0)
        return r;
    w->is_plain = w->at.shown == LINK_FOLDER_NONE && w->options->filter_count == 0 &&
                  w->options->extension_count == 0;
    memcpy(w->path, w->at.path, len + 1);
    if (w->at.shown != LINK_FOLDER_NONE)
        r = walk_spend(w, count * LINKED_ENTRY_BYTES);
    if (len)
        w->path[len++] = '/';
    uint64_t start = w->dataset->record_count;
    if (r == 0)
        r = walk_children(w, first, count, len);
    w->folders.at[number].first = start;
    w->folders.at[number].count = w->dataset->record_count - start;
    return r;
}

/*
 * The root without empty names and dots. If links lead to it, also where: in the archive that
 * has them, as others may have a part of that directory.
 */
static int find_root(struct walk *w, const char *given)
{
    const struct dataset *d = w->dataset;
    const char *name;
    size_t given_len = strlen(given), len, at = 0;
    uint32_t root;
    free(w->root);
    free(w->root_led);
    w->root_led = NULL;
    w->root = malloc(given_len + 1);
    if (!w->root)
        return -ENOMEM;
    while (path_next_name(&given, &given_len, &name, &len)) {
        if (at)
            w->root[at++] = '/';
        memcpy(w->root + at, name, len);
        at += len;
    }
    w->root[at] = '\0';
    for (size_t i = 0; i < d->fileset_count && !w->root_led; i++) {
        const struct index *index = d->filesets[i]->index;
        struct index_way way = {0};
        if (index_follow(index, INDEX_ROOT, w->root, &way, &root) < 0 || way.links == 0)
            continue;
        w->root_links = way.links;
        w->root_led = malloc(MEMBER_PATH_MAX);
        if (!w->root_led)
            return -ENOMEM;
        int r = index_path(index, root, w->root_led, MEMBER_PATH_MAX, &len);
        if (r < 0)
            return r;
    }
    return 0;
}

/* The root in one archive. -ENOENT: another archive may have it. */
static int add_root(struct walk *w, uint32_t archive)
{
    const struct index *index = w->dataset->filesets[archive]->index;
    struct folder root = {.path = (char[1]){""}, .archive = archive};
    struct node node;
    int r = index_resolve(index, w->root, &root.position);
    if (r == 0)
        r = index_node(index, root.position, &node);
    if (w->root_led && (r == -ENOENT || r == -ENOTDIR || (r == 0 && S_ISLNK(node.mode)))) {
        r = index_resolve(index, w->root_led, &root.position);
        *w->path = '\0';
        return r < 0 ? r : add_linked_folder(w, archive, root.position, w->root_links);
    }
    root.shown = LINK_FOLDER_NONE;
    return r < 0 ? r : add_folder(w, &root);
}

static int walk_archive(struct walk *w, uint32_t archive)
{
    struct fileset *fileset = w->dataset->filesets[archive];
    size_t number = w->folders.count;
    int r = add_root(w, archive);
    if (r == -ENOENT || r == -ENOTDIR)
        return 0;
    w->roots++;
    for (; r == 0 && number < w->folders.count; number++)
        r = walk_folder(w, number);
    if (r == 0 || w->error->code)
        return r;
    if (r == -EUCLEAN)
        return error_set(w->error, r, "%s: its index is damaged", fileset->path);
    if (r == -EOVERFLOW)
        return error_set(w->error, r, "%s: there are more than 4 billion samples",
                         fileset->path);
    if (r == -ENOTDIR)
        return error_set(w->error, r, "%s: '%s' is not a directory", fileset->path, w->root);
    if (r == -EINVAL)
        return error_set(w->error, r, "%s: '%s' has '..', which no name in it is",
                         fileset->path, w->root);
    return error_errno(w->error, r, fileset->path);
}

/* Walk the root in all archives, of which at least one has it. */
static int walk_root(struct walk *w)
{
    const struct dataset *d = w->dataset;
    size_t before = w->folders.count;
    int r = 0;
    for (size_t i = 0; r == 0 && i < d->fileset_count; i++)
        r = walk_archive(w, (uint32_t)i);
    if (r == 0 && w->folders.count == before)
        return error_set(w->error, -ENOENT, "%s: there is no directory '%s' in it",
                         d->filesets[0]->path, w->root);
    return r;
}

/* Is one of two clean paths the other one, or in it? */
static bool is_within(const char *a, const char *b)
{
    size_t len = strlen(a), other = strlen(b), common = len < other ? len : other;
    const char *longer = len < other ? b : a;
    return common == 0 ||
           (memcmp(a, b, common) == 0 && (!longer[common] || longer[common] == '/'));
}

/* Walk the folder of part i. `roots` has the roots of the parts before it, and gets this one's.
 */
static int walk_part(struct walk *w, uint32_t i, char **roots)
{
    const struct onepot_archive_options *o = w->options;
    struct dataset *d = w->dataset;
    auto_free char *given = NULL;
    for (uint32_t j = 0; j < i || !*o->part_names[i]; j++)
        if (j == i || strcmp(o->part_names[i], o->part_names[j]) == 0)
            return error_set(w->error, -EINVAL, "parts have different names, not '%s'",
                             o->part_names[i]);
    char *name = strdup(o->part_names[i]);
    int r = name ? vector_push(&d->part_names, name) : -ENOMEM;
    if (r < 0) {
        free(name);
        return r;
    }
    if (asprintf(&given, "%s/%s", o->root ? o->root : "", o->part_folders[i]) < 0)
        return -ENOMEM;
    r = find_root(w, given);
    if (r < 0 || !(roots[i] = strdup(w->root)))
        return r < 0 ? r : -ENOMEM;
    for (uint32_t j = 0; j < i; j++)
        if (is_within(roots[j], roots[i]))
            return error_set(w->error, -EINVAL, "parts: '%s' and '%s' are not apart", roots[j],
                             roots[i]);
    if (i == 0)
        d->part_prefix = strlen(w->root) + (*w->root != '\0');
    w->part = i;
    return walk_root(w);
}

/* Walk the folder of each part, or the only root. */
static int walk_roots(struct walk *w)
{
    const struct onepot_archive_options *o = w->options;
    int r = o->part_count ? 0 : find_root(w, o->root ? o->root : "");
    if (r < 0 || !o->part_count)
        return r < 0 ? r : walk_root(w);
    char **roots = calloc(o->part_count, sizeof(*roots));
    if (!roots || o->part_count > UINT32_MAX)
        r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < o->part_count; i++)
        r = walk_part(w, (uint32_t)i, roots);
    for (size_t i = 0; roots && i < o->part_count; i++)
        free(roots[i]);
    free(roots);
    return r;
}

/* ---- the table ---- */

static struct record *map_records(uint64_t count, size_t *ret_bytes)
{
    if (__builtin_mul_overflow(count ? count : 1, sizeof(struct record), ret_bytes))
        return NULL;
    void *p = mmap(NULL, *ret_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, *ret_bytes, MADV_HUGEPAGE);
    return p;
}

static bool in_order(const struct walk *w)
{
    uint64_t next = 0;
    for (size_t i = 0; i < w->folders.count; i++) {
        if (w->folders.at[i].count && w->folders.at[i].first != next)
            return false;
        next += w->folders.at[i].count;
    }
    return true;
}

/* Put the records into the order of the sorted folders, and set their labels. */
static int arrange_records(struct walk *w)
{
    struct dataset *d = w->dataset;
    struct record *sorted = d->records;
    size_t bytes = d->record_bytes;
    if (!in_order(w) && !(sorted = map_records(d->record_count, &bytes)))
        return -ENOMEM;
    uint64_t at = 0;
    for (size_t i = 0; i < w->folders.count; i++) {
        struct folder *f = &w->folders.at[i];
        if (sorted != d->records)
            memcpy(sorted + at, d->records + f->first, f->count * sizeof(*sorted));
        for (uint64_t j = 0; j < f->count; j++)
            sorted[at + j].label = f->label;
        f->first = at;
        at += f->count;
    }
    if (sorted != d->records) {
        munmap(d->records, d->record_bytes);
        d->records = sorted;
        d->record_bytes = bytes;
    }
    return 0;
}

/* ---- groups ---- */

static int record_name(const struct dataset *d, uint64_t i, const char **ret_name,
                       size_t *ret_len)
{
    const struct index *index;
    uint32_t named = record_named(d, &d->records[i], &index);
    return index_name(index, named, ret_name, ret_len);
}

/* Names in a directory are sorted, so names that agree up to the first dot are neighbours. */
static int group_by_base(struct dataset *d, const struct folder *f)
{
    const char *last = NULL, *name;
    size_t last_len = 0, len;
    for (uint64_t i = f->first; i < f->first + f->count; i++) {
        int r = record_name(d, i, &name, &len);
        if (r < 0)
            return r;
        size_t stem = dataset_stem(d->group, name, len);
        bool has_dot = stem < len;
        if (!last || !has_dot || stem != last_len || memcmp(name, last, stem) != 0)
            d->group_starts[d->group_count++] = (uint32_t)i;
        last = has_dot ? name : NULL;
        last_len = stem;
    }
    return 0;
}

static bool is_hidden(const struct dataset *d, uint64_t i)
{
    const char *name;
    size_t len;
    return record_name(d, i, &name, &len) == 0 && len > 0 && name[0] == '.';
}

/* WebDataset's samples have a name before the dot, so files without one are dropped. */
static void drop_hidden(struct walk *w)
{
    struct dataset *d = w->dataset;
    uint64_t kept = 0;
    for (size_t i = 0; i < w->folders.count; i++) {
        struct folder *f = &w->folders.at[i];
        uint64_t start = kept;
        for (uint64_t j = f->first; j < f->first + f->count; j++)
            if (is_hidden(d, j))
                w->unwanted++;
            else
                d->records[kept++] = d->records[j];
        f->first = start;
        f->count = kept - start;
    }
    d->record_count = kept;
}

/* A file that may be a part of a sample. */
struct candidate {
    const char *name;
    size_t stem; /* length of the name up to its last dot */
    uint32_t part;
    uint64_t record;
};

static int compare_candidates(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    int compared = memcmp(x->name, y->name, x->stem < y->stem ? x->stem : y->stem);
    if (compared == 0 && x->stem != y->stem)
        return x->stem < y->stem ? -1 : 1;
    return compared ? compared : (x->part > y->part) - (x->part < y->part);
}

/* Files whose names agree up to the dot: all parts of a sample, two of one kind, or too few. */
static int take_candidates(struct walk *w, const struct candidate *files, size_t count,
                           struct record *records, uint64_t *at)
{
    struct dataset *d = w->dataset;
    size_t len;
    for (size_t i = 1; i < count; i++)
        if (files[i].part == files[i - 1].part)
            return dataset_error_because(
                w->error, -EEXIST, d, &d->records[files[i].record],
                "another file of its folder has the same name up to the last dot");
    if (count == d->part_names.count) {
        d->group_starts[d->group_count++] = (uint32_t)*at;
        for (size_t i = 0; i < count; i++)
            records[(*at)++] = d->records[files[i].record];
        return 0;
    }
    if (!d->unpaired_first) {
        int r = dataset_path(d, &d->records[files[0].record], w->path, MEMBER_PATH_MAX, &len);
        d->unpaired_first = r == 0 ? strdup(w->path) : NULL;
        if (r < 0 || !d->unpaired_first)
            return r < 0 ? r : -ENOMEM;
    }
    d->unpaired += count;
    return 0;
}

/* Make samples of the files of one directory, which these folders have for each part. */
static int pair_files(struct walk *w, const struct folder *folders, size_t folder_count,
                      struct record *records, uint64_t *at)
{
    struct dataset *d = w->dataset;
    size_t count = 0, taken = 0, len;
    int r = 0;
    for (size_t i = 0; i < folder_count; i++)
        count += folders[i].count;
    auto_free struct candidate *files = malloc((count + 1) * sizeof(*files));
    if (!files)
        return -ENOMEM;
    for (size_t i = 0; i < folder_count; i++)
        for (uint64_t j = 0; r == 0 && j < folders[i].count; j++) {
            struct candidate *file = &files[taken++];
            *file = (struct candidate){.part = folders[i].part, .record = folders[i].first + j};
            r = record_name(d, file->record, &file->name, &len);
            if (r == 0)
                file->stem = dataset_stem(d->group, file->name, len);
        }
    if (r < 0)
        return r;
    qsort(files, count, sizeof(*files), compare_candidates);
    for (size_t i = 0, end; r == 0 && i < count; i = end) {
        for (end = i + 1; end < count && files[end].stem == files[i].stem; end++)
            if (memcmp(files[end].name, files[i].name, files[i].stem) != 0)
                break;
        r = take_candidates(w, files + i, end - i, records, at);
    }
    return r;
}

/* Pair files of several folders. The folders are sorted by their paths below those. */
static int group_by_folders(struct walk *w)
{
    struct dataset *d = w->dataset;
    size_t bytes;
    struct record *records = map_records(d->record_count, &bytes);
    uint64_t at = 0;
    int r = records ? 0 : -ENOMEM;
    for (size_t i = 0, end; r == 0 && i < w->folders.count; i = end) {
        const struct folder *first = &w->folders.at[i];
        for (end = i + 1; end < w->folders.count; end++)
            if (strcmp(w->folders.at[end].path, first->path) != 0)
                break;
        r = pair_files(w, first, end - i, records, &at);
    }
    if (!records)
        return r;
    if (r < 0) {
        munmap(records, bytes);
        return r;
    }
    munmap(d->records, d->record_bytes);
    d->records = records;
    d->record_bytes = bytes;
    d->record_count = at;
    return 0;
}

static int make_groups(struct walk *w)
{
    struct dataset *d = w->dataset;
    d->group = w->options->group;
    d->group_count = d->record_count;
    if (d->group == ONEPOT_GROUP_NONE)
        return 0;
    if (d->group != ONEPOT_GROUP_DIRECTORY)
        drop_hidden(w);
    d->group_starts = malloc((d->record_count + 1) * sizeof(*d->group_starts));
    if (!d->group_starts)
        return -ENOMEM;
    d->group_count = 0;
    int r = d->group == ONEPOT_GROUP_FOLDERS ? group_by_folders(w) : 0;
    for (size_t i = 0; i < w->folders.count && r == 0; i++) {
        const struct folder *f = &w->folders.at[i];
        if (d->group == ONEPOT_GROUP_BASE_NAME)
            r = group_by_base(d, f);
        else if (f->count && d->group == ONEPOT_GROUP_DIRECTORY)
            d->group_starts[d->group_count++] = (uint32_t)f->first;
    }
    d->group_starts[d->group_count] = (uint32_t)d->record_count;
    return r;
}

/* ---- all of it ---- */

static void dataset_free_classes(struct dataset *d)
{
    for (uint32_t i = 0; d->classes && i < d->class_count; i++)
        free(d->classes[i]);
    free(d->classes);
    d->classes = NULL;
    d->class_count = 0;
}

/* The name of a part as the archive shows it, where a feature's slash is a dot. -ENOMEM. */
static int label_part_name(const char *given, char **ret_name)
{
    char *name = strdup(given);
    if (!name)
        return -ENOMEM;
    for (char *at = name; (at = strchr(at, '/'));)
        *at = '.';
    *ret_name = name;
    return 0;
}

/* -ENOENT: there are samples, and none of them has the part. */
static int label_check(const struct dataset *d, struct onepot_error *error)
{
    for (uint64_t i = 0; i < d->group_count; i++) {
        struct record part;
        const struct record *first = &d->records[d->group_starts ? d->group_starts[i] : i];
        int r = label_find(d, first, &part);
        if (r != -ENOENT)
            return r == -EDOM ? 0 : r; /* reading it reports that */
    }
    return d->group_count == 0
               ? 0
               : error_set(error, -ENOENT,
                           "%s: no sample has a part '%s' or '%s.cls' for its label",
                           d->filesets[0]->path, d->label_part, d->label_part);
}

/* Take labels from a part of each sample, and none from its directory. */
static int use_label_part(struct walk *w)
{
    struct dataset *d = w->dataset;
    if (!w->options->label_part)
        return 0;
    dataset_free_classes(d);
    int r = label_part_name(w->options->label_part, &d->label_part);
    return r < 0 ? r : label_check(d, w->error);
}

/* Say what is there in place of samples. */
static int no_samples(const struct walk *w)
{
    const struct dataset *d = w->dataset;
    const struct {
        uint64_t count;
        const char *one, *many;
    } kinds[] = {
        {w->folders.count - w->roots, "directory", "directories"},
        {d->passed_over, "symbolic link that leads out of it or nowhere",
         "symbolic links that lead out of it or nowhere"},
        {w->unwanted, "file that is not asked for", "files that are not asked for"},
        {d->unpaired, "file without a partner", "files without a partner"},
        {w->special, "entry of another kind", "entries of other kinds"},
    };
    struct fault fault = {0};
    char words[256] = "";
    size_t len = 0;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (kinds[i].count)
            len += (size_t)snprintf(words + len, sizeof(words) - len, "%s %llu %s",
                                    len ? "," : "", (unsigned long long)kinds[i].count,
                                    kinds[i].count == 1 ? kinds[i].one : kinds[i].many);
    fault_set_advised(&fault, -ENOENT, d->part_names.count ? "" : w->root, FAULT_NO_OFFSET,
                      "allow_empty opens it nevertheless", "there are no samples, %s%s",
                      len ? "but" : "and nothing else", words);
    return error_from_fault(w->error, -ENOENT, &fault, d->filesets[0]->path);
}

static int dataset_build(struct walk *w)
{
    struct dataset *d = w->dataset;
    uint64_t entries = 0;
    for (size_t i = 0; i < d->fileset_count; i++)
        entries += index_info(d->filesets[i]->index)->entries;
    d->records = map_records(entries, &d->record_bytes);
    w->linked_most = LINKED_BYTES_MOST + LINKED_COPIES * LINKED_ENTRY_BYTES * entries;
    w->path = malloc(MEMBER_PATH_MAX);
    if (!d->records || !w->path)
        return -ENOMEM;
    int r = walk_roots(w);
    if (r < 0)
        return r;
    r = make_classes(w);
    if (r < 0)
        return r;
    label_folders(w);
    qsort(w->folders.at, w->folders.count, sizeof(*w->folders.at), compare_folders);
    r = arrange_records(w);
    if (r == 0)
        r = make_groups(w);
    if (r == 0 && d->group_count == 0 && !w->options->allow_empty)
        return no_samples(w);
    return r < 0 ? r : use_label_part(w);
}

static int map_archives(struct dataset *d)
{
    d->maps = calloc(d->fileset_count + 1, sizeof(*d->maps));
    d->brings = calloc(d->fileset_count + 1, sizeof(*d->brings));
    d->sources = calloc(d->fileset_count + 1, sizeof(struct source *));
    if (!d->maps || !d->brings || !d->sources)
        return -ENOMEM;
    for (size_t i = 0; i < d->fileset_count; i++) {
        struct source *source = d->sources[i] = d->filesets[i]->source;
        d->maps[i] = source_map(source);
        d->brings[i] = !source_has(source, 0, source_size(source));
    }
    return 0;
}

int dataset_new(struct fileset **filesets, size_t count,
                const struct onepot_archive_options *options, struct onepot_error *error,
                struct dataset **ret_dataset)
{
    struct dataset *d = calloc(1, sizeof(*d));
    if (!d) {
        for (size_t i = 0; i < count; i++)
            fileset_close(filesets[i]);
        free(filesets);
        return error_set(error, -ENOMEM, "out of memory");
    }
    d->users = 1;
    d->filesets = filesets;
    d->fileset_count = count;
    d->opened_in = get_current_dir_name();
    d->cache_bytes = options->cache_bytes;
    d->hole_bytes = options->hole_bytes ? options->hole_bytes : HOLE_BYTES;
    struct onepot_error words = {0};
    struct walk w = {.dataset = d, .options = options, .error = &words};
    int r = map_archives(d);
    if (r == 0)
        r = dataset_build(&w);
    for (size_t i = 0; i < count && r != -ENOMEM; i++) {
        struct fault fault = {0};
        int whole = fileset_check_whole(filesets[i], &fault);
        if (whole < 0)
            r = error_from_fault(&words, whole, &fault, filesets[i]->path);
    }
    for (size_t i = 0; i < w.folders.count; i++)
        free(w.folders.at[i].path);
    vector_free(&w.folders);
    free(w.path);
    free(w.root);
    free(w.root_led);
    if (r < 0) {
        if (words.code == 0)
            error_errno(&words, r, d->filesets[0]->path);
        dataset_free(d);
        return error_set(error, r, "%s", words.text);
    }
    *ret_dataset = d;
    return 0;
}

bool dataset_is_mapped(const struct dataset *d)
{
    for (size_t i = 0; i < d->fileset_count; i++)
        if (!d->maps[i] || !source_is_local(d->filesets[i]->source))
            return false;
    return true;
}

void dataset_free(struct dataset *dataset)
{
    if (!dataset || atomic_fetch_sub(&dataset->users, 1) > 1)
        return;
    dataset_free_readers(dataset);
    for (size_t i = 0; i < dataset->fileset_count; i++)
        fileset_close(dataset->filesets[i]);
    free(dataset->filesets);
    free(dataset->opened_in);
    free(dataset->data_digest);
    free(dataset->maps);
    free(dataset->brings);
    free(dataset->sources);
    if (dataset->records)
        munmap(dataset->records, dataset->record_bytes);
    free(dataset->group_starts);
    for (size_t i = 0; i < dataset->link_folders.count; i++)
        free(dataset->link_folders.at[i]);
    vector_free(&dataset->link_folders);
    vector_free(&dataset->links);
    free(dataset->passed_over_first);
    free(dataset->unpaired_first);
    for (size_t i = 0; i < dataset->part_names.count; i++)
        free(dataset->part_names.at[i]);
    vector_free(&dataset->part_names);
    free(dataset->label_part);
    dataset_free_classes(dataset);
    free(dataset);
}
