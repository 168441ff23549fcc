/*
 * The part of fileset.c that the rest of its room sees: volumes.c, which finds the parts of an
 * archive, plain.c, which lists a folder, and a test of its threads.
 */
#ifndef ONEPOT_FILESET_PRIVATE_H
#define ONEPOT_FILESET_PRIVATE_H

#include <pthread.h>

#include "fileset.h"

#define INDEX_SUFFIX ".onepot-index" /* of a saved index, behind its archive's name */

/* A line for the user: "PATH: ...". */
void fileset_note(const struct fileset_options *options, const char *path, const char *format,
                  ...) __attribute__((format(printf, 3, 4)));

/* Why a file found by its name can't be trusted beside the archive `theirs`; NULL if it can. */
const char *saved_mistrust(const struct stat *ours, const struct stat *theirs);

/* ---- plain.c ---- */

/*
 * The bytes of a folder's files as one source, with its identity, and its index, whose image is
 * written to `fd`, an empty file. *ret_fingerprint is the same on any node.
 */
int plain_index(const char *path, const struct fileset_options *options, int fd,
                struct fault *fault, struct source **ret_source, uint64_t *ret_fingerprint);
int plain_identify(const char *path, struct fault *fault, struct source_identity *ret_identity);

/* ---- several at once ---- */

/* Archives that are opened by several threads at once, and report to one user. */
struct opening_team {
    const struct fileset_options *options; /* the user's */
    uint64_t bytes_total;                  /* of all archives, for the progress; 0: unknown */
    unsigned threads;
    /* One thread's work: open archives with these options, which are the thread's own. */
    void (*run)(void *arg, const struct fileset_options *options);
    void *arg;

    /* While it runs: */
    pthread_mutex_t lock; /* for all below, and the user's functions */
    struct progress progress;
    _Atomic bool is_cancelled;
    int done_fd; /* each thread adds one at its end */
};

/*
 * Returns when all threads have. -EINTR: a signal came that the program handles and that asks
 * it to end; the openings it met were given up with -ECANCELED. -EAGAIN, -ENOMEM: no thread
 * could be started, and nothing was done.
 */
int opening_team_run(struct opening_team *team);

#endif
