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

/*
 * As pack_run, for one source: the bytes of `fd` from its position on. `is_file`: it is no pipe
 * or the like; without a list of names and shards. `stop` is not used. A fault without a file
 * is about the output. -EUCLEAN: the input is damaged or cut off; -ENOMSG: it is nothing that
 * can be packed; -EINTR: a signal came. On failure no file is left.
 */
int pour_run(const struct pack_options *options, int fd, bool is_file, struct fault *fault,
             struct pack_result *ret_result);

#endif
