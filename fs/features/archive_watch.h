/*
 * Notices when the archive is written to while it is mounted. A reader can't notice that a
 * file's bytes were replaced underneath; it would then get a piece of something else. So while
 * the mount is used, a thread looks at size and times now and then, and where they have changed
 * compares samples of the content (source_fingerprint). With a union on a distant filesystem,
 * each look takes some archives in turn.
 *
 * It is a separate thread, because a filesystem that hangs may block it for ever.
 */
#ifndef ONEPOT_ARCHIVE_WATCH_H
#define ONEPOT_ARCHIVE_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "counters.h"
#include "pot.h"

enum archive_state {
    ARCHIVE_SAME,
    ARCHIVE_TOUCHED, /* its times differ; of its bytes few, if any */
    ARCHIVE_CHANGED, /* truncated, or its bytes differ */
};

/* An archive that is looked at again and again. */
struct archive_sight {
    const struct source *source;
    struct source_identity opened; /* as it was when its index was read */
    bool is_one_of_many;           /* few samples are taken: source_sample */
    bool has_fingerprint;          /* known, or of the last look: */
    uint64_t fingerprint;
    struct source_identity seen;
};

/*
 * Look at the archive. The first look records samples of its content, unless they are known
 * (from a saved index). Returns what has changed; ARCHIVE_SAME also if its storage fails, which
 * readers notice themselves.
 */
enum archive_state archive_look(struct archive_sight *sight);

struct archive_watch;

/*
 * Prepare to watch. A single archive is looked at here, so that no change goes unnoticed from
 * now on. Pot and counters must live until archive_watch_stop. -ENOTSUP: this
 * archive needs no watch, because a copy of it is read; -ENOMEM and the like.
 */
int archive_watch_new(struct pot *pot, const struct counters *counters,
                      struct archive_watch **ret_watch);

/* Start the thread, which also saves an index that was left for pot_save. */
int archive_watch_start(struct archive_watch *watch);

/* Readable when there is news. */
int archive_watch_fd(const struct archive_watch *watch);

/*
 * The next archive whose state became worse since it was last reported here; false: there is
 * none, and the descriptor is unreadable again. *ret_name is the file of an archive of a union,
 * whose reads fail by then if it was changed; else NULL.
 */
bool archive_watch_news(struct archive_watch *watch, enum archive_state *ret_state,
                        const char **ret_name);

/* Why the index could not be saved, which the thread does first; once, then NULL. */
const struct fault *archive_watch_unsaved(struct archive_watch *watch);

/*
 * Look once more and end the thread. -EBUSY when it is stuck in a read: it is left behind, and
 * pot and counters must stay until the process ends. Else archive_watch_free frees the watch.
 */
int archive_watch_stop(struct archive_watch *watch);
void archive_watch_free(struct archive_watch *watch);

#endif
