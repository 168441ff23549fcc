/*
 * May a test fork while it has threads? A sanitizer's allocator, unlike glibc's, may be locked
 * for ever in the child, and ThreadSanitizer has no threads there at all.
 */
#ifndef ONEPOT_TESTS_FORKS_H
#define ONEPOT_TESTS_FORKS_H

#include <stdbool.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FORKS_WITH_THREADS false
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define FORKS_WITH_THREADS false
#endif
#endif
#ifndef FORKS_WITH_THREADS
#define FORKS_WITH_THREADS true
#endif

#endif
