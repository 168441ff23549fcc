/*
 * The slots, the folders that hold them, and the folders' lock.
 *
 * All decisions (create, share, last one out, heal) are made under the registry's lock, and
 * only they try NAME.lock: a probe at another time could make another process believe that the
 * mount is in use.
 *
 * Only flock(2) decides whether a process lives: a lock goes with its process however that
 * ends, and means the same in every PID namespace of the node. It belongs to the open file and
 * not to the process. So each struct slot opens the files for itself, and a lock that a forked
 * child inherited is released explicitly, not by closing.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "file_id.h"
#include "mountinfo.h"
#include "path.h"
#include "place.h"
#include "process.h"
#include "remove_tree.h"
#include "runtime.h"
#include "state.h"
#include "syscalls.h"
#include "vector.h"

#define DAEMON_POLL_MS 2
#define SLOT_NUMBER_MAX 10000
#define NEW_FILE (O_RDWR | O_CREAT | O_EXCL)
#define ASIDE_LIMIT_MS 5000
#define ASIDE_MAX 10000
#define LINKS_MAX (STATE_FOLDERS_MAX - RUNTIME_FOLDERS_MAX)
#define LINK ".at-%zu"
#define SESSIONS "/run/user"

/* Of other users' folders. A slot takes two descriptors and 140 KiB. */
#define FOLDER_ENTRIES_MAX 1024
#define FOLDER_SLOTS_MAX 64
#define SLOTS_MAX 512

/* ---- one slot: its files, its counters, its locks ---- */

void slot_directory(const struct slot *slot, char ret_path[PATH_MAX])
{
    snprintf(ret_path, PATH_MAX, "%.*s/%.*s", PATH_MAX - STATE_FILE_MAX - 2, slot->folder,
             STATE_NAME_MAX, slot->name);
}

static int slot_new(const char *folder, int folder_fd, const char *name, struct slot **ret_slot)
{
    auto_slot struct slot *slot = calloc(1, sizeof(*slot));
    if (!slot)
        return -ENOMEM;
    slot->stat_fd = slot->lock_fd = -1;
    slot->uid = geteuid();
    slot->folder_fd = fcntl(folder_fd, F_DUPFD_CLOEXEC, 3);
    if (slot->folder_fd < 0)
        return -errno;
    snprintf(slot->folder, sizeof(slot->folder), "%s", folder);
    snprintf(slot->name, sizeof(slot->name), "%s", name);
    *ret_slot = steal_ptr(&slot);
    return 0;
}

void slot_close(struct slot *slot)
{
    if (!slot)
        return;
    if (slot->counters)
        munmap(slot->counters, sizeof(struct counters));
    cleanup_closep(&slot->stat_fd);
    cleanup_closep(&slot->lock_fd);
    cleanup_closep(&slot->folder_fd);
    free(slot);
}

static int map_counters(struct slot *slot)
{
    void *p = mmap(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE, MAP_SHARED,
                   slot->stat_fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    slot->counters = p;
    return 0;
}

static bool is_of_this_version(const struct counters *c)
{
    return memcmp(c->magic, COUNTERS_MAGIC, sizeof(COUNTERS_MAGIC)) == 0 &&
           c->version == COUNTERS_VERSION && c->size == sizeof(struct counters);
}

/* Does each text end within its room? Readers take them as strings. */
static bool has_texts(const struct counters *c)
{
    const struct {
        const char *at;
        size_t size;
    } texts[] = {
        {c->job, sizeof(c->job)},
        {c->step, sizeof(c->step)},
        {c->mountpoint, sizeof(c->mountpoint)},
        {c->archive, sizeof(c->archive)},
        {c->archive_names, sizeof(c->archive_names)},
        {c->format, sizeof(c->format)},
        {c->version_text, sizeof(c->version_text)},
        {c->last_error, sizeof(c->last_error)},
        {c->order_folder, sizeof(c->order_folder)},
        {c->layer_dir, sizeof(c->layer_dir)},
        {c->layer_below, sizeof(c->layer_below)},
        {c->stage_folder, sizeof(c->stage_folder)},
        {c->stage_reason, sizeof(c->stage_reason)},
    };
    bool all = c->archive_names_bytes <= sizeof(c->archive_names);
    for (size_t i = 0; all && i < sizeof(texts) / sizeof(texts[0]); i++)
        all = texts[i].at[texts[i].size - 1] == '\0';
    return all;
}

int slot_open(const char *folder, int folder_fd, const char *name, struct slot **ret_slot)
{
    auto_slot struct slot *slot = NULL;
    struct stat st;
    int r = slot_new(folder, folder_fd, name, &slot);

    if (r == 0)
        r = registry_open(slot->folder_fd, name, ".stat", O_RDWR, &slot->stat_fd);
    if (r == 0)
        r = registry_open(slot->folder_fd, name, ".lock", O_RDWR, &slot->lock_fd);
    if (r == 0)
        r = fstat(slot->stat_fd, &st) < 0 ? -errno : 0;
    if (r == 0 && st.st_size != sizeof(struct counters))
        r = -EPROTO;
    if (r == 0)
        r = map_counters(slot);
    if (r == 0 && (!is_of_this_version(slot->counters) || !has_texts(slot->counters)))
        r = -EPROTO;
    if (r == 0)
        *ret_slot = steal_ptr(&slot);
    return r;
}

/* All of a file, which may change meanwhile, into memory that does not. */
static int read_counters(struct slot *slot)
{
    size_t done = 0;
    ssize_t n = 1;
    void *p = mmap(NULL, sizeof(struct counters), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -errno;
    slot->counters = p;
    for (; done < sizeof(struct counters) && n > 0; done += n > 0 ? (size_t)n : 0)
        n = pread(slot->stat_fd, (char *)p + done, sizeof(struct counters) - done, (off_t)done);
    return n < 0 ? -errno : done < sizeof(struct counters) ? -EPROTO : 0;
}

/*
 * Might the copied slot be its user's? One of a mount is not if the kernel knows another user's
 * there, and extracted files lie where only that user can put them.
 */
static bool is_claim_credible(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    struct mount_entry mount;
    char directory[PATH_MAX];
    slot_directory(slot, directory);
    if (c->extracted)
        return strcmp(directory, c->mountpoint) == 0;
    return mountinfo_find(slot_mount_path(slot), &mount) < 0 || mount.uid == slot->uid;
}

/*
 * Copy another user's slot, as root. -EPROTO, -EPERM: as slot_open; errors of opening: a lease
 * or a FUSE program in the way is not waited for.
 */
static int slot_copy(const char *folder, int folder_fd, const char *name, uid_t uid,
                     struct slot **ret_slot)
{
    auto_slot struct slot *slot = NULL;
    auto_close int entry = -1;
    char file[STATE_FILE_MAX + 16];
    struct stat st;
    int r = slot_new(folder, folder_fd, name, &slot);

    snprintf(file, sizeof(file), "%.*s.stat", STATE_NAME_MAX, name);
    if (r == 0)
        r = place_open_entry(folder_fd, file, &entry);
    if (r == 0 && fstat(entry, &st) < 0)
        r = -errno;
    if (r == 0 && (!S_ISREG(st.st_mode) || st.st_uid != uid))
        r = -EPERM;
    if (r < 0)
        return r;
    slot->uid = uid;
    snprintf(file, sizeof(file), "/proc/self/fd/%d", entry);
    slot->stat_fd = open(file, O_RDONLY | O_NONBLOCK | O_NOATIME | O_CLOEXEC);
    r = slot->stat_fd < 0 ? -errno : read_counters(slot);
    if (r == 0 && (!is_of_this_version(slot->counters) || !has_texts(slot->counters)))
        r = -EPROTO;
    if (r == 0 && !is_claim_credible(slot))
        r = -EPERM;
    if (r == 0)
        *ret_slot = steal_ptr(&slot);
    return r;
}

/* Create all files of a new slot, or none. -EEXIST: the name is taken. */
static int create_files(struct slot *slot)
{
    int r;

    r = registry_open(slot->folder_fd, slot->name, ".lock", NEW_FILE, &slot->lock_fd);
    if (r < 0)
        return r;
    if (!registry_take(slot->lock_fd))
        r = -EWOULDBLOCK;
    if (r == 0)
        r = registry_open(slot->folder_fd, slot->name, ".stat", NEW_FILE, &slot->stat_fd);
    /* Allocated now, since a full filesystem is an error here but SIGBUS later. */
    if (r == 0)
        r = syscall_reserve(slot->stat_fd, sizeof(struct counters));
    if (r == 0)
        r = map_counters(slot);
    if (r == 0 && (mkdirat(slot->folder_fd, slot->name, 0700) < 0 ||
                   fchmodat(slot->folder_fd, slot->name, 0700, 0) < 0))
        r = -errno;
    if (r == 0)
        return 0;
    if (slot->stat_fd >= 0)
        registry_unlink(slot->folder_fd, slot->name, ".stat");
    registry_unlink(slot->folder_fd, slot->name, ".lock");
    return r;
}

int slot_create(const struct registry *registry, const char *name, struct slot **ret_slot)
{
    char numbered[STATE_NAME_MAX];
    int r = -EEXIST;

    for (int i = 1; i < SLOT_NUMBER_MAX && r == -EEXIST; i++) {
        snprintf(numbered, sizeof(numbered), i == 1 ? "%.*s" : "%.*s-%d", STATE_NAME_MAX - 8,
                 name, i);
        auto_slot struct slot *slot = NULL;
        r = slot_new(registry->path, registry->fd, numbered, &slot);
        if (r == 0)
            r = create_files(slot);
        if (r < 0)
            continue;
        slot->counters->version = COUNTERS_VERSION;
        slot->counters->pid_namespace = process_namespace();
        slot->counters->size = sizeof(struct counters);
        memcpy(slot->counters->magic, COUNTERS_MAGIC, sizeof(COUNTERS_MAGIC));
        *ret_slot = steal_ptr(&slot);
    }
    return r;
}

/*
 * Keeps letters and digits of ASCII and a few marks. A leading dot or dash would hide the name
 * or confuse.
 */
static void append_safe(char name[STATE_NAME_MAX], const char *text, size_t max)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < max && text[i] && n < STATE_NAME_MAX - 8; i++) {
        char c = text[i];
        bool safe = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    (c >= '0' && c <= '9') || c == '_' || c == '+' ||
                    (n > 0 && (c == '.' || c == '-'));
        name[n++] = safe ? c : '_';
    }
    name[n] = '\0';
}

void slot_name_for(const char *job, const char *step, const char *archive,
                   char ret_name[STATE_NAME_MAX])
{
    const char *slash = strrchr(archive, '/');

    ret_name[0] = '\0';
    if (*job) {
        append_safe(ret_name, job, 40);
        append_safe(ret_name, *step ? "." : "", 1);
        append_safe(ret_name, step, 20);
        append_safe(ret_name, "-", 1);
    }
    append_safe(ret_name, slash ? slash + 1 : archive, 100);
    if (!ret_name[0])
        strcpy(ret_name, "archive");
}

bool slot_daemon_lives(const struct slot *slot)
{
    if (flock(slot->stat_fd, LOCK_SH | LOCK_NB) < 0)
        return true;
    flock(slot->stat_fd, LOCK_UN);
    return false;
}

const char *slot_mount_path(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    return c->layer_below[0] ? c->layer_below : c->mountpoint;
}

bool slot_is_mounted(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    return (c->mount_dev_major || c->mount_dev_minor) &&
           mountinfo_has(slot_mount_path(slot), c->mount_dev_major, c->mount_dev_minor);
}

int slot_wait_daemon(const struct slot *slot, int timeout_ms)
{
    for (int waited = 0; slot_daemon_lives(slot); waited += DAEMON_POLL_MS) {
        if (waited >= timeout_ms)
            return -ETIMEDOUT;
        poll(NULL, 0, DAEMON_POLL_MS);
    }
    return 0;
}

enum slot_condition slot_condition(const struct slot *slot)
{
    if (slot_daemon_lives(slot))
        return SLOT_ALIVE;
    if (flock(slot->lock_fd, LOCK_SH | LOCK_NB) < 0)
        return SLOT_STARTING;
    /* Files are there without a daemon, too. */
    bool is_used = slot->counters->extracted && flock(slot->lock_fd, LOCK_EX | LOCK_NB) < 0;
    flock(slot->lock_fd, LOCK_UN);
    return is_used ? SLOT_ALIVE : SLOT_DEAD;
}

bool slot_is_current(const struct slot *slot)
{
    char file[STATE_FILE_MAX];
    if (slot->lock_fd < 0) /* a copy: nothing is asked again in another user's folder */
        return true;
    snprintf(file, sizeof(file), "%s.lock", slot->name);
    return file_is_named(slot->folder_fd, file, slot->lock_fd, NULL) == 1;
}

int slot_lock(const struct slot *slot, bool exclusive, bool wait)
{
    int how = (exclusive ? LOCK_EX : LOCK_SH) | (wait ? 0 : LOCK_NB);
    return flock(slot->lock_fd, how) < 0 ? -errno : 0;
}

void slot_unlock(const struct slot *slot)
{
    flock(slot->lock_fd, LOCK_UN);
}

int slot_claim_daemon(const struct slot *slot, int *ret_fd)
{
    auto_close int fd = -1;
    int r = registry_open(slot->folder_fd, slot->name, ".stat", O_RDWR, &fd);
    if (r < 0)
        return r;
    while (flock(fd, LOCK_EX) < 0)
        if (errno != EINTR)
            return -errno;
    *ret_fd = steal_fd(&fd);
    return 0;
}

size_t slot_lock_holders(const struct slot *slot, int pids[], size_t max)
{
    return process_lock_holders(slot->lock_fd, pids, max);
}

/* ---- the folders ---- */

/* Add the folders below --extract=DIR that a folder knows of. */
static size_t add_linked(const char *folder, char folders[STATE_FOLDERS_MAX][PATH_MAX],
                         size_t count)
{
    auto_close int fd = -1;
    char link[32];

    if (runtime_open(folder, false, &fd) < 0)
        return count;
    for (size_t i = 0; i < LINKS_MAX && count < STATE_FOLDERS_MAX; i++) {
        snprintf(link, sizeof(link), LINK, i);
        ssize_t n = readlinkat(fd, link, folders[count], PATH_MAX - 1);
        bool is_new = n > 0;
        folders[count][n > 0 ? n : 0] = '\0';
        for (size_t k = 0; is_new && k < count; k++)
            is_new = strcmp(folders[k], folders[count]) != 0;
        count += is_new;
    }
    return count;
}

size_t state_folders(char folders[STATE_FOLDERS_MAX][PATH_MAX])
{
    size_t own = runtime_folders(folders), count = own;

    for (size_t i = 0; i < own; i++)
        count = add_linked(folders[i], folders, count);
    return count;
}

int state_remember(const char *folder)
{
    char folders[STATE_FOLDERS_MAX][PATH_MAX], link[32];
    auto_registry registry = REGISTRY_NONE;
    auto_close int fd = -1;
    int r = -ENOENT;

    /* Made first: a link to a folder that is not there would be swept. */
    if (runtime_open(folder, true, &fd) < 0)
        return 0; /* whoever uses it finds out why */
    size_t count = state_folders(folders);
    for (size_t i = 0; i < count; i++)
        if (strcmp(folders[i], folder) == 0)
            return 0;
    count = runtime_folders(folders);
    for (size_t i = 0; i < count && r < 0; i++)
        r = registry_lock(folders[i], true, &registry);
    if (r < 0)
        return r;
    slots_sweep(&registry); /* with the links to folders that are gone */
    for (size_t i = 0; i < LINKS_MAX; i++) {
        snprintf(link, sizeof(link), LINK, i);
        if (symlinkat(folder, registry.fd, link) == 0)
            return 0;
        if (errno != EEXIST)
            return -errno;
    }
    return -EMLINK;
}

int slots_lock_of(const struct slot *slot, struct registry *ret_registry)
{
    return registry_lock_open(slot->folder, slot->folder_fd, ret_registry);
}

/* ---- leftovers ---- */

/* A lock on the file, if nobody holds it, or -1. */
static int take_file(int folder_fd, const char *name, const char *suffix)
{
    auto_close int fd = -1;
    bool is_free =
        registry_open(folder_fd, name, suffix, O_RDWR, &fd) == 0 && registry_take(fd);
    return is_free ? steal_fd(&fd) : -1;
}

static void unlink_unlocked(int folder_fd, const char *name, const char *suffix)
{
    auto_close int fd = take_file(folder_fd, name, suffix);
    if (fd >= 0)
        registry_unlink(folder_fd, name, suffix);
}

/*
 * Give a tree of files a name that no slot has. To remove it may take long, and must not keep
 * others from the lock.
 */
static int set_aside(int folder_fd, const char *name)
{
    char aside[STATE_FILE_MAX + 8];

    for (int i = 0; i < ASIDE_MAX; i++) {
        snprintf(aside, sizeof(aside), ".%d-%s", i, name);
        if (renameat(folder_fd, name, folder_fd, aside) == 0)
            return 0;
        if (errno != ENOTEMPTY && errno != EEXIST)
            break;
    }
    return -errno;
}

static bool remove_directory(int folder_fd, const char *name)
{
    return unlinkat(folder_fd, name, AT_REMOVEDIR) == 0 || errno == ENOENT ||
           ((errno == ENOTEMPTY || errno == EEXIST) && set_aside(folder_fd, name) == 0);
}

/* By the folder's descriptor: nobody else can put anything there. */
static void remove_aside(int folder_fd)
{
    auto_closedir DIR *dir = path_list(folder_fd);
    const uint64_t end_ms = now_ms() + ASIDE_LIMIT_MS;

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (e->d_name[0] == '.' && e->d_name[1] >= '0' && e->d_name[1] <= '9')
            remove_tree(folder_fd, e->d_name, end_ms);
}

/*
 * Remove a slot that another version of the program made, if nobody holds it: neither a process
 * that starts or uses the mount, nor a daemon.
 */
static void sweep_foreign(const struct registry *registry, const char *name)
{
    auto_slot struct slot *slot = NULL;

    if (slot_open(registry->path, registry->fd, name, &slot) != -EPROTO)
        return;
    auto_close int lock = take_file(registry->fd, name, ".lock");
    auto_close int daemon = lock < 0 ? -1 : take_file(registry->fd, name, ".stat");
    if (daemon < 0 || !remove_directory(registry->fd, name))
        return;
    registry_unlink(registry->fd, name, ".lock");
    registry_unlink(registry->fd, name, ".stat");
}

/*
 * Is it a directory of no slot, and none that a mount took over (slot_remove)? Removing it
 * would end that mount, if this process is in another namespace.
 */
static bool is_leftover_directory(const struct registry *registry, const struct dirent *e)
{
    auto_slots struct slot_list list = {0};
    char path[PATH_MAX];
    if ((e->d_type != DT_DIR && e->d_type != DT_UNKNOWN) ||
        registry_has(registry->fd, e->d_name, ".stat") || slots_list(registry, &list) < 0)
        return false;
    snprintf(path, sizeof(path), "%.*s/%.*s", PATH_MAX - STATE_FILE_MAX - 2, registry->path,
             STATE_FILE_MAX, e->d_name);
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.at[i]->counters->mountpoint, path) == 0)
            return false;
    return true;
}

static void sweep_entry(const struct registry *registry, const struct dirent *e)
{
    const char *file = e->d_name;
    int folder_fd = registry->fd;
    char name[STATE_NAME_MAX];

    if (strlen(file) >= STATE_FILE_MAX || strcmp(file, "lock") == 0)
        return;
    if (is_leftover_directory(registry, e) && unlinkat(folder_fd, file, AT_REMOVEDIR) == 0)
        return;
    if (strncmp(file, ".at-", 4) == 0 && faccessat(folder_fd, file, F_OK, 0) < 0 &&
        errno == ENOENT)
        unlinkat(folder_fd, file, 0);
    if (registry_name(file, ".lock", name, sizeof(name))) {
        if (!registry_has(folder_fd, name, ".stat"))
            unlink_unlocked(folder_fd, name, ".lock");
    } else if (registry_name(file, ".stat", name, sizeof(name))) {
        if (registry_has(folder_fd, name, ".lock"))
            sweep_foreign(registry, name);
        else
            unlink_unlocked(folder_fd, name, ".stat");
    }
}

void slots_sweep(const struct registry *registry)
{
    auto_closedir DIR *dir = path_list(registry->fd);

    for (struct dirent *e; dir && (e = readdir(dir));)
        if (!path_is_dots(e->d_name))
            sweep_entry(registry, e);
}

/* Has the folder slots of mounts? Also true if it can't be read. */
static bool has_slots(const struct registry *registry)
{
    char name[STATE_NAME_MAX];
    auto_closedir DIR *dir = path_list(registry->fd);
    bool found = !dir;

    for (struct dirent *e; !found && (e = readdir(dir));)
        found = registry_name(e->d_name, ".stat", name, sizeof(name));
    return found;
}

/* Killed processes left the files that belong to no slot. */
static void sweep_if_last(const struct registry *registry)
{
    if (registry->lock_fd >= 0 && !has_slots(registry))
        slots_sweep(registry);
}

void slots_unlock(struct registry *registry)
{
    const bool is_locked = registry->lock_fd >= 0;
    auto_close int fd = is_locked ? fcntl(registry->fd, F_DUPFD_CLOEXEC, 3) : -1;

    sweep_if_last(registry);
    registry_unlock(registry);
    if (fd >= 0)
        remove_aside(fd);
}

void slots_remove(struct registry *registry)
{
    sweep_if_last(registry);
    registry_remove(registry);
}

/* ---- lists ---- */

void slot_list_free(struct slot_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        slot_close(list->at[i]);
    vector_free(list);
}

/* Add the slot that a file named X.stat represents, if it is one, or count it as left out. */
static int list_file(struct slot_list *list, const char *folder, int folder_fd,
                     const char *file)
{
    char name[STATE_NAME_MAX];
    auto_slot struct slot *slot = NULL;

    if (!registry_name(file, ".stat", name, sizeof(name)))
        return 0;
    int r = slot_open(folder, folder_fd, name, &slot);
    if (r == 0)
        r = vector_push(list, slot);
    if (r == 0)
        slot = NULL;
    list->left_out += r < 0 && r != -ENOENT;
    return r == -ENOMEM ? r : 0;
}

static int list_folder(struct slot_list *list, const char *folder, int folder_fd)
{
    auto_closedir DIR *dir = path_list(folder_fd);
    int r = dir ? 0 : -errno;
    for (struct dirent *e; r == 0 && (e = readdir(dir));)
        r = list_file(list, folder, folder_fd, e->d_name);
    return r;
}

static int state_by_name(const void *a, const void *b)
{
    return strcmp((*(struct slot *const *)a)->name, (*(struct slot *const *)b)->name);
}

static int list_done(struct slot_list *list, int r, struct slot_list *ret_list)
{
    if (r < 0)
        slot_list_free(list);
    if (list->count > 1)
        qsort(list->at, list->count, sizeof(list->at[0]), state_by_name);
    *ret_list = *list;
    return r;
}

int slots_list(const struct registry *registry, struct slot_list *ret_list)
{
    struct slot_list list = {0};
    int r = list_folder(&list, registry->path, registry->fd);
    return list_done(&list, r, ret_list);
}

static int list_own(struct slot_list *list)
{
    char folders[STATE_FOLDERS_MAX][PATH_MAX];
    size_t count = state_folders(folders);
    int r = 0;

    for (size_t i = 0; i < count && r == 0; i++) {
        auto_close int fd = -1;
        if (runtime_open(folders[i], false, &fd) == 0) /* else missing, or not ours */
            r = list_folder(list, folders[i], fd);
    }
    return r;
}

int state_list(struct slot_list *ret_list)
{
    struct slot_list list = {0};
    int r = list_own(&list);
    return list_done(&list, r, ret_list);
}

/* ---- all users ---- */

static int each_user_found(int above_fd, const char *place, const char *name, uid_t uid,
                           int (*found)(void *, const char *, int, uid_t), void *ctx)
{
    char path[PATH_MAX];
    struct stat st;
    auto_close int fd = -1;
    snprintf(path, sizeof(path), "%.*s/%.*s", PATH_MAX - NAME_MAX - 2, place, NAME_MAX, name);
    bool is_theirs = place_open_entry(above_fd, name, &fd) == 0 && fstat(fd, &st) == 0 &&
                     S_ISDIR(st.st_mode) && st.st_uid == uid;
    return is_theirs ? found(ctx, path, fd, uid) : 0;
}

/* In a path (AT_FDCWD) or an entry of an open folder. */
static int each_user_in(int above_fd, const char *name, const char *place,
                        int (*found)(void *, const char *, int, uid_t), void *ctx)
{
    auto_close int entry = -1;
    int r = 0;
    auto_closedir DIR *dir =
        place_open_entry(above_fd, name, &entry) == 0 ? path_list(entry) : NULL;
    for (struct dirent *e; r == 0 && dir && (e = readdir(dir));) {
        unsigned uid;
        int end = 0;
        if ((sscanf(e->d_name, "onepot-%u%n", &uid, &end) == 1 && !e->d_name[end]) ||
            (sscanf(e->d_name, "onepot-stage-%u%n", &uid, &end) == 1 && !e->d_name[end]))
            r = each_user_found(dirfd(dir), place, e->d_name, uid, found, ctx);
    }
    return r;
}

int state_each_user(int (*found)(void *ctx, const char *path, int folder_fd, uid_t uid),
                    void *ctx)
{
    char places[RUNTIME_FOLDERS_MAX][PATH_MAX], place[PATH_MAX];
    size_t count = runtime_places(RUNTIME_STATE, places);
    auto_closedir DIR *sessions = opendir(SESSIONS);
    int r = 0;

    for (size_t i = 0; r == 0 && i < count; i++)
        r = each_user_in(AT_FDCWD, places[i], places[i], found, ctx);
    for (struct dirent *e; r == 0 && sessions && (e = readdir(sessions));) {
        snprintf(place, sizeof(place), SESSIONS "/%s", e->d_name);
        if (!path_is_dots(e->d_name))
            r = each_user_in(dirfd(sessions), e->d_name, place, found, ctx);
    }
    return r;
}

/*
 * A user may have put anything there, any number of times, so each folder has a share of what
 * is looked at. The folder's name is the one that runtime_folders gives: there is one in a
 * place.
 */
static int list_folder_of(void *ctx, const char *path, int folder_fd, uid_t uid)
{
    struct slot_list *list = ctx;
    char name[STATE_NAME_MAX], own[32];
    size_t slots = 0, entries = 0;
    snprintf(own, sizeof(own), "onepot-%u", (unsigned)uid);
    if (uid == geteuid() || strcmp(path_base(path), own) != 0)
        return 0;
    auto_closedir DIR *dir = path_list(folder_fd);
    for (struct dirent *e; dir && entries < FOLDER_ENTRIES_MAX && (e = readdir(dir));
         entries++) {
        auto_slot struct slot *slot = NULL;
        if (!registry_name(e->d_name, ".stat", name, sizeof(name)))
            continue;
        int r = slots++ < FOLDER_SLOTS_MAX && list->count < SLOTS_MAX
                    ? slot_copy(path, folder_fd, name, uid, &slot)
                    : -E2BIG;
        if (r == 0)
            r = vector_push(list, slot);
        if (r == -ENOMEM)
            return r;
        if (r == 0)
            slot = NULL;
        list->left_out += r < 0 && r != -ENOENT;
    }
    list->left_out += entries == FOLDER_ENTRIES_MAX;
    return 0;
}

int state_list_all(struct slot_list *ret_list)
{
    struct slot_list list = {0};
    int r = list_own(&list);
    if (r == 0 && geteuid() == 0)
        r = state_each_user(list_folder_of, &list);
    return list_done(&list, r, ret_list);
}

bool slot_claim_unused(const struct slot *slot)
{
    auto_registry registry = REGISTRY_NONE;
    int r = slots_lock_of(slot, &registry); /* -ENOENT: there is nobody to lock out */
    bool is_unused = (r == 0 || r == -ENOENT) && slot_lock(slot, true, false) == 0 &&
                     atomic_load(&slot->counters->holders) == 0;

    if (!is_unused)
        slot_unlock(slot);
    return is_unused;
}

/*
 * Another mount is at the same place: for one command only, or as one that has ended here and
 * is seen elsewhere. Removing the directory would remove that mount too, whatever namespace it
 * is in. So that mount takes over the directory.
 */
static bool hand_over_mountpoint(const struct slot *slot)
{
    struct registry registry = {.fd = slot->folder_fd, .lock_fd = -1};
    auto_slots struct slot_list list = {0};

    snprintf(registry.path, sizeof(registry.path), "%s", slot->folder);
    if (slots_list(&registry, &list) < 0)
        return true;
    for (size_t i = 0; i < list.count; i++) {
        struct counters *c = list.at[i]->counters;
        if (strcmp(list.at[i]->name, slot->name) == 0 ||
            strcmp(c->mountpoint, slot->counters->mountpoint) != 0)
            continue;
        c->owns_mountpoint = 1;
        return true;
    }
    return false;
}

void slot_remove(const struct slot *slot)
{
    if (!slot_is_current(slot))
        return;
    const bool is_mount = !slot->counters->extracted;
    char directory[PATH_MAX];
    slot_directory(slot, directory);
    bool is_there = strcmp(directory, slot->counters->mountpoint) == 0;
    bool owns = slot->counters->owns_mountpoint;
    bool is_handed = is_mount && (owns || is_there) && hand_over_mountpoint(slot);
    if (!is_mount && !remove_directory(slot->folder_fd, slot->name))
        return; /* something is mounted over them */
    if (owns && !is_handed)
        rmdir(slot->counters->mountpoint);
    if (is_mount && (!is_there || !is_handed))
        unlinkat(slot->folder_fd, slot->name, AT_REMOVEDIR);
    registry_unlink(slot->folder_fd, slot->name, ".stat");
    registry_unlink(slot->folder_fd, slot->name, ".lock");
}
