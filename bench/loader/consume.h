/*
 * What every contender does with a batch: it looks at a byte of each cache line. In one place,
 * so that C and Python do the same.
 */
#ifndef BENCH_CONSUME_H
#define BENCH_CONSUME_H

#include <stdint.h>

/* Seen from outside of the library that Python loads. */
__attribute__((visibility("default"))) uint64_t consume(const uint8_t *bytes, uint64_t len);

#endif
