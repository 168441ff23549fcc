/*
 * The digest of a tree, of which files may have to be read. Files are read in the order of
 * their bytes, each whole by one thread: a sum is over the bytes in order. Threads take runs of
 * neighbours, so that together they read the archive forwards, and a compressed block of many
 * small files is unpacked once.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "budget.h"
#include "cleanup.h"
#include "content.h"
#include "numbers.h"
#include "thread.h"
#include "vector.h"

#define RUN_FILES 32u
#define STACK_BYTES (1u << 20)
#define ZEROS_BYTES (64u << 10)
#define PAUSE_NS 10000000

struct digest_file {
    uint64_t key; /* where its bytes begin */
    uint32_t position;
};

struct digest_files {
    struct fileset *fileset;
    const struct fileset_options *how;
    struct reader *reader;
    VECTOR(struct digest_file) files;
    uint64_t *sums; /* by position */
    _Atomic uint64_t next;
    pthread_t caller;     /* the thread that shows progress, and so hears of signals */
    pthread_mutex_t lock; /* of the fault */
    struct progress progress;
    _Atomic int err; /* the first error */
    struct fault *fault;
};

/* A file while it is read. */
struct digest_sum {
    struct digest_files *d;
    XXH3_state_t *state;
    uint64_t at;
};

/* True: go on. */
static bool digest_shows(struct digest_files *d)
{
    if (d->how->progress && pthread_equal(d->caller, pthread_self()))
        d->how->progress(d->how->ctx, "reading for the digest", &d->progress);
    if (d->how->cancelled && atomic_load(d->how->cancelled))
        d->err = -ECANCELED;
    return d->err == 0;
}

/* False: the digest was given up. */
static bool digest_hash(struct digest_sum *s, const void *bytes, size_t len)
{
    XXH3_64bits_update(s->state, bytes, len);
    s->at += len;
    atomic_fetch_add_explicit(&s->d->progress.bytes_done, len, memory_order_relaxed);
    return digest_shows(s->d);
}

/* Holes count as the zeros that readers see. */
static bool digest_zeros(struct digest_sum *s, uint64_t until)
{
    static const uint8_t zeros[ZEROS_BYTES];
    bool goes_on = true;
    while (goes_on && s->at < until)
        goes_on = digest_hash(s, zeros, (size_t)min_u64(until - s->at, ZEROS_BYTES));
    return goes_on;
}

static int digest_take(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    struct digest_sum *s = ctx;
    return digest_zeros(s, offset) && digest_hash(s, bytes, len) ? 0 : -ECANCELED;
}

static void digest_failed(struct digest_files *d, uint32_t position, int err, uint64_t where)
{
    char path[INDEX_PATH_MAX + 1];
    size_t len;
    pthread_mutex_lock(&d->lock);
    if (!d->err && index_path(d->fileset->index, position, path, sizeof(path), &len) < 0)
        path[0] = '\0';
    if (!d->err)
        fault_set(d->fault, err, path, where, "it can't be read for the digest: %s",
                  fault_errno(err));
    d->err = d->err ? d->err : err;
    pthread_mutex_unlock(&d->lock);
}

static void digest_one(struct digest_sum *s, struct content *content, uint32_t position)
{
    struct digest_files *d = s->d;
    struct node node;
    uint64_t where = FAULT_NO_OFFSET;
    XXH3_64bits_reset(s->state);
    s->at = 0;
    int r = index_node(d->fileset->index, position, &node);
    if (r == 0)
        r = content_read(content, position, 0, node.size_bytes, digest_take, s, &where);
    if (r < 0)
        digest_failed(d, position, r, where);
    if (r < 0 || !digest_zeros(s, node.size_bytes))
        return;
    d->sums[position] = XXH3_64bits_digest(s->state);
    atomic_fetch_add_explicit(&d->progress.members, 1, memory_order_relaxed);
}

static void *digest_work(void *arg)
{
    struct digest_files *d = arg;
    struct digest_sum sum = {.d = d, .state = XXH3_createState()};
    struct content *content = NULL;
    uint64_t at;
    if (!sum.state || content_new(d->fileset, d->reader, CONTENT_THREAD_BLOCKS, &content) < 0)
        d->err = -ENOMEM;
    while (digest_shows(d) && (at = atomic_fetch_add(&d->next, RUN_FILES)) < d->files.count)
        for (uint64_t i = at; i < at + RUN_FILES && i < d->files.count && !d->err; i++)
            digest_one(&sum, content, d->files.at[i].position);
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    while (pthread_equal(d->caller, pthread_self()) && digest_shows(d) &&
           d->progress.members < d->progress.members_total)
        nanosleep(&pause, NULL); /* the other threads are still reading */
    content_free(content);
    XXH3_freeState(sum.state);
    return NULL;
}

/* ---- which ---- */

static uint64_t digest_key(const struct index *index, uint32_t position)
{
    struct extent e = {.kind = EXTENT_HOLE};
    uint64_t at = 0;
    while (index_extent(index, position, at, &e) == 0 && e.kind == EXTENT_HOLE)
        at += e.length;
    return e.kind == EXTENT_HOLE ? 0 : e.source_offset;
}

static int digest_compare(const void *a, const void *b)
{
    const struct digest_file *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1)
                            : (x->position > y->position) - (x->position < y->position);
}

/* Take the sum that the index has of the whole file, or note the file. */
static int digest_choose(struct digest_files *d, uint32_t position)
{
    const struct index *index = d->fileset->index;
    const struct index_info *info = index_info(index);
    struct node node;
    int r = index_node(index, position, &node);
    if (r < 0 || !S_ISREG(node.mode) || node.position != position)
        return r;
    if (info->has_sums && info->sum_kind == SUM_XXH3 && !node.has_holes)
        return index_sum(index, position, &d->sums[position]);
    struct digest_file file = {digest_key(index, position), position};
    d->progress.bytes_total += node.size_bytes;
    d->progress.members_total++;
    return vector_push(&d->files, file);
}

static int digest_read(struct digest_files *d, unsigned threads)
{
    const struct index_info *info = index_info(d->fileset->index);
    const struct reader_options reading = {.cache_bytes =
                                               (uint64_t)info->block_bytes * threads * 2};
    int r = 0;
    d->sums = calloc(info->entries, sizeof(*d->sums));
    if (!d->sums)
        return -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < info->entries; i++)
        r = digest_choose(d, i);
    if (r == 0)
        r = reader_new(d->fileset, &reading, d->fault, &d->reader);
    if (r < 0)
        return r;
    if (d->files.count)
        qsort(d->files.at, d->files.count, sizeof(*d->files.at), digest_compare);
    thread_team(min_u64(threads, d->files.count / RUN_FILES + 1), STACK_BYTES, digest_work, d);
    reader_free(d->reader);
    return d->err;
}

int content_digest(struct fileset *fileset, unsigned threads, const struct fileset_options *how,
                   struct fault *fault, uint8_t ret_digest[INDEX_DIGEST_BYTES])
{
    const struct index_info *info = index_info(fileset->index);
    struct digest_files d = {
        .fileset = fileset, .how = how, .fault = fault, .caller = pthread_self()};
    enum digest_kind kind;
    if (info->digest_kind == DIGEST_TREE) {
        memcpy(ret_digest, info->digest, INDEX_DIGEST_BYTES);
        return 0;
    }
    pthread_mutex_init(&d.lock, NULL);
    int r = digest_read(&d, threads);
    if (r == 0)
        r = fileset_check_whole(fileset, fault);
    if (r == 0 && source_was_changed(fileset->packed ? fileset->packed : fileset->source) > 0)
        r = fault_set(fault, -ESTALE, NULL, FAULT_NO_OFFSET,
                      "it was changed while it was read");
    if (r == 0)
        r = index_digest(fileset->index, d.sums, ret_digest, &kind);
    pthread_mutex_destroy(&d.lock);
    vector_free(&d.files);
    free(d.sums);
    return r;
}
