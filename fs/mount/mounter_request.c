/*
 * The request: what the options name, resolved before anything is opened or mounted; and the
 * signals that may end the command meanwhile.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "interrupt.h"
#include "mounter_private.h"
#include "storage_watch.h"

/* ---- signals while it works ---- */

static volatile sig_atomic_t caught;

static void mounter_on_signal(int number)
{
    caught = number;
}

int mounter_caught(void)
{
    return caught;
}

/*
 * Makes a file-size limit the error EFBIG. Caught, not ignored: the command that is run gets
 * the default.
 */
static void on_limit(int number)
{
    (void)number;
}

/* Blocking calls return on a signal, and the command cleans up. */
static void catch_signals(void)
{
    struct sigaction limit;
    interrupt_handle(mounter_on_signal);
    if (sigaction(SIGXFSZ, NULL, &limit) == 0 && limit.sa_handler == SIG_DFL)
        signal(SIGXFSZ, on_limit);
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
        .parent_fd = -1,
        .daemon_sock = -1,
        .daemon_lock_fd = -1,
    };
    catch_signals();
    return detach_note_inherited(&m->inherited);
}

int mounter_status_of_failure(const struct mounter *m)
{
    return m->for_run ? CLI_RUN_FAILED : CLI_FAILED;
}

static int identify_archive(struct mounter *m)
{
    const char *given = m->options->archive;
    struct storage_watch watch;
    struct fault fault = {0};
    struct stat st;

    storage_watch_begin(&watch, given, m->options->io_timeout_s, mounter_status_of_failure(m));
    int r = !realpath(given, m->archive) || stat(m->archive, &st) < 0 ? -errno : 0;
    storage_watch_end(&watch);
    if (r < 0)
        return cli_fail(given, source_open_fault(given, &fault, r), &fault);
    m->identity = source_identity_of(&st);
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
    int r = mountpoint_resolve(at, m->at);
    if (r == -ENOENT)
        return cli_failf(at, "its parent directory does not exist; make that first");
    return r < 0 ? cli_fail(at, r, NULL) : 0;
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

int mounter_prepare(struct mounter *m)
{
    const struct mount_options *o = m->options;

    stage_sweep(NULL); /* leftovers of killed processes use the job's memory */
    if (mount_methods(&m->methods) < 0)
        return cli_failf(NULL,
                         "ONEPOT_MOUNT_METHODS names another way than mount, fusermount3, "
                         "fusermount, namespace");
    if (o->private_mode == PRIVATE_OFF)
        m->methods &= ~(unsigned)MOUNT_BY_NAMESPACE;
    m->is_private = o->private_mode == PRIVATE_ON;
    job_detect(&m->job);
    int r = identify_archive(m);
    if (r == 0)
        r = resolve_at(m);
    if (r == 0)
        r = watch_owner(m);
    if (r == 0)
        r = open_log(m);
    m->options_hash = mount_options_hash(o, m->at, m->identity.mtime_sec,
                                         m->identity.mtime_nsec, m->owner.start_ticks);
    return r;
}
