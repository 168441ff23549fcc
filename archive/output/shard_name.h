/*
 * What the archives of a sharded pack are called. A pattern with %d, or %05d for leading
 * zeros, in its last component has the number there, counted from 0. Any other name gets
 * number and count before its ending:
 *
 *     train.onepot.tar   train-00000-of-00256.onepot.tar, ...
 *     train-%05d.tar     train-00000.tar, ...
 */
#ifndef ONEPOT_SHARD_NAME_H
#define ONEPOT_SHARD_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shard_names {
    char *before, *after; /* of the number */
    unsigned digits;
    uint32_t count;
};

/* -EINVAL: the number would be in a folder's name. -ENOMEM. */
int shard_names_parse(const char *output, uint32_t count, struct shard_names *ret_names);
void shard_names_free(struct shard_names *names);

/* The path of a shard. Caller frees. -ENOMEM. */
int shard_name(const struct shard_names *names, uint32_t number, char **ret_path);

/* Are these `len` bytes, without folders, the name of one of the shards? Which one? */
bool shard_names_find(const struct shard_names *names, const char *name, size_t len,
                      uint32_t *ret_number);

/*
 * What the record of an exchange of the shards is called (see shard_exchange.h), by what is
 * before and after the number, without folders. Digits beside the number belong to it: one who
 * has a shard can't tell them apart. Caller frees. NULL: no memory.
 */
char *shard_record_name(const char *before, size_t before_len, const char *after);

/* Is this, without folders, the name of one of the shards, of a part of one, or of the record
 * of their exchange? */
bool shard_names_match(const struct shard_names *names, const char *name);

#endif
