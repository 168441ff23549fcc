/*
 * One run: words for problems, the attributes that members get, folders, members; and above
 * these the selection of members, their order and their threads.
 *
 * One walk through the tree makes all folders and lists all files. A folder that can't be made
 * excludes everything below it. The walk goes depth first, so it needs few descriptors, however
 * deep the tree is: those of the folders made last, and on the way back up some opened anew.
 * Names of inodes with several are put aside: the first wanted name becomes the file, and the
 * others are linked to it once all files exist.
 */
#include "extract.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "checksum.h"
#include "cleanup.h"
#include "codec.h"
#include "file_id.h"
#include "numbers.h"
#include "path.h"
#include "vector.h"
#include "workers.h"
#include "write_at.h"

#define ACL_DEFAULT "system.posix_acl_default"
#define DEPTH_MAX ((INDEX_PATH_MAX + 1) / 2) /* names of one byte each */
#define XATTR_VALUE_MAX 65536u               /* Linux's limit */

/* Flags of an entry. */
enum {
    ENTRY_WANTED = 1,     /* with everything below it */
    ENTRY_ON_THE_WAY = 2, /* a folder with something wanted below it */
    ENTRY_MADE = 4,       /* it exists, and we may set its attributes */
    ENTRY_NEW = 8,        /* a folder that did not exist before */
    ENTRY_HAS_MODE = 16,  /* a folder made with all its attributes except the time */
};

/* A large file is extracted in pieces, by several threads at once. */
#define PIECE_BYTES (UINT64_C(8) << 20)
#define LARGE_BYTES (2 * PIECE_BYTES)

struct large {
    uint32_t position;
    uint32_t pieces, left; /* all pieces, and those still to be written */
    int fd;                /* -1: not yet made, or done */
    bool made;             /* made and not finished: removed on failure */
    bool failed;
    bool hashing;           /* a thread is hashing */
    uint32_t hashed;        /* pieces hashed, from the first on */
    uint8_t *written;       /* one flag for each piece */
    struct checksum *state; /* NULL: no sum to compare with */
};

#define READ_BACK_BYTES (256u << 10) /* the buffer of a thread */

struct link_name {
    uint32_t inode, position;
};

struct extraction {
    const struct extract_options *options;
    struct workers workers; /* its lock is for large files as well */
    const struct index *index;
    bool has_some_sums;

    int root_fd;
    bool root_made;
    bool inherits; /* some existing folder passes modes or groups on to new files */
    mode_t umask;  /* bits that files must not get */
    uid_t uid;     /* owner that new files get */
    gid_t gid;

    uint8_t *flags;        /* ENTRY_*, one for each entry; written by one thread at a time */
    VECTOR(uint32_t) made; /* folders, in the order of creation, the root first */
    struct extractor *extractors;
    VECTOR(struct link_name) links; /* names of inodes with several, sorted */
    VECTOR(struct large) large;     /* sorted by position */
    uint64_t large_key;             /* key of the first piece of the last of them */

    _Atomic uint64_t files, lost_xattrs;
    uint64_t unprivileged;
};

#define FOLDER_SLOTS_MAX 64u

/* The data of one thread. */
struct extractor {
    struct extraction *x;
    struct worker *worker;

    /* Descriptors of folders that it used lately. */
    struct {
        uint32_t position;
        int fd; /* O_PATH; -1: free */
    } slots[FOLDER_SLOTS_MAX];
    unsigned slot_count;
    VECTOR(uint32_t) way; /* from a folder up to one with an open descriptor */
    /* The folder whose children are being extracted. */
    uint32_t directory, first, count;

    /* The file that is being written. */
    int fd;
    struct checksum *hash; /* or NULL */
    bool write_failed;

    /* The step that failed. */
    const char *doing; /* "can't be written" */
    uint64_t offset;   /* in the archive, or FAULT_NO_OFFSET */
};

/* ---- problems: words for them, and which ones end the run ---- */

static const char *extract_describe(const struct extraction *x, int err)
{
    switch (-err) {
    case EEXIST:
        return x->options->overwrite ? "something else is put there again and again"
                                     : "it exists already";
    case EISDIR:
        return "a directory is in its place";
    case ENOTDIR:
    case ELOOP:
        return "what is there is not a directory";
    case ETXTBSY:
        return "the archive itself is in its place";
    case EUCLEAN:
        return "the archive is damaged here";
    case ENOTSUP:
        return CODEC_UNSUPPORTED;
    case ENODATA:
        return "the archive ends before it does";
    case EBADMSG:
        return "";
    default:
        return fault_errno(err);
    }
}

static const char *extract_advice(const struct extraction *x, int err)
{
    switch (-err) {
    case EEXIST:
    case ENOTDIR:
    case ELOOP:
        return x->options->overwrite ? "" : "replace what is there with -f";
    case ENOSPC:
    case EDQUOT:
        return "the unfinished file was removed; free some space, or choose another "
               "directory with -C";
    case EBADMSG:
    case EUCLEAN:
    case ENODATA:
        return "compare the archive with its original, or copy it again";
    case ENOTSUP:
        return CODEC_UNSUPPORTED_ADVICE;
    default:
        return "";
    }
}

static bool ends_the_run(int err)
{
    return err == -ENOSPC || err == -EDQUOT || err == -EROFS || err == -ENOMEM ||
           err == -EMFILE || err == -ENFILE;
}

/*
 * Handles a problem with an entry: reports and counts it, unless the error ends the run.
 * `doing` is the step that failed, "" if `err` says it all. Returns `err`.
 */
static int extract_problem(struct extraction *x, uint32_t position, int err, uint64_t offset,
                           const char *doing)
{
    char path[8192];
    size_t len;
    struct fault fault = {0};
    if (err == -EINTR) /* stopped: not a problem */
        return err;
    bool is_over = ends_the_run(err) || index_is_lost(x->index);
    if (err == -EUCLEAN && is_over)
        err = -EIO;
    if (index_path(x->index, position, path, sizeof(path), &len) < 0)
        snprintf(path, sizeof(path), "entry %" PRIu32, position);
    const char *why = extract_describe(x, err);
    fault_set(&fault, err, path, offset, "%s%s%s", doing, *doing && *why ? ": " : "", why);
    fault_advise(&fault, "%s", extract_advice(x, err));
    workers_report(&x->workers, &fault, is_over);
    return err;
}

/* ---- attributes ---- */

/* Does an entry made here have the right owner from the start? */
static bool attributes_keep_owner(const struct extraction *x, const struct node *node)
{
    return node->uid == x->uid && node->gid == x->gid;
}

/* The mode that an inode gets here. */
static mode_t attributes_mode(const struct extraction *x, const struct node *node)
{
    mode_t mode = node->mode & 07777;
    if (!x->options->exact_modes)
        return mode & 0777 & ~x->umask;
    /* A set-id bit is only for files of the intended owner. */
    if (!S_ISDIR(node->mode) &&
        (!x->options->privileged || (!x->options->owners && !attributes_keep_owner(x, node))))
        mode &= ~(mode_t)(S_ISUID | S_ISGID);
    return mode;
}

static bool is_in_namespace(const struct xattr *xattr, const char *namespace)
{
    size_t len = strlen(namespace);
    return xattr->name_len > len && memcmp(xattr->name, namespace, len) == 0;
}

/* Attributes that give rights, or that programs obey: security, trusted. */
static bool is_privileged(const struct xattr *xattr)
{
    return !is_in_namespace(xattr, "user.") && !is_in_namespace(xattr, "system.posix_acl_");
}

/*
 * Because the run is not `privileged`, will it lack set-id bits or attributes, or be left out?
 */
static bool attributes_lack_privileges(const struct extraction *x, const struct node *node)
{
    uint64_t cursor = 0;
    struct xattr xattr;
    if (x->options->privileged)
        return false;
    if (S_ISCHR(node->mode) || S_ISBLK(node->mode) ||
        (node->mode & (S_ISUID | S_ISGID) && !S_ISDIR(node->mode)))
        return true;
    while (node->has_xattrs && index_xattr_next(x->index, node->position, &cursor, &xattr) == 0)
        if (is_privileged(&xattr))
            return true;
    return false;
}

static bool may_restore(const struct extraction *x, const struct xattr *xattr)
{
    return x->options->exact_modes || is_in_namespace(xattr, "user.");
}

/* Set the attributes of the open file or, if `fd` is -1, of the file at `path` itself. */
static int set_xattrs(struct extraction *x, int fd, const char *path, uint32_t position)
{
    uint64_t cursor = 0;
    struct xattr xattr;
    bool lost = false;
    int r;
    while ((r = index_xattr_next(x->index, position, &cursor, &xattr)) == 0) {
        char name[INDEX_NAME_MAX + 1];
        if (is_privileged(&xattr) && !x->options->privileged)
            continue; /* already counted */
        if (!may_restore(x, &xattr)) {
            lost = true;
            continue;
        }
        memcpy(name, xattr.name, xattr.name_len);
        name[xattr.name_len] = '\0';
        if (xattr.value_len <= XATTR_VALUE_MAX &&
            (fd >= 0 ? fsetxattr(fd, name, xattr.value, xattr.value_len, 0)
                     : lsetxattr(path, name, xattr.value, xattr.value_len, 0)) == 0)
            continue;
        lost = true;
    }
    if (lost)
        atomic_fetch_add_explicit(&x->lost_xattrs, 1, memory_order_relaxed);
    return r == -ENOENT ? 0 : r;
}

/* Times as futimens takes them: the time of the last access stays. */
static void node_times(const struct node *node, struct timespec ret_times[2])
{
    ret_times[0] = (struct timespec){.tv_nsec = UTIME_OMIT};
    ret_times[1] =
        (struct timespec){.tv_sec = (time_t)node->mtime_sec, .tv_nsec = (long)node->mtime_nsec};
}

/* Set the time of an entry by its name, without following it. */
static int attributes_set_time(int folder_fd, const char *name, const struct node *node)
{
    struct timespec times[2];
    node_times(node, times);
    return utimensat(folder_fd, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static bool needs_chown(const struct extraction *x, const struct node *node)
{
    return x->options->owners && (!attributes_keep_owner(x, node) || x->inherits);
}

/* Set owner, extended attributes, mode, time; `have_mode` is the current mode. */
static int attributes_set(struct extraction *x, int fd, const struct node *node,
                          mode_t have_mode)
{
    mode_t mode = attributes_mode(x, node);
    bool chown = needs_chown(x, node);
    struct timespec times[2];
    int r = 0;
    if (chown && fchown(fd, node->uid, node->gid) < 0)
        return -errno;
    if (node->has_xattrs)
        r = set_xattrs(x, fd, NULL, node->position);
    if (r < 0)
        return r;
    if ((have_mode != mode || chown || x->inherits || mode & 07000) && fchmod(fd, mode) < 0)
        return -errno;
    node_times(node, times);
    return futimens(fd, times) < 0 ? -errno : 0;
}

/* The same by name, for entries without a descriptor. Links have no mode. */
static int attributes_set_by_name(struct extraction *x, int folder_fd, const char *name,
                                  const struct node *node)
{
    if (needs_chown(x, node) &&
        fchownat(folder_fd, name, node->uid, node->gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (node->has_xattrs) {
        /* The name is one component, so lsetxattr follows only the path to the open folder. */
        char path[sizeof("/proc/self/fd/-2147483648/") + INDEX_NAME_MAX];
        snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", folder_fd, name);
        int r = set_xattrs(x, -1, path, node->position);
        if (r < 0)
            return r;
    }
    return attributes_set_time(folder_fd, name, node);
}

/* ---- folders ---- */

/*
 * Each folder is opened from its parent's descriptor by a single name, without following a
 * symbolic link. So no path is ever too long, and nothing at that name, even if put there
 * meanwhile, can lead out of the directory. The index's names are checked again here, where it
 * matters.
 *
 * A folder stays closed to others (0700) until the end. Inside a closed folder, further folders
 * can be made with their final mode at once. In a tree of many folders that saves most of their
 * system calls.
 */

static void folders_init(struct extractor *e, unsigned slots)
{
    e->slot_count = slots < 4 ? 4 : slots > FOLDER_SLOTS_MAX ? FOLDER_SLOTS_MAX : slots;
    for (unsigned i = 0; i < FOLDER_SLOTS_MAX; i++)
        e->slots[i].fd = -1;
    e->directory = UINT32_MAX;
}

static void folders_free(struct extractor *e)
{
    for (unsigned i = 0; i < e->slot_count; i++)
        if (e->slots[i].fd >= 0)
            close(e->slots[i].fd);
    vector_free(&e->way);
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
static unsigned slot_of(const struct extractor *e, uint32_t directory)
{
    return ((directory * UINT32_C(0x9e3779b1)) >> 16) % e->slot_count;
}

static int slot_fd(const struct extractor *e, uint32_t directory)
{
    struct extraction *x = e->x;
    unsigned slot = slot_of(e, directory);
    if (directory == INDEX_ROOT)
        return x->root_fd;
    return e->slots[slot].position == directory ? e->slots[slot].fd : -1;
}

/* Fill e->way with the folders from `directory` up to, but excluding, an open one. */
static int find_way(struct extractor *e, uint32_t directory, int *ret_fd)
{
    struct extraction *x = e->x;
    e->way.count = 0;
    while ((*ret_fd = slot_fd(e, directory)) < 0) {
        int r = vector_push(&e->way, directory);
        if (r == 0)
            r = index_parent(x->index, directory, &directory);
        if (r < 0)
            return r;
    }
    return 0;
}

static int folders_get(struct extractor *e, uint32_t directory, int *ret_fd)
{
    struct extraction *x = e->x;
    int fd, r = find_way(e, directory, &fd);
    while (r == 0 && e->way.count > 0) {
        char name[INDEX_NAME_MAX + 1];
        uint32_t position = e->way.at[--e->way.count];
        r = copy_name(x->index, position, name);
        if (r < 0)
            break;
        fd = openat(fd, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            return -errno;
        unsigned slot = slot_of(e, position);
        if (e->slots[slot].fd >= 0)
            close(e->slots[slot].fd);
        e->slots[slot].position = position;
        e->slots[slot].fd = fd;
    }
    if (r == 0)
        *ret_fd = fd;
    return r;
}

/*
 * Get the descriptor of the folder that holds an entry, valid until the next call, and the
 * entry's name, terminated.
 */
static int folders_find(struct extractor *e, uint32_t position, int *ret_fd,
                        char name[INDEX_NAME_MAX + 1])
{
    struct extraction *x = e->x;
    int r = 0;
    if (e->directory == UINT32_MAX || position < e->first || position - e->first >= e->count) {
        uint32_t parent;
        e->directory = UINT32_MAX;
        r = index_parent(x->index, position, &parent);
        if (r == 0)
            r = index_children(x->index, parent, &e->first, &e->count);
        if (r == 0)
            e->directory = parent;
    }
    if (r == 0)
        r = copy_name(x->index, position, name);
    return r < 0 ? r : folders_get(e, e->directory, ret_fd);
}

/* ---- the directory itself ---- */

/* Would new files in this folder get another mode or group than they are made with? */
static bool hands_down(int fd, const struct stat *st)
{
    return st->st_mode & S_ISGID || fgetxattr(fd, ACL_DEFAULT, NULL, 0) > 0;
}

/* Open or make the directory of the options. */
static int tree_open_root(struct extraction *x, struct fault *fault)
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
static bool is_of_archive(const struct fileset *fileset, struct file_id file)
{
    const struct source *source;
    struct source_identity id = fileset->identity;
    bool is_of = file_id_equal(file, (struct file_id){id.dev, id.ino});
    for (size_t at[2] = {0}; !is_of && (source = source_file_next(fileset->source, at));) {
        source_identity(source, &id);
        is_of = file_id_equal(file, (struct file_id){id.dev, id.ino});
    }
    for (size_t i = 0; !is_of && i < fileset->part_count; i++)
        is_of = file_id_equal(file, fileset->parts[i].file);
    return is_of;
}

/*
 * After `name` could not be made, with the errno `err`: remove whatever occupies it, if that is
 * allowed. 0: try again; or why it can't be made. *attempts begins with 0.
 */
static int tree_make_way(const struct extraction *x, int folder_fd, const char *name, int err,
                         unsigned *attempts)
{
    struct stat st;
    if (err != EEXIST || !x->options->overwrite || ++*attempts == 3)
        return -err;
    if (fstatat(folder_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (S_ISDIR(st.st_mode))
        return -EISDIR;
    if (is_of_archive(x->workers.fileset, file_id_of(&st)))
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

/* Make the folder that the walk meets, and go into it. Problems are reported. -ENOMEM. */
static int tree_make_folder(struct extractor *e, const struct node *node, struct index_walk *w)
{
    struct extraction *x = e->x;
    uint32_t position = w->position;
    char name[INDEX_NAME_MAX + 1];
    bool at_once = false, is_new = false;
    int fd, r = -ENAMETOOLONG; /* only in an index forged to be so deep */
    if (w->levels.count <= DEPTH_MAX)
        r = folders_find(e, position, &fd, name);
    if (r == 0) {
        at_once = has_mode_at_once(x, node, e->directory);
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
    w->enters = true;
    return vector_push(&x->made, position);
}

/* ---- attributes of folders ---- */

static int finish_folder(struct extractor *e, uint32_t position)
{
    struct extraction *x = e->x;
    char name[INDEX_NAME_MAX + 1];
    struct node node;
    int fd = x->root_fd, r = index_node(x->index, position, &node);
    if (r < 0)
        return r;
    if (position == INDEX_ROOT)
        return attributes_set(x, fd, &node, (mode_t)-1);
    r = folders_find(e, position, &fd, name);
    if (r < 0)
        return r;
    if (x->flags[position] & ENTRY_HAS_MODE)
        return attributes_set_time(fd, name, &node);
    auto_close int own = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return own < 0 ? -errno : attributes_set(x, own, &node, (mode_t)-1);
}

/*
 * Set the attributes of all folders, the deepest first. Returns the error that stopped the run,
 * or -EINTR.
 */
static int tree_finish_folders(struct extractor *e)
{
    struct extraction *x = e->x;
    for (size_t i = x->made.count; i-- > 0;) {
        uint32_t position = x->made.at[i];
        if (workers_stopped(&x->workers))
            return x->workers.error ? x->workers.error : -EINTR;
        if (!(x->flags[position] & ENTRY_MADE))
            continue;
        int r = finish_folder(e, position);
        if (r < 0)
            extract_problem(x, position, r, FAULT_NO_OFFSET, "its attributes can't be set");
    }
    return x->workers.error;
}

/* ---- members ---- */

/*
 * A new file costs as few system calls as possible. It is made with its final mode (the umask
 * of the process is 0 meanwhile), written, given its time and closed. Owner and mode are set
 * only where they would otherwise be wrong. Nothing waits for a disk.
 */

/* ---- bytes: each piece is hashed and written while it is still in the CPU's cache ---- */

static int write_piece(void *ctx, const void *bytes, size_t len, uint64_t offset)
{
    struct extractor *e = ctx;
    if (workers_stopped(&e->x->workers))
        return -EINTR;
    if (e->hash)
        checksum_add(e->hash, bytes, len);
    int r = write_at(e->fd, bytes, len, offset);
    e->write_failed = r < 0;
    atomic_fetch_add_explicit(&e->x->workers.progress.bytes_done, len, memory_order_relaxed);
    return r;
}

/*
 * Write bytes [from, to) of the file at `position` to the same place in `fd`, leaving out
 * holes. `hash` (or NULL) is updated with all bytes outside of holes.
 */
static int bytes_copy(struct extractor *e, uint32_t position, uint64_t from, uint64_t to,
                      int fd, struct checksum *hash)
{
    e->fd = fd;
    e->hash = hash;
    e->write_failed = false;
    e->doing = "can't be read";
    int r = content_read(e->worker->content, position, from, to, write_piece, e, &e->offset);
    if (e->write_failed)
        e->doing = "can't be written";
    return r;
}

static int bytes_hash_range(struct extractor *e, uint64_t from, uint64_t to, int fd,
                            struct checksum *hash)
{
    for (size_t n; from < to; from += n) {
        n = min_u64(to - from, READ_BACK_BYTES);
        int r = read_at(fd, e->worker->buffer, n, from);
        if (r < 0)
            return r == -ENODATA ? -EIO : r; /* somebody cut the file off */
        checksum_add(hash, e->worker->buffer, n);
    }
    return 0;
}

/* Read bytes [from, to) back as they were written, and hash them. */
static int bytes_hash_written(struct extractor *e, uint32_t position, uint64_t from,
                              uint64_t to, int fd, struct checksum *hash)
{
    while (from < to) {
        struct extent extent;
        int r = index_extent(e->x->index, position, from, &extent);
        if (r < 0)
            return r;
        uint64_t len = min_u64(extent.length, to - from);
        if (extent.kind != EXTENT_HOLE)
            r = bytes_hash_range(e, from, from + len, fd, hash);
        if (r < 0)
            return r;
        from += len;
    }
    return 0;
}

/* ---- making ---- */

/*
 * Until its owner is right, nobody else may read a file. Its owner must be able to write it
 * while attributes are still to be set.
 */
static mode_t first_mode(const struct extraction *x, const struct node *node)
{
    mode_t mode = attributes_mode(x, node) & 0777;
    if (x->options->owners && !attributes_keep_owner(x, node))
        mode &= 0700;
    return node->has_xattrs ? mode | 0600 : mode;
}

/* Create the member's file. Returns its descriptor, or -errno. */
static int member_make_file(struct extraction *x, int folder_fd, const char *name, int flags,
                            mode_t mode)
{
    int fd = -1, r = 0;
    flags |= O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY;
    for (unsigned attempts = 0; r == 0 && (fd = openat(folder_fd, name, flags, mode)) < 0;)
        r = tree_make_way(x, folder_fd, name, errno, &attempts);
    return r < 0 ? r : fd;
}

static int make_special(struct extraction *x, int folder_fd, const char *name,
                        const struct node *node, const char *target)
{
    mode_t mode = (node->mode & S_IFMT) | (attributes_mode(x, node) & 0777);
    dev_t device = makedev(node->rdev_major, node->rdev_minor);
    int r = 0;
    for (unsigned attempts = 0;
         r == 0 && (target ? symlinkat(target, folder_fd, name)
                           : mknodat(folder_fd, name, mode, device)) < 0;)
        r = tree_make_way(x, folder_fd, name, errno, &attempts);
    return r;
}

static int member_read_target(const struct index *index, uint32_t position,
                              char target[INDEX_SYMLINK_MAX + 1])
{
    const char *bytes;
    size_t len;
    int r = index_symlink(index, position, &bytes, &len);
    if (r < 0)
        return r;
    memcpy(target, bytes, len);
    target[len] = '\0';
    return 0;
}

/*
 * A symbolic link, fifo, socket or device. Mode and owner of these never give access to data.
 */
static int extract_special(struct extractor *e, int folder_fd, const char *name,
                           const struct node *node)
{
    struct extraction *x = e->x;
    char target[INDEX_SYMLINK_MAX + 1];
    bool is_link = S_ISLNK(node->mode);
    int r = is_link ? member_read_target(x->index, node->position, target) : 0;
    if (r == 0)
        r = make_special(x, folder_fd, name, node, is_link ? target : NULL);
    if (r < 0) {
        e->doing = "can't be made";
        return r;
    }
    r = attributes_set_by_name(x, folder_fd, name, node);
    mode_t mode = attributes_mode(x, node);
    if (r == 0 && !is_link && (mode & 07000 || x->inherits) &&
        fchmodat(folder_fd, name, mode, AT_SYMLINK_NOFOLLOW) < 0)
        r = -errno;
    if (r < 0)
        e->doing = "its attributes can't be set";
    return r;
}

/* ---- files ---- */

static int check_sum(struct extractor *e, uint32_t position, const struct checksum *hash)
{
    uint64_t sum;
    int r = index_sum(e->x->index, position, &sum);
    if (r == -ENODATA)
        return 0;
    if (r == 0 && !checksum_is(hash, sum))
        r = -EBADMSG;
    if (r < 0) {
        e->doing = "its bytes do not have the sum that they were packed with";
        e->offset = worklist_key(e->x->index, position, 0, FAULT_NO_OFFSET);
    }
    return r;
}

static int write_file(struct extractor *e, int fd, const struct node *node, mode_t mode)
{
    struct extraction *x = e->x;
    struct checksum *hash = e->worker->hash;
    if (hash)
        checksum_reset(hash);
    int r = bytes_copy(e, node->position, 0, node->size_bytes, fd, hash);
    if (r == 0 && hash)
        r = check_sum(e, node->position, hash);
    if (r < 0)
        return r;
    if (node->data_bytes < node->size_bytes || node->has_holes)
        r = ftruncate(fd, (off_t)node->size_bytes) < 0 ? -errno : 0;
    if (r == 0)
        r = attributes_set(x, fd, node, mode);
    if (r < 0)
        e->doing = "its attributes can't be set";
    return r;
}

static int extract_file(struct extractor *e, int folder_fd, const char *name,
                        const struct node *node)
{
    mode_t mode = first_mode(e->x, node);
    int fd = member_make_file(e->x, folder_fd, name, O_WRONLY, mode);
    if (fd < 0) {
        e->doing = "can't be made";
        return fd;
    }
    int r = write_file(e, fd, node, mode);
    if (close(fd) < 0 && r == 0) {
        e->doing = "can't be written";
        r = -errno; /* a network filesystem may report an exceeded quota only now */
    }
    if (r < 0)
        unlinkat(folder_fd, name, 0);
    else
        atomic_fetch_add_explicit(&e->x->files, 1, memory_order_relaxed);
    return r;
}

/* Extract an entry that is no directory; problems are reported. */
static void member_extract(struct extractor *e, uint32_t position)
{
    struct extraction *x = e->x;
    char name[INDEX_NAME_MAX + 1];
    struct node node;
    e->doing = "can't be extracted";
    e->offset = FAULT_NO_OFFSET;
    int fd, r = index_node(x->index, position, &node);
    if (r == 0)
        r = folders_find(e, position, &fd, name);
    if (r == 0)
        r = S_ISREG(node.mode) ? extract_file(e, fd, name, &node)
                               : extract_special(e, fd, name, &node);
    if (r < 0)
        extract_problem(x, position, r, e->offset, e->doing);
    atomic_fetch_add_explicit(&x->workers.progress.members, 1, memory_order_relaxed);
}

/* ---- large files ---- */

/* By position, for qsort and bsearch. */
static int large_compare(const void *a, const void *b)
{
    const struct large *x = a, *y = b;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* Under the lock. The first piece makes the file. */
static int open_large(struct extractor *e, struct large *l, const struct node *node)
{
    char name[INDEX_NAME_MAX + 1];
    int folder_fd, r = folders_find(e, l->position, &folder_fd, name);
    if (r == 0)
        l->fd = r = member_make_file(e->x, folder_fd, name, O_RDWR, first_mode(e->x, node));
    if (r < 0)
        e->doing = "can't be made";
    return r < 0 ? r : 0;
}

/*
 * Hash the written pieces from the front up to the first gap. One thread does so at a time, and
 * its own piece counts as left until then. Called under the lock, which is released meanwhile.
 * (Pieces written lately are read back from memory.)
 */
static int hash_front(struct extractor *e, struct large *l, const struct node *node)
{
    struct extraction *x = e->x;
    int r = 0;
    if (!l->state || l->hashing)
        return 0;
    l->hashing = true;
    while (r == 0 && l->hashed < l->pieces && l->written[l->hashed] && !l->failed) {
        uint64_t from = l->hashed * PIECE_BYTES, to = from + PIECE_BYTES;
        pthread_mutex_unlock(&x->workers.lock);
        r = bytes_hash_written(e, node->position, from, min_u64(to, node->size_bytes), l->fd,
                               l->state);
        pthread_mutex_lock(&x->workers.lock);
        l->hashed++;
    }
    l->hashing = false;
    return r;
}

/* All pieces are written: set attributes and finish the file. Under the lock. */
static int finish_large(struct extractor *e, struct large *l, const struct node *node)
{
    int r = l->state ? check_sum(e, node->position, l->state) : 0;
    if (r < 0)
        return r;
    e->doing = "its attributes can't be set";
    if (ftruncate(l->fd, (off_t)node->size_bytes) < 0)
        return -errno;
    r = attributes_set(e->x, l->fd, node, first_mode(e->x, node));
    if (r < 0)
        return r;
    r = close(steal_fd(&l->fd)) < 0 ? -errno : 0;
    l->made = r < 0;
    if (r == 0)
        atomic_fetch_add_explicit(&e->x->files, 1, memory_order_relaxed);
    return r;
}

/* No thread works on it any more. */
static void discard_large(struct extractor *e, struct large *l)
{
    char name[INDEX_NAME_MAX + 1];
    int folder_fd;
    if (l->fd >= 0)
        close(steal_fd(&l->fd));
    if (l->made && folders_find(e, l->position, &folder_fd, name) == 0)
        unlinkat(folder_fd, name, 0);
    l->made = false;
}

/* Under the lock. */
static int member_begin_piece(struct extractor *e, struct large *l, const struct node *node)
{
    if (l->failed || l->made)
        return 0;
    int r = open_large(e, l, node);
    l->made = r == 0;
    l->failed = r < 0;
    return r;
}

/* The piece was written, or failed. Under the lock. */
static int member_end_piece(struct extractor *e, struct large *l, uint32_t piece,
                            const struct node *node)
{
    int r = 0;
    l->written[piece] = 1;
    if (!l->failed)
        r = hash_front(e, l, node);
    l->left--;
    if (r == 0 && l->left == 0 && !l->failed)
        r = finish_large(e, l, node);
    return r;
}

/* Extract one piece of a large file. */
static void member_extract_piece(struct extractor *e, uint32_t position, uint32_t piece)
{
    struct extraction *x = e->x;
    struct node node = {0};
    e->doing = "can't be extracted";
    e->offset = FAULT_NO_OFFSET;
    pthread_mutex_lock(&x->workers.lock);
    const struct large key = {.position = position};
    struct large *l = bsearch(&key, x->large.at, x->large.count, sizeof(key), large_compare);
    int r = index_node(x->index, position, &node);
    if (r == 0)
        r = member_begin_piece(e, l, &node);
    bool skip = l->failed || r < 0;
    pthread_mutex_unlock(&x->workers.lock);
    if (!skip) {
        uint64_t from = piece * PIECE_BYTES, to = from + PIECE_BYTES;
        r = bytes_copy(e, node.position, from, min_u64(to, node.size_bytes), l->fd, NULL);
    }
    pthread_mutex_lock(&x->workers.lock);
    const bool is_told = !skip && l->failed; /* by another piece */
    l->failed |= r < 0;
    int end = member_end_piece(e, l, piece, &node);
    r = r < 0 ? r : end;
    l->failed |= r < 0;
    if (l->failed && l->left == 0)
        discard_large(e, l);
    pthread_mutex_unlock(&x->workers.lock);
    if (r < 0 && !is_told)
        extract_problem(x, position, r, e->offset, e->doing);
}

/* Remove unfinished large files, after the threads have ended. */
static void member_discard_large(struct extractor *e)
{
    struct extraction *x = e->x;
    for (size_t i = 0; i < x->large.count; i++) {
        discard_large(e, &x->large.at[i]);
        checksum_free(x->large.at[i].state);
        free(x->large.at[i].written);
    }
}

/* ---- further names ---- */

static int make_link(struct extractor *e, uint32_t first, uint32_t position)
{
    struct extraction *x = e->x;
    char from[INDEX_NAME_MAX + 1], to[INDEX_NAME_MAX + 1];
    int from_fd, to_fd, r = folders_find(e, first, &from_fd, from);
    if (r < 0)
        return r;
    /* The next call may close the original. */
    auto_close int own_fd = fcntl(from_fd, F_DUPFD_CLOEXEC, 0);
    if (own_fd < 0)
        return -errno;
    r = folders_find(e, position, &to_fd, to);
    for (unsigned attempts = 0; r == 0 && linkat(own_fd, from, to_fd, to, 0) < 0;)
        r = tree_make_way(x, to_fd, to, errno, &attempts);
    return r;
}

/* Make a further name of a file. */
static void member_link(struct extractor *e, uint32_t first, uint32_t position)
{
    struct extraction *x = e->x;
    int r = make_link(e, first, position);
    if (r == -EPERM || r == -EOPNOTSUPP || r == -EMLINK || r == -EXDEV) {
        member_extract(e, position); /* no hard links here, or too many: make a copy */
        return;
    }
    if (r < 0) {
        extract_problem(x, position, r, FAULT_NO_OFFSET, "can't be linked to its other name");
        return;
    }
    struct node node;
    bool is_file = index_node(x->index, position, &node) == 0 && S_ISREG(node.mode);
    atomic_fetch_add_explicit(&x->files, is_file, memory_order_relaxed);
    atomic_fetch_add_explicit(&x->workers.progress.members, 1, memory_order_relaxed);
}

/* ---- selection ---- */

static int want_path(struct extraction *x, const char *path, bool *found)
{
    uint32_t position;
    int r = index_resolve(x->index, path, &position);
    if (r == -ENOENT || r == -ENOTDIR || r == -EINVAL)
        return 0;
    if (r < 0)
        return r;
    *found = true;
    x->flags[position] |= ENTRY_WANTED;
    while (r == 0 && position != INDEX_ROOT) {
        r = index_parent(x->index, position, &position);
        if (r == 0)
            x->flags[position] |= ENTRY_ON_THE_WAY;
    }
    return r;
}

static int find_wanted(struct extraction *x)
{
    int r = 0;
    if (x->options->path_count == 0)
        x->flags[INDEX_ROOT] |= ENTRY_WANTED;
    for (size_t i = 0; r == 0 && i < x->options->path_count; i++)
        r = want_path(x, x->options->paths[i], &x->options->path_found[i]);
    return r;
}

/* ---- the list of work ---- */

static int add_large(struct extraction *x, const struct node *node, uint32_t position,
                     uint64_t *key)
{
    uint32_t pieces = (uint32_t)((node->size_bytes - 1) / PIECE_BYTES) + 1;
    struct large l = {.position = position, .pieces = pieces, .left = pieces, .fd = -1};
    l.written = calloc(pieces, 1);
    if (x->has_some_sums && checksum_new(index_info(x->index)->sum_kind, &l.state) < 0)
        l.state = NULL;
    int r = vector_push(&x->large, l);
    x->large_key = worklist_key(x->index, position, 0, *key);
    if (r == 0 && (!l.written || (x->has_some_sums && !l.state)))
        r = -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < pieces; i++) {
        *key = worklist_key(x->index, position, i * PIECE_BYTES, *key);
        r = worklist_add(&x->workers, (struct work_item){*key, position, i + 1});
    }
    return r;
}

/* At least half of the file must be data: a huge hole is no work. */
static bool is_large(const struct node *node)
{
    return S_ISREG(node->mode) && node->data_bytes >= LARGE_BYTES &&
           node->data_bytes >= node->size_bytes / 2 &&
           node->size_bytes / PIECE_BYTES < UINT32_MAX - 1;
}

/* `key` is the previous entry's: a file without bytes is handled with its neighbours. */
static int add_work(struct extraction *x, const struct node *node, uint32_t position,
                    uint64_t *key)
{
    if (S_ISREG(node->mode))
        atomic_fetch_add(&x->workers.progress.bytes_total, node->data_bytes);
    /*
     * Copies of one large file at the same place would all be open at once, so they come one by
     * one.
     */
    if (is_large(node) &&
        (!x->large.count || worklist_key(x->index, position, 0, *key) != x->large_key))
        return add_large(x, node, position, key);
    if (S_ISREG(node->mode))
        *key = worklist_key(x->index, position, 0, *key);
    return worklist_add(&x->workers, (struct work_item){*key, position, 0});
}

static int compare_links(const void *a, const void *b)
{
    const struct link_name *x = a, *y = b;
    if (x->inode != y->inode)
        return x->inode < y->inode ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* The first wanted name of each inode becomes a file. */
static int add_first_names(struct extraction *x)
{
    uint64_t key = 0;
    int r = 0;
    if (x->links.count)
        qsort(x->links.at, x->links.count, sizeof(*x->links.at), compare_links);
    for (size_t i = 0; r == 0 && i < x->links.count; i++) {
        struct node node;
        if (i > 0 && x->links.at[i].inode == x->links.at[i - 1].inode)
            continue;
        r = index_node(x->index, x->links.at[i].position, &node);
        if (r == 0)
            r = add_work(x, &node, x->links.at[i].position, &key);
    }
    return r;
}

/* Make a folder, or list what is none. */
static int visit_entry(struct extractor *e, struct index_walk *w, uint64_t *key)
{
    struct extraction *x = e->x;
    uint32_t position = w->position;
    struct node node;
    x->flags[position] |= x->flags[w->directory] & ENTRY_WANTED;
    if (!(x->flags[position] & (ENTRY_WANTED | ENTRY_ON_THE_WAY)))
        return 0;
    int r = index_node(x->index, position, &node);
    if (r < 0) {
        extract_problem(x, position, r, FAULT_NO_OFFSET, "can't be extracted");
        return 0;
    }
    if (attributes_lack_privileges(x, &node)) {
        x->unprivileged++;
        if (S_ISCHR(node.mode) || S_ISBLK(node.mode))
            return 0;
    }
    if (S_ISDIR(node.mode))
        return tree_make_folder(e, &node, w);
    if (node.position != position || node.nlink > 1)
        return vector_push(&x->links, (struct link_name){node.position, position});
    return add_work(x, &node, position, key);
}

static int visit_all(struct extractor *e)
{
    struct extraction *x = e->x;
    struct index_walk w = {.index = x->index, .position = INDEX_ROOT, .enters = true};
    uint64_t key = 0;
    if (x->root_made)
        x->flags[INDEX_ROOT] |= ENTRY_MADE | ENTRY_NEW;
    int r = vector_push(&x->made, INDEX_ROOT);
    while (r == 0 && (r = index_walk_next(&w)) != 0) {
        if (r < 0 && r != -ENOMEM) {
            extract_problem(x, w.position, r, FAULT_NO_OFFSET, "the directory can't be read");
            r = 0;
        } else if (r > 0) {
            r = visit_entry(e, &w, &key);
        }
        if (r == 0 && workers_stopped(&x->workers))
            r = x->workers.error ? x->workers.error : -EINTR;
    }
    index_walk_free(&w);
    if (r == 0)
        r = add_first_names(x);
    if (x->large.count)
        qsort(x->large.at, x->large.count, sizeof(*x->large.at), large_compare);
    return r;
}

/* ---- threads ---- */

static void extract_do_item(struct worker *w, const struct work_item *item)
{
    struct extraction *x = w->workers->job;
    struct extractor *e = &x->extractors[w->number];
    if (item->piece)
        member_extract_piece(e, item->position, item->piece - 1);
    else
        member_extract(e, item->position);
}

/* Each thread keeps some descriptors of folders, within the process's limit. */
static unsigned folder_slots(unsigned threads)
{
    struct rlimit limit = {.rlim_cur = 256};
    getrlimit(RLIMIT_NOFILE, &limit);
    uint64_t each = limit.rlim_cur > 64 ? (limit.rlim_cur - 64) / 2 / threads : 4;
    return each > FOLDER_SLOTS_MAX ? FOLDER_SLOTS_MAX : (unsigned)each;
}

/* ---- the steps ---- */

static void extract_links(struct extraction *x, struct extractor *e)
{
    uint32_t first = 0;
    for (size_t i = 0; i < x->links.count && !workers_stopped(&x->workers); i++) {
        if (i == 0 || x->links.at[i].inode != x->links.at[i - 1].inode)
            first = x->links.at[i].position;
        else
            member_link(e, first, x->links.at[i].position);
    }
}

static int extract_all(struct extraction *x)
{
    int r = find_wanted(x);
    if (r == 0)
        r = visit_all(&x->extractors[0]);
    if (r == 0)
        r = workers_run(&x->workers);
    if (r == 0)
        extract_links(x, &x->extractors[0]);
    member_discard_large(&x->extractors[0]);
    return r < 0 ? r : tree_finish_folders(&x->extractors[0]);
}

static int extract_with_folders(struct extraction *x)
{
    const unsigned threads = x->workers.threads;
    x->extractors = calloc(threads, sizeof(*x->extractors));
    if (!x->extractors)
        return -ENOMEM;
    for (unsigned i = 0; i < threads; i++) {
        x->extractors[i] = (struct extractor){.x = x, .worker = &x->workers.at[i]};
        folders_init(&x->extractors[i], folder_slots(threads));
        if (index_info(x->index)->has_sums)
            content_skip_sums(x->workers.at[i].content);
    }
    int r = extract_all(x);
    for (unsigned i = 0; i < threads; i++)
        folders_free(&x->extractors[i]);
    free(x->extractors);
    return r;
}

static int extract_prepare(struct extraction *x, struct fault *fault)
{
    int r = workers_init(&x->workers, fault);
    x->flags = calloc(index_info(x->index)->entries, 1);
    if (r == 0 && !x->flags)
        r = -ENOMEM;
    return r < 0 ? r : tree_open_root(x, fault);
}

static void extract_release(struct extraction *x)
{
    if (x->root_fd >= 0)
        close(x->root_fd);
    workers_free(&x->workers);
    vector_free(&x->links);
    vector_free(&x->large);
    vector_free(&x->made);
    free(x->flags);
}

int extract_run(struct fileset *fileset, const struct extract_options *options,
                struct fault *fault, struct extract_result *ret_result)
{
    struct extraction x = {
        .options = options,
        .workers = {.options = &options->work,
                    .fileset = fileset,
                    .buffer_bytes = READ_BACK_BYTES,
                    .doing = "extracting",
                    .work = extract_do_item,
                    .job = &x},
        .index = fileset->index,
        .has_some_sums = index_info(fileset->index)->has_some_sums,
        .root_fd = -1,
        .uid = geteuid(),
        .gid = getegid(),
    };
    mode_t before = umask(0);
    x.umask = options->exact_modes ? 0 : before;
    int r = extract_prepare(&x, fault);
    if (r == 0)
        r = extract_with_folders(&x);
    umask(before);
    int whole = r == -EINTR ? 0 : fileset_check_whole(fileset, fault);
    if (whole < 0)
        r = whole; /* the cause, whatever error followed */
    else if (r < 0 && x.workers.error && fault)
        *fault = x.workers.fault;
    *ret_result = (struct extract_result){
        .files = x.files,
        .bytes = x.workers.progress.bytes_done,
        .problems = x.workers.problems,
        .lost_xattrs = x.lost_xattrs,
        .unprivileged = x.unprivileged,
    };
    extract_release(&x);
    return r;
}
