/*
 * Findings about limits that a mount meets, set by a job script or a node's administrator: the
 * process's (ulimit) and the kernel's for FUSE.
 */
#include <inttypes.h>
#include <sys/resource.h>

#include "cli.h"
#include "doctor.h"
#include "process.h"

/* A daemon opens an archive, its state, a device for each thread, and a copy's files. */
#define FILES_WANTED 256u
#define IO_TIMEOUT_S 60 /* the default of --io-timeout */

/* ---- of the process ---- */

static void see_locked(struct findings *f, const struct rlimit *limit)
{
    if (limit->rlim_cur == RLIM_INFINITY)
        finding_add(f, FINDING_GOOD, "locked memory", "no limit");
    else
        finding_add(f, FINDING_FACT, "locked memory",
                    "at most %s (ulimit -l); batches for a device want theirs locked",
                    cli_bytes(limit->rlim_cur));
}

static void see_files(struct findings *f, const struct rlimit *limit)
{
    bool few = limit->rlim_cur < FILES_WANTED;
    finding_add(f, few ? FINDING_WARNING : FINDING_GOOD, "open files",
                "%" PRIu64 " (ulimit -n)%s", (uint64_t)limit->rlim_cur,
                few ? ": a mount may not start, or fall behind" : "");
    if (few)
        finding_advise(
            f, "'ulimit -n %u' in the job script, if the hard limit (%" PRIu64 ") allows it",
            FILES_WANTED, (uint64_t)limit->rlim_max);
}

/* An archive is mapped as a whole, which takes addresses but no memory. */
static void see_addresses(struct findings *f, const struct rlimit *limit,
                          uint64_t archive_bytes)
{
    if (limit->rlim_cur == RLIM_INFINITY)
        return;
    bool small = archive_bytes > limit->rlim_cur / 2;
    finding_add(f, FINDING_WARNING, "address space", "at most %s (ulimit -v)%s",
                cli_bytes(limit->rlim_cur),
                small ? ", too little to map the archive: it is read through a smaller cache"
                      : "");
    finding_advise(f, "'ulimit -v unlimited': mapped files count in it, though they take "
                      "no memory of the job");
}

static void see_file_size(struct findings *f, const struct rlimit *limit,
                          uint64_t archive_bytes)
{
    if (limit->rlim_cur == RLIM_INFINITY)
        return;
    bool small = archive_bytes > limit->rlim_cur;
    finding_add(f, small ? FINDING_WARNING : FINDING_FACT, "size of files",
                "at most %s (ulimit -f)%s", cli_bytes(limit->rlim_cur),
                small ? ": the archive can't be copied with --stage" : "");
}

/* ---- of the kernel's FUSE ---- */

static void see_request_limit(struct findings *f)
{
    long seconds = proc_number("/proc/sys/fs/fuse/max_request_timeout", 0);
    if (!seconds)
        return;
    finding_add(f, seconds <= IO_TIMEOUT_S ? FINDING_WARNING : FINDING_FACT, "FUSE requests",
                "the kernel ends a mount that leaves one unanswered for %ld s "
                "(fs.fuse.max_request_timeout)",
                seconds);
    if (seconds <= IO_TIMEOUT_S)
        finding_advise(f,
                       "mount with --io-timeout %ld, so that a read that stalls is "
                       "answered before",
                       seconds > 2 ? seconds / 2 : 1);
}

static void see_background(struct findings *f)
{
    long requests = proc_number("/sys/module/fuse/parameters/max_user_bgreq", -1);
    if (requests >= 0)
        finding_add(f, requests < 64 ? FINDING_WARNING : FINDING_FACT, "FUSE read-ahead",
                    "%ld requests at a time for users (max_user_bgreq)", requests);
}

void doctor_limits(struct findings *f, uint64_t archive_bytes)
{
    f->section = "limits";
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0)
        see_locked(f, &limit);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
        see_files(f, &limit);
    if (getrlimit(RLIMIT_AS, &limit) == 0)
        see_addresses(f, &limit, archive_bytes);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0)
        see_file_size(f, &limit, archive_bytes);
    see_request_limit(f);
    see_background(f);
}
