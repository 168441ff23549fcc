/*
 * Storage that does not answer while a command opens an archive. A thread that waits for a
 * filesystem can't be called back, and a signal that is caught does not end the wait: so a
 * second thread ends the process, with a line that says why.
 *
 *     struct storage_watch watch;
 *     storage_watch_begin(&watch, path, seconds, CLI_FAILED);
 *     ... open, stat, read; no new user namespace ...
 *     storage_watch_end(&watch);
 *
 * What was made on this node until then is healed by the next start, as after a SIGKILL.
 */
#ifndef ONEPOT_STORAGE_WATCH_H
#define ONEPOT_STORAGE_WATCH_H

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct storage_watch {
    const char *path;
    unsigned timeout_s; /* for one call; 0: as long as it takes */
    int status;         /* of the process that it ends */
    pid_t thread_id;    /* of who is watched */
    int end_fd;
    pthread_t thread;
    bool started;
    sem_t runs; /* the thread is past its start */
};

/* Of the calling thread. Where no thread can be had, nothing is watched. */
void storage_watch_begin(struct storage_watch *watch, const char *path, unsigned timeout_s,
                         int status);
void storage_watch_end(struct storage_watch *watch);

#endif
