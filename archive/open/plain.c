/*
 * A folder whose files are shown as they are, archives among them. They are few and large, and
 * nothing has to be packed: the index is made by listing, each time, and is saved nowhere.
 *
 * The folder may be another user's, so below it everything is found by descriptor, and no link
 * is followed. What another filesystem holds is left out: it may be a mount of this program
 * itself. Entries are listed breadth first, each folder's by name, so that all nodes of a job
 * find the same bytes at the same offsets.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <xxhash.h>

#include "builder.h"
#include "cleanup.h"
#include "path.h"
#include "fileset_private.h"
#include "selection.h"
#include "source_concat.h"
#include "source_folder.h"
#include "source_ops.h"
#include "vector.h"

#define PLAIN_FILES_MAX 100000u /* and as many folders */
#define LINK_TARGET_MAX 4095u
#define MOUNT_ROOT UINT64_C(0x2000) /* STATX_ATTR_MOUNT_ROOT, of Linux 5.8 */

const struct backend backend_plain = {.name = "folder", .file = "a folder", .number = 6};

#define ACL_ACCESS "system.posix_acl_access"
#define ELSEWHERE "another filesystem is mounted there"

struct plain_entry {
    char *path;   /* "": the folder itself */
    char *target; /* of a symbolic link, else NULL */
    char *acl;    /* access control list; NULL: none */
    size_t acl_len;
    struct stat st;
    bool is_left_out;
};

struct plain {
    const char *name; /* of the folder, for messages */
    int fd;
    VECTOR(struct plain_entry) entries;
    size_t folders;
    struct builder *builder; /* is told what is left out */
    struct source_identity identity;
    uint64_t fingerprint; /* the same on any node: of names, sizes and times */
};

static void plain_entry_free(struct plain_entry *entry)
{
    free(entry->path);
    free(entry->target);
    free(entry->acl);
}

static void plain_free(struct plain *plain)
{
    for (size_t i = 0; i < plain->entries.count; i++)
        plain_entry_free(&plain->entries.at[i]);
    vector_free(&plain->entries);
    builder_free(plain->builder);
    cleanup_closep(&plain->fd);
}

/* ---- listing ---- */

static int plain_leave_out(struct plain *plain, const char *path, int err, const char *why)
{
    struct fault fault = {0};
    fault_set(&fault, -EUCLEAN, path, FAULT_NO_OFFSET, "%s%s%s", why, err ? ": " : "",
              err ? fault_errno(err) : "");
    return builder_leave_out(plain->builder, &fault);
}

static int plain_read_link(struct plain_entry *entry, int folder, const char *name)
{
    char target[LINK_TARGET_MAX + 1];
    ssize_t len = readlinkat(folder, name, target, sizeof(target));
    if (len <= 0 || len > (ssize_t)LINK_TARGET_MAX)
        return len < 0 ? -errno : -EINVAL;
    entry->target = strndup(target, (size_t)len);
    return entry->target ? 0 : -ENOMEM;
}

/*
 * Is it on another filesystem? One filesystem may have several devices, as overlayfs and btrfs
 * do; without the kernel's word each counts as a filesystem.
 */
static bool plain_is_elsewhere(const struct plain *plain, int folder, const char *name,
                               const struct stat *st)
{
    struct statx x;
    return st->st_dev != plain->entries.at[0].st.st_dev &&
           (statx(folder, name, AT_SYMLINK_NOFOLLOW | AT_STATX_DONT_SYNC, 0, &x) < 0 ||
            !(x.stx_attributes_mask & MOUNT_ROOT) || x.stx_attributes & MOUNT_ROOT);
}

/*
 * With a list the mode's group bits are a mask, and the group itself may have no rights. A mask
 * without bits leaves the list without effect.
 */
static int plain_read_acl(struct plain_entry *entry, int folder, const char *name)
{
    char path[sizeof("/proc/self/fd/-2147483648/") + NAME_MAX];
    if (S_ISLNK(entry->st.st_mode) || !(entry->st.st_mode & S_IRWXG))
        return 0;
    snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", folder, name);
    ssize_t len = lgetxattr(path, ACL_ACCESS, NULL, 0);
    if (len < 0 && (errno == ENODATA || errno == ENOTSUP || errno == ENOSYS))
        return 0;
    if (len < 0)
        return -errno;
    entry->acl = malloc((size_t)len + 1);
    if (entry->acl)
        len = lgetxattr(path, ACL_ACCESS, entry->acl, (size_t)len + 1);
    entry->acl_len = len < 0 ? 0 : (size_t)len;
    return !entry->acl ? -ENOMEM : len < 0 ? -errno : 0;
}

/* May this user read it? Asked where the mode does not say so already. */
static bool plain_is_readable(int folder, const char *name, const struct plain_entry *entry)
{
    return ((entry->st.st_mode & 0444) == 0444 && !entry->acl) ||
           faccessat(folder, name, R_OK, AT_EACCESS) == 0;
}

/* Takes over the entry's texts. */
static int plain_put(struct plain *plain, int folder, const char *name,
                     struct plain_entry *entry)
{
    const bool is_link = S_ISLNK(entry->st.st_mode);
    const char *why = NULL;
    int err = 0;
    if (plain_is_elsewhere(plain, folder, name, &entry->st))
        why = ELSEWHERE;
    else
        err = is_link ? plain_read_link(entry, folder, name)
                      : plain_read_acl(entry, folder, name);
    if (err < 0 && err != -ENOMEM)
        why = is_link ? "its target can't be read" : "its access control list can't be read";
    else if (err == 0 && S_ISREG(entry->st.st_mode) && !plain_is_readable(folder, name, entry))
        why = "may not be read by this user";
    entry->is_left_out = why != NULL;
    int r = why ? plain_leave_out(plain, entry->path, err, why) : err;
    if (r == 0)
        r = vector_push(&plain->entries, *entry);
    if (r < 0) {
        plain_entry_free(entry);
        return r;
    }
    plain->folders += S_ISDIR(entry->st.st_mode);
    return plain->folders > PLAIN_FILES_MAX ||
                   plain->entries.count - plain->folders > PLAIN_FILES_MAX
               ? -E2BIG
               : 0;
}

static int plain_add(struct plain *plain, int folder, const char *above, const char *name)
{
    struct plain_entry entry = {0};
    bool is_there = fstatat(folder, name, &entry.st, AT_SYMLINK_NOFOLLOW) == 0;
    int err = is_there ? 0 : -errno;
    if (err == -ENOENT)
        return 0; /* it was removed meanwhile */
    if (asprintf(&entry.path, "%s%s%s", above, *above ? "/" : "", name) < 0)
        return -ENOMEM;
    if (is_there)
        return plain_put(plain, folder, name, &entry);
    int r = plain_leave_out(plain, entry.path, err, "can't be looked at");
    free(entry.path);
    return r;
}

/* Add what is in an entry that is a folder. */
static int plain_list_folder(struct plain *plain, size_t i)
{
    struct listing names = {0};
    auto_close int folder = path_open_below(plain->fd, plain->entries.at[i].path,
                                            O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    const char *above = plain->entries.at[i].path; /* its text does not move */
    struct stat st;
    int r = folder < 0 ? folder : fstat(folder, &st) < 0 ? -errno : 0;
    if (r == 0 && st.st_dev != plain->entries.at[i].st.st_dev) /* mounted since, or by this */
        return plain_leave_out(plain, above, 0, ELSEWHERE);
    if (r == 0)
        r = listing_read(folder, 2 * PLAIN_FILES_MAX, &names);
    for (size_t k = 0; r == 0 && k < names.count; k++) {
        r = plain_add(plain, folder, above, names.at[k].name);
        if (r < 0) {
            listing_free(&names);
            return r;
        }
    }
    listing_free(&names);
    if (r == 0 || r == -ENOMEM || r == -E2BIG || i == 0)
        return r;
    return plain_leave_out(plain, above, r, "can't be listed");
}

/*
 * Of all that the bytes and the tree depend on. The time of the last change tells of access
 * control lists, and of other bytes with the old time. It may differ between nodes, as devices
 * and inodes do.
 */
static void plain_identify_entries(struct plain *plain)
{
    struct source_identity *joined = &plain->identity;
    XXH128_hash_t hash = {0};
    for (size_t i = 0; i < plain->entries.count; i++) {
        const struct plain_entry *e = &plain->entries.at[i];
        const char *target = e->target ? e->target : "";
        const struct source_identity id = source_identity_of(&e->st), both[] = {*joined, id};
        const uint64_t known[] = {plain->fingerprint,
                                  id.size_bytes,
                                  (uint64_t)id.mtime_sec,
                                  id.mtime_nsec,
                                  e->st.st_mode | (uint64_t)e->is_left_out << 32,
                                  XXH3_64bits(e->path, strlen(e->path)),
                                  XXH3_64bits(target, strlen(target))};
        plain->fingerprint = XXH3_64bits(known, sizeof(known));
        const uint64_t parts[] = {hash.high64,
                                  hash.low64,
                                  plain->fingerprint,
                                  id.dev,
                                  id.ino,
                                  e->st.st_uid | (uint64_t)e->st.st_gid << 32,
                                  (uint64_t)id.ctime_sec,
                                  id.ctime_nsec};
        hash = XXH3_128bits(parts, sizeof(parts));
        if (S_ISREG(e->st.st_mode) && !e->is_left_out)
            source_identity_join(both, 2, joined);
    }
    joined->dev = hash.high64;
    joined->ino = hash.low64;
}

/* Free it with plain_free, also if this fails. */
static int plain_list(const char *path, struct plain *plain, struct fault *fault)
{
    struct plain_entry root = {.path = strdup("")};
    *plain = (struct plain){.name = path};
    plain->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int r = plain->fd < 0 || fstat(plain->fd, &root.st) < 0
                ? -errno
                : plain_read_acl(&root, plain->fd, ".");
    if (r == -ENOTDIR)
        fault_set_advised(fault, r, NULL, FAULT_NO_OFFSET, "leave out --plain",
                          "is not a folder");
    else if (r < 0)
        source_open_fault(path, fault, r);
    if (r == 0)
        r = root.path ? builder_new(&plain->builder) : -ENOMEM;
    if (r == 0)
        r = vector_push(&plain->entries, root);
    if (r < 0) {
        plain_entry_free(&root);
        fault_set_file(fault, path);
        return r;
    }
    plain->folders = 1;
    for (size_t i = 0; r == 0 && i < plain->entries.count; i++)
        if (S_ISDIR(plain->entries.at[i].st.st_mode) && !plain->entries.at[i].is_left_out)
            r = plain_list_folder(plain, i);
    if (r == -E2BIG)
        fault_set_advised(
            fault, r, NULL, FAULT_NO_OFFSET, "make an archive of it with 'onepot pack'",
            "has more than the %u files that can be shown as they are", PLAIN_FILES_MAX);
    else if (r < 0)
        fault_set_errno(fault, r, NULL, "can't be listed");
    plain_identify_entries(plain);
    return r;
}

int plain_identify(const char *path, struct fault *fault, struct source_identity *ret_identity)
{
    struct plain plain;
    int r = plain_list(path, &plain, fault);
    if (r == 0)
        *ret_identity = plain.identity;
    plain_free(&plain);
    return r;
}

/* ---- bytes and index ---- */

static bool plain_has_bytes(const struct plain_entry *entry)
{
    return S_ISREG(entry->st.st_mode) && !entry->is_left_out && entry->st.st_size > 0;
}

static int plain_source(struct plain *plain, struct source **ret_source)
{
    VECTOR(struct source_folder_file) files = {0};
    int r = vector_reserve(&files, plain->entries.count);
    for (size_t i = 0; r == 0 && i < plain->entries.count; i++) {
        const struct plain_entry *e = &plain->entries.at[i];
        if (plain_has_bytes(e))
            files.at[files.count++] =
                (struct source_folder_file){e->path, source_identity_of(&e->st)};
    }
    if (r == 0)
        r = files.count == 0 ? source_from_memory("", 0, plain->name, ret_source)
                             : source_folder(steal_fd(&plain->fd), plain->name, files.at,
                                             files.count, ret_source);
    if (r == 0)
        (*ret_source)->identity = plain->identity;
    vector_free(&files);
    return r;
}

static int plain_add_member(struct builder *builder, const struct plain_entry *e,
                            uint64_t data_offset)
{
    const struct node member = {.mode = e->st.st_mode,
                                .uid = e->st.st_uid,
                                .gid = e->st.st_gid,
                                .rdev_major = major(e->st.st_rdev),
                                .rdev_minor = minor(e->st.st_rdev),
                                .mtime_sec = e->st.st_mtim.tv_sec,
                                .mtime_nsec = (uint32_t)e->st.st_mtim.tv_nsec,
                                .size_bytes =
                                    S_ISREG(e->st.st_mode) ? (uint64_t)e->st.st_size : 0,
                                .data_offset = data_offset,
                                .link = e->target,
                                .link_len = e->target ? strlen(e->target) : 0};
    const char *path = *e->path ? e->path : ".";
    struct fault why = {0};
    uint32_t inode;
    int r = builder_add(builder, path, strlen(path), &member, &why, &inode);
    why.offset = FAULT_NO_OFFSET; /* it would be taken for a place in the first file */
    if (r == 0 && e->acl)
        r = builder_add_xattr(builder, inode, ACL_ACCESS, strlen(ACL_ACCESS), e->acl,
                              e->acl_len);
    return r < 0 && builder_may_leave_out(r) ? builder_leave_out(builder, &why) : r;
}

static int plain_write(const struct plain *plain, const struct source *source, int fd,
                       struct fault *fault)
{
    const struct builder_header header = {.format = backend_plain.number,
                                          .archive_bytes = source_size(source),
                                          .archive_mtime_sec = plain->identity.mtime_sec,
                                          .archive_mtime_nsec = plain->identity.mtime_nsec,
                                          .archive_fingerprint = plain->fingerprint};
    uint64_t ignored;
    int r = 0;
    builder_set_archive_size(plain->builder, source_size(source));
    for (size_t i = 0, file = 0; r == 0 && i < plain->entries.count; i++) {
        const struct plain_entry *e = &plain->entries.at[i];
        uint64_t base = plain_has_bytes(e) ? source_concat_base(source, file++) : 0;
        if (!e->is_left_out)
            r = plain_add_member(plain->builder, e, base);
    }
    return r < 0 ? r : builder_write(plain->builder, &header, fd, 0, fault, &ignored);
}

/* They are shown, and lead in the mount where their words say. */
static void plain_note_links(const struct plain *plain, const struct fileset_options *options)
{
    const struct plain_entry *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < plain->entries.count; i++) {
        const struct plain_entry *e = &plain->entries.at[i];
        if (e->is_left_out || !e->target ||
            !path_leads_out(e->path, strlen(e->path), e->target, strlen(e->target)))
            continue;
        first = first ? first : e;
        count++;
    }
    if (count == 1)
        fileset_note(
            options, plain->name,
            "%.180s is a symbolic link that leads out of it; what it leads to is not part "
            "of it",
            first->path);
    else if (count > 1)
        fileset_note(
            options, plain->name,
            "%zu symbolic links lead out of it, first %.150s; what they lead to is not "
            "part of it",
            count, first->path);
}

int plain_index(const char *path, const struct fileset_options *options, int fd,
                struct fault *fault, struct source **ret_source, uint64_t *ret_fingerprint)
{
    struct plain plain;
    int r = plain_list(path, &plain, fault);
    if (r == 0)
        r = plain_source(&plain, ret_source);
    if (r == -EFBIG)
        fault_set(fault, r, NULL, FAULT_NO_OFFSET,
                  "its files have more than 8 EiB together, holes included");
    if (r == 0)
        r = plain_write(&plain, *ret_source, fd, fault);
    if (r == 0)
        plain_note_links(&plain, options);
    *ret_fingerprint = plain.fingerprint;
    plain_free(&plain);
    return r;
}
