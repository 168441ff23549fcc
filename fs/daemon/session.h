/*
 * The FUSE session: threads that answer the kernel's requests for one mount. This
 * folder is the only code that includes FUSE headers.
 *
 * The caller mounts (mountpoint.h), hands over the descriptor of /dev/fuse, and gets
 * a running session; it keeps the life cycle (signals, owner, idle) to itself.
 */
#ifndef ONEPOT_SESSION_H
#define ONEPOT_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "counters.h"
#include "fault.h"
#include "pot.h"
#include "reader.h"
#include "read_order.h"
#include "recorder.h"
#include "stage.h"

struct session;

struct session_config {
    int fuse_fd; /* a mounted /dev/fuse; the session closes it */
    struct pot *pot;
    struct reader *reader;
    struct stage *stage;  /* that the pot is read through; NULL: none */
    const char *job;      /* whose block caches share what they may use; NULL: none */
    uint64_t cache_bytes; /* the reader's; of all block caches of the job, unless it is fixed */
    bool cache_is_fixed;
    uint32_t root; /* entry that is shown as the root: --subdir; INDEX_ROOT */
    struct counters *counters;
    unsigned threads;      /* at most so many answer at once; 0: the allowed CPUs */
    bool verify;           /* compare files with their sums before they are served */
    unsigned io_timeout_s; /* a read that takes longer is answered with EIO; 0: never */
    /*
     * Where it is mounted, as this process sees it, and how many bytes may be brought into
     * the page cache before readers ask; NULL or 0: none.
     */
    const char *mountpoint;
    uint64_t readahead_bytes;
    /*
     * An order of reads that is known (--order), or NULL; and where to write down what is read
     * (--record), taken over by a session that starts, or NULL. The seed of shuffles.
     */
    struct read_order *order;
    struct recorder *recorder;
    uint64_t seed;
    bool access_lists; /* the kernel checks permissions, by the archive's ACLs, too */
    bool override_uid, override_gid;
    uint32_t uid, gid; /* shown as owner of everything: --uid, --gid */
    /* Called with one line for the log, from any thread. May be NULL. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;
    /*
     * What there is to tell of the mount, for .onepot/stat, in memory that is freed by free(3);
     * from any thread. 0 or -errno. NULL: there is no such file.
     */
    int (*report)(void *ctx, bool json, char **ret_text, size_t *ret_len);
    void *report_ctx;
};

/*
 * Start the threads and wait until the kernel's INIT was answered. Must be called
 * after the process was daemonised. On failure the descriptor is closed.
 */
int session_start(const struct session_config *config, struct fault *fault,
                  struct session **ret_session);

/* Readable (poll) once the kernel ended the connection: unmounted or aborted. */
int session_ended_fd(const struct session *session);

/* Copy what the block cache counts into the counters. */
void session_update_counters(struct session *session);

/* The mount has ended: others may have its part of the job's memory. */
void session_give_back(struct session *session);

/* One line for the log, which `onepot stat` shows as the last error; from any thread. */
void session_log(struct session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* One that is no error. */
void session_note(struct session *session, const char *line);

/*
 * The archive holds other bytes than its index speaks of: from now on every read that
 * reaches the session is EIO, since wrong bytes are worse than none. From any thread.
 */
void session_distrust(struct session *session);

/*
 * Stop and free. Threads that are stuck in a read are left behind (the process is about to
 * exit): then it returns -EBUSY. So are, where the kernel has not ended the connection
 * (`connected`), the workers, which wait for its requests.
 */
int session_stop(struct session *session, bool connected);

/* Mount options that the session needs: "max_read=131072" and the like. */
const char *session_mount_options(void);

#endif
