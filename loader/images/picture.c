/*
 * A picture while it is decoded: memory within the budget, and the last step, a row of pixels
 * to its type and layout.
 */
#include "picture.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "numbers.h"

#define SOURCE_PIXELS 178956970u /* PIL's limit against decompression bombs */
#define ROOM_MAX (UINT64_C(1) << 30)
#define EACH_LEAST (UINT64_C(4) << 20)   /* of a thread, however little memory there is */
#define SCRATCH_KEPT (UINT64_C(4) << 20) /* from one picture to the next */
#define FILE_ALWAYS (UINT64_C(32) << 20) /* files that are read with any budget */
#define GREY 128

/* ---- pixels ---- */

/* A row of bytes to three channels, `step` apart, whose values are `stride` apart. */
static void write_bytes(const uint8_t *restrict from, size_t count, uint8_t *restrict to,
                        size_t step, size_t stride)
{
    if (stride == 1) {
        for (unsigned c = 0; c < 3; c++)
            for (size_t i = 0; i < count; i++)
                to[c * step + i] = from[4 * i + c];
        return;
    }
    for (size_t i = 0; i < count; i++)
        memcpy(to + stride * i, from + 4 * i, 3);
}

static void write_values(const struct images_plan *plan, const uint8_t *from, size_t count,
                         uint8_t *to, size_t step, size_t stride)
{
    for (unsigned c = 0; c < 3; c++) {
        const union images_value *values = plan->values[c];
        float *single = (float *)(void *)to + c * step;
        uint16_t *half = (uint16_t *)(void *)to + c * step;
        if (plan->o.type == ONEPOT_FLOAT)
            for (size_t i = 0; i < count; i++)
                single[i * stride] = values[from[4 * i + c]].single;
        else
            for (size_t i = 0; i < count; i++)
                half[i * stride] = values[from[4 * i + c]].half;
    }
}

/* `count` pixels to their places, from pixel `at` of the image on. */
static void write_pixels(const struct images_plan *plan, const uint8_t *from, size_t count,
                         void *image, size_t at)
{
    const struct onepot_images *o = &plan->o;
    size_t step = o->channels_last ? 1 : (size_t)o->width * o->height;
    size_t stride = o->channels_last ? 3 : 1;
    uint8_t *to = (uint8_t *)image + at * stride * picture_item_bytes(o);
    if (o->type)
        write_values(plan, from, count, to, step, stride);
    else
        write_bytes(from, count, to, step, stride);
}

void images_grey(const struct images_plan *plan, void *to)
{
    const struct onepot_images *o = &plan->o;
    uint8_t row[4 * 64];
    memset(row, GREY, sizeof(row));
    size_t pixels = (size_t)o->height * o->width;
    for (size_t at = 0; at < pixels; at += 64)
        write_pixels(plan, row, pixels - at < 64 ? pixels - at : 64, to, at);
}

/* ---- a picture ---- */

int picture_fail(struct picture *p, int err, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(p->why, IMAGES_WHY_MAX, format, args);
    va_end(args);
    return err;
}

void images_budget_init(struct images_budget *budget, uint64_t bytes, uint32_t threads)
{
    pthread_mutex_init(&budget->large, NULL);
    budget->each = max_u64(bytes / 2 / max_u64(threads, 1), EACH_LEAST);
    budget->most = max_u64(bytes / 2, budget->each);
}

int images_check_file(const struct images_budget *budget, uint64_t len, char *why)
{
    if (!budget || len <= max_u64(budget->each, FILE_ALWAYS))
        return 0;
    snprintf(why, IMAGES_WHY_MAX,
             "its file has %" PRIu64 " MiB, and %" PRIu64 " MiB of memory are for it; "
             "give the loader more memory",
             (len >> 20) + 1, max_u64(budget->each, FILE_ALWAYS) >> 20);
    return -EILSEQ;
}

/* The picture takes so many bytes: is that within the budget? Waits for its turn. */
static int budget_take(struct picture *p, uint64_t bytes)
{
    struct images_budget *budget = p->scratch->budget;
    if (!budget || bytes <= budget->each)
        return 0;
    if (bytes > budget->most)
        return picture_fail(p, -EILSEQ,
                            "decoding it takes %" PRIu64 " MiB of memory, and %" PRIu64
                            " MiB are for it; give the loader more memory",
                            (bytes >> 20) + 1, budget->most >> 20);
    pthread_mutex_lock(&budget->large);
    p->is_large = true;
    return 0;
}

void picture_end(struct picture *p)
{
    if (p->scratch->size > SCRATCH_KEPT)
        images_scratch_free(p->scratch);
    if (p->is_large)
        pthread_mutex_unlock(&p->scratch->budget->large);
}

static int scratch_take(struct picture *p, uint64_t bytes)
{
    struct images_scratch *s = p->scratch;
    if (bytes <= s->size)
        return 0;
    images_scratch_free(s);
    uint64_t generous = bytes <= SCRATCH_KEPT / 2 ? bytes + bytes / 4 : bytes;
    s->memory = malloc(generous);
    if (!s->memory)
        return picture_fail(p, -ENOMEM, "no memory to decode it");
    s->size = generous;
    return 0;
}

void images_scratch_free(struct images_scratch *scratch)
{
    free(scratch->memory);
    scratch->memory = NULL;
    scratch->size = 0;
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + PICTURE_SLACK - 1) / PICTURE_SLACK * PICTURE_SLACK;
}

int picture_begin(struct picture *p, uint32_t width, uint32_t height, bool can_shrink,
                  uint64_t rooms, uint64_t own_bytes, struct picture_part *ret_part)
{
    const struct onepot_images *o = &p->plan->o;
    struct crop crop;
    if (width < 1 || height < 1 || width > PICTURE_SIDE_MAX || height > PICTURE_SIDE_MAX ||
        (uint64_t)width * height > SOURCE_PIXELS)
        return picture_fail(p, -EILSEQ, "it has %u by %u pixels, and at most %u are decoded",
                            width, height, SOURCE_PIXELS);
    crop_plan(o, p->place, width, height, &crop);
    unsigned shrinks =
        can_shrink && !o->exact && o->interpolation != ONEPOT_NEAREST ? crop_shrinks(&crop) : 1;
    width = (width + shrinks - 1) / shrinks;
    height = (height + shrinks - 1) / shrinks;
    if (shrinks > 1)
        crop_shrink(&crop, shrinks, width, height);
    uint64_t room = rounded(rooms * rounded((uint64_t)width * 4) + PICTURE_SLACK);
    uint64_t bytes = resample_bytes(&crop.x, &crop.y, o->interpolation);
    if (!bytes || room > ROOM_MAX || own_bytes > ROOM_MAX)
        return picture_fail(p, -EILSEQ, "it has too many pixels for one pixel of the result");
    int r = budget_take(p, room + bytes + own_bytes);
    if (r == 0)
        r = scratch_take(p, room + bytes);
    if (r < 0)
        return r;
    p->room = p->scratch->memory;
    resample_begin(&p->resample, &crop.x, &crop.y, o->interpolation, p->room + room);
    const struct filter *x = &p->resample.x, *y = &p->resample.y;
    *ret_part = (struct picture_part){.shrinks = shrinks,
                                      .x = x->begin,
                                      .y = y->begin,
                                      .width = x->end - x->begin,
                                      .height = y->end - y->begin};
    return 0;
}

void picture_row(struct picture *p, const uint8_t *pixels)
{
    struct resample *r = &p->resample;
    resample_give(r, pixels);
    while (resample_take(r))
        write_pixels(p->plan, r->row, r->x.count, p->to, (size_t)(r->made - 1) * r->x.count);
}
