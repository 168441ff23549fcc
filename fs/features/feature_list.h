/*
 * The list of features that a mount's session is started with.
 */
#ifndef ONEPOT_FEATURE_LIST_H
#define ONEPOT_FEATURE_LIST_H

#include "feature.h"

/* For session_config.features. */
extern const struct feature *const feature_list[];

#endif
