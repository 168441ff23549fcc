/*
 * Adds up the slots of the worker threads while these keep writing. Each number is right for
 * some moment, but no two for the same one, which is good enough for people.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "format.h"
#include "reader.h"
#include "summary.h"

static void add_slot(const struct counter_slot *slot, struct summary *sum)
{
    for (unsigned i = 0; i < COUNTERS_OPCODES; i++) {
        uint64_t n = counter_get(&slot->requests[i]);
        sum->requests[i] += n;
        sum->requests_all += n;
    }
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++)
        sum->histogram[i] += counter_get(&slot->histogram[i]);
    for (unsigned i = 0; i < COUNTERS_ORIGINS; i++)
        sum->origins[i] += counter_get(&slot->origins[i]);
    sum->reads_waited += counter_get(&slot->reads_waited);
    sum->errors += counter_get(&slot->errors);
    sum->read_bytes += counter_get(&slot->read_bytes) + counter_get(&slot->ahead_bytes);
    sum->read_files += counter_get(&slot->read_files) + counter_get(&slot->ahead_files);
    sum->ahead_requests += counter_get(&slot->ahead_requests);
    sum->ahead_files += counter_get(&slot->ahead_files);
    sum->ahead_bytes += counter_get(&slot->ahead_bytes);
    sum->service_ns += counter_get(&slot->service_ns);
    sum->read_service_ns += counter_get(&slot->read_service_ns);
    uint64_t last = counter_get(&slot->last_request_ns);
    if (last > sum->last_request_ns)
        sum->last_request_ns = last;
}

/* Bytes that readers took from the archive themselves count as read; they waited as long. */
static void add_direct(const struct counters *counters, struct summary *sum)
{
    sum->direct_bytes = counter_get(&counters->direct_bytes);
    sum->direct_files = counter_get(&counters->direct_files);
    sum->read_bytes += sum->direct_bytes;
    sum->read_files += sum->direct_files;
    sum->read_service_ns += counter_get(&counters->direct_ns);
    uint64_t last = counter_get(&counters->direct_last_ns);
    if (last > sum->last_request_ns)
        sum->last_request_ns = last;
}

void summary_read(const struct counters *counters, struct summary *ret_summary)
{
    memset(ret_summary, 0, sizeof(*ret_summary));
    for (unsigned i = 0; i < COUNTERS_SLOTS; i++)
        add_slot(&counters->slots[i], ret_summary);
    add_direct(counters, ret_summary);
}

uint64_t summary_wait_ns(const struct summary *sum, double share)
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

double summary_fetched_per_byte(const struct counters *counters, const struct summary *sum)
{
    uint64_t fetched = counter_get(&counters->source_bytes);
    uint64_t sent = sum->read_bytes - sum->direct_bytes;
    return fetched && sent ? (double)fetched / (double)sent : -1;
}

uint64_t summary_last_use_ns(const struct counters *counters)
{
    uint64_t last = counter_get(&counters->shared_ns);
    uint64_t direct = counter_get(&counters->direct_last_ns);
    last = direct > last ? direct : last;
    for (unsigned i = 0; i < COUNTERS_SLOTS; i++) {
        uint64_t t = counter_get(&counters->slots[i].last_request_ns);
        if (t > last)
            last = t;
    }
    return last;
}

/* From the start to the last use: gives the rate of a job, without its idle tail. */
static uint64_t busy_ns(const struct counters *counters)
{
    uint64_t last = summary_last_use_ns(counters);
    return last > counters->started_ns ? last - counters->started_ns : 1;
}

/* ---- the line: its non-empty parts, those that a job asks for first in front ---- */

struct line {
    char *text;
    size_t size, length;
};

static void summary_put(struct line *line, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void summary_put(struct line *line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line->text + line->length, line->size - line->length, format, args);
    va_end(args);
    if (n > 0)
        line->length += (size_t)n;
    if (line->length >= line->size)
        line->length = line->size - 1; /* truncated */
}

static void put_read(struct line *line, const struct counters *counters,
                     const struct summary *sum)
{
    uint64_t ns = busy_ns(counters);
    summary_put(line, "%s file%s, %s read in %s (%s/s)", cli_count(sum->read_files),
                sum->read_files == 1 ? "" : "s", cli_bytes(sum->read_bytes), cli_time(ns),
                cli_rate(sum->read_bytes, ns));
    if (sum->ahead_bytes && sum->read_bytes)
        summary_put(line, ", %.0f%% of it ahead of them",
                    percent(sum->ahead_bytes, sum->read_bytes));
    if (sum->direct_bytes)
        summary_put(line, ", %.0f%% of it by the readers themselves",
                    percent(sum->direct_bytes, sum->read_bytes));
}

static void put_waits(struct line *line, const struct summary *sum)
{
    summary_put(line, "; readers waited %s", cli_time(sum->read_service_ns));
    uint64_t ns = summary_wait_ns(sum, 0.99);
    if (ns)
        summary_put(line, ", 99%% of reads within %s", cli_time(ns));
}

/* Hits by kind. Bytes without a source (holes) are neither hit nor miss. */
static void put_origins(struct line *line, const struct summary *sum)
{
    static const char *const names[COUNTERS_ORIGINS] = {
        [READER_FROM_CACHE] = "the block cache",  [READER_FROM_AHEAD] = "read ahead",
        [READER_FROM_PAGES] = "the page cache",   [READER_FROM_COPY] = "the local copy",
        [READER_FROM_ANOTHER] = "another's read", [READER_FROM_STORAGE] = "storage",
    };
    const char *separator = "; reads from ";
    uint64_t all = 0;
    for (unsigned i = READER_FROM_CACHE; i < COUNTERS_ORIGINS; i++)
        all += sum->origins[i];
    for (unsigned i = READER_FROM_CACHE; i < COUNTERS_ORIGINS; i++) {
        if (!sum->origins[i])
            continue;
        summary_put(line, "%s%s %.0f%%", separator, names[i], percent(sum->origins[i], all));
        separator = ", ";
    }
}

static void put_fetched(struct line *line, const struct counters *counters,
                        const struct summary *sum)
{
    uint64_t ahead = counter_get(&counters->foreseen_bytes);
    double ratio = summary_fetched_per_byte(counters, sum);
    if (counters->stage_folder[0])
        summary_put(line, "; %.0f%% staged, %s of it at once for readers",
                    counters->stage_bytes ? percent(counter_get(&counters->stage_here_bytes),
                                                    counters->stage_bytes)
                                          : 100.0,
                    cli_bytes(counter_get(&counters->stage_demand_bytes)));
    else if (ratio >= 0)
        summary_put(line, "; %.2f bytes fetched for each one read", ratio);
    if (ahead)
        summary_put(line, "; %s read ahead, %.0f%% of its files used", cli_bytes(ahead),
                    percent(counter_get(&counters->foreseen_used),
                            counter_get(&counters->foreseen_used) +
                                counter_get(&counters->foreseen_unused)));
}

static void put_trouble(struct line *line, const struct counters *counters)
{
    uint64_t failed = counter_get(&counters->source_failures),
             again = counter_get(&counters->source_retries);
    if (failed || again)
        summary_put(line, "; reads of the archive that failed: %s tried again, %s given up",
                    cli_count(again), cli_count(failed));
}

const char *summary_line(const struct counters *counters, char *buf, size_t size)
{
    struct line line = {buf, size, 0};
    struct summary sum;

    buf[0] = '\0';
    summary_read(counters, &sum);
    if (!sum.read_files && !sum.read_bytes) {
        summary_put(&line, "nothing was read");
        return buf;
    }
    put_read(&line, counters, &sum);
    put_waits(&line, &sum);
    put_origins(&line, &sum);
    put_fetched(&line, counters, &sum);
    put_trouble(&line, counters);
    return buf;
}
