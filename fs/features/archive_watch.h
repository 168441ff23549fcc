/*
 * An archive that is looked at again and again while it is mounted (archive_watch.c).
 */
#ifndef ONEPOT_ARCHIVE_WATCH_H
#define ONEPOT_ARCHIVE_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "source.h"

enum archive_state {
    ARCHIVE_SAME,
    ARCHIVE_TOUCHED, /* its times differ; of its bytes few, if any */
    ARCHIVE_CHANGED, /* truncated, or its bytes differ */
};

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

#endif
