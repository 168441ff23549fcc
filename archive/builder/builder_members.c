/*
 * The builder, members: in archive order they become names and inodes.
 *
 * Names and inodes are two arrays, because hard links and replaced members make them differ: a
 * name that comes again gets a new inode, while links keep the old one. An inode that lost its
 * last name is left out of the image. builder_paths.c resolves paths.
 */
#include "builder.h"

#include <string.h>
#include <sys/stat.h>

#include "builder_paths.h"
#include "builder_private.h"

#define NLINK_MAX (UINT32_MAX - 1) /* builder_write.c gives the last value a meaning */

static int member_no_memory(const struct builder *b, struct fault *fault)
{
    return fault_set(fault, -ENOMEM, NULL, FAULT_NO_OFFSET,
                     "not enough memory to index more than %zu members", b->names.count);
}

/* ---- members ---- */

static int member_regular(struct builder *b, const struct place *place,
                          const struct builder_member *m, struct builder_inode *inode,
                          uint32_t *ret_kind)
{
    uint64_t end;
    if (m->size_bytes > INT64_MAX)
        return builder_refuse(place, -EUCLEAN, "has a size that no file can have");
    inode->size = m->size_bytes;
    switch (m->data) {
    case DATA_STORED:
        if (__builtin_add_overflow(m->data_offset, m->size_bytes, &end) ||
            (b->archive_bytes && end > b->archive_bytes)) {
            builder_refuse(place, -EUCLEAN, "size %llu lies past the end of file",
                           (unsigned long long)m->size_bytes);
            fault_advise(place->fault,
                         "the archive is cut off or damaged: make or copy it anew");
            return -EUCLEAN;
        }
        inode->data = m->size_bytes ? m->data_offset : 0;
        *ret_kind = DATA_KIND_STORED;
        return 0;
    case DATA_PIECES:
        inode->data = DATA_UNSET;
        *ret_kind = DATA_KIND_EXTENTS;
        return 0;
    }
    return builder_refuse(place, -EINVAL, "has data of an unknown kind");
}

static int member_symlink(struct builder *b, const struct place *place,
                          const struct builder_member *m, struct builder_inode *inode)
{
    if (m->symlink_len == 0)
        return builder_refuse(place, -EINVAL, "is a symbolic link to nothing");
    if (m->symlink_len > INDEX_SYMLINK_MAX)
        return builder_refuse(place, -ENAMETOOLONG,
                              "is a symbolic link of %zu bytes, more than %u", m->symlink_len,
                              INDEX_SYMLINK_MAX);
    if (memchr(m->symlink, '\0', m->symlink_len))
        return builder_refuse(place, -EINVAL, "is a symbolic link with a zero byte");
    inode->size = m->symlink_len;
    inode->data = b->strings.count;
    return vector_append(&b->strings, m->symlink, m->symlink_len);
}

/* Turn a member into an inode, without names yet. */
static int member_make_inode(struct builder *b, const struct place *place,
                             const struct builder_member *m, struct builder_inode *ret_inode,
                             bool *ret_is_wide)
{
    struct builder_inode inode = {.nlink = 0};
    uint32_t kind = DATA_KIND_NONE;
    int r = 0;
    if (m->mtime_nsec > 999999999)
        return builder_refuse(place, -EUCLEAN,
                              "has a time with more than 999999999 nanoseconds");
    switch (m->mode & S_IFMT) {
    case S_IFREG:
        r = member_regular(b, place, m, &inode, &kind);
        break;
    case S_IFLNK:
        r = member_symlink(b, place, m, &inode);
        break;
    case S_IFCHR:
    case S_IFBLK:
        inode.data = m->rdev_major | (uint64_t)m->rdev_minor << 32;
        break;
    case S_IFDIR:
    case S_IFIFO:
    case S_IFSOCK:
        break;
    default:
        r = builder_refuse(place, -EINVAL, "is of a type that is not known (mode %#o)",
                           m->mode);
    }
    if (r < 0)
        return r;
    *ret_is_wide = builder_pack_mtime(m->mtime_sec, m->mtime_nsec, &inode.mtime);
    struct disk_attr attr = {.mode = m->mode & (S_IFMT | 07777), .uid = m->uid, .gid = m->gid};
    attr.flags = kind | (*ret_is_wide ? ATTR_WIDE_MTIME : 0);
    r = attr_table_number(&b->attrs, &attr, &inode.attr);
    if (r == -EOVERFLOW)
        return builder_refuse(
            place, r, "has one combination of owner and mode more than an index can hold");
    if (r < 0)
        return r;
    *ret_inode = inode;
    return 0;
}

/* Bind the place's name to an existing inode. */
static int member_bind(struct builder *b, const struct place *place, uint32_t inode)
{
    struct spot spot;
    int r = builder_locate(b, place, true, &spot);
    if (r < 0)
        return r;
    if (spot.len == 0)
        return builder_refuse(place, -EISDIR,
                              "is not a directory, but has the name of the root");
    if (!spot.found) {
        r = builder_new_name(b, place, &spot, inode);
        if (r < 0)
            return r;
    } else {
        uint32_t old_inode = b->names.at[spot.found].inode;
        if (old_inode == inode)
            return 0;
        if (is_directory_inode(b, old_inode) && b->inodes.at[old_inode].data > 0)
            return builder_refuse(place, -EISDIR,
                                  "takes the place of a directory with members");
        b->inodes.at[old_inode].nlink--;
        b->names.at[spot.found].inode = inode;
        if (is_directory_inode(b, inode))
            b->inodes.at[inode].size = builder_path_bytes(b, &spot);
        builder_forget_path(b);
    }
    b->inodes.at[inode].nlink++;
    return 0;
}

/* The directory that has the place's name already; UINT32_MAX if there is none. */
static int member_find_directory(struct builder *b, const struct place *place,
                                 uint32_t *ret_inode)
{
    struct spot spot;
    int r = builder_locate(b, place, true, &spot);
    if (r < 0)
        return r;
    *ret_inode = UINT32_MAX;
    if ((spot.found || spot.len == 0) && is_directory_inode(b, b->names.at[spot.found].inode))
        *ret_inode = b->names.at[spot.found].inode;
    return 0;
}

static int member_add(struct builder *b, const struct place *place,
                      const struct builder_member *m, uint32_t *ret_inode)
{
    struct builder_inode inode;
    bool is_wide = false;
    uint32_t number = UINT32_MAX;
    int r = member_make_inode(b, place, m, &inode, &is_wide);
    if (r == 0 && S_ISDIR(m->mode))
        r = member_find_directory(b, place, &number);
    if (r < 0)
        return r;
    bool is_new = number == UINT32_MAX;
    if (is_new)
        r = builder_new_inode(b, &inode, &number);
    else { /* a directory that comes again, or the root: the same children */
        b->inodes.at[number].attr = inode.attr;
        b->inodes.at[number].mtime = inode.mtime;
    }
    if (r == 0 && is_wide)
        r = builder_set_wide_mtime(b, number, m->mtime_sec);
    if (r == 0 && is_new)
        r = member_bind(b, place, number);
    if (r < 0)
        return r;
    *ret_inode = number;
    return 0;
}

int builder_add(struct builder *b, const char *path, size_t len,
                const struct builder_member *member, struct fault *fault, uint32_t *ret_inode)
{
    if (b->is_written)
        return -EINVAL;
    struct place place = {
        .path = path,
        .len = len,
        .header_offset = member->header_offset,
        .fault = fault,
        .uid = member->uid,
        .gid = member->gid,
        .mtime_sec = member->mtime_sec,
        .mtime_nsec = member->mtime_nsec,
    };
    int r = member_add(b, &place, member, ret_inode);
    return r == -ENOMEM ? member_no_memory(b, fault) : r;
}

int builder_has(struct builder *b, const char *path, size_t len)
{
    const struct place place = {.path = path, .len = len};
    struct spot spot;
    int r = builder_locate(b, &place, false, &spot);
    return r == -ENOENT ? 0 : r < 0 ? r : spot.len == 0 || spot.found;
}

/* The inode that `target` has now. */
static int link_find_target(struct builder *b, const struct place *link, const char *target,
                            size_t target_len, uint32_t *ret_inode)
{
    struct place place = {.path = target, .len = target_len};
    struct spot spot;
    int r = builder_locate(b, &place, false, &spot);
    if (r == 0 && spot.len > 0 && !spot.found)
        r = -ENOENT;
    int shown = target_len < 100 ? (int)target_len : 100;
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return builder_refuse(link, -ENOENT,
                              "is a hard link to '%.*s', which no member before it is", shown,
                              target);
    uint32_t inode = b->names.at[spot.found].inode;
    if (is_directory_inode(b, inode))
        return builder_refuse(link, -EPERM, "is a hard link to the directory '%.*s'", shown,
                              target);
    *ret_inode = inode;
    return 0;
}

static int link_add(struct builder *b, struct place *place, uint32_t inode)
{
    const struct builder_inode *target = &b->inodes.at[inode];
    if (target->nlink >= NLINK_MAX)
        return builder_refuse(place, -EMLINK, "is one link more than a file can have");
    const struct disk_attr *attr = inode_attr(b, inode);
    place->uid = attr->uid;
    place->gid = attr->gid;
    place->mtime_sec = (int64_t)(target->mtime >> DISK_NSEC_BITS) - DISK_MTIME_BIAS;
    place->mtime_nsec = (uint32_t)(target->mtime & ((1u << DISK_NSEC_BITS) - 1));
    return member_bind(b, place, inode);
}

int builder_link(struct builder *b, const char *path, size_t len, const char *target,
                 size_t target_len, uint64_t header_offset, struct fault *fault,
                 uint32_t *ret_inode)
{
    if (b->is_written)
        return -EINVAL;
    struct place place = {path, len, header_offset, fault, .uid = 0};
    uint32_t inode = 0;
    int r = link_find_target(b, &place, target, target_len, &inode);
    if (r == 0)
        r = link_add(b, &place, inode);
    if (r < 0)
        return r == -ENOMEM ? member_no_memory(b, fault) : r;
    *ret_inode = inode;
    return 0;
}

int builder_link_inode(struct builder *b, const char *path, size_t len, uint32_t inode,
                       uint64_t header_offset, struct fault *fault)
{
    struct place place = {path, len, header_offset, fault, .uid = 0};
    if (b->is_written || inode >= b->inodes.count)
        return -EINVAL;
    if (is_directory_inode(b, inode))
        return builder_refuse(&place, -EPERM, "is a hard link to a directory");
    int r = link_add(b, &place, inode);
    return r == -ENOMEM ? member_no_memory(b, fault) : r;
}
