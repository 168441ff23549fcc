/*
 * The daemon's life once it serves: when it ends, and how. The threads of the session
 * answer requests; the main thread sits here.
 *
 * A mount ends by umount(8) or `onepot umount` from outside: the kernel closes the
 * connection, and the daemon goes. Or it is asked to end: by SIGTERM (which a batch
 * system sends to all processes of a job at once, while the trainer still writes its
 * checkpoint), by the end of its owner, by want of use. Then it drains: it goes on
 * serving until nobody has sent a request for two seconds, no `run` uses it, and an
 * unmount that is not lazy succeeds. An unmount alone proves too little, since cached
 * files are opened and closed without a request; but the directories of the root are
 * asked for again each second, and that is a request.
 *
 * What a parent has mounted (a container runtime) can't be unmounted from here. Such a mount
 * ends, when nobody has sent a request for two seconds or the grace is over, by closing the
 * device: its parent waits for that, and unmounts.
 */
#ifndef ONEPOT_CONTROL_H
#define ONEPOT_CONTROL_H

#include <stdbool.h>

#include "process.h"
#include "session.h"
#include "state.h"

/* Where the daemon's lines go. */
struct control_log {
    int fd;          /* of --log; -1: none */
    bool stderr_too; /* in the foreground */
};
/* One line, with the time in a log file; from any thread. `log` is a struct control_log. */
void control_log(void *log, const char *line);

struct control_config {
    struct slot *slot;   /* with descriptors of the daemon's own */
    struct pot *pot;     /* lives as long as the process */
    struct stage *stage; /* NULL: none; its threads end and its files go with the mount */
    const char *archive;
    struct control_log *log;
    bool foreground;
    bool can_unmount;             /* false: mounted by a parent or in a private namespace */
    bool can_leave;               /* mounted by a parent: its end is that of this process */
    unsigned grace_s;             /* after a signal; 0: 5 where it can leave, else no limit */
    unsigned idle_s;              /* 0: for ever */
    struct process_watch owner;   /* --owner, or nobody */
    struct process_watch wrapper; /* the `run` that started it, or nobody */
    int starter_fd; /* the end of it without a byte: nobody will know of the mount; or -1 */
};

/*
 * Signals as a daemon wants them, blocked where control_serve reads them; and SIGBUS: a
 * page of an index whose file was cut short reads as zeros then, which the index's own
 * checks find. Before any thread is started.
 */
void control_prepare(bool foreground);

/*
 * Serve until the kernel has ended the connection, then stop the session (bounded, also
 * where threads are stuck in a read), say what it has done, and remove the slot. If it
 * returns at all, the process may end in its usual way; status 0.
 */
int control_serve(const struct control_config *config, struct session *session);

/*
 * Stop a session, within a bound: threads that are stuck in a read stay behind, and the
 * process ends here, with status 0. So it does where the session is `connected` still.
 */
void control_stop(struct session *session, bool connected);

#endif
