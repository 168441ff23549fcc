/*
 * Pictures in a loader's batches: the same crops on any number of ranks and threads and after a
 * resume, damaged files, parts of samples, and batches for a device.
 */
#include "loader_helper.h"
#include "pictures.h"

#include "onepot_device.h"

enum { SAMPLES = 48, SIDE = 12, BYTES = SIDE * SIDE * 3, BATCH = 8 };

static struct tree tree;
static struct onepot_archive *archive;
static struct onepot_images images = {.size = sizeof(images), .width = SIDE, .height = SIDE};

static void add_picture(const char *name, unsigned width)
{
    struct bytes file = picture_npy(width, 40, 3);
    tree_file(&tree, name, file.data, file.len);
    free(file.data);
}

static void begin(void)
{
    tree_begin(&tree);
    for (unsigned i = 0; i < SAMPLES; i++) {
        char name[64];
        snprintf(name, sizeof(name), "c%u/%03u.npy", i / 16, i);
        add_picture(name, 30 + i);
    }
    tree_pack(&tree, PACKING_ONEPOT);
    archive = tree_open(&tree, NULL);
}

static void end(void)
{
    onepot_archive_close(archive);
    tree_end(&tree);
}

static struct onepot_loader *start(struct onepot_loader_options o)
{
    struct onepot_loader *loader = NULL;
    struct onepot_error error = {0};
    o.size = sizeof(o);
    o.batch_size = o.batch_size ? o.batch_size : BATCH;
    o.world_size = o.world_size ? o.world_size : 1;
    o.images = o.images ? o.images : &images;
    o.seed = 5;
    int r = onepot_loader_new(archive, &o, &error, &loader);
    ck_assert_msg(r == 0, "%s", error.text);
    return loader;
}

static void decode_alone(const struct onepot_images *how, uint64_t epoch, uint64_t index,
                         uint8_t *to)
{
    struct onepot_error error = {0};
    int r = onepot_archive_images(archive, &index, 1, how, 5, epoch, to, BYTES, NULL, &error);
    ck_assert_msg(r == 0, "%s", error.text);
}

/* The next batch is what each of its samples gives alone. Returns how many samples it has. */
static uint64_t check_next(struct onepot_loader *loader, uint64_t epoch)
{
    const struct onepot_batch *b;
    uint8_t alone[BYTES];
    if (onepot_loader_next(loader, -1, NULL, &b) != 1)
        return 0;
    uint64_t samples = b->samples;
    ck_assert_uint_eq(b->epoch, epoch);
    ck_assert_uint_eq(b->stride, BYTES);
    for (uint64_t i = 0; i < samples; i++) {
        decode_alone(&images, epoch, b->indices[i], alone);
        ck_assert_mem_eq(b->data + i * BYTES, alone, BYTES);
        ck_assert_int_eq(b->labels[i], (int)b->indices[i] / 16);
        ck_assert_uint_eq(b->valid[i], 1);
    }
    onepot_batch_release(b);
    return samples;
}

START_TEST(crops_are_the_same_on_any_number_of_ranks_and_threads)
{
    uint8_t one[BYTES], other[BYTES];
    for (uint64_t ranks = 1; ranks <= 3; ranks++)
        for (uint64_t rank = 0; rank < ranks; rank++) {
            struct onepot_loader *loader =
                start((struct onepot_loader_options){.world_size = ranks,
                                                     .rank = rank,
                                                     .threads = (uint32_t)(rank + ranks),
                                                     .epoch = 2});
            uint64_t samples = 0, more;
            while ((more = check_next(loader, 2)) > 0)
                samples += more;
            ck_assert_uint_eq(samples, SAMPLES / ranks);
            onepot_loader_free(loader);
        }
    unsigned changed = 0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        decode_alone(&images, 2, i, one);
        decode_alone(&images, 3, i, other);
        changed += memcmp(one, other, BYTES) != 0;
    }
    ck_assert_uint_gt(changed, SAMPLES * 9 / 10);
}
END_TEST

START_TEST(crops_are_the_same_after_a_resume)
{
    struct onepot_state state = {.size = sizeof(state)};
    struct onepot_loader *loader = start((struct onepot_loader_options){.epoch = 1});
    ck_assert_uint_eq(check_next(loader, 1), BATCH);
    ck_assert_int_eq(onepot_loader_state(loader, NULL, &state), 0);
    onepot_loader_free(loader);
    struct onepot_loader_options o = {.size = sizeof(o),
                                      .batch_size = BATCH / 2,
                                      .world_size = 2,
                                      .rank = 1,
                                      .seed = 77,
                                      .images = &images};
    ck_assert_int_eq(onepot_loader_new(archive, &o, NULL, &loader), 0);
    ck_assert_int_eq(onepot_loader_restore(loader, &state, NULL), 0);
    for (unsigned i = 0; i < 5; i++)
        ck_assert_uint_eq(check_next(loader, 1), BATCH / 2);
    ck_assert_uint_eq(check_next(loader, 1), 0);
    onepot_loader_free(loader);
}
END_TEST

/* Damage the header of sample 11, which alone is 41 pixels wide, in the archive's file. */
static void damage(void)
{
    static char content[1 << 20];
    FILE *f = fopen(tree.archive, "r+");
    ck_assert_ptr_nonnull(f);
    size_t size = fread(content, 1, sizeof(content), f);
    const char *at = memmem(content, size, "'shape': (40, 41, 3)", 20);
    ck_assert_ptr_nonnull(at);
    ck_assert_int_eq(fseek(f, at - content, SEEK_SET), 0);
    ck_assert_int_eq(fputc('?', f), '?');
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(a_damaged_picture_is_named_or_skipped_or_grey)
{
    struct onepot_images how = images;
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    struct onepot_stats stats = {.size = sizeof(stats)};
    uint8_t grey[BYTES], zeros[BYTES] = {0};
    memset(grey, 128, sizeof(grey));
    damage();
    how.on_error = (enum onepot_on_error)_i;
    struct onepot_loader *loader =
        start((struct onepot_loader_options){.no_shuffle = true, .images = &how});
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), 1);
    onepot_batch_release(b);
    int r = onepot_loader_next(loader, -1, &error, &b);
    if (_i == ONEPOT_ERROR_RAISE) {
        ck_assert_int_eq(r, -EILSEQ);
        ck_assert_msg(strstr(error.text, "c0/011.npy: its .npy header is damaged") != NULL,
                      "%s", error.text);
        ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), 1);
    } else {
        ck_assert_msg(r == 1, "%s", error.text);
        ck_assert_mem_eq(b->data + 3 * BYTES, _i == ONEPOT_ERROR_GREY ? grey : zeros, BYTES);
        ck_assert_uint_eq(b->valid[3], _i == ONEPOT_ERROR_GREY);
        onepot_loader_stats(loader, &stats);
        ck_assert_uint_eq(stats.skipped, 1); /* not those that are read ahead */
    }
    onepot_batch_release(b);
    onepot_loader_free(loader);
}
END_TEST

START_TEST(the_part_that_is_a_picture_is_decoded)
{
    const struct onepot_archive_options groups = {.size = sizeof(groups),
                                                  .group = ONEPOT_GROUP_BASE_NAME};
    uint8_t alone[BYTES], part[BYTES];
    decode_alone(&images, 1, 0, alone); /* 30 wide */
    onepot_archive_close(archive);
    tree_file(&tree, "w/0.cls", "7", 1);
    add_picture("w/0.npy", 30);
    tree_file(&tree, "w/0.txt", "words", 5);
    tree_pack(&tree, PACKING_ONEPOT);
    archive = tree_open(&tree, &groups);
    uint64_t sample;
    ck_assert_int_eq(onepot_archive_find(archive, "w/0", &sample), 0);
    struct onepot_images whole = images;
    whole.crop = ONEPOT_CROP_NONE;
    decode_alone(&whole, 1, sample, part);
    decode_alone(&whole, 1, 0, alone);
    ck_assert_mem_eq(part, alone, BYTES);
}
END_TEST

/* Images and masks: of a sample both come from the same place, and lie one behind the other. */
START_TEST(several_parts_of_a_sample_become_images)
{
    enum { MASK_AT = 448, PLACE = 896 }; /* 432 bytes each, at multiples of 64 */
    struct onepot_images mask = images, how = images, only = images;
    struct onepot_error error = {0};
    const struct onepot_batch *b;
    uint8_t padding[PLACE - MASK_AT - BYTES] = {0};
    onepot_archive_close(archive);
    for (unsigned i = 0; i < SAMPLES; i++) {
        char name[64];
        snprintf(name, sizeof(name), "x/%03u.npy", i);
        add_picture(name, 30 + i);
        name[0] = 'y';
        if (i != 7)
            add_picture(name, 30 + i);
        else
            tree_file(&tree, name, "nothing", 7);
    }
    tree_pack(&tree, PACKING_ONEPOT);
    const struct onepot_archive_options pairs = {
        .size = sizeof(pairs),
        .group = ONEPOT_GROUP_FOLDERS,
        .part_names = (const char *const[]){"image", "mask"},
        .part_folders = (const char *const[]){"x", "y"},
        .part_count = 2};
    archive = tree_open(&tree, &pairs);
    how.part = "image";
    how.next = &mask;
    how.on_error = mask.on_error = only.on_error = ONEPOT_ERROR_SKIP;
    mask.part = only.part = "mask";
    uint64_t bytes, valid = 0;
    ck_assert_int_eq(onepot_images_bytes(&how, NULL, &bytes), 0);
    ck_assert_uint_eq(bytes, PLACE);
    struct onepot_loader *loader = start((struct onepot_loader_options){.images = &how});
    while (onepot_loader_next(loader, -1, &error, &b) == 1) {
        ck_assert_uint_eq(b->stride, PLACE);
        for (uint64_t i = 0; i < b->samples; i++) {
            const uint8_t *at = b->data + i * PLACE;
            uint8_t alone[BYTES];
            valid += b->valid[i];
            ck_assert_int_eq(b->valid[i], b->indices[i] != 7);
            if (!b->valid[i])
                continue;
            decode_alone(&only, 0, b->indices[i], alone);
            ck_assert_mem_eq(at, alone, BYTES);
            ck_assert_mem_eq(at + MASK_AT, alone, BYTES);
            ck_assert_mem_eq(at + BYTES, padding, sizeof(padding));
            ck_assert_mem_eq(at + MASK_AT + BYTES, padding, sizeof(padding));
        }
        onepot_batch_release(b);
    }
    ck_assert_uint_eq(valid, SAMPLES - 1);
    onepot_loader_free(loader);
    struct onepot_images second = how, first = mask; /* which is the damaged part */
    uint8_t both[PLACE];
    uint64_t damaged;
    first.next = &second;
    second.next = NULL;
    first.on_error = second.on_error = ONEPOT_ERROR_GREY;
    memset(both, 0xff, PLACE);
    ck_assert_int_eq(onepot_archive_find(archive, "007", &damaged), 0);
    ck_assert_int_eq(
        onepot_archive_images(archive, &damaged, 1, &first, 5, 0, both, PLACE, NULL, NULL), 0);
    ck_assert_mem_eq(both + BYTES, padding, sizeof(padding));
    ck_assert_mem_eq(both + MASK_AT + BYTES, padding, sizeof(padding));
    mask.part = "nothing";
    mask.on_error = how.on_error = ONEPOT_ERROR_RAISE;
    loader = start((struct onepot_loader_options){.images = &how});
    ck_assert_int_eq(onepot_loader_next(loader, -1, &error, &b), -EILSEQ);
    ck_assert_msg(strstr(error.text, "no part 'nothing'") != NULL, "%s", error.text);
    onepot_loader_free(loader);
}
END_TEST

#ifdef ONEPOT_GPU
START_TEST(batches_of_pictures_go_to_a_device)
{
    struct onepot_device *device = NULL;
    struct onepot_device_batch there = {.size = sizeof(there)};
    const struct onepot_batch *b;
    struct onepot_images how = images;
    how.type = (enum onepot_float)_i;
    how.std[0] = how.std[1] = how.std[2] = 0.25f;
    how.mean[0] = 0.5f;
    if (!_i)
        how = images;
    ck_assert_int_eq(onepot_device_open("host", NULL, &device), 0);
    struct onepot_loader *loader =
        start((struct onepot_loader_options){.device = device, .images = &how});
    uint64_t bytes, index;
    ck_assert_int_eq(onepot_images_bytes(&how, NULL, &bytes), 0);
    uint8_t *alone = malloc(bytes);
    ck_assert_int_eq(onepot_loader_next(loader, -1, NULL, &b), 1);
    ck_assert_int_eq(onepot_batch_on_device(b, &there), 0);
    ck_assert_int_eq(onepot_batch_wait(b, NULL), 0);
    const uint8_t *at = there.images ? there.images : there.data;
    for (uint64_t i = 0; i < b->samples; i++) {
        index = b->indices[i];
        ck_assert_int_eq(
            onepot_archive_images(archive, &index, 1, &how, 5, 0, alone, bytes, NULL, NULL), 0);
        ck_assert_mem_eq(at + i * bytes, alone, bytes);
    }
    free(alone);
    onepot_batch_release(b);
    onepot_loader_free(loader);
    onepot_device_close(device);
}
END_TEST
#endif

START_TEST(arguments_that_make_no_sense_are_refused)
{
    uint8_t to[BYTES];
    uint64_t index = 0;
    struct onepot_error error = {0};
    struct onepot_loader *loader = NULL;
    struct onepot_loader_options o = {
        .size = sizeof(o), .batch_size = 1, .world_size = 1, .images = &images, .npy = true};
    ck_assert_int_eq(onepot_loader_new(archive, &o, &error, &loader), -EINVAL);
    ck_assert_ptr_nonnull(strstr(error.text, "exclude each other"));
    ck_assert_int_eq(
        onepot_archive_images(archive, &index, 1, &images, 0, 0, to, BYTES - 1, NULL, &error),
        -EINVAL);
    index = SAMPLES;
    ck_assert_int_eq(
        onepot_archive_images(archive, &index, 1, &images, 0, 0, to, BYTES, NULL, &error),
        -ERANGE);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("pictures");
    TCase *batches = tcase_create("batches");
    tcase_add_checked_fixture(batches, begin, end);
    tcase_add_test(batches, crops_are_the_same_on_any_number_of_ranks_and_threads);
    tcase_add_test(batches, crops_are_the_same_after_a_resume);
    tcase_add_loop_test(batches, a_damaged_picture_is_named_or_skipped_or_grey, 0, 3);
    tcase_add_test(batches, the_part_that_is_a_picture_is_decoded);
    tcase_add_test(batches, several_parts_of_a_sample_become_images);
#ifdef ONEPOT_GPU
    tcase_add_loop_test(batches, batches_of_pictures_go_to_a_device, 0, 4);
#endif
    tcase_add_test(batches, arguments_that_make_no_sense_are_refused);
    suite_add_tcase(s, batches);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
