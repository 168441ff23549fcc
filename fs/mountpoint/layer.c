/*
 * Overlayfs gets its folders as /proc/self/fd/N, since a colon, a comma or a backslash in a
 * path means something else in its options. The descriptors are opened in the namespace, as the
 * kernel takes no folder of a mount outside of it.
 *
 * Options. A user namespace has no trusted attributes, so DIR gets user attributes, whoever
 * mounts it; a tmpfs has these from Linux 6.6 on, and root does without. With xino a
 * file would have another inode number than in the mount, by which the preloaded library knows
 * it. And DIR must hold no file handles, as the same handle is another file's once the archive
 * was packed anew; they need CAP_DAC_READ_SEARCH, which an ordinary user's namespace lacks.
 * Where a folder of the archive went is written down in memory alone (redirect_dir): user
 * attributes can't have it, and DIR is read by kernels and programs that have nothing else.
 */
#include "layer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "fault.h"
#include "job.h"
#include "layer_program.h"
#include "numbers.h"
#include "path.h"
#include "place.h"
#include "process.h"

#define MEMORY_LEAST (UINT64_C(16) << 20)
#define ENTRIES_MOST 200000u /* that are counted */
#define WALK_FDS 32
#define TAKE_LIMIT_MS 1000 /* for a daemon that is about to end */
#define TAKE_STEP_MS 10
#define HOLDER_MAX 512
#define DEVICE_NAME_MAX 64
#define PROGRAM_MARK LAYER_PROGRAM

/* ---- the folder ---- */

int layer_refuse(char why[LAYER_WHY_MAX], int r, const char *text)
{
    snprintf(why, LAYER_WHY_MAX, "%s", text ? text : fault_errno(r));
    return r;
}

/* -EXDEV: its path leads to another one than layer_resolve found. */
static int open_folder(const struct layer *layer, struct stat *ret_st, int *ret_fd)
{
    auto_close int fd = open(layer->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, ret_st) < 0)
        return -errno;
    if (layer->id.ino && !file_id_equal(file_id_of(ret_st), layer->id))
        return -EXDEV;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/* Is it empty, or one that has been used before? */
static bool is_for_layers(int fd)
{
    auto_closedir DIR *dir = path_list(fd);
    struct stat st;

    if (!dir)
        return false;
    if (fstatat(fd, "lock", &st, AT_SYMLINK_NOFOLLOW) == 0)
        return true;
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (!path_is_dots(entry->d_name))
            return false;
    return true;
}

int layer_resolve(const char *dir, struct layer *ret_layer, char why[LAYER_WHY_MAX])
{
    struct layer layer = LAYER_NONE;
    auto_close int fd = -1;
    struct stat st;

    if (!dir) {
        *ret_layer = layer;
        return 0;
    }
    if (mkdir(dir, 0700) < 0 && errno != EEXIST)
        return layer_refuse(why, -errno, NULL);
    int r = path_real(dir, layer.dir, NULL);
    if (r == 0)
        r = open_folder(&layer, &st, &fd);
    if (r < 0)
        return layer_refuse(why, r, NULL);
    if (!place_is_ours(&st)) {
        snprintf(why, LAYER_WHY_MAX, "it belongs to user %u; name a folder of your own",
                 (unsigned)st.st_uid);
        return -EPERM;
    }
    if (st.st_mode & S_IWOTH)
        return layer_refuse(why, -EPERM, "anybody may write to it; 'chmod o-w' it");
    if (!is_for_layers(fd))
        return layer_refuse(why, -ENOTEMPTY,
                            "it holds other files; name a new folder, or one that --writable "
                            "has made");
    layer.id = file_id_of(&st);
    *ret_layer = layer;
    return 0;
}

/* ---- the lock ---- */

/* The owner of the lock, as messages have it; and a line by which to know whether it lives. */
static int holder_write(const struct layer *layer)
{
    char text[HOLDER_MAX], host[HOST_NAME_MAX + 1] = "";
    struct process_facts facts = {0};
    struct job job;

    job_detect(&job);
    process_look(layer->writer, &facts);
    if (gethostname(host, sizeof(host) - 1) < 0)
        return -errno;
    int n = snprintf(text, sizeof(text), "process %d on %s%s%s\n%" PRIu64 " %" PRIu64 "\n",
                     layer->writer, host, job.id[0] ? ", job " : "", job.id,
                     process_namespace(), facts.start_ticks);
    if (ftruncate(layer->lock_fd, 0) < 0 || pwrite(layer->lock_fd, text, (size_t)n, 0) != n)
        return -errno;
    return 0;
}

/* Did the process that holder_write named run here, and is it gone? */
static bool holder_is_gone(const char *text)
{
    char host[HOST_NAME_MAX + 1] = "", named[HOST_NAME_MAX + 2] = "";
    const char *facts = strchr(text, '\n');
    uint64_t namespace, start_ticks;
    int pid;

    return facts && gethostname(host, sizeof(host) - 1) == 0 &&
           sscanf(text, "process %d on %64[^,\n]", &pid, named) == 2 &&
           strcmp(host, named) == 0 &&
           sscanf(facts, "%" SCNu64 " %" SCNu64, &namespace, &start_ticks) == 2 &&
           namespace == process_namespace() && !process_lives(pid, start_ticks);
}

/*
 * The device in mountinfo: the token, and DIR by numbers, as its name may have any bytes. Only
 * root, or who owns the namespace, can give such a name.
 */
static void device_name(const struct layer *layer, char ret_name[DEVICE_NAME_MAX])
{
    snprintf(ret_name, DEVICE_NAME_MAX, "onepot-%" PRIx64 "-%" PRIx64 "-%" PRIx64, layer->token,
             layer->id.dev, layer->id.ino);
}

bool layer_is_named(const char *source, uint64_t token)
{
    uint64_t has;
    return token && sscanf(source, "onepot-%" SCNx64 "-", &has) == 1 && has == token;
}

/* Does the process see the layer? */
static bool has_mounted(int pid, const struct layer *layer)
{
    char path[64], wanted[DEVICE_NAME_MAX];
    auto_free char *line = NULL;
    size_t capacity = 0;
    bool is_there = false;

    snprintf(path, sizeof(path), "/proc/%d/mountinfo", pid);
    auto_fclose FILE *f = fopen(path, "re");
    snprintf(wanted, sizeof(wanted), "-%" PRIx64 "-%" PRIx64 " ", layer->id.dev, layer->id.ino);
    while (f && !is_there && getline(&line, &capacity, f) > 0) {
        const char *device = strstr(line, " - overlay onepot-");
        is_there = device && strstr(device, wanted);
    }
    return is_there;
}

/* A process on this node that sees the layer; 0: none. */
static int process_that_sees(const struct layer *layer)
{
    auto_closedir DIR *proc = opendir("/proc");
    struct stat own, its;

    if (!proc || stat("/proc/self/ns/mnt", &own) < 0)
        return 0;
    for (const struct dirent *entry; (entry = readdir(proc));) {
        char path[64];
        int pid = atoi(entry->d_name);
        snprintf(path, sizeof(path), "/proc/%d/ns/mnt", pid);
        if (pid > 0 && stat(path, &its) == 0 && its.st_ino != own.st_ino &&
            has_mounted(pid, layer))
            return pid;
    }
    return 0;
}

/* Processes of a run that was killed may live on, and write. */
static int check_left_behind(const struct layer *layer, char why[LAYER_WHY_MAX])
{
    if (has_mounted(getpid(), layer))
        return layer_refuse(
            why, -EBUSY,
            "a mount whose daemon was killed still lies over it; 'onepot clean' "
            "takes that off");
    int pid = process_that_sees(layer);
    if (pid == 0)
        return 0;
    snprintf(why, LAYER_WHY_MAX,
             "process %d, of a 'run' that was killed, still writes there; end it first", pid);
    return -EBUSY;
}

/* The lock is held: by a process that lives, or by the daemon that a killed one has left. */
static int is_taken(const struct layer *layer, int fd, char why[LAYER_WHY_MAX])
{
    char holder[HOLDER_MAX];
    ssize_t n = pread(fd, holder, sizeof(holder) - 1, 0);

    holder[n > 0 ? n : 0] = '\0';
    bool is_gone = holder_is_gone(holder);
    if (is_gone && check_left_behind(layer, why) < 0)
        return -EBUSY;
    holder[strcspn(holder, "\n")] = '\0';
    snprintf(why, LAYER_WHY_MAX,
             is_gone ? "what a killed 'run' (%s) has started ends just now; try again"
                     : "another job or session writes there (%s); wait for its end, or name "
                       "another folder",
             *holder ? holder : "about to begin");
    return -EBUSY;
}

/* Earlier versions gave the folder of changes to the owner of the archive's top. */
static int check_owner(const struct layer *layer, int dir, char why[LAYER_WHY_MAX])
{
    struct stat st;

    if (fstatat(dir, "changes", &st, AT_SYMLINK_NOFOLLOW) < 0 || place_is_ours(&st))
        return 0;
    snprintf(
        why, LAYER_WHY_MAX,
        "its folder 'changes' belongs to user %u, who may have written there; name another "
        "folder, or look through it and 'chown %u %s/changes'",
        (unsigned)st.st_uid, (unsigned)geteuid(), layer->dir);
    return -EPERM;
}

int layer_take(struct layer *layer, char why[LAYER_WHY_MAX])
{
    auto_close int dir = -1;
    struct stat st;

    if (!layer->dir[0])
        return 0;
    int r = open_folder(layer, &st, &dir);
    if (r < 0)
        return layer_refuse(why, r, NULL);
    auto_close int fd =
        openat(dir, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0 || fstat(fd, &st) < 0)
        return layer_refuse(why, -errno, NULL);
    if (!S_ISREG(st.st_mode) || !place_is_ours(&st))
        return layer_refuse(why, -EPERM, "its file 'lock' is no file of yours");
    for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited += TAKE_STEP_MS) {
        if (errno != EWOULDBLOCK)
            return layer_refuse(why, -errno, NULL);
        if (waited >= TAKE_LIMIT_MS)
            return is_taken(layer, fd, why);
        poll(NULL, 0, TAKE_STEP_MS);
    }
    r = check_left_behind(layer, why);
    if (r == 0)
        r = check_owner(layer, dir, why);
    if (r < 0)
        return r;
    layer->lock_fd = steal_fd(&fd);
    r = holder_write(layer);
    return r < 0 ? layer_refuse(why, r, NULL) : 0;
}

void layer_release(struct layer *layer)
{
    if (layer->lock_fd >= 0)
        close(steal_fd(&layer->lock_fd));
}

/* ---- the archive ---- */

#define NOTE_NAME "archive"
#define NOTE_NEW "archive.new"
#define NOTE_FORMAT                                                                            \
    "onepot-layer 1\ndigest %s\nbytes %" PRIu64 "\ntime %" PRIi64 ".%09" PRIu32                \
    "\nsamples %016" PRIx64 "\ntree %016" PRIx64 "\nname %s\n"
#define NOTE_MAX (PATH_MAX + 512)

static int note_parse(char *text, struct layer_archive *ret)
{
    const struct layer_archive none = {0};
    struct layer_archive a = none;
    int name = -1;
    size_t len = strlen(text);

    sscanf(text,
           "onepot-layer 1 digest %32[0-9a-f-] bytes %" SCNu64 " time %" SCNi64 ".%" SCNu32
           " samples %" SCNx64 " tree %" SCNx64 " name%n",
           a.digest, &a.bytes, &a.mtime_sec, &a.mtime_nsec, &a.samples, &a.tree, &name);
    if (name < 0 || text[name] != ' ' || text[len - 1] != '\n')
        return -EINVAL;
    text[len - 1] = '\0';
    if (strcmp(a.digest, "-") == 0)
        a.digest[0] = '\0';
    snprintf(a.words, sizeof(a.words), "%s", text + name + 1);
    *ret = a;
    return 0;
}

/* Counts if it is ours. -ENOENT: there is none; -EINVAL: it is something else. */
static int note_read(int dir, char text[NOTE_MAX], struct layer_archive *ret)
{
    char copy[NOTE_MAX];
    struct stat st;
    auto_close int fd =
        openat(dir, NOTE_NAME, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0)
        return errno == ENOENT ? -ENOENT : -EINVAL;
    if (!S_ISREG(st.st_mode) || !place_is_ours(&st))
        return -EINVAL;
    ssize_t n = pread(fd, text, NOTE_MAX - 1, 0);
    if (n < 0)
        return -errno;
    text[n] = '\0';
    memcpy(copy, text, (size_t)n + 1);
    return note_parse(copy, ret);
}

/* A whole file takes the name: whoever is killed meanwhile leaves the one before. */
static int note_write(int dir, const char *text)
{
    size_t len = strlen(text);

    unlinkat(dir, NOTE_NEW, 0);
    auto_close int fd =
        openat(dir, NOTE_NEW, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    ssize_t n = write(fd, text, len);
    if (n != (ssize_t)len)
        return n < 0 ? -errno : -ENOSPC;
    return renameat(dir, NOTE_NEW, dir, NOTE_NAME) < 0 ? -errno : 0;
}

static bool is_same_archive(const struct layer_archive *a, const struct layer_archive *b)
{
    if (a->digest[0] && b->digest[0])
        return a->tree == b->tree && strcmp(a->digest, b->digest) == 0;
    return a->tree == b->tree && a->bytes == b->bytes && a->samples == b->samples &&
           a->mtime_sec == b->mtime_sec && a->mtime_nsec == b->mtime_nsec;
}

static bool has_changes(int dir)
{
    auto_close int changes =
        openat(dir, "changes", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    auto_closedir DIR *list = changes < 0 ? NULL : path_list(changes);

    for (const struct dirent *entry; list && (entry = readdir(list));)
        if (!path_is_dots(entry->d_name))
            return true;
    return false;
}

bool layer_has_changes(const struct layer *layer)
{
    struct stat st;
    auto_close int dir = -1;
    return open_folder(layer, &st, &dir) == 0 && has_changes(dir);
}

int layer_bind(const struct layer *layer, const struct layer_archive *a,
               struct layer_archive *ret_other, char why[LAYER_WHY_MAX])
{
    char text[NOTE_MAX], before[NOTE_MAX] = "";
    auto_close int dir = -1;
    struct stat st;
    int r = open_folder(layer, &st, &dir);

    if (r < 0)
        return layer_refuse(why, r, NULL);
    const bool is_changed = has_changes(dir);
    int noted = note_read(dir, before, ret_other);
    if (is_changed && noted < 0 && noted != -ENOENT)
        return layer_refuse(why, noted,
                            "its file '" NOTE_NAME "', which says what it was made over, is no "
                            "such file of yours; remove it if the changes are of this archive");
    if (is_changed && noted == 0 && !is_same_archive(a, ret_other))
        return -EXDEV;
    snprintf(text, sizeof(text), NOTE_FORMAT, a->digest[0] ? a->digest : "-", a->bytes,
             a->mtime_sec, a->mtime_nsec, a->samples, a->tree, a->words);
    r = strcmp(text, before) == 0 ? 0 : note_write(dir, text);
    if (r < 0)
        return layer_refuse(why, r, NULL);
    return is_changed && noted < 0;
}

/* ---- the mount ---- */

/* One of the two folders. Nobody else's is taken, as its owner may have written there. */
static int open_part(int dir, const char *name, mode_t mode, int *ret_fd)
{
    struct stat st;

    if (mkdirat(dir, name, 0700) < 0 && errno != EEXIST)
        return -errno;
    auto_close int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return -errno;
    if (!place_is_ours(&st))
        return -EPERM;
    if ((st.st_mode & 07777) != mode && fchmod(fd, mode) < 0)
        return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

/*
 * Open both, for a mount whose root is `like`. A mount keeps other users out by itself, but a
 * layer over it asks it in its maker's name: only the mode of the upper folder, which is the
 * root's, keeps them out then. The caller closes both.
 */
static int open_parts(const struct layer *layer, int dir, const struct stat *like,
                      int ret_fds[2])
{
    auto_close int changes = -1;
    mode_t others = layer->is_open ? like->st_mode & 0055 : 0;
    int r = open_part(dir, "changes", S_IRWXU | others, &changes);

    if (r == 0)
        r = open_part(dir, "work", S_IRWXU, &ret_fds[1]);
    if (r == 0)
        ret_fds[0] = steal_fd(&changes);
    return r;
}

/* Give up, or get back, the right that file handles need; only root of the node has it. */
static void set_search_right(bool is_on)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    const uint32_t bit = CAP_TO_MASK(CAP_DAC_READ_SEARCH);

    if (syscall(SYS_capget, &head, data) < 0)
        return;
    data[0].effective =
        is_on ? data[0].effective | (data[0].permitted & bit) : data[0].effective & ~bit;
    syscall(SYS_capset, &head, data);
}

static int mount_overlay(const struct layer *layer, const int fds[3], const char *mountpoint,
                         bool noexec, const char *attributes)
{
    char options[256], device[DEVICE_NAME_MAX];
    const unsigned long flags =
        MS_NOSUID | MS_NODEV | MS_NOATIME | (noexec ? (unsigned long)MS_NOEXEC : 0);

    snprintf(options, sizeof(options),
             "lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/%d,"
             "xino=off,metacopy=off%s",
             fds[0], fds[1], fds[2], attributes);
    if (getenv("ONEPOT_WITHOUT_OVERLAYFS")) /* for tests */
        return -ENODEV;
    device_name(layer, device);
    set_search_right(false);
    int r = mount(device, mountpoint, "overlay", flags, options) < 0 ? -errno : 0;
    set_search_right(true);
    return r;
}

/* Mount `lower` with the layer in the folder `dir` over it. */
static int cover(const struct layer *layer, int lower, int dir, const char *mountpoint,
                 bool noexec)
{
    int parts[2];
    struct stat st;

    if (fstatat(dir, PROGRAM_MARK, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return -EMEDIUMTYPE;
    int r = fstat(lower, &st) < 0 ? -errno : open_parts(layer, dir, &st, parts);
    if (r < 0)
        return r;
    auto_close int changes = parts[0], work = parts[1];
    const int fds[] = {lower, changes, work};
    const bool in_memory = !layer->dir[0], is_root = geteuid() == 0;
    const char *first = in_memory && is_root ? ",redirect_dir=on" : ",userxattr";
    r = mount_overlay(layer, fds, mountpoint, noexec, first);
    if (r == -EPERM && in_memory && is_root) /* of a container */
        r = mount_overlay(layer, fds, mountpoint, noexec, ",userxattr");
    if (r == -EINVAL && !in_memory && is_root) /* its overlayfs is older than user attributes */
        r = mount_overlay(layer, fds, mountpoint, noexec, ",redirect_dir=off");
    return r;
}

static int mount_memory(const struct layer *layer, const char *mountpoint)
{
    uint64_t bytes = max_u64(budget_free_bytes("") / 2, MEMORY_LEAST);
    char options[64], device[DEVICE_NAME_MAX];

    snprintf(options, sizeof(options), "mode=0700,size=%" PRIu64, min_u64(bytes, INT64_MAX));
    device_name(layer, device);
    return mount(device, mountpoint, "tmpfs", MS_NOSUID | MS_NODEV, options) < 0 ? -errno : 0;
}

static int mount_in_memory(const struct layer *layer, int lower, const char *mountpoint,
                           bool noexec)
{
    struct statfs st;
    int r = mount_memory(layer, mountpoint);
    if (r < 0)
        return r;
    auto_close int dir = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return -errno;
    r = cover(layer, lower, dir, mountpoint, noexec);
    if (!layer->token && (r == -EPERM || r == -ENODEV)) {
        int other = layer_program_mount(dir, lower, mountpoint, noexec);
        r = other == -ENOENT ? r : other;
    }
    if (r == 0 && layer->files_before && fstatfs(dir, &st) == 0)
        atomic_store(layer->files_before, (uint64_t)(st.f_files - st.f_ffree));
    return r;
}

int layer_mount(const struct layer *layer, const char *mountpoint, bool noexec)
{
    auto_close int lower = open(mountpoint, O_RDONLY | O_DIRECTORY | O_CLOEXEC), dir = -1;
    struct stat st;

    if (lower < 0 || fstat(lower, &st) < 0)
        return -errno;
    if (layer->token && st.st_dev != layer->below)
        return -EXDEV;
    if (!layer->dir[0])
        return mount_in_memory(layer, lower, mountpoint, noexec);
    int r = open_folder(layer, &st, &dir);
    if (r == 0)
        r = holder_write(layer);
    return r < 0 ? r : cover(layer, lower, dir, mountpoint, noexec);
}

/* Changes that are there without the mark are the kernel's. */
static int mark_for_program(int dir)
{
    struct stat st;

    if (fstatat(dir, PROGRAM_MARK, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    if (has_changes(dir))
        return -EMEDIUMTYPE;
    auto_close int fd =
        openat(dir, PROGRAM_MARK, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? -errno : 0;
}

int layer_open_for_program(const struct layer *layer, const char *mountpoint, int ret_fds[2])
{
    auto_close int dir = -1;
    struct stat like;
    int r = open_folder(layer, &like, &dir);

    if (r == 0 && stat(mountpoint, &like) < 0)
        r = -errno;
    if (r == 0)
        r = mark_for_program(dir);
    if (r == 0 && layer->lock_fd >= 0)
        r = holder_write(layer);
    return r < 0 ? r : open_parts(layer, dir, &like, ret_fds);
}

/* ---- how much was written ---- */

/* nftw passes nothing on; only one thread measures. */
static uint64_t measured_bytes, measured_entries;

static int measure_entry(const char *path, const struct stat *st, int kind, struct FTW *at)
{
    (void)path;
    (void)at;
    if (kind == FTW_F && S_ISREG(st->st_mode))
        measured_bytes += (uint64_t)st->st_size;
    return ++measured_entries > ENTRIES_MOST;
}

bool layer_measure(const struct layer *layer, uint64_t *ret_bytes)
{
    char changes[PATH_MAX + 16];

    measured_bytes = measured_entries = 0;
    snprintf(changes, sizeof(changes), "%s/changes", layer->dir);
    bool is_cut = nftw(changes, measure_entry, WALK_FDS, FTW_PHYS | FTW_MOUNT) > 0;
    *ret_bytes = measured_bytes;
    return is_cut;
}
