/*
 * The files of a folder as one source: each is a member of a concatenation (source_concat.h).
 * A file is opened when bytes of it are read, and only some stay open, so that a folder may
 * have many more files than a process has descriptors.
 *
 * Each file must stay the one that was listed: its inode, length and time are compared when it
 * is opened and after each read. Reads of one that differs fail with -EREMCHG, and so do reads
 * of one that is gone. They never return other bytes, whoever may write to the folder: no
 * symbolic link is followed below it.
 *
 * It can't be mapped, as nothing would compare what is read through a mapping.
 */
#ifndef ONEPOT_SOURCE_FOLDER_H
#define ONEPOT_SOURCE_FOLDER_H

#include <stddef.h>

#include "source.h"

struct source_folder_file {
    const char *path; /* below the folder */
    struct source_identity identity;
};

/*
 * At least one file, in this order. Messages call the folder `name`. Takes `folder_fd` over
 * (any descriptor of the folder), also if it fails. -ENOMEM, -EFBIG.
 */
int source_folder(int folder_fd, const char *name, const struct source_folder_file *files,
                  size_t count, struct source **ret_source);

#endif
