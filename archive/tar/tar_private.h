/*
 * What the files of the tar back end share: telling a tar by its bytes (tar_probe.c),
 * handing a source to libarchive (tar_feed.c), the attributes of a member
 * (tar_attributes.c, tar_records.c), unpacking a compressed tar (tar_unpack.c, tar_gunzip.c),
 * reading one by its frames (tar_frames.c, tar_framed.c), and reading members (tar.c). All but
 * the first see libarchive.
 */
#ifndef ONEPOT_TAR_PRIVATE_H
#define ONEPOT_TAR_PRIVATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend.h"
#include "tar_frames.h"

#define TAR_BLOCK_BYTES 512u
#define TAR_TYPE_AT 156u /* in a header */

/* ---- tar_probe.c ---- */

/* Does a member's header start here? `block` has TAR_BLOCK_BYTES. */
bool tar_is_header(const uint8_t *block);

/* Only zeros. */
bool tar_is_zero(const uint8_t *bytes, size_t len);

/*
 * Are these the first bytes of a tar? `head_len` is 64 KB, or all there is. Zeros alone may be
 * one without members: whether more of them follow is seen when it is indexed.
 */
bool tar_probe_head(const uint8_t *head, size_t head_len);

int tar_probe(const struct source *source, const uint8_t *head, size_t head_len);
int tar_is_packed(const uint8_t *head, size_t head_len, const char **ret_compression);

/* ---- tar_records.c ---- */

/* Reads `len` bytes of the tar at `offset`: 0 or -errno. */
typedef int tar_read(const void *ctx, void *buf, size_t len, uint64_t offset);

/* Does the extended header of the member whose headers lie in [from, to) say "mtime=-..."? */
int tar_time_is_negative(tar_read *read, const void *ctx, uint64_t from, uint64_t to,
                         bool *ret_negative);

/*
 * Has the member more than one extended header, as some writers give it? Of these the last one
 * counts, which has to be in order here.
 */
int tar_repeats_extended(tar_read *read, const void *ctx, uint64_t from, uint64_t to,
                         bool *ret_repeats);

/* ---- tar_feed.c ---- */

struct archive;

/* Hands the bytes of a source to libarchive, out of its mapping where it has one. */
struct tar_feed {
    struct source *source;
    const uint8_t *map;
    uint8_t *buf;       /* without a map */
    uint64_t offset;    /* of the next byte to hand out */
    size_t next_bytes;  /* how much to read ahead without a map */
    size_t block_bytes; /* at most so much at once; 0: with a map all of it */
    int err;            /* -errno of the read that failed */
};

/*
 * Start at `offset` and connect to `a`. Returns 0, -ENOMEM, or -EUCLEAN when
 * libarchive does not know what it is given (its error string has the reason).
 */
int tar_feed_open(struct tar_feed *feed, struct source *source, uint64_t offset,
                  size_t block_bytes, struct archive *a);
void tar_feed_close(struct tar_feed *feed);

/* What libarchive complained about last, for a fault: never NULL. */
const char *tar_complaint(struct archive *a);

/* ---- tar_attributes.c ---- */

struct archive_entry;

#define TAR_NOBODY 65534 /* for owners that do not fit */

/* What was met that can't be shown as it is; for a remark at the end. */
struct tar_oddities {
    bool owners, xattrs, acls, members;
};

/* What global headers say of all members that say nothing themselves; starts as zeros. */
struct tar_globals {
    bool has_mtime, has_uid, has_gid;
    bool own_mtime, own_uid, own_gid; /* of the present member */
    bool has_others;                  /* records that are not applied */
    int64_t mtime_sec;
    uint32_t mtime_nsec;
    int64_t uid, gid;
};

/*
 * Take in the global headers among those of a member, which lie in [from, to), and give it
 * what they say. Errors of `read`; -ENOMEM; -EUCLEAN: a header that is too long.
 * (tar_records.c)
 */
int tar_apply_globals(struct tar_globals *globals, tar_read *read, const void *ctx,
                      uint64_t from, uint64_t to, struct builder_member *member,
                      struct tar_oddities *odd);

uint32_t tar_owner(int64_t id, struct tar_oddities *odd);
uint32_t tar_permissions(struct archive_entry *entry);
void tar_mtime(struct archive_entry *entry, struct builder_member *member);
/* Extended attributes and access lists. -ENOMEM, -EUCLEAN. */
int tar_add_attributes(struct archive_entry *entry, struct builder *builder, uint32_t inode,
                       struct tar_oddities *odd);

/* ---- tar_framed.c ---- */

struct tar_framed;

int tar_framed_new(struct source *source, const char *compression, struct builder *builder,
                   struct progress *progress, struct fault *fault,
                   struct tar_framed **ret_framed);
void tar_framed_free(struct tar_framed *framed); /* NULL is fine */
/* Connect to `a`; as tar_feed_open. */
int tar_framed_open(struct tar_framed *framed, struct archive *a);
/* -errno of the frame that could not be read; its fault is set. */
int tar_framed_error(const struct tar_framed *framed);
uint64_t tar_framed_bytes(const struct tar_framed *framed); /* of the tar, so far */
int tar_framed_read(const struct tar_framed *framed, void *buf, size_t len, uint64_t offset);
/* [offset, offset + length) of the tar are bytes of this file (DATA_BLOCKS), ascending. */
int tar_framed_add(struct tar_framed *framed, uint32_t inode, uint64_t offset, uint64_t length,
                   uint64_t file_offset);
/* All that was added has been read: tell the builder. */
int tar_framed_settle(struct tar_framed *framed);
/* After the last member. -ENOTSUP: it is no file of frames after all. */
int tar_framed_finish(struct tar_framed *framed, struct builder_header *header);

/* ---- tar_gunzip.c ---- */

/* The next bytes of what is unpacked; so far the archive was read up to `offset`. 0 or -errno.
 */
typedef int tar_take(void *ctx, const void *bytes, size_t len, uint64_t offset);

/*
 * All that is in a gzip file, one piece after the other, all sums compared. -EUCLEAN with a
 * fault; -ENOSYS: not in this build.
 */
int tar_gunzip(struct source *source, struct progress *progress, tar_take *take, void *ctx,
               struct fault *fault);

/* ---- tar_unpack.c ---- */

int tar_unpack(struct source *source, int fd, uint64_t kept, uint64_t most,
               struct progress *progress, struct fault *fault);

#endif
