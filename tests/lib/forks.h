/*
 * May a test fork while it has threads? A sanitizer's allocator, unlike glibc's, may be locked
 * for ever in the child, and ThreadSanitizer has no threads there at all.
 */
#ifndef ONEPOT_TESTS_FORKS_H
#define ONEPOT_TESTS_FORKS_H

#include "sanitizer.h"

#define FORKS_WITH_THREADS (!WITH_SANITIZER)

#endif
