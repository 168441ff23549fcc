/*
 * Converts a member's attributes from libarchive's terms to the builder's: owner, times,
 * permissions, extended attributes, access lists.
 *
 * Access lists come as text and are shown as the kernel's own attributes hold them
 * (system.posix_acl_*), if they give users by number. Lists that give only names are left out:
 * the users of this node say nothing about the archive.
 */
#include "tar_private.h"

#include <errno.h>
#include <linux/limits.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdlib.h>
#include <string.h>

#include <archive.h>
#include <archive_entry.h>

#include "bytes.h"
#include "cleanup.h"

uint32_t tar_owner(int64_t id, struct tar_oddities *odd)
{
    if (id >= 0 && id < UINT32_MAX)
        return (uint32_t)id;
    odd->owners = true;
    return TAR_NOBODY;
}

/*
 * Times. libarchive gives "-1.5" as second -1 and half a second, which would read as -0.5:
 * tar's decimal fraction counts away from zero, the system's always upwards.
 */
static void attributes_mtime(struct archive_entry *entry, struct builder_member *member)
{
    if (!archive_entry_mtime_is_set(entry))
        return;
    member->mtime_sec = archive_entry_mtime(entry);
    long nsec = archive_entry_mtime_nsec(entry);
    if (member->mtime_sec < 0 && nsec > 0) {
        member->mtime_sec--;
        nsec = 1000000000 - nsec;
    }
    member->mtime_nsec = (uint32_t)nsec;
}

/*
 * The permission bits. libarchive overwrites them from an access list: the group's bits become
 * the owning group's, where stat(2) shows the mask.
 */
static uint32_t attributes_permissions(struct archive_entry *entry)
{
    uint32_t mode = (uint32_t)archive_entry_perm(entry) & 07777;
    if (!(archive_entry_acl_types(entry) & ARCHIVE_ENTRY_ACL_TYPE_ACCESS))
        return mode;
    int type, bits, tag, id;
    const char *name;
    archive_entry_acl_reset(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS);
    while (archive_entry_acl_next(entry, ARCHIVE_ENTRY_ACL_TYPE_ACCESS, &type, &bits, &tag, &id,
                                  &name) == ARCHIVE_OK)
        if (tag == ARCHIVE_ENTRY_ACL_MASK)
            mode = (mode & ~070u) | (uint32_t)(bits & 7) << 3;
    return mode;
}

void tar_describe(struct archive_entry *entry, struct builder_member *member,
                  struct tar_oddities *odd)
{
    member->mode = S_IFREG | attributes_permissions(entry);
    member->uid = tar_owner(archive_entry_uid(entry), odd);
    member->gid = tar_owner(archive_entry_gid(entry), odd);
    member->data = archive_entry_sparse_count(entry) > 0 ? DATA_PIECES : DATA_STORED;
    attributes_mtime(entry, member);
}

int tar_describe_type(struct archive_entry *entry, struct builder_member *member)
{
    mode_t type = archive_entry_filetype(entry);
    switch (type) {
    case AE_IFREG:
        return 0;
    case AE_IFDIR:
    case AE_IFIFO:
        break;
    case AE_IFCHR:
    case AE_IFBLK:
        member->rdev_major = (uint32_t)archive_entry_rdevmajor(entry);
        member->rdev_minor = (uint32_t)archive_entry_rdevminor(entry);
        break;
    case AE_IFLNK:
        member->symlink = archive_entry_symlink(entry);
        if (!member->symlink || !member->symlink[0])
            return -EINVAL;
        member->symlink_len = strlen(member->symlink);
        member->mode = 0777; /* as the system shows it, whatever was stored */
        break;
    default:
        return -ENOTSUP;
    }
    member->mode = type | (member->mode & 07777);
    member->size_bytes = 0;
    member->data = DATA_STORED;
    return 0;
}

struct attribute {
    char *name;
    const void *value;
    size_t value_len;
    size_t place;
};

static int attributes_compare(const void *a, const void *b)
{
    const struct attribute *x = a, *y = b;
    int r = strcmp(x->name, y->name);
    return r ? r : x->place < y->place ? -1 : x->place > y->place;
}

/* GNU tar writes "=" in a name as %3D, because "=" ends the name, and "%" as %25. */
static void attributes_decode_name(char *name)
{
    char *to = name;
    for (const char *from = name; *from; from++) {
        bool coded = strncmp(from, "%3D", 3) == 0 || strncmp(from, "%25", 3) == 0;
        *to++ = !coded ? *from : from[1] == '3' ? '=' : '%';
        from += coded ? 2 : 0;
    }
    *to = '\0';
}

static void attributes_free(struct attribute *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        free(list[i].name);
    free(list);
}

/* `count` attributes, sorted. The caller frees them. */
static int attributes_read(struct archive_entry *entry, size_t count,
                           struct attribute **ret_list)
{
    struct attribute *list = calloc(count, sizeof(*list));
    int r = list ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < count; i++) {
        const char *name;
        list[i].place = i;
        if (archive_entry_xattr_next(entry, &name, &list[i].value, &list[i].value_len) !=
            ARCHIVE_OK)
            r = -EUCLEAN;
        else if (!(list[i].name = strdup(name)))
            r = -ENOMEM;
        else
            attributes_decode_name(list[i].name);
    }
    if (r < 0) {
        if (list)
            attributes_free(list, count);
        return r;
    }
    qsort(list, count, sizeof(*list), attributes_compare);
    *ret_list = list;
    return 0;
}

/*
 * Passes on attributes, each name once: bsdtar writes every attribute in two forms. libarchive
 * lists the header's last one first, and the last one counts.
 */
static int attributes_take_xattrs(struct archive_entry *entry, tar_take_attribute *take,
                                  void *ctx)
{
    size_t count = (size_t)archive_entry_xattr_reset(entry);
    if (count == 0)
        return 0;
    struct attribute *list;
    int r = attributes_read(entry, count, &list);
    if (r < 0)
        return r;
    for (size_t i = 0; r == 0 && i < count; i++) {
        if (i > 0 && strcmp(list[i].name, list[i - 1].name) == 0)
            continue;
        r = take(ctx, list[i].name, list[i].value, list[i].value_len);
    }
    attributes_free(list, count);
    return r;
}

/* ---- access lists ---- */

/* One entry as in system.posix_acl_*, in host order until it is written. */
struct acl_entry {
    uint16_t tag;
    uint16_t permissions;
    uint32_t id;
};

static uint16_t attributes_acl_tag(int tag)
{
    static const struct {
        int tag;
        uint16_t in_value;
    } tags[] = {
        {ARCHIVE_ENTRY_ACL_USER_OBJ, ACL_USER_OBJ},   {ARCHIVE_ENTRY_ACL_USER, ACL_USER},
        {ARCHIVE_ENTRY_ACL_GROUP_OBJ, ACL_GROUP_OBJ}, {ARCHIVE_ENTRY_ACL_GROUP, ACL_GROUP},
        {ARCHIVE_ENTRY_ACL_MASK, ACL_MASK},           {ARCHIVE_ENTRY_ACL_OTHER, ACL_OTHER}};
    for (size_t i = 0; i < sizeof(tags) / sizeof(tags[0]); i++)
        if (tags[i].tag == tag)
            return tags[i].in_value;
    return 0;
}

static int attributes_compare_acl_entries(const void *a, const void *b)
{
    const struct acl_entry *x = a, *y = b;
    if (x->tag != y->tag)
        return x->tag < y->tag ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/*
 * The entries of one list, sorted as the kernel requires; 0 entries: the list can't be shown.
 */
static size_t attributes_read_acl(struct archive_entry *entry, int type, struct acl_entry *list,
                                  size_t count, struct tar_oddities *odd)
{
    int got_type, permissions, tag, id;
    const char *name;
    size_t n = 0;
    while (n < count && archive_entry_acl_next(entry, type, &got_type, &permissions, &tag, &id,
                                               &name) == ARCHIVE_OK) {
        struct acl_entry e = {attributes_acl_tag(tag), (uint16_t)(permissions & 7),
                              (uint32_t)ACL_UNDEFINED_ID};
        if (e.tag == 0)
            return 0;
        if (e.tag == ACL_USER || e.tag == ACL_GROUP) {
            if (id < 0) {
                /* Only a name, and its number is not known here. */
                odd->acls = true;
                return 0;
            }
            e.id = (uint32_t)id;
        }
        list[n++] = e;
    }
    qsort(list, n, sizeof(*list), attributes_compare_acl_entries);
    return n;
}

static int attributes_take_acl(struct archive_entry *entry, tar_take_attribute *take, void *ctx,
                               int type, const char *name, struct tar_oddities *odd)
{
    int count = archive_entry_acl_reset(entry, type);
    if (count <= 0 || (size_t)count > XATTR_SIZE_MAX / sizeof(struct acl_entry) - 1)
        return 0;
    auto_free struct acl_entry *list = calloc((size_t)count, sizeof(*list));
    auto_free uint8_t *value = calloc((size_t)count + 1, sizeof(*list));
    if (!list || !value)
        return -ENOMEM;
    size_t n = attributes_read_acl(entry, type, list, (size_t)count, odd);
    if (n == 0)
        return 0;
    bytes_put_le32(value, POSIX_ACL_XATTR_VERSION);
    uint8_t *p = value + 4;
    for (size_t i = 0; i < n; i++, p += 8) {
        bytes_put_le16(p, list[i].tag);
        bytes_put_le16(p + 2, list[i].permissions);
        bytes_put_le32(p + 4, list[i].id);
    }
    return take(ctx, name, value, (size_t)(p - value));
}

static int attributes_take_acls(struct archive_entry *entry, tar_take_attribute *take,
                                void *ctx, struct tar_oddities *odd)
{
    int types = archive_entry_acl_types(entry);
    int r = 0;
    if (types & ARCHIVE_ENTRY_ACL_TYPE_ACCESS)
        r = attributes_take_acl(entry, take, ctx, ARCHIVE_ENTRY_ACL_TYPE_ACCESS,
                                "system.posix_acl_access", odd);
    if (r == 0 && types & ARCHIVE_ENTRY_ACL_TYPE_DEFAULT)
        r = attributes_take_acl(entry, take, ctx, ARCHIVE_ENTRY_ACL_TYPE_DEFAULT,
                                "system.posix_acl_default", odd);
    return r;
}

int tar_take_attributes(struct archive_entry *entry, tar_take_attribute *take, void *ctx,
                        struct tar_oddities *odd)
{
    int r = attributes_take_xattrs(entry, take, ctx);
    return r < 0 ? r : attributes_take_acls(entry, take, ctx, odd);
}
