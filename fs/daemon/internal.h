/*
 * Shared by the files of the session: the session, its workers, a request and the ways to
 * answer it. Nothing outside this folder includes it.
 *
 *   session.c   start, INIT (by libfuse), stop
 *   loop.c      which worker waits for the next request, and on which CPU
 *   ops.c       one short function for each request of a read-only tree
 *   reply.c     the wire format of answers
 *   watchdog.c  reads that stall
 *   trouble.c   reads of the archive that fail
 *   sums.c      --verify: serves only bytes that match what was packed
 *   itself.c    .onepot/stat: the mount's report on itself
 *   helper.c    our own processes that read through the mount
 *   walk.c      lists directories before a walk reaches them
 *   populate.c  fetches what readers will ask for, from an archive on this node
 *   foresee.c   the same from a distant archive, or by a known order
 */
#ifndef ONEPOT_DAEMON_INTERNAL_H
#define ONEPOT_DAEMON_INTERNAL_H

#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

#include "session.h"

struct worker {
    struct session *session;
    unsigned number;
    int cpu; /* CPU it is bound to; -1: none */
    int fd;  /* a clone of the session's device, or the device itself */
    bool owns_fd;
    pthread_t thread;
    bool started;

    void *buffer; /* requests come here */
    struct reader_scratch *scratch;
    void *reply_buffer; /* listings, paths, attributes */

    /* Whose turn it is. All under session->turn_lock except `parked` itself. */
    _Atomic uint32_t parked;   /* futex: 1 while the worker must not take requests */
    bool blocked;              /* in a call that may take long */
    bool dismissed;            /* the watchdog answered for it; cleared when it comes back */
    bool last_resort;          /* all others are stuck: it refuses reads */
    unsigned calm;             /* requests since the last backlog */
    uint64_t done_ns;          /* when the last request was answered */
    uint64_t took_ns;          /* and how long that took */
    unsigned since_follow;     /* requests since the reader's CPU was looked up */
    unsigned reads_noted;      /* used by populate.c */
    struct observer *observer; /* used by foresee.c; NULL: it does not observe */

    /*
     * Counts up. Odd while a request is in hand, even if the right to answer it has already
     * been claimed. Worker and watchdog compete for the step from odd to even.
     */
    _Atomic uint64_t turn;
    bool lost;               /* the watchdog won */
    _Atomic uint64_t unique; /* of the request in hand */
    _Atomic uint64_t since_ns;
    _Atomic uint32_t position; /* entry that the request is about, for the log */
    struct counter_slot *slot;
};

#define SESSION_WORKERS_MAX 512u
#define LISTING_BYTES (64u << 10) /* reply_buffer; longer listings go on in the next answer */

/* A read that the watchdog answered, or that was retried for long and failed. */
struct just_stalled {
    uint32_t position;
    uint64_t at_ns; /* 0: nothing */
};
#define JUST_STALLED_MAX 64u

struct session {
    struct session_config config;
    const struct index *index;
    struct fuse_session *fuse; /* libfuse's, for INIT only */
    int libfuse_fd;            /* our end of the socket that libfuse takes for the device */
    int fd;
    int ended_fd; /* eventfd */
    bool no_open, no_opendir;
    struct sums *sums; /* NULL: no sums are compared */
    size_t buffer_bytes;

    pthread_mutex_t turn_lock;
    struct worker *workers[SESSION_WORKERS_MAX];
    unsigned worker_count; /* grows, never shrinks */
    unsigned bound_count;  /* the first ones, bound one to each allowed CPU */
    /* Written under turn_lock; read without it as a hint. */
    _Atomic unsigned active;  /* not parked */
    _Atomic unsigned blocked; /* active, but in a call that may take long */
    unsigned running_max;     /* --threads */
    int cpu_worker[1024];     /* the worker bound to a CPU, or -1 */

    struct itself *itself; /* NULL: there is no .onepot */
    struct told *told;
    struct share *share;       /* NULL: shared with nobody */
    struct populate *populate; /* NULL: nothing is read ahead */
    struct walk *walk;         /* NULL: nothing is listed ahead */
    struct ahead *ahead;       /* NULL: nothing is read ahead or recorded */

    pthread_mutex_t helper_lock;
    bool helpers_stopped;
    _Atomic int32_t helpers[COUNTERS_AHEAD]; /* process IDs; 0: none */
    char root_path[4096]; /* path in the index of the entry shown as the root */
    size_t root_len;

    pthread_mutex_t log_lock;
    unsigned log_room;             /* lines that may be written now */
    uint64_t log_since_ns;         /* when log_room was last set */
    uint64_t log_left_out;         /* lines left out since the last one written */
    pthread_mutex_t counters_lock; /* guards the counters that are rarely written */
    pthread_t watchdog;
    bool watchdog_started;
    _Atomic uint32_t watchdog_armed; /* futex: 0 while it sleeps for want of work */
    _Atomic bool ended;
    _Atomic bool distrusted; /* see session_distrust */
    _Atomic uint64_t stalls;
    struct just_stalled just_stalled[JUST_STALLED_MAX]; /* under turn_lock */
    unsigned next_stalled;
    _Atomic uint64_t stalled_ns;                    /* when the last stall was; 0: never */
    _Atomic uint64_t retry_told_ns, retries_silent; /* used by trouble.c */
    bool stream_failure_told;                       /* under counters_lock */
};

/* A request in a worker's hands. */
struct request {
    struct worker *worker;
    const struct fuse_in_header *header;
    const void *arg;
    size_t arg_len;
    uint64_t received_ns;
    bool own;    /* from a helper, not from a reader */
    bool unseen; /* for itself.c: not counted */
};

/* The position that a node id of the kernel stands for; -ESTALE for an impossible id. */
int request_position(const struct request *rq, uint32_t *ret_position);

/* ops.c: answer one request. */
void ops_dispatch(struct request *rq);

/* reply.c. Each request that expects an answer gets exactly one. `err` is -errno or 0. */
void reply_error(struct request *rq, int err);
void reply_bytes(struct request *rq, const void *bytes, size_t len);
/* The caller leaves iov[0] free for the header. */
void reply_iov(struct request *rq, struct iovec *iov, int count);
void reply_none(struct request *rq);
/* Answer EIO for a worker that stalls on `turn`; -EALREADY if it answered after all. */
int reply_for_stalled(struct worker *worker, uint64_t turn, uint64_t unique);
/* Fill in attributes in the kernel's format. */
int reply_fill_attr(const struct session *session, uint32_t position,
                    struct fuse_attr *ret_attr);
/* Fill in an entry of `parent` for LOOKUP and READDIRPLUS, with its time-outs. */
int reply_fill_entry(const struct session *session, uint32_t parent, uint32_t position,
                     struct fuse_entry_out *ret_entry);
#define VALID_FOREVER_S (UINT64_C(1) << 31)
uint64_t reply_nodeid(const struct session *session, uint32_t inode_position);

/* loop.c */
int loop_start(struct session *session);
void *loop_worker(void *worker);
/* This worker may be away for long, so another takes over. The read path calls it. */
void loop_about_to_wait(void *worker);
/* The watchdog answered for this worker. Under turn_lock. */
void loop_dismiss_locked(struct worker *worker);
/*
 * Get one more worker to take requests: a bound one, an idle extra one, or a new one.
 * -ESHUTDOWN after loop_end, which allows no new workers.
 */
int loop_wake_another_locked(struct session *session);
/* Make a worker wait for requests if none does. Under turn_lock. -EAGAIN: all are stuck. */
int loop_ensure_waiter_locked(struct session *session);
void loop_end(struct session *session);

/*
 * helper.c. The work is done in a forked child. It has only a copy of the daemon's memory and
 * the shared mappings; it may neither lock nor allocate.
 */
enum helper_outcome {
    HELPER_PAUSED, /* readers have paused */
    HELPER_DONE,   /* no work is left */
    HELPER_FULL,   /* its allowance is used up */
    HELPER_FAILED,
};
typedef enum helper_outcome helper_work(void *arg, int root_fd);
enum { HELPERS_POPULATE = COUNTERS_AHEAD - 1, HELPER_WALK = HELPERS_POPULATE }; /* slots */
int helper_prepare(struct session *session); /* -ENAMETOOLONG: the shown root lies too deep */
/* Start a child. helper_await must follow, even after helper_end_all, when none is started. */
void helper_start(struct session *session, unsigned slot, helper_work *work, void *arg);
enum helper_outcome helper_await(struct session *session, unsigned slot);
bool helper_is(const struct session *session, uint32_t pid);
void helper_end_all(struct session *session);
/* In the child: returns a descriptor, or -1. */
int helper_open_directory(const struct session *session, int root_fd, uint32_t directory);

/* walk.c. Errors: -ENOMEM, -EAGAIN. */
int walk_start(struct session *session);
/* A reader begins to list this directory, or continues. */
void walk_note(const struct request *rq, uint32_t directory, bool begins);
void walk_end(struct session *session);
int walk_join(struct session *session, const struct timespec *until);
void walk_release(struct session *session); /* after walk_join */

/* populate.c. Errors: -ENOMEM, -EAGAIN. */
int populate_start(struct session *session);
/* A reader had to ask for the file at this position. */
void populate_note_read(struct worker *worker, uint32_t position);
/* The kernel has received names and attributes of the entries [from, to). */
void populate_note_listing(const struct session *session, uint32_t from, uint32_t to);
void populate_end(struct session *session);
int populate_join(struct session *session, const struct timespec *until);
void populate_release(struct session *session); /* after populate_join */

/* told.c: counts what listings make the kernel keep. Errors: -ENOMEM. */
int told_start(struct session *session);
void told_free(struct told *told); /* NULL is fine */
/* May a listing carry attributes, too? */
bool told_may_more(const struct session *session);
/* A listing carried the attributes of the entries [from, to). */
void told_note(const struct session *session, uint32_t from, uint32_t to);

/* share.c: the block cache's budget, shared with other caches of the job. */
int share_start(struct session *session);
void share_stop(struct session *session);

/* foresee.c. Errors: -ENOMEM, -EAGAIN. */
int foresee_start(struct session *session);
/* Called before a worker answers its first request. */
int foresee_worker(struct worker *worker);
/* A reader asks for a part of the file at this position. */
void foresee_note(const struct request *rq, uint32_t position, uint64_t offset, uint32_t len);
void foresee_update_counters(struct session *session);
void foresee_end(struct session *session);
int foresee_join(struct session *session, const struct timespec *until);
void foresee_release(struct session *session); /* after foresee_join */

/* sums.c. Call these only where session->sums is set. */
int sums_start(struct session *session);
void sums_free(struct sums *sums); /* NULL is fine */
/*
 * Called before [offset, offset + len) of a file is served. Returns 0, -EBADMSG if the file is
 * not what was packed, or a read error. May take as long as reading the whole file. If
 * *ret_later is set, the bytes about to be sent must pass sums_check_span.
 */
int sums_check(struct worker *worker, uint32_t position, uint64_t offset, size_t len,
               bool *ret_later);
int sums_check_span(struct worker *worker, uint32_t position, const struct span *span);

/* itself.c */
int itself_start(struct session *session);
void itself_free(struct itself *itself); /* NULL is fine */
/*
 * Look up a name in the root that the archive does not have. True: it is .onepot, and answered.
 */
bool itself_lookup(struct request *rq, const char *name, size_t len);
/* True: the request was about a node of itself.c, and is answered. */
bool itself_answers(struct request *rq);

/* trouble.c */
void trouble_start(struct session *session);
void trouble_update_counters(struct session *session);
void trouble_end(struct session *session); /* ends all waits before a retry */

/* watchdog.c */
int watchdog_start(struct session *session);
void watchdog_arm(struct session *session);
uint64_t watchdog_last_request(const struct session *session); /* a reader's last */
/*
 * Was a read of this file answered with EIO a moment ago, after a long time? The kernel reads
 * ahead, then asks again for the page that the reader waits for; the reader should not wait
 * twice. True once for each stalled read.
 */
bool watchdog_just_stalled(struct session *session, uint32_t position);
/* A read received at `began_ns` has failed; called before the error is sent. */
void watchdog_note_failure(struct session *session, uint32_t position, uint64_t began_ns);

#endif
