/*
 * A pot is an archive that was opened: its bytes (source), its index, its format.
 * Opening one is the only way in for all layers above:
 *
 *     pot_open("train.tar", &(struct pot_options){.note = say}, &fault, &pot);
 *     index_lookup(pot->index, ...);     which files there are
 *     reader_get(...)                    their bytes, see cache/reader/reader.h
 *
 * What pot_open tries, in order: the index that the archive carries; an index saved
 * for it (ARCHIVE.onepot-index beside it, then $XDG_CACHE_HOME/onepot or
 * ~/.cache/onepot), if size, time and fingerprint of the archive still agree and it
 * belongs to this user, to the archive's owner or to root; a new one, made by the back
 * end in a child process. A new index that took long enough to be worth it is saved,
 * first beside the archive, else in the cache folder.
 *
 * A tar that is compressed as one stream is first unpacked into an unlinked private
 * file (mode 0600) in memory (/dev/shm) or, where it does not fit there, in $TMPDIR
 * or /tmp: `source` is then that file, and `note` says so. With a store it may be kept there
 * for others, and its index is saved as others are. Where there is a saved index, the names are
 * known at once, and the store may have it unpacked while it is read (pot_expand).
 *
 * A member that no directory can show (a hard link to nothing, a name of 300 bytes) is left
 * out, and a note says so, each time that the archive is opened: the index knows it.
 *
 * Errors are those of the steps; -EINTR when SIGINT, SIGTERM, SIGHUP or SIGQUIT came and
 * the caller handles it.
 * Nothing is left behind then: no child, no file.
 */
#ifndef ONEPOT_POT_H
#define ONEPOT_POT_H

#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "fault.h"
#include "index.h"
#include "sandbox.h"
#include "source.h"

/* Where the index came from; for `onepot info`. */
enum pot_index_origin {
    POT_INDEX_EMBEDDED,
    POT_INDEX_SAVED,
    POT_INDEX_BUILT,
};

struct pot {
    struct source *source; /* the bytes that the index speaks of */
    struct source *packed; /* what `source` was unpacked from, where that is kept; or NULL */
    struct index *index;
    const struct backend *backend;
    enum pot_index_origin origin;
    const char *compression;         /* of the whole file: "gzip"; NULL if none */
    char *path;                      /* as it was given */
    char *index_path;                /* of the saved index that was used or written, or NULL */
    struct source_identity identity; /* of the archive file, also when it was unpacked */
};

#define POT_RATIO 200u
#define POT_RATIO_OFF UINT32_MAX /* no limit */
#define POT_RATIO_FLOOR_BYTES (UINT64_C(256) << 20)

enum pot_save {
    POT_SAVE_AUTO, /* when building took more than a second */
    POT_SAVE_NEVER,
    POT_SAVE_ALWAYS, /* failing to is an error: `onepot index` */
};

/* Unpacks an archive into an empty file that lies in `folder`. */
struct pot_unpacker {
    /* At most `most_bytes`; -ENOSPC if it is more. A fault comes with any other error. */
    int (*unpack)(void *arg, int fd, const char *folder, uint64_t most_bytes,
                  struct fault *fault);
    void *arg;
};

/* An archive that is one compressed stream, and the index of what is inside of it. */
struct pot_stream {
    const struct backend *backend;
    struct source *packed;
    const struct index *index; /* with sums, see index_expanded_sum */
    uint64_t bytes;            /* of what is inside */
};

/* Keeps what was unpacked, for other mounts and processes: cache/stage/stage.h has one. */
struct pot_store {
    /*
     * What is inside of `packed`: as it was kept, or made by the unpacker now. NULL: nothing is
     * kept.
     */
    int (*open)(void *ctx, struct source *packed, const struct pot_unpacker *unpacker,
                struct fault *fault, struct source **ret_source);
    /*
     * The same, when it is known what will be inside: a source that is read while the bytes
     * come. What `stream` points to lives as long as the source. -ENOSPC: there is no room for
     * all of it; then `open`, or a private file, is tried, which zeros take no room in. NULL:
     * it can't.
     */
    int (*expand)(void *ctx, const struct pot_stream *stream, struct fault *fault,
                  struct source **ret_source);
    void *ctx;
};

/* How long is waited for storage. */
struct pot_patience {
    uint32_t idle_seconds; /* without an answer: -ETIMEDOUT; 0: five minutes */
    const _Atomic bool *stop;
};

/*
 * Unpack a stream into `fd`, from its start on, in a child process; `watch` as of sandbox_run,
 * once the child has begun and then every 20 ms: progress->bytes_out says how far it is, if the
 * child is to be believed. The first `kept` bytes are there already; they are unpacked, but not
 * written. -ECANCELED soon after *stop is true; -EFBIG: there is more in it than stream->bytes;
 * and the errors of the back end and of writing. For a thread of its own, which must not end
 * before.
 */
int pot_expand(const struct pot_stream *stream, int fd, uint64_t kept,
               const struct pot_patience *patience, sandbox_watch *watch, void *ctx,
               struct fault *fault);

/* Does its storage answer at this offset of the packed file? 0, or why not; as above. */
int pot_knock(const struct pot_stream *stream, uint64_t offset,
              const struct pot_patience *patience);

struct pot_options {
    enum pot_save save;
    bool rebuild;        /* don't use a saved index */
    bool lists_left_out; /* the caller tells of index_left_out itself: no note */
    /*
     * Bytes of files are not asked for: of a compressed stream whose index was saved, nothing
     * is unpacked, and `source` is the packed file. For callers without a store.
     */
    bool names_only;
    /*
     * Memory that the caller's job may use, for what is unpacked into memory and as the
     * limit of the child that indexes; 0: what the node has available.
     */
    uint64_t memory_bytes;
    /*
     * A compressed stream may hold so many times its own size of bytes that are not zeros, or
     * POT_RATIO_FLOOR_BYTES if that is more; 0: POT_RATIO. What holds more is refused: a few
     * kilobytes would take all memory.
     */
    uint32_t max_ratio;
    const struct pot_store
        *store; /* NULL: a private file; its index is saved if that is asked */
    /* Called with one line (no newline) for what a person should know. May be NULL. */
    void (*note)(void *ctx, const char *line);
    /* Called while a long step works: what it does, and how far it is. May be NULL. */
    void (*progress)(void *ctx, const char *doing, const struct progress *progress);
    void *ctx;
};

int pot_open(const char *path, const struct pot_options *options, struct fault *fault,
             struct pot **ret_pot);
void pot_close(struct pot *pot); /* NULL is fine */

/*
 * For who has gone through all of it: was all of it still there? -ENODATA (cut short), -EIO,
 * with a fault: then anything may be missing from what was found.
 */
int pot_check_whole(const struct pot *pot, struct fault *fault);

/*
 * The path where an index for `archive` would be saved beside it. Caller frees.
 * -ENOMEM.
 */
int pot_index_path(const char *archive, char **ret_path);

/* Where it would be saved if that can't be. -ENOENT: there is no such place either. */
int pot_cached_index_path(const char *archive, char **ret_path);

#endif
