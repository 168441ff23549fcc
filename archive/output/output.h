/*
 * A file that gets its name only when it is complete. Until then it is called
 * NAME.XXXXXX.partial, in the same folder, and locked. output_discard removes it. A killed
 * process leaves only this partial file behind, for output_clean to remove.
 *
 *     output_open("train.onepot.tar", false, 0, &fault, &out);
 *     write to out->fd ...
 *     output_commit(out, true, &fault)  or  output_discard(out)
 *
 * The writer of a partial file holds a lock on it (flock), which the kernel releases however
 * the process ends. So a partial file that can be locked has no writer.
 *
 * On some network filesystems a lock holds on one node only, and the writer may be on another.
 * There a partial file must also have been unmodified for a while; until then it is only
 * reported. Ready and kept files are complete, and nobody writes to them.
 */
#ifndef ONEPOT_OUTPUT_H
#define ONEPOT_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "fault.h"
#include "file_id.h"

/* A partial file of NAME is called NAME.XXXXXX.partial, with six of these letters. */
#define PARTIAL_LETTERS "abcdefghijklmnopqrstuvwxyz234567"
#define PARTIAL_LETTER_COUNT 6u
#define PARTIAL_SUFFIX ".partial"
#define READY_SUFFIX ".ready" /* of a waiting shard; no longer than PARTIAL_SUFFIX */
#define KEPT_SUFFIX ".kept"   /* of what an interrupted run has written (output_keep) */
#define PARTIAL_EXTRA_LEN (1 + PARTIAL_LETTER_COUNT + sizeof(PARTIAL_SUFFIX) - 1)

/* Encode a number as six letters. */
void partial_letters(uint64_t number, char ret_letters[PARTIAL_LETTER_COUNT + 1]);

/* Does `name` belong to a partial, ready or kept file? If so, NAME is its first *ret_len bytes.
 */
bool partial_name_parse(const char *name, size_t *ret_len);

enum leftover {
    LEFTOVER_REMOVED,
    LEFTOVER_BUSY,    /* another process holds its lock */
    LEFTOVER_UNKNOWN, /* may still be written */
};

/* Which files, by the ends of their names. */
enum leftovers_kind {
    LEFTOVERS_ALL,
    LEFTOVERS_TO_RESUME, /* partial ones; kept files stay, and ready ones become kept files */
    LEFTOVERS_KEPT,
};

struct leftovers {
    enum leftovers_kind kind;
    /* Should partial files of this name (`len` bytes) be removed? */
    bool (*match)(const void *ctx, const char *name, size_t len);
    const void *match_ctx;
    /* Called for each match that belongs to this user; `name` is the partial file's. */
    void (*found)(void *ctx, enum leftover what, const char *name);
    void *ctx;
};

/* Search a folder and remove leftovers. Files that can't be examined are left alone. */
void leftovers_remove(int folder_fd, const struct leftovers *l);

struct output {
    int fd;        /* open for reading and writing; owned by the output */
    int folder_fd; /* O_PATH */
    bool overwrite;
    mode_t mode;      /* for creating it, less the umask */
    unsigned stripes; /* 0: as its folder has them */
    char *name;       /* final name, in that folder */
    char *partial_name;
    bool is_ready; /* has its waiting name: see output_ready */
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

/*
 * Rename the complete file to NAME.LETTERS.ready, where it waits for shard_exchange to give it
 * its name; with `sync`, after it reached the disk. From then on output_discard removes that
 * file.
 */
int output_ready(struct output *output, const char *letters, bool sync, struct fault *fault);

/*
 * Leave the file as NAME.XXXXXX.kept, for this user alone, until a later run has used it or
 * removes it as a leftover, and remove kept files of NAME that are not larger. The output is
 * freed, also on failure: then no file is left. A file that is ready stays as it is.
 */
int output_keep(struct output *output);

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
