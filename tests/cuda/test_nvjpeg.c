/*
 * Pictures that a GPU decodes, with nvJPEG played by the host: they are the images that the
 * host makes, whatever nvJPEG refuses and whatever of it is missing. That both decode the same
 * bytes alike is the played library's doing; crops, weights, types and places are ours.
 */
#include "loader_helper.h"

#include <errno.h>

#include "device.h"
#include "onepot_device.h"
#include "pictures.h"
#include "played.h"
#include "suite.h"

#define COMMON 20u /* files that a GPU may decode */
#define BATCH 7u
#define SIDE 24u
#define WIDE 90u /* the width of some of them */

static struct played *gpu;
static struct onepot_archive *archive;
static struct onepot_device *device;
static uint64_t memory_bytes; /* of the next loader; 0: its choice */

/* ---- files ---- */

static void add(struct tree *tree, const char *name, unsigned i, struct bytes file)
{
    char path[64];
    snprintf(path, sizeof(path), "c%u/%02u-%s", i % 3, i, name);
    tree_file(tree, path, file.data, file.len);
    free(file.data);
}

static unsigned width_of(unsigned i)
{
    return i % 5 == 0 ? WIDE : 40 + 13 * i;
}

static void add_common(struct tree *tree)
{
    for (unsigned i = 0; i < COMMON; i++)
        add(tree, "common.jpg", i,
            picture_jpeg(width_of(i), 30 + 7 * i,
                         (struct jpeg_kind){JCS_RGB, i % 2 ? 95 : 70, 0, i % 4 == 3}));
}

static void add_others(struct tree *tree)
{
    const struct jpeg_kind kinds[] = {
        {JCS_GRAYSCALE, 90, 0, 0}, {JCS_RGB, 90, 1, 0}, {JCS_CMYK, 90, 0, 0}};
    for (unsigned i = 0; i < 3; i++)
        add(tree, "other.jpg", COMMON + i, picture_jpeg(80, 60, kinds[i]));
    add(tree, "other.npy", COMMON + 3, picture_npy(50, 60, 3));
}

static struct onepot_archive *pack(struct tree *tree)
{
    ck_assert(tree_pack(tree, PACKING_ONEPOT));
    struct onepot_archive *packed = tree_open(tree, NULL);
    tree_end(tree);
    return packed;
}

static void pack_once(void)
{
    struct tree tree;
    if (archive)
        return;
    tree_begin(&tree);
    add_common(&tree);
    add_others(&tree);
    archive = pack(&tree);
}

/* ---- loaders ---- */

static void begin(void)
{
    gpu = played_find();
    ck_assert_ptr_nonnull(gpu);
    unsetenv("ONEPOT_NVJPEG");
    struct onepot_error error = {0};
    int r = onepot_device_open("cuda:0", &error, &device);
    ck_assert_msg(r == 0, "%s", error.text);
}

static void end(void)
{
    onepot_device_close(device);
    ck_assert_uint_eq(gpu->contexts, 0);
    ck_assert_uint_eq(gpu->nvjpeg_handles, 0);
}

static int make(const struct onepot_archive *of, const struct onepot_images *images,
                struct onepot_device *on, struct onepot_error *error,
                struct onepot_loader **ret_loader)
{
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = BATCH,
                                            .world_size = 1,
                                            .threads = 2,
                                            .prefetch = 2,
                                            .seed = 5,
                                            .memory_bytes = memory_bytes,
                                            .images = images,
                                            .device = on};
    return onepot_loader_new(of, &options, error, ret_loader);
}

static struct onepot_images images_for_gpu(void)
{
    return (struct onepot_images){.size = sizeof(struct onepot_images),
                                  .height = SIDE,
                                  .width = SIDE + 3,
                                  .resize = SIDE + 5,
                                  .exact = true,
                                  .decoder = ONEPOT_DECODER_GPU};
}

static struct onepot_loader *made(const struct onepot_archive *of, struct onepot_images images,
                                  struct onepot_device *on)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    if (!on)
        images.decoder = ONEPOT_DECODER_HOST;
    int r = make(of, &images, on, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    return loader;
}

static const struct onepot_batch *next(struct onepot_loader *loader)
{
    const struct onepot_batch *b = NULL;
    struct onepot_error error = {0};
    int r = onepot_loader_next(loader, 60000, &error, &b);
    ck_assert_msg(r >= 0, "%s", error.text);
    return r > 0 ? b : NULL;
}

static uint64_t decoded(struct onepot_loader *loader)
{
    struct onepot_stats stats = {.size = sizeof(stats)};
    onepot_loader_stats(loader, &stats);
    return stats.gpu_decoded;
}

static uint64_t skipped(struct onepot_loader *loader)
{
    struct onepot_stats stats = {.size = sizeof(stats)};
    onepot_loader_stats(loader, &stats);
    return stats.skipped;
}

static void check_batch(const struct onepot_batch *there, const struct onepot_batch *here,
                        struct onepot_device *on)
{
    struct onepot_device_batch w = {.size = sizeof(w)};
    struct onepot_error error = {0};
    ck_assert_int_eq(onepot_batch_on_device(there, &w), 0);
    ck_assert_uint_eq(there->samples, here->samples);
    ck_assert_mem_eq(there->indices, here->indices, 8 * here->samples);
    ck_assert_mem_eq(there->valid, here->valid, here->samples);
    ck_assert_uint_eq(w.images ? w.image_bytes : w.bytes, here->bytes);
    uint8_t *data = malloc(here->bytes);
    uint64_t *indices = malloc(8 * here->samples);
    ck_assert_int_eq(onepot_batch_use(there, NULL, &error), 0);
    ck_assert_int_eq(
        onepot_device_copy(on, NULL, data, w.images ? w.images : w.data, here->bytes, &error),
        0);
    ck_assert_int_eq(
        onepot_device_copy(on, NULL, indices, w.indices, 8 * here->samples, &error), 0);
    ck_assert_int_eq(onepot_device_stream_wait(on, NULL, &error), 0);
    ck_assert_mem_eq(data, here->data, here->bytes);
    ck_assert_mem_eq(indices, here->indices, 8 * here->samples);
    free(indices);
    free(data);
}

/* Two epochs of both loaders. */
static void check_same(struct onepot_loader *there, struct onepot_loader *here,
                       struct onepot_device *on)
{
    for (unsigned epoch = 0; epoch < 2; epoch++) {
        const struct onepot_batch *a, *b;
        while ((a = next(there))) {
            ck_assert_ptr_null(a->data);
            b = next(here);
            check_batch(a, b, on);
            onepot_batch_release(a);
            onepot_batch_release(b);
        }
        ck_assert_ptr_null(next(here));
    }
}

static void check_images(struct onepot_images images, bool by_gpu)
{
    struct onepot_loader *there = made(archive, images, device);
    struct onepot_loader *here = made(archive, images, NULL);
    check_same(there, here, device);
    if (by_gpu)
        ck_assert_uint_ge(decoded(there), 2 * COMMON);
    else
        ck_assert_uint_eq(decoded(there), 0);
    ck_assert_uint_eq(decoded(here), 0);
    onepot_loader_free(there);
    onepot_loader_free(here);
}

/* ---- images ---- */

static const struct onepot_images kinds[] = {
    {.crop = ONEPOT_CROP_RANDOM},
    {.crop = ONEPOT_CROP_CENTRE, .channels_last = true},
    {.crop = ONEPOT_CROP_NONE, .interpolation = ONEPOT_BICUBIC},
    {.type = ONEPOT_FLOAT, .mean = {0.4f, 0.5f, 0.6f}, .std = {0.2f, 0.3f, 0.25f}},
    {.type = ONEPOT_HALF, .interpolation = ONEPOT_BICUBIC, .std = {0.2f, 0.3f, 0.25f}},
    {.type = ONEPOT_FLOAT, .channels_last = true, .std = {0.2f, 0.3f, 0.25f}},
    {.type = ONEPOT_BFLOAT16, .channels_last = true, .std = {0.2f, 0.3f, 0.25f}},
    {.height = 300, .width = 2, .crop = ONEPOT_CROP_NONE, .interpolation = ONEPOT_BICUBIC},
};

START_TEST(a_gpu_makes_the_images_that_the_host_makes)
{
    struct onepot_images images = kinds[_i], usual = images_for_gpu();
    images.size = usual.size;
    images.height = images.height ? images.height : usual.height;
    images.width = images.width ? images.width : usual.width;
    images.resize = usual.resize;
    images.exact = usual.exact;
    images.decoder = usual.decoder;
    check_images(images, true);
    ck_assert_uint_ge(gpu->nvjpeg_files, 2 * COMMON);
}
END_TEST

START_TEST(what_it_makes_is_near_to_images_that_are_shrunk_while_decoded)
{
    struct onepot_images images = images_for_gpu();
    images.channels_last = true;
    struct onepot_loader *there = made(archive, images, device);
    images.exact = false;
    struct onepot_loader *here = made(archive, images, NULL);
    const struct onepot_batch *a, *b;
    struct onepot_error error = {0};
    uint64_t sum = 0, count = 0;
    while ((a = next(there))) {
        struct onepot_device_batch w = {.size = sizeof(w)};
        b = next(here);
        uint8_t *data = malloc(b->bytes);
        ck_assert_int_eq(onepot_batch_on_device(a, &w), 0);
        ck_assert_int_eq(onepot_batch_use(a, NULL, &error), 0);
        ck_assert_int_eq(onepot_device_copy(device, NULL, data, w.data, b->bytes, &error), 0);
        ck_assert_int_eq(onepot_device_stream_wait(device, NULL, &error), 0);
        for (uint64_t i = 0; i < b->bytes; i++, count++)
            sum += (uint64_t)abs(data[i] - b->data[i]);
        free(data);
        onepot_batch_release(a);
        onepot_batch_release(b);
    }
    ck_assert_uint_lt(sum, 2 * count);
    onepot_loader_free(there);
    onepot_loader_free(here);
}
END_TEST

START_TEST(each_device_has_a_decoder_of_its_own)
{
    struct onepot_device *other = NULL;
    struct onepot_error error = {0};
    gpu->devices = 2;
    ck_assert_int_eq(onepot_device_open("cuda:1", &error, &other), 0);
    struct onepot_images images = images_for_gpu();
    struct onepot_loader *one = made(archive, images, device);
    struct onepot_loader *two = made(archive, images, other);
    struct onepot_loader *here = made(archive, images, NULL);
    check_same(one, here, device);
    onepot_loader_free(one);
    onepot_loader_set_epoch(here, 0);
    check_same(two, here, other);
    onepot_loader_free(two);
    onepot_loader_free(here);
    onepot_device_close(other);
}
END_TEST

START_TEST(one_loader_has_a_decoder_on_each_of_its_devices)
{
    struct onepot_device *several[3] = {device};
    struct onepot_error error = {0};
    gpu->devices = 3;
    ck_assert_int_eq(onepot_device_open("cuda:1", &error, &several[1]), 0);
    ck_assert_int_eq(onepot_device_open("cuda:2", &error, &several[2]), 0);
    struct onepot_images images = images_for_gpu();
    struct onepot_loader_options options = {.size = sizeof(options),
                                            .batch_size = BATCH,
                                            .world_size = 1,
                                            .threads = 2,
                                            .seed = 5,
                                            .images = &images,
                                            .devices = several,
                                            .device_count = 3};
    struct onepot_loader *there = NULL, *here = made(archive, images, NULL);
    const struct onepot_batch *a;
    int r = onepot_loader_new(archive, &options, &error, &there);
    ck_assert_msg(r == 0, "%s", error.text);
    ck_assert_uint_eq(gpu->nvjpeg_handles, 3 * 3); /* handle, state and parser of each */
    for (unsigned epoch = 0; epoch < 2; epoch++) {
        while ((a = next(there))) {
            struct onepot_device_batch w = {.size = sizeof(w)};
            const struct onepot_batch *b = next(here);
            ck_assert_int_eq(onepot_batch_on_device(a, &w), 0);
            ck_assert_uint_eq(w.device, a->first / BATCH % 3);
            ck_assert_int_eq(gpu->device_of(w.data), (int)w.device);
            check_batch(a, b, several[w.device]);
            onepot_batch_release(a);
            onepot_batch_release(b);
        }
        ck_assert_ptr_null(next(here));
    }
    ck_assert_uint_ge(decoded(there), 2 * COMMON);
    onepot_loader_free(there);
    onepot_loader_free(here);
    onepot_device_close(several[1]);
    onepot_device_close(several[2]);
}
END_TEST

/* ---- what is refused, and what is missing ---- */

START_TEST(what_it_refuses_the_host_decodes)
{
    gpu->nvjpeg_refuses = WIDE;
    gpu->nvjpeg_misreads = width_of(1);
    struct onepot_loader *there = made(archive, images_for_gpu(), device);
    struct onepot_loader *here = made(archive, images_for_gpu(), NULL);
    check_same(there, here, device);
    ck_assert_uint_ge(decoded(there), COMMON);
    onepot_loader_free(there);
    onepot_loader_free(here);
}
END_TEST

START_TEST(a_chunk_that_fails_is_the_host_s)
{
    gpu->nvjpeg_fails = 3 + _i; /* a bad file, not supported, no memory, a failed execution */
    check_images(images_for_gpu(), false);
    ck_assert_uint_gt(gpu->nvjpeg_calls, 0);
}
END_TEST

START_TEST(pictures_that_the_device_has_no_room_for_are_the_host_s)
{
    struct tree tree;
    tree_begin(&tree);
    for (unsigned i = 0; i < 4; i++)
        add(&tree, "large.jpg", i, picture_jpeg(1600, 900, (struct jpeg_kind){JCS_RGB, 30}));
    struct onepot_archive *large = pack(&tree);
    gpu->memory_bytes = 8 << 20;
    struct onepot_loader *there = made(large, images_for_gpu(), device);
    struct onepot_loader *here = made(large, images_for_gpu(), NULL);
    check_same(there, here, device);
    ck_assert_uint_eq(decoded(there), 0);
    ck_assert_uint_eq(gpu->nvjpeg_calls, 0);
    onepot_loader_free(there);
    onepot_loader_free(here);
    onepot_archive_close(large);
}
END_TEST

/* A loader that has little memory moves nevertheless: these batches need no room for files. */
START_TEST(files_that_there_is_no_memory_for_are_the_host_s)
{
    memory_bytes = 100 << 10;
    struct onepot_loader *there = made(archive, images_for_gpu(), device);
    memory_bytes = 0;
    struct onepot_loader *here = made(archive, images_for_gpu(), NULL);
    check_same(there, here, device);
    ck_assert_uint_lt(decoded(there), COMMON); /* some last batches are small enough */
    onepot_loader_free(there);
    onepot_loader_free(here);
}
END_TEST

/* By the environment, by the played library, and what the reason says. */
static const struct {
    const char *named, *says;
    int major;
    bool no_start;
} missing[] = {
    {"/nowhere/libnvjpeg.so", "nvJPEG is not there: /nowhere/libnvjpeg.so", 0, false},
    {"libdl.so.2", "nvJPEG: it has no nvjpeg", 0, false},
    {NULL, "nvJPEG: version 14 is not known; 12 to 13 are", 14, false},
    {NULL, "nvJPEG: version 11 is not known", 11, false},
    {NULL, "nvJPEG 12.4 can't be started on this GPU", 0, true}};

START_TEST(without_nvjpeg_the_host_decodes_and_a_line_says_why)
{
    struct onepot_images images = images_for_gpu();
    struct onepot_loader *there = NULL;
    struct onepot_error error = {0};
    if (missing[_i].named)
        setenv("ONEPOT_NVJPEG", missing[_i].named, 1);
    gpu->nvjpeg_major = missing[_i].major;
    gpu->nvjpeg_no_start = missing[_i].no_start;
    ck_assert_int_eq(make(archive, &images, device, &error, &there), -ENODEV);
    ck_assert_ptr_nonnull(strstr(error.text, missing[_i].says));
    images.decoder = ONEPOT_DECODER_AUTO;
    there = made(archive, images, device);
    ck_assert_int_eq(strncmp(onepot_loader_decoder(there), "host: nvJPEG", 12), 0);
    ck_assert_ptr_nonnull(strstr(onepot_loader_decoder(there), missing[_i].says));
    onepot_loader_free(there);
}
END_TEST

START_TEST(a_gpu_without_engines_decodes_by_kernels)
{
    struct onepot_loader *loader = made(archive, images_for_gpu(), device);
    ck_assert_str_eq(onepot_loader_decoder(loader), "nvJPEG 12.4 (hardware)");
    onepot_loader_free(loader);
    gpu->nvjpeg_no_engines = true;
    loader = made(archive, images_for_gpu(), device);
    ck_assert_str_eq(onepot_loader_decoder(loader), "nvJPEG 12.4 (kernels)");
    onepot_loader_free(loader);
    check_images(images_for_gpu(), true);
}
END_TEST

START_TEST(the_host_decodes_if_nobody_asks)
{
    struct onepot_images images = images_for_gpu();
    images.decoder = ONEPOT_DECODER_HOST;
    struct onepot_loader *loader = made(archive, images, device);
    ck_assert_str_eq(onepot_loader_decoder(loader), "host");
    const struct onepot_batch *b = next(loader);
    ck_assert_ptr_nonnull(b->data);
    onepot_batch_release(b);
    onepot_loader_free(loader);
    ck_assert_uint_eq(gpu->nvjpeg_handles, 0);
}
END_TEST

START_TEST(a_gpu_that_is_asked_for_without_a_device_is_an_error)
{
    struct onepot_images images = images_for_gpu();
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    uint64_t none = 0;
    uint8_t byte;
    ck_assert_int_eq(make(archive, &images, NULL, &error, &loader), -EINVAL);
    ck_assert_int_eq(
        onepot_archive_images(archive, &none, 0, &images, 0, 0, &byte, 1, NULL, &error),
        -EINVAL);
    images.decoder = 3;
    ck_assert_int_eq(make(archive, &images, device, &error, &loader), -EINVAL);
    struct onepot_device *host = NULL;
    ck_assert_int_eq(onepot_device_open("host", &error, &host), 0);
    images.decoder = ONEPOT_DECODER_GPU;
    ck_assert_int_eq(make(archive, &images, host, &error, &loader), -ENOTSUP);
    images.decoder = ONEPOT_DECODER_AUTO;
    loader = made(archive, images, host);
    ck_assert_str_eq(onepot_loader_decoder(loader),
                     "host: a \"host\" device decodes no pictures");
    onepot_loader_free(loader);
    gpu->no_image = true;
    struct onepot_device *bare = NULL;
    ck_assert_int_eq(onepot_device_open("cuda:0", &error, &bare), 0);
    images.decoder = ONEPOT_DECODER_GPU;
    ck_assert_int_eq(make(archive, &images, bare, &error, &loader), -ENOTSUP);
    ck_assert_ptr_nonnull(strstr(error.text, "no kernels"));
    onepot_device_close(bare);
    onepot_device_close(host);
}
END_TEST

/* ---- damaged files ---- */

/* A file that is cut short, and one whose tables are damaged and whose end is there. */
static struct onepot_archive *pack_damaged(void)
{
    struct tree tree;
    tree_begin(&tree);
    for (unsigned i = 0; i < 5; i++) {
        struct bytes file = picture_jpeg(80, 60, (struct jpeg_kind){JCS_RGB, 90, 0, 0});
        if (i == 1)
            file.len /= 2;
        for (size_t at = 0; i == 3 && at + 4 < file.len; at++)
            if (file.data[at] == 0xff && file.data[at + 1] == 0xc4)
                memset(file.data + at + 5, 0xee, 16);
        add(&tree, i % 2 ? "damaged.jpg" : "good.jpg", 3 * i, file);
    }
    return pack(&tree);
}

START_TEST(damaged_files_are_what_they_are_for_the_host)
{
    struct onepot_archive *damaged = pack_damaged();
    struct onepot_images images = images_for_gpu();
    images.on_error = _i ? ONEPOT_ERROR_GREY : ONEPOT_ERROR_SKIP;
    struct onepot_loader *there = made(damaged, images, device);
    struct onepot_loader *here = made(damaged, images, NULL);
    check_same(there, here, device);
    ck_assert_uint_ge(skipped(there), 4);
    ck_assert_uint_ge(decoded(there), 6);
    onepot_loader_free(there);
    onepot_loader_free(here);
    onepot_archive_close(damaged);
}
END_TEST

START_TEST(a_damaged_file_is_named)
{
    struct onepot_archive *damaged = pack_damaged();
    struct onepot_images images = images_for_gpu();
    struct onepot_loader *loader = made(damaged, images, device);
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    for (unsigned epoch = 0; epoch < 3; epoch++) {
        ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), -EILSEQ);
        ck_assert_ptr_nonnull(strstr(error.text, "damaged.jpg"));
        ck_assert_int_eq(onepot_loader_next(loader, 60000, &error, &b), 0);
    }
    onepot_loader_free(loader);
    onepot_archive_close(damaged);
}
END_TEST

/* ---- order ---- */

START_TEST(a_stream_that_captures_is_left_alone)
{
    bool broken = true;
    void *stream = gpu->stream(true);
    gpu->begin_capture(stream);
    struct onepot_loader *there = made(archive, images_for_gpu(), device);
    struct onepot_error error = {0};
    const struct onepot_batch *b = next(there);
    ck_assert_int_eq(onepot_batch_use(b, stream, &error), -EBUSY);
    ck_assert_int_eq(onepot_batch_wait(b, &error), 0);
    onepot_batch_release(b);
    while ((b = next(there)))
        onepot_batch_release(b);
    ck_assert_uint_ge(decoded(there), COMMON);
    ck_assert_uint_eq(gpu->end_capture(stream, &broken), 0);
    ck_assert(!broken);
    onepot_loader_free(there);
}
END_TEST

/* Kernels that spin hold a reader back, while the loader goes as far as it may. */
START_TEST(decoding_waits_for_readers_of_the_batch_before)
{
    struct onepot_images images = images_for_gpu();
    images.channels_last = true;
    struct onepot_loader *there = made(archive, images, device);
    struct onepot_loader *here = made(archive, images, NULL);
    const struct onepot_batch *a = next(there), *b = next(here);
    struct onepot_device_batch w = {.size = sizeof(w)};
    struct onepot_error error = {0};
    void *reader = NULL, *got = NULL;
    ck_assert_int_eq(onepot_device_stream_new(device, &error, &reader), 0);
    ck_assert_int_eq(
        device->type->allocate(device->device, DEVICE_MEMORY_LOCKED, b->bytes, &error, &got),
        0);
    ck_assert_int_eq(onepot_batch_on_device(a, &w), 0);
    ck_assert_int_eq(onepot_batch_use(a, reader, &error), 0);
    gpu->quiet();
    gpu->spin(reader);
    ck_assert_int_eq(onepot_device_copy(device, reader, got, w.data, b->bytes, &error), 0);
    onepot_batch_release(a);
    for (unsigned n = 0; n < 60; n++) {
        int r = onepot_loader_next(there, 10, &error, &a);
        ck_assert(r >= 0 || r == -ETIMEDOUT);
        if (r > 0)
            onepot_batch_release(a);
        if (r == -ETIMEDOUT)
            break;
    }
    gpu->quiet();
    gpu->release();
    ck_assert_int_eq(onepot_device_stream_wait(device, reader, &error), 0);
    ck_assert_mem_eq(got, b->data, b->bytes);
    onepot_batch_release(b);
    onepot_loader_free(there);
    onepot_loader_free(here);
    device->type->release(device->device, DEVICE_MEMORY_LOCKED, got, w.bytes);
    onepot_device_stream_free(device, reader);
}
END_TEST

/*
 * nvJPEG reads them when its stream comes to it, which is when kernels are let go. Until then
 * the loader goes as far as it may: it waits for memory, or has gone on without minding.
 */
START_TEST(files_stay_until_they_are_decoded)
{
    struct onepot_images images = images_for_gpu();
    images.channels_last = true;
    memory_bytes = 600 << 10;
    struct onepot_loader *there = made(archive, images, device);
    memory_bytes = 0;
    struct onepot_loader *here = made(archive, images, NULL);
    check_same(there, here, device); /* the decoder has its memory then */
    struct onepot_device_batch w = {.size = sizeof(w)};
    struct onepot_error error = {0};
    void *reader = NULL, *got = NULL;
    gpu->quiet();
    gpu->hold_kernels(true);
    ck_assert_int_eq(onepot_loader_set_epoch(there, 7), 0);
    ck_assert_int_eq(onepot_loader_set_epoch(here, 7), 0);
    const struct onepot_batch *a = next(there), *b = next(here);
    ck_assert_int_eq(onepot_device_stream_new(device, &error, &reader), 0);
    ck_assert_int_eq(
        device->type->allocate(device->device, DEVICE_MEMORY_LOCKED, b->bytes, &error, &got),
        0);
    ck_assert_int_eq(onepot_batch_on_device(a, &w), 0);
    ck_assert_int_eq(onepot_batch_use(a, reader, &error), 0);
    ck_assert_int_eq(onepot_device_copy(device, reader, got, w.data, b->bytes, &error), 0);
    onepot_batch_release(a);
    for (unsigned n = 0; n < 40 && !gpu->waiting();) {
        int r = onepot_loader_next(there, 1, &error, &a);
        ck_assert(r >= 0 || r == -ETIMEDOUT);
        n += r >= 0;
        if (r > 0)
            onepot_batch_release(a);
    }
    gpu->hold_kernels(false);
    ck_assert_int_eq(onepot_device_stream_wait(device, reader, &error), 0);
    ck_assert_mem_eq(got, b->data, b->bytes);
    device->type->release(device->device, DEVICE_MEMORY_LOCKED, got, b->bytes);
    onepot_batch_release(b);
    onepot_loader_free(there);
    onepot_loader_free(here);
    onepot_device_stream_free(device, reader);
}
END_TEST

START_TEST(a_lost_device_is_one_error_and_an_end)
{
    struct onepot_loader *there = made(archive, images_for_gpu(), device);
    struct onepot_error error = {0};
    const struct onepot_batch *b = next(there);
    int r = 1;
    __atomic_store_n(&gpu->lost, true, __ATOMIC_RELEASE);
    onepot_batch_release(b);
    for (unsigned i = 0; i < 100 && r >= 0; i++) {
        r = onepot_loader_next(there, 60000, &error, &b);
        if (r > 0)
            onepot_batch_release(b);
    }
    ck_assert_int_eq(r, -EIO);
    ck_assert_ptr_nonnull(strstr(error.text, "CUDA"));
    onepot_loader_free(there);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("nvjpeg");
    TCase *c = tcase_create("nvjpeg");
    tcase_add_unchecked_fixture(c, pack_once, NULL);
    tcase_add_checked_fixture(c, begin, end);
    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, a_gpu_makes_the_images_that_the_host_makes, 0,
                        (int)(sizeof(kinds) / sizeof(kinds[0])));
    tcase_add_test(c, what_it_makes_is_near_to_images_that_are_shrunk_while_decoded);
    tcase_add_test(c, each_device_has_a_decoder_of_its_own);
    tcase_add_test(c, one_loader_has_a_decoder_on_each_of_its_devices);
    tcase_add_test(c, what_it_refuses_the_host_decodes);
    tcase_add_loop_test(c, a_chunk_that_fails_is_the_host_s, 0, 4);
    tcase_add_test(c, pictures_that_the_device_has_no_room_for_are_the_host_s);
    tcase_add_test(c, files_that_there_is_no_memory_for_are_the_host_s);
    tcase_add_loop_test(c, without_nvjpeg_the_host_decodes_and_a_line_says_why, 0,
                        (int)(sizeof(missing) / sizeof(missing[0])));
    tcase_add_test(c, a_gpu_without_engines_decodes_by_kernels);
    tcase_add_test(c, the_host_decodes_if_nobody_asks);
    tcase_add_test(c, a_gpu_that_is_asked_for_without_a_device_is_an_error);
    tcase_add_loop_test(c, damaged_files_are_what_they_are_for_the_host, 0, 2);
    tcase_add_test(c, a_damaged_file_is_named);
    tcase_add_test(c, a_stream_that_captures_is_left_alone);
    tcase_add_test(c, decoding_waits_for_readers_of_the_batch_before);
    tcase_add_test(c, files_stay_until_they_are_decoded);
    tcase_add_test(c, a_lost_device_is_one_error_and_an_end);
    suite_add_tcase(s, c);
    int failed = run_suite(s);
    onepot_archive_close(archive);
    return failed;
}
