/*
 * Threads of a library: signals are for the threads of the program, and the stack is as large
 * as the work needs.
 */
#ifndef ONEPOT_THREAD_H
#define ONEPOT_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* Start one in which all signals are blocked. 0 or -errno. */
static inline int thread_start(pthread_t *thread, size_t stack_bytes, void *(*run)(void *),
                               void *arg)
{
    pthread_attr_t attr;
    sigset_t all, kept;
    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, stack_bytes);
    pthread_sigmask(SIG_SETMASK, &all, &kept);
    int r = pthread_create(thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    pthread_attr_destroy(&attr);
    return -r;
}

#endif
