/*
 * A rate is the difference of a counter between two looks, divided by the time between them,
 * however long that was.
 */
#include "top_view.h"

#include <string.h>

#include "cli.h"

void top_sample(const struct counters *c, uint64_t at_ns, struct top_sample *ret_sample)
{
    *ret_sample = (struct top_sample){
        .at_ns = at_ns,
        .daemon_pid = c->daemon_pid,
        .daemon_start_ticks = c->daemon_start_ticks,
        .cache_hits = counter_get(&c->cache_hits) + counter_get(&c->cache_waits),
        .cache_misses = counter_get(&c->cache_misses),
        .source_reads = counter_get(&c->source_reads),
        .source_bytes = counter_get(&c->source_bytes),
        .troubles = counter_get(&c->stalls) + counter_get(&c->source_retries) +
                    counter_get(&c->source_failures),
    };
    summary_read(c, &ret_sample->sum);
}

/* The figures printed for one interval. */
struct rates {
    double seconds;
    const struct top_sample *was, *is;
};

static uint64_t top_rate(const struct rates *r, uint64_t was, uint64_t is)
{
    return is > was ? (uint64_t)((double)(is - was) / r->seconds + 0.5) : 0;
}

static uint64_t top_grown(uint64_t was, uint64_t is)
{
    return is > was ? is - was : 0;
}

static void print_now(FILE *out, const struct rates *r)
{
    const struct summary *was = &r->was->sum, *is = &r->is->sum;
    fprintf(out, "  %-12s %s files/s, %s/s, %s requests/s\n",
            r->was->at_ns ? "now" : "on average",
            cli_count(top_rate(r, was->starts, is->starts)),
            cli_bytes(top_rate(r, was->read_bytes, is->read_bytes)),
            cli_count(top_rate(r, was->requests_all, is->requests_all)));
}

/* One second of waiting per second: one reader did nothing but wait. */
static void top_print_waits(FILE *out, const struct rates *r)
{
    const struct summary *was = &r->was->sum, *is = &r->is->sum;
    uint64_t reads = top_grown(was->requests[COUNTERS_READ], is->requests[COUNTERS_READ]);
    uint64_t waited = top_grown(was->reads_waited, is->reads_waited);
    double waiting =
        (double)top_grown(was->read_service_ns, is->read_service_ns) / 1e9 / r->seconds;
    fprintf(out, "  %-12s %.2f readers on average", "waiting", waiting);
    if (reads)
        fprintf(out, "; %.1f %% of reads from memory", 100.0 - percent(waited, reads));
    fputc('\n', out);
}

static void print_archive(FILE *out, const struct rates *r)
{
    const struct top_sample *was = r->was, *is = r->is;
    if (!is->source_reads)
        return;
    fprintf(out, "  %-12s %s/s by %s reads/s of the archive\n", "fetching",
            cli_bytes(top_rate(r, was->source_bytes, is->source_bytes)),
            cli_count(top_rate(r, was->source_reads, is->source_reads)));
}

static void top_print_cache(FILE *out, const struct counters *c, const struct rates *r)
{
    uint64_t hits = top_grown(r->was->cache_hits, r->is->cache_hits);
    uint64_t misses = top_grown(r->was->cache_misses, r->is->cache_misses);
    if (r->is->cache_hits + r->is->cache_misses == 0)
        return;
    fprintf(out, "  %-12s %s of %s", "block cache", cli_bytes(counter_get(&c->cache_bytes)),
            cli_bytes(c->cache_budget_bytes));
    if (hits + misses)
        fprintf(out, "; %.1f %% hits", percent(hits, hits + misses));
    fputc('\n', out);
}

static void print_troubles(FILE *out, const struct counters *c, const struct rates *r)
{
    if (!r->is->sum.errors && !r->is->troubles)
        return;
    fprintf(out, "  %-12s %s errors, %s stalls, %s reads tried again\n", "trouble",
            cli_count(r->is->sum.errors), cli_count(counter_get(&c->stalls)),
            cli_count(counter_get(&c->source_retries)));
    if (c->last_error[0]) {
        fprintf(out, "  %-12s ", "last error");
        cli_print_safe(out, c->last_error, strnlen(c->last_error, sizeof(c->last_error)));
        fputc('\n', out);
    }
}

static void print_all(FILE *out, const struct counters *c, const struct rates *r)
{
    uint64_t up_ns = top_grown(c->started_ns, r->is->at_ns);
    fprintf(out, "  %-12s %s files, %s in %s\n", "in all", cli_count(r->is->sum.read_files),
            cli_bytes(r->is->sum.read_bytes), cli_time(up_ns));
}

void top_print(FILE *out, const struct counters *c, const char *state,
               const struct top_sample *was, const struct top_sample *is)
{
    uint64_t since = was->at_ns ? was->at_ns : c->started_ns;
    struct rates r = {.was = was, .is = is};

    r.seconds = (double)top_grown(since, is->at_ns) / 1e9;
    if (r.seconds < 1e-3)
        r.seconds = 1e-3;
    cli_print_safe(out, c->mountpoint, strnlen(c->mountpoint, sizeof(c->mountpoint)));
    fprintf(out, ": %s\n  %-12s ", state, "archive");
    cli_print_safe(out, c->archive, strnlen(c->archive, sizeof(c->archive)));
    fprintf(out, "\n  %-12s ", "job");
    cli_print_safe(out, c->job[0] ? c->job : "none",
                   strnlen(c->job[0] ? c->job : "none", sizeof(c->job)));
    if (c->step[0]) {
        fputs(", step ", out);
        cli_print_safe(out, c->step, strnlen(c->step, sizeof(c->step)));
    }
    fputc('\n', out);
    print_now(out, &r);
    top_print_waits(out, &r);
    print_archive(out, &r);
    top_print_cache(out, c, &r);
    print_all(out, c, &r);
    print_troubles(out, c, &r);
}
