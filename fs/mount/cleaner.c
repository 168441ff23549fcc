/*
 * A user may change the folders' contents at any time, including links and names. cleaner.h
 * explains why that harms nobody else.
 */
#include "cleaner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "account.h"
#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "layer.h"
#include "mountpoint.h"
#include "path.h"
#include "place.h"
#include "process.h"
#include "stage.h"
#include "state.h"
#include "unmounter.h"
#include "vector.h"

#define USERS_LIMIT_MS 20000 /* for all users together: a batch system waits for its epilog */
#define KILL_LIMIT_MS 1000   /* of these, for killed children to go */
#define CHILDREN_MAX 16      /* at a time; users may have thousands of folders */
#define CHILD_STEP_MS 5
#define PRESENT_MS 1000                   /* a look at all processes serves so long */
#define PID_NAMESPACE_INITIAL 0xEFFFFFFCU /* PROC_PID_INIT_INO: the same on every kernel */
#define SUBORDINATE "/etc/subuid"         /* lines "user:first:count", as subuid(5) says */
#define DAEMON_END_MS 2000

/* ---- who is here ---- */

/*
 * The fate of the user's private folder when nothing is left in it. It stays as long as the
 * user has a process on this node, beside the cleaner and the programs that called it: that one
 * may still look there, and another user could make the folder anew.
 */
enum cleaner_folder {
    CLEANER_KEEP,
    CLEANER_REMOVE,
    CLEANER_REMOVE_SEEN, /* root has seen no process of the user, whatever /proc hides */
};

/* Users with processes on this node. */
struct present {
    uid_t *at; /* a vector, each once */
    size_t count, capacity;
    bool is_known; /* all processes were seen */
    uint64_t looked_ms;
};

static bool present_has(const struct present *present, uid_t uid)
{
    for (size_t i = 0; i < present->count; i++)
        if (present->at[i] == uid)
            return true;
    return false;
}

/*
 * The owner of a process's folder is its effective user: root, if it is a setuid program. Root
 * adds the other users of those, since none of its children may see them; a child sees the rest
 * itself, after it has ended what a job left.
 */
static int present_add(struct present *present, int proc_fd, const char *pid,
                       enum cleaner_folder how)
{
    char path[300], text[4096];
    struct stat st;
    uid_t uids[3] = {0};
    int n = 0, r = 0;

    if (fstatat(proc_fd, pid, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0; /* it has ended, or is hidden from this user */
    if (how != CLEANER_KEEP && !present_has(present, st.st_uid))
        r = vector_push(present, st.st_uid);
    snprintf(path, sizeof(path), "/proc/%s/status", pid);
    if (how == CLEANER_KEEP && proc_text(path, text, sizeof(text)) == 0) {
        const char *line = strstr(text, "\nUid:");
        if (line && !strstr(text, "\nState:\tZ") &&
            sscanf(line, "\nUid: %u %u %u", &uids[0], &uids[1], &uids[2]) == 3)
            n = 3;
    }
    while (r == 0 && n-- > 0)
        if (uids[n] != st.st_uid && !present_has(present, uids[n]))
            r = vector_push(present, uids[n]);
    return r;
}

/*
 * Is it this process, or one that called it? What a user's own `onepot clean` was called by is
 * no hindrance.
 */
static bool is_caller(pid_t pid, const pid_t *callers)
{
    while (*callers && *callers != pid)
        callers++;
    return *callers != 0;
}

/*
 * In a PID namespace, or where /proc hides processes (hidepid), nobody is known to be away:
 * is_known is false. Of root's children this is root's own question (CLEANER_KEEP).
 */
static void present_look(struct present *present, enum cleaner_folder how)
{
    auto_closedir DIR *proc = opendir("/proc");
    bool is_whole = proc && process_namespace() == PID_NAMESPACE_INITIAL;
    struct process_facts facts = {.parent = getpid()};
    pid_t callers[64] = {0};
    char text[4096];

    for (size_t i = 0; i < 63 && facts.parent > 1; i++) {
        callers[i] = facts.parent;
        if (how != CLEANER_REMOVE || process_look(callers[i], &facts) < 0)
            break;
    }
    if (how != CLEANER_REMOVE_SEEN)
        is_whole = is_whole && proc_text("/proc/1/status", text, sizeof(text)) == 0;
    present->count = 0;
    for (struct dirent *e; is_whole && (e = readdir(proc));) {
        pid_t pid = atoi(e->d_name);
        if (pid > 0 && !is_caller(pid, callers))
            is_whole = present_add(present, dirfd(proc), e->d_name, how) == 0;
    }
    present->is_known = is_whole;
    present->looked_ms = now_ms();
}

static bool is_away(uid_t uid, enum cleaner_folder how)
{
    struct present present = {0};
    present_look(&present, how);
    bool away = present.is_known && !present_has(&present, uid);
    vector_free(&present);
    return away;
}

/* ---- as one user ---- */

/* End a mount of a job that has ended: unmount it and end its daemon. */
static int end_mount_of_job(struct slot *slot)
{
    const struct counters *c = slot->counters;

    if (slot_lock(slot, true, false) < 0) /* a `run` uses it */
        atomic_store(&slot->counters->state, MOUNT_DRAINING);
    int r = unmounter_unmount(slot, 0, true, NULL);
    if (r < 0 && r != -ECHILD)
        return cli_failf(c->mountpoint, "it can't be unmounted: %s",
                         mountpoint_unmount_error(r));
    if (unmounter_finish(slot, DAEMON_END_MS, true) < 0)
        return cli_failf(c->mountpoint, "its daemon (process %d) does not end", c->daemon_pid);
    cli_note("%s: the mount of job %s is ended", c->mountpoint, c->job);
    layer_note(c, c->mountpoint);
    return CLI_OK;
}

int cleaner_heal(const struct slot *slot)
{
    const char *mountpoint = slot->counters->mountpoint;
    int r = unmounter_heal(slot);

    if (r < 0)
        return cli_failf(mountpoint, "its daemon is dead, and it can't be unmounted: %s",
                         mountpoint_unmount_error(r));
    cli_note("%s: its daemon was dead; it is cleaned up", mountpoint);
    layer_note(slot->counters, mountpoint);
    return CLI_OK;
}

/*
 * -ENOENT: nothing of ours is there, or within reach: root's $TMPDIR may be closed to us.
 * Others: it was held by a process for too long.
 */
static int lock_folder(const char *folder, struct registry *ret_registry)
{
    char text[PATH_MAX + 256];
    struct stat st;
    int r = registry_lock(folder, false, ret_registry);
    if (r == -EPERM || (r == -EACCES && lstat(folder, &st) < 0))
        r = -ENOENT;
    if (r < 0 && r != -ENOENT)
        cli_failf(NULL, "%s: its lock can't be had",
                  runtime_explain(folder, r, text, sizeof(text)));
    return r;
}

/* Remove the slots whose daemons are dead, and list all that were there. */
static int heal_folder(const char *folder, struct slot_list *ret_list)
{
    auto_registry registry = REGISTRY_NONE;
    int status = CLI_OK, r = lock_folder(folder, &registry);

    if (r < 0)
        return r == -ENOENT ? CLI_OK : CLI_FAILED;
    slots_sweep(&registry);
    r = slots_list(&registry, ret_list);
    if (r < 0)
        return cli_fail(folder, r, NULL);
    for (size_t i = 0; i < ret_list->count; i++)
        if (slot_condition(ret_list->at[i]) == SLOT_DEAD &&
            cleaner_heal(ret_list->at[i]) != CLI_OK)
            status = CLI_FAILED;
    return status;
}

static int end_mounts_of_job(const struct slot_list *list, const char *job)
{
    int status = CLI_OK;
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->at[i]->counters->job, job) == 0 && slot_daemon_lives(list->at[i]) &&
            end_mount_of_job(list->at[i]) != CLI_OK)
            status = CLI_FAILED;
    return status;
}

static int clean_folder(const char *folder, const char *job, enum cleaner_folder keep)
{
    struct registry registry;
    struct slot_list list = {0};
    int status = heal_folder(folder, &list);

    if (job && end_mounts_of_job(&list, job) != CLI_OK)
        status = CLI_FAILED;
    for (size_t i = 0; i < list.count; i++)
        unmounter_sweep_copy(list.at[i]->counters);
    slot_list_free(&list);
    if (status != CLI_OK || keep == CLEANER_KEEP || lock_folder(folder, &registry) < 0)
        return status;
    /* Under the lock: who is told of a path there from now on makes the folder anew. */
    if (is_away(geteuid(), keep))
        slots_remove(&registry);
    else
        slots_unlock(&registry);
    return status;
}

/* Copies for this job, which has ended, whatever environment this process has. */
static int is_for_job(void *ctx, const struct stage_report *copy)
{
    const char *id = strchr(copy->job, '=');
    return id && strcmp(id + 1, ctx) == 0;
}

/* As this user. */
static int cleaner_own(const char *job, enum cleaner_folder keep)
{
    char folders[STATE_FOLDERS_MAX][PATH_MAX];
    int status = CLI_OK;

    /* The last ones first: the others know of them. */
    for (size_t i = state_folders(folders); i-- > 0;)
        if (clean_folder(folders[i], job, keep) != CLI_OK)
            status = CLI_FAILED;
    int r = job ? stage_each(NULL, is_for_job, (void *)(uintptr_t)job) : stage_sweep(NULL);
    return r < 0 ? cli_failf(NULL, "copies of archives (onepot-stage-%u): %s", place_uid(),
                             fault_errno(r))
                 : status;
}

/* ---- as other users ---- */

/* A user, and the process that cleans up after it. */
struct user_child {
    uid_t uid;
    bool is_subordinate; /* by SUBORDINATE */
    pid_t pid;           /* 0: it has ended, or never began */
    const char *why;     /* it was killed */
};

struct user_children { /* a vector */
    struct user_child *at;
    size_t count, capacity;
};

static int fail_user(uid_t uid, const char *why)
{
    return cli_failf(NULL, "what user %u left could not be cleaned up: %s", (unsigned)uid, why);
}

/* A process of the user's, in a new group so that its helpers end with it. */
static pid_t start_child(uid_t uid, const char *job, enum cleaner_folder keep)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    setpgid(0, 0);
    int r = account_become(uid);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* which a change of user clears */
    _exit(r < 0 ? cli_fail(NULL, r, NULL) : cleaner_own(job, keep));
}

static void stop_child(struct user_child *child, const char *why)
{
    kill(-child->pid, SIGKILL);
    kill(child->pid, SIGKILL); /* it may have no group yet */
    child->why = child->why ? child->why : why;
}

/* CLI_GO_ON: it still works. */
static int look_at_child(struct user_child *child)
{
    char why[64];
    int status;
    pid_t pid = waitpid(child->pid, &status, WNOHANG | WUNTRACED);

    if (pid > 0 && WIFSTOPPED(status))
        stop_child(child, "somebody stopped it");
    if (pid == 0 || (pid < 0 && errno == EINTR) || (pid > 0 && WIFSTOPPED(status)))
        return CLI_GO_ON;
    child->pid = 0;
    if (child->why)
        return fail_user(child->uid, child->why);
    if (pid > 0 && WIFEXITED(status))
        return WEXITSTATUS(status);
    snprintf(why, sizeof(why), "signal %d ended it", pid > 0 ? WTERMSIG(status) : 0);
    return fail_user(child->uid, why);
}

/* CLI_GO_ON: only when another child has ended. */
static int start_next(struct user_child *child, const char *job, bool remove,
                      struct present *present, size_t works)
{
    enum cleaner_folder keep = CLEANER_KEEP;
    if (remove && (!present->looked_ms || now_ms() - present->looked_ms > PRESENT_MS))
        present_look(present, CLEANER_KEEP);
    if (remove && present->is_known && !present_has(present, child->uid))
        keep = CLEANER_REMOVE_SEEN;
    child->pid = start_child(child->uid, job, keep);
    if (child->pid > 0)
        return CLI_OK;
    child->pid = 0;
    return errno == EAGAIN && works ? CLI_GO_ON : fail_user(child->uid, fault_errno(errno));
}

/* CLI_OK or CLI_FAILED; *ret_works of these children still do. */
static int look_at_children(struct user_children *users, size_t begun, size_t *ret_works)
{
    int status = CLI_OK;
    size_t works = 0;
    for (size_t i = 0; i < begun; i++) {
        int r = users->at[i].pid ? look_at_child(&users->at[i]) : CLI_OK;
        works += r == CLI_GO_ON;
        status = r != CLI_OK && r != CLI_GO_ON ? CLI_FAILED : status;
    }
    *ret_works = works;
    return status;
}

/* One that does not go, since the kernel holds it, is left. */
static void stop_children(struct user_children *users, size_t begun, uint64_t end_ms)
{
    size_t works;
    for (size_t i = 0; i < begun; i++)
        if (users->at[i].pid)
            stop_child(&users->at[i], "it was not done in time");
    while (look_at_children(users, begun, &works), works && now_ms() < end_ms)
        poll(NULL, 0, CHILD_STEP_MS);
    for (size_t i = 0; i < begun; i++)
        if (users->at[i].pid)
            fail_user(users->at[i].uid, "it was not done in time, and can't be killed");
}

/* A few at a time, until `end_ms`: the rest is counted then. */
static int clean_users(struct user_children *users, const char *job, bool remove,
                       uint64_t end_ms)
{
    struct present present = {0};
    size_t begun = 0, works = 0;
    int status = CLI_OK;

    while ((begun < users->count || works) && now_ms() + KILL_LIMIT_MS < end_ms) {
        int r = CLI_OK;
        while (r != CLI_GO_ON && works < CHILDREN_MAX && begun < users->count) {
            r = start_next(&users->at[begun], job, remove, &present, works);
            works += r == CLI_OK;
            begun += r != CLI_GO_ON;
            status = r == CLI_FAILED ? CLI_FAILED : status;
        }
        if (look_at_children(users, begun, &works) != CLI_OK)
            status = CLI_FAILED;
        poll(NULL, 0, works ? CHILD_STEP_MS : 0);
    }
    vector_free(&present);
    if (works || begun < users->count)
        status = CLI_FAILED;
    stop_children(users, begun, end_ms);
    if (begun < users->count)
        cli_failf(NULL, "%s more users are not cleaned up after: %d s are over; run it again",
                  cli_count(users->count - begun), USERS_LIMIT_MS / 1000);
    return status;
}

int cleaner_user(uid_t uid, const char *job, bool remove)
{
    if (uid == geteuid())
        return cleaner_own(job, remove ? CLEANER_REMOVE : CLEANER_KEEP);
    if (geteuid() != 0)
        return cli_failf(NULL, "only root may clean up after other users");
    struct user_child user = {.uid = uid};
    return clean_users(&(struct user_children){&user, 1, 1}, job, remove,
                       now_ms() + USERS_LIMIT_MS);
}

static int add_user(void *ctx, const char *path, int folder_fd, uid_t uid)
{
    struct user_children *users = ctx;
    (void)path, (void)folder_fd;
    for (size_t i = 0; i < users->count; i++)
        if (users->at[i].uid == uid)
            return 0;
    return vector_push(users, (struct user_child){.uid = uid});
}

/*
 * Accounts first. One of them may have thousands of other ids, and a folder by each that takes
 * all the time there is.
 */
static void subordinate_last(struct user_children *users)
{
    auto_fclose FILE *f = fopen(SUBORDINATE, "re");
    unsigned long long first, count;
    auto_free char *line = NULL;
    size_t capacity = 0, accounts = 0;

    while (f && getline(&line, &capacity, f) > 0) {
        if (sscanf(line, "%*[^:]:%llu:%llu", &first, &count) != 2)
            continue;
        for (size_t i = 0; i < users->count; i++)
            users->at[i].is_subordinate |=
                users->at[i].uid >= first && users->at[i].uid - first < count;
    }
    for (size_t i = 0; i < users->count; i++)
        if (!users->at[i].is_subordinate) {
            struct user_child account = users->at[i];
            users->at[i] = users->at[accounts];
            users->at[accounts++] = account;
        }
}

int cleaner_all(const char *job)
{
    struct user_children users = {0};
    uint64_t end_ms = now_ms() + USERS_LIMIT_MS;
    int status = CLI_OK, r = state_each_user(add_user, &users);

    if (r < 0)
        status = cli_fail(NULL, r, NULL);
    subordinate_last(&users);
    if (clean_users(&users, job, true, end_ms) != CLI_OK)
        status = CLI_FAILED;
    vector_free(&users);
    return status;
}
