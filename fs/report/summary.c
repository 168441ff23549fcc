/*
 * Adds up the slots of the worker threads while these keep writing. Each number is right for
 * some moment, but no two for the same one, which is good enough for people.
 */
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "clock.h"
#include "path.h"
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
    sum->read_bytes += counter_get(&slot->read_bytes);
    sum->read_files += counter_get(&slot->read_files);
    sum->starts += counter_get(&slot->read_starts) + counter_get(&slot->ahead_files);
    sum->ahead_requests += counter_get(&slot->ahead_requests);
    sum->ahead_files += counter_get(&slot->ahead_files);
    sum->ahead_bytes += counter_get(&slot->ahead_bytes);
    sum->service_ns += counter_get(&slot->service_ns);
    sum->read_service_ns += counter_get(&slot->read_service_ns);
    uint64_t last = counter_get(&slot->last_request_ns);
    if (last > sum->last_request_ns)
        sum->last_request_ns = last;
}

/* Files that were read ahead, and not known to be read. */
static uint64_t files_ahead(const struct counters *counters, const struct summary *sum)
{
    uint64_t foreseen = counter_get(&counters->direct_foreseen);
    for (unsigned i = 0; i < COUNTERS_SLOTS; i++)
        foreseen += counter_get(&counters->slots[i].foreseen_files);
    return sum->ahead_files > foreseen ? sum->ahead_files - foreseen : 0;
}

/* Bytes that readers took from the archive themselves count as read; they waited as long. */
static void add_direct(const struct counters *counters, struct summary *sum)
{
    sum->sent_bytes = sum->read_bytes + sum->ahead_bytes;
    sum->direct_bytes = counter_get(&counters->direct_bytes);
    sum->direct_files = counter_get(&counters->direct_files);
    sum->starts += counter_get(&counters->direct_starts);
    if (sum->direct_files <= sum->read_files) {
        sum->read_files += files_ahead(counters, sum);
        sum->read_bytes += sum->ahead_bytes;
    }
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
    ret_summary->at_ns = now_ns();
    for (unsigned i = 0; i < COUNTERS_SLOTS; i++)
        add_slot(&counters->slots[i], ret_summary);
    add_direct(counters, ret_summary);
    ret_summary->source_reads = counter_get(&counters->source_reads);
    ret_summary->source_bytes = counter_get(&counters->source_bytes);
    ret_summary->cache_hits =
        counter_get(&counters->cache_hits) + counter_get(&counters->cache_waits);
    ret_summary->cache_misses = counter_get(&counters->cache_misses);
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

/* ---- the line ---- */

/* Names without contents: by listing directories, or by looking names up one by one. */
static bool was_listed(const struct summary *sum)
{
    return sum->requests[COUNTERS_LOOKUP] || sum->requests[COUNTERS_READDIR] ||
           sum->requests[COUNTERS_READDIRPLUS];
}

const char *summary_trouble(const struct counters *counters)
{
    for (int kind = TROUBLE_KINDS - 1; kind >= 0; kind--)
        if (atomic_load(&counters->has_trouble[kind]))
            return counters->trouble[kind];
    return NULL;
}

/* The trouble without the archive's name, if it begins with it, as the line does already. */
static const char *trouble_alone(const struct counters *counters, const char *trouble)
{
    const char *name = path_base(counters->archive), *at = strstr(trouble, name);
    size_t len = strlen(name);
    bool is_named = counters->archives <= 1 && len > 0 && at && strncmp(at + len, ": ", 2) == 0;
    return is_named ? at + len + 2 : trouble;
}

const char *summary_line(const struct counters *counters, char *buf, size_t size)
{
    struct summary sum;
    uint64_t ns = busy_ns(counters), storage = counter_get(&counters->storage_requests);
    const char *trouble = summary_trouble(counters);

    if (counters->extracted) {
        snprintf(buf, size, "%s file%s, %s extracted in %s (%s/s)%s%.8s",
                 cli_count(counters->files), counters->files == 1 ? "" : "s",
                 cli_bytes(counters->total_bytes), cli_time(counters->extract_ns),
                 cli_rate(counters->total_bytes, counters->extract_ns),
                 counters->digest[0] ? "; digest " : "", counters->digest);
        return buf;
    }
    summary_read(counters, &sum);
    if (sum.read_files || sum.read_bytes)
        snprintf(buf, size, "%s file%s, %s read in %s (%s/s); readers waited %s",
                 cli_count(sum.read_files), sum.read_files == 1 ? "" : "s",
                 cli_bytes(sum.read_bytes), cli_time(ns), cli_rate(sum.read_bytes, ns),
                 cli_time(sum.read_service_ns));
    else
        snprintf(buf, size, "nothing was read%s",
                 was_listed(&sum) && !trouble ? ", only listed" : "");
    if (storage && strlen(buf) < size)
        snprintf(buf + strlen(buf), size - strlen(buf), "; %s request%s to storage",
                 cli_count(storage), storage == 1 ? "" : "s");
    if (counters->digest[0] && strlen(buf) < size)
        snprintf(buf + strlen(buf), size - strlen(buf), "; digest %.8s", counters->digest);
    if (trouble && strlen(buf) < size)
        snprintf(buf + strlen(buf), size - strlen(buf), "; reads failed: %s",
                 trouble_alone(counters, trouble));
    return buf;
}
