/*
 * A file that gets its name only when it is complete. Until then it is called
 * NAME.XXXXXX.partial, in the same folder, and locked. output_discard removes it. A killed
 * process leaves only this partial file behind, for output_clean to remove.
 *
 *     output_open("train.onepot.tar", false, 0, &fault, &out);
 *     write to out->fd ...
 *     output_commit(out, true, &fault)  or  output_discard(out)
 */
#ifndef ONEPOT_OUTPUT_H
#define ONEPOT_OUTPUT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "fault.h"
#include "file_id.h"
#include "leftovers.h"

struct output {
    int fd;        /* open for reading and writing; owned by the output */
    int folder_fd; /* O_PATH */
    bool overwrite;
    mode_t mode;      /* for creating it, less the umask */
    unsigned stripes; /* 0: as its folder has them */
    char *name;       /* final name, in that folder */
    char *partial_name;
    /*
     * When it was created, by its filesystem's clock. output_ready and output_keep make this
     * its time of modification: a source that has changed since may differ from its copy there.
     * 0, by the caller: none of its files may be taken for its source.
     */
    int64_t begun_sec;
    struct file_id id;       /* of the new file */
    struct file_id replaced; /* of the file to be replaced; all zero: none */
};

/*
 * Remove what killed processes left of the file at `path`, or of all files in its folder that
 * how->match accepts, if it is set. Errors are ignored.
 */
void output_clean(const char *path, const struct leftovers *how);

/*
 * Create the partial file, on so many storage targets (stripes.h; 0: its folder's layout). An
 * existing final name is -EEXIST without `overwrite`, and always refused if it is not a regular
 * file. A symbolic link is followed, if the kernel lets this process do so.
 */
int output_open(const char *path, bool overwrite, unsigned stripes, struct fault *fault,
                struct output **ret_output);

/*
 * The same for onepot's own files. The file is created for this user alone and replaces
 * whatever has its name, even a symbolic link. Leftovers of it are removed.
 */
int output_open_own(const char *path, struct output **ret_output);

/* Is this the new file, or the one that it will replace? */
bool output_is(const struct output *output, struct file_id id);

/*
 * Rename the complete file to NAME.LETTERS.ready, where it waits for shard_exchange to give it
 * its name; with `sync`, after it reached the disk. From then on output_discard removes that
 * file.
 */
int output_ready(struct output *output, const char *letters, bool sync, struct fault *fault);

/*
 * Leave the file as NAME.XXXXXX.kept, for this user alone, until a later run has used it or
 * removes it as a leftover, and remove kept files of NAME that are not larger. The output is
 * freed, also on failure: then no file is left.
 */
int output_keep(struct output *output);

/* Free the output and leave the file under its present name. */
void output_release(struct output *output);

void output_sync_folder(int folder_fd);

/*
 * Give the file its name; with `sync`, only after its data reached the disk, and wait until
 * the name did too. The output is freed, also on failure: then no file is left.
 */
int output_commit(struct output *output, bool sync, struct fault *fault);

void output_discard(struct output *output); /* NULL is fine */

/*
 * The name of the first partial file, in its output's folder, that this process discarded and
 * could not remove; NULL: there is none.
 */
const char *output_left(void);

/*
 * Open a file without a name, accessible to this user alone, that vanishes with its last
 * descriptor. A descriptor for reading and writing, or -errno.
 */
int output_nameless(const char *folder);

#endif
