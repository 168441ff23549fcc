/*
 * Pages of a mapped file that are not there any more: the file was cut short, or its
 * storage failed. Reading one raises SIGBUS, which would kill the daemon and hang up on
 * its readers. Zeros take the place of the page instead, so that whoever reads it goes
 * on to the checks that refuse them, and somebody is told.
 *
 * Threads: the handler serves all of the process; the rest is for one thread.
 */
#ifndef ONEPOT_LOST_PAGES_H
#define ONEPOT_LOST_PAGES_H

/* From now on. Once in a process. */
void lost_pages_catch(void);

/* Readable when pages were lost that lost_pages_count has not told of; -1: no descriptor. */
int lost_pages_fd(void);

/* How many so far. */
unsigned lost_pages_count(void);

#endif
