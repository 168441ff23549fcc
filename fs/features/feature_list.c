/*
 * The features of a mount, in order (feature.h says what the order means). Reads meet the
 * watchdog first, which refuses those that have just stalled, and sums last, which may take
 * long. An answer meets sums first: what they refuse is neither counted nor populated.
 */
#include "feature_list.h"

#include <stddef.h>

#define FEATURES(ONE)                                                                          \
    ONE(watchdog)                                                                              \
    ONE(storage_errors)                                                                        \
    ONE(listing_budget)                                                                        \
    ONE(memory_share)                                                                          \
    ONE(stat_files)                                                                            \
    ONE(populate)                                                                              \
    ONE(walk)                                                                                  \
    ONE(counters)                                                                              \
    ONE(intercept)                                                                             \
    ONE(foresight)                                                                             \
    ONE(sums)

#define DECLARED(name) extern const struct feature name##_feature;
#define LISTED(name) &name##_feature,

FEATURES(DECLARED)

const struct feature *const feature_list[] = {FEATURES(LISTED) NULL};
