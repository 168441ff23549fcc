/*
 * The options, the table of decoders, and a picture while it is decoded: memory within the
 * budget, and the last step, a row of pixels to its type and layout.
 */
#include "images.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "convert_round.h"
#include "error.h"
#include "numbers.h"
#include "picture.h"

#define SIDE_MAX 16384u          /* of the result */
#define IMAGE_ALIGN UINT64_C(64) /* where a sample has several */
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

/* Gives memory that grew for this picture back, before the next large one may begin. */
static void picture_end(struct picture *p)
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

/* ---- decoders ---- */

/* The last one takes what no other knows. */
static const struct picture_decoder *const decoders[] = {&picture_jpeg, &picture_png,
                                                         &picture_npy, &picture_raw};

/* ---- options ---- */

static void plan_defaults(struct onepot_images *o)
{
    o->height = o->height ? o->height : 224;
    o->width = o->width ? o->width : 224;
    uint32_t longer = o->height > o->width ? o->height : o->width;
    o->resize = o->resize ? o->resize : (uint32_t)((longer * UINT64_C(256) + 112) / 224);
    if (o->scale[0] == 0 && o->scale[1] == 0) {
        o->scale[0] = 0.08f;
        o->scale[1] = 1;
    }
    if (o->ratio[0] == 0 && o->ratio[1] == 0) {
        o->ratio[0] = 3.0f / 4;
        o->ratio[1] = 4.0f / 3;
    }
    bool has_values = o->std[0] != 0 || o->std[1] != 0 || o->std[2] != 0;
    for (unsigned c = 0; c < 3 && !has_values; c++) {
        o->mean[c] = 0;
        o->std[c] = 1;
    }
}

static bool is_range(const float range[2], float most)
{
    return range[0] > 0 && range[0] <= range[1] && range[1] <= most;
}

static int plan_check(const struct onepot_images *o, struct onepot_error *error)
{
    uint32_t longer = o->height > o->width ? o->height : o->width;
    if (longer > SIDE_MAX)
        return error_set(error, -EINVAL, "images of %u by %u pixels", o->height, o->width);
    if (o->crop > ONEPOT_CROP_NONE || o->interpolation > ONEPOT_NEAREST ||
        o->type > ONEPOT_BFLOAT16 || o->on_error > ONEPOT_ERROR_GREY)
        return error_set(error, -EINVAL, "images: no such crop, interpolation or type");
    if (o->crop == ONEPOT_CROP_CENTRE && (o->resize < longer || o->resize > PICTURE_SIDE_MAX))
        return error_set(error, -EINVAL, "images: resize is %u, and %u pixels are cut out",
                         o->resize, longer);
    if (o->on_error == ONEPOT_ERROR_GREY && o->interpolation == ONEPOT_NEAREST)
        return error_set(error, -EINVAL, "images: grey is no value of a mask");
    if (!is_range(o->scale, 1))
        return error_set(error, -EINVAL, "images: scale is a range in (0, 1]");
    if (!is_range(o->ratio, 1e6f))
        return error_set(error, -EINVAL, "images: ratio is a range above 0");
    for (unsigned c = 0; c < 3; c++)
        if (!(o->std[c] > 0 || o->std[c] < 0) || o->mean[c] - o->mean[c] != 0)
            return error_set(error, -EINVAL, "images: no such mean or std");
    if (!o->type && (o->std[0] != 1 || o->std[1] != 1 || o->std[2] != 1 || o->mean[0] != 0 ||
                     o->mean[1] != 0 || o->mean[2] != 0))
        return error_set(error, -EINVAL,
                         "images: mean and std are for float types, not for bytes");
    if (o->raw_channels > 4 || o->raw_channels == 2 || o->raw_height > PICTURE_SIDE_MAX ||
        o->raw_width > PICTURE_SIDE_MAX)
        return error_set(error, -EINVAL, "images: raw pixels of no such shape");
    return 0;
}

static void plan_values(struct images_plan *plan)
{
    const struct onepot_images *o = &plan->o;
    for (unsigned c = 0; c < 3; c++)
        for (unsigned byte = 0; byte < 256; byte++) {
            float x = convert_scale((uint8_t)byte, images_mean(o, c), images_scale(o, c));
            if (o->type == ONEPOT_HALF)
                plan->values[c][byte].half = convert_half(x);
            else if (o->type == ONEPOT_BFLOAT16)
                plan->values[c][byte].half = convert_bfloat16(x);
            else
                plan->values[c][byte].single = x;
        }
}

int images_plan(const struct onepot_images *given, struct onepot_error *error,
                struct images_plan *ret_plan)
{
    struct images_plan plan = {0};
    int r = options_read(&plan.o, sizeof(plan.o), given, error);
    if (r < 0)
        return r;
    plan_defaults(&plan.o);
    r = plan_check(&plan.o, error);
    if (r < 0)
        return r;
    if (plan.o.part && strlen(plan.o.part) >= IMAGES_PART_MAX)
        return error_set(error, -EINVAL, "images: the name of a part is too long");
    strcpy(plan.part, plan.o.part ? plan.o.part : "");
    plan.o.part = NULL;
    plan.o.next = NULL;
    plan.bytes = (uint64_t)plan.o.height * plan.o.width * 3 * picture_item_bytes(&plan.o);
    plan.all_bytes = plan.bytes;
    plan_values(&plan);
    *ret_plan = plan;
    return 0;
}

int images_plan_all(const struct onepot_images *given, struct onepot_error *error,
                    struct images_plan **ret_plans)
{
    struct images_plan *plans = calloc(ONEPOT_IMAGES_MAX, sizeof(*plans));
    uint64_t at = 0;
    int r = plans ? 0 : error_set(error, -ENOMEM, "no memory for images");
    for (size_t i = 0; r == 0 && given; i++) {
        struct onepot_images o = {0};
        if (i == ONEPOT_IMAGES_MAX)
            r = error_set(error, -EINVAL, "more than %u images of a sample", ONEPOT_IMAGES_MAX);
        if (r == 0)
            r = options_read(&o, sizeof(o), given, error);
        if (r == 0)
            r = images_plan(&o, error, &plans[i]);
        if (r == 0 && o.on_error != plans[0].o.on_error)
            r = error_set(error, -EINVAL, "images of one sample have one on_error");
        if (r < 0)
            break;
        if (i > 0) {
            plans[i].at = at = (at + IMAGE_ALIGN - 1) & ~(IMAGE_ALIGN - 1);
            plans[i - 1].next = &plans[i];
        }
        at += plans[i].bytes;
        given = o.next;
    }
    if (r < 0) {
        free(plans);
        return r;
    }
    plans->all_bytes = plans->next ? (at + IMAGE_ALIGN - 1) & ~(IMAGE_ALIGN - 1) : at;
    *ret_plans = plans;
    return 0;
}

int onepot_images_bytes(const struct onepot_images *images, struct onepot_error *error,
                        uint64_t *ret_bytes)
{
    struct images_plan *plans;
    int r = images_plan_all(images, error, &plans);
    if (r < 0)
        return r;
    *ret_bytes = plans->all_bytes;
    free(plans);
    return 0;
}

/* ---- decoding ---- */

bool images_knows(const uint8_t *bytes, size_t len)
{
    for (const struct picture_decoder *const *d = decoders; (*d)->knows; d++)
        if ((*d)->knows(bytes, len))
            return true;
    return false;
}

int images_decode(const struct images_plan *plan, struct images_scratch *scratch,
                  const struct images_place *place, const uint8_t *bytes, size_t len, void *to,
                  char *why)
{
    struct picture p = {.plan = plan,
                        .place = place,
                        .bytes = bytes,
                        .len = len,
                        .why = why,
                        .to = to,
                        .scratch = scratch};
    const struct picture_decoder *const *d = decoders;
    while ((*d)->knows && !(*d)->knows(bytes, len))
        d++;
    int r = (*d)->decode(&p);
    picture_end(&p);
    return r;
}
