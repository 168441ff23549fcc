/*
 * A file that appears under its name only when it is complete. Until then it is
 * called NAME.XXXXXX.partial, in the same folder, and locked; output_discard removes that,
 * and a process that is killed leaves only it behind, for output_clean.
 *
 *     output_open("train.onepot.tar", false, &fault, &out);
 *     write to out->fd ...
 *     output_commit(out, true, &fault)  or  output_discard(out)
 */
#ifndef ONEPOT_OUTPUT_H
#define ONEPOT_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fault.h"
#include "leftovers.h"

struct output {
    int fd;        /* open for reading and writing; owned by the output */
    int folder_fd; /* O_PATH */
    bool overwrite;
    mode_t mode; /* that it is made with, less the umask */
    char *name;  /* the final one, in that folder */
    char *partial_name;
    uint64_t dev; /* of the new file */
    uint64_t ino;
    uint64_t replaced_ino; /* of the file (on the same device) to be replaced; 0: none */
};

/*
 * Remove what killed processes left of the file at `path`, or of all files in its folder for
 * which how->match, if there is one, says so. Nothing that goes wrong matters.
 */
void output_clean(const char *path, const struct leftovers *how);

/*
 * Create the partial file. A final name that exists is -EEXIST without `overwrite`,
 * and refused in any case where it is no regular file; a symbolic link is followed.
 */
int output_open(const char *path, bool overwrite, struct fault *fault,
                struct output **ret_output);

/*
 * The same for a file that onepot keeps for itself: it is made for the user alone and replaces
 * whatever has its name, a symbolic link too. What killed processes left of it is removed.
 */
int output_open_own(const char *path, struct output **ret_output);

/*
 * The file is complete, and waits as NAME.LETTERS.ready for shard_exchange to give it its name;
 * with `sync`, after it reached the disk. From then on output_discard removes that.
 */
int output_ready(struct output *output, const char *letters, bool sync, struct fault *fault);

/* Let the file be called as it is called now. */
void output_release(struct output *output);

void output_sync_folder(int folder_fd);

/*
 * Give the file its name; with `sync`, after it reached the disk, and so did its name.
 * The output is freed, also on failure: then no file is left.
 */
int output_commit(struct output *output, bool sync, struct fault *fault);

void output_discard(struct output *output); /* NULL is fine */

#endif
