/*
 * A layer by the program fuse-overlayfs, for kernels that let an ordinary user have no
 * overlayfs (before Linux 5.11), or have none. Only in memory, as it writes down what was
 * removed in another way than the kernel.
 */
#ifndef ONEPOT_LAYER_PROGRAM_H
#define ONEPOT_LAYER_PROGRAM_H

#include <stdbool.h>

#define LAYER_PROGRAM "fuse-overlayfs"
#define LAYER_PROGRAM_SAID_MAX 256

/*
 * Mount it over `mountpoint`. `dir` is the tmpfs that lies there, which has the empty folders
 * changes and work; `lower` the mount below it. The program ends with the layer, when that is
 * unmounted, or no process is left in the namespace. 0; -ENOENT: there is no such program;
 * -errno.
 */
int layer_program_mount(int dir, int lower, const char *mountpoint, bool noexec);

/* For all to see: the program mounts itself, by fusermount3 where it must. */
struct layer_program {
    const char *program, *mountpoint;
    int lower, changes, work;
    bool noexec, allow_other;
};

/*
 * Returns when it is mounted. It goes on by itself then, and ends when it is unmounted. 0, or
 * -errno and why, in its own words where it has any.
 */
int layer_program_start(const struct layer_program *start, char said[LAYER_PROGRAM_SAID_MAX]);

#endif
