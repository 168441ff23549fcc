/*
 * The FUSE session: threads that answer the kernel's requests for one mount. Only this folder
 * includes FUSE headers.
 *
 * The caller mounts (mountpoint.h), hands over the descriptor of /dev/fuse, and gets a running
 * session. The caller keeps the life cycle: signals, owner, idle time.
 */
#ifndef ONEPOT_SESSION_H
#define ONEPOT_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "counters.h"
#include "fault.h"
#include "feature.h"
#include "fileset.h"
#include "reader.h"
#include "known_reads.h"
#include "stage.h"

struct session;

struct session_config {
    int fuse_fd; /* a mounted /dev/fuse; the session closes it */
    struct fileset *fileset;
    struct reader *reader;
    struct stage *stage;  /* the copy that the fileset is read through; NULL: none */
    const char *job;      /* job whose block caches share one budget; NULL: none */
    uint64_t cache_bytes; /* of this reader, if fixed; else of all block caches of the job */
    bool cache_is_fixed;
    uint32_t root; /* entry shown as the root (--subdir); INDEX_ROOT: all */
    struct counters *counters;
    unsigned threads;      /* how many may answer at once; 0: as many as allowed CPUs */
    bool verify;           /* compare files with their sums before they are served */
    unsigned io_timeout_s; /* a read that takes longer is answered with EIO; 0: never */
    /*
     * Mount point as this process sees it; NULL: it does not. `is_elsewhere`: processes of this
     * user may, in other namespaces. How many bytes may be read into the page cache ahead of
     * readers; 0: no read-ahead.
     */
    const char *mountpoint;
    bool is_elsewhere;
    uint64_t readahead_bytes;
    /*
     * `order`: a known order of reads (--order), or NULL. `recorder`: where reads are recorded
     * (--record), or NULL; a session that starts takes it over. `seed`: of shuffles.
     */
    struct known_reads *order;
    struct recorder *recorder;
    uint64_t seed;
    bool access_lists; /* the kernel checks permissions, including the archive's ACLs */
    bool override_uid, override_gid;
    uint32_t uid, gid; /* shown as owner of every entry: --uid, --gid */
    bool is_covered;   /* a layer lies over it (layer.h): see "Layers" in intercept.h */
    /*
     * That layer is a user's, whom the kernel checks: shown are no attributes that only root
     * may give to a copy of a file, and the user may read all, as without a layer.
     */
    bool is_users_layer;
    /* Called with one line for the log, from any thread. May be NULL. */
    void (*log)(void *ctx, const char *line);
    void *log_ctx;
    const struct feature *const *features; /* in order, with NULL at the end: see feature.h */
};

/*
 * Start the threads and wait until the kernel's INIT is answered. Call it after the process has
 * daemonised. On failure the descriptor is closed.
 */
int session_start(const struct session_config *config, struct fault *fault,
                  struct session **ret_session);

/* Readable (poll) once the kernel has ended the connection: unmounted or aborted. */
int session_ended_fd(const struct session *session);

/* Is it there? This tells sooner: nobody may have noticed the end yet. */
bool session_is_connected(const struct session *session);

/* Copy the block cache's counts into the counters. */
void session_update_counters(struct session *session);

/* The mount is announced, and the programs that it needs have been started. */
void session_serve(struct session *session);

/*
 * The mount has ended: release its share of the job's memory to others, and have the archive
 * looked at for the last time.
 */
void session_give_back(struct session *session);

/*
 * Log one line, which `onepot stat` shows as the last error; from any thread. One that makes
 * reads fail says "ARCHIVE: what happened; what to do". The first of each such kind is kept for
 * the user's eyes: `run`, the closing line, stat, doctor.
 */
void session_trouble(struct session *session, enum counter_trouble kind, const char *format,
                     ...) __attribute__((format(printf, 3, 4)));
#define session_log(session, ...) session_trouble(session, TROUBLE_KINDS, __VA_ARGS__)

/* Log one line that is not an error. */
void session_note(struct session *session, const char *line);

/*
 * The archive's bytes no longer match its index. From now on every read that reaches the
 * session gets EIO, since wrong bytes are worse than none. From any thread.
 */
void session_distrust(struct session *session);

/*
 * Stop and free. Returns -EBUSY if threads are stuck in a read; these are left behind, since
 * the process is about to exit. If the kernel has not ended the connection (`connected`), the
 * workers, which wait for its requests, are left behind too.
 */
int session_stop(struct session *session, bool connected);

/* Mount options that the session needs: as READER_SPAN_MAX in INIT. */
#define SESSION_MOUNT_OPTIONS "max_read=1048576"

#endif
