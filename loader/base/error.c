/*
 * Words for errors, and the reading of option structs. A struct longer than ours comes from a
 * program built with a newer header. It is accepted as long as the members that we don't know
 * are zero, which means "not wanted".
 */
#include "error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(struct onepot_error *error, int err, const char *format, ...)
{
    if (!error)
        return err;
    va_list args;
    va_start(args, format);
    vsnprintf(error->text, sizeof(error->text), format, args);
    va_end(args);
    error->code = err;
    return err;
}

int error_from_fault(struct onepot_error *error, int err, const struct fault *fault,
                     const char *file)
{
    if (!error)
        return err;
    fault_describe(fault, err, file, error->text, sizeof(error->text));
    error->code = err;
    return err;
}

int error_errno(struct onepot_error *error, int err, const char *file)
{
    return error_set(error, err, "%s: %s", file, fault_errno(err));
}

int options_read(void *into, size_t size, const void *given, struct onepot_error *error)
{
    size_t given_size;
    if (!given)
        return 0;
    memcpy(&given_size, given, sizeof(given_size));
    if (given_size < sizeof(given_size) || given_size > 4096)
        return error_set(error, -EINVAL, "an option struct's member 'size' was not set");
    for (size_t i = size; i < given_size; i++)
        if (((const char *)given)[i] != 0)
            return error_set(error, -E2BIG,
                             "an option was set that version " ONEPOT_VERSION
                             " of the library does not know");
    memcpy(into, given, given_size < size ? given_size : size);
    return 0;
}

int result_write(void *to, const void *from, size_t size, struct onepot_error *error)
{
    size_t room;
    memcpy(&room, to, sizeof(room));
    if (room <= sizeof(room) || room > 4096)
        return error_set(error, -EINVAL, "a result struct's member 'size' was not set");
    memcpy(to, from, room < size ? room : size);
    memcpy(to, &room, sizeof(room));
    return 0;
}
