/*
 * onepot stage: copy archives to this node ahead of time. A copy stays until `onepot unstage`,
 * or until its owner (owner.h) ends. A small process waits for that in the background; if it is
 * killed, the next start of any onepot notices that the owner is gone.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cleanup.h"
#include "cli.h"
#include "clock.h"
#include "commands.h"
#include "detach.h"
#include "interrupt.h"
#include "job.h"
#include "json.h"
#include "owner.h"
#include "path.h"
#include "process.h"
#include "source_retry.h"
#include "stage.h"
#include "verify.h"
#ifdef HAVE_FUSE
#include "unmounter.h"
#endif

static int stage_main(int argc, char **argv);

const struct cli_command command_stage = {
    "stage", stage_main, "copy archives to this node ahead of time",
    "[--dir DIR] [--owner PID|job|none] [--adopt PATH] ARCHIVE...",
    "Copy archives to this node, where 'onepot mount --stage' finds the copies. They belong\n"
    "to this job or session (a login), and go with it, or by 'onepot unstage'.\n"};

struct arguments {
    const char *place, *adopt, *node;
    pid_t owner;    /* 0: the copies stay */
    unsigned owned; /* copies of that owner, when they were last counted */
    char job[128];  /* for this job, "SLURM_JOB_ID=12"; "": for good */
    bool keep, for_job, verify, as_json, quiet;
    uint64_t rank, size; /* of a job's nodes; size 0: not together with others */
    uint64_t first;      /* chunk of the archive that they begin with */
    uint64_t ring;       /* the descriptor of its engine's ring */
    struct json json;
    struct inherited inherited;
};

#define JOB_NODES_MOST (1u << 20)

/* After this long the failing storage of a stream is taken for gone. */
#define AWAY_LIMIT_NS UINT64_C(300000000000)

/* ---- one archive ---- */

/* For how long a stream has been waiting for its storage. */
static bool is_away_too_long(const struct stage_report *report, uint64_t *since_ns)
{
    if (!report->away || !*since_ns)
        *since_ns = now_ns();
    return now_ns() - *since_ns > AWAY_LIMIT_NS;
}

/* Wait until the copy is whole: 0, or -errno. */
static int command_stage_copy(struct stage *stage)
{
    struct cli_progress line = {0};
    struct stage_report report;
    uint64_t since_ns = 0;
    int r = stage_start(stage);
    cli_progress_start(&line);
    while (r == 0 && !stage_wait_whole(stage, 100)) {
        stage_get_report(stage, &report);
        r = atomic_load(interrupt_flag()) ? -EINTR : -report.failure;
        if (r == 0 && is_away_too_long(&report, &since_ns))
            r = -report.away;
        const struct progress progress = {.bytes_done = report.bytes_here,
                                          .bytes_total = report.bytes};
        cli_progress_show(&line, "staging", &progress);
    }
    cli_progress_end(&line);
    return r;
}

static int verify_copy(const struct arguments *a, const char *archive, struct fileset *fileset)
{
    const struct work_options work = {.threads = cli_default_jobs(), .stop = interrupt_flag()};
    struct verify_result result = {0};
    struct fault fault = {0};
    int r = verify_run(fileset, &work, false, &fault, &result);
    if (r < 0)
        return cli_fail(archive, r, &fault);
    if (result.problems)
        return cli_failf(archive, "the copy does not agree with its sums: see 'onepot verify'");
    if (!result.sums.some && !a->quiet)
        cli_note("%s: it has no sums of its files, so --verify compared nothing", archive);
    return CLI_OK;
}

static void command_stage_json(struct json *j, const char *archive,
                               const struct stage_report *report)
{
    json_open(j, NULL, '{');
    json_text(j, "archive", archive, SIZE_MAX);
    json_text(j, "folder", report->folder, SIZE_MAX);
    json_number(j, "bytes", report->bytes);
    json_number(j, "copied_bytes", report->copied_bytes + report->demand_bytes);
    json_number(j, "copied_ns", report->copying_ns);
    json_close(j, '}');
}

/*
 * Figures for the engine, which prints those of all nodes in one line: is that wanted, and
 * until when the copy stays. False: it takes them no more.
 */
static bool tell_engine(const struct arguments *a, const struct stage_report *report,
                        bool was_whole, const char *owner)
{
    char line[PIPE_BUF];
    const uint64_t stream = was_whole ? 0 : report->copied_bytes + report->past_bytes;
    const uint64_t demand = was_whole ? 0 : report->demand_bytes;
    int n = snprintf(line, sizeof(line),
                     "onepot-job done %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %s\n",
                     stream + demand, demand, was_whole ? 0 : report->job_bytes, report->bytes,
                     a->quiet ? "" : owner);
    return write(STDOUT_FILENO, line, (size_t)n) == n;
}

static void print_result(const struct arguments *a, const char *archive,
                         const struct stage_report *report, bool was_whole)
{
    char how[128] = "already";
    char name[PROCESS_NAME_MAX], owner[PROCESS_NAME_MAX + 32] = "'onepot unstage'";
    if (report->was_moved)
        snprintf(how, sizeof(how), "by moving the adopted file there");
    else if (!was_whole && a->size)
        snprintf(how, sizeof(how), "(%s from storage, %s from other nodes)",
                 cli_bytes(report->copied_bytes + report->demand_bytes + report->past_bytes),
                 cli_bytes(report->job_bytes));
    else if (!was_whole && report->copying_ns)
        snprintf(how, sizeof(how), "in %s (%s/s)", cli_time(report->copying_ns),
                 cli_rate(report->copied_bytes, report->copying_ns));
    if (a->owner)
        snprintf(owner, sizeof(owner), "%s (process %d) ends", process_name(a->owner, name),
                 (int)a->owner);
    else if (a->job[0])
        snprintf(owner, sizeof(owner), "job %.60s has ended, or 'onepot unstage'",
                 strchr(a->job, '=') + 1);
    if ((a->size && tell_engine(a, report, was_whole, owner)) || a->quiet || a->as_json)
        return;
    cli_note("%s: %s staged to %s %s; it stays until %s", archive, cli_bytes(report->bytes),
             report->folder, how, owner);
}

static int not_staged(const char *archive, const struct stage *stage, int err)
{
    struct stage_report report;
    stage_get_report(stage, &report);
    return cli_failf(archive, "it could not be staged: %s",
                     report.reason[0] ? report.reason : fault_errno(err));
}

/* The steps from opening the copy to pinning it. */
static int command_stage_finish(struct arguments *a, const char *archive,
                                struct fileset *fileset, struct stage *stage)
{
    struct stage_report report;
    stage_get_report(stage, &report);
    bool was_whole = report.whole;
    struct fault fault = {0};
    int r = !a->size ? 0
                     : stage_job_serve(stage, a->first, (unsigned)a->rank, (unsigned)a->size,
                                       STDIN_FILENO, STDOUT_FILENO, (int)a->ring,
                                       interrupt_flag(), &fault);
    if (r < 0)
        return cli_fail(archive, r, &fault);
    r = command_stage_copy(stage);
    if (r == -EINTR)
        return CLI_FAILED;
    if (r < 0)
        return not_staged(archive, stage, r);
    if (a->verify && verify_copy(a, archive, fileset) != CLI_OK)
        return CLI_FAILED;
    stage_pin(stage, a->owner, a->job);
    stage_get_report(stage, &report);
    print_result(a, archive, &report, was_whole);
    if (a->as_json)
        command_stage_json(&a->json, archive, &report);
    return CLI_OK;
}

/* Is it compressed in one piece, and so unpacked instead of copied? */
static int is_packed(const struct source *source, struct fault *fault)
{
    const struct backend *backend;
    const char *compression;
    int r = backend_find(source, fault, &backend, &compression);
    return r < 0 ? r : compression != NULL;
}

static int not_adopted(const char *archive, const char *why)
{
    return cli_failf(archive, "--adopt takes a copy of one file, and this is %s", why);
}

/* Open with the index if it is needed (an unpacked copy's is saved), else only the bytes. */
static int open_source(const struct arguments *a, const char *archive,
                       struct stage_store *store, struct fileset **ret_fileset,
                       struct source **ret_source)
{
    const struct fileset_store fileset_store = stage_fileset_store(store);
    const struct fileset_options options = {.store = &fileset_store};
    struct container ignored;
    struct fault fault = {0};
    int r = cli_plain || archive_list_is_set(archive)
                ? -EISDIR
                : fileset_open_source(archive, cli_offset, &fault, &ignored, ret_source);
    interrupt_catch(); /* not before: a signal at once ends an opening that hangs */
    if (r == -EISDIR && a->adopt)
        return not_adopted(archive, cli_plain ? "a folder" : "a set of archives");
    if (r == -EISDIR) { /* several, of which the copy has all, whatever their names are */
        cli_together.on_conflict = FILESET_CONFLICT_FIRST;
        if (cli_open_fileset(archive, &options, ret_fileset) < 0)
            return CLI_FAILED;
        *ret_source = (*ret_fileset)->source;
        return CLI_OK;
    }
    if (r == 0)
        r = is_packed(*ret_source, &fault);
    if (r < 0)
        return cli_fail(archive, r, &fault);
    if (r > 0 && a->adopt)
        return not_adopted(archive, "compressed in one piece, which is unpacked to its stage");
    if (r > 0 && a->node)
        return cli_failf(archive, "it is compressed in one piece, which each node unpacks");
    if (r == 0 && !a->verify)
        return CLI_OK;
    source_close(*ret_source);
    *ret_source = NULL;
    if (cli_open_fileset(archive, &options, ret_fileset) < 0)
        return CLI_FAILED;
    *ret_source = (*ret_fileset)->source;
    return CLI_OK;
}

static void print_note(void *ctx, const char *line)
{
    (void)ctx;
    cli_note("%s", line);
}

static int stage_one(struct arguments *a, const char *archive)
{
    char full[PATH_MAX];
    struct fault fault = {0};
    struct fileset *fileset = NULL;
    struct source *source = NULL;
    const struct stage_options options = {.archive = realpath(archive, full) ? full : archive,
                                          .place = a->place,
                                          .adopt = a->adopt,
                                          .note = print_note};
    struct stage_store store = {.options = options};
    int status = open_source(a, archive, &store, &fileset, &source);
    struct stage *stage = store.stage;
    if (status == CLI_OK && !stage) {
        int r = stage_open(source, &options, &fault, &stage);
        if (r == 0)
            r = stage_attach(stage, fileset ? &fileset->source : &source, false);
        status = r < 0 ? cli_fail(archive, r, &fault) : CLI_OK;
    }
    bool stuck = false;
    if (status == CLI_OK) {
        status = command_stage_finish(a, archive, fileset, stage);
        source_cancel_retries(fileset ? fileset->source : source);
        stuck = stage_stop(stage) < 0;
    }
    if (!stuck && fileset)
        fileset_close(fileset);
    else if (!stuck) /* else a thread is in a read of it, and it is freed with the process */
        source_close(source);
    stage_close(stage);
    return status;
}

/* ---- until the owner ends ---- */

static int count_owned(void *ctx, const struct stage_report *copy)
{
    struct arguments *a = ctx;
    a->owned += copy->pinned && copy->owner == a->owner;
    return 0;
}

static bool has_copies(struct arguments *a)
{
    a->owned = 0;
    return stage_each(a->place, count_owned, a) >= 0 && a->owned > 0;
}

/* Watch a folder of copies, to be notified when it is removed. */
static int add_watch(void *ctx, const struct stage_report *copy)
{
    inotify_add_watch(*(const int *)ctx, copy->folder, IN_DELETE | IN_DELETE_SELF);
    return 0;
}

/* The copies no longer stay: one in use is removed with its last user. */
static int release_owned(void *ctx, const struct stage_report *copy)
{
    return copy->pinned && copy->owner == *(const pid_t *)ctx;
}

static _Noreturn void wait_for_owner(struct arguments *a, struct process_watch owner,
                                     const sigset_t *wanted)
{
    char events[4096];
    int news = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    int signals = signalfd(-1, wanted, SFD_CLOEXEC);
    stage_each(a->place, add_watch, &news);
    if (!has_copies(a)) /* they were removed before the watch began */
        _exit(0);
    for (;;) {
        struct pollfd p[] = {{.fd = owner.fd, .events = POLLIN},
                             {.fd = news, .events = POLLIN},
                             {.fd = signals, .events = POLLIN}};
        poll(p, 3, owner.fd < 0 ? 1000 : -1);
        if (process_watch_ended(&owner))
            break;
        if (p[2].revents) {
            stage_each(a->place, release_owned, &owner.pid);
            _exit(0);
        }
        if (p[1].revents && read(news, events, sizeof(events)) > 0 && !has_copies(a))
            _exit(0);
    }
    stage_sweep(a->place);
    _exit(0);
}

/* A child of nobody, which this command does not wait for. */
static void leave_keeper(struct arguments *a)
{
    struct process_watch owner;
    sigset_t wanted, before;
    if (process_watch_open(a->owner, &owner) < 0)
        return;
    fflush(stdout);
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    sigaddset(&wanted, SIGHUP);
    sigprocmask(SIG_BLOCK, &wanted, &before); /* so that the keeper gets the earliest, too */
    if (process_fork_orphan() == 0) {
        if (detach_here(&a->inherited, -1) < 0)
            _exit(1);
        wait_for_owner(a, owner, &wanted);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    process_watch_close(&owner);
}

/* ---- the command ---- */

static int stage_archives(struct arguments *a, char **archives, int count)
{
    int status = CLI_OK, staged = 0;
#ifdef HAVE_FUSE
    unmounter_sweep(NULL);
#endif
    if (a->as_json)
        json_open(&a->json, NULL, '[');
    for (int i = 0; i < count && !atomic_load(interrupt_flag()); i++) {
        int r = stage_one(a, archives[i]);
        staged += r == CLI_OK;
        status = r == CLI_OK ? status : r;
    }
    if (a->as_json)
        json_close(&a->json, ']');
    if (staged && a->owner)
        leave_keeper(a);
    if (atomic_load(interrupt_flag()))
        interrupt_die();
    return status;
}

/* A copy of a part would be of no use to a mount that shows another one. */
static int refuse_view(const struct cli_command *u, void *ctx, const char *text)
{
    (void)ctx, (void)text;
    return cli_usage_error(u,
                           "a copy is of whole archives, and serves every part of them: give "
                           "--nested, --include, --exclude, --files-from and --map to mount "
                           "and run alone");
}

static int command_stage_owner(const struct cli_command *u, void *ctx, const char *text)
{
    struct arguments *a = ctx;
    struct process_facts facts;
    uint64_t pid;
    a->for_job = strcmp(text, "job") == 0;
    if (a->for_job || strcmp(text, "none") == 0) {
        a->keep = !a->for_job;
        return 0;
    }
    if (cli_number_option(u, "--owner", text, 1, INT32_MAX, &pid) != 0)
        return CLI_USAGE;
    if (process_look((pid_t)pid, &facts) < 0)
        return cli_failf(NULL, "--owner: there is no process %d", (int)pid);
    a->owner = (pid_t)pid;
    return 0;
}

static int command_stage_node(struct arguments *a)
{
    const char *slash = strchr(a->node, '/'), *first = slash ? strchr(slash + 1, '/') : NULL;
    auto_free char *part = strndup(a->node, first ? (size_t)(first - a->node) : SIZE_MAX);
    if (!part || cli_parse_part(part, JOB_NODES_MOST, &a->rank, &a->size) < 0 ||
        (first && cli_parse_number(first + 1, 0, UINT32_MAX, &a->first) < 0))
        return cli_usage_error(
            &command_stage,
            "--node: '%s' is not RANK/SIZE or RANK/SIZE/CHUNK with RANK below SIZE, "
            "such as 0/4",
            a->node);
    signal(SIGPIPE, SIG_IGN); /* the engine may end first */
    setpgid(0, 0);            /* mpirun kills the groups of all ranks when one has died */
    return CLI_GO_ON;
}

static int command_stage_ring(const struct cli_command *u, void *ctx, const char *text)
{
    struct arguments *a = ctx;
    return cli_number_option(u, "--ring", text, STDERR_FILENO + 1, INT_MAX, &a->ring);
}

static int command_stage_parse(struct arguments *a, int argc, char **argv)
{
    const struct cli_option options[] = {
        {"--dir=DIR", "copy to DIR, not to memory, $TMPDIR or /tmp", .text = &a->place},
        {"--owner=PID",
         "remove the copies when this process has ended; 'job': they belong to the job (as in "
         "a "
         "step by default); 'none': never",
         .take = command_stage_owner, .ctx = a},
        {"--adopt=PATH", "make PATH, a copy on this node, the stage's", .text = &a->adopt},
        {"--node=RANK/SIZE", "copy together with other nodes, by an engine", .text = &a->node},
        {"--ring=FD", "with --node: blocks lie in the memory of descriptor FD",
         .take = command_stage_ring, .ctx = a},
        {"--keep", "the same as --owner=none", .flag = &a->keep},
        {"--verify", "compare the copy with the archive's sums", .flag = &a->verify},
        {"--json", "print what was copied where", .flag = &a->as_json},
        {"-q, --quiet", "say nothing if all is well", .flag = &a->quiet},
        CLI_PROGRESS,
        CLI_MAX_RATIO,
        CLI_OFFSET,
        CLI_IGNORE_ZEROS,
        CLI_PLAIN,
        {"--nested[=GLOB]", .take = refuse_view},
        {"--include=GLOB", .take = refuse_view},
        {"--exclude=GLOB", .take = refuse_view},
        {"--files-from=LIST", .take = refuse_view},
        {"--map=FILE", .take = refuse_view},
        {NULL},
    };
    int status = cli_parse(&command_stage, options, argc, argv);
    if (status != CLI_GO_ON)
        return status;
    if (a->keep && a->owner)
        return cli_usage_error(&command_stage, "--keep and --owner exclude each other");
    if (optind == argc)
        return cli_usage_error(&command_stage, "no archive was named");
    if ((a->adopt || a->node) && argc - optind > 1)
        return cli_usage_error(&command_stage, "--adopt and --node are of one archive");
    if (a->node && (a->adopt || a->as_json))
        return cli_usage_error(&command_stage, "--node excludes --adopt and --json");
    if (!a->ring != !a->node)
        return cli_usage_error(&command_stage,
                               "--node and --ring are given together, by an engine");
    if (a->node)
        return command_stage_node(a);
    return CLI_GO_ON;
}

/*
 * In the step of a job, whose processes end before the next step begins: the job. An engine of
 * another program (--node) has its own process for that. Else a process.
 */
static void find_owner(struct arguments *a)
{
    struct job job;
    job_detect(&job);
    int n = 0;
    if (job.id[0] && (a->for_job || (job.step[0] && !a->node)))
        n = snprintf(a->job, sizeof(a->job), "%s=%s", job.variable, getenv(job.variable));
    if (n <= 0 || n >= (int)sizeof(a->job)) {
        a->job[0] = '\0';
        a->owner = owner_find();
    }
}

static int stage_main(int argc, char **argv)
{
    struct arguments a = {.json = {.out = stdout, .lines = 1}};
    char place[PATH_MAX];
    if (detach_note_inherited(&a.inherited) < 0)
        return cli_failf(NULL, "out of memory");
    int status = command_stage_parse(&a, argc, argv);
    if (a.place && path_real(a.place, place, NULL) == 0)
        a.place = place; /* the keeper works in another directory */
    if (status == CLI_GO_ON) {
        if (!a.keep && !a.owner)
            find_owner(&a);
        status = stage_archives(&a, argv + optind, argc - optind);
    }
    vector_free(&a.inherited);
    return status;
}
