/*
 * Archives that are opened by several threads at once, and report to one user: notes come one
 * at a time, and the progress counts all together.
 *
 *     struct opening_team team = {.options = &options, .threads = 8, .run = run, .arg = ctx};
 *     r = opening_team_run(&team);
 */
#ifndef ONEPOT_OPENING_TEAM_H
#define ONEPOT_OPENING_TEAM_H

#include "pot.h"

struct opening_team {
    const struct pot_options *options; /* the user's */
    uint64_t bytes_total;              /* of all archives, for the progress; 0: unknown */
    unsigned threads;
    /* One thread's work: open archives with these options, which are the thread's own. */
    void (*run)(void *arg, const struct pot_options *options);
    void *arg;
};

/*
 * Returns when all threads have. -EINTR: a signal came that the program handles and that asks
 * it to end; the openings it met were given up with -ECANCELED. -EAGAIN, -ENOMEM: no thread
 * could be started, and nothing was done.
 */
int opening_team_run(const struct opening_team *team);

#endif
