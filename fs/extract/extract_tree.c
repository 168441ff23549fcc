/*
 * Folders. Each is opened from its parent's descriptor by a single name, without following a
 * symbolic link. So no path is ever too long, and nothing at that name, even if put there
 * meanwhile, can lead out of the directory. The index's names are checked again here, where it
 * matters.
 *
 * A folder stays closed to others (0700) until the end. Inside a closed folder, further folders
 * can be made with their final mode at once. In a tree of many folders that saves most of their
 * system calls.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cleanup.h"
#include "extract_private.h"
#include "path.h"

#define DEPTH_MAX ((INDEX_PATH_MAX + 1) / 2) /* names of one byte each */
#define ACL_DEFAULT "system.posix_acl_default"

/* ---- descriptors ---- */

void folders_init(struct folders *f, unsigned slots)
{
    f->slot_count = slots < 4 ? 4 : slots > FOLDER_SLOTS_MAX ? FOLDER_SLOTS_MAX : slots;
    for (unsigned i = 0; i < FOLDER_SLOTS_MAX; i++)
        f->slots[i].fd = -1;
    f->directory = UINT32_MAX;
}

void folders_free(struct folders *f)
{
    for (unsigned i = 0; i < f->slot_count; i++)
        if (f->slots[i].fd >= 0)
            close(f->slots[i].fd);
    vector_free(&f->way);
}

static int copy_name(const struct index *index, uint32_t position, char name[])
{
    const char *bytes;
    size_t len;
    int r = index_name(index, position, &bytes, &len);
    if (r < 0)
        return r;
    if (len == 0 || len > INDEX_NAME_MAX)
        return -EUCLEAN;
    memcpy(name, bytes, len); /* copied first, so that the checked bytes are the used ones */
    name[len] = '\0';
    return strlen(name) != len || strchr(name, '/') || path_is_dots(name) ? -EUCLEAN : 0;
}

/* Nested folders, whose positions may lie any distance apart, get slots of their own. */
static unsigned slot_of(const struct folders *f, uint32_t directory)
{
    return ((directory * UINT32_C(0x9e3779b1)) >> 16) % f->slot_count;
}

static int slot_fd(const struct extraction *x, const struct folders *f, uint32_t directory)
{
    unsigned slot = slot_of(f, directory);
    if (directory == INDEX_ROOT)
        return x->root_fd;
    return f->slots[slot].position == directory ? f->slots[slot].fd : -1;
}

/* Fill f->way with the folders from `directory` up to, but excluding, an open one. */
static int find_way(const struct extraction *x, struct folders *f, uint32_t directory,
                    int *ret_fd)
{
    f->way.count = 0;
    while ((*ret_fd = slot_fd(x, f, directory)) < 0) {
        int r = vector_push(&f->way, directory);
        if (r == 0)
            r = index_parent(x->index, directory, &directory);
        if (r < 0)
            return r;
    }
    return 0;
}

static int folders_get(struct extraction *x, struct folders *f, uint32_t directory, int *ret_fd)
{
    int fd, r = find_way(x, f, directory, &fd);
    while (r == 0 && f->way.count > 0) {
        char name[INDEX_NAME_MAX + 1];
        uint32_t position = f->way.at[--f->way.count];
        r = copy_name(x->index, position, name);
        if (r < 0)
            break;
        fd = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return -errno;
        unsigned slot = slot_of(f, position);
        if (f->slots[slot].fd >= 0)
            close(f->slots[slot].fd);
        f->slots[slot].position = position;
        f->slots[slot].fd = fd;
    }
    if (r == 0)
        *ret_fd = fd;
    return r;
}

int folders_find(struct extraction *x, struct folders *f, uint32_t position, int *ret_fd,
                 char name[INDEX_NAME_MAX + 1])
{
    int r = 0;
    if (f->directory == UINT32_MAX || position < f->first || position - f->first >= f->count) {
        uint32_t parent;
        f->directory = UINT32_MAX;
        r = index_parent(x->index, position, &parent);
        if (r == 0)
            r = index_children(x->index, parent, &f->first, &f->count);
        if (r == 0)
            f->directory = parent;
    }
    if (r == 0)
        r = copy_name(x->index, position, name);
    return r < 0 ? r : folders_get(x, f, f->directory, ret_fd);
}

/* ---- the directory itself ---- */

/* Would new files in this folder get another mode or group than they are made with? */
static bool hands_down(int fd, const struct stat *st)
{
    return st->st_mode & S_ISGID || fgetxattr(fd, ACL_DEFAULT, NULL, 0) > 0;
}

int tree_open_root(struct extraction *x, struct fault *fault)
{
    const char *path = x->options->directory;
    struct stat st;
    x->root_made = mkdir(path, 0700) == 0 || (errno == EEXIST && x->options->is_new);
    if (!x->root_made && errno != EEXIST)
        return fault_set_errno(fault, -errno, path, "can't be made");
    x->root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (x->root_fd < 0 || fstat(x->root_fd, &st) < 0)
        return fault_set_errno(fault, -errno, path, "can't be opened");
    x->inherits = hands_down(x->root_fd, &st);
    return 0;
}

/* ---- making folders ---- */

/* Is `file` an archive that is being extracted? A source may be an unpacked copy of it. */
static bool is_of_archive(const struct pot *pot, struct file_id file)
{
    const struct source *source;
    struct source_identity id = pot->identity;
    bool is_of = file_id_equal(file, (struct file_id){id.dev, id.ino});
    for (size_t at[2] = {0}; !is_of && (source = source_file_next(pot->source, at));) {
        source_identity(source, &id);
        is_of = file_id_equal(file, (struct file_id){id.dev, id.ino});
    }
    for (size_t i = 0; !is_of && i < pot->part_count; i++)
        is_of = file_id_equal(file, pot->parts[i].file);
    return is_of;
}

int tree_make_way(const struct extraction *x, int folder_fd, const char *name, int err,
                  unsigned *attempts)
{
    struct stat st;
    if (err != EEXIST || !x->options->overwrite || ++*attempts == 3)
        return -err;
    if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (is_of_archive(x->workers.pot, file_id_of(&st)))
        return -ETXTBSY;
    return unlinkat(folder_fd, name, 0) < 0 && errno != ENOENT ? -errno : 0;
}

/* Can an existing folder be used? One of ours that is closed is opened. */
static int use_folder(struct extraction *x, int parent_fd, const char *name)
{
    struct stat st;
    auto_close int fd = openat(parent_fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ELOOP ? -ENOTDIR : -errno;
    if (fstat(fd, &st) < 0)
        return -errno;
    auto_close int open_fd =
        openat(parent_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (open_fd < 0 || hands_down(open_fd, &st))
        x->inherits = true;
    if ((st.st_mode & 0700) != 0700 && st.st_uid == x->uid) {
        if (open_fd >= 0 ? fchmod(open_fd, st.st_mode | 0700) < 0
                         : fchmodat(parent_fd, name, (st.st_mode & 07777) | 0700,
                                    AT_SYMLINK_NOFOLLOW) < 0)
            return -errno;
    }
    return 0;
}

/* Can it be made with its final mode, since nobody else can reach it before the end? */
static bool has_mode_at_once(const struct extraction *x, const struct node *node,
                             uint32_t parent)
{
    mode_t mode = attributes_mode(x, node);
    return x->flags[parent] & ENTRY_NEW && !x->inherits && !node->has_xattrs &&
           (mode & 07700) == 0700 && (!x->options->owners || attributes_keep_owner(x, node));
}

static int tree_make_new_folder(struct extraction *x, int parent_fd, const char *name,
                                mode_t mode, bool *ret_new)
{
    for (unsigned attempts = 0; mkdirat(parent_fd, name, mode) < 0;) {
        int err = errno, r = err == EEXIST ? use_folder(x, parent_fd, name) : -ENOTDIR;
        if (r != -ENOTDIR)
            return r;
        r = tree_make_way(x, parent_fd, name, err, &attempts);
        if (r < 0)
            return r;
    }
    *ret_new = true;
    return 0;
}

int tree_add_folder(struct extraction *x, uint32_t position)
{
    uint32_t depth = x->made.count ? x->made.at[x->visited].depth + 1 : 0;
    int r = vector_push(&x->made, (struct made_folder){position, depth, x->unvisited});
    if (r == 0)
        x->unvisited = (uint32_t)x->made.count;
    return r;
}

int tree_make_folder(struct extraction *x, struct folders *f, const struct node *node,
                     uint32_t position)
{
    char name[INDEX_NAME_MAX + 1];
    bool at_once = false, is_new = false;
    int fd, r = -ENAMETOOLONG; /* only in an index forged to be so deep */
    if (x->made.at[x->visited].depth < DEPTH_MAX)
        r = folders_find(x, f, position, &fd, name);
    if (r == 0) {
        at_once = has_mode_at_once(x, node, f->directory);
        r = tree_make_new_folder(x, fd, name, at_once ? attributes_mode(x, node) : 0700,
                                 &is_new);
    }
    if (r < 0) {
        extract_problem(x, position, r, FAULT_NO_OFFSET, "the directory can't be made");
        return 0;
    }
    x->flags[position] |= ENTRY_MADE;
    if (is_new)
        x->flags[position] |= at_once ? ENTRY_NEW | ENTRY_HAS_MODE : ENTRY_NEW;
    return tree_add_folder(x, position);
}

/* ---- attributes of folders ---- */

static int finish_folder(struct extraction *x, struct folders *f, uint32_t position)
{
    char name[INDEX_NAME_MAX + 1];
    struct node node;
    int fd = x->root_fd, r = index_node(x->index, position, &node);
    if (r < 0)
        return r;
    if (position == INDEX_ROOT)
        return attributes_set(x, fd, &node, (mode_t)-1);
    r = folders_find(x, f, position, &fd, name);
    if (r < 0)
        return r;
    if (x->flags[position] & ENTRY_HAS_MODE)
        return attributes_set_time(fd, name, &node);
    auto_close int own = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return own < 0 ? -errno : attributes_set(x, own, &node, (mode_t)-1);
}

int tree_finish_folders(struct extraction *x, struct folders *f)
{
    for (size_t i = x->made.count; i-- > 0;) {
        uint32_t position = x->made.at[i].position;
        if (workers_stopped(&x->workers))
            return x->workers.error ? x->workers.error : -EINTR;
        if (!(x->flags[position] & ENTRY_MADE))
            continue;
        int r = finish_folder(x, f, position);
        if (r < 0)
            extract_problem(x, position, r, FAULT_NO_OFFSET, "its attributes can't be set");
    }
    return x->workers.error;
}
