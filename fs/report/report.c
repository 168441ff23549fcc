/*
 * A report in its two forms, and the mount that it is of. The one for people has one line for
 * each subject, with its name in front for grep; lines without information are left out. To the
 * one for programs fields are added, not renamed; onepot-stat(1) lists them.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"
#include "json.h"
#include "mountinfo.h"
#include "process.h"
#include "report.h"

/* A mount at one moment; single counters continue to change while it is printed. */
struct report {
    const struct counters *counters;
    struct summary sum;
    const char *state;
    uint64_t uptime_s;
    uint64_t idle_ns; /* since the last request; UINT64_MAX: none yet */
};

/*
 * "serving" and the like: the state in the counters, which a daemon that is gone may have left.
 */
static const char *report_state_name(const struct counters *c)
{
    static const char *const names[] = {[MOUNT_STARTING] = "starting",
                                        [MOUNT_SERVING] = "serving",
                                        [MOUNT_DRAINING] = "draining"};
    uint32_t state = atomic_load_explicit(&c->state, memory_order_relaxed);
    return state < MOUNT_ENDED ? names[state] : "ended";
}

/* Counters continue to change while they are printed. */
static void report_take(const struct counters *c, const char *state, struct report *ret_report)
{
    uint64_t now = now_ns();
    int64_t today = (int64_t)time(NULL), started = c->started_realtime_sec;

    ret_report->counters = c;
    ret_report->state = state ? state : report_state_name(c);
    ret_report->uptime_s = today > started ? (uint64_t)(today - started) : 0;
    summary_read(c, &ret_report->sum);
    uint64_t last_ns = ret_report->sum.last_request_ns;
    ret_report->idle_ns = !last_ns ? UINT64_MAX : now > last_ns ? now - last_ns : 0;
}

uint64_t report_wait_ns(const struct summary *sum, double share)
{
    uint64_t all = 0, so_far = 0;
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++)
        all += sum->histogram[i];
    for (unsigned i = 0; all && i < COUNTERS_BUCKETS; i++) {
        so_far += sum->histogram[i];
        if ((double)so_far >= share * (double)all)
            return UINT64_C(2000) << i;
    }
    return 0;
}

/*
 * Numbers are the kernel's (linux/fuse.h); 0 stands for newer ones. The requests that write
 * have no names: the kernel sends none of them to a mount that is read-only.
 */
static const char *const opcode_names[COUNTERS_OPCODES] = {
    [0] = "OTHER",         [1] = "LOOKUP",       [2] = "FORGET",     [3] = "GETATTR",
    [5] = "READLINK",      [14] = "OPEN",        [15] = "READ",      [17] = "STATFS",
    [18] = "RELEASE",      [20] = "FSYNC",       [22] = "GETXATTR",  [23] = "LISTXATTR",
    [25] = "FLUSH",        [26] = "INIT",        [27] = "OPENDIR",   [28] = "READDIR",
    [29] = "RELEASEDIR",   [30] = "FSYNCDIR",    [31] = "GETLK",     [32] = "SETLK",
    [33] = "SETLKW",       [34] = "ACCESS",      [36] = "INTERRUPT", [37] = "BMAP",
    [38] = "DESTROY",      [39] = "IOCTL",       [40] = "POLL",      [41] = "NOTIFY_REPLY",
    [42] = "BATCH_FORGET", [44] = "READDIRPLUS", [46] = "LSEEK",     [50] = "SYNCFS",
    [52] = "STATX",
};

/* "LOOKUP" for a FUSE opcode; `buf` is used for opcodes without a name. */
static const char *opcode_name(unsigned opcode, char buf[CLI_TEXT_LEN])
{
    if (opcode < COUNTERS_OPCODES && opcode_names[opcode])
        return opcode_names[opcode];
    snprintf(buf, CLI_TEXT_LEN, "OPCODE_%u", opcode);
    return buf;
}

/* ---- for people ---- */

/* A count per second of the mount's life; less than a second counts as one. */
static uint64_t per_uptime(const struct report *v, uint64_t count)
{
    return count / (v->uptime_s ? v->uptime_s : 1);
}

static void report_print_text(FILE *out, const char *label, const char *text, size_t size)
{
    fprintf(out, "  %-12s ", label);
    cli_print_safe(out, text, strnlen(text, size));
    fputc('\n', out);
}

static void print_mount(FILE *out, const struct report *v)
{
    const struct counters *c = v->counters;
    const char *uptime = v->uptime_s ? cli_time(v->uptime_s * 1000000000u) : "less than 1 s";
    cli_print_safe(out, c->mountpoint, strnlen(c->mountpoint, sizeof(c->mountpoint)));
    fputs(":\n", out);
    report_print_text(out, "archive", c->archive, sizeof(c->archive));
    if (c->archives > 1)
        fprintf(out, "  %-12s %s as one tree\n", "archives", cli_count(c->archives));
    if (c->digest[0])
        report_print_text(out, "digest", c->digest, sizeof(c->digest));
    if (c->job[0])
        report_print_text(out, "job", c->job, sizeof(c->job));
    uint32_t users = atomic_load_explicit(&c->holders, memory_order_relaxed);
    fprintf(out, "  %-12s %s, process %d, up %s, %" PRIu32 " user%s%s\n", "daemon", v->state,
            c->daemon_pid, uptime, users, users == 1 ? "" : "s",
            c->private_namespace ? ", visible to its command alone" : "");
    if (strcmp(v->state, "dead") == 0)
        fprintf(out, "  %-12s what is left of it goes with: onepot umount\n", "");
    if (strcmp(v->state, "stopped") == 0)
        fprintf(out, "  %-12s its readers wait until it goes on: kill -CONT %d\n", "",
                c->daemon_pid);
}

static void print_work(FILE *out, const struct report *v)
{
    fprintf(out, "  %-12s %s file%s, %s (%s files/s, %s/s since the start)\n", "read",
            cli_count(v->sum.read_files), v->sum.read_files == 1 ? "" : "s",
            cli_bytes(v->sum.read_bytes), cli_count(per_uptime(v, v->sum.starts)),
            cli_bytes(per_uptime(v, v->sum.read_bytes)));
    if (v->sum.ahead_requests)
        fprintf(out, "  %-12s %s files, %s, by %s requests of its own\n", "read ahead",
                cli_count(v->sum.ahead_files), cli_bytes(v->sum.ahead_bytes),
                cli_count(v->sum.ahead_requests));
}

static void print_direct(FILE *out, const struct report *v)
{
    if (v->sum.direct_files || v->sum.direct_bytes)
        fprintf(out, "  %-12s %s files, %s of these, without the daemon (libonepot-io.so)\n",
                "by readers", cli_count(v->sum.direct_files), cli_bytes(v->sum.direct_bytes));
}

/* How many READs had to wait, and for how long. */
static void report_print_waits(FILE *out, const struct report *v)
{
    uint64_t reads = v->sum.requests[COUNTERS_READ];
    fprintf(out, "  %-12s %s in %s reads", "waited", cli_time(v->sum.read_service_ns),
            cli_count(reads));
    if (reads)
        fprintf(out, ": half within %s, 99 %% within %s",
                cli_time(report_wait_ns(&v->sum, 0.5)),
                cli_time(report_wait_ns(&v->sum, 0.99)));
    fputc('\n', out);
    if (reads)
        fprintf(out, "  %-12s %.1f %% of reads from memory; %s waited for storage\n", "hits",
                100.0 - percent(v->sum.reads_waited, reads), cli_count(v->sum.reads_waited));
}

/* Where the bytes of READs came from. */
static void print_origins(FILE *out, const struct summary *sum)
{
    static const char *const names[COUNTERS_ORIGINS] = {
        "holes",          "the block cache", "read ahead", "the page cache",
        "the local copy", "another's read",  "storage"};
    const char *separator = "";
    uint64_t all = 0;
    for (unsigned i = 0; i < COUNTERS_ORIGINS; i++)
        all += sum->origins[i];
    if (!all)
        return;
    fprintf(out, "  %-12s ", "reads from");
    for (unsigned i = 0; i < COUNTERS_ORIGINS; i++) {
        if (!sum->origins[i])
            continue;
        fprintf(out, "%s%s %s", separator, names[i], cli_count(sum->origins[i]));
        separator = ", ";
    }
    fputc('\n', out);
}

static void report_print_cache(FILE *out, const struct counters *c)
{
    uint64_t hits = counter_get(&c->cache_hits), waits = counter_get(&c->cache_waits);
    uint64_t misses = counter_get(&c->cache_misses);
    if (hits + waits + misses == 0)
        return; /* files stored on this node need no cache of ours */
    fprintf(out, "  %-12s %s hits, %s misses, %s waits for another (%.1f %%), %s of %s\n",
            "block cache", cli_count(hits), cli_count(misses), cli_count(waits),
            percent(hits + waits, hits + waits + misses),
            cli_bytes(counter_get(&c->cache_bytes)), cli_bytes(c->cache_budget_bytes));
}

static void print_prefetched(FILE *out, const struct counters *c)
{
    if (counter_get(&c->prefetched))
        fprintf(out, "  %-12s %s blocks, %s used since, %s dropped unused\n", "prefetched",
                cli_count(counter_get(&c->prefetched)),
                cli_count(counter_get(&c->prefetched_used)),
                cli_count(counter_get(&c->prefetched_dropped)));
}

/* Read-ahead that follows readers' requests, or a known order. */
static void print_foreseen(FILE *out, const struct counters *c)
{
    static const char *const kinds[] = {"nothing",         "pieces of large files",
                                        "names in order",  "as the archive lies",
                                        "a known shuffle", "the given order"};
    uint64_t kind = counter_get(&c->foreseen_kind);
    if (!counter_get(&c->foreseen_requests))
        return;
    fprintf(out,
            "  %-12s %s: %s in %s requests; of files %s used (%s while on their way), %s not\n",
            "foreseen", kinds[kind < sizeof(kinds) / sizeof(kinds[0]) ? kind : 0],
            cli_bytes(counter_get(&c->foreseen_bytes)),
            cli_count(counter_get(&c->foreseen_requests)),
            cli_count(counter_get(&c->foreseen_used)),
            cli_count(counter_get(&c->foreseen_late)),
            cli_count(counter_get(&c->foreseen_unused)));
}

static void report_print_order(FILE *out, const struct counters *c)
{
    uint64_t files = counter_get(&c->order_files);
    if (!files)
        return;
    fprintf(out, "  %-12s ", "order");
    if (!counter_get(&c->order_reads)) {
        fprintf(out, "given, %s files; ", cli_count(files));
    } else {
        fprintf(out, "epoch %" PRIu64 " of %s files in ", counter_get(&c->order_epoch),
                cli_count(files));
        cli_print_safe(out, c->order_folder[0] ? c->order_folder : ".",
                       c->order_folder[0] ? strnlen(c->order_folder, sizeof(c->order_folder))
                                          : 1);
        fprintf(out, ", known after %s reads; ", cli_count(counter_get(&c->order_reads)));
    }
    if (counter_get(&c->order_world) > 1)
        fprintf(out, "%" PRIu64 " of %" PRIu64 " ranks are here; ",
                counter_get(&c->order_local), counter_get(&c->order_world));
    fprintf(out, "%s reads in order\n", cli_count(counter_get(&c->foreseen_in_order)));
}

/* Bytes read from the archive for each byte sent to readers; negative: unknown. */
static double fetched_per_byte(const struct counters *counters, const struct summary *sum)
{
    uint64_t fetched = counter_get(&counters->source_bytes);
    return fetched && sum->sent_bytes ? (double)fetched / (double)sum->sent_bytes : -1;
}

static void print_fetched(FILE *out, const struct report *v)
{
    const struct counters *c = v->counters;
    double ratio = fetched_per_byte(c, &v->sum);
    if (!counter_get(&c->source_reads) || c->stage_folder[0])
        return; /* a copy has more to report */
    fprintf(out, "  %-12s %s by %s reads of the archive", "fetched",
            cli_bytes(counter_get(&c->source_bytes)), cli_count(counter_get(&c->source_reads)));
    if (ratio >= 0)
        fprintf(out, ", %.2f bytes for each one that was read", ratio);
    fputc('\n', out);
}

static void print_storage(FILE *out, const struct counters *c)
{
    if (counter_get(&c->storage_requests))
        fprintf(out, "  %-12s %s requests, %s\n", "to storage",
                cli_count(counter_get(&c->storage_requests)),
                cli_bytes(counter_get(&c->storage_bytes)));
}

static void print_stage(FILE *out, const struct counters *c)
{
    uint64_t here = counter_get(&c->stage_here_bytes), ns = counter_get(&c->stage_copying_ns);
    uint32_t failure = atomic_load_explicit(&c->stage_failure, memory_order_acquire);
    uint32_t away = atomic_load(&c->stage_away);
    if (!c->stage_folder[0])
        return;
    fprintf(out, "  %-12s %s of %s (%.0f %%) in ", c->stage_unpacks ? "unpacked" : "staged",
            cli_bytes(here), cli_bytes(c->stage_bytes),
            c->stage_bytes ? 100.0 * (double)here / (double)c->stage_bytes : 100.0);
    cli_print_safe(out, c->stage_folder, strnlen(c->stage_folder, sizeof(c->stage_folder)));
    if (c->stage_unpacks)
        fprintf(out, "\n  %-12s %s/s, %s reads waited for their bytes\n", "",
                cli_rate(counter_get(&c->stage_copied_bytes), ns),
                cli_count(counter_get(&c->stage_demands)));
    else
        fprintf(out,
                "\n  %-12s %s/s copied, %s at once for %s readers that waited, %s not kept\n",
                "", cli_rate(counter_get(&c->stage_copied_bytes), ns),
                cli_bytes(counter_get(&c->stage_demand_bytes)),
                cli_count(counter_get(&c->stage_demands)),
                cli_bytes(counter_get(&c->stage_past_bytes)));
    if (failure == ESTALE && !c->stage_unpacks)
        fprintf(
            out,
            "  %-12s the archive was changed while it was copied, so the copy may have bytes "
            "of both: mount it anew\n",
            "");
    else if (failure) {
        const char *why = c->stage_reason[0] ? c->stage_reason : fault_errno((int)failure);
        fprintf(out, "  %-12s %s has ended early: ", "", c->stage_unpacks ? "it" : "the copy");
        cli_print_safe(out, why, strnlen(why, sizeof(c->stage_reason)));
        fputc('\n', out);
    } else if (away)
        fprintf(out, "  %-12s it waits for its storage: %s\n", "", fault_errno((int)away));
}

static void print_trouble(FILE *out, const struct report *v)
{
    const struct counters *c = v->counters;
    uint64_t retries = counter_get(&c->source_retries),
             failures = counter_get(&c->source_failures);
    uint64_t reopened = counter_get(&c->source_reopened);
    fprintf(out, "  %-12s %s errors, %s stalls, %s threads replaced\n", "trouble",
            cli_count(v->sum.errors), cli_count(counter_get(&c->stalls)),
            cli_count(counter_get(&c->replacements)));
    if (retries || failures || reopened)
        fprintf(out, "  %-12s %s failed reads tried again, %s given up, opened anew %s times\n",
                "storage", cli_count(retries), cli_count(failures), cli_count(reopened));
    if (summary_trouble(c))
        report_print_text(out, "reads fail", summary_trouble(c), sizeof(c->trouble[0]));
    if (c->last_error[0])
        report_print_text(out, "last error", c->last_error, sizeof(c->last_error));
    if (v->idle_ns != UINT64_MAX)
        fprintf(out, "  %-12s %s ago\n", "last request", cli_time(v->idle_ns));
}

static void print_requests(FILE *out, const struct summary *sum)
{
    char name[CLI_TEXT_LEN];
    fprintf(out, "  %-12s %s\n", "requests", cli_count(sum->requests_all));
    for (unsigned i = 0; i < COUNTERS_OPCODES; i++)
        if (sum->requests[i])
            fprintf(out, "    %-16s %15s\n", opcode_name(i, name), cli_count(sum->requests[i]));
}

static void report_print_histogram(FILE *out, const struct summary *sum)
{
    static const char bar[] = "########################################";
    uint64_t most = 0;
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++)
        most = sum->histogram[i] > most ? sum->histogram[i] : most;
    if (!most)
        return;
    fprintf(out, "  %-12s\n", "time that a read waited");
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++) {
        uint64_t n = sum->histogram[i];
        if (!n)
            continue;
        int length = (int)((double)n / (double)most * (double)(sizeof(bar) - 1));
        fprintf(out, "    %9s to %9s %15s %.*s\n", i ? cli_time((UINT64_C(1000) << i)) : "0",
                cli_time(UINT64_C(2000) << i), cli_count(n), length ? length : 1, bar);
    }
}

/* Nobody counts what is read of plain files. */
static void print_extracted(FILE *out, const struct counters *c)
{
    uint64_t ready = counter_get(&c->extract_ready);
    fprintf(out, "  %-12s ", "extracted");
    if (ready < c->extract_bytes)
        fprintf(out, "%s of %s\n", cli_bytes(ready), cli_bytes(c->extract_bytes));
    else
        fprintf(out, "%s files, %s, which take %s; in %s\n", cli_count(c->files),
                cli_bytes(c->total_bytes), cli_bytes(c->extract_bytes),
                cli_time(c->extract_ns));
}

void report_text(FILE *out, const struct counters *c, const char *state)
{
    struct report report, *const v = &report;

    report_take(c, state, v);
    print_mount(out, v);
    if (v->counters->extracted) {
        print_extracted(out, v->counters);
        return;
    }
    print_work(out, v);
    print_direct(out, v);
    report_print_waits(out, v);
    print_origins(out, &v->sum);
    report_print_cache(out, v->counters);
    print_prefetched(out, v->counters);
    print_foreseen(out, v->counters);
    report_print_order(out, v->counters);
    print_fetched(out, v);
    print_stage(out, v->counters);
    print_storage(out, v->counters);
    print_trouble(out, v);
    print_requests(out, &v->sum);
    report_print_histogram(out, &v->sum);
}

/* ---- for programs ---- */

/* A union has as many names as the counters hold; one archive has its own. */
static void json_archives(struct json *j, const struct counters *c)
{
    json_open(j, "archives", '[');
    if (c->archive_names_bytes == 0)
        json_text(j, NULL, c->archive, sizeof(c->archive));
    for (size_t at = 0, len; at < c->archive_names_bytes; at += len + 1) {
        len = strnlen(c->archive_names + at, c->archive_names_bytes - at);
        json_text(j, NULL, c->archive_names + at, len);
    }
    json_close(j, ']');
}

static void json_mount(struct json *j, const struct report *v)
{
    const struct counters *c = v->counters;
    json_text(j, "mountpoint", c->mountpoint, sizeof(c->mountpoint));
    json_text(j, "archive", c->archive, sizeof(c->archive));
    json_number(j, "archive_count", c->archives);
    json_archives(j, c);
    json_text(j, "format", c->format, sizeof(c->format));
    json_text(j, "job", c->job, sizeof(c->job));
    json_text(j, "step", c->step, sizeof(c->step));
    json_text(j, "state", v->state, SIZE_MAX);
    json_signed(j, "daemon_pid", c->daemon_pid);
    json_text(j, "version", c->version_text, sizeof(c->version_text));
    json_signed(j, "started", c->started_realtime_sec);
    json_number(j, "uptime_seconds", v->uptime_s);
    json_number(j, "threads", c->threads);
    json_number(j, "users", atomic_load_explicit(&c->holders, memory_order_relaxed));
    json_bool(j, "private_namespace", c->private_namespace);
    json_number(j, "archive_bytes", c->archive_bytes);
    json_number(j, "entries", c->entries);
    json_number(j, "files", c->files);
    json_number(j, "total_bytes", c->total_bytes);
    json_text(j, "digest", c->digest[0] ? c->digest : NULL, sizeof(c->digest));
}

static void json_cache(struct json *j, const struct counters *c)
{
    json_open(j, "cache", '{');
    json_number(j, "hits", counter_get(&c->cache_hits));
    json_number(j, "misses", counter_get(&c->cache_misses));
    json_number(j, "waits", counter_get(&c->cache_waits));
    json_number(j, "evictions", counter_get(&c->cache_evictions));
    json_number(j, "bytes", counter_get(&c->cache_bytes));
    json_number(j, "budget_bytes", c->cache_budget_bytes);
    json_close(j, '}');
}

static void json_work(struct json *j, const struct report *v)
{
    const struct counters *c = v->counters;
    json_number(j, "read_files", v->sum.read_files);
    json_number(j, "read_bytes", v->sum.read_bytes);
    json_number(j, "direct_files", v->sum.direct_files);
    json_number(j, "direct_bytes", v->sum.direct_bytes);
    json_number(j, "ahead_files", v->sum.ahead_files);
    json_number(j, "ahead_bytes", v->sum.ahead_bytes);
    json_number(j, "ahead_requests", v->sum.ahead_requests);
    json_number(j, "read_wait_ns", v->sum.read_service_ns);
    json_number(j, "service_ns", v->sum.service_ns);
    json_number(j, "errors", v->sum.errors);
    json_number(j, "stalls", counter_get(&c->stalls));
    json_number(j, "threads_replaced", counter_get(&c->replacements));
    json_number(j, "reads_waited", v->sum.reads_waited);
    json_number(j, "source_reads", counter_get(&c->source_reads));
    json_number(j, "source_bytes", counter_get(&c->source_bytes));
    json_number(j, "storage_requests", counter_get(&c->storage_requests));
    json_number(j, "storage_bytes", counter_get(&c->storage_bytes));
    json_number(j, "prefetched", counter_get(&c->prefetched));
    json_number(j, "prefetched_used", counter_get(&c->prefetched_used));
    json_number(j, "prefetched_dropped", counter_get(&c->prefetched_dropped));
    json_number(j, "source_retries", counter_get(&c->source_retries));
    json_number(j, "source_failures", counter_get(&c->source_failures));
    json_number(j, "source_reopened", counter_get(&c->source_reopened));
    json_text(j, "last_error", c->last_error, sizeof(c->last_error));
    if (summary_trouble(c))
        json_text(j, "reads_fail", summary_trouble(c), sizeof(c->trouble[0]));
    else
        json_null(j, "reads_fail");
    if (v->idle_ns == UINT64_MAX)
        json_null(j, "last_request_ns_ago");
    else
        json_number(j, "last_request_ns_ago", v->idle_ns);
}

static void json_order(struct json *j, const struct counters *c)
{
    if (!counter_get(&c->order_files)) {
        json_null(j, "order");
        return;
    }
    json_open(j, "order", '{');
    json_text(j, "folder", c->order_folder, sizeof(c->order_folder));
    json_number(j, "files", counter_get(&c->order_files));
    json_number(j, "epoch", counter_get(&c->order_epoch));
    json_number(j, "reads", counter_get(&c->order_reads));
    json_number(j, "world", counter_get(&c->order_world));
    json_number(j, "local", counter_get(&c->order_local));
    json_close(j, '}');
}

static void json_foreseen(struct json *j, const struct counters *c)
{
    static const char *const kinds[] = {"none",    "file",       "directory",
                                        "archive", "recognised", "given"};
    uint64_t kind = counter_get(&c->foreseen_kind);
    json_open(j, "foreseen", '{');
    json_text(j, "kind", kinds[kind < sizeof(kinds) / sizeof(kinds[0]) ? kind : 0], SIZE_MAX);
    json_number(j, "requests", counter_get(&c->foreseen_requests));
    json_number(j, "bytes", counter_get(&c->foreseen_bytes));
    json_number(j, "used", counter_get(&c->foreseen_used));
    json_number(j, "late", counter_get(&c->foreseen_late));
    json_number(j, "unused", counter_get(&c->foreseen_unused));
    json_number(j, "in_order", counter_get(&c->foreseen_in_order));
    json_number(j, "not_seen", counter_get(&c->foreseen_lost));
    json_number(j, "recognised", counter_get(&c->orders_recognised));
    json_number(j, "lost", counter_get(&c->orders_lost));
    json_order(j, c);
    json_close(j, '}');
}

static void json_extracted(struct json *j, const struct counters *c)
{
    if (!c->extracted) {
        json_null(j, "extracted");
        return;
    }
    json_open(j, "extracted", '{');
    json_number(j, "bytes", c->extract_bytes);
    json_number(j, "ready_bytes", counter_get(&c->extract_ready));
    json_number(j, "extract_ns", c->extract_ns);
    json_close(j, '}');
}

static void json_stage(struct json *j, const struct counters *c)
{
    if (!c->stage_folder[0]) {
        json_null(j, "stage");
        return;
    }
    uint32_t failure = atomic_load_explicit(&c->stage_failure, memory_order_acquire);
    json_open(j, "stage", '{');
    json_text(j, "folder", c->stage_folder, sizeof(c->stage_folder));
    json_bool(j, "unpacks", c->stage_unpacks);
    json_number(j, "bytes", c->stage_bytes);
    json_number(j, "here_bytes", counter_get(&c->stage_here_bytes));
    json_number(j, "stream_bytes", counter_get(&c->stage_copied_bytes));
    json_number(j, "stream_ns", counter_get(&c->stage_copying_ns));
    json_number(j, "demands", counter_get(&c->stage_demands));
    json_number(j, "demand_bytes", counter_get(&c->stage_demand_bytes));
    json_number(j, "past_bytes", counter_get(&c->stage_past_bytes));
    json_number(j, "failure", failure);
    json_text(j, "reason", failure ? c->stage_reason : "", sizeof(c->stage_reason));
    json_number(j, "away", atomic_load(&c->stage_away));
    json_close(j, '}');
}

static void json_requests(struct json *j, const struct summary *sum)
{
    char name[CLI_TEXT_LEN];
    json_number(j, "requests_total", sum->requests_all);
    json_open(j, "requests", '{');
    for (unsigned i = 0; i < COUNTERS_OPCODES; i++)
        if (sum->requests[i])
            json_number(j, opcode_name(i, name), sum->requests[i]);
    json_close(j, '}');
}

static void json_origins(struct json *j, const struct summary *sum)
{
    static const char *const names[COUNTERS_ORIGINS] = {
        "nothing", "block_cache", "prefetched", "page_cache", "staged", "another", "storage"};
    json_open(j, "reads_from", '{');
    for (unsigned i = 0; i < COUNTERS_ORIGINS; i++)
        json_number(j, names[i], sum->origins[i]);
    json_close(j, '}');
}

static void json_histogram(struct json *j, const struct summary *sum)
{
    json_open(j, "read_wait_histogram", '[');
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++) {
        if (!sum->histogram[i])
            continue;
        json_open(j, NULL, '{');
        json_number(j, "from_us", i ? UINT64_C(1) << i : 0);
        json_number(j, "to_us", UINT64_C(2) << i);
        json_number(j, "reads", sum->histogram[i]);
        json_close(j, '}');
    }
    json_close(j, ']');
}

void report_json(struct json *j, const struct counters *c, const char *state)
{
    struct report report, *const v = &report;

    report_take(c, state, v);
    json_open(j, NULL, '{');
    json_mount(j, v);
    json_work(j, v);
    json_cache(j, v->counters);
    json_foreseen(j, v->counters);
    json_stage(j, v->counters);
    json_extracted(j, v->counters);
    json_requests(j, &v->sum);
    json_origins(j, &v->sum);
    json_histogram(j, &v->sum);
    json_close(j, '}');
}

/* ---- either, in memory ---- */

int report_render(const struct counters *counters, bool json, char **ret_text, size_t *ret_len)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);

    if (!out)
        return -ENOMEM;
    if (json)
        report_json(&(struct json){.out = out, .lines = 1}, counters, NULL);
    else
        report_text(out, counters, NULL);
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(text);
        return -ENOMEM;
    }
    *ret_text = text;
    *ret_len = len;
    return 0;
}

/* ---- the mount that a path means ---- */

/*
 * Finds a mount by its mount point without touching the mount point.
 */

/*
 * How good a guess a mount is: better if it lives, and if it is mounted where we see it. Root's
 * own comes before another user's, who may claim anything.
 */
static int find_mount_rank(const struct slot *slot)
{
    return 4 * (slot->uid == geteuid()) + 2 * slot_daemon_lives(slot) + slot_is_mounted(slot);
}

/* The best guess among mounts that had this mount point; else the newest. */
static const struct slot *best_of(const struct slot_list *list, const char *path)
{
    const struct slot *best = NULL;
    for (size_t i = 0; i < list->count; i++) {
        const struct slot *slot = list->at[i];
        if (strncmp(slot->counters->mountpoint, path, sizeof(slot->counters->mountpoint)) != 0)
            continue;
        int better = best ? find_mount_rank(slot) - find_mount_rank(best) : 1;
        if (better > 0 || (better == 0 && slot->counters->started_realtime_sec >
                                              best->counters->started_realtime_sec))
            best = slot;
    }
    return best;
}

/* Is ".." the first component after a mount point? */
static bool leads_out(const char *rest)
{
    while (*rest == '/' || (rest[0] == '.' && (rest[1] == '/' || !rest[1])))
        rest++;
    return rest[0] == '.' && rest[1] == '.' && (rest[2] == '/' || !rest[2]);
}

static bool absolute_text(const char *given, char path[PATH_MAX])
{
    char folder[PATH_MAX];

    if (given[0] == '/')
        return snprintf(path, PATH_MAX, "%s", given) < PATH_MAX;
    return getcwd(folder, sizeof(folder)) &&
           snprintf(path, PATH_MAX, "%s/%s", folder, given) < PATH_MAX;
}

struct slot *find_mount_around(const struct slot_list *list, const char *given,
                               char path[PATH_MAX], const char **rest)
{
    struct slot *found = NULL;
    size_t longest = 0;

    if (!absolute_text(given, path))
        return NULL;
    for (size_t i = 0; i < list->count; i++) {
        const char *mountpoint = list->at[i]->counters->mountpoint;
        size_t len = strlen(mountpoint);
        if ((len > longest || (len == longest && slot_is_mounted(list->at[i]))) &&
            strncmp(path, mountpoint, len) == 0 && (path[len] == '/' || path[len] == '\0') &&
            !leads_out(path + len) && slot_is_current(list->at[i])) {
            found = list->at[i];
            longest = len;
        }
    }
    *rest = path + longest;
    return found;
}

int find_mount(const struct slot_list *list, const char *mountpoint,
               const struct slot **ret_slot)
{
    char path[PATH_MAX];
    const char *rest;
    const struct slot *around = find_mount_around(list, mountpoint, path, &rest);
    if (around && rest[strspn(rest, "/.")] && !strstr(rest, "/..") && slot_is_mounted(around))
        return -ENOENT; /* a look at what lies in it could hang */
    int r = mountinfo_resolve(mountpoint, path);
    if (r < 0)
        return r;
    *ret_slot = best_of(list, path);
    return *ret_slot ? 0 : -ENOENT;
}

int find_named_mount(const struct slot_list *list, const char *mountpoint,
                     const struct slot **ret_slot)
{
    int r = find_mount(list, mountpoint, ret_slot);
    if (r == -ENOENT)
        return cli_failf(
            mountpoint,
            "you have no onepot mount there; 'onepot stat' lists yours on this node");
    return r < 0 ? cli_fail(mountpoint, r, NULL) : CLI_OK;
}

const char *find_mount_state(const struct slot *slot)
{
    const struct counters *c = slot->counters;
    if (!slot_daemon_lives(slot))
        return atomic_load(&c->state) == MOUNT_ENDED ? report_state_name(c) : "dead";
    if (process_is_stopped(c->daemon_pid, c->daemon_start_ticks))
        return "stopped";
    return report_state_name(c);
}
