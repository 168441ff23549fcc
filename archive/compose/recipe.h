/*
 * A recipe: bytes that name everything a composed index depends on, in one form only. Two
 * compositions with equal recipes are equal. A composed index carries its recipe
 * (index_recipe), and is saved under a name made of the recipe's hash.
 *
 *     struct recipe recipe = {0};
 *     recipe_add(&recipe, "include", pattern, strlen(pattern));
 *     recipe_number(&recipe, "size", bytes);
 *     if (recipe.err < 0) ...
 *     vector_free(&recipe.bytes);
 *
 * Each item has a name, so that no two sequences of items have the same bytes. A long one
 * (a list of a million names) is added by its sum.
 */
#ifndef ONEPOT_RECIPE_H
#define ONEPOT_RECIPE_H

#include <stddef.h>
#include <stdint.h>

#include "vector.h"

/* Empty when all zero. */
struct recipe {
    VECTOR(char) bytes;
    size_t name_bytes; /* of them; 0: all, else the rest is proof */
    int err;           /* -ENOMEM: something is missing */
};

void recipe_add(struct recipe *recipe, const char *item, const void *bytes, size_t len);
void recipe_number(struct recipe *recipe, const char *item, uint64_t number);

/*
 * Add, as the last, the state in which the named things were when the index was made. It is not
 * part of the name: whoever finds the index by its name compares it with their present state.
 */
void recipe_prove(struct recipe *recipe, const void *proof, size_t len);

/* 32 hexadecimal digits for the recipe, without the proof. */
#define RECIPE_NAME_LEN 32
void recipe_name(const struct recipe *recipe, char ret_name[RECIPE_NAME_LEN + 1]);

#endif
