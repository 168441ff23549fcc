/*
 * Findings, and those about memory, CPUs and places: what is read in /proc, in cgroups and by
 * statfs(2).
 */
#include "doctor.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "budget.h"
#include "claims.h"
#include "cleanup.h"
#include "cli.h"
#include "cpus.h"
#include "job.h"
#include "source.h"

void findings_free(struct findings *f)
{
    free(f->items);
    *f = (struct findings){0};
}

struct finding *finding_add(struct findings *f, enum finding_kind kind, const char *section,
                            const char *subject, const char *format, ...)
{
    struct finding *items = realloc(f->items, (f->count + 1) * sizeof(*items));
    if (!items) {
        f->failed = true;
        return NULL;
    }
    f->items = items;
    struct finding *finding = &items[f->count++];
    *finding = (struct finding){.kind = kind, .section = section};
    snprintf(finding->subject, sizeof(finding->subject), "%s", subject);
    va_list args;
    va_start(args, format);
    vsnprintf(finding->text, sizeof(finding->text), format, args);
    va_end(args);
    return finding;
}

void finding_advise(struct finding *finding, const char *format, ...)
{
    if (!finding)
        return;
    va_list args;
    va_start(args, format);
    vsnprintf(finding->advice, sizeof(finding->advice), format, args);
    va_end(args);
}

/* ---- memory ---- */

/* budget_see */
static void see_limit(void *ctx, const char *path, uint64_t limit, uint64_t used)
{
    struct findings *f = ctx;
    char text[CLI_TEXT_LEN], used_text[CLI_TEXT_LEN];
    if (limit == UINT64_MAX)
        finding_add(f, FINDING_FACT, "memory", path, "no limit");
    else if (used == UINT64_MAX)
        finding_add(f, FINDING_FACT, "memory", path, "%s%s", cli_format_bytes(limit, text),
                    strstr(path, "meminfo") ? " available on the node now" : "");
    else
        finding_add(f, FINDING_FACT, "memory", path,
                    "%s, of which %s are used, page cache included",
                    cli_format_bytes(limit, text), cli_format_bytes(used, used_text));
}

static void see_claims(struct findings *f)
{
    struct job job;
    struct claim_others others;
    char text[CLI_TEXT_LEN];
    job_detect(&job);
    if (job.id[0])
        finding_add(f, FINDING_FACT, "memory", "job", "%s", job.id);
    else
        finding_add(f, FINDING_FACT, "memory", "job", "none: no batch system has said so");
    if (claims_of_job(job.id, &others) < 0)
        return;
    if (others.count == 0)
        finding_add(f, FINDING_FACT, "memory", "others of it",
                    "no mount and no loader shares it");
    else
        finding_add(f, FINDING_FACT, "memory", "others of it",
                    "%u mounts and loaders, which may take %s", others.count,
                    cli_format_bytes(others.using_bytes, text));
}

static void see_limits_of_process(struct findings *f)
{
    struct rlimit limit;
    char text[CLI_TEXT_LEN];
    if (getrlimit(RLIMIT_MEMLOCK, &limit) < 0)
        finding_add(f, FINDING_FACT, "memory", "locked memory", "not known");
    else if (limit.rlim_cur == RLIM_INFINITY)
        finding_add(f, FINDING_GOOD, "memory", "locked memory", "no limit");
    else
        finding_add(f, FINDING_FACT, "memory", "locked memory",
                    "at most %s (ulimit -l); batches for a device want theirs locked",
                    cli_format_bytes(limit.rlim_cur, text));
}

void doctor_memory(struct findings *f)
{
    char text[CLI_TEXT_LEN], cache[CLI_TEXT_LEN];
    uint64_t least = budget_memory_bytes("");
    budget_explain("", see_limit, f);
    if (least == UINT64_MAX)
        finding_add(f, FINDING_WARNING, "memory", "the job's share",
                    "not known: neither cgroups nor /proc/meminfo could be read");
    else
        finding_add(f, FINDING_FACT, "memory", "the job's share", "%s, the least of these",
                    cli_format_bytes(least, text));
    finding_add(f, FINDING_FACT, "memory", "cache of mounts",
                "%s, a quarter of that, unless --cache says otherwise",
                cli_format_bytes(budget_cache_bytes(), cache));
    see_claims(f);
    see_limits_of_process(f);
}

/* ---- CPUs ---- */

static void see_count(struct findings *f, const char *subject, unsigned count, const char *none)
{
    if (count)
        finding_add(f, FINDING_FACT, "CPUs", subject, "%u", count);
    else
        finding_add(f, FINDING_FACT, "CPUs", subject, "%s", none);
}

void doctor_cpus(struct findings *f)
{
    struct cpus cpus;
    cpus_look("", &cpus);
    see_count(f, "of the node", cpus.online, "not known");
    see_count(f, "affinity mask", cpus.mask, "not known");
    see_count(f, "set of the cgroup", cpus.cpuset, "none, or not known");
    see_count(f, "quota of the cgroup", cpus.quota, "none");
    unsigned allowed = cpus_allowed();
    struct finding *finding =
        finding_add(f, FINDING_FACT, "CPUs", "threads by default", "%u", allowed);
    if (cpus.mask && cpus.cpuset > cpus.mask && cpus.cpuset < cpus.online)
        finding_advise(finding,
                       "this task is bound to fewer than the job has; a mount uses the "
                       "%u of the job",
                       cpus.cpuset);
}

/* ---- places ---- */

/* The type of the filesystem with this device number, as mountinfo has it. */
void doctor_filesystem(unsigned dev_major, unsigned dev_minor, char type[32])
{
    auto_free char *line = NULL;
    size_t size = 0;
    unsigned major_here, minor_here;

    snprintf(type, 32, "type not known");
    FILE *f = fopen("/proc/self/mountinfo", "re");
    while (f && getline(&line, &size, f) > 0) {
        const char *end = strstr(line, " - ");
        if (end && sscanf(line, "%*u %*u %u:%u", &major_here, &minor_here) == 2 &&
            major_here == dev_major && minor_here == dev_minor)
            sscanf(end, " - %31s", type);
    }
    if (f)
        fclose(f);
}

/* Would a copy of the archive fit? In memory it counts as the job's. */
static void see_fit(struct findings *f, const char *path, uint64_t bytes, uint64_t free_bytes,
                    bool is_memory)
{
    char need[CLI_TEXT_LEN], have[CLI_TEXT_LEN];
    uint64_t room = is_memory ? budget_room_bytes("") : UINT64_MAX;
    if (room > free_bytes)
        room = free_bytes;
    room -= room / 16; /* as staging leaves it */
    struct finding *finding = finding_add(
        f, bytes <= room ? FINDING_GOOD : FINDING_FACT, "places", path,
        bytes <= room ? "a copy of the archive (%s) fits: --stage=%s"
                      : "a copy of the archive (%s) does not fit in %s",
        cli_format_bytes(bytes, need), bytes <= room ? path : cli_format_bytes(room, have));
    if (is_memory && bytes > room && bytes <= free_bytes)
        finding_advise(finding, "there is room on the filesystem, but not in the job's memory");
}

static void see_place(struct findings *f, const char *path, uint64_t archive_bytes)
{
    char type[32], have[CLI_TEXT_LEN];
    struct statvfs fs;
    struct stat st;
    auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &fs) < 0 || fstat(fd, &st) < 0) {
        finding_add(f, FINDING_WARNING, "places", path, "can't be used: %s", strerror(errno));
        return;
    }
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    struct storage storage = storage_of(fd);
    bool writable = access(path, W_OK | X_OK) == 0;
    doctor_filesystem(major(st.st_dev), minor(st.st_dev), type);
    finding_add(f, writable ? FINDING_GOOD : FINDING_WARNING, "places", path,
                "%s%s, %s free%s%s; quotas: not known", type,
                storage.is_memory  ? " (memory)"
                : storage.is_local ? " (on this node)"
                                   : " (not known to be on this node)",
                cli_format_bytes(free_bytes, have), writable ? "" : ", not writable for you",
                fs.f_flag & ST_NOEXEC ? ", noexec (programs in a mount there still run)" : "");
    if (archive_bytes && writable)
        see_fit(f, path, archive_bytes, free_bytes, storage.is_memory);
}

void doctor_storage(struct findings *f, uint64_t archive_bytes)
{
    const char *tmpdir = getenv("TMPDIR"), *own = getenv("ONEPOT_RUNTIME_DIR");
    if (own && *own)
        see_place(f, own, 0);
    see_place(f, "/dev/shm", archive_bytes);
    if (tmpdir && *tmpdir && strcmp(tmpdir, "/tmp") != 0)
        see_place(f, tmpdir, archive_bytes);
    else if (!tmpdir || !*tmpdir)
        finding_add(f, FINDING_FACT, "places", "$TMPDIR", "not set");
    see_place(f, "/tmp", archive_bytes);
}
