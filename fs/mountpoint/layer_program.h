/*
 * A layer by the program fuse-overlayfs, for kernels that let an ordinary user have no
 * overlayfs (before Linux 5.11), or have none. Only in memory, as it writes down what was
 * removed in another way than the kernel.
 */
#ifndef ONEPOT_LAYER_PROGRAM_H
#define ONEPOT_LAYER_PROGRAM_H

#include <stdbool.h>

/*
 * Mount it over `mountpoint`. `dir` is the tmpfs that lies there, which has the empty folders
 * changes and work; `lower` the mount below it. The program ends with the layer, when that is
 * unmounted, or no process is left in the namespace. 0; -ENOENT: there is no such program;
 * -errno.
 */
int layer_program_mount(int dir, int lower, const char *mountpoint, bool noexec);

#endif
