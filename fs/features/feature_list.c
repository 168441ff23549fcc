/*
 * The features of a mount, in order (see feature.h). Reads meet the
 * watchdog first, which refuses reads that have just stalled, and sums last, which may take
 * long. An answer meets sums first: an answer that they refuse is neither counted nor
 * populated. intercept comes before counters, which marks files where it shares the marks.
 */
#include "feature_list.h"

#include <stddef.h>

#ifdef HAVE_PRELOAD
#define PRELOAD(ONE) ONE(intercept)
#else
#define PRELOAD(ONE)
#endif

#define FEATURES(ONE)                                                                          \
    ONE(watchdog)                                                                              \
    ONE(storage_errors)                                                                        \
    ONE(listing_budget)                                                                        \
    ONE(memory_share)                                                                          \
    ONE(stat_files)                                                                            \
    PRELOAD(ONE)                                                                               \
    ONE(counters)                                                                              \
    ONE(ahead)                                                                                 \
    ONE(sums)                                                                                  \
    ONE(archive_watch)

#define DECLARED(name) extern const struct feature name##_feature;
#define LISTED(name) &name##_feature,

FEATURES(DECLARED)

const struct feature *const feature_list[] = {FEATURES(LISTED) NULL};
