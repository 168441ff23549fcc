/*
 * Each step towards a mount, and how to undo it.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "clock.h"
#include "cpus.h"
#include "extract.h"
#include "holders.h"
#include "interrupt.h"
#include "layer.h"
#include "mounter.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "numbers.h"
#include "owner.h"
#include "path.h"
#include "place.h"
#include "process.h"
#include "summary.h"
#include "unmounter.h"

#define RELEASE_WAIT_MS 3000 /* for processes that the command left, when `run` ends */
#define DAEMON_END_MS 5000
#define STALE_LIMIT_MS 2000
#define ANSWER_LIMIT_MS 10000

/* May a `run` mount in a private namespace? */
static bool mounter_may_be_private(const struct mounter *m)
{
    return m->for_run && (m->methods & MOUNT_BY_NAMESPACE);
}

/* The error that --at may not be made, and who can help. Returns CLI_FAILED. */
static int mounter_refused(const struct mounter *m, const char *at, int err)
{
    return cli_failf(at,
                     "you may not make this directory: %s; ask an administrator for one there "
                     "that is yours (mkdir -p %s; chown %u %s), or %s",
                     fault_errno(err), at, (unsigned)geteuid(), at,
                     m->for_run
                         ? "leave out --at: {} and $ONEPOT_MOUNT name the mount then"
                         : "use another --at, none, or 'onepot run ARCHIVE -- COMMAND {}'");
}

/* ---- signals while it works ---- */

int mounter_caught(void)
{
    return atomic_load(interrupt_flag());
}

/* Blocking calls return on a signal, and the command cleans up. */
static void catch_signals(void)
{
    interrupt_handle(interrupt_note);
    signal(SIGCHLD, SIG_DFL); /* if ignored, our children's exit status would be lost */
}

/* ---- resolving the request ---- */

int mounter_init(struct mounter *m, const struct mount_options *options, bool for_run)
{
    *m = (struct mounter){
        .options = options,
        .for_run = for_run,
        .mounted = MOUNTED_NONE,
        .owner = PROCESS_WATCH_NONE,
        .log = {.fd = -1, .stderr_too = options->foreground},
        .layer = LAYER_NONE,
        .parent_fd = -1,
        .daemon_sock = -1,
        .daemon_lock_fd = -1,
    };
    catch_signals();
    return detach_note_inherited(&m->inherited);
}

static int identify(const struct mounter *m, size_t i, struct source_identity *ret_identity)
{
    const char *path = m->archives.at[i];
    struct fault fault = {0};
    const struct fileset_options options = {.is_whole = archive_list_is_whole(&m->archives, i),
                                            .is_plain = m->archives.is_plain};
    int r = fileset_identify(path, &options, &fault, ret_identity);
    if (r == 0)
        return 0;
    cli_advise(&m->options->doubt, path, &fault);
    return cli_fail(path, r, &fault);
}

static int identify_files(struct mounter *m)
{
    const struct archive_list *list = &m->archives;
    auto_free struct source_identity *all = calloc(list->count, sizeof(*all));
    struct stat st;
    int r = 0;
    if (!all)
        return cli_fail(NULL, -ENOMEM, NULL);
    for (size_t i = 0; r == 0 && i < list->count; i++)
        if (!cli_together.skip_damaged || stat(list->at[i], &st) == 0)
            r = identify(m, i, &all[i]);
    source_identity_join(all, list->count, &m->identity);
    snprintf(m->archive, sizeof(m->archive), "%s", m->options->archive);
    return r;
}

/*
 * The name of one archive, and its identity. A descriptor of the caller (/proc/self/fd/3) may
 * be of a file that has no path, or another one by now.
 */
static int identify_archive(struct mounter *m)
{
    const char *given = m->archives.at[0];
    struct stat st, own;
    int r = identify(m, 0, &m->identity);

    if (r == 0 && (!realpath(given, m->archive) || stat(m->archive, &st) < 0 ||
                   stat(given, &own) < 0 || st.st_dev != own.st_dev || st.st_ino != own.st_ino))
        snprintf(m->archive, sizeof(m->archive), "%s", given);
    return r;
}

static int identify_archives(struct mounter *m)
{
    const struct mount_options *o = m->options;
    int r = cli_list_archives(o->archives, o->archive_count, &m->archives) < 0 ? CLI_FAILED : 0;
    if (r == 0 && mounter_is_union(m))
        r = identify_files(m);
    else if (r == 0)
        r = identify_archive(m);
    cli_expect_archives(m->archives.count);
    return r;
}

/* May this user make the directory, with all parents that it lacks? */
static bool may_be_made(const char *at)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", at);
    while (access(folder, F_OK) < 0 && errno == ENOENT) {
        char *slash = strrchr(folder, '/');
        if (!slash)
            strcpy(folder, ".");
        else
            slash[slash == folder] = '\0';
    }
    return access(folder, W_OK) == 0;
}

/*
 * Could another user put something else at --at? In a sticky folder it has to be ours, or
 * root's. A mount of onepot there is not asked for its owner: it may be dead, and is cleared.
 */
static int check_at(const char *at)
{
    char above[PATH_MAX], text[PATH_MAX + 256];
    const char *name = path_base(at);
    struct mount_entry entry;
    struct place place;
    struct stat st;

    snprintf(above, sizeof(above), "%.*s", (int)(name - at), at);
    int r = place_open(above, PLACE_SHARED, &place);
    if (r < 0 && r != -EPERM)
        return cli_fail(at, r, NULL);
    if (r < 0)
        return cli_failf(at, "another user could replace it: %s",
                         place_explain(&place, text, sizeof(text)));
    bool is_sticky = place.st.st_mode & (S_IWGRP | S_IWOTH);
    bool is_there = is_sticky && *name && mountinfo_find(at, &entry) < 0 &&
                    fstatat(place.fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    close(place.fd);
    if (is_there && st.st_uid != 0 && !place_is_ours(&st))
        return cli_failf(at, "another user could replace it: it belongs to user %u",
                         (unsigned)st.st_uid);
    return 0;
}

/* --at: a directory, or the device of a parent that has mounted. */
static int resolve_at(struct mounter *m)
{
    const char *at = m->options->at;
    int n = -1, fd;

    if (!at)
        return 0;
    if (sscanf(at, "/dev/fd/%d%n", &fd, &n) == 1 && n > 0 && !at[n]) {
        m->parent_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (m->parent_fd < 0)
            return cli_failf(at, "no such descriptor was handed over: %s", fault_errno(errno));
        m->methods = MOUNT_BY_PARENT;
        snprintf(m->at, sizeof(m->at), "%s", at);
        return 0;
    }
    int r = mountinfo_resolve(at, m->at);
    if (r == -EACCES || (r == -ENOENT && !may_be_made(at)))
        return mounter_refused(m, at, -EACCES);
    if (r == -EPERM)
        return cli_failf(at, "is another user's symbolic link in a directory where anybody may "
                             "make one; it is not followed");
    if (r == -ENOENT)
        return cli_failf(at, "its parent directory does not exist; make that first");
    return r < 0 ? cli_fail(at, r, NULL) : check_at(m->at);
}

/*
 * `run` shows the tree beside its changes, since programs know their caches by the path of the
 * data, and any other path has the job's number in it.
 */
static void choose_view(struct mounter *m)
{
    char text[PATH_MAX + 256];
    struct place place;

    if (place_open(m->layer.dir, PLACE_SHARED, &place) < 0) {
        cli_note("%s: others could replace it (%s), so the tree is shown elsewhere, at a path "
                 "that differs between jobs",
                 m->layer.dir, place_explain(&place, text, sizeof(text)));
        return;
    }
    close(place.fd);
    snprintf(m->view, sizeof(m->view), "%.*s/view", PATH_MAX - 8, m->layer.dir);
}

/* --writable: where its changes go. */
static int resolve_layer(struct mounter *m)
{
    const struct mount_options *o = m->options;
    char why[LAYER_WHY_MAX];

    if (!o->writable)
        return 0;
    if (m->parent_fd >= 0)
        return cli_failf(m->at, "--writable needs a mount of onepot's; name another --at");
    m->is_private = m->for_run;
    if (layer_resolve(o->writable_dir, &m->layer, why) < 0)
        return cli_failf(o->writable_dir, "what is written can't lie there: %s", why);
    m->layer.is_open = o->allow_other;
    if (m->for_run && m->layer.dir[0] && !m->at[0])
        choose_view(m);
    size_t len = strlen(m->at);
    if (len && strncmp(m->layer.dir, m->at, len) == 0 && m->layer.dir[len] == '/')
        return cli_failf(m->layer.dir, "the mount would hide it; name a folder outside of %s",
                         m->at);
    return 0;
}

/* --extract=DIR: a folder of our own in it, whatever else DIR holds. */
static int resolve_extract(struct mounter *m)
{
    const char *dir = m->options->extract_dir;
    char real[PATH_MAX];

    if (!dir)
        return 0;
    auto_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || !realpath(dir, real))
        return cli_fail(dir, -errno, NULL);
    if (!storage_of(fd).is_local)
        return cli_failf(dir,
                         "it is not on this node, where files are to be extracted to; name "
                         "another folder, or none: then they lie in memory");
    int n = snprintf(m->extract_folder, sizeof(m->extract_folder), "%s/onepot-%u",
                     strcmp(real, "/") ? real : "", place_uid());
    if (n + RUNTIME_NAME_MAX >= PATH_MAX)
        return cli_fail(dir, -ENAMETOOLONG, NULL);
    int r = state_remember(m->extract_folder);
    if (r == -EMLINK)
        return cli_failf(dir, "files were extracted to too many other folders of this node for "
                              "'onepot clean' to find one more; name one of those");
    return r < 0 ? cli_failf(dir, "'onepot clean' would not find it: %s", fault_errno(r)) : 0;
}

static int watch_owner(struct mounter *m)
{
    if (m->options->owner <= 0)
        return 0;
    int r = process_watch_open(m->options->owner, &m->owner);
    if (r < 0)
        return cli_failf(NULL, "--owner: there is no process %d", (int)m->options->owner);
    return 0;
}

static int open_log(struct mounter *m)
{
    const char *path = m->options->log;
    if (!path)
        return 0;
    m->log.fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    return m->log.fd < 0 ? cli_failf(path, "the log can't be opened: %s", fault_errno(errno))
                         : 0;
}

/*
 * Outside of jobs a layer is its session's, as another terminal's commands know nothing of it,
 * and so are extracted files. A mount that nobody writes to is for all.
 */
static uint64_t session_of_layer(const struct mounter *m)
{
    struct process_facts leader = {0};

    if ((!m->options->writable && !m->options->extract) || m->job.id[0])
        return 0;
    pid_t pid = owner_find();
    pid = pid ? pid : getsid(0);
    process_look(pid, &leader);
    return leader.start_ticks << 32 ^ (uint64_t)pid;
}

/* Resolve the options: paths, job, owner, log. 0, or CLI_FAILED after an error. */
static int mounter_prepare(struct mounter *m)
{
    const struct mount_options *o = m->options;

    stage_sweep(NULL); /* leftovers of killed processes use the job's memory */
    if (mount_methods(&m->methods) < 0)
        return cli_failf(
            NULL, "ONEPOT_MOUNT_METHODS has an unknown word; mount, fusermount3, fusermount "
                  "and namespace are known");
    if (o->private_mode == PRIVATE_OFF)
        m->methods &= ~(unsigned)MOUNT_BY_NAMESPACE;
    m->is_private = o->private_mode == PRIVATE_ON;
    job_detect(&m->job);
    int r = identify_archives(m);
    if (r == 0)
        r = resolve_at(m);
    if (r == 0)
        r = resolve_layer(m);
    if (r == 0)
        r = resolve_extract(m);
    if (r == 0)
        r = watch_owner(m);
    if (r == 0)
        r = open_log(m);
    m->options_hash = mount_options_hash(o, m->at, m->identity.mtime_sec,
                                         m->identity.mtime_nsec, m->owner.start_ticks) ^
                      session_of_layer(m);
    return r;
}

/* ---- a mount to share, or a new slot ---- */

/*
 * One mount for each job step and set of options on a node. The first process makes it, and
 * holds its slot exclusively meanwhile; the others wait for that lock, and look again.
 *
 * Everything is decided under the registry's lock; nothing is waited for under it.
 */
#define SHARE_TRIES 100       /* of a mount whose daemon seems about to die */
#define ENDING_LIMIT_MS 2000  /* longest wait for an earlier mount to end */
#define STOPPED_LIMIT_MS 1000 /* for an answer of a mount that is in the way */
#define STARTING_STEP_MS 10   /* between looks at whether another process is done */

/* Let other `run`s join this one's namespace, through its slot. Under the registry's lock. */
static void mounter_offer_namespace(const struct mounter *m, struct counters *c)
{
    struct counter_entrance *free = NULL, *e = c->entrance;
    struct process_facts self;

    for (; !free && e < c->entrance + COUNTERS_ENTRANCES; e++)
        if (!e->pid || !process_lives(e->pid, e->start_ticks))
            free = e;
    if (m->mounted.ns.mnt_ns >= 0 && free && process_look(getpid(), &self) == 0)
        *free = (struct counter_entrance){getpid(), m->mounted.ns.user_ns, m->mounted.ns.mnt_ns,
                                          self.start_ticks};
}

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

/* Undo the count that mounter_find_slot made. */
static void mounter_unshare(struct mounter *m)
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

/*
 * Find a mount to share (sets m->shared and counts this process among its users), or create a
 * slot, held exclusively. 0, or CLI_FAILED after an error was printed.
 */
static int mounter_find_slot(struct mounter *m)
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

/* ---- plain files in place of a mount ---- */

/*
 * --extract: plain files in the slot's own directory in place of a mount. Whoever may use a
 * mount may use them: the slot, its locks and its owners are the same. A daemon stays beside
 * them that serves nothing. It holds their share of the job's memory, and removes them when the
 * last who wanted them has ended.
 *
 * The index says what they will take, and that is compared with the room that there is
 * before the first byte is written. Others that extract at the same time are to find room for
 * the rest of theirs, so that the decision is made under the registry's lock.
 */
#define INODE_BYTES 1024u /* of kernel memory for an inode and its name, in tmpfs */
#define SPARE_SHARE 16u   /* of the room stays free, */
#define SPARE_BYTES                                                                            \
    (UINT64_C(32) << 20) /* and of memory so much for the command to begin with */

/* ---- room ---- */

/* The room that files take, or that there is for them. */
struct amount {
    uint64_t bytes, inodes;
    bool is_memory;
    bool is_jobs; /* the job has no more memory, though the filesystem may have room */
};

static void add_node(const struct mounter *m, const struct node *node, uint32_t position,
                     uint64_t page, struct amount *sum)
{
    /* Outside of a part of the tree the first of several names may be missing. */
    if (node->position != position && m->root == INDEX_ROOT)
        return;
    sum->inodes++;
    sum->bytes += INODE_BYTES;
    if (S_ISREG(node->mode))
        sum->bytes += (node->data_bytes + page - 1) / page * page;
}

/* The root that is shown, and all below it. */
static int measure_tree(const struct mounter *m, struct amount *ret_need)
{
    struct index_walk w = {.index = m->fileset->index, .position = m->root};
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    struct node node;
    int r;

    *ret_need = (struct amount){0};
    do {
        r = index_node(w.index, w.position, &node);
        if (r == 0)
            add_node(m, &node, w.position, page, ret_need);
        w.enters = r == 0 && S_ISDIR(node.mode);
    } while (r == 0 && (r = index_walk_next(&w)) > 0);
    index_walk_free(&w);
    return r;
}

static int look_at_room(int folder_fd, struct amount *ret_room)
{
    struct statvfs space;

    if (fstatvfs(folder_fd, &space) < 0)
        return -errno;
    *ret_room = (struct amount){.bytes = UINT64_MAX,
                                .inodes = space.f_files ? space.f_favail : UINT64_MAX,
                                .is_memory = storage_of(folder_fd).is_memory};
    if (space.f_blocks) /* else the filesystem has no limit */
        ret_room->bytes = (uint64_t)space.f_bavail * space.f_frsize;
    if (ret_room->is_memory) {
        uint64_t memory = budget_free_bytes("");
        memory -= min_u64(memory, SPARE_BYTES);
        ret_room->is_jobs = memory < ret_room->bytes;
        ret_room->bytes = min_u64(ret_room->bytes, memory);
    }
    ret_room->bytes -= ret_room->bytes / SPARE_SHARE;
    return 0;
}

/* Deduct what others that are at work have still to write. */
static void leave_to_others(const struct mounter *m, const struct registry *registry,
                            struct amount *room)
{
    auto_slots struct slot_list list = {0};

    slots_list(registry, &list);
    for (size_t i = 0; i < list.count; i++) {
        const struct counters *c = list.at[i]->counters;
        uint64_t ready = atomic_load(&c->extract_ready);
        if (c->extracted && atomic_load(&c->state) == MOUNT_STARTING &&
            strcmp(list.at[i]->name, m->slot->name) != 0 && ready < c->extract_bytes)
            room->bytes -= min_u64(room->bytes, c->extract_bytes - ready);
    }
}

static int refuse_room(const struct mounter *m, const struct amount *need,
                       const struct amount *room)
{
    const char *archive = m->options->archive;

    if (need->inodes > room->inodes)
        return cli_failf(
            archive,
            "extracted, it has %s files and directories, and %s has room for %s; "
            "name a folder elsewhere (--extract=DIR), or mount it, without --extract",
            cli_count(need->inodes), m->slot->folder, cli_count(room->inodes));
    return cli_failf(
        archive,
        "extracted, it takes %s, and there is room for %s in %s; %sname a folder %s "
        "(--extract=DIR), or mount it, without --extract",
        cli_bytes(need->bytes), cli_bytes(room->bytes),
        room->is_jobs ? "the memory of this job" : m->slot->folder,
        room->is_jobs ? "ask for more memory, " : "",
        room->is_memory ? "on a disk of this node" : "with more room");
}

/* Bytes that the files of an archive would take that could not be mounted; 0: they don't fit.
 */
static uint64_t mounter_extracted_bytes(const struct mounter *m)
{
    struct amount need, room = {0};
    bool fits = m->fileset && measure_tree(m, &need) == 0 &&
                look_at_room(m->slot->folder_fd, &room) == 0 && need.bytes <= room.bytes &&
                need.inodes <= room.inodes;
    return fits ? need.bytes : 0;
}

/* Is there room for the files? 0, or CLI_FAILED after an error was printed. */
static int mounter_find_room(struct mounter *m)
{
    auto_registry registry = REGISTRY_NONE;
    struct counters *c = m->slot->counters;
    struct amount need, room = {0};
    int r = measure_tree(m, &need);

    if (r == 0)
        r = slots_lock_of(m->slot, &registry);
    if (r == 0)
        r = look_at_room(m->slot->folder_fd, &room);
    if (r < 0)
        return cli_fail(m->options->archive, r, NULL);
    leave_to_others(m, &registry, &room);
    if (need.bytes > room.bytes || need.inodes > room.inodes)
        return refuse_room(m, &need, &room);
    c->extract_bytes = need.bytes;
    m->claim_bytes = room.is_memory ? need.bytes : 0;
    return 0;
}

/* ---- the files ---- */

static void making_report(void *ctx, const struct fault *what)
{
    struct mounter *m = ctx;
    cli_progress_end(&m->progress);
    cli_fail(m->options->archive, -what->err, what);
}

static void making_show(void *ctx, const char *doing, const struct progress *progress)
{
    struct mounter *m = ctx;
    struct counters *c = m->slot->counters;
    double share = (double)progress->bytes_done / (double)max_u64(progress->bytes_total, 1);
    atomic_store(&c->extract_ready, (uint64_t)(share * (double)c->extract_bytes));
    cli_progress_show(&m->progress, doing, progress);
}

/* By the slot's own descriptor, whatever its path leads to by now. */
static int extract_here(struct mounter *m, const char *part, struct fault *fault,
                        struct extract_result *ret_result)
{
    char self[32];
    bool is_found = false;
    auto_close int fd = openat(m->slot->folder_fd, m->slot->name,
                               O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    snprintf(self, sizeof(self), "/proc/self/fd/%d", fd);
    const struct extract_options options = {
        .work = {.threads = min_u32(m->options->threads, EXTRACT_THREADS_MAX),
                 .report = making_report,
                 .progress = making_show,
                 .ctx = m,
                 .stop = interrupt_flag()},
        .directory = self,
        .is_new = true,
        .paths = &part,
        .path_count = *part ? 1 : 0,
        .path_found = &is_found,
        .exact_modes = geteuid() == 0,
        .owners = geteuid() == 0 && place_knows_all_users(), /* else not all can be given */
    };
    return extract_run(m->fileset, &options, fault, ret_result);
}

static int check_result(const struct mounter *m, int r, struct fault *fault,
                        const struct extract_result *result)
{
    const char *archive = m->options->archive;

    if (r == -EINTR && mounter_caught())
        return CLI_FAILED;
    if (fault && (r == -ENOSPC || r == -EDQUOT)) /* others have taken the room since */
        fault_advise(fault,
                     "name a folder with more room (--extract=DIR), or mount it, without "
                     "--extract");
    if (r < 0)
        return cli_fail(archive, r, fault);
    if (result->lost_xattrs)
        cli_note("%s: %s of its files lack extended attributes, which this user or the "
                 "filesystem can't set",
                 archive, cli_count(result->lost_xattrs));
    if (result->unprivileged)
        cli_note(
            "%s: set-id bits, device nodes and attributes of the system are left out (of %s "
            "%s)",
            archive, cli_count(result->unprivileged),
            result->unprivileged == 1 ? "member" : "members");
    if (result->problems)
        return cli_failf(archive,
                         "%s of its members can't be extracted; mounted, without --extract, it "
                         "shows the others",
                         cli_count(result->problems));
    return 0;
}

/* The directory that is shown: all of them, or --subdir's. */
static int find_part(struct mounter *m, char ret_part[PATH_MAX])
{
    char directory[PATH_MAX];
    size_t len;
    int r = index_path(m->fileset->index, m->root, ret_part, PATH_MAX, &len);

    slot_directory(m->slot, directory);
    if (r == 0 && (size_t)snprintf(m->path, sizeof(m->path), "%s%s%s", directory,
                                   len ? "/" : "", ret_part) >= sizeof(m->path))
        r = -ENAMETOOLONG;
    if (r == 0)
        strcpy(m->slot->counters->mountpoint, m->path);
    return r;
}

/* Make them, and let others share them. 0, or CLI_FAILED after an error was printed. */
static int mounter_extract(struct mounter *m)
{
    struct extract_result result = {0};
    struct counters *c = m->slot->counters;
    struct fault fault = {0};
    char part[PATH_MAX];
    cpu_set_t before;
    const uint64_t start_ns = now_ns();
    /* The task may be bound to one core; its files are for all. */
    const bool is_bound = sched_getaffinity(0, sizeof(before), &before) == 0;
    int r = find_part(m, part);

    cli_raise_file_limit(); /* files of several pieces are open until their last one */
    if (is_bound)
        cpus_widen();
    cli_progress_start(&m->progress);
    if (r == 0)
        r = extract_here(m, part, &fault, &result);
    cli_progress_end(&m->progress);
    if (is_bound)
        sched_setaffinity(0, sizeof(before), &before);
    r = check_result(m, r, fault.err ? &fault : NULL, &result);
    if (r != 0)
        return r;
    c->files = result.files;
    c->total_bytes = result.bytes;
    c->extract_ns = now_ns() - start_ns;
    atomic_store(&c->extract_ready, c->extract_bytes);
    uint32_t state = MOUNT_STARTING;
    return atomic_compare_exchange_strong(&c->state, &state, MOUNT_SERVING)
               ? 0
               : cli_failf(m->options->archive,
                           "while it was extracted, its owner or its job has ended");
}

/* ---- the mount ---- */

static int cannot_lock(const struct mounter *m, int r)
{
    return cli_failf(m->slot->folder, "it can't be locked: %s", fault_errno(r));
}

/* 0: the directory is empty; -ENOTEMPTY; or the error of reading it. */
static int check_empty(const char *path)
{
    auto_closedir DIR *dir = opendir(path);
    int entries = 0;

    if (!dir)
        return -errno;
    while (entries <= 2 && readdir(dir))
        entries++;
    return entries <= 2 ? 0 : -ENOTEMPTY; /* "." and ".." */
}

/* A mount of onepot is at --at: ours covers it, for the command only. */
static bool covers_a_mount(const struct mounter *m)
{
    struct mount_entry entry;
    return m->is_private && mountinfo_find(m->at, &entry) == 0 && entry.is_onepot;
}

/* Clear a mount of onepot at --at that no slot was found for: dead, or another user's. */
static int clear_stale(struct mounter *m)
{
    struct mount_entry entry;

    if (mountinfo_find(m->at, &entry) < 0 || !entry.is_onepot)
        return 0;
    int r = mountpoint_answers(m->at, STALE_LIMIT_MS);
    if (r != -ENOTCONN && mounter_may_be_private(m)) {
        m->is_private = true;
        strcpy(m->taken, "an archive is mounted there, maybe by another user");
        return 0;
    }
    if (r != -ENOTCONN)
        return cli_failf(m->at, "an archive is mounted there, maybe by another user; take "
                                "another --at, or unmount it if it is yours");
    r = mountpoint_unmount(m->at, true);
    return r < 0 ? cli_failf(m->at, "a dead mount is there, and can't be unmounted: %s",
                             mountpoint_unmount_error(r))
                 : 0;
}

/* The directory at --at, made if need be. */
static int prepare_directory(struct mounter *m)
{
    int r = covers_a_mount(m) ? 0 : clear_stale(m);

    if (r != 0 || covers_a_mount(m))
        return r;
    bool is_made = !m->options->at_is_last; /* a last argument is a directory that is there */
    if (is_made && mkdir(m->at, 0700) == 0) {
        m->slot->counters->owns_mountpoint = 1;
        return 0;
    }
    if (is_made && (errno == EACCES || errno == EPERM || errno == EROFS))
        return mounter_refused(m, m->at, errno);
    if (is_made && errno != EEXIST)
        return cli_fail(m->at, -errno, NULL);
    r = check_empty(m->at);
    if (r == -ENOENT)
        return cli_failf(m->at, "no such directory; make it first");
    if (r == -ENOTEMPTY && !m->options->nonempty)
        return cli_failf(m->at, "the directory is not empty, and a mount would hide what it "
                                "holds; take another one, or -o nonempty");
    if (r == -ENOTDIR)
        return cli_failf(m->at, "is not a directory; name one, or a new path, with --at");
    return r < 0 && r != -ENOTEMPTY ? cli_fail(m->at, r, NULL) : 0;
}

/*
 * The slot's own directory, or DIR/view. Older versions of the program removed the former when
 * they cleaned up while the archive was opened. The latter stays: whoever removed it would take
 * the mount off that the next job has there.
 */
static int restore_directory(const struct mounter *m)
{
    struct stat st;

    if ((mkdir(m->path, 0700) < 0 && errno != EEXIST) || lstat(m->path, &st) < 0)
        return cli_fail(m->path, -errno, NULL);
    return S_ISDIR(st.st_mode) ? 0 : cli_failf(m->path, "is no directory; remove it");
}

/* Others find the mount by its device. */
static void note_device(struct mounter *m)
{
    struct counters *c = m->slot->counters;

    c->private_namespace = !mounted_is_visible(&m->mounted);
    c->mount_dev_major = m->mounted.dev_major;
    c->mount_dev_minor = m->mounted.dev_minor;
}

/* The switch of the administrators that keeps users from namespaces, and what to do; or NULL.
 */
static const char *namespace_advice(void)
{
    static const struct {
        const char *path, *advice;
        long off;
    } switches[] = {
        {"/proc/sys/user/max_user_namespaces",
         "user namespaces are switched off: root allows them by 'sysctl "
         "user.max_user_namespaces=10000'; or ask for the package fuse3 (fusermount3)",
         0},
        {"/proc/sys/kernel/unprivileged_userns_clone",
         "user namespaces are switched off: root allows them by 'sysctl "
         "kernel.unprivileged_userns_clone=1'; or ask for the package fuse3 (fusermount3)",
         0},
        {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
         "AppArmor lets nobody use user namespaces: root allows it by 'sysctl "
         "kernel.apparmor_restrict_unprivileged_userns=0'; or ask for the package fuse3 "
         "(fusermount3)",
         1},
    };
    for (size_t i = 0; i < sizeof(switches) / sizeof(switches[0]); i++)
        if (proc_number(switches[i].path, !switches[i].off) == switches[i].off)
            return switches[i].advice;
    return NULL;
}

/* Advice after a failure, derived from this node's state: "load the ...". */
static const char *mount_advice(unsigned methods)
{
    const char *switched = namespace_advice();
    char path[PATH_MAX];

    if (access("/dev/fuse", F_OK) < 0)
        return "this node has no /dev/fuse: ask its administrators to load the fuse module (in "
               "a container, to pass the device in)";
    if (access("/dev/fuse", R_OK | W_OK) < 0)
        return "/dev/fuse is closed to you: ask the administrators of this node to open it "
               "(mode 0666)";
    if (access("/proc/self/mountinfo", R_OK) < 0)
        return "there is no /proc here; mount it first, or run outside of this chroot or "
               "container";
    if (process_find_program("fusermount3", path) < 0 &&
        process_find_program("fusermount", path) < 0)
        return switched && methods & MOUNT_BY_NAMESPACE
                   ? switched
                   : "ask for the package fuse3 (fusermount3) on this node";
    if (prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        return "no_new_privs is set for this process, so that fusermount3, which is setuid, "
               "can't help: mount before it is set, or outside of the container";
    if (switched)
        return switched;
    if (!(methods & MOUNT_BY_NAMESPACE))
        return "'onepot run' may still work, by a private namespace";
    return "'onepot doctor' shows what this node allows";
}

static int mount_failed(const struct mounter *m, char report[MOUNT_REPORT_MAX])
{
    const uint64_t bytes = mounter_extracted_bytes(m);
    char files[96] = "";

    if (!report[0])
        mount_report_add(report, "ONEPOT_MOUNT_METHODS", "it leaves no way");
    if (bytes)
        snprintf(files, sizeof(files),
                 "; or use --extract, which makes plain files and takes %s", cli_bytes(bytes));
    if (m->options->writable && m->for_run)
        return cli_failf(
            m->path,
            "--writable needs a namespace for the command, which is not possible here "
            "(%s); %s%s",
            report, mount_advice(MOUNT_BY_NAMESPACE), files);
    if (m->taken[0])
        return cli_failf(m->path,
                         "%s, and a namespace in which this command alone would see its own is "
                         "not possible here (%s); take another --at, or none: then it is in a "
                         "directory of its own",
                         m->taken, report);
    return cli_failf(
        m->path, "it can't be mounted (%s); %s%s", report,
        mount_advice(m->for_run ? m->methods : m->methods & ~(unsigned)MOUNT_BY_NAMESPACE),
        files);
}

/* At its place by mount(2), which can lay a layer over it, too; else where the layer leaves it.
 */
static int mount_below_layer(struct mounter *m, char report[MOUNT_REPORT_MAX])
{
    unsigned methods = m->request.methods;

    m->request.methods = methods & MOUNT_BY_SYSCALL;
    int r = mountpoint_mount(&m->request, report, &m->mounted);
    if (r == 0)
        return 0;
    r = layer_make_below(m->slot);
    if (r < 0) {
        mount_report_add(report, "a folder for the layer", fault_errno(r));
        return r;
    }
    m->request.methods = methods & ~(unsigned)MOUNT_BY_SYSCALL;
    m->request.mountpoint = m->slot->counters->layer_below;
    return mountpoint_mount(&m->request, report, &m->mounted);
}

static int mount_archive(struct mounter *m)
{
    const struct mount_options *o = m->options;
    auto_registry registry = REGISTRY_NONE;
    char report[MOUNT_REPORT_MAX] = "";
    int r = 0;

    m->request = (struct mount_request){
        .mountpoint = m->path,
        .fsname = o->fsname ? o->fsname : m->archive,
        .allow_other = o->allow_other,
        .default_permissions = o->default_permissions,
        .noexec = o->noexec,
        .layer = o->writable ? &m->layer : NULL,
        .launch = m->launch,
        .launch_ctx = m->launch_ctx,
        .parent_fd = m->parent_fd,
    };
    /* Locked, so that no daemon that ends removes the directory meanwhile. */
    if (m->parent_fd < 0)
        r = slots_lock_of(m->slot, &registry);
    if (r < 0)
        return cannot_lock(m, r);
    if (m->parent_fd < 0)
        r = m->at[0] ? prepare_directory(m) : restore_directory(m);
    if (r != 0)
        return r;
    /* prepare_directory may have found that it must be private. */
    m->request.methods = m->methods;
    if (!m->for_run)
        m->request.methods &= ~(unsigned)MOUNT_BY_NAMESPACE;
    if (m->is_private && m->parent_fd < 0)
        m->request.methods &= MOUNT_BY_NAMESPACE;
    r = m->options->writable && !m->for_run
            ? mount_below_layer(m, report)
            : mountpoint_mount(&m->request, report, &m->mounted);
    if (r < 0)
        return mount_failed(m, report);
    m->parent_fd = -1;
    note_device(m);
    return 0;
}

/*
 * A mount that was there before its archive was opened (mounts_first) may be in use by now, and
 * to ask would keep it busy for who unmounts it.
 */
static int check_answers(struct mounter *m)
{
    if (m->options->ends_at_once && m->options->foreground)
        return 0;
    int r = mounted_answers(&m->mounted, m->request.mountpoint, ANSWER_LIMIT_MS);

    if (r == -EINTR && mounter_caught())
        return CLI_FAILED;
    return r < 0 ? cli_failf(m->path, "the mount does not answer: %s%s", fault_errno(r),
                             fault_limit(r))
                 : 0;
}

/* Before anything is mounted: one job at a time writes to a folder. */
static int take_layer(struct mounter *m)
{
    char why[LAYER_WHY_MAX];

    struct counters *c = m->slot->counters;

    snprintf(c->layer_dir, sizeof(c->layer_dir), "%s", m->layer.dir);
    m->layer.files_before = &c->layer_files_before;
    m->layer.writer = getpid();
    if (m->options->writable && layer_take(&m->layer, why) < 0)
        return cli_failf(m->layer.dir, "%s", why);
    return 0;
}

/* One that all see. Its daemon serves it by now. */
static int cover_for_all(struct mounter *m)
{
    char why[LAYER_WHY_MAX];

    m->layer.writer = m->slot->counters->daemon_pid;
    if (layer_cover(m->slot, &m->layer, &m->request, m->mounted.method == MOUNT_BY_SYSCALL,
                    why) == 0)
        return 0;
    return mounter_caught() ? CLI_FAILED
                            : cli_failf(m->layer.dir[0] ? m->layer.dir : m->path,
                                        "--writable is not possible here: %s", why);
}

static int add_layer(struct mounter *m)
{
    if (!m->options->writable)
        return 0;
    if (mounted_is_visible(&m->mounted))
        return cover_for_all(m);
    int r = namespace_cover(&m->mounted.ns, ANSWER_LIMIT_MS);
    if (r == 0 || (r == -EINTR && mounter_caught()))
        return r == 0 ? 0 : CLI_FAILED;
    if (r == -EMEDIUMTYPE)
        return cli_failf(m->layer.dir, LAYER_OF_PROGRAM);
    if (m->layer.dir[0])
        return cli_failf(
            m->layer.dir,
            "overlayfs does not take it: %s; name a folder on a disk of this node, or "
            "none: then what is written lies in memory",
            fault_errno(r));
    return cli_failf(
        m->path,
        "overlayfs can't be mounted: %s; for an ordinary user it needs Linux 5.11, "
        "and for root the module 'overlay'; or install fuse-overlayfs",
        fault_errno(r));
}

/* Let other processes share the mount. */
static int open_to_others(struct mounter *m)
{
    auto_registry registry = REGISTRY_NONE;
    int r = slots_lock_of(m->slot, &registry);

    if (r < 0)
        return cannot_lock(m, r);
    mounter_offer_namespace(m, m->slot->counters);
    if (m->for_run) {
        r = slot_lock(m->slot, false, true);
    } else {
        m->holder = holders_add(m->slot->counters);
        slot_unlock(m->slot);
    }
    return r < 0 ? cannot_lock(m, r) : 0;
}

/* ---- all of it ---- */

/*
 * Starters of containers look for the mount for less than a second, and an image without an
 * index may take longer to open. What they find there answers once it is open.
 */
static bool mounts_first(const struct mounter *m)
{
    return m->options->ends_at_once && m->options->foreground && m->parent_fd < 0;
}

/* Commands that share a layer see what the others wrote. */
static void tell_of_changes(const struct mounter *m)
{
    if (m->mounted.ns.mnt_ns >= 0 && !m->layer.dir[0])
        namespace_measure(&m->mounted.ns, m->slot->counters);
    if (layer_is_changed(m->slot))
        cli_note("%s: other commands of this %s have changed it, and this one shares their "
                 "layer%s",
                 m->options->archive, m->job.id[0] ? "job" : "session",
                 m->layer.dir[0] ? "" : "; with --writable=DIR it would have another");
}

int mounter_start(struct mounter *m)
{
    const bool early = mounts_first(m);
    int (*const mounting[])(struct mounter * m) = {
        take_layer,
        early ? mount_archive : mounter_open_archive,
        early ? mounter_open_archive : mount_archive,
        mounter_start_daemon,
        check_answers,
        add_layer,
        open_to_others,
        NULL,
    };
    int (*const extracting[])(struct mounter * m) = {
        mounter_open_archive, mounter_find_room, mounter_start_daemon,
        mounter_extract,      open_to_others,    NULL,
    };
    int (*const *step)(struct mounter * m) = m->options->extract ? extracting : mounting;
    int r = mounter_prepare(m);

    if (r == 0)
        r = mounter_find_slot(m);
    for (; r == 0 && !m->shared && *step; step++)
        r = mounter_caught() ? CLI_FAILED : (*step)(m);
    if (r == 0 && m->shared && m->options->writable)
        tell_of_changes(m);
    if (r == 0 && mounter_caught())
        r = CLI_FAILED;
    if (r != 0) {
        mounter_abandon(m);
        return r;
    }
    if (!m->options->foreground) { /* the daemon has its own descriptors now */
        recorder_forget(m->recorder);
        m->recorder = NULL;
        reader_free(m->reader);
        m->reader = NULL;
        fileset_close(m->fileset);
        m->fileset = NULL;
        stage_forget(m->stage);
        m->stage = NULL;
    }
    return CLI_GO_ON;
}

/* ---- and back ---- */

/* Undo a mount that was never announced: nobody uses it, except by chance. */
static void undo_mount(struct mounter *m)
{
    auto_registry registry = REGISTRY_NONE;
    int unmounted = 0;

    namespace_close(&m->mounted.ns);
    if (m->options->extract)
        unmounter_unmount(m->slot, 0, false, NULL);
    else if (mounted_is_visible(&m->mounted))
        unmounted = unmounter_try(m->slot, true);
    if (m->session)
        control_stop(steal_ptr(&m->session), false, m->for_run ? CLI_RUN_FAILED : CLI_FAILED);
    if (m->mounted.fuse_fd >= 0)
        close(steal_fd(&m->mounted.fuse_fd));
    if (m->daemon_sock >= 0)
        unmounter_finish(m->slot, DAEMON_END_MS, true);
    /*
     * Better without the registry's lock (no descriptor is left, for example) than not at all.
     */
    if (slot_is_current(m->slot))
        slots_lock_of(m->slot, &registry);
    if (!unmounter_forget(m->slot))
        cli_failf(m->path,
                  "it is still mounted, but does not answer: %s; 'onepot umount' ends it",
                  fault_errno(unmounted));
}

void mounter_abandon(struct mounter *m)
{
    if (m->slot && m->shared)
        mounter_unshare(m);
    else if (m->slot)
        undo_mount(m);
    slot_close(m->slot);
    m->slot = NULL;
    if (m->daemon > 0)
        waitpid(m->daemon, NULL, 0);
    m->daemon = 0;
}

/* End a mount that nobody else uses; bounded, even if the command left processes in it. */
static void end_mount(struct mounter *m, bool died)
{
    const struct namespace *ns = m->mounted.ns.mnt_ns >= 0 ? &m->mounted.ns : NULL;
    char line[SUMMARY_MAX], users[512];
    struct counters *c = m->slot->counters;
    if (m->options->writable && !m->layer.dir[0] && ns)
        namespace_measure(ns, c);
    int r = unmounter_unmount(m->slot, RELEASE_WAIT_MS, false, ns);

    if (r == -EBUSY) {
        cli_failf(m->path, "the command has ended, and it is still %s; it goes away now",
                  ns ? "in use" : unmounter_explain(m->slot, users, sizeof(users)));
        r = unmounter_unmount(m->slot, 0, true, ns);
    }
    namespace_close(&m->mounted.ns); /* or it would keep the mount alive */
    layer_release(&m->layer);
    if (r < 0 && r != -ECHILD && !died)
        cli_failf(m->path, "it can't be unmounted: %s", mountpoint_unmount_error(r));
    if (unmounter_finish(m->slot, DAEMON_END_MS, true) < 0)
        cli_failf(m->path, "its daemon (process %d) does not end: it is stuck in a read",
                  c->daemon_pid);
    else if (!died)
        cli_note("%s: %s", m->options->archive, summary_line(c, line, sizeof(line)));
    if (m->options->writable) {
        layer_gone(m->slot);
        layer_note(c, m->options->archive);
    } else if (atomic_load(&c->direct_refused)) {
        cli_note("%s: the command wanted to write there, and could not (EROFS); with "
                 "--writable, or --writable=DIR, it can",
                 m->options->archive);
    }
}

enum mounter_end mounter_release(struct mounter *m)
{
    const struct counters *c = m->slot->counters;
    bool died =
        (!c->extracted && !slot_daemon_lives(m->slot)) || atomic_load(&c->state) == MOUNT_ENDED;

    bool last = slot_claim_unused(m->slot) && slot_is_current(m->slot);
    if (last)
        end_mount(m, died);
    return died ? MOUNTER_DIED : last ? MOUNTER_ENDED : MOUNTER_STAYS;
}

void mounter_free(struct mounter *m)
{
    bool stuck = m->stage && stage_stop(m->stage) < 0;
    namespace_close(&m->mounted.ns);
    archive_list_free(&m->archives);
    recorder_abandon(m->recorder);
    known_reads_free(m->order);
    reader_free(m->reader);
    if (!stuck) /* a thread is stuck in a read of it */
        fileset_close(m->fileset);
    stage_close(m->stage);
    layer_release(&m->layer);
    slot_close(m->slot);
    process_watch_close(&m->owner);
    vector_free(&m->inherited);
    int *const fds[] = {&m->log.fd, &m->mounted.fuse_fd, &m->parent_fd, &m->daemon_sock,
                        &m->daemon_lock_fd};
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        if (*fds[i] >= 0)
            close(steal_fd(fds[i]));
}
