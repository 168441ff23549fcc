/*
 * Threads that take tasks off the one that made them, which goes on until it needs a result,
 * and then works, too:
 *
 *     helpers_begin(helpers, &task);
 *     ...
 *     helpers_finish(helpers, &task);
 *
 * Tasks are taken in the order in which they were begun. Without helpers (NULL)
 * helpers_finish runs the task.
 *
 * Threads: one at a time may call these; tasks run in any.
 */
#ifndef ONEPOT_HELPERS_H
#define ONEPOT_HELPERS_H

enum helper_state { HELPER_NEW, HELPER_WAITS, HELPER_RUNS, HELPER_DONE };

/* Lies in its object, which run() finds by container_of or as its first member. */
struct helper_task {
    void (*run)(struct helper_task *task);
    struct helper_task *next;
    enum helper_state state; /* all else is of helpers.c */
};

struct helpers;
/*
 * Returns when all threads run: what libc does at their start must be over before a filter
 * takes system calls away. Fewer run if no more can be started. -ENOMEM.
 */
int helpers_new(unsigned threads, struct helpers **ret_helpers);
void helpers_free(struct helpers *helpers); /* No task may wait or run. NULL is fine. */
unsigned helpers_threads(const struct helpers *helpers);

void helpers_begin(struct helpers *helpers, struct helper_task *task);
/* Returns when the task has run. */
void helpers_finish(struct helpers *helpers, struct helper_task *task);
/* Returns when the task is not needed any more: it did not run, or has run. */
void helpers_cancel(struct helpers *helpers, struct helper_task *task);

#endif
