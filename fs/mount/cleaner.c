/*
 * A user may change the folders' contents at any time, including links and names. cleaner.h
 * explains why that harms nobody else.
 */
#include "cleaner.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "account.h"
#include "cleanup.h"
#include "cli.h"
#include "process.h"
#include "stage.h"
#include "state.h"
#include "unmounter.h"
#include "vector.h"

#define USER_LIMIT_S 60
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
    return CLI_OK;
}

/* Remove the slot if its daemon is dead. True: it lives. */
static bool heal_if_dead(struct slot *slot, int *status)
{
    auto_registry registry = REGISTRY_NONE;

    if (registry_lock(slot->folder, false, &registry) < 0)
        return false;
    enum slot_condition condition = slot_condition(slot);
    if (condition == SLOT_DEAD && slot_is_current(slot) && cleaner_heal(slot) != CLI_OK)
        *status = CLI_FAILED;
    return condition == SLOT_ALIVE;
}

int cleaner_own(const char *job)
{
    auto_slots struct slot_list list = {0};
    int status = CLI_OK, r = state_list(&list);

    if (r < 0)
        return cli_fail(NULL, r, NULL);
    for (size_t i = 0; i < list.count; i++) {
        struct slot *slot = list.at[i];
        if (heal_if_dead(slot, &status) && job && strcmp(slot->counters->job, job) == 0 &&
            end_mount_of_job(slot) != CLI_OK)
            status = CLI_FAILED;
        unmounter_sweep_copy(slot->counters);
    }
    slot_list_free(&list); /* with the locks taken above, which the sweep respects */
    unmounter_sweep_all(); /* leftovers that form no whole slot */
    stage_sweep(NULL);
    return status;
}

/* ---- as other users ---- */

int cleaner_user(uid_t uid, const char *job)
{
    int status;

    if (uid == geteuid())
        return cleaner_own(job);
    if (geteuid() != 0)
        return cli_failf(NULL, "only root may clean up after other users");
    pid_t pid = fork();
    if (pid == 0) {
        int r = account_become(uid);
        alarm(USER_LIMIT_S); /* even if the user does something to delay it */
        _exit(r < 0 ? cli_fail(NULL, r, NULL) : cleaner_own(job));
    }
    if (pid < 0)
        return cli_fail(NULL, -errno, NULL);
    while (waitpid(pid, &status, WUNTRACED) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    if (WIFSTOPPED(status)) { /* its user may stop it, and its alarm would then never come */
        kill(pid, SIGKILL);
        process_reap(pid, NULL);
    }
    return cli_failf(NULL, "what user %u left could not be cleaned up: %s", (unsigned)uid,
                     WIFSTOPPED(status) ? "somebody stopped it" : "it took a minute");
}

/* Is it a folder of onepot, owned by the user in its name? */
static bool is_folder_of(int dir, const char *name, uid_t *ret_uid)
{
    unsigned uid;
    int end = 0;
    struct stat st;

    if ((sscanf(name, "onepot-%u%n", &uid, &end) != 1 || name[end]) &&
        (sscanf(name, "onepot-stage-%u%n", &uid, &end) != 1 || name[end]))
        return false;
    *ret_uid = uid;
    return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
           st.st_uid == uid;
}

struct users { /* a vector */
    uid_t *at;
    size_t count, capacity;
};

static int add_user(struct users *users, uid_t uid)
{
    for (size_t i = 0; i < users->count; i++)
        if (users->at[i] == uid)
            return 0;
    return vector_push(users, uid);
}

static int find_users(struct users *users)
{
    char places[RUNTIME_FOLDERS_MAX][PATH_MAX];
    size_t count = runtime_places(places);
    int r = 0;

    for (size_t i = 0; i < count; i++) {
        auto_closedir DIR *dir = opendir(places[i]);
        uid_t uid;
        for (struct dirent *e; r == 0 && dir && (e = readdir(dir));)
            if (is_folder_of(dirfd(dir), e->d_name, &uid))
                r = add_user(users, uid);
    }
    return r;
}

int cleaner_all(const char *job)
{
    struct users users = {0};
    int status = CLI_OK, r = find_users(&users);

    if (r < 0)
        status = cli_fail(NULL, r, NULL);
    for (size_t i = 0; i < users.count; i++)
        if (cleaner_user(users.at[i], job) != CLI_OK)
            status = CLI_FAILED;
    vector_free(&users);
    return status;
}
