/*
 * The options that mount and run share.
 */
#ifndef ONEPOT_MOUNT_OPTIONS_H
#define ONEPOT_MOUNT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "cli.h"

#define MOUNT_NO_OWNER (-1)

/* run: may it mount in a namespace of its own? */
enum private_mode {
    PRIVATE_AUTO, /* where --at is occupied, or no other way to mount works */
    PRIVATE_ON,
    PRIVATE_OFF,
};

struct mount_options {
    const char *archive; /* as given */
    const char *at;      /* NULL: a private directory is chosen */
    const char *subdir;  /* NULL: the whole archive */
    const char *log;
    const char *fsname; /* -o fsname=; NULL: the archive's path */
    enum private_mode private_mode;
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
    bool cache_given;         /* false: derived from the job's memory */
    uint64_t readahead_bytes; /* 0: off; UINT64_MAX: by the free memory */
    pid_t owner;              /* 0: owner_find; MOUNT_NO_OWNER: nobody */
    const char *order;        /* a file, or "-"; NULL: no order is given */
    const char *record;       /* NULL: nothing is written down */
    uint64_t seed;            /* of shuffles to recognise */
    bool stage;               /* copy the archive to this node */
    const char *stage_place;  /* to this place; NULL: where there is room */
    enum cli_progress_mode progress;
};

/* The help text's part about these options. */
#define MOUNT_OPTIONS_HELP                                                                     \
    "      --at DIR          show it at DIR, made if need be; else in a private directory\n"   \
    "      --subdir PATH     show this directory of the archive alone\n"                       \
    "      --threads N       answer at most N requests at once (the CPUs of the job)\n"        \
    "      --cache SIZE      memory for decompressed blocks (a quarter of what is allowed)\n"  \
    "      --readahead WHAT  auto, off, or at most so many bytes: what readers will ask for\n" \
    "                        is read before they do (auto)\n"                                  \
    "      --order FILE      the order in which files will be read, a path or number a "       \
    "line;\n"                                                                                  \
    "                        - for standard input\n"                                           \
    "      --record FILE     write down the order in which files are read\n"                   \
    "      --seed N          of the sampler whose order is to be recognised (0)\n"             \
    "      --stage[=DIR]     copy it to this node while it is read: to memory, $TMPDIR or "    \
    "/tmp,\n"                                                                                  \
    "                        or to DIR; the last mount of it removes the copy\n"               \
    "      --idle SECONDS    end after so long without use\n"                                  \
    "      --grace SECONDS   when asked to end, wait at most so long for those who use it\n"   \
    "      --owner PID|none  end when this process has ended; or never (else a mount ends\n"   \
    "                        with the job or session that it was made in)\n"                   \
    "      --io-timeout SEC  a read that takes longer fails; 0: never (60)\n"                  \
    "      --retries N       try a read of the archive that fails so often again (4)\n"        \
    "      --verify          compare each file with its sum before it is served\n"             \
    "      --allow-other     let other users in, by the permissions of the files\n"            \
    "      --uid ID, --gid ID  show every file as owned by ID\n"                               \
    "      --log FILE        append what happens to FILE\n"                                    \
    "  -o OPTION[,...]       noexec, nonempty, default_permissions, allow_other, "             \
    "fsname=NAME\n"                                                                            \
    "      --progress WHEN   auto, always, never: while an index is made\n"

/*
 * Read options and the one archive from argv[1..argc-1]. CLI_GO_ON, or the exit status after
 * help or an error was printed.
 */
int mount_options_parse(const struct cli_usage *usage, bool for_run, int argc, char **argv,
                        struct mount_options *ret_options);

/*
 * A number that is equal for equal options, as they were given. Defaults that depend on the
 * process (its CPUs) are left out, so they do not keep the ranks of a job from sharing a mount.
 * The archive's time stamp and the owner's start time are part of it.
 */
uint64_t mount_options_hash(const struct mount_options *options, const char *at,
                            int64_t mtime_sec, long mtime_nsec, uint64_t owner_start_ticks);

#endif
