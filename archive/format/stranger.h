/*
 * Files that are no archive for us, but that people take for one: an image of another version
 * or of another file system, a container. Its name and a way on help more than "unknown".
 */
#ifndef ONEPOT_STRANGER_H
#define ONEPOT_STRANGER_H

#include <stddef.h>
#include <stdint.h>

#include "fault.h"

/*
 * Say in `fault` what a file with these first bytes is, as far as they tell. Returns -ENOMSG
 * in any case. Calls no library.
 */
int stranger_describe(const uint8_t *head, size_t head_len, struct fault *fault);

#endif
