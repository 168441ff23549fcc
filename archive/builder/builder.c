/*
 * The builder: left-out members, and its creation and end. builder_members.c adds members and
 * links, builder_data.c the places of their bytes, builder_xattrs.c extended attributes, all to
 * the tables of builder_tables.c; builder_write.c makes the image.
 */
#include "builder.h"

#include <string.h>
#include <sys/random.h>

#include "builder_copy_private.h"
#include "bytes.h"

/*
 * ---- left-out members: no directory can show them ----
 *
 * Programs that extract complain about such a member, extract all others and report at the end
 * that something was wrong. The builder does the same: an archive of a million files is not
 * worthless for one hard link whose file was not packed. The index records the left-out
 * members, so that every mount can report them, even one that finds the index already made.
 */

static void builder_put_left_out(char *at, const struct fault *why, uint32_t member_len,
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

int builder_leave_out_more(struct builder *b, uint64_t count)
{
    if (count == 0)
        return 0;
    if (vector_extend(&b->left_out, sizeof(uint64_t)) < 0)
        return -ENOMEM;
    if (__builtin_add_overflow(b->left_out_count, count, &b->left_out_count))
        b->left_out_count = UINT64_MAX;
    bytes_put_le64(b->left_out.at, b->left_out_count);
    return 0;
}

int builder_leave_out(struct builder *b, const struct fault *why)
{
    uint32_t member_len = (uint32_t)strnlen(why->member, sizeof(why->member));
    uint32_t what_len = (uint32_t)strnlen(why->what, sizeof(why->what));
    size_t bytes = DISK_LEFT_OUT_HEAD + disk_left_out_texts(member_len, what_len);
    if (builder_leave_out_more(b, 1) < 0 || vector_reserve(&b->left_out, bytes) < 0)
        return -ENOMEM;
    if (b->left_out_count > DISK_LEFT_OUT_TOLD)
        return 0;
    builder_put_left_out(b->left_out.at + b->left_out.count, why, member_len, what_len);
    b->left_out.count += bytes;
    return 0;
}

/* ---- life ---- */

int builder_new(struct builder **ret_builder)
{
    struct builder *b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->pending_inode = UINT32_MAX;
    if (getrandom(&b->seed, sizeof(b->seed), GRND_NONBLOCK) < 0)
        b->seed = (uint64_t)(uintptr_t)b;
    struct builder_inode root = {.nlink = 1,
                                 .mtime = (uint64_t)DISK_MTIME_BIAS << DISK_NSEC_BITS};
    uint32_t inode;
    if (attr_table_number(&b->attrs, &builder_directory, &root.attr) < 0 ||
        builder_new_inode(b, &root, &inode) < 0 ||
        vector_push(&b->names, (struct builder_name){0}) < 0 ||
        vector_reserve(&b->last_path, 1) < 0 || vector_reserve(&b->text, 1) < 0 ||
        builder_grow_slots(b) < 0) {
        builder_free(b);
        return -ENOMEM;
    }
    *ret_builder = b;
    return 0;
}

void builder_free(struct builder *b)
{
    if (!b)
        return;
    vector_free(&b->names);
    vector_free(&b->inodes);
    vector_free(&b->text);
    free(b->slots);
    attr_table_free(&b->attrs);
    vector_free(&b->last_path);
    vector_free(&b->strings);
    vector_free(&b->extents);
    vector_free(&b->blocks);
    vector_free(&b->points);
    vector_free(&b->pieces);
    vector_free(&b->windows);
    vector_free(&b->wide_mtimes);
    vector_free(&b->pending);
    vector_free(&b->pending_bytes);
    vector_free(&b->xattrs);
    vector_free(&b->xattr_of);
    map_free(&b->sets);
    vector_free(&b->dirs);
    vector_free(&b->left_out);
    vector_free(&b->sums);
    vector_free(&b->has_sum);
    copying_free(b->copying);
    free(b);
}

void builder_set_archive_size(struct builder *b, uint64_t archive_bytes)
{
    b->archive_bytes = archive_bytes;
}

uint32_t builder_entries(const struct builder *b)
{
    return (uint32_t)b->names.count;
}
