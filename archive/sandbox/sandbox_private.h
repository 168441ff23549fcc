/*
 * What the files of the sandbox share.
 *
 *   sandbox.c         the child, and the parent that watches it
 *   sandbox_filter.c  the system calls that the child may do
 */
#ifndef ONEPOT_SANDBOX_PRIVATE_H
#define ONEPOT_SANDBOX_PRIVATE_H

/*
 * From here on this process may read, write and allocate, and no more. Best effort: a kernel
 * without filters, or a container that forbids them, leaves the limits in place. SPEC_ALLOW
 * keeps the kernel from slowing the child down against Spectre, which it does for filtered
 * processes by default before 5.16.
 */
void sandbox_filter_system_calls(void);

#endif
