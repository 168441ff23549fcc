/*
 * The holders of a mount: each `onepot mount` that made or shared it is one, on behalf of the
 * program that ran the command (a shell, a script, an interpreter; its subshells are the same
 * program). Mounts of an archive have one path, one after the other and at one time, so that a
 * path does not tell whose share `onepot umount` is to give back. The caller does:
 *
 *   a program              gives back its own shares,
 *   its later children     the shares that the program had before they began, as they may have
 *                          the path from it; unless one of them has itself given one back,
 *   its job or session     shares of programs that have ended (owner.h),
 *   everybody              shares of programs that have ended with their job or session, or
 *                          can't be known.
 *
 * A script whose mount has died, or which gives back its share a second time, is none of these
 * to its neighbours. All of it under the registry's lock.
 */
#ifndef ONEPOT_HOLDERS_H
#define ONEPOT_HOLDERS_H

#include "counters.h"

/* Add a holder on behalf of the program above this process. Returns its number. */
int holders_add(struct counters *counters);

/*
 * This process gives its share back, unless it is the last one, which goes with the mount. The
 * program is remembered. Returns how many others hold the mount; -EPERM: no share is this
 * process's, but one of *ret_pid, or of the owner of a process that has ended (0: not known).
 */
int holders_give_back(struct counters *counters, int *ret_pid);

/* All give back. */
void holders_end(struct counters *counters);

/* Undo holders_add. */
void holders_remove(struct counters *counters, int number);

#endif
