/*
 * Fetching through the mount itself, into the kernel's cache of it. On this node's storage that
 * is the cache that counts: what is in it costs a reader no request.
 *
 * A plan lies in memory that the daemon shares with processes of its own. Threads that answer
 * readers tell it what they saw. A process runs it: the plan chooses what comes next and has a
 * table fetch it, until it ends with an outcome. Nothing here locks or allocates, because such
 * a process is forked beside threads that may do either.
 *
 *     nearby.h     files near those that are read
 *     tree_walk.h  directories that a walk through the tree will reach
 */
#ifndef ONEPOT_MOUNT_FETCHER_H
#define ONEPOT_MOUNT_FETCHER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of several processes, the greatest outcome is the one that leaves most to do. */
enum mount_fetch {
    MOUNT_FETCH_FAILED = 1,
    MOUNT_FETCH_DONE,   /* no work is left */
    MOUNT_FETCH_FULL,   /* its allowance is used up */
    MOUNT_FETCH_PAUSED, /* readers have paused, or do something else */
};

/* The readers' activity so far. */
struct mount_readers {
    uint64_t now_ns, last_request_ns; /* CLOCK_MONOTONIC */
    uint64_t cold_reads;              /* files that they had to ask for */
};

struct mount_fetcher {
    /* Open a directory for the calls that follow, at its entry `skip`. False: not possible. */
    bool (*open)(void *ctx, uint32_t directory, uint32_t skip);
    /* Names and attributes of some more entries. Returns how many; 0: there are no more. */
    uint32_t (*list)(void *ctx, size_t buffer_bytes);
    /* The bytes of a file. `wait`: until they are there. -errno if it can't be opened. */
    int (*read)(void *ctx, const char *name, uint64_t size_bytes, bool wait);
    void (*close)(void *ctx);
    struct mount_readers (*readers)(void *ctx);
    /* Sleep while the word has this value, for so long at most. */
    void (*wait)(void *ctx, _Atomic uint32_t *word, uint32_t value, uint64_t most_ns);
};

#define MOUNT_FETCHER_LIST_BYTES (64u << 10) /* of a buffer, at most */

#endif
