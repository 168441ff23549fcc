/*
 * Takes a report; shared by its two forms.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "cli.h"
#include "clock.h"
#include "report.h"

const char *report_state_name(const struct counters *c)
{
    static const char *const names[] = {[MOUNT_STARTING] = "starting",
                                        [MOUNT_SERVING] = "serving",
                                        [MOUNT_DRAINING] = "draining"};
    uint32_t state = atomic_load_explicit(&c->state, memory_order_relaxed);
    return state < MOUNT_ENDED ? names[state] : "ended";
}

void report_take(const struct counters *c, const char *state, struct report *ret_report)
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

int report_render(const struct counters *counters, bool json, char **ret_text, size_t *ret_len)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    struct report report;

    if (!out)
        return -ENOMEM;
    report_take(counters, NULL, &report);
    if (json)
        report_json(&(struct json){.out = out, .lines = 1}, &report);
    else
        report_text(out, &report);
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(text);
        return -ENOMEM;
    }
    *ret_text = text;
    *ret_len = len;
    return 0;
}
