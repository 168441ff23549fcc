/*
 * How an archive is opened, from its path to its tree. The steps are the same for one archive
 * (pot_open) and for each of several (pot_open_many), which takes each step with all of them,
 * and makes one tree of theirs at the end:
 *
 *   1. pot_open_file: the file, or all parts of the archive that it is one of. Its end and its
 *      first bytes tell nearly all of them; rare questions are for the rest.
 *   2. pot_check_exchange: is a pack replacing it?
 *   3. pot_look: its format, and what it lies in, where that is not known by now.
 *   4. pot_open_found: its index, by the first of several openers that has one: the archive's
 *      own, a saved one, one that the store unpacks a stream by, a new one.
 *   5. composed_apply: the tree that is shown, if that is another than the archive's.
 *
 * pot.c has all of that but saved indexes (saved_index.c), trees of other trees and of several
 * archives (many.c), and folders (plain.c). What an archive's parts are volumes.h finds out.
 */
#ifndef ONEPOT_POT_PRIVATE_H
#define ONEPOT_POT_PRIVATE_H

#include "builder.h"
#include "pot.h"
#include "recipe.h"
#include "shard_exchange.h"
#include "tree.h"

/* ---- the steps ---- */

/* An archive that was looked at. */
struct pot_found {
    struct source *source;
    struct container container;
    const struct backend *backend;  /* NULL: not known yet, or, if is_unknown, */
    bool is_unknown;                /* not by its end and its first bytes */
    const char *compression;        /* of the source as a whole; NULL: none */
    struct embedded_index embedded; /* if that was looked for and found; else length 0 */
};

/*
 * Open the file at `path`, or all of the archive that it is a part of, unless it is known to be
 * whole. What that tells of the archive is kept for pot_look.
 */
int pot_open_file(const char *path, bool is_whole, const struct pot_options *options,
                  struct fault *fault, struct pot_found *found);

/*
 * Is the archive a shard of a set that is being exchanged? -EBUSY. A record of it that does
 * not count is noted. `source` is the open file, NULL: there is none. See shard_exchange_check.
 */
int pot_check_exchange(struct shard_records *records, const char *path,
                       const struct source *source, const struct pot_options *options,
                       struct fault *fault);

/*
 * Look at the archive in an open file, or in a part of it. After an error the source is closed,
 * and NULL.
 */
int pot_look(struct pot_found *found, uint64_t offset, struct fault *fault);

/*
 * pot_open of one that was looked at. Takes found->source over, also if this fails, and leaves
 * NULL there; only after -EAGAIN by options->only_ready it is there again, if it can be.
 */
int pot_open_found(struct pot_found *found, const struct pot_options *options,
                   struct fault *fault, struct pot **ret_pot);

/* pot_open and pot_identify of a folder whose files are shown as they are. */
int plain_open(const char *path, const struct pot_options *options, struct fault *fault,
               struct pot **ret_pot);
int plain_identify(const char *path, struct fault *fault, struct source_identity *ret_identity);

/* ---- the index: pot.c ---- */

/*
 * How the tree that is shown is made of archives' own: at most two steps, each with a recipe.
 * First several trees become one (a union, or archives in the archive), then a view is made of
 * that, so that another view needs the second step alone. A saved index spares its step and
 * those before it.
 */
struct composition {
    struct pot *pot;                   /* gets the index; its path is for messages */
    const struct pot_options *options; /* whether to use and to save it */
    const struct source *archive;      /* its owner and readers may read a saved one */
    const char *file; /* a saved one is named after it: the archive, or the first of several */
    bool is_private;  /* only this user may read a saved one */
    bool saves_later; /* leave the last for pot_save */
    /* Does the proof behind a recipe's name hold? NULL: there is none. */
    bool (*proves)(void *arg, const void *proof, size_t len);
    void *arg;
    uint64_t start_ms;       /* when the work for the first step began (now_ms); 0: with it */
    const struct view *view; /* the last step; NULL: there is no view */
    struct recipe recipes[2];
    size_t count, done; /* steps in all, and steps that pot->index has */
};

/* The pot while it is being opened: what its openers know and leave for one another. */
struct opening {
    struct pot *pot;
    struct pot_options *options;    /* the caller's, for this opening alone */
    const char *compression;        /* of pot->source as a whole; NULL: none */
    struct embedded_index embedded; /* if it was found already; else length 0 */
    struct index *stream_index;     /* of the content of pot->source, which is one stream */
    bool is_of_later_version;       /* the saved index, which stays as it is */
    uint64_t unpack_ms;             /* that unpacking took */
    struct fault stale;       /* if set, the archive's own index is older than its bytes */
    struct composition steps; /* that options->compose asks for */
};

/*
 * One way to open an archive. 0: pot->index is open. OPENER_NOT_MINE: the archive is not opened
 * in this way; the next opener tries, with what this one found out. Else -errno and maybe a
 * fault. A fault does not count without an error.
 */
typedef int opener(struct opening *o, struct fault *fault);
#define OPENER_NOT_MINE 1

/* The archive file, packed or not. */
static inline struct source *pot_file(const struct pot *pot)
{
    return pot->packed ? pot->packed : pot->source;
}

/*
 * Check that the archive size in the index is not more than the file's, as the index's ranges
 * are checked against it.
 */
int pot_check_index(const struct pot *pot, struct fault *fault);

/* Compute pot->fingerprint, unless it is known already. */
int opening_fingerprint(struct opening *o);

/*
 * Memory that may be used: as much as the job has available and the caller allows. It is looked
 * up once, and kept in these options.
 */
uint64_t pot_memory_bytes(struct pot_options *own);

/*
 * Limits for a child that indexes. `in_frames`: the size of the file does not tell how much
 * there may be in it.
 */
struct sandbox_limits built_index_limits(const struct opening *o, bool in_frames);

/* Seal the image in `fd`, so that it stays as it is checked, and open it. */
int built_index_open_image(int fd, const char *name, struct fault *fault,
                           struct index **ret_index);

/* sandbox_run, showing the progress as `doing` and the child's remark as a note. */
int pot_run(const struct pot_options *options, const char *path, const char *doing,
            int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
            const struct sandbox_limits *limits, struct fault *fault);

/* How many bytes a file may unpack to, by options->max_ratio. */
uint64_t unpacked_most(const struct source *packed, const struct pot_options *options);

/* ---- saved indexes: saved_index.c ---- */

/*
 * Use a saved index that still describes the archive. One of the content of a stream is left
 * in o->stream_index.
 */
opener saved_index_open;

#define INDEX_SUFFIX ".onepot-index"

/*
 * Save the index beside the archive, else in the cache folder; it then uses the file in place
 * of its memory, if that can be. If both fail, the fault names both reasons.
 */
int saved_index_write(const char *archive, uint64_t offset, const struct source *source,
                      const struct index *index, struct fault *fault, char **ret_path);

/*
 * The index in a file, if it can be trusted to describe the archive. -ENOENT, -ENOMEM,
 * -ENOTSUP: a later version made it, or a build that reads more.
 * *ret_is_later (may be NULL): it was written after the last change of the archive.
 */
int saved_index_open_file(const char *path, const struct pot_options *options,
                          const struct source *archive, bool *ret_is_later,
                          struct index **ret_index);

/*
 * Those who may read a saved index, by its mode, owner and group: those who may read its
 * archive; NULL: only this user.
 */
int saved_index_access(const struct source *archive, struct stat *ret_access);

/* saved_index_write under a path in the cache folder. */
int saved_index_write_file(const char *path, const struct stat *access,
                           const struct index *index, struct fault *fault);

/* The path in the cache folder of an index called NAME-KEY. -ENOENT: there is no such folder.
 */
int index_cache_path(const char *name, const char *key, char **ret_path);

/* The index at this path in the cache folder is used. */
void index_cache_used(const char *path);

/*
 * The cache folder that an index at this path lies in, which is made if it is missing (0700).
 * -EPERM: somebody else could put files there, and the fault names the folder at fault. The
 * caller closes *ret_fd (O_PATH).
 */
int index_cache_open(const char *path, struct fault *fault, int *ret_fd);

/* Why a file found by its name can't be trusted beside the archive `theirs`; NULL if it can. */
const char *saved_mistrust(const struct stat *ours, const struct stat *theirs);

/* ---- the tree that is shown: many.c ---- */

/* Use a saved index of what options->compose describes, if it needs no other index. */
opener composed_open_saved;

/*
 * The end of an opening with options->compose: unless it failed with `err`, put what that
 * describes in the place of pot->index, if it is not that already. -EAGAIN: archives in it
 * would have to be indexed, and only_ready forbids it. Frees o->steps.
 */
int composed_apply(struct opening *o, int err, struct fault *fault);

/* Archives that are opened by several threads at once, and report to one user. */
struct opening_team {
    const struct pot_options *options; /* the user's */
    uint64_t bytes_total;              /* of all archives, for the progress; 0: unknown */
    unsigned threads;
    /* One thread's work: open archives with these options, which are the thread's own. */
    void (*run)(void *arg, const struct pot_options *options);
    void *arg;
};

/*
 * Returns when all threads have. -EINTR: a signal came that the program handles and that asks
 * it to end; the openings it met were given up with -ECANCELED. -EAGAIN, -ENOMEM: no thread
 * could be started, and nothing was done.
 */
int opening_team_run(const struct opening_team *team);

/* ---- what the user is told: pot.c ---- */

/* A line for the user: "PATH: ...". */
void pot_note(const struct pot_options *options, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a fault. */
void pot_note_fault(const struct pot_options *options, const char *path,
                    const struct fault *fault);

/* One line on the members that the index lacks, if there are any. */
void pot_note_left_out(const struct pot_options *options, const struct pot *pot);

#endif
