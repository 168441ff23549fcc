/*
 * Gathers one member with as few system calls as possible: on a parallel filesystem each may be
 * a round trip. A regular file costs openat, fstat, flistxattr, pread and close. The pread asks
 * for one byte more than the file's size, and so also shows that the file did not grow.
 */
#include "gather.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "cleanup.h"

#define SYMLINK_BYTES 4096u

/* ---- problems ---- */

static int gather_changed_kind(struct gathered *g)
{
    return gather_skip(g, -ESTALE, "left out: it became another kind of file");
}

/* ---- extended attributes ---- */

/*
 * Attributes that another filesystem can hold and another node understands. The others
 * (lustre.*, security.selinux, trusted.*) describe how this filesystem keeps the file.
 */
static bool gather_is_portable(const char *name)
{
    return strncmp(name, "user.", 5) == 0 || strcmp(name, "security.capability") == 0 ||
           strcmp(name, "system.posix_acl_access") == 0 ||
           strcmp(name, "system.posix_acl_default") == 0;
}

/* Gets a list or a value, whatever its length is by now. `name` NULL: the list of names. */
static ssize_t gather_get_xattr(int fd, const char *name, char **ret_bytes)
{
    size_t size = 1024;
    for (int attempt = 0; attempt < 8; attempt++) {
        char *bytes = malloc(size);
        if (!bytes)
            return -ENOMEM;
        ssize_t n = name ? fgetxattr(fd, name, bytes, size) : flistxattr(fd, bytes, size);
        if (n >= 0) {
            *ret_bytes = bytes;
            return n;
        }
        free(bytes);
        if (errno != ERANGE)
            return -errno;
        n = name ? fgetxattr(fd, name, NULL, 0) : flistxattr(fd, NULL, 0);
        if (n < 0)
            return -errno;
        size = (size_t)n + 1024;
    }
    return -ERANGE;
}

static int gather_listed_xattrs(struct gathered *g, int fd, const char *list, size_t len)
{
    int r = 0;
    for (size_t i = 0; r == 0 && i < len; i += strlen(list + i) + 1) {
        auto_free char *value = NULL;
        if (!gather_is_portable(list + i))
            continue;
        ssize_t n = gather_get_xattr(fd, list + i, &value);
        if (n >= 0)
            r = pax_xattrs_add(&g->xattrs, list + i, strlen(list + i), value, (size_t)n);
        else if (n != -ENODATA) /* else it was removed meanwhile */
            r = (int)n;
    }
    gather_end_xattrs(g);
    return r;
}

static int gather_xattrs(struct gathered *g, int fd)
{
    auto_free char *list = NULL;
    ssize_t n = gather_get_xattr(fd, NULL, &list);
    if (n == 0 || n == -ENOTSUP || n == -ENOSYS)
        return 0;
    int r = n < 0 ? (int)n : gather_listed_xattrs(g, fd, list, (size_t)n);
    if (r == 0 || r == -ENOMEM)
        return r;
    return gather_system_fault(&g->problem, g->path, r,
                               "its extended attributes can't be read");
}

/* ---- attributes ---- */

static void gather_stat(struct gathered *g, const struct stat *st)
{
    struct pax_member *m = &g->member;
    m->mode = st->st_mode;
    m->uid = st->st_uid;
    m->gid = st->st_gid;
    m->mtime_sec = st->st_mtim.tv_sec;
    m->mtime_nsec = (uint32_t)st->st_mtim.tv_nsec;
    if (S_ISCHR(st->st_mode) || S_ISBLK(st->st_mode)) {
        m->rdev_major = major(st->st_rdev);
        m->rdev_minor = minor(st->st_rdev);
    }
    if (S_ISREG(st->st_mode))
        m->size_bytes = (uint64_t)st->st_size;
    g->id = file_id_of(st);
    g->nlink = st->st_nlink;
}

/* Symbolic links, fifos, devices: files that are not opened. */
static int gather_special(struct gathered *g, int folder_fd, const char *name,
                          const struct stat *st)
{
    gather_stat(g, st);
    if (S_ISSOCK(st->st_mode)) {
        g->skip = true;
        return gather_fault(&g->note, g->path, -EINVAL, "left out: it is a socket");
    }
    if (!S_ISLNK(st->st_mode))
        return 0;
    g->link = malloc(SYMLINK_BYTES);
    if (!g->link)
        return -ENOMEM;
    ssize_t n = readlinkat(folder_fd, name, g->link, SYMLINK_BYTES);
    if (n < 0)
        return gather_leave_out(g, -errno, "can't be read");
    g->member.link = g->link;
    g->member.link_len = (size_t)n;
    return 0;
}

/* ---- directories ---- */

/* Is the member named in a list, or does it lead to one that is? */
static bool gather_is_listed(const struct gather_from *from)
{
    return from->selection->names && from->number != FOLDER_NAME_ALL;
}

/* A directory that can't be read is packed, but empty. */
static int gather_closed_folder(struct gathered *g, int folder_fd, const char *name, int flags,
                                int err)
{
    struct stat st;
    if (err != -EACCES || fstatat(folder_fd, name, &st, flags) < 0)
        return gather_leave_out(g, err, "can't be opened");
    if (!S_ISDIR(st.st_mode))
        return gather_changed_kind(g);
    gather_stat(g, &st);
    return gather_fault(&g->problem, g->path, err,
                        "left empty: it can't be listed: permission denied");
}

/*
 * The names in the directory that --files-from lists. A directory listed alone comes without
 * its content.
 */
static int gather_listing(const struct gather_from *from, struct gathered *g)
{
    const struct name_list *names = from->selection->names;
    if (!gather_is_listed(from))
        return listing_read(g->fd, &g->listing);
    int r = name_list_children(names, from->number, g->member.path_len, &g->listing);
    if (r == 1)
        return listing_read(g->fd, &g->listing);
    if (r < 0 || g->listing.count || g->member.path_len == 0)
        return r;
    struct listing all;
    r = listing_read(g->fd, &all);
    if (r == 0 && all.count)
        r = gather_fault(&g->note, g->path, -EINVAL,
                         "packed without what is in it: it is listed without a slash at its "
                         "end");
    listing_free(&all);
    return r;
}

/* The names in the directory to pack. */
static int gather_names(const struct gather_from *from, struct gathered *g)
{
    struct selection_folder folder = {g->path, g->member.path_len, from->root_len, g->fd,
                                      g->id};
    int r = gather_listing(from, g);
    int outputs = selection_apply(from->selection, &folder, &g->listing);
    if (r == -ENOMEM || outputs < 0)
        return -ENOMEM;
    if (outputs > 0 && !g->note &&
        gather_fault(&g->note, g->path, -EINVAL,
                     "left out: %d shards of the archive that is being written in it",
                     outputs) < 0)
        return -ENOMEM;
    if (r == 0 || r == -ENOENT)
        return 0;
    return gather_system_fault(&g->problem, g->path, r, "is not listed whole");
}

/* Why the directory can't be opened. */
static int gather_no_folder(const struct gather_from *from, struct gathered *g, int err)
{
    bool other = err == ENOTDIR || err == ELOOP;
    if (gather_is_listed(from) && (other || err == ENOENT))
        return gather_skip(g, other ? -ENOTDIR : -ENOENT,
                           other
                               ? "left out with everything listed in it: it is not a directory"
                               : "left out with everything listed in it: it does not exist");
    if (other)
        return gather_changed_kind(g);
    return gather_closed_folder(g, from->folder_fd, from->name,
                                selection_stat_flags(from->selection), -err);
}

static int gather_folder(const struct gather_from *from, struct gathered *g)
{
    g->fd = from->opened_fd >= 0 ? from->opened_fd
                                 : openat(from->folder_fd, from->name,
                                          selection_open_flags(from->selection) | O_DIRECTORY);
    if (g->fd < 0)
        return gather_no_folder(from, g, errno);
    struct stat st;
    if (fstat(g->fd, &st) < 0)
        return gather_leave_out(g, -errno, "can't be examined");
    gather_stat(g, &st);
    int r = gather_xattrs(g, g->fd);
    if (r < 0)
        return r;
    g->is_folder = true;
    return gather_names(from, g);
}

/* ---- regular files ---- */

/*
 * Finds where the file has data, as its filesystem reports it. A filesystem that does not
 * report it has no holes. Where the search fails, the rest counts as data.
 */
static int gather_find_extents(int fd, uint64_t size, gather_extents *list)
{
    uint64_t at = 0;
    while (at < size) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0; /* a hole up to the end */
        if (data < 0 || (uint64_t)data < at)
            return vector_push(list, (struct pax_extent){at, size - at});
        if ((uint64_t)data >= size)
            return 0;
        off_t hole = lseek(fd, data, SEEK_HOLE);
        uint64_t end = hole <= data || (uint64_t)hole > size ? size : (uint64_t)hole;
        int r = vector_push(list, (struct pax_extent){(uint64_t)data, end - (uint64_t)data});
        if (r < 0)
            return r;
        at = end;
    }
    return 0;
}

/* Fewer blocks than bytes mean a hole, or a filesystem that compresses. */
static int gather_find_holes(struct gathered *g, int fd, const struct stat *st,
                             gather_extents *list)
{
    uint64_t size = g->member.size_bytes;
    if (!size || (uint64_t)st->st_blocks * 512 >= size)
        return 0;
    off_t hole = lseek(fd, 0, SEEK_HOLE);
    if (hole < 0 || (uint64_t)hole >= size)
        return 0;
    g->member.sparse = true;
    return gather_find_extents(fd, size, list);
}

static int gather_opened(struct gathered *g, struct gather_file *file, const struct stat *st)
{
    gather_extents list = {0};
    int r = gather_xattrs(g, file->fd);
    if (r == 0)
        r = gather_find_holes(g, file->fd, st, &list);
    if (r < 0)
        vector_free(&list);
    return r < 0 ? r : gather_content(g, file, &list);
}

static int gather_regular(const struct gather_from *from, struct gathered *g)
{
    struct gather_file file = {
        .fd = openat(from->folder_fd, from->name,
                     selection_open_flags(from->selection) | O_NONBLOCK | O_NOCTTY)};
    struct stat st;
    int r;
    if (file.fd < 0 && (errno == ELOOP || errno == ENXIO))
        return gather_changed_kind(g);
    if (file.fd < 0 || fstat(file.fd, &st) < 0) {
        r = gather_leave_out(g, -errno, "can't be opened");
    } else if (!S_ISREG(st.st_mode)) {
        r = gather_changed_kind(g);
    } else {
        gather_stat(g, &st);
        r = gather_opened(g, &file, &st);
    }
    if (file.fd >= 0)
        close(file.fd);
    return r;
}

/* ---- members ---- */

static int gather_by_type(const struct gather_from *from, struct gathered *g)
{
    int folder_fd = from->folder_fd;
    if (from->input)
        return gather_from_input(from, g);
    if (from->type == DT_DIR)
        return gather_folder(from, g);
    if (from->type == DT_REG)
        return gather_regular(from, g);
    struct stat st;
    if (fstatat(folder_fd, from->name, &st, selection_stat_flags(from->selection)) < 0) {
        int err = errno;
        if (from->selection->dereference && (err == ENOENT || err == ELOOP) &&
            fstatat(folder_fd, from->name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            return gather_skip(g, -err,
                               err == ELOOP ? "left out: its links lead in a circle"
                                            : "left out: it is a link that leads to nothing");
        errno = err;
        if (errno == ENOENT && gather_is_listed(from))
            return gather_skip(g, -ENOENT, "left out: it is listed, but does not exist");
        return gather_leave_out(g, -errno, "can't be examined");
    }
    if (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)) {
        if (from->type != DT_UNKNOWN && (from->type != DT_LNK || !from->selection->dereference))
            return gather_changed_kind(g);
        return S_ISDIR(st.st_mode) ? gather_folder(from, g) : gather_regular(from, g);
    }
    return gather_special(g, folder_fd, from->name, &st);
}

static int gather_encode(struct gathered *g)
{
    if (g->skip)
        return 0;
    int r = pax_encode(&g->member, &g->header);
    if (r < 0 && r != -ENOMEM)
        return gather_leave_out(g, r, "has no form in a tar");
    return r;
}

int gather_member(const struct gather_from *from, char *path, size_t path_len,
                  struct gathered *g)
{
    *g = (struct gathered){.fd = -1, .path = path};
    g->member.path = path;
    g->member.path_len = path_len;
    int r = gather_by_type(from, g);
    return r < 0 ? r : gather_encode(g);
}

int gather_nothing(char *path, int err, struct gathered *g)
{
    *g = (struct gathered){.fd = -1, .path = path};
    return gather_leave_out(g, err, "its folder can't be opened");
}

void gather_free(struct gathered *g)
{
    if (g->fd >= 0)
        close(g->fd);
    pax_xattrs_free(&g->xattrs);
    vector_free(&g->header);
    listing_free(&g->listing);
    stream_free(g->stream);
    free(g->data);
    free(g->problem);
    free(g->note);
    free(g->path);
    free(g->link);
    *g = (struct gathered){.fd = -1};
}
