/*
 * Names a set of shards: all of them or none, even if the process is killed on the way.
 * Complete shards wait as NAME.LETTERS.ready. When a set is complete, a record is written
 * beside it; at that moment the new set replaces the old one. Then each shard is renamed,
 * extra shards of a larger old set are removed, and the record is removed. An interruption
 * before the record is complete leaves the old set. After a later interruption the next pack or
 * the next process that opens a shard completes the exchange.
 *
 * The record is a file ".BEFORE%AFTER.exchange" (for shards BEFORE00000AFTER) in the folder of
 * the shards. It is also the lock: a process creates and locks it before it inspects or
 * changes the ready shards. An empty or incomplete record has no meaning.
 *
 *     shard_exchange_begin(&names, NULL, &fault, &x);
 *     shard_exchange_run(&x, letters, overwrite, sync, &fault);
 *     shard_exchange_end(&x);
 *
 * Threads: none. Locks hold across nodes where flock(2) does. Where it is not supported at
 * all, ranks that end at the same moment do the same steps twice, which is harmless.
 */
#ifndef ONEPOT_SHARD_EXCHANGE_H
#define ONEPOT_SHARD_EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>

#include "fault.h"
#include "shard_name.h"

struct shard_exchange {
    struct shard_names names; /* without folders; the texts belong to the caller's names */
    int folder_fd;
    int fd; /* the record's: open and locked */
    char *record;
    bool committed; /* the new set counts, though some shards may still lack their names */
};

/*
 * Lock the set, and first finish an interrupted exchange of it. `names` must live until
 * shard_exchange_end, which may be called only after success. -EINTR: a signal came during the
 * wait for the lock, and `stop` (may be NULL) was set.
 */
int shard_exchange_begin(const struct shard_names *names, const _Atomic int *stop,
                         struct fault *fault, struct shard_exchange *ret_exchange);

/* Remove the ready file of shard `number` with these letters. */
void shard_exchange_withdraw(const struct shard_exchange *exchange, uint32_t number,
                             const char *letters);

/*
 * Exchange the set if all of it is ready: 1; 0 if not. On failure, exchange->committed says
 * whether the new set counts or still the old one.
 */
int shard_exchange_run(struct shard_exchange *exchange, const char *letters, bool overwrite,
                       bool sync, struct fault *fault);

void shard_exchange_end(struct shard_exchange *exchange);

/*
 * Call before opening the archive at `path`. If it is a shard whose set is being exchanged,
 * wait for the end; if that exchange was interrupted, finish it. 1: there was an exchange, so
 * the folder's listing may have changed. 0: there was none. -EBUSY: another user must finish
 * it.
 */
int shard_exchange_settle(const char *path, struct fault *fault);

/*
 * The same for many archives, one after the other: all shards of a set share a record, which is
 * then looked for once. Begin with one that is all zero. It may be used as long as nothing but
 * opening comes between.
 */
#define SHARD_SETTLER_NAMES 4u
struct shard_settler {
    char *folder; /* as written before the slash; NULL: none yet */
    int folder_fd;
    char *absent[SHARD_SETTLER_NAMES]; /* records that are not in it */
    unsigned next;
};
int shard_settler_next(struct shard_settler *settler, const char *path, bool may_be_link,
                       struct fault *fault);
void shard_settler_end(struct shard_settler *settler);

#endif
