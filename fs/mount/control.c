/*
 * One loop around poll(2) for signals and the ends of the connection, the owner and the
 * wrapper. While nothing is asked of it the daemon sleeps without a time-out, unless it has to
 * check regularly (--idle, or a process without a pidfd).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

#include "cleanup.h"
#include "clock.h"
#include "control.h"
#include "layer.h"
#include "lost_pages.h"
#include "mountinfo.h"
#include "mountpoint.h"
#include "numbers.h"
#include "owner.h"
#include "remove_tree.h"
#include "summary.h"
#include "unmounter.h"
#include "utf8.h"

#define LEAVE_LIMIT_NS (5 * SECOND_NS)  /* --grace, of a device that a parent mounted */
#define OWNER_LIMIT_NS (10 * SECOND_NS) /* after the owner's end, busy or not */
#define RETRY_POLL_MS 1000
#define STOP_LIMIT_S 5
#define IMPATIENT_LIMIT_NS (3 * SECOND_NS) /* after a second Ctrl-C */
#define RETRY_NS SECOND_NS                 /* to unmount, while draining */
#define IDLE_RETRY_NS (10 * SECOND_NS)     /* unused for long, but a file is open */
#define STEP_MS 200                        /* while draining */
#define LOOK_MS 1000                       /* between looks at what can't be polled */

/* ---- when it ends ---- */

/*
 * A reader of cached files causes one request a second, because the kernel asks for the
 * directories of the root again. So less than two seconds of silence mean nothing.
 */

bool ending_begin(struct ending *e, uint64_t now, uint64_t limit_ns)
{
    uint64_t deadline = limit_ns ? now + limit_ns : 0;

    if (e->phase == ENDING_UNMOUNTED)
        return false;
    if (deadline && (!e->deadline_ns || deadline < e->deadline_ns))
        e->deadline_ns = deadline;
    if (e->phase == ENDING_DRAINING)
        return false;
    e->phase = ENDING_DRAINING;
    e->retry_ns = 0;
    return true;
}

bool ending_interrupt(struct ending *e, uint64_t grace_ns, uint64_t *ret_limit_ns)
{
    *ret_limit_ns = e->interrupts == 0 ? grace_ns : IMPATIENT_LIMIT_NS;
    return ++e->interrupts <= 2;
}

static uint64_t ending_since(uint64_t now, uint64_t last)
{
    return now > last ? now - last : 0;
}

static uint64_t idle_limit_ns(const struct ending *e)
{
    return e->idle_ns ? max_u64(e->idle_ns, ENDING_QUIET_NS) : UINT64_MAX;
}

enum ending_step ending_next(const struct ending *e, uint64_t now, uint64_t last)
{
    uint64_t limit = e->phase == ENDING_DRAINING ? ENDING_QUIET_NS : idle_limit_ns(e);

    if (e->phase == ENDING_UNMOUNTED)
        return ENDING_WAIT;
    if (e->phase == ENDING_DRAINING && e->deadline_ns && now >= e->deadline_ns)
        return ENDING_DETACH;
    return now >= e->retry_ns && ending_since(now, last) >= limit ? ENDING_TRY : ENDING_WAIT;
}

void ending_tried(struct ending *e, uint64_t now)
{
    e->retry_ns = now + (e->phase == ENDING_DRAINING ? RETRY_NS : IDLE_RETRY_NS);
}

int ending_patience_ms(const struct ending *e, uint64_t now, uint64_t last, bool must_look)
{
    uint64_t left_ms = must_look ? LOOK_MS : UINT64_MAX;

    if (e->phase == ENDING_DRAINING)
        return STEP_MS;
    if (e->phase == ENDING_SERVING && e->idle_ns) {
        uint64_t next = max_u64(now - ending_since(now, last) + idle_limit_ns(e), e->retry_ns);
        left_ms = min_u64(left_ms, ending_since(next, now) / 1000000 + 1);
    }
    return left_ms < INT32_MAX ? (int)left_ms : -1;
}

/* ---- the log ---- */

/* A name may hold any byte; this keeps a line to one line, harmless to a terminal. */
static void control_copy_safe(char *to, size_t size, const char *line)
{
    size_t n = 0, len = strlen(line);
    for (size_t i = 0; i < len && n + 5 < size;) {
        size_t whole = utf8_printable_length(line + i, len - i);
        if (whole)
            memcpy(to + n, line + i, whole);
        else
            snprintf(to + n, size - n, "\\x%02x", (unsigned char)line[i]);
        n += whole ? whole : 4;
        i += whole ? whole : 1;
    }
    to[n] = '\0';
}

void control_log(void *ctx, const char *line)
{
    const struct control_log *log = ctx;
    char stamp[32], safe[1024], text[1200];
    time_t now = time(NULL);
    struct tm tm;

    control_copy_safe(safe, sizeof(safe), line);
    if (log->fd >= 0 && localtime_r(&now, &tm)) {
        strftime(stamp, sizeof(stamp), "%Y-%m-%d %H:%M:%S", &tm);
        int n = snprintf(text, sizeof(text), "%s onepot[%d]: %s\n", stamp, (int)getpid(), safe);
        size_t len = n < (int)sizeof(text) ? (size_t)n : sizeof(text) - 1;
        text[len - 1] = '\n';
        if (write(log->fd, text, len) < 0)
            return; /* a full disk must not end the mount */
    }
    if (log->stderr_too)
        dprintf(2, "onepot: %s\n", safe);
}

enum line_kind {
    LINE_ERROR,
    LINE_NOTE, /* tells of no error: squashfuse and its like print none */
};

static void control_say(const struct control *c, enum line_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void control_say(const struct control *c, enum line_kind kind, const char *format, ...)
{
    struct control_log log = *c->log;
    char line[1024];
    va_list args;
    int n = snprintf(line, sizeof(line), "%s: ", c->options->archive);

    if (n < 0 || n >= (int)sizeof(line))
        n = 0;
    log.stderr_too &= kind == LINE_ERROR || !c->options->at_is_last;
    va_start(args, format);
    vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
    va_end(args);
    control_log(&log, line);
}

/* ---- signals ---- */

static bool signal_is_ignored(int number)
{
    struct sigaction old;
    return sigaction(number, NULL, &old) == 0 && old.sa_handler == SIG_IGN;
}

static bool is_in_foreground(const struct control *c)
{
    return c->options->foreground || c->can_leave;
}

static void wanted_signals(bool foreground, sigset_t *ret_set)
{
    sigemptyset(ret_set);
    sigaddset(ret_set, SIGTERM);
    sigaddset(ret_set, SIGINT);
    if (foreground &&
        !signal_is_ignored(SIGHUP)) /* the terminal is gone, and there is no nohup */
        sigaddset(ret_set, SIGHUP);
}

void control_prepare(bool foreground)
{
    static const int always[] = {SIGPIPE, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ};
    static const int in_background[] = {SIGHUP, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGALRM};
    sigset_t wanted, others;

    /*
     * A batch system sends USR1 and the like, also XCPU, to every process of a job. A log that
     * reaches the file-size limit is just full.
     */
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++)
        signal(always[i], SIG_IGN);
    for (size_t i = 0; !foreground && i < sizeof(in_background) / sizeof(in_background[0]); i++)
        signal(in_background[i], SIG_IGN);
    wanted_signals(foreground, &wanted);
    sigfillset(&others);
    for (int number = 1; number < NSIG; number++)
        if (sigismember(&wanted, number) == 1)
            sigdelset(&others, number);
    sigprocmask(SIG_UNBLOCK, &others, NULL); /* our starter may have blocked any of them */
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    lost_pages_catch_all();
}

/* ---- unmounting ---- */

static void set_unmounted(struct control *c)
{
    c->ending.phase = ENDING_UNMOUNTED;
    atomic_store(&c->slot->counters->state, MOUNT_ENDED);
}

/* May we end it: does no `run` use it? Under the registry's lock; takes NAME.lock. */
static bool claim_slot(const struct control *c)
{
    return slot_lock(c->slot, true, false) == 0;
}

/* If the folder is gone, there is nobody to lock out. False: not now. */
static bool lock_registry(const struct control *c, struct registry *ret_registry)
{
    int r = slots_lock_of(c->slot, ret_registry);
    return r == 0 || r == -ENOENT;
}

static void say_kept(const struct control *c, int r)
{
    control_say(c, LINE_ERROR, "it can't be unmounted: %s", mountpoint_unmount_error(r));
}

/*
 * Is our mount still in the tree? The kernel gives the number of a device that is gone to the
 * next one, which may be mounted at our place by now. So without a connection, only a dead
 * mount is ours.
 */
static bool is_still_mounted(const struct control *c)
{
    const struct slot *slot = c->slot;

    return slot_is_mounted(slot) && (session_is_connected(c->session) ||
                                     layer_is_on_top(slot) || unmounter_is_dead(slot));
}

static bool has_files(const struct control *c)
{
    return c->slot->counters->extracted;
}

/* Extracted files go, whoever reads them: nobody can tell. */
static void remove_files(struct control *c)
{
    const struct slot *slot = c->slot;

    set_unmounted(c);
    if (!remove_tree(slot->folder_fd, slot->name, UINT64_MAX))
        control_say(c, LINE_ERROR, "some of its files can't be removed");
    c->stop = true;
}

/* Unless a `run` uses them. */
static void try_to_remove_files(struct control *c)
{
    auto_registry registry = REGISTRY_NONE;
    bool is_ours = lock_registry(c, &registry) && claim_slot(c);

    slots_unlock(&registry);
    if (is_ours)
        remove_files(c);
}

/* Unmount unless somebody uses it. */
static void try_unmount(struct control *c)
{
    const struct slot *slot = c->slot;
    auto_registry registry = REGISTRY_NONE;

    ending_tried(&c->ending, now_ns());
    if (has_files(c)) {
        try_to_remove_files(c);
        return;
    }
    if (c->can_leave && c->ending.phase == ENDING_DRAINING)
        c->stop = true;
    if (!c->can_unmount || !session_is_connected(c->session) || !lock_registry(c, &registry) ||
        !claim_slot(c))
        return;
    int r = unmounter_try(slot, false);
    slot_unlock(slot);
    if (r == 0 || r == -EINVAL) /* or somebody else did */
        set_unmounted(c);
    else if (r != -EBUSY)
        say_kept(c, r);
}

/* Detach it, even if it is in use; its users are served until they are done. */
static void detach_mount(struct control *c)
{
    if (has_files(c)) {
        remove_files(c);
        return;
    }
    if (c->can_leave) {
        control_say(c, LINE_ERROR, "still in use, and left: later reads get an error");
        c->stop = true;
        return;
    }
    bool can_unmount = c->can_unmount && session_is_connected(c->session);
    int r = can_unmount ? unmounter_try(c->slot, true) : -EINVAL;
    if (r == 0)
        control_say(c, LINE_ERROR,
                    "still in use, and taken out of the tree; open files stay readable");
    else if (r != -EINVAL)
        say_kept(c, r);
    set_unmounted(c);
}

static void begin_draining(struct control *c, uint64_t limit_ns, const char *why)
{
    char limit[32] = "";

    if (!ending_begin(&c->ending, now_ns(), limit_ns))
        return;
    atomic_store(&c->slot->counters->state, MOUNT_DRAINING);
    if (limit_ns)
        snprintf(limit, sizeof(limit), ", in %u s at most", (unsigned)(limit_ns / SECOND_NS));
    control_say(c, LINE_NOTE, "%s: ending when nobody uses the mount any more%s", why, limit);
}

/* How long users of the mount have after a signal; 0: no limit. */
static uint64_t grace_ns(const struct control *c)
{
    unsigned given_s = c->options->grace_s;
    return given_s ? given_s * SECOND_NS : c->can_leave ? LEAVE_LIMIT_NS : 0;
}

/*
 * Leave the tree at once, and serve processes that have a file open until they are done, or the
 * next signal comes: as squashfuse does.
 */
static void leave_tree(struct control *c)
{
    if (c->can_leave || c->ending.phase == ENDING_UNMOUNTED) {
        c->stop = true;
        return;
    }
    try_unmount(c);
    if (c->ending.phase != ENDING_UNMOUNTED)
        detach_mount(c);
    if (is_still_mounted(c))
        c->stop = true;
}

/*
 * Somebody has unmounted the layer, and what lies below it goes, too. Another process may be
 * about to do that: it has the locks then.
 */
static void look_at_layer(struct control *c)
{
    const struct slot *slot = c->slot;
    auto_registry registry = REGISTRY_NONE;

    c->has_lost_layer = c->ending.phase != ENDING_UNMOUNTED && layer_is_lost(slot);
    if (!c->has_lost_layer || !lock_registry(c, &registry) || !claim_slot(c))
        return;
    int r = layer_is_lost(slot) ? unmounter_try(slot, true) : -EINVAL;
    slot_unlock(slot);
    if (r < 0 && r != -EINVAL)
        say_kept(c, r);
    set_unmounted(c);
}

/* ---- reasons to end ---- */

static void control_on_signal(struct control *c)
{
    struct signalfd_siginfo info;

    if (read(c->signal_fd, &info, sizeof(info)) != sizeof(info))
        return;
    if (c->options->ends_at_once) {
        leave_tree(c);
        return;
    }
    if (info.ssi_signo != SIGINT || !is_in_foreground(c)) {
        begin_draining(c, grace_ns(c), info.ssi_signo == SIGHUP ? "hangup" : "asked to end");
        return;
    }
    uint64_t limit_ns;
    if (ending_interrupt(&c->ending, grace_ns(c), &limit_ns))
        begin_draining(c, limit_ns, "interrupted (again: within 3 s)");
    else
        c->stop = true;
}

/* No `run` and no mount command holds it any more. */
static bool is_abandoned(const struct control *c)
{
    bool abandoned = slot_claim_unused(c->slot);

    slot_unlock(c->slot);
    return abandoned;
}

/* Find the next living owner, under the lock under which owners are added. */
static void find_owner(struct control *c)
{
    auto_registry registry = REGISTRY_NONE;

    lock_registry(c, &registry);
    if (!owner_watch(c->slot->counters, &c->owner))
        begin_draining(c, grace_ns(c), "the job or session that it was made in has ended");
}

static void control_look_at_others(struct control *c)
{
    bool is_given = c->has_given_owner;

    if (process_watch_ended(&c->owner)) {
        process_watch_close(&c->owner);
        if (is_given) /* files that are still being made wait for their maker's end */
            begin_draining(c, has_files(c) && c->starter_fd >= 0 ? 0 : OWNER_LIMIT_NS,
                           "its owner has ended");
        else
            find_owner(c);
    }
    if (process_watch_ended(&c->wrapper)) {
        process_watch_close(&c->wrapper);
        c->orphaned = true;
    }
    if (!c->orphaned || c->ending.phase != ENDING_SERVING)
        return;
    if (is_abandoned(c))
        begin_draining(c, 0, "the command that it was for has ended");
    else if (!c->owner.pid && atomic_load(&c->slot->counters->holders) > 0)
        find_owner(c); /* of those who share it by `onepot mount` */
}

/* The starter writes 'k', or has died before it could announce the mount. */
static void on_starter(struct control *c)
{
    struct counters *counters = c->slot->counters;
    char byte;
    ssize_t n = read(c->starter_fd, &byte, 1);

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    close(steal_fd(&c->starter_fd));
    if (n > 0)
        return;
    if (atomic_load(&counters->holders) > 1) /* others already share it */
        atomic_fetch_sub(&counters->holders, 1);
    else
        begin_draining(c, 0, "the process that asked for the mount has ended");
}

static void on_lost_page(struct control *c)
{
    lost_pages_seen();
    session_trouble(
        c->session, TROUBLE_LOST,
        "%s: a part of it is gone: it was cut short, or its storage fails, so reads "
        "of that part fail; copy it again, and mount it anew",
        c->options->archive);
}

/* Nobody can tell when extracted files were read: they are no longer in use. */
static uint64_t last_use_ns(const struct control *c)
{
    return has_files(c) ? 0 : summary_last_use_ns(c->slot->counters);
}

static void take_step(struct control *c)
{
    control_look_at_others(c);
    if (c->has_lost_layer)
        look_at_layer(c);
    if (c->stop)
        return;
    switch (ending_next(&c->ending, now_ns(), last_use_ns(c))) {
    case ENDING_TRY:
        try_unmount(c);
        break;
    case ENDING_DETACH:
        detach_mount(c);
        break;
    case ENDING_WAIT:
        break;
    }
}

/* ---- the loop ---- */

/* How long poll may sleep; -1: until something happens. */
static int patience_ms(const struct control *c)
{
    bool blind = (c->owner.pid && c->owner.fd < 0) || (c->wrapper.pid && c->wrapper.fd < 0);
    bool orphaned = c->orphaned && c->ending.phase == ENDING_SERVING;
    blind |= has_files(c) && c->folder_fd < 0;
    return ending_patience_ms(&c->ending, now_ns(), last_use_ns(c),
                              blind || orphaned || c->has_lost_layer);
}

/* A process that ends extracted files removes their directory. */
static bool are_files_gone(const struct control *c)
{
    const struct slot *slot = c->slot;
    char news[4096];

    while (c->folder_fd >= 0 && read(c->folder_fd, news, sizeof(news)) > 0)
        ;
    return faccessat(slot->folder_fd, slot->name, F_OK, AT_SYMLINK_NOFOLLOW) < 0 &&
           errno == ENOENT;
}

static void watch_folder(struct control *c)
{
    char self[32];

    c->folder_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    snprintf(self, sizeof(self), "/proc/self/fd/%d", c->slot->folder_fd);
    if (c->folder_fd >= 0 &&
        inotify_add_watch(c->folder_fd, self, IN_DELETE | IN_MOVED_FROM | IN_ONLYDIR) < 0)
        close(steal_fd(&c->folder_fd));
}

static void serve_until_ended(struct control *c)
{
    enum { ENDED, SIGNAL, STARTER, LOST_PAGE, OWNER, WRAPPER, MOUNTS, COUNT };
    /* The mount ends when a layer that all see is unmounted. */
    bool has_layer = c->can_unmount && c->options->writable;
    auto_close int mounts = has_layer ? open("/proc/self/mountinfo", O_RDONLY | O_CLOEXEC) : -1;

    while (!c->stop) {
        struct pollfd p[COUNT] = {
            [ENDED] = {.fd = has_files(c) ? c->folder_fd : session_ended_fd(c->session),
                       .events = POLLIN},
            [SIGNAL] = {.fd = c->signal_fd, .events = POLLIN},
            [STARTER] = {.fd = c->starter_fd, .events = POLLIN},
            [LOST_PAGE] = {.fd = lost_pages_fd(), .events = POLLIN},
            [OWNER] = {.fd = c->owner.fd, .events = POLLIN},
            [WRAPPER] = {.fd = c->wrapper.fd, .events = POLLIN},
            [MOUNTS] = {.fd = mounts, .events = POLLPRI},
        };
        if (poll(p, COUNT, patience_ms(c)) < 0 && errno != EINTR)
            poll(NULL, 0, RETRY_POLL_MS); /* no memory: go on, a little later */
        if (has_files(c) ? are_files_gone(c) : p[ENDED].revents != 0)
            return;
        if (p[SIGNAL].revents)
            control_on_signal(c);
        if (p[STARTER].revents)
            on_starter(c);
        if (p[LOST_PAGE].revents)
            on_lost_page(c);
        if (p[MOUNTS].revents)
            look_at_layer(c);
        take_step(c);
    }
}

/* ---- the end ---- */

static void remove_slot(const struct slot *slot, bool stays_mounted)
{
    auto_registry registry = REGISTRY_NONE;

    if (slots_lock_of(slot, &registry) < 0)
        return;
    if (stays_mounted)
        unmounter_forget(slot);
    else {
        layer_forget(slot);
        slot_remove(slot);
    }
}

static int status_of_alarm;

static void on_alarm(int number)
{
    (void)number;
    _exit(status_of_alarm);
}

void control_stop(struct session *session, bool connected, int status)
{
    struct sigaction alarm_action = {.sa_handler = on_alarm};
    sigset_t set;

    status_of_alarm = status;
    sigemptyset(&set);
    sigaddset(&set, SIGALRM);
    sigaction(SIGALRM, &alarm_action, NULL);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    alarm(STOP_LIMIT_S);
    if (session_stop(session, connected) < 0)
        _exit(status);
    alarm(0);
}

static void end_serving(struct control *c)
{
    const struct counters *counters = c->slot->counters;
    char line[SUMMARY_MAX], text[LAYER_TOLD_MAX];
    const char *told;

    if (has_files(c)) {
        set_unmounted(c);
        remove_slot(c->slot, false);
        return;
    }
    session_give_back(c->session); /* its files lie in the folder that is to be removed */
    session_update_counters(c->session);
    set_unmounted(c);
    /* Aborted, not unmounted: the dead mount that is left there answers nobody. */
    bool stays_mounted = is_still_mounted(c);
    if (stays_mounted && c->can_unmount)
        stays_mounted = unmounter_try(c->slot, true) < 0;
    control_say(c, LINE_NOTE, "%s", summary_line(counters, line, sizeof(line)));
    layer_uncover(c->slot, true); /* with the mount gone, only to count */
    if ((told = layer_told(counters, text)))
        control_say(c, LINE_NOTE, "%s", told);
    remove_slot(c->slot, stays_mounted);
}

int control_serve(struct control *c, struct session *session)
{
    sigset_t wanted;

    c->session = session;
    c->has_given_owner = c->owner.pid != 0;
    c->signal_fd = c->folder_fd = -1;
    c->ending = (struct ending){.idle_ns = c->options->idle_s * SECOND_NS};
    wanted_signals(is_in_foreground(c), &wanted);
    if (has_files(c))
        watch_folder(c);
    else
        c->signal_fd = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK);
    if (!has_files(c) && c->signal_fd < 0)
        control_say(c, LINE_ERROR, "signals can't be read: %s", fault_errno(errno));
    if (session)
        session_serve(session);
    if (!c->owner.pid && c->slot->counters->owners)
        find_owner(c);
    serve_until_ended(c);
    /* The last look at the archive (archive_watch.c) would wait behind the copier's reads. */
    bool is_stuck = c->stage && stage_stop(c->stage) < 0;
    end_serving(c);
    if (c->stage) /* the copy is removed with its last mount; a child may be about to list */
        stage_abandon(c->stage, true);
    if (session)
        control_stop(session, c->stop, 0);
    if (is_stuck)
        _exit(0); /* the stuck thread still reads through the copy */
    cleanup_closep(&c->signal_fd);
    cleanup_closep(&c->folder_fd);
    process_watch_close(&c->owner);
    process_watch_close(&c->wrapper);
    return 0;
}
