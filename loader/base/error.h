/*
 * Turns error values of the layers below into the words of the public interface.
 */
#ifndef ONEPOT_LOADER_ERROR_H
#define ONEPOT_LOADER_ERROR_H

#include "fault.h"
#include "onepot.h"

/* Fill `error` (NULL is fine) and return `err`. */
int error_set(struct onepot_error *error, int err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* "FILE: the words of strerror(3) for err" */
int error_errno(struct onepot_error *error, int err, const char *file);

/* "FILE: MEMBER: what (offset N); advice" */
int error_from_fault(struct onepot_error *error, int err, const struct fault *fault,
                     const char *file);

/*
 * Copy a caller's option struct, whose first member is its size, over the `size` bytes of zeros
 * at `into`. Members that the caller does not know stay 0. NULL: all are zero. -EINVAL: its
 * size was not set; -E2BIG: it sets an option that only later versions have.
 */
int options_read(void *into, size_t size, const void *given, struct onepot_error *error);

/* Fill a caller's struct, whose first member is its size, with as much as it has room for. */
void result_write(void *to, const void *from, size_t size);

#endif
