/*
 * A session leader would be owner enough, except under batch systems that start all processes
 * of a job in a session of their own daemon, and salloc's shell in yet another. So a job is
 * recognised by the variable that its processes inherit. An ancestor's value is read from the
 * environment that it was started with; that read can't block, since an ancestor only waits for
 * us.
 */
#include "owner.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "job.h"

#define ANCESTORS_MAX 1000

/* ---- the owning process ---- */

static pid_t owner_of_job(const struct job *job)
{
    auto_free char *setting = NULL;
    struct process_facts facts;
    if (asprintf(&setting, "%s=%s", job->variable, getenv(job->variable)) < 0)
        return 0;
    pid_t owner = 0, pid = process_program(getpid(), false, &facts) == 0 ? facts.parent : 0;

    for (int i = 0; i < ANCESTORS_MAX && pid > 0 && process_look(pid, &facts) == 0; i++) {
        if (job_has(setting, pid))
            owner = pid;
        else if (owner)
            break;
        pid = facts.parent;
    }
    /*
     * The batch system's own process ends only when all of the script, or of a step's tasks,
     * has.
     */
    if (owner && process_look(owner, &facts) == 0 && facts.parent == facts.session &&
        process_look(facts.parent, &facts) == 0 && !process_is_ours(facts.pid))
        owner = facts.pid;
    return owner;
}

/*
 * Has a program made this session, with a terminal, for one command? Such a session ends with
 * the command.
 */
static bool is_for_a_command(const struct process_facts *leader)
{
    return leader->has_terminal && leader->parent > 1 && !process_controls_jobs(leader->pid) &&
           (process_is_ours(leader->parent) || !process_is_ours(leader->pid)); /* sudo -u */
}

static pid_t owner_of_session(void)
{
    struct process_facts leader, program, self;
    pid_t owner = getsid(0);

    if (owner <= 0 || process_look(owner, &leader) < 0)
        return 0;
    for (int i = 0; i < ANCESTORS_MAX && is_for_a_command(&leader); i++) {
        owner = leader.parent;
        if (process_look(owner, &program) < 0 || process_look(program.session, &leader) < 0)
            break;
        owner = leader.pid;
    }
    return process_program(getpid(), false, &self) == 0 && self.pid == owner ? 0 : owner;
}

pid_t owner_find(void)
{
    struct job job;
    job_detect(&job);
    pid_t owner = job.id[0] ? owner_of_job(&job) : 0;
    return owner ? owner : owner_of_session();
}

/* ---- the owners of a mount ---- */

void owner_add(struct counters *counters, pid_t pid)
{
    struct process_facts facts;
    uint32_t count = counters->owners;

    if (count > COUNTERS_OWNERS)
        return;
    if (pid == 0 || counters->pid_namespace != process_namespace() ||
        process_look(pid, &facts) < 0) {
        counters->owners = COUNTERS_OWNERS + 1;
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        if (counters->owner[i].pid == pid &&
            counters->owner[i].start_ticks == facts.start_ticks)
            return;
    if (count < COUNTERS_OWNERS)
        counters->owner[count] = (struct counter_owner){pid, facts.start_ticks};
    counters->owners = count + 1;
}

/* A process of this session other than the calling one. 0: there is none. */
static pid_t member_of(pid_t session)
{
    struct process_facts facts;
    auto_closedir DIR *dir = opendir("/proc");

    for (struct dirent *e; dir && (e = readdir(dir));) {
        pid_t pid = atoi(e->d_name);
        if (pid > 0 && pid != getpid() && process_look(pid, &facts) == 0 &&
            facts.session == session && !facts.is_dead)
            return pid;
    }
    return 0;
}

bool owner_watch(const struct counters *counters, struct process_watch *ret_watch)
{
    *ret_watch = PROCESS_WATCH_NONE;
    /* Without owners here, the mount has --owner, which the daemon watches. */
    if (counters->owners == 0 || counters->owners > COUNTERS_OWNERS ||
        counters->pid_namespace != process_namespace())
        return true;
    for (uint32_t i = 0; i < counters->owners; i++) {
        const struct counter_owner *owner = &counters->owner[i];
        if (process_watch_open(owner->pid, ret_watch) == 0) {
            if (ret_watch->start_ticks == owner->start_ticks)
                return true;
            process_watch_close(ret_watch);
        }
        for (pid_t pid; (pid = member_of(owner->pid));)
            if (process_watch_open(pid, ret_watch) == 0)
                return true;
    }
    return false;
}
