/*
 * What the files of the session share: the session, its workers, a request and the
 * ways to answer it. Not seen outside this folder.
 *
 *   session.c   start, INIT (by libfuse), stop
 *   loop.c      which worker waits for the next request, and on which CPU
 *   ops.c       one short function for each request of a read-only tree
 *   reply.c     the wire format of answers
 *   watchdog.c  reads that stall
 *   trouble.c   reads of the archive that fail
 *   sums.c      --verify: no byte of a file that is not what was packed
 *   itself.c    .onepot/stat: what the mount tells of itself
 *   helper.c    processes of our own that go through the mount
 *   walk.c      directories are listed before a walk comes to them
 *   populate.c  what readers will ask for is brought in before they do, from this node
 *   foresee.c   the same from a distant archive, and by a known order
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
    int cpu; /* bound to it; -1: anywhere */
    int fd;  /* a clone of the session's device, or the device itself */
    bool owns_fd;
    pthread_t thread;
    bool started;

    void *buffer; /* requests come here */
    struct reader_scratch *scratch;
    void *reply_buffer; /* listings, paths, attributes */

    /* Whose turn it is, under session->turn_lock except `parked` itself. */
    _Atomic uint32_t parked;   /* futex: 1 while the worker must not take requests */
    bool blocked;              /* in something that may take long */
    bool dismissed;            /* the watchdog answered for it; until it comes back */
    bool last_resort;          /* all others are stuck: it refuses to read */
    unsigned calm;             /* requests since the last backlog */
    uint64_t done_ns;          /* when the last request was answered, */
    uint64_t took_ns;          /* and how long that took */
    unsigned since_follow;     /* requests since the reader's CPU was looked up */
    unsigned reads_noted;      /* by populate.c */
    struct observer *observer; /* of foresee.c; NULL: it does not look */

    /*
     * Counts up: odd while a request is in hand, even once somebody has the right to
     * answer it. Worker and watchdog compete for the step from odd to even.
     */
    _Atomic uint64_t turn;
    bool lost;               /* the watchdog was first */
    _Atomic uint64_t unique; /* of the request in hand */
    _Atomic uint64_t since_ns;
    _Atomic uint32_t position; /* entry it is about, for the log */
    struct counter_slot *slot;
};

#define SESSION_WORKERS_MAX 512u
#define LISTING_BYTES (64u << 10) /* reply_buffer: a listing goes on where one answer ends */

/* A read that the watchdog answered, or that was tried for long and failed. */
struct just_stalled {
    uint32_t position;
    uint64_t at_ns; /* 0: nothing */
};
#define JUST_STALLED_MAX 64u

struct session {
    struct session_config config;
    const struct index *index;
    struct fuse_session *fuse; /* libfuse's: INIT alone */
    int libfuse_fd;            /* our end of the socket that it takes for the device */
    int fd;
    int ended_fd; /* eventfd */
    bool no_open, no_opendir;
    struct sums *sums; /* NULL: nothing is compared */
    size_t buffer_bytes;

    pthread_mutex_t turn_lock;
    struct worker *workers[SESSION_WORKERS_MAX];
    unsigned worker_count; /* grows, never shrinks */
    unsigned bound_count;  /* the first so many are bound, one to each allowed CPU */
    /* Written under turn_lock, read without it as a hint. */
    _Atomic unsigned active;  /* not parked */
    _Atomic unsigned blocked; /* active, but in something that may take long */
    unsigned running_max;     /* --threads */
    int cpu_worker[1024];     /* the worker bound to a CPU, or -1 */

    struct itself *itself; /* NULL: there is no .onepot */
    struct told *told;
    struct share *share;       /* NULL: with nobody */
    struct populate *populate; /* NULL: nothing is read ahead */
    struct walk *walk;         /* NULL: nothing is listed ahead */
    struct ahead *ahead;       /* NULL: nothing is read ahead or recorded */

    pthread_mutex_t helper_lock;
    bool helpers_stopped;
    _Atomic int32_t helpers[COUNTERS_AHEAD]; /* processes; 0: none */
    char root_path[4096]; /* path in the index of what is shown as the root */
    size_t root_len;

    pthread_mutex_t log_lock;
    unsigned log_room;             /* lines that may be written now */
    uint64_t log_since_ns;         /* when that was so */
    uint64_t log_left_out;         /* lines since the last one */
    pthread_mutex_t counters_lock; /* of those that are written now and then */
    pthread_t watchdog;
    bool watchdog_started;
    _Atomic uint32_t watchdog_armed; /* futex: 0 while it sleeps for want of work */
    _Atomic bool ended;
    _Atomic bool distrusted; /* see session_distrust */
    _Atomic uint64_t stalls;
    struct just_stalled just_stalled[JUST_STALLED_MAX]; /* under turn_lock */
    unsigned next_stalled;
    _Atomic uint64_t stalled_ns;                    /* when the last one was; 0: never */
    _Atomic uint64_t retry_told_ns, retries_silent; /* of trouble.c */
    bool stream_failure_told;                       /* under counters_lock */
};

/* A request in a worker's hands. */
struct request {
    struct worker *worker;
    const struct fuse_in_header *header;
    const void *arg;
    size_t arg_len;
    uint64_t received_ns;
    bool own;    /* of a helper, not of a reader */
    bool unseen; /* of itself.c: not counted */
};

/* The position that a node id of the kernel stands for; -ESTALE for one that can't be. */
int request_position(const struct request *rq, uint32_t *ret_position);

/* ops.c: answer one request. */
void ops_dispatch(struct request *rq);

/* reply.c. Each request that wants an answer gets exactly one. `err` is -errno or 0. */
void reply_error(struct request *rq, int err);
void reply_bytes(struct request *rq, const void *bytes, size_t len);
/* iov[0] is left free for the header. */
void reply_iov(struct request *rq, struct iovec *iov, int count);
void reply_none(struct request *rq);
/* EIO in place of a worker that stalls on `turn`; -EALREADY if it answered after all. */
int reply_for_stalled(struct worker *worker, uint64_t turn, uint64_t unique);
/* Fill attributes as the kernel wants them. */
int reply_fill_attr(const struct session *session, uint32_t position,
                    struct fuse_attr *ret_attr);
/* An entry of `parent` for LOOKUP and READDIRPLUS, with its time-outs. */
int reply_fill_entry(const struct session *session, uint32_t parent, uint32_t position,
                     struct fuse_entry_out *ret_entry);
#define VALID_FOREVER_S (UINT64_C(1) << 31)
uint64_t reply_nodeid(const struct session *session, uint32_t inode_position);

/* loop.c */
int loop_start(struct session *session);
void *loop_worker(void *worker);
/* This worker may be gone for long: another one takes over. Called by the read path. */
void loop_about_to_wait(void *worker);
/* The watchdog answered for this worker. Under turn_lock. */
void loop_dismiss_locked(struct worker *worker);
/*
 * One more worker that takes requests: a bound one, an idle extra, or a new one. -ESHUTDOWN
 * after loop_end, from when on there are no new ones.
 */
int loop_wake_another_locked(struct session *session);
/* Let somebody wait for requests if nobody does. Under turn_lock. -EAGAIN: all are stuck. */
int loop_ensure_waiter_locked(struct session *session);
void loop_end(struct session *session);

/*
 * helper.c. The work is done in a child, which has nothing of the daemon's but its memory as it
 * was, and what is mapped shared; it may neither lock nor allocate.
 */
enum helper_outcome {
    HELPER_PAUSED, /* nobody reads */
    HELPER_DONE,   /* there is nothing left that could be done */
    HELPER_FULL,   /* what it may use is used up */
    HELPER_FAILED,
};
typedef enum helper_outcome helper_work(void *arg, int root_fd);
enum { HELPERS_POPULATE = COUNTERS_AHEAD - 1, HELPER_WALK = HELPERS_POPULATE }; /* slots */
int helper_prepare(struct session *session); /* -ENAMETOOLONG: it lies too deep for them */
/* helper_await has to follow. After helper_end_all it only seems to. */
void helper_start(struct session *session, unsigned slot, helper_work *work, void *arg);
enum helper_outcome helper_await(struct session *session, unsigned slot);
bool helper_is(const struct session *session, uint32_t pid);
void helper_end_all(struct session *session);
/* In the child: a descriptor, or -1. */
int helper_open_directory(const struct session *session, int root_fd, uint32_t directory);

/* walk.c. -ENOMEM, -EAGAIN. */
int walk_start(struct session *session);
/* Somebody begins to list this directory, or goes on. */
void walk_note(const struct request *rq, uint32_t directory, bool begins);
void walk_end(struct session *session);
int walk_join(struct session *session, const struct timespec *until);
void walk_release(struct session *session); /* after it was joined */

/* populate.c. Errors: -ENOMEM, -EAGAIN. */
int populate_start(struct session *session);
/* A reader had to ask for the file at this position. */
void populate_note_read(struct worker *worker, uint32_t position);
/* The kernel was told names and attributes of the entries [from, to). */
void populate_note_listing(const struct session *session, uint32_t from, uint32_t to);
void populate_end(struct session *session);
int populate_join(struct session *session, const struct timespec *until);
void populate_release(struct session *session); /* after it was joined */

/* told.c: what listings make the kernel keep. -ENOMEM. */
int told_start(struct session *session);
void told_free(struct told *told); /* NULL is fine */
/* May a listing tell attributes, too? */
bool told_may_more(const struct session *session);
/* It did, of the entries [from, to). */
void told_note(const struct session *session, uint32_t from, uint32_t to);

/* share.c: the budget of the block cache, beside others of the job. */
int share_start(struct session *session);
void share_stop(struct session *session);

/* foresee.c. Errors: -ENOMEM, -EAGAIN. */
int foresee_start(struct session *session);
/* Before a worker answers its first request. */
int foresee_worker(struct worker *worker);
/* A reader asks for a part of the file at this position. */
void foresee_note(const struct request *rq, uint32_t position, uint64_t offset, uint32_t len);
void foresee_update_counters(struct session *session);
void foresee_end(struct session *session);
int foresee_join(struct session *session, const struct timespec *until);
void foresee_release(struct session *session); /* after it was joined */

/* sums.c. Only where session->sums is there. */
int sums_start(struct session *session);
void sums_free(struct sums *sums); /* NULL is fine */
/*
 * Before [offset, offset + len) of a file is answered: 0, or -EBADMSG as it is not what
 * was packed, or an error of reading. May take as long as reading all of it. With *ret_later
 * the bytes that are about to be sent have to pass sums_check_span.
 */
int sums_check(struct worker *worker, uint32_t position, uint64_t offset, size_t len,
               bool *ret_later);
int sums_check_span(struct worker *worker, uint32_t position, const struct span *span);

/* itself.c */
int itself_start(struct session *session);
void itself_free(struct itself *itself); /* NULL is fine */
/* A name in the root that the archive does not have. True: it was this one, and answered. */
bool itself_lookup(struct request *rq, const char *name, size_t len);
/* True: the request was about one of its nodes, and is answered. */
bool itself_answers(struct request *rq);

/* trouble.c */
void trouble_start(struct session *session);
void trouble_update_counters(struct session *session);
void trouble_end(struct session *session); /* nobody waits to try again any more */

/* watchdog.c */
int watchdog_start(struct session *session);
void watchdog_arm(struct session *session);
uint64_t watchdog_last_request(const struct session *session); /* of a reader */
/*
 * Was a read of this file answered with EIO a moment ago, after a long time? The kernel reads
 * ahead, and asks once more for the page that a reader waits for: he shall not wait twice. Once
 * for each read that stalled.
 */
bool watchdog_just_stalled(struct session *session, uint32_t position);
/* A read that was received then has failed, and is about to be answered so. */
void watchdog_note_failure(struct session *session, uint32_t position, uint64_t began_ns);

#endif
