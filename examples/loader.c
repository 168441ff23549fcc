/*
 * Batches of an archive in the order of training, each rank its share, and a restart where it
 * was killed:
 *
 *     cc loader.c $(pkg-config --cflags --libs onepot) -o loader
 *     srun ./loader train.tar 3 state        ranks come from the launcher's environment
 *
 * The position is written after every 100 batches to STATE.RANK; a run that finds the file goes
 * on from there. At the end each rank prints sums; those of all ranks, added up, are the
 * archive's if every sample came once.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <onepot.h>

static void die(const struct onepot_error *error)
{
    fprintf(stderr, "loader: %s\n", error->text);
    exit(1);
}

/* All of the state but its size is numbers and a text. */
static void save(struct onepot_loader *loader, const char *path)
{
    struct onepot_state s = {.size = sizeof(s)};
    struct onepot_error error;
    char temporary[4096];
    if (onepot_loader_state(loader, &error, &s) < 0)
        die(&error);
    snprintf(temporary, sizeof(temporary), "%s.new", path);
    FILE *f = fopen(temporary, "w");
    if (!f ||
        fprintf(f,
                "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
                " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n",
                s.version, s.samples, s.seed, s.epoch, s.done, s.shuffle, s.drop_last, s.block,
                s.window, s.digest) < 0 ||
        fclose(f) != 0 || rename(temporary, path) != 0) {
        perror(path);
        exit(1);
    }
}

static void restore(struct onepot_loader *loader, const char *path)
{
    struct onepot_state s = {.size = sizeof(s)};
    struct onepot_error error;
    FILE *f = fopen(path, "r");
    if (!f)
        return; /* the first run */
    int n = fscanf(f,
                   "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64
                   " %" SCNu64 " %" SCNu64 " %" SCNu64 " %32s",
                   &s.version, &s.samples, &s.seed, &s.epoch, &s.done, &s.shuffle, &s.drop_last,
                   &s.block, &s.window, s.digest);
    fclose(f);
    if (n != 10) {
        fprintf(stderr, "loader: %s is no state\n", path);
        exit(1);
    }
    if (onepot_loader_restore(loader, &s, &error) < 0)
        die(&error);
}

int main(int argc, char **argv)
{
    struct onepot_archive *archive;
    struct onepot_loader *loader;
    struct onepot_error error;
    const struct onepot_batch *batch;
    if (argc != 4) {
        fprintf(stderr, "Usage: loader ARCHIVE EPOCHS STATE\n");
        return 2;
    }
    const char *const paths[] = {argv[1]};
    uint64_t epochs = strtoull(argv[2], NULL, 10), batches = 0, bytes = 0;
    if (onepot_archive_open(paths, 1, NULL, &error, &archive) < 0)
        die(&error);
    struct onepot_loader_options options = {.size = sizeof(options), .batch_size = 32};
    if (onepot_loader_new(archive, &options, &error, &loader) < 0)
        die(&error);
    restore(loader, argv[3]);

    while (onepot_loader_epoch(loader, NULL) < epochs) {
        int r = onepot_loader_next(loader, -1, &error, &batch);
        if (r < 0)
            die(&error);
        if (r == 0) {
            struct onepot_delivered d;
            onepot_loader_delivered(loader, &d);
            printf("epoch %" PRIu64 ": %" PRIu64 " samples, sums %016" PRIx64 " %016" PRIx64
                   "\n",
                   onepot_loader_epoch(loader, NULL) - 1, d.samples, d.sum_a, d.sum_b);
            continue;
        }
        bytes += batch->bytes; /* a training step is here */
        onepot_batch_release(batch);
        if (++batches % 100 == 0)
            save(loader, argv[3]);
    }
    save(loader, argv[3]);
    printf("%" PRIu64 " batches, %" PRIu64 " bytes\n", batches, bytes);
    onepot_loader_free(loader);
    onepot_archive_close(archive);
    return 0;
}
