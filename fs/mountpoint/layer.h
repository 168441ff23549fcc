/*
 * A layer over a mount that takes what is written, for --writable: the kernel's overlayfs, or
 * else fuse-overlayfs (layer_program.h). A layer of `run` lies in the mount namespace of one
 * command; all see one of `mount` (layer_cover.h). What is written lies in memory, on a
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
#include <stdint.h>
#include <sys/types.h>

#include "file_id.h"
#include "index.h"

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

/* Says why: `text`, or the error `r`, which it returns. */
int layer_refuse(char why[LAYER_WHY_MAX], int r, const char *text);

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
    uint64_t tree; /* mount_options_tree */
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

/* Is a mount with this source in mountinfo the layer with the token, or the layer's tmpfs? */
bool layer_is_named(const char *source, uint64_t token);

/*
 * Open the folders of DIR for the program. -EMEDIUMTYPE: the kernel wrote it. The caller closes
 * both.
 */
int layer_open_for_program(const struct layer *layer, const char *mountpoint, int ret_fds[2]);

/* Does DIR/changes hold anything? */
bool layer_has_changes(const struct layer *layer);

/* The bytes of all files in DIR/changes. True: there are too many to add them all up. */
bool layer_measure(const struct layer *layer, uint64_t *ret_bytes);

void layer_release(struct layer *layer);

#endif
