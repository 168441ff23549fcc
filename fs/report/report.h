/*
 * A mount's work so far, as `onepot stat` prints it and as .onepot/stat within the mount shows
 * it: the counters (counters.h) in words, or as JSON. Asks neither the daemon nor the mount.
 *
 *     report_take(counters, "serving", &report);
 *     report_text(stdout, &report);
 *
 * Threads: any, each with its own report.
 */
#ifndef ONEPOT_REPORT_H
#define ONEPOT_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cli.h"
#include "counters.h"
#include "json.h"
#include "summary.h"

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
const char *report_state_name(const struct counters *counters);

/* `state`: the state that the caller knows, or NULL: the daemon's own. Not copied. */
void report_take(const struct counters *counters, const char *state, struct report *ret_report);

/* Print lines for people. */
void report_text(FILE *out, const struct report *report);

/* Write one JSON object. */
void report_json(struct json *json, const struct report *report);

/* Either form in memory, as the daemon sees its mount; the caller frees it. -ENOMEM. */
int report_render(const struct counters *counters, bool json, char **ret_text, size_t *ret_len);

#endif
