/*
 * The options, and the table of decoders.
 */
#include "images.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "convert_round.h"
#include "error.h"
#include "picture.h"

#define SIDE_MAX 16384u          /* of the result */
#define IMAGE_ALIGN UINT64_C(64) /* where a sample has several */

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
