/*
 * WITH_SANITIZER: 1 in a build whose allocator and threads belong to a sanitizer, else 0. A
 * sanitizer's runtime makes unforeseen system calls, and its locks may stay locked in a child
 * forked while other threads run.
 */
#ifndef ONEPOT_SANITIZER_H
#define ONEPOT_SANITIZER_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WITH_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                     \
    __has_feature(memory_sanitizer)
#define WITH_SANITIZER 1
#endif
#endif
#ifndef WITH_SANITIZER
#define WITH_SANITIZER 0
#endif

#endif
