/*
 * Guards against storage that does not answer while a command opens an archive. A thread that
 * waits for a filesystem can't be called back, and a caught signal does not end the wait. So a
 * second thread ends the process, with a line that gives the reason.
 *
 *     struct storage_watch watch;
 *     storage_watch_begin(&watch, path, seconds, CLI_FAILED);
 *     ... open, stat, read; no new user namespace ...
 *     storage_watch_end(&watch);
 *
 * The next start cleans up whatever was made on this node until then, as after a SIGKILL.
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
    unsigned timeout_s; /* for one call; 0: no limit */
    int status;         /* exit status of the process that it ends */
    pid_t thread_id;    /* of the watched thread */
    int end_fd;
    pthread_t thread;
    bool started;
    sem_t runs; /* posted once the thread has started */
};

/* Watch the calling thread. If no second thread can be started, nothing is watched. */
void storage_watch_begin(struct storage_watch *watch, const char *path, unsigned timeout_s,
                         int status);
void storage_watch_end(struct storage_watch *watch);

#endif
