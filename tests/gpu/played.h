/*
 * CUDA played by the host, for tests where there is no GPU: a driver (libcuda.so.1 of the
 * tests) and a runtime that behave as CUDA's documents say, and end the process where a call
 * is one that a GPU would not forgive: the runtime without a context, memory of the device that
 * the host touches or that is gone, host memory that a kernel reads and that was not locked,
 * loads that are not aligned.
 *
 * It proves how CUDA is called, not how fast it is, nor that a driver agrees.
 */
#ifndef ONEPOT_TESTS_CUDA_PLAYED_H
#define ONEPOT_TESTS_CUDA_PLAYED_H

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* What a test may ask for, before or meanwhile; one in a process. As many devices as the
 * environment says in PLAYED_DEVICES, else one; and a fault if it says so in PLAYED_FAULT:
 * "follows nothing" (no stream waits for an event) or "copies too little". */
struct played {
    int devices;
    size_t memory_bytes; /* of each device */
    bool no_registering; /* memory that is there is locked by nobody; */
    bool no_read_only;   /* there is no flag for memory that must not be written to; */
    bool host_tables;    /* nor is there need of one */
    unsigned long read_only_locks; /* of such memory, until now */
    bool apart;             /* the device sees no two pieces of locked memory side by side */
    bool no_locking;        /* nor any other but what is allocated for it; see locked_bytes */
    size_t locked_bytes;    /* at most, of all that is locked */
    bool lost;              /* every call fails from now on, */
    unsigned lost_devices;  /* or those on these: a bit each */
    bool old;               /* the driver is older than the runtime */
    const char *module;     /* a file with the version of the kernel's part; NULL: new */
    bool no_context_events; /* the driver is older than they are */
    bool no_image;          /* no kernel was compiled for this device */
    unsigned long context_events; /* recorded, */
    unsigned long context_waits;  /* and waits for all of a device */
    unsigned long contexts;       /* retained and not released */
    unsigned long kernels;        /* launched */
    unsigned long urgent_streams; /* made */

    /* The driver's, for the runtime. */
    void *(*current)(void);       /* the context of this thread, NULL: none */
    void *(*primary)(int device); /* its context */
    bool (*is_relaxed)(void);     /* this thread minds no capture */
    bool (*is_lost)(const void *context);
    /* The runtime's, for the driver. */
    int (*record_all)(void *context, void *event);
    void *(*context_of)(void *stream, bool *ret_green);

    /*
     * The runtime's, once a device was opened. stream: one of another library, on the first
     * device; stream_on: on any; green_stream: of a green context, on the first. device_of:
     * whose memory that is; -1: no device's. spin queues a kernel that ends when `release` is
     * called. hold_kernels: those that are launched begin when it is called with false. quiet
     * returns when nothing moves any more: each stream is done, or waits for another, or is
     * held back. waiting: threads of the host that wait for an event.
     */
    void *(*stream)(bool is_blocking);
    void *(*stream_on)(int device, bool is_blocking);
    void *(*green_stream)(void);
    int (*device_of)(const void *memory);
    void (*spin)(void *stream);
    void (*release)(void);
    void (*hold_kernels)(bool hold);
    void (*quiet)(void);
    unsigned (*waiting)(void);
    unsigned (*frees_waiting)(void); /* threads that wait in cudaFree, or to unlock memory */
    /* end_capture: how many tasks became a part of the graph. */
    void (*begin_capture)(void *stream);
    unsigned (*end_capture)(void *stream, bool *ret_broken);
};

/* In the driver; found by dlsym. */
typedef struct played *played_entry(void);
#define PLAYED_ENTRY "played_cuda"

/* NULL: the driver is not the tests'. */
static inline struct played *played_find(void)
{
    void *object = dlopen("libcuda.so.1", RTLD_NOW);
    void *entry = object ? dlsym(object, PLAYED_ENTRY) : NULL;
    played_entry *function;
    memcpy(&function, &entry, sizeof(function));
    return function ? function() : NULL;
}

#endif
