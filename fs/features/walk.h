/*
 * The order in which a walk through a tree reaches its directories: each one before what is in
 * it, and those of one directory as the index has them.
 */
#ifndef ONEPOT_WALK_H
#define ONEPOT_WALK_H

#include "index.h"

/* The directory that a walk from `root` reaches after this one. False at the walk's end. */
bool walk_next(const struct index *index, uint32_t root, uint32_t directory,
               uint32_t *ret_next);
/* Does `to` come soon after `from`? Told without a look at what lies between. */
bool walk_is_on_the_way(const struct index *index, uint32_t root, uint32_t from, uint32_t to);

#endif
