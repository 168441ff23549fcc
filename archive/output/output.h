/*
 * A file that gets its name only when it is complete. Until then it is called
 * NAME.XXXXXX.partial, in the same folder, and locked. output_discard removes it. A killed
 * process leaves only this partial file behind, for output_clean to remove.
 *
 *     output_open("train.onepot.tar", OUTPUT_NEW, 0, &fault, &out);
 *     write to out->fd ...
 *     output_commit(out, true, &fault)  or  output_discard(out)
 *
 * The writer of a partial file holds a lock on it (flock), which the kernel releases however
 * the process ends. So a partial file that can be locked has no writer.
 *
 * On some network filesystems a lock holds on one node only, and the writer may be on another.
 * There a partial file must also have been unmodified for a while; until then it is only
 * reported. Ready and kept files are complete, and nobody writes to them.
 */
#ifndef ONEPOT_OUTPUT_H
#define ONEPOT_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fault.h"
#include "file_id.h"

/* A partial file of NAME is called NAME.XXXXXX.partial, with six of these letters. */
#define PARTIAL_LETTERS "abcdefghijklmnopqrstuvwxyz234567"
#define PARTIAL_LETTER_COUNT 6u
#define PARTIAL_SUFFIX ".partial"
#define READY_SUFFIX ".ready" /* of a waiting shard; no longer than PARTIAL_SUFFIX */
#define KEPT_SUFFIX ".kept"   /* of what an interrupted run has written (output_keep) */
#define PARTIAL_EXTRA_LEN (1 + PARTIAL_LETTER_COUNT + sizeof(PARTIAL_SUFFIX) - 1)

/* Encode a number as six letters. */
void partial_letters(uint64_t number, char ret_letters[PARTIAL_LETTER_COUNT + 1]);

/* Does `name` belong to a partial, ready or kept file? If so, NAME is its first *ret_len bytes.
 */
bool partial_name_parse(const char *name, size_t *ret_len);

enum leftover {
    LEFTOVER_REMOVED,
    LEFTOVER_BUSY,    /* another process holds its lock */
    LEFTOVER_UNKNOWN, /* may still be written */
};

/* Which files, by the ends of their names. */
enum leftovers_kind {
    LEFTOVERS_ALL,
    LEFTOVERS_TO_RESUME, /* partial ones; kept files stay, and ready ones become kept files */
    LEFTOVERS_KEPT,
};

struct leftovers {
    enum leftovers_kind kind;
    /* Should partial files of this name (`len` bytes) be removed? */
    bool (*match)(const void *ctx, const char *name, size_t len);
    const void *match_ctx;
    /* Called for each match that belongs to this user; `name` is the partial file's. */
    void (*found)(void *ctx, enum leftover what, const char *name);
    void *ctx;
};

/* Search a folder and remove leftovers. Files that can't be examined are left alone. */
void leftovers_remove(int folder_fd, const struct leftovers *l);

struct output {
    int fd;        /* open for reading and writing; owned by the output */
    int folder_fd; /* O_PATH */
    bool overwrite;
    mode_t mode;      /* for creating it, less the umask */
    unsigned stripes; /* 0: as its folder has them */
    char *name;       /* final name, in that folder */
    char *partial_name;
    bool is_ready; /* has its waiting name: see output_ready */
    /*
     * When it was created, by its filesystem's clock. output_ready and output_keep make this
     * its time of modification: a source that has changed since may differ from its copy there.
     * 0, by the caller: none of its files may be taken for its source.
     */
    int64_t begun_sec;
    struct file_id id;       /* of the new file */
    struct file_id replaced; /* of the file to be replaced; all zero: none */
};

/*
 * Remove what killed processes left of the file at `path`, or of all files in its folder that
 * how->match accepts, if it is set. Errors are ignored.
 */
void output_clean(const char *path, const struct leftovers *how);

enum output_kind {
    OUTPUT_NEW,
    OUTPUT_REPLACES, /* an existing file */
    /* onepot's own: created for this user alone, replaces whatever has its name, even a
     * symbolic link, and what was left of it is removed first. */
    OUTPUT_OWN,
};

/*
 * Create the partial file, on so many storage targets (stripes, below; 0: its folder's layout).
 * An existing final name is -EEXIST if it is to be new, and always refused if it is not a
 * regular file. A symbolic link is followed, if the kernel lets this process do so.
 */
int output_open(const char *path, enum output_kind kind, unsigned stripes, struct fault *fault,
                struct output **ret_output);

/*
 * Rename the complete file to NAME.LETTERS.ready, where it waits for shard_exchange to give it
 * its name; with `sync`, after it reached the disk. From then on output_discard removes that
 * file.
 */
int output_ready(struct output *output, const char *letters, bool sync, struct fault *fault);

/*
 * Leave the file as NAME.XXXXXX.kept, for this user alone, until a later run has used it or
 * removes it as a leftover, and remove kept files of NAME that are not larger. The output is
 * freed, also on failure: then no file is left. A file that is ready stays as it is.
 */
int output_keep(struct output *output);

/*
 * Give the file its name; with `sync`, only after its data reached the disk, and wait until
 * the name did too. The output is freed, also on failure: then no file is left.
 */
int output_commit(struct output *output, bool sync, struct fault *fault);

void output_discard(struct output *output); /* NULL is fine */

/*
 * The name of the first partial file, in its output's folder, that this process discarded and
 * could not remove; NULL: there is none.
 */
const char *output_left(void);

/*
 * Open a file without a name, accessible to this user alone, that vanishes with its last
 * descriptor. A descriptor for reading and writing, or -errno.
 */
int output_nameless(const char *folder);

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

/*
 * The stripes of a file on Lustre: on how many storage targets its bytes lie. A file on one
 * target is read no faster than that target, however many nodes read it. Lustre's own program,
 * lfs, reads and sets them. It is run without a shell, in the file's folder, within ten
 * seconds.
 *
 *     stripes_of(path, &count)                of a file
 */

#define STRIPES_MAX 2000u  /* of a file, says Lustre */
#define STRIPES_ADVISED 8u /* enough for a node's network on most systems */

/* Is a file of so many bytes worth more stripes: on one, and larger than 1 GiB? */
bool stripes_are_few(unsigned count, uint64_t bytes);

/*
 * The stripes of an existing file; where the layout grows with it, the ones that have its
 * bytes. -ENOTSUP: it is not on Lustre, or there is no lfs; -EIO: lfs failed; -ETIMEDOUT.
 * Follows symbolic links.
 */
int stripes_of(const char *path, unsigned *ret_count);

/*
 * The same of a file of that name that is about to be made: its folder's layout. 0: the
 * filesystem's default, which is one; UINT_MAX: all targets.
 */
int stripes_of_new(const char *path, unsigned *ret_count);

#endif
