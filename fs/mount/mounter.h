/*
 * From an archive to a mount that answers, or to plain files (--extract): the part that mount
 * and run share.
 *
 *     struct mounter m;
 *     mounter_init(&m, &options, for_run);
 *     mounter_start(&m)      finds a mount of this job step to share, or makes one
 *     ... m.path ...
 *     mounter_keep(&m)       the mount now lives on without this process
 *     mounter_serve(&m)      mount -f: be its daemon until it ends
 *     mounter_release(&m)    run: the last one out unmounts
 *     mounter_free(&m)
 *
 * Order of steps when a mount is made: first the slot (others who want the same mount wait for
 * its lock), the archive, and the mount. Then the daemon is forked, starts its threads and
 * reports that it is ready. Last, the mount is asked whether it answers. A failure at any
 * earlier step leaves nothing behind.
 */
#ifndef ONEPOT_MOUNTER_H
#define ONEPOT_MOUNTER_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "share.h"
#include "control.h"
#include "detach.h"
#include "job.h"
#include "layer.h"
#include "mount_options.h"
#include "mountpoint.h"
#include "fileset.h"
#include "known_reads.h"
#include "reader.h"
#include "stage.h"
#include "state.h"

struct mounter {
    const struct mount_options *options;
    bool for_run;
    /* run: starts the command if the mount is in a private namespace. */
    void (*launch)(void *ctx);
    void *launch_ctx;

    char path[PATH_MAX]; /* the mount point; "/dev/fd/N" if a parent mounted */
    struct slot *slot;
    bool shared;     /* the mount existed already */
    bool waits;      /* another process makes it */
    bool is_private; /* run: in its own namespace, even if others are possible */
    /* If so: the mount that others see at --at, and its owner; "" if that is not the reason. */
    char taken[2 * PATH_MAX];
    pid_t daemon; /* run: the daemon, if it is a child of this process; else 0 */
    /* The mount, and run: the namespace that it is in, unless all see it. */
    struct mounted mounted;

    /* ---- of mounter*.c ---- */
    struct inherited inherited;
    struct job job;
    char at[PATH_MAX];             /* canonical --at, or "" */
    struct layer layer;            /* --writable */
    char extract_folder[PATH_MAX]; /* of the slot, with --extract=DIR; "": any */
    char view[PATH_MAX];           /* run: where a layer in DIR is shown; "": as without DIR */
    struct archive_list archives;
    char archive[PATH_MAX]; /* canonical; of several, as mount_options.archive */
    struct source_identity identity;
    uint64_t options_hash;
    unsigned methods;
    struct mount_request request;
    struct control_log log;
    struct process_watch owner;
    int holder; /* mount: this command's number (holders.h) */
    struct fileset *fileset;
    struct stage *stage; /* --stage; NULL: none */
    struct reader *reader;
    uint64_t cache_bytes; /* its share if it is alone in the job */
    uint32_t root;
    uint64_t claim_bytes;         /* --extract: of memory that the files take */
    struct cli_progress progress; /* --extract */
    struct known_reads *order;    /* --order */
    struct recorder *recorder;    /* --record; belongs to the session once that starts */
    int parent_fd;                /* /dev/fuse that a parent mounted; -1: none */
    int daemon_sock;              /* from starter to daemon and back; -1: mount -f */
    /* Only in the daemon: */
    int daemon_lock_fd;
    struct session *session;
    struct claim *claim; /* of extracted files */
};

/*
 * Call this first in a command. Notes inherited descriptors, and catches signals that should
 * end the command (INT, TERM, HUP), so that it can clean up first.
 */
int mounter_init(struct mounter *m, const struct mount_options *options, bool for_run);

/* CLI_GO_ON, or the exit status after an error was printed. */
int mounter_start(struct mounter *m);

/*
 * The variables by which readers of the mount read without it (preload.h), or, where the
 * options or the archive say so, do not. Values are for free(3); NULL: the variable is unset.
 * Prints a note if there is no place for the library. `command` is about to be started; NULL: a
 * shell will start several. -ENOMEM.
 */
struct mounter_variable {
    const char *name; /* NULL: there is none */
    char *value;
};
#define MOUNTER_VARIABLES 5
int mounter_preload(const struct mounter *m, const char *command,
                    struct mounter_variable ret[MOUNTER_VARIABLES]);

/* The signal that asked this process to end since mounter_init; 0: none. */
int mounter_caught(void);

/* Without this the mount ends with this process. CLI_FAILED if the daemon died meanwhile. */
int mounter_keep(struct mounter *m);

/* mount -f: serve until the mount ends; returns the exit status. */
int mounter_serve(struct mounter *m);

/* How the mount that a `run` used ended. */
enum mounter_end {
    MOUNTER_ENDED, /* unmounted */
    MOUNTER_STAYS, /* others keep using it */
    MOUNTER_DIED,  /* its daemon was already gone */
};
enum mounter_end mounter_release(struct mounter *m);

/* Undo all steps taken so far; also after a failure. */
void mounter_abandon(struct mounter *m);
void mounter_free(struct mounter *m);

/*
 * ---- between the files of the mounter ----
 *
 *   mounter.c         the order of steps, and how to undo them: the options' paths, a mount to
 *                     share or a new slot, plain files in place of a mount, the mount itself
 *   mounter_archive.c the archive, its reader and its copy; --order and --record
 *   mounter_daemon.c  the daemon: forked, or this process
 */

/*
 * Open the archive, its reader and the files of --order and --record, and describe the archive
 * in the counters. 0, or CLI_FAILED.
 */
int mounter_open_archive(struct mounter *m);

/*
 * Start the daemon for a new mount, and wait until it serves. 0, or CLI_FAILED after an error
 * was printed.
 */
int mounter_start_daemon(struct mounter *m);

/* Does it show several archives as one tree? */
static inline bool mounter_is_union(const struct mounter *m)
{
    return m->archives.count > 1 || cli_together.each;
}

#endif
