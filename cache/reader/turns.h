/*
 * Turns at unpacking large blocks. One takes seconds and tens of megabytes, so no more of them
 * are unpacked at once than there are CPUs for it. A turn is pure work: nobody who has one
 * waits for storage or for another thread, and so the others get theirs.
 *
 * Threads: any may call anything between turns_init and turns_free.
 */
#ifndef ONEPOT_TURNS_H
#define ONEPOT_TURNS_H

#include <pthread.h>
#include <stdbool.h>

struct turns {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    unsigned most; /* at once; 0: no limit */
    unsigned taken;
};

void turns_init(struct turns *turns);
void turns_free(struct turns *turns);

void turns_limit(struct turns *turns, unsigned most);

bool turns_try(struct turns *turns);  /* takes a turn if one is free */
void turns_take(struct turns *turns); /* or waits for it */
void turns_end(struct turns *turns);

#endif
