/*
 * The public sampler, for loaders, whose orders may be the caller's lists, and for callers that
 * can be interrupted. A sampler of one epoch never changes. The next epoch's is another one,
 * which another thread may make while this one is in use.
 */
#ifndef ONEPOT_SAMPLER_H
#define ONEPOT_SAMPLER_H

#include "onepot.h"
#include "permutation.h"

#define SAMPLER_WINDOW 64 /* the default */

/*
 * Like onepot_sampler_new, with all members of the options, whatever size they tell. `list`:
 * NULL, or the caller's order of one epoch: `samples` numbers, of which element i of the epoch
 * is the i-th. It is not copied, and not shuffled. `stop`: NULL, or asked during a shuffle.
 * -ENOMEM, also for more than the job's memory; -ECANCELED: it was stopped.
 */
int sampler_new(const struct onepot_sampler_options *options, const uint64_t *list,
                const struct permutation_stop *stop, struct onepot_error *error,
                struct onepot_sampler **ret_sampler);

#endif
