/*
 * Between the kernel and the model: requests become operations of the server, and are carried
 * out and answered when they are due. One thread does it all.
 */
#ifndef ONEPOT_BENCH_SERVE_H
#define ONEPOT_BENCH_SERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "server.h"
#include "tree.h"

struct fuse_lowlevel_ops;
struct fuse_session;

enum page_cache {
    PAGES_KEEP, /* the kernel keeps what was read */
    PAGES_DROP, /* it forgets a file's pages when the file is opened again */
    PAGES_NONE, /* every read becomes a request */
};

/* SIGUSR2 begins it, and the next one ends it. */
enum toggle {
    TOGGLE_FAIL,  /* every read fails */
    TOGGLE_STALL, /* no read is answered; those that wait are when it ends */
    TOGGLE_LOSE,  /* the same, but those that wait then never are */
    TOGGLE_STALE, /* files that are open at the moment answer ESTALE for good; no end (with
                     `hold`, reads stall until then) */
    TOGGLE_FLIP,  /* a bit of each 4 KiB that are read is wrong */
};

struct serve_config {
    double entry_s; /* how long the kernel may trust a name, */
    double attr_s;  /* and attributes */
    enum page_cache pages;
    unsigned max_background; /* read-ahead requests in flight */
    uint64_t fail_every;     /* every so many-th read fails; 0: none */
    uint64_t fail_after;     /* and all after so many; 0: none */
    int fail_error;          /* with this errno; 0: EIO */
    enum toggle toggle;      /* what SIGUSR2 does */
    bool hold;               /* it is so from the start, for a stretch of large files alone */
    const char *stats;       /* file for the counts, or NULL for standard error */
};

struct serve;

extern const struct fuse_lowlevel_ops serve_ops;

/* The operations' user data. Takes the tree over. 0 or -ENOMEM. */
int serve_new(const struct serve_config *config, const struct server_config *server,
              struct tree tree, struct serve **ret_serve);

/* After the mount: takes part in the first exchange with the kernel. 0 or -errno. */
int serve_prepare(struct serve *s, struct fuse_session *session);

/* Serves until the file system is unmounted or a signal of `signals` (a signalfd) ends it;
 * SIGUSR1 writes the counts and goes on, SIGUSR2 does what the configuration says. 0 or
 * -errno. */
int serve_loop(struct serve *s, struct fuse_session *session, int signals);

/* The counts, to where the configuration says. 0 or -errno. */
int serve_write_stats(struct serve *s);

void serve_free(struct serve *s);

#endif
