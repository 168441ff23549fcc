/*
 * Files that are not archives for us, but that people take for one: an image of another
 * version or of another file system, a container. Naming the format and a way on helps more
 * than "unknown".
 */
#ifndef ONEPOT_UNKNOWN_FORMAT_H
#define ONEPOT_UNKNOWN_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/*
 * Describe in `fault` a file with these first bytes, as far as they reveal its format. Always
 * returns -ENOMSG. Calls no library.
 */
int unknown_format_describe(const uint8_t *head, size_t head_len, struct fault *fault);

#endif
