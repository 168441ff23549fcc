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

#include <stdbool.h>
#include <stdint.h>

#include "fault.h"
#include "pack.h"

struct pour_input {
    int fd;             /* from its position on */
    bool is_file;       /* not a pipe or the like */
    bool ignores_zeros; /* of a tar: read on behind end-of-archive marks */
};

/*
 * As pack_run, for one source, which has this input; without a list of names and shards.
 * `stop` is not used. A fault without a file is about the output. -EUCLEAN: the input is
 * damaged or cut off; -ENOMSG: it is nothing that can be packed; -EINTR: a signal came. On
 * failure no file is left.
 */
int pour_run(const struct pack_options *options, const struct pour_input *input,
             struct fault *fault, struct pack_result *ret_result);

#endif
