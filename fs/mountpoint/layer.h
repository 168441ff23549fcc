/*
 * A layer over a mount that takes what is written, for --writable: the kernel's overlayfs, or
 * else fuse-overlayfs. A layer of `run` lies in the mount namespace of one
 * command; all see one of `mount` (layer_cover). What is written lies in memory, on a
 * tmpfs that only the layer reaches, which goes with it; or in a folder, for one job after the
 * other:
 *
 *     DIR/lock     held while a job uses DIR; says which one does
 *     DIR/changes  the upper layer
 *     DIR/archive  the archive that they were made over
 *     DIR/view     where `run` shows the tree: one path in all jobs
 *     DIR/work     overlayfs's own
 *     DIR/fuse-overlayfs  if that program wrote the changes: the kernel can't read them
 *
 *     layer_resolve(dir, &layer, why)   what DIR is; made if need be
 *     layer_take(&layer, why)           the lock
 *     layer_bind(&layer, &archive, ...) are its changes of this archive?
 *     layer_mount(&layer, mountpoint)   in the namespace, over a mount that answers
 *     layer_release(&layer)             the lock goes when all who inherited it have closed it
 */
#ifndef ONEPOT_LAYER_H
#define ONEPOT_LAYER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "file_id.h"
#include "index.h"

struct counters;
struct mount_request;
struct slot;

#define LAYER_WHY_MAX (PATH_MAX + 256)

struct layer {
    char dir[PATH_MAX]; /* canonical; "": in memory */
    struct file_id id;  /* of DIR */
    int lock_fd;        /* -1: not taken, or in memory */
    int writer;         /* the process that is named to who finds DIR taken */
    /*
     * Of a layer that all see: tells it from any other since the node was started; 0: it lies
     * in a namespace. `below` is the device of the mount.
     */
    uint64_t token;
    dev_t below;
    _Atomic uint64_t *files_before; /* in memory: counts what the layer itself has made */
    bool is_open; /* to other users, as far as the archive's top folder is (--allow-other) */
};
#define LAYER_OF_PROGRAM /* DIR, for -EMEDIUMTYPE */                                           \
    "fuse-overlayfs wrote it ('onepot mount' of an ordinary user); take another folder"
#define LAYER_NONE ((struct layer){.lock_fd = -1})

/* `dir` NULL: in memory. 0, or -errno and why DIR can't be it. */
int layer_resolve(const char *dir, struct layer *ret_layer, char why[LAYER_WHY_MAX]);

/*
 * Take DIR, unless a job has it: -EBUSY, also if processes of a killed job still have it
 * mounted on this node.
 */
int layer_take(struct layer *layer, char why[LAYER_WHY_MAX]);

/*
 * An archive as it is known again, which may be several. With a digest of names and contents
 * its place and time don't matter.
 */
struct layer_archive {
    char words[PATH_MAX];                    /* as a command line names it, quoted */
    char digest[2 * INDEX_DIGEST_BYTES + 1]; /* "": it has no sums, and these count: */
    uint64_t bytes, samples;
    int64_t mtime_sec;
    uint32_t mtime_nsec;
    uint64_t tree; /* the part of it, or other tree, that is shown; 0: all */
};

/*
 * Note in DIR that its changes are of this archive. -EXDEV: they are of *ret_other, or of
 * another tree of it. 1: there are changes already, and nothing says of which; they are this
 * one's now. Other errors: *why says what can be done.
 */
int layer_bind(const struct layer *layer, const struct layer_archive *archive,
               struct layer_archive *ret_other, char why[LAYER_WHY_MAX]);

/*
 * Mount it over `mountpoint`, where this process sees the mount below. The caller has one
 * thread. 0 or -errno of mount(2); -EXDEV: DIR's path, or the mount's, leads elsewhere here;
 * -EMEDIUMTYPE: the program wrote DIR.
 */
int layer_mount(const struct layer *layer, const char *mountpoint, bool noexec);

void layer_release(struct layer *layer);

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
