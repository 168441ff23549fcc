/*
 * Names of the archives of a sharded pack. A pattern with %d, or %05d for leading zeros, in
 * its last component is given the shard's number, counted from 0. Any other name gets number
 * and count before its ending:
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
    char *before, *after; /* parts before and after the number */
    unsigned digits;
    uint32_t count;
};

/* -EINVAL: the number would be in a folder's name. -ENOMEM. */
int shard_names_parse(const char *output, uint32_t count, struct shard_names *ret_names);
void shard_names_free(struct shard_names *names);

/* The path of a shard. Caller frees. -ENOMEM. */
int shard_name(const struct shard_names *names, uint32_t number, char **ret_path);

/*
 * Are these `len` bytes, without folders, the name of one of the shards? If so, return its
 * number.
 */
bool shard_names_find(const struct shard_names *names, const char *name, size_t len,
                      uint32_t *ret_number);

/*
 * Name of the record of a shard exchange (see shard_exchange.h), from the parts of a shard's
 * name before and after the number, without folders. Digits beside the number count as part of
 * it: given one shard, nobody can tell them apart. Caller frees. NULL: no memory.
 */
char *shard_record_name(const char *before, size_t before_len, const char *after);

/*
 * Is this, without folders, the name of a shard, of a partial shard, or of the exchange
 * record?
 */
bool shard_names_match(const struct shard_names *names, const char *name);

#endif
