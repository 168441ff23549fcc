/*
 * Shared by the files of the pot. pot.c opens an archive, whose index is its own, a new
 * one, or a saved one (saved_index.c, which bounds their number, too); many.c makes one of
 * others.
 */
#ifndef ONEPOT_POT_PRIVATE_H
#define ONEPOT_POT_PRIVATE_H

#include "builder.h"
#include "pot.h"
#include "recipe.h"
#include "shard_exchange.h"
#include "tree.h"

/* ---- pot.c ---- */

/* A line for the user: "PATH: ...". */
void pot_note(const struct pot_options *options, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a fault. */
void pot_note_fault(const struct pot_options *options, const char *path,
                    const struct fault *fault);

/* One line on the members that the index lacks, if there are any. */
void pot_note_left_out(const struct pot_options *options, const struct pot *pot);

/* sandbox_run, showing the progress as `doing` and the child's remark as a note. */
int pot_run(const struct pot_options *options, const char *path, const char *doing,
            int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
            const struct sandbox_limits *limits, struct fault *fault);

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

void composition_free(struct composition *composition);

/* ---- pot.c ---- */

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

/* An archive that was looked at. */
struct pot_found {
    struct source *source;
    struct container container;
    const struct backend *backend;
    const char *compression;        /* of the source as a whole; NULL: none */
    struct embedded_index embedded; /* if that was looked for and found; else length 0 */
};

/*
 * Is the archive a shard of a set that is being exchanged? -EBUSY. A record of it that does
 * not count is noted. `source` is the open file, NULL: there is none. See shard_exchange_check.
 */
int pot_check_exchange(struct shard_records *records, const char *path,
                       const struct source *source, const struct pot_options *options,
                       struct fault *fault);

/*
 * pot_open of one that was looked at. Takes found->source over, also if this fails, and leaves
 * NULL there; only after -EAGAIN by options->only_ready it is there again, if it can be.
 */
int pot_open_found(struct pot_found *found, const struct pot_options *options,
                   struct fault *fault, struct pot **ret_pot);

/*
 * Open the file at `path`, or all of the archive that it is a part of, unless it is known to be
 * whole. What that tells of the archive is kept for pot_look.
 */
int pot_open_file(const char *path, bool is_whole, const struct pot_options *options,
                  struct fault *fault, struct pot_found *found);

/*
 * Look at the archive in an open file, or in a part of it. After an error the source is closed,
 * and NULL.
 */
int pot_look(struct pot_found *found, uint64_t offset, struct fault *fault);

/* The archive file, packed or not. */
static inline struct source *pot_file(const struct pot *pot)
{
    return pot->packed ? pot->packed : pot->source;
}

/* ---- plain.c ---- */

/* pot_open and pot_identify of a folder whose files are shown as they are. */
int plain_open(const char *path, const struct pot_options *options, struct fault *fault,
               struct pot **ret_pot);
int plain_identify(const char *path, struct fault *fault, struct source_identity *ret_identity);

/* ---- built_index.c ---- */

/*
 * Limits for a child that indexes. `in_frames`: the size of the file does not tell how much
 * there may be in it.
 */
struct sandbox_limits built_index_limits(const struct opening *o, bool in_frames);

/* Seal the image in `fd`, so that it stays as it is checked, and open it. */
int built_index_open_image(int fd, const char *name, struct fault *fault,
                           struct index **ret_index);

/* ---- unpacked.c ---- */

/*
 * Memory that may be used: as much as the job has available and the caller allows. It is looked
 * up once, and kept in these options.
 */
uint64_t pot_memory_bytes(struct pot_options *own);

/* How many bytes a file may unpack to, by options->max_ratio. */
uint64_t unpacked_most(const struct source *packed, const struct pot_options *options);

/* ---- saved_index.c ---- */

/*
 * Check that the archive size in the index is not more than the file's, as the index's ranges
 * are checked against it.
 */
int pot_check_index(const struct pot *pot, struct fault *fault);

/* Compute pot->fingerprint, unless it is known already. */
int opening_fingerprint(struct opening *o);

/*
 * Use a saved index that still describes the archive. One of the content of a stream is left
 * in o->stream_index.
 */
opener saved_index_open;

#define INDEX_SUFFIX ".onepot-index"
#define INDEX_JOINED "@joined" /* behind the archive's name, of one with --ignore-zeros */

/* The part of a saved index's name between the archive's name, or its key, and the suffix. */
#define INDEX_TAG_LEN 40

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

/* ---- many.c ---- */

/* A tree that takes longer to compose is saved. There may be many lists and patterns. */
enum { COMPOSED_WORTH_MS = 5, COMPOSED_VIEW_WORTH_MS = 200 };

/* A failure to save it is worth a line if it took so long. */
enum { COMPOSED_NOTED_MS = 200 };

/* For nested archives and views; raise it when the same recipe makes another index. */
enum { COMPOSED_VERSION = 3 };

/* Add all parts to the tree, and describe the archive in the header. */
typedef int composer(void *arg, struct tree *tree, struct builder_header *header,
                     struct fault *fault);

/* Writes the image of the next step's index to `fd`, an empty file. */
typedef int composed_writer(struct composition *composition, int fd, struct fault *fault);

/* Use a saved index of what options->compose describes, if it needs no other index. */
opener composed_open_saved;

/*
 * Put what options->compose describes in the place of pot->index, unless that is it already.
 * -EAGAIN: archives in it would have to be indexed, and only_ready forbids it.
 */
int composed_apply(struct opening *o, struct fault *fault);

struct stat;

/*
 * The path of an archive's index (pot_index_path) in the cache folder, used if saving beside
 * the archive fails. -ENOENT: there is no cache folder either.
 */
int pot_cached_index_path(const char *archive, uint64_t offset, bool is_joined,
                          char **ret_path);

/* Why a file found by its name can't be trusted beside the archive `theirs`; NULL if it can. */
const char *saved_mistrust(const struct stat *ours, const struct stat *theirs);

#endif
