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

bool permits_try(struct permits *permits);  /* takes a permit if one is free */
void permits_take(struct permits *permits); /* or waits for it */
void permits_end(struct permits *permits);

#endif
