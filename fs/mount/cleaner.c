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
#include "layer_cover.h"
#include "path.h"
#include "place.h"
#include "process.h"
#include "stage.h"
#include "state.h"
#include "unmounter.h"
#include "vector.h"

#define USERS_LIMIT_S 60 /* for all users together */
#define CHILD_STEP_MS 5
#define SESSIONS "/run/user"
#define DAEMON_END_MS 2000

/* ---- as one user ---- */

/* End a mount of a job that has ended: unmount it and end its daemon. */
static int end_mount_of_job(struct slot *slot)
{
    const struct counters *c = slot->counters;

    if (slot_lock(slot, true, false) < 0) /* a `run` uses it */
        atomic_store(&slot->counters->state, MOUNT_DRAINING);
    int r = unmounter_unmount(slot, 0, true, NULL);
    if (r < 0 && r != -ECHILD)
        return cli_failf(c->mountpoint, "it can't be unmounted: %s", fault_errno(r));
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
                         fault_errno(r));
    cli_note("%s: its daemon was dead; it is cleaned up", mountpoint);
    layer_note(slot->counters, mountpoint);
    return CLI_OK;
}

/* -ENOENT, -EPERM: nothing of ours is there. Others: it was held by a process for too long. */
static int lock_folder(const char *folder, struct registry *ret_registry)
{
    char text[PATH_MAX + 256];
    int r = registry_lock(folder, false, ret_registry);
    if (r < 0 && r != -ENOENT && r != -EPERM)
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
        return r == -ENOENT || r == -EPERM ? CLI_OK : CLI_FAILED;
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

static int clean_folder(const char *folder, const char *job, bool remove)
{
    struct registry registry;
    struct slot_list list = {0};
    int status = heal_folder(folder, &list);

    if (job && end_mounts_of_job(&list, job) != CLI_OK)
        status = CLI_FAILED;
    for (size_t i = 0; i < list.count; i++)
        unmounter_sweep_copy(list.at[i]->counters);
    slot_list_free(&list);
    if (status == CLI_OK && remove && lock_folder(folder, &registry) == 0)
        slots_remove(&registry);
    return status;
}

int cleaner_own(const char *job, bool remove)
{
    char folders[RUNTIME_FOLDERS_MAX][PATH_MAX];
    size_t count = runtime_folders(folders);
    int status = CLI_OK;

    for (size_t i = 0; i < count; i++)
        if (clean_folder(folders[i], job, remove) != CLI_OK)
            status = CLI_FAILED;
    int r = stage_sweep(NULL);
    return r < 0 ? cli_failf(NULL, "copies of archives (onepot-stage-%u): %s", place_uid(),
                             fault_errno(r))
                 : status;
}

/* ---- as other users ---- */

/* A user, and the process that cleans up after it. */
struct user_child {
    uid_t uid;
    pid_t pid; /* 0: it has ended, or never began */
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
static pid_t start_child(uid_t uid, const char *job, bool remove)
{
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    setpgid(0, 0);
    int r = account_become(uid);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* which a change of user clears */
    _exit(r < 0 ? cli_fail(NULL, r, NULL) : cleaner_own(job, remove));
}

static int stop_child(struct user_child *child, const char *why)
{
    kill(-child->pid, SIGKILL);
    process_discard(child->pid);
    child->pid = 0;
    return fail_user(child->uid, why);
}

/* CLI_GO_ON: it still works. */
static int look_at_child(struct user_child *child)
{
    char why[64];
    int status;
    pid_t pid = waitpid(child->pid, &status, WNOHANG | WUNTRACED);

    if (pid == 0 || (pid < 0 && errno == EINTR))
        return CLI_GO_ON;
    if (pid > 0 && WIFSTOPPED(status))
        return stop_child(child, "somebody stopped it");
    child->pid = 0;
    if (pid > 0 && WIFEXITED(status))
        return WEXITSTATUS(status);
    snprintf(why, sizeof(why), "signal %d ended it", pid > 0 ? WTERMSIG(status) : 0);
    return fail_user(child->uid, why);
}

/* Wait for all, side by side; one that is not done in time is ended. */
static int await_children(const struct user_children *children)
{
    uint64_t end = now_ms() + USERS_LIMIT_S * 1000;
    int status = CLI_OK;
    size_t working;

    do {
        working = 0;
        for (size_t i = 0; i < children->count; i++) {
            struct user_child *child = &children->at[i];
            int r = child->pid ? look_at_child(child) : CLI_OK;
            if (r == CLI_GO_ON && now_ms() > end)
                r = stop_child(child, "it was not done in time");
            working += r == CLI_GO_ON;
            status = r != CLI_OK && r != CLI_GO_ON ? CLI_FAILED : status;
        }
        poll(NULL, 0, working ? CHILD_STEP_MS : 0);
    } while (working);
    return status;
}

static int clean_users(const struct user_children *users, const char *job, bool remove)
{
    int status = CLI_OK;

    for (size_t i = 0; i < users->count; i++) {
        struct user_child *child = &users->at[i];
        child->pid = start_child(child->uid, job, remove);
        if (child->pid > 0)
            continue;
        status = fail_user(child->uid, fault_errno(errno));
        child->pid = 0;
    }
    return await_children(users) == CLI_OK ? status : CLI_FAILED;
}

int cleaner_user(uid_t uid, const char *job, bool remove)
{
    if (uid == geteuid())
        return cleaner_own(job, remove);
    if (geteuid() != 0)
        return cli_failf(NULL, "only root may clean up after other users");
    struct user_child user = {.uid = uid};
    return clean_users(&(const struct user_children){&user, 1, 1}, job, remove);
}

/*
 * Is it a folder of onepot, owned by the user in its name? A FUSE program that is mounted on it
 * is not asked: it may never answer.
 */
static bool is_folder_of(int dir, const char *name, uid_t *ret_uid)
{
    unsigned uid;
    int end = 0;
    struct stat st;
    auto_close int fd = -1;

    if ((sscanf(name, "onepot-%u%n", &uid, &end) != 1 || name[end]) &&
        (sscanf(name, "onepot-stage-%u%n", &uid, &end) != 1 || name[end]))
        return false;
    *ret_uid = uid;
    return place_open_entry(dir, name, &fd) == 0 && fstat(fd, &st) == 0 &&
           S_ISDIR(st.st_mode) && st.st_uid == uid;
}

static int add_user(struct user_children *users, uid_t uid)
{
    for (size_t i = 0; i < users->count; i++)
        if (users->at[i].uid == uid)
            return 0;
    return vector_push(users, (struct user_child){.uid = uid});
}

/* In a path (AT_FDCWD) or an entry of an open folder. */
static int find_users_in(int above, const char *name, struct user_children *users)
{
    auto_close int entry = -1;
    uid_t uid;
    int r = 0;
    auto_closedir DIR *dir =
        place_open_entry(above, name, &entry) == 0 ? path_list(entry) : NULL;
    for (struct dirent *e; r == 0 && dir && (e = readdir(dir));)
        if (is_folder_of(dirfd(dir), e->d_name, &uid))
            r = add_user(users, uid);
    return r;
}

/* Users with a folder in a place that all share, or in their session's. */
static int find_users(struct user_children *users)
{
    char places[RUNTIME_FOLDERS_MAX][PATH_MAX];
    size_t count = runtime_places(RUNTIME_STATE, places);
    auto_closedir DIR *sessions = opendir(SESSIONS);
    int r = 0;

    for (size_t i = 0; r == 0 && i < count; i++)
        r = find_users_in(AT_FDCWD, places[i], users);
    for (struct dirent *e; r == 0 && sessions && (e = readdir(sessions));)
        if (!path_is_dots(e->d_name))
            r = find_users_in(dirfd(sessions), e->d_name, users);
    return r;
}

int cleaner_all(const char *job)
{
    struct user_children users = {0};
    int status = CLI_OK, r = find_users(&users);

    if (r < 0)
        status = cli_fail(NULL, r, NULL);
    if (clean_users(&users, job, true) != CLI_OK)
        status = CLI_FAILED;
    vector_free(&users);
    return status;
}
