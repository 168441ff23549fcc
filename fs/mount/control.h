/*
 * The daemon's life once it serves: when it ends, and how. The session's threads answer
 * requests; the main thread runs here.
 *
 * A mount ends by umount(8) or `onepot umount` from outside: the kernel closes the connection,
 * and the daemon exits. Or it is asked to end: by SIGTERM (which a batch system sends to all
 * processes of a job at once, while the trainer still writes its checkpoint), by its owner's
 * end, or by disuse. Then it drains: it keeps serving until nobody has sent a request for two
 * seconds, no `run` uses it, and an unmount that is not lazy succeeds. A successful unmount
 * alone proves too little, since cached files are opened and closed without a request. But the
 * kernel asks for the directories of the root again each second, and that is a request.
 *
 * A mount made by a parent (a container runtime) can't be unmounted from here. It ends by
 * closing the device, once nobody has sent a request for two seconds or the grace period is
 * over. Its parent waits for that, and unmounts.
 */
#ifndef ONEPOT_CONTROL_H
#define ONEPOT_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

#include "mount_options.h"
#include "process.h"
#include "session.h"
#include "state.h"

/* Destination of the daemon's lines. */
struct control_log {
    int fd;           /* of --log; -1: none */
    bool stderr_too;  /* in the foreground */
    uint64_t told_ns; /* when it was last told of progress (mounter_archive.c) */
};
/* Log one line, with the time in a log file; from any thread. `log` is a struct control_log. */
void control_log(void *log, const char *line);

/* ---- when it ends ---- */

/*
 * When a mount ends: the decisions, without a clock and without a mount. Times are
 * nanoseconds of one clock, which the caller has read.
 */

#define SECOND_NS UINT64_C(1000000000)
#define ENDING_QUIET_NS (2 * SECOND_NS) /* without a request: nobody reads */

enum ending_phase {
    ENDING_SERVING,
    ENDING_DRAINING,
    ENDING_UNMOUNTED, /* detached; processes that still have a file open are served */
};

struct ending {
    enum ending_phase phase;
    uint64_t idle_ns;     /* end after so long without use; 0: never */
    uint64_t deadline_ns; /* end of draining; 0: none */
    uint64_t retry_ns;    /* next attempt to unmount */
    int interrupts;       /* how often a person has pressed Ctrl-C */
};

/*
 * It is asked to end, within `limit_ns` (0: no limit). The first of several limits counts.
 * True: it was not ending yet.
 */
bool ending_begin(struct ending *ending, uint64_t now_ns, uint64_t limit_ns);

/*
 * A person asks: first with the grace period, then with three seconds, then at once. Returns
 * false for at once; else *ret_limit_ns is for ending_begin.
 */
bool ending_interrupt(struct ending *ending, uint64_t grace_ns, uint64_t *ret_limit_ns);

enum ending_step {
    ENDING_WAIT,
    ENDING_TRY,    /* to unmount, unless it is in use */
    ENDING_DETACH, /* even if it is */
};

/* Decide what to do now. `last_ns`: the last use. */
enum ending_step ending_next(const struct ending *ending, uint64_t now_ns, uint64_t last_ns);

/* An attempt to unmount is made now; schedule the next one. */
void ending_tried(struct ending *ending, uint64_t now_ns);

/*
 * How many milliseconds nothing has to be done unless something happens; -1: for ever.
 * `must_look`: something must be looked at that can't be waited for.
 */
int ending_patience_ms(const struct ending *ending, uint64_t now_ns, uint64_t last_ns,
                       bool must_look);

/* ---- the daemon ---- */

/* The daemon: how it is to serve, and how far it has come. */
struct control {
    const struct mount_options *options;
    struct slot *slot; /* with the daemon's own descriptors */
    /* Extracted files (slot->counters->extracted) have no session, and their daemon hears no
     * signal: a batch system sends one to all processes while the trainer still reads. */
    struct stage *stage; /* NULL: none; ends with the mount, threads, files and all */
    struct control_log *log;
    bool can_unmount;             /* false: mounted by a parent or in a private namespace */
    bool can_leave;               /* mounted by a parent: ends when this process ends */
    struct process_watch owner;   /* --owner, or nobody */
    struct process_watch wrapper; /* the `run` that started it, or nobody */
    int starter_fd; /* closed without a byte: nobody will learn of the mount; or -1 */

    /* ---- of control.c ---- */
    struct session *session;
    bool has_given_owner; /* else it was found */
    int signal_fd;
    int folder_fd; /* of extracted files: tells of names that go from their folder */
    struct ending ending;
    bool orphaned; /* made by a `run` that has ended */
    bool has_lost_layer;
    bool stop; /* end at once, whatever its users lose */
};

/*
 * Set signals up for a daemon, blocked where control_serve reads them. SIGBUS is handled too: a
 * page of an index whose file was truncated then reads as zeros, which the index's own checks
 * detect. Call it before any thread is started.
 */
void control_prepare(bool foreground);

/*
 * Serve until the kernel has ended the connection. Then stop the session (within a bound, even
 * if threads are stuck in a read), log a summary, and remove the slot. If it returns, the
 * process may end in its usual way, with status 0.
 */
int control_serve(struct control *control, struct session *session);

/*
 * Stop a session, within a bound. If threads are stuck in a read, or the session is still
 * `connected`, they stay behind, and the process ends here with this exit status.
 */
void control_stop(struct session *session, bool connected, int status);

#endif
