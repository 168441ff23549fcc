/*
 * Creates names of shards and recognizes them. Shards of other ranks are known by name alone.
 */
#include "shard_name.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cleanup.h"
#include "leftovers.h"
#include "path.h"

#define DIGITS "0123456789"

/* Endings of archive names, longer ones first. */
static const char *const endings[] = {".onepot.tar.zst", ".onepot.tar", ".tar.zst", ".tar"};

/* The place of %d or %0Nd and its length, or NULL. */
static const char *shard_name_find_pattern(const char *name, size_t *ret_len,
                                           unsigned *ret_digits)
{
    for (const char *p = strchr(name, '%'); p; p = strchr(p + 1, '%')) {
        size_t len = 1 + strspn(p + 1, DIGITS);
        if (p[len] != 'd' || len > 4)
            continue;
        *ret_digits = len > 1 ? (unsigned)strtoul(p + 1, NULL, 10) : 1;
        *ret_len = len + 1;
        return p;
    }
    return NULL;
}

static int shard_name_parse(const char *output, const char *place, size_t len,
                            struct shard_names *names)
{
    if (strchr(place, '/') || names->digits > 100)
        return -EINVAL;
    names->before = strndup(output, (size_t)(place - output));
    names->after = strdup(place + len);
    return names->before && names->after ? 0 : -ENOMEM;
}

static size_t shard_name_ending(const char *output, size_t len)
{
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t ending = strlen(endings[i]);
        if (len > ending && strcmp(output + len - ending, endings[i]) == 0)
            return ending;
    }
    return 0;
}

static int shard_name_insert(const char *output, struct shard_names *names)
{
    size_t len = strlen(output), ending = shard_name_ending(output, len);
    names->digits = 5;
    if (asprintf(&names->before, "%.*s-", (int)(len - ending), output) < 0)
        names->before = NULL;
    if (asprintf(&names->after, "-of-%05u%s", names->count, output + len - ending) < 0)
        names->after = NULL;
    return names->before && names->after ? 0 : -ENOMEM;
}

int shard_names_parse(const char *output, uint32_t count, struct shard_names *ret_names)
{
    struct shard_names names = {.count = count};
    size_t len;
    const char *place = shard_name_find_pattern(output, &len, &names.digits);
    int r = place ? shard_name_parse(output, place, len, &names)
                  : shard_name_insert(output, &names);
    if (r < 0)
        shard_names_free(&names);
    else
        *ret_names = names;
    return r;
}

void shard_names_free(struct shard_names *names)
{
    free(names->before);
    free(names->after);
    *names = (struct shard_names){0};
}

int shard_name(const struct shard_names *names, uint32_t number, char **ret_path)
{
    if (asprintf(ret_path, "%s%0*u%s", names->before, (int)names->digits, number,
                 names->after) < 0)
        return -ENOMEM;
    return 0;
}

bool shard_names_find(const struct shard_names *names, const char *name, size_t len,
                      uint32_t *ret_number)
{
    const char *before = path_base(names->before);
    size_t before_len = strlen(before), after_len = strlen(names->after);
    if (len < before_len + after_len || memcmp(name, before, before_len) != 0 ||
        memcmp(name + len - after_len, names->after, after_len) != 0)
        return false;
    size_t digits = len - before_len - after_len;
    if (digits < names->digits || digits > 100 || strspn(name + before_len, DIGITS) < digits)
        return false;
    unsigned long long number = strtoull(name + before_len, NULL, 10);
    if (number >= names->count)
        return false;
    *ret_number = (uint32_t)number;
    return true;
}

char *shard_record_name(const char *before, size_t before_len, const char *after)
{
    char *name;
    while (before_len && strchr(DIGITS, before[before_len - 1]))
        before_len--;
    after += strspn(after, DIGITS);
    return asprintf(&name, ".%.*s%%%s.exchange", (int)before_len, before, after) < 0 ? NULL
                                                                                     : name;
}

static bool shard_name_is_record(const struct shard_names *names, const char *name)
{
    const char *before = path_base(names->before);
    auto_free char *record = shard_record_name(before, strlen(before), names->after);
    return record && strcmp(name, record) == 0;
}

bool shard_names_match(const struct shard_names *names, const char *name)
{
    size_t len = strlen(name);
    uint32_t number;
    return shard_names_find(names, name, len, &number) ||
           (partial_name_parse(name, &len) && shard_names_find(names, name, len, &number)) ||
           (name[0] == '.' && shard_name_is_record(names, name));
}
