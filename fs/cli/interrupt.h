/*
 * Turns a signal that asks a command to end into a flag, so that the command can clean up and
 * then die of that signal, as the shell expects.
 *
 *     interrupt_catch();
 *     ... work that looks at interrupt_flag() and returns -EINTR ...
 *     if (atomic_load(interrupt_flag()))
 *         interrupt_die();
 */
#ifndef ONEPOT_INTERRUPT_H
#define ONEPOT_INTERRUPT_H

/*
 * Pass SIGINT, SIGTERM and SIGHUP to `handler`; signals that were ignored (nohup) stay ignored.
 */
void interrupt_handle(void (*handler)(int number));

/*
 * The same for the flag. A second signal, a second or more after the first, ends the process at
 * once.
 */
void interrupt_catch(void);

/* The number of the signal received, or 0. */
const _Atomic int *interrupt_flag(void);

/* A handler that sets the flag, and no more. */
void interrupt_note(int number);

/* Flush buffered output and die of the signal received. */
void interrupt_die(void);

/* Die of that signal, even if it is caught or blocked. */
void interrupt_die_of(int number);

#endif
