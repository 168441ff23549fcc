/*
 * Every contender consumes a batch in this way: it reads a byte of each cache line. C and
 * Python share this function.
 */
#ifndef BENCH_CONSUME_H
#define BENCH_CONSUME_H

#include <stdint.h>

/* Seen from outside of the library that Python loads. */
__attribute__((visibility("default"))) uint64_t consume(const uint8_t *bytes, uint64_t len);

#endif
