/*
 * onepot stat: what a mount has done so far. The numbers come from the file that the
 * daemon maps (counters.h); neither the daemon nor the mount is asked, so that the
 * answer comes also while a daemon hangs, is stopped, or is dead.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cleanup.h"
#include "cli.h"
#include "commands.h"
#include "process.h"
#include "state.h"
#include "summary.h"

static const struct cli_usage usage = {
    "stat", "[--json] [MOUNTPOINT]",
    "Print what a mount has done so far; without MOUNTPOINT, each of your mounts on this\n"
    "node. It asks neither the mount nor its daemon, so it works also when they hang.\n"
    "\n"
    "      --json            an object (without MOUNTPOINT, an array of them)\n"};

/* A mount as it is now; the counters go on while it is printed. */
struct view {
    const struct counters *counters;
    struct summary sum;
    const char *state;
    uint64_t uptime_s;
    uint64_t idle_ns; /* since the last request; UINT64_MAX: there was none */
};

/* Numbers are the kernel's (linux/fuse.h); 0 stands for those that came later. */
static const char *const opcode_names[COUNTERS_OPCODES] = {
    [0] = "OTHER",         [1] = "LOOKUP",
    [2] = "FORGET",        [3] = "GETATTR",
    [4] = "SETATTR",       [5] = "READLINK",
    [6] = "SYMLINK",       [8] = "MKNOD",
    [9] = "MKDIR",         [10] = "UNLINK",
    [11] = "RMDIR",        [12] = "RENAME",
    [13] = "LINK",         [14] = "OPEN",
    [15] = "READ",         [16] = "WRITE",
    [17] = "STATFS",       [18] = "RELEASE",
    [20] = "FSYNC",        [21] = "SETXATTR",
    [22] = "GETXATTR",     [23] = "LISTXATTR",
    [24] = "REMOVEXATTR",  [25] = "FLUSH",
    [26] = "INIT",         [27] = "OPENDIR",
    [28] = "READDIR",      [29] = "RELEASEDIR",
    [30] = "FSYNCDIR",     [31] = "GETLK",
    [32] = "SETLK",        [33] = "SETLKW",
    [34] = "ACCESS",       [35] = "CREATE",
    [36] = "INTERRUPT",    [37] = "BMAP",
    [38] = "DESTROY",      [39] = "IOCTL",
    [40] = "POLL",         [41] = "NOTIFY_REPLY",
    [42] = "BATCH_FORGET", [43] = "FALLOCATE",
    [44] = "READDIRPLUS",  [45] = "RENAME2",
    [46] = "LSEEK",        [47] = "COPY_FILE_RANGE",
    [48] = "SETUPMAPPING", [49] = "REMOVEMAPPING",
    [50] = "SYNCFS",       [51] = "TMPFILE",
    [52] = "STATX",
};

static const char *opcode_name(unsigned opcode, char buf[CLI_TEXT_LEN])
{
    if (opcode_names[opcode])
        return opcode_names[opcode];
    snprintf(buf, CLI_TEXT_LEN, "OPCODE_%u", opcode);
    return buf;
}

static const char *state_name(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    uint64_t start_ticks;
    char process_state = '?';
    if (!slot_daemon_lives(slot))
        return "dead";
    if (process_stat(c->daemon_pid, &start_ticks, &process_state) == 0 &&
        start_ticks == c->daemon_start_ticks && (process_state == 'T' || process_state == 't'))
        return "stopped";
    switch ((enum mount_state)atomic_load_explicit(&c->state, memory_order_relaxed)) {
    case MOUNT_STARTING:
        return "starting";
    case MOUNT_SERVING:
        return "serving";
    case MOUNT_DRAINING:
        return "draining";
    default:
        return "ended";
    }
}

static void view_take(const struct slot *slot, struct view *view)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    int64_t started = slot->counters->started_realtime_sec;
    int64_t today = (int64_t)time(NULL);

    view->counters = slot->counters;
    view->state = state_name(slot);
    view->uptime_s = today > started ? (uint64_t)(today - started) : 0;
    summary_read(slot->counters, &view->sum);
    uint64_t last_ns = view->sum.last_request_ns;
    view->idle_ns = !last_ns ? UINT64_MAX : now_ns > last_ns ? now_ns - last_ns : 0;
}

static uint64_t per_second(uint64_t count, uint64_t seconds)
{
    return seconds ? count / seconds : count;
}

static uint64_t get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* ---- for people ---- */

static void print_text(const char *label, const char *text, size_t size)
{
    printf("  %-12s ", label);
    cli_print_name(stdout, text, strnlen(text, size));
    putchar('\n');
}

static void print_who(const struct view *v)
{
    const struct counters *c = v->counters;
    char uptime[CLI_TEXT_LEN];
    cli_print_name(stdout, c->mountpoint, strnlen(c->mountpoint, sizeof(c->mountpoint)));
    fputs(":\n", stdout);
    print_text("archive", c->archive, sizeof(c->archive));
    if (c->job[0])
        print_text("job", c->job, sizeof(c->job));
    printf("  %-12s %s, process %d, up %s, %" PRIu32 " users%s\n", "daemon", v->state,
           c->daemon_pid, cli_format_time(v->uptime_s * 1000000000u, uptime),
           atomic_load_explicit(&c->holders, memory_order_relaxed),
           c->private_namespace ? ", visible to its command alone" : "");
    if (strcmp(v->state, "dead") == 0)
        printf("  %-12s what is left of it goes with: onepot umount\n", "");
    if (strcmp(v->state, "stopped") == 0)
        printf("  %-12s its readers wait until it goes on: kill -CONT %d\n", "", c->daemon_pid);
}

static void print_work(const struct view *v)
{
    const struct counters *c = v->counters;
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN], e[CLI_TEXT_LEN];
    printf("  %-12s %s files, %s (%s files/s, %s/s since the start)\n", "read",
           cli_format_count(v->sum.read_files, a), cli_format_bytes(v->sum.read_bytes, b),
           cli_format_count(per_second(v->sum.read_files, v->uptime_s), d),
           cli_format_bytes(per_second(v->sum.read_bytes, v->uptime_s), e));
    if (v->sum.ahead_requests)
        printf("  %-12s %s files, %s of these, by %s requests of its own\n", "read ahead",
               cli_format_count(v->sum.ahead_files, a), cli_format_bytes(v->sum.ahead_bytes, b),
               cli_format_count(v->sum.ahead_requests, d));
    printf("  %-12s %s in %s reads\n", "waited", cli_format_time(v->sum.read_service_ns, a),
           cli_format_count(v->sum.requests[15], b));
    printf("  %-12s %s errors, %s stalls, %s threads replaced\n", "trouble",
           cli_format_count(v->sum.errors, a), cli_format_count(get(&c->stalls), b),
           cli_format_count(get(&c->replacements), d));
    uint64_t retries = get(&c->source_retries), failures = get(&c->source_failures);
    if (retries || failures)
        printf("  %-12s %s failed reads tried again, %s given up, opened anew %s times\n",
               "storage", cli_format_count(retries, a), cli_format_count(failures, b),
               cli_format_count(get(&c->source_reopened), d));
    if (c->last_error[0])
        print_text("last error", c->last_error, sizeof(c->last_error));
    if (v->idle_ns != UINT64_MAX)
        printf("  %-12s %s ago\n", "last request", cli_format_time(v->idle_ns, a));
}

static void print_cache(const struct counters *c)
{
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN], e[CLI_TEXT_LEN];
    uint64_t hits = get(&c->cache_hits), misses = get(&c->cache_misses);
    if (hits + misses == 0)
        return; /* stored files need no cache of ours */
    printf("  %-12s %s hits, %s misses (%.1f %%), %s of %s\n", "block cache",
           cli_format_count(hits, a), cli_format_count(misses, b),
           100.0 * (double)hits / (double)(hits + misses),
           cli_format_bytes(get(&c->cache_bytes), d),
           cli_format_bytes(c->cache_budget_bytes, e));
}

static void print_stage(const struct counters *c)
{
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN], e[CLI_TEXT_LEN];
    uint64_t here = get(&c->stage_here_bytes), ns = get(&c->stage_stream_ns);
    uint32_t failure = atomic_load_explicit(&c->stage_failure, memory_order_relaxed);
    if (!c->stage_folder[0])
        return;
    printf("  %-12s %s of %s (%.0f %%) in ", "staged", cli_format_bytes(here, a),
           cli_format_bytes(c->stage_bytes, b),
           c->stage_bytes ? 100.0 * (double)here / (double)c->stage_bytes : 100.0);
    cli_print_name(stdout, c->stage_folder, strnlen(c->stage_folder, sizeof(c->stage_folder)));
    printf("\n  %-12s %s/s copied, %s at once for %s readers that waited, %s not kept\n", "",
           cli_format_bytes(
               ns ? (uint64_t)((double)get(&c->stage_stream_bytes) * 1e9 / (double)ns) : 0, a),
           cli_format_bytes(get(&c->stage_demand_bytes), b),
           cli_format_count(get(&c->stage_demands), d),
           cli_format_bytes(get(&c->stage_past_bytes), e));
    if (failure)
        printf("  %-12s the copy has ended early: %s\n", "", strerror((int)failure));
}

static void print_requests(const struct summary *sum)
{
    char a[CLI_TEXT_LEN], name[CLI_TEXT_LEN];
    printf("  %-12s %s\n", "requests", cli_format_count(sum->requests_all, a));
    for (unsigned i = 0; i < COUNTERS_OPCODES; i++)
        if (sum->requests[i])
            printf("    %-16s %15s\n", opcode_name(i, name),
                   cli_format_count(sum->requests[i], a));
}

static void print_histogram(const struct summary *sum)
{
    static const char bar[] = "########################################";
    char from[CLI_TEXT_LEN], to[CLI_TEXT_LEN], count[CLI_TEXT_LEN];
    uint64_t most = 0;
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++)
        most = sum->histogram[i] > most ? sum->histogram[i] : most;
    if (!most)
        return;
    printf("  %-12s\n", "time that a read waited");
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++) {
        uint64_t n = sum->histogram[i];
        if (!n)
            continue;
        int length = (int)((double)n / (double)most * (double)(sizeof(bar) - 1));
        printf("    %9s to %9s %15s %.*s\n",
               i ? cli_format_time((UINT64_C(1000) << i), from) : "0",
               cli_format_time(UINT64_C(2000) << i, to), cli_format_count(n, count),
               length ? length : 1, bar);
    }
}

static void print_view(const struct view *v)
{
    print_who(v);
    print_work(v);
    print_cache(v->counters);
    print_stage(v->counters);
    print_requests(&v->sum);
    print_histogram(&v->sum);
}

/* ---- for programs ---- */

static void json_who(const struct view *v)
{
    const struct counters *c = v->counters;
    fputs("{\n  \"mountpoint\": ", stdout);
    cli_json_string(stdout, c->mountpoint, strnlen(c->mountpoint, sizeof(c->mountpoint)));
    cli_json_text("archive", c->archive, sizeof(c->archive));
    cli_json_text("format", c->format, sizeof(c->format));
    cli_json_text("job", c->job, sizeof(c->job));
    cli_json_text("step", c->step, sizeof(c->step));
    cli_json_text("state", v->state, SIZE_MAX);
    printf(",\n  \"daemon_pid\": %d", c->daemon_pid);
    cli_json_text("version", c->version_text, sizeof(c->version_text));
    printf(",\n  \"started\": %" PRId64, c->started_realtime_sec);
    cli_json_number("uptime_seconds", v->uptime_s);
    cli_json_number("threads", c->threads);
    cli_json_number("users", atomic_load_explicit(&c->holders, memory_order_relaxed));
    cli_json_bool("private_namespace", c->private_namespace);
    cli_json_number("archive_bytes", c->archive_bytes);
    cli_json_number("entries", c->entries);
    cli_json_number("files", c->files);
    cli_json_number("total_bytes", c->total_bytes);
}

static void json_work(const struct view *v)
{
    const struct counters *c = v->counters;
    cli_json_number("read_files", v->sum.read_files);
    cli_json_number("read_bytes", v->sum.read_bytes);
    cli_json_number("ahead_files", v->sum.ahead_files);
    cli_json_number("ahead_bytes", v->sum.ahead_bytes);
    cli_json_number("ahead_requests", v->sum.ahead_requests);
    cli_json_number("read_wait_ns", v->sum.read_service_ns);
    cli_json_number("service_ns", v->sum.service_ns);
    cli_json_number("errors", v->sum.errors);
    cli_json_number("stalls", get(&c->stalls));
    cli_json_number("threads_replaced", get(&c->replacements));
    cli_json_number("source_retries", get(&c->source_retries));
    cli_json_number("source_failures", get(&c->source_failures));
    cli_json_number("source_reopened", get(&c->source_reopened));
    cli_json_text("last_error", c->last_error, sizeof(c->last_error));
    if (v->idle_ns == UINT64_MAX)
        fputs(",\n  \"last_request_ns_ago\": null", stdout);
    else
        cli_json_number("last_request_ns_ago", v->idle_ns);
    printf(",\n  \"cache\": {\"hits\": %" PRIu64 ", \"misses\": %" PRIu64
           ", \"waits\": %" PRIu64 ", \"evictions\": %" PRIu64 ", \"bytes\": %" PRIu64
           ", \"budget_bytes\": %" PRIu64 "}",
           get(&c->cache_hits), get(&c->cache_misses), get(&c->cache_waits),
           get(&c->cache_evictions), get(&c->cache_bytes), c->cache_budget_bytes);
}

static void json_stage(const struct counters *c)
{
    if (!c->stage_folder[0]) {
        fputs(",\n  \"stage\": null", stdout);
        return;
    }
    fputs(",\n  \"stage\": {\"folder\": ", stdout);
    cli_json_string(stdout, c->stage_folder, strnlen(c->stage_folder, sizeof(c->stage_folder)));
    printf(", \"bytes\": %" PRIu64 ", \"here_bytes\": %" PRIu64 ", \"stream_bytes\": %" PRIu64
           ", \"stream_ns\": %" PRIu64 ", \"demands\": %" PRIu64 ", \"demand_bytes\": %" PRIu64
           ", \"past_bytes\": %" PRIu64 ", \"failure\": %" PRIu32 "}",
           c->stage_bytes, get(&c->stage_here_bytes), get(&c->stage_stream_bytes),
           get(&c->stage_stream_ns), get(&c->stage_demands), get(&c->stage_demand_bytes),
           get(&c->stage_past_bytes),
           atomic_load_explicit(&c->stage_failure, memory_order_relaxed));
}

static void json_requests(const struct summary *sum)
{
    char name[CLI_TEXT_LEN];
    const char *separator = "";
    cli_json_number("requests_total", sum->requests_all);
    fputs(",\n  \"requests\": {", stdout);
    for (unsigned i = 0; i < COUNTERS_OPCODES; i++) {
        if (!sum->requests[i])
            continue;
        printf("%s\"%s\": %" PRIu64, separator, opcode_name(i, name), sum->requests[i]);
        separator = ", ";
    }
    putchar('}');
}

static void json_histogram(const struct summary *sum)
{
    const char *separator = "";
    fputs(",\n  \"read_wait_histogram\": [", stdout);
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++) {
        if (!sum->histogram[i])
            continue;
        printf("%s{\"from_us\": %" PRIu64 ", \"to_us\": %" PRIu64 ", \"reads\": %" PRIu64 "}",
               separator, i ? UINT64_C(1) << i : 0, UINT64_C(2) << i, sum->histogram[i]);
        separator = ", ";
    }
    putchar(']');
}

static void json_view(const struct view *v)
{
    json_who(v);
    json_work(v);
    json_stage((v)->counters);
    json_requests(&v->sum);
    json_histogram(&v->sum);
    fputs("\n}", stdout);
}

/* ---- which mount ---- */

/*
 * The absolute path of a mount point, without a look at the mount point itself: that
 * could hang, or fail because the daemon is dead. Only its parent is resolved.
 */
static int absolute_path(const char *path, char **ret_path)
{
    auto_free char *copy = strdup(path);
    if (!copy)
        return -ENOMEM;
    for (size_t len = strlen(copy); len > 1 && copy[len - 1] == '/'; len--)
        copy[len - 1] = '\0';
    char *slash = strrchr(copy, '/');
    const char *name = slash ? slash + 1 : copy;
    if (slash)
        *slash = '\0';
    auto_free char *parent = realpath(!slash ? "." : *copy ? copy : "/", NULL);
    if (!parent)
        return -errno;
    bool root = strcmp(parent, "/") == 0;
    return asprintf(ret_path, "%s/%s", root ? "" : parent, name) < 0 ? -ENOMEM : 0;
}

/* Of several that had this mount point, the one that lives; else the newest. */
static const struct slot *find_mount(const struct slot_list *list, const char *path)
{
    const struct slot *best = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const struct slot *slot = list->slots[i];
        if (strncmp(slot->counters->mountpoint, path, sizeof(slot->counters->mountpoint)) != 0)
            continue;
        bool lives = slot_daemon_lives(slot);
        bool best_lives = best && slot_daemon_lives(best);
        if (!best || (lives && !best_lives) ||
            (lives == best_lives &&
             slot->counters->started_realtime_sec > best->counters->started_realtime_sec))
            best = slot;
    }
    return best;
}

static int show_one(const struct slot_list *list, const char *mountpoint, bool json)
{
    auto_free char *path = NULL;
    int r = absolute_path(mountpoint, &path);
    if (r < 0)
        return cli_fail(mountpoint, r, NULL);
    const struct slot *slot = find_mount(list, path);
    if (!slot)
        return cli_failf(mountpoint, "no onepot mount of yours is there; 'onepot stat' lists "
                                     "all on this node");
    struct view view;
    view_take(slot, &view);
    if (json) {
        json_view(&view);
        putchar('\n');
    } else {
        print_view(&view);
    }
    return CLI_OK;
}

static int show_all(const struct slot_list *list, bool json)
{
    const char *separator = "";
    if (json)
        putchar('[');
    for (size_t i = 0; i < list->count; i++) {
        struct view view;
        view_take(list->slots[i], &view);
        fputs(separator, stdout);
        if (json)
            json_view(&view);
        else
            print_view(&view);
        separator = json ? ",\n" : "\n";
    }
    if (json)
        fputs("]\n", stdout);
    else if (list->count == 0)
        cli_note("you have no mounts on this node");
    return CLI_OK;
}

enum { OPTION_JSON = CLI_OPTION_OWN };

int command_stat(int argc, char **argv)
{
    static const struct option longs[] = {
        {"json", no_argument, NULL, OPTION_JSON},
        CLI_OPTIONS_END,
    };
    bool json = false;
    int status = CLI_GO_ON;
    while (cli_getopt(&usage, argc, argv, "", longs, &status) != -1)
        json = true; /* there is no other option */
    if (status != CLI_GO_ON)
        return status;
    if (argc - optind > 1)
        return cli_usage_error(&usage, "only one mount point can be named");

    struct slot_list list;
    int r = state_list(&list);
    if (r < 0)
        return cli_fail("the list of mounts", r, NULL);
    status = optind < argc ? show_one(&list, argv[optind], json) : show_all(&list, json);
    slot_list_free(&list);
    return status;
}
