/*
 * Splits, folds and subsets: lists of samples over a shared dataset. A hash of each sample's
 * own name decides whether it is in a split or fold, so that adding or removing a file changes
 * nothing for the others.
 */
#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "cleanup.h"
#include "view.h"

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

/* Does a sample with this hash belong to the view? */
typedef bool wanted(const void *ctx, uint64_t hash);

static int choose_by_hash(const struct onepot_archive *archive, uint64_t seed,
                          wanted *is_wanted, const void *ctx, struct onepot_archive **ret_part)
{
    auto_free char *name = malloc(MEMBER_PATH_MAX);
    struct onepot_archive *view = view_new(archive, archive->count + 1);
    int r = name && view ? 0 : -ENOMEM;
    for (uint64_t i = 0; r == 0 && i < archive->count; i++) {
        size_t len;
        r = archive_name(archive, i, name, MEMBER_PATH_MAX, &len);
        if (r == 0 && is_wanted(ctx, XXH3_64bits_withSeed(name, len, seed)))
            view->chosen[view->count++] = chosen_at(archive, i);
    }
    if (r < 0) {
        onepot_archive_close(view);
        return r;
    }
    *ret_part = view;
    return 0;
}

struct range {
    uint64_t low, high; /* high is included */
};

static bool view_in_range(const void *ctx, uint64_t hash)
{
    const struct range *range = ctx;
    return hash >= range->low && hash <= range->high;
}

/* The first hash that is not below `fraction`, which is below 1. */
static uint64_t view_scale(double fraction)
{
    return (uint64_t)ldexp(fraction, 64);
}

int onepot_archive_split(const struct onepot_archive *archive, double low, double high,
                         uint64_t seed, struct onepot_archive **ret_part)
{
    if (!(low >= 0 && high <= 1 && low <= high))
        return -EINVAL;
    if (low == high) /* nothing is selected */
        return onepot_archive_subset(archive, NULL, 0, ret_part);
    struct range range = {.low = view_scale(low),
                          .high = high == 1 ? UINT64_MAX : view_scale(high) - 1};
    return choose_by_hash(archive, seed, view_in_range, &range, ret_part);
}

struct fold {
    uint32_t folds, fold;
    bool held_out;
};

static bool in_fold(const void *ctx, uint64_t hash)
{
    const struct fold *fold = ctx;
    return (hash % fold->folds == fold->fold) == fold->held_out;
}

int onepot_archive_fold(const struct onepot_archive *archive, uint32_t folds, uint32_t fold,
                        bool held_out, uint64_t seed, struct onepot_archive **ret_part)
{
    struct fold f = {folds, fold, held_out};
    if (folds < 2 || fold >= folds)
        return -EINVAL;
    return choose_by_hash(archive, seed, in_fold, &f, ret_part);
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

static int hash_archive(const struct index *index, XXH3_state_t *state)
{
    const struct index_info *info = index_info(index);
    uint8_t digest[INDEX_DIGEST_BYTES];
    enum digest_kind kind = info->digest_kind;
    memcpy(digest, info->digest, sizeof(digest));
    int r = kind == DIGEST_NONE ? index_digest(index, digest, &kind) : 0;
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
