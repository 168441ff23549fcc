/* Files that vanish with their last descriptor, hidden from other processes. */
#ifndef ONEPOT_NAMELESS_H
#define ONEPOT_NAMELESS_H

/*
 * Open a file for reading and writing, accessible to this user alone. A descriptor or -errno.
 */
int nameless_open(const char *folder);

#endif
