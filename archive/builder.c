/*
 * The builder, first half: members in the order of the archive become names and inodes.
 *
 * Names and inodes are two arrays, because hard links and replaced members make them
 * differ: a name that comes again gets a new inode, while links keep the old one. An
 * inode that lost its last name is left out when the image is written. Names are found
 * through one hash table for all directories, keyed by parent and name; its hash has a
 * random seed, so that nobody can prepare an archive whose names all collide. Members
 * of one directory tend to follow each other, so the last directory is remembered and
 * most members cost one probe.
 */
#include "builder.h"

#include <endian.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "builder_private.h"

#define ENTRIES_MAX (UINT32_MAX - 1)
#define NLINK_MAX (UINT32_MAX - 1) /* the last value has a meaning in builder_write.c */
#define XATTR_VALUE_MAX 65536u     /* XATTR_SIZE_MAX of Linux */

static const struct disk_attr default_directory = {.mode = S_IFDIR | 0755};

/* A path, as a member or a link gave it, for the functions that find its place. */
struct place {
    const char *path;
    size_t len;
    uint64_t header_offset;
    struct fault *fault;
    /* For directories that no member announced. */
    uint32_t uid, gid;
    int64_t mtime_sec;
    uint32_t mtime_nsec;
};

static __attribute__((format(printf, 3, 4))) int refuse(const struct place *place, int err,
                                                        const char *format, ...)
{
    char member[sizeof(((struct fault *)0)->member)];
    char what[sizeof(((struct fault *)0)->what)];
    snprintf(member, sizeof(member), "%.*s", place->len < INT_MAX ? (int)place->len : INT_MAX,
             place->path);
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    return fault_set(place->fault, err, member, place->header_offset, "%s", what);
}

static int no_memory(const struct builder *b, struct fault *fault)
{
    return fault_set(fault, -ENOMEM, NULL, FAULT_NO_OFFSET,
                     "not enough memory to index more than %zu members", b->names.count);
}

/* ---- attributes ---- */

static size_t attr_slot(const struct builder *b, const struct disk_attr *attr)
{
    size_t mask = b->attr_slot_count - 1;
    size_t slot = XXH3_64bits(attr, sizeof(*attr)) & mask;
    while (b->attr_slots[slot] &&
           memcmp(&b->attrs.at[b->attr_slots[slot] - 1], attr, sizeof(*attr)) != 0)
        slot = (slot + 1) & mask;
    return slot;
}

static int grow_attr_slots(struct builder *b)
{
    size_t count = b->attr_slot_count ? b->attr_slot_count * 2 : 64;
    uint32_t *slots = calloc(count, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    free(b->attr_slots);
    b->attr_slots = slots;
    b->attr_slot_count = count;
    for (size_t i = 0; i < b->attrs.count; i++)
        slots[attr_slot(b, &b->attrs.at[i])] = (uint32_t)i + 1;
    return 0;
}

int builder_intern_attr(struct builder *b, const struct disk_attr *attr, uint32_t *ret_attr)
{
    if (b->attrs.count * 2 >= b->attr_slot_count && grow_attr_slots(b) < 0)
        return -ENOMEM;
    size_t slot = attr_slot(b, attr);
    if (!b->attr_slots[slot]) {
        if (b->attrs.count == DISK_ATTR_LIMIT)
            return -EOVERFLOW;
        if (vector_reserve(&b->attrs, 1) < 0)
            return -ENOMEM;
        b->attrs.at[b->attrs.count++] = *attr;
        b->attr_slots[slot] = (uint32_t)b->attrs.count;
    }
    *ret_attr = b->attr_slots[slot] - 1;
    return 0;
}

/* Set and clear flags of one inode. */
static int change_flags(struct builder *b, uint32_t inode, uint32_t clear, uint32_t set)
{
    struct disk_attr attr = *inode_attr(b, inode);
    attr.flags = (attr.flags & ~clear) | set;
    return builder_intern_attr(b, &attr, &b->inodes.at[inode].attr);
}

static int add_side(struct builder *b, uint32_t inode, uint32_t kind, uint64_t value)
{
    if (vector_reserve(&b->sides, 1) < 0)
        return -ENOMEM;
    b->sides.at[b->sides.count++] = (struct builder_side){inode, kind, value};
    return 0;
}

/* ---- names and inodes ---- */

static uint32_t hash_name(const struct builder *b, uint32_t parent, const char *name,
                          size_t len)
{
    uint64_t seed = b->seed ^ parent * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(XXH3_64bits_withSeed(name, len, seed) >> 32);
}

static int grow_slots(struct builder *b)
{
    size_t count = b->slot_count ? b->slot_count * 2 : 1024;
    uint64_t *slots = calloc(count, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    for (size_t i = 0; i < b->slot_count; i++) {
        if (!b->slots[i])
            continue;
        size_t slot = (b->slots[i] >> 32) & (count - 1);
        while (slots[slot])
            slot = (slot + 1) & (count - 1);
        slots[slot] = b->slots[i];
    }
    free(b->slots);
    b->slots = slots;
    b->slot_count = count;
    return 0;
}

/* The name, or 0: the root is nobody's child. */
static uint32_t find_name(const struct builder *b, uint32_t parent, const char *name,
                          size_t len, uint32_t hash)
{
    size_t mask = b->slot_count - 1;
    for (size_t slot = hash & mask; b->slots[slot]; slot = (slot + 1) & mask) {
        uint32_t other = (uint32_t)b->slots[slot];
        if (b->slots[slot] >> 32 == hash && b->names.at[other].parent == parent &&
            name_length(b, other) == len && memcmp(name_text(b, other), name, len) == 0)
            return other;
    }
    return 0;
}

static int new_name(struct builder *b, const struct place *place, uint32_t parent,
                    const char *name, size_t len, uint32_t hash, uint32_t inode)
{
    if (b->names.count >= ENTRIES_MAX)
        return refuse(place, -EOVERFLOW, "is one member more than an index can have");
    if (b->text.count + len >= DISK_NAME_LIMIT)
        return refuse(place, -EOVERFLOW, "is one name more than an index can hold");
    /* At most four fifths full. */
    if ((b->names.count + 1) / 4 * 5 >= b->slot_count && b->slot_count <= UINT32_MAX &&
        grow_slots(b) < 0)
        return -ENOMEM;
    if (vector_reserve(&b->names, 1) < 0 || vector_reserve(&b->text, len) < 0)
        return -ENOMEM;

    uint32_t number = (uint32_t)b->names.count++;
    b->names.at[number] = (struct builder_name){parent, inode, b->text.count << 8 | len};
    memcpy(b->text.at + b->text.count, name, len);
    b->text.count += len;

    size_t mask = b->slot_count - 1;
    size_t slot = hash & mask;
    while (b->slots[slot])
        slot = (slot + 1) & mask;
    b->slots[slot] = (uint64_t)hash << 32 | number;
    b->inodes.at[b->names.at[parent].inode].data++;
    return 0;
}

static int new_inode(struct builder *b, const struct builder_inode *inode, uint32_t *ret_inode)
{
    if (b->inodes.count >= ENTRIES_MAX)
        return -EOVERFLOW;
    if (vector_reserve(&b->inodes, 1) < 0)
        return -ENOMEM;
    *ret_inode = (uint32_t)b->inodes.count;
    b->inodes.at[b->inodes.count++] = *inode;
    return 0;
}

/* What the entry's time is, and whether it is one that only EXTRA can hold. */
static bool pack_mtime(int64_t sec, uint32_t nsec, uint64_t *ret_mtime)
{
    bool is_wide = sec < -DISK_MTIME_BIAS || sec >= DISK_MTIME_LIMIT - DISK_MTIME_BIAS;
    uint64_t biased = is_wide ? 0 : (uint64_t)(sec + DISK_MTIME_BIAS);
    *ret_mtime = biased << DISK_NSEC_BITS | nsec;
    return is_wide;
}

/* ---- paths ---- */

static int check_part(const struct place *place, const char *part, size_t len)
{
    if (len == 2 && part[0] == '.' && part[1] == '.')
        return refuse(place, -EINVAL, "has '..' in its name");
    if (len > INDEX_NAME_MAX)
        return refuse(place, -ENAMETOOLONG, "has a name of %zu bytes, more than %u", len,
                      INDEX_NAME_MAX);
    return 0;
}

/* A directory that must exist although no member announced it. */
static int add_parent(struct builder *b, const struct place *place, uint32_t parent,
                      const char *name, size_t len, uint32_t hash, uint32_t *ret_name)
{
    struct disk_attr attr = default_directory;
    attr.uid = place->uid;
    attr.gid = place->gid;
    struct builder_inode inode = {.nlink = 1};
    bool is_wide = pack_mtime(place->mtime_sec, place->mtime_nsec, &inode.mtime);
    attr.flags = is_wide ? ATTR_WIDE_MTIME : 0;
    int r = builder_intern_attr(b, &attr, &inode.attr);
    if (r < 0)
        return r;
    uint32_t number;
    r = new_inode(b, &inode, &number);
    if (r < 0)
        return r;
    if (is_wide && add_side(b, number, EXTRA_MTIME, (uint64_t)place->mtime_sec) < 0)
        return -ENOMEM;
    r = new_name(b, place, parent, name, len, hash, number);
    if (r < 0)
        return r;
    *ret_name = (uint32_t)b->names.count - 1;
    return 0;
}

/*
 * The directory at `path`, which is the beginning of the place's. Without `create` it
 * has to be there: -ENOENT.
 */
static int walk(struct builder *b, const struct place *place, const char *path, size_t len,
                bool create, uint32_t *ret_dir)
{
    uint32_t dir = 0;
    while (len > 0) {
        const char *slash = memchr(path, '/', len);
        size_t part = slash ? (size_t)(slash - path) : len;
        if (part > 0 && !(part == 1 && path[0] == '.')) {
            int r = check_part(place, path, part);
            if (r < 0)
                return r;
            uint32_t hash = hash_name(b, dir, path, part);
            uint32_t next = find_name(b, dir, path, part, hash);
            if (!next && !create)
                return -ENOENT;
            r = next ? 0 : add_parent(b, place, dir, path, part, hash, &next);
            if (r < 0)
                return r;
            if (!is_directory_inode(b, b->names.at[next].inode))
                return create
                           ? refuse(place, -ENOTDIR, "lies below a member that is no directory")
                           : -ENOENT;
            dir = next;
        }
        path += part;
        len -= part;
        if (len > 0) {
            path++;
            len--;
        }
    }
    *ret_dir = dir;
    return 0;
}

/* The same with the memory of one path. */
static int find_directory(struct builder *b, const struct place *place, size_t len, bool create,
                          uint32_t *ret_dir)
{
    if (len == b->last_path.count && memcmp(b->last_path.at, place->path, len) == 0 &&
        is_directory_inode(b, b->names.at[b->last_dir].inode)) {
        *ret_dir = b->last_dir;
        return 0;
    }
    int r = walk(b, place, place->path, len, create, ret_dir);
    if (r < 0)
        return r;
    b->last_path.count = 0;
    if (vector_reserve(&b->last_path, len + 1) < 0)
        return -ENOMEM;
    memcpy(b->last_path.at, place->path, len);
    b->last_path.count = len;
    b->last_dir = *ret_dir;
    return 0;
}

/* A path cut into its directory and its last name; a length of 0 means the root. */
static int split_path(const struct place *place, size_t *ret_dir_len, const char **ret_name,
                      size_t *ret_len)
{
    const char *path = place->path;
    size_t end = place->len;
    if (memchr(path, '\0', end))
        return refuse(place, -EINVAL, "has a zero byte in its name");
    for (;;) {
        while (end > 0 && path[end - 1] == '/')
            end--;
        if (end > 0 && path[end - 1] == '.' && (end == 1 || path[end - 2] == '/'))
            end--;
        else
            break;
    }
    const char *slash = end > 0 ? memrchr(path, '/', end) : NULL;
    size_t start = slash ? (size_t)(slash - path) + 1 : 0;
    *ret_dir_len = start;
    *ret_name = path + start;
    *ret_len = end - start;
    return check_part(place, path + start, end - start);
}

/* ---- members ---- */

static int check_regular(struct builder *b, const struct place *place,
                         const struct builder_member *m, struct builder_inode *inode,
                         uint32_t *ret_kind)
{
    uint64_t end;
    if (m->size_bytes > INT64_MAX)
        return refuse(place, -EUCLEAN, "has a size that no file can have");
    inode->size = m->size_bytes;
    switch (m->data) {
    case DATA_STORED:
        if (__builtin_add_overflow(m->data_offset, m->size_bytes, &end) ||
            (b->archive_bytes && end > b->archive_bytes)) {
            refuse(place, -EUCLEAN, "size %llu lies past the end of file",
                   (unsigned long long)m->size_bytes);
            fault_advise(place->fault,
                         "the archive is cut off or damaged: make or copy it anew");
            return -EUCLEAN;
        }
        inode->data = m->size_bytes ? m->data_offset : 0;
        *ret_kind = DATA_KIND_STORED;
        return 0;
    case DATA_EXTENTS:
    case DATA_BLOCKS:
        inode->data = DATA_UNSET;
        *ret_kind = m->data == DATA_EXTENTS ? DATA_KIND_EXTENTS : DATA_KIND_BLOCKS;
        return 0;
    }
    return refuse(place, -EINVAL, "has data of an unknown kind");
}

static int check_symlink(struct builder *b, const struct place *place,
                         const struct builder_member *m, struct builder_inode *inode)
{
    if (m->symlink_len == 0)
        return refuse(place, -EINVAL, "is a symbolic link to nothing");
    if (m->symlink_len > INDEX_SYMLINK_MAX)
        return refuse(place, -ENAMETOOLONG, "is a symbolic link of %zu bytes, more than %u",
                      m->symlink_len, INDEX_SYMLINK_MAX);
    if (memchr(m->symlink, '\0', m->symlink_len))
        return refuse(place, -EINVAL, "is a symbolic link with a zero byte");
    if (vector_reserve(&b->strings, m->symlink_len) < 0)
        return -ENOMEM;
    inode->size = m->symlink_len;
    inode->data = b->strings.count;
    memcpy(b->strings.at + b->strings.count, m->symlink, m->symlink_len);
    b->strings.count += m->symlink_len;
    return 0;
}

/* Turn a member into an inode, without names yet. */
static int make_inode(struct builder *b, const struct place *place,
                      const struct builder_member *m, struct builder_inode *ret_inode,
                      bool *ret_is_wide)
{
    struct builder_inode inode = {.nlink = 0};
    uint32_t kind = DATA_KIND_NONE;
    int r = 0;
    if (m->mtime_nsec > 999999999)
        return refuse(place, -EUCLEAN, "has a time with more than 999999999 nanoseconds");
    switch (m->mode & S_IFMT) {
    case S_IFREG:
        r = check_regular(b, place, m, &inode, &kind);
        break;
    case S_IFLNK:
        r = check_symlink(b, place, m, &inode);
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
        r = refuse(place, -EINVAL, "is of a type that is not known (mode %#o)", m->mode);
    }
    if (r < 0)
        return r;
    *ret_is_wide = pack_mtime(m->mtime_sec, m->mtime_nsec, &inode.mtime);
    struct disk_attr attr = {.mode = m->mode & (S_IFMT | 07777), .uid = m->uid, .gid = m->gid};
    attr.flags = kind | (*ret_is_wide ? ATTR_WIDE_MTIME : 0);
    r = builder_intern_attr(b, &attr, &inode.attr);
    if (r == -EOVERFLOW)
        return refuse(place, r,
                      "has one combination of owner and mode more than an index can hold");
    if (r < 0)
        return r;
    *ret_inode = inode;
    return 0;
}

/* A directory that comes again, or the root: new attributes, same children. */
static void replace_attributes(struct builder *b, uint32_t number,
                               const struct builder_inode *inode)
{
    b->inodes.at[number].attr = inode->attr;
    b->inodes.at[number].mtime = inode->mtime;
}

/* Give the place's name to an inode that exists. */
static int bind_name(struct builder *b, const struct place *place, uint32_t inode)
{
    size_t dir_len, len;
    const char *name;
    int r = split_path(place, &dir_len, &name, &len);
    if (r < 0)
        return r;
    if (len == 0)
        return refuse(place, -EISDIR, "is no directory, and is called as the root is");
    uint32_t dir;
    r = find_directory(b, place, dir_len, true, &dir);
    if (r < 0)
        return r;
    uint32_t hash = hash_name(b, dir, name, len);
    uint32_t old = find_name(b, dir, name, len, hash);
    if (!old) {
        r = new_name(b, place, dir, name, len, hash, inode);
        if (r < 0)
            return r;
    } else {
        uint32_t old_inode = b->names.at[old].inode;
        if (old_inode == inode)
            return 0;
        if (is_directory_inode(b, old_inode) && b->inodes.at[old_inode].data > 0)
            return refuse(place, -EISDIR, "takes the place of a directory with members");
        b->inodes.at[old_inode].nlink--;
        b->names.at[old].inode = inode;
    }
    b->inodes.at[inode].nlink++;
    return 0;
}

/* The directory that has the place's name already; UINT32_MAX if none has. */
static int existing_directory(struct builder *b, const struct place *place, uint32_t *ret_inode)
{
    size_t dir_len, len;
    const char *name;
    int r = split_path(place, &dir_len, &name, &len);
    if (r < 0)
        return r;
    uint32_t found = 0;
    *ret_inode = UINT32_MAX;
    if (len > 0) {
        uint32_t dir;
        r = find_directory(b, place, dir_len, true, &dir);
        if (r < 0)
            return r;
        found = find_name(b, dir, name, len, hash_name(b, dir, name, len));
        if (!found)
            return 0;
    }
    if (is_directory_inode(b, b->names.at[found].inode))
        *ret_inode = b->names.at[found].inode;
    return 0;
}

static int add_member(struct builder *b, const struct place *place,
                      const struct builder_member *m, uint32_t *ret_inode)
{
    struct builder_inode inode;
    bool is_wide = false;
    uint32_t number = UINT32_MAX;
    int r = make_inode(b, place, m, &inode, &is_wide);
    if (r == 0 && S_ISDIR(m->mode))
        r = existing_directory(b, place, &number);
    if (r < 0)
        return r;
    if (number != UINT32_MAX) {
        replace_attributes(b, number, &inode);
    } else {
        r = new_inode(b, &inode, &number);
        if (r < 0)
            return r;
        r = bind_name(b, place, number);
        if (r < 0)
            return r;
    }
    if (is_wide) {
        r = add_side(b, number, EXTRA_MTIME, (uint64_t)m->mtime_sec);
        if (r < 0)
            return r;
    }
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
    int r = add_member(b, &place, member, ret_inode);
    return r == -ENOMEM ? no_memory(b, fault) : r;
}

/* The inode that `target` has now. */
static int find_target(struct builder *b, const struct place *link, const char *target,
                       size_t target_len, uint32_t *ret_inode)
{
    struct place place = {.path = target, .len = target_len};
    size_t dir_len, len;
    const char *name;
    uint32_t dir, found = 0;
    int r = split_path(&place, &dir_len, &name, &len);
    if (r == 0 && len > 0) {
        r = find_directory(b, &place, dir_len, false, &dir);
        if (r == 0) {
            found = find_name(b, dir, name, len, hash_name(b, dir, name, len));
            r = found ? 0 : -ENOENT;
        }
    }
    int shown = target_len < 100 ? (int)target_len : 100;
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return refuse(link, -ENOENT, "is a hard link to '%.*s', which no member before it is",
                      shown, target);
    if (is_directory_inode(b, b->names.at[found].inode))
        return refuse(link, -EPERM, "is a hard link to the directory '%.*s'", shown, target);
    *ret_inode = b->names.at[found].inode;
    return 0;
}

static int link_inode(struct builder *b, struct place *place, uint32_t inode)
{
    const struct builder_inode *target = &b->inodes.at[inode];
    if (target->nlink >= NLINK_MAX)
        return refuse(place, -EMLINK, "is one link more than a file can have");
    const struct disk_attr *attr = inode_attr(b, inode);
    place->uid = attr->uid;
    place->gid = attr->gid;
    place->mtime_sec = (int64_t)(target->mtime >> DISK_NSEC_BITS) - DISK_MTIME_BIAS;
    place->mtime_nsec = (uint32_t)(target->mtime & ((1u << DISK_NSEC_BITS) - 1));
    return bind_name(b, place, inode);
}

int builder_link(struct builder *b, const char *path, size_t len, const char *target,
                 size_t target_len, uint64_t header_offset, struct fault *fault,
                 uint32_t *ret_inode)
{
    if (b->is_written)
        return -EINVAL;
    struct place place = {path, len, header_offset, fault, .uid = 0};
    uint32_t inode = 0;
    int r = find_target(b, &place, target, target_len, &inode);
    if (r == 0)
        r = link_inode(b, &place, inode);
    if (r < 0)
        return r == -ENOMEM ? no_memory(b, fault) : r;
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
        return refuse(&place, -EPERM, "is a hard link to a directory");
    int r = link_inode(b, &place, inode);
    return r == -ENOMEM ? no_memory(b, fault) : r;
}

/* ---- extended attributes ---- */

static const struct builder_xattr *last_of_name(const struct builder *b, size_t i)
{
    const struct builder_xattr *x = &b->pending.at[i];
    for (size_t j = i + 1; j < b->pending.count; j++)
        if (b->pending.at[j].name_len == x->name_len &&
            memcmp(b->pending_bytes.at + b->pending.at[j].name, b->pending_bytes.at + x->name,
                   x->name_len) == 0)
            return NULL;
    return x;
}

static int compare_xattrs(const void *a, const void *b, void *bytes)
{
    const struct builder_xattr *x = a, *y = b;
    size_t len = x->name_len < y->name_len ? x->name_len : y->name_len;
    int order = memcmp((const char *)bytes + x->name, (const char *)bytes + y->name, len);
    return order ? order : (x->name_len > y->name_len) - (x->name_len < y->name_len);
}

static void put_u32(char *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof(value));
}

/* Append the pending attributes to `xattrs` as a set; not counted yet. */
static int append_set(struct builder *b, size_t *ret_bytes)
{
    size_t kept = 0, bytes = 8;
    for (size_t i = 0; i < b->pending.count; i++) {
        const struct builder_xattr *x = last_of_name(b, i);
        if (!x)
            continue;
        bytes += 8 + (size_t)x->name_len + x->value_len;
        b->pending.at[kept++] = *x;
    }
    size_t padded = (bytes + 7) & ~(size_t)7;
    if (bytes > UINT32_MAX)
        return -E2BIG;
    if (vector_reserve(&b->xattrs, padded) < 0)
        return -ENOMEM;
    b->pending.count = kept;
    if (kept > 0)
        qsort_r(b->pending.at, kept, sizeof(*b->pending.at), compare_xattrs,
                b->pending_bytes.at);

    char *at = b->xattrs.at + b->xattrs.count;
    memset(at, 0, padded);
    put_u32(at, (uint32_t)kept);
    put_u32(at + 4, (uint32_t)(bytes - 8));
    at += 8;
    for (size_t i = 0; i < kept; i++) {
        const struct builder_xattr *x = &b->pending.at[i];
        put_u32(at, x->name_len);
        put_u32(at + 4, x->value_len);
        memcpy(at + 8, b->pending_bytes.at + x->name, (size_t)x->name_len + x->value_len);
        at += 8 + (size_t)x->name_len + x->value_len;
    }
    *ret_bytes = padded;
    return 0;
}

static size_t set_bytes(const struct builder *b, uint64_t offset)
{
    uint32_t bytes;
    memcpy(&bytes, b->xattrs.at + offset + 4, sizeof(bytes));
    return ((size_t)le32toh(bytes) + 8 + 7) & ~(size_t)7;
}

/* The slot of the set at `offset`, or of one that is equal. */
static size_t set_slot(const struct builder *b, uint64_t offset)
{
    size_t mask = b->set_slot_count - 1;
    size_t bytes = set_bytes(b, offset);
    const char *set = b->xattrs.at + offset;
    size_t slot = XXH3_64bits_withSeed(set, bytes, b->seed) & mask;
    for (; b->set_slots[slot]; slot = (slot + 1) & mask) {
        uint64_t other = b->set_slots[slot] - 1;
        if (set_bytes(b, other) == bytes && memcmp(b->xattrs.at + other, set, bytes) == 0)
            break;
    }
    return slot;
}

static int grow_set_slots(struct builder *b)
{
    uint64_t *old = b->set_slots;
    size_t old_count = b->set_slot_count;
    size_t count = old_count ? old_count * 2 : 64;
    uint64_t *slots = calloc(count, sizeof(*slots));
    if (!slots)
        return -ENOMEM;
    b->set_slots = slots;
    b->set_slot_count = count;
    for (size_t i = 0; i < old_count; i++)
        if (old[i])
            slots[set_slot(b, old[i] - 1)] = old[i];
    free(old);
    return 0;
}

int builder_flush_xattrs(struct builder *b)
{
    if (b->pending.count == 0)
        return 0;
    size_t bytes;
    if (b->sets * 2 >= b->set_slot_count && grow_set_slots(b) < 0)
        return -ENOMEM;
    int r = append_set(b, &bytes);
    if (r < 0)
        return r;
    size_t slot = set_slot(b, b->xattrs.count);
    if (!b->set_slots[slot]) {
        b->set_slots[slot] = b->xattrs.count + 1;
        b->xattrs.count += bytes;
        b->sets++;
    }
    b->xattr_of.at[b->pending_inode] = b->set_slots[slot];
    b->pending.count = 0;
    b->pending_bytes.count = 0;
    return 0;
}

static int append_pending(struct builder *b, const char *name, size_t name_len,
                          const void *value, size_t value_len)
{
    if (vector_reserve(&b->pending, 1) < 0 ||
        vector_reserve(&b->pending_bytes, name_len + value_len) < 0)
        return -ENOMEM;
    size_t at = b->pending_bytes.count;
    memcpy(b->pending_bytes.at + at, name, name_len);
    if (value_len > 0)
        memcpy(b->pending_bytes.at + at + name_len, value, value_len);
    b->pending_bytes.count += name_len + value_len;
    b->pending.at[b->pending.count++] =
        (struct builder_xattr){at, (uint32_t)name_len, (uint32_t)value_len};
    return 0;
}

/* Collect for this inode from now on, beginning with what it has already. */
static int begin_xattrs(struct builder *b, uint32_t inode)
{
    int r = builder_flush_xattrs(b);
    if (r < 0)
        return r;
    if (b->xattr_of.count <= inode) {
        size_t more = (size_t)inode + 1 - b->xattr_of.count;
        if (vector_reserve(&b->xattr_of, more) < 0)
            return -ENOMEM;
        memset(b->xattr_of.at + b->xattr_of.count, 0, more * sizeof(uint64_t));
        b->xattr_of.count += more;
    }
    b->pending_inode = inode;
    if (!b->xattr_of.at[inode])
        return 0;

    const char *at = b->xattrs.at + b->xattr_of.at[inode] - 1;
    uint32_t count, lengths[2];
    memcpy(&count, at, sizeof(count));
    at += 8;
    for (count = le32toh(count); count > 0; count--) {
        memcpy(lengths, at, sizeof(lengths));
        uint32_t name_len = le32toh(lengths[0]), value_len = le32toh(lengths[1]);
        r = append_pending(b, at + 8, name_len, at + 8 + name_len, value_len);
        if (r < 0)
            return r;
        at += 8 + (size_t)name_len + value_len;
    }
    return 0;
}

int builder_add_xattr(struct builder *b, uint32_t inode, const char *name, size_t name_len,
                      const void *value, size_t value_len)
{
    if (b->is_written || inode >= b->inodes.count || name_len == 0 ||
        memchr(name, '\0', name_len))
        return -EINVAL;
    if (name_len > INDEX_NAME_MAX || value_len > XATTR_VALUE_MAX)
        return -E2BIG;
    if (b->pending.count == 0 || b->pending_inode != inode) {
        int r = begin_xattrs(b, inode);
        if (r < 0)
            return r;
    }
    if (b->pending.count >= BUILDER_XATTRS_MAX)
        return -E2BIG;
    return append_pending(b, name, name_len, value, value_len);
}

/* ---- data ---- */

static bool in_archive(const struct builder *b, uint64_t offset, uint64_t len)
{
    uint64_t end;
    return !__builtin_add_overflow(offset, len, &end) &&
           (!b->archive_bytes || end <= b->archive_bytes);
}

static bool has_kind(const struct builder *b, uint32_t inode, uint32_t kind)
{
    return !b->is_written && inode < b->inodes.count &&
           (inode_attr(b, inode)->flags & DATA_KIND_MASK) == kind;
}

int builder_add_extent(struct builder *b, uint32_t inode, uint64_t offset, uint64_t length,
                       uint64_t source_offset)
{
    if (!has_kind(b, inode, DATA_KIND_EXTENTS))
        return -EINVAL;
    struct builder_inode *file = &b->inodes.at[inode];
    if (length == 0)
        return 0;
    if (offset > file->size || length > file->size - offset ||
        !in_archive(b, source_offset, length))
        return -EUCLEAN;
    if (vector_reserve(&b->extents, 5) < 0)
        return -ENOMEM;
    uint64_t *list = b->extents.at;
    if (file->data == DATA_UNSET) {
        file->data = b->extents.count * 8;
        list[b->extents.count++] = 0;
        list[b->extents.count++] = 0;
    }
    list += file->data / 8;
    uint64_t count = le64toh(list[0]);
    if (file->data / 8 + 2 + 3 * count != b->extents.count)
        return -EINVAL; /* another inode's ranges came between */
    uint64_t *next = list + 2 + 3 * count;
    uint64_t last_end = count > 0 ? le64toh(next[-3]) + le64toh(next[-2]) : 0;
    if (offset < last_end)
        return -EUCLEAN;
    list[1] = htole64(le64toh(list[1]) + length);
    if (count > 0 && offset == last_end &&
        source_offset == le64toh(next[-1]) + le64toh(next[-2])) {
        next[-2] = htole64(le64toh(next[-2]) + length);
        return 0;
    }
    list[0] = htole64(count + 1);
    next[0] = htole64(offset);
    next[1] = htole64(length);
    next[2] = htole64(source_offset);
    b->extents.count += 3;
    return 0;
}

static int append_block(struct builder *b, const struct builder_block *block)
{
    if (block->block_bytes == 0 || block->packed_bytes >= BLOCK_STORED ||
        !in_archive(b, block->source_offset, block->packed_bytes))
        return -EUCLEAN;
    if (b->blocks.count >= UINT32_MAX)
        return -EOVERFLOW;
    if (vector_reserve(&b->blocks, 1) < 0)
        return -ENOMEM;
    if (block->block_bytes > b->block_bytes_max)
        b->block_bytes_max = block->block_bytes;
    b->blocks.at[b->blocks.count++] = (struct disk_block){
        .source_offset = htole64(block->packed_bytes ? block->source_offset : 0),
        .packed = htole32(block->packed_bytes |
                          (block->stored && block->packed_bytes ? BLOCK_STORED : 0)),
        .block_bytes = htole32(block->block_bytes),
    };
    return 0;
}

int builder_add_fragment(struct builder *b, const struct builder_block *block,
                         uint32_t *ret_number)
{
    if (b->is_written || b->blocks.count != b->fragments)
        return -EINVAL;
    if (block->packed_bytes == 0)
        return -EUCLEAN;
    int r = append_block(b, block);
    if (r < 0)
        return r;
    *ret_number = b->fragments++;
    return 0;
}

/*
 * Do so many blocks and a tail make a file of this size? All but the last block have
 * one size, the same for all files; a tail is shorter than that.
 */
static int check_blocks(struct builder *b, uint64_t size, const struct builder_block *blocks,
                        uint32_t count, uint32_t fragment, uint32_t fragment_offset)
{
    bool has_tail = fragment != BUILDER_NO_FRAGMENT;
    uint32_t full = has_tail ? count : count - (count > 0);
    for (uint32_t i = 0; i < full; i++) {
        if (b->block_bytes == 0)
            b->block_bytes = blocks[i].block_bytes;
        if (blocks[i].block_bytes != b->block_bytes)
            return -EUCLEAN;
    }
    uint64_t begin = (uint64_t)full * b->block_bytes;
    uint64_t room = 0;
    if (has_tail) {
        if (fragment >= b->fragments)
            return -EUCLEAN;
        uint32_t fragment_bytes = le32toh(b->blocks.at[fragment].block_bytes);
        room = fragment_offset < fragment_bytes ? fragment_bytes - fragment_offset : 0;
        if (b->block_bytes && full > 0 && room >= b->block_bytes)
            room = b->block_bytes - 1;
    } else if (count > 0) {
        room = blocks[count - 1].block_bytes;
        if (b->block_bytes && full > 0 && room > b->block_bytes)
            room = b->block_bytes;
    }
    if (begin > size || size - begin > room || (size == begin && (has_tail || count > 0)))
        return -EUCLEAN;
    return 0;
}

/* Bytes of the file in blocks that are holes. */
static uint64_t hole_bytes(const struct builder *b, uint64_t size,
                           const struct builder_block *blocks, uint32_t count)
{
    uint64_t holes = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t begin = (uint64_t)i * b->block_bytes;
        uint64_t bytes = size - begin;
        if (b->block_bytes && bytes > b->block_bytes)
            bytes = b->block_bytes;
        if (blocks[i].packed_bytes == 0)
            holes += bytes;
    }
    return holes;
}

int builder_set_blocks(struct builder *b, uint32_t inode, const struct builder_block *blocks,
                       uint32_t count, uint32_t fragment, uint32_t fragment_offset)
{
    if (!has_kind(b, inode, DATA_KIND_BLOCKS) || b->inodes.at[inode].data != DATA_UNSET)
        return -EINVAL;
    uint64_t size = b->inodes.at[inode].size;
    bool has_tail = fragment != BUILDER_NO_FRAGMENT;
    int r = check_blocks(b, size, blocks, count, fragment, fragment_offset);
    if (r < 0)
        return r;

    uint64_t data = b->blocks.count;
    for (uint32_t i = 0; i < count; i++) {
        r = append_block(b, &blocks[i]);
        if (r < 0)
            return r;
    }
    uint32_t kind = has_tail ? DATA_KIND_TAIL : DATA_KIND_BLOCKS;
    if (count == 0) {
        kind = has_tail ? DATA_KIND_FRAGMENT : DATA_KIND_STORED;
        data = has_tail ? fragment | (uint64_t)fragment_offset << 32 : 0;
    } else if (has_tail) {
        if (vector_reserve(&b->blocks, 1) < 0)
            return -ENOMEM;
        b->blocks.at[b->blocks.count++] = (struct disk_block){
            .source_offset = htole64(fragment),
            .packed = htole32(fragment_offset),
        };
    }
    uint64_t holes = hole_bytes(b, size, blocks, count);
    if (holes > 0) {
        kind |= ATTR_HOLES | ATTR_DATA_BYTES;
        r = add_side(b, inode, EXTRA_DATA_BYTES, size - holes);
        if (r < 0)
            return r;
    }
    b->inodes.at[inode].data = data;
    return change_flags(b, inode, DATA_KIND_MASK, kind);
}

int builder_set_sum(struct builder *b, uint32_t inode, uint64_t sum)
{
    if (b->is_written || inode >= b->inodes.count)
        return -EINVAL;
    if (b->sums.count <= inode) {
        size_t more = (size_t)inode + 1 - b->sums.count;
        if (vector_reserve(&b->sums, more) < 0 || vector_reserve(&b->has_sum, more) < 0)
            return -ENOMEM;
        memset(b->sums.at + b->sums.count, 0, more * sizeof(uint64_t));
        memset(b->has_sum.at + b->has_sum.count, 0, more);
        b->sums.count += more;
        b->has_sum.count += more;
    }
    b->sums.at[inode] = sum;
    b->has_sum.at[inode] = 1;
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
    if (builder_intern_attr(b, &default_directory, &root.attr) < 0 ||
        new_inode(b, &root, &inode) < 0 || vector_reserve(&b->names, 1) < 0 ||
        vector_reserve(&b->last_path, 1) < 0 || vector_reserve(&b->text, 1) < 0 ||
        grow_slots(b) < 0) {
        builder_free(b);
        return -ENOMEM;
    }
    b->names.at[b->names.count++] = (struct builder_name){0};
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
    vector_free(&b->attrs);
    free(b->attr_slots);
    vector_free(&b->last_path);
    vector_free(&b->strings);
    vector_free(&b->extents);
    vector_free(&b->blocks);
    vector_free(&b->sides);
    vector_free(&b->pending);
    vector_free(&b->pending_bytes);
    vector_free(&b->xattrs);
    vector_free(&b->xattr_of);
    free(b->set_slots);
    vector_free(&b->sums);
    vector_free(&b->has_sum);
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
