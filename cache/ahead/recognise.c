/*
 * How a shuffle is recognised from the first reads of an epoch.
 *
 * torch's DistributedSampler visits a[r], a[r + W], a[r + 2W], ... in rank r of W, where a is
 * torch.randperm(n) of a generator with the seed S + epoch. So at any moment the readers
 * together have read elements of a with small places: if each rank has got as far as its i-th
 * sample, and its workers are at samples up to i + f, no place is above (i + f) W. To see that,
 * nothing has to be known of r, W, the batch size or the number of workers. For a candidate
 * (folder, epoch) it is enough to count how many of the k files that were read lie among the
 * first m elements of its permutation.
 *
 * If the candidate is wrong, its permutation has nothing to do with the reads. Then each of k
 * different files lies in the front, m out of n, with the probability p = m/n. By Chernoff's
 * bound, which also holds for drawing without replacement, the probability that at least h of
 * them do is at most
 *
 *     exp(-k D(h/k, p)),   D(q, p) = q ln(q/p) + (1 - q) ln((1 - q)/(1 - p)),  q > p
 *
 * There are T combinations of folder, epoch and m. The chance that any wrong one looks as good
 * is at most T times that bound. So a candidate is taken when
 *
 *     k D(h/k, m/n) >= ln T + 20,
 *
 * and one attempt is wrong with a probability below exp(-20), 2 in a thousand million. T = 10^5
 * makes it 32 nats: enough are 16 reads that all lie in the front eighth, or 64 reads in the
 * front six tenths, or 64 of which a third lies in the front 2 %. The right candidate gets
 * there as soon as (i + f) W is clearly below n. That is why fronts of all sizes from 64 on are
 * looked at. Other files that are read meanwhile (a list of labels, say) do no harm.
 *
 * Cost. The front of a permutation is known after as many draws, however large n is
 * (permutation_front). So the fronts of thousands of epochs, up to 4,096 places, take tenths of
 * a second; longer fronts are tried for fewer epochs. The tiers come in the order of their
 * cost.
 *
 * Candidates for the folder: the directory that holds the files (FOLDER_FLAT), and each one
 * above it up to the root of the mount (FOLDER_CLASSES) if three quarters of the reads lie
 * below it. Directories with symbolic links to what was read count as if the reads were below
 * them. Each is tried with images alone and, where that differs, with all files. A file that
 * has several numbers counts with each: a read marks them all, and one of them is right.
 *
 * RandomSampler is the case W = 1. With its own generator, seeded with S, its first epoch is
 * randperm(n) of that seed and is recognised as epoch 0. The generator then goes on, so later
 * epochs are not recognised.
 */
#include "recognise.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "bits.h"
#include "numbers.h"
#include "permutation.h"
#include "vector.h"

#define NATS_BEYOND_CHANCE 20.0
#define FRONT_LEAST 64u

/* Fronts of up to so many places are looked at, for so many epochs. */
static const struct tier {
    uint32_t places, seeds;
} tiers[] = {{1024, 2048}, {4096, 256}, {65536, 32}, {1048576, 2}};

#define TIERS (sizeof(tiers) / sizeof(tiers[0]))
#define FOLDERS_KEPT 8u
#define ANCESTORS_MAX 2048u   /* distinct directories above the files that were read */
#define LINKS_MOST (4u << 20) /* symbolic links in the archive, if they are looked at, */
#define LINK_STEPS_MOST (UINT64_C(64) << 20) /* and names on their ways */
#define ENTRIES_AT_ONCE 64u
#define CANDIDATES_MOST 16u /* directories tried at once */
#define SEEN_MAX (RECOGNISE_READS_MAX + ANCESTORS_MAX)

struct kept_folder {
    uint32_t directory;
    enum folder_kind kind;
    bool images_only;
    uint64_t used; /* when */
    int error;     /* why there are no files */
    struct folder_files *files;
};

/* A symbolic link in the archive, and the inode that it leads to. */
struct link {
    uint32_t entry, position;
};

struct recogniser {
    const struct index *index;
    uint32_t root;
    VECTOR(struct link) links;
    bool has_links; /* they were looked for */
    const struct ahead_options *options;
    const _Atomic bool *stop;
    struct kept_folder kept[FOLDERS_KEPT];
    uint64_t uses;
    uint32_t *front; /* the largest tier's */
    /* The folder that is tried: */
    const struct folder_files *folder;
    uint32_t n;
    _Atomic uint64_t *marks; /* a bit for each file of the folder: it was read */
    unsigned reads;          /* reads of files in the folder, by number */
};

int recogniser_new(const struct ahead_options *options, const _Atomic bool *stop,
                   struct recogniser **ret_recogniser)
{
    struct recogniser *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->index = options->index;
    r->root = options->root;
    r->options = options;
    r->stop = stop;
    r->front = malloc(tiers[TIERS - 1].places * sizeof(*r->front));
    if (!r->front) {
        free(r);
        return -ENOMEM;
    }
    *ret_recogniser = r;
    return 0;
}

void recogniser_free(struct recogniser *r)
{
    if (!r)
        return;
    for (unsigned i = 0; i < FOLDERS_KEPT; i++)
        folder_files_free(r->kept[i].files);
    vector_free(&r->links);
    free(r->front);
    free(r);
}

/* ---- candidates ---- */

static bool recogniser_is_stopped(const struct recogniser *r)
{
    return r->stop && atomic_load_explicit(r->stop, memory_order_relaxed);
}

/* A file that was read, or a directory above some. */
struct tally {
    uint32_t position;
    enum folder_kind kind; /* of a directory that may be the one */
    unsigned reads;
};

struct ancestors {
    struct tally at[ANCESTORS_MAX]; /* directories */
    unsigned count;
    struct tally seen[SEEN_MAX]; /* these and the files, each once, sorted */
    unsigned seen_count;
};

static void ancestors_count_one(struct ancestors *a, uint32_t directory, enum folder_kind kind,
                                unsigned reads)
{
    for (unsigned i = 0; i < a->count; i++)
        if (a->at[i].position == directory && a->at[i].kind == kind) {
            a->at[i].reads += reads;
            return;
        }
    if (a->count < ANCESTORS_MAX)
        a->at[a->count++] = (struct tally){directory, kind, reads};
}

/* Count the directory of an entry, and all directories above it that the mount shows. */
static void ancestors_count(const struct recogniser *r, struct ancestors *a, uint32_t entry,
                            enum folder_kind kind, unsigned reads)
{
    uint32_t directory;

    if (index_parent(r->index, entry, &directory) < 0)
        return;
    ancestors_count_one(a, directory, kind, reads);
    while (directory != r->root && directory != INDEX_ROOT) {
        if (index_parent(r->index, directory, &directory) < 0)
            return;
        ancestors_count_one(a, directory, FOLDER_CLASSES, reads);
    }
}

/* ---- links to what was read ---- */

/* The links that lead to something, in entries [first, first + count). */
static int recogniser_take_links(struct recogniser *r, uint32_t first, uint32_t count,
                                 uint64_t *steps)
{
    struct index_file files[ENTRIES_AT_ONCE];
    struct node node;
    int err = index_files(r->index, first, count, files);

    for (uint32_t i = 0; err == 0 && i < count; i++) {
        struct link link = {.entry = first + i};
        struct index_way way = {0};
        if (!S_ISLNK(files[i].mode))
            continue;
        bool leads = index_follow(r->index, link.entry, "", &way, &link.position) == 0 &&
                     index_node(r->index, link.position, &node) == 0;
        *steps += way.steps;
        if (!leads)
            continue;
        link.position = node.position;
        err = *steps > LINK_STEPS_MOST || r->links.count == LINKS_MOST
                  ? -E2BIG
                  : vector_push(&r->links, link);
    }
    return err;
}

/* Once, as they can't change. If there are too many, none is looked at. */
static void recogniser_find_links(struct recogniser *r)
{
    const struct index_info *info = index_info(r->index);
    const bool has_others = info->files + info->directories < info->entries;
    const uint32_t entries =
        has_others ? info->entries : 0; /* else the index stays untouched */
    uint64_t steps = 0;
    int err = 0;

    for (uint32_t i = 0, run; err == 0 && i < entries && !recogniser_is_stopped(r); i += run) {
        run = min_u32(entries - i, ENTRIES_AT_ONCE);
        err = recogniser_take_links(r, i, run, &steps);
    }
    if (err < 0)
        vector_free(&r->links);
    r->has_links = true;
}

static int compare_seen(const void *a, const void *b)
{
    uint32_t x = ((const struct tally *)a)->position, y = ((const struct tally *)b)->position;
    return (x > y) - (x < y);
}

/* All files that were read and all directories above them, each once. */
static void ancestors_see(struct ancestors *a, const uint32_t *positions, unsigned count)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < count; i++)
        a->seen[a->seen_count++] = (struct tally){.position = positions[i], .reads = 1};
    for (unsigned i = 0; i < a->count; i++)
        a->seen[a->seen_count++] = a->at[i];
    qsort(a->seen, a->seen_count, sizeof(a->seen[0]), compare_seen);
    for (unsigned i = 0; i < a->seen_count; i++)
        if (kept && a->seen[kept - 1].position == a->seen[i].position)
            a->seen[kept - 1].reads += a->seen[i].reads;
        else
            a->seen[kept++] = a->seen[i];
    a->seen_count = kept;
}

/* Count the directories above links to files that were read, and to directories above such. */
static void ancestors_count_links(struct recogniser *r, struct ancestors *a,
                                  const uint32_t *positions, unsigned count)
{
    if (!r->has_links)
        recogniser_find_links(r);
    if (r->links.count == 0)
        return;
    ancestors_see(a, positions, count);
    for (size_t i = 0; i < r->links.count; i++) {
        const struct link *link = &r->links.at[i];
        const struct tally wanted = {.position = link->position};
        const struct tally *seen =
            bsearch(&wanted, a->seen, a->seen_count, sizeof(a->seen[0]), compare_seen);
        struct node node;
        if (seen && index_node(r->index, link->position, &node) == 0)
            ancestors_count(r, a, link->entry,
                            S_ISDIR(node.mode) ? FOLDER_CLASSES : FOLDER_FLAT, seen->reads);
    }
}

/* A folder, new or kept from the last time. */
static struct kept_folder *recogniser_keep(struct recogniser *r, uint32_t directory,
                                           enum folder_kind kind, bool images_only)
{
    struct kept_folder *oldest = &r->kept[0];

    for (unsigned i = 0; i < FOLDERS_KEPT; i++) {
        struct kept_folder *k = &r->kept[i];
        if (k->used && k->directory == directory && k->kind == kind &&
            k->images_only == images_only) {
            k->used = ++r->uses;
            return k;
        }
        if (k->used < oldest->used)
            oldest = k;
    }
    folder_files_free(oldest->files);
    *oldest = (struct kept_folder){directory, kind, images_only, .used = ++r->uses};
    oldest->error = folder_files_new(r->index, directory, kind, images_only,
                                     r->options->most_bytes / sizeof(uint64_t), &oldest->files);
    return oldest;
}

/* ---- one folder ---- */

static double trial_divergence(double q, double p)
{
    double d = q * log(q / p);

    return q < 1 ? d + (1 - q) * log((1 - q) / (1 - p)) : d;
}

/* How far beyond chance `hits` reads among the first `m` places are, in nats. */
static double trial_nats(const struct recogniser *r, unsigned hits, uint32_t m)
{
    double q = (double)hits / r->reads, p = (double)m / r->n;

    return q > p && p < 1 ? r->reads * trial_divergence(q, p) : 0;
}

/* ln of the number of combinations in all, of all candidate folders. */
static double trial_ln_combinations(void)
{
    double sum = 0;

    for (size_t i = 0; i < TIERS; i++)
        sum += tiers[i].seeds * log2(tiers[i].places / (double)FRONT_LEAST);
    return log(CANDIDATES_MOST * sum);
}

/* Try the front of one permutation, in all sizes up to `places`. */
static bool trial_fits(const struct recogniser *r, uint64_t seed, uint32_t places,
                       double wanted)
{
    uint32_t *front = r->front, next = FRONT_LEAST;
    unsigned hits = 0;

    if (permutation_front(r->n, seed, places, front) < 0)
        return false;
    for (uint32_t i = 0; i < places; i++) {
        hits += bit_get(r->marks, front[i]);
        if (i + 1 == next || i + 1 == places) {
            if (trial_nats(r, hits, i + 1) >= wanted)
                return true;
            next *= 2;
        }
    }
    return false;
}

/* The epoch whose permutation fits. */
static int trial_find_epoch(const struct recogniser *r, uint64_t *ret_epoch)
{
    double wanted = trial_ln_combinations() + NATS_BEYOND_CHANCE;
    uint32_t before = 0;

    for (size_t i = 0; i < TIERS; i++) {
        uint32_t places = tiers[i].places < r->n ? tiers[i].places : r->n;
        if (places == before)
            break; /* the folder is that small */
        before = places;
        for (uint32_t epoch = 0; epoch < tiers[i].seeds; epoch++) {
            if (recogniser_is_stopped(r))
                return -ECANCELED;
            if (trial_fits(r, r->options->seed + epoch, places, wanted)) {
                *ret_epoch = epoch;
                return 0;
            }
        }
    }
    return -ENOENT;
}

static void trial_mark_reads(struct recogniser *r, const uint32_t *positions, unsigned count)
{
    uint32_t number;

    for (unsigned i = 0; i < count; i++) {
        uint64_t from = 0;
        for (unsigned j = 0; j < FOLDER_NUMBERS_MOST; j++, from = (uint64_t)number + 1) {
            if (folder_files_number(r->folder, positions[i], from, &number) < 0)
                break;
            r->reads += bit_take(r->marks, number);
        }
    }
}

static int recogniser_try_folder(struct recogniser *r, const struct kept_folder *kept,
                                 const uint32_t *positions, unsigned count,
                                 struct recognised *found)
{
    int err = -ENOENT;

    r->folder = kept->files;
    r->n = folder_files_count(kept->files);
    r->reads = 0;
    if (r->n < RECOGNISE_FILES_MIN)
        return -ENOENT;
    r->marks = calloc(r->n / 64 + 1, sizeof(*r->marks));
    if (!r->marks)
        return -ENOMEM;
    trial_mark_reads(r, positions, count);
    if (r->reads >= RECOGNISE_READS_MIN)
        err = trial_find_epoch(r, &found->epoch);
    free((void *)r->marks);
    if (err == 0)
        err = known_reads_shuffled(kept->files, r->options->seed + found->epoch,
                                   r->options->most_bytes, &found->order);
    if (err < 0)
        return err;
    found->directory = kept->directory;
    found->kind = kept->kind;
    found->images_only = kept->images_only;
    found->files = folder_files_share(kept->files);
    return 0;
}

/* With images alone, and with all files where there are more of them. */
static int recogniser_try_directory(struct recogniser *r, const struct tally *a,
                                    const uint32_t *positions, unsigned count,
                                    struct recognised *found)
{
    uint32_t images = 0;
    int err = -ENOENT;

    for (int images_only = 1; err == -ENOENT && images_only >= 0; images_only--) {
        const struct kept_folder *kept = recogniser_keep(r, a->position, a->kind, images_only);
        if (kept->error < 0)
            return kept->error;
        if (images_only || folder_files_count(kept->files) != images)
            err = recogniser_try_folder(r, kept, positions, count, found);
        images = folder_files_count(kept->files);
    }
    return err;
}

int recogniser_try(struct recogniser *r, const uint32_t *positions, unsigned count,
                   struct recognised *ret_recognised)
{
    int err = -ENOENT;

    if (count < RECOGNISE_READS_MIN)
        return -EINVAL;
    if (count > RECOGNISE_READS_MAX) {
        positions += count - RECOGNISE_READS_MAX;
        count = RECOGNISE_READS_MAX;
    }
    struct ancestors *a = calloc(1, sizeof(*a));
    if (!a)
        return -ENOMEM;
    for (unsigned i = 0; i < count; i++)
        ancestors_count(r, a, positions[i], FOLDER_FLAT, 1);
    ancestors_count_links(r, a, positions, count);
    for (unsigned i = 0, tried = 0; i < a->count && tried < CANDIDATES_MOST; i++) {
        if (a->at[i].reads < count - count / 4)
            continue;
        tried++;
        struct recognised found = {0};
        int e = recogniser_try_directory(r, &a->at[i], positions, count, &found);
        if (e == 0)
            *ret_recognised = found;
        if (e != -ENOENT)
            err = e;
        if (e == 0 || e == -ECANCELED)
            break;
    }
    free(a);
    return err;
}
