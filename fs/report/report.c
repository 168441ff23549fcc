/*
 * Takes a report; shared by its two forms.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "cli.h"
#include "clock.h"
#include "report.h"

/* Numbers are the kernel's (linux/fuse.h); 0 stands for newer ones. */
static const char *const opcode_names[COUNTERS_OPCODES] = {
    [0] = "OTHER",         [1] = "LOOKUP",
    [2] = "FORGET",        [3] = "GETATTR",
    [4] = "SETATTR",       [5] = "READLINK",
    [6] = "SYMLINK",       [8] = "MKNOD",
    [9] = "MKDIR",         [10] = "UNLINK",
    [11] = "RMDIR",        [12] = "RENAME",
    [13] = "LINK",         [14] = "OPEN",
    [15] = "READ",         [16] = "WRITE",
    [17] = "STATFS",       [18] = "RELEASE",
    [20] = "FSYNC",        [21] = "SETXATTR",
    [22] = "GETXATTR",     [23] = "LISTXATTR",
    [24] = "REMOVEXATTR",  [25] = "FLUSH",
    [26] = "INIT",         [27] = "OPENDIR",
    [28] = "READDIR",      [29] = "RELEASEDIR",
    [30] = "FSYNCDIR",     [31] = "GETLK",
    [32] = "SETLK",        [33] = "SETLKW",
    [34] = "ACCESS",       [35] = "CREATE",
    [36] = "INTERRUPT",    [37] = "BMAP",
    [38] = "DESTROY",      [39] = "IOCTL",
    [40] = "POLL",         [41] = "NOTIFY_REPLY",
    [42] = "BATCH_FORGET", [43] = "FALLOCATE",
    [44] = "READDIRPLUS",  [45] = "RENAME2",
    [46] = "LSEEK",        [47] = "COPY_FILE_RANGE",
    [48] = "SETUPMAPPING", [49] = "REMOVEMAPPING",
    [50] = "SYNCFS",       [51] = "TMPFILE",
    [52] = "STATX",
};

const char *report_opcode_name(unsigned opcode, char buf[CLI_TEXT_LEN])
{
    if (opcode < COUNTERS_OPCODES && opcode_names[opcode])
        return opcode_names[opcode];
    snprintf(buf, CLI_TEXT_LEN, "OPCODE_%u", opcode);
    return buf;
}

const char *report_state_name(const struct counters *c)
{
    switch ((enum mount_state)atomic_load_explicit(&c->state, memory_order_relaxed)) {
    case MOUNT_STARTING:
        return "starting";
    case MOUNT_SERVING:
        return "serving";
    case MOUNT_DRAINING:
        return "draining";
    default:
        return "ended";
    }
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
    if (json) {
        report_json(&(struct json){.out = out, .lines = 1}, &report);
        fputc('\n', out);
    } else {
        report_text(out, &report);
    }
    bool failed = ferror(out);
    if (fclose(out) != 0 || failed) {
        free(text);
        return -ENOMEM;
    }
    *ret_text = text;
    *ret_len = len;
    return 0;
}
