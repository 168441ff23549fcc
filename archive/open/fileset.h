/*
 * A fileset is an opened archive: its bytes (source), its index, its format. All layers above
 * open archives only this way:
 *
 *     fileset_open("train.tar", &(struct fileset_options){.note = say}, &fault, &fileset);
 *     index_lookup(fileset->index, ...);         which files there are
 *     reader_get(...)                            their bytes, see cache/reader/reader.h
 *
 * fileset_open tries, in order: the index that the archive carries; an index saved for it
 * (ARCHIVE.onepot-index beside it, then in $XDG_CACHE_HOME/onepot or ~/.cache/onepot), if it
 * matches the size, time and fingerprint of the archive and belongs to this user, to the
 * archive's owner or to root; a new one, made by the back end in a child process. A new index
 * that took long enough to build is saved, beside the archive if possible, else in the cache
 * folder.
 *
 * A tar compressed as one stream is first unpacked into an unlinked private file (mode 0600)
 * in memory (/dev/shm) or, if it does not fit there, in $TMPDIR or /tmp: `source` is then that
 * file, and `note` says so. A store may keep it for other users, and then its index is saved
 * like any other. If there is a saved index, the names are known at once, and the store may
 * unpack the stream while it is read (fileset_expand).
 *
 * A member that no directory can show (a hard link to nothing, a name of 300 bytes) is left
 * out. A note reports that each time the archive is opened, as the index records it.
 *
 * An archive may lie inside another file: in a container, behind a script or a program (see
 * container.h), or at an offset that the caller gives. `source` is then a slice, so that all
 * offsets count from the archive's start. Only faults say where it is in the file.
 *
 * A folder of files is opened in place of an archive if options.is_plain says so (plain.c): its
 * index is made by listing it, and its source has the files one behind the other
 * (source_folder.h). Nothing is saved.
 *
 * Errors come from the steps; -EBUSY: it is a shard of a set that a pack is replacing; -EINTR
 * if SIGINT, SIGTERM, SIGHUP or SIGQUIT came and the caller handles it. After an error nothing
 * is left behind: no child, no file.
 */
#ifndef ONEPOT_FILESET_H
#define ONEPOT_FILESET_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "container.h"
#include "fault.h"
#include "file_id.h"
#include "index.h"
#include "sandbox.h"
#include "source.h"
#include "tree_view.h"

/* Origin of the index, for `onepot info`. */
enum fileset_index_origin {
    FILESET_INDEX_EMBEDDED,
    FILESET_INDEX_SAVED,
    FILESET_INDEX_BUILT,
};

/* One of several archives that make a union. */
struct fileset_part {
    char *path;
    const struct backend *backend;
    struct file_id file;
    bool has_samples; /* of the file that is read, and not of one that it was unpacked from */
    uint64_t samples; /* source_sample, when it was opened */
};

struct fileset {
    struct source *source; /* the bytes that the index describes */
    struct source *packed; /* the packed file behind `source`, if kept; else NULL */
    struct index *index;
    struct index *stream_index; /* of a stream that is unpacked while it is read, or NULL */
    const struct backend *backend;
    enum fileset_index_origin origin;
    bool is_plain;      /* a folder, and no archive */
    bool was_reindexed; /* its own index is older than the bytes; a saved one replaces it */
    const char *compression;         /* of the whole file: "gzip"; NULL if none */
    char *path;                      /* as given */
    struct container container;      /* around the archive; offset 0: there is none */
    char *index_path;                /* of the saved index that was used or written, or NULL */
    struct source_identity identity; /* of the archive file, even if it was unpacked */
    bool has_fingerprint;            /* of that file: it is read only when needed */
    uint64_t fingerprint;
    struct fileset_part *parts; /* of a union (fileset_open_many), in order; else NULL */
    size_t part_count;
    struct stat
        *unsaved; /* who may read the index that fileset_save is to save; NULL: none is */
    bool is_unsaved_noted; /* a failure to save it is worth a line */
};

#define FILESET_RATIO 200u
#define FILESET_RATIO_OFF UINT32_MAX /* no limit */
#define FILESET_RATIO_FLOOR_BYTES (UINT64_C(256) << 20)

enum fileset_save {
    FILESET_SAVE_AUTO, /* if building took more than a second */
    FILESET_SAVE_NEVER,
    FILESET_SAVE_ALWAYS, /* failure to save is an error: `onepot index` */
};

/* Unpacks an archive into an empty file that lies in `folder`. */
struct fileset_unpacker {
    /* -ENOSPC: it is more than `most_bytes`. Any other error comes with a fault. */
    int (*unpack)(void *arg, int fd, const char *folder, uint64_t most_bytes,
                  struct fault *fault);
    void *arg;
};

/* An archive that is one compressed stream, and the index of its content. */
struct fileset_stream {
    const struct backend *backend;
    struct source *packed;
    const struct index *index; /* with sums, see index_window_sum */
    uint64_t bytes;            /* of the content */
};

/* Keeps unpacked archives for other mounts and processes; see cache/stage/stage.h. */
struct fileset_store {
    /*
     * The content of `packed`: a kept copy, or made by the unpacker now. NULL: keeps nothing.
     */
    int (*open)(void *ctx, struct source *packed, const struct fileset_unpacker *unpacker,
                struct fault *fault, struct source **ret_source);
    /*
     * The same when the content's index is known: a source that can be read while it is
     * unpacked. The objects that `stream` points to live as long as the source. -ENOSPC: no
     * room for all of it; then `open` or a private file is tried, where zeros take no room.
     * NULL: not supported.
     */
    int (*expand)(void *ctx, const struct fileset_stream *stream, struct fault *fault,
                  struct source **ret_source);
    void *ctx;
};

/*
 * Unpack a stream into `fd`, from its start, in a child process. `watch` is sandbox_run's,
 * called once the child has begun and then every 20 ms; progress->bytes_out says how far it is,
 * if the child can be believed. The first `kept` bytes are already there; they are unpacked,
 * but not written. -ECANCELED soon after *stop is true; -EFBIG: the content exceeds
 * stream->bytes; or the errors of the back end and of writing. Call it from a separate thread,
 * as the child is killed when that thread ends. `patience` is its idle_seconds and stop alone.
 */
int fileset_expand(const struct fileset_stream *stream, int fd, uint64_t kept,
                   const struct sandbox_limits *patience, sandbox_watch *watch, void *ctx,
                   struct fault *fault);

/*
 * Does the storage of the packed file answer at this offset? 0, or why not; errors and threads
 * as of fileset_expand.
 */
int fileset_probe_storage(const struct fileset_stream *stream, uint64_t offset,
                          const struct sandbox_limits *patience);

/*
 * The tree to show in place of the archive's own. The index of that is made of the archive's,
 * and saved in the cache folder if it took long, under the hash of all it depends on.
 */
struct fileset_compose {
    const struct view
        *view;   /* a part of the tree, or other names: tree_view.h; NULL: all of it */
    bool nested; /* archives in the archive are directories: nested.h. Before `view`. */
    const char *nested_glob; /* which; NULL: by their names' endings */
};

/* How several archives become one tree. */
enum fileset_conflict {
    FILESET_CONFLICT_ERROR, /* a name in two archives is an error that names both */
    FILESET_CONFLICT_FIRST, /* the first archive with a name has it */
    FILESET_CONFLICT_LAST,
};
struct fileset_together {
    bool each; /* each archive is a directory, of its name without the ending */
    enum fileset_conflict on_conflict;
    bool skip_damaged; /* an archive that can't be opened is left out, with a note */
};

extern const struct backend backend_union; /* of a fileset of several archives */
extern const struct backend backend_plain; /* of a folder of files */

struct fileset_options {
    const struct fileset_compose *compose; /* NULL: the archive's tree as it is */
    struct fileset_together together;      /* of fileset_open_many */
    enum fileset_save save;
    /* An index that is composed is left for fileset_save, where fileset->compression is NULL.
     */
    bool saves_later;
    bool rebuild;        /* don't use a saved index */
    bool lists_left_out; /* the caller reports index_left_out itself: no note */
    /*
     * The caller does not need the bytes of files: a compressed stream whose index was saved
     * is not unpacked, and `source` is the packed file. For callers without a store.
     */
    bool names_only;
    /* Only with an index that is carried or saved; -EAGAIN: there is none. Nothing is written.
     */
    bool only_ready;
    /*
     * Memory that the caller's job may use: room for unpacking into memory, and the limit of
     * the indexing child. 0: the memory available on the node.
     */
    uint64_t memory_bytes;
    /*
     * Limit on the bytes of a compressed stream that are not zeros: so many times its own
     * size, or FILESET_RATIO_FLOOR_BYTES if that is more; 0: FILESET_RATIO. With zeros there
     * may be ten times as many. A stream with more is refused, as a few kilobytes could fill
     * all memory. All compressed archives in an archive together (compose->nested) may unpack
     * to so many times its size; others stay files.
     */
    uint32_t max_ratio;
    uint64_t offset;    /* where the archive begins in its file; 0: find out */
    bool ignores_zeros; /* of a tar: read on behind end-of-archive marks */
    bool is_whole; /* no path is a part of an archive (archive_list_join): look for no others */
    bool is_plain; /* the path is a folder whose files are shown as they are */
    /* NULL: unpack into a private file, and save its index only if that is requested. */
    const struct fileset_store *store;
    /* Called with one line (no newline) for the user. May be NULL. */
    void (*note)(void *ctx, const char *line);
    /* Called during a long step, with its name and its progress. May be NULL. */
    void (*progress)(void *ctx, const char *doing, const struct progress *progress);
    /* The caller's progress sets it to end the step, and fileset_open, with -ECANCELED. Or
     * NULL. */
    const _Atomic bool *cancelled;
    void *ctx;
};

int fileset_open(const char *path, const struct fileset_options *options, struct fault *fault,
                 struct fileset **ret_fileset);

/*
 * Open several archives as one tree, in which directories of one name are merged. Messages call
 * it `name`. Its format is backend_union, its source has all of theirs one behind the other
 * (source_concat.h), and its index is composed of theirs, and saved in the cache folder if that
 * took long: then the next call reads no index of an archive. options->compose's nested
 * archives are opened in each of them; its view is one of the whole tree. Archives that are one
 * compressed stream are unpacked into private files; options->store, names_only and only_ready
 * have no effect.
 *
 * Errors are fileset_open's, for the first archive that has one; the fault names its file.
 * -EEXIST: two archives have one name.
 */
int fileset_open_many(const char *const *paths, size_t count, const char *name,
                      const struct fileset_options *options, struct fault *fault,
                      struct fileset **ret_fileset);

/* Show only a view of the fileset's present tree; it is not saved. Errors of view_add
 * and tree_write. */
int fileset_show(struct fileset *fileset, const struct view *view, struct fault *fault);

/*
 * Save an index that fileset_open composed with `saves_later`, and put the file in the place of
 * its memory: other threads may be reading it. 0 as well if there is none; else -errno, and it
 * stays in memory. `fault` says so only if composing it took long enough to be worth a line.
 * Call it once.
 */
int fileset_save(struct fileset *fileset, struct fault *fault);

/*
 * Write the saved index anew, with the digest of its tree (index_set_digest). 0 as well if
 * there is none: an archive with its own index stays as it is. Errors of writing, with a fault.
 */
int fileset_save_digest(struct fileset *fileset, struct fault *fault);

/* Is it more files than one: several archives, or one in volumes? */
static inline bool fileset_is_several(const struct fileset *fileset)
{
    return fileset->parts || source_member(fileset->source, 0) != fileset->source;
}

void fileset_close(struct fileset *fileset); /* NULL is fine */

/* The sums that the files of an archive or a tree have to be compared with. */
struct fileset_sums {
    bool every, some;
    uint64_t files, with_sum; /* files with a sum; exact if some have one and some don't */
    enum sum_kind kind;       /* SUM_MIXED: of both */
};

/* Walks the index only if files may differ in it. -EUCLEAN: the index is damaged. */
int fileset_sums(const struct fileset *fileset, struct fileset_sums *ret_sums);

#define FILESET_SUMS_TEXT_LEN 128
/* Is the file compressed as a whole? Then the compression may have sums. */
bool fileset_is_packed(const struct fileset *fileset);

/* "of every file (CRC-32)", "of 2 of 3 files (CRC-32)", or why there are none. */
const char *fileset_sums_text(const struct fileset *fileset, const struct fileset_sums *sums,
                              char text[FILESET_SUMS_TEXT_LEN]);

/*
 * The first step of fileset_open: the bytes of the archive, which may be a part of the file.
 * `offset` as in the options.
 */
int fileset_open_source(const char *path, uint64_t offset, struct fault *fault,
                        struct container *ret_container, struct source **ret_source);

/*
 * The fileset->identity that fileset_open would find, without opening the archive; with
 * is_whole and is_plain of the options. Errors of stat(2), with a fault that names the file,
 * and of listing.
 */
int fileset_identify(const char *path, const struct fileset_options *options,
                     struct fault *fault, struct source_identity *ret_identity);

/*
 * Call after reading the whole archive: was all of it still there? -ENODATA (cut short) or
 * -EIO, with a fault: then anything may be missing from the result.
 */
int fileset_check_whole(const struct fileset *fileset, struct fault *fault);

/*
 * Remove all indexes from the cache folder that no process of this node has open. Saving one
 * bounds the folder already: ONEPOT_INDEX_CACHE (bytes, 2 GiB if unset) and 90 days without
 * use. -EPERM, with a fault: others could put files there.
 */
struct fileset_cache {
    uint64_t removed, removed_bytes, in_use;
};
int fileset_clean_cache(struct fileset_cache *ret_cache, struct fault *fault);

#endif
