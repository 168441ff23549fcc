/*
 * Adding up the slots of the worker threads. They go on writing meanwhile: each number
 * is right for some moment, and no two of them for the same one, which is good enough
 * for people.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "summary.h"

static uint64_t get(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static void add_slot(const struct counter_slot *slot, struct summary *sum)
{
    for (unsigned i = 0; i < COUNTERS_OPCODES; i++) {
        uint64_t n = get(&slot->requests[i]);
        sum->requests[i] += n;
        sum->requests_all += n;
    }
    for (unsigned i = 0; i < COUNTERS_BUCKETS; i++)
        sum->histogram[i] += get(&slot->histogram[i]);
    sum->reads_waited += get(&slot->reads_waited);
    sum->errors += get(&slot->errors);
    sum->read_bytes += get(&slot->read_bytes) + get(&slot->ahead_bytes);
    sum->read_files += get(&slot->read_files) + get(&slot->ahead_files);
    sum->ahead_requests += get(&slot->ahead_requests);
    sum->ahead_files += get(&slot->ahead_files);
    sum->ahead_bytes += get(&slot->ahead_bytes);
    sum->service_ns += get(&slot->service_ns);
    sum->read_service_ns += get(&slot->read_service_ns);
    uint64_t last = get(&slot->last_request_ns);
    if (last > sum->last_request_ns)
        sum->last_request_ns = last;
}

void summary_read(const struct counters *counters, struct summary *ret_summary)
{
    memset(ret_summary, 0, sizeof(*ret_summary));
    for (unsigned i = 0; i < COUNTERS_SLOTS; i++)
        add_slot(&counters->slots[i], ret_summary);
}

uint64_t summary_last_use_ns(const struct counters *counters)
{
    uint64_t last = get(&counters->shared_ns);
    for (unsigned i = 0; i < COUNTERS_SLOTS; i++) {
        uint64_t t = get(&counters->slots[i].last_request_ns);
        if (t > last)
            last = t;
    }
    return last;
}

/* From the start to the last sign of use: the rate of a job, not of its idle tail. */
static uint64_t busy_ns(const struct counters *counters)
{
    uint64_t last = summary_last_use_ns(counters);
    return last > counters->started_ns ? last - counters->started_ns : 1;
}

const char *summary_line(const struct counters *counters, char *buf, size_t size)
{
    struct summary sum;
    char files[CLI_TEXT_LEN], bytes[CLI_TEXT_LEN], time[CLI_TEXT_LEN], rate[CLI_TEXT_LEN];
    char waited[CLI_TEXT_LEN], ahead[64] = "", cache[64] = "", more[64] = "";
    char trouble[96] = "";
    uint64_t ns = busy_ns(counters);
    uint64_t hits = get(&counters->cache_hits) + get(&counters->cache_waits);
    uint64_t blocks = hits + get(&counters->cache_misses);

    uint64_t failed = get(&counters->source_failures), again = get(&counters->source_retries);
    uint64_t fetched = get(&counters->source_bytes);

    summary_read(counters, &sum);
    if (!sum.read_files && !sum.read_bytes) {
        snprintf(buf, size, "nothing was read");
        return buf;
    }
    if (sum.ahead_bytes && sum.read_bytes)
        snprintf(ahead, sizeof(ahead), ", %.0f%% of it ahead of them",
                 100.0 * (double)sum.ahead_bytes / (double)sum.read_bytes);
    if (blocks)
        snprintf(cache, sizeof(cache), "; %.0f%% of blocks from the cache",
                 100.0 * (double)hits / (double)blocks);
    if (fetched && sum.read_bytes && !counters->stage_folder[0])
        snprintf(more, sizeof(more), "; %.2f bytes fetched for each one read",
                 (double)fetched / (double)sum.read_bytes);
    if (failed || again)
        snprintf(trouble, sizeof(trouble),
                 "; reads of the archive that failed: %s tried again, %s given up",
                 cli_format_count(again, time), cli_format_count(failed, rate));
    snprintf(buf, size, "%s file%s, %s read in %s (%s/s)%s; readers waited %s%s%s%s",
             cli_format_count(sum.read_files, files), sum.read_files == 1 ? "" : "s",
             cli_format_bytes(sum.read_bytes, bytes), cli_format_time(ns, time),
             cli_format_bytes((uint64_t)((double)sum.read_bytes / ((double)ns / 1e9)), rate),
             ahead, cli_format_time(sum.read_service_ns, waited), cache, more, trouble);
    return buf;
}
