/*
 * Shared by the files of the plan:
 *
 *   plan.c        observations in, wants out
 *   plan_order.c  the known order: recognised or given, lost, its next epoch; jobs
 *   plan_scan.c   the sequential kinds
 */
#ifndef ONEPOT_PLAN_PRIVATE_H
#define ONEPOT_PLAN_PRIVATE_H

#include "archive_files.h"
#include "follow.h"
#include "plan.h"
#include "streams.h"

#define PLAN_LOG 8192u     /* reads kept until an order is recognised */
#define PLAN_BROUGHT 4096u /* files fetched by sequential kinds and not used yet */
#define PLAN_FILE_STREAMS 16u
#define PLAN_FILE_MOST (8u << 20) /* of a file's start, in a known order */

enum job_kind { JOB_RECOGNISE, JOB_NEXT, JOB_ARCHIVE };

struct plan_job {
    enum job_kind kind;
    struct plan_options options;
    struct recogniser *recogniser; /* JOB_RECOGNISE */
    uint32_t reads[RECOGNISE_READS_MAX];
    unsigned count;
    uint64_t asked_at; /* the attempt that this job is for */
    struct recognised found;
    struct folder_files *folder; /* JOB_NEXT */
    uint64_t seed;
    struct known_reads *order; /* JOB_NEXT */
    struct archive_files *archive;
    uint64_t took_ns;
    int result;
};

/* A large file that is read from front to back. */
struct file_stream {
    uint32_t position;
    uint32_t reads;
    uint64_t expected; /* where the next read begins */
    uint64_t fetched;  /* asked for up to here */
    uint64_t window;
    uint64_t used;
};

struct plan {
    struct plan_options options;
    struct plan_stats stats;
    uint64_t reads; /* first reads of files */
    bool busy;      /* a job is at work */

    /* ---- plan_order.c ---- */
    struct follow *follow;
    enum plan_kind order_kind;
    struct folder_files *folder; /* of a recognised order */
    uint64_t epoch;
    bool repeats; /* the sampler's epoch is never set */
    bool paused;  /* readers don't keep to the given order */
    bool changed;
    bool wants_next;
    struct recognised last; /* the last recognised epoch, without folder and order */
    struct recogniser *recogniser;
    uint32_t log_files[PLAN_LOG];
    uint32_t log_tasks[PLAN_LOG];
    unsigned logged;
    uint64_t since_anchor, try_at, anchor;
    uint64_t last_ns, first_ns, tried_ns;
    uint64_t *seen; /* a bit for each entry: it was read since the anchor */
    bool too_large_said;

    /* ---- plan_scan.c ---- */
    struct streams names, places;
    struct archive_files *archive;
    bool wants_archive, no_archive;
    unsigned close_reads, offset_reads;
    uint64_t last_ends[8];
    struct file_stream files[PLAN_FILE_STREAMS];
    uint64_t file_clock;
    uint64_t *brought; /* a bit for each entry */
    uint32_t ring[PLAN_BROUGHT];
    uint32_t ring_first, ring_count;
    uint64_t ring_bytes;
    unsigned settled, settled_unused;
    uint64_t settled_at;        /* value of `reads` when a fetched file was last used */
    uint64_t scans_from, pause; /* sequential kinds go on after so many reads */
};

/* plan_order.c */
int plan_order_start(struct plan *plan);
void plan_order_end(struct plan *plan);
/* True: the read was in the known order, and due. */
bool plan_order_read(struct plan *plan, const struct observation *o);
bool plan_order_take(struct plan *plan, struct plan_want *ret_want);
void plan_log(struct plan *plan, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* plan_scan.c */
int plan_scan_start(struct plan *plan);
void plan_scan_end(struct plan *plan);
/* A file was read that sequential kinds may have fetched. */
void plan_scan_settle(struct plan *plan, uint32_t position);
void plan_scan_file(struct plan *plan, const struct observation *o);
void plan_scan_read(struct plan *plan, const struct observation *o);
size_t plan_scan_take(struct plan *plan, struct plan_want *wants, size_t max);

#endif
