/*
 * WITH_SANITIZER: 1 in a build whose allocator and threads are a sanitizer's, else 0. Such a
 * runtime makes system calls that nobody foresees, and its locks may stay locked in a child
 * that was forked beside other threads.
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
