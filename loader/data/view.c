/*
 * Splits, folds and subsets: lists of samples over a shared dataset. A hash of each sample's
 * own name decides whether it is in a split, so that adding or removing a file changes nothing
 * for the others. Folds have equal sizes, so there the hashes only decide the order.
 */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "cleanup.h"
#include "error.h"
#include "dataset.h"
#include "python_api.h"

#define STOP_PACE 1024u /* labels that are read between looks at whether they are wanted */

/*
 * A view with room for `room` samples, and none in it yet. 0: a view of the whole archive,
 * without a list.
 */
static struct onepot_archive *view_new(const struct onepot_archive *archive, uint64_t room)
{
    struct onepot_archive *view = calloc(1, sizeof(*view));
    if (view && room)
        view->chosen = malloc(room * sizeof(*view->chosen));
    if (!view || (room && !view->chosen)) {
        free(view);
        return NULL;
    }
    view->dataset = archive->dataset;
    atomic_fetch_add(&view->dataset->users, 1);
    return view;
}

static uint32_t chosen_at(const struct onepot_archive *archive, uint64_t i)
{
    return archive->chosen ? archive->chosen[i] : (uint32_t)i;
}

/* A sample in the order that its name's hash decides. */
struct ranked {
    uint64_t hash;
    int64_t label; /* 0: labels don't count */
    uint32_t sample;
};

/* The hashes of all samples' names, in the order of the samples. To be freed. */
static int hash_names(const struct onepot_archive *archive, uint64_t seed,
                      struct ranked **ret_ranked)
{
    auto_free char *name = malloc(MEMBER_PATH_MAX);
    struct ranked *ranked = calloc(archive->count + 1, sizeof(*ranked));
    int r = name && ranked ? 0 : -ENOMEM;
    for (uint64_t i = 0; r == 0 && i < archive->count; i++) {
        size_t len;
        r = archive_name(archive, i, name, MEMBER_PATH_MAX, &len);
        if (r == 0)
            ranked[i] = (struct ranked){.hash = XXH3_64bits_withSeed(name, len, seed),
                                        .sample = (uint32_t)i};
    }
    if (r < 0) {
        free(ranked);
        return r;
    }
    *ret_ranked = ranked;
    return 0;
}

/* The first hash that is not below `fraction`, which is below 1. */
static uint64_t view_scale(double fraction)
{
    return (uint64_t)ldexp(fraction, 64);
}

int onepot_archive_split(const struct onepot_archive *archive, double low, double high,
                         uint64_t seed, struct onepot_archive **ret_part)
{
    struct ranked *ranked;
    if (!(low >= 0 && high <= 1 && low <= high))
        return -EINVAL;
    if (low == high) /* nothing is selected */
        return onepot_archive_subset(archive, NULL, 0, ret_part);
    uint64_t first = view_scale(low), last = high == 1 ? UINT64_MAX : view_scale(high) - 1;
    int r = hash_names(archive, seed, &ranked);
    if (r < 0)
        return r;
    struct onepot_archive *view = view_new(archive, archive->count + 1);
    for (uint64_t i = 0; view && i < archive->count; i++)
        if (ranked[i].hash >= first && ranked[i].hash <= last)
            view->chosen[view->count++] = chosen_at(archive, i);
    free(ranked);
    if (!view)
        return -ENOMEM;
    *ret_part = view;
    return 0;
}

static int compare_ranked(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->label != y->label)
        return x->label < y->label ? -1 : 1;
    if (x->hash != y->hash)
        return x->hash < y->hash ? -1 : 1;
    return (x->sample > y->sample) - (x->sample < y->sample);
}

/*
 * A fold is a range of the order, so that a file that comes or goes moves few others to another
 * fold. With labels, samples of one label are neighbours, and are dealt to the folds in turn.
 */
int archive_fold(const struct onepot_archive *archive, uint32_t folds, uint32_t fold,
                 bool held_out, uint64_t seed, bool stratify,
                 const struct permutation_stop *stop, struct onepot_error *error,
                 struct onepot_archive **ret_part)
{
    uint64_t count = archive->count;
    struct ranked *ranked;
    if (folds < 2 || fold >= folds)
        return error_set(error, -EINVAL, "there are at least 2 folds, counted from 0");
    int r = hash_names(archive, seed, &ranked);
    if (r < 0)
        return error_errno(error, r, archive->dataset->pots[0]->path);
    for (uint64_t i = 0; stratify && r == 0 && i < count; i++)
        r = stop && i % STOP_PACE == 0 && !stop->is_wanted(stop->ctx)
                ? error_set(error, -ECANCELED, "interrupted")
                : onepot_archive_label(archive, i, error, &ranked[i].label);
    if (r == 0)
        qsort(ranked, count, sizeof(*ranked), compare_ranked);
    auto_free bool *is_in = calloc(count + 1, sizeof(*is_in));
    for (uint64_t i = 0; r == 0 && is_in && i < count; i++)
        is_in[ranked[i].sample] = (stratify ? i % folds : i * folds / count) == fold;
    free(ranked);
    struct onepot_archive *view = r == 0 && is_in ? view_new(archive, count + 1) : NULL;
    for (uint64_t i = 0; view && i < count; i++)
        if (is_in[i] == held_out)
            view->chosen[view->count++] = chosen_at(archive, i);
    if (!view)
        return r < 0 ? r : error_set(error, -ENOMEM, "out of memory");
    *ret_part = view;
    return 0;
}

int onepot_archive_fold(const struct onepot_archive *archive, uint32_t folds, uint32_t fold,
                        bool held_out, uint64_t seed, bool stratify, struct onepot_error *error,
                        struct onepot_archive **ret_part)
{
    return archive_fold(archive, folds, fold, held_out, seed, stratify, NULL, error, ret_part);
}

int onepot_archive_subset(const struct onepot_archive *archive, const uint64_t *samples,
                          uint64_t count, struct onepot_archive **ret_part)
{
    for (uint64_t i = 0; i < count; i++)
        if (samples[i] >= archive->count)
            return -ERANGE;
    struct onepot_archive *view = view_new(archive, count + 1);
    if (!view)
        return -ENOMEM;
    for (uint64_t i = 0; i < count; i++)
        view->chosen[i] = chosen_at(archive, samples[i]);
    view->count = count;
    *ret_part = view;
    return 0;
}

struct onepot_archive *archive_share(const struct onepot_archive *archive)
{
    struct onepot_archive *copy = view_new(archive, archive->chosen ? archive->count + 1 : 0);
    if (!copy)
        return NULL;
    if (copy->chosen)
        memcpy(copy->chosen, archive->chosen, archive->count * sizeof(*copy->chosen));
    copy->count = archive->count;
    return copy;
}

/* ---- digest ---- */

/*
 * Hashes what the index's own sums and sizes tell. A digest that was saved later does not
 * count, so that pickles and states still belong to the archive.
 */
static int hash_archive(const struct index *index, XXH3_state_t *state)
{
    const struct index_info *info = index_info(index);
    uint8_t digest[INDEX_DIGEST_BYTES];
    enum digest_kind kind = info->has_holes ? DIGEST_STORED : DIGEST_TREE;
    bool is_of_sums = info->has_sums && info->sum_kind == SUM_XXH3 && info->digest_kind == kind;
    memcpy(digest, info->digest, sizeof(digest));
    int r = is_of_sums ? 0 : index_digest(index, NULL, digest, &kind);
    if (r < 0)
        return r;
    XXH3_128bits_update(state, digest, sizeof(digest));
    return 0;
}

static void hash_record(const struct dataset *d, uint64_t first, uint64_t end,
                        XXH3_state_t *state)
{
    const struct dataset_link *link = record_link(d, &d->records[first]);
    uint64_t which[2] = {htole64((uint64_t)record_archive(&d->records[first]) << 32 |
                                 record_file(d, &d->records[first])),
                         htole64(end - first)};
    XXH3_128bits_update(state, which, sizeof(which));
    if (link) { /* its name is another entry's, or below another path */
        const char *folder =
            link->folder == LINK_FOLDER_NONE ? "" : d->link_folders.at[link->folder];
        uint64_t name = htole64((uint64_t)link->archive << 32 | link->name);
        XXH3_128bits_update(state, &name, sizeof(name));
        XXH3_128bits_update(state, folder, strlen(folder) + 1);
    }
}

static void hash_choice(const struct onepot_archive *archive, XXH3_state_t *state)
{
    const struct dataset *d = archive->dataset;
    uint64_t head[2] = {htole64(archive->count), htole64((uint64_t)d->group)};
    XXH3_128bits_update(state, head, sizeof(head));
    for (uint64_t i = 0; i < archive->count; i++) {
        uint64_t first, end;
        archive_records(archive, i, &first, &end);
        do
            hash_record(d, first, end, state);
        while (d->group == ONEPOT_GROUP_FOLDERS &&
               ++first < end); /* else they are neighbours */
    }
}

int onepot_archive_digest(const struct onepot_archive *archive,
                          uint8_t ret_digest[ONEPOT_DIGEST_BYTES])
{
    const struct dataset *d = archive->dataset;
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return -ENOMEM;
    XXH3_128bits_reset(state);
    int r = 0;
    for (size_t i = 0; i < d->pot_count && r == 0; i++)
        r = hash_archive(d->pots[i]->index, state);
    if (r == 0) {
        hash_choice(archive, state);
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
        memcpy(ret_digest, canonical.digest, ONEPOT_DIGEST_BYTES);
    }
    XXH3_freeState(state);
    return r;
}
