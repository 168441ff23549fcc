/*
 * A layer over a mount that takes what is written, for `run --writable`: the kernel's
 * overlayfs, or else fuse-overlayfs (layer_program.h), in the mount namespace of one command.
 * What is written lies in memory, on a tmpfs of that namespace, which goes with it; or in a
 * folder, for one job after the other:
 *
 *     DIR/lock     held while a job uses DIR; says which one does
 *     DIR/changes  the upper layer
 *     DIR/work     overlayfs's own
 *
 *     layer_resolve(dir, &layer, why)   what DIR is; made if need be
 *     layer_take(&layer, why)           the lock
 *     layer_mount(&layer, mountpoint)   in the namespace, over a mount that answers
 *     layer_release(&layer)             the lock goes when all who inherited it have closed it
 */
#ifndef ONEPOT_LAYER_H
#define ONEPOT_LAYER_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "file_id.h"

#define LAYER_WHY_MAX (PATH_MAX + 256)

struct layer {
    char dir[PATH_MAX]; /* canonical; "": in memory */
    struct file_id id;  /* of DIR */
    int lock_fd;        /* -1: not taken, or in memory */
};
#define LAYER_NONE ((struct layer){.lock_fd = -1})

/* `dir` NULL: in memory. 0, or -errno and why DIR can't be it. */
int layer_resolve(const char *dir, struct layer *ret_layer, char why[LAYER_WHY_MAX]);

/*
 * Take DIR, unless a job has it: -EBUSY, also if processes of a killed job still have it
 * mounted on this node.
 */
int layer_take(struct layer *layer, char why[LAYER_WHY_MAX]);

/*
 * Mount it over `mountpoint`, where this process sees the mount below. The caller has one
 * thread. 0 or -errno of mount(2); -EXDEV: DIR's path leads elsewhere here.
 */
int layer_mount(const struct layer *layer, const char *mountpoint, bool noexec);

/* The bytes of all files in DIR/changes. True: there are too many to add them all up. */
bool layer_measure(const struct layer *layer, uint64_t *ret_bytes);

void layer_release(struct layer *layer);

#endif
