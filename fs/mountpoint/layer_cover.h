/*
 * The layer of `mount --writable`, which all of the node sees. It lies over the mount at its
 * place, in one of three ways (the topmost first):
 *
 *     overlay, tmpfs, the mount      by root, in memory
 *     overlay, the mount             by root, in DIR
 *     fuse-overlayfs                 by a user; in memory it writes to a folder beside the
 * slot, where the mount is, too: fusermount3 may not look into a user's mount, and so mounts
 * nothing over it
 *
 * Whoever takes the mount off takes the layer off first: the daemon, `umount`, and whoever
 * finds that the daemon was killed. Each looks into the kernel's list for what lies on top, and
 * takes nothing off but a layer of this slot. An overlay and its tmpfs bear a token that only
 * root can give them; fuse-overlayfs has the user and the device that the kernel names. What
 * somebody else has mounted over it stays, and so does all below.
 *
 * The state is in the slot's counters (layer_*), where others find it after a kill.
 */
#ifndef ONEPOT_LAYER_COVER_H
#define ONEPOT_LAYER_COVER_H

#include <stdbool.h>
#include <stddef.h>

#include "layer.h"

struct counters;
struct mount_request;
struct slot;

/*
 * Where to mount instead, for a layer by a user's program: made, and noted in the counters. 0
 * or -errno.
 */
int layer_make_below(struct slot *slot);

/*
 * Lay it over the slot's mount, which answers. `by_kernel`: this process may mount. 0, or
 * -errno and why, and layer_uncover takes off what was begun.
 */
int layer_cover(struct slot *slot, struct layer *layer, const struct mount_request *request,
                bool by_kernel, char why[LAYER_WHY_MAX]);

/* Is it, or a part of it, what lies on top? */
bool layer_is_on_top(const struct slot *slot);

/* It was there, and somebody has unmounted it. */
bool layer_is_lost(const struct slot *slot);

/*
 * Take it off. 1: it is off now; 0: there is none. -EBUSY: it is in use and this is not `lazy`,
 * or something else lies over it; other errors of unmounting. Notes how much was written.
 */
int layer_uncover(const struct slot *slot, bool lazy);

/*
 * It is off, or the one of `run` in its namespace is: note how much was written to layer_dir.
 * A layer in memory was noted before.
 */
void layer_gone(const struct slot *slot);

/*
 * Was anything written to it yet? In the namespace of a `run`, as far as namespace_measure has
 * told.
 */
bool layer_is_changed(const struct slot *slot);

/* Remove the slot's folder for what was written, before the slot. */
void layer_forget(const struct slot *slot);

/* "1.2 MB of changes lay in memory, and are gone ..."; NULL: nothing is to be said. */
#define LAYER_TOLD_MAX (PATH_MAX + 128)
const char *layer_told(const struct counters *counters, char buf[LAYER_TOLD_MAX]);

/* Tell the user, of what is called `name`. */
void layer_note(const struct counters *counters, const char *name);

#endif
