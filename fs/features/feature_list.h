/*
 * The list of features that a mount's session is started with.
 */
#ifndef ONEPOT_FEATURE_LIST_H
#define ONEPOT_FEATURE_LIST_H

#include "feature.h"

/* For session_config.features. */
extern const struct feature *const feature_list[];

/* The short circuit, and which users it is for. For its tests. */
extern const struct feature intercept_feature;
bool intercept_tells(uint32_t uid);

#endif
