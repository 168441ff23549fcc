/*
 * A word of memory to sleep on: futex(2), for which libc has no function. A waiter must check
 * the word again afterwards, as any call may return early.
 */
#ifndef ONEPOT_FUTEX_H
#define ONEPOT_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Which processes use the word: this one alone, which is cheaper, or all that map it. */
enum futex_scope { FUTEX_OF_PROCESS = FUTEX_PRIVATE_FLAG, FUTEX_OF_NODE = 0 };

/* Sleep while the word has this value, for at most `timeout`; NULL: without limit. */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t value, enum futex_scope scope,
                              const struct timespec *timeout)
{
    syscall(SYS_futex, word, FUTEX_WAIT | (int)scope, value, timeout, NULL, 0);
}

/* Wake at most `count` of the threads that sleep on the word. */
static inline void futex_wake(_Atomic uint32_t *word, int count, enum futex_scope scope)
{
    syscall(SYS_futex, word, FUTEX_WAKE | (int)scope, count, NULL, NULL, 0);
}

#endif
