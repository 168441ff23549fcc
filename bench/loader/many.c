/*
 * How long until the first batch of an archive of many samples.
 *
 *     many make FILE [SAMPLES [CLASSES [BYTES]]]   the archive, and the index beside it
 *     many first FILE [BATCH]                      one line of JSON: seconds
 *
 * The archive is as good as empty: a tar's first header and holes, in which the index says that
 * the samples lie. So ten million of them need the room of their index (0.6 GB), and a batch
 * has as many bytes as that of a real one.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "builder.h"
#include "cleanup.h"
#include "onepot.h"
#include "fileset.h"
#include "source.h"

enum { BLOCK = 512 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int fail(const char *what, int r)
{
    fprintf(stderr, "many: %s: %s\n", what, strerror(-r));
    return 1;
}

/* ---- making ---- */

struct shape {
    uint64_t samples, classes, bytes;
};

/* Each sample has a header's room before it and ends at a block, as in a tar. */
static uint64_t step_of(const struct shape *shape)
{
    return BLOCK + (shape->bytes + BLOCK - 1) / BLOCK * BLOCK;
}

static int make_file(const char *path, uint64_t len)
{
    uint8_t header[BLOCK] = {0};
    unsigned sum = 0;
    memcpy(header, "train/", 6);
    memcpy(header + 100, "0000755\0000000000\0000000000\00000000000000\00000000000000", 48);
    memcpy(header + 148, "        5", 9);
    memcpy(header + 257, "ustar\00000", 8);
    for (unsigned i = 0; i < BLOCK; i++)
        sum += header[i];
    snprintf((char *)header + 148, 8, "%06o", sum);
    auto_close int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, header, BLOCK) != BLOCK || ftruncate(fd, (off_t)len) < 0)
        return -errno;
    return 0;
}

static int add_samples(struct builder *builder, const struct shape *shape)
{
    struct node member = {.mode = S_IFREG | 0644, .mtime_sec = 1500000000};
    uint64_t offset = 2 * BLOCK;
    int r = 0;
    for (uint64_t i = 0; i < shape->samples && r == 0; i++, offset += step_of(shape)) {
        char name[100];
        uint32_t inode;
        uint64_t class = i * shape->classes / shape->samples;
        int len =
            snprintf(name, sizeof(name), "train/n%08" PRIu64 "/n%08" PRIu64 "_%" PRIu64 ".JPEG",
                     class, class, i);
        member.size_bytes = shape->bytes - i % (shape->bytes / 4 + 1);
        member.data_offset = offset;
        r = builder_add(builder, name, (size_t)len, &member, NULL, &inode);
    }
    return r;
}

static int make_index(const char *path, const struct source *source, struct builder *builder)
{
    struct source_identity identity;
    source_identity(source, &identity);
    struct builder_header header = {.format = 1,
                                    .archive_bytes = source_size(source),
                                    .archive_mtime_sec = identity.mtime_sec,
                                    .archive_mtime_nsec = identity.mtime_nsec};
    auto_free char *index_path = NULL;
    uint64_t bytes;
    int r = source_fingerprint(source, &header.archive_fingerprint);
    if (r == 0)
        r = asprintf(&index_path, "%s.onepot-index", path) < 0 ? -ENOMEM : 0;
    if (r < 0)
        return r;
    auto_close int fd = open(index_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return fd < 0 ? -errno : builder_write(builder, &header, fd, 0, NULL, &bytes);
}

static int make(const char *path, const struct shape *shape)
{
    struct source *source = NULL;
    struct builder *builder = NULL;
    int r = make_file(path, shape->samples * step_of(shape) + 4 * BLOCK);
    if (r == 0)
        r = source_open(path, NULL, &source);
    if (r == 0)
        r = builder_new(&builder);
    if (r == 0)
        r = add_samples(builder, shape);
    if (r == 0)
        r = make_index(path, source, builder);
    builder_free(builder);
    source_close(source);
    return r < 0 ? fail(path, r) : 0;
}

/* ---- the first batch ---- */

static int first(const char *path, uint64_t batch_size)
{
    struct onepot_archive *archive;
    struct onepot_loader *loader;
    struct onepot_sampler *sampler;
    struct onepot_error error;
    const struct onepot_batch *batch;
    struct onepot_loader_options o = {
        .size = sizeof(o), .batch_size = batch_size, .world_size = 1, .threads = 1};
    double start = now(), opened, came, shuffled;
    if (onepot_archive_open(&path, 1, NULL, &error, &archive) < 0)
        goto failed;
    opened = now();
    if (onepot_loader_new(archive, &o, &error, &loader) < 0 ||
        onepot_loader_next(loader, -1, &error, &batch) < 1)
        goto failed;
    came = now();
    onepot_batch_release(batch);
    onepot_loader_free(loader);
    struct onepot_sampler_options so = {
        .size = sizeof(so), .samples = onepot_archive_samples(archive), .world_size = 1};
    shuffled = now();
    if (onepot_sampler_new(&so, &error, &sampler) < 0)
        goto failed;
    shuffled = now() - shuffled;
    onepot_sampler_free(sampler);
    printf("{\"samples\": %" PRIu64
           ", \"open\": %.3f, \"first\": %.3f, \"permutation\": %.3f}\n",
           onepot_archive_samples(archive), opened - start, came - start, shuffled);
    onepot_archive_close(archive);
    return 0;
failed:
    fprintf(stderr, "%s\n", error.text);
    return 1;
}

static uint64_t number(int argc, char **argv, int i, uint64_t otherwise)
{
    uint64_t n = argc > i ? strtoull(argv[i], NULL, 10) : 0;
    return n ? n : otherwise;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "make") == 0) {
        struct shape shape = {number(argc, argv, 3, 10000000), number(argc, argv, 4, 1000),
                              number(argc, argv, 5, 20000)};
        return make(argv[2], &shape);
    }
    if (argc > 2 && strcmp(argv[1], "first") == 0)
        return first(argv[2], number(argc, argv, 3, 256));
    fputs("usage: many make FILE [SAMPLES [CLASSES [BYTES]]] | many first FILE [BATCH]\n",
          stderr);
    return 2;
}
