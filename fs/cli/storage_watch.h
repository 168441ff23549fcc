/*
 * Guards against storage that does not answer while a command reads or writes archives. A
 * thread that waits for a filesystem can't be called back, and some filesystems don't even let
 * a killed process go before they answer. So a command whose archives are not on this node goes
 * on in a child. A second thread of the child looks at all others, and at children that parse.
 * It names the storage after five seconds. When the time is over, or a signal finds a thread
 * stuck, it tells the parent, which ends the command and leaves the child behind.
 *
 *     storage_watch_begin(archives, count, seconds, CLI_FAILED);
 *     ... open, stat, read, write; no new user namespace ...
 *     storage_watch_end();
 *     storage_watch_stop();
 *
 * A command watches several stretches of its work, or all of it. Starting a second thread costs
 * the first one two sleeps, so it stays from one stretch to the next, until `stop`.
 *
 * The next start cleans up whatever was made on this node until then, as after a SIGKILL.
 */
#ifndef ONEPOT_STORAGE_WATCH_H
#define ONEPOT_STORAGE_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How long a thread has been in one call. Times are of one clock, in nanoseconds. */
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
 * Does the path lie on storage of this node? Waits for no other: the kernel answers from its
 * memory, this node's filesystems are asked for the names that it has forgotten, and the list
 * of mounts names the types. A path that is not known to be here may be elsewhere.
 */
bool storage_is_here(const char *path);

/*
 * Watch this process; `status` is the exit status of the process that it ends. Words that name
 * files of this node alone start nothing. All others, or a count of 0, make the command go on
 * in a child the first time; this process passes signals on to it, and ends as it does. No
 * thread runs by then.
 */
void storage_watch_begin(char *const *words, size_t count, unsigned timeout_s, int status);
void storage_watch_end(void);

/* End the second thread, if there is one: before a new namespace, and before work that lasts.
 */
void storage_watch_stop(void);

/* Does the command go on in a child? */
bool storage_watch_is_apart(void);

#endif
