/*
 * Frees a daemon from all it must not keep of its starter: descriptors (a pipe that `M=$(onepot
 * mount x)` waits on), the working directory, the terminal, signals.
 *
 * Inherited descriptors are noted first of all, before the program opens any. So the daemon
 * closes exactly these, and none that its libraries hold.
 */
#ifndef ONEPOT_DETACH_H
#define ONEPOT_DETACH_H

#include "vector.h"

struct inherited { /* a vector of descriptors above 2 */
    int *at;
    size_t count, capacity;
};

/* Note which descriptors above 2 are open now, for vector_free. -ENOMEM. */
int detach_note_inherited(struct inherited *ret_inherited);

/*
 * A descriptor of /dev/null; in a root that holds little more than the program and lacks it, of
 * an empty sealed file, which serves as well. -1 with errno.
 */
int detach_open_null(void);

/*
 * Call this in the process that becomes the daemon. It then has a new session, "/" as its
 * directory, umask 077, standard streams on /dev/null (errors on `log_fd`, unless that is -1),
 * and nothing inherited.
 */
int detach_here(const struct inherited *inherited, int log_fd);

#endif
