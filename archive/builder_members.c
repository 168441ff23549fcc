/*
 * The builder, members: in the order of the archive they become names and inodes.
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

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "builder_private.h"

#define ENTRIES_MAX (UINT32_MAX - 1)
#define NLINK_MAX (UINT32_MAX - 1) /* the last value has a meaning in builder_write.c */

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

/* ---- names and inodes ---- */

static uint32_t hash_name(const struct builder *b, uint32_t parent, const char *name,
                          size_t len)
{
    uint64_t seed = b->seed ^ parent * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(XXH3_64bits_withSeed(name, len, seed) >> 32);
}

int builder_grow_slots(struct builder *b)
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
        builder_grow_slots(b) < 0)
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

int builder_new_inode(struct builder *b, const struct builder_inode *inode, uint32_t *ret_inode)
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
    bool is_wide = sec <= -DISK_MTIME_BIAS || sec >= DISK_MTIME_LIMIT - DISK_MTIME_BIAS;
    uint64_t biased = is_wide ? 1 : (uint64_t)(sec + DISK_MTIME_BIAS);
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
    struct disk_attr attr = builder_directory;
    attr.uid = place->uid;
    attr.gid = place->gid;
    struct builder_inode inode = {.nlink = 1};
    bool is_wide = pack_mtime(place->mtime_sec, place->mtime_nsec, &inode.mtime);
    attr.flags |= is_wide ? ATTR_WIDE_MTIME : 0;
    int r = builder_intern_attr(b, &attr, &inode.attr);
    if (r < 0)
        return r;
    uint32_t number;
    r = builder_new_inode(b, &inode, &number);
    if (r < 0)
        return r;
    if (is_wide && builder_add_side(b, number, EXTRA_MTIME, (uint64_t)place->mtime_sec) < 0)
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
    bool is_new = number == UINT32_MAX;
    if (is_new)
        r = builder_new_inode(b, &inode, &number);
    else
        replace_attributes(b, number, &inode);
    if (r == 0 && is_wide)
        r = builder_add_side(b, number, EXTRA_MTIME, (uint64_t)m->mtime_sec);
    if (r == 0 && is_new)
        r = bind_name(b, place, number);
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
    if (r < 0) {
        r = refuse(link, -ENOENT, "is a hard link to '%.*s', which no member before it is",
                   shown, target);
        fault_advise(link->fault, "extract what there is of it with another program, and "
                                  "pack that");
        return r;
    }
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
