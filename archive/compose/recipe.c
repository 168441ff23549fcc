/*
 * Recipes. An item is its name with the NUL, the length of its bytes (8 bytes, little-endian),
 * and the bytes.
 */
#include "recipe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <xxhash.h>

#include "bytes.h"

void recipe_add(struct recipe *recipe, const char *item, const void *bytes, size_t len)
{
    char length[8];
    bytes_put_le64(length, len);
    if (vector_append(&recipe->bytes, item, strlen(item) + 1) < 0 ||
        vector_append(&recipe->bytes, length, sizeof(length)) < 0 ||
        vector_append(&recipe->bytes, (const char *)bytes, len) < 0)
        recipe->err = -ENOMEM;
}

void recipe_number(struct recipe *recipe, const char *item, uint64_t number)
{
    char bytes[8];
    bytes_put_le64(bytes, number);
    recipe_add(recipe, item, bytes, sizeof(bytes));
}

void recipe_prove(struct recipe *recipe, const void *proof, size_t len)
{
    recipe->name_bytes = recipe->bytes.count;
    if (vector_append(&recipe->bytes, (const char *)proof, len) < 0)
        recipe->err = -ENOMEM;
}

void recipe_name(const struct recipe *recipe, char ret_name[RECIPE_NAME_LEN + 1])
{
    size_t len = recipe->name_bytes ? recipe->name_bytes : recipe->bytes.count;
    XXH128_hash_t sum = XXH3_128bits(recipe->bytes.at, len);
    snprintf(ret_name, RECIPE_NAME_LEN + 1, "%016" PRIx64 "%016" PRIx64, sum.high64, sum.low64);
}
