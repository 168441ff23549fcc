/*
 * Members of a tar that is read once, front to back, with their data; and what other rooms that
 * use libarchive share with this one.
 *
 * Checks, omissions and attributes are as for a tar that is indexed (tar.c). A stream has no
 * size, so a missing end-of-archive marker is an error: nothing else tells that it is complete.
 */
#ifndef ONEPOT_TAR_MEMBERS_H
#define ONEPOT_TAR_MEMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "backend.h"
#include "builder.h"
#include "fault.h"

struct archive;
struct archive_entry;

/* Kinds of things found that can't be shown as they are; for a remark at the end. */
struct tar_oddities {
    bool owners, acls;
};

/*
 * The bytes of the tar, one block after another. A block is valid until the next but one is
 * read, so that the headers of a member can be looked at again.
 */
struct tar_stream {
    ssize_t (*next)(struct archive *a, void *ctx, const void **ret_bytes);
    const int *error; /* -errno of `next`, whose fault is set; or 0 */
    /*
     * Gets the members; NULL: the builder does. An error that builder_may_leave_out leaves the
     * member out. The data can be read from `a`, and need not be. Path and target of a hard
     * link are raw, and the attributes are still in the entry.
     */
    int (*add)(void *ctx, const struct node *member, struct archive *a,
               struct archive_entry *entry, struct fault *fault);
    int (*leave_out)(void *ctx, const struct fault *why);
    void *ctx;
};

/*
 * Passes on all members, and reads the stream to its end, so that who writes it is not cut off.
 * `ignores_zeros`: also the members behind end-of-archive marks, which are left out else.
 * -EUCLEAN: damaged, or cut off; errors of the stream and the taker.
 */
int tar_take_members(const struct tar_stream *stream, bool ignores_zeros,
                     struct progress *progress, struct fault *fault);

/*
 * Are these the first bytes of a tar? `head_len` is 64 KB, or the whole file's length if that
 * is less. Zeros alone may be a tar without members; indexing then finds out whether only zeros
 * follow.
 */
bool tar_probe_head(const uint8_t *head, size_t head_len);

/* "gzip", "xz" and so on, if the first bytes are of such a stream: 1 or 0. */
int tar_is_packed(const struct source *source, const uint8_t *head, size_t head_len,
                  const char **ret_compression);

/* libarchive's last complaint, for a fault; never NULL. */
const char *tar_complaint(struct archive *a);

/* ---- attributes of a member ---- */

/* Fills in permissions (as of a regular file), owners and time. */
void tar_describe(struct archive_entry *entry, struct node *member, struct tar_oddities *odd);

/*
 * Fills in the type, device numbers and target. What is no regular file has no data. -EINVAL: a
 * symbolic link without a target; -ENOTSUP: a type that no directory has.
 */
int tar_describe_type(struct archive_entry *entry, struct node *member);

/* Passes on extended attributes, by name, then access lists. -ENOMEM, -EUCLEAN, `take`'s. */
typedef int tar_take_attribute(void *ctx, const char *name, const void *value, size_t len);
int tar_take_attributes(struct archive_entry *entry, tar_take_attribute *take, void *ctx,
                        struct tar_oddities *odd);

#endif
