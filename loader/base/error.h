/*
 * Turns the error values of the floors below into the words of the public interface. Any thread
 * may call these functions.
 */
#ifndef ONEPOT_LOADER_ERROR_H
#define ONEPOT_LOADER_ERROR_H

#include "fault.h"
#include "onepot.h"

/* Fill `error`, which may be NULL. Returns `err`. */
int error_set(struct onepot_error *error, int err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Fill `error` with "FILE: the name of err". Returns `err`. */
int error_errno(struct onepot_error *error, int err, const char *file);

/* Fill `error` with "FILE: MEMBER: reason (offset N); advice". Returns `err`. */
int error_from_fault(struct onepot_error *error, int err, const struct fault *fault,
                     const char *file);

/*
 * Copy a caller's option struct over the `size` zero bytes at `into`. The first member of the
 * struct is its size in bytes. Members that the caller does not know stay 0; NULL leaves all of
 * them 0.
 *
 * -EINVAL: the caller did not set the size. -E2BIG: the struct sets an option that only later
 * versions have.
 */
int options_read(void *into, size_t size, const void *given, struct onepot_error *error);

/*
 * Fill a caller's struct, whose first member is its size, with as much as it has room for.
 * -EINVAL: the caller did not set the size.
 */
int result_write(void *to, const void *from, size_t size, struct onepot_error *error);

#endif
