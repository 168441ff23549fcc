/*
 * A mount's counters, in a file that the daemon maps shared. `onepot stat` reads the file
 * without asking the daemon, so it works even when the daemon hangs.
 *
 * Layout: one struct counters. It is private to the user and the node, and read by the same
 * version of the program that wrote it (`version`, `size`); other readers use `onepot stat
 * --json`. Each worker thread writes its own slot; readers add the slots up. All times are
 * CLOCK_MONOTONIC nanoseconds.
 */
#ifndef ONEPOT_COUNTERS_H
#define ONEPOT_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define COUNTERS_MAGIC "onepotc"
#define COUNTERS_VERSION 21u
#define COUNTERS_SLOTS 64
#define COUNTERS_AHEAD 2 /* processes that read ahead */
#define COUNTERS_OWNERS 16
#define COUNTERS_HOLDERS 64
#define COUNTERS_ENTRANCES 64
#define COUNTERS_OPCODES 64 /* FUSE opcodes; larger ones count as 0 */
/* Some of the opcodes, by the kernel's numbers: */
#define COUNTERS_LOOKUP 1
#define COUNTERS_READ 15
#define COUNTERS_READDIR 28
#define COUNTERS_READDIRPLUS 44
#define COUNTERS_ORIGINS 7  /* enum reader_origin (reader.h) */
#define COUNTERS_BUCKETS 32 /* bucket i: service times of 2^i to 2^(i+1) microseconds */

enum mount_state {
    MOUNT_STARTING = 0,
    MOUNT_SERVING = 1,
    MOUNT_DRAINING = 2, /* asked to end; waits for its users */
    MOUNT_ENDED = 3,
};

/* The layer of `mount --writable` (mountpoint/layer.h). */
enum layer_state {
    LAYER_ABSENT = 0,
    LAYER_COMES = 1, /* is being mounted */
    LAYER_LIES = 2,
    LAYER_GONE = 3,
};

struct counter_slot {
    _Alignas(64) _Atomic uint64_t requests[COUNTERS_OPCODES]; /* by FUSE opcode */
    _Atomic uint64_t errors; /* replies that were errors other than ENOENT, ENOSYS, ENODATA */
    _Atomic uint64_t read_bytes;      /* sent to readers */
    _Atomic uint64_t reads_waited;    /* READs that had to wait for storage or another thread */
    _Atomic uint64_t read_starts;     /* READs that started at offset 0 */
    _Atomic uint64_t read_files;      /* that nobody had read from before */
    _Atomic uint64_t service_ns;      /* receipt to reply, all requests */
    _Atomic uint64_t read_service_ns; /* READs only: the time that readers waited for input */
    _Atomic uint64_t last_request_ns;
    /* Brought in before readers asked; not counted above. */
    _Atomic uint64_t ahead_requests, ahead_files, ahead_bytes;
    _Atomic uint64_t foreseen_files;              /* counted both there and in read_files */
    _Atomic uint64_t histogram[COUNTERS_BUCKETS]; /* service time of READs */
    _Atomic uint64_t origins[COUNTERS_ORIGINS];   /* READs by where their bytes came from */
};

/* Why reads fail, the more general reason last: it explains those before it. */
enum counter_trouble {
    TROUBLE_READ,    /* one of them did */
    TROUBLE_LOST,    /* a part of the archive is gone */
    TROUBLE_CHANGED, /* another archive is in its place */
    TROUBLE_KINDS,
};

struct counter_owner {
    int32_t pid;
    uint64_t start_ticks;
};

/* A program that has run `onepot mount`; pid 0: none. */
struct counter_holder {
    struct counter_owner program, owner;
    uint64_t since_ticks; /* as start_ticks */
    uint32_t is_given_back;
};

/* Under the registry's lock; one of a process that has ended is free. */
struct counter_entrance {
    int32_t pid, user_namespace_fd, mount_namespace_fd;
    uint64_t start_ticks;
};

struct counters {
    char magic[8];
    uint32_t version;
    uint32_t size; /* sizeof(struct counters) */

    /* Identity: written once, before state becomes MOUNT_SERVING. */
    uint32_t uid;
    int32_t daemon_pid;
    uint64_t daemon_start_ticks; /* field 22 of /proc/PID/stat, since a PID may be reused */
    int64_t started_realtime_sec;
    uint64_t started_ns;
    char job[64]; /* "" outside a job */
    char step[64];
    char mountpoint[4096];
    char archive[4096]; /* of several, a name for all of them */
    uint32_t archives;  /* how many */
    uint32_t archive_names_bytes;
    char archive_names[32768]; /* of several, each terminated: as many as there is room for */
    char format[32];
    char version_text[32]; /* version of the program */
    uint64_t archive_dev, archive_ino, archive_bytes;
    uint64_t options_hash; /* only mounts with equal options are shared */
    uint64_t entries, files, total_bytes;
    char digest[33]; /* of the tree, in hexadecimal; "": it is not known without reading */
    uint32_t threads;
    uint32_t private_namespace;                /* 1: visible only to the command of `run` */
    uint32_t mount_dev_major, mount_dev_minor; /* st_dev of the mount */
    /* The `run`s of a private mount, through whose descriptors others enter. */
    struct counter_entrance entrance[COUNTERS_ENTRANCES];
    uint32_t owns_mountpoint; /* 1: the directory was made for the mount and goes with it */
    /* --extract. 1: nothing is mounted; plain files lie in the slot's directory. */
    uint32_t extracted;
    uint64_t extract_bytes;         /* of memory, or of a disk, that they take */
    _Atomic uint64_t extract_ready; /* of these bytes, as far as they are written */
    uint64_t extract_ns;            /* how long that took */

    uint64_t pid_namespace; /* in which the processes below have their numbers */
    /* The processes that own the mount; only owner.h uses them. */
    uint32_t owners; /* beyond the room: an unknown owner, so the mount stays */
    struct counter_owner owner[COUNTERS_OWNERS];
    /* Only holders.h uses them. */
    struct counter_holder holder[COUNTERS_HOLDERS];
    uint32_t holders_beyond;  /* the room, or not known */
    uint64_t mount_namespace; /* in which its mount point is a path; 0: it is none */

    _Atomic uint32_t state;                     /* enum mount_state */
    _Atomic int32_t ahead_pids[COUNTERS_AHEAD]; /* fetchers that read ahead, or 0 */
    _Atomic uint32_t holders;                   /* mount commands that share this mount */
    _Atomic uint64_t shared_ns; /* when a command last shared it: counts as a request */

    /* Updated by the daemon now and then. */
    _Atomic uint64_t cache_budget_bytes; /* less than requested where mounts share it */
    _Atomic uint64_t cache_hits, cache_misses, cache_waits, cache_evictions, cache_bytes;
    _Atomic uint64_t stalls;                     /* reads answered with EIO by the watchdog */
    _Atomic uint64_t replacements;               /* threads started in place of stalled ones */
    _Atomic uint64_t source_reads, source_bytes; /* of the archive or its mapping */
    _Atomic uint64_t storage_requests, storage_bytes; /* see struct source_requests */
    /* Blocks that were fetched before readers asked: see struct block_cache_stats. */
    _Atomic uint64_t prefetched, prefetched_used, prefetched_dropped;
    /* Errors of the archive's storage: see struct source_error_counts. */
    _Atomic uint64_t source_retries, source_failures, source_reopened;
    char last_error[512]; /* the log's newest error line */
    /* The first of each kind: "ARCHIVE: what happened; what to do". Written once, before has_.
     */
    char trouble[TROUBLE_KINDS][512];
    _Atomic bool has_trouble[TROUBLE_KINDS];
    /* Read by processes themselves, without the daemon: see intercept.h. */
    _Atomic uint32_t direct_is_offered;
    char direct_id[128]; /* its struct intercept_id as a text, if so */
    _Atomic uint64_t direct_starts, direct_files, direct_foreseen; /* struct intercept_slot */
    _Atomic uint64_t direct_reads, direct_bytes, direct_ns;
    _Atomic uint64_t direct_last_ns; /* when the last one was */
    _Atomic uint32_t direct_refused; /* 1: a program wanted to write */

    /* See layer.h. */
    _Atomic uint32_t layer;    /* enum layer_state */
    uint32_t layer_by_program; /* fuse-overlayfs, not the kernel */
    uint64_t layer_token;
    uint32_t layer_dev_major, layer_dev_minor;
    char layer_dir[4096];   /* "": in memory */
    char layer_below[4096]; /* where the mount is, if not at its mount point */
    uint32_t layer_has_folder;
    _Atomic uint64_t layer_bytes;
    uint32_t layer_is_more; /* than these */
    /* How many files a layer in memory has, and had before anything was written. */
    _Atomic uint64_t layer_files, layer_files_before;

    /* Read ahead by features/ahead.c: see struct ahead_stats. */
    _Atomic uint64_t foreseen_kind; /* 0: nothing; report.c has the words */
    _Atomic uint64_t foreseen_requests, foreseen_bytes;
    _Atomic uint64_t foreseen_used, foreseen_late, foreseen_unused; /* files */
    _Atomic uint64_t foreseen_in_order; /* reads at their place in a known order */
    _Atomic uint64_t foreseen_lost;     /* reads that were reported too late */
    _Atomic uint64_t orders_recognised, orders_lost;
    /* The order being followed; order_files 0: none. */
    _Atomic uint64_t order_files, order_epoch;
    _Atomic uint64_t order_reads;              /* reads until it was recognised */
    _Atomic uint64_t order_world, order_local; /* ranks in all, and on this node */
    char order_folder[1024];                   /* the folder of its files; "": the root */

    /* --stage. The folder is written once, with the identity above; "": nothing is staged. */
    char stage_folder[4096];
    uint64_t stage_bytes;              /* of the whole copy */
    uint32_t stage_unpacks;            /* 1: a copy of a compressed stream's contents */
    _Atomic uint64_t stage_here_bytes; /* bytes of it copied so far */
    _Atomic uint64_t stage_copied_bytes, stage_copying_ns; /* copied in the background */
    _Atomic uint64_t stage_demands, stage_demand_bytes;    /* at once, for a reader */
    _Atomic uint64_t stage_past_bytes; /* read from the archive without keeping a copy */
    _Atomic uint32_t stage_failure;    /* errno that ended the copy early, or 0 */
    char stage_reason[256];            /* the reason in words, for a stream; written first */
    _Atomic uint32_t stage_away; /* errno that makes a stream wait for its storage, or 0 */

    struct counter_slot slots[COUNTERS_SLOTS];
};

#endif
