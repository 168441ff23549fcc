/*
 * A report for programs. Fields are added, not renamed; onepot-stat(1) lists them.
 */
#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "report.h"

static uint64_t get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void json_key(FILE *out, const char *key)
{
    fprintf(out, ",\n  \"%s\": ", key);
}

static void json_text(FILE *out, const char *key, const char *text, size_t max_len)
{
    json_key(out, key);
    cli_json_string(out, text, strnlen(text, max_len));
}

static void json_number(FILE *out, const char *key, uint64_t number)
{
    json_key(out, key);
    fprintf(out, "%" PRIu64, number);
}

static void json_bool(FILE *out, const char *key, bool value)
{
    json_key(out, key);
    fputs(value ? "true" : "false", out);
}

static void json_who(FILE *out, const struct report *v)
{
    const struct counters *c = v->counters;
    fputs("{\n  \"mountpoint\": ", out);
    cli_json_string(out, c->mountpoint, strnlen(c->mountpoint, sizeof(c->mountpoint)));
    json_text(out, "archive", c->archive, sizeof(c->archive));
    json_text(out, "format", c->format, sizeof(c->format));
    json_text(out, "job", c->job, sizeof(c->job));
    json_text(out, "step", c->step, sizeof(c->step));
    json_text(out, "state", v->state, 64);
    fprintf(out, ",\n  \"daemon_pid\": %d", c->daemon_pid);
    json_text(out, "version", c->version_text, sizeof(c->version_text));
    fprintf(out, ",\n  \"started\": %" PRId64, c->started_realtime_sec);
    json_number(out, "uptime_seconds", v->uptime_s);
    json_number(out, "threads", c->threads);
    json_number(out, "users", atomic_load_explicit(&c->holders, memory_order_relaxed));
    json_bool(out, "private_namespace", c->private_namespace);
    json_number(out, "archive_bytes", c->archive_bytes);
    json_number(out, "entries", c->entries);
    json_number(out, "files", c->files);
    json_number(out, "total_bytes", c->total_bytes);
}

static void json_work(FILE *out, const struct report *v)
{
    const struct counters *c = v->counters;
    json_number(out, "read_files", v->sum.read_files);
    json_number(out, "read_bytes", v->sum.read_bytes);
    json_number(out, "ahead_files", v->sum.ahead_files);
    json_number(out, "ahead_bytes", v->sum.ahead_bytes);
    json_number(out, "ahead_requests", v->sum.ahead_requests);
    json_number(out, "read_wait_ns", v->sum.read_service_ns);
    json_number(out, "service_ns", v->sum.service_ns);
    json_number(out, "errors", v->sum.errors);
    json_number(out, "stalls", get(&c->stalls));
    json_number(out, "threads_replaced", get(&c->replacements));
    json_number(out, "reads_waited", v->sum.reads_waited);
    json_number(out, "source_reads", get(&c->source_reads));
    json_number(out, "source_bytes", get(&c->source_bytes));
    json_number(out, "prefetched", get(&c->prefetched));
    json_number(out, "prefetched_used", get(&c->prefetched_used));
    json_number(out, "prefetched_dropped", get(&c->prefetched_dropped));
    json_number(out, "source_retries", get(&c->source_retries));
    json_number(out, "source_failures", get(&c->source_failures));
    json_number(out, "source_reopened", get(&c->source_reopened));
    json_text(out, "last_error", c->last_error, sizeof(c->last_error));
    if (v->idle_ns == UINT64_MAX)
        fputs(",\n  \"last_request_ns_ago\": null", out);
    else
        json_number(out, "last_request_ns_ago", v->idle_ns);
    fprintf(out,
            ",\n  \"cache\": {\"hits\": %" PRIu64 ", \"misses\": %" PRIu64
            ", \"waits\": %" PRIu64 ", \"evictions\": %" PRIu64 ", \"bytes\": %" PRIu64
            ", \"budget_bytes\": %" PRIu64 "}",
            get(&c->cache_hits), get(&c->cache_misses), get(&c->cache_waits),
            get(&c->cache_evictions), get(&c->cache_bytes), c->cache_budget_bytes);
}

static void json_foreseen(FILE *out, const struct counters *c)
{
    static const char *const kinds[] = {"none",    "file",       "directory",
                                        "archive", "recognised", "given"};
    uint64_t kind = get(&c->foreseen_kind);
    fprintf(out,
            ",\n  \"foreseen\": {\"kind\": \"%s\", \"requests\": %" PRIu64
            ", \"bytes\": %" PRIu64 ", \"used\": %" PRIu64 ", \"late\": %" PRIu64
            ", \"unused\": %" PRIu64 ", \"in_order\": %" PRIu64 ", \"not_seen\": %" PRIu64
            ", \"recognised\": %" PRIu64 ", \"lost\": %" PRIu64 ", \"order\": ",
            kinds[kind < sizeof(kinds) / sizeof(kinds[0]) ? kind : 0],
            get(&c->foreseen_requests), get(&c->foreseen_bytes), get(&c->foreseen_used),
            get(&c->foreseen_late), get(&c->foreseen_unused), get(&c->foreseen_in_order),
            get(&c->foreseen_lost), get(&c->orders_recognised), get(&c->orders_lost));
    if (!get(&c->order_files)) {
        fputs("null}", out);
        return;
    }
    fputs("{\"folder\": ", out);
    cli_json_string(out, c->order_folder, strnlen(c->order_folder, sizeof(c->order_folder)));
    fprintf(out,
            ", \"files\": %" PRIu64 ", \"epoch\": %" PRIu64 ", \"reads\": %" PRIu64
            ", \"world\": %" PRIu64 ", \"local\": %" PRIu64 "}}",
            get(&c->order_files), get(&c->order_epoch), get(&c->order_reads),
            get(&c->order_world), get(&c->order_local));
}

static void json_stage(FILE *out, const struct counters *c)
{
    if (!c->stage_folder[0]) {
        fputs(",\n  \"stage\": null", out);
        return;
    }
    char reason[sizeof(c->stage_reason)] = "";
    uint32_t failure = atomic_load_explicit(&c->stage_failure, memory_order_acquire);
    if (failure)
        snprintf(reason, sizeof(reason), "%.*s", (int)sizeof(reason) - 1, c->stage_reason);
    fputs(",\n  \"stage\": {\"folder\": ", out);
    cli_json_string(out, c->stage_folder, strnlen(c->stage_folder, sizeof(c->stage_folder)));
    fprintf(out,
            ", \"unpacks\": %s, \"bytes\": %" PRIu64 ", \"here_bytes\": %" PRIu64
            ", \"stream_bytes\": %" PRIu64 ", \"stream_ns\": %" PRIu64 ", \"demands\": %" PRIu64
            ", \"demand_bytes\": %" PRIu64 ", \"past_bytes\": %" PRIu64
            ", \"failure\": %" PRIu32 ", \"reason\": ",
            c->stage_unpacks ? "true" : "false", c->stage_bytes, get(&c->stage_here_bytes),
            get(&c->stage_stream_bytes), get(&c->stage_stream_ns), get(&c->stage_demands),
            get(&c->stage_demand_bytes), get(&c->stage_past_bytes), failure);
    cli_json_string(out, reason, strlen(reason));
    fprintf(out, ", \"away\": %" PRIu32 "}", atomic_load(&c->stage_away));
}

static void json_requests(FILE *out, const struct summary *sum)
{
    char name[CLI_TEXT_LEN];
    const char *separator = "";
    json_number(out, "requests_total", sum->requests_all);
    fputs(",\n  \"requests\": {", out);
    for (unsigned i = 0; i < COUNTERS_OPCODES; i++) {
        if (!sum->requests[i])
            continue;
        fprintf(out, "%s\"%s\": %" PRIu64, separator, report_opcode_name(i, name),
                sum->requests[i]);
        separator = ", ";
    }
    fputc('}', out);
}

static void json_histogram(FILE *out, const struct summary *sum)
{
    const char *separator = "";
    fputs(",\n  \"read_wait_histogram\": [", out);
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++) {
        if (!sum->histogram[i])
            continue;
        fprintf(out,
                "%s{\"from_us\": %" PRIu64 ", \"to_us\": %" PRIu64 ", \"reads\": %" PRIu64 "}",
                separator, i ? UINT64_C(1) << i : 0, UINT64_C(2) << i, sum->histogram[i]);
        separator = ", ";
    }
    fputc(']', out);
}

static void json_origins(FILE *out, const struct summary *sum)
{
    static const char *const names[COUNTERS_ORIGINS] = {
        "nothing", "block_cache", "prefetched", "page_cache", "staged", "another", "storage"};
    fputs(",\n  \"reads_from\": {", out);
    for (unsigned i = 0; i < COUNTERS_ORIGINS; i++)
        fprintf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", names[i], sum->origins[i]);
    fputc('}', out);
}

void report_json(FILE *out, const struct report *v)
{
    json_who(out, v);
    json_work(out, v);
    json_foreseen(out, v->counters);
    json_stage(out, v->counters);
    json_requests(out, &v->sum);
    json_origins(out, &v->sum);
    json_histogram(out, &v->sum);
    fputs("\n}", out);
}
