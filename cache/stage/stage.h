/*
 * Staging: an archive on a slow filesystem is copied once, in the background, to memory or to a
 * disk of this node, while it is read. All processes of this user on the node share the copy.
 * The first one to want it makes it, another one goes on if that one dies, and the last one out
 * removes it.
 *
 *     stage_open(source, &options, &fault, &stage);   finds the copy, or makes room for it
 *     stage_attach(stage, &source, false);            reads use the copy as far as it is there
 *     stage_start(stage);                             in the process that serves: copies
 *     ...
 *     stage_stop(stage); source_close(source); stage_close(stage);
 *
 * If an archive is compressed in one piece and its index is known, it is unpacked into its copy
 * in the same way. There a reader waits until the stream has come as far as the read.
 *
 * If a read needs bytes that are not there, the reader fetches them at once, with their whole
 * chunk, which then becomes part of the copy. Reads never depend on the copy: bytes that can't
 * be kept are read from the source. Bytes in a copy are served even when the source is gone.
 *
 * A process may fork between stage_open and stage_start; both may close their stage.
 *
 * Threads: call stage_start, stage_stop and stage_close from one; the rest from any.
 */
#ifndef ONEPOT_STAGE_H
#define ONEPOT_STAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fault.h"
#include "fileset.h"
#include "source.h"

struct stage;

struct stage_options {
    const char *archive; /* its path, for messages; NULL: the source's name */
    const char *place;   /* a directory on this node; NULL: /dev/shm, else $TMPDIR, else /tmp */
    const char *adopt;   /* for stage_open: a copy that another program made; NULL: none */
    bool in_job;         /* other programs of the job bring the copy: see stage_start */
    unsigned threads;    /* reads in flight; 0: as many as suit a parallel filesystem */
    uint32_t idle_s;     /* a stream's storage may be silent so long before a new try; 0: 300 */
    /* Receives a line (no newline) about each problem, from any thread. May be NULL. */
    void (*note)(void *ctx, const char *line);
    void *ctx;
};

/*
 * Find the copy of this source, or make one with room for all of it. The source must outlive
 * the stage's threads. Copies that nobody uses any more are removed meanwhile. Errors come with
 * a fault: -ENOSPC (it does not fit: the figures, and what to do), -EPERM (the folder is not
 * ours), -EEXIST (it is to be read without a copy: it is in memory, or empty, or another
 * version of the program has one, and there is no room for two), -ENOTSUP (the place is not on
 * this node), and errors of files.
 *
 * A file to adopt lies on this node, and agrees with the source in size, in time to the second
 * and in samples of its content. It must be this user's or root's, and nobody else may write to
 * it or has it open for writing. Otherwise it is refused, with a fault that names it.
 *
 * If no other copy is in use, it is moved to the stage, and whole at once. Where it can't be
 * moved (it lies on another filesystem, has more names, or is root's), stage_start copies it.
 * A stage that is there already is completed from it. One that is whole needs no such file.
 */
int stage_open(struct source *source, const struct stage_options *options, struct fault *fault,
               struct stage **ret_stage);

/*
 * Copies of the content of archives that are compressed in one piece, for
 * fileset_options.store: stage_fileset_store(&(struct stage_store){options}). If `stage` is not
 * NULL after fileset_open, whatever that returned, the caller has to close it.
 *
 * Without an index, the copy is found whole, or the unpacker makes it before fileset_open
 * returns; others who want it meanwhile wait. There is nothing to start then. A private store
 * keeps no such copy.
 *
 * With an index, stage_start begins to unpack it, and it can be read meanwhile. A read waits
 * for its bytes as long as there is progress. It gives up after options.idle_s without any, or
 * after five seconds if no process is left that unpacks. Each megabyte is compared with its sum
 * before anybody sees it. A private copy has no name and belongs to this process and its
 * children alone.
 *
 * Storage that fails, or is silent for idle_s, is asked now and then whether it answers, and
 * unpacking goes on when it does. Until then report.away says why it does not, and reads of
 * missing bytes fail with -EIO half a minute after the last progress. Where unpacking ends
 * early, report.failure and report.reason say why. Bytes that have arrived are served then, and
 * the rest is -EIO.
 */
struct stage_store {
    struct stage_options options;
    struct stage *stage;
    bool is_private;
};
struct fileset_store stage_fileset_store(struct stage_store *store);

/* When the unpacking of a stream last made progress (CLOCK_MONOTONIC); 0: none is under way. */
uint64_t stage_stream_progress_ns(const struct stage *stage);

/*
 * Put a source that reads through the stage around *source, in its place, before anybody else
 * uses it. *source is the one that the stage was opened with, or of the same bytes; one that
 * reads through the stage already stays. `closes_stage`: closing it closes the stage. -ENOMEM.
 */
int stage_attach(struct stage *stage, struct source **source, bool closes_stage);

/* Report problems to `note` instead of options.note from now on. Call it before stage_start. */
void stage_set_note(struct stage *stage, void (*note)(void *ctx, const char *line), void *ctx);

/*
 * Make the copy, or watch the process that makes it and take over if it dies. -EAGAIN, etc. A
 * second call does nothing. With options.in_job nothing is copied here before the nodes of the
 * job begin to (stage_job.h), or before a minute has passed; reads fetch what they need.
 */
int stage_start(struct stage *stage);

/*
 * End the threads, within two seconds. -EBUSY: one is stuck in a read of the source. Then the
 * stage must stay (stage_abandon), and so must the source.
 */
int stage_stop(struct stage *stage);

/*
 * Remove the files, unless another process uses them or they are to stay. `with_children`: a
 * child that was forked a moment ago, and has not yet closed its descriptors, does not use
 * them; only for a process whose parent does not, as all share one lock.
 */
void stage_abandon(struct stage *stage, bool with_children);

/* stage_stop, stage_abandon, and free it. NULL is fine. */
void stage_close(struct stage *stage);

/* Free it without removing anything: another process goes on with it. NULL is fine. */
void stage_forget(struct stage *stage);

/*
 * Make the copy together with the other nodes of a job (stage_job.h), whose engine is at the
 * other end of two pipes, until the job is over or the engine is gone; in_fd is closed then.
 * ring_fd: a file in memory that the engine shares, in which blocks lie.
 * Starts the copier (stage_start). *stop, if not 0, ends it early. -ESTALE: another node has
 * another archive, and the fault names it. Otherwise, after 0, the copier brings the rest.
 */
int stage_job_serve(struct stage *stage, uint64_t first, unsigned rank, unsigned size,
                    int in_fd, int out_fd, int ring_fd, const _Atomic int *stop,
                    struct fault *fault);

/* Wait until the copy is whole or nobody works on it any more. True: it is whole. */
bool stage_wait_whole(struct stage *stage, unsigned timeout_ms);

/* Its texts are valid as long as the stage, or as the call of stage_each's `fn` lasts. */
struct stage_report {
    const char *archive, *folder;
    const struct source_identity *identity;
    bool is_used;    /* by a living process */
    pid_t owner;     /* of a copy that stays; 0: none */
    const char *job; /* for which it stays; "": none */
    uint64_t bytes, bytes_here;
    bool whole;
    bool pinned;
    bool is_private;     /* the copy has no name, and goes with its processes */
    bool was_moved;      /* an adopted file has become the copy */
    int failure;         /* 0, or the errno for which nobody works on it any more */
    int away;            /* 0, or the errno that holds a stream up at present */
    char reason[256];    /* the failure of a stream in words; else "" */
    int32_t copier_pid;  /* 0: no process copies */
    uint64_t copying_ns; /* time spent copying */
    uint64_t copied_bytes, demand_bytes, demands, past_bytes;
    uint64_t job_bytes; /* that other nodes of a job had read: stage_job.h */
};
void stage_get_report(const struct stage *stage, struct stage_report *ret_report);

/* ---- copies that stay: onepot stage, unstage, stat ---- */

/*
 * It stays until stage_each drops it, or until process `owner` has ended (0: no process), or
 * for a job: `job` is the setting that all its processes have, such as "SLURM_JOB_ID=12" (NULL:
 * none). It may have no process here between two steps. So only a sweep by one of no step of
 * it, while it has none, removes the copy.
 */
void stage_pin(struct stage *stage, pid_t owner, const char *job);

/*
 * Call `fn` for every copy in `place` (NULL: in all places that would be tried). A copy for
 * which `fn` returns 1 no longer stays, and goes if nobody uses it. Returns an error, or the
 * number of places that were skipped, because something that is not this user's alone has the
 * folder's name.
 */
int stage_each(const char *place, int (*fn)(void *ctx, const struct stage_report *copy),
               void *ctx);

/*
 * Remove the remains of killed processes. Cheap where there are none. -ETIMEDOUT: a process has
 * held a folder's lock for ten seconds; the others are swept.
 */
int stage_sweep(const char *place);

#endif
