/*
 * A mount's work so far, as `onepot stat` prints it and as .onepot/stat within the mount shows
 * it: the counters (counters.h) in words, or as JSON. Asks neither the daemon nor the mount.
 *
 *     report_text(stdout, counters, "serving");
 *
 * Threads: any.
 */
#ifndef ONEPOT_REPORT_H
#define ONEPOT_REPORT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "cli.h"
#include "counters.h"
#include "json.h"
#include "state.h"
#include "summary.h"

/* Print lines for people. `state`: as the caller knows it; NULL: the daemon's own word. */
void report_text(FILE *out, const struct counters *counters, const char *state);

/*
 * The time within which a share (0 to 1) of all READs was answered, in nanoseconds: the upper
 * end of a bucket of the histogram. 0 if there were none.
 */
uint64_t report_wait_ns(const struct summary *sum, double share);

/* Write one JSON object. */
void report_json(struct json *json, const struct counters *counters, const char *state);

/* Either form in memory, as the daemon sees its mount; the caller frees it. -ENOMEM. */
int report_render(const struct counters *counters, bool json, char **ret_text, size_t *ret_len);

/*
 * Finding the user's mount that a path means, and its state: for commands that ask its counters
 * and not the mount itself, which may hang.
 */

/*
 * The innermost mount that a path names or leads into, from text alone, since asking the
 * filesystem could hang. NULL: none of the list. `path` is what was given, made absolute, and
 * *rest the part of it after the mount point.
 */
struct slot *find_mount_around(const struct slot_list *list, const char *given,
                               char path[PATH_MAX], const char **rest);

/*
 * The mount at this mount point: of several that had it the one that lives, else the newest. 0;
 * -ENOENT: no mount of this list is there; or -errno if the path can't be resolved.
 */
int find_mount(const struct slot_list *list, const char *mountpoint,
               const struct slot **ret_slot);

/* The same for a command: CLI_OK, or CLI_FAILED after an error was printed. */
int find_named_mount(const struct slot_list *list, const char *mountpoint,
                     const struct slot **ret_slot);

/* "serving", "stopped", "dead"...: from the counters and the kernel. */
const char *find_mount_state(const struct slot *slot);

#endif
