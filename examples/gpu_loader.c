/*
 * Batches of an archive in the memory of a GPU, and what that costs:
 *
 *     cc gpu_loader.c $(pkg-config --cflags --libs onepot) -o gpu_loader
 *     ./gpu_loader train.tar cuda 2        two epochs, on the GPU of this rank
 *     ./gpu_loader train.tar host 2        the same without a GPU
 *
 * The "training step" is a copy of the labels back to the host, on a stream of its own. Look at
 * the order of the calls: the batch is released as soon as the step is queued, and the loop is
 * ahead of the device by what the loader allows; only the last line waits.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <onepot_device.h>

static void check(int r, const struct onepot_error *error)
{
    if (r < 0) {
        fprintf(stderr, "gpu_loader: %s\n", error->text);
        exit(1);
    }
}

static void print_epoch(struct onepot_loader *loader)
{
    struct onepot_transfer t = {.size = sizeof(t)};
    struct onepot_error error;
    check(onepot_loader_transfer(loader, false, &error, &t), &error);
    printf("epoch %" PRIu64 ": %" PRIu64 " batches, %.1f MB copied at %.2f GB/s (peak %.2f), "
           "waited %.3f s\n",
           t.epoch, t.batches, (double)t.copy_bytes / 1e6,
           t.copy_ns ? (double)t.copy_bytes / (double)t.copy_ns : 0,
           (double)t.peak_bytes_per_second / 1e9, (double)t.wait_ns / 1e9);
}

int main(int argc, char **argv)
{
    struct onepot_archive *archive;
    struct onepot_device *device;
    struct onepot_loader *loader;
    struct onepot_error error;
    const struct onepot_batch *batch;
    void *stream;
    if (argc != 4) {
        fprintf(stderr, "Usage: gpu_loader ARCHIVE DEVICE EPOCHS\n");
        return 2;
    }
    const char *const paths[] = {argv[1]};
    uint64_t epochs = strtoull(argv[3], NULL, 10), size = 256, seen = 0;
    check(onepot_device_open(argv[2], &error, &device), &error);
    check(onepot_archive_open(paths, 1, NULL, &error, &archive), &error);
    struct onepot_loader_options options = {
        .size = sizeof(options), .batch_size = size, .device = device};
    check(onepot_loader_new(archive, &options, &error, &loader), &error);
    check(onepot_device_stream_new(device, &error, &stream), &error);
    int64_t *labels = calloc(size, sizeof(*labels));
    if (!labels)
        return 1;

    while (onepot_loader_epoch(loader, NULL) < epochs) {
        int r = onepot_loader_next(loader, -1, &error, &batch);
        check(r, &error);
        if (r == 0) {
            check(onepot_device_stream_wait(device, stream, &error), &error);
            print_epoch(loader);
            continue;
        }
        struct onepot_device_batch there = {.size = sizeof(there)};
        onepot_batch_on_device(batch, &there);
        check(onepot_batch_use(batch, stream, &error), &error);
        check(onepot_device_copy(device, stream, labels, there.labels,
                                 batch->samples * sizeof(*labels), &error),
              &error);
        seen += batch->samples;
        onepot_batch_release(batch);
    }
    check(onepot_device_stream_wait(device, stream, &error), &error);
    printf("%" PRIu64 " samples\n", seen);
    onepot_loader_free(loader);
    onepot_device_stream_free(device, stream);
    onepot_archive_close(archive);
    onepot_device_close(device);
    free(labels);
    return 0;
}
