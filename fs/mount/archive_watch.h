/*
 * Was the archive written to while it is mounted? Nothing tells a reader of a file that
 * its bytes were replaced underneath: what it gets is then a piece of something else. So
 * a thread looks at size and times now and then, while the mount is used, and where they
 * have changed at samples of the content (source_fingerprint).
 *
 * A thread of its own, because a filesystem that hangs may keep it for ever.
 */
#ifndef ONEPOT_ARCHIVE_WATCH_H
#define ONEPOT_ARCHIVE_WATCH_H

#include <stdbool.h>

#include "counters.h"
#include "pot.h"

enum archive_state {
    ARCHIVE_SAME,
    ARCHIVE_TOUCHED, /* its time is another; of its bytes at most some others are */
    ARCHIVE_CHANGED, /* cut short, or other bytes */
};

struct archive_watch;

/*
 * Start to look. Pot and counters live until archive_watch_stop. -ENOTSUP: this archive
 * needs no watch, as what is read is a copy; -ENOMEM and the like.
 */
int archive_watch_start(struct pot *pot, const struct counters *counters,
                        struct archive_watch **ret_watch);

/* Readable when there is news. */
int archive_watch_fd(const struct archive_watch *watch);

/* The news so far: never goes back. Not readable any more then. */
enum archive_state archive_watch_state(struct archive_watch *watch);

/*
 * A last look; then the thread ends. -EBUSY when it is stuck in a read: it stays, and
 * needs what it was given until the process ends.
 */
int archive_watch_stop(struct archive_watch *watch, enum archive_state *ret_state);

#endif
