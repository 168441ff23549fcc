/*
 * Shared by the files of the pot. pot.c opens an archive; saved_index.c, built_index.c and
 * unpacked.c are its ways to an index; pot_notes.c reports to the user.
 */
#ifndef ONEPOT_POT_PRIVATE_H
#define ONEPOT_POT_PRIVATE_H

#include "pot.h"

/* ---- pot_notes.c ---- */

/* A line for the user: "PATH: ...". */
void pot_note(const struct pot_options *options, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same for a fault. */
void pot_note_fault(const struct pot_options *options, const char *path,
                    const struct fault *fault);

/* One line on the members that the index lacks, if there are any. */
void pot_note_left_out(const struct pot_options *options, const struct pot *pot);

/* sandbox_run, showing the progress as `doing` and the child's remark as a note. */
int pot_run(const struct pot_options *options, const char *path, const char *doing,
            int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
            const struct sandbox_limits *limits, struct fault *fault);

/* ---- pot.c ---- */

/* The pot while it is being opened: what its openers know and leave for one another. */
struct opening {
    struct pot *pot;
    const struct pot_options *options;
    const char *compression;    /* of pot->source as a whole; NULL: none */
    struct index *stream_index; /* of the content of pot->source, which is one stream */
    uint64_t unpack_ms;         /* that unpacking took */
    bool has_fingerprint;       /* of the archive file: it is computed only when needed */
    uint64_t fingerprint;
};

/*
 * One way to open an archive. 0: pot->index is open. OPENER_NOT_MINE: the archive is not opened
 * in this way; the next opener tries, with what this one found out. Else -errno and maybe a
 * fault. A fault does not count without an error.
 */
typedef int opener(struct opening *o, struct fault *fault);
#define OPENER_NOT_MINE 1

/* The archive file, packed or not. */
static inline struct source *pot_file(const struct pot *pot)
{
    return pot->packed ? pot->packed : pot->source;
}

/*
 * Check that the archive size in the index is not more than the file's, as the index's ranges
 * are checked against it.
 */
int pot_check_index(const struct pot *pot, struct fault *fault);

/* ---- built_index.c ---- */

/* Make an index of the frames of a compressed file. */
opener built_index_of_frames;

/* Make an index of the source. Never OPENER_NOT_MINE. */
opener built_index_open;

/* Memory that may be used now: what the job has available, within what the caller allows. */
uint64_t pot_memory_bytes(const struct pot_options *options);

/* ---- unpacked.c ---- */

/*
 * Unpack a file that is compressed as a whole, and put its content in place of the source, for
 * the openers that follow.
 */
opener unpacked_open;

/*
 * Use o->stream_index, which is that of the stream's content, and leave it to the store to
 * unpack the stream while it is read.
 */
opener unpacked_open_stream;

/* Sums of the whole unpacked content, for its index. In the child, whose end frees them. */
int unpacked_sums(struct source *source, struct builder_header *header,
                  struct progress *progress);

/* ---- saved_index.c ---- */

/* Compute the fingerprint, unless that was done already. */
int opening_fingerprint(struct opening *o);

/*
 * Use a saved index that still describes the archive. One of the content of a stream is left
 * in o->stream_index.
 */
opener saved_index_open;

/*
 * Save the image in `fd` beside the archive, else in the cache folder. *ret_fd is the file
 * written, even if its path leads elsewhere by then. If both fail, the fault names both
 * reasons.
 */
int saved_index_write(const char *archive, const struct source *source, int fd,
                      uint64_t image_bytes, struct fault *fault, char **ret_path, int *ret_fd);

#endif
