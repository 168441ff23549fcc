/*
 * From an archive to a mount that answers: what mount and run have in common.
 *
 *     struct mounter m;
 *     mounter_init(&m, &options, for_run);
 *     mounter_start(&m)      finds a mount of this job step to share, or makes one
 *     ... m.path ...
 *     mounter_keep(&m)       the mount is in somebody's hands now, and lives without us
 *     mounter_serve(&m)      mount -f: be its daemon until it ends
 *     mounter_release(&m)    run: the last one out unmounts
 *     mounter_free(&m)
 *
 * Order of things when one is made: the slot first (whoever wants the same waits for
 * its lock), the archive, the mount, and then the daemon is forked, starts its threads
 * and says that it is ready; last the mount is asked whether it answers. A failure
 * anywhere before leaves nothing.
 */
#ifndef ONEPOT_MOUNTER_H
#define ONEPOT_MOUNTER_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "control.h"
#include "detach.h"
#include "job.h"
#include "mount_options.h"
#include "mountpoint.h"
#include "namespace.h"
#include "pot.h"
#include "read_order.h"
#include "reader.h"
#include "recorder.h"
#include "stage.h"
#include "state.h"

struct mounter {
    const struct mount_options *options;
    bool for_run;
    /* run: starts the command in a private namespace, where nothing else can be done. */
    void (*launch)(void *ctx);
    void *launch_ctx;

    char path[PATH_MAX]; /* the mount point; "/dev/fd/N" if a parent mounted */
    struct slot *slot;
    bool shared;     /* a mount that was there already */
    bool is_private; /* run: in a namespace of its own, whatever else is possible */
    /* Then: what is at --at for others, and by whom; "" where that is not the reason. */
    char taken[2 * PATH_MAX];
    pid_t daemon;        /* run: the daemon, if it is a child of this process; else 0 */
    struct namespace ns; /* run: where it is mounted, unless for all to see */

    /* ---- of mounter*.c ---- */
    struct inherited inherited;
    struct job job;
    char at[PATH_MAX];      /* canonical --at, or "" */
    char archive[PATH_MAX]; /* canonical */
    struct source_identity identity;
    uint64_t options_hash;
    unsigned methods;
    enum mount_method method; /* 0: not mounted (yet) */
    struct mount_request request;
    struct control_log log;
    struct process_watch owner;
    struct pot *pot;
    struct stage *stage; /* --stage; NULL: none */
    struct reader *reader;
    uint64_t cache_bytes; /* that it may have, if it is alone in the job */
    uint32_t root;
    struct read_order *order;  /* --order */
    struct recorder *recorder; /* --record; the session's, once that starts */
    int fuse_fd;               /* -1 before it is mounted and when the daemon has it */
    int parent_fd;             /* /dev/fuse that a parent mounted; -1: none */
    int daemon_sock;
    int daemon_lock_fd;      /* mount -f */
    struct session *session; /* mount -f */
};

/*
 * First thing in a command: notes what it inherited, and catches signals that should
 * end it (INT, TERM, HUP), so that it can clean up before.
 */
int mounter_init(struct mounter *m, const struct mount_options *options, bool for_run);

/* CLI_GO_ON, or the exit status after an error was printed. */
int mounter_start(struct mounter *m);

/* The signal that asked this process to end since mounter_init; 0: none. */
int mounter_caught(void);

/* Without it the mount ends with this process. CLI_FAILED if the daemon died meanwhile. */
int mounter_keep(struct mounter *m);

/* mount -f: until it ended; the exit status. */
int mounter_serve(struct mounter *m);

/* What has become of the mount that a `run` used. */
enum mounter_end {
    MOUNTER_ENDED, /* unmounted, or others go on with it */
    MOUNTER_DIED,  /* its daemon was gone before */
};
enum mounter_end mounter_release(struct mounter *m);

/* Undo what was begun: also after a failure. */
void mounter_abandon(struct mounter *m);
void mounter_free(struct mounter *m);

#endif
