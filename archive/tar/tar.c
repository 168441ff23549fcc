/*
 * The tar back end: libarchive reads the headers, the builder gets the members.
 *
 * A member's data is never read. libarchive reports where it starts (the number of bytes
 * consumed right after its header) and which ranges of a sparse file it holds, in order. Their
 * sum has to lead to the next header, and that is checked for each member. So a map of holes
 * that libarchive reads differently from what its writer meant is an error, never wrong data.
 *
 * Several tars may be joined to one file (cat). Each is read by an archive of libarchive of its
 * own, from the header behind the last one's end on. Without --ignore-zeros the members behind
 * the first end are only counted, as left out.
 *
 * A member that can't be shown (a hard link to a missing file, a name of 300 bytes, a member
 * below a file, an extended header that makes no sense) is left out. Programs that extract do
 * the same: they complain, extract the rest, and fail at the end. The index records what was
 * left out and why. Damage to the tar itself (a bad header, data that ends too early) fails the
 * whole archive, because nothing behind it is known. One exception: where GNU tar continues on
 * another volume (-M), the file ends in the data of a member, with a whole record. Only that
 * member is left out.
 *
 * Names are bytes. In any locale but "C", libarchive converts the names in pax headers from
 * UTF-8 to the locale's charset and composes accents (Unicode form C). In the C locale it can
 * convert only ASCII, which changes nothing, and leaves other names as they are, with a
 * warning. So members are read in the C locale, whatever the caller has set, and that warning
 * is no error.
 */
#include "tar_private.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <archive.h>
#include <archive_entry.h>

#include "cleanup.h"
#include "numbers.h"
#include "source.h"
#include "vector.h"

enum {
    RECORD_BYTES = 20 * TAR_BLOCK_BYTES, /* tar's default */
    PROGRESS_MEMBERS = 64,               /* members between two reports of progress */
    TAIL_SEARCH_BYTES = 64 << 10,        /* read at once to pass zeros */
    PADDING_MOST = 64 << 20, /* zeros behind an end marker that members may follow */
};

/* A block of a stream. */
struct tar_block {
    const uint8_t *bytes;
    size_t len;
    uint64_t start; /* in the tar */
};

/* One walk over an archive. */
struct walk {
    struct source *source;
    uint64_t size_bytes;
    struct archive *archive;
    struct archive_entry *entry;
    struct tar_feed feed;
    /* Only its last bytes can be read again. NULL: the source is the tar itself. */
    const struct tar_stream *stream;
    struct tar_block kept[2];      /* the stream's last block, behind the one before it */
    uint64_t given;                /* bytes of the stream so far */
    uint64_t again;                /* from here on they are given again; `given`: none are */
    struct tar_framed *framed;     /* finds the stream's bytes in the file; or NULL */
    const struct tar_taker *taker; /* who gets the members of a stream, not the builder */
    struct builder *builder;
    struct progress *progress;
    struct fault *fault;
    uint64_t base;     /* where the tar begins that libarchive reads: one of several joined */
    uint64_t expected; /* where the next header must start */
    uint64_t astray; /* the end, behind extended headers without a member; 0: there are none */
    uint64_t members;
    uint32_t inode;                /* of the current member */
    bool is_cut;                   /* the last member's data continues in another volume */
    bool is_odd;                   /* libarchive can't read all that the member's headers say */
    bool ignores_zeros, is_behind; /* members behind an end marker are added, or counted */
    bool has_joined;               /* there were such, and they were added */
    uint64_t behind_count;         /* that were counted; the first: */
    struct fault behind;
    bool waits; /* `pieces`, which are in frames, for the next header */
    char last[sizeof((struct fault){0}.member)]; /* the last member read, for messages */
    VECTOR(struct builder_piece) pieces;         /* of the current member */
    struct tar_oddities odd;
    struct tar_globals globals;
};

/* How far libarchive has read, and where the last header begins, in all of the tar. */
static uint64_t tar_walk_at(const struct walk *w)
{
    return w->astray ? w->astray : w->base + (uint64_t)archive_filter_bytes(w->archive, 0);
}

static uint64_t tar_walk_header_at(const struct walk *w)
{
    return w->base + (uint64_t)archive_read_header_position(w->archive);
}

/* The result of looking at a member's headers, which may fill whole frames and be gone. */
static int tar_walk_unless_gone(const struct walk *w, int r)
{
    return r == -ENODATA && w->stream ? 0 : r;
}

/* ---- messages ---- */

static void tar_walk_remark(struct walk *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Appends a remark, as far as it fits. */
static void tar_walk_remark(struct walk *w, const char *format, ...)
{
    char *text = w->progress->note;
    size_t size = sizeof(w->progress->note), len = strnlen(text, size - 1);
    if (len && len + 2 < size) {
        memcpy(text + len, "; ", 3);
        len += 2;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(text + len, size - len, format, args);
    va_end(args);
}

/* `what` stands where the next header should be. */
static int tar_walk_header_fault(struct walk *w, const char *what)
{
    return fault_set_advised(w->fault, -EUCLEAN, w->last, w->expected,
                             "make the archive again, or copy it again", "%s %s",
                             w->members ? "is followed by" : "begins with", what);
}

/* Words of libarchive's for headers that are sound, and more than it takes. */
static bool tar_walk_is_limit(const struct walk *w)
{
    return strncmp(tar_complaint(w->archive), "Special header too large", 24) == 0 ||
           strncmp(tar_complaint(w->archive), "Too many special headers", 24) == 0;
}

static int tar_walk_damaged_header(struct walk *w)
{
    char what[192];
    if (tar_walk_is_limit(w))
        return fault_set_advised(
            w->fault, -ENOTSUP, w->last, w->expected,
            "unpack it by tar and pack that, or make it by 'tar --format=gnu'",
            "%s extended headers that are longer than %s allows",
            w->members ? "is followed by" : "begins with", archive_version_string());
    snprintf(what, sizeof(what), "a damaged header (%s)", tar_complaint(w->archive));
    return tar_walk_header_fault(w, what);
}

static int tar_walk_member_fault(struct walk *w, int err, const char *what)
{
    return fault_set(w->fault, err, w->last, tar_walk_header_at(w), "%s", what);
}

/* libarchive could not go on; `status` is its result. */
static int tar_walk_read_fault(struct walk *w, int status)
{
    int err = w->stream ? *w->stream->error : 0;
    if (err < 0 && w->framed && w->fault && w->fault->err && !w->fault->member[0])
        memcpy(w->fault->member, w->last, sizeof(w->fault->member));
    if (err < 0)
        return err;
    if (w->stream)
        w->size_bytes = w->given;
    if (w->feed.err < 0)
        return fault_set_read(w->fault, w->feed.err, w->last, w->feed.offset);
    if (archive_errno(w->archive) == ENOMEM)
        return -ENOMEM;
    if (w->expected + TAR_BLOCK_BYTES > w->size_bytes)
        return fault_set_advised(w->fault, -EUCLEAN, w->last, w->size_bytes,
                                 "make the archive again, or copy it again",
                                 "the archive is truncated%s",
                                 w->members ? " after this member" : "");
    return status == ARCHIVE_RETRY
               ? tar_walk_header_fault(w, "something other than a tar header")
               : tar_walk_damaged_header(w);
}

/* ---- data ---- */

/* Finds where the member's data lies in the tar, and how much there is: w->pieces. */
static int tar_walk_find_pieces(struct walk *w, const struct builder_member *member,
                                uint64_t *ret_stored)
{
    struct builder_piece piece = {.length = member->size_bytes,
                                  .source_offset = member->data_offset,
                                  .block = BUILDER_NO_BLOCK};
    la_int64_t offset, length;
    int r = 0;
    w->pieces.count = 0;
    *ret_stored = member->size_bytes;
    if (member->data != DATA_PIECES)
        return piece.length ? vector_push(&w->pieces, piece) : 0;
    archive_entry_sparse_reset(w->entry);
    while (r == 0 && archive_entry_sparse_next(w->entry, &offset, &length) == ARCHIVE_OK) {
        piece.offset = (uint64_t)offset;
        piece.length = (uint64_t)length;
        if (length > 0) /* GNU tar marks the file's size with an empty range */
            r = vector_push(&w->pieces, piece);
        piece.source_offset += piece.length;
    }
    *ret_stored = piece.source_offset - member->data_offset; /* no overlaps: below 2^63 */
    return r;
}

/* Where the member's data ends, not counting holes. Checked before the member is added. */
static int tar_walk_find_data_end(struct walk *w, const struct builder_member *member,
                                  uint64_t stored, uint64_t *ret_end)
{
    uint64_t end;
    if (__builtin_add_overflow(member->data_offset, stored, &end))
        end = UINT64_MAX;
    w->is_cut = end > w->size_bytes && w->size_bytes % RECORD_BYTES == 0 && !w->stream;
    if (w->is_cut)
        return fault_set(w->fault, -EXDEV, w->last, member->header_offset,
                         "is cut off by the end of the archive, which has %" PRIu64
                         " of its %" PRIu64 " bytes: this is the first volume of a tar of "
                         "several (tar -M), or was not copied to its end",
                         w->size_bytes - member->data_offset, stored);
    if (end > w->size_bytes)
        return fault_set(w->fault, -EUCLEAN, w->last, member->header_offset,
                         "the archive is truncated in this member: it has %" PRIu64
                         " bytes of data, and %" PRIu64 " are left",
                         stored, w->size_bytes - member->data_offset);
    *ret_end = end;
    return 0;
}

/* Passes on the pieces. In frames their places are known when they were read. */
static int tar_walk_set_pieces(struct walk *w)
{
    w->waits = w->framed && w->pieces.count > 0;
    int r =
        w->waits ? 0 : builder_set_pieces(w->builder, w->inode, w->pieces.at, w->pieces.count);
    return r == -EUCLEAN ? tar_walk_member_fault(w, r, "its map of holes makes no sense") : r;
}

/* ---- members ---- */

static int tar_walk_take_attribute(void *ctx, const char *name, const void *value, size_t len)
{
    const struct walk *w = ctx;
    return builder_add_xattr(w->builder, w->inode, name, strlen(name), value, len);
}

static int tar_walk_add_named(struct walk *w, const char *path, struct builder_member *member)
{
    if (w->taker)
        return w->taker->add(w->taker->ctx, path, member, w->archive, w->entry, w->fault);
    if (w->framed && S_ISREG(member->mode) && w->pieces.count > 0)
        member->data = DATA_PIECES;
    else if (w->framed)
        member->data_offset = 0; /* an offset in the tar is not one in the file */
    int r = builder_add(w->builder, path, strlen(path), member, w->fault, &w->inode);
    if (r == 0 && member->data == DATA_PIECES)
        r = tar_walk_set_pieces(w);
    if (r == 0)
        r = tar_take_attributes(w->entry, tar_walk_take_attribute, w, &w->odd);
    return r;
}

/*
 * Adds a hard link. If it carries data (pax allows that), the data equals its target's and is
 * needed only when the target is not in the archive.
 */
static int tar_walk_add_link(struct walk *w, const char *path, const char *target,
                             struct builder_member *member)
{
    int r = w->taker ? w->taker->link(w->taker->ctx, path, target, member, w->fault)
                     : builder_link(w->builder, path, strlen(path), target, strlen(target),
                                    member->header_offset, w->fault, &w->inode);
    if (r == -ENOENT && member->size_bytes > 0) {
        *w->fault = (struct fault){0};
        return tar_walk_add_named(w, path, member);
    }
    return r;
}

/* For libarchive: the stream's next block, which is kept with the one before it. */
static ssize_t tar_walk_next_block(struct archive *a, void *ctx, const void **ret_bytes)
{
    struct walk *w = ctx;
    *ret_bytes = NULL;
    for (const struct tar_block *b = w->kept; b < w->kept + 2; b++) {
        if (w->again < b->start || w->again - b->start >= b->len)
            continue;
        size_t skip = (size_t)(w->again - b->start);
        w->again = b->start + b->len;
        *ret_bytes = b->bytes + skip;
        return (ssize_t)(b->len - skip);
    }
    ssize_t len = w->stream->next(a, w->stream->ctx, ret_bytes);
    w->kept[0] = w->kept[1];
    w->kept[1] = (struct tar_block){*ret_bytes, len > 0 ? (size_t)len : 0, w->given};
    w->again = w->given += w->kept[1].len;
    return len;
}

/* Bytes near the end of the blocks so far; -ENODATA: others. */
static int tar_walk_read_again(const struct walk *w, uint8_t *to, size_t len, uint64_t offset)
{
    for (const struct tar_block *b = w->kept; b < w->kept + 2; b++) {
        if (offset < b->start || offset - b->start >= b->len)
            continue;
        size_t at = (size_t)(offset - b->start), n = (size_t)min_u64(b->len - at, len);
        memcpy(to, b->bytes + at, n);
        to += n;
        len -= n;
        offset += n;
    }
    return len ? -ENODATA : 0;
}

/* tar_read. */
static int tar_walk_read_tar(const void *ctx, void *buf, size_t len, uint64_t offset)
{
    const struct walk *w = ctx;
    if (w->feed.map && offset <= w->size_bytes && len <= w->size_bytes - offset) {
        memcpy(buf, w->feed.map + offset, len);
        return 0;
    }
    return w->stream ? tar_walk_read_again(w, buf, len, offset)
                     : source_read(w->source, buf, len, offset);
}

/* The type in the member's own header; 0: it can't be read again. */
static uint8_t tar_walk_header_type(const struct walk *w, const struct builder_member *member)
{
    uint8_t header[TAR_BLOCK_BYTES];
    return member->data_offset >= sizeof(header) &&
                   tar_walk_read_tar(w, header, sizeof(header),
                                     member->data_offset - sizeof(header)) == 0
               ? header[TAR_TYPE_AT]
               : 0;
}

/*
 * A member of a type that the system lacks: the rest of a file that GNU tar began in an earlier
 * volume, or an unknown type.
 */
static int tar_walk_add_other(struct walk *w, const struct builder_member *member)
{
    if (tar_walk_header_type(w, member) == 'M')
        return tar_walk_member_fault(
            w, -EXDEV, "is the rest of a file that begins in another volume of this tar");
    return tar_walk_member_fault(w, -ENOTBLK, "is of a type that no directory has");
}

static int tar_walk_add_by_type(struct walk *w, const char *path, struct builder_member *member)
{
    const char *target = archive_entry_hardlink(w->entry);
    if (target)
        return tar_walk_add_link(w, path, target, member);
    int r = tar_describe_type(w->entry, member);
    if (r == -ENOTSUP)
        return tar_walk_add_other(w, member);
    return r < 0 ? tar_walk_member_fault(w, r, "is a symbolic link without a target")
                 : tar_walk_add_named(w, path, member);
}

static int tar_walk_restore_minus(struct walk *w, struct builder_member *member)
{
    struct tar_facts facts;
    int r = tar_find_facts(tar_walk_read_tar, w, member->header_offset, member->data_offset,
                           &facts);
    if (r == 0 && facts.has_negative_time) {
        member->mtime_sec = -1;
        member->mtime_nsec = 1000000000 - member->mtime_nsec;
    }
    return tar_walk_unless_gone(w, r);
}

static int tar_walk_apply_globals(struct walk *w, struct builder_member *member)
{
    return tar_walk_unless_gone(w, tar_apply_globals(&w->globals, tar_walk_read_tar, w,
                                                     member->header_offset, member->data_offset,
                                                     member, &w->odd));
}

/*
 * A directory's size is a quota, without data. But GNU tar stores lists of names (D), and what
 * has no type and a name that ends in a slash may be a file with data.
 */
static void tar_walk_read_quota(const struct walk *w, struct builder_member *member)
{
    uint8_t next[TAR_BLOCK_BYTES], type = tar_walk_header_type(w, member);
    if (type == '5' ||
        (type != 'D' && tar_walk_read_tar(w, next, sizeof(next), member->data_offset) == 0 &&
         tar_is_header(next)))
        member->size_bytes = 0;
}

/*
 * Solaris stores holes as zeros and only tells where they are. libarchive takes them for left
 * out when it skips the member's data, and loses its way unless it reads them.
 */
static int tar_walk_fill_holes(struct walk *w, struct builder_member *member)
{
    const void *block;
    size_t len;
    la_int64_t offset;
    struct tar_facts facts;
    int r = tar_find_facts(tar_walk_read_tar, w, member->header_offset, member->data_offset,
                           &facts);
    if (r < 0 || !facts.stores_holes)
        return tar_walk_unless_gone(w, r);
    member->data = DATA_STORED;
    while (!w->taker &&
           archive_read_data_block(w->archive, &block, &len, &offset) == ARCHIVE_OK)
        w->progress->beats++;
    return 0;
}

static int tar_walk_read_member(struct walk *w)
{
    const char *path = archive_entry_pathname(w->entry);
    snprintf(w->last, sizeof(w->last), "%s", path ? path : "");
    struct builder_member member = {
        .size_bytes = (uint64_t)archive_entry_size(w->entry),
        .data_offset = tar_walk_at(w),
        .header_offset = tar_walk_header_at(w),
    };
    tar_describe(w->entry, &member, &w->odd);
    if (archive_entry_size(w->entry) < 0)
        return tar_walk_member_fault(w, -EUCLEAN, "its size is negative");
    bool has_fraction = member.mtime_sec == 0 && member.mtime_nsec > 0;
    if ((has_fraction && tar_walk_restore_minus(w, &member) < 0) ||
        tar_walk_apply_globals(w, &member) < 0 ||
        (member.data == DATA_PIECES && tar_walk_fill_holes(w, &member) < 0))
        return tar_walk_member_fault(w, -EIO, "its extended header can't be read again");

    if (archive_entry_filetype(w->entry) == AE_IFDIR && member.size_bytes > 0)
        tar_walk_read_quota(w, &member);

    uint64_t stored = 0, end = 0;
    int r = tar_walk_find_pieces(w, &member, &stored);
    if (r == 0)
        r = tar_walk_find_data_end(w, &member, stored, &end);
    if (r < 0)
        return r;
    w->expected = (end + TAR_BLOCK_BYTES - 1) & ~(uint64_t)(TAR_BLOCK_BYTES - 1);
    if (w->is_behind)
        return tar_walk_member_fault(w, -ESPIPE,
                                     "lies behind an end-of-archive mark: --ignore-zeros reads "
                                     "on there");
    if (!w->last[0])
        return tar_walk_member_fault(w, -EINVAL, "a member has no name");
    if (w->is_odd)
        return fault_set(w->fault, -EILSEQ, w->last, member.header_offset,
                         "has headers that can't be read (%s)", tar_complaint(w->archive));
    return tar_walk_add_by_type(w, path, &member);
}

static int tar_walk_leave_out(const struct walk *w, const struct fault *why)
{
    return w->taker ? w->taker->leave_out(w->taker->ctx, why)
                    : builder_leave_out(w->builder, why);
}

/* Adds the member just read. A member that can't be shown is left out, without an error. */
static int tar_walk_add_member(struct walk *w)
{
    struct fault *fault = w->fault, own = {0};
    w->fault = &own;
    int r = tar_walk_read_member(w);
    w->fault = fault;
    if (r == -ESPIPE && w->behind_count++ == 0)
        w->behind = own;
    if (r == -ESPIPE && w->taker) /* told at the end, in one line */
        return 0;
    if (builder_may_leave_out(r) && own.err)
        return tar_walk_leave_out(w, &own);
    if (r < 0 && fault && !fault->err)
        *fault = own;
    return r;
}

/* The last member's data has to end where libarchive found the next header. */
static int tar_walk_check_position(struct walk *w)
{
    uint64_t at = tar_walk_header_at(w);
    if (at == w->expected)
        return 0;
    return fault_set(w->fault, -EUCLEAN, w->last, w->expected,
                     "its data ends at %" PRIu64 ", but its size says %" PRIu64
                     ": a kind of tar that is not known, or damaged",
                     at, w->expected);
}

/* The previous member's data has now been read, so its frames are known. */
static int tar_walk_settle(struct walk *w)
{
    if (!w->waits)
        return 0;
    w->waits = false;
    int r = tar_framed_set_pieces(w->framed, w->inode, w->pieces.at, w->pieces.count);
    return r == -EUCLEAN ? tar_walk_member_fault(w, r, "its data is not where it should be")
                         : r;
}

/*
 * Is this a warning about a name that is not ASCII, or about an extended header that a later
 * one replaces? All other warnings mean that something of the member is lost.
 */
static bool tar_walk_is_harmless(struct walk *w)
{
    struct tar_facts facts;
    uint64_t from = tar_walk_header_at(w);
    uint64_t to = tar_walk_at(w);
    return archive_errno(w->archive) == EILSEQ ||
           (tar_find_facts(tar_walk_read_tar, w, from, to, &facts) == 0 && facts.headers > 1 &&
            facts.is_sound);
}

/*
 * Is this a warning about this member alone? libarchive has words for it, but no number. After
 * some other warnings it reads the next members wrongly, too (those about maps of holes).
 */
static bool tar_walk_is_odd(struct walk *w)
{
    static const char *const own[] = {"Ignoring malformed pax", "Malformed Solaris ACL"};
    const char *complaint = tar_complaint(w->archive);
    return strncmp(complaint, own[0], strlen(own[0])) == 0 ||
           strncmp(complaint, own[1], strlen(own[1])) == 0;
}

/*
 * Reads a header. libarchive takes a file whose name ends in a slash for a directory, as the
 * oldest tars have them, and the file's data for headers, which it can't read.
 */
static int tar_walk_next_header(struct walk *w)
{
    int r;
    do {
        r = archive_read_next_header2(w->archive, w->entry);
        w->progress->beats++;
    } while (r == ARCHIVE_RETRY && tar_walk_header_at(w) < w->expected);
    return r;
}

/*
 * Do extended headers end the tar, whose member was never written? libarchive takes that for
 * damage, and other programs for the end.
 */
static bool tar_walk_ends_astray(struct walk *w)
{
    uint8_t block[TAR_BLOCK_BYTES];
    uint64_t end, size = w->stream ? w->given : w->size_bytes;
    if (tar_find_empty_end(tar_walk_read_tar, w, w->expected, size, &end) < 0 ||
        end == w->expected || end > size)
        return false;
    bool has_more = size > end;
    if (has_more &&
        (size - end < sizeof(block) || tar_walk_read_tar(w, block, sizeof(block), end) < 0 ||
         !tar_is_zero(block, sizeof(block))))
        return false;
    tar_walk_remark(
        w, "its end has an extended header at %" PRIu64 " for a member that is not there",
        w->expected);
    w->astray = has_more ? end + sizeof(block) : end;
    return true;
}

/* 1: a member was read; 0: the end. */
static int tar_walk_next_member(struct walk *w)
{
    int r = tar_walk_next_header(w);
    w->is_odd = r == ARCHIVE_WARN && !tar_walk_is_harmless(w);
    if (w->is_odd && !tar_walk_is_odd(w))
        return tar_walk_damaged_header(w);
    if (r == ARCHIVE_FATAL && tar_walk_ends_astray(w))
        r = ARCHIVE_EOF;
    if (r != ARCHIVE_EOF && r != ARCHIVE_WARN && r != ARCHIVE_OK)
        return tar_walk_read_fault(w, r);
    bool is_end = r == ARCHIVE_EOF;
    r = w->astray ? 0 : tar_walk_check_position(w);
    if (r == 0)
        r = tar_walk_settle(w);
    return r < 0 ? r : !is_end;
}

static void tar_walk_tell_progress(struct walk *w)
{
    w->progress->members = w->members;
    if (!w->stream) /* else who reads the file tells it */
        w->progress->bytes_done = w->expected;
}

static int tar_walk_read_members(struct walk *w)
{
    int r = 0;
    while (!w->is_cut && (r = tar_walk_next_member(w)) == 1) {
        r = tar_walk_add_member(w);
        if (r < 0)
            return r;
        w->members++;
        if (w->members % PROGRESS_MEMBERS == 0)
            tar_walk_tell_progress(w);
    }
    tar_walk_tell_progress(w);
    return r < 0 ? r : 0;
}

/* ---- the end ---- */

static const char no_end_marker[] = "it has no end-of-archive marker: members are missing if "
                                    "its writer was interrupted, or its last part is not there";

static int tar_walk_not_empty(struct walk *w, uint64_t offset, const uint8_t *block)
{
    return fault_set_advised(
        w->fault, -EUCLEAN, NULL, offset,
        tar_is_header(block) ? "if it is several tars, joined, read them with --ignore-zeros"
                             : "",
        "begins with zeros, as an empty tar does, but is none: other bytes follow");
}

/*
 * Reads on from `at` to the first block that is not all zeros, or that is a header, within
 * `most` bytes: 1, the block and its place; 0: there is none.
 */
static int tar_walk_pass(struct walk *w, bool to_header, uint64_t at, uint64_t most,
                         uint8_t block[TAR_BLOCK_BYTES], uint64_t *ret_at)
{
    auto_free uint8_t *bytes = malloc(TAIL_SEARCH_BYTES);
    const void *ignored;
    uint64_t begin = at;
    if (!bytes)
        return -ENOMEM;
    while (at - begin < most) {
        size_t len = (size_t)min_u64(
            w->stream ? TAR_BLOCK_BYTES : TAIL_SEARCH_BYTES,
            (w->stream || w->size_bytes < at ? TAR_BLOCK_BYTES : w->size_bytes - at));
        w->progress->beats += at % TAIL_SEARCH_BYTES == 0;
        if (w->stream && at + len > w->given) {
            w->again = w->given;
            if (tar_walk_next_block(w->archive, w, &ignored) <= 0)
                return *w->stream->error;
            continue;
        }
        if (len < TAR_BLOCK_BYTES || (!w->stream && at >= w->size_bytes))
            return 0;
        int r = tar_walk_read_tar(w, bytes, len, at);
        if (r < 0)
            return r == -ENODATA ? 0 : r;
        for (size_t i = 0; i + TAR_BLOCK_BYTES <= len; i += TAR_BLOCK_BYTES)
            if (to_header ? tar_is_header(bytes + i)
                          : !tar_is_zero(bytes + i, TAR_BLOCK_BYTES)) {
                memcpy(block, bytes + i, TAR_BLOCK_BYTES);
                *ret_at = at + i;
                return 1;
            }
        at += len;
    }
    return 0;
}

/*
 * A tar without members is all zeros, but for a label and the like. Disk images and other files
 * may also begin with zeros.
 */
static int tar_walk_check_empty(struct walk *w)
{
    uint64_t begin = 0, at;
    uint8_t block[TAR_BLOCK_BYTES];
    int r = tar_find_empty_end(tar_walk_read_tar, w, 0, w->size_bytes, &begin);
    if (r == 0)
        r = tar_walk_pass(w, false, begin, UINT64_MAX, block, &at);
    if (r != 0)
        return r < 0 ? r : tar_walk_not_empty(w, at, block);
    if (begin > 0 && begin + TAR_BLOCK_BYTES > w->size_bytes)
        tar_walk_remark(w, "%s", no_end_marker);
    if (w->size_bytes == 0)
        tar_walk_remark(w, "it is empty: an archive of nothing, or its writer did not finish");
    if (begin == 0 && w->size_bytes > RECORD_BYTES)
        tar_walk_remark(
            w, "it holds nothing but zeros: an empty tar, or a file that was never written");
    return 0;
}

/* Does a block of zeros end the tar that was read? */
static int tar_walk_has_end_marker(const struct walk *w, bool *ret_has)
{
    uint8_t block[TAR_BLOCK_BYTES];
    uint64_t end = tar_walk_at(w);
    *ret_has = false;
    if (end < w->expected + TAR_BLOCK_BYTES || end > (w->stream ? w->given : w->size_bytes))
        return 0;
    int r = tar_walk_read_tar(w, block, sizeof(block), end - sizeof(block));
    *ret_has = r == 0 && tar_is_zero(block, sizeof(block));
    if (r == -ENODATA && w->framed) { /* it was passed long ago: more data follows */
        *ret_has = true;
        return 0;
    }
    return r;
}

/*
 * Behind the end marker, which zeros may follow as tar's padding: 1: another tar begins at
 * w->base; 0: nothing does. tar ignores bytes that are no header, and all behind them;
 * but an index may be there, as in archives of onepot, and --ignore-zeros goes on to a header.
 */
static int tar_walk_go_on(struct walk *w)
{
    static const char index_magic[] = "onepotIX";
    const uint64_t most = w->ignores_zeros || w->taker ? UINT64_MAX : PADDING_MOST;
    uint8_t block[TAR_BLOCK_BYTES];
    uint64_t at, begin;
    begin = max_u64(tar_walk_at(w), w->base + TAR_BLOCK_BYTES);
    int r = tar_walk_pass(w, false, begin, most, block, &at);
    if (r <= 0)
        return r;
    if (!w->members && !w->last[0] && !w->ignores_zeros)
        return tar_walk_not_empty(w, at, block);
    bool is_index = memcmp(block, index_magic, strlen(index_magic)) == 0;
    bool is_rubbish = !is_index && !tar_is_header(block);
    if (is_rubbish && !w->ignores_zeros)
        return 0;
    begin = at;
    r = tar_walk_pass(w, true, at, most, block, &at);
    if (r >= 0 && is_rubbish) {
        struct fault why = {0};
        fault_set(&why, -EILSEQ, w->last, begin,
                  "is followed by bytes that are no tar: members may be missing");
        int err = tar_walk_leave_out(w, &why);
        r = err < 0 ? err : r;
    }
    if (r <= 0)
        return r;
    w->base = w->expected = w->again = at;
    w->has_joined |= w->ignores_zeros;
    w->is_behind = !w->ignores_zeros;
    return 1;
}

/*
 * libarchive ends at a block of zeros, or where there is nothing more. Without members, no more
 * than a label and extended headers may come before that.
 */
static int tar_walk_check_stream_end(struct walk *w)
{
    uint64_t begin = w->expected;
    int r = w->members ? 0 : tar_find_empty_end(tar_walk_read_tar, w, 0, w->given, &begin);
    if (r == -ENODATA) /* so much came before */
        return 0;
    if (r == 0 && w->given < begin + TAR_BLOCK_BYTES)
        return fault_set_advised(w->fault, -EUCLEAN, w->last, w->given,
                                 "send it again; if it was made so, pack it from a file",
                                 "%s end-of-archive marker: the stream was cut off",
                                 w->members ? "is followed by the end of the stream, without an"
                                            : "has no");
    return r;
}

/* As tar_walk_go_on, with a remark if the marker is missing. Of a stream that is an error. */
static int tar_walk_end(struct walk *w)
{
    bool has_marker = false;
    if (w->is_cut || (!w->members && !w->ignores_zeros && !w->taker))
        return 0;
    int r = tar_walk_has_end_marker(w, &has_marker);
    if (r < 0)
        return r;
    if (w->taker)
        r = tar_walk_check_stream_end(w);
    else if (!has_marker && !w->is_behind)
        tar_walk_remark(w, "%s", no_end_marker);
    return r == 0 && (has_marker || w->taker) ? tar_walk_go_on(w) : r;
}

static void tar_walk_note_oddities(struct walk *w)
{
    if (w->odd.owners)
        tar_walk_remark(w, "owners that do not fit are shown as %d", TAR_NOBODY);
    if (w->odd.acls)
        tar_walk_remark(w, "access lists with users without a number are not shown");
    if (w->globals.has_others)
        tar_walk_remark(w, "global headers with more than times and owners are not applied");
}

static void tar_walk_disconnect(struct walk *w)
{
    archive_entry_free(w->entry);
    if (w->archive)
        archive_read_free(w->archive);
    w->entry = NULL;
    w->archive = NULL;
    tar_feed_close(&w->feed);
}

/* Connects libarchive to the bytes of the tar at w->base. */
static int tar_walk_connect(struct walk *w)
{
    tar_walk_disconnect(w);
    w->astray = 0;
    w->archive = archive_read_new();
    w->entry = w->archive ? archive_entry_new2(w->archive) : NULL;
    if (!w->entry)
        return -ENOMEM;
    tar_set_format(w->archive);
    int r = 0;
    if (!w->stream) {
        r = tar_feed_open(&w->feed, w->source, w->base, 0, w->archive);
    } else {
        archive_read_set_read_callback(w->archive, tar_walk_next_block);
        archive_read_set_callback_data(w->archive, w);
        r = archive_read_open1(w->archive) == ARCHIVE_OK ? 0 : -EUCLEAN;
    }
    return r == -EUCLEAN ? tar_walk_read_fault(w, ARCHIVE_FATAL) : r;
}

/* Nothing behind the end marker makes the archive bad, but for its bytes that can't be had. */
static int tar_walk_forgive(struct walk *w, int r)
{
    bool is_unread = w->feed.err < 0 || (w->stream && *w->stream->error < 0);
    if (r != -EUCLEAN || is_unread)
        return r;
    if (w->fault)
        *w->fault = (struct fault){0};
    return 0;
}

/* Members behind the end marker are told one by one, but for a taker, which wants a line. */
static int tar_walk_tell_behind(struct walk *w)
{
    if (w->behind_count == 0)
        fault_set(&w->behind, -ESPIPE, w->last, w->base,
                  "is followed by an end-of-archive mark, and by more that can't be read");
    else if (w->behind_count > 1)
        snprintf(w->behind.what, sizeof(w->behind.what),
                 "lies behind an end-of-archive mark, and so do %" PRIu64
                 " more members: --ignore-zeros reads on there",
                 w->behind_count - 1);
    return w->taker || w->behind_count == 0 ? tar_walk_leave_out(w, &w->behind) : 0;
}

/* Reads all tars that are joined, or counts the members behind the first one's end. */
static int tar_walk_read_tars(struct walk *w)
{
    int r;
    do {
        r = tar_walk_connect(w);
        if (r == 0)
            r = tar_walk_read_members(w);
        if (r == 0)
            r = tar_walk_end(w);
        if (w->is_behind)
            r = tar_walk_forgive(w, r);
    } while (r == 1);
    return r == 0 && w->is_behind ? tar_walk_tell_behind(w) : r;
}

static int tar_walk_archive(struct walk *w)
{
    if (w->size_bytes == 0)
        return tar_walk_check_empty(w);
    int r = tar_walk_read_tars(w);
    if (r == 0 && w->members == 0)
        return w->framed ? -ENOTSUP : tar_walk_check_empty(w);
    if (r == 0)
        tar_walk_note_oddities(w);
    return r;
}

/* Calls `read` with libarchive's objects, in the C locale. */
static int tar_walk_run(struct walk *w, int (*read)(struct walk *w))
{
    int r = -ENOMEM;
    locale_t c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (c_locale) {
        locale_t before = uselocale(c_locale);
        r = read(w);
        uselocale(before);
        freelocale(c_locale);
    }
    tar_walk_disconnect(w);
    vector_free(&w->pieces);
    return r;
}

/* Walks through the tar in the source: the source itself, or the content of its frames. */
static int tar_walk_source(struct source *source, struct tar_framed *framed,
                           struct builder *builder, struct builder_header *header,
                           struct progress *progress, struct fault *fault)
{
    auto_free struct walk *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->source = source;
    w->framed = framed;
    w->size_bytes = framed ? UINT64_MAX : source_size(source);
    w->builder = builder;
    w->ignores_zeros = header->ignores_zeros;
    w->progress = progress;
    w->fault = fault;
    struct tar_stream frames;
    if (framed) {
        frames = tar_framed_stream(framed);
        w->stream = &frames;
    }
    progress->bytes_total = source_size(source);
    int r = tar_walk_run(w, tar_walk_archive);
    header->has_joined = w->has_joined;
    /*
     * Not a tar: unpacking finds better words for that. But a damaged frame is reported here.
     */
    bool is_none = framed && *w->stream->error != -EUCLEAN && w->members == 0;
    return r == -EUCLEAN && is_none ? -ENOTSUP : r;
}

/* ---- a stream ---- */

/* Reads the rest of the stream. */
static int tar_walk_drain(struct walk *w)
{
    const void *ignored;
    w->again = w->given;
    while (tar_walk_next_block(w->archive, w, &ignored) > 0)
        w->progress->beats++;
    return *w->stream->error;
}

static int tar_walk_stream(struct walk *w)
{
    int r = tar_walk_read_tars(w);
    if (r == 0)
        r = tar_walk_drain(w);
    if (r == 0)
        tar_walk_note_oddities(w);
    return r;
}

int tar_take_members(const struct tar_stream *stream, const struct tar_taker *taker,
                     bool ignores_zeros, struct progress *progress, struct fault *fault)
{
    auto_free struct walk *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->stream = stream;
    w->taker = taker;
    w->ignores_zeros = ignores_zeros;
    w->size_bytes = UINT64_MAX;
    w->progress = progress;
    w->fault = fault;
    return tar_walk_run(w, tar_walk_stream);
}

static int tar_index(struct source *source, struct builder *builder,
                     struct builder_header *header, struct progress *progress,
                     struct fault *fault)
{
    header->codec = CODEC_NONE;
    header->block_bytes = 0;
    return tar_walk_source(source, NULL, builder, header, progress, fault);
}

static int tar_index_packed(struct source *source, const char *compression,
                            struct helpers *helpers, uint64_t *left_bytes,
                            struct builder *builder, struct builder_header *header,
                            struct progress *progress, struct fault *fault)
{
    struct tar_framed *framed;
    int r = tar_framed_new(source, compression, helpers, left_bytes, builder, progress, fault,
                           &framed);
    if (r < 0)
        return r;
    r = tar_walk_source(source, framed, builder, header, progress, fault);
    if (r == 0)
        r = tar_framed_finish(framed, header);
    tar_framed_free(framed);
    return r;
}

static const char *const endings[] = {".tar", ".tgz", ".tbz2", ".txz", NULL};

static const struct backend_stream tar_stream = {
    .is_packed = tar_is_packed,
    .unpack = tar_unpack,
    .index_packed = tar_index_packed,
};

static const struct backend_trailer tar_trailer = {.check_end = tar_check_end};

const struct backend backend_tar = {
    .name = "tar",
    .file = "a tar",
    .endings = endings,
    .number = 1,
    .probe = tar_probe,
    .is_whole = tar_is_whole,
    .continues = tar_continues,
    .find_behind = tar_find_behind,
    .index = tar_index,
    .stream = &tar_stream,
    .trailer = &tar_trailer,
};
