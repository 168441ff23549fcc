/*
 * Shared by the files of the tar back end:
 *
 *   tar_probe.c                        recognizes a tar by its bytes
 *   tar_frames.c                       reads a compressed tar by its frames, or unpacks it
 *   tar.c                              reads members
 *
 * All but tar_probe.c see libarchive.
 */
#ifndef ONEPOT_TAR_PRIVATE_H
#define ONEPOT_TAR_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "tar_members.h"

#define TAR_BLOCK_BYTES 512u
#define TAR_TYPE_AT 156u /* in a header */

/* ---- tar_probe.c ---- */

/* Does a member's header start here? `block` is TAR_BLOCK_BYTES long. */
bool tar_is_header(const uint8_t *block);

/* How many bytes belong to this header. Less than 2^62. */
uint64_t tar_size(const uint8_t *header);

/* Where the next header lies behind this one, which is at `at`. */
static inline uint64_t tar_next(const uint8_t *header, uint64_t at)
{
    return at + TAR_BLOCK_BYTES +
           ((tar_size(header) + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1));
}

/* Are all bytes zero? */
bool tar_is_zero(const uint8_t *bytes, size_t len);

int tar_probe(const struct source *source, const uint8_t *head, size_t head_len);
int tar_find_behind(const struct front *front, uint64_t *ret_offset);
bool tar_is_whole(const struct source *source, bool by_end);
bool tar_continues(const struct source *source, const struct source *next, bool is_split);

/*
 * check_end of struct backend_trailer: without an end-of-archive marker a tar may have been cut
 * off between two members, which tar programs take for its end.
 */
int tar_check_end(const struct archive_end *end);

/* ---- tar_records.c ---- */

/* Facts of a member's extended headers that libarchive does not report. */
struct tar_facts {
    unsigned headers;       /* how many; some writers produce two, and the last one counts, */
    bool is_sound;          /* unless this one is malformed */
    bool has_negative_time; /* "mtime=-..." */
    bool stores_holes;      /* Solaris' holes, which are stored as zeros */
};

/* ---- tar.c ---- */

struct archive;

/* Hands the bytes of a source to libarchive, straight from its mapping if it has one. */
struct tar_feed {
    struct source *source;
    const uint8_t *map;
    uint8_t *buf;       /* only without a map */
    uint64_t offset;    /* of the next byte to hand out */
    size_t next_bytes;  /* how much to read ahead without a map */
    size_t block_bytes; /* most bytes in one call; 0: with a map, the whole file */
    int err;            /* -errno of the read that failed */
};

/*
 * Starts at `offset` and connects to `a`. Returns 0, -ENOMEM, or -EUCLEAN when libarchive does
 * not recognize the data (its error string has the reason).
 */
int tar_feed_open(struct tar_feed *feed, struct source *source, uint64_t offset,
                  size_t block_bytes, struct archive *a);
void tar_feed_close(struct tar_feed *feed);

/* ---- tar_attributes.c ---- */

#define TAR_NOBODY 65534 /* for owners that do not fit in 32 bits */

/* Values from global headers, for all members without their own. Starts as zeros. */
struct tar_globals {
    bool has_mtime, has_uid, has_gid;
    bool own_mtime, own_uid, own_gid; /* the current member has its own */
    bool has_others;                  /* records that are not applied */
    int64_t mtime_sec;
    uint32_t mtime_nsec;
    int64_t uid, gid;
};

/* ---- tar_frames.c ---- */

struct tar_framed;

/*
 * `compression` is the file's: "zstd", "gzip", "bzip2" or "xz". The helpers, which may be NULL,
 * helps with the last two. -ENOTSUP: frames of other formats can't be found, or the library is
 * not built in. `left_bytes` as in backend.h.
 */
int tar_framed_new(struct source *source, const char *compression, struct helpers *helpers,
                   uint64_t *left_bytes, struct builder *builder, struct progress *progress,
                   struct fault *fault, struct tar_framed **ret_framed);
void tar_framed_free(struct tar_framed *framed); /* NULL is fine */
/* The tar in the frames. */
struct tar_stream tar_framed_stream(struct tar_framed *framed);
/* builder_set_pieces for pieces of the tar (at source_offset), which must have been read. */
int tar_framed_set_pieces(struct tar_framed *framed, uint32_t inode,
                          const struct builder_piece *pieces, size_t count);
/* Call after the last member. -ENOTSUP: the file can't be read by frames after all. */
int tar_framed_finish(struct tar_framed *framed, struct builder_header *header);

int tar_unpack(struct source *source, int fd, uint64_t kept, uint64_t most,
               struct progress *progress, struct fault *fault);

#endif
