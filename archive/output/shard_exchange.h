/*
 * How a set of shards gets its names: all of them or none, whenever the process that does it
 * is killed. Complete shards wait as NAME.LETTERS.ready. When all of a set are there, a record
 * is written beside them, and that is the moment at which the new set takes the place of the
 * old one; then each shard is renamed, what a larger old set has besides is removed, and the
 * record goes. Before the record is complete an interruption leaves the old set; after it,
 * whoever comes next does the rest: the next pack, or the next one to open a shard.
 *
 * The record is a file ".BEFORE%AFTER.exchange" (of shards BEFORE00000AFTER) in the folder of
 * the shards. It is the lock as well: a process that looks at what is ready, or changes it,
 * has created and locked it first. One without content, or with half of it, says nothing.
 *
 *     shard_exchange_begin(&names, NULL, &fault, &x);
 *     shard_exchange_run(&x, letters, overwrite, sync, &fault);
 *     shard_exchange_end(&x);
 *
 * Threads: none. Locks hold across nodes where flock(2) does; where it is not supported at all,
 * ranks that end at the same moment do the same steps twice, which is harmless.
 */
#ifndef ONEPOT_SHARD_EXCHANGE_H
#define ONEPOT_SHARD_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "fault.h"
#include "shard_name.h"

struct shard_exchange {
    struct shard_names names; /* without folders; its texts are those of the caller's names */
    int folder_fd;
    int fd; /* of the record: open and locked */
    char *record;
    bool committed; /* the new set counts, though not all of it may have its names */
};

/*
 * Lock the set; an exchange of it that was interrupted is finished first. `names` has to live
 * until shard_exchange_end, which is only called after success. -EINTR: a signal came while it
 * waited for the lock, and `stop` (may be NULL) was set.
 */
int shard_exchange_begin(const struct shard_names *names, const _Atomic int *stop,
                         struct fault *fault, struct shard_exchange *ret_exchange);

/* Forget what is ready of shard `number` under these letters. */
void shard_exchange_withdraw(const struct shard_exchange *exchange, uint32_t number,
                             const char *letters);

/*
 * Exchange the set if all of it is ready: 1; 0 if not. On failure exchange->committed tells
 * whether that is the old set's or the new one's.
 */
int shard_exchange_run(struct shard_exchange *exchange, const char *letters, bool overwrite,
                       bool sync, struct fault *fault);

void shard_exchange_end(struct shard_exchange *exchange);

/*
 * Before the archive at `path` is opened: if it is a shard, and an exchange of its set is going
 * on, wait for the end; if it was interrupted, finish it. 1: there was something of the kind,
 * and what a folder lists may be different now. 0: there was not. -EBUSY: somebody else has to
 * finish it.
 */
int shard_exchange_settle(const char *path, struct fault *fault);

#endif
