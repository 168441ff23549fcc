/*
 * The options that mount and run share.
 */
#ifndef ONEPOT_MOUNT_OPTIONS_H
#define ONEPOT_MOUNT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli.h"
#include "recipe.h"

#define MOUNT_NO_OWNER (-1)

/* run: may it mount in a private namespace? */
enum private_mode {
    PRIVATE_AUTO, /* where --at is occupied, or no other way to mount works */
    PRIVATE_ON,
    PRIVATE_OFF,
};

extern const bool mounter_has_library; /* may be left out (-Dpreload) */
/* run: do readers get the library that reads without the mount (preload.h)? */
enum intercept_mode {
    INTERCEPT_AUTO, /* where it can be */
    INTERCEPT_ON,   /* and say so where it can't */
    INTERCEPT_OFF,
};

struct mount_options {
    char *const *archives; /* words as given: archives, folders, patterns, lists */
    size_t archive_count;
    const char *archive; /* for messages: the one, or "the first and 3 more" */
    char archive_name[CLI_NAME_LEN];
    const char *at;          /* NULL: a private directory is chosen */
    bool at_is_last;         /* given as FUSE programs get it, and so not printed */
    struct cli_doubt doubt;  /* was the last word meant as the directory to mount at? */
    bool ends_at_once;       /* after a signal, as squashfuse does, in use or not */
    const char *notify_pipe; /* a FIFO that gets 's' when it is mounted, or 'f'; NULL: none */
    const char *subdir;      /* NULL: the whole archive */
    const char *log;
    const char *fsname; /* -o fsname=; NULL: the archive's path */
    enum private_mode private_mode;
    enum intercept_mode intercept;
    bool export; /* mount: print commands for a shell */
    bool foreground;
    bool allow_other, default_permissions, nonempty, noexec;
    bool verify;
    bool override_uid, override_gid;
    uint32_t uid, gid;
    unsigned threads;      /* 0: the allowed CPUs */
    unsigned idle_s;       /* 0: never */
    unsigned grace_s;      /* 0: not given */
    unsigned io_timeout_s; /* 0: never */
    unsigned retries;      /* after a failed read of the archive */
    uint64_t cache_bytes;
    bool cache_given;               /* false: derived from the job's memory */
    uint64_t readahead_bytes;       /* 0: off; UINT64_MAX: by the free memory */
    pid_t owner;                    /* 0: owner_find; MOUNT_NO_OWNER: nobody */
    const char *order;              /* a file, or "-"; NULL: no order is given */
    const char *record;             /* NULL: nothing is written down */
    char view[RECIPE_NAME_LEN + 1]; /* cli_view's; "": none */
    uint64_t seed;                  /* of shuffles to recognise */
    const char *expect;             /* its tree's digest, or the beginning; NULL: any */
    bool stage;                     /* copy the archive to this node */
    bool stage_in_job;              /* as the job's nodes do together */
    const char *stage_place;        /* to this place; NULL: where there is room */
    bool extract;                   /* make plain files instead of a mount, */
    const char *extract_dir;        /* below this folder; NULL: in memory */
    bool writable;                  /* run: what is written goes to a layer (layer.h), */
    const char *writable_dir;       /* in this folder; NULL: in memory */
};

/*
 * Read options and archives from argv[1..argc-1]. CLI_GO_ON, or the exit status after help or
 * an error was printed. If `mount` gets several words without --at, the last one is the mount
 * point if it is /dev/fd/N, or a directory that can't be meant as archives: an empty one, a
 * mount, or any with -o nonempty.
 */
int mount_options_parse(const struct cli_command *command, bool for_run, int argc, char **argv,
                        struct mount_options *ret_options);

/*
 * The command line of squashfuse and squashfuse_ll: -f, -o, an image and a mount point. As with
 * these, the mount stays until it is unmounted, and allow_other checks no permissions.
 */
int mount_options_squashfuse(const struct cli_command *command, int argc, char **argv,
                             struct mount_options *ret_options);

/*
 * A number that is equal for equal options, as they were given. Defaults that depend on the
 * process (its CPUs) are left out, so they do not keep the ranks of a job from sharing a mount.
 * So are the archives, whose identities are compared apart.
 * The archive's time stamp and the owner's start time are part of it.
 */
uint64_t mount_options_hash(const struct mount_options *options, const char *at,
                            int64_t mtime_sec, long mtime_nsec, uint64_t owner_start_ticks);

#endif
