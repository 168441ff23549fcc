/*
 * The daemon of a new mount: a process forked after the mount was made and before any thread
 * was started; or, with -f, this process itself.
 *
 * A socket connects starter and daemon. The daemon reports once how its start went; the starter
 * writes 'k' when it has announced the mount. If the starter dies before that, the daemon reads
 * the end of the socket and ends the mount.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cleanup.h"
#include "budget.h"
#include "clock.h"
#include "cpus.h"
#include "feature_list.h"
#include "mounter.h"
#include "unmounter.h"

#define READY_LIMIT_MS 30000
#define WATCH_STEP_MS 200
#define WATCH_LIMIT_MS 10000

/* ---- the work of a serving process, forked or not ---- */

static bool is_parents(const struct mounter *m)
{
    return m->mounted.method == MOUNT_BY_PARENT;
}

static struct control control_of(struct mounter *m)
{
    return (struct control){
        .options = m->options,
        .slot = m->slot,
        .stage = m->stage,
        .log = &m->log,
        .can_unmount = mounted_is_visible(&m->mounted),
        .can_leave = is_parents(m),
        .owner = m->owner,
        .wrapper = PROCESS_WATCH_NONE,
        .starter_fd = m->daemon_sock,
    };
}

/* Start to copy in the background. If no thread can start, only what is read is copied. */
static void start_stage(struct mounter *m)
{
    struct fileset *fileset = m->fileset;
    char line[256];
    /* archive_watch.c needs the fingerprint, whose reads would wait behind the copier's. */
    if (!fileset->parts && !fileset->compression && !fileset->has_fingerprint)
        fileset->has_fingerprint =
            source_fingerprint(fileset->source, &fileset->fingerprint) == 0;
    stage_set_note(m->stage, control_log, &m->log);
    int r = stage_start(m->stage);
    if (r == 0)
        return;
    snprintf(line, sizeof(line), "the archive is not copied in the background: %s",
             fault_errno(r));
    control_log(&m->log, line);
}

static void note_daemon(struct counters *c)
{
    struct process_facts self;

    c->daemon_pid = getpid();
    c->started_ns = now_ns();
    atomic_store(&c->shared_ns, c->started_ns);
    if (process_look(c->daemon_pid, &self) == 0)
        c->daemon_start_ticks = self.start_ticks;
}

/*
 * The daemon of extracted files serves nothing and reads nothing. Caches of the job have so
 * much less. Without a folder for the claim nothing is shared.
 */
static void start_keeper(struct mounter *m)
{
    const struct claim_options claim = {.job = m->job.id,
                                        .total_bytes = budget_cache_bytes(),
                                        .fixed_bytes = m->claim_bytes,
                                        .unwatched = true};
    fileset_close(m->fileset);
    m->fileset = NULL;
    note_daemon(m->slot->counters);
    if (m->claim_bytes)
        claim_new(&claim, &m->claim);
}

static int start_session(struct mounter *m, struct fault *fault)
{
    const struct mount_options *o = m->options;
    struct counters *c = m->slot->counters;
    const bool is_in_view = mounted_is_visible(&m->mounted) && !o->writable;
    const struct session_config config = {
        .fuse_fd = m->mounted.fuse_fd,
        .fileset = m->fileset,
        .reader = m->reader,
        .stage = m->stage,
        .job = m->job.id,
        .cache_bytes = m->cache_bytes,
        .cache_is_fixed = o->cache_given,
        .root = m->root,
        .counters = c,
        .threads = o->threads,
        .verify = o->verify,
        .io_timeout_s = o->io_timeout_s,
        .mountpoint = is_in_view ? c->mountpoint : NULL,
        .is_elsewhere = !is_in_view,
        .readahead_bytes = o->readahead_bytes,
        .order = m->order,
        .recorder = m->recorder,
        .seed = o->seed,
        /*
         * In a user namespace there are no other users, and the IDs of lists have no meaning.
         */
        .access_lists =
            o->default_permissions && (mounted_is_visible(&m->mounted) || geteuid() == 0),
        .override_uid = o->override_uid,
        .override_gid = o->override_gid,
        .uid = o->uid,
        .gid = o->gid,
        .is_covered = o->writable,
        .is_users_layer = o->writable && o->override_uid,
        .log = control_log,
        .log_ctx = &m->log,
        .features = feature_list,
    };

    /* The starter may be bound to one core; the daemon serves every reader. */
    if (!o->threads)
        cpus_widen();
    c->threads = o->threads ? o->threads : cpus_allowed();
    reader_limit_unpacking(m->reader, c->threads);
    note_daemon(c);
    m->mounted.fuse_fd = -1; /* the session owns it from now on, even on failure */
    m->recorder = NULL;
    if (m->stage)
        start_stage(m); /* it may fork, so before other threads exist */
    int r = session_start(&config, fault, &m->session);
    if (r == 0)
        atomic_store(&c->state, MOUNT_SERVING);
    return r;
}

/* ---- the forked daemon ---- */

/* Open the slot with descriptors of our own, and take the lock that shows that we live. */
static int own_slot(struct mounter *m)
{
    struct slot *slot;
    int r = slot_open(m->slot->folder, m->slot->folder_fd, m->slot->name, &slot);

    if (r < 0)
        return r;
    slot_close(m->slot); /* its lock stays with the starter */
    m->slot = slot;
    return slot_claim_daemon(slot, &m->daemon_lock_fd);
}

/*
 * A small process that outlives a killed daemon, and removes its copy if nobody else uses it.
 * The daemon ends it; a signal to all of a job does not.
 */
static _Noreturn void watch_daemon(const struct counters *c, const struct inherited *inherited,
                                   struct process_watch daemon)
{
    struct stat st;

    prctl(PR_SET_NAME, "onepot-watch");
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    if (detach_here(inherited, -1) < 0)
        _exit(1);
    while (!process_watch_ended(&daemon)) {
        struct pollfd p = {.fd = daemon.fd, .events = POLLIN};
        poll(&p, 1, daemon.fd < 0 ? WATCH_STEP_MS : -1);
    }
    /* The daemon's children may still hold the copy for a moment. */
    for (int waited = 0; waited < WATCH_LIMIT_MS && stat(c->stage_folder, &st) == 0;
         waited += WATCH_STEP_MS) {
        unmounter_sweep_copy(c);
        poll(NULL, 0, WATCH_STEP_MS);
    }
    _exit(0);
}

static void start_watcher(struct mounter *m)
{
    struct process_watch self = PROCESS_WATCH_NONE;
    struct inherited inherited;
    struct stage_report report;

    if (!m->stage)
        return;
    stage_get_report(m->stage, &report);
    if (report.is_private || detach_note_inherited(&inherited) < 0)
        return;
    if (process_watch_open(getpid(), &self) == 0 && process_fork_orphan() == 0) {
        layer_release(&m->layer);
        watch_daemon(m->slot->counters, &inherited, self);
    }
    process_watch_close(&self);
    vector_free(&inherited);
}

static _Noreturn void daemon_main(struct mounter *m, struct process_watch wrapper, int sock)
{
    struct fault fault = {0}; /* the report; err 0: it serves */

    close(m->daemon_sock);
    m->daemon_sock = sock;
    cli_expect_archives(m->archives.count); /* fork kept room for the open ones only */
    namespace_forget(&m->mounted.ns);
    control_prepare(is_parents(m));
    int r = detach_here(&m->inherited, m->log.fd);
    if (r == 0)
        r = own_slot(m);
    if (r == 0 && m->options->extract)
        start_keeper(m);
    else if (r == 0) {
        start_watcher(m);
        r = start_session(m, &fault);
    }
    if (r < 0 && !fault.err)
        fault = (struct fault){.err = -r, .offset = FAULT_NO_OFFSET};
    else if (r == 0)
        fault.err = 0;
    /*
     * If the start failed and the starter is gone, only this process can remove the mount.
     * After a good start control_serve notices that the starter is gone.
     */
    if (send(sock, &fault, sizeof(fault), MSG_NOSIGNAL) < 0 && r < 0 &&
        mounted_is_visible(&m->mounted))
        mountpoint_unmount(m->path, true); /* nobody else knows of the mount */
    if (r < 0)
        _exit(1);
    struct control control = control_of(m);
    control.wrapper = wrapper;
    control_serve(&control, m->session);
    claim_free(m->claim);
    _exit(0);
}

/* Fork the daemon: a child of `run`; nobody's child otherwise. */
static int fork_daemon(struct mounter *m)
{
    struct process_watch self = PROCESS_WATCH_NONE;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -errno;
    if (m->for_run)
        process_watch_open(getpid(), &self);
    m->daemon_sock = pair[0];
    pid_t pid = m->for_run ? fork() : process_fork_orphan();
    if (pid == 0)
        daemon_main(m, self, pair[1]);
    int r = pid >= 0 ? 0 : m->for_run ? -errno : pid;
    if (pid > 0 && m->for_run)
        m->daemon = pid;
    close(pair[1]);
    process_watch_close(&self);
    return r;
}

/* Wait for the daemon's report: why it does not serve, if it does not. */
static int hear_daemon(struct mounter *m, struct fault *ret_fault)
{
    for (;;) {
        struct pollfd p = {.fd = m->daemon_sock, .events = POLLIN};
        int r = poll(&p, 1, READY_LIMIT_MS);
        if (r < 0 && errno == EINTR && !mounter_caught())
            continue;
        if (r <= 0)
            return r < 0 ? -errno : -ETIMEDOUT;
        ssize_t n = recv(m->daemon_sock, ret_fault, sizeof(*ret_fault), 0);
        if (n < 0 && errno == EINTR && !mounter_caught())
            continue;
        return n == sizeof(*ret_fault) ? 0 : n < 0 ? -errno : -EPIPE;
    }
}

static int start_in_background(struct mounter *m)
{
    struct fault fault;
    int r = fork_daemon(m);

    if (r < 0)
        return cli_failf(NULL, "no daemon can be started: %s%s", fault_errno(r),
                         fault_limit(r));
    if (m->mounted.fuse_fd >= 0)
        close(steal_fd(&m->mounted.fuse_fd));
    r = hear_daemon(m, &fault);
    if (r == 0 && fault.err)
        return cli_fail(m->options->archive, fault.err, &fault);
    if (r == -EPIPE)
        return cli_failf(m->options->archive, "the daemon died while it started");
    if (r < 0 && !mounter_caught())
        return cli_failf(m->options->archive, "the daemon does not start: %s", fault_errno(r));
    return r < 0 ? CLI_FAILED : 0;
}

int mounter_keep(struct mounter *m)
{
    if (m->daemon_sock < 0)
        return 0;
    bool told = send(m->daemon_sock, "k", 1, MSG_NOSIGNAL) == 1;
    close(steal_fd(&m->daemon_sock));
    return told ? 0 : cli_failf(m->path, "the daemon has died");
}

/* ---- mount -f ---- */

static int start_here(struct mounter *m)
{
    struct fault fault = {0};

    control_prepare(true);
    int r = slot_claim_daemon(m->slot, &m->daemon_lock_fd);
    if (r == 0)
        start_watcher(m);
    if (r == 0)
        r = start_session(m, &fault);
    return r < 0 ? cli_fail(m->options->archive, r, &fault) : 0;
}

int mounter_start_daemon(struct mounter *m)
{
    return m->options->foreground ? start_here(m) : start_in_background(m);
}

int mounter_serve(struct mounter *m)
{
    struct control control = control_of(m);
    m->owner = PROCESS_WATCH_NONE;
    return control_serve(&control, steal_ptr(&m->session));
}
