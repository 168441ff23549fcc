/*
 * Verification: every bound and every checksum of an archive.
 *
 *     struct verify_options options = {.threads = 2, .report = say};
 *     r = verify_run(pot, reader, &options, &fault, &result);
 *
 * The tree: each entry of the index is decoded, each name, link, attribute and extent
 * checked. The data: each file is read, decompressed where it is compressed, and compared
 * with its sum where the archive has sums. The rest: of an onepot archive all other bytes
 * too, so that the whole file was compared with something.
 */
#ifndef ONEPOT_VERIFY_H
#define ONEPOT_VERIFY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "pot.h"
#include "reader.h"

#define VERIFY_THREADS_MAX 256u

struct verify_options {
    unsigned threads;
    bool trailer_is_good; /* verify_trailer found nothing: what it finds is not told twice */
    /* Called for one thing at a time that is wrong. May be NULL. */
    void (*report)(void *ctx, const struct fault *what);
    /* Called now and then, by the caller's thread, never while `report` is. May be NULL. */
    void (*progress)(void *ctx, const char *doing, const struct progress *progress);
    void *ctx;
    const _Atomic int *stop; /* see extract.h */
};

struct verify_result {
    uint64_t entries;
    uint64_t files; /* read, each inode once */
    uint64_t bytes; /* of them */
    bool has_sums;  /* of every file */
    bool whole;     /* and of all bytes that are no file's */
    uint64_t problems;
};

/* What is wrong with the archive is reported and counted; an error is that of the run. */
int verify_run(struct pot *pot, struct reader *reader, const struct verify_options *options,
               struct fault *fault, struct verify_result *ret_result);

/*
 * Is there a trailer in this file that is worth nothing? To be asked before pot_open,
 * which then takes the archive for what it is without. 0: there is none, or it is right as
 * far as finding the index goes. Else an error with a fault.
 */
int verify_trailer(const char *path, struct fault *fault);

#endif
