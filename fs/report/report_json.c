/*
 * A report for programs. Fields are added, not renamed; onepot-stat(1) lists them.
 */
#include "json.h"
#include "report.h"

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
    json_number(j, "stream_bytes", counter_get(&c->stage_stream_bytes));
    json_number(j, "stream_ns", counter_get(&c->stage_stream_ns));
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
            json_number(j, summary_opcode_name(i, name), sum->requests[i]);
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

void report_json(struct json *j, const struct report *v)
{
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
