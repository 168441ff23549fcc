/*
 * CUDA played by the host, for tests where there is no GPU: a driver (libcuda.so.1 of the
 * tests) and a runtime that behave as CUDA's documents say, and end the process where a call
 * is one that a GPU would not forgive: the runtime without a context, memory of the device that
 * the host touches or that is gone, host memory that a kernel reads and that was not locked.
 *
 * It proves how CUDA is called, not how fast it is, nor that a driver agrees.
 */
#ifndef ONEPOT_TESTS_CUDA_PLAYED_H
#define ONEPOT_TESTS_CUDA_PLAYED_H

#include <stdbool.h>
#include <stddef.h>

/* What a test may ask for, before or meanwhile; one in a process. */
struct played {
    int devices;
    size_t memory_bytes; /* of a device */
    bool no_read_only;   /* there is no flag for memory that must not be written to; */
    bool host_tables;    /* nor is there need of one */
    unsigned long read_only_locks; /* of such memory, until now */
    bool no_locking;        /* nor any other but what is allocated for it; see locked_bytes */
    size_t locked_bytes;    /* at most, of all that is locked */
    bool lost;              /* every call fails from now on */
    bool old;               /* the driver is older than the runtime */
    bool no_context_events; /* the driver is older than they are */
    unsigned long context_events;   /* recorded, */
    unsigned long context_waits;    /* and waits for all of a device */
    int (*record_all)(void *event); /* the runtime's */
    void *(*current)(void);         /* the context of this thread, NULL: none */
    unsigned long contexts;         /* retained and not released */
    unsigned long kernels;          /* launched */
};

/* In the driver; found by dlsym. */
typedef struct played *played_entry(void);
#define PLAYED_ENTRY "played_cuda"

#endif
