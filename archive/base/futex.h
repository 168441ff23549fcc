/*
 * A word of memory to sleep on: futex(2), for which libc has no function. Who waits looks at
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

/* Whose memory it is: of this process alone, which is cheaper, or mapped by several. */
enum futex_scope { FUTEX_OF_PROCESS = FUTEX_PRIVATE_FLAG, FUTEX_OF_NODE = 0 };

/* Sleep while the word has this value, at most so long; NULL: however long. */
static inline void futex_wait(_Atomic uint32_t *word, uint32_t value, enum futex_scope scope,
                              const struct timespec *timeout)
{
    syscall(SYS_futex, word, FUTEX_WAIT | (int)scope, value, timeout, NULL, 0);
}

/* At most so many of those who sleep on it. */
static inline void futex_wake(_Atomic uint32_t *word, int count, enum futex_scope scope)
{
    syscall(SYS_futex, word, FUTEX_WAKE | (int)scope, count, NULL, NULL, 0);
}

#endif
