/*
 * Guards against storage that does not answer while a command opens an archive. A thread that
 * waits for a filesystem can't be called back, and a caught signal does not end the wait. So a
 * second thread ends the process, with a line that gives the reason.
 *
 *     storage_watch_begin(path, seconds, CLI_FAILED);
 *     ... open, stat, read; no new user namespace ...
 *     storage_watch_end();
 *     storage_watch_stop();
 *
 * A command watches several stretches of its work, one thread at a time. Starting a second
 * thread costs the first one two sleeps, so it stays from one stretch to the next, until
 * `stop`.
 *
 * The next start cleans up whatever was made on this node until then, as after a SIGKILL.
 */
#ifndef ONEPOT_STORAGE_WATCH_H
#define ONEPOT_STORAGE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* How long the watched thread has been in one call. Times are of one clock, in nanoseconds. */
struct storage_wait {
    unsigned timeout_s; /* for one call; 0: no limit */
    uint64_t waits;     /* how often it had slept at the last look: constant during one wait */
    uint64_t since_ns;  /* it has been in this call at least since then */
    uint64_t asked_ns;  /* a signal has been pending for it since then */
};

/* The result of a look at the thread. */
struct storage_look {
    bool asks_storage; /* it is in a call of a filesystem */
    uint64_t waits;    /* how often it has slept in its life */
    int signal;        /* pending for it, 0: none: its handler runs when the call returns */
};

enum storage_verdict {
    STORAGE_WAIT,
    STORAGE_DIE,     /* of the signal: a person or the batch system wants an end */
    STORAGE_GIVE_UP, /* the time is over */
};
enum storage_verdict storage_judge(struct storage_wait *wait, const struct storage_look *look,
                                   uint64_t now_ns);

/*
 * Watch the calling thread; `status` is the exit status of the process that it ends. If no
 * second thread can be started, nothing is watched.
 */
void storage_watch_begin(const char *path, unsigned timeout_s, int status);
void storage_watch_end(void);

/* End the second thread, if there is one: before a new namespace, and before work that lasts.
 */
void storage_watch_stop(void);

#endif
