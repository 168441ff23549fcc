/*
 * JPEG files that a device may decode in place of this library. Only the common kind is
 * offered, in which decoders can't differ in what they understand: one interleaved scan of
 * YCbCr, eight bits, baseline, and all of the file. Whatever is rare, odd or cut short stays
 * here, where its colours are PIL's and its errors have words.
 */
#include "images.h"

#include <string.h>

#include "crop.h"
#include "picture.h"

#define COMPONENTS 3u

enum marker {
    MARKER_FRAME = 0xc0, /* baseline; up to 0xcf, but for three, lie frames of other kinds */
    MARKER_HUFFMAN = 0xc4,
    MARKER_IMAGE = 0xd8,
    MARKER_END = 0xd9,
    MARKER_SCAN = 0xda,
    MARKER_QUANTISATION = 0xdb,
    MARKER_RESTARTS = 0xdd,
    MARKER_APP = 0xe0, /* to 0xef */
    MARKER_ADOBE = 0xee,
    MARKER_COMMENT = 0xfe,
};

static uint32_t two_bytes(const uint8_t *at)
{
    return (uint32_t)(at[0] << 8 | at[1]);
}

/* Luma may have more samples than the colours, in one of these proportions. */
static bool is_sampling(uint8_t luma)
{
    static const uint8_t known[] = {0x11, 0x21, 0x22, 0x12, 0x41, 0x42};
    return memchr(known, luma, sizeof(known)) != NULL;
}

/* precision, height, width, components, and of each its id, sampling and table */
static bool frame_is_common(const uint8_t *frame, size_t len, struct images_offer *ret)
{
    if (len != 6 + 3 * COMPONENTS || frame[0] != 8 || frame[5] != COMPONENTS)
        return false;
    ret->height = two_bytes(frame + 1);
    ret->width = two_bytes(frame + 3);
    const uint8_t *one = frame + 6;
    bool is_rgb = one[0] == 'R' && one[3] == 'G' && one[6] == 'B';
    return !is_rgb && is_sampling(one[1]) && one[4] == 0x11 && one[7] == 0x11;
}

/* Adobe's marker says how colours are coded. */
static bool adobe_is_common(const uint8_t *adobe, size_t len)
{
    return len < 12 || memcmp(adobe, "Adobe", 5) != 0 || adobe[11] == 1;
}

static bool segment_is_common(uint8_t marker, const uint8_t *segment, size_t len)
{
    if (marker == MARKER_ADOBE)
        return adobe_is_common(segment, len);
    return marker == MARKER_HUFFMAN || marker == MARKER_QUANTISATION ||
           marker == MARKER_RESTARTS || marker == MARKER_COMMENT ||
           (marker >= MARKER_APP && marker < MARKER_APP + 16);
}

/* The segments up to the scan, which takes the rest of the file. */
static bool file_is_common(const uint8_t *bytes, size_t len, struct images_offer *ret)
{
    bool has_frame = false;
    if (len < 4 || bytes[0] != 0xff || bytes[1] != MARKER_IMAGE || bytes[len - 2] != 0xff ||
        bytes[len - 1] != MARKER_END)
        return false;
    for (size_t at = 2; at + 4 <= len && bytes[at] == 0xff;) {
        uint8_t marker = bytes[at + 1];
        size_t size = two_bytes(bytes + at + 2);
        const uint8_t *segment = bytes + at + 4;
        if (size < 2 || size > len - at - 2)
            return false;
        if (marker == MARKER_SCAN)
            return has_frame && size > 2 && segment[0] == COMPONENTS;
        if (marker == MARKER_FRAME && !has_frame)
            has_frame = frame_is_common(segment, size - 2, ret);
        else if (!segment_is_common(marker, segment, size - 2))
            return false;
        at += 2 + size;
    }
    return false;
}

bool images_offer(const struct images_plan *plan, const struct images_place *place,
                  const uint8_t *bytes, size_t len, struct images_offer *ret_offer)
{
    struct images_offer offer;
    struct crop crop;
    if (!file_is_common(bytes, len, &offer) || !picture_has_size(offer.width, offer.height))
        return false;
    crop_plan(&plan->o, place, offer.width, offer.height, &crop);
    if (!resample_bytes(&crop.x, &crop.y, plan->o.interpolation))
        return false;
    offer.x = crop.x;
    offer.y = crop.y;
    *ret_offer = offer;
    return true;
}
