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
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "fault.h"
#include "job.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "numbers.h"
#include "path.h"
#include "place.h"
#include "process.h"
#include "remove_tree.h"
#include "state.h"
#include "syscalls.h"

#define MEMORY_LEAST (UINT64_C(16) << 20)
#define ENTRIES_MOST 200000u /* that are counted */
#define WALK_FDS 32
#define TAKE_LIMIT_MS 1000 /* for a daemon that is about to end */
#define TAKE_STEP_MS 10
#define HOLDER_MAX 512
#define DEVICE_NAME_MAX 64
#define PROGRAM "fuse-overlayfs"

/* ---- the folder ---- */

/* Says why: `text`, or the error `r`, which it returns. */
static int layer_refuse(char why[LAYER_WHY_MAX], int r, const char *text)
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

/* Is a mount with this source in mountinfo the layer with the token, or the layer's tmpfs? */
static bool layer_is_named(const char *source, uint64_t token)
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

/* Does DIR/changes hold anything? */
static bool layer_has_changes(const struct layer *layer)
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

/* ---- by fuse-overlayfs, in a namespace ---- */

/*
 * We mount, and hand /dev/fuse to the program: it needs no right to mount then, which an
 * ordinary user's namespace would take from it at exec. It is mounted at dir/view first, since
 * the program looks its folders up by their paths, which the layer is about to hide.
 *
 * A mount namespace lives as long as a process in it, and the program would live as long as the
 * mount. So the program gets a copy of the namespace from before it has the layer: when the
 * last process of the command has ended, the layer goes, and then the program.
 */
#define START_LIMIT_MS 10000
#define INSIDE_MAX 64

/* Where the program has its descriptors; the last tells it that it is mounted. */
enum { FUSE_FD = 3, LOWER_FD, CHANGES_FD, WORK_FD, TALK_FD, FDS_END };

/* The path of something in the tmpfs. */
static const char *inside(char path[INSIDE_MAX], int dir, const char *name)
{
    snprintf(path, INSIDE_MAX, "/proc/self/fd/%d/%s", dir, name);
    return path;
}

/* Keep these descriptors, each at its place (-1: none), and no others: locks of the mount among
 * them. */
static bool take_places(const int fds[FDS_END])
{
    int high[FDS_END];
    bool is_good = true;

    for (int i = 0; i < FDS_END; i++) {
        high[i] = fds[i] < 0 ? -1 : fcntl(fds[i], F_DUPFD, FDS_END);
        is_good &= fds[i] < 0 || high[i] >= 0;
    }
    for (int i = 0; is_good && i < FDS_END; i++)
        is_good = high[i] < 0 ? close(i) == 0 || errno == EBADF : dup2(high[i], i) >= 0;
    syscall_close_range(FDS_END, ~0u);
    return is_good;
}

/* Signals to the command are not for it; libfuse leaves the ones alone that are ignored. */
static void leave_signals(void)
{
    const int ignored[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT};
    sigset_t none;

    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        signal(ignored[i], SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
}

/* With link counts of directories it would list each of them as soon as it is looked at. */
#define FOLDERS                                                                                \
    "static_nlink,lowerdir=/proc/self/fd/%d,upperdir=/proc/self/fd/%d,workdir=/proc/self/fd/"  \
    "%d"

static _Noreturn void program_run(const char *program)
{
    char options[128], device[32];
    snprintf(options, sizeof(options), FOLDERS, LOWER_FD, CHANGES_FD, WORK_FD);
    snprintf(device, sizeof(device), "/dev/fd/%d", FUSE_FD);
    close(TALK_FD);
    execl(program, PROGRAM, "-f", "-o", options, device, NULL);
    _exit(127);
}

/* Take a copy of the namespace, say so, and run the program once it is told to. */
static _Noreturn void program_child(const char *program, const int fds[FDS_END - FUSE_FD])
{
    const int null = open("/dev/null", O_RDWR);
    const int places[FDS_END] = {null, null, null, fds[0], fds[1], fds[2], fds[3], fds[4]};
    char word = 'c';

    leave_signals();
    if (null >= 0 && take_places(places) && chdir("/") == 0 && unshare(CLONE_NEWNS) == 0 &&
        write(TALK_FD, &word, 1) == 1 && read(TALK_FD, &word, 1) == 1)
        program_run(program);
    _exit(1);
}

static int mount_fuse(int fd, const char *at, bool noexec)
{
    const unsigned long flags =
        MS_NOSUID | MS_NODEV | MS_NOATIME | (noexec ? (unsigned long)MS_NOEXEC : 0);
    char options[128];

    snprintf(options, sizeof(options),
             "fd=%d,rootmode=40000,user_id=%u,group_id=%u,default_permissions", fd,
             (unsigned)geteuid(), (unsigned)getegid());
    return mount(PROGRAM, at, "fuse." PROGRAM, flags, options) < 0 ? -errno : 0;
}

/* Start the program, mount at dir/view when it has its namespace, and let it serve. */
static int program_serve(const char *program, int dir, const int fds[4], bool noexec)
{
    char view[INSIDE_MAX], word = 'm';
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    auto_close int talk = pair[0];
    /* Nobody's child: the caller becomes the command, which has no children yet. */
    int r = process_fork_orphan();
    if (r == 0)
        program_child(program, (const int[]){fds[0], fds[1], fds[2], fds[3], pair[1]});
    r = r < 0 ? r : 0;
    close(pair[1]);
    if (r == 0 && read(talk, &word, 1) != 1)
        r = -EPERM;
    if (r == 0)
        r = mount_fuse(fds[0], inside(view, dir, "view"), noexec);
    if (r == 0 && send(talk, &word, 1, MSG_NOSIGNAL) != 1)
        r = -EPIPE;
    return r;
}

static int program_mount(const char *program, int dir, bool noexec)
{
    char view[INSIDE_MAX];
    struct statfs st;
    auto_close int lower = openat(dir, "lower", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int changes = openat(dir, "changes", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int work = openat(dir, "work", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    auto_close int fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC);

    if (lower < 0 || changes < 0 || work < 0 || fuse < 0)
        return -errno;
    int r = program_serve(program, dir, (const int[]){fuse, lower, changes, work}, noexec);
    close(steal_fd(&fuse)); /* or nobody would see that the program has ended */
    return r == 0 && statfs(inside(view, dir, "view"), &st) < 0 ? -errno : r;
}

/*
 * Mount it over `mountpoint`. `dir` is the tmpfs that lies there, which has the empty folders
 * changes and work; `lower` the mount below it. The program ends with the layer, when that is
 * unmounted, or no process is left in the namespace. 0; -ENOENT: there is no such program;
 * -errno.
 */
static int layer_program_mount(int dir, int lower, const char *mountpoint, bool noexec)
{
    char program[PATH_MAX], below[INSIDE_MAX], in[INSIDE_MAX], view[INSIDE_MAX];

    if (process_find_program(PROGRAM, program) < 0)
        return -ENOENT;
    inside(in, dir, "lower");
    inside(view, dir, "view");
    if (mkdirat(dir, "lower", 0700) < 0 || mkdirat(dir, "view", 0700) < 0 ||
        mount(inside(below, lower, ""), in, NULL, MS_BIND, NULL) < 0)
        return -errno;
    int r = program_mount(program, dir, noexec);
    if (r == 0 && mount(view, mountpoint, NULL, MS_BIND, NULL) < 0)
        r = -errno;
    umount2(view, MNT_DETACH);
    umount2(in, MNT_DETACH);
    return r;
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

    if (fstatat(dir, PROGRAM, &st, AT_SYMLINK_NOFOLLOW) == 0)
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

    if (fstatat(dir, PROGRAM, &st, AT_SYMLINK_NOFOLLOW) == 0)
        return 0;
    if (has_changes(dir))
        return -EMEDIUMTYPE;
    auto_close int fd =
        openat(dir, PROGRAM, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    return fd < 0 ? -errno : 0;
}

/*
 * Open the folders of DIR for the program. -EMEDIUMTYPE: the kernel wrote it. The caller closes
 * both.
 */
static int layer_open_for_program(const struct layer *layer, const char *mountpoint,
                                  int ret_fds[2])
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

/* The bytes of all files in DIR/changes. True: there are too many to add them all up. */
static bool layer_measure(const struct layer *layer, uint64_t *ret_bytes)
{
    char changes[PATH_MAX + 16];

    measured_bytes = measured_entries = 0;
    snprintf(changes, sizeof(changes), "%s/changes", layer->dir);
    bool is_cut = nftw(changes, measure_entry, WALK_FDS, FTW_PHYS | FTW_MOUNT) > 0;
    *ret_bytes = measured_bytes;
    return is_cut;
}

/* ---- over a mount that all see ---- */

/*
 * The steps of covering are noted before they are made, so that a process that is killed in
 * between leaves nothing that is not found.
 */

#define FOLDER_PREFIX ".layer-" /* no slot's name begins with a dot */
#define FOLDER_MAX (STATE_NAME_MAX + 8)

/* ---- what lies on top ---- */

static bool is_noted(const struct counters *c)
{
    uint32_t state = atomic_load(&c->layer);
    return state == LAYER_COMES || state == LAYER_LIES;
}

static bool is_mount_itself(const struct counters *c, const struct mount_entry *entry)
{
    return entry->dev_major == c->mount_dev_major && entry->dev_minor == c->mount_dev_minor;
}

static bool is_of_program(const struct counters *c, const struct mount_entry *entry)
{
    bool is_device =
        entry->dev_major == c->layer_dev_major && entry->dev_minor == c->layer_dev_minor;

    return strcmp(entry->type, "fuse." PROGRAM) == 0 &&
           (entry->uid == geteuid() || entry->uid == place_uid()) &&
           (is_device || atomic_load(&c->layer) == LAYER_COMES);
}

static bool is_tmpfs(const struct mount_entry *entry)
{
    return strcmp(entry->type, "tmpfs") == 0;
}

static bool is_of_layer(const struct counters *c, const struct mount_entry *entry)
{
    if (c->layer_by_program)
        return is_of_program(c, entry);
    return (is_tmpfs(entry) || strcmp(entry->type, "overlay") == 0) &&
           layer_is_named(entry->source, c->layer_token);
}

/* 0 and the topmost part; -ENOENT: it is off; -EBUSY: something else lies on top. */
static int find_top(const struct slot *slot, struct mount_entry *ret_top)
{
    const struct counters *c = slot->counters;

    if (!is_noted(c) || c->private_namespace || !slot_is_mounted(slot))
        return -ENOENT;
    int r = mountinfo_find(c->mountpoint, ret_top);
    if (r < 0 || is_mount_itself(c, ret_top))
        return r < 0 ? r : -ENOENT;
    if (is_of_layer(c, ret_top))
        return 0;
    bool is_off = c->layer_below[0] &&
                  !mountinfo_has(c->mountpoint, c->layer_dev_major, c->layer_dev_minor);
    return is_off ? -ENOENT : -EBUSY;
}

bool layer_is_on_top(const struct slot *slot)
{
    struct mount_entry top;
    return find_top(slot, &top) == 0;
}

bool layer_is_lost(const struct slot *slot)
{
    struct mount_entry top;

    if (atomic_load(&slot->counters->layer) != LAYER_LIES)
        return false;
    int r = find_top(slot, &top);
    return r == -ENOENT || (r == 0 && is_tmpfs(&top));
}

/* ---- what is said of it ---- */

static void folder_name(const struct slot *slot, char ret_name[FOLDER_MAX])
{
    snprintf(ret_name, FOLDER_MAX, FOLDER_PREFIX "%s", slot->name);
}

/* False: its path is too long, and there is none. */
static bool folder_path(const struct slot *slot, char ret_path[PATH_MAX])
{
    char name[FOLDER_MAX];
    folder_name(slot, name);
    return snprintf(ret_path, PATH_MAX, "%s/%s", slot->folder, name) < PATH_MAX;
}

/* Count a tmpfs layer's bytes. By a descriptor: a filesystem mounted since is asked nothing. */
static void measure_tmpfs(struct counters *c)
{
    auto_close int fd = open(c->mountpoint, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct mount_entry entry;
    struct statfs st;

    if (fd >= 0 && mountinfo_of(fd, -1, &entry) == 0 && is_tmpfs(&entry) &&
        is_of_layer(c, &entry) && fstatfs(fd, &st) == 0)
        atomic_store(&c->layer_bytes,
                     (uint64_t)(st.f_blocks - st.f_bfree) * (uint64_t)st.f_bsize);
}

void layer_gone(const struct slot *slot)
{
    struct counters *c = slot->counters;
    struct layer layer = LAYER_NONE;
    uint64_t bytes;

    if (c->layer_dir[0])
        snprintf(layer.dir, sizeof(layer.dir), "%s", c->layer_dir);
    if (c->layer_dir[0] || (c->layer_by_program && folder_path(slot, layer.dir))) {
        c->layer_is_more = layer_measure(&layer, &bytes);
        atomic_store(&c->layer_bytes, bytes);
    }
    atomic_store(&c->layer, LAYER_GONE);
}

bool layer_is_changed(const struct slot *slot)
{
    struct counters *c = slot->counters;
    struct layer layer = LAYER_NONE;
    struct statfs st;

    snprintf(layer.dir, sizeof(layer.dir), "%s", c->layer_dir);
    if (c->layer_dir[0] || (c->layer_by_program && folder_path(slot, layer.dir)))
        return layer_has_changes(&layer);
    if (!c->private_namespace && statfs(c->mountpoint, &st) == 0) /* an overlay's, in memory */
        atomic_store(&c->layer_files, (uint64_t)(st.f_files - st.f_ffree));
    return atomic_load(&c->layer_files) > atomic_load(&c->layer_files_before);
}

const char *layer_told(const struct counters *c, char buf[LAYER_TOLD_MAX])
{
    const uint64_t bytes = atomic_load(&c->layer_bytes);
    const char *more = c->layer_is_more ? "more than " : "";

    if (atomic_load(&c->layer) != LAYER_GONE || (!c->layer_dir[0] && !bytes))
        return NULL;
    if (c->layer_dir[0])
        snprintf(buf, LAYER_TOLD_MAX, "%s%s of changes lie in %s, for the next --writable=DIR",
                 more, cli_bytes(bytes), c->layer_dir);
    else
        snprintf(buf, LAYER_TOLD_MAX,
                 "%s%s of changes lay in memory, and are gone (--writable=DIR keeps them)",
                 more, cli_bytes(bytes));
    return buf;
}

void layer_note(const struct counters *c, const char *name)
{
    char text[LAYER_TOLD_MAX];
    const char *told = layer_told(c, text);

    if (told)
        cli_note("%s: %s", name, told);
}

/* ---- off ---- */

int layer_uncover(const struct slot *slot, bool lazy)
{
    struct counters *c = slot->counters;
    struct mount_entry top;
    bool is_begun = false;
    int r;

    if (!is_noted(c))
        return 0;
    while ((r = find_top(slot, &top)) == 0) {
        if (is_tmpfs(&top))
            measure_tmpfs(c);
        /* Nobody but the layer used what lies below the topmost mount: unmount that lazily. */
        r = mountpoint_unmount(c->mountpoint, lazy || is_begun || is_tmpfs(&top));
        if (r < 0)
            return r;
        is_begun = true;
    }
    if (r != -ENOENT)
        return r;
    layer_gone(slot);
    return 1;
}

void layer_forget(const struct slot *slot)
{
    char path[PATH_MAX];

    if (slot->counters->layer_has_folder && folder_path(slot, path))
        remove_tree(AT_FDCWD, path, UINT64_MAX);
}

/* ---- on ---- */

/* Cover the mount by the kernel's overlayfs. */
static int cover_by_kernel(struct counters *c, struct layer *layer,
                           const struct mount_request *rq)
{
    c->layer_token = layer->token = now_ns();
    layer->below = makedev(c->mount_dev_major, c->mount_dev_minor);
    atomic_store(&c->layer, LAYER_COMES);
    return layer_mount(layer, rq->mountpoint, rq->noexec);
}

/* The slot's folder for the layer. Whoever makes it keeps others from sweeping it empty. */
static int make_folder(struct slot *slot)
{
    char name[FOLDER_MAX], path[PATH_MAX];

    folder_name(slot, name);
    if (!folder_path(slot, path))
        return -ENAMETOOLONG;
    slot->counters->layer_has_folder = 1;
    layer_forget(slot);
    return mkdirat(slot->folder_fd, name, 0700) < 0 ? -errno : 0;
}

int layer_make_below(struct slot *slot)
{
    struct counters *c = slot->counters;
    char path[PATH_MAX];
    int r = make_folder(slot);

    if (r < 0 || !folder_path(slot, path))
        return r;
    if (snprintf(c->layer_below, sizeof(c->layer_below), "%.*s/below", PATH_MAX - 8, path) <
            0 ||
        mkdir(c->layer_below, 0700) < 0) {
        r = -errno;
        c->layer_below[0] = '\0';
    }
    return r;
}

/* The slot's folder, with the registry's lock until something lies in it. */
static int find_memory(struct slot *slot, struct registry *registry, struct layer *ret_layer)
{
    bool is_new = !slot->counters->layer_has_folder;
    struct stat st;
    int r = is_new ? slots_lock_of(slot, registry) : 0;

    if (r == 0 && is_new)
        r = make_folder(slot);
    if (r < 0)
        return r;
    if (!folder_path(slot, ret_layer->dir) || lstat(ret_layer->dir, &st) < 0)
        return -errno;
    ret_layer->id = file_id_of(&st);
    return 0;
}

static int open_folders(struct slot *slot, const struct layer *layer, int ret_fds[2])
{
    auto_registry registry = REGISTRY_NONE;
    struct layer memory = LAYER_NONE;
    int r = 0;

    memory.is_open = layer->is_open;
    if (!layer->dir[0])
        r = find_memory(slot, &registry, &memory);
    return r < 0 ? r
                 : layer_open_for_program(layer->dir[0] ? layer : &memory,
                                          slot_mount_path(slot), ret_fds);
}

/* It ends with its starter until it is mounted, when it becomes another process by itself. */
static _Noreturn void start_child(const char *program, const struct mount_request *rq,
                                  const char *mountpoint, const int fds[3], int output)
{
    const int null = open("/dev/null", O_RDONLY);
    const int places[FDS_END] = {null, output, output, -1, fds[0], fds[1], fds[2], -1};
    char options[256];

    if (null < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || !take_places(places))
        _exit(1);
    leave_signals();
    snprintf(options, sizeof(options), FOLDERS ",nosuid,nodev,noatime%s%s", LOWER_FD,
             CHANGES_FD, WORK_FD, rq->noexec ? ",noexec" : "",
             rq->allow_other ? ",allow_other" : "");
    execl(program, PROGRAM, "-o", options, mountpoint, NULL);
    _exit(127);
}

/*
 * For all to see: the program mounts itself, by fusermount3 where it must, with the layer's
 * lower folder, its changes and its work. Returns when it is mounted. It goes on by itself
 * then, and ends when it is unmounted. 0, or -errno and why, in its own words where it has any.
 */
static int layer_program_start(const char *program, const struct mount_request *rq,
                               const char *mountpoint, const int fds[3],
                               char why[LAYER_WHY_MAX])
{
    uint64_t end_ms = now_ms() + START_LIMIT_MS;
    char text[FUSERMOUNT_SAID_MAX] = "";
    int pair[2], r;

    if (pipe2(pair, O_CLOEXEC) < 0)
        return -errno;
    auto_close int output = pair[0];
    pid_t pid = fork();
    if (pid == 0)
        start_child(program, rq, mountpoint, fds, pair[1]);
    close(pair[1]);
    r = pid < 0 ? -errno : fusermount_hear(output, pid, end_ms, PROGRAM, text);
    return r < 0 ? layer_refuse(why, r, text[0] ? text : NULL) : 0;
}

static int run_program(const char *program, const struct layer *layer, struct slot *slot,
                       const struct mount_request *rq, char why[LAYER_WHY_MAX])
{
    const struct counters *c = slot->counters;
    auto_close int lower = -1, changes = -1, work = -1;
    struct stat st;
    int fds[2];

    lower = open(rq->mountpoint, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (lower < 0 || fstat(lower, &st) < 0)
        return layer_refuse(why, -errno, NULL);
    if (st.st_dev != makedev(c->mount_dev_major, c->mount_dev_minor))
        return layer_refuse(why, -EXDEV, NULL);
    int r = open_folders(slot, layer, fds);
    if (r < 0)
        return layer_refuse(why, r,
                            r == -EMEDIUMTYPE
                                ? "the kernel's overlayfs wrote it ('onepot run', or "
                                  "root); take another folder"
                                : NULL);
    changes = fds[0];
    work = fds[1];
    return layer_program_start(program, rq, c->mountpoint, (const int[]){lower, changes, work},
                               why);
}

static int cover_by_program(struct slot *slot, const struct layer *layer,
                            const struct mount_request *rq, char why[LAYER_WHY_MAX])
{
    struct counters *c = slot->counters;
    char program[PATH_MAX];

    if (process_find_program(PROGRAM, program) < 0)
        return layer_refuse(why, -ENOENT,
                            PROGRAM " is not in $PATH, which an ordinary user needs for "
                                    "it; 'onepot run --writable ARCHIVE -- COMMAND' does "
                                    "without");
    c->layer_by_program = 1;
    atomic_store(&c->layer, LAYER_COMES);
    return run_program(program, layer, slot, rq, why);
}

/* Note its device: the layer is on top, and answers. */
static int note_layer(struct slot *slot, char why[LAYER_WHY_MAX])
{
    struct counters *c = slot->counters;
    struct mount_entry top;
    int r = find_top(slot, &top);

    if (r < 0)
        return layer_refuse(why, r, "what was mounted is not there");
    c->layer_dev_major = top.dev_major;
    c->layer_dev_minor = top.dev_minor;
    atomic_store(&c->layer, LAYER_LIES);
    return 0;
}

int layer_cover(struct slot *slot, struct layer *layer, const struct mount_request *rq,
                bool by_kernel, char why[LAYER_WHY_MAX])
{
    struct counters *c = slot->counters;
    int r = -EPERM;

    if (by_kernel) {
        r = cover_by_kernel(c, layer, rq);
        if (r < 0)
            layer_refuse(why, r, r == -EMEDIUMTYPE ? LAYER_OF_PROGRAM : NULL);
    }
    if (!by_kernel || r == -EPERM || r == -ENODEV) {
        layer_uncover(slot, true);
        r = cover_by_program(slot, layer, rq, why);
    }
    return r < 0 ? r : note_layer(slot, why);
}
