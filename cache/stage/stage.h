/*
 * Staging: an archive on a slow filesystem is copied once to memory or to a disk of this
 * node, in the background, while it is read. The copy is shared by all processes of this
 * user on the node; whoever wants it first makes it, another one goes on if that one dies,
 * and the last one out removes it.
 *
 *     stage_open(source, &options, &fault, &stage);   finds the copy, or makes room for it
 *     stage_attach(stage, source);                    reads come from the copy where it is
 *     stage_start(stage);                             in the process that serves: copies
 *     ...
 *     stage_stop(stage); source_close(source); stage_close(stage);
 *
 * An archive that is compressed in one piece, and whose index is known, is unpacked into its
 * copy in the same way; there a reader waits until the stream has come as far as what he wants.
 *
 * What a reader wants and is not there is fetched at once by the reader, with its whole
 * chunk, which is then part of the copy. Reads never depend on the copy: what can't be kept
 * is read from the source, and what a copy has is served when the source is gone.
 *
 * Between stage_open and stage_start a process may fork; both may close their stage.
 *
 * Threads: stage_start, stage_stop, stage_close from one; the rest from any.
 */
#ifndef ONEPOT_STAGE_H
#define ONEPOT_STAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fault.h"
#include "pot.h"
#include "source.h"

struct stage;

struct stage_options {
    const char *archive; /* its path, for people; NULL: the source's name */
    const char *place;   /* a directory on this node; NULL: /dev/shm, else $TMPDIR, else /tmp */
    unsigned streams;    /* reads in flight; 0: what a parallel filesystem likes */
    uint32_t idle_s;     /* a stream's storage is silent so long: it is tried anew; 0: 300 */
    /* Called with a line (no newline) about what goes wrong, from a thread. May be NULL. */
    void (*note)(void *ctx, const char *line);
    void *ctx;
};

/*
 * The copy of this source, with room for all of it; the source must outlive the stage's
 * threads. Copies that nobody uses any more are removed meanwhile. Errors come with a fault:
 * -ENOSPC (it does not fit: the figures, and what to do), -EPERM (the folder is not ours),
 * -EEXIST (it lies in memory already), -ENOTSUP (the place is not on this node), and of files.
 */
int stage_open(struct source *source, const struct stage_options *options, struct fault *fault,
               struct stage **ret_stage);

/*
 * A copy of what is inside of an archive that is compressed in one piece: found whole, or made
 * by `unpacker` before this returns; who wants it meanwhile waits. It is to be read by
 * stage_source, and has nothing to start. -EINTR when a signal that the caller handles came.
 */
int stage_open_unpacked(const struct source *packed, const struct stage_options *options,
                        const struct pot_unpacker *unpacker, struct fault *fault,
                        struct stage **ret_stage);

/* A copy that is whole, as a source of its own; the stage holds it. */
int stage_source(const struct stage *stage, const char *name, struct source **ret_source);

/*
 * The same where its index is known, so that it can be read while it is unpacked, which
 * stage_start begins. A read waits for its bytes as long as there is progress (and
 * options.idle_s without; five seconds if no process is left that unpacks). Each megabyte is
 * compared with its sum before anybody sees it. Storage that fails, or is silent for idle_s, is
 * asked now and then whether it answers, and unpacking goes on when it does; until then
 * report.away says why it does not, and reads of what is missing are -EIO half a minute after
 * the last progress. Where unpacking ends early, report.failure and report.reason say why: what
 * has arrived is served, and the rest is -EIO. With `is_private` the copy is this process's and
 * its children's alone, and has no name.
 */
int stage_open_stream(const struct pot_stream *stream, const struct stage_options *options,
                      bool is_private, struct fault *fault, struct stage **ret_stage);

/* CLOCK_MONOTONIC at which a stream has last come further; 0: none is being unpacked. */
uint64_t stage_stream_progress_ns(const struct stage *stage);

/*
 * All of these, for pot_options.store: stage_pot_store(&(struct stage_store){options}). If
 * `stage` is not NULL after pot_open, whatever that returned, the caller has to close it. A
 * private store only keeps what is unpacked while it is read.
 */
struct stage_store {
    struct stage_options options;
    struct stage *stage;
    bool is_private;
};
struct pot_store stage_pot_store(struct stage_store *store);
int stage_store_open(void *store, struct source *packed, const struct pot_unpacker *unpacker,
                     struct fault *fault, struct source **ret_source);

/* Let `source`, the one that it was opened with, read through it. */
void stage_attach(struct stage *stage, struct source *source);

/* The same, and closing the source closes the stage. After stage_start. */
void stage_give(struct stage *stage, struct source *source);

/* Who hears of trouble from now on, in place of options.note. Before stage_start. */
void stage_set_note(struct stage *stage, void (*note)(void *ctx, const char *line), void *ctx);

/* Make the copy, or watch whoever makes it and go on if he dies. -EAGAIN and the like. */
int stage_start(struct stage *stage);

/*
 * End the threads, within two seconds: -EBUSY if one is stuck in a read of the source; then
 * the stage must stay (stage_abandon), and so must the source.
 */
int stage_stop(struct stage *stage);

/* Remove the files, if nobody else uses them and they are not to stay. */
void stage_abandon(struct stage *stage);

/* stage_stop, stage_abandon, and free it. NULL is fine. */
void stage_close(struct stage *stage);

/* Forget it without removing anything: another process goes on with it. NULL is fine. */
void stage_forget(struct stage *stage);

/* Wait until the copy is whole or nobody goes on with it. True: it is. */
bool stage_wait_whole(struct stage *stage, unsigned timeout_ms);

struct stage_report {
    const char *folder; /* valid as long as the stage */
    uint64_t bytes, bytes_here;
    bool whole;
    bool pinned;
    int failure;        /* 0, or the errno for which nobody goes on */
    int away;           /* 0, or the errno for which a stream comes no further at present */
    char reason[256];   /* the same in words, of a stream; else "" */
    int32_t copier_pid; /* 0: nobody copies */
    uint64_t stream_ns; /* for which it was copied */
    uint64_t stream_bytes, demand_bytes, demands, past_bytes;
};
void stage_get_report(const struct stage *stage, struct stage_report *ret_report);

/* ---- copies that stay: onepot stage, unstage, stat ---- */

/* It stays until stage_unpin, or until the process has ended (0: whatever ends). */
void stage_pin(struct stage *stage, pid_t owner);

struct stage_copy_info {
    const char *archive, *folder;
    const struct source_identity *identity;
    bool used;   /* by a process that lives */
    pid_t owner; /* of a copy that stays; 0: nobody */
    struct stage_report report;
};

/*
 * Every copy in the places that options.place says (NULL: all that would be chosen from).
 * With `remove`, those for which the function returns 1 don't stay any more, and go if
 * nobody uses them. An error, or in how many places the folder's name is taken by what is not
 * this user's alone, and was skipped.
 */
int stage_each(const char *place, int (*fn)(void *ctx, const struct stage_copy_info *info),
               void *ctx);

/* Remove what killed processes left. Cheap where there is nothing. */
void stage_sweep(const char *place);

#endif
