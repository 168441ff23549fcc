/*
 * Makes an onepot archive of what can only be read front to back: a stream (standard input, a
 * pipe), or a container that no back end reads (7z, rar, cpio ..). Nothing is extracted in
 * between: a child in the sandbox reads by libarchive and writes the archive, member by member,
 * in the order of the input. The file gets its name here, when the child has come to the end of
 * the input and of every sum in it.
 *
 * The input is untrusted, and so is the child. Its product is an archive like any other that
 * somebody made, and a report of limited length.
 */
#ifndef ONEPOT_POUR_H
#define ONEPOT_POUR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "fault.h"
#include "writer.h"

struct pour_options {
    int fd;           /* the input, from its position on */
    bool is_stream;   /* it can't be read elsewhere */
    const char *name; /* of it, for messages */
    const char *output;
    struct writer_options writer; /* without a pool */
    bool strict;                  /* the first member that is left out is an error */

    /* Is the member left out? Runs in the child. May be NULL. */
    bool (*excludes)(const void *ctx, const char *path, bool is_folder);
    const void *excludes_ctx;

    /* Called for each member that is left out, and for a remark (`is_note`). May be NULL. */
    void (*report)(void *ctx, bool is_note, const struct fault *what);
    void (*progress)(void *ctx, const char *doing, const struct progress *progress);
    void *ctx;
};

struct pour_result {
    struct writer_totals totals;
    uint64_t problems; /* members that were left out */
};

/*
 * A fault without a file is about the output. -EUCLEAN: the input is damaged or cut off;
 * -ENOMSG: it is nothing that can be packed; -EINTR: a signal came. On failure no file is left.
 */
int pour_run(const struct pour_options *options, struct fault *fault,
             struct pour_result *ret_result);

#endif
