/*
 * One slot: its files, its counters, its locks.
 *
 * Only flock(2) decides whether a process lives: a lock goes with its process however that
 * ends, and means the same in every PID namespace of the node. It belongs to the open file and
 * not to the process. So each struct slot opens the files for itself, and a lock that a forked
 * child inherited is released explicitly, not by closing.
 */
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
#include "file_id.h"
#include "mountinfo.h"
#include "place.h"
#include "process.h"
#include "state.h"
#include "syscalls.h"

#define DAEMON_POLL_MS 2
#define SLOT_NUMBER_MAX 10000
#define NEW_FILE (O_RDWR | O_CREAT | O_EXCL)

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

int slot_copy(const char *folder, int folder_fd, const char *name, uid_t uid,
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
