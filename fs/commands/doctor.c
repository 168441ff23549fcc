/*
 * onepot doctor: reports this node's limits and faults as findings: about mounting, memory and
 * CPUs (from /proc and cgroups), limits, places, copies, mounts, an archive, a job of several
 * nodes, Python.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "backend.h"
#include "budget.h"
#include "cleanup.h"
#include "cli.h"
#include "commands.h"
#include "cpus.h"
#include "doctor.h"
#include "job.h"
#include "json.h"
#include "mountinfo.h"
#include "place.h"
#include "fileset.h"
#include "process.h"
#include "share.h"
#include "source.h"
#include "stage.h"
#include "output.h"
#include "vector.h"
#ifdef HAVE_FUSE
#include "fault.h"
#include "mountpoint.h"
#include "report.h"
#include "state.h"
#include "summary.h"
#endif
#ifdef HAVE_PRELOAD
#include "preload.h"
#endif

static int doctor_main(int argc, char **argv);

const struct cli_command command_doctor = {
    "doctor", doctor_main, "show what this node allows, and what to mend",
    "[--json] [ARCHIVE|MOUNTPOINT]",
    "Show what this node allows and what to mend: ways to mount, memory and CPUs of the\n"
    "job, places for copies, dead mounts; and how an archive would be read, or whether a\n"
    "mount answers. Exits with 0 if nothing is wrong.\n"};

void finding_add(struct findings *f, enum finding_kind kind, const char *subject,
                 const char *format, ...)
{
    struct finding finding = {.kind = kind, .section = f->section};
    va_list args;

    snprintf(finding.subject, sizeof(finding.subject), "%s", subject);
    va_start(args, format);
    vsnprintf(finding.text, sizeof(finding.text), format, args);
    va_end(args);
    f->failed |= vector_push(f, finding) < 0;
}

void finding_advise(struct findings *f, const char *format, ...)
{
    va_list args;

    if (f->failed)
        return;
    va_start(args, format);
    vsnprintf(f->at[f->count - 1].advice, sizeof(f->at->advice), format, args);
    va_end(args);
}

/* ---- memory ---- */

/* budget_see */
static void see_limit(void *ctx, const char *path, uint64_t limit, uint64_t used)
{
    struct findings *f = ctx;
    if (limit == UINT64_MAX)
        finding_add(f, FINDING_FACT, path, "no limit");
    else if (used == UINT64_MAX)
        finding_add(f, FINDING_FACT, path, "%s%s", cli_bytes(limit),
                    strstr(path, "meminfo") ? " available on the node now" : "");
    else
        finding_add(f, FINDING_FACT, path, "%s, of which %s are used, page cache included",
                    cli_bytes(limit), cli_bytes(used));
}

static void see_claims(struct findings *f)
{
    struct job job;
    job_detect(&job);
    if (job.id[0])
        finding_add(f, FINDING_FACT, "job", "%s", job.id);
    else
        finding_add(f, FINDING_FACT, "job", "none: no batch system names one");
    const struct claim_others others = claims_of_job(job.id);
    if (others.count == 0)
        finding_add(f, FINDING_FACT, "others of it", "no mount and no loader shares it");
    else
        finding_add(f, FINDING_FACT, "others of it", "%u mount%s, which may take %s",
                    others.count, others.count == 1 ? " or loader" : "s and loaders",
                    cli_bytes(others.using_bytes));
}

static void doctor_memory(struct findings *f)
{
    f->section = "memory";
    uint64_t least = budget_memory_bytes("");
    budget_explain("", see_limit, f);
    if (least == UINT64_MAX)
        finding_add(f, FINDING_WARNING, "the job's share",
                    "not known: neither cgroups nor /proc/meminfo could be read");
    else
        finding_add(f, FINDING_FACT, "the job's share", "%s, the least of these",
                    cli_bytes(least));
    finding_add(f, FINDING_FACT, "cache of mounts",
                "%s, a quarter of that, unless --cache says otherwise",
                cli_bytes(budget_cache_bytes()));
    see_claims(f);
}

/* ---- CPUs ---- */

static void see_count(struct findings *f, const char *subject, unsigned count, const char *none)
{
    if (count)
        finding_add(f, FINDING_FACT, subject, "%u", count);
    else
        finding_add(f, FINDING_FACT, subject, "%s", none);
}

static void doctor_cpus(struct findings *f)
{
    f->section = "CPUs";
    struct cpus cpus;
    cpus_look("", &cpus);
    see_count(f, "of the node", cpus.online, "not known");
    see_count(f, "affinity mask", cpus.mask, "not known");
    see_count(f, "set of the cgroup", cpus.cpuset, "none, or not known");
    see_count(f, "quota of the cgroup", cpus.quota, "none");
    unsigned allowed = cpus_allowed();
    finding_add(f, FINDING_FACT, "threads by default", "%u", allowed);
    if (cpus.mask && cpus.cpuset > cpus.mask && cpus.cpuset < cpus.online)
        finding_advise(f,
                       "this task is bound to fewer than the job has; a mount uses the "
                       "%u of the job",
                       cpus.cpuset);
}

/* ---- places ---- */

/* Type of the filesystem that an open file or folder is in, such as "tmpfs". */
static void doctor_filesystem(int fd, char type[32])
{
    struct mount_entry mount;
    snprintf(type, 32, "%s", mountinfo_of(fd, -1, &mount) == 0 ? mount.type : "type not known");
}

/* Would a copy of the archive fit? In memory it counts against the job's limit. */
static bool see_fit(struct findings *f, const char *path, uint64_t bytes, uint64_t free_bytes,
                    bool is_memory)
{
    uint64_t room = is_memory ? budget_room_bytes("") : UINT64_MAX;
    if (room > free_bytes)
        room = free_bytes;
    room -= room / 16; /* staging leaves this much free */
    finding_add(f, bytes <= room ? FINDING_GOOD : FINDING_FACT, path,
                bytes <= room ? "a copy of the archive (%s) fits: --stage=%s"
                              : "a copy of the archive (%s) does not fit in %s",
                cli_bytes(bytes), bytes <= room ? path : cli_bytes(room));
    if (is_memory && bytes > room && bytes <= free_bytes)
        finding_advise(f, "there is room on the filesystem, but not in the job's memory");
    return bytes <= room;
}

/* Could another user replace what would lie there? Then it is not used. */
static bool see_refusal(struct findings *f, const char *path)
{
    char text[PATH_MAX + 256];
    struct place place;
    int r = place_open(path, PLACE_SHARED, &place);
    if (r == 0)
        close(place.fd);
    if (r != -EPERM)
        return false;
    finding_add(f, FINDING_WARNING, path, "is not used: %s",
                place_explain(&place, text, sizeof(text)));
    return true;
}

/* True: the archive would be staged there. */
static bool see_place(struct findings *f, const char *path, uint64_t archive_bytes)
{
    char type[32];
    struct statvfs fs;
    if (see_refusal(f, path))
        return false;
    auto_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstatvfs(fd, &fs) < 0) {
        finding_add(f, FINDING_WARNING, path, "can't be used: %s", fault_errno(errno));
        return false;
    }
    uint64_t free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    struct storage storage = storage_of(fd);
    bool writable = access(path, W_OK | X_OK) == 0;
    doctor_filesystem(fd, type);
    finding_add(f, writable ? FINDING_GOOD : FINDING_WARNING, path, "%s%s, %s free%s%s", type,
                storage.is_memory  ? " (memory)"
                : storage.is_local ? " (on this node)"
                                   : " (not known to be on this node)",
                cli_bytes(free_bytes), writable ? "" : ", not writable for you",
                fs.f_flag & ST_NOEXEC ? ", noexec (programs in a mount there still run)" : "");
    return archive_bytes && writable &&
           see_fit(f, path, archive_bytes, free_bytes, storage.is_memory) &&
           (storage.is_local || storage.is_memory);
}

/*
 * Places of this node for copies and mount points. Returns the place where --stage would copy
 * an archive of so many bytes; NULL: it fits in none, or they are 0.
 */
static const char *doctor_storage(struct findings *f, uint64_t archive_bytes)
{
    f->section = "places";
    const char *tmpdir = getenv("TMPDIR"), *own = getenv("ONEPOT_RUNTIME_DIR");
    const char *place = NULL;
    if (own && *own)
        see_place(f, own, 0);
    if (see_place(f, "/dev/shm", archive_bytes))
        place = "/dev/shm";
    if (!tmpdir || !*tmpdir)
        finding_add(f, FINDING_FACT, "$TMPDIR", "not set");
    else if (strcmp(tmpdir, "/tmp") != 0 && see_place(f, tmpdir, archive_bytes) && !place)
        place = tmpdir;
    return see_place(f, "/tmp", archive_bytes) && !place ? "/tmp" : place;
}

/* ---- copies ---- */

static int see_copy(void *ctx, const struct stage_report *copy)
{
    struct findings *f = ctx;
    bool left = !copy->is_used && !copy->owner;
    finding_add(f, left ? FINDING_WARNING : FINDING_FACT, copy->archive, "%s of %s in %s, %s",
                cli_bytes(copy->bytes_here), cli_bytes(copy->bytes), copy->folder,
                copy->is_used ? "in use"
                : copy->owner ? "kept for later"
                              : "left by a process that was killed");
    if (left)
        finding_advise(f, "the next mount or 'onepot unstage --all' removes it");
    else if (!copy->is_used)
        finding_advise(f, "'onepot unstage' removes it; it takes room until then");
    return 0;
}

static void doctor_copies(struct findings *f)
{
    f->section = "copies";
    size_t before = f->count;
    int r = stage_each(NULL, see_copy, f);
    if (r < 0)
        finding_add(f, FINDING_WARNING, "of archives", "not known: %s", fault_errno(r));
    else if (f->count == before)
        finding_add(f, FINDING_FACT, "of archives", "none of yours on this node");
}

/* ---- an archive: only the bytes that show its format are read ---- */

static void see_fault(struct findings *f, const char *path, const struct fault *fault)
{
    finding_add(f, FINDING_WRONG, path, "%s%s%s", fault->member[0] ? fault->member : "",
                fault->member[0] ? ": " : "", fault->what);
    finding_advise(f, "%s", fault->advice);
}

static bool see_place_of(struct findings *f, const struct source *source)
{
    char type[32];
    auto_close int fd = open(source_name(source), O_PATH | O_CLOEXEC);
    doctor_filesystem(fd, type);
    finding_add(f, FINDING_FACT, "size", "%s", cli_bytes(source_size(source)));
    bool local = source_is_local(source);
    finding_add(f, FINDING_FACT, "filesystem", "%s, %s", type,
                local ? "on this node: it is mapped, and the kernel caches it"
                      : "not on this node, as far as is known: it is read piece by piece, "
                        "and the mount caches it");
    if (!local)
        finding_advise(f, "--stage copies it to this node while it is read");
    struct statvfs vfs;
    if (fstatvfs(fd, &vfs) == 0)
        finding_add(f, FINDING_FACT, "age",
                    vfs.f_flag & ST_NOATIME
                        ? "reading renews none of its times (noatime): a purge of old files "
                          "may remove it while it is in use"
                        : "reading renews its access time; its modification time stays");
    return local;
}

/* On one storage target of Lustre no number of nodes reads it faster. */
static void see_stripes(struct findings *f, const struct source *source)
{
    const char *path = source_name(source);
    unsigned stripes;
    if (stripes_of(path, &stripes) < 0)
        return;
    bool is_few = stripes_are_few(stripes, source_size(source));
    finding_add(f, is_few ? FINDING_WARNING : FINDING_FACT, "stripes",
                "it lies on %u storage %s of Lustre", stripes,
                stripes == 1 ? "target" : "targets");
    if (is_few)
        finding_advise(f, "'lfs migrate -c %u %s' spreads it", STRIPES_ADVISED, path);
}

/* The index that a mount would use, if there is one. */
static void see_index(struct findings *f, const char *path, const char *compression)
{
    const struct fileset_options options = {
        .save = FILESET_SAVE_NEVER, .names_only = true, .only_ready = true};
    struct fault fault = {0};
    struct fileset *fileset;
    int r = fileset_open(path, &options, &fault, &fileset);
    if (r == 0) {
        bool is_saved = fileset->origin != FILESET_INDEX_EMBEDDED && fileset->index_path;
        finding_add(f, FINDING_GOOD, "index", is_saved ? "saved in %s" : "in the archive",
                    fileset->index_path);
        fileset_close(fileset);
        return;
    }
    if (r != -EAGAIN) {
        see_fault(f, path, &fault);
        return;
    }
    if (compression) {
        finding_add(
            f, FINDING_WARNING, "index",
            "none: if it is one stream of %s, each mount has to unpack it first; if it has "
            "several frames, one is made for the first mount",
            compression);
        finding_advise(f, "make an onepot archive of it with 'onepot pack'");
        return;
    }
    finding_add(
        f, FINDING_FACT, "index",
        "none in it, and none that fits beside it or in $XDG_CACHE_HOME: it is made for "
        "the first mount");
    finding_advise(f, "'onepot index %s' does that ahead of time", path);
}

void doctor_archive(struct findings *f, const char *path)
{
    f->section = "archive";
    struct fault fault = {0};
    struct source *source = NULL;
    const struct backend *backend;
    const char *compression;
    f->archive_bytes = 0;
    f->is_local = f->is_packed = false;
    struct container container = {0};
    int r = fileset_open_source(path, 0, &fault, &container, &source);
    if (r == 0)
        r = backend_find(source, &fault, &backend, &compression);
    if (r < 0) {
        see_fault(f, path, &fault);
        source_close(source);
        return;
    }
    f->archive_bytes = source_size(source);
    f->is_packed = compression != NULL;
    if (container.name)
        finding_add(f, FINDING_GOOD, path, "%s in %s", backend->name, container.name);
    else
        finding_add(f, FINDING_GOOD, path, "%s", backend->name);
    f->is_local = see_place_of(f, source);
    see_stripes(f, source);
    see_index(f, source_name(source), compression);
    source_close(source);
}

/* ---- limits: the process's (ulimit), and the kernel's for FUSE ---- */

/* A daemon opens an archive, its state, a device for each thread, and a copy's files. */
#define FILES_WANTED 256u
#define IO_TIMEOUT_S 60 /* the default of --io-timeout */

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

/* ---- a job of several nodes that read one archive ---- */

static void see_together(struct findings *f, const char *path, uint64_t bytes, unsigned nodes,
                         const char *place)
{
    finding_add(f, FINDING_GOOD, path,
                "the nodes can copy it together to %s: storage then gives %s, and not %s",
                place, cli_bytes(bytes), cli_bytes(bytes * nodes));
    finding_advise(f,
                   "'srun -N %u -n %u onepot-mpi stage %s', stage=\"job\" in Python, or "
                   "sbcast and 'onepot stage --adopt'; then 'onepot run --stage'",
                   nodes, nodes, path);
}

void doctor_job(struct findings *f, const char *path, const char *place)
{
    const char *variable;
    unsigned nodes = job_nodes(&variable);
    if (nodes < 2 || f->archive_bytes == 0)
        return;
    f->section = "job";
    finding_add(f, FINDING_FACT, "nodes", "%u, by %s", nodes, variable);
    if (f->is_local) {
        finding_add(f, FINDING_FACT, path, "is on this node, and read here by this node alone");
    } else if (f->is_packed) {
        finding_add(f, FINDING_WARNING, path,
                    "each node reads all of it: compressed in one piece, it is not copied "
                    "together");
        finding_advise(f, "make an onepot archive of it with 'onepot pack'");
    } else if (place) {
        see_together(f, path, f->archive_bytes, nodes, place);
    } else {
        finding_add(f, FINDING_WARNING, path,
                    "a copy fits in no place of this node: each node reads its samples from "
                    "storage");
        finding_advise(f, "set $TMPDIR to a disk of the node that has room. Else let the order "
                          "be known, so that a node reads ahead what its ranks want, and no "
                          "more: onepot.Loader, or --order with a list by 'onepot order'");
    }
}

#ifdef HAVE_FUSE
/* ---- mounts, and leftovers of dead ones ---- */

#define ANSWER_MS 2000

/* False: reads of it fail, which is reported. */
static bool see_trouble(struct findings *f, enum finding_kind kind, const struct counters *c)
{
    const char *trouble = summary_trouble(c);
    if (trouble)
        finding_add(f, kind, c->mountpoint, "reads of it fail: %.*s",
                    (int)sizeof(c->trouble[0]), trouble);
    return !trouble;
}

/* It is the mount that was asked about. */
static bool is_seen(const struct findings *f, const struct counters *c)
{
    for (size_t i = 0; i < f->count; i++)
        if (strncmp(f->at[i].subject, c->mountpoint, sizeof(f->at[i].subject) - 1) == 0)
            return true;
    return false;
}

static void see_dead(struct findings *f, const struct slot *slot)
{
    const struct counters *c = slot->counters;
    if (slot_daemon_lives(slot) && !is_seen(f, c))
        see_trouble(f, FINDING_WARNING, c);
    if (slot_daemon_lives(slot) || !slot_is_mounted(slot))
        return;
    finding_add(f, FINDING_WARNING, c->mountpoint,
                "its daemon is dead: every use of it is an error");
    finding_advise(f, "'onepot umount %s' removes it", c->mountpoint);
}

static void doctor_leftovers(struct findings *f)
{
    f->section = "mounts";
    auto_slots struct slot_list list = {0};
    size_t before = f->count;
    int r = state_list(&list);
    if (r < 0) {
        finding_add(f, FINDING_WARNING, "of this user", "not known: %s", fault_errno(r));
        return;
    }
    for (size_t i = 0; i < list.count; i++)
        see_dead(f, list.at[i]);
    if (f->count == before)
        finding_add(f, FINDING_GOOD, "of this user", "%zu, all can be read", list.count);
}

static void see_mount(struct findings *f, const struct slot *slot)
{
    const struct counters *c = slot->counters;
    int r = slot_daemon_lives(slot) ? mountpoint_answers(c->mountpoint, ANSWER_MS) : -ENOTCONN;
    if (r == 0 && see_trouble(f, FINDING_WRONG, c)) {
        finding_add(f, FINDING_GOOD, c->mountpoint, "answers; daemon %d, of %s",
                    (int)c->daemon_pid, c->archive);
    } else if (r < 0) {
        finding_add(f, FINDING_WRONG, c->mountpoint, "%s",
                    r == -ENOTCONN    ? "its daemon is dead"
                    : r == -ETIMEDOUT ? "does not answer: the storage of its archive may hang"
                                      : fault_errno(r));
        finding_advise(f,
                       r == -ENOTCONN ? "'onepot umount %s' removes it"
                                      : "'onepot umount --lazy %s' takes it away",
                       c->mountpoint);
    }
    if (c->last_error[0] && !summary_trouble(c))
        finding_add(f, FINDING_WARNING, "last error", "%.*s", (int)sizeof(c->last_error),
                    c->last_error);
}

/* False: it is no mount point of this user. */
static bool doctor_mount(struct findings *f, const char *path)
{
    f->section = "mount";
    auto_slots struct slot_list list = {0};
    const struct slot *slot;
    if (state_list(&list) < 0 || find_mount(&list, path, &slot) < 0)
        return false;
    see_mount(f, slot);
    return true;
}
#endif

#ifdef HAVE_PYTHON
/* ---- Python ---- */

/*
 * PyPI's package `onepot` is a stranger's, and imports by the name of
 * our module (whose distribution is onepot-fs).
 */

/*
 * Prints the path that `import onepot` would take, and of which kind it is. Imports nothing of
 * it, and looks at nothing in the current directory.
 */
#define PROBE                                                                                  \
    "cd / && exec timeout 5 python3 -c '\n"                                                    \
    "import importlib.util, os, sys\n"                                                         \
    "spec = importlib.util.find_spec(\"onepot\")\n"                                            \
    "origin = spec.origin if spec else None\n"                                                 \
    "if origin and os.path.isfile(origin):\n"                                                  \
    "    with open(origin, \"rb\") as f:\n"                                                    \
    "        kind = \"ours\" if b\"onepot._core\" in f.read(65536) else \"other\"\n"           \
    "    sys.stdout.buffer.write(kind.encode() + b\" \" + os.fsencode(origin))\n"              \
    "' 2>/dev/null </dev/null"

static void doctor_python(struct findings *f)
{
    char line[PATH_MAX + 16] = "";

    f->section = "Python";
    FILE *probe = popen(PROBE, "re");
    if (!probe)
        return;
    size_t len = fread(line, 1, sizeof(line) - 1, probe);
    pclose(probe);
    line[len] = '\0';
    char *path = strchr(line, ' ');
    if (!path)
        return;
    *path++ = '\0';
    if (strcmp(line, "ours") == 0) {
        finding_add(f, FINDING_GOOD, "module", "%s", path);
    } else {
        finding_add(f, FINDING_WARNING, "module",
                    "%s: another project's package, which has the same name", path);
        finding_advise(f, "pip uninstall onepot, and install onepot-fs anew");
    }
}
#endif

/* ---- mounting ---- */

/* May users give others access? fusermount3 looks it up in /etc/fuse.conf. */
static void see_allow_other(struct findings *f)
{
    char line[256], word[64];
    bool allowed = false;
    auto_fclose FILE *file = fopen("/etc/fuse.conf", "re");

    while (file && fgets(line, sizeof(line), file))
        allowed |= sscanf(line, " %63s", word) == 1 && strcmp(word, "user_allow_other") == 0;
    finding_add(f, FINDING_FACT, "--allow-other", "%s",
                allowed ? "is allowed to users (user_allow_other in /etc/fuse.conf)"
                        : "is not for users: /etc/fuse.conf has no user_allow_other");
}

#ifdef HAVE_PRELOAD
/* Which programs never use the preloaded library, nobody else says. */
static void doctor_preload(struct findings *f)
{
    static const char subject[] = "libonepot-io.so";
    char path[PATH_MAX], why[PRELOAD_WHY_MAX];
    int r = preload_find(path, why);

    if (r < 0) {
        finding_add(f, FINDING_WARNING, subject,
                    "has no place, so readers under 'onepot run' use the mount alone: %s", why);
        finding_advise(f, "set XDG_CACHE_HOME to a folder that nobody else can write to");
    } else {
        finding_add(f, FINDING_GOOD, subject,
                    "programs under 'onepot run' read without the mount, but for those that "
                    "are linked statically, are set-user-ID, or use another C library");
    }
}
#endif

/* The needs of a mount besides a trial: the kernel, rights, the preloaded library. */
static void doctor_mounting(struct findings *f)
{
    struct utsname name;

    f->section = "mounting";
    if (uname(&name) == 0)
        finding_add(f, FINDING_FACT, "kernel", "%s %s", name.sysname, name.release);
    if (geteuid() != 0)
        see_allow_other(f);
#ifdef HAVE_PRELOAD
    doctor_preload(f);
#endif
}

/* ---- all but mounting ---- */

void doctor_node(struct findings *f, const char *path)
{
    bool is_mount = false;
#ifdef HAVE_FUSE
    is_mount = path && doctor_mount(f, path);
#endif
    if (path && !is_mount)
        doctor_archive(f, path);
    doctor_memory(f);
    doctor_cpus(f);
    doctor_limits(f, f->archive_bytes);
    const char *place = doctor_storage(f, f->archive_bytes);
    doctor_job(f, path, place);
    doctor_copies(f);
#ifdef HAVE_PYTHON
    doctor_python(f);
#endif
#ifdef HAVE_FUSE
    doctor_leftovers(f);
#endif
}

/* ---- the command ---- */

static const char *const kind_names[] = {
    [FINDING_FACT] = "fact",
    [FINDING_GOOD] = "good",
    [FINDING_WARNING] = "warning",
    [FINDING_WRONG] = "wrong",
};

static const char *const kind_marks[] = {
    [FINDING_FACT] = "  ",
    [FINDING_GOOD] = "ok",
    [FINDING_WARNING] = "! ",
    [FINDING_WRONG] = "!!",
};

static void command_doctor_text(const struct findings *f)
{
    for (size_t i = 0; i < f->count; i++) {
        const struct finding *item = &f->at[i];
        if (i == 0 || strcmp(item->section, f->at[i - 1].section) != 0)
            printf("%s%s\n", i ? "\n" : "", item->section);
        printf("  %s ", kind_marks[item->kind]);
        cli_print_safe(stdout, item->subject, strlen(item->subject));
        fputs(": ", stdout);
        cli_print_safe(stdout, item->text, strlen(item->text));
        if (item->advice[0]) {
            fputs("\n       ", stdout);
            cli_print_safe(stdout, item->advice, strlen(item->advice));
        }
        putchar('\n');
    }
}

static void command_doctor_json(const struct findings *f, bool works)
{
    struct json j = {.out = stdout, .lines = 2};
    json_open(&j, NULL, '{');
    json_bool(&j, "mount_works", works);
    json_open(&j, "findings", '[');
    for (size_t i = 0; i < f->count; i++) {
        const struct finding *item = &f->at[i];
        json_open(&j, NULL, '{');
        json_text(&j, "kind", kind_names[item->kind], SIZE_MAX);
        json_text(&j, "section", item->section, SIZE_MAX);
        json_text(&j, "subject", item->subject, SIZE_MAX);
        json_text(&j, "text", item->text, SIZE_MAX);
        json_text(&j, "advice", item->advice[0] ? item->advice : NULL, SIZE_MAX);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
}

static bool has_wrong(const struct findings *f)
{
    for (size_t i = 0; i < f->count; i++)
        if (f->at[i].kind == FINDING_WRONG)
            return true;
    return f->failed;
}

static int doctor_main(int argc, char **argv)
{
    bool json = false;
    const struct cli_option options[] = {{"--json", "print one object", .flag = &json}, {NULL}};
    int status = cli_parse(&command_doctor, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&command_doctor, "one archive or mount point at a time");

    struct findings f = {0};
    doctor_mounting(&f);
    self_test_mounting(&f);
    bool works = !has_wrong(&f);
    doctor_node(&f, optind < argc ? argv[optind] : NULL);
    bool good = !has_wrong(&f);
    if (json)
        command_doctor_json(&f, works);
    else
        command_doctor_text(&f);
    vector_free(&f);
    return good ? CLI_OK : CLI_FAILED;
}
