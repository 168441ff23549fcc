/*
 * The index, reading side: members of the archive that it lacks.
 */
#include "index.h"

#include <string.h>

#include "bytes.h"
#include "index_private.h"
#include "numbers.h"

uint64_t index_left_out(const struct index *index)
{
    const uint64_t *count = index_bytes(index, SECTION_LEFT_OUT, 0, sizeof(*count));
    return min_u64(count ? le64toh(*count) : 0, UINT32_MAX); /* callers add these numbers */
}

/* Copy a text of the record, truncated to the room in the fault. */
static void copy_text(char *to, size_t size, const char *from, size_t len)
{
    size_t n = len < size ? len : size - 1;
    memcpy(to, from, n);
    to[n] = '\0';
}

int index_left_out_next(const struct index *index, uint64_t *cursor, struct fault *ret_why)
{
    uint64_t at = *cursor ? *cursor : sizeof(uint64_t);
    if (at >= index->sections[SECTION_LEFT_OUT].length)
        return -ENOENT;
    const char *head = index_bytes(index, SECTION_LEFT_OUT, at, DISK_LEFT_OUT_HEAD);
    if (!head)
        return -EUCLEAN;
    uint32_t member_len = bytes_le32(head + 8), what_len = bytes_le32(head + 12);
    uint64_t text_len = disk_left_out_texts(member_len, what_len);
    const char *text = index_bytes(index, SECTION_LEFT_OUT, at + DISK_LEFT_OUT_HEAD, text_len);
    if (!text)
        return -EUCLEAN;
    *ret_why = (struct fault){.err = EUCLEAN, .offset = bytes_le64(head)};
    copy_text(ret_why->member, sizeof(ret_why->member), text, member_len);
    copy_text(ret_why->what, sizeof(ret_why->what), text + member_len, what_len);
    *cursor = at + DISK_LEFT_OUT_HEAD + text_len;
    return 0;
}
