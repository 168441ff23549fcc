/* Files that go with their last descriptor, for what nobody else shall find. */
#ifndef ONEPOT_NAMELESS_H
#define ONEPOT_NAMELESS_H

/* Open for reading and writing, by the user alone. A descriptor or -errno. */
int nameless_open(const char *folder);

#endif
