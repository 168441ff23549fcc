/*
 * Fetches through the mount itself (struct fetcher in ahead.h), so that the kernel asks for the
 * files that readers will want. A file that is read cold costs its reader a round trip or two,
 * with two changes of process each. Files that one process requests in a row, without waiting
 * for each, cost half of that, and reads from the page cache then cost no request at all. So
 * processes of our own go through the mount like any reader: they list directories, open files
 * and announce to the kernel that they will need them (posix_fadvise).
 *
 * Why processes. A thread that waits in its own mount keeps the descriptors of its process
 * open; if that process is killed then, the connection never ends and nobody can unmount. The
 * child has closed the device, so it is a reader like any other. It sees the mount in a private
 * namespace, where its open files do not keep others from unmounting; where such a namespace is
 * not allowed there is no child for a mount of our own. It is forked by `begin` and killed by
 * `end`. It has only a copy of the daemon's memory and a ring of wants that both share, and
 * calls nothing that may lock or allocate, because other threads may have been in the middle of
 * such calls. It plans nothing.
 *
 * A child that dies or stops is no loss: the daemon takes nothing from the ring but the number
 * of batches done and an error, waits for no child without an end, and does not replace it.
 */
#ifndef ONEPOT_MOUNT_FETCHER_H
#define ONEPOT_MOUNT_FETCHER_H

#include "ahead.h"
#include "core.h"

struct mount_fetcher;

extern const struct fetcher mount_fetcher; /* of a struct mount_fetcher */

/* May there be one? The mount can be seen, or looked for. */
static inline bool mount_fetcher_is_possible(const struct session_config *config)
{
    return config->mountpoint || config->is_elsewhere;
}

int mount_fetcher_new(struct session *session, struct mount_fetcher **ret_fetcher);
/* A look-up in the root: is it how a child shows that it has found the mount? */
void mount_fetcher_look_up(struct mount_fetcher *fetcher, struct request *rq);
/* Kill its children and let nobody wait for them. From any thread. */
void mount_fetcher_end(struct mount_fetcher *fetcher);
void mount_fetcher_free(struct mount_fetcher *fetcher); /* NULL is fine */

#endif
