/*
 * A signal that asks a command to end becomes a flag, so that the command can clean up and
 * then die of that signal, as the shell expects.
 *
 *     interrupt_catch();
 *     ... work that looks at interrupt_flag() and returns -EINTR ...
 *     if (atomic_load(interrupt_flag()))
 *         interrupt_die();
 */
#ifndef ONEPOT_INTERRUPT_H
#define ONEPOT_INTERRUPT_H

/* SIGINT, SIGTERM and SIGHUP to `handler`; what was ignored (nohup) stays ignored. */
void interrupt_handle(void (*handler)(int number));

/* The same to the flag. A second signal, a second or more after the first, ends at once. */
void interrupt_catch(void);

/* The number of the signal that came, or 0. */
const _Atomic int *interrupt_flag(void);

/* Write out what is buffered and die of the signal that came. */
void interrupt_die(void);

/* Die of that signal, be it caught or blocked. */
void interrupt_die_of(int number);

#endif
