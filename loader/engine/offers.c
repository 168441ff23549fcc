/*
 * JPEG files that a device decodes: kept as they are behind the tables of a slab, in the memory
 * that the device's copies read. Each sample has room there for its file, whether the device
 * can decode it or not, since that is known only when its first bytes are read.
 */
#include <string.h>

#include "device_type.h"
#include "fill.h"
#include "numbers.h"
#include "view.h"

#define FILE_MAX (UINT64_C(64) << 20) /* larger ones are the host's */

static size_t offer_room(const struct fill_plan *plan, uint64_t sample)
{
    uint64_t bytes = 0;
    if (archive_check(plan->archive, sample, &(uint64_t){0}) == 0)
        bytes = archive_size(plan->archive, sample);
    return bytes > FILE_MAX ? 0 : slab_rounded(bytes);
}

/* The slab's tables may end anywhere. */
size_t offers_bytes(const struct fill_plan *plan, const uint64_t *indices, uint64_t count)
{
    size_t bytes = SLAB_ALIGN + slab_rounded(count * sizeof(struct device_picture));
    for (uint64_t i = 0; i < count; i++)
        bytes += offer_room(plan, indices[i]);
    return bytes;
}

void offers_lay_out(const struct fill_plan *plan, struct slab *slab, size_t at)
{
    uint64_t count = slab->batch.samples;
    uint8_t *room = slab->memory + slab_rounded(at);
    slab->pictures = (struct device_picture *)(void *)room;
    room += slab_rounded(count * sizeof(*slab->pictures));
    for (uint64_t i = 0; i < count; i++) {
        slab->pictures[i] = (struct device_picture){.bytes = room};
        room += offer_room(plan, slab->indices[i]);
    }
}

bool offers_take(const struct fill_plan *plan, struct slab *slab, uint64_t i,
                 const struct images_place *place, const uint8_t *bytes, uint64_t len,
                 uint64_t record)
{
    struct device_picture *p = &slab->pictures[i];
    struct images_offer offer;
    if (len > offer_room(plan, place->index) ||
        !images_offer(plan->images, place, bytes, len, &offer))
        return false;
    memcpy((uint8_t *)(uintptr_t)p->bytes, bytes, len);
    p->len = len;
    p->record = record;
    p->width = offer.width;
    p->height = offer.height;
    p->x = offer.x;
    p->y = offer.y;
    return true;
}

static int offer_decode(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                        uint64_t i, uint64_t *skipped)
{
    const struct images_place place = {slab->seed, slab->batch.epoch, slab->indices[i]};
    const struct device_picture *p = &slab->pictures[i];
    int r = images_decode(plan->images, &filler->scratch, &place, p->bytes, p->len,
                          slab->memory + slab->offsets[i], filler->why);
    if (r == 0)
        return 0;
    if (!fill_replace(plan, slab, i, r)) {
        if (!plan->skip_errors)
            return r;
        slab->sizes[i] = 0;
        slab->valid[i] = 0;
        memset(slab->memory + slab->offsets[i], 0, plan->stride);
    }
    ++*skipped;
    return 0;
}

int offers_rest(const struct fill_plan *plan, struct filler *filler, struct slab *slab,
                uint64_t *ret_decoded, uint64_t *skipped, uint64_t *ret_bad_record)
{
    uint64_t decoded = 0;
    int r = 0;
    for (uint64_t i = 0; i < slab->batch.samples && r == 0; i++) {
        const struct device_picture *p = &slab->pictures[i];
        if (!p->len)
            continue;
        if (!p->refused) {
            decoded++;
            continue;
        }
        *ret_bad_record = p->record;
        r = offer_decode(plan, filler, slab, i, skipped);
    }
    *ret_decoded = decoded;
    return r;
}
