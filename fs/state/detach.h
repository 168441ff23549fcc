/*
 * What a daemon must not keep of the process that started it: descriptors (a pipe that
 * `M=$(onepot mount x)` waits on), the working directory, the terminal, signals.
 *
 * Descriptors that were inherited are noted first of all, when nothing else is open
 * yet; so the daemon closes exactly these, and none that the libraries below hold.
 */
#ifndef ONEPOT_DETACH_H
#define ONEPOT_DETACH_H

#include <stddef.h>

struct inherited {
    int *fds; /* above 2 */
    size_t count;
};

/* Note which descriptors above 2 are open now. -ENOMEM. */
int detach_note_inherited(struct inherited *ret_inherited);
void detach_free(struct inherited *inherited);

/*
 * In the process that becomes the daemon: a session of its own, "/" as its directory,
 * umask 077, standard streams on /dev/null (errors on `log_fd`, if that is not -1),
 * nothing inherited.
 */
int detach_here(const struct inherited *inherited, int log_fd);

#endif
