/*
 * Detects readers that go through numbered things in ascending order: the files of a directory
 * or of an archive, or the pieces of a file. Several may do so at once, interleaved; each is a
 * separate stream.
 *
 * A read belongs to a stream if it comes soon after the furthest read of that stream, or a
 * little before it (two workers, or a kernel that asks for the next piece early). A stream is
 * believed after STREAM_CONFIDENT reads if these cover at least a quarter of the things that it
 * passes, in its own steps: a rank that reads every eighth file has steps of 8. Then things
 * ahead of it are handed out, twice as many each time it comes near the end of them.
 *
 * A reader in random order does no harm. Among n things, 16 streams with 64 places each are hit
 * by chance once in n/1024 reads. But to be believed a stream would have to be hit time after
 * time while it is one of the last 16, and densely.
 */
#ifndef ONEPOT_STREAMS_H
#define ONEPOT_STREAMS_H

#include <stdbool.h>
#include <stdint.h>

#define STREAMS 16u
#define STREAM_NEAR 64u
#define STREAM_CONFIDENT 8u

struct stream {
    uint64_t first, last; /* places */
    uint64_t next;        /* the place after those handed out */
    uint64_t step;        /* the greatest common divisor of all distances; 0: none yet */
    uint32_t reads;       /* 0: free */
    uint32_t window;      /* steps */
    uint64_t used;        /* on the clock below */
};

/* Empty when all zero. */
struct streams {
    struct stream at[STREAMS];
    uint64_t clock;
};

/* Report a read. True: it continues a stream that is believed. */
bool streams_read(struct streams *streams, uint64_t place);

/* The next thing ahead of a stream. False: there is none. */
bool streams_next(struct streams *streams, uint64_t *ret_place);

#endif
