/*
 * Shared by the files of the sandbox.
 *
 *   sandbox.c         the child, and the parent that watches it
 *   sandbox_filter.c  the system calls that the child may make
 */
#ifndef ONEPOT_SANDBOX_PRIVATE_H
#define ONEPOT_SANDBOX_PRIVATE_H

#include <stdbool.h>

/*
 * From now on this process may read, write and allocate, and nothing else. Best effort: if the
 * kernel has no filters or a container forbids them, the limits still apply. SPEC_ALLOW keeps
 * the kernel from slowing the child down against Spectre, as it does for filtered processes by
 * default before 5.16.
 */
void sandbox_filter_system_calls(void);

/*
 * Does the filter cover threads that run already? If not (a container allows it through
 * prctl(2) alone), none may be started.
 */
bool sandbox_filter_covers_threads(void);

#endif
