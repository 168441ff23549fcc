/*
 * Blocks that a GPU decompresses, with nvCOMP played by the host: batches are those that the
 * host makes, whatever nvCOMP refuses or spoils and whatever of it is missing. No block goes
 * there that the host has not decompressed before: the played library ends the process where
 * one is damaged.
 */
#include "loader_helper.h"

#include <errno.h>
#include <fcntl.h>

#include <zstd.h>

#include "device.h"
#include "onepot_device.h"
#include "played.h"
#include "suite.h"

#define FILES 90u
#define BATCH 8u
#define BLOCK (4u << 10)
#define CLASSES 3u

static struct played *gpu;
static struct onepot_archive *archive;
static struct onepot_device *device;

/* ---- files ---- */

/* Some share a block, some have several, and one has nothing. */
static size_t size_of(unsigned i)
{
    return i % 7 == 0 ? 3 * BLOCK + 11 * i : i == 40 ? 0 : 300 + 37 * i;
}

/* Text of a kind, so that it gets smaller. */
static void add_files(struct tree *tree, size_t (*size)(unsigned i))
{
    for (unsigned i = 0; i < FILES; i++) {
        char name[64];
        size_t len = size(i);
        uint8_t *bytes = malloc(len + 1);
        uint32_t x = 77 * i + 5;
        for (size_t j = 0; j < len; j++) {
            x = x * 1664525 + 1013904223;
            bytes[j] =
                (uint8_t)("etaoin shrdlu"[x >> 28 & 7] + (j % 50 == 0 ? x >> 24 & 31 : 0));
        }
        snprintf(name, sizeof(name), "c%u/%03u.%s", i / (FILES / CLASSES), i / 2 * 2,
                 i % 2 ? "a" : "b");
        tree_file(tree, name, bytes, len);
        free(bytes);
    }
}

static void pack_tree(struct tree *tree, uint32_t block)
{
    char folder[96];
    snprintf(folder, sizeof(folder), "%s/tree", tree->path);
    snprintf(tree->archive, sizeof(tree->archive), "%s/onepot.tar", tree->path);
    const char *const sources[] = {folder};
    const struct pack_options options = {.sources = sources,
                                         .source_count = 1,
                                         .output = tree->archive,
                                         .threads = 1,
                                         .zstd_level = 3,
                                         .block_bytes = block};
    struct fault fault = {0};
    struct pack_result result;
    int r = pack_run(&options, &fault, &result);
    ck_assert_msg(r == 0, "%s", fault.what);
}

static struct onepot_archive *pack(size_t (*size)(unsigned i), uint32_t block,
                                   const struct onepot_archive_options *options)
{
    struct tree tree;
    tree_begin(&tree);
    add_files(&tree, size);
    pack_tree(&tree, block);
    struct onepot_archive *packed = tree_open(&tree, options);
    tree_end(&tree);
    return packed;
}

static void pack_once(void)
{
    if (!archive)
        archive = pack(size_of, BLOCK, NULL);
}

/* ---- loaders ---- */

static void begin(void)
{
    gpu = played_find();
    ck_assert_ptr_nonnull(gpu);
    unsetenv("ONEPOT_NVCOMP");
    struct onepot_error error = {0};
    int r = onepot_device_open("cuda:0", &error, &device);
    ck_assert_msg(r == 0, "%s", error.text);
}

static void end(void)
{
    onepot_device_close(device);
    ck_assert_uint_eq(gpu->contexts, 0);
}

static struct onepot_loader_options for_gpu(void)
{
    return (struct onepot_loader_options){.size = sizeof(struct onepot_loader_options),
                                          .batch_size = BATCH,
                                          .world_size = 1,
                                          .threads = 2,
                                          .prefetch = 2,
                                          .seed = 5,
                                          .device = device,
                                          .memory_bytes = 8 << 20,
                                          .decompress = ONEPOT_DECOMPRESS_GPU};
}

static struct onepot_loader *made(const struct onepot_archive *of,
                                  struct onepot_loader_options options)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    int r = onepot_loader_new(of, &options, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    return loader;
}

/* The same for the host alone. */
static struct onepot_loader *made_here(const struct onepot_archive *of,
                                       struct onepot_loader_options options)
{
    options.device = NULL;
    options.devices = NULL;
    options.device_count = 0;
    options.memory_bytes = 0;
    options.decompress = ONEPOT_DECOMPRESS_HOST;
    return made(of, options);
}

static const struct onepot_batch *next(struct onepot_loader *loader)
{
    const struct onepot_batch *b = NULL;
    struct onepot_error error = {0};
    int r = onepot_loader_next(loader, 60000, &error, &b);
    ck_assert_msg(r >= 0, "%s", error.text);
    return r > 0 ? b : NULL;
}

static struct onepot_stats stats_of(struct onepot_loader *loader)
{
    struct onepot_stats stats = {.size = sizeof(stats)};
    onepot_loader_stats(loader, &stats);
    return stats;
}

static void check_batch(const struct onepot_batch *there, const struct onepot_batch *here,
                        struct onepot_device *on)
{
    struct onepot_device_batch w = {.size = sizeof(w)};
    struct onepot_error error = {0};
    ck_assert_int_eq(onepot_batch_on_device(there, &w), 0);
    ck_assert_ptr_null(there->data);
    ck_assert_uint_eq(there->samples, here->samples);
    ck_assert_mem_eq(there->indices, here->indices, 8 * here->samples);
    ck_assert_mem_eq(there->sizes, here->sizes, 8 * here->samples);
    ck_assert_mem_eq(there->labels, here->labels, 8 * here->samples);
    ck_assert_mem_eq(there->valid, here->valid, here->samples);
    ck_assert_uint_eq(w.bytes, here->bytes);
    uint8_t *data = malloc(here->bytes + 1);
    uint64_t *offsets = malloc(8 * here->samples);
    ck_assert_int_eq(onepot_batch_use(there, NULL, &error), 0);
    ck_assert_int_eq(onepot_device_copy(on, NULL, data, w.data, here->bytes, &error), 0);
    ck_assert_int_eq(
        onepot_device_copy(on, NULL, offsets, w.offsets, 8 * here->samples, &error), 0);
    ck_assert_int_eq(onepot_device_stream_wait(on, NULL, &error), 0);
    ck_assert_mem_eq(data, here->data, here->bytes);
    ck_assert_mem_eq(offsets, here->offsets, 8 * here->samples);
    free(offsets);
    free(data);
}

static void check_epoch(struct onepot_loader *there, struct onepot_loader *here)
{
    const struct onepot_batch *a, *b;
    while ((a = next(there))) {
        b = next(here);
        check_batch(a, b, device);
        onepot_batch_release(a);
        onepot_batch_release(b);
    }
    ck_assert_ptr_null(next(here));
}

/* Three epochs of both; returns how many samples the GPU decompressed. */
static uint64_t check(const struct onepot_archive *of, struct onepot_loader_options options)
{
    struct onepot_loader *there = made(of, options), *here = made_here(of, options);
    for (unsigned epoch = 0; epoch < 3; epoch++)
        check_epoch(there, here);
    uint64_t did = stats_of(there).gpu_decompressed;
    ck_assert_uint_eq(stats_of(here).gpu_decompressed, 0);
    onepot_loader_free(there);
    onepot_loader_free(here);
    return did;
}

/* ---- batches ---- */

static const struct {
    uint32_t block;
    struct onepot_loader_options options;
    enum onepot_group group;
} kinds[] = {
    {BLOCK, {.no_shuffle = true}},
    {BLOCK, {.batch_size = 31}},
    {64 << 10, {.align = 4096}},
    {256 << 10, {.block = 16, .window = 2}},
    {BLOCK, {.align = 1}},
    {BLOCK, {.batch_size = 5}, ONEPOT_GROUP_BASE_NAME},
    {BLOCK, {.threads = 1, .prefetch = 1}},
};

START_TEST(a_gpu_makes_the_batches_that_the_host_makes)
{
    const struct onepot_archive_options opening = {.size = sizeof(opening),
                                                   .group = kinds[_i].group};
    struct onepot_archive *of = pack(size_of, kinds[_i].block, &opening);
    struct onepot_loader_options o = for_gpu(), kind = kinds[_i].options;
    o.batch_size = kind.batch_size ? kind.batch_size : o.batch_size;
    o.no_shuffle = kind.no_shuffle;
    o.align = kind.align;
    o.block = kind.block;
    o.window = kind.window;
    o.threads = kind.threads ? kind.threads : o.threads;
    o.prefetch = kind.prefetch ? kind.prefetch : o.prefetch;
    ck_assert_uint_ge(check(of, o), onepot_archive_samples(of));
    ck_assert_uint_gt(gpu->nvcomp_frames, 0);
    onepot_archive_close(of);
}
END_TEST

/* A .tar.zst as others make it: a frame after so many bytes of the tar, whatever they are. */
static struct onepot_archive *pack_frames(size_t frame, bool tells_length)
{
    struct tree tree;
    static char in[1 << 20], out[1 << 20];
    tree_begin(&tree);
    add_files(&tree, size_of);
    ck_assert(tree_pack(&tree, PACKING_TAR));
    FILE *from = fopen(tree.archive, "r");
    snprintf(tree.archive, sizeof(tree.archive), "%s/frames.tar.zst", tree.path);
    FILE *to = fopen(tree.archive, "w");
    ck_assert(from && to);
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, tells_length);
    for (size_t len; (len = fread(in, 1, frame, from)) > 0;) {
        size_t packed = ZSTD_compress2(context, out, sizeof(out), in, len);
        ck_assert(!ZSTD_isError(packed));
        ck_assert_uint_eq(fwrite(out, 1, packed, to), packed);
    }
    ZSTD_freeCCtx(context);
    fclose(from);
    ck_assert_int_eq(fclose(to), 0);
    struct onepot_archive *of = tree_open(&tree, NULL);
    tree_end(&tree);
    return of;
}

START_TEST(frames_of_a_tar_zst_are_blocks_too)
{
    struct onepot_archive *of = pack_frames(6000, true);
    ck_assert_uint_eq(onepot_archive_samples(of), FILES);
    ck_assert_uint_ge(check(of, for_gpu()), FILES);
    onepot_archive_close(of);
}
END_TEST

START_TEST(frames_that_do_not_tell_their_length_are_the_host_s)
{
    struct onepot_archive *of = pack_frames(6000, false);
    struct onepot_loader_options o = for_gpu();
    o.decompress = ONEPOT_DECOMPRESS_AUTO;
    ck_assert_uint_eq(check(of, o), 0);
    ck_assert_uint_eq(gpu->nvcomp_calls, 0);
    onepot_archive_close(of);
}
END_TEST

static size_t image_size(unsigned i)
{
    (void)i;
    return 30 * 40 * 3;
}

START_TEST(floats_are_made_of_what_was_decompressed)
{
    const struct onepot_conversion floats = {.size = sizeof(floats),
                                             .height = 30,
                                             .width = 40,
                                             .channels = 3,
                                             .type = ONEPOT_FLOAT,
                                             .scale = {1, 1, 1}};
    struct onepot_archive *of = pack(image_size, BLOCK, NULL);
    struct onepot_loader_options o = for_gpu();
    o.convert = &floats;
    struct onepot_loader *there = made(of, o), *plain;
    o.decompress = ONEPOT_DECOMPRESS_HOST;
    plain = made(of, o);
    for (unsigned epoch = 0; epoch < 2; epoch++) {
        const struct onepot_batch *a, *b;
        while ((a = next(there))) {
            struct onepot_device_batch x = {.size = sizeof(x)}, y = {.size = sizeof(y)};
            struct onepot_error error = {0};
            b = next(plain);
            ck_assert_int_eq(onepot_batch_on_device(a, &x), 0);
            ck_assert_int_eq(onepot_batch_on_device(b, &y), 0);
            ck_assert_uint_eq(x.image_bytes, y.image_bytes);
            uint8_t *one = malloc(x.image_bytes), *two = malloc(x.image_bytes);
            ck_assert_int_eq(onepot_batch_use(a, NULL, &error), 0);
            ck_assert_int_eq(onepot_batch_use(b, NULL, &error), 0);
            onepot_device_copy(device, NULL, one, x.images, x.image_bytes, &error);
            onepot_device_copy(device, NULL, two, y.images, x.image_bytes, &error);
            ck_assert_int_eq(onepot_device_stream_wait(device, NULL, &error), 0);
            ck_assert_mem_eq(one, two, x.image_bytes);
            free(one);
            free(two);
            onepot_batch_release(a);
            onepot_batch_release(b);
        }
        ck_assert_ptr_null(next(plain));
    }
    ck_assert_uint_gt(stats_of(there).gpu_decompressed, 0);
    onepot_loader_free(there);
    onepot_loader_free(plain);
    onepot_archive_close(of);
}
END_TEST

START_TEST(each_of_several_devices_decompresses)
{
    struct onepot_device *several[3] = {device};
    struct onepot_error error = {0};
    gpu->devices = 3;
    ck_assert_int_eq(onepot_device_open("cuda:1", &error, &several[1]), 0);
    ck_assert_int_eq(onepot_device_open("cuda:2", &error, &several[2]), 0);
    struct onepot_loader_options o = for_gpu();
    o.device = NULL;
    o.devices = several;
    o.device_count = 3;
    o.prefetch = 0;
    o.memory_bytes *= 3;
    struct onepot_loader *there = made(archive, o), *here = made_here(archive, o);
    const struct onepot_batch *a;
    for (unsigned epoch = 0; epoch < 3; epoch++) {
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
    ck_assert_uint_ge(stats_of(there).gpu_decompressed, FILES);
    onepot_loader_free(there);
    onepot_loader_free(here);
    onepot_device_close(several[1]);
    onepot_device_close(several[2]);
}
END_TEST

START_TEST(both_known_versions_are_called_as_they_want_it)
{
    gpu->nvcomp_version = _i == 0 ? 5000 : _i == 1 ? 5312 : 6000;
    const char *const names[] = {"nvCOMP 5.0", "nvCOMP 5.3", "nvCOMP 6.0"};
    struct onepot_loader *loader = made(archive, for_gpu());
    ck_assert_str_eq(onepot_loader_decompressor(loader), names[_i]);
    onepot_loader_free(loader);
    ck_assert_uint_gt(check(archive, for_gpu()), 0);
}
END_TEST

/* ---- which batches ---- */

static size_t small_size(unsigned i)
{
    return 200 + i;
}

/* A block of 16 KiB has sixty samples, of which a batch has one or two; or all eight of them.
 */
START_TEST(by_itself_a_gpu_gets_no_more_bytes_than_the_samples_have)
{
    struct onepot_archive *of = pack(small_size, 256 << 10, NULL);
    struct onepot_loader_options o = for_gpu();
    o.decompress = ONEPOT_DECOMPRESS_AUTO;
    o.batch_size = 2;
    ck_assert_uint_eq(check(of, o), 0);
    ck_assert_uint_eq(gpu->nvcomp_calls, 0);
    o.decompress = ONEPOT_DECOMPRESS_GPU;
    ck_assert_uint_gt(check(of, o), FILES);
    o.decompress = ONEPOT_DECOMPRESS_AUTO;
    o.batch_size = FILES;
    ck_assert_uint_ge(check(of, o), FILES);
    onepot_archive_close(of);
}
END_TEST

START_TEST(a_loader_of_stored_files_has_nothing_to_decompress)
{
    struct tree tree;
    struct onepot_error error = {0};
    struct onepot_loader *loader = NULL;
    struct onepot_archive *of = tree_open_numbered(&tree, 10, 1, small_size);
    tree_end(&tree);
    struct onepot_loader_options o = for_gpu();
    ck_assert_int_eq(onepot_loader_new(of, &o, &error, &loader), -EINVAL);
    ck_assert_str_eq(error.text, "decompress: the archives have no blocks of zstd");
    o.decompress = ONEPOT_DECOMPRESS_AUTO;
    loader = made(of, o);
    ck_assert_str_eq(onepot_loader_decompressor(loader),
                     "host: the archives have no blocks of zstd");
    const struct onepot_batch *b = next(loader);
    ck_assert_ptr_nonnull(b);
    onepot_batch_release(b);
    onepot_loader_free(loader);
    onepot_archive_close(of);
}
END_TEST

/* ---- what is refused ---- */

/* Of each call one block, when the host has seen them all. The last batches may be ahead. */
START_TEST(what_it_refuses_or_spoils_the_host_decompresses)
{
    check(archive, for_gpu());
    ck_assert_uint_ge(check(archive, for_gpu()), 3 * (FILES - 1));
    *(_i == 0   ? &gpu->nvcomp_refuses
      : _i == 1 ? &gpu->nvcomp_spoils
                : &gpu->nvcomp_shortens) = 2;
    uint64_t did = check(archive, for_gpu());
    ck_assert_uint_gt(did, 0);
    ck_assert_uint_le(did, 3 * FILES + 2 * BATCH - 3 * (FILES / BATCH));
}
END_TEST

START_TEST(a_call_that_fails_leaves_all_to_the_host)
{
    gpu->nvcomp_fails = _i ? 1000 : 10;
    ck_assert_uint_eq(check(archive, for_gpu()), 0);
    ck_assert_uint_gt(gpu->nvcomp_calls, 0);
}
END_TEST

/* Overwrites the second half of the archive's bytes before its index, while it is open. */
static void damage(const char *path)
{
    int fd = open(path, O_RDWR);
    ck_assert_int_ge(fd, 0);
    uint8_t bytes[512];
    for (off_t at = 20 << 10; at < 40 << 10; at += (off_t)sizeof(bytes)) {
        ck_assert_int_eq(pread(fd, bytes, sizeof(bytes), at), (int)sizeof(bytes));
        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] ^= 0x20;
        ck_assert_int_eq(pwrite(fd, bytes, sizeof(bytes), at), (int)sizeof(bytes));
    }
    close(fd);
}

/* The archive, in a folder that stays until the test's end. */
static struct onepot_archive *pack_there(struct tree *tree)
{
    const struct onepot_archive_options opening = {.size = sizeof(opening), .cache_bytes = 1};
    tree_begin(tree);
    add_files(tree, size_of);
    pack_tree(tree, BLOCK);
    return tree_open(tree, &opening);
}

/* Returns how many batches are lost, each with an error that names a file. */
static unsigned count_lost(struct onepot_loader *loader)
{
    unsigned lost = 0;
    int r = 1;
    while (r != 0) {
        struct onepot_error error = {0};
        const struct onepot_batch *b = NULL;
        r = onepot_loader_next(loader, 60000, &error, &b);
        if (r == 1)
            onepot_batch_release(b);
        if (r >= 0)
            continue;
        ck_assert_int_eq(r, -EUCLEAN);
        ck_assert_ptr_nonnull(strstr(error.text, "onepot.tar: c"));
        ck_assert_ptr_nonnull(strstr(error.text, "damaged"));
        lost++;
    }
    return lost;
}

START_TEST(damaged_blocks_are_an_error_and_never_reach_the_gpu)
{
    struct tree tree;
    struct onepot_archive *of = pack_there(&tree);
    struct onepot_loader_options o = for_gpu();
    o.batch_size = 2;
    if (_i == 0) /* from the beginning, or when the GPU has had them once */
        damage(tree.archive);
    struct onepot_loader *there = made(of, o);
    for (unsigned epoch = 0; epoch < 2; epoch++) {
        unsigned lost = count_lost(there);
        ck_assert(_i == 0 ? lost > 0 : lost == 0);
    }
    ck_assert_uint_gt(stats_of(there).gpu_decompressed, 0);
    if (_i == 1) {
        onepot_loader_set_epoch(there, 7);
        const struct onepot_batch *b = next(there);
        damage(tree.archive);
        onepot_batch_release(b);
        count_lost(there);
        ck_assert_uint_gt(count_lost(there), 0);
    }
    onepot_loader_free(there);
    onepot_archive_close(of);
    tree_end(&tree);
}
END_TEST

START_TEST(damaged_samples_are_left_out_if_the_host_leaves_them_out)
{
    struct tree tree;
    struct onepot_archive *of = pack_there(&tree);
    damage(tree.archive);
    struct onepot_loader_options o = for_gpu();
    o.skip_errors = true;
    ck_assert_uint_gt(check(of, o), 0);
    onepot_archive_close(of);
    tree_end(&tree);
}
END_TEST

/* ---- what is missing ---- */

/* By the environment, by the played library, and what the reason says. */
static const struct {
    const char *named, *says;
    int version;
    size_t temp;
    int error;
} missing[] = {
    {"/nowhere/libnvcomp.so", "nvCOMP is not there: /nowhere/libnvcomp.so", 0, 0, -ENODEV},
    {"libdl.so.2", "nvCOMP: it has no nvcompGetProperties", 0, 0, -ENODEV},
    {NULL, "nvCOMP: version 7 is not known; 5 to 6 are", 7000, 0, -ENODEV},
    {NULL, "nvCOMP: version 4 is not known", 4203, 0, -ENODEV},
    {NULL, "nvCOMP: there is no room for a block of 4096 bytes", 0, 1 << 30, -ENOMEM}};

START_TEST(without_nvcomp_the_host_decompresses_and_a_line_says_why)
{
    struct onepot_loader_options o = for_gpu();
    struct onepot_loader *there = NULL;
    struct onepot_error error = {0};
    if (missing[_i].named)
        setenv("ONEPOT_NVCOMP", missing[_i].named, 1);
    gpu->nvcomp_version = missing[_i].version;
    gpu->nvcomp_temp = missing[_i].temp;
    ck_assert_int_eq(onepot_loader_new(archive, &o, &error, &there), missing[_i].error);
    ck_assert_ptr_nonnull(strstr(error.text, missing[_i].says));
    o.decompress = ONEPOT_DECOMPRESS_AUTO;
    there = made(archive, o);
    ck_assert_int_eq(strncmp(onepot_loader_decompressor(there), "host: nvCOMP", 12), 0);
    ck_assert_ptr_nonnull(strstr(onepot_loader_decompressor(there), missing[_i].says));
    for (const struct onepot_batch *b; (b = next(there)); onepot_batch_release(b))
        ck_assert_ptr_nonnull(b->data);
    ck_assert_uint_eq(stats_of(there).gpu_decompressed, 0);
    onepot_loader_free(there);
}
END_TEST

START_TEST(the_host_decompresses_if_nobody_asks)
{
    struct onepot_loader_options o = for_gpu();
    o.decompress = ONEPOT_DECOMPRESS_HOST;
    struct onepot_loader *loader = made(archive, o);
    ck_assert_str_eq(onepot_loader_decompressor(loader), "host");
    for (unsigned epoch = 0; epoch < 2; epoch++)
        for (const struct onepot_batch *b; (b = next(loader)); onepot_batch_release(b))
            ck_assert_ptr_nonnull(b->data);
    ck_assert_uint_eq(stats_of(loader).gpu_decompressed, 0);
    onepot_loader_free(loader);
}
END_TEST

static int refused(struct onepot_loader_options o, const char *says)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    int r = onepot_loader_new(archive, &o, &error, &loader);
    ck_assert_msg(strstr(error.text, says), "%s", error.text);
    return r;
}

START_TEST(what_can_t_be_is_an_error_if_a_gpu_was_asked_for)
{
    struct onepot_loader_options o = for_gpu();
    o.device = NULL;
    ck_assert_int_eq(refused(o, "decompress: there is no device"), -EINVAL);
    o = for_gpu();
    o.verify = true;
    ck_assert_int_eq(refused(o, "without npy, decode, images or verify"), -EINVAL);
    o = for_gpu();
    o.gather = ONEPOT_GATHER_DEVICE;
    ck_assert_int_eq(refused(o, "a device that gathers"), -EINVAL);
    o = for_gpu();
    o.decompress = 3;
    ck_assert_int_eq(refused(o, "decompress: 3"), -EINVAL);
    struct onepot_device *host = NULL;
    struct onepot_error error = {0};
    ck_assert_int_eq(onepot_device_open("host", &error, &host), 0);
    o = for_gpu();
    o.device = host;
    ck_assert_int_eq(refused(o, "a \"host\" device decompresses nothing"), -ENOTSUP);
    onepot_device_close(host);
    gpu->no_image = true;
    struct onepot_device *bare = NULL;
    ck_assert_int_eq(onepot_device_open("cuda:0", &error, &bare), 0);
    o.device = bare;
    ck_assert_int_eq(refused(o, "no kernels"), -ENOTSUP);
    onepot_device_close(bare);
}
END_TEST

/* ---- memory ---- */

START_TEST(what_it_takes_is_counted)
{
    struct onepot_loader_options o = for_gpu();
    o.memory_bytes = 2 << 20;
    struct onepot_loader *there = made(archive, o), *here = made_here(archive, o);
    for (unsigned epoch = 0; epoch < 3; epoch++) {
        check_epoch(there, here);
        ck_assert_uint_ge(stats_of(there).slab_bytes, o.memory_bytes / 4);
        ck_assert_uint_le(stats_of(there).slab_bytes, o.memory_bytes);
    }
    ck_assert_uint_gt(stats_of(there).gpu_decompressed, 0);
    onepot_loader_free(there);
    onepot_loader_free(here);
}
END_TEST

START_TEST(a_batch_is_decompressed_in_parts_where_memory_is_short)
{
    struct onepot_loader_options o = for_gpu();
    o.batch_size = 30;
    o.memory_bytes = 3 << 20;
    gpu->nvcomp_temp = (3 << 20) / 4 - 3 * BLOCK; /* two blocks at once */
    ck_assert_uint_gt(check(archive, o), FILES);
    ck_assert_uint_ge(gpu->nvcomp_calls, gpu->nvcomp_frames / 2);
}
END_TEST

/* Four slabs of ten samples fit, but not their blocks. */
START_TEST(blocks_that_there_is_no_memory_for_are_the_host_s)
{
    struct onepot_archive *of = pack(image_size, BLOCK, NULL);
    struct onepot_loader_options o = for_gpu();
    o.batch_size = 10;
    ck_assert_uint_gt(check(of, o), 0); /* and the host has seen them all */
    o.memory_bytes = 224 << 10;
    ck_assert_uint_eq(check(of, o), 0);
    onepot_archive_close(of);
}
END_TEST

/* ---- order ---- */

/* An epoch in which the host decompresses, after which all is as it will be. */
static void run_epoch(struct onepot_loader *loader)
{
    for (const struct onepot_batch *b; (b = next(loader));)
        onepot_batch_release(b);
}

/* Kernels that spin hold a reader back, while the loader goes as far as it may. */
START_TEST(decompression_waits_for_readers_of_the_batch_before)
{
    struct onepot_loader *there = made(archive, for_gpu());
    struct onepot_loader *here = made_here(archive, for_gpu());
    run_epoch(there);
    run_epoch(here);
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
    device->type->release(device->device, DEVICE_MEMORY_LOCKED, got, b->bytes);
    onepot_batch_release(b);
    onepot_loader_free(there);
    onepot_loader_free(here);
    onepot_device_stream_free(device, reader);
}
END_TEST

/* Until kernels are let go nothing is known of blocks, and no more batches come. All that come
 * are kept, so that the host waits for nothing else. */
START_TEST(a_batch_waits_until_its_blocks_were_compared)
{
    struct onepot_loader_options o = for_gpu();
    o.prefetch = 1;
    struct onepot_loader *there = made(archive, o), *here = made_here(archive, o);
    check_epoch(there, here);
    const struct onepot_batch *kept[FILES / BATCH + 1];
    struct onepot_error error = {0};
    unsigned count = 0;
    gpu->quiet();
    gpu->hold_kernels(true);
    while (!gpu->waiting()) {
        int r = onepot_loader_next(there, 1, &error, &kept[count]);
        ck_assert(r == 1 || r == -ETIMEDOUT);
        count += r == 1;
    }
    gpu->hold_kernels(false);
    for (unsigned i = 0; i < count; i++) {
        const struct onepot_batch *b = next(here);
        check_batch(kept[i], b, device);
        onepot_batch_release(kept[i]);
        onepot_batch_release(b);
    }
    check_epoch(there, here);
    onepot_loader_free(there);
    onepot_loader_free(here);
}
END_TEST

START_TEST(a_lost_device_is_one_error_and_an_end)
{
    struct onepot_loader *there = made(archive, for_gpu());
    struct onepot_error error = {0};
    run_epoch(there);
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
    Suite *s = suite_create("nvcomp");
    TCase *c = tcase_create("nvcomp");
    tcase_add_unchecked_fixture(c, pack_once, NULL);
    tcase_add_checked_fixture(c, begin, end);
    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, a_gpu_makes_the_batches_that_the_host_makes, 0,
                        (int)(sizeof(kinds) / sizeof(kinds[0])));
    tcase_add_test(c, frames_of_a_tar_zst_are_blocks_too);
    tcase_add_test(c, frames_that_do_not_tell_their_length_are_the_host_s);
    tcase_add_test(c, floats_are_made_of_what_was_decompressed);
    tcase_add_test(c, each_of_several_devices_decompresses);
    tcase_add_loop_test(c, both_known_versions_are_called_as_they_want_it, 0, 3);
    tcase_add_test(c, by_itself_a_gpu_gets_no_more_bytes_than_the_samples_have);
    tcase_add_test(c, a_loader_of_stored_files_has_nothing_to_decompress);
    tcase_add_loop_test(c, what_it_refuses_or_spoils_the_host_decompresses, 0, 3);
    tcase_add_loop_test(c, a_call_that_fails_leaves_all_to_the_host, 0, 2);
    tcase_add_loop_test(c, damaged_blocks_are_an_error_and_never_reach_the_gpu, 0, 2);
    tcase_add_test(c, damaged_samples_are_left_out_if_the_host_leaves_them_out);
    tcase_add_loop_test(c, without_nvcomp_the_host_decompresses_and_a_line_says_why, 0,
                        (int)(sizeof(missing) / sizeof(missing[0])));
    tcase_add_test(c, the_host_decompresses_if_nobody_asks);
    tcase_add_test(c, what_can_t_be_is_an_error_if_a_gpu_was_asked_for);
    tcase_add_test(c, what_it_takes_is_counted);
    tcase_add_test(c, a_batch_is_decompressed_in_parts_where_memory_is_short);
    tcase_add_test(c, blocks_that_there_is_no_memory_for_are_the_host_s);
    tcase_add_test(c, decompression_waits_for_readers_of_the_batch_before);
    tcase_add_test(c, a_batch_waits_until_its_blocks_were_compared);
    tcase_add_test(c, a_lost_device_is_one_error_and_an_end);
    suite_add_tcase(s, c);
    int failed = run_suite(s);
    onepot_archive_close(archive);
    return failed;
}
