/*
 * Shared by the files of the pot. pot.c opens an archive, pot_notes.c reports to the user,
 * saved_index.c keeps indexes on disk, unpacked.c unpacks archives compressed as a whole.
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

/* Memory that may be used now: what the node has available, within what the caller allows. */
uint64_t pot_memory_bytes(const struct pot_options *options);

/* ---- unpacked.c ---- */

/*
 * Unpack `packed` into a private file and open that. Fault and error are those of the back
 * end; -ENOSPC: it fits nowhere.
 */
int unpacked_open(const struct backend *backend, struct source *packed, const char *compression,
                  const struct pot_options *options, struct fault *fault,
                  struct source **ret_source);

/* How many bytes other than zeros the options allow a stream to hold. */
uint64_t unpacked_most(const struct source *packed, const struct pot_options *options);

/* Sums of the whole unpacked content, for its index. In the child, whose end frees them. */
int unpacked_sums(struct source *source, struct builder_header *header,
                  struct progress *progress);

/* Memory for unpacking, besides the room for the output. */
#define UNPACK_MEMORY_BYTES (UINT64_C(3) << 30) /* xz and zstd may want large windows */

/* ---- saved_index.c ---- */

/* Properties of an archive that an index must state to be used for it. */
struct saved_key {
    enum format format;
    const struct source *source;
    struct source_identity identity;
    uint64_t archive_bytes; /* that the index describes: not the file's if unpacked */
    bool is_stream; /* the index may describe a stream's content, of any size, if it has sums of
                       it */
    bool has_fingerprint; /* it is computed only when needed */
    uint64_t fingerprint;
};

/* Compute the fingerprint, unless that was done already. */
int saved_key_fingerprint(struct saved_key *key);

/*
 * A saved index that still describes the archive, and its path (caller frees). -ENOENT: there
 * is none, whatever the reason.
 */
int saved_index_find(const char *archive, struct saved_key *key,
                     const struct pot_options *options, struct index **ret_index,
                     char **ret_path);

/*
 * Save the image in `fd` beside the archive, else in the cache folder. *ret_fd is the file
 * written, even if its path leads elsewhere by then. If both fail, the fault names both
 * reasons.
 */
int saved_index_write(const char *archive, const struct source *source, int fd,
                      uint64_t image_bytes, struct fault *fault, char **ret_path, int *ret_fd);

#endif
