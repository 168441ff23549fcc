/*
 * Counts the work of a pack of directories: the members that it will write, by names alone
 * while it writes; or, for a survey (pack_survey), the sizes of all files, before anything is
 * written.
 *
 * Threads: count_start starts one, and count_stop ends it. count_all starts some and ends them.
 */
#ifndef ONEPOT_COUNT_H
#define ONEPOT_COUNT_H

#include <pthread.h>
#include <stdbool.h>

#include "map.h"
#include "pipeline.h"

struct count_folder_ref {
    char *path; /* in the archive */
    size_t source;
    size_t share; /* of the survey; see pack_share */
};

struct count {
    const struct pipeline_sources *sources;
    const struct selection *selection;
    struct progress *progress;  /* gets members_total, once it is known; or NULL */
    struct pack_survey *survey; /* gets what files take, which are looked at for it; or NULL */
    const struct pack_options *options; /* with `survey`: report and stop */
    /* count.c: */
    int *fds; /* of the sources */
    size_t count;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    VECTOR(struct count_folder_ref) todo; /* folders that are still to be listed */
    unsigned busy;                        /* threads that list one */
    int err;
    uint64_t members;
    struct map links; /* files of several names: each counts once */
    _Atomic bool stop;
    bool is_started;
    pthread_t thread;
};

/* Begin to count. If there is no memory, the number stays unknown. */
void count_start(struct count *count);
void count_stop(struct count *count);

/* Count in so many threads, until all is counted. -EINTR, -ENOMEM, or an error of a source. */
int count_all(struct count *count, unsigned threads);

#endif
