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

/* The kind of a member that is left out with this error; LEFT_OUT_OTHER: none is. */
static enum left_out_kind left_out_kind(int err)
{
    static const struct {
        int err;
        enum left_out_kind kind;
    } kinds[] = {
        {EINVAL, LEFT_OUT_NAME},    {ENAMETOOLONG, LEFT_OUT_NAME}, {ENOTDIR, LEFT_OUT_PLACE},
        {EISDIR, LEFT_OUT_PLACE},   {ELOOP, LEFT_OUT_PLACE},       {ENOENT, LEFT_OUT_LINK},
        {EPERM, LEFT_OUT_LINK},     {ENOTBLK, LEFT_OUT_DEVICE},    {ENOKEY, LEFT_OUT_ENCRYPTED},
        {ENOTSUP, LEFT_OUT_METHOD}, {EILSEQ, LEFT_OUT_DAMAGED},    {EXDEV, LEFT_OUT_INCOMPLETE},
        {ESPIPE, LEFT_OUT_BEHIND},
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (err == kinds[i].err)
            return kinds[i].kind;
    return LEFT_OUT_OTHER;
}

bool builder_may_leave_out(int err)
{
    /* -ENOTSUP may be about the whole archive. */
    return left_out_kind(-err) != LEFT_OUT_OTHER && err != -ENOTSUP;
}

static int builder_count_left_out(struct builder *b, uint64_t count, enum left_out_kind kind)
{
    if (vector_extend(&b->left_out, sizeof(uint64_t)) < 0)
        return -ENOMEM;
    uint64_t *const counts[] = {&b->left_out_count, &b->left_out_kinds[kind]};
    for (size_t i = 0; i < 2; i++)
        if (__builtin_add_overflow(*counts[i], count, counts[i]))
            *counts[i] = UINT64_MAX;
    bytes_put_le64(b->left_out.at, b->left_out_count);
    return 0;
}

/* The reason for a member that is counted already. */
static int builder_tell_left_out(struct builder *b, const struct fault *why)
{
    uint32_t member_len = (uint32_t)strnlen(why->member, sizeof(why->member));
    uint32_t what_len = (uint32_t)strnlen(why->what, sizeof(why->what));
    size_t bytes = DISK_LEFT_OUT_HEAD + disk_left_out_texts(member_len, what_len);
    if (b->left_out_told == DISK_LEFT_OUT_TOLD)
        return 0;
    if (vector_reserve(&b->left_out, bytes) < 0)
        return -ENOMEM;
    b->left_out_told++;
    builder_put_left_out(b->left_out.at + b->left_out.count, why, member_len, what_len);
    b->left_out.count += bytes;
    return 0;
}

int builder_leave_out(struct builder *b, const struct fault *why)
{
    int r = builder_count_left_out(b, 1, left_out_kind(why->err));
    return r < 0 ? r : builder_tell_left_out(b, why);
}

int builder_leave_out_as(struct builder *b, const struct index *index)
{
    uint64_t counts[LEFT_OUT_KINDS], cursor = 0;
    struct fault why;
    int r = 0;
    index_left_out_kinds(index, counts);
    for (size_t i = 0; r == 0 && i < LEFT_OUT_KINDS; i++)
        if (counts[i])
            r = builder_count_left_out(b, counts[i], (enum left_out_kind)i);
    while (r == 0 && index_left_out(index) > 0 &&
           (r = index_left_out_next(index, &cursor, &why)) == 0)
        r = builder_tell_left_out(b, &why);
    builder_leave_out_xattrs(b, index_xattrs_left_out(index));
    return r == -ENOENT ? 0 : r;
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
