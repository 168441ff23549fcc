/*
 * Names a set of shards: all of them or none, even if the process is killed on the way.
 * Complete shards wait as NAME.LETTERS.ready. When a set is complete, a record is written
 * beside it; at that moment the new set replaces the old one. Then each shard is renamed,
 * extra shards of a larger old set are removed, and the record is removed. An interruption
 * before the record is complete leaves the old set. A later one is finished by the next pack of
 * that set by the record's owner, with `overwrite`; until then readers are told so.
 *
 * The record is a file ".BEFORE%AFTER.exchange" (for shards BEFORE00000AFTER) in the folder of
 * the shards. It is also the lock: a process creates and locks it before it inspects or
 * changes the ready shards. An empty or incomplete record has no meaning. A complete one counts
 * only if it belongs to who asks (for readers: to the archive's owner) and names its own inode
 * and the inode of each file that it speaks of.
 *
 *     shard_exchange_begin(&names, overwrite, NULL, &fault, &x);
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
#include <stdint.h>

#include "fault.h"

/*
 * Names of the archives of a sharded pack. A pattern with %d, or %05d for leading zeros, in
 * its last component is given the shard's number, counted from 0. Any other name gets number
 * and count before its ending:
 *
 *     train.onepot.tar   train-00000-of-00256.onepot.tar, ...
 *     train-%05d.tar     train-00000.tar, ...
 */
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
 * Is this, without folders, the name of a shard, of a partial shard, or of the exchange
 * record?
 */
bool shard_names_match(const struct shard_names *names, const char *name);

struct shard_exchange {
    struct shard_names names; /* without folders; the texts belong to the caller's names */
    int folder_fd;
    int fd; /* the record's: open and locked */
    char *record;
    bool committed; /* the new set counts, though some shards may still lack their names */
};

/*
 * Lock the set, and first finish an interrupted exchange of it. `names` must live until
 * shard_exchange_end, which may be called only after success. -EINTR: `stop` (may be NULL) was
 * set during the wait for the lock. -EBUSY: the wait ended after ten seconds in which its
 * holder did nothing. -EPERM: the record is another user's. -EEXIST: there is an interrupted
 * exchange, and no `overwrite`; or another file has a shard's name by now.
 */
int shard_exchange_begin(const struct shard_names *names, bool overwrite,
                         const _Atomic int *stop, struct fault *fault,
                         struct shard_exchange *ret_exchange);

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
 * Is the archive at `path` a shard whose set is being exchanged? Only looks. `archive_fd` is
 * the open archive (negative: there is no such file), and `is_link` says that the path leads
 * there by a link. 0: no. -EBUSY: yes, and the fault tells how that is finished. 1: a record
 * says so that does not count; the fault is worth a note.
 *
 * For many archives, one after the other: all shards of a set share a record, which is then
 * looked for once. Begin with `records` that are all zero. They may be used as long as nothing
 * but opening comes between.
 */
#define SHARD_RECORDS_ABSENT 4u
struct shard_records {
    char *folder; /* as written, with the slash; NULL: none yet */
    int folder_fd;
    char *absent[SHARD_RECORDS_ABSENT]; /* records that are not in it, or do not count */
    unsigned next;
};
int shard_exchange_check(struct shard_records *records, const char *path, bool is_link,
                         int archive_fd, struct fault *fault);
void shard_records_free(struct shard_records *records);

#endif
