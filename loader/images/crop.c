/*
 * Random crops are drawn as torchvision's RandomResizedCrop.get_params draws them: ten tries of
 * an area and a ratio, then the largest centred part whose ratio is allowed. The draws are
 * numbers of a stream that starts at a hash of seed, epoch and index, so that no other sample,
 * thread or rank has a part in them.
 */
#include "crop.h"

#include <math.h>
#include <string.h>

#include "numbers.h"

#define TRIES 10

/* ---- draws ---- */

/* The finaliser of splitmix64: each bit of the result depends on each bit of x. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    x ^= x >> 27;
    x *= UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

#define STEP UINT64_C(0x9e3779b97f4a7c15)

static uint64_t draws_begin(const struct images_place *place)
{
    uint64_t x = mix(place->seed + STEP);
    x = mix(x + place->epoch + STEP);
    return mix(x + place->index + STEP);
}

/* The next number of the stream, in [low, high). */
static double draw(uint64_t *stream, double low, double high)
{
    *stream += STEP;
    return low + (double)(mix(*stream) >> 11) * 0x1p-53 * (high - low);
}

/* A whole number from 0 to `most`. */
static uint32_t draw_to(uint64_t *stream, uint32_t most)
{
    return min_u32((uint32_t)draw(stream, 0, (double)most + 1), most);
}

/* ---- parts ---- */

/* All `count` results from `size` pixels at `from`. */
static struct axis axis_of(uint32_t from, uint32_t size, uint32_t count)
{
    return (struct axis){.start = from,
                         .step = (double)size / count,
                         .low = from,
                         .high = from + size,
                         .count = count};
}

struct part {
    uint32_t x, y, width, height;
};

/* The largest centred part with a ratio that is allowed. */
static struct part central_part(const double ratio[2], uint32_t width, uint32_t height)
{
    double is = (double)width / height;
    struct part p = {.width = width, .height = height};
    if (is < ratio[0])
        p.height = min_u32((uint32_t)lrint(width / ratio[0]), height);
    else if (is > ratio[1])
        p.width = min_u32((uint32_t)lrint(height * ratio[1]), width);
    p.width = max_u32(p.width, 1);
    p.height = max_u32(p.height, 1);
    p.x = (width - p.width) / 2;
    p.y = (height - p.height) / 2;
    return p;
}

static struct part random_part(const struct onepot_images *o, uint64_t *stream, uint32_t width,
                               uint32_t height)
{
    const double ratio[] = {(double)o->ratio[0], (double)o->ratio[1]};
    double area = (double)width * height;
    for (unsigned i = 0; i < TRIES; i++) {
        double target = area * draw(stream, (double)o->scale[0], (double)o->scale[1]);
        double is = exp(draw(stream, log(ratio[0]), log(ratio[1])));
        double w = rint(sqrt(target * is)), h = rint(sqrt(target / is));
        if (w < 1 || w > width || h < 1 || h > height)
            continue;
        struct part p = {.width = (uint32_t)w, .height = (uint32_t)h};
        p.y = draw_to(stream, height - p.height);
        p.x = draw_to(stream, width - p.width);
        return p;
    }
    return central_part(ratio, width, height);
}

static void plan_random(const struct onepot_images *o, const struct images_place *place,
                        uint32_t width, uint32_t height, struct crop *ret)
{
    uint64_t stream = draws_begin(place);
    bool flip = draw(&stream, 0, 1) < 0.5;
    struct part p = random_part(o, &stream, width, height);
    ret->x = axis_of(p.x, p.width, o->width);
    ret->y = axis_of(p.y, p.height, o->height);
    ret->x.reversed = flip && !o->no_flip;
}

/*
 * Of `size` pixels, resized in the proportion resize / shorter, the `count` in the middle.
 * Rounds as torchvision's Resize and CenterCrop do.
 */
static struct axis central_axis(uint32_t size, uint32_t shorter, uint32_t resize,
                                uint32_t count)
{
    double resized = floor((double)resize * size / shorter);
    double step = size / resized;
    return (struct axis){.start = rint((resized - count) / 2) * step,
                         .step = step,
                         .high = size,
                         .count = count};
}

void crop_plan(const struct onepot_images *o, const struct images_place *place, uint32_t width,
               uint32_t height, struct crop *ret_crop)
{
    uint32_t shorter = min_u32(width, height);
    ret_crop->spare = o->crop == ONEPOT_CROP_RANDOM ? 1 : 3;
    switch (o->crop) {
    case ONEPOT_CROP_RANDOM:
        plan_random(o, place, width, height, ret_crop);
        return;
    case ONEPOT_CROP_CENTRE:
        ret_crop->x = central_axis(width, shorter, o->resize, o->width);
        ret_crop->y = central_axis(height, shorter, o->resize, o->height);
        return;
    default:
        ret_crop->x = axis_of(0, width, o->width);
        ret_crop->y = axis_of(0, height, o->height);
    }
}

/* ---- shrinking ---- */

unsigned crop_shrinks(const struct crop *crop)
{
    double most = (crop->x.step < crop->y.step ? crop->x.step : crop->y.step) / crop->spare;
    return most >= 8 ? 8 : most >= 4 ? 4 : most >= 2 ? 2 : 1;
}

static void axis_shrink(struct axis *a, unsigned times, uint32_t size)
{
    a->start /= times;
    a->step /= times;
    a->low /= times;
    a->high = min_u32((a->high + times - 1) / times, size);
}

void crop_shrink(struct crop *crop, unsigned times, uint32_t width, uint32_t height)
{
    axis_shrink(&crop->x, times, width);
    axis_shrink(&crop->y, times, height);
}
