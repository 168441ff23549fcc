/*
 * The text of a list: a file, a pipe or standard input, read until its end.
 *
 *     struct text text = {0};
 *     r = text_read(fd, TEXT_BYTES_MOST, &text);
 *     vector_free(&text);
 */
#ifndef ONEPOT_TEXT_H
#define ONEPOT_TEXT_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include "vector.h"

/* A wrong file, such as a device or a pipe that never ends, must not use up the memory. */
#define TEXT_BYTES_MOST (UINT64_C(4) << 30)

struct text {
    char *at;
    size_t count, capacity;
};

/*
 * Adds what follows in the descriptor, which may be slow. -EFBIG: that makes more than `most`
 * bytes; -ENOMEM; errors of read(2). -EINTR: a signal was caught, so that a person can end the
 * wait for a pipe; call it again to go on.
 */
static inline int text_read(int fd, uint64_t most, struct text *text)
{
    enum { STEP_BYTES = 64 << 10 };
    for (;;) {
        if (vector_reserve(text, STEP_BYTES) < 0)
            return -ENOMEM;
        ssize_t n = read(fd, text->at + text->count, text->capacity - text->count);
        if (n <= 0)
            return n < 0 ? -errno : 0;
        text->count += (size_t)n;
        if (text->count > most)
            return -EFBIG;
    }
}

#endif
