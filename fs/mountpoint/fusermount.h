/*
 * fusermount3 and fusermount, the setuid helpers by which an ordinary user mounts and unmounts.
 * They are separate programs, so everything here is bounded in time, and errors come with the
 * helper's words.
 */
#ifndef ONEPOT_FUSERMOUNT_H
#define ONEPOT_FUSERMOUNT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define FUSERMOUNT_SAID_MAX 256

/*
 * Mount, and return the descriptor of /dev/fuse. `path` is from process_find_program, `options`
 * a list as after -o. On failure `said` has the helper's first line. The process must have only
 * one thread.
 */
int fusermount_mount(const char *path, const char *mountpoint, const char *options,
                     char said[FUSERMOUNT_SAID_MAX], int *ret_fd);

/* -EBUSY, -ENOENT (no helper), -ETIMEDOUT, else -EPERM with the helper's words. */
int fusermount_unmount(const char *path, const char *mountpoint, bool lazy,
                       char said[FUSERMOUNT_SAID_MAX]);

/*
 * Wait for a helper: until it has closed its `output` and ended. 0, or -errno, and its first
 * line or what is wrong.
 */
int fusermount_hear(int output, pid_t pid, uint64_t end_ms, const char *name,
                    char said[FUSERMOUNT_SAID_MAX]);

#endif
