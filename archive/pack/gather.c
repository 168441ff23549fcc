/*
 * Gathers one member with as few system calls as possible: on a parallel filesystem each may be
 * a round trip. A regular file costs openat, fstat, flistxattr, pread and close. The pread asks
 * for one byte more than the file's size, and so also shows that the file did not grow.
 */
#include "gather.h"

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

#include "checksum.h"
#include "cleanup.h"
#include "numbers.h"
#include "path.h"

/* gather_skip with the system's words behind `what`; -ENOENT and -ESTALE: it vanished. */
static int gather_leave_out(struct gathered *g, int err, const char *what);

/* Sorts the attributes in g->xattrs, as filesystems don't, and gives them to the member. */
static void gather_end_xattrs(struct gathered *g);

/*
 * Reads a regular file's data, or makes a stream for it, which takes file->fd. Extents come
 * from a sparse member; they are taken. -ENOMEM.
 */
static int gather_content(struct gathered *g, struct gather_file *file,
                          gather_extents *extents);

/*
 * Gathers members of an archive by its index. Everything that the archive has about a file goes
 * into the new one, all extended attributes included.
 *
 * If the archive has checksums they are compared on the way. Otherwise damaged data would get a
 * new sum that fits.
 */

static int input_xattrs(const struct index *index, uint32_t position, struct gathered *g)
{
    struct xattr x;
    uint64_t cursor = 0;
    int r;
    while ((r = index_xattr_next(index, position, &cursor, &x)) == 0)
        if (pax_xattrs_add(&g->xattrs, x.name, x.name_len, x.value, x.value_len) < 0)
            return -ENOMEM;
    gather_end_xattrs(g);
    return r == -ENOENT ? 0 : r;
}

static void input_attributes(struct gathered *g, const struct input *input,
                             const struct node *n)
{
    struct builder_member *m = &g->member;
    m->mode = n->mode;
    m->uid = n->uid;
    m->gid = n->gid;
    m->mtime_sec = n->mtime_sec;
    m->mtime_nsec = n->mtime_nsec;
    if (S_ISCHR(n->mode) || S_ISBLK(n->mode)) {
        m->rdev_major = n->rdev_major;
        m->rdev_minor = n->rdev_minor;
    }
    if (S_ISREG(n->mode))
        m->size_bytes = n->size_bytes;
    g->id = (struct file_id){(uintptr_t)input, n->position}; /* unique in a run */
    g->nlink = n->nlink;
}

static int input_link(const struct index *index, uint32_t position, struct gathered *g)
{
    const char *target;
    size_t len;
    int r = index_symlink(index, position, &target, &len);
    if (r < 0)
        return r;
    g->link = strndup(target, len);
    if (!g->link)
        return -ENOMEM;
    g->member.link = g->link;
    g->member.link_len = len;
    return 0;
}

/* The children are sorted already. */
static int input_listing(const struct index *index, uint32_t position, struct listing *listing)
{
    struct listing_maker maker = {0};
    uint32_t first, count;
    int r = index_children(index, position, &first, &count);
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        struct node child;
        const char *name;
        size_t len;
        r = index_node(index, first + i, &child);
        if (r == 0)
            r = index_name(index, first + i, &name, &len);
        if (r == 0)
            r = listing_maker_add(&maker, name, len, (unsigned char)IFTODT(child.mode),
                                  first + i);
    }
    listing_maker_finish(&maker, listing);
    return r;
}

static int input_folder(const struct gather_from *from, struct gathered *g)
{
    g->is_folder = true;
    int r = input_listing(from->input->index, from->number, &g->listing);
    if (r < 0)
        return r;
    struct selection_folder folder = {g->path, g->member.path_len, from->root_len, .fd = -1};
    r = selection_apply(from->selection, &folder, &g->listing);
    return r < 0 ? r : 0;
}

/* Finds where the file has data; merges neighbouring extents. */
static int input_extents(const struct index *index, uint32_t position, uint64_t size,
                         gather_extents *list)
{
    struct extent e;
    for (uint64_t at = 0; at < size; at += e.length) {
        int r = index_extent(index, position, at, &e);
        if (r == 0 && e.length == 0)
            r = -EUCLEAN;
        if (r < 0)
            return r;
        if (e.kind == EXTENT_HOLE)
            continue;
        struct builder_piece *last = list->count ? &list->at[list->count - 1] : NULL;
        if (last && last->offset + last->length == at)
            last->length += e.length;
        else if (vector_push(list, (struct builder_piece){.offset = at, .length = e.length}) <
                 0)
            return -ENOMEM;
    }
    return 0;
}

static int input_regular(const struct gather_from *from, const struct node *n,
                         struct gathered *g)
{
    struct gather_file file = {-1, from->input, n->position};
    gather_extents list = {0};
    int r = 0;
    g->member.data = n->has_holes ? DATA_PIECES : DATA_STORED;
    if (n->has_holes)
        r = input_extents(from->input->index, n->position, n->size_bytes, &list);
    if (r < 0)
        vector_free(&list);
    return r < 0 ? r : gather_content(g, &file, &list);
}

static int input_node(const struct gather_from *from, struct gathered *g)
{
    struct node n;
    int r = index_node(from->input->index, from->number, &n);
    if (r < 0)
        return r;
    input_attributes(g, from->input, &n);
    if (n.has_xattrs)
        r = input_xattrs(from->input->index, n.position, g);
    if (r == 0 && S_ISDIR(n.mode))
        r = input_folder(from, g);
    else if (r == 0 && S_ISLNK(n.mode))
        r = input_link(from->input->index, n.position, g);
    else if (r == 0 && S_ISREG(n.mode))
        r = input_regular(from, &n, g);
    return r;
}

/* As gather_member, from from->input. */
static int gather_from_input(const struct gather_from *from, struct gathered *g)
{
    int r = input_node(from, g);
    if (r == 0 || r == -ENOMEM)
        return r;
    g->is_folder = false;
    return gather_leave_out(g, r, "its entry in the archive's index can't be used");
}

/*
 * Shared by both ways of gathering: words for problems, and the data of a file, whole or as a
 * stream, whether it lies in a filesystem or in an archive.
 */

/* ---- problems ---- */

int gather_fault(struct fault **fault, const char *path, int err, const char *format, ...)
{
    char what[sizeof((*fault)->what)];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    free(*fault);
    *fault = calloc(1, sizeof(**fault));
    if (!*fault)
        return -ENOMEM;
    fault_set(*fault, err, *path ? path : ".", FAULT_NO_OFFSET, "%s", what);
    return 0;
}

/* The same, with the system's words behind `what`. */
static int gather_system_fault(struct fault **fault, const char *path, int err,
                               const char *what)
{
    return gather_fault(fault, path, err, "%s: %s", what, fault_errno(err));
}

int gather_skip(struct gathered *g, int err, const char *what)
{
    g->skip = true;
    return gather_fault(&g->problem, g->path, err, "%s", what);
}

static int gather_leave_out(struct gathered *g, int err, const char *what)
{
    if (err == -ENOENT || err == -ESTALE)
        return gather_skip(g, err, "left out: it vanished while it was packed");
    g->skip = true;
    return gather_fault(&g->problem, g->path, err, "left out: %s: %s", what, fault_errno(err));
}

static void gather_end_xattrs(struct gathered *g)
{
    pax_xattrs_sort(&g->xattrs);
    g->member.xattrs = g->xattrs.at;
    g->member.xattr_count = g->xattrs.count;
}

/* ---- data ---- */

/* Returns the bytes read, fewer than `len` only at the end of the file, or -errno. */
static ssize_t gather_read(const struct gather_file *file, uint8_t *bytes, size_t len,
                           uint64_t offset, size_t expected)
{
    size_t done = 0;
    if (file->input) {
        int r =
            file->input->read(file->input->ctx, file->position, offset, bytes, expected, &done);
        return r < 0 ? r : (ssize_t)done;
    }
    while (done < len) {
        ssize_t n = pread(file->fd, bytes + done, len - done, (off_t)(offset + done));
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

/*
 * Fills what could not be read of `len` bytes at `offset` with zeros, and reports that. `got`:
 * number of bytes read, or the error. -ENOMEM.
 */
static int gather_fill_up(const char *path, uint8_t *bytes, size_t len, ssize_t got,
                          uint64_t offset, struct fault **problem)
{
    size_t good = got < 0 ? 0 : (size_t)got;
    char what[80];
    memset(bytes + good, 0, len - good);
    snprintf(what, sizeof(what), "zeros from byte %" PRIu64 " on: %s", offset + good,
             got < 0 ? "can't be read" : "it shrank while it was packed");
    return got < 0 ? gather_system_fault(problem, path, (int)got, what)
                   : gather_fault(problem, path, -ENODATA, "%s", what);
}

static int gather_growth(const char *path, struct fault **problem)
{
    return gather_fault(problem, path, -EFBIG,
                        "cut at its former size: it grew while it was packed");
}

/* Files of /proc and the like have a size of 0, whatever can be read from them. */
static int gather_empty(struct gathered *g, int fd)
{
    char byte;
    if (pread(fd, &byte, 1, 0) <= 0)
        return 0;
    return gather_fault(&g->problem, g->path, -EFBIG,
                        "packed as empty: its size is 0, but it has content");
}

void gather_sum_fault(const char *path, struct fault *fault)
{
    fault_set(fault, -EBADMSG, path, FAULT_NO_OFFSET,
              "is damaged: its data do not match their checksum in the archive");
}

/* Compares the data with the sum that the source archive has, if any. */
static int gather_check_sum(struct gathered *g, const struct gather_file *file)
{
    uint64_t sum;
    if (!file->input || g->problem || index_sum(file->input->index, file->position, &sum) < 0)
        return 0;
    enum sum_kind kind = index_info(file->input->index)->sum_kind;
    if (kind == SUM_XXH3 ? sum == g->member.sum
                         : checksum_matches(kind, sum, g->data, g->member.size_bytes))
        return 0;
    g->problem = calloc(1, sizeof(*g->problem));
    if (!g->problem)
        return -ENOMEM;
    gather_sum_fault(g->path, g->problem);
    return 0;
}

static int gather_inline(struct gathered *g, const struct gather_file *file)
{
    size_t size = (size_t)g->member.size_bytes;
    if (!size)
        return file->input ? 0 : gather_empty(g, file->fd);
    g->data = malloc(size + 1);
    if (!g->data)
        return -ENOMEM;
    ssize_t n = gather_read(file, g->data, size + 1, 0, size);
    int r = 0;
    if (n > (ssize_t)size)
        r = gather_growth(g->path, &g->problem);
    else if (n != (ssize_t)size)
        r = gather_fill_up(g->path, g->data, size, n, 0, &g->problem);
    g->member.has_sum = true;
    g->member.sum = XXH3_64bits(g->data, size);
    return r < 0 ? r : gather_check_sum(g, file);
}

/* Makes the member's stream, which takes file->fd and the extents. */
static int gather_open_stream(struct gathered *g, struct gather_file *file,
                              gather_extents *list)
{
    struct builder_piece whole = {.length = g->member.size_bytes};
    struct stream *s = calloc(1, sizeof(*s));
    if (!s || (g->member.data == DATA_STORED && vector_push(list, whole) < 0)) {
        free(s);
        return -ENOMEM;
    }
    g->stream = s;
    s->extents = *list;
    *list = (gather_extents){0};
    s->size_bytes = g->member.size_bytes;
    s->file = *file;
    file->fd = -1;
    if (g->member.data == DATA_PIECES) {
        g->member.pieces = s->extents.at;
        g->member.piece_count = s->extents.count;
    }
    s->path = strdup(g->path);
    if (!s->path)
        return -ENOMEM;
    if (!s->file.input || index_sum(s->file.input->index, s->file.position, &s->sum) < 0)
        return 0;
    return checksum_new(index_info(s->file.input->index)->sum_kind, &s->checksum);
}

static int gather_content(struct gathered *g, struct gather_file *file, gather_extents *list)
{
    bool sparse = g->member.data == DATA_PIECES, hollow = sparse && list->count == 0;
    int r = 0;
    if (!hollow && (sparse || g->member.size_bytes > GATHER_PIECE_BYTES))
        r = gather_open_stream(g, file, list);
    else if (!hollow)
        r = gather_inline(g, file);
    vector_free(list);
    return r;
}

/* ---- streams ---- */

bool stream_next(struct stream *s, uint64_t *ret_offset, size_t *ret_len, bool *ret_last)
{
    if (s->dropped || s->extent == s->extents.count)
        return false;
    const struct builder_piece *e = &s->extents.at[s->extent];
    size_t len = (size_t)min_u64(e->length - s->done, GATHER_PIECE_BYTES);
    *ret_offset = e->offset + s->done;
    *ret_len = len;
    s->done += len;
    if (s->done == e->length) {
        s->extent++;
        s->done = 0;
    }
    *ret_last = s->extent == s->extents.count;
    return true;
}

int stream_read(const struct stream *s, uint64_t offset, size_t len, bool last, uint8_t *bytes,
                struct fault **ret_problem)
{
    struct fault *problem = NULL;
    int fd = s->file.fd;
    ssize_t n = gather_read(&s->file, bytes, len, offset, len);
    int r = n == (ssize_t)len ? 0 : gather_fill_up(s->path, bytes, len, n, offset, &problem);
    struct stat st;
    if (r == 0 && !problem && last && fd >= 0 && fstat(fd, &st) == 0 &&
        (uint64_t)st.st_size > s->size_bytes)
        r = gather_growth(s->path, &problem);
    if (r == 0)
        *ret_problem = problem;
    return r;
}

void stream_free(struct stream *s)
{
    if (!s)
        return;
    if (s->file.fd >= 0)
        close(s->file.fd);
    checksum_free(s->checksum);
    free(s->path);
    vector_free(&s->extents);
    free(s);
}

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
    struct builder_member *m = &g->member;
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
    g->link = malloc(SYMLINK_BYTES + 1);
    if (!g->link)
        return -ENOMEM;
    ssize_t n = readlinkat(folder_fd, name, g->link, SYMLINK_BYTES);
    if (n < 0)
        return gather_leave_out(g, -errno, "can't be read");
    g->link[n] = '\0';
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

/*
 * A time of change may have no fraction of a second, and is compared with a time by the clock
 * of another filesystem.
 */
#define KEPT_CLOCK_SECONDS 2

/*
 * Finds the entry of this path in what an earlier run has kept, if nothing of the file has
 * changed since that run began. Size and time of modification alone do not show that a file was
 * rewritten in place and given its old time.
 */
static bool gather_find_kept(const struct selection *selection, const char *path,
                             const struct stat *st, uint32_t *ret_position)
{
    const struct index *index = selection->kept->index;
    auto_free char *composed = NULL;
    struct node n;
    int r = selection->is_nfc ? selection_compose(path, &composed) : 0;
    if (r < 0 || st->st_ctim.tv_sec >= selection->kept_since - KEPT_CLOCK_SECONDS ||
        index_resolve(index, r == 1 ? composed : path, ret_position) < 0 ||
        index_node(index, *ret_position, &n) < 0)
        return false;
    return n.mode == st->st_mode && n.uid == st->st_uid && n.gid == st->st_gid &&
           (S_ISDIR(n.mode) || (S_ISREG(n.mode) && n.size_bytes == (uint64_t)st->st_size)) &&
           n.mtime_sec == st->st_mtim.tv_sec && n.mtime_nsec == (uint32_t)st->st_mtim.tv_nsec;
}

/* A folder that was renamed brings other files, which need not have changed themselves. */
static bool gather_is_as_kept(const struct gather_from *from, const struct gathered *g,
                              const struct stat *st)
{
    uint32_t position;
    return from->is_as_kept && (file_id_equal(g->id, from->selection->output_folder) ||
                                gather_find_kept(from->selection, g->path, st, &position));
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
    g->is_as_kept = gather_is_as_kept(from, g, &st);
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
            return vector_push(list, (struct builder_piece){.offset = at, .length = size - at});
        if ((uint64_t)data >= size)
            return 0;
        off_t hole = lseek(fd, data, SEEK_HOLE);
        uint64_t end = hole <= data || (uint64_t)hole > size ? size : (uint64_t)hole;
        int r = vector_push(list, (struct builder_piece){.offset = (uint64_t)data,
                                                         .length = end - (uint64_t)data});
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
    g->member.data = DATA_PIECES;
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

/* 1: the file was gathered from there; 0: it has to be read. */
static int gather_from_kept(const struct gather_from *from, struct gathered *g)
{
    struct gather_from there = *from;
    struct gathered kept = {.fd = -1, .path = g->path};
    struct stat st;
    if (!from->is_as_kept ||
        fstatat(from->folder_fd, from->name, &st, selection_stat_flags(from->selection)) < 0 ||
        !gather_find_kept(from->selection, g->path, &st, &there.number))
        return 0;
    there.input = from->selection->kept;
    kept.member.path = g->path;
    kept.member.path_len = g->member.path_len;
    int r = gather_from_input(&there, &kept);
    if (r < 0 || kept.skip || kept.problem) {
        kept.path = NULL;
        gather_free(&kept);
        return r;
    }
    kept.id = file_id_of(&st);
    kept.nlink = st.st_nlink;
    *g = kept;
    return 1;
}

static int gather_regular(const struct gather_from *from, struct gathered *g)
{
    int kept = gather_from_kept(from, g);
    if (kept != 0)
        return kept < 0 ? kept : 0;
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

/* Gives the member its name in the archive. A symbolic link still leads to what it led to. */
static int gather_compose(struct gathered *g)
{
    struct builder_member *m = &g->member;
    char *link;
    int r = selection_compose(g->path, &g->composed);
    if (r == 1) {
        m->path = g->composed;
        m->path_len = strlen(g->composed);
    }
    if (r < 0 || !g->link || path_leads_out(m->path, m->path_len, m->link, m->link_len))
        return r;
    r = selection_compose(g->link, &link);
    if (r == 1) {
        free(g->link);
        m->link = g->link = link;
        m->link_len = strlen(link);
    }
    return r;
}

static int gather_encode(const struct gather_from *from, struct gathered *g)
{
    if (g->skip)
        return 0;
    int r = from->selection->is_nfc ? gather_compose(g) : 0;
    if (r >= 0)
        r = pax_encode(&g->member, &g->header);
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
    return r < 0 ? r : gather_encode(from, g);
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
    free(g->composed);
    free(g->link);
    *g = (struct gathered){.fd = -1};
}
