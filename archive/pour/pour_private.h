/*
 * The parts of pour.c that the fuzzer drives.
 */
#ifndef ONEPOT_POUR_PRIVATE_H
#define ONEPOT_POUR_PRIVATE_H

#include <locale.h>
#include <sys/types.h>

#include "map.h"
#include "pour.h"
#include "selection.h"
#include "tar_members.h"
#include "backend.h"
#include "vector.h"

struct archive;
struct archive_entry;

typedef VECTOR(char) pour_text;

struct pour {
    const struct pack_options *options;
    int fd;                     /* the input, from its position on */
    bool is_file;               /* not a pipe or the like */
    struct selection selection; /* members that are left out */
    struct output *output;
    struct compress_pool *pool; /* NULL: the writer makes one */
    struct writer *writer;
    struct progress *progress;
    struct fault *fault;
    /* The bytes that libarchive gets, block by block, as struct tar_stream wants them. */
    int error;               /* of them; sticky */
    const char *compression; /* NULL: none */
    uint64_t given;          /* bytes that came out */
    struct pour_block {
        uint8_t *bytes;
        size_t len;
    } blocks[2], packed; /* the last is for a decompressor: NULL if there is none */
    struct decompressor *decompressor;
    int last;        /* the block that was read last */
    bool is_waiting; /* it was read to recognize the format, and is to be given again */
    bool is_at_end;
    locale_t locale; /* of UTF-8; 0: this system has none */
    int report_fd;
    struct pack_result result;
    uint64_t reported; /* faults, by the child to the parent, and by the parent to its caller */
    char note[sizeof((struct progress){0}.note)];
    int output_error; /* of the writer: the fault is not about the input */
    struct tar_oddities odd;
    pour_text path, target; /* of the current member, cleaned */
    /* Paths so far that are not ASCII, as they came, each with a NUL; where they lie there, by
     * what they become in NFC. */
    pour_text spellings;
    struct map spelling_of;
    struct map alike; /* paths that differ from an earlier one by normalization alone */
    char *first_alike[2];
    pax_xattrs xattrs;
};

void pour_free(struct pour *p);

struct pour_format {
    const char *name;
    int (*enable)(struct archive *a);
    bool seeks; /* its directory is at its end */
};

/* Packs the whole input, in the child. */
int pour_read(struct pour *p);

/* The child's report to the parent, in a file of just this size. */
#define POUR_REPORTS 200u

struct pour_report {
    struct pack_result result;
    struct fault alike; /* a note */
    uint64_t count;     /* of faults below */
    struct fault faults[POUR_REPORTS];
};

#endif
