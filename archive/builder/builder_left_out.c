/*
 * The builder, left-out members: those that no directory can show.
 *
 * Programs that extract complain about such a member, extract all others and report at the end
 * that something was wrong. The builder does the same: an archive of a million files is not
 * worthless for one hard link whose file was not packed. The index records the left-out
 * members, so that every mount can report them, even one that finds the index already made.
 */
#include "builder.h"

#include <string.h>

#include "builder_private.h"
#include "bytes.h"

static void put_record(char *at, const struct fault *why, uint32_t member_len,
                       uint32_t what_len)
{
    memset(at, 0, DISK_LEFT_OUT_HEAD + disk_left_out_texts(member_len, what_len));
    bytes_put_le64(at, why->offset);
    bytes_put_le32(at + 8, member_len);
    bytes_put_le32(at + 12, what_len);
    memcpy(at + DISK_LEFT_OUT_HEAD, why->member, member_len);
    memcpy(at + DISK_LEFT_OUT_HEAD + member_len, why->what, what_len);
}

bool builder_may_leave_out(int err)
{
    return err == -ENOENT || err == -EPERM || err == -ENOTDIR || err == -EISDIR ||
           err == -EINVAL || err == -ENAMETOOLONG || err == -ELOOP;
}

int builder_leave_out(struct builder *b, const struct fault *why)
{
    uint32_t member_len = (uint32_t)strnlen(why->member, sizeof(why->member));
    uint32_t what_len = (uint32_t)strnlen(why->what, sizeof(why->what));
    size_t bytes = DISK_LEFT_OUT_HEAD + disk_left_out_texts(member_len, what_len);
    if (vector_reserve(&b->left_out, sizeof(uint64_t) + bytes) < 0)
        return -ENOMEM;
    if (b->left_out_count == 0)
        b->left_out.count = sizeof(uint64_t);
    bytes_put_le64(b->left_out.at, ++b->left_out_count);
    if (b->left_out_count > DISK_LEFT_OUT_TOLD)
        return 0;
    put_record(b->left_out.at + b->left_out.count, why, member_len, what_len);
    b->left_out.count += bytes;
    return 0;
}
