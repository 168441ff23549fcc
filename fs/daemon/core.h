/*
 * The core of the daemon: the session, its workers, a request and the ways to answer it. For
 * the files of this folder and for features (feature.h).
 *
 *   session.c   what kernel and daemon agree on (INIT), start, stop, lines for the mount's log;
 *               which worker waits for the next request, and on which CPU
 *   ops.c       one short function for each request of a read-only tree
 */
#ifndef ONEPOT_CORE_H
#define ONEPOT_CORE_H

#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>
#include <time.h>

#include "feature.h"
#include "session.h"

#ifndef FOPEN_NOFLUSH /* headers before Linux 5.16 */
#define FOPEN_NOFLUSH (1u << 5)
#endif
#ifndef FUSE_NO_OPENDIR_SUPPORT /* headers before Linux 5.1 */
#define FUSE_NO_OPENDIR_SUPPORT (1u << 24)
#endif

struct worker {
    struct session *session;
    unsigned number;
    int cpu; /* CPU it is bound to; -1: none */
    int fd;  /* a clone of the session's device, or the device itself */
    pthread_t thread;
    bool started;

    void *buffer; /* requests come here */
    struct reader_scratch *scratch;
    void *reply_buffer; /* listings, paths, attributes: LISTING_BYTES */

    /* Whose turn it is. All under the loop's lock except `parked` itself. */
    _Atomic uint32_t parked; /* futex: 1 while the worker must not take requests */
    bool blocked;            /* in a call that may take long */
    bool dismissed;          /* the watchdog answered for it; cleared when it comes back */
    bool last_resort;        /* all others are stuck: it refuses reads */
    unsigned calm;           /* requests since the last backlog */
    uint64_t done_ns;        /* when the last request was answered */
    uint64_t took_ns;        /* and how long that took */
    unsigned since_follow;   /* requests since the reader's CPU was looked up */

    /*
     * Counts up. Odd while a request is in hand, even if the right to answer it has already
     * been claimed. Worker and watchdog compete for the step from odd to even.
     */
    _Atomic uint64_t turn;
    bool lost;               /* the watchdog won */
    _Atomic uint64_t unique; /* of the request in hand */
    _Atomic uint64_t since_ns;
    _Atomic uint64_t unpacked_ns; /* when it last did; UINT64_MAX: only CPU time is missing */
    _Atomic uint32_t position;    /* entry that the request is about, for the log */
    struct counter_slot *slot;
};

#define SESSION_WORKERS_MAX 512u
#define SESSION_CPUS_MAX 1024
#define LISTING_BYTES (64u << 10) /* a longer listing goes on in the next answer */

struct loop {
    pthread_mutex_t lock;
    struct worker *workers[SESSION_WORKERS_MAX];
    unsigned worker_count; /* grows, never shrinks */
    unsigned bound_count;  /* the first ones, bound one to each allowed CPU */
    /* Written under the lock; read without it as a hint. */
    _Atomic unsigned active;          /* not parked */
    _Atomic unsigned blocked;         /* active, but in a call that may take long */
    unsigned running_max;             /* --threads */
    int cpu_worker[SESSION_CPUS_MAX]; /* the worker bound to a CPU, or -1 */
};

struct session {
    struct session_config config;
    const struct index *index;
    int fd;
    int ended_fd;             /* eventfd */
    struct timespec made;     /* time of access of all entries (intercept.h) */
    bool no_open, no_opendir; /* the kernel can do without these requests */
    struct loop loop;
    struct {
        pthread_mutex_t lock; /* guards counters->last_error, too */
        unsigned room;        /* lines that may be written now */
        uint64_t since_ns;    /* when `room` was last set */
        uint64_t left_out;    /* lines left out since the last one written */
    } log;
    struct features features;
    struct features reading;       /* the ones among them that each READ meets */
    _Atomic uint32_t *file_marks;  /* of all entries (bits.h) */
    _Atomic uint32_t *own_marks;   /* the same, unless readers share them; else NULL */
    pthread_mutex_t counters_lock; /* guards the counters that are rarely written */
    _Atomic bool ended;
    _Atomic bool lists_ahead;      /* names of files, so that readers need not (ahead.c) */
    _Atomic bool distrusted;       /* see session_distrust */
    _Atomic unsigned shown_xattrs; /* has_xattrs in ops.c */
    /* Fetchers are outside of the mount's PID namespace, and so have no process ID there. */
    _Atomic bool nobody_is_fetcher;
};

/* A request in a worker's hands. */
struct request {
    struct worker *worker;
    const struct fuse_in_header *header;
    const void *arg;
    size_t arg_len;
    uint64_t received_ns;
    uint32_t position; /* of the entry that the kernel's node id stands for (ops_dispatch) */
    bool own;          /* from a process of ours (ahead.c), not from a reader */
    bool unseen;       /* it is not counted */
};

/* session.c */

/*
 * INIT, the first request of a FUSE connection: kernel and daemon agree on what both can do.
 *
 * The daemon answers it, as it answers all requests, without libfuse. That would save no line,
 * and versions before 3.17.1 forget FUSE_PARALLEL_DIROPS, with which the kernel looks names up
 * in parallel. ARCHITECTURE.md has the figures. libfuse's helper, fusermount3, does mount
 * (mountpoint/mountpoint.c).
 *
 * Fill in the answer to `in`. Returns how many bytes of it this kernel expects; or -EPROTO: the
 * kernel is too old. An answer to a major version above 7 holds only the version: the kernel
 * then asks again with version 7. `access_lists`: the kernel is to check permissions.
 */
int init_answer(const struct fuse_init_in *in, bool access_lists,
                struct fuse_init_out *ret_out);

/* An entry's path, or a number if it has none; in `buf`. */
#define LOG_PATH_MAX 4096u
/* The archive with an entry, for messages: of a union, the one that has its first byte. */
const char *log_archive(const struct session *session, uint32_t position);

const char *log_path(const struct session *session, uint32_t position, char buf[LOG_PATH_MAX]);
void log_read_error(struct session *session, uint32_t position, uint64_t offset, int err);

/* ops.c: answer one request. */
void ops_dispatch(struct request *rq);

/* May a file or folder of this mode be accessed so (access(2))? 0 or -errno. */
int ops_may_access(uint32_t mode, uint32_t mask);

/* A listing being filled with entries in the wire format, plain or with attributes. */
struct listing {
    char *buf;
    size_t size, len;
    bool plus;       /* the wire format has attributes */
    bool attributes; /* attributes are sent */
};
/*
 * Start a listing in the worker's reply_buffer, as long as a request of READDIR or READDIRPLUS
 * allows; and add an entry with a name of `len` bytes: 0, or -ENOSPC.
 */
struct listing listing_begin(const struct request *rq);
int listing_add(struct listing *l, uint64_t ino, uint32_t type, uint64_t next, const char *name,
                size_t len);

/* How many names the kernel may receive with their attributes (listing_budget.c). */
uint64_t listing_budget_entries(const struct session *session);

/* Each request that expects an answer gets exactly one. `err` is -errno or 0. */
void reply_error(struct request *rq, int err);
void reply_bytes(struct request *rq, const void *bytes, size_t len);
/* The error, if there is one, or else the bytes. */
void reply_result(struct request *rq, int err, const void *bytes, size_t len);
/* Answer EIO for a worker that stalls on `turn`; -EALREADY if it answered after all. */
int reply_for_stalled(struct worker *worker, uint64_t turn, uint64_t unique);
#define VALID_FOREVER_S (UINT64_C(1) << 31)

/* session.c: workers */
#define REQUEST_BYTES (READER_SPAN_MAX + 4096u) /* a worker's buffer */
/* This worker may be away for long, so another takes over. The read path calls it. */
void loop_about_to_wait(void *worker);
/* The watchdog answered for this worker. Under the loop's lock. */
void loop_dismiss_locked(struct worker *worker);
/*
 * Get one more worker to take requests: a bound one, an idle extra one, or a new one.
 * -ESHUTDOWN once the session ends.
 */
int loop_wake_another_locked(struct session *session);

/*
 * Decisions of the loop. Did a request wait while the last one was being answered, which took
 * `took_ns` and ended at `done_ns`?
 */
bool loop_has_waited(uint64_t took_ns, uint64_t done_ns, uint64_t received_ns);
/* Does a worker stop taking requests? `waiting`: how many take them, with this one. */
bool loop_steps_back(unsigned waiting, bool is_bound, unsigned calm);
/* How many workers there may be, when `stuck` of them don't come back. */
unsigned loop_workers_limit(unsigned bound, unsigned stuck, bool has_stream);
/* Field 39 of /proc/PID/stat: the CPU on which a thread last ran; -1 if it has none. */
int loop_parse_cpu(const char *stat);

#endif
