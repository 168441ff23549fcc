/*
 * One mount for each job step and set of options on a node. The first process makes it, and
 * holds its slot exclusively meanwhile; the others wait for that lock, and look again.
 *
 * Everything is decided under the registry's lock; nothing is waited for under it.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "holders.h"
#include "mounter_private.h"
#include "mountinfo.h"
#include "owner.h"
#include "process.h"
#include "unmounter.h"

#define SHARE_TRIES 100       /* of a mount whose daemon seems about to die */
#define ENDING_LIMIT_MS 2000  /* longest wait for an earlier mount to end */
#define STOPPED_LIMIT_MS 1000 /* for an answer of a mount that is in the way */
#define STARTING_STEP_MS 10   /* between looks at whether another process is done */

/* Result of a look through the slots. */
enum look {
    LOOK_NOTHING,  /* create one */
    LOOK_SHARED,   /* share m->slot */
    LOOK_STARTING, /* *ret_slot: a process makes it, or ends it */
    LOOK_ENDING,   /* *ret_slot: its daemon is about to go */
    LOOK_CONFLICT, /* *ret_slot: another mount is at the same place */
};

static bool is_same(const struct mounter *m, const struct counters *c)
{
    return c->options_hash == m->options_hash && c->archive_dev == m->identity.dev &&
           c->archive_ino == m->identity.ino && c->archive_bytes == m->identity.size_bytes &&
           strcmp(c->job, m->job.id) == 0 && strcmp(c->step, m->job.step) == 0;
}

/* Paths are places in a mount namespace, and a parent's device (/dev/fd/N) is none at all. */
static uint64_t namespace_of_path(const struct mounter *m)
{
    struct stat st;
    bool is_path = m->methods != MOUNT_BY_PARENT && stat("/proc/self/ns/mnt", &st) == 0;
    return is_path ? st.st_ino : 0;
}

static bool is_same_place(const struct mounter *m, const struct counters *c)
{
    return m->at[0] && strcmp(c->mountpoint, m->at) == 0 && c->mount_namespace &&
           c->mount_namespace == namespace_of_path(m);
}

/* May mounts with these options be shared at all? */
static bool is_shareable(const struct mounter *m)
{
    return !m->options->foreground && m->methods != MOUNT_BY_PARENT;
}

/* A mount of `mount` belongs to its job; one of `run` or -f ends with its process. */
static void note_owner(const struct mounter *m, struct counters *counters)
{
    if (!m->for_run && !m->options->foreground && !m->options->owner)
        owner_add(counters, owner_find());
}

/* Join the namespace of another `run`, and become one more that others may enter through. */
static bool join_namespace(struct mounter *m, struct slot *slot)
{
    struct counters *c = slot->counters;

    if (!mounter_may_be_private(m))
        return false;
    strcpy(m->path, c->mountpoint); /* for the child */
    m->slot = slot;                 /* the same */
    int r = -ESRCH;
    for (size_t i = 0; r < 0 && i < COUNTERS_ENTRANCES; i++) {
        const struct counter_entrance *e = &c->entrance[i];
        if (e->pid && process_lives(e->pid, e->start_ticks))
            r = namespace_join(e->pid, e->user_namespace_fd, e->mount_namespace_fd, m->path,
                               m->launch, m->launch_ctx, &m->mounted.ns);
    }
    m->slot = NULL;
    if (r < 0)
        return false;
    mounter_offer_namespace(m, c);
    return true;
}

/* Count this process among the users of a mount: `run` by a lock, `mount` by a number. */
static enum look join_slot(struct mounter *m, struct slot *slot)
{
    struct counters *c = slot->counters;

    if (c->extracted && !m->for_run && !slot_daemon_lives(slot))
        return LOOK_NOTHING; /* nobody would keep the files after the `run`s that use them */
    if (slot_lock(slot, false, false) < 0)
        return LOOK_STARTING;
    if (c->extracted && atomic_load(&c->state) != MOUNT_SERVING) { /* their maker was killed */
        slot_unlock(slot);
        return LOOK_ENDING;
    }
    if (c->private_namespace && !join_namespace(m, slot)) {
        slot_unlock(slot);
        return LOOK_NOTHING;
    }
    atomic_store(&c->shared_ns, now_ns());
    if (!m->for_run) {
        note_owner(m, c);
        m->holder = holders_add(c);
        slot_unlock(slot);
    }
    return LOOK_SHARED;
}

/* Name the mount in the way and its owner, for messages. */
static void describe_taken(struct mounter *m, const struct counters *c)
{
    bool same_file = c->archive_dev == m->identity.dev && c->archive_ino == m->identity.ino;
    char whose[JOB_ID_MAX + 64] = " outside of jobs";

    if (strcmp(c->job, m->job.id) == 0)
        snprintf(whose, sizeof(whose), "%s",
                 same_file ? " already, with other options or as it was before" : "");
    else if (c->job[0])
        snprintf(whose, sizeof(whose), " by job %s", c->job);
    snprintf(m->taken, sizeof(m->taken), "%s is mounted there%s (process %d)", c->archive,
             whose, c->daemon_pid);
}

/* Another mount is at our place. It stays, and ours covers it, for the command only. */
static enum look place_taken(struct mounter *m, const struct counters *c)
{
    describe_taken(m, c);
    if (!mounter_may_be_private(m))
        return LOOK_CONFLICT;
    m->is_private = true;
    return LOOK_NOTHING;
}

/*
 * Was its daemon killed? It holds its lock, and its mount does not answer, until the last of
 * its threads is gone, which may be long after its first.
 */
static bool is_killed(const struct counters *c)
{
    return c->daemon_pid > 0 && c->pid_namespace == process_namespace() &&
           process_is_killed(c->daemon_pid, c->daemon_start_ticks);
}

/* Has it the name that a slot of ours would have first? */
static bool has_our_name(const struct mounter *m, const struct slot *slot)
{
    char name[STATE_NAME_MAX];

    slot_name_for(m->job.id, m->job.step, m->options->archive, name);
    return strcmp(slot->name, name) == 0;
}

/* How this one slot concerns us. */
static enum look mounter_judge_slot(struct mounter *m, struct slot *slot)
{
    const struct counters *c = slot->counters;
    enum slot_condition condition = slot_condition(slot);
    uint32_t state = atomic_load(&c->state);
    bool same = is_same(m, c) && is_shareable(m);
    bool same_place = is_same_place(m, c);
    bool starts = condition == SLOT_STARTING && state == MOUNT_STARTING; /* or will fail */

    if (condition == SLOT_DEAD) {
        unmounter_heal(slot);
        return LOOK_NOTHING;
    }
    if (!same_place && !c->extracted && (same || has_our_name(m, slot)) && is_killed(c))
        return LOOK_ENDING; /* and its path is the next one's, whatever the options */
    if (!same && !same_place)
        return LOOK_NOTHING;
    if (state == MOUNT_ENDED)
        return LOOK_ENDING;
    if (state != MOUNT_STARTING && c->private_namespace)
        return same && state == MOUNT_SERVING ? join_slot(m, slot) : LOOK_NOTHING;
    if (state != MOUNT_STARTING && !c->extracted && !slot_is_mounted(slot))
        return LOOK_NOTHING;
    if (state == MOUNT_DRAINING || !(same || starts) ||
        (m->is_private && state != MOUNT_STARTING))
        return same_place ? place_taken(m, c) : LOOK_NOTHING;
    return condition == SLOT_STARTING ? LOOK_STARTING : join_slot(m, slot);
}

/* The first slot that concerns us; one that is about to go only if no other does. */
static enum look look_through(struct mounter *m, const struct registry *registry,
                              struct slot **ret_slot)
{
    auto_slots struct slot_list list = {0};
    enum look found = LOOK_NOTHING;
    size_t chosen = 0;

    slots_sweep(registry);
    if (slots_list(registry, &list) < 0)
        return LOOK_NOTHING;
    for (size_t i = 0; i < list.count && (found == LOOK_NOTHING || found == LOOK_ENDING); i++) {
        enum look here = mounter_judge_slot(m, list.at[i]);
        if (here == LOOK_NOTHING || here == found)
            continue;
        found = here;
        chosen = i;
    }
    if (found != LOOK_NOTHING)
        *ret_slot = steal_ptr(&list.at[chosen]);
    return found;
}

/*
 * A mount by this name has ended here, and is only seen elsewhere, by a container for example.
 * Is its directory free for the next? Programs know data by their path.
 */
static bool directory_is_left(const struct registry *registry, const char *name,
                              char ret_path[PATH_MAX])
{
    auto_slots struct slot_list list = {0};
    struct mount_entry entry;
    bool is_left = false;

    snprintf(ret_path, PATH_MAX, "%.*s/%s", PATH_MAX - STATE_FILE_MAX, registry->path, name);
    if (slots_list(registry, &list) < 0 || mountinfo_find(ret_path, &entry) == 0)
        return false;
    for (size_t i = 0; i < list.count; i++) {
        const struct counters *c = list.at[i]->counters;
        if (strcmp(c->mountpoint, ret_path) != 0)
            continue;
        if (atomic_load(&c->state) != MOUNT_ENDED)
            return false;
        is_left = true;
    }
    return is_left;
}

/* Where to mount: --at, beside the changes of a layer, or a directory of the slot. */
static void choose_path(struct mounter *m, const struct registry *registry, const char *name)
{
    if (m->at[0] || m->view[0]) {
        strcpy(m->path, m->at[0] ? m->at : m->view);
    } else if (!m->options->extract && strcmp(m->slot->name, name) != 0 &&
               directory_is_left(registry, name, m->path)) {
        m->slot->counters->owns_mountpoint = 1;
    } else {
        slot_directory(m->slot, m->path);
    }
}

/* Create a slot of our own, as others may find it before it serves. */
static int make_slot(struct mounter *m, const struct registry *registry)
{
    char name[STATE_NAME_MAX];

    slot_name_for(m->job.id, m->job.step, m->options->archive, name);
    int r = slot_create(registry, name, &m->slot);
    if (r < 0)
        return r;
    struct counters *c = m->slot->counters;
    c->uid = geteuid();
    c->archive_dev = m->identity.dev;
    c->archive_ino = m->identity.ino;
    c->archive_bytes = m->identity.size_bytes;
    c->options_hash = m->options_hash;
    c->extracted = m->options->extract;
    c->started_realtime_sec = time(NULL);
    snprintf(c->job, sizeof(c->job), "%s", m->job.id);
    snprintf(c->step, sizeof(c->step), "%s", m->job.step);
    snprintf(c->archive, sizeof(c->archive), "%s", m->archive);
    snprintf(c->version_text, sizeof(c->version_text), "%s", ONEPOT_VERSION);
    choose_path(m, registry, name);
    strcpy(c->mountpoint, m->path);
    c->mount_namespace = namespace_of_path(m);
    note_owner(m, c);
    return 0;
}

/* Wait for the process that holds a slot, or for a daemon to exit. -EINTR: a signal came. */
static int wait_for_slot(struct mounter *m, enum look found, struct slot *slot,
                         uint64_t *patience_ns)
{
    if (found == LOOK_STARTING) {
        if (m->options->extract && !m->waits)
            cli_note("%s: another process of this %s extracts it; waiting for its files",
                     m->options->archive, m->job.id[0] ? "job" : "user");
        m->waits = true;
        /*
         * No time limit: an index may be under construction. The lock ends with its process.
         * Not by a call that waits: a signal just before it would not end that.
         */
        while (slot_lock(slot, false, false) == -EWOULDBLOCK && !mounter_caught())
            poll(NULL, 0, STARTING_STEP_MS);
        return mounter_caught() ? -EINTR : 0;
    }
    if (!*patience_ns)
        *patience_ns = now_ns() + ENDING_LIMIT_MS * UINT64_C(1000000);
    if (now_ns() > *patience_ns)
        return -ETIMEDOUT;
    slot_wait_daemon(slot, 100);
    poll(NULL, 0, 1); /* the daemon may be gone while its files remain */
    return mounter_caught() ? -EINTR : 0;
}

/* Was the daemon of the mount in the way killed? In another PID namespace the mount tells. */
static bool is_dying(const struct mounter *m, const struct counters *c)
{
    return is_killed(c) || mountpoint_answers(m->at, STOPPED_LIMIT_MS) == -ENOTCONN;
}

static int report_conflict(const struct mounter *m, const struct counters *c)
{
    uint32_t state = atomic_load(&c->state);

    if (state == MOUNT_ENDED || state == MOUNT_DRAINING)
        return cli_failf(m->at, "%s still, because it is in use, and ends when it is not",
                         m->taken);
    if (strcmp(c->job, m->job.id) == 0)
        return cli_failf(m->at, "%s; unmount it first", m->taken);
    return cli_failf(
        m->at,
        "%s, and stays for that; take another --at, or none: then this job has a "
        "directory of its own%s",
        m->taken, m->for_run ? "" : "; 'onepot run' can mount it there for its command alone");
}

static int report_stuck(const struct mounter *m, const struct counters *c)
{
    return cli_failf(m->at,
                     "the mount of %s there has lost its daemon (process %d), which does not "
                     "end: it is stuck in a read, or lives in a container",
                     c->archive, c->daemon_pid);
}

/*
 * Share or create in one folder. 0; CLI_FAILED after an error; -EAGAIN to look again; other
 * errors: this folder can't be used.
 */
static int mounter_try_folder(struct mounter *m, const char *folder, uint64_t *patience_ns)
{
    struct registry registry;
    auto_slot struct slot *slot = NULL;
    int r = registry_lock(folder, true, &registry);

    if (r < 0)
        return r;
    enum look found = look_through(m, &registry, &slot);
    bool patient = !*patience_ns || now_ns() <= *patience_ns;
    if (found == LOOK_ENDING && !patient)
        found = LOOK_NOTHING; /* detached but in use: it occupies no place in the tree */
    if (found == LOOK_NOTHING)
        r = make_slot(m, &registry);
    slots_unlock(&registry);
    if (found == LOOK_NOTHING)
        return r;
    if (found == LOOK_SHARED) {
        m->slot = steal_ptr(&slot);
        m->shared = true;
        strcpy(m->path, m->slot->counters->mountpoint);
        return 0;
    }
    bool dying = found == LOOK_CONFLICT && is_dying(m, slot->counters);
    if (dying && patient)
        found = LOOK_ENDING;
    if (found == LOOK_CONFLICT)
        return dying ? report_stuck(m, slot->counters) : report_conflict(m, slot->counters);
    return wait_for_slot(m, found, slot, patience_ns) == -EINTR ? CLI_FAILED : -EAGAIN;
}

void mounter_unshare(struct mounter *m)
{
    namespace_close(&m->mounted.ns); /* its child has a copy of the lock */
    if (!m->for_run)
        holders_remove(m->slot->counters, m->holder);
    slot_close(m->slot);
    m->slot = NULL;
    m->shared = false;
}

/* Only a mount that answers is shared. -EAGAIN: its daemon has just died. */
static int check_shared(struct mounter *m, unsigned *tries)
{
    int r = mounted_answers(&m->mounted, m->path, ANSWER_LIMIT_MS);
    if (r == 0)
        return 0;
    pid_t pid = m->slot->counters->daemon_pid;
    mounter_unshare(m);
    if (r == -ETIMEDOUT || ++*tries > SHARE_TRIES)
        return cli_failf(m->path,
                         "the mount does not answer; is its daemon (process %d) stopped? "
                         "'onepot umount --lazy' ends it",
                         (int)pid);
    poll(NULL, 0, 10);
    return -EAGAIN;
}

/* Add a folder's fault to a list of such lines. */
static void add_reason(const char *folder, int r, char *said, size_t size)
{
    size_t len = strlen(said);
    if (len > 0 && len + 2 < size)
        len += (size_t)snprintf(said + len, size - len, "; ");
    runtime_explain(folder, r, said + len, size - len);
}

/* With --extract=DIR it is where its files are to be. */
static size_t folders_to_try(const struct mounter *m, char folders[STATE_FOLDERS_MAX][PATH_MAX])
{
    if (!m->extract_folder[0])
        return runtime_folders(folders);
    strcpy(folders[0], m->extract_folder);
    return 1;
}

int mounter_find_slot(struct mounter *m)
{
    char folders[STATE_FOLDERS_MAX][PATH_MAX];
    size_t count = folders_to_try(m, folders), i = 0;
    uint64_t patience_ns = 0;
    char said[2048] = "";
    unsigned tries = 0;
    int r = -ENOENT;

    while (i < count) {
        r = mounter_caught() ? CLI_FAILED : mounter_try_folder(m, folders[i], &patience_ns);
        if (r == 0 && m->shared)
            r = check_shared(m, &tries);
        if (r >= 0)
            break;
        if (r != -EAGAIN)
            add_reason(folders[i++], r, said, sizeof(said));
    }
    if (r < 0 && m->extract_folder[0])
        r = cli_failf(m->options->archive,
                      "it can't be extracted there: %s; name another folder (--extract=DIR)",
                      said);
    else if (r < 0)
        r = cli_failf(NULL,
                      "no folder can be used for the state of the mount: %s; set "
                      "ONEPOT_RUNTIME_DIR to a folder of your own on this node",
                      said[0] ? said : "there is neither /dev/shm nor /tmp");
    count = r == 0 ? state_folders(folders) : 0;
    for (i = 0; i < count; i++) /* leftovers of jobs in folders that are not searched */
        if (strcmp(folders[i], m->slot->folder) != 0)
            unmounter_sweep(folders[i]);
    return r;
}
