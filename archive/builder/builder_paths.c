/*
 * The builder, paths: where in the tree a member's path leads.
 *
 * Names are found through one hash table for all directories, keyed by parent and name. Its
 * hash has a random seed, so that nobody can prepare an archive whose names all collide.
 * Members of one directory tend to follow each other, so the last directory is remembered and
 * most members cost one probe.
 *
 * A path may lead through a symbolic link of the same archive: in a system image "lib" may
 * lead to "usr/lib", and a later layer brings "lib/x". The link is followed as the kernel
 * would follow it in the mounted tree, so that a reader of that path finds the member. The
 * path never leaves the tree: a link whose target is absolute or leads above the root is not
 * followed, since its meaning in the mount lies outside. Paths of the system itself are never
 * examined. The cost of links in one path is bounded.
 */
#include "builder.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <xxhash.h>

#include "builder_paths.h"
#include "builder_private.h"
#include "path.h"

#define LINKS_MAX 40        /* in one path, as in Linux */
#define LINK_BYTES_MAX 4096 /* of all targets in one path */

int builder_refuse(const struct place *place, int err, const char *format, ...)
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

/* ---- names ---- */

static uint32_t path_hash_name(const struct builder *b, uint32_t parent, const char *name,
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

/* Find the name that is already at the spot. */
static void path_find_name(const struct builder *b, struct spot *spot)
{
    size_t mask = b->slot_count - 1;
    spot->hash = path_hash_name(b, spot->dir, spot->name, spot->len);
    spot->found = 0; /* the root is no directory's child */
    for (size_t slot = spot->hash & mask; b->slots[slot]; slot = (slot + 1) & mask) {
        uint32_t other = (uint32_t)b->slots[slot];
        if (b->slots[slot] >> 32 == spot->hash && b->names.at[other].parent == spot->dir &&
            name_length(b, other) == spot->len &&
            memcmp(name_text(b, other), spot->name, spot->len) == 0) {
            spot->found = other;
            return;
        }
    }
}

uint64_t builder_path_bytes(const struct builder *b, const struct spot *spot)
{
    uint64_t above = b->inodes.at[b->names.at[spot->dir].inode].size;
    return above + (above > 0) + spot->len;
}

static int path_refuse_long(const struct place *place)
{
    return builder_refuse(place, -ENAMETOOLONG,
                          "has a path of more than %u bytes, which no program can name",
                          INDEX_PATH_MAX);
}

int builder_new_name(struct builder *b, const struct place *place, const struct spot *spot,
                     uint32_t inode)
{
    size_t len = spot->len;
    uint64_t path_bytes = builder_path_bytes(b, spot);
    if (path_bytes > INDEX_PATH_MAX)
        return path_refuse_long(place);
    if (b->names.count >= ENTRIES_MAX)
        return builder_refuse(place, -EOVERFLOW, "is one member more than an index can have");
    if (b->text.count + len >= DISK_NAME_LIMIT)
        return builder_refuse(place, -EOVERFLOW, "is one name more than an index can hold");
    /* Fill at most four fifths. */
    if ((b->names.count + 1) / 4 * 5 >= b->slot_count && b->slot_count <= UINT32_MAX &&
        builder_grow_slots(b) < 0)
        return -ENOMEM;
    uint32_t number = (uint32_t)b->names.count;
    struct builder_name name = {spot->dir, inode, b->text.count << 8 | len};
    if (vector_reserve(&b->text, len) < 0 || vector_push(&b->names, name) < 0)
        return -ENOMEM;
    (void)vector_append(&b->text, spot->name, len);

    size_t mask = b->slot_count - 1;
    size_t slot = spot->hash & mask;
    while (b->slots[slot])
        slot = (slot + 1) & mask;
    b->slots[slot] = (uint64_t)spot->hash << 32 | number;
    b->inodes.at[b->names.at[spot->dir].inode].data++;
    if (is_directory_inode(b, inode))
        b->inodes.at[inode].size = path_bytes;
    return 0;
}

bool builder_pack_mtime(int64_t sec, uint32_t nsec, uint64_t *ret_mtime)
{
    bool is_wide = sec <= -DISK_MTIME_BIAS || sec >= DISK_MTIME_LIMIT - DISK_MTIME_BIAS;
    uint64_t biased = is_wide ? 1 : (uint64_t)(sec + DISK_MTIME_BIAS);
    *ret_mtime = biased << DISK_NSEC_BITS | nsec;
    return is_wide;
}

/* ---- paths ---- */

static int path_check_part(const struct place *place, const char *part, size_t len)
{
    if (len == 2 && part[0] == '.' && part[1] == '.')
        return builder_refuse(place, -EINVAL, "has '..' in its name");
    if (len > INDEX_NAME_MAX)
        return builder_refuse(place, -ENAMETOOLONG, "has a name of %zu bytes, more than %u",
                              len, INDEX_NAME_MAX);
    return 0;
}

/* Check the names on the way to a member before any of their directories is created. */
static int path_check_way(const struct place *place, size_t len)
{
    const char *path = place->path, *part;
    size_t part_len, path_bytes = 0;
    int r = 0;
    while (r == 0 && path_next_name(&path, &len, &part, &part_len)) {
        path_bytes += part_len + 1;
        r = path_bytes < INDEX_PATH_MAX ? path_check_part(place, part, part_len)
                                        : path_refuse_long(place);
    }
    return r;
}

/* Add a directory that must exist although no member announced it. */
static int path_add_parent(struct builder *b, const struct place *place,
                           const struct spot *spot, uint32_t *ret_name)
{
    struct disk_attr attr = builder_directory;
    attr.uid = place->uid;
    attr.gid = place->gid;
    struct builder_inode inode = {.nlink = 1};
    bool is_wide = builder_pack_mtime(place->mtime_sec, place->mtime_nsec, &inode.mtime);
    attr.flags |= is_wide ? ATTR_WIDE_MTIME : 0;
    int r = attr_table_number(&b->attrs, &attr, &inode.attr);
    if (r < 0)
        return r;
    uint32_t number;
    r = builder_new_inode(b, &inode, &number);
    if (r < 0)
        return r;
    if (is_wide && builder_set_wide_mtime(b, number, place->mtime_sec) < 0)
        return -ENOMEM;
    r = builder_new_name(b, place, spot, number);
    if (r < 0)
        return r;
    *ret_name = (uint32_t)b->names.count - 1;
    return 0;
}

/* One walk from the root to a directory, through links. */
struct way {
    const struct place *place;
    bool create;
    unsigned depth; /* nesting depth of links */
    unsigned links; /* followed so far */
    uint64_t bytes; /* total length of their targets */
};

static int path_walk(struct builder *b, struct way *way, uint32_t dir, const char *path,
                     size_t len, uint32_t *ret_dir);

/* The directory that the symbolic link `link` leads to. */
static int path_follow(struct builder *b, struct way *way, uint32_t link, uint32_t *ret_dir)
{
    const struct builder_inode *inode = &b->inodes.at[b->names.at[link].inode];
    const char *target = b->strings.at + inode->data; /* b->strings does not grow on the way */
    size_t len = inode->size;
    if (target[0] == '/')
        return builder_refuse(way->place, -ENOTDIR,
                              "lies below the symbolic link '%.*s', which leads out of the "
                              "archive",
                              (int)name_length(b, link), name_text(b, link));
    way->bytes += len;
    if (++way->links > LINKS_MAX || way->bytes > LINK_BYTES_MAX)
        return builder_refuse(way->place, -ELOOP,
                              "lies below symbolic links that lead in circles, or too far");
    way->depth++;
    int r = path_walk(b, way, b->names.at[link].parent, target, len, ret_dir);
    way->depth--;
    return r;
}

/* The directory called `name` in `dir`. */
static int path_enter(struct builder *b, struct way *way, uint32_t dir, const char *name,
                      size_t len, uint32_t *ret_dir)
{
    if (way->depth > 0 && len == 2 && name[0] == '.' && name[1] == '.') {
        *ret_dir = b->names.at[dir].parent;
        return dir != 0 ? 0
                        : builder_refuse(way->place, -ENOTDIR,
                                         "lies below a symbolic link that leads out of the "
                                         "archive");
    }
    int r = path_check_part(way->place, name, len);
    if (r < 0)
        return r;
    struct spot spot = {.dir = dir, .name = name, .len = len};
    path_find_name(b, &spot);
    if (!spot.found && !way->create)
        return -ENOENT;
    r = spot.found ? 0 : path_add_parent(b, way->place, &spot, &spot.found);
    if (r < 0)
        return r;
    uint32_t mode = inode_attr(b, b->names.at[spot.found].inode)->mode;
    if (S_ISLNK(mode))
        return path_follow(b, way, spot.found, ret_dir);
    if (!S_ISDIR(mode))
        return builder_refuse(way->place, -ENOTDIR,
                              "lies below a member that is not a directory");
    *ret_dir = spot.found;
    return 0;
}

/* The directory at `path`, relative to `dir`. */
static int path_walk(struct builder *b, struct way *way, uint32_t dir, const char *path,
                     size_t len, uint32_t *ret_dir)
{
    const char *part;
    size_t part_len;
    while (path_next_name(&path, &len, &part, &part_len)) {
        int r = path_enter(b, way, dir, part, part_len, &dir);
        if (r < 0)
            return r;
    }
    *ret_dir = dir;
    return 0;
}

void builder_forget_path(struct builder *b)
{
    b->last_path.count = 0;
    b->last_dir = 0;
}

/* The directory at the first `len` bytes of the path; the last result is remembered. */
static int path_find_directory(struct builder *b, const struct place *place, size_t len,
                               bool create, uint32_t *ret_dir)
{
    if (len == b->last_path.count && memcmp(b->last_path.at, place->path, len) == 0 &&
        is_directory_inode(b, b->names.at[b->last_dir].inode)) {
        *ret_dir = b->last_dir;
        return 0;
    }
    struct way way = {.place = place, .create = create};
    int r = path_check_way(place, len);
    if (r == 0)
        r = path_walk(b, &way, 0, place->path, len, ret_dir);
    if (r < 0)
        return r;
    builder_forget_path(b);
    if (vector_append(&b->last_path, place->path, len) < 0)
        return -ENOMEM;
    b->last_dir = *ret_dir;
    return 0;
}

/* Split a path into its directory and its last name; a length of 0 means the root. */
static int path_split(const struct place *place, size_t *ret_dir_len, const char **ret_name,
                      size_t *ret_len)
{
    const char *path = place->path;
    size_t end = place->len;
    if (memchr(path, '\0', end))
        return builder_refuse(place, -EINVAL, "has a zero byte in its name");
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
    return path_check_part(place, path + start, end - start);
}

int builder_locate(struct builder *b, const struct place *place, bool create,
                   struct spot *ret_spot)
{
    size_t dir_len = 0;
    *ret_spot = (struct spot){.dir = 0};
    int r = path_split(place, &dir_len, &ret_spot->name, &ret_spot->len);
    if (r < 0 || ret_spot->len == 0)
        return r;
    r = path_find_directory(b, place, dir_len, create, &ret_spot->dir);
    if (r == 0)
        path_find_name(b, ret_spot);
    return r;
}
