/*
 * A report for people: one line for each subject, with its name in front for grep. Lines
 * without information are left out.
 */
#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "report.h"

static uint64_t get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static uint64_t per_second(uint64_t count, uint64_t seconds)
{
    return seconds ? count / seconds : count;
}

static void print_name(FILE *out, const char *bytes, size_t len)
{
    if (out == stdout)
        cli_print_name(out, bytes, len);
    else
        cli_print_safe(out, bytes, len);
}

static void print_text(FILE *out, const char *label, const char *text, size_t size)
{
    fprintf(out, "  %-12s ", label);
    print_name(out, text, strnlen(text, size));
    fputc('\n', out);
}

static void print_who(FILE *out, const struct report *v)
{
    const struct counters *c = v->counters;
    char uptime[CLI_TEXT_LEN] = "less than 1 s";
    if (v->uptime_s) /* whole seconds */
        cli_format_time(v->uptime_s * 1000000000u, uptime);
    print_name(out, c->mountpoint, strnlen(c->mountpoint, sizeof(c->mountpoint)));
    fputs(":\n", out);
    print_text(out, "archive", c->archive, sizeof(c->archive));
    if (c->job[0])
        print_text(out, "job", c->job, sizeof(c->job));
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
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN], e[CLI_TEXT_LEN];
    fprintf(out, "  %-12s %s file%s, %s (%s files/s, %s/s since the start)\n", "read",
            cli_format_count(v->sum.read_files, a), v->sum.read_files == 1 ? "" : "s",
            cli_format_bytes(v->sum.read_bytes, b),
            cli_format_count(per_second(v->sum.read_files, v->uptime_s), d),
            cli_format_bytes(per_second(v->sum.read_bytes, v->uptime_s), e));
    if (v->sum.ahead_requests)
        fprintf(out, "  %-12s %s files, %s of these, by %s requests of its own\n", "read ahead",
                cli_format_count(v->sum.ahead_files, a),
                cli_format_bytes(v->sum.ahead_bytes, b),
                cli_format_count(v->sum.ahead_requests, d));
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0;
}

/* Of READs: how many had to wait, and for how long. */
static void print_waits(FILE *out, const struct report *v)
{
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN], e[CLI_TEXT_LEN];
    uint64_t reads = v->sum.requests[COUNTERS_READ];
    fprintf(out, "  %-12s %s in %s reads", "waited", cli_format_time(v->sum.read_service_ns, a),
            cli_format_count(reads, b));
    if (reads)
        fprintf(out, ": half within %s, 99 %% within %s",
                cli_format_time(summary_wait_ns(&v->sum, 0.5), d),
                cli_format_time(summary_wait_ns(&v->sum, 0.99), e));
    fputc('\n', out);
    if (reads)
        fprintf(out, "  %-12s %.1f %% of reads from memory; %s waited for storage\n", "hits",
                100.0 - percent(v->sum.reads_waited, reads),
                cli_format_count(v->sum.reads_waited, a));
}

/* Of READs: where their bytes came from. */
static void print_origins(FILE *out, const struct summary *sum)
{
    static const char *const names[COUNTERS_ORIGINS] = {
        "holes",          "the block cache", "read ahead", "the page cache",
        "the local copy", "another's read",  "storage"};
    const char *separator = "";
    char a[CLI_TEXT_LEN];
    uint64_t all = 0;
    for (unsigned i = 0; i < COUNTERS_ORIGINS; i++)
        all += sum->origins[i];
    if (!all)
        return;
    fprintf(out, "  %-12s ", "reads from");
    for (unsigned i = 0; i < COUNTERS_ORIGINS; i++) {
        if (!sum->origins[i])
            continue;
        fprintf(out, "%s%s %s", separator, names[i], cli_format_count(sum->origins[i], a));
        separator = ", ";
    }
    fputc('\n', out);
}

static void print_cache(FILE *out, const struct counters *c)
{
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN], e[CLI_TEXT_LEN];
    uint64_t hits = get(&c->cache_hits), waits = get(&c->cache_waits);
    uint64_t misses = get(&c->cache_misses);
    if (hits + waits + misses == 0)
        return; /* files stored on this node need no cache of ours */
    fprintf(out, "  %-12s %s hits, %s misses, %s waits for another (%.1f %%), %s of %s\n",
            "block cache", cli_format_count(hits, a), cli_format_count(misses, b),
            cli_format_count(waits, d), percent(hits + waits, hits + waits + misses),
            cli_format_bytes(get(&c->cache_bytes), e),
            cli_format_bytes(c->cache_budget_bytes, (char[CLI_TEXT_LEN]){0}));
}

static void print_prefetched(FILE *out, const struct counters *c)
{
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN];
    if (get(&c->prefetched))
        fprintf(out, "  %-12s %s blocks, %s used since, %s dropped unused\n", "prefetched",
                cli_format_count(get(&c->prefetched), a),
                cli_format_count(get(&c->prefetched_used), b),
                cli_format_count(get(&c->prefetched_dropped), d));
}

/* Read-ahead that follows readers' requests, or a known order. */
static void print_foreseen(FILE *out, const struct counters *c)
{
    static const char *const kinds[] = {"nothing",         "pieces of large files",
                                        "names in order",  "as the archive lies",
                                        "a known shuffle", "the given order"};
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN], e[CLI_TEXT_LEN];
    uint64_t kind = get(&c->foreseen_kind);
    if (!get(&c->foreseen_requests))
        return;
    fprintf(out,
            "  %-12s %s: %s in %s requests; of files %s used (%s while on their way), %s not\n",
            "foreseen", kinds[kind < sizeof(kinds) / sizeof(kinds[0]) ? kind : 0],
            cli_format_bytes(get(&c->foreseen_bytes), a),
            cli_format_count(get(&c->foreseen_requests), b),
            cli_format_count(get(&c->foreseen_used), d),
            cli_format_count(get(&c->foreseen_late), e),
            cli_format_count(get(&c->foreseen_unused), (char[CLI_TEXT_LEN]){0}));
}

static void print_order(FILE *out, const struct counters *c)
{
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN];
    uint64_t files = get(&c->order_files);
    if (!files)
        return;
    fprintf(out, "  %-12s ", "order");
    if (!get(&c->order_reads)) {
        fprintf(out, "given, %s files; ", cli_format_count(files, a));
    } else {
        fprintf(out, "epoch %" PRIu64 " of %s files in ", get(&c->order_epoch),
                cli_format_count(files, a));
        print_name(out, c->order_folder[0] ? c->order_folder : ".",
                   c->order_folder[0] ? strnlen(c->order_folder, sizeof(c->order_folder)) : 1);
        fprintf(out, ", known after %s reads; ", cli_format_count(get(&c->order_reads), b));
    }
    if (get(&c->order_world) > 1)
        fprintf(out, "%" PRIu64 " of %" PRIu64 " ranks are here; ", get(&c->order_local),
                get(&c->order_world));
    fprintf(out, "%s reads in order\n", cli_format_count(get(&c->foreseen_in_order), b));
}

static void print_fetched(FILE *out, const struct report *v)
{
    const struct counters *c = v->counters;
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN];
    double ratio = summary_fetched_per_byte(c, &v->sum);
    if (!get(&c->source_reads) || c->stage_folder[0])
        return; /* a copy has more to report */
    fprintf(out, "  %-12s %s by %s reads of the archive", "fetched",
            cli_format_bytes(get(&c->source_bytes), a),
            cli_format_count(get(&c->source_reads), b));
    if (ratio >= 0)
        fprintf(out, ", %.2f bytes for each one that was read", ratio);
    fputc('\n', out);
}

static void print_stage(FILE *out, const struct counters *c)
{
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN], e[CLI_TEXT_LEN];
    uint64_t here = get(&c->stage_here_bytes), ns = get(&c->stage_stream_ns);
    uint64_t rate = ns ? (uint64_t)((double)get(&c->stage_stream_bytes) * 1e9 / (double)ns) : 0;
    uint32_t failure = atomic_load_explicit(&c->stage_failure, memory_order_acquire);
    uint32_t away = atomic_load(&c->stage_away);
    char reason[sizeof(c->stage_reason)];
    if (!c->stage_folder[0])
        return;
    fprintf(out, "  %-12s %s of %s (%.0f %%) in ", c->stage_unpacks ? "unpacked" : "staged",
            cli_format_bytes(here, a), cli_format_bytes(c->stage_bytes, b),
            c->stage_bytes ? 100.0 * (double)here / (double)c->stage_bytes : 100.0);
    print_name(out, c->stage_folder, strnlen(c->stage_folder, sizeof(c->stage_folder)));
    if (c->stage_unpacks)
        fprintf(out, "\n  %-12s %s/s, %s reads waited for their bytes\n", "",
                cli_format_bytes(rate, a), cli_format_count(get(&c->stage_demands), d));
    else
        fprintf(out,
                "\n  %-12s %s/s copied, %s at once for %s readers that waited, %s not kept\n",
                "", cli_format_bytes(rate, a), cli_format_bytes(get(&c->stage_demand_bytes), b),
                cli_format_count(get(&c->stage_demands), d),
                cli_format_bytes(get(&c->stage_past_bytes), e));
    snprintf(reason, sizeof(reason), "%.*s", (int)sizeof(reason) - 1, c->stage_reason);
    if (failure)
        fprintf(out, "  %-12s %s has ended early: %s\n", "",
                c->stage_unpacks ? "it" : "the copy",
                reason[0] ? reason : strerror((int)failure));
    else if (away)
        fprintf(out, "  %-12s it waits for its storage: %s\n", "", strerror((int)away));
}

static void print_trouble(FILE *out, const struct report *v)
{
    const struct counters *c = v->counters;
    char a[CLI_TEXT_LEN], b[CLI_TEXT_LEN], d[CLI_TEXT_LEN];
    uint64_t retries = get(&c->source_retries), failures = get(&c->source_failures);
    uint64_t reopened = get(&c->source_reopened);
    fprintf(out, "  %-12s %s errors, %s stalls, %s threads replaced\n", "trouble",
            cli_format_count(v->sum.errors, a), cli_format_count(get(&c->stalls), b),
            cli_format_count(get(&c->replacements), d));
    if (retries || failures || reopened)
        fprintf(out, "  %-12s %s failed reads tried again, %s given up, opened anew %s times\n",
                "storage", cli_format_count(retries, a), cli_format_count(failures, b),
                cli_format_count(reopened, d));
    if (c->last_error[0])
        print_text(out, "last error", c->last_error, sizeof(c->last_error));
    if (v->idle_ns != UINT64_MAX)
        fprintf(out, "  %-12s %s ago\n", "last request", cli_format_time(v->idle_ns, a));
}

static void print_requests(FILE *out, const struct summary *sum)
{
    char a[CLI_TEXT_LEN], name[CLI_TEXT_LEN];
    fprintf(out, "  %-12s %s\n", "requests", cli_format_count(sum->requests_all, a));
    for (unsigned i = 0; i < COUNTERS_OPCODES; i++)
        if (sum->requests[i])
            fprintf(out, "    %-16s %15s\n", report_opcode_name(i, name),
                    cli_format_count(sum->requests[i], a));
}

static void print_histogram(FILE *out, const struct summary *sum)
{
    static const char bar[] = "########################################";
    char from[CLI_TEXT_LEN], to[CLI_TEXT_LEN], count[CLI_TEXT_LEN];
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
        fprintf(out, "    %9s to %9s %15s %.*s\n",
                i ? cli_format_time((UINT64_C(1000) << i), from) : "0",
                cli_format_time(UINT64_C(2000) << i, to), cli_format_count(n, count),
                length ? length : 1, bar);
    }
}

void report_text(FILE *out, const struct report *v)
{
    print_who(out, v);
    print_work(out, v);
    print_waits(out, v);
    print_origins(out, &v->sum);
    print_cache(out, v->counters);
    print_prefetched(out, v->counters);
    print_foreseen(out, v->counters);
    print_order(out, v->counters);
    print_fetched(out, v);
    print_stage(out, v->counters);
    print_trouble(out, v);
    print_requests(out, &v->sum);
    print_histogram(out, &v->sum);
}
