/*
 * Before anything is mounted: resolve the options, and open the archive, which the first
 * process to want it does.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "budget.h"
#include "cleanup.h"
#include "clock.h"
#include "interrupt.h"
#include "mounter_private.h"
#include "resolve.h"
#include "source_retry.h"
#include "storage_watch.h"

/* ---- signals while it works ---- */

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    caught = number;
}

int mounter_caught(void)
{
    return caught;
}

/*
 * Makes a file-size limit the error EFBIG. Caught, not ignored: the command that is run gets
 * the default.
 */
static void on_limit(int number)
{
    (void)number;
}

/* Blocking calls return on a signal, and the command cleans up. */
static void catch_signals(void)
{
    struct sigaction limit;
    interrupt_handle(on_signal);
    if (sigaction(SIGXFSZ, NULL, &limit) == 0 && limit.sa_handler == SIG_DFL)
        signal(SIGXFSZ, on_limit);
    signal(SIGCHLD, SIG_DFL); /* if ignored, our children's exit status would be lost */
}

/* ---- resolving the request ---- */

int mounter_init(struct mounter *m, const struct mount_options *options, bool for_run)
{
    *m = (struct mounter){
        .options = options,
        .for_run = for_run,
        .mounted = MOUNTED_NONE,
        .owner = PROCESS_WATCH_NONE,
        .log = {.fd = -1, .stderr_too = options->foreground},
        .parent_fd = -1,
        .daemon_sock = -1,
        .daemon_lock_fd = -1,
    };
    catch_signals();
    return detach_note_inherited(&m->inherited);
}

static int status_of_failure(const struct mounter *m)
{
    return m->for_run ? CLI_RUN_FAILED : CLI_FAILED;
}

static int identify_archive(struct mounter *m)
{
    const char *given = m->options->archive;
    struct storage_watch watch;
    struct fault fault = {0};
    struct stat st;

    storage_watch_begin(&watch, given, m->options->io_timeout_s, status_of_failure(m));
    int r = !realpath(given, m->archive) || stat(m->archive, &st) < 0 ? -errno : 0;
    storage_watch_end(&watch);
    if (r < 0)
        return cli_fail(given, source_open_fault(given, &fault, r), &fault);
    m->identity = (struct source_identity){
        .dev = st.st_dev,
        .ino = st.st_ino,
        .size_bytes = (uint64_t)st.st_size,
        .mtime_sec = st.st_mtim.tv_sec,
        .mtime_nsec = (uint32_t)st.st_mtim.tv_nsec,
    };
    return 0;
}

/* --at: a directory, or the device of a parent that has mounted. */
static int resolve_at(struct mounter *m)
{
    const char *at = m->options->at;
    int n = -1, fd;

    if (!at)
        return 0;
    if (sscanf(at, "/dev/fd/%d%n", &fd, &n) == 1 && n > 0 && !at[n]) {
        m->parent_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (m->parent_fd < 0)
            return cli_failf(at, "no such descriptor was handed over: %s", strerror(errno));
        m->methods = MOUNT_BY_PARENT;
        snprintf(m->at, sizeof(m->at), "%s", at);
        return 0;
    }
    int r = mountpoint_resolve(at, m->at);
    if (r == -ENOENT)
        return cli_failf(at, "the directory above it does not exist; make that first");
    return r < 0 ? cli_fail(at, r, NULL) : 0;
}

static int watch_owner(struct mounter *m)
{
    if (m->options->owner <= 0)
        return 0;
    int r = process_watch_open(m->options->owner, &m->owner);
    if (r < 0)
        return cli_failf(NULL, "--owner: there is no process %d", (int)m->options->owner);
    return 0;
}

static int open_log(struct mounter *m)
{
    const char *path = m->options->log;
    if (!path)
        return 0;
    m->log.fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0666);
    return m->log.fd < 0 ? cli_fail(path, -errno, NULL) : 0;
}

int mounter_prepare(struct mounter *m)
{
    const struct mount_options *o = m->options;

    stage_sweep(NULL); /* leftovers of killed processes use the job's memory */
    if (mount_methods(&m->methods) < 0)
        return cli_failf(NULL,
                         "ONEPOT_MOUNT_METHODS names another way than mount, fusermount3, "
                         "fusermount, namespace");
    if (o->private_mode == PRIVATE_OFF)
        m->methods &= ~(unsigned)MOUNT_BY_NAMESPACE;
    m->is_private = o->private_mode == PRIVATE_ON;
    job_detect(&m->job);
    int r = identify_archive(m);
    if (r == 0)
        r = resolve_at(m);
    if (r == 0)
        r = watch_owner(m);
    if (r == 0)
        r = open_log(m);
    m->options_hash = mount_options_hash(o, m->at, m->identity.mtime_sec,
                                         m->identity.mtime_nsec, m->owner.start_ticks);
    return r;
}

/* ---- the archive ---- */

static int find_root(struct mounter *m)
{
    const char *subdir = m->options->subdir;
    struct node node;

    m->root = INDEX_ROOT;
    if (!subdir)
        return 0;
    int r = resolve_path(m->pot->index, subdir, &m->root);
    if (r == 0)
        r = index_node(m->pot->index, m->root, &node);
    if (r == 0 && !S_ISDIR(node.mode))
        r = -ENOTDIR;
    if (r < 0)
        return cli_failf(m->options->archive, "--subdir %s: %s", subdir,
                         resolve_error(r) ? resolve_error(r) : strerror(-r));
    return index_inode_position(m->pot->index, m->root, &m->root) < 0 ? CLI_FAILED : 0;
}

static bool was_replaced(const struct source_identity *a, const struct source_identity *b)
{
    return a->dev != b->dev || a->ino != b->ino || a->size_bytes != b->size_bytes ||
           a->mtime_sec != b->mtime_sec || a->mtime_nsec != b->mtime_nsec;
}

static void describe_archive(const struct mounter *m)
{
    const struct index_info *info = index_info(m->pot->index);
    struct counters *c = m->slot->counters;

    snprintf(c->format, sizeof(c->format), "%s", m->pot->backend->name);
    c->entries = info->entries;
    c->files = info->files;
    c->total_bytes = info->total_bytes;
}

/*
 * Find the archive's copy or make room for one, unless a stream is unpacked to one. An archive
 * that lies in memory needs none.
 */
static int stage_archive(struct mounter *m)
{
    const struct mount_options *o = m->options;
    const struct stage_options options = {.archive = m->archive, .place = o->stage_place};
    struct stage_report report;
    struct fault fault = {0};

    int r = m->stage ? 0 : stage_open(m->pot->source, &options, &fault, &m->stage);
    if (r == -EEXIST) {
        cli_note("%s: it %s", o->archive, fault.what);
        return 0;
    }
    if (r < 0)
        return cli_fail(o->archive, r, &fault);
    if (!m->pot->compression) /* else it is read where it was unpacked to */
        r = stage_attach(m->stage, &m->pot->source);
    if (r < 0)
        return cli_fail(o->archive, r, &fault);
    stage_get_report(m->stage, &report);
    struct counters *c = m->slot->counters;
    snprintf(c->stage_folder, sizeof(c->stage_folder), "%s", report.folder);
    c->stage_bytes = report.bytes;
    c->stage_unpacks = m->pot->compression != NULL;
    atomic_store(&c->stage_here_bytes, report.bytes_here);
    return 0;
}

/* ---- opening may take minutes: the log shows progress ---- */

#define TELL_EVERY_NS UINT64_C(10000000000)

struct opening_log {
    struct control_log log; /* without standard error, which shows it anyway */
    uint64_t told_ns;
};

static void log_note(void *ctx, const char *line)
{
    struct opening_log *o = ctx;
    control_log(&o->log, line);
}

static void log_progress(void *ctx, const char *doing, const struct progress *progress)
{
    struct opening_log *o = ctx;
    uint64_t now = now_ns(), done = progress->bytes_done, all = progress->bytes_total;
    char line[256];

    if (now - o->told_ns < TELL_EVERY_NS)
        return;
    o->told_ns = now;
    if (all)
        snprintf(line, sizeof(line), "%.150s: %llu of %llu MiB (%.0f %%)", doing,
                 (unsigned long long)done >> 20, (unsigned long long)all >> 20,
                 100.0 * (double)done / (double)all);
    else
        snprintf(line, sizeof(line), "%.150s: %llu MiB", doing, (unsigned long long)done >> 20);
    control_log(&o->log, line);
}

/* ---- the archive, with its readers ---- */

#define STUCK_MAX_S 1000000u

static int open_archive(struct mounter *m)
{
    const struct mount_options *o = m->options;
    struct reader_options reader = {
        .not_for_children = true,
        /* This leaves a waiting reader half of its time. */
        .stuck_ms = o->io_timeout_s < STUCK_MAX_S ? o->io_timeout_s * 500u : 0,
        .cache_stored = true};
    struct fault fault = {0};

    struct stage_store store = {
        .options = {.archive = m->archive, .place = o->stage_place, .idle_s = o->io_timeout_s},
        .is_private = !o->stage};
    const struct pot_store pot_store = stage_pot_store(&store);
    struct opening_log log = {.log = {.fd = m->log.fd}, .told_ns = now_ns()};
    const struct pot_options options = {
        .store = &pot_store, .note = log_note, .progress = log_progress, .ctx = &log};
    int r = cli_open_pot(o->archive, &options, o->progress, &m->pot);
    m->stage = store.stage;
    if (r < 0)
        return CLI_FAILED;
    source_set_retries(m->pot->packed ? m->pot->packed : m->pot->source, o->retries);
    if (was_replaced(&m->pot->identity, &m->identity))
        return cli_failf(o->archive, "it was changed while it was opened; try again");
    r = find_root(m);
    if (r != 0)
        return r;
    r = o->stage || m->stage ? stage_archive(m) : 0;
    if (r != 0)
        return r;
    m->cache_bytes = o->cache_given ? o->cache_bytes : budget_cache_bytes();
    reader.cache_bytes = m->cache_bytes;
    r = reader_new(m->pot, &reader, &fault, &m->reader);
    if (r < 0)
        return cli_fail(o->archive, r, &fault);
    if (o->verify && !index_info(m->pot->index)->has_sums)
        cli_note("%s: it has no sums of its files, so --verify compares nothing; an archive "
                 "by 'onepot pack' has",
                 o->archive);
    describe_archive(m);
    return mounter_open_orders(m);
}

int mounter_open_archive(struct mounter *m)
{
    struct storage_watch watch;

    storage_watch_begin(&watch, m->options->archive, m->options->io_timeout_s,
                        status_of_failure(m));
    int r = open_archive(m);
    storage_watch_end(&watch);
    return r;
}
