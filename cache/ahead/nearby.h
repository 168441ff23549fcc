/*
 * Files near those that readers read, in the order of the archive (nearby.c says which).
 */
#ifndef ONEPOT_NEARBY_H
#define ONEPOT_NEARBY_H

#include "index.h"
#include "mount_fetcher.h"

#define NEARBY_CHUNK_BITS 8 /* a chunk is so many entries, as a power of two */

#define NEARBY_READS_FIRST 2048u /* cold reads before it begins, at least */
#define NEARBY_READS_AGAIN 16u   /* cold reads before it resumes after a pause */

struct nearby_totals {
    _Atomic uint64_t files, bytes; /* fetched by all processes */
};

struct nearby {
    const struct index *index;
    struct nearby_totals *at;
    size_t chunks;
    _Atomic uint64_t *touched; /* bitmaps, by chunk: a reader read from it */
    _Atomic uint64_t *listed;
    _Atomic uint64_t *taken; /* claimed by a process, which fetches it or gives it back */
};

/* Lies over so many bytes of shared memory, all zero at first. */
size_t nearby_bytes(const struct index *index);
void nearby_init(struct nearby *nearby, const struct index *index, void *shared);

/* Cold reads before it begins: a job that reads a few files pays nothing. */
uint64_t nearby_reads_needed(const struct nearby *nearby);
/* How much may be fetched now, of `most_bytes` in all; 0: too little memory is free. */
uint64_t nearby_allowance(const struct nearby *nearby, uint64_t most_bytes,
                          uint64_t free_bytes);

/* A reader had to ask for this file; the kernel received the names of [from, to). */
void nearby_saw_read(const struct nearby *nearby, uint32_t position);
void nearby_saw_listing(const struct nearby *nearby, uint32_t from, uint32_t to);

/* Several processes may run it at the same time, each with an allowance. */
enum mount_fetch nearby_run(const struct nearby *nearby, uint64_t allowance_bytes,
                            const struct mount_fetcher *fetcher, void *ctx);

#endif
