/*
 * Gathers one member with as few system calls as possible: on a parallel filesystem each may be
 * a round trip. A regular file costs openat, fstat, flistxattr, pread and close. The pread asks
 * for one byte more than the file's size, and so also shows that the file did not grow.
 *
 * A file with several names is not read at first: only when its turn in the archive comes is it
 * known whether this is the first of them.
 */
#include "checksum.h"
#include "gather_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <xxhash.h>

#include "cleanup.h"

#define SYMLINK_BYTES 4096u

/* ---- problems ---- */

struct fault *gather_fault(const char *path, int err, const char *format, ...)
{
    struct fault *fault = calloc(1, sizeof(*fault));
    if (!fault)
        return NULL;
    va_list args;
    va_start(args, format);
    char what[sizeof(fault->what)];
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    fault_set(fault, err, *path ? path : ".", FAULT_NO_OFFSET, "%s", what);
    return fault;
}

/* Leaves the member out. `err` is the system's answer. */
int gather_leave_out(struct gathered *g, int err, const char *what)
{
    char text[128];
    g->skip = true;
    free(g->problem);
    if (err == -ENOENT || err == -ESTALE)
        g->problem = gather_fault(g->path, err, "left out: it vanished while it was packed");
    else
        g->problem = gather_fault(g->path, err, "left out: %s: %s", what,
                                  strerror_r(-err, text, sizeof(text)));
    return g->problem ? 0 : -ENOMEM;
}

/* A name from a list that does not lead to what it should. */
static int not_there(struct gathered *g, int err, const char *what)
{
    g->skip = true;
    g->problem = gather_fault(g->path, err, "%s", what);
    return g->problem ? 0 : -ENOMEM;
}

static int changed_kind(struct gathered *g)
{
    g->skip = true;
    g->problem = gather_fault(g->path, -ESTALE, "left out: it became another kind of file");
    return g->problem ? 0 : -ENOMEM;
}

/* ---- extended attributes ---- */

/*
 * Attributes that another filesystem can hold and another node understands. The others
 * (lustre.*, security.selinux, trusted.*) describe how this filesystem keeps the file.
 */
static bool is_portable(const char *name)
{
    return strncmp(name, "user.", 5) == 0 || strcmp(name, "security.capability") == 0 ||
           strcmp(name, "system.posix_acl_access") == 0 ||
           strcmp(name, "system.posix_acl_default") == 0;
}

/* Gets a list or a value, whatever its length is by now. `name` NULL: the list of names. */
static ssize_t get_xattr(int fd, const char *name, char **ret_bytes)
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

static int compare_strings(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The listed names to pack, sorted: filesystems list them in any order. */
static int pick_names(char *list, size_t len, char ***ret_names, size_t *ret_count)
{
    size_t count = 0;
    for (size_t i = 0; i < len; i += strlen(list + i) + 1)
        count += is_portable(list + i);
    *ret_count = count;
    if (!count)
        return 0;
    char **names = calloc(count, sizeof(*names));
    if (!names)
        return -ENOMEM;
    count = 0;
    for (size_t i = 0; i < len; i += strlen(list + i) + 1)
        if (is_portable(list + i))
            names[count++] = list + i;
    qsort(names, count, sizeof(*names), compare_strings);
    *ret_names = names;
    return 0;
}

/* Name and value are in one piece of memory that the attribute owns: `name`. */
static int add_xattr(struct gathered *g, int fd, const char *name)
{
    auto_free char *value = NULL;
    ssize_t len = get_xattr(fd, name, &value);
    if (len == -ENODATA)
        return 0; /* removed meanwhile */
    if (len < 0)
        return (int)len;
    size_t name_len = strlen(name);
    char *bytes = malloc(name_len + (size_t)len + 1);
    if (!bytes)
        return -ENOMEM;
    memcpy(bytes, name, name_len);
    memcpy(bytes + name_len, value, (size_t)len);
    g->xattrs[g->member.xattr_count++] =
        (struct pax_xattr){bytes, name_len, bytes + name_len, (size_t)len};
    return 0;
}

static int gather_listed_xattrs(struct gathered *g, int fd, char *list, size_t len)
{
    auto_free char **names = NULL;
    size_t count;
    int r = pick_names(list, len, &names, &count);
    if (r < 0 || count == 0)
        return r;
    g->xattrs = calloc(count, sizeof(*g->xattrs));
    if (!g->xattrs)
        return -ENOMEM;
    g->member.xattrs = g->xattrs;
    for (size_t i = 0; r == 0 && i < count; i++)
        r = add_xattr(g, fd, names[i]);
    return r;
}

static int gather_xattrs(struct gathered *g, int fd)
{
    char list[1024];
    auto_free char *longer = NULL;
    ssize_t n = flistxattr(fd, list, sizeof(list));
    if (n == 0 || (n < 0 && (errno == ENOTSUP || errno == ENOSYS)))
        return 0;
    if (n < 0)
        n = get_xattr(fd, NULL, &longer);
    int r = n < 0 ? (int)n : gather_listed_xattrs(g, fd, longer ? longer : list, (size_t)n);
    if (r == 0 || r == -ENOMEM)
        return r;
    char text[128];
    g->problem = gather_fault(g->path, r, "its extended attributes can't be read: %s",
                              strerror_r(-r, text, sizeof(text)));
    return g->problem ? 0 : -ENOMEM;
}

/* ---- attributes ---- */

static void take_stat(struct gathered *g, const struct stat *st)
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
    g->dev = st->st_dev;
    g->ino = st->st_ino;
    g->nlink = st->st_nlink;
}

/* Symbolic links, fifos, devices: files that are not opened. */
static int gather_special(struct gathered *g, int folder_fd, const char *name,
                          const struct stat *st)
{
    take_stat(g, st);
    if (S_ISSOCK(st->st_mode)) {
        g->skip = true;
        g->note = gather_fault(g->path, -EINVAL, "left out: it is a socket");
        return g->note ? 0 : -ENOMEM;
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

/* A directory that can't be read is packed, but empty. */
static int gather_closed_folder(struct gathered *g, int folder_fd, const char *name, int err)
{
    struct stat st;
    if (err != -EACCES || fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return gather_leave_out(g, err, "can't be opened");
    if (!S_ISDIR(st.st_mode))
        return changed_kind(g);
    take_stat(g, &st);
    g->problem =
        gather_fault(g->path, err, "left empty: it can't be listed: permission denied");
    return g->problem ? 0 : -ENOMEM;
}

/*
 * The names in the directory that --files-from lists. A directory listed alone comes without
 * its content.
 */
static int read_listing(const struct gather_from *from, struct gathered *g)
{
    const struct name_list *names = from->selection->names;
    if (!names || from->number == FOLDER_NAME_ALL)
        return listing_read(g->fd, &g->listing);
    int r = name_list_children(names, from->number, g->member.path_len, &g->listing);
    if (r == 1)
        return listing_read(g->fd, &g->listing);
    if (r < 0 || g->listing.count || g->member.path_len == 0)
        return r;
    struct listing all;
    r = listing_read(g->fd, &all);
    if (r == 0 && all.count)
        g->note = gather_fault(g->path, -EINVAL,
                               "packed without what is in it: it is listed without a slash at "
                               "its end");
    listing_free(&all);
    return r;
}

/* The names in the directory to pack. */
static int gather_names(const struct gather_from *from, struct gathered *g)
{
    struct selection_folder folder = {
        g->path, g->member.path_len, from->root_len, g->fd, g->dev, g->ino};
    int r = read_listing(from, g);
    int outputs = selection_apply(from->selection, &folder, &g->listing);
    if (r == -ENOMEM || outputs < 0)
        return -ENOMEM;
    if (outputs > 0 && !g->note)
        g->note = gather_fault(g->path, -EINVAL,
                               "left out: %d shards of the archive that is being written in it",
                               outputs);
    if (r == 0 || r == -ENOENT)
        return 0;
    char text[128];
    free(g->problem);
    g->problem =
        gather_fault(g->path, r, "is not listed whole: %s", strerror_r(-r, text, sizeof(text)));
    return g->problem ? 0 : -ENOMEM;
}

static int gather_folder(const struct gather_from *from, struct gathered *g)
{
    bool listed = from->selection->names && from->number != FOLDER_NAME_ALL;
    g->fd = from->opened_fd >= 0 ? from->opened_fd
                                 : openat(from->folder_fd, from->name,
                                          O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (g->fd < 0 && listed && (errno == ENOTDIR || errno == ELOOP))
        return not_there(g, -ENOTDIR, "left out with what is listed in it: it is no directory");
    if (g->fd < 0 && listed && errno == ENOENT)
        return not_there(g, -ENOENT, "left out with what is listed in it: it does not exist");
    if (g->fd < 0 && (errno == ENOTDIR || errno == ELOOP))
        return changed_kind(g);
    if (g->fd < 0)
        return gather_closed_folder(g, from->folder_fd, from->name, -errno);
    struct stat st;
    if (fstat(g->fd, &st) < 0)
        return gather_leave_out(g, -errno, "can't be examined");
    take_stat(g, &st);
    int r = gather_xattrs(g, g->fd);
    if (r < 0)
        return r;
    g->is_folder = true;
    return gather_names(from, g);
}

/* ---- regular files ---- */

/* Returns the bytes read, fewer than `len` only at the end of the file, or -errno. */
static ssize_t read_up_to(int fd, uint8_t *bytes, size_t len, uint64_t offset, size_t expected)
{
    size_t done = 0;
    while (done < len) {
        ssize_t n = pread(fd, bytes + done, len - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        done += (size_t)n;
        if (n == 0 || done == expected)
            break;
    }
    return (ssize_t)done;
}

/* Fills what could not be read with zeros, and reports that. */
int gather_fill_up(const char *path, uint8_t *bytes, size_t len, ssize_t got, uint64_t offset,
                   struct fault **problem)
{
    size_t good = got < 0 ? 0 : (size_t)got;
    memset(bytes + good, 0, len - good);
    free(*problem);
    char text[128];
    if (got < 0)
        *problem =
            gather_fault(path, (int)got, "zeros from byte %" PRIu64 " on: can't be read: %s",
                         offset, strerror_r((int)-got, text, sizeof(text)));
    else
        *problem = gather_fault(path, -ENODATA,
                                "zeros from byte %" PRIu64 " on: it shrank while it was packed",
                                offset + good);
    return *problem ? 0 : -ENOMEM;
}

static int tell_growth(const char *path, struct fault **problem)
{
    free(*problem);
    *problem =
        gather_fault(path, -EFBIG, "cut at its former size: it grew while it was packed");
    return *problem ? 0 : -ENOMEM;
}

/* Files of /proc and the like have a size of 0, whatever can be read from them. */
static int look_into_empty(struct gathered *g, int fd)
{
    char byte;
    if (pread(fd, &byte, 1, 0) <= 0)
        return 0;
    free(g->problem);
    g->problem = gather_fault(
        g->path, -EFBIG, "packed as empty: its size is 0, though there is something in it");
    return g->problem ? 0 : -ENOMEM;
}

static int read_inline(struct gathered *g, int fd)
{
    size_t size = (size_t)g->member.size_bytes;
    if (!size)
        return look_into_empty(g, fd);
    g->data = malloc(size + 1);
    if (!g->data)
        return -ENOMEM;
    ssize_t n = read_up_to(fd, g->data, size + 1, 0, size);
    int r = 0;
    if (n > (ssize_t)size)
        r = tell_growth(g->path, &g->problem);
    else if (n != (ssize_t)size)
        r = gather_fill_up(g->path, g->data, size, n, 0, &g->problem);
    g->sum = XXH3_64bits(g->data, size);
    return r;
}

int gather_add_extent(struct extent_list *list, uint64_t offset, uint64_t end)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 8;
        void *p = reallocarray(list->extents, capacity, sizeof(list->extents[0]));
        if (!p)
            return -ENOMEM;
        list->extents = p;
        list->capacity = capacity;
    }
    list->extents[list->count++] = (struct pax_extent){offset, end - offset};
    return 0;
}

/*
 * Finds where the file has data, as its filesystem reports it. A filesystem that does not
 * report it has no holes. Where the search fails, the rest counts as data.
 */
static int find_extents(int fd, uint64_t size, struct extent_list *list)
{
    uint64_t at = 0;
    while (at < size) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            return 0; /* a hole up to the end */
        if (data < 0 || (uint64_t)data < at)
            return gather_add_extent(list, at, size);
        if ((uint64_t)data >= size)
            return 0;
        off_t hole = lseek(fd, data, SEEK_HOLE);
        uint64_t end = hole <= data || (uint64_t)hole > size ? size : (uint64_t)hole;
        int r = gather_add_extent(list, (uint64_t)data, end);
        if (r < 0)
            return r;
        at = end;
    }
    return 0;
}

/* Fewer blocks than bytes mean a hole, or a filesystem that compresses. */
static int find_holes(struct gathered *g, int fd, const struct stat *st,
                      struct extent_list *list)
{
    uint64_t size = g->member.size_bytes;
    if (!size || (uint64_t)st->st_blocks * 512 >= size)
        return 0;
    off_t hole = lseek(fd, 0, SEEK_HOLE);
    if (hole < 0 || (uint64_t)hole >= size)
        return 0;
    g->member.sparse = true;
    return find_extents(fd, size, list);
}

int gather_open_stream(struct gathered *g, int *fd, struct extent_list *list)
{
    struct stream *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->path = strdup(g->path);
    s->size_bytes = g->member.size_bytes;
    if (!g->member.sparse && (!s->path || gather_add_extent(list, 0, s->size_bytes) < 0)) {
        stream_free(s);
        return -ENOMEM;
    }
    s->extents = list->extents;
    s->extent_count = list->count;
    *list = (struct extent_list){0};
    s->fd = steal_fd(fd);
    g->stream = s;
    if (g->member.sparse) {
        g->member.extents = s->extents;
        g->member.extent_count = s->extent_count;
    }
    return s->path ? 0 : -ENOMEM;
}

static int gather_regular(struct gathered *g, int folder_fd, const char *name, bool has_turn)
{
    auto_close int fd =
        openat(folder_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 && (errno == ELOOP || errno == ENXIO))
        return changed_kind(g);
    if (fd < 0 || fstat(fd, &st) < 0)
        return gather_leave_out(g, -errno, "can't be opened");
    if (!S_ISREG(st.st_mode))
        return changed_kind(g);
    take_stat(g, &st);
    g->again = st.st_nlink > 1 && !has_turn;
    if (g->again)
        return 0;

    int r = gather_xattrs(g, fd);
    struct extent_list list = {0};
    if (r == 0)
        r = find_holes(g, fd, &st, &list);
    bool hollow = g->member.sparse && list.count == 0;
    if (r == 0 && !hollow && (g->member.sparse || g->member.size_bytes > GATHER_PIECE_BYTES))
        r = gather_open_stream(g, &fd, &list);
    else if (r == 0 && !hollow)
        r = read_inline(g, fd);
    free(list.extents);
    return r;
}

/* ---- members ---- */

static int gather_by_type(const struct gather_from *from, struct gathered *g)
{
    int folder_fd = from->folder_fd;
    if (from->input)
        return gather_from_input(from, g, false);
    if (from->type == DT_DIR)
        return gather_folder(from, g);
    if (from->type == DT_REG)
        return gather_regular(g, folder_fd, from->name, false);
    struct stat st;
    if (fstatat(folder_fd, from->name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        if (errno == ENOENT && from->selection->names && from->number != FOLDER_NAME_ALL)
            return not_there(g, -ENOENT, "left out: it is listed, but does not exist");
        return gather_leave_out(g, -errno, "can't be examined");
    }
    if (S_ISDIR(st.st_mode) || S_ISREG(st.st_mode)) {
        if (from->type != DT_UNKNOWN)
            return changed_kind(g);
        return S_ISDIR(st.st_mode) ? gather_folder(from, g)
                                   : gather_regular(g, folder_fd, from->name, false);
    }
    return gather_special(g, folder_fd, from->name, &st);
}

static int encode(struct gathered *g)
{
    if (g->skip || g->again)
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
    return r < 0 ? r : encode(g);
}

int gather_nothing(char *path, int err, struct gathered *g)
{
    *g = (struct gathered){.fd = -1, .path = path};
    return gather_leave_out(g, err, "its folder can't be opened");
}

int gather_data(const struct gather_from *from, struct gathered *g)
{
    g->again = false;
    int r = from->input ? gather_from_input(from, g, true)
                        : gather_regular(g, from->folder_fd, from->name, true);
    return r < 0 ? r : encode(g);
}

void gather_free(struct gathered *g)
{
    if (g->fd >= 0)
        close(g->fd);
    for (size_t i = 0; i < g->member.xattr_count; i++)
        free((char *)g->xattrs[i].name);
    free(g->xattrs);
    pax_buffer_free(&g->header);
    listing_free(&g->listing);
    stream_free(g->stream);
    free(g->data);
    free(g->problem);
    free(g->note);
    free(g->path);
    free(g->link);
    *g = (struct gathered){.fd = -1};
}

/* ---- streams ---- */

bool stream_next(struct stream *s, uint64_t *ret_offset, size_t *ret_len, bool *ret_last)
{
    if (s->extent == s->extent_count)
        return false;
    const struct pax_extent *e = &s->extents[s->extent];
    uint64_t left = e->length - s->done;
    size_t len = left < GATHER_PIECE_BYTES ? (size_t)left : GATHER_PIECE_BYTES;
    *ret_offset = e->offset + s->done;
    *ret_len = len;
    s->done += len;
    if (s->done == e->length) {
        s->extent++;
        s->done = 0;
    }
    *ret_last = s->extent == s->extent_count;
    return true;
}

int stream_read(const struct stream *s, uint64_t offset, size_t len, bool last, uint8_t *bytes,
                struct fault **ret_problem)
{
    struct fault *problem = NULL;
    ssize_t n = s->input ? gather_read_input(s->input, s->position, bytes, len, offset)
                         : read_up_to(s->fd, bytes, len, offset, len);
    int r = n == (ssize_t)len ? 0 : gather_fill_up(s->path, bytes, len, n, offset, &problem);
    struct stat st;
    if (r == 0 && !problem && last && s->fd >= 0 && fstat(s->fd, &st) == 0 &&
        (uint64_t)st.st_size > s->size_bytes)
        r = tell_growth(s->path, &problem);
    if (r == 0)
        *ret_problem = problem;
    return r;
}

void stream_free(struct stream *s)
{
    if (!s)
        return;
    if (s->fd >= 0)
        close(s->fd);
    checksum_free(s->checksum);
    free(s->path);
    free(s->extents);
    free(s);
}
