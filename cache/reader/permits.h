/*
 * Permits for unpacking large blocks. Each unpacking takes seconds and tens of megabytes, so
 * permits bound how many run at once to the CPUs there are. A holder only computes: it waits
 * neither for storage nor for another thread, so every permit comes back.
 *
 * Threads: any may call anything between permits_init and permits_free.
 */
#ifndef ONEPOT_PERMITS_H
#define ONEPOT_PERMITS_H

#include <pthread.h>
#include <stdbool.h>

struct permits {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    unsigned most; /* at once; 0: no limit */
    unsigned taken;
};

void permits_init(struct permits *permits);
void permits_free(struct permits *permits);

void permits_limit(struct permits *permits, unsigned most);

/* Takes a permit; with `may_wait`, waits until one is free. False: none is. */
bool permits_take(struct permits *permits, bool may_wait);
void permits_end(struct permits *permits);

#endif
