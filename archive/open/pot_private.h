/*
 * What the files of the pot share: pot.c opens an archive, pot_notes.c tells what it does,
 * saved_index.c keeps indexes on disk, unpacked.c unpacks what is compressed as a whole.
 */
#ifndef ONEPOT_POT_PRIVATE_H
#define ONEPOT_POT_PRIVATE_H

#include "pot.h"

/* ---- pot_notes.c ---- */

/* A line for the person: "PATH: ...". */
void pot_note(const struct pot_options *options, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same, of a fault. */
void pot_note_fault(const struct pot_options *options, const char *path,
                    const struct fault *fault);

/* One line on the members that its index does not have, if there are any. */
void pot_note_left_out(const struct pot_options *options, const struct pot *pot);

/* sandbox_run, with the progress shown as `doing` and a remark of the child as a note. */
int pot_run(const struct pot_options *options, const char *path, const char *doing,
            int (*fn)(void *arg, struct progress *progress, struct fault *fault), void *arg,
            const struct sandbox_limits *limits, struct fault *fault);

/* ---- pot.c ---- */

/* Memory that may be used now: of the node, within what the caller allows. */
uint64_t pot_memory_bytes(const struct pot_options *options);

/* ---- unpacked.c ---- */

/*
 * Unpack `packed` into a private file and open that. A fault and an error are those of
 * the back end, or -ENOSPC when it fits nowhere.
 */
int unpacked_open(const struct backend *backend, struct source *packed, const char *compression,
                  const struct pot_options *options, struct fault *fault,
                  struct source **ret_source);

/* How many bytes, zeros left out, the options allow a stream to hold. */
uint64_t unpacked_most(const struct source *packed, const struct pot_options *options);

/* Sums of all that was unpacked, for its index; in the child, whose end frees them. */
int unpacked_sums(struct source *source, struct builder_header *header,
                  struct progress *progress);

/* What unpacking may take, beside the room for what comes out. */
#define UNPACK_MEMORY_BYTES (UINT64_C(3) << 30) /* xz and zstd may want large windows */

/* ---- saved_index.c ---- */

/* What an index has to say of its archive to be used for it. */
struct saved_key {
    enum format format;
    const struct source *source;
    struct source_identity identity;
    uint64_t archive_bytes; /* that the index speaks of: other than the file's if unpacked */
    bool is_stream;         /* it may speak of what is inside, however much: it has its sums */
    bool has_fingerprint;   /* it is only made when it is needed */
    uint64_t fingerprint;
};

/* Make the fingerprint, if that was not done yet. */
int saved_key_fingerprint(struct saved_key *key);

/*
 * A saved index that still describes the archive, and where it lies (caller frees).
 * -ENOENT when there is none, whatever the reason.
 */
int saved_index_find(const char *archive, struct saved_key *key,
                     const struct pot_options *options, struct index **ret_index,
                     char **ret_path);

/*
 * Save the image in `fd` beside the archive, else in the cache folder; *ret_fd is the file that
 * was written, whatever its path leads to by then. A fault that names both reasons when neither
 * can be done.
 */
int saved_index_write(const char *archive, const struct source *source, int fd,
                      uint64_t image_bytes, struct fault *fault, char **ret_path, int *ret_fd);

#endif
