/*
 * Filters of system calls (seccomp) that a program was started with. One may end the process
 * for a call that the program itself never makes, so the library makes none in a process with
 * more filters than the `onepot` that started it, which made such calls itself: it tells their
 * number in ONEPOT_SECCOMP_FILTERS, if there are any. To ask costs open, read and close, which
 * each program's start makes.
 */
#ifndef ONEPOT_FILTERS_H
#define ONEPOT_FILTERS_H

#define FILTERS_VARIABLE "ONEPOT_SECCOMP_FILTERS"
#define FILTERS_UNKNOWN                                                                        \
    (-1) /* some, or /proc is not there; Linux tells their number from 5.9 on */

/* The filters of this process. Before there are threads, as it has a buffer for all callers. */
long filters_count(void);

#endif
