/*
 * Pictures become pixels: which part of them, how they are resampled, every kind of file, and
 * what happens to damaged ones.
 */
#include "loader_helper.h"
#include "pictures.h"

#include <inttypes.h>
#include <malloc.h>
#include <math.h>
#include <sys/resource.h>

#include "images.h"
#include "picture.h"

static struct images_plan plan_of(struct onepot_images o)
{
    struct images_plan plan;
    struct onepot_error error = {0};
    o.size = sizeof(o);
    int r = images_plan(&o, &error, &plan);
    ck_assert_msg(r == 0, "%s", error.text);
    return plan;
}

/* ---- crops ---- */

START_TEST(random_crops_are_distributed_as_torchvisions)
{
    enum { DRAWS = 20000, WIDTH = 500, HEIGHT = 375 };
    struct images_plan plan = plan_of((struct onepot_images){0});
    double area = 0, square = 0, ratio = 0, flips = 0, x = 0;
    for (uint64_t i = 0; i < DRAWS; i++) {
        struct axis ax, ay;
        crop_plan(&plan.o, &(struct images_place){7, i % 3, i}, WIDTH, HEIGHT, false, &ax, &ay);
        double w = ax.high - ax.low, h = ay.high - ay.low;
        ck_assert(ax.high <= WIDTH && ay.high <= HEIGHT && w >= 1 && h >= 1);
        ck_assert(ax.start == ax.low && ax.count == 224);
        ck_assert(fabs(ax.step - w / 224) < 1e-9 && fabs(ay.step - h / 224) < 1e-9);
        ck_assert(w / h > 0.74 && w / h < 1.35);
        area += w * h / (WIDTH * HEIGHT);
        square += pow(w * h / (WIDTH * HEIGHT), 2);
        ratio += log(w / h);
        flips += ax.reversed;
        x += WIDTH - w > 0 ? ax.low / (WIDTH - w) : 0.5;
    }
    /* What torchvision 0.14 has over 150,000 draws. */
    ck_assert_msg(fabs(area / DRAWS - 0.4324) < 0.006, "%f", area / DRAWS);
    ck_assert_msg(fabs(square / DRAWS - 0.2338) < 0.006, "%f", square / DRAWS);
    ck_assert_msg(fabs(ratio / DRAWS - 0.0297) < 0.006, "%f", ratio / DRAWS);
    ck_assert(fabs(flips / DRAWS - 0.5) < 0.02 && fabs(x / DRAWS - 0.5) < 0.02);
}
END_TEST

START_TEST(a_picture_without_a_fitting_part_gives_its_centre)
{
    struct images_plan plan = plan_of((struct onepot_images){.no_flip = true});
    struct axis ax, ay;
    crop_plan(&plan.o, &(struct images_place){1, 1, 1}, 4, 4000, false, &ax, &ay);
    ck_assert_uint_eq(ax.low, 0);
    ck_assert_uint_eq(ax.high, 4);
    ck_assert_uint_le(ay.high - ay.low, 5);
    ck_assert_uint_ge(ay.low, 1997);
    crop_plan(&plan.o, &(struct images_place){1, 1, 1}, 1, 1, false, &ax, &ay);
    ck_assert_uint_eq(ax.high - ax.low, 1);
    ck_assert(!ax.reversed);
}
END_TEST

START_TEST(the_centre_is_where_torchvision_cuts_it_out)
{
    struct images_plan plan = plan_of((struct onepot_images){.crop = ONEPOT_CROP_CENTRE});
    struct axis ax, ay;
    /* Resize(256) makes 341 by 256, of which columns 58 to 281 and rows 16 to 239 remain:
     * (341 - 224) / 2 is 58.5, and Python rounds it to even. */
    crop_plan(&plan.o, &(struct images_place){0}, 500, 375, false, &ax, &ay);
    ck_assert(fabs(ax.step - 500.0 / 341) < 1e-12 && fabs(ay.step - 375.0 / 256) < 1e-12);
    ck_assert(fabs(ax.start - 58 * ax.step) < 1e-9);
    ck_assert(fabs(ay.start - 16 * ay.step) < 1e-9);
    ck_assert(ax.low == 0 && ax.high == 500);
}
END_TEST

START_TEST(a_picture_is_shrunk_as_long_as_the_crop_is_three_times_the_result)
{
    struct images_plan plan = plan_of((struct onepot_images){.crop = ONEPOT_CROP_NONE});
    static const unsigned cases[][3] = {{672, 672, 1},   {1343, 1800, 1}, {1344, 1344, 2},
                                        {2700, 1344, 2}, {2688, 3000, 4}, {5376, 5400, 8},
                                        {9000, 9000, 8}, {100, 9000, 1}};
    struct axis ax, ay;
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        unsigned shrinks = crop_plan(&plan.o, &(struct images_place){0}, cases[i][0],
                                     cases[i][1], true, &ax, &ay);
        ck_assert_uint_eq(shrinks, cases[i][2]);
    }
    plan = plan_of((struct onepot_images){.crop = ONEPOT_CROP_RANDOM, .scale = {1, 1}});
    /* as large as the result is enough there */
    ck_assert_uint_eq(crop_plan(&plan.o, &(struct images_place){0}, 448, 448, true, &ax, &ay),
                      2);
    plan.o.exact = true;
    ck_assert_uint_eq(crop_plan(&plan.o, &(struct images_place){0}, 448, 448, true, &ax, &ay),
                      1);
    plan = plan_of((struct onepot_images){.crop = ONEPOT_CROP_NONE});
    ck_assert_uint_eq(crop_plan(&plan.o, &(struct images_place){0}, 2689, 5000, true, &ax, &ay),
                      4);
    ck_assert_uint_eq(ax.high, 673);
    ck_assert(fabs(ax.step * 224 - 2689.0 / 4) < 1e-9);
}
END_TEST

/* ---- resampling ---- */

static uint8_t *resampled(const struct axis *x, const struct axis *y,
                          enum onepot_interpolation interpolation, const uint8_t *pixels,
                          unsigned width)
{
    struct resample r;
    size_t bytes = resample_bytes(x, y, interpolation);
    ck_assert_uint_ne(bytes, 0);
    uint8_t *memory = malloc(bytes), *to = malloc((size_t)x->count * y->count * 4);
    resample_begin(&r, x, y, interpolation, memory);
    for (uint32_t row = r.y.begin; row < r.y.end; row++) {
        resample_give(&r, pixels + ((size_t)row * width + r.x.begin) * 4);
        while (resample_take(&r))
            memcpy(to + (size_t)(r.made - 1) * x->count * 4, r.row, (size_t)x->count * 4);
    }
    ck_assert_uint_eq(r.made, y->count);
    free(memory);
    return to;
}

static struct axis whole(uint32_t size, uint32_t count)
{
    return (struct axis){.step = (double)size / count, .high = size, .count = count};
}

START_TEST(a_picture_of_the_right_size_stays_as_it_is)
{
    struct axis x = whole(37, 37), y = whole(23, 23);
    uint8_t *pixels = picture_pixels(37, 23, 4);
    uint8_t *same = resampled(&x, &y, (enum onepot_interpolation)_i, pixels, 37);
    ck_assert_mem_eq(same, pixels, 37 * 23 * 4);
    x.reversed = true;
    uint8_t *mirrored = resampled(&x, &y, (enum onepot_interpolation)_i, pixels, 37);
    for (unsigned at = 0; at < 37; at++)
        ck_assert_mem_eq(mirrored + 4 * at, pixels + 4 * (36 - at), 4);
    free(pixels);
    free(same);
    free(mirrored);
}
END_TEST

START_TEST(one_colour_stays_one_colour_at_any_size)
{
    static const uint32_t sizes[] = {1, 2, 3, 7, 64, 1000};
    uint8_t *pixels = malloc(1000 * 1000 * 4);
    memset(pixels, 201, 1000 * 1000 * 4);
    for (unsigned i = 0; i < 36; i++) {
        struct axis x = whole(sizes[i % 6], sizes[i / 6]), y = whole(sizes[i / 6], 1 + i);
        uint8_t *to = resampled(&x, &y, (enum onepot_interpolation)_i, pixels, sizes[i % 6]);
        for (size_t at = 0; at < (size_t)x.count * y.count * 4; at++)
            ck_assert_uint_eq(to[at], 201);
        free(to);
    }
    free(pixels);
}
END_TEST

START_TEST(shrinking_weighs_as_the_widened_filter_does)
{
    /* Four pixels to two: a triangle of 2 pixels to both sides. The first result is centred
     * at 1: weights 0.75 (0.5 away), 0.75, 0.25 (1.5 away), divided by their sum 1.75. */
    uint8_t pixels[16] = {0}, *to;
    struct axis x = whole(4, 2), y = whole(1, 1);
    for (unsigned i = 0; i < 4; i++)
        pixels[4 * i] = (uint8_t)(70 * i);
    to = resampled(&x, &y, ONEPOT_BILINEAR, pixels, 4);
    ck_assert_uint_eq(to[0], 50);
    ck_assert_uint_eq(to[4], 160);
    free(to);
}
END_TEST

static double filter_of(enum onepot_interpolation interpolation, double x)
{
    x = fabs(x);
    if (interpolation == ONEPOT_BILINEAR)
        return x < 1 ? 1 - x : 0;
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

/* The weights of result i, of all pixels of a whole axis. */
static void weights_of(uint32_t size, uint32_t count, enum onepot_interpolation interpolation,
                       uint32_t i, double *to)
{
    double step = (double)size / count, wide = step > 1 ? step : 1, sum = 0;
    for (uint32_t at = 0; at < size; at++) {
        to[at] = filter_of(interpolation, (at + 0.5 - (i + 0.5) * step) / wide);
        sum += to[at];
    }
    for (uint32_t at = 0; at < size; at++)
        to[at] /= sum;
}

/* From few pixels to many, and so many to one that sums are made in another way. */
START_TEST(results_are_those_of_the_filter_in_numbers_without_end)
{
    enum { SIZE = 90, ROWS = 5 };
    static const uint32_t counts[] = {1, 2, 5, 30, 61, 89, 90, 91, 333};
    enum onepot_interpolation filter = _i % 2 ? ONEPOT_BICUBIC : ONEPOT_BILINEAR;
    uint32_t count = counts[_i / 2];
    uint8_t *pixels = malloc(SIZE * SIZE * 4);
    for (uint32_t at = 0, random = 1; at < SIZE * SIZE * 4; at++, random = random * 69069 + 1)
        pixels[at] = (uint8_t)(random >> 24);
    struct axis x = whole(SIZE, count), y = whole(SIZE, ROWS);
    uint8_t *to = resampled(&x, &y, filter, pixels, SIZE);
    double across[SIZE], down[SIZE], difference = 0;
    for (uint32_t i = 0; i < count * ROWS; i++) {
        double want = 0;
        weights_of(SIZE, count, filter, i % count, across);
        weights_of(SIZE, ROWS, filter, i / count, down);
        for (uint32_t at = 0; at < SIZE * SIZE; at++)
            want += across[at % SIZE] * down[at / SIZE] * pixels[4 * at];
        want = fmin(fmax(want, 0), 255);
        ck_assert_msg(fabs(to[4 * i] - want) < 0.6, "%u: %u, not %f", i, to[4 * i], want);
        difference += fabs(to[4 * i] - want);
    }
    ck_assert(difference / (count * ROWS) < 0.3);
    free(to);
    free(pixels);
}
END_TEST

START_TEST(results_are_the_same_on_all_cpus)
{
    uint8_t *pixels = picture_pixels(500, 375, 4);
    uint64_t sum = 0;
    for (unsigned i = 0; i < 12; i++) {
        struct axis x = whole(500, 20 + 71 * i), y = whole(375, 9 + 40 * i);
        uint8_t *to = resampled(&x, &y, (enum onepot_interpolation)(i % 2), pixels, 500);
        for (size_t at = 0; at < (size_t)x.count * y.count * 4; at++)
            sum = sum * UINT64_C(0x100000001b3) + to[at];
        free(to);
    }
    ck_assert_msg(sum == UINT64_C(0x960ef0b6a0a8a484), "%#" PRIx64, sum);
    free(pixels);
}
END_TEST

START_TEST(memory_for_one_picture_has_a_bound)
{
    struct axis x = whole(65535, 1), y = whole(65535, 1);
    ck_assert_uint_eq(resample_bytes(&x, &y, ONEPOT_BICUBIC), 0);
}
END_TEST

/* ---- files ---- */

struct image {
    int result;
    char why[IMAGES_WHY_MAX];
    uint8_t *pixels;
};

static struct image decoded(struct images_plan *plan, struct bytes file, uint64_t index)
{
    struct images_scratch scratch = {0};
    struct image image = {.pixels = malloc(plan->bytes)};
    /* Memory of just this length, so that sanitizers see what is read beyond it. */
    uint8_t *exact = malloc(file.len ? file.len : 1);
    memcpy(exact, file.data, file.len);
    image.result = images_decode(plan, &scratch, &(struct images_place){3, 4, index}, exact,
                                 file.len, image.pixels, image.why);
    if (image.result < 0)
        ck_assert_uint_gt(strlen(image.why), 8);
    free(scratch.memory);
    free(exact);
    return image;
}

/* The whole picture in its own size, and bytes by pixels. */
static struct images_plan plain(uint32_t width, uint32_t height)
{
    return plan_of((struct onepot_images){.width = width,
                                          .height = height,
                                          .crop = ONEPOT_CROP_NONE,
                                          .channels_last = true,
                                          .exact = true});
}

static void check_values(struct bytes file, unsigned width, unsigned height,
                         uint8_t (*expected)(unsigned x, unsigned y, unsigned c))
{
    struct images_plan plan = plain(width, height);
    struct image image = decoded(&plan, file, 0);
    ck_assert_msg(image.result == 0, "%s", image.why);
    for (unsigned at = 0; at < width * height * 3; at++) {
        unsigned want = expected(at / 3 % width, at / 3 / width, at % 3);
        ck_assert_msg(image.pixels[at] == want, "pixel %u, %u: %u, not %u", at / 3 % width,
                      at / 3 / width, image.pixels[at], want);
    }
    free(image.pixels);
    free(file.data);
}

static uint8_t grey_of(unsigned x, unsigned y, unsigned c)
{
    (void)c;
    return picture_value(x, y, 0);
}

START_TEST(arrays_are_pictures)
{
    check_values(picture_npy(60, 41, 3), 60, 41, picture_value);
    check_values(picture_npy(60, 41, 4), 60, 41, picture_value);
    check_values(picture_npy(60, 41, 1), 60, 41, grey_of);
    struct images_plan plan = plan_of((struct onepot_images){.width = 9,
                                                             .height = 8,
                                                             .crop = ONEPOT_CROP_NONE,
                                                             .channels_last = true,
                                                             .raw_width = 9,
                                                             .raw_height = 8,
                                                             .raw_channels = 3});
    struct bytes raw = {picture_pixels(9, 8, 3), 9 * 8 * 3};
    struct image image = decoded(&plan, raw, 0);
    ck_assert_int_eq(image.result, 0);
    ck_assert_mem_eq(image.pixels, raw.data, raw.len);
    free(image.pixels);
    raw.len--;
    image = decoded(&plan, raw, 0);
    ck_assert_int_eq(image.result, -EILSEQ);
    free(image.pixels);
    free(raw.data);
}
END_TEST

START_TEST(types_and_layouts)
{
    static const float mean[] = {0.485f, 0.456f, 0.406f}, std[] = {0.229f, 0.224f, 0.225f};
    struct onepot_images o = {.width = 5, .height = 4, .crop = ONEPOT_CROP_NONE};
    struct bytes file = picture_npy(5, 4, 3);
    struct images_plan plan = plan_of(o);
    struct image image = decoded(&plan, file, 0);
    for (unsigned at = 0; at < 60; at++) /* channels first */
        ck_assert_uint_eq(image.pixels[at], picture_value(at % 5, at / 5 % 4, at / 20));
    free(image.pixels);
    memcpy(o.mean, mean, sizeof(mean));
    memcpy(o.std, std, sizeof(std));
    o.type = ONEPOT_FLOAT;
    o.channels_last = true;
    plan = plan_of(o);
    ck_assert_uint_eq(plan.bytes, 240);
    image = decoded(&plan, file, 0);
    for (unsigned at = 0; at < 60; at++) {
        float x = ((float *)(void *)image.pixels)[at];
        double want =
            (picture_value(at / 3 % 5, at / 15, at % 3) / 255.0 - (double)mean[at % 3]) /
            (double)std[at % 3];
        ck_assert(fabs((double)x - want) < 1e-5);
    }
    free(image.pixels);
    o.type = ONEPOT_HALF;
    o.mean[0] = o.mean[1] = o.mean[2] = 0;
    o.std[0] = o.std[1] = o.std[2] = 1 / 255.0f; /* small whole numbers are exact */
    plan = plan_of(o);
    ck_assert_uint_eq(plan.bytes, 120);
    image = decoded(&plan, file, 0);
    ck_assert_uint_eq(((uint16_t *)(void *)image.pixels)[3], 0x4000); /* 2 */
    images_grey(&plan, image.pixels);
    ck_assert_uint_eq(((uint16_t *)(void *)image.pixels)[59], 0x5800); /* 128 */
    free(image.pixels);
    free(file.data);
}
END_TEST

START_TEST(options_that_make_no_sense_are_named)
{
    static const struct onepot_images skips = {.size = sizeof(skips),
                                               .on_error = ONEPOT_ERROR_SKIP},
                                      itself = {.size = sizeof(itself), .next = &itself};
    static const struct {
        struct onepot_images o;
        const char *words;
    } cases[] = {
        {{.width = 16385}, "16385 pixels"},
        {{.crop = ONEPOT_CROP_CENTRE, .resize = 223}, "resize is 223"},
        {{.scale = {0.5f, 0.2f}}, "scale"},
        {{.scale = {0, 2}}, "scale"},
        {{.ratio = {2, 1}}, "ratio"},
        {{.std = {1, 0, 1}, .type = ONEPOT_FLOAT}, "std"},
        {{.mean = {(float)NAN}, .std = {1, 1, 1}, .type = ONEPOT_FLOAT}, "mean"},
        {{.std = {1, 1, 2}}, "not for bytes"},
        {{.type = (enum onepot_float)9}, "no such"},
        {{.raw_channels = 2}, "raw"},
        {{.interpolation = ONEPOT_NEAREST, .on_error = ONEPOT_ERROR_GREY},
         "no value of a mask"},
        {{.interpolation = (enum onepot_interpolation)3}, "no such"},
        {{.next = &skips}, "one on_error"},
        {{.next = &itself}, "more than 8"},
    };
    struct onepot_images o = cases[_i].o;
    struct onepot_error error = {0};
    uint64_t bytes;
    o.size = sizeof(o);
    ck_assert_int_eq(onepot_images_bytes(&o, &error, &bytes), -EINVAL);
    ck_assert_msg(strstr(error.text, cases[_i].words) != NULL, "%s", error.text);
}
END_TEST

START_TEST(other_files_are_no_pictures)
{
    static const char *const files[] = {
        "", "x", "GIF89a and more", "\xff\xd8\xff", "\x89PNG", "\x93NUMPY"};
    struct images_plan plan = plain(4, 4);
    for (unsigned i = 0; i < sizeof(files) / sizeof(*files); i++) {
        struct bytes file = {(uint8_t *)(uintptr_t)files[i], strlen(files[i])};
        struct image image = decoded(&plan, file, 0);
        ck_assert(image.result == -EILSEQ || image.result == -ENOTSUP);
        free(image.pixels);
    }
}
END_TEST

#ifdef ONEPOT_JPEG

static const struct jpeg_kind jpeg_kinds[] = {
    {JCS_RGB, 90, 0, 0}, {JCS_RGB, 75, 1, 0}, {JCS_RGB, 95, 0, 1}, {JCS_GRAYSCALE, 90, 0, 0}};

START_TEST(jpeg_is_what_libjpeg_makes_of_it)
{
    struct bytes file = picture_jpeg(101, 67, jpeg_kinds[_i]);
    struct images_plan plan = plain(101, 67);
    struct image image = decoded(&plan, file, 0);
    uint8_t *whole_one = picture_decoded(file);
    ck_assert_msg(image.result == 0, "%s", image.why);
    ck_assert_mem_eq(image.pixels, whole_one, 101 * 67 * 3);
    free(whole_one);
    free(image.pixels);
    free(file.data);
}
END_TEST

START_TEST(a_part_of_a_jpeg_is_the_same_as_in_the_whole)
{
    struct bytes file = picture_jpeg(101, 67, jpeg_kinds[_i]);
    uint8_t *whole_one = picture_decoded(file);
    for (uint32_t size = 1; size <= 67; size += 3) {
        struct images_plan plan = plan_of((struct onepot_images){.width = size,
                                                                 .height = size,
                                                                 .crop = ONEPOT_CROP_CENTRE,
                                                                 .resize = 67,
                                                                 .channels_last = true});
        struct image image = decoded(&plan, file, 0);
        ck_assert_msg(image.result == 0, "%s", image.why);
        unsigned x = (unsigned)rint((101 - size) / 2.0), y = (unsigned)rint((67 - size) / 2.0);
        for (uint32_t row = 0; row < size; row++)
            ck_assert_mem_eq(image.pixels + (size_t)row * size * 3,
                             whole_one + ((y + row) * 101 + x) * 3, size * 3);
        free(image.pixels);
    }
    free(whole_one);
    free(file.data);
}
END_TEST

static double mean_difference_to_exact(struct bytes file, uint32_t size)
{
    struct onepot_images o = {.width = size, .height = size, .crop = ONEPOT_CROP_NONE};
    struct images_plan shrunk = plan_of(o);
    o.exact = true;
    struct images_plan exact = plan_of(o);
    struct image a = decoded(&shrunk, file, 0), b = decoded(&exact, file, 0);
    double difference = 0;
    for (uint64_t i = 0; i < shrunk.bytes; i++)
        difference += abs(a.pixels[i] - b.pixels[i]);
    free(a.pixels);
    free(b.pixels);
    return difference / (double)shrunk.bytes;
}

START_TEST(a_jpeg_that_is_shrunk_while_it_is_decoded_is_nearly_the_same)
{
    struct bytes file = picture_jpeg(120, 100, jpeg_kinds[_i]);
    for (uint32_t size = 6; size <= 50; size += 11)
        ck_assert_double_lt(mean_difference_to_exact(file, size), 2);
    free(file.data);
}
END_TEST

/* Cells of 4 by 4 pixels of any brightness, which the filter of a resizing blurs. */
START_TEST(fine_patterns_are_nearly_the_same_in_a_jpeg_that_is_shrunk)
{
    enum { SIDE = 600 };
    uint8_t *pixels = malloc(SIDE * SIDE);
    ck_assert_ptr_nonnull(pixels);
    for (unsigned y = 0; y < SIDE; y++)
        for (unsigned x = 0; x < SIDE; x++)
            pixels[y * SIDE + x] =
                (uint8_t)((x / 4 * 73856093u ^ y / 4 * 19349663u) * 2654435761u >> 24);
    struct bytes file =
        picture_jpeg_of(pixels, SIDE, SIDE, (struct jpeg_kind){JCS_GRAYSCALE, 95, 0, 0});
    for (uint32_t size = 70; size <= 300; size += 23)
        ck_assert_double_lt(mean_difference_to_exact(file, size), 2);
    free(pixels);
    free(file.data);
}
END_TEST

START_TEST(cmyk_is_not_shrunk)
{
    struct bytes file = picture_jpeg(120, 100, (struct jpeg_kind){JCS_CMYK, 90, 0, 0});
    ck_assert_double_eq(mean_difference_to_exact(file, 6), 0);
    free(file.data);
}
END_TEST

START_TEST(cmyk_is_converted_as_pil_does_it)
{
    struct bytes file = picture_jpeg(64, 48, (struct jpeg_kind){JCS_CMYK, 100, 0, 0});
    struct images_plan plan = plain(64, 48);
    struct image image = decoded(&plan, file, 0);
    ck_assert_msg(image.result == 0, "%s", image.why);
    for (unsigned at = 0; at < 64 * 48 * 3; at++) {
        unsigned x = at / 3 % 64, y = at / 3 / 64;
        double want = picture_value(x, y, at % 3) * picture_value(x, y, 3) / 255.0;
        ck_assert(fabs(image.pixels[at] - want) < 3);
    }
    free(image.pixels);
    free(file.data);
}
END_TEST

START_TEST(a_jpeg_that_is_cut_short_is_an_error)
{
    struct bytes file = picture_jpeg(90, 70, jpeg_kinds[_i]);
    struct images_plan plan = plain(90, 70);
    for (size_t len = 0; len + 16 < file.len; len++) {
        struct image image = decoded(&plan, (struct bytes){file.data, len}, 0);
        ck_assert_msg(image.result == -EILSEQ, "%zu bytes of %zu", len, file.len);
        free(image.pixels);
    }
    free(file.data);
}
END_TEST

START_TEST(a_jpeg_without_its_end_marker_is_whole)
{
    struct bytes file = picture_jpeg(90, 70, jpeg_kinds[0]);
    struct images_plan plan = plain(90, 70);
    struct image image = decoded(&plan, (struct bytes){file.data, file.len - 2}, 0);
    uint8_t *whole_one = picture_decoded(file);
    ck_assert_msg(image.result == 0, "%s", image.why);
    ck_assert_mem_eq(image.pixels, whole_one, 90 * 70 * 3);
    free(whole_one);
    free(image.pixels);
    free(file.data);
}
END_TEST

#endif

#ifdef ONEPOT_PNG

static uint8_t palette_of(unsigned x, unsigned y, unsigned c)
{
    unsigned i = picture_value(x, y, 0) & 63;
    return (uint8_t)(c == 0 ? i : c == 1 ? 255 - i : 2 * i);
}

static uint8_t small_palette_of(unsigned x, unsigned y, unsigned c)
{
    unsigned i = picture_value(x, y, 0) & 15;
    return (uint8_t)(c == 0 ? i : c == 1 ? 255 - i : 2 * i);
}

static uint8_t bit_of(unsigned x, unsigned y, unsigned c)
{
    return grey_of(x, y, c) >= 128 ? 255 : 0;
}

START_TEST(png_of_every_kind)
{
    static const struct {
        struct png_kind kind;
        uint8_t (*expected)(unsigned x, unsigned y, unsigned c);
    } cases[] = {
        {{PNG_COLOR_TYPE_RGB, 8, 0}, picture_value},
        {{PNG_COLOR_TYPE_RGB, 8, 1}, picture_value},
        {{PNG_COLOR_TYPE_RGB, 16, 0}, picture_value},
        {{PNG_COLOR_TYPE_RGB_ALPHA, 8, 0}, picture_value},
        {{PNG_COLOR_TYPE_RGB_ALPHA, 16, 1}, picture_value},
        {{PNG_COLOR_TYPE_GRAY, 8, 0}, grey_of},
        {{PNG_COLOR_TYPE_GRAY, 16, 0}, grey_of},
        {{PNG_COLOR_TYPE_GRAY, 1, 0}, bit_of},
        {{PNG_COLOR_TYPE_GRAY, 1, 1}, bit_of},
        {{PNG_COLOR_TYPE_GRAY_ALPHA, 8, 0}, grey_of},
        {{PNG_COLOR_TYPE_PALETTE, 8, 0}, palette_of},
        {{PNG_COLOR_TYPE_PALETTE, 4, 0}, small_palette_of},
        {{PNG_COLOR_TYPE_PALETTE, 8, 1}, palette_of},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        check_values(picture_png(61, 43, cases[i].kind), 61, 43, cases[i].expected);
}
END_TEST

static uint8_t number_of(unsigned x, unsigned y, unsigned c)
{
    (void)c;
    return picture_value(x, y, 0) & 63;
}

static uint8_t small_number_of(unsigned x, unsigned y, unsigned c)
{
    (void)c;
    return picture_value(x, y, 0) & 15;
}

static uint8_t plain_bit_of(unsigned x, unsigned y, unsigned c)
{
    return grey_of(x, y, c) >> 7;
}

static uint8_t two_bits_of(unsigned x, unsigned y, unsigned c)
{
    return grey_of(x, y, c) >> 6;
}

static uint8_t four_bits_of(unsigned x, unsigned y, unsigned c)
{
    return grey_of(x, y, c) >> 4;
}

START_TEST(the_nearest_pixel_keeps_its_value_in_every_kind_of_png)
{
    static const struct {
        struct png_kind kind;
        uint8_t (*expected)(unsigned x, unsigned y, unsigned c);
    } cases[] = {
        {{PNG_COLOR_TYPE_RGB, 8, 0}, picture_value},
        {{PNG_COLOR_TYPE_RGB_ALPHA, 8, 1}, picture_value},
        {{PNG_COLOR_TYPE_GRAY, 8, 0}, grey_of},
        {{PNG_COLOR_TYPE_GRAY, 4, 0}, four_bits_of},
        {{PNG_COLOR_TYPE_GRAY, 2, 1}, two_bits_of},
        {{PNG_COLOR_TYPE_GRAY, 1, 0}, plain_bit_of},
        {{PNG_COLOR_TYPE_GRAY_ALPHA, 8, 0}, grey_of},
        {{PNG_COLOR_TYPE_PALETTE, 8, 0}, number_of},
        {{PNG_COLOR_TYPE_PALETTE, 8, 1}, number_of},
        {{PNG_COLOR_TYPE_PALETTE, 4, 0}, small_number_of},
    };
    enum { WIDTH = 61, HEIGHT = 43, SMALL = 20, LARGE = 130 };
    struct onepot_images o = {
        .crop = ONEPOT_CROP_NONE, .channels_last = true, .interpolation = ONEPOT_NEAREST};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++)
        for (unsigned large = 0; large < 2; large++) {
            struct bytes file = picture_png(WIDTH, HEIGHT, cases[i].kind);
            o.width = large ? LARGE : SMALL;
            o.height = large ? SMALL : LARGE;
            struct images_plan plan = plan_of(o);
            struct image image = decoded(&plan, file, 0);
            ck_assert_msg(image.result == 0, "%s", image.why);
            for (unsigned at = 0; at < o.width * o.height * 3; at++) {
                unsigned x = at / 3 % o.width, y = at / 3 / o.width;
                ck_assert_uint_eq(image.pixels[at],
                                  cases[i].expected((2 * x + 1) * WIDTH / (2 * o.width),
                                                    (2 * y + 1) * HEIGHT / (2 * o.height),
                                                    at % 3));
            }
            free(image.pixels);
            free(file.data);
        }
    struct images_plan plan = plan_of(o);
    struct bytes file = picture_png(9, 9, (struct png_kind){PNG_COLOR_TYPE_GRAY, 16, 0});
    struct image image = decoded(&plan, file, 0);
    ck_assert_int_eq(image.result, -EILSEQ);
    ck_assert_msg(strstr(image.why, "16 bits") != NULL, "%s", image.why);
    free(image.pixels);
    free(file.data);
}
END_TEST

START_TEST(a_part_of_a_png_is_the_same_as_in_the_whole)
{
    struct bytes file = picture_png(61, 43, (struct png_kind){PNG_COLOR_TYPE_RGB, 8, _i});
    struct images_plan plan = plan_of((struct onepot_images){.width = 20,
                                                             .height = 20,
                                                             .crop = ONEPOT_CROP_CENTRE,
                                                             .resize = 43,
                                                             .channels_last = 1});
    struct image image = decoded(&plan, file, 0);
    for (unsigned at = 0; at < 20 * 20 * 3; at++)
        ck_assert_uint_eq(image.pixels[at],
                          picture_value(20 + at / 3 % 20, 12 + at / 60, at % 3));
    free(image.pixels);
    free(file.data);
}
END_TEST

START_TEST(a_png_that_is_cut_short_is_an_error)
{
    struct bytes file = picture_png(61, 43, (struct png_kind){PNG_COLOR_TYPE_RGB, 8, _i});
    struct images_plan plan = plain(61, 43);
    for (size_t len = 0; len + 24 < file.len; len++) {
        struct image image = decoded(&plan, (struct bytes){file.data, len}, 0);
        ck_assert_msg(image.result == -EILSEQ, "%zu bytes of %zu", len, file.len);
        free(image.pixels);
    }
    free(file.data);
}
END_TEST

/* Give a PNG file another size, and the sum of its header. */
static void png_resize(struct bytes png, uint32_t width, uint32_t height)
{
    uint32_t sum = UINT32_MAX;
    for (unsigned i = 0; i < 4; i++) {
        png.data[16 + i] = (uint8_t)(width >> (24 - 8 * i));
        png.data[20 + i] = (uint8_t)(height >> (24 - 8 * i));
    }
    for (unsigned i = 12; i < 29; i++) {
        sum ^= png.data[i];
        for (unsigned bit = 0; bit < 8; bit++)
            sum = sum >> 1 ^ (sum & 1 ? UINT32_C(0xedb88320) : 0);
    }
    for (unsigned i = 0; i < 4; i++)
        png.data[29 + i] = (uint8_t)(~sum >> (24 - 8 * i));
}

START_TEST(a_picture_of_too_many_pixels_is_refused)
{
    struct bytes file = picture_png(61, 43, (struct png_kind){PNG_COLOR_TYPE_RGB, 8, 1});
    struct images_plan plan = plain(61, 43);
    png_resize(file, 65535, 65535);
    struct image image = decoded(&plan, file, 0);
    ck_assert_int_eq(image.result, -EILSEQ);
    ck_assert_msg(strstr(image.why, "at most"), "%s", image.why);
    free(image.pixels);
    free(file.data);
}
END_TEST

#endif

/* ---- memory ---- */

#define MIB (UINT64_C(1) << 20)

#if defined(ONEPOT_JPEG) || defined(ONEPOT_PNG)
/*
 * Allow this process `bytes` of addresses more than it has. Sanitizers have their own, and
 * count nothing.
 */
static struct rlimit limit_addresses(uint64_t bytes)
{
    struct rlimit was;
    unsigned long pages;
    getrlimit(RLIMIT_AS, &was);
    mallopt(M_MMAP_THRESHOLD, 64 << 10); /* what is freed is given back */
    malloc_trim(0);
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_int_eq(fscanf(f, "%lu", &pages), 1);
    fclose(f);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    const struct rlimit now = {pages * (rlim_t)sysconf(_SC_PAGESIZE) + bytes, was.rlim_max};
    setrlimit(RLIMIT_AS, &now);
#else
    (void)bytes;
#endif
    return was;
}

/* Decode with this budget and so many addresses to spare. `why` says what happened. */
static int decoded_within(struct bytes file, struct images_budget *budget, uint64_t addresses,
                          char *why)
{
    struct images_plan plan = plain(8, 8);
    struct images_scratch scratch = {.budget = budget};
    uint8_t *to = malloc(plan.bytes);
    struct rlimit was = limit_addresses(addresses);
    int r = images_decode(&plan, &scratch, &(struct images_place){3, 4, 0}, file.data, file.len,
                          to, why);
    setrlimit(RLIMIT_AS, &was);
    ck_assert_uint_le(scratch.size, 4 * MIB);
    if (budget) { /* no thread has its turn any more */
        ck_assert_int_eq(pthread_mutex_trylock(&budget->large), 0);
        pthread_mutex_unlock(&budget->large);
    }
    free(scratch.memory);
    free(to);
    return r;
}

/* The MiB that a picture takes, by the message about too small a budget; 4: at most that. */
static uint64_t taken_by_header(struct bytes file)
{
    struct images_budget budget;
    char why[IMAGES_WHY_MAX] = "";
    uint64_t takes = 4;
    images_budget_init(&budget, 0, 1);
    if (decoded_within(file, &budget, 6 * MIB, why) == -EILSEQ)
        ck_assert_msg(sscanf(why, "decoding it takes %" SCNu64 " MiB", &takes) == 1, "%s", why);
    return takes;
}

/* As little as its header says is enough, and not far more than that is asked for. */
static void check_takes(struct bytes file, const char *name, unsigned kind)
{
    struct images_budget budget;
    char why[IMAGES_WHY_MAX] = "";
    uint64_t takes = taken_by_header(file);
    images_budget_init(&budget, 2 * takes * MIB, 1);
    int r = decoded_within(file, &budget, takes * MIB + MIB / 2, why);
    ck_assert_msg(r == 0, "%s %u, %" PRIu64 " MiB: %s", name, kind, takes, why);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (takes > 4)
        ck_assert_msg(decoded_within(file, &budget, takes * MIB / 3, why) < 0,
                      "%s %u takes far less than %" PRIu64 " MiB", name, kind, takes);
#endif
    free(file.data);
}

/* It is refused for what it says, not for want of memory. */
static void check_bomb(struct bytes bomb, const char *expected)
{
    struct images_budget budget;
    char why[IMAGES_WHY_MAX] = "";
    images_budget_init(&budget, 64 * MIB, 2);
    int r = decoded_within(bomb, &budget, 2 * MIB, why);
    ck_assert_msg(r == -EILSEQ && strstr(why, expected), "%d: %s, not: %s", r, why, expected);
}
#endif

START_TEST(a_picture_takes_no_more_than_its_header_says)
{
#ifdef ONEPOT_JPEG
    static const struct jpeg_kind jpeg[] = {{JCS_RGB, 90, 0, 0},
                                            {JCS_RGB, 60, 1, 0},
                                            {JCS_GRAYSCALE, 80, 1, 0},
                                            {JCS_CMYK, 50, 0, 0},
                                            {JCS_CMYK, 50, 1, 0}};
    for (unsigned i = 0; i < sizeof(jpeg) / sizeof(*jpeg); i++) {
        check_takes(picture_jpeg(3001, 2003, jpeg[i]), "JPEG", i);
        check_takes(picture_jpeg(65500, 40, jpeg[i]), "wide JPEG", i);
    }
#endif
#ifdef ONEPOT_PNG
    static const struct png_kind png[] = {{PNG_COLOR_TYPE_RGB, 8, 0},
                                          {PNG_COLOR_TYPE_RGB_ALPHA, 16, 0},
                                          {PNG_COLOR_TYPE_RGB_ALPHA, 16, 1},
                                          {PNG_COLOR_TYPE_PALETTE, 4, 1},
                                          {PNG_COLOR_TYPE_GRAY, 1, 1}};
    for (unsigned i = 0; i < sizeof(png) / sizeof(*png); i++) {
        check_takes(picture_png(3001, 1003, png[i]), "PNG", i);
        check_takes(picture_png(65500, 10, png[i]), "wide PNG", i);
    }
#endif
}
END_TEST

#ifdef ONEPOT_JPEG
/* Where a marker is. */
static size_t marker_at(struct bytes file, uint8_t marker)
{
    size_t at = 2;
    while (at + 4 < file.len && file.data[at + 1] != marker)
        at += 2 + (size_t)(file.data[at + 2] << 8 | file.data[at + 3]);
    ck_assert_uint_lt(at + 4, file.len);
    return at;
}

START_TEST(a_jpeg_of_a_few_bytes_takes_no_memory)
{
    static const struct {
        struct jpeg_kind kind;
        unsigned width, height;
        const char *expected;
    } cases[] = {{{JCS_RGB, 90, 1, 0}, 13377, 13377, "decoding it takes"},
                 {{JCS_RGB, 90, 1, 0}, 8000, 8000, "decoding it takes"},
                 {{JCS_GRAYSCALE, 90, 1, 0}, 65500, 2700, "decoding it takes"},
                 {{JCS_CMYK, 90, 1, 0}, 9000, 9000, "decoding it takes"},
                 {{JCS_CMYK, 90, 0, 0}, 65500, 65500, "at most"},
                 {{JCS_RGB, 90, 0, 0}, 65500, 65500, "at most"}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct bytes file = picture_jpeg(16, 16, cases[i].kind);
        size_t frame = marker_at(file, cases[i].kind.progressive ? 0xc2 : 0xc0) + 5;
        file.data[frame] = (uint8_t)(cases[i].height >> 8);
        file.data[frame + 1] = (uint8_t)cases[i].height;
        file.data[frame + 2] = (uint8_t)(cases[i].width >> 8);
        file.data[frame + 3] = (uint8_t)cases[i].width;
        check_bomb(file, cases[i].expected);
        free(file.data);
    }
}
END_TEST
#endif

#ifdef ONEPOT_PNG
/* Put a chunk in behind the header of a PNG file, whose length is not checked. */
static struct bytes with_chunk(struct bytes png, const char *kind, uint32_t length,
                               const char *begin, size_t begin_len)
{
    const uint8_t head[] = {(uint8_t)(length >> 24), (uint8_t)(length >> 16),
                            (uint8_t)(length >> 8), (uint8_t)length};
    struct bytes file = {malloc(png.len + 12 + begin_len), png.len + 12 + begin_len};
    uint8_t *at = file.data;
    memcpy(at, png.data, 33);
    memcpy(at + 33, head, 4);
    memcpy(at + 37, kind, 4);
    memcpy(at + 41, begin, begin_len);
    memset(at + 41 + begin_len, 0, 4);
    memcpy(at + 45 + begin_len, png.data + 33, png.len - 33);
    return file;
}

static long resident_peak(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

/* libpng goes on without what it could not allocate, so its memory tells, not its words. */
START_TEST(a_png_chunk_is_no_longer_than_its_file)
{
    static const char *const kinds[] = {"sCAL", "iCCP", "zTXt", "iTXt", "tEXt", "eXIf", "sPLT",
                                        "pCAL", "hIST", "tRNS", "PLTE", "IDAT", "teSt", "TEsT",
                                        "gAMA", "cHRM", "sBIT", "bKGD", "pHYs", "tIME", "cICP"};
    static const uint32_t lengths[] = {0x7fffffff, 0x7ffffff0, 0x20000000, 9u << 20, 7u << 20};
    struct bytes png = picture_png(8, 8, (struct png_kind){PNG_COLOR_TYPE_PALETTE, 8, 0});
    struct images_plan plan = plain(8, 8);
    free(decoded(&plan, png, 0).pixels);
    long before = resident_peak();
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        for (unsigned k = 0; k < sizeof(lengths) / sizeof(*lengths); k++) {
            struct bytes bomb = with_chunk(png, kinds[i], lengths[k], "a\0\0\1", 4);
            struct image image = decoded(&plan, bomb, 0);
            ck_assert_msg(image.result == -EILSEQ, "%s: %d", kinds[i], image.result);
            ck_assert_msg(resident_peak() - before < 4096, "%s of %u bytes took %ld KiB",
                          kinds[i], lengths[k], resident_peak() - before);
            free(image.pixels);
            free(bomb.data);
        }
    free(png.data);
}
END_TEST

START_TEST(texts_and_profiles_of_a_png_are_passed_over)
{
    struct bytes png = picture_png(8, 8, (struct png_kind){PNG_COLOR_TYPE_RGB, 8, 0});
    static const char *const kinds[] = {"sCAL", "iCCP", "zTXt", "iTXt", "tEXt", "sPLT", "pCAL"};
    for (unsigned i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        struct bytes odd =
            with_chunk(png, kinds[i], 4, "a\0\0\1", 4); /* its sum is wrong, too */
        char why[IMAGES_WHY_MAX] = "";
        ck_assert_msg(decoded_within(odd, NULL, MIB, why) == 0, "%s: %s", kinds[i], why);
        free(odd.data);
    }
    free(png.data);
}
END_TEST

START_TEST(an_interlaced_png_of_a_few_bytes_takes_no_memory)
{
    static const uint32_t sizes[][2] = {{13377, 13377}, {4000, 4000}, {65500, 512}};
    struct bytes png = picture_png(8, 8, (struct png_kind){PNG_COLOR_TYPE_RGB_ALPHA, 16, 1});
    for (unsigned i = 0; i < 3; i++) {
        png_resize(png, sizes[i][0], sizes[i][1]);
        check_bomb(png, "decoding it takes");
    }
    free(png.data);
}
END_TEST
#endif

START_TEST(a_budget_is_divided_among_threads)
{
    struct images_budget budget;
    char why[IMAGES_WHY_MAX] = "";
    images_budget_init(&budget, 256 * MIB, 4);
    ck_assert_uint_eq(budget.each, 32 * MIB);
    ck_assert_uint_eq(budget.most, 128 * MIB);
    images_budget_init(&budget, 1, 128);
    ck_assert_uint_eq(budget.each, 4 * MIB);
    ck_assert_uint_eq(budget.most, 4 * MIB);
    ck_assert_int_eq(images_check_file(&budget, 32 * MIB, why), 0);
    ck_assert_int_eq(images_check_file(&budget, 32 * MIB + 1, why), -EILSEQ);
    ck_assert_msg(strstr(why, "its file has 33 MiB, and 32 MiB"), "%s", why);
    ck_assert_int_eq(images_check_file(NULL, UINT64_MAX, why), 0);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("images");
    TCase *crops = tcase_create("crops"), *rows = tcase_create("resampling");
    TCase *files = tcase_create("files");
    tcase_add_test(crops, random_crops_are_distributed_as_torchvisions);
    tcase_add_test(crops, a_picture_without_a_fitting_part_gives_its_centre);
    tcase_add_test(crops, the_centre_is_where_torchvision_cuts_it_out);
    tcase_add_test(crops, a_picture_is_shrunk_as_long_as_the_crop_is_three_times_the_result);
    tcase_add_loop_test(rows, a_picture_of_the_right_size_stays_as_it_is, 0, 2);
    tcase_add_loop_test(rows, one_colour_stays_one_colour_at_any_size, 0, 2);
    tcase_add_test(rows, shrinking_weighs_as_the_widened_filter_does);
    tcase_add_loop_test(rows, results_are_those_of_the_filter_in_numbers_without_end, 0, 18);
    tcase_add_test(rows, results_are_the_same_on_all_cpus);
    tcase_add_test(rows, memory_for_one_picture_has_a_bound);
    tcase_add_test(files, arrays_are_pictures);
    tcase_add_test(files, types_and_layouts);
    tcase_add_loop_test(files, options_that_make_no_sense_are_named, 0, 14);
    tcase_add_test(files, a_budget_is_divided_among_threads);
    tcase_add_test(files, a_picture_takes_no_more_than_its_header_says);
    tcase_add_test(files, other_files_are_no_pictures);
#ifdef ONEPOT_JPEG
    tcase_add_loop_test(files, jpeg_is_what_libjpeg_makes_of_it, 0, 4);
    tcase_add_loop_test(files, a_part_of_a_jpeg_is_the_same_as_in_the_whole, 0, 4);
    tcase_add_loop_test(files, a_jpeg_that_is_shrunk_while_it_is_decoded_is_nearly_the_same, 0,
                        4);
    tcase_add_test(files, fine_patterns_are_nearly_the_same_in_a_jpeg_that_is_shrunk);
    tcase_add_test(files, cmyk_is_not_shrunk);
    tcase_add_test(files, cmyk_is_converted_as_pil_does_it);
    tcase_add_loop_test(files, a_jpeg_that_is_cut_short_is_an_error, 0, 4);
    tcase_add_test(files, a_jpeg_without_its_end_marker_is_whole);
    tcase_add_test(files, a_jpeg_of_a_few_bytes_takes_no_memory);
#else
    puts("JPEG left out: this onepot was built without it");
#endif
#ifdef ONEPOT_PNG
    tcase_add_test(files, png_of_every_kind);
    tcase_add_test(files, the_nearest_pixel_keeps_its_value_in_every_kind_of_png);
    tcase_add_test(files, a_png_chunk_is_no_longer_than_its_file);
    tcase_add_test(files, texts_and_profiles_of_a_png_are_passed_over);
    tcase_add_test(files, an_interlaced_png_of_a_few_bytes_takes_no_memory);
    tcase_add_loop_test(files, a_part_of_a_png_is_the_same_as_in_the_whole, 0, 2);
    tcase_add_loop_test(files, a_png_that_is_cut_short_is_an_error, 0, 2);
    tcase_add_test(files, a_picture_of_too_many_pixels_is_refused);
#else
    puts("PNG left out: this onepot was built without it");
#endif
    suite_add_tcase(s, crops);
    suite_add_tcase(s, rows);
    suite_add_tcase(s, files);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
