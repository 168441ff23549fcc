/*
 * The end of central directory holds offsets from the start of the zip. Where something was put
 * in front (a program that unpacks itself), the directory lies further behind than it says,
 * and so does everything else, by the same distance; or the offsets count from the start of
 * the file, of which the source has only the zip.
 *
 * Behind the end lies its comment, which may be cut off or followed by more, and may hold
 * anything, another zip's end as well. So each end that there is counts only if it leads to a
 * directory; one whose comment reaches the end of the file exactly goes before the others, and
 * a later one before an earlier.
 */
#include "zip_end.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bytes.h"
#include "cleanup.h"
#include "numbers.h"
#include "source_concat.h"
#include "zip_records.h"

int zip_fault_damaged(struct fault *fault, const char *member, uint64_t offset,
                      const char *what)
{
    return fault_set_advised(fault, -EUCLEAN, member, offset,
                             "make the archive again, or copy it again", "%s", what);
}

static int end_damaged(struct fault *fault, uint64_t offset, const char *what)
{
    return zip_fault_damaged(fault, NULL, offset, what);
}

/* Values that fit are in both ends. What only looks like a zip64 end has others. */
static bool is_same_end(const struct zip_end *end, const struct zip_end *end64)
{
    return end->has_64 || ((end->entries == UINT16_MAX || end->entries == end64->entries) &&
                           end->directory_bytes == end64->directory_bytes &&
                           end->directory_offset == end64->directory_offset);
}

/*
 * The zip64 end, if there is one. It lies right before its locator, or where that says. The
 * bytes before an end that needs none may belong to the last member's name.
 */
static int read_end64(const struct source *source, uint64_t end_at, struct zip_end *end,
                      uint64_t *ret_directory_end, struct fault *fault)
{
    uint8_t locator[ZIP_LOCATOR_BYTES], bytes[ZIP_END64_BYTES];
    struct zip_end end64;
    uint64_t recorded;
    if (end_at < sizeof(locator) + sizeof(bytes))
        return 0;
    int r =
        source_read_fault(source, locator, sizeof(locator), end_at - sizeof(locator), fault);
    if (r < 0)
        return r;
    if (!zip_read_locator(locator, &recorded))
        return end->has_64
                   ? end_damaged(fault, end_at, "the zip64 end of its directory is missing")
                   : 0;
    const uint64_t places[] = {recorded, end_at - sizeof(locator) - sizeof(bytes)};
    for (size_t i = 0; i < 2; i++) {
        if (places[i] > end_at - sizeof(locator) - sizeof(bytes))
            continue;
        r = source_read_fault(source, bytes, sizeof(bytes), places[i], fault);
        if (r < 0)
            return r;
        if (zip_read_end64(bytes, &end64) && is_same_end(end, &end64)) {
            *end = end64;
            *ret_directory_end = places[i];
            return 0;
        }
    }
    return end->has_64
               ? end_damaged(fault, recorded, "the zip64 end of its directory is missing")
               : 0;
}

static const char not_its_own[] =
    "the directory at its end is not its own: the archive was cut off, or has more than 4 GiB "
    "without zip64";

/* Does a directory begin at `at`? An empty one begins with its end, and is anywhere. */
static int check_start(const struct source *source, const struct zip_end *end, uint64_t at,
                       struct fault *fault)
{
    uint8_t magic[4];
    if (end->directory_bytes == 0)
        return 0;
    if (end->directory_bytes < ZIP_ENTRY_BYTES)
        return end_damaged(fault, at, "its directory is damaged");
    int r = source_read_fault(source, magic, sizeof(magic), at, fault);
    if (r < 0)
        return r;
    return memcmp(magic, ZIP_ENTRY_MAGIC, 4) == 0
               ? 0
               : end_damaged(fault, at, "its directory is damaged");
}

/* A file that begins like a zip has a member at its start, so nothing was put in front of it.
 */
static int check_front(const struct source *source, int64_t shift, struct fault *fault)
{
    uint8_t magic[4];
    int r = shift <= 0 ? 0 : source_read_fault(source, magic, sizeof(magic), 0, fault);
    if (r < 0 || shift <= 0)
        return r;
    return memcmp(magic, ZIP_LOCAL_MAGIC, 4) != 0 ? 0 : end_damaged(fault, 0, not_its_own);
}

/* The directory that ends at `directory_end`, or lies where `end` says. */
static int place_directory(const struct source *source, const struct zip_end *end,
                           uint64_t directory_end, struct zip_place *place, struct fault *fault)
{
    place->directory = directory_end - end->directory_bytes;
    place->shift = (int64_t)(place->directory - end->directory_offset);
    int r = check_start(source, end, place->directory, fault);
    if (r == 0)
        r = check_front(source, place->shift, fault);
    if (r != -EUCLEAN || place->shift <= 0)
        return r;
    /* Something may lie between the directory and its end instead. */
    place->directory = end->directory_offset;
    place->shift = 0;
    return check_start(source, end, place->directory, NULL) == 0 ? 0 : r;
}

bool zip_volume_base(const struct source *source, uint32_t number, uint64_t *ret_base)
{
    bool has_several = source_member(source, 0) != source && source_start(source) == 0;
    if (number > 0 && !(has_several && source_member(source, number)))
        return false;
    *ret_base = number > 0 ? source_concat_base(source, number) : 0;
    return true;
}

/* The directory of a zip of several volumes: its offset becomes one in all of them. */
static int find_in_volumes(const struct source *source, uint64_t end_at, struct zip_end *end,
                           struct fault *fault)
{
    uint64_t base;
    uint32_t here = 0;
    while (zip_volume_base(source, here, &base))
        here++;
    if (end->volume >= UINT16_MAX || here != end->volume + 1)
        return fault_set_advised(fault, -EINVAL, NULL, end_at,
                                 "copy all of them into one directory: NAME.z01 .. NAME.zip",
                                 "is one volume of a zip of %" PRIu32, end->volume + 1);
    if (!zip_volume_base(source, end->directory_volume, &base) ||
        __builtin_add_overflow(end->directory_offset, base, &end->directory_offset))
        return end_damaged(fault, end_at, "its directory lies in a volume that it lacks");
    return 0;
}

static int read_end(const struct source *source, const uint8_t bytes[ZIP_END_BYTES],
                    uint64_t end_at, struct zip_place *place, struct fault *fault)
{
    struct zip_end end;
    uint64_t directory_end = end_at;
    zip_read_end(bytes, &end);
    int r = read_end64(source, end_at, &end, &directory_end, fault);
    if (r < 0)
        return r;
    r = end.is_split ? find_in_volumes(source, end_at, &end, fault) : 0;
    if (r < 0)
        return r;
    if (end.directory_bytes > directory_end || end.directory_offset > INT64_MAX ||
        end.directory_offset > directory_end - end.directory_bytes + source_start(source))
        return end_damaged(fault, end_at,
                           "its directory lies outside the archive: bytes are missing");
    if (end.entries > end.directory_bytes / ZIP_ENTRY_BYTES)
        return end_damaged(fault, end_at, "its directory is too short for its members");
    *place = (struct zip_place){
        .directory_bytes = end.directory_bytes,
        .entries = end.entries,
        .has_64 = end.has_64,
    };
    r = place_directory(source, &end, directory_end, place, fault);
    return r == 0 && end.is_split && place->shift != 0
               ? end_damaged(fault, end_at,
                             "its volumes are longer or shorter than they were, or of two zips")
               : r;
}

/* Is an end at `at`, and does its comment reach the end of `tail` exactly, or not? */
static bool is_end(const uint8_t *tail, size_t len, size_t at, bool is_exact)
{
    return memcmp(tail + at, ZIP_END_MAGIC, 4) == 0 &&
           is_exact == (bytes_le16(tail + at + 20) == len - at - ZIP_END_BYTES);
}

/* An error tells of the end that comes first. */
static int try_ends(const struct source *source, const uint8_t *tail, size_t len,
                    struct zip_place *ret_place, struct fault *fault)
{
    int first = 0;
    for (int round = 0; round < 2 && len >= ZIP_END_BYTES; round++)
        for (size_t at = len - ZIP_END_BYTES + 1; at-- > 0;) {
            if (!is_end(tail, len, at, round == 0))
                continue;
            int r = read_end(source, tail + at, source_size(source) - len + at, ret_place,
                             first ? NULL : fault);
            if (r != -EUCLEAN && r != -EINVAL) {
                if (r == 0 && first && fault)
                    *fault = (struct fault){0};
                return r;
            }
            first = first ? first : r;
        }
    return first ? first
                 : end_damaged(fault, source_size(source),
                               "the archive is truncated: the directory at its end is missing");
}

int zip_find_directory(const struct source *source, struct zip_place *ret_place,
                       struct fault *fault)
{
    size_t len = (size_t)min_u64(source_size(source), ZIP_END_BYTES + ZIP_COMMENT_MAX);
    auto_free uint8_t *tail = malloc(len ? len : 1);
    int r =
        tail ? source_read_fault(source, tail, len, source_size(source) - len, fault) : -ENOMEM;
    return r < 0 ? r : try_ends(source, tail, len, ret_place, fault);
}

int zip_count_volumes(const struct source *source, uint32_t *ret_count)
{
    size_t len = (size_t)min_u64(source_size(source), ZIP_END_BYTES + ZIP_COMMENT_MAX);
    auto_free uint8_t *tail = malloc(len ? len : 1);
    int r = tail ? source_read(source, tail, len, source_size(source) - len) : -ENOMEM;
    *ret_count = 0;
    for (size_t at = len - min_u64(len, ZIP_END_BYTES) + 1; r == 0 && at-- > 0;)
        if (len - at >= ZIP_END_BYTES && is_end(tail, len, at, true)) {
            struct zip_end end;
            uint64_t ignored;
            zip_read_end(tail + at, &end);
            r = read_end64(source, source_size(source) - len + at, &end, &ignored, NULL);
            *ret_count = r == 0 ? end.volume + 1 : 0;
            break;
        }
    return r == -EUCLEAN ? 0 : r;
}

/*
 * The lowest offset of a member's header, as the directory records it. Entries that need zip64
 * for that are passed over: they are not the first. False: there is none.
 */
static int find_lowest(const struct source *source, const struct zip_place *place,
                       uint64_t *ret_lowest)
{
    uint8_t bytes[ZIP_ENTRY_BYTES];
    uint64_t end = place->directory + place->directory_bytes;
    *ret_lowest = UINT32_MAX;
    for (uint64_t at = place->directory; end - at >= sizeof(bytes);) {
        int r = source_read(source, bytes, sizeof(bytes), at);
        if (r < 0)
            return r;
        size_t len = zip_entry_bytes(bytes);
        if (len == 0 || len > end - at)
            break;
        *ret_lowest = min_u64(*ret_lowest, bytes_le32(bytes + 42));
        at += len;
    }
    return 0;
}

int zip_find_begin(const struct source *source, uint64_t *ret_begin)
{
    struct zip_place place;
    uint64_t lowest = UINT32_MAX, begin;
    uint8_t magic[4] = ZIP_LOCAL_MAGIC;
    int r = zip_find_directory(source, &place, NULL);
    if (r == 0)
        r = find_lowest(source, &place, &lowest);
    if (r < 0)
        return r == -EUCLEAN || r == -EINVAL ? 0 : r;
    if (lowest == UINT32_MAX || __builtin_add_overflow(place.shift, lowest, &begin) ||
        begin >= place.directory)
        return 0;
    r = begin == 0 ? 0 : source_read(source, magic, sizeof(magic), begin);
    *ret_begin = begin;
    return r < 0 ? r : memcmp(magic, ZIP_LOCAL_MAGIC, sizeof(magic)) == 0;
}
