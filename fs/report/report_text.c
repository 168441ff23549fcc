/*
 * A report for people: one line for each subject, with its name in front for grep. Lines
 * without information are left out.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "report.h"

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
                cli_time(summary_wait_ns(&v->sum, 0.5)),
                cli_time(summary_wait_ns(&v->sum, 0.99)));
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
    uint64_t here = counter_get(&c->stage_here_bytes), ns = counter_get(&c->stage_stream_ns);
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
                cli_rate(counter_get(&c->stage_stream_bytes), ns),
                cli_count(counter_get(&c->stage_demands)));
    else
        fprintf(out,
                "\n  %-12s %s/s copied, %s at once for %s readers that waited, %s not kept\n",
                "", cli_rate(counter_get(&c->stage_stream_bytes), ns),
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
            fprintf(out, "    %-16s %15s\n", summary_opcode_name(i, name),
                    cli_count(sum->requests[i]));
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

void report_text(FILE *out, const struct report *v)
{
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
